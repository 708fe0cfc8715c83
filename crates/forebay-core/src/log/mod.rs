//! The log: what is appended to the cache device, and which flush makes it durable.

pub(crate) mod append;
pub(crate) mod batch_delay;
pub(crate) mod flush;
