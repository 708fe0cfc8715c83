//! Cost model of the operations on a backing store, fitted at run time.
//!
//! The model is `busy time = operations * R + blocks * B`: on a disk `R` is the positioning time
//! and `B` the transfer time of a block; on flash or a network `R` is small, because operations
//! overlap. It is fitted to the time during which operations were in flight (not to their
//! latencies, which are mostly queueing), in windows of some operations, by least squares with less
//! weight for older windows (recursive least squares with exponential forgetting). As long as all
//! operations have one size, the fit cannot separate `R` and `B`: two weak observations of a
//! typical disk decide then.
//!
//! `destage` uses it to decide whether one long operation is cheaper than several short ones. A
//! wrong estimate costs only time.

use crate::api::Nanos;

/// Operations in a window.
const WINDOW_OPS: u32 = 8;
/// Factor on the weight of earlier windows when a window ends.
const FORGETTING: f64 = 0.96;
/// A typical disk, in microseconds: 4 ms positioning time, 150 MB/s.
const USUAL: (f64, f64) = (4000.0, 27.3);
/// Observations of the typical disk: operations, blocks. Both together weigh a tenth of a window.
const PRIOR: [(f64, f64); 2] = [(1.0, 1.0), (1.0, 256.0)];
const PRIOR_WEIGHT: f64 = 0.05;
/// Lower bounds of `R` and `B`, in microseconds.
const LEAST: (f64, f64) = (1.0, 0.05);

/// Normal equations of the fit.
#[derive(Clone, Copy, Debug)]
struct Sums {
    ops2: f64,
    ops_blocks: f64,
    blocks2: f64,
    ops_time: f64,
    blocks_time: f64,
}

impl Sums {
    const NONE: Self = Self { ops2: 0.0, ops_blocks: 0.0, blocks2: 0.0, ops_time: 0.0, blocks_time: 0.0 };

    /// Adds an observation, weighted for relative error: a slow window has no more influence than a
    /// fast one.
    fn add(&mut self, ops: f64, blocks: f64, time: f64, weight: f64) {
        let weight = weight / (time * time).max(1.0);
        self.ops2 += weight * ops * ops;
        self.ops_blocks += weight * ops * blocks;
        self.blocks2 += weight * blocks * blocks;
        self.ops_time += weight * ops * time;
        self.blocks_time += weight * blocks * time;
    }

    fn fade(&mut self) {
        let all = [
            &mut self.ops2,
            &mut self.ops_blocks,
            &mut self.blocks2,
            &mut self.ops_time,
            &mut self.blocks_time,
        ];
        all.into_iter().for_each(|sum| *sum *= FORGETTING);
    }

    fn solve(&self) -> (f64, f64) {
        // The prior makes the determinant positive.
        let determinant = self.ops2 * self.blocks2 - self.ops_blocks * self.ops_blocks;
        let op = (self.ops_time * self.blocks2 - self.blocks_time * self.ops_blocks) / determinant;
        let block = (self.blocks_time * self.ops2 - self.ops_time * self.ops_blocks) / determinant;
        if op < LEAST.0 {
            (LEAST.0, (self.blocks_time / self.blocks2).max(LEAST.1))
        } else if block < LEAST.1 {
            ((self.ops_time / self.ops2).max(LEAST.0), LEAST.1)
        } else {
            (op, block)
        }
    }
}

/// The cost model of one backing store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    in_flight: u32,
    since: Nanos,
    ops: u32,
    blocks: u64,
    busy: Nanos,
    sums: Sums,
    op_ns: u64,
    block_ns: u64,
}

impl Default for Cost {
    fn default() -> Self {
        let mut cost = Self {
            in_flight: 0,
            since: 0,
            ops: 0,
            blocks: 0,
            busy: 0,
            sums: Sums::NONE,
            op_ns: 0,
            block_ns: 0,
        };
        cost.fit();
        cost
    }
}

impl Cost {
    /// Notes the start of an operation.
    pub(crate) fn begins(&mut self, now: Nanos) {
        if self.in_flight == 0 {
            self.since = now;
        }
        self.in_flight += 1;
    }

