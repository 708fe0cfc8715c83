//! The engine: one owner of all state, one event at a time.
//!
//! Every public method takes an event, changes state and leaves actions in a queue. Work that can
//! be put together (batches, destage, reclaim, checkpoints) is done in [`Engine::next_action`] once
//! the queue is empty, so that all requests of one turn of the owner's loop share a batch.
//!
//! The paths are in files of their own: `read`, `write`, `merge`, `direct`, `append`, `flush`,
//! `destage`, `reclaim`, `throttle`, `checkpoint`, `recovery`. What they share is here.

mod dispatch;
mod opening;
mod report;
mod scrubbing;
mod settle;

use crate::api::config::EngineConfig;
use crate::api::settings::{PoolSettings, SettingsError, VolumeSettings};
use crate::api::stats::Stats;
use crate::api::{
    Action, Device, DeviceFailure, Nanos, OpId, Request, RequestError, RequestKind, RequestOutcome, Span,
};
use crate::base::slab::Slab;
use crate::checkpoint::Checkpoints;
use crate::context::operations::OpKind;
use crate::context::requests::Req;
use crate::context::sectors::BLOCK;
use crate::context::{Context, Status};
use crate::destage::Destager;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::pool_resize::PoolJob;
use crate::map::UNSETTLED_STATUS_MAX;
use crate::map::segment::Key;
use crate::reclaim::{Reclaim, Relocation};
use crate::recovery::Recovery;
use crate::request::admission::Memory;
use crate::request::direct::Direct;
use crate::request::merge::Merge;
use crate::request::throttle::Throttle;
use crate::scrub::Scrubber;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};

/// The engine of one cache: `(now, event) -> actions`.
#[derive(Debug)]
pub struct Engine {
    pub(crate) cx: Context,
    pub(crate) merges: Slab<Merge>,
    pub(crate) merge_queue: VecDeque<u32>,
    pub(crate) directs: Slab<Direct>,
    pub(crate) destager: Destager,
    pub(crate) relocations: Slab<Relocation>,
    scrub: Scrubber,
    pub(crate) throttle: Throttle,
    /// What policies remember.
    pub(crate) memory: Memory,
    pub(crate) reclaim: Option<Reclaim>,
    pub(crate) checkpoint: Checkpoints,
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) pool_job: Option<PoolJob>,
    quiesced: bool,
}

impl Context {
    /// Ends a request: the client gets its answer, the record is free.
    pub(crate) fn reply(&mut self, req: u32) {
        let path = self.path(req);
        let mut done = self.reqs.remove(req);
        assert!(done.pending == 0, "I1: a request is answered when all its parts have ended");
        if done.kind == RequestKind::Flush {
            done.failed = self.flush_fails(done.volume, done.losses_reported, done.failed);
        }
        let result = if done.failed { Err(RequestError::Io) } else { Ok(()) };
        if done.kind == RequestKind::Flush {
            self.flush_answered(req, &done);
        }
        let took = self.now - done.started_at;
        self.counters.reply(done.volume, path, done.failed, took);
        if path == RequestOutcome::WritePast {
            self.count_write_past(&done);
        }
        self.stats.count_reply(done.kind, done.failed, took);
        self.volume_mut(done.volume).last_active = self.now;
        done.crcs.clear();
        self.spare_crcs.push(done.crcs);
        self.actions.push_back(Action::Reply {
            request: done.id,
            result,
            path,
            took,
            volume: done.volume,
            bytes: done.len,
        });
    }

    /// Which way a request went.
    fn path(&self, req: u32) -> RequestOutcome {
        let request = self.reqs.get(req);
        match request.kind {
            RequestKind::Read if !request.missed => RequestOutcome::ReadHit,
            RequestKind::Read if self.may_fill(req) => RequestOutcome::ReadMiss,
            RequestKind::Read => RequestOutcome::ReadBypass,
            RequestKind::Write { .. } if request.write_back => RequestOutcome::Write,
            RequestKind::Write { .. } if request.copies => RequestOutcome::WriteThrough,
            RequestKind::Write { .. } => RequestOutcome::WritePast,
            RequestKind::Flush => RequestOutcome::Flush,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => RequestOutcome::Zero,
            RequestKind::Prefetch => RequestOutcome::Prefetch,
        }
    }

