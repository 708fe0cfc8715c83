//! The log: three append streams, their batches, and the order in which these are committed.
//!
//! Every stream has an open segment and a queue of items. When a batch may be written, it takes
//! everything in the queue that fits: header block, then payload, one device write (group commit
//! that never waits while the device has little to do, see `Stream::is_worth_a_batch`). Some
//! batches of a stream are in flight at once; a batch is *committed* only when it and all earlier
//! batches of its stream have completed (I2). So after a crash, the part of a stream that is
//! readable from its start contains everything that was acknowledged.
//!
//! A segment is closed with a summary when no batch fits into it. The next one is opened only after
//! the batches of the previous one have completed, so a failed write never concerns two segments:
//! its items, and those of the batches after it, are written again, to a fresh segment, with the
//! same stream sequence. Only the end of the segment waits for its summary.

use crate::api::written::Payload;
use crate::api::{Device, IoAction, Notice, OpId};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::operations::OpKind;
use crate::context::sectors::push_span;
use crate::context::streams::{Batch, Item, ItemKind, ItemOwner};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, SegmentPhase};
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::batch::{BatchHeader, BatchKind, ENTRIES_MAX, Entry};
use forebay_format::summary::{self, SummaryItem};
use forebay_format::{BLOCK_BYTES, StreamKind};

/// Attempts to write a batch before its requests fail.
const BATCH_TRIES: u32 = 4;
/// Fills wait this long for a segment: a window extension takes two flushes.
pub(crate) const FILLS_WAIT_NS: u64 = 250_000_000;

impl CacheMap {
    /// Seals a segment without a summary.
    fn close_segment(&mut self, number: u32, completed: u32) {
        let segment = &mut self.segments[number as usize];
        debug_assert!(segment.completed <= completed);
        segment.completed = completed;
        segment.phase = SegmentPhase::Sealed;
        self.sealed(number);
    }
}

impl Context {
    /// Blocks of a segment that batches may use; the rest is for the summary, if there is one.
    pub(crate) fn batch_blocks(&self) -> u32 {
        let blocks = self.map.geometry.segment_blocks;
        blocks - if self.writes_summaries() { summary::reserved_blocks(blocks) } else { 0 }
    }

    fn writes_summaries(&self) -> bool {
        self.map.geometry.segment_blocks >= self.config.summaries_from_blocks
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, stream: StreamKind, item: Item) {
        if self.failure.is_fenced() {
            self.item_done(item, None);
            return;
        }
        let (now, stream) = (self.now, &mut self.log.streams[stream.index()]);
        if stream.queue.is_empty() {
            (stream.queued_since, stream.without_room_since) = (now, None);
        }
        stream.queue.push_back(item);
    }

    /// Writes as many batches of a stream as may be in flight.
    pub(crate) fn step_append(&mut self, kind: StreamKind) {
        loop {
            let marks = kind == StreamKind::Write
                && self.log.marks.are_due(self.now, || self.free.is_short_of_segments());
            let limit = self.config.pool.batches_in_flight.max(1) as usize;
            let stream = &self.log.streams[kind.index()];
            if !(stream.is_worth_a_batch() || marks)
                || stream.broken
                || stream.in_flight.len() >= limit
                || self.failure.is_fenced()
                || self.log.on_hold
                || self.delays_batch(kind)
                || self.members.asks()
            {
                return;
            }
            if !self.prepare_segment(kind) {
                return;
            }
            self.write_batch(kind);
        }
    }

    /// Makes sure that the stream has an open segment with room for a batch.
    fn prepare_segment(&mut self, kind: StreamKind) -> bool {
        if !self.leave_lost(kind) {
            return false;
        }
        let room_end = self.batch_blocks();
        let stream = &mut self.log.streams[kind.index()];
        if let Some((segment, next)) = stream.open {
            let needs = 1 + u32::from(stream.queue.front().is_some_and(|item| item.span.is_some()));
            if next + needs <= room_end && !stream.closing {
                return true;
            }
            stream.closing = true;
            if !stream.in_flight.is_empty() {
                return false;
            }
            stream.open = None;
            stream.closing = false;
            self.write_summary(kind, segment, next);
        }
        let Some(segment) = self.take_segment(kind) else {
            if kind != StreamKind::Write {
                self.end_without_room(kind);
            } else if self.waits_for_lost_room() {
                self.fence();
            }
            return false;
        };
        self.log.streams[kind.index()].without_room_since = None;
        let first = (self.log.streams[kind.index()].next_sequence, self.log.next_sequence);
        self.map.begin_segment(segment, SegmentPhase::Open, kind, first);
        self.log.streams[kind.index()].open = Some((segment, 0));
        true
    }