    /// Notes the end of an operation of `blocks` blocks.
    pub(crate) fn ends(&mut self, now: Nanos, blocks: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ops += 1;
        self.blocks += blocks;
        if self.in_flight == 0 || self.ops >= WINDOW_OPS {
            self.busy += now.saturating_sub(self.since);
            self.since = now;
        }
        if self.ops >= WINDOW_OPS {
            self.sums.fade();
            self.sums.add(f64::from(self.ops), self.blocks as f64, self.busy as f64 / 1000.0, 1.0);
            (self.ops, self.blocks, self.busy) = (0, 0, 0);
            self.fit();
        }
    }

    fn fit(&mut self) {
        let mut sums = self.sums;
        for (ops, blocks) in PRIOR {
            sums.add(ops, blocks, ops * USUAL.0 + blocks * USUAL.1, PRIOR_WEIGHT);
        }
        let (op, block) = sums.solve();
        (self.op_ns, self.block_ns) = ((op * 1000.0) as u64, (block * 1000.0) as u64);
    }

    /// Estimated time of `ops` operations with `blocks` blocks in total.
    pub(crate) fn of(&self, ops: u64, blocks: u64) -> Nanos {
        ops * self.op_ns + blocks * self.block_ns
    }

    /// Estimated time of an extent: `writes` operations with `blocks` blocks in total, and, if
    /// `reads` is not 0, one read of its gaps before them, of `reads` blocks.
    pub(crate) fn of_extent(&self, writes: u64, blocks: u64, reads: u64) -> Nanos {
        self.of(writes + u64::from(reads > 0), blocks + reads)
    }

    /// Blocks that transfer in the fixed time of an operation.
    pub(crate) fn blocks_per_op(&self) -> u64 {
        self.op_ns / self.block_ns.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs operations one at a time on a device with these times, in nanoseconds.
    fn learn(cost: &mut Cost, (op, block): (u64, u64), sizes: &[u64], count: usize) {
        let mut now = 0;
        for size in sizes.iter().cycle().take(count) {
            cost.begins(now);
            now += op + block * size;
            cost.ends(now, *size);
            now += 1_000_000; // Idle time does not count.
        }
    }

    fn assert_near(value: u64, wanted: u64) {
        assert!(value.abs_diff(wanted) <= wanted / 5, "{value} instead of {wanted}");
    }

    #[test]
    fn cost_model_learns_disks_and_ssds() {
        for (op, block) in [(8_000_000, 25_600), (80_000, 8_000), (500_000, 40_000)] {
            let mut cost = Cost::default();
            let sizes: alloc::vec::Vec<u64> =
                (0..997).map(|at| if at % 40 < 20 { 1 } else { 30 + at % 97 }).collect();
            learn(&mut cost, (op, block), &sizes, 20_000);
            assert_near(cost.op_ns, op);
            assert_near(cost.block_ns, block);
        }
    }

    #[test]
    fn cost_follows_a_changed_store() {
        let mut cost = Cost::default();
        learn(&mut cost, (8_000_000, 25_600), &[1, 64], 5000);
        learn(&mut cost, (100_000, 8_000), &[1, 1, 1, 64, 1, 256], 5000);
        assert!(cost.blocks_per_op() < 30, "{cost:?}");
    }

    #[test]
    fn cost_of_the_only_known_size_is_right() {
        let mut cost = Cost::default();
        learn(&mut cost, (8_000_000, 25_600), &[1], 5000);
        assert_near(cost.of(1, 1), 8_025_600);
        learn(&mut cost, (60_000, 8_000), &[1], 20_000);
        assert_near(cost.of(1, 1), 68_000);
        assert!(cost.blocks_per_op() < 4, "random reads of flash do not make gaps look cheap: {cost:?}");
    }

    #[test]
    fn overlapping_operations_count_time_once() {
        let mut cost = Cost::default();
        let mut now = 0;
        for _ in 0..2000 {
            // Eight concurrent operations take as long as one.
            (0..8).for_each(|_| cost.begins(now));
            now += 800_000;
            (0..8).for_each(|_| cost.ends(now, 1));
        }
        assert_near(cost.of(1, 1), 100_000);
    }

    #[test]
    fn read_of_gaps_costs_an_operation() {
        let cost = Cost::default();
        assert_eq!(cost.of_extent(1, 8, 0), cost.of(1, 8));
        assert_eq!(cost.of_extent(1, 8, 3), cost.of(2, 11));
        assert_eq!(cost.of_extent(4, 1, 0), cost.of(4, 1), "sectors of one block, in four runs");
    }
}
