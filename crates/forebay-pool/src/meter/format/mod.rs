//! Statistics as text for programs. The command line tool makes tables for people from the JSON.
//!
//! All formats are made from the lists of `counters` and from [`super::TimedPath`],
//! [`super::Window`] and [`super::AGE_BOUNDS`], so a number that is added there appears everywhere.

pub mod exposition;
pub mod flashcache;
mod json;
mod prometheus;

pub use json::{object, schema};
pub use prometheus::families;

/// Bytes of a block.
pub(super) const BLOCK: u64 = forebay_format::BLOCK_BYTES as u64;
