//! The ranking of `s3fifo`, block by block: what the engine would miss without a log.
//!
//! The rules of `policy::s3fifo` and `policy::ghosts` with exact ghosts and times: a block is a
//! segment of its own, every block of the device holds data, nothing is dirty, and reclaim keeps
//! any number of blocks. Its misses minus those of exact policies are the cost of the ranking;
//! with the blocks that the log can hold, the cost of room; what the engine misses more is the cost
//! of segments, of bounds on what reclaim keeps, and of requests in flight.

use crate::exact::Cache;
use std::collections::{HashMap, VecDeque};

const PROBATION: usize = 0;
const MAIN: usize = 1;
/// Limits of the share of probation.
const SHARES: (f64, f64) = (0.02, 0.95);
/// The part of the ghosts whose return moves the share.
const RECENT: f64 = 1.0 / 8.0;
/// The part of the time that main keeps a block within which a block must return to enter it.
const PROMOTED: f64 = 0.5;

/// A cache of so many blocks.
pub(crate) struct Ranking {
    blocks: usize,
    queues: [VecDeque<u64>; 2],
    /// Whether a cached block was used since it was last moved.
    used: HashMap<u64, bool>,
    /// Of each queue, evicted blocks, the oldest first, and when each was evicted.
    ghosts: [VecDeque<(u64, u64)>; 2],
    /// Queue and time of the last eviction of a remembered block.
    gone: HashMap<u64, (usize, u64)>,
    /// Blocks evicted from each queue.
    evicted: [u64; 2],
    share: f64,
    /// Recent evictions from probation, and blocks that entered main.
    flow: [f64; 2],
}

impl Ranking {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            blocks,
            queues: Default::default(),
            used: HashMap::new(),
            ghosts: Default::default(),
            gone: HashMap::new(),
            evicted: [0; 2],
            share: 0.1,
            flow: [0.0; 2],
        }
    }

    fn count(&mut self, what: usize) {
        self.flow[what] += 1.0;
        if self.flow[0] + self.flow[1] > self.blocks as f64 {
            self.flow = self.flow.map(|count| count / 2.0);
        }
    }

    /// Keeps used blocks, and evicts the first that was not used.
    fn evict(&mut self) {
        loop {
            let limit = ((self.used.len() as f64 * self.share).round() as usize).max(1);
            let first = if self.queues[PROBATION].len() > limit { PROBATION } else { MAIN };
            let queue = if self.queues[first].is_empty() { 1 - first } else { first };
            let Some(block) = self.queues[queue].pop_front() else { return };
            if self.used[&block] {
                self.used.insert(block, false);
                self.queues[MAIN].push_back(block);
                self.count(1);
                continue;
            }
            self.used.remove(&block);
            if queue == PROBATION {
                self.count(0);
            }
            return self.remember(block, queue);
        }
    }

    fn remember(&mut self, block: u64, queue: usize) {
        self.evicted[queue] += 1;
        let at = (queue, self.evicted[queue]);
        self.gone.insert(block, at);
        self.ghosts[queue].push_back((block, at.1));
        while self.ghosts[queue].len() > self.blocks
            && let Some((oldest, time)) = self.ghosts[queue].pop_front()
        {
            if self.gone.get(&oldest) == Some(&(queue, time)) {
                self.gone.remove(&oldest);
            }
        }
    }

    /// A block enters; true if it is promoted.
    fn returns(&mut self, block: u64) -> bool {
        let Some((queue, time)) = self.gone.remove(&block) else { return false };
        let age = (self.evicted[queue] - time) as f64 / self.blocks as f64;
        if age < RECENT {
            let known = [0, 1].map(|queue: usize| self.ghosts[queue].len().max(1) as f64);
            let step = (known[1 - queue] / known[queue]).max(1.0) / self.blocks as f64;
            let share = if queue == PROBATION { self.share + step } else { self.share - step };
            self.share = share.clamp(SHARES.0, SHARES.1);
        }
        let keeps = (1.0 - self.share) * (self.flow[0] + 1.0) / (self.flow[1] + 1.0);
        let promoted = queue == PROBATION && age <= keeps * PROMOTED;
        if promoted {
            self.count(1);
        }
        promoted
    }
}

impl Cache for Ranking {
    fn access(&mut self, block: u64) -> bool {
        if let Some(used) = self.used.get_mut(&block) {
            *used = true;
            return true;
        }
        let queue = if self.returns(block) { MAIN } else { PROBATION };
        while self.used.len() >= self.blocks {
            self.evict();
        }
        self.queues[queue].push_back(block);
        self.used.insert(block, false);
        false
    }
}
