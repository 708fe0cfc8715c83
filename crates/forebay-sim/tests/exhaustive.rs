//! Every short sequence of operations with every crash, and what that finds of planted bugs.

use forebay_sim::PlantedBug;
use forebay_sim::exhaustive::{ExhaustiveOptions, ExhaustiveReport, Sequence, run_exhaustive};

fn exhaust(options: &ExhaustiveOptions) -> ExhaustiveReport {
    run_exhaustive(options, &mut |_| {})
}

/// All sequences of two operations, and one in so many of three: `forebay sim --exhaustive` has them all.
#[test]
fn short_sequences_survive_every_crash() {
    let report = exhaust(&ExhaustiveOptions { part: (0, 400), ..ExhaustiveOptions::default() });
    for violation in &report.violations {
        eprintln!("{}\n    {}", violation.replay_command, violation.what);
    }
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
    assert!(report.sequences > 2_000 && report.judged > 50_000 && report.judged_twice > 1_000, "{report:?}");
}

#[test]
fn a_sequence_does_the_same_twice() {
    let only = Sequence::named("writeback.together.write0+bypass0+flush");
    let options = ExhaustiveOptions { only, ..ExhaustiveOptions::default() };
    let (first, second) = (exhaust(&options), exhaust(&options));
    assert_eq!((first.states, first.judged), (second.states, second.judged));
    assert_eq!(first.counters, second.counters);
}

/// A sequence that shows the bug, found by `forebay sim --exhaustive --break NAME`, and that shows nothing without it.
fn caught(bug: PlantedBug, name: &str) {
    let only = Sequence::named(name);
    assert!(only.is_some(), "{name} is a sequence");
    let options = ExhaustiveOptions { only, bug: Some(bug), ..ExhaustiveOptions::default() };
    let report = exhaust(&options);
    assert_eq!(report.violations.len(), 1, "{} is not caught by {name}", bug.name());
    let sound = exhaust(&ExhaustiveOptions { bug: None, ..options });
    assert!(sound.violations.is_empty(), "{:?}", sound.violations);
}
