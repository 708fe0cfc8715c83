//! The context, which all parts of the engine share: clock, configuration, map, volumes, requests,
//! operations and their buffers, locks, pages, the queue of actions, counters.
//!
//! A part of the engine owns its own state and borrows the context. The context calls no part.

pub(crate) mod actions;
pub(crate) mod blank;
pub(crate) mod clean_marks;
pub(crate) mod counters;
pub(crate) mod counting;
pub(crate) mod coverage;
pub(crate) mod curve;
pub(crate) mod devices_written;
pub(crate) mod dirty_limits;
pub(crate) mod endurance;
pub(crate) mod endurance_account;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod fills;
pub(crate) mod flush_ledger;
pub(crate) mod free;
pub(crate) mod intents;
pub(crate) mod locks;
pub(crate) mod mirror;
pub(crate) mod operations;
pub(crate) mod pages;
pub(crate) mod queue;
pub(crate) mod recovery_reads;
pub(crate) mod replies;
pub(crate) mod requests;
pub(crate) mod sectors;
pub(crate) mod streams;
pub(crate) mod volume;
pub(crate) mod volumes;
pub(crate) mod written;

use crate::api::config::EngineConfig;
use crate::api::open_error::OpenError;

use crate::api::stats::Stats;
use crate::api::{Device, IoAction, Nanos, OpId, REQUEST_BYTES_MAX, Request, RequestKind, Span};
use crate::base::slab::Slab;
use crate::context::actions::ActionQueue;
use crate::context::counters::Counters;
use crate::context::coverage::{CoverageMark, CoverageMarks};
use crate::context::curve::Curve;
use crate::context::devices_written::DevicesWritten;
use crate::context::endurance_account::Endurance;
use crate::context::events::Event;
use crate::context::failure::{CacheFailure, ReadRetry};
use crate::context::fills::Fills;
use crate::context::flush_ledger::FlushLedger;
use crate::context::free::FreeSegments;
use crate::context::locks::{BlockRange, LockOwner, RangeLocks};
use crate::context::mirror::Members;
use crate::context::operations::{DoneOp, OpKind, Operations};
use crate::context::pages::Pages;
use crate::context::recovery_reads::RecoveryRead;
use crate::context::requests::Req;
use crate::context::sectors::BLOCK;
use crate::context::streams::Log;
use crate::context::volume::Volume;
use crate::context::volumes::Volumes;
use crate::fault::{self, PlantedBug};
use crate::map::ages::WriteTime;
use crate::map::destage_queue::OrderWaiter;
use crate::map::segment::Key;
use crate::map::{CacheMap, UNSETTLED_LOOKUPS_MAX};
use crate::policy::ghosts::Ghosts;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;
use forebay_format::superblock::Superblock;

/// State of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Reading the cache device; requests are refused.
    Opening,
    /// Serving requests.
    Ready,
    /// The cache could not be opened; nothing was changed on it.
    Failed(OpenError),
    /// Shutting down or shut down.
    Stopping,
}

