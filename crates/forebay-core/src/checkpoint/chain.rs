//! Selects the form of a checkpoint: whole, or an increment of a chain.
//!
//! A whole checkpoint describes all slots of the cache. An increment describes the changes since
//! the checkpoint before it, and is written behind it ([`forebay_format::checkpoint::increment`]).
//! Small caches have whole checkpoints only, which cost little there. Other caches take an
//! increment
//!
//! - if the chain stays shorter than a whole checkpoint ([`CHAIN_BLOCKS`] in smaller caches), and
//!   fits its slot, so that recovery reads little more;
//! - if all changes are known: there were not too many, the geometry is the same, and each member
//!   has the start of the chain.
//!
//! Once half of the chain's space is used, the engine begins a new base ([`super::base`]). During
//! its writes each increment goes to both chains. The first increment after its completion ends the
//! old chain. If changes are unknown, a checkpoint waits for a new base.
//!
//! The change list at the begin of a base contains all changes that the new chain lacks: a base
//! begins between two snapshots, and the next increment lists the changes since the previous
//! snapshot again.
//!
//! The checkpoint that ends an opening is whole, and so is that of an orderly stop: opening a
//! closed cache needs no support for chains.

use crate::checkpoint::{Checkpoints, Purpose};
use crate::context::coverage::CoverageMark;
use crate::context::{Context, Status};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::SegmentPhase;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::increment::{Increment, SlotChange, base_blocks};
use forebay_format::checkpoint::{Checkpoint, SlotState, SlotStates};
use forebay_format::superblock::Chain;

/// Blocks of all increments of a chain in caches whose whole checkpoint is shorter: 8 MiB, which
/// take some milliseconds to read.
const CHAIN_BLOCKS: u64 = 2048;
/// Bytes of a change on the device.
const CHANGE_BYTES: u64 = 6;
/// Bytes of a segment entry on the device.
const ENTRY_BYTES: u64 = 32;

/// Maximum size of a chain, from the state of the cache at the last snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Blocks of all increments; 0: there are none.
    chain: u64,
    /// Maximum number of recorded changes.
    pub(super) changes: usize,
}

impl Limits {
    /// Computes the limits. `start`: blocks in the slot before the increments.
    fn of(cx: &Context, start: u64) -> Self {
        let (geometry, config) = (&cx.map.geometry, &cx.config.checkpoint);
        let count = u64::from(geometry.segment_count);
        let empty = (cx.free.pool.len() + cx.free.window.len()) as u64;
        let tables = count.saturating_sub(empty) * u64::from(geometry.segment_blocks).div_ceil(4);
        let whole = 1 + (count * ENTRY_BYTES + tables).div_ceil(BLOCK_BYTES as u64);
        let start = start.max(base_blocks(geometry.segment_count, geometry.segment_blocks));
        let room = u64::from(geometry.checkpoint_slot_blocks).saturating_sub(start);
        let chain = room.min(whole.max(CHAIN_BLOCKS)).min(config.chain_blocks_max);
        // A cache grown to its maximum has hardly any space for increments.
        if whole < config.chain_from_blocks || room < whole / 2 {
            return Self::default();
        }
        let changes = chain * BLOCK_BYTES as u64 / CHANGE_BYTES;
        Self { chain, changes: changes.min(config.changes_max.into()) as usize }
    }
}

impl Context {
    /// Returns the generation of the next checkpoint, or base: above all others, and of the slots
    /// that the checkpoint in effect does not use (I13).
    pub(crate) fn next_checkpoint_generation(&self) -> u64 {
        let next = self.superblock.checkpoint_generation.max(self.reserved_generation) + 1;
        next + u64::from(next % 2 == self.superblock.image_generation() % 2)
    }
}

impl CacheMap {
    /// For tests: the snapshot that recovery must read, including slots.
    pub(super) fn whole_checkpoint(&self, rest: &Checkpoint) -> Checkpoint {
        let with_slots = |number: u32| {
            let mut entry = self.segment_entry(number);
            if entry.state.has_slots() {
                let mut packed = Vec::new();
                self.segments[number as usize].pack_states(&mut packed);
                entry.slots = SlotStates::from_packed(packed);
            }
            entry
        };
        let count = self.segments.len() as u32;
        Checkpoint { segments: (0..count).map(with_slots).collect(), ..rest.clone() }
    }
}

impl Checkpoints {
    /// Returns true if the engine is serving and takes ordinary checkpoints, neither the opening
    /// nor the final one.
    pub(super) fn is_running(&self, cx: &Context) -> bool {
        self.purpose == Purpose::Running
            && cx.status == Status::Ready
            && !cx.failure.is_fenced()
            && !cx.is_winding_down()
    }

    #[inline]
    pub(super) fn wants_base(&self, cx: &Context) -> bool {
        self.limits.chain > 0 && self.is_idle() && self.needs_base(cx)
    }

    fn needs_base(&self, cx: &Context) -> bool {
        !cx.map.changes.are_lost() && self.chained(cx) * 2 > self.limits.chain && self.may_begin_base(cx)
    }

    /// Returns true if an increment needs a new base because changes are lost. Called only when a
    /// checkpoint is due, so that few changes happen during the writes of the base.
    pub(super) fn needs_base_now(&self, cx: &Context) -> bool {
        let ended = cx.map.changes.are_lost() || self.broken;
        ended && self.limits.chain > 0 && self.base.is_none() && self.may_begin_base(cx)
    }

