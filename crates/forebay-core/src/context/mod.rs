//! What all parts of the engine share: locks, pages, volumes, counters, coverage marks.

pub(crate) mod counters;
pub(crate) mod coverage;
pub(crate) mod locks;
pub(crate) mod pages;
pub(crate) mod volume;
