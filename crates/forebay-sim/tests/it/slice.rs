//! A short slice of the runs of `forebay-sim`: no violation, and deterministic.

use crate::workers;
use forebay_sim::{Counters, Report, SimOptions, run};

/// Parts of the slice, each with other seeds, to use all processors.
const PARTS: usize = 8;

fn simulate(seed: u64, crashes: u64) -> Report {
    run(&SimOptions { seed, crashes, ..SimOptions::default() }, &mut |_| {})
}

fn assert_clean(report: &Report) {
    for violation in &report.violations {
        eprintln!("{}\n    {}", violation.replay_command, violation.what);
    }
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
}

#[test]
fn ten_thousand_crash_points_are_clean() {
    let reports = workers::each(PARTS, |part| simulate(1 + 1_000 * part as u64, 10_000 / PARTS as u64));
    reports.iter().for_each(assert_clean);
    assert!(reports.iter().map(|report| report.crash_points).sum::<u64>() >= 10_000);
    let mut counters = Counters::default();
    reports.iter().for_each(|report| counters.add(&report.counters));
    assert!(counters.faults > 0 && counters.checkpoints > 0 && counters.io_errors > 0);
}

#[test]
fn same_seed_gives_the_same_run() {
    let (first, second) = (simulate(77, 1_500), simulate(77, 1_500));
    assert_clean(&first);
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.counters, second.counters);
    assert_ne!(first.digest, simulate(1077, 1_500).digest);
}

#[test]
fn a_smaller_budget_is_a_prefix() {
    for budget in [1, 3] {
        let report = simulate(2, budget);
        assert_clean(&report);
        assert_eq!(report.crash_points, budget);
    }
}
