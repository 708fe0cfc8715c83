//! The disk model alone, in virtual time: its intended figures and its order rules.

use forebay_models::hdd::{HddModel, HddOp, OVERHEAD_NS, REVOLUTION_NS};

const GIB: u64 = 1 << 30;
const SECOND_NS: u64 = 1_000_000_000;

/// xorshift64*: the same numbers on every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

/// Keeps `depth` commands in flight, each `len` bytes at the offset `next` gives; returns
/// completions per second.
fn run(size: u64, depth: u64, op: HddOp, len: u64, seconds: u64, mut next: impl FnMut(u64) -> u64) -> f64 {
    let mut disk = HddModel::new(size);
    let (mut done, mut submitted, mut now, mut count) = (Vec::new(), 0, 0, 0);
    for id in 0..depth {
        disk.submit(0, id, op, next(submitted), len);
        submitted += 1;
    }
    while now < seconds * SECOND_NS {
        now = disk.next_event().expect("commands are in flight");
        disk.advance(now, &mut done);
        for id in done.drain(..) {
            count += 1;
            disk.submit(now, id, op, next(submitted), len);
            submitted += 1;
        }
    }
    count as f64 * SECOND_NS as f64 / now as f64
}

fn random_iops(size: u64, depth: u64, op: HddOp) -> f64 {
    let mut rng = Rng(42);
    run(size, depth, op, 4096, 60, |_| rng.below(size / 4096) * 4096)
}

fn stream_mb_s(depth: u64, op: HddOp) -> f64 {
    let len = 128 << 10;
    run(64 * GIB, depth, op, len, 20, |n| n * len % (60 * GIB)) * len as f64 / 1e6
}

#[test]
fn random_reads_at_depth_1_reach_75_iops() {
    for size in [GIB, 64 * GIB, 4096 * GIB] {
        let iops = random_iops(size, 1, HddOp::Read);
        println!("random 4 KiB reads, depth 1, {} GiB: {iops:.1} IOPS", size / GIB);
        assert!((75.0..90.0).contains(&iops), "{iops}");
    }
}

#[test]
fn queue_depth_32_more_than_doubles_iops() {
    let mut last = 0.0;
    for depth in [1, 2, 4, 8, 16, 32] {
        let (read, write) =
            (random_iops(64 * GIB, depth, HddOp::Read), random_iops(64 * GIB, depth, HddOp::Write));
        println!("random 4 KiB, depth {depth}: reads {read:.1}, writes {write:.1} IOPS");
        assert!(read > last * 0.99, "depth {depth}: {read} after {last}");
        last = read;
    }
    assert!((180.0..220.0).contains(&last), "{last}");
    let beyond = random_iops(64 * GIB, 256, HddOp::Read);
    println!("random 4 KiB reads, depth 256: {beyond:.1} IOPS");
    assert!(beyond < 225.0, "commands outside the queue are not reordered: {beyond}");
}

#[test]
fn single_read_stream_runs_at_media_rate() {
    for depth in [1, 2, 4, 8] {
        let rate = stream_mb_s(depth, HddOp::Read);
        println!("128 KiB read stream, depth {depth}: {rate:.1} MB/s");
        assert!((145.0..151.0).contains(&rate), "depth {depth}: {rate}");
    }
}

#[test]
fn write_stream_needs_a_queue_for_full_rate() {
    let (one, two) = (stream_mb_s(1, HddOp::Write), stream_mb_s(2, HddOp::Write));
    println!("128 KiB write stream: depth 1 {one:.1}, depth 2 {two:.1} MB/s");
    assert!((10.0..20.0).contains(&one), "a revolution is lost per write: {one}");
    assert!((145.0..151.0).contains(&two), "{two}");
}

#[test]
fn two_streams_are_far_below_media_rate() {
    let len = 128 << 10;
    for depth in [1, 2] {
        let next = |n: u64| (n % 2) * 32 * GIB + n / 2 * len;
        let rate = run(64 * GIB, depth, HddOp::Read, len, 20, next) * len as f64 / 1e6;
        println!("two 128 KiB read streams, depth {depth}: {rate:.1} MB/s");
        assert!(rate < 50.0, "{rate}");
    }
}

