//! All integration tests of this crate, in one executable: linking takes longer than running most
//! of them.
#[path = "../../examples/traces/exact.rs"]
mod exact;
mod rig;

mod allocations;
mod checkpoints;
mod curve;
mod damage;
mod destage;
mod discards;
mod ends;
mod endurance;
mod errors;
mod exact_policies;
mod fills;
mod freed;
mod lifecycle;
mod limits;
mod memory;
mod mirrored;
mod ordered;
mod partial;
mod policies_life;
mod rare_paths;
mod reopened;
mod room;
mod shares;
mod steady;
mod streams;
mod summaries;
mod window;
mod without_cache;
mod work;
mod yields;