impl Status {
    /// Returns true if the engine serves requests. (Comparing with [`Status::Ready`] would compare
    /// errors too.)
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: EngineConfig,
    pub(crate) status: Status,
    pub(crate) now: Nanos,
    pub(crate) superblock: Superblock,
    pub(crate) map: CacheMap,
    pub(crate) volumes: Volumes,
    pub(crate) actions: ActionQueue,
    /// Events that parts have sent to each other and the engine has not delivered yet.
    pub(crate) events: VecDeque<Event>,
    pub(crate) ops: Operations,
    pub(crate) reqs: Slab<Req>,
    pub(crate) spare_crcs: Vec<Vec<u32>>,
    pub(crate) pages: Pages,
    pub(crate) log: Log,
    pub(crate) fills: Fills,
    pub(crate) ghosts: Ghosts,
    /// Miss ratios that other cache sizes would have.
    pub(crate) curve: Curve,
    /// The endurance budget.
    pub(crate) endurance: Endurance,
    /// Bytes written to each device.
    pub(crate) devices_written: DevicesWritten,
    /// Offsets of superblock copies that differ from the one in effect, and their correct content,
    /// in the order of their repair.
    pub(crate) stale_superblocks: Vec<(u64, Vec<u8>)>,
    /// Bypass writes that wait until a flush epoch of their volume is active.
    pub(crate) order_waiters: Vec<OrderWaiter>,
    /// Reclaim has found no victim: destage hurries.
    pub(crate) reclaim_wants_destage: bool,
    /// When a job continues, even if no event arrives until then.
    pub(crate) wake_at: Option<Nanos>,
    /// A checkpoint is due soon.
    pub(crate) checkpoint_wanted: bool,
    /// Generation of the last base of which a part was written.
    pub(crate) reserved_generation: u64,
    pub(crate) free: FreeSegments,
    /// The volume table, with entries of volumes that are not attached.
    pub(crate) volume_table: Vec<VolumeEntry>,
    /// The devices of the cache.
    pub(crate) members: Members,
    /// Progress of a cache failure.
    pub(crate) failure: CacheFailure,
    pub(crate) read_retry: ReadRetry,
    pub(crate) flushes: FlushLedger,
    /// Serialises all changes to the content of a block.
    pub(crate) locks: RangeLocks<LockOwner>,
    /// Serialises writes to the backing stores.
    pub(crate) backing_locks: RangeLocks<LockOwner>,
    pub(crate) coverage: CoverageMarks,
    pub(crate) counters: Counters,
    pub(crate) stopping: bool,
    pub(crate) stats: Stats,
    /// Something has changed since the last settling.
    pub(crate) unsettled: bool,
}

impl FreeSegments {
    /// Keeps an empty segment that is retired out of the pool of free segments.
    pub(crate) fn keep_retired(&mut self, number: u32) -> bool {
        let retired = self.retired_from.is_some_and(|first| number >= first);
        if retired {
            self.retired.push(number);
        }
        retired
    }
}

impl Context {
    pub(crate) fn new(config: EngineConfig, now: Nanos) -> Self {
        let pages = Pages::new(config.scratch_blocks);
        Self {
            status: Status::Opening,
            now,
            superblock: crate::context::blank::blank_superblock(),
            map: CacheMap::new(crate::context::blank::blank_geometry(), config.stretch_blocks),
            volumes: Volumes::default(),
            actions: ActionQueue::default(),
            events: VecDeque::new(),
            ops: Operations::new(),
            reqs: Slab::new(),
            spare_crcs: Vec::new(),
            pages,
            log: Log::new(),
            fills: Fills::default(),
            ghosts: Ghosts::new(),
            curve: Curve::new(),
            endurance: Endurance::default(),
            devices_written: DevicesWritten::new(),
            stale_superblocks: Vec::new(),
            order_waiters: Vec::new(),
            reclaim_wants_destage: false,
            wake_at: None,
            checkpoint_wanted: false,
            reserved_generation: 0,
            free: FreeSegments::default(),
            volume_table: Vec::new(),
            members: Members::default(),
            failure: CacheFailure::default(),
            read_retry: ReadRetry::default(),
            flushes: FlushLedger::default(),
            locks: RangeLocks::new(),
            backing_locks: RangeLocks::new(),
            coverage: CoverageMarks::default(),
            counters: Counters::new(),
            stopping: false,
            stats: Stats::default(),
            unsettled: true,
            config,
        }
    }

    /// Prepares the index for requests on a range, unless the range is so long that a scan of all
    /// slots is faster.
    pub(crate) fn settle_range(&mut self, volume: VolumeId, first: u64, blocks: u64) {
        if self.map.is_unsettled()
            && !fault::planted(PlantedBug::OverlookListed)
            && blocks <= UNSETTLED_LOOKUPS_MAX
        {
            for block in first..first + blocks {
                if self.map.index.is_listed(Key::new(volume, block)) {
                    self.coverage.add(CoverageMark::ListedBlockAsked);
                }
                self.map.settle_key(Key::new(volume, block));
            }
        }
    }