    /// Closes the open segment of a stream if it was on a failed member only. False while batches
    /// to it are in flight.
    pub(crate) fn leave_lost(&mut self, kind: StreamKind) -> bool {
        let stream = &self.log.streams[kind.index()];
        let still = stream.in_flight.is_empty() && !stream.broken;
        let Some((segment, next)) =
            stream.open.filter(|(segment, _)| self.members.is_gone(&self.map, *segment))
        else {
            return true;
        };
        if still {
            let stream = &mut self.log.streams[kind.index()];
            (stream.open, stream.closing) = (None, false);
            self.map.close_segment(segment, next);
        }
        still
    }

    /// Closes the open segment of a stream if its number is at least `first`.
    pub(crate) fn close_from(&mut self, kind: StreamKind, first: u32) {
        let stream = &mut self.log.streams[kind.index()];
        let Some((segment, next)) = stream.open.filter(|(segment, _)| *segment >= first) else { return };
        stream.closing = true;
        if stream.broken || !stream.in_flight.is_empty() || self.log.on_hold {
            return;
        }
        stream.open = None;
        stream.closing = false;
        if next == 0 {
            self.map.close_segment(segment, 0);
        } else {
            self.write_summary(kind, segment, next);
        }
    }

    /// Handles items without room. Fills are optional: they wait for a moment, and are dropped.
    /// Clean copies are dropped at once, since clients wait for them. Relocated blocks stay where
    /// they are if no segment is about to become available: they would wait forever (writers have
    /// taken the room that they had counted on).
    fn end_without_room(&mut self, kind: StreamKind) {
        let none_comes =
            self.free.pool.is_empty() && !self.free.more_comes && !fault::planted(PlantedBug::KeepStuckMoves);
        let since = *self.log.streams[kind.index()].without_room_since.get_or_insert(self.now);
        let fills_wait = self.now < since + FILLS_WAIT_NS && !self.stopping;
        let ends = |item: &Item| match item.done {
            ItemOwner::Fill(..) => !fills_wait,
            ItemOwner::Copy(_) => true,
            ItemOwner::Survivor(_) | ItemOwner::Kept(_) => kind == StreamKind::Fill || none_comes,
            _ => false,
        };
        if !self.log.streams[kind.index()].queue.iter().any(ends) {
            return;
        }
        self.coverage.add(CoverageMark::FillsForgotten);
        for item in self.log.streams[kind.index()].queue.take(ends) {
            self.item_done(item, None);
        }
    }

    fn write_batch(&mut self, kind: StreamKind) {
        let mut batch = self.log.spare_batches.pop().unwrap_or_default();
        let mut entries = core::mem::take(&mut self.log.spare_entries);
        if kind == StreamKind::Write {
            self.log.marks.take_into(&self.map, self.now, &mut batch.marks, &mut entries);
        }
        let (segment, start) = self.log.streams[kind.index()].open.expect("a segment was prepared");
        let room = self.batch_blocks() - start - 1;
        let op = self.ops.begin(OpKind::Batch(kind), self.now);
        let (mut payload, mut causes) = (0, Payload::default());
        while entries.len() < ENTRIES_MAX {
            let Some(item) = self.next_item(kind, payload < room) else { break };
            let flush_epoch = self.map.flush_epoch(kind, &item);
            if let Some(span) = item.span {
                payload += 1;
                causes.add(item.done);
                let slot = self.map.slot(segment, start + payload);
                self.map.describe(slot, item.key, item.crc, item.mask());
                self.map.set_epoch(slot, flush_epoch);
                push_span(&mut self.ops.get_mut(op).spans, span);
            }
            entries.push(item.entry(flush_epoch));
            batch.items.push(item);
        }
        if entries.is_empty() {
            self.ops.drop_unused(op);
            self.log.spare_batches.push(batch);
            self.log.spare_entries = entries;
            return;
        }
        if entries.len() == ENTRIES_MAX {
            self.coverage.add(CoverageMark::FullBatch);
        }
        (batch.op, batch.segment, batch.start, batch.blocks) = (op, segment, start, payload + 1);
        batch.is_summary = false;
        let header = self.batch_header(kind, BatchKind::Records, segment, start, payload);
        batch.stream_sequence = header.stream_sequence;
        let mut bytes = self.ops.spare_header();
        header.encode(&entries, &mut bytes[..]);
        entries.clear();
        self.log.spare_entries = entries;
        if fault::planted(PlantedBug::ShareHeader)
            && let Some(last) = self.log.streams[kind.index()].in_flight.back()
            && last.completed.is_none()
            && self.ops.get(last.op).action.is_some()
        {
            self.ops.get_mut(last.op).header = Some(bytes.clone());
        }
        let state = self.ops.get_mut(op);
        (state.header, state.payload) = (Some(bytes), causes);
        let stream = &mut self.log.streams[kind.index()];
        stream.next_sequence += 1;
        stream.open = Some((segment, start + payload + 1));
        self.stats.batches += 1;
        self.submit_batch(kind, batch);
    }

