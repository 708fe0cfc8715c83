//! Life of a write past the cache: every write in write-through, write-around and passthrough, and
//! large zeroes and discards in every mode.
//!
//! Its danger is the stale copy: a cached block that is older than what the backing store now has.
//! The order that keeps it away:
//!
//! 1. The block lock (taken by `write`), and the **intent** of the regions, durable on the cache
//!    device. After an unclean stop no clean block in a region with intent counts (I10), so
//!    whatever the crash interrupts, no clean copy can be stale. An intent stays until a checkpoint
//!    is taken after the writes ended and the backing store was flushed. In a volume that is
//!    destaged in order it waits for its turn (`ordered`).
//! 2. The backing lock, so that no destage of the same blocks is under way; what was written back
//!    of them and is not marked clean counts no longer; and clean marks that are in the log but not
//!    durable are made so, by one flush.
//! 3. Clean copies leave the map. Ragged ends that cannot be written as they are are merged to
//!    whole blocks.
//! 4. The write to the backing store.
//! 5. If dirty blocks were in the range they still count, and after a crash they would be written
//!    over what was just written: legal until the write is promised, not after. So the backing
//!    store is flushed, and only then **drop marks** void them, durably (I5: dirty data gives way
//!    only to newer dirty data or to a durable backing store).
//! 6. Write-through: the blocks are appended as clean (beside step 4 if nothing in the range was
//!    dirty, else now) and enter the map when everything has ended.
//! 7. Locks are given back, the part of the request ends.

use crate::api::{Action, Device, Nanos, OpId, RequestKind, Span};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::ledger::Waiter;
use crate::context::locks::{BlockRange, LockOwner};
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse, ZERO_PAGE};
use crate::context::sectors::BLOCK;
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::context::volume::Volume;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use crate::request::merge::MergeFor;
use alloc::vec::Vec;
use forebay_format::checkpoint::{INTENT_REGION_BLOCKS, Intent};
use forebay_format::{StreamKind, VolumeId};

/// The backing store is flushed this long after the last write past the cache, so that intents can
/// end.
const QUIET_NS: Nanos = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DirectStage {
    Intent,
    /// Until the log says durably of every clean block that it is clean.
    Settling,
    Merging,
    Writing,
    Flushing,
    Dropping,
    /// Until the drop marks are durable.
    Sealing,
    Copying,
}

#[derive(Debug)]
pub(crate) struct Direct {
    req: u32,
    volume: VolumeId,
    from: u64,
    to: u64,
    /// A range to zero instead of data to write.
    zero: bool,
    stage: DirectStage,
    pending: u32,
    failed: bool,
    locked: bool,
    over_dirty: bool,
    /// Blocks merged to whole ones.
    merged: Vec<(u64, Page)>,
    /// Where clean copies were appended.
    copies: Vec<u32>,
}

impl Direct {
    fn blocks(&self) -> BlockRange {
        BlockRange {
            first: Key::new(self.volume, self.from / BLOCK),
            last: Key::new(self.volume, (self.to - 1) / BLOCK),
        }
    }

    fn regions(&self) -> core::ops::RangeInclusive<u64> {
        let blocks = self.blocks();
        blocks.first.block() / INTENT_REGION_BLOCKS..=blocks.last.block() / INTENT_REGION_BLOCKS
    }
}

impl Context {
    /// A part of a block must be merged if the backing store cannot write it alone, or if the rest
    /// of the block is dirty in the cache (and would be dropped with it).
    fn needs_merge(&self, volume: VolumeId, block: u64, part: (u64, u64)) -> bool {
        let end = self.block_len(volume, block);
        let unit = u64::from(self.volume(volume).sector_bytes);
        let whole = part.0 == 0 && part.1 == end;
        let aligned = part.0.is_multiple_of(unit) && (part.1.is_multiple_of(unit) || part.1 == end);
        !whole && (!aligned || !self.is_droppable(Key::new(volume, block)))
    }

    /// Forgets the slots of a drop mark. The block lock is held, so nothing else can have come to
    /// stand in them.
    pub(crate) fn apply_drop(&mut self, kind: ItemKind) {
        let ItemKind::Drop { slot, count } = kind else { return };
        for slot in slot..slot + count {
            if self.map.state(slot) != BlockState::Void {
                self.map.remove(self.map.key(slot));
            }
        }
    }

