//! Tries of traces with known results.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use forebay_core::{PoolSettings, VolumeSettings};
use forebay_trace::{Operation, Record};
use forebay_whatif::{
    DiskKind, Figures, FlashTimes, MadeTrace, Pace, PathFigures, Plan, PlanError, RequestOutcome, run,
};

const MS: u64 = 1_000_000;

fn plan() -> Plan {
    Plan {
        cache_bytes: 256 << 20,
        volume_bytes: 1 << 30,
        pool: PoolSettings::default(),
        volume: VolumeSettings::default(),
        scratch_blocks: 4096,
        segment_blocks: None,
        bypass: false,
        flash: FlashTimes::default(),
        disk: DiskKind::Hdd7200,
        path_ns: 50_000,
        processor_ns: 0,
        pace: Pace::AsFast,
        depth: 1,
    }
}

fn tried(plan: &Plan, records: &[Record]) -> Figures {
    run(plan, &MadeTrace::new(records.to_vec()), &|_| true).unwrap().unwrap()
}

/// Returns reads of single blocks, one every `every_ns`, in a non-sequential order.
fn reads(count: u64, every_ns: u64) -> Vec<Record> {
    let block = |at: u64| at * 7919 % 16_384;
    (0..count).map(|at| Record::new(at * every_ns, Operation::Read, block(at) * 65_536, 4096)).collect()
}

fn path(figures: &Figures, path: RequestOutcome) -> &PathFigures {
    figures.paths.iter().find(|one| one.path == path).unwrap()
}

#[test]
fn second_read_hits_at_the_speed_of_flash() {
    let twice = [reads(2000, 0), reads(2000, 0)].concat();
    let figures = tried(&plan(), &twice);
    assert_eq!(figures.hit_pct(), Some(50.0));
    assert_eq!((figures.requests, figures.failed), (4000, 0));
    let (hits, misses) = (path(&figures, RequestOutcome::ReadHit), path(&figures, RequestOutcome::ReadMiss));
    assert_eq!((hits.count(), misses.count()), (2000, 2000));
    // A read of flash, its 4 KiB and the path.
    assert_eq!(hits.latency_ns.min() / 1000, 134);
    // Half of the stroke, 4 ms of rotational latency, and the fill.
    assert!((14 * MS..20 * MS).contains(&misses.mean_ns()), "{}", misses.mean_ns());
    assert_eq!(figures.stats.backing_read_bytes, 2000 * 4096);
    assert!(figures.stats.cache_written_bytes > 2000 * 4096);
    // Equal to the nanosecond.
    assert_eq!(tried(&plan(), &twice).took_ns, figures.took_ns);
}

#[test]
fn write_back_is_fast_and_stays_dirty() {
    let writes: Vec<Record> =
        reads(500, 0).iter().map(|one| Record { operation: Operation::Write, ..*one }).collect();
    let figures = tried(&plan(), &writes);
    assert!(path(&figures, RequestOutcome::Write).mean_ns() < MS);
    assert!(figures.stats.dirty_blocks > 400, "{}", figures.stats.dirty_blocks);
    let mut through = plan();
    through.volume.mode = forebay_format::checkpoint::Mode::Writethrough;
    let figures = tried(&through, &writes);
    assert!(path(&figures, RequestOutcome::WriteThrough).mean_ns() > 5 * MS);
    assert_eq!(figures.stats.dirty_blocks, 0);
    let past = Plan { bypass: true, ..plan() };
    assert_eq!(tried(&past, &writes).stats.cached_blocks, 0);
}

#[test]
fn late_requests_wait_and_are_counted() {
    let recorded = |speed| Plan { pace: Pace::Recorded { speed }, depth: 8, ..plan() };
    let slow = tried(&recorded(1.0), &reads(300, 100 * MS));
    assert_eq!((slow.waited, slow.waited_ns_max), (0, 0));
    assert!((29_900 * MS..30_000 * MS).contains(&slow.took_ns), "{}", slow.took_ns);
    let fast = tried(&recorded(100.0), &reads(300, 100 * MS));
    assert!(fast.waited > 200 && fast.waited_ns_max > 300 * MS, "{} {}", fast.waited, fast.waited_ns_max);
    let latency = |figures: &Figures| path(figures, RequestOutcome::ReadMiss).mean_ns();
    assert!(latency(&fast) > 20 * latency(&slow), "the line counts: {} {}", latency(&fast), latency(&slow));
}

#[test]
fn disk_may_have_a_constant_latency() {
    let figures = tried(&Plan { disk: DiskKind::Constant(3 * MS), ..plan() }, &reads(10, 0));
    assert_eq!(path(&figures, RequestOutcome::ReadMiss).mean_ns(), 3_050_000);
}

#[test]
fn requests_of_any_kind_are_answered() {
    let records = vec![
        Record::new(900, Operation::Read, 0, 1 << 30),
        Record::new(500, Operation::Write, 700, 1),
        Record { fua: true, ..Record::new(600, Operation::Write, 4095, 4098) },
        Record::new(700, Operation::Flush, 0, 0),
        // The cost of a discard does not grow with its length.
        Record::new(800, Operation::Discard, 0, 1 << 50),
        Record::new(100, Operation::WriteZeroes, 512, 1 << 21),
    ];
    let trace = MadeTrace::new(records);
    assert_eq!((trace.reordered, trace.end_bytes, trace.requests().len()), (2, 1 << 50, 5 + 32));
    assert_eq!(trace.footprint_bytes(), 1 << 30);
    let plan = Plan { volume_bytes: 1 << 50, disk: DiskKind::Constant(MS), depth: 4, ..plan() };
    let figures = run(&plan, &trace, &|_| true).unwrap().unwrap();
    assert_eq!((figures.requests, figures.failed), (37, 0));
}

#[test]
fn impossible_plans_are_refused() {
    let trace = MadeTrace::new(reads(5, 0));
    let small = Plan { volume_bytes: 4096, ..plan() };
    assert!(matches!(run(&small, &trace, &|_| true), Err(PlanError::Volume { .. })));
    for cache_bytes in [0, 4096, 100_000, u64::MAX / 4096 * 4096] {
        let cache = Plan { cache_bytes, ..plan() };
        assert!(matches!(run(&cache, &trace, &|_| true), Err(PlanError::Cache { .. })), "{cache_bytes}");
    }
    let many = MadeTrace::new(reads(20_000, 0));
    let quick = Plan { disk: DiskKind::Constant(1), ..plan() };
    assert!(run(&quick, &many, &|_| false).unwrap().is_none(), "it was told to stop");
    assert_eq!(run(&plan(), &MadeTrace::default(), &|_| true).unwrap().unwrap().requests, 0);
}

#[test]
fn processor_serves_requests_one_by_one() {
    let hits = [reads(64, 0), vec![reads(64, 0); 100].concat()].concat();
    let busy = Plan { processor_ns: 200_000, depth: 16, ..plan() };
    let figures = tried(&busy, &hits);
    // Flash would answer sixteen of them in 134 us each; the processor takes 200 us for each.
    let mean_ns = path(&figures, RequestOutcome::ReadHit).mean_ns();
    assert!((15 * 200_000..=16 * 200_000).contains(&mean_ns), "{mean_ns}");
    let alone = tried(&Plan { depth: 1, ..busy }, &hits);
    let p50 = path(&alone, RequestOutcome::ReadHit).latency_ns.value_at_quantile(0.5);
    assert!((334_000..335_000).contains(&p50), "flash, processor and path: {p50}");
}