    fn submit_batch(&mut self, kind: StreamKind, mut batch: Batch) {
        batch.completed = None;
        self.stats.cache_metadata_writes += u64::from(batch.is_summary || batch.blocks == 1);
        self.map.segments[batch.segment as usize].pins += 1;
        if self.members.is_mirrored() {
            self.submit_to_members(kind, &mut batch);
            return self.log.streams[kind.index()].submitted(batch);
        }
        let offset = self.map.geometry.segment_offset(batch.segment, batch.start);
        let len = batch.blocks * BLOCK_BYTES as u32;
        self.count_cache_write(batch.op, offset, len);
        let op = OpId(batch.op);
        self.actions.push_io(if batch.is_summary {
            IoAction::WriteMeta { op, offset }
        } else {
            IoAction::Write { op, device: Device::Cache, offset, len }
        });
        self.log.streams[kind.index()].submitted(batch);
    }

    fn batch_header(
        &mut self,
        stream: StreamKind,
        kind: BatchKind,
        segment: u32,
        block: u32,
        payload: u32,
    ) -> BatchHeader {
        let sequence = self.log.next_sequence;
        self.log.next_sequence += 1;
        self.map.segments[segment as usize].last_sequence = sequence;
        let state = &self.log.streams[stream.index()];
        let last = state.in_flight.back();
        let follows = last.map_or(state.completed_sequence, |batch| batch.stream_sequence + 1);
        assert!(state.next_sequence == follows, "I12: the batches of a stream are numbered without gaps");
        BatchHeader {
            kind,
            stream,
            uuid_tag: self.superblock.uuid.tag(),
            epoch: self.superblock.epoch,
            sequence,
            stream_sequence: state.next_sequence,
            flushed_stream_sequence: state.flushed_sequence,
            segment,
            block_in_segment: block,
            payload_blocks: payload as u16,
        }
    }

    /// The next item of a queue, if it fits. Skips fills that were overtaken while they waited.
    fn next_item(&mut self, kind: StreamKind, payload_fits: bool) -> Option<Item> {
        loop {
            let item = *self.log.streams[kind.index()].queue.front()?;
            if item.span.is_some() && !payload_fits {
                return None;
            }
            self.log.streams[kind.index()].queue.pop_front();
            match item.done {
                ItemOwner::Fill(_, token) if !self.fills.is_valid(item.key, token) => {
                    self.item_done(item, None)
                }
                _ => return Some(item),
            }
        }
    }

