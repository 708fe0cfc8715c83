//! The log: appends to the cache device, and the flushes that make them durable.

pub(crate) mod append;
pub(crate) mod batch_delay;
pub(crate) mod flush;
