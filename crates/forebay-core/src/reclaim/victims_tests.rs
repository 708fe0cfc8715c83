//! Tests of the choice of victims and kept blocks, under each policy.

use super::*;
use crate::api::settings::{Priority, ReclaimPolicy};
use crate::policy::ghosts::WHOLE;
use crate::reclaim::victims::{Choice, Keep, Victims};
use alloc::vec::Vec;

fn view(policy: ReclaimPolicy) -> View {
    View { policy, segment_blocks: 16, movable: 11, newest: 100, probation_share: WHOLE / 10, densest: None }
}

fn candidate(segment: u32, first_sequence: u64, live: u32, unclean: u32) -> Candidate {
    Candidate { segment, first_sequence, unclean, pinned: 0, live, probation: true }
}

fn choose(view: &View, candidates: &[Candidate]) -> Option<Choice> {
    let look = |number| candidates.iter().find(|candidate| candidate.segment == number).copied();
    Victims::default().pass(view, Some(0), candidates.iter().copied(), 16, look)
}

fn chosen(view: &View, candidates: &[Candidate]) -> Option<u32> {
    choose(view, candidates).map(|choice| choice.segment)
}

#[test]
fn oldest_of_equal_segments_is_reclaimed() {
    let candidates = [candidate(1, 30, 10, 0), candidate(2, 10, 10, 0), candidate(3, 20, 10, 0)];
    for policy in ReclaimPolicy::ALL {
        assert_eq!(chosen(&view(policy), &candidates), Some(2));
        assert_eq!(chosen(&view(policy), &[]), None);
    }
}

#[test]
fn lru_prefers_overwritten_segments() {
    let candidates = [candidate(1, 10, 16, 0), candidate(2, 12, 7, 2), candidate(3, 90, 16, 0)];
    assert_eq!(chosen(&view(ReclaimPolicy::Lru), &candidates), Some(2));
    assert_eq!(chosen(&view(ReclaimPolicy::Fifo), &candidates), Some(1));
}

#[test]
fn lru_drops_clean_before_moving_dirty() {
    let candidates = [candidate(1, 10, 8, 8), candidate(2, 10, 8, 0), candidate(3, 11, 16, 10)];
    assert_eq!(chosen(&view(ReclaimPolicy::Lru), &candidates), Some(2));
}

#[test]
fn lru_takes_the_oldest_of_dirty_segments() {
    let view = View { movable: 33, ..view(ReclaimPolicy::Lru) };
    let candidates = [candidate(1, 20, 16, 16), candidate(2, 10, 16, 16), candidate(3, 15, 16, 16)];
    assert_eq!(chosen(&view, &candidates), Some(2));
}

#[test]
fn oversized_probation_is_reclaimed_first() {
    let view = view(ReclaimPolicy::S3Fifo);
    let main =
        |segment, first_sequence| Candidate { probation: false, ..candidate(segment, first_sequence, 16, 0) };
    let mut candidates: Vec<Candidate> = (0..18).map(|at| main(at, u64::from(at))).collect();
    candidates.extend([candidate(20, 50, 16, 0), candidate(21, 60, 16, 0)]);
    assert_eq!(chosen(&view, &candidates), Some(0), "2 of 20 are a tenth");
    candidates.extend([candidate(22, 70, 16, 0)]);
    assert_eq!(chosen(&view, &candidates), Some(20), "3 of 21 are more");
    candidates.truncate(18);
    assert_eq!(chosen(&view, &candidates), Some(0), "nothing is on probation");
}

#[test]
fn main_yields_while_probation_is_not_clean() {
    let view = view(ReclaimPolicy::S3Fifo);
    let main = |unclean| Candidate { probation: false, ..candidate(1, 10, 16, unclean) };
    let with =
        |new: u32, old: u32| chosen(&view, &[main(old), candidate(2, 20, 16, new), candidate(3, 30, 16, 0)]);
    assert_eq!(with(4, 0), Some(2), "a quarter is not too much");
    assert_eq!(with(5, 4), Some(1), "of two that are not clean the cleaner one");
    assert_eq!(with(5, 5), Some(2));
    assert_eq!(
        chosen(&view, &[candidate(2, 20, 16, 9), candidate(3, 30, 16, 0)]),
        Some(2),
        "nothing is main"
    );
}

#[test]
fn pinned_segments_are_the_last_resort() {
    let view = view(ReclaimPolicy::Fifo);
    let pinned = Candidate { pinned: 12, ..candidate(2, 1, 16, 0) };
    assert_eq!(chosen(&view, &[candidate(1, 1, 16, 11)]), None);
    assert_eq!(chosen(&view, &[pinned, candidate(3, 9, 16, 0)]), Some(3));
    assert_eq!(choose(&view, &[pinned]), Some(Choice { segment: 2, compacts: false, forced: true }));
}

