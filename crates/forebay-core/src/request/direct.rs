//! Life of a bypass write: every write in write-through, write-around and passthrough, and large
//! zeroes and discards in every mode.
//!
//! The danger is a stale copy: a cached block that is older than the content of the backing store.
//! The following order prevents it:
//!
//! 1. The request takes the block lock (in `write`) and makes the **intent** of the regions durable
//!    on the cache device. After an unclean stop no clean block in a region with an intent is live
//!    (I10), so wherever a crash interrupts the write, no clean copy is stale. An intent stays
//!    until a checkpoint that is taken after the writes ended and the backing store was flushed. In
//!    an ordered volume the write waits for its turn (`ordered`).
//! 2. It takes the backing lock, so no destage of the same blocks is in flight. Destaged blocks
//!    that are not marked clean become dirty again. One flush makes the clean marks in the log
//!    durable.
//! 3. Clean copies leave the map. Ragged ends that the backing store cannot write are merged to
//!    whole blocks.
//! 4. The data is written to the backing store.
//! 5. Dirty blocks in the range are still live, and after a crash destage would write them over the
//!    new data. That is legal until the write is acknowledged as durable, not after. So the backing
//!    store is flushed, and only then **drop marks** void them, durably (I5: dirty data is
//!    superseded only by newer dirty data or by durable data on the backing store).
//! 6. Write-through: the blocks are appended as clean (concurrently with step 4 if nothing in the
//!    range was dirty, otherwise now) and enter the map when everything has ended.
//! 7. The locks are released, and the part of the request ends.
//!
//! Zeroing a large range repeats steps 2 to 5 for one piece after the other (`zero_step_blocks`),
//! with the locks and the intent of the whole range: no call looks at more.

use crate::api::{Device, IoAction, Nanos, OpId, RequestKind, Span};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::locks::LockOwner;
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse, ZERO_PAGE};
use crate::context::sectors::BLOCK;
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::context::volume::Volume;
use crate::context::volumes::Volumes;
use crate::destage::Destager;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use crate::request::state::{Direct, DirectStage, MergeFor, Requests};
use alloc::vec::Vec;
use forebay_format::checkpoint::Intent;
use forebay_format::{StreamKind, VolumeId};

/// The backing store is flushed this long after the last bypass write, so that intents can end.
const QUIET_NS: Nanos = 1_000_000_000;

impl CacheMap {
    /// Removes the slots of a drop mark from the map. The caller holds the block lock, so the slots
    /// cannot have been reused.
    pub(crate) fn apply_drop(&mut self, kind: ItemKind) {
        let ItemKind::Drop { slot, count } = kind else { return };
        for slot in slot..slot + count {
            if self.state(slot) != BlockState::Void {
                self.remove_recorded(self.key(slot));
            }
        }
    }
}

