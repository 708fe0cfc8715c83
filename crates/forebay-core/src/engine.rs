//! The engine: one owner of all state, one event at a time.
//!
//! Every public method takes an event, changes state and leaves actions in a queue. Work that can be put together
//! (batches, destage, reclaim, checkpoints) is done in [`Engine::next_action`] once the queue is empty, so that all
//! requests of one turn of the owner's loop share a batch.
//!
//! The paths are in files of their own: `read`, `write`, `merge`, `direct`, `append`, `flush`, `destage`, `reclaim`,
//! `throttle`, `checkpoint`, `recovery`. What they share is here.

use crate::api::config::{Attachment, EngineConfig};
use crate::api::settings::{PoolSettings, SettingsError, Treatment, VolumeSettings};
use crate::api::stats::Stats;
use crate::api::{
    Action, BufId, Device, DeviceFailure, Nanos, Notice, OpId, REQUEST_BYTES_MAX, Request, RequestError,
    RequestId, RequestKind, RequestOutcome, Span,
};
use crate::base::slab::Slab;
use crate::checkpoint::CheckpointState;
use crate::context::counters::Counters;
use crate::context::coverage::{CoverageMark, CoverageMarks};
use crate::context::locks::{BlockRange, RangeLocks};
use crate::context::pages::{Page, Pages};
use crate::context::volume::Volume;
use crate::destage::extent::Extent;
use crate::destage::ordered::OrderWaiter;
use crate::failure::CacheFailure;
use crate::failure::read_retry::ReadRetry;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::pool_resize::PoolJob;
use crate::log::append::{Batch, Stream};
use crate::log::flush::{Flusher, Waiter};
use crate::map::ages::Born;
use crate::map::segment::Key;
use crate::map::{CacheMap, UNSETTLED_LOOKUPS_MAX, UNSETTLED_STATUS_MAX};
use crate::mirror::Mirror;
use crate::reclaim::{Reclaim, Relocation};
use crate::recovery::{OpenError, Recovery, RecoveryRead};
use crate::request::admission::Memory;
use crate::request::direct::Direct;
use crate::request::merge::Merge;
use crate::request::read::{Fills, Miss};
use crate::request::throttle::Throttle;
use crate::scrub::{Scrub, ScrubRead};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::batch::Entry;
use forebay_format::checkpoint::BackingRecord;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, StreamKind, VolumeId};

/// Bytes of a block as the type used for offsets.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where an engine stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Reading the cache device; requests are refused.
    Opening,
    /// Serving.
    Ready,
    /// The cache could not be opened; nothing was changed on it.
    Failed(OpenError),
    /// Shutting down or shut down.
    Stopping,
}

/// A client request under way.
#[derive(Debug)]
pub(crate) struct Req {
    pub(crate) id: RequestId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: RequestKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) first_block: u64,
    pub(crate) last_block: u64,
    pub(crate) buf: BufId,
    /// Checksums of the blocks of a write.
    pub(crate) crcs: Vec<u32>,
    /// Parts that have not ended.
    pub(crate) pending: u32,
    pub(crate) failed: bool,
    /// A flush of the cache device that it needs failed.
    pub(crate) cache_failed: bool,
    /// It was begun, or done over, without the cache: its failure is final.
    pub(crate) redone: bool,
    pub(crate) locked: bool,
    /// The volume was in a write-back mode when the request was taken; it ends as it began.
    pub(crate) write_back: bool,
    /// What is written past the cache is cached as clean as well.
    pub(crate) copies: bool,
    pub(crate) treatment: Treatment,
    /// Blocks counted as on their way to the log although they have not set out yet.
    pub(crate) reserved: u64,
    /// The treatment follows from a long stream, not from a rule.
    pub(crate) sequential: bool,
    /// A part came from the backing store.
    pub(crate) missed: bool,
    /// Losses of its volume that had been told when it was made.
    pub(crate) losses_reported: u64,
    pub(crate) started_at: Nanos,
}

impl Req {
    pub(crate) fn range(&self) -> BlockRange {
        BlockRange {
            first: Key::new(self.volume, self.first_block),
            last: Key::new(self.volume, self.last_block),
        }
    }