    /// Ends the intents that are no longer needed, as part of a checkpoint: no write is under way
    /// in the region and the backing store was flushed since the last one. Returns those that stay.
    pub(crate) fn settle_intents(&mut self) -> Vec<Intent> {
        let mut left: Vec<Intent> = Vec::new();
        for volume in self.volumes.iter_mut().flatten() {
            let succeeded = volume.flusher.succeeded;
            volume.intents.regions.retain(|_, region| !region.has_ended(succeeded));
            volume.intents.ended = 0;
            let first_of_volume = left.len();
            for number in volume.intents.regions.keys() {
                match left.last_mut() {
                    Some(last)
                        if last.volume == volume.id && last.region + u64::from(last.count) == *number =>
                    {
                        last.count += 1;
                    }
                    _ => left.push(Intent { volume: volume.id, region: *number, count: 1 }),
                }
            }
            // Too many ranges for the table: one range over all of them says more than is true,
            // which is safe.
            let limit =
                (forebay_format::geometry::INTENTS_MAX / forebay_format::geometry::VOLUMES_MAX) as usize;
            if left.len() - first_of_volume > limit {
                let (first, last) = (left[first_of_volume], left[left.len() - 1]);
                left.truncate(first_of_volume);
                let count = (last.region + u64::from(last.count) - first.region) as u32;
                left.push(Intent { count, ..first });
            }
        }
        left
    }

    /// True if a checkpoint would end some intent.
    pub(crate) fn has_ended_intents(&self) -> bool {
        self.volumes.iter().flatten().any(|volume| {
            let intents = &volume.intents;
            debug_assert_eq!(intents.ended, intents.count_ended(volume.flusher.succeeded));
            intents.ended > 0
        })
    }

    pub(crate) fn intents_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let waits = volume.direct_unflushed && !volume.flusher.is_running();
        waits.then(|| volume.intents.last_write + QUIET_NS)
    }
}

impl Engine {
    /// Starts the direct part `from..to` of a request that holds its block lock.
    pub(crate) fn start_direct(&mut self, req: u32, from: u64, to: u64, zero: bool) {
        let request = self.cx.reqs.get_mut(req);
        request.pending += 1;
        let volume = request.volume;
        let direct = self.directs.insert(Direct {
            req,
            volume,
            from,
            to,
            zero,
            stage: DirectStage::Intent,
            pending: 0,
            failed: false,
            locked: false,
            over_dirty: false,
            merged: Vec::new(),
            copies: Vec::new(),
        });
        let regions = self.directs.get(direct).regions();
        let state = self.cx.volume_mut(volume);
        let mut durable = true;
        for region in regions.clone() {
            durable &= state.intents.enter(region, state.flusher.succeeded).durable;
        }
        if durable || self.cx.runs_without_cache() || fault::planted(PlantedBug::SkipIntent) {
            self.cx.await_turn(direct, volume);
            return;
        }
        let one = fault::planted(PlantedBug::IntentOfOneRegion);
        let count = if one { 1 } else { (regions.end() - regions.start() + 1) as u32 };
        let item = Item {
            key: Key::new(volume, 0),
            crc: 0,
            kind: ItemKind::Intent { volume, region: *regions.start(), count },
            span: None,
            done: ItemOwner::Intent(direct),
        };
        self.cx.enqueue(StreamKind::Write, item);
    }

    pub(crate) fn intent_appended(&mut self, direct: u32, ok: bool) {
        if ok {
            self.cx.flush(Device::Cache, Waiter::Intent(direct));
        } else {
            self.directs.get_mut(direct).failed = true;
            self.end_direct(direct);
        }
    }

    pub(crate) fn intent_durable(&mut self, direct: u32, ok: bool) {
        if !ok {
            self.directs.get_mut(direct).failed = true;
            self.end_direct(direct);
            return;
        }
        let d = self.directs.get(direct);
        let (volume, regions) = (d.volume, d.regions());
        for (_, region) in self.cx.volume_mut(volume).intents.regions.range_mut(regions) {
            region.durable = true;
        }
        self.cx.await_turn(direct, volume);
    }

    pub(crate) fn lock_backing(&mut self, direct: u32) {
        let range = self.directs.get(direct).blocks();
        if self.cx.backing_locks.acquire(range, LockOwner(direct)) {
            self.direct_locked(direct);
            return;
        }
        self.cx.stats.direct_waits += 1;
        self.cx.counters.of(range.first.volume()).direct_waits += 1;
    }