    /// Closes a segment with a summary of its slots. The summary has no stream sequence: its loss
    /// affects nothing else.
    ///
    /// A segment whose epochs were forgotten has none: until a checkpoint records that the order
    /// has ended, a crash restores the order, and then the entries of the batches decide. Nor has a
    /// small segment (`EngineConfig::summaries_from_blocks`).
    fn write_summary(&mut self, kind: StreamKind, segment: u32, at: u32) {
        let still = self.log.streams[kind.index()].in_flight.is_empty();
        assert!(still, "I2: a segment is closed when all its batches have completed");
        if !self.writes_summaries() {
            self.coverage.add(CoverageMark::SegmentWithoutSummary);
            return self.map.close_segment(segment, at);
        }
        let table = &self.map.segments[segment as usize];
        if table.forgot_epochs {
            self.coverage.add(CoverageMark::SummaryLeftOut);
            return self.map.close_segment(segment, at);
        }
        let payload = summary::encode((0..at).map(|index| {
            table.has_data(index).then(|| SummaryItem {
                volume: table.key(index).volume(),
                block: table.key(index).block(),
                sector_mask: self.map.mask(self.map.slot(segment, index)),
                crc32c: table.crc(index),
                flush_epoch: table.epoch(index),
            })
        }));
        let entry = Entry::Summary { slots: at, crc32c: forebay_format::checksum(&payload) };
        let blocks = (payload.len() / BLOCK_BYTES) as u32;
        let header = self.batch_header(kind, BatchKind::Summary, segment, at, blocks);
        let mut meta = alloc::vec![0; BLOCK_BYTES];
        header.encode(&[entry], &mut meta);
        meta.extend_from_slice(&payload);
        let op = self.ops.begin(OpKind::Batch(kind), self.now);
        self.ops.get_mut(op).meta = Some(Arc::new(meta));
        let batch = Batch {
            op,
            segment,
            start: at,
            blocks: blocks + 1,
            stream_sequence: header.stream_sequence,
            is_summary: true,
            ..self.log.spare_batches.pop().unwrap_or_default()
        };
        self.submit_batch(kind, batch);
    }

    pub(crate) fn batch_written(&mut self, kind: StreamKind, op: u32, ok: bool) {
        let batch = self.log.streams[kind.index()].incomplete(|batch| batch.op == op);
        batch.expect("a batch completes once").completed = Some(ok);
        self.flushes.cache.note_write();
        if fault::planted(PlantedBug::AcknowledgeOutOfOrder) && ok {
            self.apply_out_of_order(kind, op);
        }
        self.settle_batches(kind);
    }

    /// Processes completed batches, up to the first one that has not completed, and summaries.
    pub(crate) fn settle_batches(&mut self, kind: StreamKind) {
        self.settle_summaries(kind);
        loop {
            // Nothing is committed after the fence, even if it had completed before: nothing may
            // become dirty after the data at risk was recorded (I52).
            let counts = !self.failure.is_fenced() || fault::planted(PlantedBug::CountAfterFence);
            let stream = &mut self.log.streams[kind.index()];
            match stream.in_flight.front().and_then(|batch| batch.completed) {
                None => break,
                Some(true) if counts => {
                    let batch = stream.in_flight.pop_front().expect("there is a front");
                    self.apply_batch(kind, batch);
                }
                Some(_) => {
                    stream.broken = true;
                    if stream.in_flight.iter().any(|batch| batch.completed.is_none()) {
                        break;
                    }
                    self.rewrite_batches(kind);
                }
            }
        }
    }

    /// Seals the segments whose summaries have ended. A segment without its summary is complete,
    /// too.
    fn settle_summaries(&mut self, kind: StreamKind) {
        if self.log.streams[kind.index()].summaries.is_empty() {
            return;
        }
        let ended = |batch: &mut Batch| batch.completed.is_some();
        let ended: Vec<Batch> = self.log.streams[kind.index()].summaries.extract_if(.., ended).collect();
        for batch in ended {
            self.flushes.cache.note_write();
            self.map.changes.touch(batch.segment);
            self.map.segments[batch.segment as usize].pins -= 1;
            if batch.completed == Some(true) && !self.failure.is_fenced() {
                self.map.segments[batch.segment as usize].summary_block = batch.start;
                self.flushes.note_undurable(batch.segment);
                self.map.close_segment(batch.segment, batch.start + batch.blocks);
            } else {
                self.coverage.add(CoverageMark::SummaryFailed);
                if batch.completed == Some(false) {
                    self.actions.notice(Notice::CacheWriteFailed { segment: batch.segment });
                }
                self.map.close_segment(batch.segment, batch.start);
            }
            self.log.spare_batches.push(batch);
        }
    }

    /// The planted bug: commits a batch before the earlier ones have completed.
    fn apply_out_of_order(&mut self, kind: StreamKind, op: u32) {
        let in_flight = &mut self.log.streams[kind.index()].in_flight;
        let at = in_flight.iter().position(|batch| batch.op == op);
        if let Some(batch) = at.and_then(|at| in_flight.remove(at)) {
            self.apply_batch(kind, batch);
        }
    }