    /// The whole block `block` in the client's buffer.
    pub(crate) fn block_span(&self, block: u64, blocks: u64) -> Span {
        let offset = ((block - self.first_block) * BLOCK) as u32;
        Span { buf: self.buf, offset, len: (blocks * BLOCK) as u32 }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// What an operation is for.
#[derive(Debug)]
pub(crate) enum OpKind {
    Batch(StreamKind),
    ReadHit {
        req: u32,
        slot: u32,
        count: u32,
        tries: u32,
    },
    ReadMiss {
        req: u32,
        block: u64,
        count: u32,
        miss: Miss,
    },
    MergeBacking {
        merge: u32,
    },
    MergeCached {
        merge: u32,
        tries: u32,
    },
    MergeCrc {
        merge: u32,
    },
    DirectWrite {
        direct: u32,
    },
    GapRead {
        extent: u32,
    },
    DestageRead {
        extent: u32,
        at: u32,
        count: u32,
        tries: u32,
    },
    DestageWrite {
        extent: u32,
    },
    RelocateRead {
        relocation: u32,
    },
    ScrubRead {
        read: u32,
    },
    ScrubFetch {
        key: Key,
        page: Page,
        token: u64,
    },
    Flush(Device),
    Checkpoint,
    Recovery(RecoveryRead),
    Sample {
        volume: VolumeId,
        index: u32,
    },
    /// The backing store of a volume that is being attached.
    LifecycleFlush(VolumeId),
    /// What is copied to a new member of a mirrored cache.
    CopyRead,
    CopyWrite,
    /// What a member lacks that the other one has, found by recovery.
    Mend,
    /// What is written again at a start.
    RewriteUnflushed,
    /// A block of which the copies on the two members are looked at, and written again.
    RepairRead,
    RepairWrite,
}

impl OpKind {
    /// It is one of the cache device.
    pub(crate) fn is_of_cache(&self) -> bool {
        match self {
            Self::ReadMiss { .. }
            | Self::MergeBacking { .. }
            | Self::MergeCrc { .. }
            | Self::DirectWrite { .. }
            | Self::GapRead { .. }
            | Self::DestageWrite { .. }
            | Self::ScrubFetch { .. }
            | Self::Flush(Device::Backing(_))
            | Self::Sample { .. }
            | Self::LifecycleFlush(_) => false,
            Self::Batch(_)
            | Self::ReadHit { .. }
            | Self::MergeCached { .. }
            | Self::DestageRead { .. }
            | Self::RelocateRead { .. }
            | Self::ScrubRead { .. }
            | Self::Flush(Device::Cache)
            | Self::Checkpoint
            | Self::Recovery(_)
            | Self::CopyRead
            | Self::CopyWrite
            | Self::Mend
            | Self::RewriteUnflushed
            | Self::RepairRead
            | Self::RepairWrite => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// When it was handed out, and the volume if it reads or writes a backing store.
    started_at: Nanos,
    backing: Option<VolumeId>,
    /// The member of a mirrored cache that it is for.
    pub(crate) member: u8,
    /// How often it was asked for again.
    pub(crate) asked: u8,
    /// How it was asked for, if it is one of the cache device, and how often it was asked for again because that had ended.
    pub(crate) action: Option<Action>,
    pub(crate) ended: u8,
    pub(crate) len: u32,
    pub(crate) spans: Vec<Span>,
    pub(crate) header: Option<Box<[u8; BLOCK_BYTES]>>,
    /// Both copies of a checkpoint are written from the same bytes.
    pub(crate) meta: Option<Arc<Vec<u8>>>,
}

/// Who is granted a delayed block lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockOwner(pub(crate) u32);

/// The engine of one cache: `(now, event) -> actions`.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) status: Status,
    pub(crate) now: Nanos,
    pub(crate) superblock: Superblock,
    pub(crate) map: CacheMap,
    pub(crate) volumes: Vec<Option<Volume>>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) ops: Slab<Op>,
    spare_spans: Vec<Vec<Span>>,
    spare_headers: Vec<Box<[u8; BLOCK_BYTES]>>,
    pub(crate) reqs: Slab<Req>,
    spare_crcs: Vec<Vec<u32>>,
    pub(crate) merges: Slab<Merge>,
    pub(crate) merge_queue: VecDeque<u32>,
    pub(crate) directs: Slab<Direct>,
    pub(crate) extents: Slab<Extent>,
    pub(crate) relocations: Slab<Relocation>,
    /// Of those, blocks that are being read.
    pub(crate) relocation_reads: u32,
    pub(crate) scrub: Option<Box<Scrub>>,
    pub(crate) scrub_reads: Slab<ScrubRead>,
    pub(crate) pages: Pages,
    /// Serialises everything that changes the content of a block.
    pub(crate) locks: RangeLocks<LockOwner>,
    /// Serialises writes to the backing stores.
    pub(crate) backing_locks: RangeLocks<LockOwner>,
    pub(crate) fills: Fills,
    pub(crate) streams: [Stream; 3],
    pub(crate) spare_batches: Vec<Batch>,
    /// Memory for the entries of a batch header; empty between uses.
    pub(crate) spare_entries: Vec<Entry>,
    pub(crate) next_sequence: u64,
    pub(crate) cache_flush: Flusher,
    /// Segments with complete blocks that no flush has covered.
    pub(crate) undurable: Vec<u32>,
    /// The same at the time the running flush was started, with the blocks complete then.
    pub(crate) flushing: Vec<(u32, u32)>,
    /// Memory for those whom a flush serves.
    pub(crate) served: Vec<Waiter>,
    /// A cache flush failed: no promise can be made any more.
    pub(crate) fenced: bool,
    pub(crate) coverage: CoverageMarks,
    /// Destaged slots whose clean marks are not in the log.
    pub(crate) marks: Vec<u32>,
    pub(crate) marks_since: Nanos,
    /// The cache flush that makes the last clean mark in the log durable.
    pub(crate) marks_ticket: u64,
    /// The next flush epoch of some volume can begin only when clean marks are in the log.
    pub(crate) order_waits_for_marks: bool,
    /// Writes past the cache that wait until a flush epoch of their volume is active.
    pub(crate) order_waiters: Vec<OrderWaiter>,
    pub(crate) throttle: Throttle,
    /// What policies remember.
    pub(crate) memory: Memory,
    pub(crate) reclaim: Option<Reclaim>,
    pub(crate) reclaim_wants_destage: bool,
    pub(crate) checkpoint: CheckpointState,
    /// How far it is with going on without the cache device.
    pub(crate) failure: CacheFailure,
    pub(crate) read_retry: ReadRetry,
    /// The two members of a mirrored cache.
    pub(crate) mirror: Option<Box<Mirror>>,
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) pool_job: Option<PoolJob>,
    pub(crate) counters: Counters,
    pub(crate) stopping: bool,
    quiesced: bool,
    pub(crate) stats: Stats,
    /// Something happened since the last settling.
    unsettled: bool,
}

impl Engine {
    /// Starts opening the cache device of `device_bytes`. Perform its actions until `status` is not `Opening`.
    #[must_use]
    pub fn open(config: EngineConfig, device_bytes: u64, attachments: Vec<Attachment>, now: Nanos) -> Self {
        let mut engine = Self::blank(config, now);
        engine.begin_recovery(device_bytes, attachments);
        engine
    }

