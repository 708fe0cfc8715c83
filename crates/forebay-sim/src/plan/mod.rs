//! The plan of a run: devices, volumes, settings, workload and faults that follow from a seed.
//!
//! The seed determines everything about a run (with the planted bug, if there is one, which leads
//! the plan to the situations that reveal it). Swarm testing: every run has its own mixture,
//! without many kinds of events, so that the others occur often.

mod bugs;
mod cipher;
mod copying;
mod draw;
mod in_use;
mod late_starts;
mod mirror;
mod scale;
mod seed;
mod situations;
mod truncation;
mod types;

pub(crate) use draw::{endurance_budget, pool_settings, settings};
pub(crate) use truncation::BRIEF_NS;
pub use types::{
    CipherPlan, CopyPlan, FaultPlan, LateStartPlan, MirrorPlan, Mix, OwnerPlan, Plan, Scale, StallPlan,
    Style, TruncatedDevice, TruncationPlan, VolumePlan,
};