    /// Nobody else writes these blocks of the backing store now.
    ///
    /// A power cut would make a block dirty again that is clean now (or was, and is evicted) by a
    /// mark that is not durable, and what is about to be written would be overwritten with it: such
    /// marks are made durable first. With both locks held, and what was written back of these
    /// blocks undone, no mark for them can be added: one flush is enough, however many marks of
    /// other blocks follow.
    pub(crate) fn direct_locked(&mut self, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.locked = true;
        let (volume, range) = (d.volume, d.blocks());
        let trusts = fault::planted(PlantedBug::TrustUnflushedMarks);
        if self.cx.runs_without_cache() || self.cx.fenced || trusts {
            self.direct_settled(direct);
            return;
        }
        let mut unclean = Vec::new();
        self.cx.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| {
            if self.cx.map.state(slot) != BlockState::Clean {
                unclean.push(slot);
            }
        });
        unclean.sort_unstable();
        self.destager.undo(&mut self.cx, volume, &unclean);
        if self.cx.flushes.cache.succeeded >= self.cx.log.marks_ticket {
            self.direct_settled(direct);
            return;
        }
        self.cx.cover(CoverageMark::MarksSettled);
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Settling;
        d.pending = 1;
        self.cx.flush(Device::Cache, Waiter::Direct(direct));
    }

    /// All marks for these blocks are durable.
    fn direct_settled(&mut self, direct: u32) {
        if self.cx.fenced && !self.cx.runs_without_cache() {
            // Drop marks that were appended before may not be durable, and cannot be made so any
            // more.
            self.directs.get_mut(direct).failed = true;
            self.end_direct(direct);
            return;
        }
        self.begin_direct(direct);
    }

    fn begin_direct(&mut self, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Merging;
        d.pending = 1;
        let (volume, req, zero, from, to) = (d.volume, d.req, d.zero, d.from, d.to);
        let (first, last) = (from / BLOCK, (to - 1) / BLOCK);
        let (mut clean, mut unclean) = (Vec::new(), Vec::new());
        self.cx.map.for_each_in(volume, first, last, |slot| match self.cx.map.state(slot) {
            BlockState::Clean => clean.push(self.cx.map.key(slot)),
            BlockState::Destaged if self.cx.runs_without_cache() => clean.push(self.cx.map.key(slot)),
            _ => unclean.push(slot),
        });
        let forgets = fault::planted(PlantedBug::ForgetInvalidation)
            || fault::planted(PlantedBug::SequentialLeavesCopy) && self.cx.reqs.get(req).sequential;
        if !forgets {
            self.cx.counters.of(volume).invalidated_blocks += clean.len() as u64;
            for key in clean {
                self.cx.map.remove(key);
                self.note_replaced(key);
            }
        }
        unclean.sort_unstable();
        let lost = self.cx.is_any_lost_in(self.directs.get(direct).blocks());
        self.directs.get_mut(direct).over_dirty = !unclean.is_empty() || lost;
        self.destager.undo(&mut self.cx, volume, &unclean);
        // Shadows, of an order that begins, stay until the dirty blocks are dropped: the order
        // waits for them, and so for this write.
        if !zero {
            for block in if first == last { alloc::vec![first] } else { alloc::vec![first, last] } {
                let part =
                    (from.max(block * BLOCK) - block * BLOCK, to.min((block + 1) * BLOCK) - block * BLOCK);
                if self.cx.needs_merge(volume, block, part) {
                    self.directs.get_mut(direct).pending += 1;
                    let part = (part.0 as u32, part.1 as u32);
                    self.start_merge(req, block, part, MergeFor::Direct(direct));
                }
            }
        }
        self.direct_part_done(direct, true);
    }

    pub(crate) fn direct_merged(&mut self, direct: u32, block: u64, page: Page, ok: bool) {
        self.directs.get_mut(direct).merged.push((block, page));
        self.direct_part_done(direct, ok);
    }

    /// A part of the present stage has ended; when all have, the next stage begins.
    pub(crate) fn direct_part_done(&mut self, direct: u32, ok: bool) {
        let (failed, chases) = (self.cx.runs_without_cache(), fault::planted(PlantedBug::ChaseMarks));
        let d = self.directs.get_mut(direct);
        d.failed |= !ok;
        d.pending -= 1;
        if d.pending > 0 {
            return;
        }
        if d.failed {
            self.end_direct(direct);
            return;
        }
        match d.stage {
            DirectStage::Intent => unreachable!("an intent is not a part"),
            DirectStage::Settling if chases => self.direct_locked(direct),
            DirectStage::Settling => self.direct_settled(direct),
            DirectStage::Merging => self.write_direct(direct),
            DirectStage::Writing if d.over_dirty => {
                d.stage = DirectStage::Flushing;
                d.pending = 1;
                let volume = d.volume;
                self.cx.flush(Device::Backing(volume), Waiter::Direct(direct));
            }
            DirectStage::Flushing if failed => self.supersede_direct(direct),
            DirectStage::Flushing => self.drop_dirty(direct),
            DirectStage::Dropping => {
                d.stage = DirectStage::Sealing;
                d.pending = 1;
                self.cx.flush(Device::Cache, Waiter::Direct(direct));
            }
            DirectStage::Sealing => {
                d.stage = DirectStage::Copying;
                d.pending = 1;
                self.append_copies(direct);
                self.direct_part_done(direct, true);
            }
            DirectStage::Writing | DirectStage::Copying => self.end_direct(direct),
        }
    }

    fn write_direct(&mut self, direct: u32) {
        let d = self.directs.get(direct);
        let durable =
            self.cx.runs_without_cache() || self.cx.volume(d.volume).intents.are_durable(d.regions());
        assert!(durable, "I10: a write goes past the cache once its intent is durable");
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Writing;
        d.pending = 1;
        let (volume, req, from, to, over_dirty) = (d.volume, d.req, d.from, d.to, d.over_dirty);
        if d.zero {
            let may_unmap = self.cx.reqs.get(req).kind.may_unmap();
            let op = self.cx.new_op(OpKind::DirectWrite { direct });
            let len = to - from;
            self.cx.actions.push_back(Action::Zero { op: OpId(op), volume, offset: from, len, may_unmap });
            return;
        }
        let (offset, spans) = self.direct_spans(direct);
        self.cx.write_backing(volume, offset, &spans, OpKind::DirectWrite { direct });
        if !over_dirty {
            self.append_copies(direct);
        }
    }

    /// What to write where: merged blocks from their pages, the rest from the client's buffer.
    fn direct_spans(&self, direct: u32) -> (u64, Vec<Span>) {
        let d = self.directs.get(direct);
        let request = self.cx.reqs.get(d.req);
        let is_write = matches!(request.kind, RequestKind::Write { .. });
        let mut spans = Vec::new();
        let mut offset = d.from;
        for block in d.from / BLOCK..=(d.to - 1) / BLOCK {
            let len = self.cx.block_len(d.volume, block);
            if let Some((_, page)) = d.merged.iter().find(|(merged, _)| *merged == block) {
                offset = offset.min(block * BLOCK);
                spans.push(page.part(0, len as u32));
                continue;
            }
            let from = (d.from.max(block * BLOCK) - block * BLOCK) as u32;
            let to = (d.to.min((block + 1) * BLOCK) - block * BLOCK) as u32;
            if is_write {
                let span = request.block_span(block, 1);
                let span = Span { offset: span.offset + from, len: to - from, ..span };
                crate::context::sectors::push_span(&mut spans, span);
            } else {
                spans.push(ZERO_PAGE.part(from, to));
            }
        }
        (offset, spans)
    }

    pub(crate) fn direct_written(&mut self, direct: u32, ok: bool) {
        let volume = self.directs.get(direct).volume;
        let now = self.cx.now;
        let state = self.cx.volume_mut(volume);
        // Even a failed write may have changed something.
        state.direct_unflushed = true;
        state.flusher.unflushed = true;
        state.intents.last_write = now;
        self.direct_part_done(direct, ok);
    }

    pub(crate) fn direct_flushed(&mut self, direct: u32, ok: bool) {
        self.direct_part_done(direct, ok);
    }

    /// The backing store is durable, and there is no log any more that could say otherwise.
    fn supersede_direct(&mut self, direct: u32) {
        let d = self.directs.get(direct);
        let (blocks, from, to) = (d.blocks(), d.from, d.to);
        self.cx.supersede(blocks, from, to);
        self.end_direct(direct);
    }

    /// The backing store is durable: void the dirty blocks in the range.
    fn drop_dirty(&mut self, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Dropping;
        d.pending = 1;
        let (volume, range) = (d.volume, d.blocks());
        let mut slots = Vec::new();
        self.cx.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| {
            // What was clean has left the map, and what was written back of these blocks has been
            // undone.
            let clean = self.cx.map.state(slot) == BlockState::Clean;
            assert!(!clean, "I5: nothing becomes clean while it is written past the cache");
            slots.push(slot);
        });
        slots.sort_unstable();
        if !slots.is_empty() {
            self.cx.cover(CoverageMark::DirtyDropped);
        }
        let mut at = 0;
        while at < slots.len() {
            let mut end = at + 1;
            while end < slots.len() && slots[end] == slots[end - 1] + 1 {
                end += 1;
            }
            self.directs.get_mut(direct).pending += 1;
            let item = Item {
                key: Key::new(volume, 0),
                crc: 0,
                kind: ItemKind::Drop { slot: slots[at], count: (end - at) as u32 },
                span: None,
                done: ItemOwner::Drop(direct),
            };
            self.cx.enqueue(StreamKind::Write, item);
            at = end;
        }
        self.direct_part_done(direct, true);
    }

    /// Write-through: whole blocks are appended as clean too.
    fn append_copies(&mut self, direct: u32) {
        let d = self.directs.get(direct);
        let (volume, req, from, to) = (d.volume, d.req, d.from, d.to);
        let request = self.cx.reqs.get(req);
        let wanted = request.copies && matches!(request.kind, RequestKind::Write { .. }) && !self.cx.fenced;
        if !wanted {
            return;
        }
        for block in from.div_ceil(BLOCK)..to / BLOCK {
            if !self.admits(req, Key::new(volume, block)) {
                continue;
            }
            let request = self.cx.reqs.get(req);
            let item = Item {
                key: Key::new(volume, block),
                crc: request.crcs[(block - request.first_block) as usize],
                kind: ItemKind::Data { mask: MASK_FULL, dirty: false },
                span: Some(request.block_span(block, 1)),
                done: ItemOwner::Copy(direct),
            };
            self.directs.get_mut(direct).pending += 1;
            self.cx.enqueue(StreamKind::Fill, item);
        }
    }

    /// A clean copy was appended, or was left out: that is no failure.
    pub(crate) fn copy_appended(&mut self, direct: u32, slot: Option<u32>) {
        if let Some(slot) = slot {
            self.cx.map.pin(slot);
            self.directs.get_mut(direct).copies.push(slot);
        }
        self.direct_part_done(direct, true);
    }

    /// Copies that wait for their backing store were appended on a member of a mirrored cache that
    /// is lost: they are left out.
    pub(crate) fn forget_lost_copies(&mut self) {
        let copies = self.directs.iter().flat_map(|direct| &direct.copies);
        let gone = |slot: &u32| self.cx.is_gone(self.cx.map.place(*slot).0);
        let lost: Vec<u32> = copies.copied().filter(gone).collect();
        for direct in self.directs.iter_mut() {
            direct.copies.retain(|slot| !lost.contains(slot));
        }
        for slot in lost {
            self.cx.map.unpin(slot);
        }
    }

    fn end_direct(&mut self, direct: u32) {
        let d = self.directs.remove(direct);
        for slot in &d.copies {
            if !d.failed && !self.cx.runs_without_cache() {
                self.cx.map.insert(*slot, BlockState::Clean);
                self.cx.pin_for(self.cx.reqs.get(d.req).treatment, *slot);
            }
            self.cx.map.unpin(*slot);
        }
        for (_, page) in &d.merged {
            self.cx.pages.give(PageUse::Merge, *page);
        }
        let regions = d.regions();
        let state = self.cx.volume_mut(d.volume);
        let covered_by = state.flusher.ticket();
        for (_, region) in state.intents.regions.range_mut(regions) {
            region.active -= 1;
            region.covered_by = covered_by;
        }
        if d.locked {
            self.cx.release_backing(d.blocks());
        }
        self.mutation_part_done(d.req, !d.failed);
    }

    // --- intents

    /// Flushes backing stores that were written past the cache and have been quiet since.
    pub(crate) fn step_intents(&mut self) {
        for index in 0..self.cx.volumes.len() {
            let Some(volume) = &mut self.cx.volumes[index] else { continue };
            let due = volume.direct_unflushed
                && !volume.flusher.is_running()
                && self.cx.now >= volume.intents.last_write + QUIET_NS;
            if due {
                volume.intents.last_write = self.cx.now;
                let id = volume.id;
                self.cx.flush(Device::Backing(id), Waiter::Nobody);
            }
        }
    }
}