impl Volumes {
    /// Ends the intents that are no longer needed, as part of a checkpoint: no write is in flight
    /// in the region, and the backing store was flushed since the last one. Returns the remaining
    /// ones.
    pub(crate) fn settle_intents(&mut self) -> Vec<Intent> {
        let mut left: Vec<Intent> = Vec::new();
        for volume in self.iter_mut() {
            let succeeded = volume.flusher.succeeded();
            volume.intents.forget_ended(succeeded);
            let first_of_volume = left.len();
            for range in volume.intents.ranges() {
                let count = (range.end - range.start) as u32;
                match left.last_mut() {
                    Some(last)
                        if last.volume == volume.id && last.region + u64::from(last.count) == range.start =>
                    {
                        last.count += count;
                    }
                    _ => left.push(Intent { volume: volume.id, region: range.start, count }),
                }
            }
            // Too many ranges for the table: one range that spans all of them covers too much,
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

    /// True if a checkpoint would end an intent.
    pub(crate) fn has_ended_intents(&self) -> bool {
        self.iter().any(|volume| {
            let intents = &volume.intents;
            debug_assert_eq!(intents.ended, intents.count_ended(volume.flusher.succeeded()));
            intents.ended > 0
        })
    }
}

impl Context {
    /// True if a part of a block must be merged: the backing store cannot write it alone, or the
    /// rest of the block is dirty in the cache (and would be dropped with it).
    fn needs_merge(&self, volume: VolumeId, block: u64, part: (u64, u64)) -> bool {
        let end = self.volume(volume).block_len(block);
        let unit = u64::from(self.volume(volume).sector_bytes);
        let whole = part.0 == 0 && part.1 == end;
        let aligned = part.0.is_multiple_of(unit) && (part.1.is_multiple_of(unit) || part.1 == end);
        !whole && (!aligned || !self.map.is_droppable(Key::new(volume, block)))
    }

    /// Flushes backing stores that had bypass writes and have been quiet since.
    pub(crate) fn step_intents(&mut self) {
        for id in self.volumes.ids() {
            let Some(volume) = self.volumes.get_mut(id) else { continue };
            let due = volume.direct_unflushed
                && !volume.flusher.is_running()
                && self.now >= volume.intents.last_write + QUIET_NS;
            if due {
                volume.intents.last_write = self.now;
                self.flush(Device::Backing(id), Waiter::None);
            }
        }
    }

    pub(crate) fn intents_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let waits = volume.direct_unflushed && !volume.flusher.is_running();
        waits.then(|| volume.intents.last_write + QUIET_NS)
    }
}

/// End of the step that begins at byte `from` of a range to zero that ends at `to`. Only blocks in
/// parts of the volume that may be cached count for its length. The whole range is one step if each
/// walk looks at all slots anyway.
fn end_of_step(cx: &Context, volume: VolumeId, from: u64, to: u64) -> u64 {
    if cx.map.is_unsettled() {
        return to;
    }
    let reached = cx.map.reach(volume, from / BLOCK, (to - 1) / BLOCK, cx.config.zero_step_blocks);
    to.min((reached + 1) * BLOCK)
}

impl Requests {
    /// Starts the direct part `from..to` of a request that holds its block lock.
    pub(super) fn start_direct(&mut self, cx: &mut Context, req: u32, from: u64, to: u64, zero: bool) {
        let request = cx.reqs.get_mut(req);
        request.pending += 1;
        let volume = request.volume;
        let step = (from, if zero { end_of_step(cx, volume, from, to) } else { to });
        let direct = self.directs.insert(Direct {
            req,
            volume,
            from,
            to,
            zero,
            step,
            stage: DirectStage::Intent,
            pending: 0,
            failed: false,
            locked: false,
            over_dirty: false,
            merged: Vec::new(),
            copies: Vec::new(),
        });
        let regions = self.directs.get(direct).regions();
        let state = cx.volume_mut(volume);
        let durable = state.intents.enter(regions.clone(), state.flusher.succeeded());
        if durable || cx.failure.runs_without_cache() || fault::planted(PlantedBug::SkipIntent) {
            cx.await_turn(direct, volume);
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
        cx.enqueue(StreamKind::Write, item);
    }

    pub(crate) fn intent_appended(&mut self, cx: &mut Context, direct: u32, ok: bool) {
        if ok {
            cx.flush(Device::Cache, Waiter::Intent(direct));
        } else {
            self.directs.get_mut(direct).failed = true;
            self.end_direct(cx, direct);
        }
    }

    pub(crate) fn intent_durable(&mut self, cx: &mut Context, direct: u32, ok: bool) {
        if !ok {
            self.directs.get_mut(direct).failed = true;
            self.end_direct(cx, direct);
            return;
        }
        let d = self.directs.get(direct);
        let (volume, regions) = (d.volume, d.regions());
        for region in cx.volume_mut(volume).intents.states_mut(regions) {
            region.durable = true;
        }
        cx.await_turn(direct, volume);
    }

    pub(crate) fn lock_backing(&mut self, cx: &mut Context, destager: &mut Destager, direct: u32) {
        let range = self.directs.get(direct).blocks();
        if cx.backing_locks.acquire(range, LockOwner(direct)) {
            self.direct_locked(cx, destager, direct);
            return;
        }
        cx.stats.direct_waits += 1;
        cx.counters.of(range.first.volume()).direct_waits += 1;
    }

    /// The part holds the backing lock: nothing else writes these blocks of the backing store now.
    ///
    /// If the clean mark of a block is not durable, a power cut makes the block dirty again (even
    /// if it was evicted since), and destage would overwrite the new data with it. So such marks
    /// are made durable first. With both locks held and the destage of these blocks undone, no mark
    /// for them can be added: one flush is enough, however many marks of other blocks follow.
    pub(crate) fn direct_locked(&mut self, cx: &mut Context, destager: &mut Destager, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.locked = true;
        let (volume, range) = (d.volume, d.step_blocks());
        let trusts = fault::planted(PlantedBug::TrustUnflushedMarks);
        if cx.failure.runs_without_cache() || cx.failure.is_fenced() || trusts {
            self.direct_settled(cx, destager, direct);
            return;
        }
        let mut unclean = Vec::new();
        cx.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| {
            if cx.map.state(slot) != BlockState::Clean {
                unclean.push(slot);
            }
        });
        unclean.sort_unstable();
        destager.undo(cx, volume, &unclean);
        if cx.flushes.cache.has_covered(cx.log.marks.ticket()) {
            self.direct_settled(cx, destager, direct);
            return;
        }
        cx.coverage.add(CoverageMark::MarksSettled);
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Settling;
        d.pending = 1;
        cx.flush(Device::Cache, Waiter::Direct(direct));
    }

