//! Runs the simulator by itself: `sim [--seed N] [--crashes N] [--break NAME] [--violations N] [--progress] [--verbose]`.

use forebay_sim::{PlantedBug, SimOptions, run};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut options = SimOptions::default();
    let mut follow = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--seed" => options.seed = value().parse().unwrap_or(options.seed),
            "--crashes" => options.crashes = value().parse().unwrap_or(options.crashes),
            "--violations" => options.violations_max = value().parse().unwrap_or(options.violations_max),
            "--break" => {
                let name = value();
                options.bug = PlantedBug::ALL.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug);
            }
            "--progress" => follow = true,
            "--verbose" => options.verbose = true,
            other => {
                eprintln!("unknown argument {other}");
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    let report = run(&options, &mut |progress| {
        if follow {
            let (seed, points) = (progress.seed, progress.crash_points);
            eprintln!("seed {seed}: {points} crash points, {:.1} s", start.elapsed().as_secs_f64());
        }
    });
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
        report.counters
    );
    ExitCode::from(u8::from(!report.violations.is_empty()))
}
