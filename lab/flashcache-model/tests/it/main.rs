//! All integration tests of this crate, in one executable: linking takes longer than running most.
#[path = "../../../../crates/forebay-sim/tests/it/figures/mod.rs"]
mod figures;
#[path = "../../examples/flash-bench/flashcache.rs"]
mod flashcache;

mod flash;
mod rules;
mod simulation;