    /// An engine that knows nothing yet.
    pub(crate) fn blank(config: EngineConfig, now: Nanos) -> Self {
        let pages = Pages::new(config.scratch_blocks);
        Self {
            status: Status::Opening,
            now,
            superblock: crate::recovery::blank_superblock(),
            map: CacheMap::new(crate::recovery::blank_geometry()),
            volumes: Vec::new(),
            actions: VecDeque::new(),
            ops: Slab::new(),
            spare_spans: Vec::new(),
            spare_headers: Vec::new(),
            reqs: Slab::new(),
            spare_crcs: Vec::new(),
            merges: Slab::new(),
            merge_queue: VecDeque::new(),
            directs: Slab::new(),
            extents: Slab::new(),
            relocations: Slab::new(),
            relocation_reads: 0,
            scrub: None,
            scrub_reads: Slab::new(),
            pages,
            locks: RangeLocks::new(),
            backing_locks: RangeLocks::new(),
            fills: Fills::default(),
            streams: StreamKind::ALL.map(|_| Stream::new()),
            spare_batches: Vec::new(),
            spare_entries: Vec::new(),
            next_sequence: 0,
            cache_flush: Flusher::default(),
            undurable: Vec::new(),
            flushing: Vec::new(),
            served: Vec::new(),
            fenced: false,
            coverage: CoverageMarks::default(),
            marks: Vec::new(),
            marks_since: 0,
            marks_ticket: 0,
            order_waits_for_marks: false,
            order_waiters: Vec::new(),
            throttle: Throttle::new(),
            memory: Memory::new(),
            reclaim: None,
            reclaim_wants_destage: false,
            checkpoint: CheckpointState::default(),
            failure: CacheFailure::default(),
            read_retry: ReadRetry::default(),
            mirror: None,
            recovery: None,
            lifecycle: Lifecycle::default(),
            pool_job: None,
            counters: Counters::new(),
            stopping: false,
            quiesced: false,
            stats: Stats::default(),
            unsettled: true,
            config,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.clone()
    }

    /// Slots and segments that were looked at since the start where many are: for a range of blocks, for a victim of reclaim and
    /// in it, for a checkpoint, for what is at risk. For tests: what one call looks at is the time that it takes.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.map.looked_at.get()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        stats.cached_blocks = self.map.cached_blocks();
        stats.capacity_blocks = self.capacity_of(self.segments_staying());
        stats.dirty_blocks = self.map.volumes.iter().map(|volume| volume.dirty).sum();
        stats.lost_blocks = self.map.lost.len() as u64 + self.failure.lost_blocks();
        stats.lost_bytes = self.loss_totals().iter().map(|total| total.bytes).sum();
        stats.free_segments = self.free_segments() as u64;
        stats.segments = u64::from(self.segments_counted(self.map.segments.len() as u32));
        stats.pinned_blocks = self.map.pinned_blocks();
        stats.index_memory_bytes = (self.map.memory_bytes() + self.memory.bytes()) as u64;
        stats.requests_in_flight = self.reqs.len() as u64;
        stats
    }

