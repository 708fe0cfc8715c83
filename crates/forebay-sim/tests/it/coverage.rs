//! Some run takes every rare path of the engine: a simulation that never reaches the place of a bug
//! proves nothing.
//!
//! A few seeds that together reach all of them are kept (`recorded`). If they no longer do, the
//! test tries many.

use crate::recorded;
use crate::workers;
use forebay_core::CoverageMark;
use forebay_sim::{Counters, Report, SimOptions, run};

/// Seeds that together reached all rare paths, one per line.
const RECORDED: &str = "coverage.txt";
/// Crash points of a seed: the paths of a run depend on its mixture, so many seeds are better.
const PER_SEED: u64 = 60;
/// Crash points within which all coverage must be reached.
const BOUND: u64 = 40_000;
/// Seeds to run between two checks for missing marks.
const SEEDS_AT_ONCE: usize = 16;
/// Reached too, but less than once in 4,000 crash points, so not by every set of plans within the
/// bound: `forebay-sim` prints the marks that a longer run reached. Tests of the engine require
/// them ([`DIRECTED`]): `yields.rs` that an order yields, `rare_paths.rs` the others.
const RARE: &[&str] = &[
    "gap-unreadable",
    "half-rewritten",
    "joined-read-failed",
    "later-use-found",
    "order-yielded",
    "segment-lost",
];
/// Tests of the engine that create the situations of [`RARE`] on purpose, and require the marks.
const DIRECTED: [&str; 2] = [
    include_str!("../../../forebay-core/tests/it/rare_paths.rs"),
    include_str!("../../../forebay-core/tests/it/yields.rs"),
];

fn simulate(seed: u64) -> Report {
    let report = run(&SimOptions { seed, crashes: PER_SEED, ..SimOptions::default() }, &mut |_| {});
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    report
}

/// Returns the marks that none of these reports reached and that are not rare.
fn missing<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Vec<&'static str> {
    let mut counters = Counters::default();
    reports.into_iter().for_each(|report| counters.add(&report.counters));
    let not_reached = counters.coverage.iter().filter(|(.., count)| *count == 0);
    not_reached.map(|(name, ..)| name).filter(|name| !RARE.contains(name)).collect()
}

#[test]
fn every_rare_path_is_taken() {
    let known: Vec<u64> =
        recorded::read(RECORDED).iter().map(|line| line[0].parse().expect("a number in the file")).collect();
    let reports = workers::each(known.len(), |index| simulate(known[index]));
    let missed = missing(&reports);
    if missed.is_empty() {
        return;
    }
    println!("{} seeds that are recorded do not come by {missed:?}", known.len());
    recorded::changed(RECORDED, &search().iter().map(u64::to_string).collect::<Vec<_>>());
}

#[test]
fn rare_marks_have_directed_tests() {
    for name in RARE {
        let known = CoverageMark::ALL.iter().find(|(_, known, _)| known == name);
        let (mark, ..) = known.unwrap_or_else(|| panic!("{name} is no coverage mark"));
        let required = DIRECTED.iter().any(|tests| tests.contains(&format!("CoverageMark::{mark:?})")));
        assert!(required, "no directed test requires {name}");
    }
}

/// Tries seeds until all marks are reached. Returns the necessary seeds.
fn search() -> Vec<u64> {
    let mut tried: Vec<(u64, Report)> = Vec::new();
    let (mut seed, mut crash_points) = (1, 0);
    loop {
        let seeds: Vec<u64> = (0..SEEDS_AT_ONCE as u64).map(|index| seed + 7919 * index).collect();
        let reports = workers::each(SEEDS_AT_ONCE, |index| simulate(seeds[index]));
        crash_points += reports.iter().map(|report| report.crash_points).sum::<u64>();
        tried.extend(seeds.into_iter().zip(reports));
        let missing = missing(tried.iter().map(|(_, report)| report));
        if missing.is_empty() {
            println!("all coverage within {crash_points} crash points");
            return few(tried);
        }
        assert!(crash_points < BOUND, "not reached within {crash_points} crash points: {missing:?}");
        seed += 7919 * SEEDS_AT_ONCE as u64;
    }
}

/// Selects from seeds that together reach everything: repeatedly the one that reaches most of the
/// marks still missing.
fn few(mut tried: Vec<(u64, Report)>) -> Vec<u64> {
    let mut chosen: Vec<(u64, Report)> = Vec::new();
    loop {
        let lacks = missing(chosen.iter().map(|(_, report)| report));
        if lacks.is_empty() {
            return chosen.into_iter().map(|(seed, _)| seed).collect();
        }
        let still_lacks = |(_, report): &(u64, Report)| {
            missing([report]).into_iter().filter(|name| lacks.contains(name)).count()
        };
        let best = (0..tried.len()).min_by_key(|at| still_lacks(&tried[*at])).expect("some are left");
        chosen.push(tried.remove(best));
    }
}
