//! What another cache would make of a trace: the engine of the daemon in virtual time, on models of
//! its devices.
//!
//! The modules, in the order of their imports: `plan` (what to try), `devices` (models of flash and
//! disk), `machine` (engine and devices), `figures` (what is measured), `client` (the requests of
//! the trace, when they come, and how many at once).
//!
//! Invariants
//! - Nothing reads a clock or draws a number: the same plan and trace give the same figures.
//! - Of a processor only so much is modelled: each answer needs the same time of it, one after the
//!   other ([`Plan::processor_ns`]), and has a time of its own beside ([`Plan::path_ns`]).
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
