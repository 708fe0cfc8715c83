//! The Forebay cache engine: a deterministic state machine, `(now, event) -> actions`.
//!
//! It makes no system call, reads no clock, draws no random number and sees no payload byte. The
//! thread of a pool and the simulator drive the same engine by the same rules, which are in
//! [`api`]. `ARCHITECTURE.md` has the guarantees of the engine and the numbered invariants (I1, I2,
//! …) that the code refers to.
//!
//! The modules, in the order of their imports: a module uses those above it.
//!
//! - `base`: data structures that are independent of the cache
//! - `api`: input and output of the engine: requests, events, actions, settings, counters
//! - `fault`: planted bugs, for tests
//! - `device_copy`: copies a cache device to another one; for the owner, not part of the engine
//! - `map`: location and state of each cached block
//! - `policy`: the reclaim policies, for the engine and for the miss-ratio curve
//! - `context`: state that all parts share
//! - `log`: appends to the cache device, and the flushes that make them durable
//! - `mirror`: dirty data on two devices
//! - `checkpoint`: snapshots of the map, and the append window that each one opens
//! - `discard`: discards of empty segments on the cache device
//! - `destage`: writes dirty blocks back, and controls the rate
//! - `reclaim`: empties segments for reuse
//! - `failure`: continues without a failed cache device
//! - `request`: life of a read, a write, a merge, a bypass write
//! - `lifecycle`: attaches, detaches and resizes volumes; resizes pools
//! - `scrub`: reads all cached blocks to find damage
//! - `recovery`: rebuilds a trustworthy map from the bytes of the device
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
mod policy;
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
