//! The Forebay cache engine: a deterministic state machine, `(now, event) -> actions`.
//!
//! It makes no system call, reads no clock, draws no random number and sees no payload byte. The daemon's runner and
//! the simulator drive the same engine by the same rules, which are in [`api`]. What the engine promises, and the
//! numbered invariants (I1, I2, …) that the code refers to, are in `ARCHITECTURE.md`.
//!
//! Where to look: `engine` (state, events, settling), `read`, `write`, `merge` and `direct` (life of a request), `append`
//! (the log), `flush` (what durable means), `destage` with `order`, `ordered` (with `waiting`, `shadow`) and `control`, `reclaim`,
//! `policy`, `admission`, `shares`, `throttle`, `checkpoint`, `aside` (when the cache device fails), `recovery` with `scan` and `attach`; the structures are `map` (with
//! `index`, `segment`, `ages`, `bitset`), `bucket`, `locks`, `pages`, `recent`, `flows` and `slab`.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod admission;
mod ages;
pub mod api;
mod append;
mod aside;
mod attach;
mod bitset;
mod bucket;
mod checkpoint;
pub mod config;
mod control;
mod cost;
mod counters;
mod create;
mod destage;
mod direct;
mod engine;
mod extent;
pub mod fault;
mod flows;
mod flush;
mod gather;
mod index;
mod landmarks;
mod life;
mod life_attach;
mod life_detach;
mod life_resize;
mod load;
mod locks;
mod map;
mod merge;
mod mirror;
mod order;
mod ordered;
mod pages;
mod patience;
mod policy;
mod pool;
mod read;
mod recent;
mod reclaim;
mod recovery;
mod renew;
mod report;
mod scan;
mod scrub;
mod segment;
pub mod settings;
mod shadow;
mod shares;
mod slab;
mod stats;
mod throttle;
mod volume;
mod waiting;
mod write;

pub use api::*;
pub use aside::{AtRisk, RiskWalk};
pub use config::*;
pub use counters::VolumeStats;
pub use create::{format_cache, format_mirrored};
pub use engine::{Engine, Status};
pub use fault::PlantedBug;
pub use landmarks::{Landmark, Landmarks};
pub use life::LifeError;
pub use life_detach::DetachHow;
pub use mirror::{MirrorDevices, MirrorState};
pub use recovery::OpenError;
pub use report::{DestageReport, Drain, Limit};
pub use scrub::ScrubReport;
pub use settings::*;
pub use stats::Stats;