    /// Takes a request. The reply comes as an action, possibly at once.
    pub fn submit(&mut self, now: Nanos, request: Request<'_>) {
        self.advance(now);
        let refusal = if self.status != Status::Ready || self.stopping || self.is_leaving(request.volume) {
            Some(RequestError::Shutdown)
        } else if !self.is_valid(&request) {
            Some(RequestError::Invalid)
        } else if self.refuses_changes() && !matches!(request.kind, RequestKind::Read | RequestKind::Prefetch)
        {
            Some(RequestError::Io)
        } else {
            None
        };
        if let Some(error) = refusal {
            if error == RequestError::Io && request.kind == RequestKind::Flush {
                // It tells of what is lost like any other FLUSH that fails.
                self.flush_fails(request.volume, 0, true);
            }
            self.actions.push_back(Action::Reply {
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
        self.settle_range(request.volume, first, blocks);
        let req = self.take_in(request);
        match self.reqs.get(req).kind {
            RequestKind::Read | RequestKind::Prefetch => self.start_read(req),
            RequestKind::Flush => self.start_flush(req),
            RequestKind::Write { .. } | RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => {
                self.admit_mutation(req);
            }
        }
    }

    /// Prepares the index for requests on a range, unless it is so long that looking at all slots is faster.
    fn settle_range(&mut self, volume: VolumeId, first: u64, blocks: u64) {
        if self.map.is_unsettled()
            && !fault::planted(PlantedBug::OverlookListed)
            && blocks <= UNSETTLED_LOOKUPS_MAX
        {
            for block in first..first + blocks {
                if self.map.index.is_listed(Key::new(volume, block)) {
                    self.cover(CoverageMark::ListedBlockAsked);
                }
                self.map.settle_key(Key::new(volume, block));
            }
        }
    }

    fn is_valid(&self, request: &Request<'_>) -> bool {
        let Some(Some(volume)) = self.volumes.get(usize::from(request.volume.0)) else { return false };
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

    fn take_in(&mut self, request: Request<'_>) -> u32 {
        let mut crcs = self.spare_crcs.pop().unwrap_or_default();
        crcs.extend_from_slice(request.block_crcs);
        let last = request.offset + request.len.max(1) - 1;
        let now = self.now;
        let treatment = self.treat(&request);
        let volume = self.volume_mut(request.volume);
        volume.last_active = now;
        let losses_reported = volume.losses_reported;
        let (mut write_back, mut copies) = volume.writes(treatment);
        if self.runs_without_cache() {
            (write_back, copies) = (false, false);
        }
        self.stats.count_request(&request);
        self.counters.request(&request);
        self.reqs.insert(Req {
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
            started_at: self.now,
        })
    }

    /// Ends a request: the client gets its answer, the record is free.
    pub(crate) fn reply(&mut self, req: u32) {
        let path = self.path(req);
        let mut done = self.reqs.remove(req);
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

    fn count_write_past(&mut self, done: &Req) {
        let blocks = done.last_block - done.first_block + 1;
        let sequential = if done.sequential { blocks } else { 0 };
        let one = self.counters.of(done.volume);
        one.write_bypass_blocks += blocks;
        one.write_sequential_blocks += sequential;
        self.stats.write_bypass_blocks += blocks;
        self.stats.write_sequential_blocks += sequential;
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

    /// A device operation, or `Crc`, has completed. `crcs` holds one checksum per block if they were asked for.
    pub fn complete(&mut self, now: Nanos, op: OpId, result: Result<(), DeviceFailure>, crcs: &[u32]) {
        self.advance(now);
        let ok = result.is_ok();
        if result == Err(DeviceFailure::Ended) {
            if self.awaits_device(op) {
                return;
            }
        } else if (!ok || self.mirror.is_some()) && self.is_asked_again(op, ok, crcs) {
            return;
        }
        let op = self.take_op(op);
        self.note_latency(&op, ok);
        let slot = self.cached_slot(&op.kind);
        self.note_cache_read(slot, op.member, ok);
        if let Some(slot) =
            slot.filter(|_| self.mirror.is_some() && !matches!(op.kind, OpKind::ScrubRead { .. }))
        {
            self.suspect_first_copy(op.member, slot);
        }
        if !ok {
            self.count_failure(&op.kind);
        }
        match op.kind {
            OpKind::Batch(stream) if self.mirror.is_some() => {
                self.half_written(stream, op.batch_id(), op.member, ok);
            }
            OpKind::Batch(stream) => self.batch_written(stream, op.batch_id(), ok),
            OpKind::ReadHit { req, slot, count, tries } => self.hit_read(req, slot, count, tries, ok, crcs),
            OpKind::ReadMiss { req, block, count, miss } => self.miss_read(req, block, count, miss, ok, crcs),
            OpKind::MergeBacking { merge } => self.merge_part_read(merge, ok),
            OpKind::MergeCached { merge, tries } => self.merge_cached_read(merge, tries, ok, crcs),
            OpKind::MergeCrc { merge } => self.merge_summed(merge, crcs),
            OpKind::DirectWrite { direct } => self.direct_written(direct, ok),
            OpKind::GapRead { extent } => self.gaps_read(extent, ok),
            OpKind::DestageRead { extent, at, count, tries } => {
                self.destage_read(extent, at, count, tries, ok, crcs);
            }
            OpKind::DestageWrite { extent } => self.destage_written(extent, ok),
            OpKind::RelocateRead { relocation } => self.relocation_read(relocation, ok, crcs),
            OpKind::ScrubRead { read } => self.scrub_read(read, ok, crcs),
            OpKind::ScrubFetch { key, page, token } => self.scrub_fetched(key, page, token, ok, crcs),
            OpKind::Flush(Device::Cache) if self.mirror.is_some() => self.member_flushed(op.member, ok),
            OpKind::Flush(device) => self.flushed(device, ok),
            OpKind::Checkpoint => self.checkpoint_written(op.member, ok),
            OpKind::CopyRead => self.copy_read(ok, crcs),
            OpKind::CopyWrite => self.copy_written(op.member, ok),
            OpKind::Mend => self.mended(op.member, ok),
            OpKind::RewriteUnflushed => self.rewritten(op.member, ok),
            OpKind::RepairRead => self.repair_read(ok, crcs),
            OpKind::RepairWrite => self.repair_written(op.member, ok),
            OpKind::Recovery(read) => {
                self.recovery_completed(read, result.map(|()| &[][..]));
            }
            OpKind::LifecycleFlush(volume) => self.lifecycle_flushed(volume, ok),
            OpKind::Sample { volume, index } => self.sample_read(volume, index, ok, crcs),
        }
    }

    /// A `ReadMeta` has completed.
    pub fn complete_meta(&mut self, now: Nanos, op: OpId, result: Result<&[u8], DeviceFailure>) {
        self.advance(now);
        let op = self.take_op(op);
        match op.kind {
            OpKind::Recovery(read) => self.recovery_completed(read, result),
            _ => unreachable!("only recovery reads metadata"),
        }
    }

    /// Lets time pass; call at or after [`Engine::next_deadline`].
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
    }

    pub(crate) fn advance(&mut self, now: Nanos) {
        debug_assert!(now >= self.now, "time never goes back");
        self.now = self.now.max(now);
        self.map.clock = Born::at(self.now);
        self.unsettled = true;
    }

    /// The next thing to do, if there is any. Settles everything that can be put together first.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.actions.is_empty() && self.unsettled {
            self.unsettled = false;
            self.settle();
        }
        let action = self.actions.pop_front()?;
        if let Some(op) = action.of_cache() {
            self.ops.get_mut(op.0).action = Some(action);
        }
        Some(action)
    }

    /// A late step of settling has changed what an earlier one decides by, and there may be no event after it.
    pub(crate) fn settle_again(&mut self) {
        self.unsettled = true;
    }

    fn settle(&mut self) {
        if self.status == Status::Opening || matches!(self.status, Status::Failed(_)) {
            // Only the checkpoint that ends recovery goes on in this state.
            self.step_checkpoint();
            return;
        }
        self.lifecycle_wakes();
        self.step_read_retry();
        self.resume_merges();
        self.step_throttle();
        self.collect_emptied();
        if self.runs_without_cache() {
            self.settle_without_cache();
            return;
        }
        self.step_ordered();
        // Until the index is ready, what looks at many blocks at once has to wait (I46).
        if self.index_settles() {
            self.step_destage();
            self.step_shares();
            let asked = self.reclaim_wants_destage;
            self.step_reclaim();
            if self.reclaim_wants_destage && !asked {
                self.settle_again();
            }
            if self.scrub.is_some() {
                self.step_scrub();
            }
        }
        self.collect_emptied();
        self.step_lifecycle();
        self.step_pool();
        self.collect_emptied();
        self.step_intents();
        if self.mirror.is_some() {
            self.step_mirror();
        }
        for stream in [StreamKind::Survivor, StreamKind::Write, StreamKind::Fill] {
            self.step_append(stream);
        }
        self.step_checkpoint();
        self.step_shutdown();
    }

    /// Prepares the index a bit further after a start; true if it is ready.
    fn index_settles(&mut self) -> bool {
        let goes_on = self.map.settle_some();
        if goes_on && !self.map.is_unsettled() {
            // That was the last bit. What waited for it has nothing else that would wake it.
            self.unsettled = true;
        }
        !goes_on
    }

    /// Settles an engine that goes on without its cache: there is no log, no order and no reclaim.
    fn settle_without_cache(&mut self) {
        if self.index_settles() {
            self.step_destage();
            if self.scrub.is_some() {
                self.step_scrub();
            }
        }
        self.step_failure();
        self.collect_emptied();
        self.step_lifecycle();
        self.step_pool();
        self.step_intents();
        self.step_checkpoint();
        self.step_shutdown();
    }

    /// When [`Engine::tick`] must be called next, if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        match self.status {
            Status::Ready => {}
            // What was due is done.
            Status::Stopping => return self.read_retry.deadline(),
            Status::Opening | Status::Failed(_) => return None,
        }
        let volumes = self.volumes.iter().flatten().filter_map(|volume| self.volume_deadline(volume));
        // Most caches have neither.
        let rare = if self.scrub.is_some() || self.mirror.is_some() {
            self.scrub_deadline().into_iter().chain(self.mirror_deadline()).min()
        } else {
            None
        };
        [
            self.throttle.deadline(self.now),
            self.marks_deadline(),
            self.checkpoint_deadline(),
            self.lifecycle_deadline(),
            self.sweeps_deadline(),
            self.failure_deadline(),
            self.read_retry.deadline(),
            rare,
            self.batch_delay_deadline(),
            self.map.is_unsettled().then_some(self.now),
        ]
        .into_iter()
        .flatten()
        .chain(volumes)
        .min()
        .map(|deadline| deadline.max(self.now + 1))
    }

    /// Spans of a `Read` or `Write`.
    #[must_use]
    pub fn spans(&self, op: OpId) -> &[Span] {
        &self.ops.get(op.0).spans
    }

    /// Header block of a cache `Write`, if it has one.
    #[must_use]
    pub fn header(&self, op: OpId) -> Option<&[u8]> {
        self.ops.get(op.0).header.as_ref().map(|header| &header[..])
    }

    /// Bytes of a `WriteMeta`.
    #[must_use]
    pub fn meta(&self, op: OpId) -> &[u8] {
        self.ops.get(op.0).meta.as_ref().map_or(&[], |meta| &meta[..])
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
        self.advance(now);
        if let Some(Some(volume)) = self.volumes.get_mut(usize::from(id.0)) {
            let was = core::mem::replace(&mut volume.settings, settings);
            if !fault::planted(PlantedBug::ChargeUnlimited) {
                volume.destage.rate.limits_set(&was, &settings);
            }
            if was.flush_period != settings.flush_period {
                volume.destage.rate.period_set(now);
            }
            if was.destage_order != settings.destage_order && fault::planted(PlantedBug::ForgetOnOrderChange)
            {
                self.map.volumes[usize::from(id.0)].waiting = Default::default();
            }
        }
        Ok(())
    }

    /// Settings of an attached volume.
    #[must_use]
    pub fn volume_settings(&self, volume: VolumeId) -> Option<VolumeSettings> {
        self.volumes.get(usize::from(volume.0))?.as_ref().map(|volume| volume.settings)
    }

    /// Changes settings of the pool.
    ///
    /// # Errors
    /// The settings are out of range; nothing was changed.
    pub fn configure_pool(&mut self, now: Nanos, settings: PoolSettings) -> Result<(), SettingsError> {
        settings.check()?;
        self.advance(now);
        self.config.pool = settings;
        Ok(())
    }

    /// The cache device has failed: it takes nothing any more, see [`Engine::runs_without_cache`].
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Settings of the pool.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        self.config.pool
    }

