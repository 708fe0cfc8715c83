//! Days of load in virtual time with and without an endurance budget: `endurance [DAYS
//! [REQUESTS_A_DAY]]`. The table is in `docs/use/endurance.md`; it is the same on every machine.
//!
//! The cache has 128 MiB, the volume four times as much. By day, from 8 to 18 o'clock, nine of ten
//! requests are made. They are Zipf 1.1, one in ten writes. From 2 to 3 o'clock all of the volume
//! is read once, as by a backup. The first day warms the cache up and is not counted.

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use forebay_core::{
    Admission, EnduranceBudget, PoolSettings, RequestKind, Stats, Treatment, VolumeSettings, WrittenBytes,
};
use rig::{Dice, Rig, Zipf};

const SEGMENTS: (u32, u32) = (128, 256);
const VOLUME_BLOCKS: u64 = 4 * SEGMENTS.0 as u64 * SEGMENTS.1 as u64;
/// Blocks that the backup reads at once.
const SCAN_BLOCKS: u64 = 64;
const HOUR_NS: u64 = 3_600_000_000_000;

/// What a day has written, by noon and in all, and how reads fared.
struct Day {
    by_noon: u64,
    written: WrittenBytes,
    hits: u64,
    misses: u64,
    missed_for_it: u64,
}

fn main() {
    let argument = |at: usize, default: u64| {
        std::env::args().nth(at).and_then(|word| word.parse().ok()).unwrap_or(default)
    };
    let (days, requests) = (argument(1, 2).max(1), argument(2, 1_000_000));
    println!("days of {requests} requests, the mean of {days} after the first one\n");
    println!(
        "| budget a day | admission | written a day, MB | by noon, % | client writes | fills | kept | moved | headers | other | hits, % | misses for it, % |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let free = row(None, Admission::Always, days, requests);
    row(None, Admission::SecondAccess, days, requests);
    for share_pct in [75, 50, 35, 25, 15] {
        row(Some(free * share_pct / 100), Admission::Always, days, requests);
    }
}

/// Prints a line; gives the bytes written in a day.
fn row(budget: Option<u64>, admission: Admission, days: u64, requests: u64) -> u64 {
    let endurance_budget = budget.map_or(EnduranceBudget::Unlimited, EnduranceBudget::Bytes);
    let pool = PoolSettings { endurance_budget, ..PoolSettings::default() };
    let volume = VolumeSettings { admission, ..VolumeSettings::default() };
    let mut rig = Rig::new(SEGMENTS, VOLUME_BLOCKS, &[volume], pool);
    let (mut dice, zipf) = (Dice(7), Zipf::new(VOLUME_BLOCKS, 1.1));
    day(&mut rig, &mut dice, &zipf, requests);
    let all: Vec<Day> = (0..days).map(|_| day(&mut rig, &mut dice, &zipf, requests)).collect();
    let mean = |of: &dyn Fn(&Day) -> u64| all.iter().map(of).sum::<u64>() as f64 / days as f64;
    let mb = |of: &dyn Fn(&WrittenBytes) -> u64| format!("{:.0}", mean(&|day| of(&day.written)) / 1e6);
    let total = mean(&|day| day.written.total());
    let reads = mean(&|day| day.hits + day.misses);
    let pct = |part: f64, whole: f64| format!("{:.1}", part * 100.0 / whole.max(1.0));
    println!(
        "| {} | {} | {:.0} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        budget.map_or("off".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6)),
        if admission == Admission::Always { "always" } else { "second-access" },
        total / 1e6,
        pct(mean(&|day| day.by_noon), total),
        mb(&|written| written.clients),
        mb(&|written| written.fills),
        mb(&|written| written.kept),
        mb(&|written| written.moved),
        mb(&|written| written.headers),
        mb(&|written| written.checkpoints + written.copies + written.rebuilds + written.restarts),
        pct(mean(&|day| day.hits), reads),
        pct(mean(&|day| day.missed_for_it), reads),
    );
    total as u64
}

/// From midnight to midnight.
fn day(rig: &mut Rig, dice: &mut Dice, zipf: &Zipf, requests: u64) -> Day {
    let before = rig.engine.stats();
    let midnight = rig.now();
    let mut noon = before;
    for hour in 0..24 {
        if hour == 12 {
            noon = rig.engine.stats();
        }
        let end = midnight + (hour + 1) * HOUR_NS;
        if hour == 2 {
            scan(rig, end);
        } else {
            let share = if (8..18).contains(&hour) { requests * 9 / 100 } else { requests / 130 };
            ask(rig, (dice, zipf), share, end);
        }
    }
    let after = rig.engine.stats();
    let since = |from: &Stats, of: fn(&Stats) -> u64| of(&after) - of(from);
    Day {
        by_noon: noon.cache_written_bytes - before.cache_written_bytes,
        written: WrittenBytes {
            clients: since(&before, |stats| stats.cache_written_client_bytes),
            copies: since(&before, |stats| stats.cache_written_copy_bytes),
            fills: since(&before, |stats| stats.cache_written_fill_bytes),
            kept: since(&before, |stats| stats.cache_written_kept_bytes),
            moved: since(&before, |stats| stats.cache_written_moved_bytes),
            headers: since(&before, |stats| stats.cache_written_header_bytes),
            checkpoints: since(&before, |stats| stats.cache_written_checkpoint_bytes),
            rebuilds: since(&before, |stats| stats.cache_written_rebuild_bytes),
            restarts: since(&before, |stats| stats.cache_written_restart_bytes),
            copied: since(&before, |stats| stats.cache_written_device_copy_bytes),
        },
        hits: since(&before, |stats| stats.read_hit_blocks),
        misses: since(&before, |stats| stats.read_miss_blocks),
        missed_for_it: since(&before, |stats| stats.endurance_missed_blocks),
    }
}

/// Requests of clients, spread evenly until `end`.
fn ask(rig: &mut Rig, (dice, zipf): (&mut Dice, &Zipf), requests: u64, end: u64) {
    let turns = requests.div_ceil(rig.depth).max(1);
    for turn in 0..turns {
        for _ in 0..rig.depth {
            let (block, writes) = (zipf.draw(dice), dice.below(10) == 0);
            if writes { rig.write(0, block) } else { rig.read(0, block) }
        }
        let left = end.saturating_sub(rig.now());
        rig.rest(left / (turns - turn));
    }
}

/// A backup reads everything.
fn scan(rig: &mut Rig, end: u64) {
    for block in (0..VOLUME_BLOCKS).step_by(SCAN_BLOCKS as usize) {
        rig.request(0, RequestKind::Read, block, SCAN_BLOCKS, Treatment::Cache);
        let left = end.saturating_sub(rig.now()) / (VOLUME_BLOCKS - block).div_ceil(SCAN_BLOCKS);
        rig.rest(left);
    }
}
