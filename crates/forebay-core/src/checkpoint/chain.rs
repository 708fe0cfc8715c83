//! Which form a checkpoint gets: whole, or an increment of a chain.
//!
//! A whole checkpoint describes all slots of the cache. An increment describes what has changed
//! since the checkpoint before it, and is written behind it
//! ([`forebay_format::checkpoint::increment`]). Small caches have whole checkpoints only: they cost
//! little. In the others an increment is taken
//!
//! - if the chain stays shorter than a whole checkpoint ([`CHAIN_BLOCKS`] in smaller caches), and
//!   fits its slot. So a restart reads little more;
//! - if all changes are known: there were not too many, the geometry is the same, and each member
//!   has what the chain begins with.
//!
//! When half of the chain's room is used, a new base is begun ([`super::base`]). While it is
//! written each increment goes to both chains. The first increment after its completion is the end
//! of the old one. If changes are not known, a checkpoint waits until a new base is there.
//!
//! Everything that the new chain lacks of a change is in the list when the base is begun: it is
//! begun between two snapshots, and what has changed since the one before is listed again.
//!
//! The checkpoint that ends an opening is whole, and so is the one of an orderly stop: what opens
//! a cache that was closed needs to know nothing of chains.

use crate::checkpoint::{Checkpoints, Purpose};
use crate::context::coverage::CoverageMark;
use crate::context::{Context, Status};
use crate::fault::{self, PlantedBug};
use crate::map::segment::SegmentPhase;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::increment::{Increment, SlotChange, base_blocks};
use forebay_format::checkpoint::{Checkpoint, SlotState, SlotStates};
use forebay_format::superblock::Chain;

/// Blocks of all increments of a chain in caches whose whole checkpoint is shorter: 8 MiB, which
/// are read in some milliseconds.
const CHAIN_BLOCKS: u64 = 2048;
/// Bytes of a change on the device.
const CHANGE_BYTES: u64 = 6;
/// Bytes of a segment entry on the device.
const ENTRY_BYTES: u64 = 32;

/// How large a chain may become, by the state of the cache at the last snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Blocks of all increments; 0: there are none.
    chain: u64,
    /// Changes that are noted.
    pub(super) changes: usize,
}

impl Limits {
    /// `start`: blocks in the slot in front of the increments.
    fn of(cx: &Context, start: u64) -> Self {
        let (geometry, config) = (&cx.map.geometry, &cx.config.checkpoint);
        let count = u64::from(geometry.segment_count);
        let empty = (cx.free.pool.len() + cx.free.window.len()) as u64;
        let tables = count.saturating_sub(empty) * u64::from(geometry.segment_blocks).div_ceil(4);
        let whole = 1 + (count * ENTRY_BYTES + tables).div_ceil(BLOCK_BYTES as u64);
        let start = start.max(base_blocks(geometry.segment_count, geometry.segment_blocks));
        let room = u64::from(geometry.checkpoint_slot_blocks).saturating_sub(start);
        let chain = room.min(whole.max(CHAIN_BLOCKS)).min(config.chain_blocks_max);
        // A cache that has grown as far as it can has hardly any room for increments.
        if whole < config.chain_from_blocks || room < whole / 2 {
            return Self::default();
        }
        let changes = chain * BLOCK_BYTES as u64 / CHANGE_BYTES;
        Self { chain, changes: changes.min(config.changes_max.into()) as usize }
    }
}

impl Context {
    /// The number of the next checkpoint, or base: above all others, and of the slots that what is
    /// in effect does not use (I13).
    pub(crate) fn next_checkpoint_generation(&self) -> u64 {
        let next = self.superblock.checkpoint_generation.max(self.reserved_generation) + 1;
        next + u64::from(next % 2 == self.superblock.image_generation() % 2)
    }
}