    /// All marks for these blocks are durable.
    pub(crate) fn direct_settled(&mut self, cx: &mut Context, destager: &mut Destager, direct: u32) {
        if cx.failure.is_fenced() && !cx.failure.runs_without_cache() {
            // Earlier drop marks may not be durable, and no flush can make them so.
            self.directs.get_mut(direct).failed = true;
            self.end_direct(cx, direct);
            return;
        }
        self.begin_direct(cx, destager, direct);
    }

    fn begin_direct(&mut self, cx: &mut Context, destager: &mut Destager, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Merging;
        d.pending = 1;
        let (volume, req, zero, (from, to)) = (d.volume, d.req, d.zero, d.step);
        let range = d.step_blocks();
        let (first, last) = (range.first.block(), range.last.block());
        let (mut clean, mut unclean) = (Vec::new(), Vec::new());
        cx.map.for_each_in(volume, first, last, |slot| match cx.map.state(slot) {
            BlockState::Clean => clean.push(cx.map.key(slot)),
            BlockState::Destaged if cx.failure.runs_without_cache() => clean.push(cx.map.key(slot)),
            _ => unclean.push(slot),
        });
        let forgets = fault::planted(PlantedBug::ForgetInvalidation)
            || fault::planted(PlantedBug::SequentialLeavesCopy) && cx.reqs.get(req).sequential;
        if !forgets {
            cx.counters.of(volume).invalidated_blocks += clean.len() as u64;
            for key in clean {
                cx.map.remove(key);
                self.admission.note_replaced(cx, key);
            }
        }
        unclean.sort_unstable();
        let lost = cx.failure.is_any_lost_in(range);
        self.directs.get_mut(direct).over_dirty = !unclean.is_empty() || lost;
        destager.undo(cx, volume, &unclean);
        // When an order begins, shadows stay until the dirty blocks are dropped: the order waits
        // for them, and so for this write.
        if !zero {
            for block in if first == last { alloc::vec![first] } else { alloc::vec![first, last] } {
                let part =
                    (from.max(block * BLOCK) - block * BLOCK, to.min((block + 1) * BLOCK) - block * BLOCK);
                if cx.needs_merge(volume, block, part) {
                    self.directs.get_mut(direct).pending += 1;
                    let part = (part.0 as u32, part.1 as u32);
                    self.start_merge(cx, req, block, part, MergeFor::Direct(direct));
                }
            }
        }
        self.direct_part_done(cx, direct, true);
    }

    pub(super) fn direct_merged(&mut self, cx: &mut Context, direct: u32, block: u64, page: Page, ok: bool) {
        self.directs.get_mut(direct).merged.push((block, page));
        self.direct_part_done(cx, direct, ok);
    }

