//! Mirrored caches without randomness: cases that a run hardly reaches by itself.

use crate::device::Latency;
use crate::disks::{CACHE, device_of};
use crate::plan::{FaultPlan, MirrorPlan, Plan, VolumePlan};
use crate::start::first_state;
use crate::world::{Trap, World};
use forebay_core::{EngineConfig, OnBackingChange, RequestKind, Treatment, VolumeSettings};
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::Mode;
use std::rc::Rc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Creates a world with a healthy mirrored cache of 32 columns under one volume of this many
/// blocks.
fn sound(blocks: u64) -> World {
    let mirrored = |plan: &Plan| {
        plan.mirror.is_some() && plan.geometry.columns() == 32 && plan.geometry.segment_blocks == 16
    };
    let plans = (1..).map(|seed| Plan::new(seed, None));
    let mut plan = plans.into_iter().find(mirrored).expect("one seed in five is mirrored");
    let bytes = blocks * BLOCK;
    plan.volumes = vec![VolumePlan { bytes, bytes_max: bytes, sector_bytes: 512, mode: Mode::Writeback }];
    plan.settings = VolumeSettings { idle_delay: 0, flush_period: 0, ..VolumeSettings::default() };
    plan.settings.skip_sequential_bytes = 0;
    (plan.mirror, plan.faults) = (Some(MirrorPlan::default()), FaultPlan::default());
    plan.engine = EngineConfig { scratch_blocks: plan.engine.scratch_blocks, ..EngineConfig::default() };
    let latency = |ns| Latency {
        read_ns: ns,
        write_ns: ns,
        flush_ns: ns,
        block_ns: 1_000,
        spread: 0,
        slow_ppm: 0,
        slow_ns: 0,
    };
    (plan.cache_latency, plan.backing_latency) = (latency(50_000), latency(2_000_000));
    plan.mix.rule_pct = 0;
    let plan = Rc::new(plan);
    let first = first_state(&plan).expect("the devices can be formatted");
    let mut world = World::open(&plan, first, OnBackingChange::Refuse);
    world.trap = Trap::Off;
    assert!(world.wait_open().expect("no violation"), "{:?}", world.engine.status());
    world
}

fn pass(world: &mut World, ns: u64) {
    let end = world.now + ns;
    while world.step(end).expect("no violation") {}
}

fn read(world: &mut World, block: u64) {
    world.ask(0, RequestKind::Read, (block * BLOCK, BLOCK), Treatment::Cache).expect("no violation");
    world.wait_requests().expect("no violation");
}

#[test]
fn read_only_volume_fills_both_halves() {
    let mut world = sound(900);
    for _ in 0..4 {
        (0..900).for_each(|block| read(&mut world, block));
        pass(&mut world, 2_000_000_000);
    }
    let geometry = world.plan.geometry;
    let half = u64::from(geometry.columns() * geometry.segment_blocks);
    let cached = world.engine.stats().cached_blocks;
    assert!(cached > half, "{cached} blocks are cached, each member has room for less than {half}");
    world.engine.check_invariants();
}

/// Makes all segments of a member unreadable until they are written.
fn spoil(world: &mut World, member: usize) {
    let geometry = world.plan.geometry;
    let device = device_of(&world.plan, member);
    for at in (geometry.segments_start_block * BLOCK..geometry.member_bytes()).step_by(512) {
        world.disks.devices[device].spoil(at);
    }
    world.errors[CACHE] += 1;
}

#[test]
fn bad_copy_is_rewritten_from_the_good_one() {
    let mut mended = 0;
    for member in [0, 1] {
        let mut world = sound(64);
        let write = RequestKind::Write { fua: true };
        world.ask(0, write, (0, BLOCK), Treatment::Cache).expect("no violation");
        world.wait_requests().expect("no violation");
        spoil(&mut world, member);
        read(&mut world, 0);
        pass(&mut world, 1_000_000_000);
        let state = world.engine.mirror_state().expect("it is mirrored");
        assert_eq!(state.out, None);
        // Only the member that is read first reveals its bad copy.
        if state.repaired_blocks > 0 {
            mended += state.repaired_blocks;
            spoil(&mut world, 1 - member);
            read(&mut world, 0);
        }
    }
    assert_eq!(mended, 1);
}

#[test]
fn misread_does_not_condemn_the_good_copy() {
    for (member, misreads) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        let mut world = sound(64);
        world.ask(0, RequestKind::Write { fua: true }, (0, BLOCK), Treatment::Cache).expect("no violation");
        world.wait_requests().expect("no violation");
        let (copies, _) = world.engine.pair_copies().next().expect("what is dirty has two copies");
        let [bad, good] = [member, 1 - member].map(|member| world.cache_at(copies[member]));
        world.disks.devices[bad.0].rot(bad.1, 3);
        world.disks.devices[good.0].misread(good.1, misreads);
        world.note_harm(member);
        while !world.scrubs.is_running() {
            world.scrub().expect("no violation");
        }
        // A lost block is a violation.
        pass(&mut world, 5_000_000_000);
        assert!(!world.scrubs.is_running());
        assert_eq!(world.engine.mirror_state().expect("it is mirrored").repaired_blocks, 1);
    }
}