impl Context {
    /// For tests: a snapshot as a restart must read it, slots included.
    pub(super) fn whole_checkpoint(&self, rest: &Checkpoint) -> Checkpoint {
        let with_slots = |number: u32| {
            let mut entry = self.segment_entry(number);
            if entry.state.has_slots() {
                let mut packed = Vec::new();
                self.map.segments[number as usize].pack_states(&mut packed);
                entry.slots = SlotStates::from_packed(packed);
            }
            entry
        };
        let count = self.map.segments.len() as u32;
        Checkpoint { segments: (0..count).map(with_slots).collect(), ..rest.clone() }
    }
}

impl Checkpoints {
    /// Checkpoints are taken as the cache is used.
    pub(super) fn is_running(&self, cx: &Context) -> bool {
        self.purpose == Purpose::Running && cx.status == Status::Ready && !cx.fenced && !cx.is_winding_down()
    }

    #[inline]
    pub(super) fn wants_base(&self, cx: &Context) -> bool {
        self.limits.chain > 0 && self.is_idle() && self.needs_base(cx)
    }

    fn needs_base(&self, cx: &Context) -> bool {
        !cx.map.changes.are_lost() && self.chained(cx) * 2 > self.limits.chain && self.may_begin_base(cx)
    }

    /// A checkpoint is due, and changes are lost: no increment is possible without a base. Not
    /// before: what changes while it is written is to be little.
    pub(super) fn needs_base_now(&self, cx: &Context) -> bool {
        let ended = cx.map.changes.are_lost() || self.broken;
        ended && self.limits.chain > 0 && self.base.is_none() && self.may_begin_base(cx)
    }

    fn may_begin_base(&self, cx: &Context) -> bool {
        self.base_writes == 0 && !self.base_given_up && self.is_running(cx) && self.has_same_places(cx)
    }

    /// All members that count have all of the chain, and the geometry is the same.
    fn has_same_places(&self, cx: &Context) -> bool {
        let members = cx.meta_members();
        cx.joining_member().is_none()
            && self.image_geometry == Some(cx.map.geometry)
            && members.start >= self.image_members.start
            && members.end <= self.image_members.end
    }

    /// A checkpoint is in effect: members that do not count lack it.
    pub(super) fn note_members(&mut self, cx: &Context) {
        let (had, members) = (self.image_members.clone(), cx.meta_members());
        self.image_members = had.start.max(members.start)..had.end.min(members.end);
    }

    /// Blocks of the increments of the chain in effect.
    fn chained(&self, cx: &Context) -> u64 {
        cx.superblock.chain.map_or(0, |chain| u64::from(chain.blocks))
    }

    /// There is a base that is not complete, and no increment is possible before it is: a
    /// checkpoint waits for it.
    pub(super) fn waits_for_base(&self, cx: &Context) -> bool {
        self.base.as_ref().is_some_and(|base| !base.is_complete()) && (self.broken || self.is_full(cx))
    }

    /// The chain in effect has hardly any room for what has changed by now.
    fn is_full(&self, cx: &Context) -> bool {
        let next = cx.map.changes.len() as u64 * CHANGE_BYTES / BLOCK_BYTES as u64 + 2;
        self.chained(cx) + next > self.limits.chain
    }

    /// An increment with this `rest` can say what the next checkpoint means.
    pub(super) fn may_increment(&self, cx: &Context, rest: &Checkpoint) -> bool {
        let anew = self.base.as_ref().filter(|base| base.is_complete());
        let known = !cx.map.changes.are_lost() && (anew.is_some() || !self.broken);
        let used = anew.map_or(self.chained(cx), |base| base.increments.into());
        let blocks = Increment::blocks_for(rest, cx.map.changes.segments(), cx.map.changes.len());
        let fits = used + blocks <= self.limits.chain;
        known && fits && self.is_running(cx) && self.has_same_places(cx)
    }

