//! The simulator: runs the engine on simulated devices with injected faults and crashes, and judges
//! whether it keeps its promises.
//!
//! A run is a row of seeds. A seed determines everything: the devices, the settings, the workload,
//! the faults, the crash points and what happens after them ([`plan`]). Each seed is run in a
//! [`world`] of virtual time, around one engine at a time, with devices that have volatile caches
//! ([`device`]) and an [`oracle`] that knows what every sector may hold.
//! `docs/internals/simulation.md` describes the faults, the checks, and what is not modelled.
//!
//! Models for figures, without faults, are with the tests and examples that use them
//! (`tests/it/figures`).
//!
//! Invariant: same options, same report (but for the time it took), on every machine.
#![forbid(unsafe_code)]

mod ensure;

// What is drawn, and what devices hold.
pub mod content;
pub mod image;
pub mod rng;

// Devices and memory.
pub mod device;
mod dirty_slots;
pub mod memory;

// The plan of a run.
pub mod plan;

// Judges.
mod counter_check;
mod counters;
mod destage_check;
mod endurance_check;
pub mod oracle;

// The world around one engine: devices, what survives a crash, starts, owner, clients, operator.
mod at_rest;
mod cipher;
pub mod disks;
mod lost_extension;
mod start;
pub mod world;

// Runs: where the crashes are, and what is made of them.
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
