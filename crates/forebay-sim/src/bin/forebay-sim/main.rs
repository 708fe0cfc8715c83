//! The simulator as a program. It is not installed, and its build does not need the daemon.
//!
//! Exit code: 0 without violations, 1 with violations, also of a planted bug, 2 for wrong
//! arguments.

#![forbid(unsafe_code)]

mod options;
mod report;

use clap::Parser;
use forebay_sim::exhaustive::{ExhaustiveOptions, run_exhaustive};
use forebay_sim::hostile::run_hostile;
use forebay_sim::shrink::shrink;
use forebay_sim::{PlantedBug, Progress, Report, SimOptions, run};
use options::Options;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list_bugs {
        PlantedBug::ALL.iter().for_each(|(_, name)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    // The simulator reports panics of the engine as violations.
    std::panic::set_hook(Box::new(|_| {}));
    let violations = if options.exhaustive {
        exhaust(&options)
    } else if let Some(seeds) = options.hostile {
        let start = Instant::now();
        let report = run_hostile(options.seed, seeds, options.bug, &mut |_| {});
        report::hostile(&report, options.bug, start.elapsed());
        report.violations.len()
    } else if options.shrink {
        return shrink_first(&options);
    } else {
        crash(&options)
    };
    ExitCode::from(u8::from(violations > 0))
}

/// Runs random crashes. Returns the number of violations.
fn crash(options: &Options) -> usize {
    let sim = SimOptions {
        seed: options.seed,
        crashes: options.crashes,
        bug: options.bug,
        aim: options.aim,
        violations_max: options.violations.max(1),
        verbose: options.verbose,
    };
    let start = Instant::now();
    let mut progress = |progress: &Progress| {
        if options.progress {
            let (seed, points) = (progress.seed, progress.crash_points);
            eprintln!("seed {seed}: {points} crash points, {:.1} s", start.elapsed().as_secs_f64());
        }
    };
    let report = match options.per_seed {
        None => run(&sim, &mut progress),
        Some(most) => run_scattered(&sim, most, &mut progress),
    };
    report::crashes(&report, start.elapsed());
    report.violations.len()
}

/// Tries a few crash points of many seeds.
fn run_scattered(options: &SimOptions, per_seed: u64, progress: &mut dyn FnMut(&Progress)) -> Report {
    let mut all = Report::default();
    let mut seed = options.seed;
    while all.crash_points < options.crashes && all.violations.len() < options.violations_max {
        let report = run(&SimOptions { seed, crashes: per_seed.max(1), ..*options }, progress);
        all.crash_points += report.crash_points;
        all.seeds += report.seeds;
        all.violations.extend(report.violations);
        all.counters.add(&report.counters);
        all.digest ^= report.digest.rotate_left((all.seeds % 64) as u32);
        seed = seed.wrapping_add(7919);
    }
    all
}

/// Runs all short sequences. Returns the number of violations.
fn exhaust(options: &Options) -> usize {
    let exhaustive = ExhaustiveOptions {
        length: usize::from(options.length),
        part: options.part.unwrap_or((0, 1)),
        only: options.only.clone(),
        twice: usize::from(options.twice),
        bug: options.bug,
        violations_max: options.violations.max(1),
        verbose: options.verbose,
    };
    let start = Instant::now();
    let report = run_exhaustive(&exhaustive, &mut |(done, count, judged, violations)| {
        if options.progress && done % 100 == 0 {
            let seconds = start.elapsed().as_secs_f64();
            eprintln!("{done}/{count}: {judged} states, {violations} violations, {seconds:.1} s");
        }
    });
    report::sequences(&report, start.elapsed());
    report.violations.len()
}

/// Shrinks the first violation of the seed.
fn shrink_first(options: &Options) -> ExitCode {
    match shrink(options.seed, options.crashes, options.bug, options.verbose) {
        Some(Ok(shrunk)) => {
            report::shrunk(&shrunk);
            ExitCode::from(1)
        }
        Some(Err(problem)) => {
            eprintln!("forebay-sim: {problem}");
            ExitCode::from(2)
        }
        None => {
            eprintln!(
                "forebay-sim: seed {} shows no violation in {} crash points: take both from the command that a \
                 violation is printed with",
                options.seed, options.crashes
            );
            ExitCode::from(2)
        }
    }
}
