//! The simulator: runs the engine on simulated devices with injected faults and crashes, and judges
//! whether it keeps its promises.
//!
//! A run is a series of seeds. A seed determines everything: the devices, the settings, the
//! workload, the faults, the crash points and their continuation ([`plan`]). Each seed runs in a
//! [`world`] of virtual time, around one engine at a time, with devices that have volatile caches
//! ([`device`]) and an [`oracle`] that knows the legal contents of every sector.
//! `docs/internals/simulation.md` describes the faults, the checks, and the limits of the model.
//!
//! Models for figures, without faults, are in the tests and examples that use them
//! (`tests/it/figures`).
//!
//! Invariant: same options, same report (except for the run time), on every machine.
#![forbid(unsafe_code)]

mod ensure;

// Randomness, and contents of devices.
pub mod content;
pub mod image;
pub mod rng;

// Devices and memory.
pub mod device;
mod log_account;
pub mod memory;

// The plan of a run.
pub mod plan;

// Judges.
mod counter_check;
mod counters;
mod destage_check;
mod endurance_check;
pub mod oracle;

// The world around one engine: devices, state that survives a crash, starts, owner, clients,
// operator.
mod at_rest;
mod cipher;
pub mod disks;
mod lost_extension;
mod start;
pub mod world;

// Runs: crash points and exploration.
mod violation;
pub mod workload;

pub mod explore;
pub mod run;

pub mod exhaustive;
pub mod hostile;
pub mod shrink;

pub mod crashed;

pub use counters::{Counters, CoverageCounts};
pub use forebay_core::{PlantedBug, fault};
pub use run::{Progress, Report, SimOptions, Violation, run};
