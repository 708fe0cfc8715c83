//! The FlashCache model: a model of the published algorithm of FlashCache (not its code), to
//! compare Forebay with.
//!
//! It shares Forebay's I/O layer (reactor, devices, emulated disk) and the servers of its exports,
//! and nothing of its engine: sets of blocks, a metadata write for each block that becomes dirty or
//! clean, whole blocks only, cleaning by a threshold for each set. What is modelled, from which
//! facts, and what is left out and in whose favour: `docs/results/flashcache-model.md`.
//!
//! [`Model`] is a deterministic state machine without system calls: [`api`] says what goes in and
//! comes out. [`plug`] joins adjacent operations as the kernel's block layer does. [`volume`]
//! carries actions out on a reactor, [`open`] opens devices.
//!
//! It does not recover after a crash: a start begins with an empty cache. An orderly stop cleans
//! everything, so that the backing store is complete.
#![forbid(unsafe_code)]

pub mod api;
mod clean;
pub mod config;
mod counters;
mod lru;
mod metadata;
mod model;
pub mod open;
pub mod plug;
mod slab;
mod table;
pub mod volume;
mod zero;

pub use counters::Counters;
pub use metadata::META_BYTES;
pub use model::Model;
pub use model::Stopped;
