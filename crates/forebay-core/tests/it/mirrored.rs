//! A mirrored cache with a failed member, or with a bad copy.

use crate::rig::{Fault, GATHERED_NS, Rig};
use forebay_core::{Notice, PoolSettings, VolumeSettings};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, VolumeId};
use std::collections::BTreeSet;

const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);
const DIRTY: u64 = 1300;

/// A cache with dirty blocks in many segments, and destage held back.
fn rig() -> Rig {
    let held = VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        flush_period: 0,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    };
    let pool = PoolSettings { dirty_limit_pct: 90, ..PoolSettings::default() };
    let mut rig = Rig::mirrored((32, 64), 1 << 15, &[held], pool);
    rig.depth = 8;
    rig.keeps = true;
    (0..DIRTY).for_each(|block| rig.write(0, block));
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), DIRTY);
    rig.notices.clear();
    rig
}

fn read_all(rig: &mut Rig) {
    (0..DIRTY).for_each(|block| rig.read(0, block));
    rig.rest(10 * SECOND_NS);
}

/// The member that is out, according to the superblock copies of this one.
fn said_to_be_out(rig: &Rig, member: usize) -> [Option<u8>; 2] {
    [0, 1].map(|copy| {
        let at = rig.engine.geometry().mirror_meta(member, Geometry::superblock_offset(copy));
        let said = Superblock::decode(&rig.load(at, BLOCK_BYTES as u32)).expect("it is there");
        said.mirror.and_then(|mark| mark.out)
    })
}

#[test]
fn checkpoint_records_a_missing_member() {
    let mut rig = rig();
    rig.rest(SECOND_NS);
    let before = rig.engine.stats().checkpoints;
    rig.engine.member_gone(rig.now(), 1);
    rig.rest(SECOND_NS);
    assert_eq!(said_to_be_out(&rig, 0), [Some(1); 2]);
    assert!(rig.engine.stats().checkpoints > before);
}

#[test]
fn unreadable_member_is_put_out() {
    for member in [0, 1] {
        let mut rig = rig();
        rig.unreadable_member = Some(member);
        read_all(&mut rig);
        let out = u8::try_from(member).expect("a small number");
        for told in [Notice::MemberFailed { member: out }, Notice::MemberOut { member: out }] {
            assert_eq!(rig.notices.iter().filter(|notice| **notice == told).count(), 1, "{told:?}");
        }
        assert!(!rig.engine.is_fenced());
        let state = rig.engine.mirror_state().expect("it is mirrored");
        assert_eq!((state.out, state.noted), (Some(out), true));
        assert_eq!(said_to_be_out(&rig, 1 - member), [Some(out); 2]);
        let stats = rig.engine.stats();
        assert_eq!((stats.dirty_blocks, stats.lost_blocks, stats.requests_in_flight), (DIRTY, 0, 0));
        rig.engine.check_invariants();
    }
}

#[test]
fn failing_note_is_tried_three_times() {
    let mut rig = rig();
    rig.errors = Some(0);
    rig.refuses_notes = true;
    rig.unreadable_member = Some(1);
    read_all(&mut rig);
    rig.rest(60 * SECOND_NS);
    let asked = &rig.asked_for_notes;
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= SECOND_NS), "{asked:?}");
    assert!(rig.engine.is_fenced() && rig.notices.contains(&Notice::CacheFenced));
}

#[test]
fn bad_copy_is_rewritten_from_the_other() {
    for fault in [Fault::Wrong, Fault::Unreadable] {
        let mut rig = rig();
        let place = rig.place_of(0, 7);
        rig.faults.insert(place, fault);
        read_all(&mut rig);
        assert_eq!(
            rig.engine.mirror_state().map(|state| (state.out, state.repaired_blocks)),
            Some((None, 1))
        );
        assert!(rig.faults.is_empty(), "{fault:?}: it was written again");
        assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.engine.stats().lost_blocks), (DIRTY, 0));
    }
}

#[test]
fn scrub_checks_and_repairs_both_copies() {
    let mut rig = rig();
    let place = rig.place_of(0, 7);
    rig.faults.insert(place, Fault::Wrong);
    rig.engine.begin_scrub(rig.now(), 1 << 30).expect("nothing is in its way");
    rig.rest(10 * SECOND_NS);
    let report = rig.notices.iter().find_map(|notice| match notice {
        Notice::ScrubEnded { report, complete: true } => Some(*report),
        _ => None,
    });
    let report = report.expect("it ends");
    assert_eq!((report.total_blocks, report.checked_blocks), (2 * DIRTY, 2 * DIRTY));
    assert_eq!((report.damaged_blocks, report.repaired_blocks, report.lost_blocks), (1, 1, 0));
    assert!(rig.faults.is_empty(), "it was written again");
}