    /// Size of an attached volume in bytes; may be less than that of its backing store, see [`Attachment`].
    #[must_use]
    pub fn volume_size_bytes(&self, volume: VolumeId) -> Option<u64> {
        self.volumes.get(usize::from(volume.0))?.as_ref().map(|volume| volume.limit_bytes)
    }

    /// Blocks of a volume that the backing store does not hold durably, older versions that ordered destage still has to
    /// write included. Lost blocks are not counted.
    #[must_use]
    pub fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        self.map.volumes.get(usize::from(volume.0)).map_or(0, |volume| volume.dirty)
    }

    /// What is cached of a range: calls `f(blocks, cached, dirty)` for runs of equal blocks in order, until it returns
    /// false.
    pub fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        use crate::map::segment::BlockState;
        let worth = |slot: u32| match self.map.state(slot) {
            BlockState::Void => (false, false),
            BlockState::Clean | BlockState::Destaged => (!self.runs_without_cache(), false),
            BlockState::Dirty => (true, true),
        };
        let end = first_block + blocks;
        // While the index is not ready, one look at all slots is faster than many look-ups.
        let mut scanned = Vec::new();
        if self.map.is_unsettled() && blocks > UNSETTLED_STATUS_MAX {
            scanned.resize(blocks as usize, (false, false));
            let mut note = |slot| scanned[(self.map.key(slot).block() - first_block) as usize] = worth(slot);
            self.map.scan_for_each_in(volume, first_block, end - 1, &mut note);
        }
        let what = |block: u64| match scanned.get((block - first_block) as usize) {
            Some(status) => *status,
            None => self.map.lookup(Key::new(volume, block)).map_or((false, false), worth),
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
        self.advance(now);
        self.stopping = true;
    }

