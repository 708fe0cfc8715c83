//! Structures that know nothing of a cache.

pub(crate) mod bitset;
pub(crate) mod bucket;
pub(crate) mod slab;
