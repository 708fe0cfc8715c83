//! Exact replacement policies, block by block: what a cache without overhead would miss.
//!
//! A write enters its block like a read that missed. Only reads count as misses. The policies are
//! those of the papers: LRU; SIEVE (Zhang and others, NSDI 2024); S3-FIFO (Yang and others, SOSP
//! 2023); ARC (Megiddo and Modha, FAST 2003); LIRS (Jiang and Zhang, SIGMETRICS 2002, with 1 % of
//! the cache for blocks that return late); and Belady's, which knows the future. Where the papers
//! leave something open they do what libCacheSim does, the simulator of S3-FIFO's authors: ARC's
//! target is no whole number, the stack of LIRS has at most twice the blocks of the cache, and
//! until S3-FIFO evicts for the first time, what its small queue has no room for enters the main
//! queue. `bench/traces --check-policies` compares them with that simulator.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// One block of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) block: u64,
    pub(crate) writes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Lru,
    Arc,
    Lirs,
    S3Fifo,
    Sieve,
    Belady,
}

impl Policy {
    pub(crate) const ALL: [Self; 6] =
        [Self::Lru, Self::Arc, Self::Lirs, Self::S3Fifo, Self::Sieve, Self::Belady];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lru => "exact LRU",
            Self::Arc => "ARC",
            Self::Lirs => "LIRS",
            Self::S3Fifo => "S3-FIFO",
            Self::Sieve => "SIEVE",
            Self::Belady => "Belady",
        }
    }
}

/// Reads that miss in a cache of so many blocks, in percent of all reads.
pub(crate) fn misses_pct(policy: Policy, blocks: usize, trace: &[Access]) -> f64 {
    let mut cache: Box<dyn Cache> = match policy {
        Policy::Lru => Box::new(Lru { blocks, used: Queue::default() }),
        Policy::Arc => Box::new(Arc { blocks, ..Arc::default() }),
        Policy::Lirs => Box::new(Lirs { late: (blocks / 100).max(1), blocks, ..Lirs::default() }),
        Policy::S3Fifo => Box::new(S3Fifo { blocks, ..S3Fifo::default() }),
        Policy::Sieve => Box::new(Sieve { blocks, ..Sieve::default() }),
        Policy::Belady => Box::new(Belady::new(blocks, trace)),
    };
    let (mut reads, mut misses) = (0_u64, 0_u64);
    for access in trace {
        let hit = cache.access(access.block);
        reads += u64::from(!access.writes);
        misses += u64::from(!access.writes && !hit);
    }
    misses as f64 * 100.0 / reads.max(1) as f64
}

trait Cache {
    /// Uses a block; true if it was there.
    fn access(&mut self, block: u64) -> bool;
}

/// Blocks in the order in which they entered, or were moved to the end.
#[derive(Default)]
struct Queue {
    order: BTreeMap<u64, u64>,
    places: HashMap<u64, u64>,
    clock: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn contains(&self, block: u64) -> bool {
        self.places.contains_key(&block)
    }

    /// Puts a block at the end, wherever it was.
    fn push(&mut self, block: u64) {
        self.remove(block);
        self.clock += 1;
        self.order.insert(self.clock, block);
        self.places.insert(block, self.clock);
    }

    fn remove(&mut self, block: u64) -> bool {
        let place = self.places.remove(&block);
        place.is_some_and(|place| self.order.remove(&place).is_some())
    }

    fn pop(&mut self) -> Option<u64> {
        let (_, block) = self.order.pop_first()?;
        self.places.remove(&block);
        Some(block)
    }

    fn first(&self) -> Option<u64> {
        self.order.first_key_value().map(|(_, block)| *block)
    }
}

struct Lru {
    blocks: usize,
    used: Queue,
}

impl Cache for Lru {
    fn access(&mut self, block: u64) -> bool {
        let hit = self.used.contains(block);
        self.used.push(block);
        if self.used.len() > self.blocks {
            self.used.pop();
        }
        hit
    }
}

/// Names as in the paper: once and often used blocks, and the ghosts of both.
#[derive(Default)]
struct Arc {
    blocks: usize,
    once: Queue,
    often: Queue,
    once_ghosts: Queue,
    often_ghosts: Queue,
    /// What `once` should have.
    target: f64,
}

impl Arc {
    fn replace(&mut self, block_is_often_ghost: bool) {
        let once = self.once.len() as f64;
        let from_once = once > self.target || block_is_often_ghost && once == self.target;
        if (from_once || self.often.len() == 0)
            && let Some(block) = self.once.pop()
        {
            self.once_ghosts.push(block);
        } else if let Some(block) = self.often.pop() {
            self.often_ghosts.push(block);
        }
    }
}