    /// Stopping, and nobody waits for anything any more.
    pub(crate) fn is_winding_down(&self) -> bool {
        self.stopping && self.reqs.len() == 0
    }

    fn step_shutdown(&mut self) {
        if !self.stopping || self.quiesced || self.status != Status::Ready {
            return;
        }
        let busy = self.reqs.len() > 0
            || self.ops.len() > 0
            || self.extents.len() > 0
            || self.relocations.len() > 0
            || !self.checkpoint.is_idle()
            || self.is_mirror_busy()
            || self.is_rescue_busy();
        if busy {
            return;
        }
        if self.flush_backings_for_shutdown() {
            return;
        }
        self.quiesced = true;
        self.actions.push_back(Action::Quiesced);
    }

    /// After [`Action::Quiesced`]: takes the final checkpoint with what the backing stores look like now;
    /// [`Action::Closed`] follows.
    ///
    /// # Panics
    /// If the engine is not quiesced: a bug of the owner.
    pub fn finish_shutdown(&mut self, now: Nanos, backings: &[(VolumeId, BackingRecord)]) {
        self.advance(now);
        assert!(self.quiesced, "finish_shutdown follows Quiesced");
        for (volume, backing) in backings {
            if let Some(Some(volume)) = self.volumes.get_mut(usize::from(volume.0)) {
                volume.backing = backing.clone();
                if volume.flusher.unflushed {
                    // Its flush failed: its blocks need not look after a power cut as they look now.
                    volume.backing.samples.clear();
                }
            }
        }
        self.status = Status::Stopping;
        self.begin_final_checkpoint();
    }