    fn may_begin_base(&self, cx: &Context) -> bool {
        self.base_writes == 0 && !self.base_given_up && self.is_running(cx) && self.has_same_places(cx)
    }

    /// Returns true if all active members have all of the chain, and the geometry is the same.
    fn has_same_places(&self, cx: &Context) -> bool {
        let members = cx.members.meta_members();
        cx.members.joining_member().is_none()
            && self.image_geometry == Some(cx.map.geometry)
            && members.start >= self.image_members.start
            && members.end <= self.image_members.end
    }

    /// Notes, when a checkpoint takes effect, that members that are not active lack it.
    pub(super) fn note_members(&mut self, cx: &Context) {
        let (had, members) = (self.image_members.clone(), cx.members.meta_members());
        self.image_members = had.start.max(members.start)..had.end.min(members.end);
    }

    /// Blocks of the increments of the chain in effect.
    fn chained(&self, cx: &Context) -> u64 {
        cx.superblock.chain.map_or(0, |chain| u64::from(chain.blocks))
    }

    /// Returns true if a checkpoint waits for a base: it is incomplete, and no increment is
    /// possible before its completion.
    pub(super) fn waits_for_base(&self, cx: &Context) -> bool {
        self.base.as_ref().is_some_and(|base| !base.is_complete()) && (self.broken || self.is_full(cx))
    }

    /// Returns true if the chain in effect has hardly any space for the changes so far.
    fn is_full(&self, cx: &Context) -> bool {
        let next = cx.map.changes.len() as u64 * CHANGE_BYTES / BLOCK_BYTES as u64 + 2;
        self.chained(cx) + next > self.limits.chain
    }

    /// Returns true if an increment with this `rest` can describe the next checkpoint.
    pub(super) fn may_increment(&self, cx: &Context, rest: &Checkpoint) -> bool {
        let anew = self.base.as_ref().filter(|base| base.is_complete());
        let known = !cx.map.changes.are_lost() && (anew.is_some() || !self.broken);
        let used = anew.map_or(self.chained(cx), |base| base.increments.into());
        let blocks = Increment::blocks_for(rest, cx.map.changes.segments(), cx.map.changes.len());
        let fits = used + blocks <= self.limits.chain;
        known && fits && self.is_running(cx) && self.has_same_places(cx)
    }

    /// Encodes the changes. `follows`: generation of the checkpoint in effect before.
    pub(super) fn encode_increment(&mut self, cx: &mut Context, rest: Checkpoint, follows: u64) {
        self.limits = Limits::of(cx, self.start);
        let (mut changes, mut numbers) = cx.map.changes.take(self.limits.changes);
        forget_some(cx, &mut changes, &mut numbers);
        let segments = numbers.into_iter().map(|number| (number, cx.map.segment_entry(number))).collect();
        let increment = Increment { follows, rest, segments, changes };
        self.bytes = Arc::new(increment.encode());
        cx.map.changes.reuse(increment.changes);
        self.append_to_chains(cx);
        cx.coverage.add(CoverageMark::CheckpointIncrement);
    }

    /// Decides the places of the increment, and its chain in the superblock.
    fn append_to_chains(&mut self, cx: &mut Context) {
        let blocks = (self.bytes.len() / BLOCK_BYTES) as u32;
        let geometry = cx.map.geometry;
        let fits = |at: u64| at + u64::from(blocks) <= u64::from(geometry.checkpoint_slot_blocks);
        self.places.clear();
        if let Some(base) = self.base.take_if(|base| base.is_complete()) {
            cx.coverage.add(CoverageMark::BaseInEffect);
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

    /// Encodes a whole checkpoint of the present map.
    pub(super) fn encode_whole(&mut self, cx: &mut Context, rest: Checkpoint) {
        let count = cx.map.segments.len() as u32;
        let segments = (0..count).map(|number| cx.map.segment_entry(number)).collect();
        let whole = Checkpoint { segments, ..rest };
        cx.map.look_at(cx.map.geometry.slot_count().into());
        let segments = &cx.map.segments;
        self.bytes = Arc::new(whole.encode_with(|number, to| segments[number].pack_states(to)));
        let geometry = cx.map.geometry;
        let generation = whole.generation;
        self.places = [0, 1].map(|copy| geometry.checkpoint_offset(generation, copy)).to_vec();
        cx.superblock.chain = None;
        (self.image_geometry, self.image_members) = (Some(geometry), cx.members.meta_members());
        self.broken = false;
        // Its change list ends here. Writes of the base in flight complete before those of the
        // checkpoint.
        self.base = None;
        self.start = (self.bytes.len() / BLOCK_BYTES) as u64;
        self.limits = Limits::of(cx, self.start);
        cx.map.changes.begin(self.limits.changes);
    }
}

/// Applies two of the planted bugs.
fn forget_some(cx: &Context, changes: &mut Vec<SlotChange>, numbers: &mut Vec<u32>) {
    if fault::planted(PlantedBug::IncrementForgetsVoid) {
        changes.retain(|change| change.state != SlotState::Void);
    }
    if fault::planted(PlantedBug::IncrementForgetsSegment) {
        numbers.retain(|number| cx.map.segments[*number as usize].phase != SegmentPhase::Sealed);
    }
}