    /// A part of the current stage has ended; when all have, the next stage begins.
    pub(crate) fn direct_part_done(&mut self, cx: &mut Context, direct: u32, ok: bool) {
        let (failed, chases) = (cx.failure.runs_without_cache(), fault::planted(PlantedBug::ChaseMarks));
        let d = self.directs.get_mut(direct);
        d.failed |= !ok;
        d.pending -= 1;
        if d.pending > 0 {
            return;
        }
        if d.failed {
            self.end_direct(cx, direct);
            return;
        }
        match d.stage {
            DirectStage::Intent => unreachable!("an intent is not a part"),
            DirectStage::Settling if chases => cx.emit(Event::BackingLock(LockOwner(direct))),
            DirectStage::Settling => cx.emit(Event::MarksDurable(direct)),
            DirectStage::Merging => self.write_direct(cx, direct),
            DirectStage::Writing if d.over_dirty => {
                d.stage = DirectStage::Flushing;
                d.pending = 1;
                let volume = d.volume;
                cx.flush(Device::Backing(volume), Waiter::Direct(direct));
            }
            DirectStage::Flushing if failed => self.supersede_direct(cx, direct),
            DirectStage::Flushing => self.drop_dirty(cx, direct),
            DirectStage::Dropping => {
                d.stage = DirectStage::Sealing;
                d.pending = 1;
                cx.flush(Device::Cache, Waiter::Direct(direct));
            }
            DirectStage::Sealing => {
                d.stage = DirectStage::Copying;
                d.pending = 1;
                self.append_copies(cx, direct);
                self.direct_part_done(cx, direct, true);
            }
            DirectStage::Writing | DirectStage::Copying => self.end_step(cx, direct),
        }
    }

    /// The current step has succeeded: starts the next one, if there is more to zero.
    fn end_step(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get_mut(direct);
        let (from, to) = (d.step.1, d.to);
        if from == to {
            self.end_direct(cx, direct);
            return;
        }
        d.step = (from, end_of_step(cx, d.volume, from, to));
        cx.coverage.add(CoverageMark::ZeroedInSteps);
        // Both locks are held.
        cx.emit(Event::BackingLock(LockOwner(direct)));
    }

    fn write_direct(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get(direct);
        let durable = cx.failure.runs_without_cache() || cx.volume(d.volume).intents.are_durable(d.regions());
        assert!(durable, "I10: a write goes past the cache once its intent is durable");
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Writing;
        d.pending = 1;
        if fault::planted(PlantedBug::FirstStepZeroesAll) {
            d.step.1 = d.to;
        }
        let (volume, req, (from, to), over_dirty) = (d.volume, d.req, d.step, d.over_dirty);
        if d.zero {
            let may_unmap = cx.reqs.get(req).kind.may_unmap();
            let op = cx.ops.begin(OpKind::DirectWrite { direct }, cx.now);
            let len = to - from;
            cx.actions.push_io(IoAction::Zero { op: OpId(op), volume, offset: from, len, may_unmap });
            return;
        }
        let (offset, spans) = self.direct_spans(cx, direct);
        cx.write_backing(volume, offset, &spans, OpKind::DirectWrite { direct });
        if !over_dirty {
            self.append_copies(cx, direct);
        }
    }

