//! All integration tests of this crate, in one executable: linking takes longer than running most.
mod figures;
mod recorded;
#[path = "../../examples/pacing/rig.rs"]
mod rig;
mod workers;

mod coverage;
mod disk;
mod elsewhere;
mod exhaustive;
mod hostile;
mod liveness;
mod pacing;
mod seeds;
mod shrink;
mod slice;
