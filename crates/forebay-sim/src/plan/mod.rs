//! The plan of a run: devices, volumes, settings, workload and faults that follow from a seed.
//!
//! Everything about a run follows from the seed (and the planted bug, if there is one, which pulls
//! the plan towards the situations in which it shows). Swarm testing: every run has its own
//! mixture, in which many things do not happen at all, so that what does happen happens often.

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
