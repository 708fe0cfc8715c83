//! Prints results.

use forebay_sim::exhaustive::ExhaustiveReport;
use forebay_sim::hostile::{HostileReport, Hostility, Outcome};
use forebay_sim::shrink::Shrunk;
use forebay_sim::{Counters, PlantedBug, Report};
use std::time::Duration;

/// Prints a run with random crashes: violations, figures, and the engines that reached each rare
/// path.
pub(crate) fn crashes(report: &Report, elapsed: Duration) {
    for violation in &report.violations {
        println!(
            "{}\n    crash point {}, step {}: {}",
            violation.replay_command, violation.crash_point, violation.step, violation.what
        );
    }
    let seconds = elapsed.as_secs_f64();
    println!(
        "{} crash points in {} seeds, {} violations, {seconds:.1} s, {:.0} crash points/s, digest {:016x}\n{:?}",
        report.crash_points,
        report.seeds,
        report.violations.len(),
        report.crash_points as f64 / seconds,
        report.digest,
        Counters { coverage: Default::default(), ..report.counters }
    );
    coverage(&report.counters);
}

/// Prints a run of all short sequences.
pub(crate) fn sequences(report: &ExhaustiveReport, elapsed: Duration) {
    for violation in &report.violations {
        println!("{}\n    {}", violation.replay_command, violation.what);
    }
    let seconds = elapsed.as_secs_f64();
    println!(
        "{} sequences, {} crash points, {} states, {} judged ({} twice), {} violations, {seconds:.1} s, \
         {:.0} states/s",
        report.sequences,
        report.crash_points,
        report.states,
        report.judged,
        report.judged_twice,
        report.violations.len(),
        report.judged as f64 / seconds
    );
    coverage(&report.counters);
}

fn coverage(counters: &Counters) {
    for (name, meaning, engines) in counters.coverage.iter() {
        println!("{engines:>10} {name:<24}{}", meaning.trim());
    }
}

/// Prints a run with wrong cache devices: outcomes by kind, forbidden ones marked.
pub(crate) fn hostile(report: &HostileReport, bug: Option<PlantedBug>, elapsed: Duration) {
    print!("{:<34}", "");
    Outcome::ALL.iter().for_each(|(_, name)| print!("{name:>22}"));
    println!();
    for (hostility, name) in Hostility::ALL {
        print!("{name:<34}");
        for (outcome, _) in Outcome::ALL {
            let count = report.count(hostility, outcome);
            let mark = if hostility.forbids(outcome) && count > 0 { "!" } else { "" };
            print!("{:>22}", format!("{mark}{count}"));
        }
        println!();
    }
    let planted = bug.map(|bug| format!(" --break {}", bug.name())).unwrap_or_default();
    for (seed, what) in &report.violations {
        println!("forebay-sim --hostile 1 --seed {seed}{planted}\n    {what}");
    }
    let violations = report.violations.len();
    println!("{} seeds, {violations} violations, {:.1} s", report.seeds, elapsed.as_secs_f64());
}

/// Prints the shortest script of a violation.
pub(crate) fn shrunk(shrunk: &Shrunk) {
    println!("{} of {} steps are left after {} trials", shrunk.steps, shrunk.steps_before, shrunk.trials);
    shrunk.setting.iter().for_each(|line| println!("       {line}"));
    for (number, line) in (1..).zip(&shrunk.script) {
        println!("  {number:>3}  {line}");
    }
    println!("{}", shrunk.what);
}
