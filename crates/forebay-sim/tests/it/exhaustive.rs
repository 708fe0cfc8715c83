//! Every short sequence of operations with every crash, and the planted bugs that this finds.

use forebay_sim::PlantedBug;
use forebay_sim::exhaustive::{ExhaustiveOptions, ExhaustiveReport, Sequence, run_exhaustive};

fn exhaust(options: &ExhaustiveOptions) -> ExhaustiveReport {
    run_exhaustive(options, &mut |_| {})
}

/// All sequences of one operation, and a part of those of up to three: `forebay-sim --exhaustive`
/// runs them all.
#[test]
fn short_sequences_survive_every_crash() {
    let report = exhaust(&ExhaustiveOptions { part: (0, 400), twice: 1, ..ExhaustiveOptions::default() });
    for violation in &report.violations {
        eprintln!("{}\n    {}", violation.replay_command, violation.what);
    }
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
    assert!(report.sequences > 200 && report.judged > 50_000 && report.judged_twice > 10_000, "{report:?}");
}

#[test]
fn sequence_is_deterministic() {
    let only = Sequence::named("writeback.together.write0+bypass0+flush");
    let options = ExhaustiveOptions { only, ..ExhaustiveOptions::default() };
    let (first, second) = (exhaust(&options), exhaust(&options));
    assert_eq!((first.states, first.judged), (second.states, second.judged));
    assert_eq!(first.counters, second.counters);
}

/// Checks that this sequence, found by `forebay-sim --exhaustive --break NAME`, shows the bug, and
/// shows nothing without it.
fn caught(bug: PlantedBug, name: &str) {
    let only = Sequence::named(name);
    assert!(only.is_some(), "{name} is a sequence");
    let options = ExhaustiveOptions { only, bug: Some(bug), ..ExhaustiveOptions::default() };
    let report = exhaust(&options);
    assert_eq!(report.violations.len(), 1, "{} is not caught by {name}", bug.name());
    let sound = exhaust(&ExhaustiveOptions { bug: None, ..options });
    assert!(sound.violations.is_empty(), "{:?}", sound.violations);
}

macro_rules! caught_by {
    ($($name:ident: $bug:ident by $sequence:literal,)*) => {
        $(#[test]
        fn $name() {
            caught(PlantedBug::$bug, $sequence);
        })*
    };
}

caught_by! {
    skip_device_flush: SkipDeviceFlush by "writeback.answered.fua0",
    clean_before_backing_flush: CleanBeforeBackingFlush by "writeback.answered.write0",
    forget_invalidation: ForgetInvalidation by "writeback.rested.read0+bypass0",
    skip_intent: SkipIntent by "writethrough.answered.write0",
    trust_unflushed_marks: TrustUnflushedMarks by "writeback.settled.bypass1+write0+bypass0",
    drop_second_superblock: DropSecondSuperblock by "writeback.answered.open",
    destage_before_durable: DestageBeforeDurable by "writeback.rested.write0+drain+write0",
    accept_torn_header: AcceptTornHeader by "writeback.answered.span",
    keep_overtaken_fill: KeepOvertakenFill by "writeback.together.read0+write0",
    mix_flush_epochs: MixFlushEpochs by "ordered.answered.write0+flush+write1",
    coalesce_epochs: CoalesceEpochs by "ordered.answered.write0+flush+write0",
    overtake_epochs: OvertakeEpochs by "ordered.answered.write0+flush+bypass1",
    fua_keeps_epoch: FuaKeepsEpoch by "ordered.answered.fua0+write1",
}