#[test]
fn compaction_chooses_by_cost_and_benefit() {
    let main = Candidate { probation: false, ..candidate(2, 50, 6, 0) };
    let old = candidate(5, 1, 12, 0);
    for policy in ReclaimPolicy::ALL {
        let view = View { densest: Some(12), ..view(policy) };
        let choice = |segment| Some(Choice { segment, compacts: true, forced: false });
        let full = [candidate(1, 1, 16, 0), candidate(3, 2, 13, 0)];
        assert_eq!(choose(&view, &full), None, "{policy:?}: moving them makes too little room");
        assert_eq!(choose(&view, &[full[0], main, full[1]]), choice(2));
        assert_eq!(choose(&view, &[main, old]), choice(2), "ten sixteenths at 51 are more than four at 100");
        let young = Candidate { first_sequence: 90, ..main };
        assert_eq!(choose(&view, &[young, old]), choice(5), "but not at 11");
        let pinned = Candidate { pinned: 16, ..main };
        assert_eq!(choose(&view, &[pinned]), choice(2), "pinned blocks move like all others");
        assert_eq!(choose(&view, &[candidate(2, 1, 11, 11)]), None, "so much cannot be moved now");
    }
}

#[test]
fn one_pass_serves_many_choices() {
    let mut victims = Victims::default();
    let view = View { newest: 5000, ..view(ReclaimPolicy::Fifo) };
    let all: Vec<Candidate> = (0..4096).map(|at| candidate(at, u64::from(at), 16, 0)).collect();
    for expected in 0..256 {
        let look = |number: u32| (number != 7).then(|| all[number as usize]);
        let choice = victims.next(&view, look);
        let skipped = u32::from(expected >= 7);
        let offered = all.iter().copied().filter(|candidate| candidate.segment >= expected + skipped);
        let choice = choice.or_else(|| victims.pass(&view, Some(1), offered, 4096, look));
        assert_eq!(choice.map(|choice| choice.segment), Some(expected + skipped), "7 is never eligible");
    }
    assert!(victims.passes <= 6, "{} passes", victims.passes);
    assert_eq!(Victims::default().pass(&view, Some(1), core::iter::empty(), 16, |_| None), None);
    let mut none = Victims::default();
    none.pass(&view, Some(1), core::iter::empty(), 16, |_| None);
    assert!(none.is_barren(1, &view) && !none.is_barren(2, &view));
}

fn block() -> Block {
    Block {
        hit: false,
        pinned: false,
        probation: true,
        priority: Priority::Normal,
        within_minimum: false,
        above_maximum: false,
    }
}

fn kept(hits: u32, all: u32) -> Kept {
    Kept { choice: Choice { segment: 0, compacts: false, forced: false }, hits, all }
}

fn keeping(policy: ReclaimPolicy) -> Keeping {
    Keeping { policy, segment_blocks: 64, survivors_max_pct: 50 }
}

/// `fifo` keeps no block for its hits.
#[test]
fn hit_blocks_are_kept_up_to_the_budget() {
    let hit = Block { hit: true, ..block() };
    for policy in [ReclaimPolicy::Lru, ReclaimPolicy::S3Fifo] {
        assert_eq!(keeping(policy).decide(&hit, &kept(31, 31)), Keep::IfPossible);
        assert_eq!(keeping(policy).decide(&hit, &kept(32, 32)), Keep::No);
        assert_eq!(keeping(policy).decide(&block(), &kept(0, 0)), Keep::No);
    }
    assert_eq!(keeping(ReclaimPolicy::Fifo).decide(&hit, &kept(0, 0)), Keep::No);
}

#[test]
fn shares_and_priority_select_kept_blocks() {
    let keeping = keeping(ReclaimPolicy::S3Fifo);
    let hit = Block { hit: true, ..block() };
    let low = Block { priority: Priority::Low, ..hit };
    let high = Block { priority: Priority::High, ..block() };
    assert_eq!(keeping.decide(&low, &kept(0, 0)), Keep::No);
    assert_eq!(keeping.decide(&high, &kept(0, 0)), Keep::IfPossible);
    assert_eq!(keeping.decide(&Block { probation: false, ..high }, &kept(0, 0)), Keep::No);
    assert_eq!(keeping.decide(&Block { above_maximum: true, ..hit }, &kept(0, 0)), Keep::No);
    let minimum = Block { within_minimum: true, ..block() };
    assert_eq!(keeping.decide(&minimum, &kept(50, 53)), Keep::IfPossible, "beyond the budget of hits");
}

#[test]
fn compaction_drops_only_blocks_above_share() {
    let choice = Choice { segment: 0, compacts: true, forced: false };
    let compacted = Kept { choice, hits: 0, all: 0 };
    for policy in [ReclaimPolicy::Fifo, ReclaimPolicy::S3Fifo] {
        assert_eq!(keeping(policy).decide(&block(), &compacted), Keep::Must);
        let low = Block { priority: Priority::Low, ..block() };
        assert_eq!(keeping(policy).decide(&low, &compacted), Keep::Must);
        let above = Block { above_maximum: true, ..block() };
        assert_eq!(keeping(policy).decide(&above, &compacted), Keep::No);
        let pinned = Block { pinned: true, ..above };
        assert_eq!(keeping(policy).decide(&pinned, &compacted), Keep::Must);
    }
}

#[test]
fn kept_blocks_leave_room_in_the_segment() {
    let keeping = keeping(ReclaimPolicy::S3Fifo);
    let all = Block { pinned: true, within_minimum: true, hit: true, ..block() };
    assert_eq!(keeping.decide(&all, &kept(0, 53)), Keep::Must);
    assert_eq!(keeping.decide(&all, &kept(0, 54)), Keep::No, "I25");
    let forced = Kept { choice: Choice { segment: 0, compacts: false, forced: true }, hits: 0, all: 0 };
    assert_eq!(keeping.decide(&all, &forced), Keep::IfPossible);
}
