//! The Forebay cache engine: a deterministic state machine, `(now, event) -> actions`.
//!
//! It makes no system call, reads no clock, draws no random number and sees no payload byte. The daemon's runner and
//! the simulator drive the same engine by the same rules, which are in [`api`]. What the engine promises, and the
//! numbered invariants (I1, I2, …) that the code refers to, are in `ARCHITECTURE.md`.
//!
//! Where to look: `engine` (state, events, settling), `read`, `write`, `merge` and `direct` (life of a request), `append`
//! (the log), `flush` (what durable means), `destage`, `ordered` (with `waiting`), `reclaim`, `policy`, `throttle`, `checkpoint`, `recovery`
//! with `scan` and `attach`; the structures are `map` (with `index`, `segment`, `bitset`), `locks`, `pages` and `slab`.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
mod append;
mod attach;
mod bitset;
mod checkpoint;
pub mod config;
mod create;
mod destage;
mod direct;
mod engine;
mod flush;
mod index;
mod locks;
mod map;
mod merge;
mod ordered;
mod pages;
mod policy;
mod read;
mod reclaim;
mod recovery;
mod scan;
mod segment;
pub mod settings;
mod shadow;
mod slab;
mod stats;
mod throttle;
mod volume;
mod waiting;
mod write;

pub use api::*;
pub use config::*;
pub use create::format_cache;
pub use engine::{Engine, Status};
pub use recovery::OpenError;
pub use settings::*;
pub use stats::Stats;
