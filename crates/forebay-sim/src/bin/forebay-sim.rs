//! Runs the simulator standalone: `forebay-sim [--seed N] [--crashes N] [--per-seed N] [--break
//! NAME] [--aim NAME] [--violations N] [--progress] [--verbose]`; with `--per-seed` it takes at
//! most that many crash points per seed, and seeds are not consecutive; with `--exhaustive
//! [--length N] [--part I/N] [--only NAME]` it runs all short sequences instead. Its build does not
//! need the daemon.

use forebay_sim::exhaustive::{ExhaustiveOptions, Sequence, run_exhaustive};
use forebay_sim::hostile::run_hostile;
use forebay_sim::shrink::shrink;
use forebay_sim::{Counters, PlantedBug, Progress, Report, SimOptions, fault, run};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut options = SimOptions::default();
    let (mut follow, mut exhaustive, mut shrinks, mut hostile) = (false, false, false, false);
    let mut all = ExhaustiveOptions::default();
    let mut per_seed = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--seed" => options.seed = value().parse().unwrap_or(options.seed),
            "--crashes" => options.crashes = value().parse().unwrap_or(options.crashes),
            "--violations" => options.violations_max = value().parse().unwrap_or(options.violations_max),
            "--aim" => {
                let name = value();
                options.aim = PlantedBug::named(&name);
                if options.aim.is_none() {
                    eprintln!("no planted bug {name}");
                    return ExitCode::from(2);
                }
            }
            "--break" => {
                let name = value();
                options.bug = PlantedBug::named(&name).filter(|_| fault::AVAILABLE);
                if options.bug.is_none() {
                    eprintln!("no planted bug {name} in this build (feature planted-bugs)");
                    return ExitCode::from(2);
                }
            }
            "--exhaustive" => exhaustive = true,
            "--twice" => all.twice = value().parse().unwrap_or(all.twice),
            "--hostile" => hostile = true,
            "--shrink" => shrinks = true,
            "--length" => all.length = value().parse().unwrap_or(all.length),
            "--part" => {
                let text = value();
                let mut numbers = text.split('/').filter_map(|number| number.parse().ok());
                all.part = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(1));
            }
            "--only" => all.only = Sequence::named(&value()),
            "--per-seed" => per_seed = value().parse().ok(),
            "--progress" => follow = true,
            "--verbose" => options.verbose = true,
            other => {
                eprintln!("unknown argument {other}");
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    if hostile {
        let report = run_hostile(options.seed, options.crashes, options.bug, &mut |_| {});
        println!("{report:#?}");
        return ExitCode::from(u8::from(!report.violations.is_empty()));
    }
    if shrinks {
        println!("{:#?}", shrink(options.seed, options.crashes, options.bug, options.verbose));
        return ExitCode::SUCCESS;
    }
    if exhaustive {
        let (bug, violations_max, verbose) = (options.bug, options.violations_max, options.verbose);
        return exhaust(&ExhaustiveOptions { bug, violations_max, verbose, ..all }, follow, start);
    }
    let mut progress = |progress: &Progress| {
        if follow {
            let (seed, points) = (progress.seed, progress.crash_points);
            eprintln!("seed {seed}: {points} crash points, {:.1} s", start.elapsed().as_secs_f64());
        }
    };
    let report = match per_seed {
        None => run(&options, &mut progress),
        Some(most) => run_scattered(&options, most, &mut progress),
    };
    for violation in &report.violations {
        println!(
            "{}\n    crash point {}, step {}: {}",
            violation.replay_command, violation.crash_point, violation.step, violation.what
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} crash points in {} seeds, {} violations, {:.1} s, {:.0} crash points/s, digest {:016x}\n{:?}",
        report.crash_points,
        report.seeds,
        report.violations.len(),
        seconds,
        report.crash_points as f64 / seconds,
        report.digest,
        Counters { coverage: Default::default(), ..report.counters }
    );
    print_coverage(&report.counters);
    ExitCode::from(u8::from(!report.violations.is_empty()))
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

fn print_coverage(counters: &Counters) {
    for (name, _, count) in counters.coverage.iter() {
        println!("{count:>10} {name}");
    }
}

fn exhaust(options: &ExhaustiveOptions, follow: bool, start: Instant) -> ExitCode {
    let report = run_exhaustive(options, &mut |(done, count, judged, violations)| {
        if follow && done % 100 == 0 {
            eprintln!(
                "{done}/{count}: {judged} states, {violations} violations, {:.1} s",
                start.elapsed().as_secs_f64()
            );
        }
    });
    for violation in &report.violations {
        println!("{}\n    {}", violation.replay_command, violation.what);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} sequences, {} crash points, {} states, {} judged ({} twice), {} violations, {:.1} s, {:.0} states/s",
        report.sequences,
        report.crash_points,
        report.states,
        report.judged,
        report.judged_twice,
        report.violations.len(),
        seconds,
        report.judged as f64 / seconds
    );
    print_coverage(&report.counters);
    ExitCode::from(u8::from(!report.violations.is_empty()))
}