    /// Blocks of a volume that the backing store does not hold durably, older versions that ordered
    /// destage still has to write included. Lost blocks are not counted.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        self.map.volumes.get(usize::from(volume.0)).map_or(0, |volume| volume.dirty)
    }

    pub(crate) fn data_capacity(&self) -> u64 {
        let geometry = &self.map.geometry;
        debug_assert!(self.segments_staying() <= geometry.segment_count);
        self.capacity_of(self.segments_counted(self.segments_staying()))
    }
}

impl Engine {
    /// An engine that knows nothing yet.
    pub(crate) fn blank(config: EngineConfig, now: Nanos) -> Self {
        Self {
            cx: Context::new(config, now),
            merges: Slab::new(),
            merge_queue: VecDeque::new(),
            directs: Slab::new(),
            destager: Destager::new(),
            relocations: Slab::new(),
            scrub: Scrubber::new(),
            throttle: Throttle::new(),
            memory: Memory::new(),
            reclaim: None,
            checkpoint: Checkpoints::default(),
            recovery: None,
            lifecycle: Lifecycle::default(),
            pool_job: None,
            quiesced: false,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.cx.status.clone()
    }

    /// Slots and segments that were looked at since the start where many are: for a range of
    /// blocks, for a victim of reclaim and in it, for a checkpoint, for what is at risk. For tests:
    /// what one call looks at is the time that it takes.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.cx.map.looked_at.get()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.cx.stats;
        stats.cached_blocks = self.cx.map.cached_blocks();
        stats.capacity_blocks = self.cx.capacity_of(self.cx.segments_staying());
        stats.dirty_blocks = self.cx.map.volumes.iter().map(|volume| volume.dirty).sum();
        stats.lost_blocks = self.cx.map.lost.len() as u64 + self.cx.failure.lost_blocks();
        stats.lost_bytes = self.loss_totals().iter().map(|total| total.bytes).sum();
        stats.free_segments = self.cx.free_segments() as u64;
        stats.segments = u64::from(self.cx.segments_counted(self.cx.map.segments.len() as u32));
        stats.pinned_blocks = self.cx.map.pinned_blocks();
        stats.index_memory_bytes = (self.cx.map.memory_bytes() + self.memory.bytes()) as u64;
        stats.requests_in_flight = self.cx.reqs.len() as u64;
        stats
    }

    /// Takes a request. The reply comes as an action, possibly at once.
    pub fn submit(&mut self, now: Nanos, request: Request<'_>) {
        self.begin(now);
        self.take_request(request);
        self.dispatch();
    }

    #[inline(always)]
    fn take_request(&mut self, request: Request<'_>) {
        let refusal =
            if self.cx.status != Status::Ready || self.cx.stopping || self.is_leaving(request.volume) {
                Some(RequestError::Shutdown)
            } else if !self.cx.is_valid(&request) {
                Some(RequestError::Invalid)
            } else if self.cx.refuses_changes()
                && !matches!(request.kind, RequestKind::Read | RequestKind::Prefetch)
            {
                Some(RequestError::Io)
            } else {
                None
            };
        if let Some(error) = refusal {
            if error == RequestError::Io && request.kind == RequestKind::Flush {
                // It tells of what is lost like any other FLUSH that fails.
                self.cx.flush_fails(request.volume, 0, true);
            }
            self.cx.actions.push_back(Action::Reply {
                request: request.id,
                result: Err(error),
                path: RequestOutcome::Refused,
                took: 0,
                volume: request.volume,
                bytes: request.len,
            });
            return;
        }
        let first = request.offset / BLOCK;
        let blocks = (request.offset % BLOCK + request.len).div_ceil(BLOCK);
        self.cx.settle_range(request.volume, first, blocks);
        let req = self.take_in(request);
        match self.cx.reqs.get(req).kind {
            RequestKind::Read | RequestKind::Prefetch => self.start_read(req),
            RequestKind::Flush => self.cx.start_flush(req),
            RequestKind::Write { .. } | RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => {
                self.admit_mutation(req);
            }
        }
    }

