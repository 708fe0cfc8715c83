//! A short slice of what `forebay sim` does at length: no violation, and the same every time.

use forebay_sim::{Report, SimOptions, run};

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
fn ten_thousand_crash_points_without_a_violation() {
    let report = simulate(1, 10_000);
    assert_clean(&report);
    assert!(report.crash_points >= 10_000);
    assert!(report.counters.faults > 0 && report.counters.checkpoints > 0 && report.counters.io_errors > 0);
}

#[test]
fn the_same_seed_does_the_same_twice() {
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