    pub(crate) fn is_valid(&self, request: &Request<'_>) -> bool {
        let Some(volume) = self.volumes.get(request.volume) else { return false };
        if request.kind == RequestKind::Flush {
            return true;
        }
        let has_buffer =
            !matches!(request.kind, RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. });
        let end = request.offset.checked_add(request.len);
        let blocks = request.offset % BLOCK + request.len;
        request.len > 0
            && end.is_some_and(|end| end <= volume.limit_bytes)
            && (!has_buffer || request.buf.is_some() && request.len <= REQUEST_BYTES_MAX)
            && (!matches!(request.kind, RequestKind::Write { .. })
                || request.block_crcs.len() as u64 == blocks.div_ceil(BLOCK))
    }

    pub(crate) fn count_write_past(&mut self, done: &Req) {
        let blocks = done.last_block - done.first_block + 1;
        let sequential = if done.sequential { blocks } else { 0 };
        let one = self.counters.of(done.volume);
        one.write_bypass_blocks += blocks;
        one.write_sequential_blocks += sequential;
        self.stats.write_bypass_blocks += blocks;
        self.stats.write_sequential_blocks += sequential;
    }

    pub(crate) fn advance(&mut self, now: Nanos) {
        debug_assert!(now >= self.now, "time never goes back");
        self.now = self.now.max(now);
        self.map.clock = WriteTime::at(self.now);
        self.unsettled = true;
    }

    /// Requests another round of settling: a late step has changed the input of an earlier one, and
    /// an event might not follow.
    pub(crate) fn settle_again(&mut self) {
        self.unsettled = true;
    }

    /// Builds a bit more of the index after a start; returns true if it is ready.
    pub(crate) fn index_settles(&mut self) -> bool {
        let goes_on = self.map.settle_some();
        if goes_on && !self.map.is_unsettled() {
            // The index has just become ready. Nothing else would wake the operations that waited
            // for it.
            self.unsettled = true;
        }
        !goes_on
    }

    /// Returns true if the engine is stopping and no request is pending.
    pub(crate) fn is_winding_down(&self) -> bool {
        self.stopping && self.reqs.len() == 0
    }

    pub(crate) fn volume(&self, id: VolumeId) -> &Volume {
        self.volumes.get(id).expect("requests name attached volumes")
    }

    pub(crate) fn volume_mut(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes.get_mut(id).expect("requests name attached volumes")
    }

    /// Reports the latency of an operation on a backing store to the rate controller.
    pub(crate) fn note_latency(&mut self, op: &DoneOp, ok: bool) {
        let Some(id) = op.backing else { return };
        let (now, took) = (self.now, self.now - op.started_at);
        let counts = ok && self.status.is_ready();
        // While a volume is being attached, its backing store is read before the volume exists.
        let Some(volume) = self.volumes.get_mut(id) else { return };
        volume.destage.cost.ends(now, u64::from(op.len).div_ceil(BLOCK));
        if !counts {
            return;
        }
        let control = &mut volume.destage.rate;
        match op.kind {
            OpKind::DestageWrite { .. } | OpKind::GapRead { .. } | OpKind::Sample { .. } => {}
            _ => control.note_foreground(now, took),
        }
    }

    pub(crate) fn backing_begins(&mut self, id: VolumeId) {
        let now = self.now;
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.destage.cost.begins(now);
        }
    }

    /// Writes spans to a backing store.
    pub(crate) fn write_backing(&mut self, volume: VolumeId, offset: u64, spans: &[Span], kind: OpKind) {
        let op = self.ops.begin(kind, self.now);
        let len = spans.iter().map(|span| span.len).sum();
        let state = self.ops.get_mut(op);
        state.spans.extend_from_slice(spans);
        (state.backing, state.len) = (Some(volume), len);
        self.backing_begins(volume);
        self.stats.count_backing_write(len);
        self.actions.push_io(IoAction::Write { op: OpId(op), device: Device::Backing(volume), offset, len });
    }

    pub(crate) fn read_meta(&mut self, read: RecoveryRead) {
        let RecoveryRead { offset, len, .. } = read;
        let op = self.ops.begin(OpKind::Recovery(read), self.now);
        self.actions.push_io(IoAction::ReadMeta { op: OpId(op), offset, len: len as u32 });
    }

    /// Returns the blocks of data that `segments` segments hold.
    pub(crate) fn capacity_of(&self, segments: u32) -> u64 {
        u64::from(segments) * u64::from(self.batch_blocks())
    }

    /// Reads from a device into `spans`.
    pub(crate) fn read(
        &mut self,
        device: Device,
        offset: u64,
        spans: &[Span],
        crc: bool,
        kind: OpKind,
    ) -> u32 {
        let op = self.ops.begin(kind, self.now);
        let len = spans.iter().map(|span| span.len).sum();
        let member = self.member_at(offset);
        let state = self.ops.get_mut(op);
        state.spans.extend_from_slice(spans);
        state.len = len;
        state.member = member;
        if let Device::Backing(volume) = device {
            state.backing = Some(volume);
            self.backing_begins(volume);
        }
        self.stats.count_read(device, len);
        self.actions.push_io(IoAction::Read { op: OpId(op), device, offset, len, crc });
        op
    }

    /// Reads `count` cached blocks from `slot` on; the attempt selects the copy
    /// ([`Members::slot_offset`]).
    pub(crate) fn read_slots(
        &mut self,
        (slot, count): (u32, u32),
        attempt: u32,
        spans: &[Span],
        kind: OpKind,
    ) {
        let op =
            self.read(Device::Cache, self.members.slot_offset(&self.map, slot, attempt), spans, true, kind);
        let state = self.ops.get_mut(op);
        (state.slot, state.attempt) = (Some(slot), (count == 1).then_some(attempt));
    }

    /// Writes metadata to the cache device.
    pub(crate) fn write_meta(&mut self, offset: u64, meta: Arc<Vec<u8>>, kind: OpKind) {
        let op = self.ops.begin(kind, self.now);
        self.stats.cache_metadata_writes += 1;
        let (member, len) = (self.member_at(offset), meta.len() as u32);
        let state = self.ops.get_mut(op);
        (state.meta, state.member) = (Some(meta), member);
        self.count_cache_write(op, offset, len);
        self.actions.push_io(IoAction::WriteMeta { op: OpId(op), offset });
    }

    /// Returns the member that has this byte of the cache.
    pub(crate) fn member_at(&self, offset: u64) -> u8 {
        if self.superblock.mirror.is_none() { 0 } else { self.map.geometry.mirror_place(offset).0 as u8 }
    }

    #[inline]
    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn want_checkpoint(&mut self) {
        self.checkpoint_wanted = true;
    }

    /// Forces a checkpoint of the current state; the ticket is for `Checkpoints::is_in_effect`.
    pub(crate) fn force_checkpoint(&mut self) -> u64 {
        self.want_checkpoint();
        self.superblock.checkpoint_generation + 1
    }

    /// Makes the owner call again after this time, even if no event arrives until then.
    pub(crate) fn wake_in(&mut self, pause: Nanos) {
        let at = self.now + pause;
        self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
    }

    /// Releases a lock of blocks and notifies the waiters that acquire it.
    pub(crate) fn release_blocks(&mut self, range: BlockRange) {
        let mut granted = Vec::new();
        self.locks.release(range, &mut granted);
        if !granted.is_empty() {
            self.events.extend(granted.into_iter().map(Event::BlockLock));
        }
    }

    /// Releases a lock of blocks of a backing store and notifies the waiters that acquire it.
    pub(crate) fn release_backing(&mut self, range: BlockRange) {
        let mut granted = Vec::new();
        self.backing_locks.release(range, &mut granted);
        if !granted.is_empty() {
            self.events.extend(granted.into_iter().map(Event::BackingLock));
        }
    }

    /// Returns the number of segments that the pool has, or will have after a shrink.
    pub(crate) fn segments_staying(&self) -> u32 {
        let now = self.map.geometry.segment_count;
        self.free.retired_from.map_or(now, |first| first.min(now))
    }

    /// Counts blocks of a volume that are on their way to the log.
    pub(crate) fn blocks_enter(&mut self, id: VolumeId, blocks: u64) {
        self.volume_mut(id).logging_blocks += blocks;
        self.log.logging_blocks += blocks;
    }

    /// Uncounts blocks that are in the map now, or will never be.
    pub(crate) fn blocks_leave(&mut self, id: VolumeId, blocks: u64) {
        self.volume_mut(id).logging_blocks -= blocks;
        self.log.logging_blocks -= blocks;
    }
}