#[test]
fn clean_blocks_avoid_the_failed_member() {
    for member in [0, 1] {
        let mut rig = rig();
        // One half of a column is being filled, and the other half comes next.
        (0..20).for_each(|at| rig.read(0, 5000 + at));
        rig.rest(GATHERED_NS);
        rig.engine.member_gone(rig.now(), member);
        rig.rest(SECOND_NS);
        (0..200).for_each(|at| rig.read(0, 10_000 + at));
        rig.rest(GATHERED_NS);
        for at in 0..200 {
            let place = rig.place_of(0, 10_000 + at);
            assert_ne!(rig.engine.geometry().mirror_place(place).0, usize::from(member));
        }
        rig.engine.check_invariants();
    }
}

#[test]
fn clean_blocks_use_both_members() {
    let mut rig = rig();
    let first = 10_000;
    (0..600).for_each(|at| rig.read(0, first + at));
    rig.rest(GATHERED_NS);
    let mut on = [0; 2];
    for at in 0..600 {
        let place = rig.place_of(0, first + at);
        on[rig.engine.geometry().mirror_place(place).0] += 1;
    }
    assert!(on.iter().all(|count| *count >= 200), "{on:?}");
}

#[test]
fn mirrored_blocks_survive_kill_and_stop() {
    for stops in [false, true] {
        let mut rig = rig();
        rig.reopen(); // From now on everything is kept.
        (0..DIRTY).for_each(|block| rig.write(0, block));
        // Some columns have clean blocks in both halves, and one column in one half.
        (0..200).for_each(|at| rig.read(0, 5000 + at));
        rig.rest(GATHERED_NS);
        let before = rig.engine.stats();
        if stops {
            rig.stop();
        }
        rig.reopen();
        rig.rest(SECOND_NS);
        let stats = rig.engine.stats();
        assert_eq!(
            (stats.dirty_blocks, stats.cached_blocks),
            (before.dirty_blocks, before.cached_blocks),
            "{stops}"
        );
        rig.engine.check_invariants();
    }
}

#[test]
fn rebuilt_member_can_be_read_alone() {
    for member in [0, 1] {
        let mut rig = rig();
        rig.engine.member_gone(rig.now(), member);
        rig.rest(SECOND_NS);
        rig.engine.begin_rebuild(rig.now(), 3).expect("it is out");
        rig.rest(60 * SECOND_NS);
        assert_eq!(rig.notices.iter().filter(|notice| **notice == Notice::MirrorWhole).count(), 1);
        let state = rig.engine.mirror_state().expect("it is mirrored");
        assert!(state.out.is_none() && state.rebuild.is_none(), "{state:?}");
        assert_eq!([said_to_be_out(&rig, 0), said_to_be_out(&rig, 1)], [[None; 2]; 2]);
        rig.unreadable_member = Some(1 - usize::from(member));
        read_all(&mut rig);
        assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.engine.stats().lost_blocks), (DIRTY, 0));
        rig.engine.check_invariants();
    }
}

#[test]
fn open_ignores_an_unreadable_unused_half() {
    let mut rig = rig();
    rig.reopen(); // From now on everything is kept.
    let geometry = rig.engine.geometry();
    let (start, bytes) = (geometry.segment_offset(0, 0), geometry.segment_bytes());
    let columns = u64::from(geometry.segment_count / 2);
    let mut next = 5000..;
    let mut filled = |rig: &mut Rig| {
        let block = next.next().expect("the volume has more");
        rig.read(0, block);
        rig.rest(GATHERED_NS);
        (rig.place_of(0, block) - start) / bytes
    };
    // Clean blocks fill a column whose second half is used first.
    let mut seen = BTreeSet::new();
    let first = loop {
        let segment = filled(&mut rig);
        seen.insert(segment);
        if segment >= columns && !seen.contains(&(segment - columns)) {
            break segment - columns;
        }
    };
    // A checkpoint records that, and the first half is begun after it.
    let before = rig.engine.stats().checkpoints;
    rig.engine.resize_volume(rig.now(), VOLUME, (1 << 27) - 4096).expect("it can be cut");
    rig.rest(SECOND_NS);
    assert!(rig.engine.stats().checkpoints > before);
    while filled(&mut rig) != first {}
    rig.unreadable_meta = start + first * bytes..start + (first + 1) * bytes;
    rig.reopen();
    assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.engine.stats().lost_blocks), (DIRTY, 0));
    rig.engine.check_invariants();
}
