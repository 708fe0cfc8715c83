//! The Forebay cache engine: a deterministic state machine, `(now, event) -> actions`.
//!
//! It makes no system call, reads no clock, draws no random number and sees no payload byte. The
//! daemon's runner and the simulator drive the same engine by the same rules, which are in [`api`].
//! What the engine promises, and the numbered invariants (I1, I2, …) that the code refers to, are
//! in `ARCHITECTURE.md`.
//!
//! The rooms, in the order of their imports: a room uses those above it.
//!
//! - `base`: structures that know nothing of a cache
//! - `api`: what enters and leaves the engine: requests, events, actions, settings, counters
//! - `fault`: planted bugs, for tests
//! - `device_copy`: a cache device is copied onto another one, for the owner: no part of the engine
//! - `map`: which block is where, and what it is worth
//! - `context`: what all parts share
//! - `log`: appending to the cache device, and the flushes that make it durable
//! - `mirror`: dirty data on two devices
//! - `checkpoint`: snapshots of the map, and the window of segments that each one opens
//! - `discard`: telling the device about segments that hold nothing
//! - `destage`: writing dirty blocks back, and how fast
//! - `reclaim`: emptying segments so that they can be written again
//! - `failure`: going on without a cache device that has failed
//! - `request`: life of a read, a write, a merge, a write past the cache
//! - `lifecycle`: volumes come, go and change their size; so do pools
//! - `scrub`: reading everything to find damage
//! - `recovery`: from bytes on a device to a map that can be trusted
//! - `engine`: events in, actions out
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
mod base;
mod checkpoint;
mod context;
mod destage;
pub mod device_copy;
mod discard;
mod engine;
mod failure;
pub mod fault;
mod lifecycle;
mod log;
mod map;
mod mirror;
mod reclaim;
mod recovery;
mod request;
mod scrub;

pub use api::config::*;
pub use api::curve::{CURVE_EIGHTHS, CURVE_POINTS, CurvePoint, MissRatioCurve};
pub use api::destage::{DestageReport, Drain, Limit};
pub use api::endurance::{EnduranceBudget, EnduranceReport, Restraint};
pub use api::lifecycle_error::LifecycleError;
pub use api::open_error::OpenError;
pub use api::settings::*;
pub use api::stats::{ScrubReport, Stats};
pub use api::written::WrittenBytes;
pub use api::*;
pub use checkpoint::create::{format_cache, format_mirrored};
pub use context::Status;
pub use context::counters::VolumeStats;
pub use context::coverage::{CoverageMark, CoverageMarks};
pub use engine::Engine;
pub use failure::{AtRisk, RiskWalk};
pub use fault::PlantedBug;
pub use lifecycle::detach::DetachHow;
pub use mirror::MirrorState;
pub use recovery::mirrored::MirrorDevices;
