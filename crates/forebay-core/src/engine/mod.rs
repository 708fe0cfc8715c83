//! The engine: one owner of all state, one event at a time.
//!
//! Every public method takes an event, changes state and queues actions. [`Engine::next_action`]
//! does the work that can be combined (batches, destage, reclaim, checkpoints) once the queue is
//! empty, so that all requests of one iteration of the owner's loop share a batch.
//!
//! This module takes events and returns actions. Its submodules: `dispatch` (events between parts),
//! `settle` (the work that follows an event), `opening`, `shutdown`, and the operator's calls
//! (`changes`, `device_failure`, `scrubbing`, `report`).

mod changes;
mod device_failure;
mod dispatch;
mod opening;
mod report;
mod scrubbing;
mod settle;
mod shutdown;

use crate::api::config::EngineConfig;
use crate::api::{
    Action, Device, DeviceFailure, Nanos, OpId, OwnerAction, Request, RequestError, RequestKind,
    RequestOutcome, Span,
};
use crate::checkpoint::Checkpoints;
use crate::context::operations::OpKind;
use crate::context::sectors::BLOCK;
use crate::context::{Context, Status};
use crate::destage::Destager;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::pool_resize::PoolResize;
use crate::reclaim::Reclaim;
use crate::reclaim::relocate::Relocations;
use crate::reclaim::shares::Shares;
use crate::recovery::state::Recovery;
use crate::request::state::Requests;
use crate::scrub::Scrubber;
use alloc::boxed::Box;

/// The engine of one cache: `(now, event) -> actions`.
///
/// Its parts own their state; their methods take the context and, where needed, lower parts.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    requests: Requests,
    destager: Destager,
    relocations: Relocations,
    reclaim: Reclaim,
    shares: Shares,
    scrub: Scrubber,
    checkpoint: Checkpoints,
    /// Present until the cache is open.
    recovery: Option<Box<Recovery>>,
    lifecycle: Lifecycle,
    pool_resize: PoolResize,
    quiesced: bool,
}

impl Engine {
    /// Returns an engine without a cache.
    fn blank(config: EngineConfig, now: Nanos) -> Self {
        Self {
            cx: Context::new(config, now),
            requests: Requests::new(),
            destager: Destager::new(),
            relocations: Relocations::new(),
            reclaim: Reclaim::new(),
            shares: Shares::new(),
            scrub: Scrubber::new(),
            checkpoint: Checkpoints::default(),
            recovery: None,
            lifecycle: Lifecycle::default(),
            pool_resize: PoolResize::default(),
            quiesced: false,
        }
    }

    /// Takes a request. The reply follows as an action, possibly at once.
    pub fn submit(&mut self, now: Nanos, request: Request<'_>) {
        self.begin(now);
        self.take_request(request);
        self.dispatch();
    }

