//! Life of a request: it is admitted or throttled, then read, written through the log, merged, or
//! written past the cache.

pub(crate) mod admission;
pub(crate) mod direct;
pub(crate) mod merge;
pub(crate) mod read;
pub(crate) mod sequential;
pub(crate) mod throttle;
pub(crate) mod write;