    fn take_in(&mut self, request: Request<'_>) -> u32 {
        let mut crcs = self.cx.spare_crcs.pop().unwrap_or_default();
        crcs.extend_from_slice(request.block_crcs);
        let last = request.offset + request.len.max(1) - 1;
        let now = self.cx.now;
        let treatment = self.treat(&request);
        let volume = self.cx.volume_mut(request.volume);
        volume.last_active = now;
        let losses_reported = volume.losses_reported;
        let (mut write_back, mut copies) = volume.writes(treatment);
        if self.cx.runs_without_cache() {
            (write_back, copies) = (false, false);
        }
        self.cx.stats.count_request(&request);
        self.cx.counters.request(&request);
        self.cx.reqs.insert(Req {
            id: request.id,
            volume: request.volume,
            kind: request.kind,
            offset: request.offset,
            len: request.len,
            first_block: request.offset / BLOCK,
            last_block: last / BLOCK,
            buf: request.buf.unwrap_or(crate::api::SCRATCH),
            crcs,
            pending: 0,
            failed: false,
            cache_failed: false,
            redone: false,
            locked: false,
            write_back,
            copies,
            treatment,
            sequential: treatment != request.treatment,
            reserved: 0,
            missed: false,
            losses_reported,
            started_at: self.cx.now,
        })
    }

    /// A device operation, or `Crc`, has completed. `crcs` holds one checksum per block if they
    /// were asked for.
    pub fn complete(&mut self, now: Nanos, op: OpId, result: Result<(), DeviceFailure>, crcs: &[u32]) {
        self.begin(now);
        self.take_completion(op, result, crcs);
        self.dispatch();
    }

    #[inline(always)]
    fn take_completion(&mut self, op: OpId, result: Result<(), DeviceFailure>, crcs: &[u32]) {
        let ok = result.is_ok();
        if result == Err(DeviceFailure::Ended) {
            if self.cx.awaits_device(op) {
                return;
            }
        } else if (!ok || self.cx.mirror.is_some()) && self.cx.is_asked_again(op, ok, crcs) {
            return;
        }
        let op = self.cx.take_op(op);
        self.cx.note_latency(&op, ok);
        let slot = op.slot;
        let summed = crcs.len() as u64 == u64::from(op.len) / BLOCK;
        assert!(slot.is_none() || !ok || summed, "I4: cached blocks are read with their checksums");
        self.cx.note_cache_read(slot, op.member, ok);
        if let Some(slot) =
            slot.filter(|_| self.cx.mirror.is_some() && !matches!(op.kind, OpKind::ScrubRead { .. }))
        {
            self.cx.suspect_first_copy(op.member, slot);
        }
        if !ok {
            self.cx.count_failure(&op);
        }
        match op.kind {
            OpKind::Batch(stream) if self.cx.mirror.is_some() => {
                self.cx.half_written(stream, op.batch_id(), op.member, ok);
            }
            OpKind::Batch(stream) => self.cx.batch_written(stream, op.batch_id(), ok),
            OpKind::ReadHit { req, slot, count, tries } => self.hit_read(req, slot, count, tries, ok, crcs),
            OpKind::ReadMiss { req, block, count, miss } => self.miss_read(req, block, count, miss, ok, crcs),
            OpKind::MergeBacking { merge } => self.merge_part_read(merge, ok),
            OpKind::MergeCached { merge, tries } => self.merge_cached_read(merge, tries, ok, crcs),
            OpKind::MergeCrc { merge } => self.merge_summed(merge, crcs),
            OpKind::DirectWrite { direct } => self.direct_written(direct, ok),
            OpKind::GapRead { extent } => self.destager.gaps_read(&mut self.cx, extent, ok),
            OpKind::DestageRead { extent, at, count, tries } => {
                self.destager.part_read(&mut self.cx, extent, (at, count, tries), ok, crcs);
            }
            OpKind::DestageWrite { extent } => self.destager.written(&mut self.cx, extent, ok),
            OpKind::RelocateRead { relocation } => self.relocation_read(relocation, ok, crcs),
            OpKind::ScrubRead { read } => self.scrub.slots_read(&mut self.cx, read, ok, crcs),
            OpKind::ScrubFetch { key, page, token } => {
                self.scrub.fetched(&mut self.cx, key, page, token, ok, crcs)
            }
            OpKind::Flush(Device::Cache) if self.cx.mirror.is_some() => self.cx.member_flushed(op.member, ok),
            OpKind::Flush(device) => self.cx.flushed(device, ok),
            OpKind::Checkpoint => self.checkpoint.written(&mut self.cx, op.member, ok),
            OpKind::CopyRead => self.cx.copy_read(ok, crcs),
            OpKind::CopyWrite => self.cx.copy_written(op.member, ok),
            OpKind::Mend => self.recover(|recovery, cx| recovery.mended(cx, op.member, ok)),
            OpKind::RewriteUnflushed => self.recover(|recovery, cx| recovery.rewritten(cx, op.member, ok)),
            OpKind::RepairRead => self.cx.repair_read(ok, crcs),
            OpKind::RepairWrite => self.cx.repair_written(op.member, ok),
            OpKind::Recovery(read) => {
                self.recover(|recovery, cx| recovery.completed(cx, read, result.map(|()| &[][..])));
            }
            OpKind::LifecycleFlush(volume) => self.lifecycle_flushed(volume, ok),
            OpKind::Sample { index, .. } if self.recovery.is_some() => {
                self.recover(|recovery, cx| recovery.sample_read(cx, index, ok, crcs));
            }
            OpKind::Sample { volume, .. } => self.lifecycle_sample_read(volume, ok, crcs),
        }
    }