    #[inline(always)]
    fn take_request(&mut self, request: Request<'_>) {
        let refusal =
            if !self.cx.status.is_ready() || self.cx.stopping || self.lifecycle.is_leaving(request.volume) {
                Some(RequestError::Shutdown)
            } else if !self.cx.is_valid(&request) {
                Some(RequestError::Invalid)
            } else if self.cx.failure.refuses_changes()
                && !matches!(request.kind, RequestKind::Read | RequestKind::Prefetch)
            {
                Some(RequestError::Io)
            } else {
                None
            };
        if let Some(error) = refusal {
            if error == RequestError::Io && request.kind == RequestKind::Flush {
                // It reports losses like any other FLUSH that fails.
                self.cx.volume_mut(request.volume).flush_fails(0, true);
            }
            self.cx.actions.push_owner(OwnerAction::Reply {
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
        self.requests.take(&mut self.cx, request);
    }

    /// Completes a device operation, or a `Crc`. `crcs` holds one checksum per block if the action
    /// requested them.
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
        } else if (!ok || self.cx.members.is_mirrored()) && self.cx.is_asked_again(op, ok, crcs) {
            return;
        }
        let op = self.cx.ops.end(op);
        self.cx.note_latency(&op, ok);
        let slot = op.slot;
        let summed = crcs.len() as u64 == u64::from(op.len) / BLOCK;
        assert!(slot.is_none() || !ok || summed, "I4: cached blocks are read with their checksums");
        self.cx.note_cache_read(slot, op.member, ok);
        if let Some(slot) =
            slot.filter(|_| self.cx.members.is_mirrored() && !matches!(op.kind, OpKind::ScrubRead { .. }))
        {
            self.cx.members.suspect_first_copy(&self.cx.map, op.member, slot);
        }
        if !ok {
            self.cx.count_failure(&op);
        }
        match op.kind {
            OpKind::Batch(stream) if self.cx.members.is_mirrored() => {
                self.cx.half_written(stream, op.batch_id(), op.member, ok);
            }
            OpKind::Batch(stream) => self.cx.batch_written(stream, op.batch_id(), ok),
            OpKind::ReadHit { req, slot, count, tries } => {
                self.requests.hit_read(&mut self.cx, req, (slot, count, tries), ok, crcs)
            }
            OpKind::ReadMiss { req, block, count, miss } => {
                self.requests.miss_read(&mut self.cx, req, (block, count), miss, ok, crcs)
            }
            OpKind::MergeBacking { merge } => self.requests.merge_part_read(&mut self.cx, merge, ok),
            OpKind::MergeCached { merge, tries } => {
                self.requests.merge_cached_read(&mut self.cx, merge, tries, ok, crcs)
            }
            OpKind::MergeCrc { merge } => self.requests.merge_summed(&mut self.cx, merge, crcs),
            OpKind::DirectWrite { direct } => self.requests.direct_written(&mut self.cx, direct, ok),
            OpKind::GapRead { extent } => self.destager.gaps_read(&mut self.cx, extent, ok),
            OpKind::DestageRead { extent, at, count, tries } => {
                self.destager.part_read(&mut self.cx, extent, (at, count, tries), ok, crcs);
            }
            OpKind::DestageWrite { extent } => self.destager.written(&mut self.cx, extent, ok),
            OpKind::RelocateRead { relocation } => {
                self.relocations.relocations_read(&mut self.cx, relocation, ok, crcs)
            }
            OpKind::ScrubRead { read } => self.scrub.slots_read(&mut self.cx, read, ok, crcs),
            OpKind::ScrubFetch { key, page, token } => {
                self.scrub.fetched(&mut self.cx, key, page, token, ok, crcs)
            }
            OpKind::Flush(Device::Cache) if self.cx.members.is_mirrored() => {
                self.cx.member_flushed(op.member, ok)
            }
            OpKind::Flush(device) => self.cx.flushed(device, ok),
            OpKind::Discard => self.cx.discard_ended(op.len, result),
            OpKind::Checkpoint => self.checkpoint.written(&mut self.cx, op.member, ok),
            OpKind::CheckpointBase => self.checkpoint.base_written(&mut self.cx, op.member, ok),
            OpKind::CopyRead => self.cx.copy_read(ok, crcs),
            OpKind::CopyWrite => self.cx.copy_written(op.member, ok),
            OpKind::MemberRepair => self.recover(|recovery, cx| recovery.repaired(cx, op.member, ok)),
            OpKind::RewriteUnflushed { segment, offset, len } => self.recover(|recovery, cx| {
                recovery.rewrite_written(cx, segment, (offset, len), (op.member, ok));
            }),
            OpKind::RepairRead => self.cx.repair_read(ok, crcs),
            OpKind::RepairWrite => self.cx.repair_written(op.member, ok),
            OpKind::Recovery(read) => {
                self.recover(|recovery, cx| recovery.completed(cx, read, result.map(|()| &[][..])));
            }
            OpKind::LifecycleFlush(volume) => self.lifecycle.store_flushed(volume, ok),
            OpKind::Sample { index, .. } if self.recovery.is_some() => {
                self.recover(|recovery, cx| recovery.sample_read(cx, index, ok, crcs));
            }
            OpKind::Sample { volume, .. } => self.lifecycle.sample_read(&mut self.cx, volume, ok, crcs),
        }
    }

    /// Completes a `ReadMeta`.
    pub fn complete_meta(&mut self, now: Nanos, op: OpId, result: Result<&[u8], DeviceFailure>) {
        self.begin(now);
        let op = self.cx.ops.end(op);
        match op.kind {
            OpKind::Recovery(read) => self.recover(|recovery, cx| recovery.completed(cx, read, result)),
            _ => unreachable!("only recovery reads metadata"),
        }
        self.dispatch();
    }

    /// Advances the engine's time; call at or after [`Engine::next_deadline`].
    pub fn tick(&mut self, now: Nanos) {
        self.begin(now);
    }

    /// Returns the next action, if there is any. Does the work that can be combined first.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.cx.actions.is_empty() && self.cx.unsettled {
            self.cx.unsettled = false;
            self.settle();
        }
        let action = self.cx.actions.pop()?;
        if let Action::Io(io) = action
            && let Some(op) = io.of_cache()
        {
            self.cx.ops.get_mut(op.0).action = Some(io);
        }
        Some(action)
    }

    /// When the owner must next call [`Engine::tick`], if no other event precedes it.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        match self.cx.status {
            Status::Ready => {}
            // All other deadlines have been met.
            Status::Stopping => return self.cx.read_retry.deadline(),
            Status::Opening | Status::Failed(_) => return None,
        }
        let volumes = self.cx.volumes.iter().filter_map(|volume| self.cx.volume_deadline(volume));
        // Most caches have neither scrub nor mirror.
        let rare = if self.scrub.is_under_way() || self.cx.members.is_mirrored() {
            self.scrub.deadline().into_iter().chain(self.cx.mirror_deadline()).min()
        } else {
            None
        };
        [
            self.requests.deadline(self.cx.now),
            self.cx.log.marks.deadline(self.cx.now),
            self.checkpoint.deadline(&self.cx),
            self.cx.wake_at,
            self.shares.sweeps_deadline(&self.cx),
            self.cx.failure.deadline(self.cx.stopping),
            self.cx.read_retry.deadline(),
            rare,
            self.cx.log.batch_delay_deadline(self.cx.now),
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
}
