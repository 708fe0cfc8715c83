//! Slows writers down smoothly when too much of the cache is dirty.
//!
//! There are two levels, each with a soft and a high limit: that of a volume (`dirty_high_pct` of
//! the pool, its own dirty blocks) and that of the pool (`dirty_limit_pct`). The soft limit is
//! below the high one by a tenth of the pool, or by a quarter of the high limit if that is less.
//! Below both soft limits writers pass freely. Between soft and high each write pays for its
//! blocks: the time that destage of its volume needs for a block, multiplied by how far the level
//! has risen from soft to high (the level that has risen further). So at the high limit writers are
//! exactly as fast as destage, and the slope up to there is linear. At the high limit a write
//! passes only if its blocks fit; below the soft one it passes with any size (a request may be
//! larger than the limit).
//!
//! Each volume has a queue and a clock of its own: a volume at its limit does not delay others.
//!
//! Writers wait without a timeout. A stop and a detach do not wait for a failing store: they refuse
//! the writers (I85).

use crate::api::{Nanos, RequestKind};
use crate::context::Context;
use crate::context::dirty_limits::{DELAY_UNIT, Levels};
use crate::fault::{self, PlantedBug};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// Bounds of the estimate of the destage time of one block.
const BLOCK_TIME_NS: core::ops::RangeInclusive<u64> = 1_000..=100_000_000;
/// Estimate before anything was destaged.
const BLOCK_TIME_INITIAL_NS: u64 = 100_000;

/// The delay that a write causes: a share of the destage time of its blocks, in units of
/// [`DELAY_UNIT`].
#[derive(Clone, Copy, Default, Debug)]
struct ThrottleDelay {
    share: u64,
}

/// Writers of one volume.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<u32>,
    /// Time from which the next write may pass.
    free_at: Nanos,
    /// Estimated destage time of a block, exponentially averaged.
    block_time: Nanos,
    last_progress: Nanos,
}

/// Position of a round over the waiting writers.
#[derive(Debug)]
pub(crate) struct Turns {
    at: usize,
    /// A writer has passed since the round began.
    passed: bool,
}

#[derive(Debug)]
pub(crate) struct Throttle {
    queues: Vec<Queue>,
    waiting: usize,
    /// The volume at which a round starts: it rotates, so that no volume is always first at the
    /// limit of the pool.
    first: usize,
}

impl Context {
    /// Blocks that a request will make dirty: none if it bypasses the cache.
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
}

impl Throttle {
    pub(crate) fn new() -> Self {
        let queue = || Queue {
            waiting: VecDeque::new(),
            free_at: 0,
            block_time: BLOCK_TIME_INITIAL_NS,
            last_progress: 0,
        };
        let mut queues = Vec::new();
        queues.resize_with(VOLUMES_MAX as usize, queue);
        Self { queues, waiting: 0, first: 0 }
    }

    fn queue(&mut self, id: VolumeId) -> &mut Queue {
        &mut self.queues[usize::from(id.0)]
    }