    /// Commits a batch: its blocks enter the map, and the waiters get events.
    fn apply_batch(&mut self, kind: StreamKind, mut batch: Batch) {
        let counted = self.log.streams[kind.index()].completed_sequence;
        assert!(batch.completed == Some(true), "I1: a batch counts once it is written");
        assert!(batch.stream_sequence == counted, "I2: a batch counts after all before it in its stream");
        assert!(!self.failure.is_fenced(), "I52: nothing enters the map once the cache is fenced");
        // A flush that started after the write completed does not cover this batch, which was not
        // applied yet.
        self.flushes.cache.note_write();
        self.map.changes.touch(batch.segment);
        let segment = &mut self.map.segments[batch.segment as usize];
        segment.pins -= 1;
        segment.completed = segment.completed.max(batch.start + batch.blocks);
        self.flushes.note_undurable(batch.segment);
        let stream = &mut self.log.streams[kind.index()];
        stream.completed_sequence = stream.completed_sequence.max(batch.stream_sequence + 1);
        stream.tries = 0;
        if !batch.marks.is_empty() {
            self.log.marks.note_logged(self.flushes.cache.ticket());
        }
        for slot in batch.marks.drain(..) {
            if self.map.state(slot) == BlockState::Destaged {
                self.note_marked(slot);
                self.map.mark_clean(slot);
            }
        }
        let mut slot = self.map.slot(batch.segment, batch.start);
        for item in batch.items.drain(..) {
            if item.span.is_some() {
                slot += 1;
            }
            self.item_done(item, Some(slot));
        }
        self.log.spare_batches.push(batch);
    }

    /// The first batch in flight failed, and all later ones have ended: returns their items to the
    /// queue and closes the segment before the first of them.
    fn rewrite_batches(&mut self, kind: StreamKind) {
        let failed: Vec<Batch> = self.log.streams[kind.index()].in_flight.drain(..).collect();
        let first = failed.first().expect("a batch failed");
        let (number, start, sequence) = (first.segment, first.start, first.stream_sequence);
        self.actions.notice(Notice::CacheWriteFailed { segment: number });
        let stream = &mut self.log.streams[kind.index()];
        stream.broken = false;
        self.coverage.add(CoverageMark::BatchMoved);
        stream.tries += 1;
        stream.next_sequence = sequence;
        stream.open = None;
        stream.closing = false;
        let give_up = stream.tries >= BATCH_TRIES || self.failure.is_fenced();
        for mut batch in failed.into_iter().rev() {
            self.map.segments[batch.segment as usize].pins -= 1;
            self.log.marks.put_back(&mut batch.marks);
            while let Some(item) = batch.items.pop() {
                self.log.streams[kind.index()].queue.push_front(item);
            }
            self.log.spare_batches.push(batch);
        }
        self.map.close_segment(number, start);
        if give_up {
            self.coverage.add(CoverageMark::BatchGivenUp);
            // So many segments cannot all be bad: the device has failed.
            self.fence();
            self.log.streams[kind.index()].tries = 0;
            while let Some(item) = self.log.streams[kind.index()].queue.pop_front() {
                self.item_done(item, None);
            }
        }
    }

    /// Fails all queued items: the cache device is fenced.
    pub(crate) fn fail_queued_items(&mut self) {
        for kind in StreamKind::ALL {
            while let Some(item) = self.log.streams[kind.index()].queue.pop_front() {
                self.item_done(item, None);
            }
        }
    }

    /// Notifies the owner of an item that it was written to `slot` (any number, if it has no
    /// payload), or (`None`) will not be.
    pub(crate) fn item_done(&mut self, item: Item, slot: Option<u32>) {
        if let (ItemOwner::Request(req) | ItemOwner::Merge(req, _), Some(slot)) = (item.done, slot) {
            let old = self.map.insert(slot, BlockState::Dirty);
            self.counters.logged(item.key.volume(), old);
            if old.is_none() && self.returns_to_cache(item.key) {
                // It has proved useful, but all writes go to one stream.
                self.map.set_hit(slot);
            }
            self.stats.dirtied_blocks += u64::from(old != Some(BlockState::Dirty));
            if matches!(item.done, ItemOwner::Request(_)) && self.reqs.get(req).kind.may_unmap() {
                self.map.note_discard(item.key);
            }
            self.pin_for(self.reqs.get(req).treatment, slot);
        }
        if slot.is_some() && matches!(item.kind, ItemKind::Drop { .. }) {
            self.map.apply_drop(item.kind);
        }
        self.emit(Event::Appended(item.done, item.key, slot));
    }
}
