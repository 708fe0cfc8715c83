//! Caches that know the future: the fewest read misses, and the fewest blocks that have to be
//! written to flash for them.
//!
//! Time is counted in accesses. A block is worth keeping from one access to the next only if the
//! next one is a read, which then hits. Every write of a client is written to flash, as in
//! write-back, and may be kept from there at no further cost. A read that misses is written (a
//! *fill*) if its block is kept. Dirty blocks may leave at any time: destage costs nothing.
//!
//! - [`Plan`] has the maximum of hits for a cache of this many blocks: whenever too many blocks are
//!   kept, it evicts the one with the latest next read (Belady, "A study of replacement algorithms
//!   for a virtual-storage computer", 1966; that this keeps the most intervals, also where a block
//!   need not be kept: Carlisle and Lloyd, "On the k-coloring of intervals", 1995). A *chain* is
//!   the hits of a block from its fill to its eviction. [`Plan::fills`] leaves out the chains of
//!   fewest hits while the requested number of hits remains. A cache can do that, but fewer fills
//!   might suffice.
//! - [`Bound`] is a lower limit of fills, for a cache that may hold more at times if it holds less
//!   at others. That is a relaxation, so no cache can do better.
//!
//! Invariants: `Bound::fills <= fewest possible <= Plan::fills`, for any number of hits; the tests
//! compare them with all possible behaviours of a small cache.

use crate::exact::Access;
use std::collections::{BTreeSet, HashMap};

/// No access.
const NEVER: usize = usize::MAX;

/// Returns for each access the next one of its block, if that is a read.
fn next_reads(trace: &[Access]) -> Vec<usize> {
    let (mut next, mut seen) = (vec![NEVER; trace.len()], HashMap::new());
    for (at, access) in trace.iter().enumerate().rev() {
        next[at] = seen.insert(access.block, if access.writes { NEVER } else { at }).unwrap_or(NEVER);
    }
    next
}

/// The maximum of hits, and their chains.
pub(crate) struct Plan {
    /// Reads that hit.
    pub(crate) hits: u64,
    /// Hits of each chain that begins with a fill, the fewest first.
    chains: Vec<u64>,
}

impl Plan {
    /// Computes the plan for a cache of this many blocks.
    pub(crate) fn new(blocks: usize, trace: &[Access]) -> Self {
        let next = next_reads(trace);
        // By kept block: its next read, whether its chain began with a fill, and its hits.
        let mut kept: HashMap<u64, (usize, bool, u64)> = HashMap::new();
        let mut order = BTreeSet::new();
        let mut plan = Self { hits: 0, chains: Vec::new() };
        for (at, access) in trace.iter().enumerate() {
            let before = kept.remove(&access.block);
            if let Some((end, ..)) = before {
                order.remove(&(end, access.block));
                plan.hits += 1;
            }
            let (filled, hits) = before.map_or((!access.writes, 0), |(_, filled, hits)| (filled, hits + 1));
            if next[at] == NEVER {
                plan.end(filled, hits);
                continue;
            }
            kept.insert(access.block, (next[at], filled, hits));
            order.insert((next[at], access.block));
            if order.len() > blocks
                && let Some((_, (_, filled, hits))) =
                    order.pop_last().and_then(|(_, block)| kept.remove_entry(&block))
            {
                plan.end(filled, hits);
            }
        }
        plan.chains.sort_unstable();
        plan
    }

    fn end(&mut self, filled: bool, hits: u64) {
        if filled && hits > 0 {
            self.chains.push(hits);
        }
    }

    /// Returns the fills for at least this many hits, if they are possible.
    pub(crate) fn fills(&self, hits: u64) -> u64 {
        let mut spare = self.hits.saturating_sub(hits);
        let left_out = self.chains.iter().take_while(|chain| {
            let fits = **chain <= spare;
            spare -= if fits { **chain } else { 0 };
            fits
        });
        self.chains.len() as u64 - left_out.count() as u64
    }
}

/// Lagrange's relaxation. A hit has a price in fills, and so has the room of a block for an access.
/// With given prices each block is kept independently of the others at the lowest cost; that cost,
/// less the value of the hits and of the room of the whole cache, is a bound.
pub(crate) struct Bound {
    accesses: u64,
    /// Prices of a hit and of room, and the lowest cost at these.
    lowest: Vec<(f64, f64, f64)>,
}

impl Bound {
    /// Computes the bound for caches of any size.
    pub(crate) fn new(trace: &[Access]) -> Self {
        let mut order: Vec<usize> = (0..trace.len()).collect();
        order.sort_by_key(|at| (trace[*at].block, *at));
        let steps: Vec<Step> = order
            .iter()
            .enumerate()
            .map(|(place, at)| Step {
                at: *at,
                writes: trace[*at].writes,
                is_first: place == 0 || trace[order[place - 1]].block != trace[*at].block,
            })
            .collect();
        let mut lowest = Vec::new();
        for hit in (-16..=16).map(|half| (f64::from(half) / 2.0).exp2()) {
            // The room of a hit's interval of 2^10 to 2^24 accesses costs as much as the hit is
            // worth.
            let rooms = (20..=48).map(|half| hit * (f64::from(-half) / 2.0).exp2());
            for room in rooms.chain([0.0]) {
                lowest.push((hit, room, cost(&steps, hit, room)));
            }
        }
        Self { accesses: trace.len() as u64, lowest }
    }

    /// Returns the fills without which a cache of this many blocks cannot have this many hits.
    pub(crate) fn fills(&self, blocks: u64, hits: u64) -> u64 {
        let room_of_all = (blocks * self.accesses.saturating_sub(1)) as f64;
        let bounds =
            self.lowest.iter().map(|(hit, room, cost)| cost + hit * hits as f64 - room * room_of_all);
        // Sums of this many numbers are inexact.
        (bounds.fold(0.0, f64::max) - 1e-3).max(0.0).ceil() as u64
    }
}

/// An access, after the earlier one of the same block.
#[derive(Clone, Copy)]
struct Step {
    at: usize,
    writes: bool,
    /// Whether it is the first one of its block.
    is_first: bool,
}

/// Returns the lowest cost of all blocks: fills, less the value of hits, plus the room used.
fn cost(steps: &[Step], hit: f64, room: f64) -> f64 {
    let (mut all, mut before) = (0.0, 0);
    // The lowest cost if the block is not cached at this access, and if it is.
    let (mut out, mut inside) = (0.0, f64::INFINITY);
    let mut last_writes = false;
    for step in steps {
        if step.is_first {
            all += f64::min(out, inside);
            (out, inside) = (0.0, f64::INFINITY);
        } else {
            let least = f64::min(out, inside);
            let enters = if last_writes { least } else { f64::min(inside, out + 1.0) };
            let stays = enters + room * (step.at - before) as f64 - hit;
            (out, inside) = (least, if step.writes { f64::INFINITY } else { stays });
        }
        (before, last_writes) = (step.at, step.writes);
    }
    all + f64::min(out, inside)
}

#[cfg(test)]
mod tests;
