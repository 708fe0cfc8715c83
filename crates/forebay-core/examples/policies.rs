//! Compares the reclaim policies on synthetic traces, and says what a choice costs on a cache of
//! many segments: `policies [REQUESTS [SURVIVORS_MAX_PCT]]`. The table is in
//! `docs/use/policies.md`; it is the same on every machine, the times are not.

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use forebay_core::{Admission, PoolSettings, ReclaimPolicy, RequestKind, Stats, Treatment, VolumeSettings};
use rig::{Dice, Rig, Zipf};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

const SEGMENTS: (u32, u32) = (128, 256);
/// The cache for data that fits: of the same segments, but so many that the window is small next to
/// it.
const FITTING: (u32, u32) = (512, 256);

/// One request: a block, to be written or read.
type Step = (u64, bool);

fn main() {
    let argument = |at: usize| std::env::args().nth(at).and_then(|word| word.parse::<usize>().ok());
    let requests = argument(1).unwrap_or(1_000_000);
    let survivors_max_pct = argument(2).map_or(PoolSettings::default().survivors_max_pct, |pct| pct as u32);
    let pool_of =
        |reclaim_policy| PoolSettings { reclaim_policy, survivors_max_pct, ..PoolSettings::default() };
    let volume = u64::from(SEGMENTS.0) * u64::from(SEGMENTS.1) * 4;
    println!(
        "hit ratio of reads, percent (blocks written to the cache for each that was filled or written)\n"
    );
    println!("| trace | exact LRU | fifo | lru | s3fifo | s3fifo, second-access |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, trace) in traces(volume, requests) {
        let capacity = rig(pool_of(ReclaimPolicy::ALL[0]), Admission::Always, volume).capacity;
        let mut row = format!("| {name} | {:.1}", exact_lru(&trace, capacity));
        for policy in ReclaimPolicy::ALL {
            row += &column(pool_of(policy), Admission::Always, volume, &trace);
        }
        row += &column(pool_of(ReclaimPolicy::S3Fifo), Admission::SecondAccess, volume, &trace);
        println!("{row} |");
    }
    println!("\ndata that fits: misses of reads, percent (blocks written to the cache, as above)\n");
    println!("| pages of four blocks, two of five requests writes | fifo | lru | s3fifo |");
    println!("| --- | --- | --- | --- |");
    for (name, skew) in [("zipf 0.8", 0.8), ("uniform", 0.0)] {
        for share_pct in [50, 60, 75, 85, 90] {
            let columns =
                ReclaimPolicy::ALL.map(|policy| fitting(pool_of(policy), share_pct, skew, requests));
            println!("| {name}, {share_pct} % of the device | {} |", columns.join(" | "));
        }
    }
    println!(
        "\ntime of a miss that is filled, by number of segments of 16 blocks (this machine, this moment)\n"
    );
    println!("| segments | fifo | lru | s3fifo |\n| --- | --- | --- | --- |");
    for segments in [1024, 4096, 16_384] {
        let times = ReclaimPolicy::ALL.map(|policy| format!("{:.2} us", miss_us(segments, policy)));
        println!("| {segments} | {} |", times.join(" | "));
    }
}

fn rig(pool: PoolSettings, admission: Admission, volume: u64) -> Rig {
    Rig::new(SEGMENTS, volume, &[VolumeSettings { admission, ..VolumeSettings::default() }], pool)
}

fn column(pool: PoolSettings, admission: Admission, volume: u64, trace: &[Step]) -> String {
    let mut rig = rig(pool, admission, volume);
    // The first half warms the cache up.
    let warm = trace.len() / 2;
    play(&mut rig, &trace[..warm]);
    let before = rig.engine.stats();
    play(&mut rig, &trace[warm..]);
    let after = rig.engine.stats();
    let hits = after.read_hit_blocks - before.read_hit_blocks;
    let misses = after.read_miss_blocks - before.read_miss_blocks;
    format!(" | {:.1} ({:.2})", percent(hits, hits + misses), amplification(&before, &after))
}

