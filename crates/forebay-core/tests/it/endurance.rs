//! The endurance budget over hours of load in virtual time: writes stay within it, clients have
//! priority and never wait for it.

use crate::rig::{Dice, Rig, Zipf};
use forebay_core::{
    EnduranceBudget, PoolSettings, RequestKind, Restraint, Treatment, VolumeSettings, WrittenBytes,
};
use forebay_format::checkpoint::Mode;

const SEGMENTS: (u32, u32) = (64, 64);
const VOLUME_BLOCKS: u64 = 4 * 64 * 64;
const HOUR_NS: u64 = 3_600_000_000_000;
const MB: u64 = 1_000_000;

fn pool(endurance_budget: EnduranceBudget) -> PoolSettings {
    PoolSettings { endurance_budget, ..PoolSettings::default() }
}

fn rig(budget: EnduranceBudget, mode: Mode) -> Rig {
    let settings = VolumeSettings { mode, ..VolumeSettings::default() };
    Rig::new(SEGMENTS, VOLUME_BLOCKS, &[settings], pool(budget))
}

fn written(rig: &Rig) -> WrittenBytes {
    rig.engine.stats().written()
}

/// Hours of load: requests in each hour, and the percentage of writes.
fn load(rig: &mut Rig, hours: u64, requests: u64, writes_pct: u64) {
    let (mut dice, zipf) = (Dice(rig.now()), Zipf::new(VOLUME_BLOCKS, 0.6));
    let turns = requests / rig.depth;
    for turn in 0..hours * turns {
        for _ in 0..rig.depth {
            let (block, writes) = (zipf.draw(&mut dice), dice.below(100) < writes_pct);
            if writes { rig.write(0, block) } else { rig.read(0, block) }
        }
        rig.rest(HOUR_NS / turns);
        // The account may drop something each hour; the report stays in range.
        if turn % turns == 0 {
            let report = rig.engine.endurance().expect("there is a budget");
            assert!(report.saved_bytes.unsigned_abs() <= report.budget_bytes, "{report:?}");
        }
    }
}

#[test]
fn writes_stay_within_each_hours_budget() {
    for (budget, writes_pct) in [(200, 0), (200, 10), (600, 30), (400, 10)] {
        let mut rig = rig(EnduranceBudget::Bytes(budget * MB), Mode::Writeback);
        // Within an hour's debt, and a purse.
        let slack = budget * MB / 24 + budget * MB / 144 + 65_536;
        for hour in 1..=12 {
            load(&mut rig, 1, 6400, writes_pct);
            let all = written(&rig);
            assert!(all.total() <= budget * MB * hour / 24 + slack, "{budget} MB, hour {hour}: {all:?}");
        }
        let stats = rig.engine.stats();
        assert!(stats.endurance_unfilled_blocks > 0 && stats.endurance_missed_blocks > 0, "{stats:?}");
        assert!(stats.endurance_missed_blocks <= stats.read_miss_blocks);
        assert!(stats.written().total() * 10 > budget * MB * 12 / 24 * 8, "most of it is used: {stats:?}");
        rig.engine.check_invariants();
    }
}

#[test]
fn client_writes_are_never_held_back() {
    let mut rig = rig(EnduranceBudget::Bytes(50 * MB), Mode::Writeback);
    load(&mut rig, 6, 6400, 50);
    let all = written(&rig);
    assert!(all.clients > 50 * MB, "they write more than the budget: {all:?}");
    let filled = all.optional();
    load(&mut rig, 6, 6400, 50);
    assert_eq!(written(&rig).optional(), filled, "nothing is left for fills");
    let report = rig.engine.endurance().expect("there is a budget");
    assert_eq!((report.restraint, report.optional_bytes), (Restraint::All, 0));
    assert_eq!(rig.engine.stats().failed_requests, 0);
}

#[test]
fn copies_and_prefetches_obey_the_budget() {
    let mut rig = rig(EnduranceBudget::Bytes(1), Mode::Writethrough);
    for block in 0..512 {
        rig.write(0, block);
        rig.request(0, RequestKind::Prefetch, 1000 + block, 1, Treatment::Cache);
        rig.request(0, RequestKind::Read, 2000 + block, 1, Treatment::Pin);
    }
    rig.rest(HOUR_NS);
    let all = written(&rig);
    assert!(all.optional() <= 4096, "one block is begun with the last of it: {all:?}");
    assert!(rig.engine.stats().endurance_unfilled_blocks >= 3 * 512 - 1);
}

#[test]
fn frequent_budget_changes_gain_nothing() {
    let mut rig = rig(EnduranceBudget::Bytes(100 * MB), Mode::Writeback);
    let mut dice = Dice(9);
    let began = written(&rig).total();
    for second in 0..3600 {
        let budget = if second % 2 == 0 { 100 * MB } else { 300 * MB };
        let now = rig.now();
        rig.engine.configure_pool(now, pool(EnduranceBudget::Bytes(budget))).unwrap();
        (0..4).for_each(|_| rig.read(0, dice.below(VOLUME_BLOCKS)));
        rig.rest(1_000_000_000);
    }
    let all = written(&rig).total() - began;
    assert!(all <= 200 * MB / 24 * 115 / 100 + 65_536, "{all}");
    let now = rig.now();
    rig.engine.configure_pool(now, pool(EnduranceBudget::Unlimited)).unwrap();
    assert_eq!(rig.engine.endurance(), None);
    (0..4096).for_each(|block| rig.read(0, block));
    rig.rest(HOUR_NS);
    let free = written(&rig).total() - all - began;
    assert!(free > 2 * all.min(8 * MB), "nothing is held back any more: {free} after {all}");
}

/// Both members of a mirrored cache count.
#[test]
fn device_writes_budget_follows_pool_size() {
    let mut rig = rig(EnduranceBudget::DeviceWrites(500), Mode::Writeback);
    rig.read(0, 0);
    rig.rest(1_000_000_000);
    let bytes = |rig: &Rig| rig.engine.geometry().device_blocks * 4096;
    assert_eq!(rig.engine.endurance().unwrap().budget_bytes, bytes(&rig) / 2);
    rig.shrink(16);
    assert_eq!(rig.engine.endurance().unwrap().budget_bytes, bytes(&rig) / 2, "as it is now");
    let each = pool(EnduranceBudget::BytesOfEachDevice(7 * MB));
    let mut mirrored = Rig::mirrored(SEGMENTS, VOLUME_BLOCKS, &[VolumeSettings::default()], each);
    assert_eq!(mirrored.engine.endurance().unwrap().budget_bytes, 14 * MB);
    (0..256).for_each(|block| mirrored.write(0, block));
    mirrored.rest(HOUR_NS);
    assert_eq!(written(&mirrored).clients, 2 * 256 * 4096, "both copies count");
}
