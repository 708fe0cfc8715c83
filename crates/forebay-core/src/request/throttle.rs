//! Slowing writers down smoothly when too much of the cache is dirty.
//!
//! There are two levels, each with a soft and a high limit: that of a volume (`dirty_high_pct` of
//! the pool, its own dirty blocks) and that of the pool (`dirty_limit_pct`). The soft limit lies
//! below the high one by a tenth of the pool, or by a quarter of the high limit if that is less.
//! Below both soft limits writers pass freely. Between soft and high each write pays for its
//! blocks: the time that destage of its volume needs for a block, multiplied by how far the level
//! has risen from soft to high (that of the two which has risen further). So at the high limit
//! writers go exactly as fast as destage, and on the way there the slope is even. At the high limit
//! a write passes only if its blocks fit; below the soft one it passes whatever its size (a request
//! may be larger than the limit).
//!
//! Each volume has a queue and a clock of its own: a volume at its limit holds up nobody else.

use crate::api::{Nanos, RequestKind};
use crate::context::Context;
use crate::context::levels::{Levels, TOLL_UNIT};
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// Bounds of the estimate of the destage time of one block.
const BLOCK_TIME_NS: core::ops::RangeInclusive<u64> = 1_000..=100_000_000;
/// Estimate before anything was destaged.
const BLOCK_TIME_INITIAL_NS: u64 = 100_000;

/// What a write pays: a share of the time that destage of its blocks takes, of [`TOLL_UNIT`].
#[derive(Clone, Copy, Default, Debug)]
struct Toll {
    share: u64,
}

/// Writers of one volume.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<u32>,
    /// The next write may pass at this time.
    free_at: Nanos,
    /// Estimated time that destage needs for a block, exponentially averaged.
    block_time: Nanos,
    last_progress: Nanos,
}

#[derive(Debug)]
pub(crate) struct Throttle {
    queues: Vec<Queue>,
    waiting: usize,
    /// The volume that is asked first: so that none is always first at the limit of the pool.
    first: usize,
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

    /// When the first waiting write may pass, unless it waits for destage.
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

    pub(crate) fn waiting_of(&self, id: VolumeId) -> usize {
        self.queues.get(usize::from(id.0)).map_or(0, |queue| queue.waiting.len())
    }

    pub(crate) fn is_waiting(&self, id: VolumeId) -> bool {
        self.waiting_of(id) > 0
    }

    /// A write has paid and waits all the same: its blocks do not fit below a limit.
    fn waits_for_room(&self, now: Nanos) -> bool {
        self.waiting > 0 && self.queues.iter().any(|queue| !queue.waiting.is_empty() && queue.free_at <= now)
    }

    /// Destage made `blocks` durable; `saturated`: it could not have gone faster since the last
    /// time.
    pub(crate) fn note_destaged(&mut self, now: Nanos, id: VolumeId, blocks: u64, saturated: bool) {
        let queue = self.queue(id);
        if blocks > 0 && saturated {
            let took = (now - queue.last_progress) / blocks;
            let averaged = (queue.block_time * 7 + took) / 8;
            queue.block_time = averaged.clamp(*BLOCK_TIME_NS.start(), *BLOCK_TIME_NS.end());
        }
        queue.last_progress = now;
    }
}

impl Context {
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
}

impl Engine {
    /// Takes a write, zero or discard: at once, or after a wait.
    pub(crate) fn admit_mutation(&mut self, req: u32) {
        let id = self.cx.reqs.get(req).volume;
        let toll = if self.throttle.is_waiting(id) { None } else { self.toll(req) };
        if let Some(toll) = toll {
            self.pass(req, toll);
        } else {
            self.cx.stats.throttled_writes += 1;
            self.cx.counters.of(id).throttled_writes += 1;
            self.throttle.queue(id).waiting.push_back(req);
            self.throttle.waiting += 1;
            self.cx.volume_mut(id).writers_wait += 1;
        }
    }

    /// Lets pass who may, one of each volume in turn.
    pub(crate) fn step_throttle(&mut self) {
        if self.throttle.waiting == 0 {
            return;
        }
        let volumes = self.throttle.queues.len();
        self.throttle.first = (self.throttle.first + 1) % volumes;
        let mut passed = true;
        while passed && self.throttle.waiting > 0 {
            passed = false;
            for at in 0..volumes {
                let index = (self.throttle.first + at) % volumes;
                let Some(req) = self.throttle.queues[index].waiting.front().copied() else { continue };
                // With a fenced cache every write fails: none has to wait for that.
                let toll = self.toll(req).or(self.cx.fenced.then(Toll::default));
                if let Some(toll) = toll {
                    self.throttle.queues[index].waiting.pop_front();
                    self.throttle.waiting -= 1;
                    self.cx.volume_mut(VolumeId(index as u16)).writers_wait -= 1;
                    self.pass(req, toll);
                    passed = true;
                }
            }
        }
    }

    /// Writes wait at a limit, and what is written back counts as dirty until its clean marks are
    /// in the log.
    pub(crate) fn writers_wait_for_marks(&self) -> bool {
        self.throttle.waits_for_room(self.cx.now) && !fault::planted(PlantedBug::DawdleWithMarks)
    }

    fn pass(&mut self, req: u32, toll: Toll) {
        let blocks = self.cx.blocks_to_dirty(req);
        if blocks > 0 {
            let id = self.cx.reqs.get(req).volume;
            let now = self.cx.now;
            let queue = self.throttle.queue(id);
            let pause = blocks.saturating_mul(queue.block_time) / TOLL_UNIT * toll.share;
            queue.free_at = queue.free_at.max(now) + pause;
            // Counted from here on: a request that waits for a block lock has passed, too.
            self.cx.blocks_enter(id, blocks);
            self.cx.reqs.get_mut(req).reserved = blocks;
        }
        self.lock_mutation(req);
    }

    /// What a write pays for passing now; `None` if it has to wait.
    fn toll(&self, req: u32) -> Option<Toll> {
        let blocks = self.cx.blocks_to_dirty(req);
        if blocks == 0 {
            return Some(Toll::default());
        }
        let id = self.cx.reqs.get(req).volume;
        let levels = self.cx.levels(id);
        if levels.are_free() {
            return Some(Toll::default());
        }
        let Levels { volume, pool, .. } = levels;
        let unlimited = fault::planted(PlantedBug::ThrottleBeyondLimit);
        let fits = (unlimited || volume.fits(blocks)) && pool.fits(blocks);
        let paid = self.cx.now >= self.throttle.queues[usize::from(id.0)].free_at;
        (fits && paid).then(|| Toll { share: volume.risen().max(pool.risen()) })
    }
}