    /// Checks all invariants that can be checked by looking; panics if one does not hold. Slow.
    pub fn check_invariants(&self) {
        self.map.check();
        self.check_mirror();
        if self.quiesced {
            assert!(self.pages.all_free(), "no page is lost");
        }
    }

    /// What the engine is busy with, in one line: for the report of a stall.
    #[must_use]
    pub fn describe(&self) -> String {
        let streams: Vec<String> =
            self.streams.iter().map(|stream| stream.describe(self.batch_blocks())).collect();
        alloc::format!(
            "{} requests, {} operations, {} merges ({} wait for pages), {} direct, {} extents, {} relocations, {} \
             throttled, {} marks, reclaim {:?}, fenced {}, {} fills, jobs {:?}, checkpoint: {}; streams {streams:?}; unclean {}, levels {:?}",
            self.reqs.len(),
            self.ops.len(),
            self.merges.len(),
            self.merge_queue.len(),
            self.directs.len(),
            self.extents.len(),
            self.relocations.len(),
            self.throttle.waiting_len(),
            self.marks.len(),
            self.reclaim,
            self.fenced,
            self.fills.len(),
            self.lifecycle,
            self.checkpoint.describe(),
            self.map.unclean_blocks(),
            self.volumes.iter().flatten().map(|volume| self.levels(volume.id).pool).next(),
        ) + &self.volumes.iter().flatten().fold(String::new(), |text, volume| {
            let (report, levels) = (self.destage_report(volume.id), self.levels(volume.id).volume);
            let order =
                self.order(volume.id).map(|order| (order.phase, order.current, order.active, order.claimed));
            alloc::format!("{text}; volume {}: order {order:?}, levels {levels:?}, {report:?}", volume.id.0)
        })
    }

    // --- shared by the paths

    pub(crate) fn volume(&self, id: VolumeId) -> &Volume {
        self.volumes[usize::from(id.0)].as_ref().expect("requests name attached volumes")
    }

    pub(crate) fn volume_mut(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes[usize::from(id.0)].as_mut().expect("requests name attached volumes")
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.actions.push_back(Action::Notice(notice));
    }

    pub(crate) fn new_op(&mut self, kind: OpKind) -> u32 {
        let spans = self.spare_spans.pop().unwrap_or_default();
        self.ops.insert(Op {
            kind,
            started_at: self.now,
            backing: None,
            member: 0,
            asked: 0,
            action: None,
            ended: 0,
            len: 0,
            spans,
            header: None,
            meta: None,
        })
    }