    /// Offset and spans of the write: merged blocks from their pages, the rest from the client's
    /// buffer.
    fn direct_spans(&self, cx: &Context, direct: u32) -> (u64, Vec<Span>) {
        let d = self.directs.get(direct);
        let request = cx.reqs.get(d.req);
        let is_write = matches!(request.kind, RequestKind::Write { .. });
        let mut spans = Vec::new();
        let mut offset = d.from;
        for block in d.from / BLOCK..=(d.to - 1) / BLOCK {
            let len = cx.volume(d.volume).block_len(block);
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

    pub(crate) fn direct_written(&mut self, cx: &mut Context, direct: u32, ok: bool) {
        let volume = self.directs.get(direct).volume;
        let now = cx.now;
        let state = cx.volume_mut(volume);
        // Even a failed write may have changed something.
        state.direct_unflushed = true;
        state.flusher.note_write();
        state.intents.last_write = now;
        self.direct_part_done(cx, direct, ok);
    }

    /// A flush of this backing store has failed, and may have dropped writes in flight. No later
    /// flush brings them back, so these writes fail (I84). The intents of their regions do not end:
    /// reads may return the dropped data until a loss of power.
    pub(crate) fn store_flush_failed(&mut self, cx: &mut Context, volume: VolumeId) {
        if fault::planted(PlantedBug::TrustWritesInFlight) {
            return;
        }
        for direct in self.directs.iter_mut().filter(|direct| direct.volume == volume) {
            direct.failed |= direct.is_unflushed();
        }
        // These requests have ended in part, or wait for a later flush (FUA).
        for request in cx.reqs.iter_mut().filter(|request| request.volume == volume) {
            request.failed |= request.has_written_past;
        }
        cx.volume_mut(volume).keep_intents();
    }

    pub(crate) fn direct_flushed(&mut self, cx: &mut Context, direct: u32, ok: bool) {
        self.direct_part_done(cx, direct, ok);
    }

    /// The backing store is durable, and without the log nothing contradicts it: voids the old
    /// data.
    fn supersede_direct(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get(direct);
        let (blocks, (from, to)) = (d.step_blocks(), d.step);
        cx.supersede(blocks, from, to);
        self.end_step(cx, direct);
    }

    /// The backing store is durable: voids the dirty blocks in the range.
    fn drop_dirty(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.stage = DirectStage::Dropping;
        d.pending = 1;
        let (volume, range) = (d.volume, d.step_blocks());
        let mut slots = Vec::new();
        cx.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| {
            // Clean blocks have left the map, and the destage of these blocks was undone.
            let clean = cx.map.state(slot) == BlockState::Clean;
            assert!(!clean, "I5: nothing becomes clean while it is written past the cache");
            slots.push(slot);
        });
        slots.sort_unstable();
        if !slots.is_empty() {
            cx.coverage.add(CoverageMark::DirtyDropped);
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
            cx.enqueue(StreamKind::Write, item);
            at = end;
        }
        self.direct_part_done(cx, direct, true);
    }

    /// Write-through: appends whole blocks as clean too.
    fn append_copies(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get(direct);
        let (volume, req, from, to) = (d.volume, d.req, d.from, d.to);
        let request = cx.reqs.get(req);
        let wanted =
            request.copies && matches!(request.kind, RequestKind::Write { .. }) && !cx.failure.is_fenced();
        if !wanted {
            return;
        }
        for block in from.div_ceil(BLOCK)..to / BLOCK {
            if !self.admission.admits(cx, req, Key::new(volume, block)) {
                continue;
            }
            let request = cx.reqs.get(req);
            let item = Item {
                key: Key::new(volume, block),
                crc: request.crcs[(block - request.first_block) as usize],
                kind: ItemKind::Data { mask: MASK_FULL, dirty: false },
                span: Some(request.block_span(block, 1)),
                done: ItemOwner::Copy(direct),
            };
            self.directs.get_mut(direct).pending += 1;
            cx.enqueue(StreamKind::Fill, item);
        }
    }

    /// A clean copy was appended, or left out, which is not a failure.
    pub(crate) fn copy_appended(&mut self, cx: &mut Context, direct: u32, slot: Option<u32>) {
        if let Some(slot) = slot {
            cx.map.pin(slot);
            self.directs.get_mut(direct).copies.push(slot);
        }
        self.direct_part_done(cx, direct, true);
    }

    /// Leaves out copies that wait for their backing store and were appended on a failed member of
    /// a mirrored cache.
    pub(crate) fn forget_lost_copies(&mut self, cx: &mut Context) {
        let copies = self.directs.iter().flat_map(|direct| &direct.copies);
        let gone = |slot: &u32| cx.members.is_gone(&cx.map, cx.map.place(*slot).0);
        let lost: Vec<u32> = copies.copied().filter(gone).collect();
        for direct in self.directs.iter_mut() {
            direct.copies.retain(|slot| !lost.contains(slot));
        }
        for slot in lost {
            cx.map.unpin(slot);
        }
    }

    /// Ends a part that has waited for its turn in an order: it has written nothing.
    pub(crate) fn refuse_direct(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.get_mut(direct);
        d.failed = true;
        cx.reqs.get_mut(d.req).refused = true;
        self.end_direct(cx, direct);
    }

    fn end_direct(&mut self, cx: &mut Context, direct: u32) {
        let d = self.directs.remove(direct);
        for slot in &d.copies {
            if !d.failed && !cx.failure.runs_without_cache() {
                cx.map.insert(*slot, BlockState::Clean);
                cx.pin_for(cx.reqs.get(d.req).treatment, *slot);
            }
            cx.map.unpin(*slot);
        }
        for (_, page) in &d.merged {
            cx.pages.give(PageUse::Merge, *page);
        }
        let regions = d.regions();
        let state = cx.volume_mut(d.volume);
        let covered_by = state.flusher.ticket();
        for region in state.intents.states_mut(regions) {
            region.active -= 1;
            region.covered_by = covered_by;
        }
        if d.locked {
            cx.release_backing(d.blocks());
        }
        cx.reqs.get_mut(d.req).has_written_past = true;
        self.mutation_part_done(cx, d.req, !d.failed);
    }
}
