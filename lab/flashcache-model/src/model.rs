//! The request path: splits requests into blocks, sends the parts through or around the cache, and
//! orders parts of the same block.
//!
//! Invariants
//! - At most one operation on a cached block is in flight. Parts that arrive meanwhile wait in the
//!   block's lane (`pending_enqueues`). When the operation ends and parts wait, the model cleans
//!   the block if it is dirty, drops it, and sends all waiting parts to the disk, bypassing the
//!   cache: FlashCache's rule, which is costly for hot blocks.
//! - A block is not cached while operations on it bypass the cache. Bypassing reads share the lane;
//!   any other operation holds it alone.
//! - A block becomes dirty when its metadata write completes; only then the model answers the
//!   write.
//! - A request is answered when all of its parts have completed.

use crate::api::{Action, BLOCK_BYTES, CommandKind, Device, Failed, Memory, Nanos, OpId, Request, Span};
use crate::config::{Config, Flush, Layout, Mode, Refused, SLOTS_PER_META_BLOCK};
use crate::counters::Counters;
use crate::metadata::{META_BYTES, Mark, Metadata, Update};
use crate::slab::Slab;
use crate::table::Table;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The purpose of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Reads a part from the flash.
    Hit { part: u32, slot: u32 },
    /// Reads a part from the disk for the cache.
    Miss { part: u32, slot: u32 },
    /// Writes the data of a miss to the flash.
    Fill { part: u32, slot: u32 },
    /// Writes a part to the flash.
    CacheWrite { part: u32, slot: u32 },
    /// One of the two writes of write-through.
    Through { part: u32, slot: u32, device: Device },
    /// Reads, writes or zeroes a part, bypassing the cache.
    Uncached { part: u32 },
    /// Reads a dirty block from the flash to clean it.
    CleanRead { slot: u32 },
    /// Writes a dirty block to the disk.
    CleanWrite { slot: u32 },
    /// Writes a metadata block.
    Meta { meta_block: u32 },
    /// Zeroes whole blocks.
    ZeroRange { zeroing: u32 },
    /// Flushes a device for a request.
    FlushFor { job: u32 },
}

/// The direction of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
    Zero,
}

/// The part of a request that lies in one block, as the device mapper splits requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) job: u32,
    pub(crate) block: u64,
    /// First byte within the block; `len`: number of bytes.
    from: u32,
    len: u32,
    direction: Direction,
    /// It bypasses the cache because it had to wait.
    uncached: bool,
    /// Write-through operations in flight.
    halves: u8,
    failed: bool,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    request: Request,
    /// Parts, zeroings and flushes in flight.
    left: u32,
    failed: bool,
    /// Its writes have completed and are being flushed.
    flushing: bool,
}

/// The operation in flight on a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Active {
    #[default]
    Idle,
    /// An operation on the cached block.
    Cached,
    /// This many reads that bypass the cache.
    Readers(u32),
    /// A write or zeroing that bypasses the cache.
    Alone,
}

/// A block with an operation in flight, and the queue of waiting parts, by part number.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) active: Active,
    queue: VecDeque<u32>,
}

/// A walk over all slots that cleans dirty blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    pub(crate) next: u32,
    /// Blocks cleaned since the walk began at slot 0.
    pub(crate) cleaned: u32,
}

/// The result of the cleaning for an orderly stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// Blocks that could not be written to the disk.
    pub dirty_blocks: u32,
}

/// Whole blocks to zero.
#[derive(Clone, Debug)]
pub(crate) struct Zeroing {
    pub(crate) job: u32,
    pub(crate) blocks: Range<u64>,
    pub(crate) started: bool,
}

/// The model; see the head of this file and of the crate.
#[derive(Debug)]
pub struct Model {
    pub(crate) config: Config,
    pub(crate) layout: Layout,
    pub(crate) table: Table,
    pub(crate) metadata: Metadata,
    pub(crate) counters: Counters,
    pub(crate) actions: VecDeque<Action>,
    lanes: HashMap<u64, Lane>,
    parts: Slab<Part>,
    jobs: Slab<Job>,
    ops: Slab<Op>,
    pub(crate) zeroings: Vec<(u32, Zeroing)>,
    pub(crate) behind_zeroings: VecDeque<u32>,
    pub(crate) zeroings_made: u32,
    pub(crate) delayed_clean: Option<Nanos>,
    pub(crate) walk: Option<Walk>,
    pub(crate) stopping: bool,
    pub(crate) stopped: Option<Stopped>,
    /// The cache failed and is no longer used (not in write-back mode).
    bypass: bool,
    /// Clients have written to the disk since its last flush.
    disk_written: bool,
}