impl Cache for Arc {
    fn access(&mut self, block: u64) -> bool {
        if self.once.remove(block) || self.often.contains(block) {
            self.often.push(block);
            return true;
        }
        let (once, often) = (self.once_ghosts.len(), self.often_ghosts.len());
        let steps = |others: usize, own: usize| (others as f64 / own as f64).max(1.0);
        if self.once_ghosts.contains(block) {
            self.target = (self.target + steps(often, once)).min(self.blocks as f64);
            self.replace(false);
            self.once_ghosts.remove(block);
            self.often.push(block);
            return false;
        }
        if self.often_ghosts.contains(block) {
            self.target = (self.target - steps(once, often)).max(0.0);
            self.replace(true);
            self.often_ghosts.remove(block);
            self.often.push(block);
            return false;
        }
        let cached = self.once.len() + self.often.len();
        if self.once.len() + once == self.blocks {
            if self.once.len() < self.blocks {
                self.once_ghosts.pop();
                self.replace(false);
            } else {
                self.once.pop();
            }
        } else if cached + once + often >= self.blocks {
            if cached + once + often >= 2 * self.blocks {
                self.often_ghosts.pop();
            }
            self.replace(false);
        }
        self.once.push(block);
        false
    }
}

#[derive(Default)]
struct Lirs {
    blocks: usize,
    /// Blocks of the cache for those that return late.
    late: usize,
    /// The recency stack: blocks that return soon, and others that were used since.
    stack: Queue,
    /// Blocks of the stack that return soon.
    soon: BTreeSet<u64>,
    /// Blocks in the cache that return late, the next to be evicted first.
    resident: Queue,
    /// Blocks of the stack that are not in the cache, the first to be evicted first.
    gone: Queue,
}

impl Lirs {
    /// The bottom of the stack is a block that returns soon.
    fn prune(&mut self) {
        while let Some(block) = self.stack.first().filter(|block| !self.soon.contains(block)) {
            self.stack.pop();
            self.gone.remove(block);
        }
    }

    fn evict(&mut self) {
        if let Some(block) = self.resident.pop().filter(|block| self.stack.contains(*block)) {
            self.gone.push(block);
        }
    }

    /// The stack does not grow without end.
    fn limit(&mut self) {
        while self.stack.len() > 2 * self.blocks
            && let Some(block) = self.gone.pop()
        {
            self.stack.remove(block);
        }
    }

    fn demote(&mut self) {
        if let Some(block) = self.stack.pop() {
            self.soon.remove(&block);
            self.resident.push(block);
        }
        self.prune();
    }
}

impl Cache for Lirs {
    fn access(&mut self, block: u64) -> bool {
        if self.soon.contains(&block) {
            self.stack.push(block);
            self.prune();
            return true;
        }
        let hit = self.resident.contains(block);
        if self.soon.len() < self.blocks - self.late && !hit {
            self.soon.insert(block);
            self.stack.push(block);
            return false;
        }
        if !hit && self.resident.len() >= self.late {
            self.evict();
        }
        if self.stack.contains(block) {
            self.soon.insert(block);
            self.resident.remove(block);
            self.gone.remove(block);
            self.stack.push(block);
            self.demote();
        } else {
            self.stack.push(block);
            self.resident.push(block);
        }
        self.limit();
        hit
    }
}

#[derive(Default)]
struct S3Fifo {
    blocks: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    /// How often a cached block was used since it entered, up to 3.
    uses: HashMap<u64, u8>,
    ghosts: Queue,
    has_evicted: bool,
}

