//! The simulator: runs the engine on simulated devices with injected faults and crashes, and judges
//! whether it keeps its promises.
//!
//! A run is a row of seeds. A seed determines everything: the devices, the settings, the workload,
//! the faults, the crash points and what happens after them ([`plan`]). Each seed is run in a
//! [`world`] of virtual time, around one engine at a time, with devices that have volatile caches
//! ([`device`]) and an [`oracle`] that knows what every sector may hold.
//! `docs/internals/simulation.md` describes the faults, the checks, and what is not modelled.
//!
//! Beside that, [`machine`] runs the engine with modelled devices, without faults, for figures;
//! [`ftl`] is the inside of a flash device, [`cards`] are two that were measured, and [`layout`]
//! feeds it with what caches write.
//!
//! Invariant: same options, same report (but for the time it took), on every machine.
#![forbid(unsafe_code)]

// What is drawn, and what devices hold.
pub mod content;
pub mod image;
pub mod rng;
pub mod zipf;

// Devices.
pub mod arm;
pub mod cards;
pub mod device;
pub mod ftl;

// The plan of a run.
pub mod plan;
pub mod scale;

// The world around one engine: its owner, its clients, its operator, and what happens to them.
pub mod actions;
pub mod cipher;
pub mod client;
pub mod late_starts;
pub mod lifecycle;
pub mod memory;
pub mod mirror;
pub mod owner;
pub mod places;
mod scrub;
pub mod truncation;
pub mod workload;
pub mod world;

// Judges.
mod counter_check;
pub mod oracle;
pub mod order;
pub(crate) mod pace;

// Runs: where the crashes are, and what is made of them.
pub mod crashed;
pub mod exhaustive;
pub mod explore;
pub mod hostile;
pub mod shrink;

// Figures, without faults.
pub mod layout;
pub mod machine;

pub use forebay_core::{PlantedBug, fault};
pub use world::{Counters, CoverageCounts};

use explore::Run;
use rng::Digest;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// First seed.
    pub seed: u64,
    /// Crash points to try, over as many seeds as it takes.
    pub crashes: u64,
    /// A bug to plant in the engine.
    pub bug: Option<PlantedBug>,
    /// Stop after so many violations.
    pub violations_max: usize,
    /// Print every event to the error output.
    pub verbose: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 1, crashes: 10_000, bug: None, violations_max: 5, verbose: false }
    }
}

/// How far a run is; handed out after every seed.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The seed that has just ended.
    pub seed: u64,
    /// Crash points tried so far.
    pub crash_points: u64,
    /// Crash points to try.
    pub crashes: u64,
    /// Violations so far.
    pub violations: usize,
}

/// The engine broke its promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the main line.
    pub step: u64,
    /// Crash points of the seed until then.
    pub crash_point: u64,
    /// What was wrong.
    pub what: String,
    /// Command that shows it again.
    pub replay_command: String,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash points tried.
    pub crash_points: u64,
    /// Seeds run.
    pub seeds: u64,
    /// What was wrong.
    pub violations: Vec<Violation>,
    /// What was done.
    pub counters: Counters,
    /// Hash of every action, completion and reply.
    pub digest: u64,
}

/// Runs seeds, from the first one on, until enough crash points were tried or there are too many
/// violations.
pub fn run(options: &SimOptions, progress: &mut dyn FnMut(&Progress)) -> Report {
    let _planting = fault::plant(options.bug);
    let mut report = Report::default();
    let mut digest = Digest::default();
    let mut seed = options.seed;
    while report.crash_points < options.crashes && report.violations.len() < options.violations_max {
        let mut run = Run::new(seed, options.bug, options.crashes - report.crash_points, options.verbose);
        let outcome = catch_unwind(AssertUnwindSafe(|| run.go()));
        let what = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some(what),
            Err(panic) => Some(panic_message(panic.as_ref())),
        };
        report.crash_points += run.crash_points;
        report.seeds += 1;
        report.counters.add(&run.counters);
        digest.add_all(&[seed, run.crash_points, run.digest.0, u64::from(what.is_some())]);
        report.violations.extend(what.map(|what| violation(options, seed, &run, what)));
        progress(&Progress {
            seed,
            crash_points: report.crash_points,
            crashes: options.crashes,
            violations: report.violations.len(),
        });
        seed += 1;
    }
    report.digest = digest.0;
    report
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

fn violation(options: &SimOptions, seed: u64, run: &Run, what: String) -> Violation {
    let planted = options.bug.map(|bug| format!(" --break {}", bug.name())).unwrap_or_default();
    let crashes = run.crash_points + 1;
    Violation {
        seed,
        step: run.step,
        crash_point: run.crash_points,
        what,
        replay_command: format!("forebay sim --seed {seed} --crashes {crashes}{planted}"),
    }
}