#[test]
fn sorted_sweep_beats_random_order() {
    let size = 8 * GIB;
    let mut rng = Rng(7);
    let mut offsets: Vec<u64> = (0..20_000).map(|_| rng.below(size / 4096) * 4096).collect();
    let shuffled = offsets.clone();
    offsets.sort_unstable();
    let sweep = run(size, 32, HddOp::Write, 4096, 20, |n| offsets[n as usize % offsets.len()]);
    let random = run(size, 32, HddOp::Write, 4096, 20, |n| shuffled[n as usize % shuffled.len()]);
    println!("20,000 blocks of 8 GiB, depth 32: sorted {sweep:.0}, random {random:.0} IOPS");
    assert!(sweep > 1.5 * random, "{sweep} {random}");
}

#[test]
fn a_flush_waits_for_earlier_writes_only() {
    let mut disk = HddModel::new(GIB);
    let mut done = Vec::new();
    disk.submit(0, 1, HddOp::Write, 900 << 20, 4096);
    disk.submit(0, 2, HddOp::Flush, 0, 0);
    disk.submit(0, 3, HddOp::Write, 100 << 20, 4096);
    disk.submit(0, 4, HddOp::Read, 500 << 20, 4096);
    while let Some(event) = disk.next_event() {
        disk.advance(event, &mut done);
    }
    let position = |id| done.iter().position(|&d| d == id).unwrap();
    assert!(position(1) < position(2), "{done:?}");
    assert!(position(2) < position(3).max(position(4)), "later commands do not hold it: {done:?}");
    assert_eq!(disk.in_flight(), 0);
    disk.submit(SECOND_NS, 5, HddOp::Flush, 0, 0);
    assert_eq!(disk.next_event(), Some(SECOND_NS + OVERHEAD_NS), "nothing to wait for");
}

#[test]
fn far_commands_do_not_starve() {
    let mut disk = HddModel::new(64 * GIB);
    let mut rng = Rng(3);
    let (mut done, mut now) = (Vec::new(), 0);
    for id in 0..31 {
        disk.submit(0, id, HddOp::Read, rng.below(GIB / 4096) * 4096, 4096);
    }
    disk.submit(0, 99, HddOp::Read, 63 * GIB, 4096);
    while !done.contains(&99) {
        now = disk.next_event().unwrap();
        done.clear();
        disk.advance(now, &mut done);
        for &id in done.iter().filter(|&&id| id != 99) {
            disk.submit(now, id, HddOp::Read, rng.below(GIB / 4096) * 4096, 4096);
        }
    }
    assert!(now < SECOND_NS, "served after {now} ns");
    assert!(now > REVOLUTION_NS);
}

#[test]
fn timing_is_deterministic() {
    let trace = || {
        let mut disk = HddModel::new(GIB);
        let (mut rng, mut done, mut times) = (Rng(11), Vec::new(), Vec::new());
        for id in 0..2000 {
            let op = if rng.below(3) == 0 { HddOp::Write } else { HddOp::Read };
            disk.submit(id * 3_000_000, id, op, rng.below(GIB), 4096);
            if rng.below(10) == 0 {
                disk.submit(id * 3_000_000, id + 10_000, HddOp::Flush, 0, 0);
            }
            disk.advance(id * 3_000_000, &mut done);
        }
        while let Some(event) = disk.next_event() {
            disk.advance(event, &mut done);
            times.push(event);
        }
        (done, times)
    };
    assert_eq!(trace(), trace());
}

#[test]
fn odd_commands_are_harmless() {
    let mut disk = HddModel::new(0);
    let mut done = Vec::new();
    disk.submit(5, 1, HddOp::Read, u64::MAX, u64::MAX);
    disk.submit(3, 2, HddOp::Write, u64::MAX, 0);
    disk.advance(SECOND_NS, &mut done);
    assert_eq!(done.len(), 2);
    disk.submit(1, 3, HddOp::Flush, 9, 9);
    disk.advance(2 * SECOND_NS, &mut done);
    assert_eq!(done.last(), Some(&3));
}
