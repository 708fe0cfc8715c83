//! The FlashCache model: a model of the published algorithm of FlashCache (not its code), for
//! comparison with Forebay.
//!
//! It shares Forebay's I/O layer (reactor, devices, emulated disk) and the servers of its exports,
//! but not its engine: sets of blocks, a metadata write for each block that becomes dirty or clean,
//! whole blocks only, cleaning by a threshold for each set. `docs/results/flashcache-model.md`
//! describes the model, its sources, and its omissions with the side that they favour.
//!
//! [`Model`] is a deterministic state machine without system calls: [`api`] defines its inputs and
//! outputs. [`plug`] joins adjacent operations as the kernel's block layer does. [`volume`]
//! performs actions on a reactor, [`open`] opens devices.
//!
//! It does not recover after a crash: a start begins with an empty cache. An orderly stop cleans
//! all dirty blocks, so that the backing store is complete.
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
