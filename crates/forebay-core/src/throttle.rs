//! Slowing writers down smoothly when too much of the cache is dirty.
//!
//! Below a soft limit (10 % of the cache under `dirty_limit_pct`) writers pass freely. Between soft and high limit each
//! write pays for its blocks: the time that destage needs for a block, multiplied by how far the level has risen from
//! soft to high. So at the high limit writers go exactly as fast as destage, and on the way there the slope is even.
//! At the high limit a write passes only if its blocks fit, or if nothing is dirty at all (a request may be larger
//! than the limit).

use crate::api::{Nanos, RequestKind};
use crate::engine::Engine;
use alloc::collections::VecDeque;

/// Share of the cache over which the slope from free to destage speed stretches, percent.
const SLOPE_PCT: u64 = 10;
/// Bounds of the estimate of the destage time of one block.
const BLOCK_TIME_NS: core::ops::RangeInclusive<u64> = 1_000..=20_000_000;
/// Estimate before anything was destaged.
const BLOCK_TIME_INITIAL_NS: u64 = 100_000;

#[derive(Debug)]
pub(crate) struct Throttle {
    waiting: VecDeque<u32>,
    /// The next write may pass at this time.
    free_at: Nanos,
    /// Estimated time that destage needs for a block, exponentially averaged.
    block_time_ns: u64,
    last_progress: Nanos,
    /// Blocks on their way to the log and not in the map yet.
    pub(crate) in_flight_blocks: u64,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            free_at: 0,
            block_time_ns: BLOCK_TIME_INITIAL_NS,
            last_progress: 0,
            in_flight_blocks: 0,
        }
    }

    /// When the first waiting write may pass, unless it waits for destage.
    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        (!self.waiting.is_empty() && self.free_at > now).then_some(self.free_at)
    }

    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Destage made `blocks` durable.
    pub(crate) fn note_destaged(&mut self, now: Nanos, blocks: u64, was_busy: bool) {
        if blocks > 0 && was_busy {
            let took = (now - self.last_progress) / blocks;
            let averaged = (self.block_time_ns * 7 + took) / 8;
            self.block_time_ns = averaged.clamp(*BLOCK_TIME_NS.start(), *BLOCK_TIME_NS.end());
        }
        self.last_progress = now;
    }
}

impl Engine {
    /// Takes a write, zero or discard: at once, or after a wait.
    pub(crate) fn admit_mutation(&mut self, req: u32) {
        if self.throttle.waiting.is_empty() && self.may_pass(req) {
            self.pass(req);
        } else {
            self.stats.throttled_writes += 1;
            let volume = self.reqs.get(req).volume;
            self.counters.of(volume).throttled_writes += 1;
            self.throttle.waiting.push_back(req);
        }
    }

    pub(crate) fn step_throttle(&mut self) {
        while let Some(req) = self.throttle.waiting.front().copied() {
            if !self.fenced && !self.may_pass(req) {
                break;
            }
            self.throttle.waiting.pop_front();
            self.pass(req);
        }
    }

    fn pass(&mut self, req: u32) {
        let blocks = self.blocks_to_dirty(req);
        let (level, soft, high) = self.dirty_levels();
        if blocks > 0 && level > soft {
            let slope = (level - soft).min(high - soft);
            let pause = blocks * self.throttle.block_time_ns * slope / (high - soft).max(1);
            self.throttle.free_at = self.throttle.free_at.max(self.now) + pause;
        }
        self.lock_mutation(req);
    }

    fn may_pass(&self, req: u32) -> bool {
        let blocks = self.blocks_to_dirty(req);
        let (level, soft, high) = self.dirty_levels();
        blocks == 0 || level <= soft || level + blocks <= high && self.now >= self.throttle.free_at
    }

    /// Blocks that a request will make dirty: none if it goes past the cache.
    pub(crate) fn blocks_to_dirty(&self, req: u32) -> u64 {
        let request = self.reqs.get(req);
        let blocks = request.last_block - request.first_block + 1;
        let through_log = match request.kind {
            RequestKind::Write { .. } => true,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => !self.zeroes_go_direct(req),
            _ => false,
        };
        if through_log && request.write_back { blocks } else { 0 }
    }

    /// Dirty blocks now, the soft limit and the high limit.
    pub(crate) fn dirty_levels(&self) -> (u64, u64, u64) {
        // What volumes that are not attached have dirty cannot be written back: the others share what is left.
        let kept = self.kept_dirty();
        let capacity = self.data_capacity().saturating_sub(kept);
        let high = capacity * u64::from(self.config.pool.dirty_limit_pct) / 100;
        let soft = high.saturating_sub(capacity * SLOPE_PCT / 100);
        (self.map.unclean_blocks().saturating_sub(kept) + self.throttle.in_flight_blocks, soft, high)
    }
}