    /// Encodes what has changed. `follows` was in effect before.
    pub(super) fn encode_increment(&mut self, cx: &mut Context, rest: Checkpoint, follows: u64) {
        self.limits = Limits::of(cx, self.start);
        let (mut changes, mut numbers) = cx.map.changes.take(self.limits.changes);
        forget_some(cx, &mut changes, &mut numbers);
        let segments = numbers.into_iter().map(|number| (number, cx.segment_entry(number))).collect();
        let increment = Increment { follows, rest, segments, changes };
        self.bytes = Arc::new(increment.encode());
        cx.map.changes.reuse(increment.changes);
        self.append_to_chains(cx);
        cx.cover(CoverageMark::CheckpointIncrement);
    }

    /// Decides where the increment is written, and what the superblock says of it.
    fn append_to_chains(&mut self, cx: &mut Context) {
        let blocks = (self.bytes.len() / BLOCK_BYTES) as u32;
        let geometry = cx.map.geometry;
        let fits = |at: u64| at + u64::from(blocks) <= u64::from(geometry.checkpoint_slot_blocks);
        self.places.clear();
        if let Some(base) = self.base.take_if(|base| base.is_complete()) {
            cx.cover(CoverageMark::BaseInEffect);
            self.start = base.start();
            let at = self.start + u64::from(base.increments);
            assert!(fits(at), "I13: an increment does not reach into another slot");
            self.places.extend([0, 1].map(|copy| base.place(at, copy)));
            let chain = Chain { base: base.generation(), blocks: base.increments + blocks };
            cx.superblock.chain = Some(chain);
            self.image_members = base.members();
            self.broken = false;
            return;
        }
        let image = self.image;
        let chain = cx.superblock.chain.get_or_insert(Chain { base: image, blocks: 0 });
        let over = fault::planted(PlantedBug::IncrementOverLast) && chain.blocks >= blocks;
        let at = self.start + u64::from(chain.blocks) - if over { u64::from(blocks) } else { 0 };
        assert!(fits(at), "I13: an increment does not reach into another slot");
        chain.blocks += blocks;
        let places = [0, 1].map(|copy| geometry.checkpoint_offset(image, copy) + at * BLOCK_BYTES as u64);
        self.places.extend(places);
        if let Some(base) = &mut self.base
            && !fault::planted(PlantedBug::BaseWithoutIncrements)
        {
            cx.coverage.add(CoverageMark::BaseGrows);
            let at = base.start() + u64::from(base.increments);
            assert!(fits(at), "I13: an increment does not reach into another slot");
            self.places.extend([0, 1].map(|copy| base.place(at, copy)));
            base.increments += blocks;
        }
    }

    /// Encodes a whole checkpoint of the map as it is.
    pub(super) fn encode_whole(&mut self, cx: &mut Context, rest: Checkpoint) {
        let count = cx.map.segments.len() as u32;
        let segments = (0..count).map(|number| cx.segment_entry(number)).collect();
        let whole = Checkpoint { segments, ..rest };
        cx.map.look_at(cx.map.geometry.slot_count().into());
        let segments = &cx.map.segments;
        self.bytes = Arc::new(whole.encode_with(|number, to| segments[number].pack_states(to)));
        let geometry = cx.map.geometry;
        let generation = whole.generation;
        self.places = [0, 1].map(|copy| geometry.checkpoint_offset(generation, copy)).to_vec();
        cx.superblock.chain = None;
        (self.image_geometry, self.image_members) = (Some(geometry), cx.meta_members());
        self.broken = false;
        // Its list of changes ends here. What is being written of it ends before the checkpoint is
        // written.
        self.base = None;
        self.start = (self.bytes.len() / BLOCK_BYTES) as u64;
        self.limits = Limits::of(cx, self.start);
        cx.map.changes.begin(self.limits.changes);
    }
}

/// Two of the bugs that tests must find.
fn forget_some(cx: &Context, changes: &mut Vec<SlotChange>, numbers: &mut Vec<u32>) {
    if fault::planted(PlantedBug::IncrementForgetsVoid) {
        changes.retain(|change| change.state != SlotState::Void);
    }
    if fault::planted(PlantedBug::IncrementForgetsSegment) {
        numbers.retain(|number| cx.map.segments[*number as usize].phase != SegmentPhase::Sealed);
    }
}