impl Model {
    /// Creates an empty cache on a device of `cache_bytes`.
    ///
    /// # Errors
    /// Returns [`Refused`] if a setting is out of range, or the device has no room for a set.
    pub fn new(config: Config, cache_bytes: u64) -> Result<Self, Refused> {
        config.check()?;
        let layout = Layout::new(cache_bytes, config.assoc)?;
        Ok(Self {
            config,
            layout,
            table: Table::new(layout, config.reclaim),
            metadata: Metadata::new(layout.meta_blocks()),
            counters: Counters::default(),
            actions: VecDeque::new(),
            lanes: HashMap::new(),
            parts: Slab::default(),
            jobs: Slab::default(),
            ops: Slab::default(),
            zeroings: Vec::new(),
            behind_zeroings: VecDeque::new(),
            zeroings_made: 0,
            delayed_clean: None,
            walk: None,
            stopping: false,
            stopped: None,
            bypass: false,
            disk_written: false,
        })
    }

    /// Returns the layout of the cache device.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of cached blocks.
    #[must_use]
    pub fn cached_blocks(&self) -> u32 {
        self.table.cached()
    }

    /// Returns the number of dirty blocks.
    #[must_use]
    pub fn dirty_blocks(&self) -> u32 {
        self.table.dirty()
    }

    /// Returns the number of dirty blocks of a set.
    #[must_use]
    pub fn dirty_blocks_of(&self, set: u32) -> u32 {
        self.table.set(set).dirty
    }

    /// Returns whether a block of the disk is cached, and whether it is dirty.
    #[must_use]
    pub fn state_of(&self, block: u64) -> (bool, bool) {
        self.table.find(block).map_or((false, false), |slot| (true, self.table.slot(slot).dirty))
    }

    /// Renders the bytes that an [`Action::WriteMeta`] writes. Call it when carrying out the
    /// action.
    pub fn render_meta(&self, meta_block: u32, bytes: &mut [u8; META_BYTES]) {
        let first = meta_block * SLOTS_PER_META_BLOCK;
        let slots: Vec<_> =
            (first..first + SLOTS_PER_META_BLOCK).map(|slot| *self.table.slot(slot)).collect();
        self.metadata.render(meta_block, &slots, bytes);
    }

