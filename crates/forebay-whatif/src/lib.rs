//! The effect of another cache on a trace: the engine of the daemon in virtual time, on models of
//! its devices.
//!
//! The modules, in the order of their imports: `plan` (the parameters of a try), `devices` (models
//! of flash and disk), `machine` (engine and devices), `figures` (the results), `client` (the
//! requests of the trace, their arrival times and concurrency).
//!
//! Invariants
//! - No code reads a clock or uses randomness: the same plan and trace give the same figures.
//! - The model of the processor is limited: each reply takes the same time of it, one after the
//!   other ([`Plan::processor_ns`]), and has its own time in addition ([`Plan::path_ns`]).
#![forbid(unsafe_code)]

mod client;
mod devices;
mod figures;
mod machine;
mod plan;

pub use client::{MadeTrace, run};
pub use devices::{DiskKind, FlashTimes};
pub use figures::{Figures, PathFigures};
pub use forebay_core::RequestOutcome;
pub use plan::{Pace, Plan, PlanError};