    /// Time at which the first waiting write may pass, unless it waits for destage.
    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        if self.waiting == 0 {
            return None;
        }
        let busy = self.queues.iter().filter(|queue| !queue.waiting.is_empty());
        busy.map(|queue| queue.free_at).filter(|free_at| *free_at > now).min()
    }

    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting
    }

    fn is_waiting(&self, id: VolumeId) -> bool {
        self.waiting > 0 && !self.queues[usize::from(id.0)].waiting.is_empty()
    }

    /// True if a write has paid but still waits: its blocks do not fit below a limit.
    fn waits_for_room(&self, now: Nanos) -> bool {
        self.waiting > 0 && self.queues.iter().any(|queue| !queue.waiting.is_empty() && queue.free_at <= now)
    }

    /// Destage made `blocks` durable; `saturated`: it could not have been faster since the last
    /// call.
    pub(crate) fn note_destaged(&mut self, now: Nanos, id: VolumeId, blocks: u64, saturated: bool) {
        let queue = self.queue(id);
        if blocks > 0 && saturated {
            let took = (now - queue.last_progress) / blocks;
            let averaged = (queue.block_time * 7 + took) / 8;
            queue.block_time = averaged.clamp(*BLOCK_TIME_NS.start(), *BLOCK_TIME_NS.end());
        }
        queue.last_progress = now;
    }

    /// Takes a write, zero or discard: true if it passes at once, otherwise it waits.
    pub(crate) fn admits(&mut self, cx: &mut Context, req: u32) -> bool {
        let id = cx.reqs.get(req).volume;
        if !self.is_waiting(id) {
            let blocks = cx.blocks_to_dirty(req);
            if let Some(delay) = self.delay(cx, id, blocks) {
                self.pass(cx, req, blocks, delay);
                return true;
            }
        }
        cx.stats.throttled_writes += 1;
        cx.counters.of(id).throttled_writes += 1;
        self.queue(id).waiting.push_back(req);
        self.waiting += 1;
        cx.volume_mut(id).writers_wait += 1;
        false
    }

    /// Starts a round that admits one writer of each volume in turn ([`Throttle::next`]).
    pub(crate) fn turns(&mut self) -> Turns {
        if self.waiting > 0 {
            self.first = (self.first + 1) % self.queues.len();
        }
        Turns { at: 0, passed: false }
    }

    /// Refuses the writers of a volume.
    pub(crate) fn refuse_all(&mut self, cx: &mut Context, id: VolumeId) {
        let waiting = core::mem::take(&mut self.queue(id).waiting);
        self.waiting -= waiting.len();
        cx.volume_mut(id).writers_wait -= waiting.len();
        waiting.into_iter().for_each(|req| cx.refuse(req));
    }

    /// The next waiting request that may pass, or `None`.
    pub(crate) fn next(&mut self, cx: &mut Context, turns: &mut Turns) -> Option<u32> {
        while self.waiting > 0 {
            if turns.at == self.queues.len() {
                if !turns.passed {
                    return None;
                }
                *turns = Turns { at: 0, passed: false };
            }
            let index = (self.first + turns.at) % self.queues.len();
            turns.at += 1;
            let Some(req) = self.queues[index].waiting.front().copied() else { continue };
            // With a fenced cache every write fails: none has to wait for that.
            let (id, blocks) = (VolumeId(index as u16), cx.blocks_to_dirty(req));
            if let Some(delay) =
                self.delay(cx, id, blocks).or(cx.failure.is_fenced().then(ThrottleDelay::default))
            {
                self.queues[index].waiting.pop_front();
                self.waiting -= 1;
                cx.volume_mut(id).writers_wait -= 1;
                self.pass(cx, req, blocks, delay);
                turns.passed = true;
                return Some(req);
            }
        }
        None
    }

    /// True if writes wait at a limit: destaged blocks count as dirty until their clean marks are
    /// in the log.
    pub(crate) fn waits_for_marks(&self, now: Nanos) -> bool {
        self.waits_for_room(now) && !fault::planted(PlantedBug::DawdleWithMarks)
    }

    fn pass(&mut self, cx: &mut Context, req: u32, blocks: u64, delay: ThrottleDelay) {
        if blocks > 0 {
            let id = cx.reqs.get(req).volume;
            let now = cx.now;
            let queue = self.queue(id);
            let pause = blocks.saturating_mul(queue.block_time) / DELAY_UNIT * delay.share;
            queue.free_at = queue.free_at.max(now) + pause;
            // Counted from here on: a request that waits for a block lock has passed, too.
            cx.blocks_enter(id, blocks);
            cx.reqs.get_mut(req).reserved = blocks;
        }
    }

    /// Delay of the writes behind one that makes `blocks` blocks dirty and passes now; `None` if it
    /// has to wait.
    fn delay(&self, cx: &Context, id: VolumeId, blocks: u64) -> Option<ThrottleDelay> {
        if blocks == 0 {
            return Some(ThrottleDelay::default());
        }
        let levels = cx.levels(id);
        if levels.are_free() {
            return Some(ThrottleDelay::default());
        }
        let Levels { volume, pool, .. } = levels;
        let unlimited = fault::planted(PlantedBug::ThrottleBeyondLimit);
        let fits = (unlimited || volume.fits(blocks)) && pool.fits(blocks);
        let paid = cx.now >= self.queues[usize::from(id.0)].free_at;
        (fits && paid).then(|| ThrottleDelay { share: volume.risen().max(pool.risen()) })
    }
}
