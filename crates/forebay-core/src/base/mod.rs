//! Data structures independent of the cache.

pub(crate) mod bitset;
pub(crate) mod bucket;
pub(crate) mod slab;