    pub(crate) fn spare_header(&mut self) -> Box<[u8; BLOCK_BYTES]> {
        self.spare_headers.pop().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]))
    }

    fn take_op(&mut self, op: OpId) -> DoneOp {
        let mut done = self.ops.remove(op.0);
        done.spans.clear();
        self.spare_spans.push(done.spans);
        if let Some(header) = done.header {
            self.spare_headers.push(header);
        }
        DoneOp {
            id: op.0,
            kind: done.kind,
            started_at: done.started_at,
            backing: done.backing,
            member: done.member,
            len: done.len,
        }
    }

    /// How long an operation on a backing store took is what `control` goes by.
    fn note_latency(&mut self, op: &DoneOp, ok: bool) {
        let Some(id) = op.backing else { return };
        let (now, took) = (self.now, self.now - op.started_at);
        // A volume that is being attached is read before it is there.
        let Some(Some(volume)) = self.volumes.get_mut(usize::from(id.0)) else { return };
        volume.destage.cost.ends(now, u64::from(op.len).div_ceil(BLOCK));
        if !ok || self.status != Status::Ready {
            return;
        }
        let control = &mut volume.destage.rate;
        match op.kind {
            OpKind::DestageWrite { .. } | OpKind::GapRead { .. } | OpKind::Sample { .. } => {}
            _ => control.note_foreground(now, took),
        }
    }

    fn backing_begins(&mut self, id: VolumeId) {
        let now = self.now;
        if let Some(Some(volume)) = self.volumes.get_mut(usize::from(id.0)) {
            volume.destage.cost.begins(now);
        }
    }

    /// Reads from a device into the spans that `fill` gives.
    pub(crate) fn read(&mut self, device: Device, offset: u64, spans: &[Span], crc: bool, kind: OpKind) {
        let op = self.new_op(kind);
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
        self.actions.push_back(Action::Read { op: OpId(op), device, offset, len, crc });
    }

    /// Writes spans to a backing store.
    pub(crate) fn write_backing(&mut self, volume: VolumeId, offset: u64, spans: &[Span], kind: OpKind) {
        let op = self.new_op(kind);
        let len = spans.iter().map(|span| span.len).sum();
        let state = self.ops.get_mut(op);
        state.spans.extend_from_slice(spans);
        (state.backing, state.len) = (Some(volume), len);
        self.backing_begins(volume);
        self.stats.count_write(Device::Backing(volume), len);
        self.actions.push_back(Action::Write { op: OpId(op), device: Device::Backing(volume), offset, len });
    }

    /// Writes metadata to the cache device.
    pub(crate) fn write_meta(&mut self, offset: u64, meta: Arc<Vec<u8>>, kind: OpKind) {
        let op = self.new_op(kind);
        self.stats.count_write(Device::Cache, meta.len() as u32);
        self.stats.cache_metadata_writes += 1;
        let member = self.member_at(offset);
        let state = self.ops.get_mut(op);
        (state.meta, state.member) = (Some(meta), member);
        self.actions.push_back(Action::WriteMeta { op: OpId(op), offset });
    }

    pub(crate) fn read_meta(&mut self, read: RecoveryRead) {
        let RecoveryRead { offset, len, .. } = read;
        let op = self.new_op(OpKind::Recovery(read));
        self.actions.push_back(Action::ReadMeta { op: OpId(op), offset, len: len as u32 });
    }

    /// Bytes of a block that lie inside the volume: less than a block at an odd end.
    pub(crate) fn block_len(&self, volume: VolumeId, block: u64) -> u64 {
        (self.volume(volume).size_bytes - block * BLOCK).min(BLOCK)
    }

    /// Sectors of a block that lie inside the volume.
    pub(crate) fn block_mask(&self, volume: VolumeId, block: u64) -> u8 {
        sector_mask(0, self.block_len(volume, block))
    }

    pub(crate) fn data_capacity(&self) -> u64 {
        let geometry = &self.map.geometry;
        debug_assert!(self.segments_staying() <= geometry.segment_count);
        self.capacity_of(self.segments_counted(self.segments_staying()))
    }

    /// Blocks of data that so many segments hold.
    pub(crate) fn capacity_of(&self, segments: u32) -> u64 {
        let blocks = self.map.geometry.segment_blocks;
        u64::from(segments) * u64::from(blocks - forebay_format::summary::reserved_blocks(blocks))
    }

    pub(crate) fn lock_granted(&mut self, granted: Vec<LockOwner>) {
        for owner in granted {
            if !self.lifecycle_lock_granted(owner) {
                self.mutation_locked(owner.0);
            }
        }
    }
}

/// What is left of an operation once its buffers are given back.
struct DoneOp {
    id: u32,
    kind: OpKind,
    started_at: Nanos,
    backing: Option<VolumeId>,
    member: u8,
    len: u32,
}

impl DoneOp {
    fn batch_id(&self) -> u32 {
        self.id
    }
}

/// Mask of the sectors that bytes `from..to` of a block touch.
pub(crate) fn sector_mask(from: u64, to: u64) -> u8 {
    debug_assert!(from < to && to <= BLOCK);
    let (first, last) = (from / 512, (to - 1) / 512);
    (0xff << first) as u8 & (0xff >> (7 - last)) as u8
}

/// Mask of the sectors that bytes `from..to` of a block cover wholly.
pub(crate) fn sector_mask_inside(from: u64, to: u64) -> u8 {
    let (first, end) = (from.div_ceil(512), to / 512);
    if first >= end { 0 } else { sector_mask(first * 512, end * 512) }
}

/// Runs of set bits in a sector mask, as byte ranges in the block.
pub(crate) fn sector_runs(mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < 8 && mask >> at & 1 == 0 {
            at += 1;
        }
        let start = at;
        while at < 8 && mask >> at & 1 == 1 {
            at += 1;
        }
        (start < at).then_some((start * 512, at * 512))
    })
}

/// Appends a span, merging it with the last one if it continues it.
pub(crate) fn push_span(spans: &mut Vec<Span>, span: Span) {
    if let Some(last) = spans.last_mut()
        && last.buf == span.buf
        && last.offset + last.len == span.offset
    {
        last.len += span.len;
        return;
    }
    spans.push(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_masks_cover_what_is_touched_and_what_is_inside() {
        assert_eq!(sector_mask(0, 4096), 0xff);
        assert_eq!(sector_mask(0, 1), 1);
        assert_eq!(sector_mask(511, 513), 3);
        assert_eq!(sector_mask_inside(511, 513), 0);
        assert_eq!(sector_mask_inside(512, 1024), 2);
        assert_eq!(sector_mask_inside(1, 1536), 6);
        let runs: Vec<_> = sector_runs(0b1001_0110).collect();
        assert_eq!(runs, vec![(512, 1536), (2048, 2560), (3584, 4096)]);
    }
}
