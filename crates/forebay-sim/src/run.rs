//! Runs of seeds, until enough crash points were tried or there are too many violations.

use crate::counters::Counters;
use crate::explore::Run;
use crate::rng::Digest;
use crate::violation::{caught, planted_option};
use forebay_core::{PlantedBug, fault};

/// The parts to simulate.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// First seed.
    pub seed: u64,
    /// Crash points to try, over as many seeds as needed.
    pub crashes: u64,
    /// A bug to plant in the engine; plans are led to the situation that reveals it.
    pub bug: Option<PlantedBug>,
    /// Plans are led to the situation of this bug, which is not planted: the engine must be right
    /// there. No effect together with `bug`.
    pub aim: Option<PlantedBug>,
    /// Violations after which to stop.
    pub violations_max: usize,
    /// Prints every event to standard error.
    pub verbose: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 1, crashes: 10_000, bug: None, aim: None, violations_max: 5, verbose: false }
    }
}

/// The progress of a run, reported after every seed.
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

/// A broken promise of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the main line.
    pub step: u64,
    /// Crash points of the seed so far.
    pub crash_point: u64,
    /// The violation.
    pub what: String,
    /// Command that reproduces it.
    pub replay_command: String,
}

/// The results.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash points tried.
    pub crash_points: u64,
    /// Seeds run.
    pub seeds: u64,
    /// The violations.
    pub violations: Vec<Violation>,
    /// Counters of all worlds.
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
        let situation = options.bug.or(options.aim);
        let mut run = Run::new(seed, situation, options.crashes - report.crash_points, options.verbose);
        let what = caught(|| run.go());
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
        seed = seed.wrapping_add(1);
    }
    report.digest = digest.0;
    report
}

fn violation(options: &SimOptions, seed: u64, run: &Run, what: String) -> Violation {
    let led = options.aim.filter(|_| options.bug.is_none());
    let led = led.map_or_else(|| planted_option(options.bug), |aim| format!(" --aim {}", aim.name()));
    let crashes = run.crash_points + 1;
    Violation {
        seed,
        step: run.step,
        crash_point: run.crash_points,
        what,
        replay_command: format!("forebay-sim --seed {seed} --crashes {crashes}{led}"),
    }
}