impl S3Fifo {
    fn small_max(&self) -> usize {
        self.blocks / 10
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        if self.main.len() > self.blocks - self.small_max() || self.small.is_empty() {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// What was used moves to the main queue; the first that was not is evicted.
    fn evict_small(&mut self) {
        while let Some(block) = self.small.pop_front() {
            if self.uses[&block] > 1 {
                self.uses.insert(block, 0);
                self.main.push_back(block);
                continue;
            }
            self.uses.remove(&block);
            self.ghosts.push(block);
            if self.ghosts.len() > self.blocks * 9 / 10 {
                self.ghosts.pop();
            }
            return;
        }
    }

    /// Requeues used blocks with one use less, and evicts the first block without uses.
    fn evict_main(&mut self) {
        while let Some(block) = self.main.pop_front() {
            let uses = self.uses[&block];
            if uses == 0 {
                self.uses.remove(&block);
                return;
            }
            self.uses.insert(block, uses - 1);
            self.main.push_back(block);
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, block: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        // A block that was evicted for this one is no reason to enter the main queue.
        let returns = self.ghosts.remove(block);
        while self.uses.len() >= self.blocks {
            self.evict();
        }
        if returns || !self.has_evicted && self.small.len() >= self.small_max() {
            self.main.push_back(block);
        } else {
            self.small.push_back(block);
        }
        self.uses.insert(block, 0);
        false
    }
}

#[derive(Default)]
struct Sieve {
    blocks: usize,
    queue: Queue,
    visited: BTreeSet<u64>,
    /// The place in the queue where the hand is.
    hand: u64,
}

impl Cache for Sieve {
    fn access(&mut self, block: u64) -> bool {
        if self.queue.contains(block) {
            self.visited.insert(block);
            return true;
        }
        while self.queue.len() >= self.blocks {
            let next = self.queue.order.range(self.hand..).next().or(self.queue.order.first_key_value());
            let Some((&place, &block)) = next else { break };
            // Behind the newest block the hand begins at the oldest, not at what enters next.
            let newer = self.queue.order.range(place + 1..).next();
            self.hand = newer.map_or(0, |(place, _)| *place);
            if !self.visited.remove(&block) {
                self.queue.remove(block);
            }
        }
        self.queue.push(block);
        false
    }
}

struct Belady {
    blocks: usize,
    /// For each access when its block is used next.
    next: Vec<usize>,
    at: usize,
    cached: HashMap<u64, usize>,
    order: BTreeSet<(usize, u64)>,
}

impl Belady {
    fn new(blocks: usize, trace: &[Access]) -> Self {
        let (mut next, mut seen) = (vec![usize::MAX; trace.len()], HashMap::new());
        for (at, access) in trace.iter().enumerate().rev() {
            next[at] = seen.insert(access.block, at).unwrap_or(usize::MAX);
        }
        Self { blocks, next, at: 0, cached: HashMap::new(), order: BTreeSet::new() }
    }
}

impl Cache for Belady {
    fn access(&mut self, block: u64) -> bool {
        let next = self.next[self.at];
        self.at += 1;
        let before = self.cached.insert(block, next);
        if let Some(before) = before {
            self.order.remove(&(before, block));
        }
        self.order.insert((next, block));
        if self.order.len() > self.blocks
            && let Some((_, block)) = self.order.pop_last()
        {
            self.cached.remove(&block);
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Cache, blocks: &[u64]) -> Vec<bool> {
        blocks.iter().map(|block| policy.access(*block)).collect()
    }

    #[test]
    fn sieve_hand_restarts_at_the_oldest_block() {
        let mut sieve = Sieve { blocks: 3, ..Sieve::default() };
        // 1 and 2 were used, so 3 goes, the newest. The hand is behind it when 4 enters, and begins
        // at 1 again: 1 goes for 5, not 4.
        assert_eq!(hits(&mut sieve, &[1, 2, 3, 1, 2, 4, 5]), [false, false, false, true, true, false, false]);
        assert_eq!(hits(&mut sieve, &[4, 2, 5]), [true; 3]);
    }

    #[test]
    fn the_stack_of_lirs_has_an_end() {
        let mut lirs = Lirs { late: 1, blocks: 10, ..Lirs::default() };
        (0..1000).for_each(|block| assert!(!lirs.access(block)));
        assert!(lirs.stack.len() <= 20 && lirs.gone.len() <= 20, "{} blocks", lirs.stack.len());
    }

    #[test]
    fn s3_fifo_fills_main_before_evicting() {
        let mut cache = S3Fifo { blocks: 20, ..S3Fifo::default() };
        hits(&mut cache, &(0..20).collect::<Vec<_>>());
        assert_eq!((cache.small.len(), cache.main.len()), (2, 18));
        // Then new blocks go through the small queue, and the main one keeps what it has.
        hits(&mut cache, &(20..40).collect::<Vec<_>>());
        assert!(hits(&mut cache, &(2..20).collect::<Vec<_>>()).iter().all(|hit| *hit));
    }

    #[test]
    fn belady_keeps_what_is_used_next() {
        let trace: Vec<Access> = [1, 2, 3, 1, 2, 3].map(|block| Access { block, writes: false }).into();
        assert!((misses_pct(Policy::Belady, 2, &trace) - 100.0 * 4.0 / 6.0).abs() < 1e-9);
    }
}