    /// Returns true if nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.len() == 0 && self.ops.len() == 0 && self.lanes.is_empty()
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            while let Some((meta_block, marks)) = self.metadata.begin() {
                self.counters.metadata_batch += marks as u64 - 1;
                self.counters.metadata_ssd_writes += 1;
                self.counters.ssd_writes += 1;
                let op = self.op(Op::Meta { meta_block });
                let offset = self.layout.meta_offset(meta_block);
                self.actions.push_back(Action::WriteMeta { op, meta_block, offset });
            }
        }
        self.actions.pop_front()
    }

    // --- requests

    /// Accepts a request. Its end must not exceed 2^63.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        if self.stopping {
            self.actions.push_back(Action::Reply { request: request.id, result: Err(Failed) });
            return;
        }
        // One more than its parts, so that the job does not complete before all parts exist.
        let job = self.jobs.insert(Job { request, left: 1, failed: false, flushing: false });
        match request.kind {
            CommandKind::Flush => {}
            CommandKind::Read => self.split(now, job, Direction::Read, request.offset, request.len),
            CommandKind::Write { .. } => self.split(now, job, Direction::Write, request.offset, request.len),
            CommandKind::Zero { .. } => self.zero(now, job, request.offset, request.len),
        }
        self.job_part_done(now, job, Ok(()));
    }

    /// Creates a part for each block that a range touches.
    pub(crate) fn split(&mut self, now: Nanos, job: u32, direction: Direction, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / BLOCK;
            let next = ((block + 1) * BLOCK).min(end);
            let (from, len) = ((at % BLOCK) as u32, (next - at) as u32);
            match direction {
                Direction::Read => self.counters.reads += 1,
                Direction::Write => self.counters.writes += 1,
                Direction::Zero => {}
            }
            let (uncached, halves, failed) = (false, 0, false);
            self.jobs.get_mut(job).left += 1;
            let part = self.parts.insert(Part { job, block, from, len, direction, uncached, halves, failed });
            self.arrive(now, part);
            at = next;
        }
    }

    /// Begins a part, or queues it behind the operation on its block.
    pub(crate) fn arrive(&mut self, now: Nanos, part: u32) {
        let Part { block, .. } = *self.parts.get(part);
        if self.is_being_zeroed(block) {
            self.behind_zeroings.push_back(part);
            return;
        }
        let shares = self.shares(part);
        let Some(lane) = self.lanes.get_mut(&block) else { return self.begin(now, part) };
        match lane.active {
            Active::Readers(_) if shares && lane.queue.is_empty() => self.start_uncached(part),
            active => {
                lane.queue.push_back(part);
                match active {
                    Active::Cached => self.counters.pending_enqueues += 1,
                    _ => self.counters.uncached_waits += 1,
                }
            }
        }
    }

    /// Returns true if the part may use the cache. Only whole blocks are cached.
    fn is_cacheable(&self, part: u32) -> bool {
        let part = self.parts.get(part);
        let kind = match part.direction {
            Direction::Read => true,
            Direction::Write => self.config.mode != Mode::Around,
            Direction::Zero => false,
        };
        kind && part.len == BLOCK_BYTES && !part.uncached && !self.bypass
    }

    /// Returns true for a read that bypasses the cache: it may run concurrently with others.
    fn shares(&self, part: u32) -> bool {
        self.parts.get(part).direction == Direction::Read && !self.is_cacheable(part)
    }

    /// Begins a part. No operation on its block is in flight.
    fn begin(&mut self, now: Nanos, part: u32) {
        match (self.is_cacheable(part), self.parts.get(part).direction) {
            (true, Direction::Read) => self.read(now, part),
            (true, _) => self.write(now, part),
            (false, _) => self.pass(part),
        }
    }

    fn read(&mut self, now: Nanos, part: u32) {
        let block = self.parts.get(part).block;
        if let Some(slot) = self.table.find(block) {
            self.counters.read_hits += 1;
            self.counters.ssd_reads += 1;
            self.occupy(slot);
            self.read_part(Op::Hit { part, slot }, part, Device::Cache, self.layout.slot_offset(slot));
            return;
        }
        let Some(slot) = self.claim(now, part) else { return };
        self.counters.disk_reads += 1;
        self.read_part(Op::Miss { part, slot }, part, Device::Disk, block * BLOCK);
        self.clean_set(now, self.table.set_of_slot(slot));
    }

    fn write(&mut self, now: Nanos, part: u32) {
        let block = self.parts.get(part).block;
        let slot = match self.table.find(block) {
            Some(slot) => {
                self.counters.write_hits += 1;
                self.counters.dirty_write_hits += u64::from(self.table.slot(slot).dirty);
                self.occupy(slot);
                slot
            }
            None => match self.claim(now, part) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.counters.ssd_writes += 1;
        let offset = self.layout.slot_offset(slot);
        if self.config.mode == Mode::Back {
            self.write_part(Op::CacheWrite { part, slot }, part, Device::Cache, offset);
            self.clean_set(now, self.table.set_of_slot(slot));
            return;
        }
        self.counters.disk_writes += 1;
        self.disk_written = true;
        self.parts.get_mut(part).halves = 2;
        for (device, offset) in [(Device::Cache, offset), (Device::Disk, block * BLOCK)] {
            self.write_part(Op::Through { part, slot, device }, part, device, offset);
        }
    }

    /// Allocates a slot for the block of a part. If there is none, the part bypasses the cache.
    fn claim(&mut self, now: Nanos, part: u32) -> Option<u32> {
        let Part { block, direction, .. } = *self.parts.get(part);
        let Some((slot, replaced)) = self.table.claim(block) else {
            self.counters.no_room += 1;
            self.start_uncached(part);
            self.clean_set(now, self.layout.set_of(block));
            return None;
        };
        match direction {
            Direction::Read => self.counters.replacement += u64::from(replaced),
            _ => self.counters.write_replacement += u64::from(replaced),
        }
        self.table.set_busy(slot, true);
        self.lane(block).active = Active::Cached;
        Some(slot)
    }

    /// Marks a cached block as busy with a client's operation.
    fn occupy(&mut self, slot: u32) {
        self.table.used(slot);
        self.table.set_busy(slot, true);
        let block = self.table.slot(slot).block;
        self.lane(block).active = Active::Cached;
    }

    /// Sends a part to the disk, bypassing the cache. Drops the cached block first, after cleaning
    /// it if it is dirty.
    fn pass(&mut self, part: u32) {
        let Part { block, direction, .. } = *self.parts.get(part);
        if let (Some(slot), false) = (self.table.find(block), self.bypass) {
            match direction {
                Direction::Read => self.counters.read_invalidates += 1,
                _ => self.counters.write_invalidates += 1,
            }
            if self.table.slot(slot).dirty {
                self.counters.pending_enqueues += 1;
                self.lane(block).queue.push_front(part);
                return self.start_clean(slot);
            }
            self.table.invalidate(slot);
        }
        self.start_uncached(part);
    }

    fn start_uncached(&mut self, part: u32) {
        let Part { block, from, len, direction, job, .. } = *self.parts.get(part);
        let lane = self.lane(block);
        lane.active = match (direction, lane.active) {
            (Direction::Read, Active::Readers(others)) => Active::Readers(others + 1),
            (Direction::Read, _) => Active::Readers(1),
            _ => Active::Alone,
        };
        let offset = block * BLOCK + u64::from(from);
        let what = Op::Uncached { part };
        if direction == Direction::Read {
            self.counters.uncached_reads += 1;
            self.counters.disk_reads += 1;
            return self.read_part(what, part, Device::Disk, offset);
        }
        self.counters.uncached_writes += 1;
        self.counters.disk_writes += 1;
        self.disk_written = true;
        if direction == Direction::Write {
            return self.write_part(what, part, Device::Disk, offset);
        }
        let may_unmap = self.may_unmap(job);
        let op = self.op(what);
        self.actions.push_back(Action::Zero { op, offset, len: u64::from(len), may_unmap });
    }

    fn read_part(&mut self, what: Op, part: u32, device: Device, offset: u64) {
        let (op, span) = (self.op(what), self.span(part));
        self.actions.push_back(Action::Read { op, device, offset, span });
    }

    fn write_part(&mut self, what: Op, part: u32, device: Device, offset: u64) {
        let (op, span) = (self.op(what), self.span(part));
        self.actions.push_back(Action::Write { op, device, offset, span });
    }

    /// Returns the position of a part's bytes in the buffer of its request.
    fn span(&self, part: u32) -> Span {
        let part = self.parts.get(part);
        let request = &self.jobs.get(part.job).request;
        let first = (part.block - request.offset / BLOCK) * BLOCK;
        Span { memory: Memory::Request(request.buffer), offset: first as u32 + part.from, len: part.len }
    }

    pub(crate) fn op(&mut self, what: Op) -> OpId {
        OpId(self.ops.insert(what))
    }

    pub(crate) fn lane(&mut self, block: u64) -> &mut Lane {
        self.lanes.entry(block).or_default()
    }

    /// Returns true if an operation on a block of the range is in flight or waits.
    pub(crate) fn is_busy(&self, blocks: &std::ops::Range<u64>) -> bool {
        self.lanes.keys().any(|block| blocks.contains(block))
    }

    pub(crate) fn may_unmap(&self, job: u32) -> bool {
        matches!(self.jobs.get(job).request.kind, CommandKind::Zero { may_unmap: true, .. })
    }

    /// Adds an operation that is not a part to those that a request waits for.
    pub(crate) fn job_waits(&mut self, job: u32) {
        self.jobs.get_mut(job).left += 1;
    }

    /// Notes that the disk was written for a client.
    pub(crate) fn disk_was_written(&mut self) {
        self.disk_written = true;
    }

    // --- completions

    /// Completes an operation.
    ///
    /// # Panics
    /// Panics if no such operation is in flight: a bug of the owner.
    pub fn complete(&mut self, now: Nanos, op: OpId, result: Result<(), Failed>) {
        match self.ops.remove(op.0) {
            Op::Hit { part, slot } => self.hit_done(now, part, slot, result),
            Op::Miss { part, slot } => self.miss_done(now, part, slot, result),
            Op::Fill { part, slot } => self.fill_done(now, part, slot, result),
            Op::CacheWrite { part, slot } => self.cache_written(now, part, slot, result),
            Op::Through { part, slot, device } => self.through_done(now, part, slot, device, result),
            Op::Uncached { part } => self.uncached_done(now, part, result),
            Op::CleanRead { slot } => self.clean_read(now, slot, result),
            Op::CleanWrite { slot } => self.clean_written(now, slot, result),
            Op::Meta { meta_block } => self.meta_written(now, meta_block, result),
            Op::ZeroRange { zeroing } => self.zeroing_done(now, zeroing, result),
            Op::FlushFor { job } => {
                // After a failed flush the next one must cover the same writes.
                self.disk_written |= result.is_err();
                self.job_part_done(now, job, result);
            }
        }
        self.go_on_stopping(now);
    }

    fn hit_done(&mut self, now: Nanos, part: u32, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.ssd_read_errors += 1;
        }
        self.end_on_slot(now, part, slot, result);
    }

    fn miss_done(&mut self, now: Nanos, part: u32, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.disk_read_errors += 1;
            self.part_done(now, part, result);
            return self.settle(now, slot, result);
        }
        // FlashCache answers after the flash write too.
        self.counters.ssd_writes += 1;
        self.write_part(Op::Fill { part, slot }, part, Device::Cache, self.layout.slot_offset(slot));
    }

    fn fill_done(&mut self, now: Nanos, part: u32, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.ssd_write_errors += 1;
        }
        self.end_on_slot(now, part, slot, result);
    }

    fn cache_written(&mut self, now: Nanos, part: u32, slot: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.ssd_write_errors += 1;
        } else if !self.table.slot(slot).dirty {
            return self.metadata.add(Update { slot, mark: Mark::Dirty(part) });
        }
        self.end_on_slot(now, part, slot, result);
    }

    fn through_done(&mut self, now: Nanos, part: u32, slot: u32, device: Device, result: Result<(), Failed>) {
        let state = self.parts.get_mut(part);
        state.halves -= 1;
        state.failed |= result.is_err();
        let (left, failed) = (state.halves, state.failed);
        if result.is_err() {
            match device {
                Device::Cache => self.counters.ssd_write_errors += 1,
                Device::Disk => self.counters.disk_write_errors += 1,
            }
        }
        if left == 0 {
            self.end_on_slot(now, part, slot, if failed { Err(Failed) } else { Ok(()) });
        }
    }

    /// Ends the operation of a part on its slot. If the flash failed outside of write-back mode, so
    /// that nothing is dirty, the part and all later requests go to the disk.
    fn end_on_slot(&mut self, now: Nanos, part: u32, slot: u32, result: Result<(), Failed>) {
        if result.is_err() && self.config.mode != Mode::Back {
            self.bypass = true;
            let block = self.parts.get(part).block;
            let state = self.parts.get_mut(part);
            (state.uncached, state.failed) = (true, false);
            self.lane(block).queue.push_front(part);
            return self.settle(now, slot, result);
        }
        self.part_done(now, part, result);
        self.settle(now, slot, result);
    }

    fn meta_written(&mut self, now: Nanos, meta_block: u32, result: Result<(), Failed>) {
        for Update { slot, mark } in self.metadata.end(meta_block) {
            if result.is_err() {
                self.counters.ssd_write_errors += 1;
            }
            match mark {
                Mark::Clean => self.cleaned(now, slot, result),
                Mark::Dirty(part) => {
                    if result.is_ok() {
                        self.counters.metadata_dirties += 1;
                        self.table.set_dirty(slot, true);
                    }
                    self.end_on_slot(now, part, slot, result);
                }
            }
        }
    }

    fn uncached_done(&mut self, now: Nanos, part: u32, result: Result<(), Failed>) {
        let Part { block, direction, .. } = *self.parts.get(part);
        if result.is_err() {
            match direction {
                Direction::Read => self.counters.disk_read_errors += 1,
                _ => self.counters.disk_write_errors += 1,
            }
        }
        self.part_done(now, part, result);
        let lane = self.lane(block);
        lane.active = match lane.active {
            Active::Readers(readers) if readers > 1 => Active::Readers(readers - 1),
            _ => Active::Idle,
        };
        self.advance(now, block);
    }

    /// Ends the operation on a cached block. The head of this file describes the fate of waiting
    /// parts.
    pub(crate) fn settle(&mut self, now: Nanos, slot: u32, result: Result<(), Failed>) {
        self.table.set_busy(slot, false);
        let (block, dirty) = (self.table.slot(slot).block, self.table.slot(slot).dirty);
        let lane = self.lane(block);
        lane.active = Active::Idle;
        let waits = !lane.queue.is_empty();
        match (result, dirty) {
            (Err(Failed), true) => {
                // The only copy is in the cache: waiting parts fail.
                for part in std::mem::take(&mut self.lane(block).queue) {
                    self.part_done(now, part, result);
                }
            }
            (Ok(()), true) if waits => return self.start_clean(slot),
            (Ok(()), _) if !waits => {}
            (_, _) => {
                self.counters.pending_inval += 1;
                self.table.invalidate(slot);
                for part in &self.lanes[&block].queue {
                    self.parts.get_mut(*part).uncached = true;
                }
            }
        }
        self.advance(now, block);
    }

    /// Begins the parts that wait for a block, as far as the lane allows.
    fn advance(&mut self, now: Nanos, block: u64) {
        loop {
            let Some(lane) = self.lanes.get(&block) else { return };
            let next = lane.queue.front().copied();
            match (lane.active, next) {
                (Active::Idle, None) => {
                    self.lanes.remove(&block);
                    return self.start_zeroings(now);
                }
                (Active::Idle, Some(part)) => {
                    self.lane(block).queue.pop_front();
                    self.begin(now, part);
                }
                (Active::Readers(_), Some(part)) if self.shares(part) => {
                    self.lane(block).queue.pop_front();
                    self.start_uncached(part);
                }
                _ => return,
            }
        }
    }

    fn part_done(&mut self, now: Nanos, part: u32, result: Result<(), Failed>) {
        let Part { job, .. } = self.parts.remove(part);
        self.job_part_done(now, job, result);
    }

    /// Ends one of the operations that a request waits for. The last one answers the request, or
    /// flushes first.
    pub(crate) fn job_part_done(&mut self, now: Nanos, job: u32, result: Result<(), Failed>) {
        let state = self.jobs.get_mut(job);
        state.failed |= result.is_err();
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let (request, failed) = (state.request, state.failed);
        let wants = matches!(
            request.kind,
            CommandKind::Flush | CommandKind::Write { fua: true } | CommandKind::Zero { fua: true, .. }
        );
        if wants && !failed && !state.flushing && self.config.flush == Flush::Device {
            return self.flush_for(job);
        }
        self.jobs.remove(job);
        let result = if failed { Err(Failed) } else { Ok(()) };
        self.actions.push_back(Action::Reply { request: request.id, result });
        self.go_on_stopping(now);
    }

    fn flush_for(&mut self, job: u32) {
        let disk = std::mem::take(&mut self.disk_written);
        let state = self.jobs.get_mut(job);
        state.flushing = true;
        state.left = 1 + u32::from(disk);
        for device in std::iter::once(Device::Cache).chain(disk.then_some(Device::Disk)) {
            let op = self.op(Op::FlushFor { job });
            self.actions.push_back(Action::Flush { op, device });
        }
    }

    /// Resubmits the parts that waited for zeroings.
    pub(crate) fn arrive_again(&mut self, now: Nanos) {
        for part in std::mem::take(&mut self.behind_zeroings) {
            self.arrive(now, part);
        }
    }

    /// Drops all blocks of a range from the cache.
    pub(crate) fn drop_blocks(&mut self, blocks: &std::ops::Range<u64>) {
        if blocks.end - blocks.start < u64::from(self.layout.slots()) {
            for block in blocks.clone() {
                if let Some(slot) = self.table.find(block) {
                    self.table.invalidate(slot);
                }
            }
            return;
        }
        for slot in 0..self.layout.slots() {
            let found = self.table.slot(slot);
            if found.valid && blocks.contains(&found.block) {
                self.table.invalidate(slot);
            }
        }
    }
}