/// Requests to data that is so large a share of the cache device, each of a page of four blocks:
/// all is read once, half of the requests warm the cache up, the others count.
fn fitting(pool: PoolSettings, share_pct: u64, skew: f64, requests: usize) -> String {
    const PAGE_BLOCKS: u64 = 4;
    let pages = u64::from(FITTING.0) * u64::from(FITTING.1) * share_pct / 100 / PAGE_BLOCKS;
    let mut rig = Rig::new(FITTING, pages * PAGE_BLOCKS, &[VolumeSettings::default()], pool);
    let (mut dice, zipf) = (Dice(3), Zipf::new(pages, skew));
    let ask = |rig: &mut Rig, page: u64, writes: bool| {
        let kind = if writes { RequestKind::Write { fua: false } } else { RequestKind::Read };
        rig.request(0, kind, page * PAGE_BLOCKS, PAGE_BLOCKS, Treatment::Cache);
    };
    (0..pages).for_each(|page| ask(&mut rig, page, false));
    let mut play = |rig: &mut Rig, requests: usize| {
        (0..requests).for_each(|_| {
            let page = zipf.draw(&mut dice);
            ask(rig, page, dice.below(5) < 2);
        });
        rig.engine.stats()
    };
    let before = play(&mut rig, requests / 2);
    let after = play(&mut rig, requests - requests / 2);
    let hits = after.read_hit_blocks - before.read_hit_blocks;
    let misses = after.read_miss_blocks - before.read_miss_blocks;
    format!("{:.2} ({:.2})", percent(misses, hits + misses), amplification(&before, &after))
}

/// Bytes written to the cache device for each byte that was written or filled.
fn amplification(before: &Stats, after: &Stats) -> f64 {
    let asked =
        after.written_bytes - before.written_bytes + (after.filled_blocks - before.filled_blocks) * 4096;
    (after.cache_written_bytes - before.cache_written_bytes) as f64 / asked.max(1) as f64
}

fn play(rig: &mut Rig, trace: &[Step]) {
    for (block, writes) in trace {
        if *writes { rig.write(0, *block) } else { rig.read(0, *block) }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Hit ratio of reads in a cache that evicts block by block what was not used for longest.
fn exact_lru(trace: &[Step], capacity: u64) -> f64 {
    let (mut used, mut order) = (HashMap::new(), BTreeMap::new());
    let (mut hits, mut reads) = (0, 0);
    for (at, (block, writes)) in trace.iter().enumerate() {
        let before = used.insert(*block, at);
        if at >= trace.len() / 2 && !writes {
            reads += 1;
            hits += u64::from(before.is_some());
        }
        if let Some(before) = before {
            order.remove(&before);
        }
        order.insert(at, *block);
        if order.len() as u64 > capacity
            && let Some((_, oldest)) = order.pop_first()
        {
            used.remove(&oldest);
        }
    }
    percent(hits, reads)
}

fn traces(volume: u64, requests: usize) -> Vec<(&'static str, Vec<Step>)> {
    let cache = volume / 4;
    let zipf = Zipf::new(volume, 1.1);
    let flat = Zipf::new(volume, 0.8);
    let dice = &mut Dice(1);
    let zipf_of = |zipf: &Zipf, dice: &mut Dice, writes: u64| -> Vec<Step> {
        (0..requests).map(|_| (zipf.draw(dice), dice.below(100) < writes)).collect()
    };
    let mut scan = 0;
    let mut with_scan = |dice: &mut Dice| -> Vec<Step> {
        let mut step = |at: usize| {
            // Runs of 1,000 out of 3,000 requests read on, one block after another, over the whole
            // volume.
            if at % 3000 < 1000 {
                scan = (scan + 1) % volume;
                (scan, false)
            } else {
                (zipf.draw(dice), false)
            }
        };
        (0..requests).map(&mut step).collect()
    };
    let turn = cache + cache / 10;
    vec![
        ("zipf 1.1 over 4 times the cache", zipf_of(&zipf, dice, 0)),
        ("zipf 0.8 over 4 times the cache", zipf_of(&flat, dice, 0)),
        ("zipf 1.1, a third of it a scan", with_scan(dice)),
        ("loop over 1.1 times the cache", (0..requests as u64).map(|at| (at % turn, false)).collect()),
        ("zipf 1.1, 30 % writes", zipf_of(&zipf, dice, 30)),
        ("zipf 0.8, 70 % writes", zipf_of(&flat, dice, 70)),
        ("uniform over 2 times the cache", (0..requests).map(|_| (dice.below(2 * cache), false)).collect()),
    ]
}

/// Time of a miss on a full cache, in microseconds.
fn miss_us(segments: u32, policy: ReclaimPolicy) -> f64 {
    let volume = u64::from(segments) * 16 * 4;
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    let mut rig = Rig::new((segments, 16), volume, &[VolumeSettings::default()], pool);
    let mut dice = Dice(2);
    while rig.engine.stats().evicted_blocks < 10_000 {
        (0..10_000).for_each(|_| rig.read(0, dice.below(volume)));
    }
    let before = rig.engine.stats().filled_blocks;
    let start = Instant::now();
    (0..100_000).for_each(|_| rig.read(0, dice.below(volume)));
    let filled = rig.engine.stats().filled_blocks - before;
    start.elapsed().as_secs_f64() * 1e6 / filled.max(1) as f64
}