    /// A `ReadMeta` has completed.
    pub fn complete_meta(&mut self, now: Nanos, op: OpId, result: Result<&[u8], DeviceFailure>) {
        self.begin(now);
        let op = self.cx.take_op(op);
        match op.kind {
            OpKind::Recovery(read) => self.recover(|recovery, cx| recovery.completed(cx, read, result)),
            _ => unreachable!("only recovery reads metadata"),
        }
        self.dispatch();
    }

    /// Lets time pass; call at or after [`Engine::next_deadline`].
    pub fn tick(&mut self, now: Nanos) {
        self.begin(now);
    }

    /// The next thing to do, if there is any. Settles everything that can be put together first.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.cx.actions.is_empty() && self.cx.unsettled {
            self.cx.unsettled = false;
            self.settle();
        }
        let action = self.cx.actions.pop_front()?;
        if let Some(op) = action.of_cache() {
            self.cx.ops.get_mut(op.0).action = Some(action);
        }
        Some(action)
    }

    /// When [`Engine::tick`] must be called next, if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        match self.cx.status {
            Status::Ready => {}
            // What was due is done.
            Status::Stopping => return self.cx.read_retry.deadline(),
            Status::Opening | Status::Failed(_) => return None,
        }
        let volumes = self.cx.volumes.iter().flatten().filter_map(|volume| self.cx.volume_deadline(volume));
        // Most caches have neither.
        let rare = if self.scrub.is_under_way() || self.cx.mirror.is_some() {
            self.scrub.deadline().into_iter().chain(self.cx.mirror_deadline()).min()
        } else {
            None
        };
        [
            self.throttle.deadline(self.cx.now),
            self.cx.marks_deadline(),
            self.checkpoint.deadline(&self.cx),
            self.lifecycle_deadline(),
            self.sweeps_deadline(),
            self.cx.failure_deadline(),
            self.cx.read_retry.deadline(),
            rare,
            self.cx.batch_delay_deadline(),
            self.cx.map.is_unsettled().then_some(self.cx.now),
        ]
        .into_iter()
        .flatten()
        .chain(volumes)
        .min()
        .map(|deadline| deadline.max(self.cx.now + 1))
    }

    /// Spans of a `Read` or `Write`.
    #[must_use]
    pub fn spans(&self, op: OpId) -> &[Span] {
        &self.cx.ops.get(op.0).spans
    }

    /// Header block of a cache `Write`, if it has one.
    #[must_use]
    pub fn header(&self, op: OpId) -> Option<&[u8]> {
        self.cx.ops.get(op.0).header.as_ref().map(|header| &header[..])
    }

    /// Bytes of a `WriteMeta`.
    #[must_use]
    pub fn meta(&self, op: OpId) -> &[u8] {
        self.cx.ops.get(op.0).meta.as_ref().map_or(&[], |meta| &meta[..])
    }

    /// Changes settings of a volume; requests already under way end as they began.
    ///
    /// # Errors
    /// The settings are out of range or contradict each other; nothing was changed.
    pub fn configure_volume(
        &mut self,
        now: Nanos,
        id: VolumeId,
        settings: VolumeSettings,
    ) -> Result<(), SettingsError> {
        settings.check()?;
        self.begin(now);
        if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(id.0)) {
            let was = core::mem::replace(&mut volume.settings, settings);
            if !fault::planted(PlantedBug::ChargeUnlimited) {
                volume.destage.rate.limits_set(&was, &settings);
            }
            if was.flush_period != settings.flush_period {
                volume.destage.rate.period_set(now);
            }
            if was.destage_order != settings.destage_order && fault::planted(PlantedBug::ForgetOnOrderChange)
            {
                self.cx.map.volumes[usize::from(id.0)].waiting = Default::default();
            }
        }
        Ok(())
    }

    /// Settings of an attached volume.
    #[must_use]
    pub fn volume_settings(&self, volume: VolumeId) -> Option<VolumeSettings> {
        self.cx.volume_settings(volume)
    }
    /// Changes settings of the pool.
    ///
    /// # Errors
    /// The settings are out of range; nothing was changed.
    pub fn configure_pool(&mut self, now: Nanos, settings: PoolSettings) -> Result<(), SettingsError> {
        settings.check()?;
        self.begin(now);
        self.cx.config.pool = settings;
        Ok(())
    }

    /// The cache device has failed: it takes nothing any more, see [`Engine::runs_without_cache`].
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.cx.fenced
    }

    /// Settings of the pool.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        self.cx.config.pool
    }

    /// Size of an attached volume in bytes; may be less than that of its backing store, see
    /// `Attachment`.
    #[must_use]
    pub fn volume_size_bytes(&self, volume: VolumeId) -> Option<u64> {
        self.cx.volumes.get(usize::from(volume.0))?.as_ref().map(|volume| volume.limit_bytes)
    }

    /// Blocks of a volume that the backing store does not hold durably, older versions that ordered
    /// destage still has to write included. Lost blocks are not counted.
    #[must_use]
    pub fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        self.cx.dirty_blocks(volume)
    }
    /// What is cached of a range: calls `f(blocks, cached, dirty)` for runs of equal blocks in
    /// order, until it returns false.
    pub fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        use crate::map::segment::BlockState;
        let worth = |slot: u32| match self.cx.map.state(slot) {
            BlockState::Void => (false, false),
            BlockState::Clean | BlockState::Destaged => (!self.cx.runs_without_cache(), false),
            BlockState::Dirty => (true, true),
        };
        let end = first_block + blocks;
        // While the index is not ready, one look at all slots is faster than many look-ups.
        let mut scanned = Vec::new();
        if self.cx.map.is_unsettled() && blocks > UNSETTLED_STATUS_MAX {
            scanned.resize(blocks as usize, (false, false));
            let mut note =
                |slot| scanned[(self.cx.map.key(slot).block() - first_block) as usize] = worth(slot);
            self.cx.map.scan_for_each_in(volume, first_block, end - 1, &mut note);
        }
        let what = |block: u64| match scanned.get((block - first_block) as usize) {
            Some(status) => *status,
            None => self.cx.map.lookup(Key::new(volume, block)).map_or((false, false), worth),
        };
        let mut start = first_block;
        while start < end {
            let status = what(start);
            let mut next = start + 1;
            while next < end && what(next) == status {
                next += 1;
            }
            if !f(next - start, status.0, status.1) {
                return;
            }
            start = next;
        }
    }

    /// Refuses new requests and lets the ones in flight end; [`Action::Quiesced`] follows.
    pub fn begin_shutdown(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.stopping = true;
    }

    fn step_shutdown(&mut self) {
        if !self.cx.stopping || self.quiesced || self.cx.status != Status::Ready {
            return;
        }
        let busy = self.cx.reqs.len() > 0
            || self.cx.ops.len() > 0
            || self.destager.extents_len() > 0
            || self.cx.log.moves > 0
            || !self.checkpoint.is_idle()
            || self.cx.is_mirror_busy()
            || self.cx.is_rescue_busy();
        if busy {
            return;
        }
        if self.cx.flush_backings_for_shutdown() {
            return;
        }
        self.quiesced = true;
        self.cx.actions.push_back(Action::Quiesced);
    }

    /// The final checkpoint is in effect: what only waited for it has it now.
    fn close(&mut self) {
        self.step_lifecycle();
        self.step_pool();
        self.cx.actions.push_back(Action::Closed);
    }

    /// The volume table as the next checkpoint will have it: volumes that are not attached
    /// included.
    #[must_use]
    pub fn volume_table(&self) -> Vec<VolumeEntry> {
        self.checkpoint.table_to_write(&self.cx)
    }

    /// Has a checkpoint taken as soon as that is possible;
    /// [`Notice::Checkpointed`](crate::Notice::Checkpointed) tells when it is in effect.
    pub fn take_checkpoint(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.want_checkpoint();
    }

    /// After [`Action::Quiesced`]: takes the final checkpoint with what the backing stores look
    /// like now; [`Action::Closed`] follows.
    ///
    /// # Panics
    /// If the engine is not quiesced: a bug of the owner.
    pub fn finish_shutdown(&mut self, now: Nanos, backings: &[(VolumeId, BackingRecord)]) {
        self.begin(now);
        assert!(self.quiesced, "finish_shutdown follows Quiesced");
        for (volume, backing) in backings {
            if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(volume.0)) {
                volume.backing = backing.clone();
                if volume.flusher.unflushed {
                    // Its flush failed: its blocks need not look after a power cut as they look
                    // now.
                    volume.backing.samples.clear();
                }
            }
        }
        self.cx.status = Status::Stopping;
        self.checkpoint.begin_final(&mut self.cx);
        self.step_checkpoint();
    }

    /// Checks all invariants that can be checked by looking; panics if one does not hold. Slow.
    pub fn check_invariants(&self) {
        self.cx.map.check();
        self.cx.check_mirror();
        if self.quiesced {
            assert!(self.cx.pages.all_free(), "no page is lost");
        }
    }

    /// What the engine is busy with, in one line: for the report of a stall.
    #[must_use]
    pub fn describe(&self) -> String {
        let streams: Vec<String> =
            self.cx.log.streams.iter().map(|stream| stream.describe(self.cx.batch_blocks())).collect();
        alloc::format!(
            "{} requests, {} operations, {} merges ({} wait for pages), {} direct, {} extents, {} relocations, {} \
             throttled, {} marks, reclaim {:?}, fenced {}, {} fills, jobs {:?}, checkpoint: {}; streams {streams:?}; unclean {}, levels {:?}",
            self.cx.reqs.len(),
            self.cx.ops.len(),
            self.merges.len(),
            self.merge_queue.len(),
            self.directs.len(),
            self.destager.extents_len(),
            self.cx.log.moves,
            self.throttle.waiting_len(),
            self.cx.log.marks.len(),
            self.reclaim,
            self.cx.fenced,
            self.cx.fills.len(),
            self.lifecycle,
            self.checkpoint.describe(),
            self.cx.map.unclean_blocks(),
            self.cx.volumes.iter().flatten().map(|volume| self.cx.levels(volume.id).pool).next(),
        ) + &self.cx.volumes.iter().flatten().fold(String::new(), |text, volume| {
            let (report, levels) = (self.destage_report(volume.id), self.cx.levels(volume.id).volume);
            let order = self
                .cx
                .order(volume.id)
                .map(|order| (order.phase, order.current, order.active, order.claimed));
            alloc::format!("{text}; volume {}: order {order:?}, levels {levels:?}, {report:?}", volume.id.0)
        })
    }

    // --- shared by the paths
}
