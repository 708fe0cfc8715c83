//! Zeroing and discard. FlashCache handles neither; here they are correct and as cheap as possible,
//! in its favour.
//!
//! Partly covered blocks become parts that bypass the cache, like small writes. All whole blocks
//! become one operation on the disk: it begins when no operation on them is in flight, and drops
//! their cached blocks without cleaning. Parts that arrive meanwhile wait behind it.

use crate::api::{Action, BLOCK_BYTES, Failed, Nanos};
use crate::model::{Direction, Model, Op, Zeroing};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Model {
    /// Zeroes a range.
    pub(crate) fn zero(&mut self, now: Nanos, job: u32, offset: u64, len: u64) {
        let end = offset + len;
        let blocks = offset.div_ceil(BLOCK)..end / BLOCK;
        if blocks.is_empty() {
            return self.split(now, job, Direction::Zero, offset, len);
        }
        let (head_end, tail) = (blocks.start * BLOCK, blocks.end * BLOCK);
        self.split(now, job, Direction::Zero, offset, head_end - offset);
        self.split(now, job, Direction::Zero, tail, end - tail);
        self.job_waits(job);
        let number = self.zeroings_made;
        self.zeroings_made = self.zeroings_made.wrapping_add(1);
        self.zeroings.push((number, Zeroing { job, blocks, started: false }));
        self.start_zeroings(now);
    }

    /// Returns true if a block is being zeroed, or waits for it.
    pub(crate) fn is_being_zeroed(&self, block: u64) -> bool {
        self.zeroings.iter().any(|(_, zeroing)| zeroing.blocks.contains(&block))
    }

    /// Starts the zeroings whose blocks have no operation in flight and no earlier zeroing.
    pub(crate) fn start_zeroings(&mut self, _now: Nanos) {
        for at in 0..self.zeroings.len() {
            let (number, Zeroing { job, blocks, started }) = self.zeroings[at].clone();
            let overlaps =
                |other: &Zeroing| other.blocks.start < blocks.end && blocks.start < other.blocks.end;
            let behind = self.zeroings[..at].iter().any(|(_, other)| overlaps(other));
            if started || behind || self.is_busy(&blocks) {
                continue;
            }
            self.zeroings[at].1.started = true;
            self.drop_blocks(&blocks);
            self.counters.disk_writes += 1;
            self.disk_was_written();
            let may_unmap = self.may_unmap(job);
            let op = self.op(Op::ZeroRange { zeroing: number });
            let (offset, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
            self.actions.push_back(Action::Zero { op, offset, len, may_unmap });
        }
    }

    pub(crate) fn zeroing_done(&mut self, now: Nanos, number: u32, result: Result<(), Failed>) {
        if result.is_err() {
            self.counters.disk_write_errors += 1;
        }
        let at = self.zeroings.iter().position(|(other, _)| *other == number).expect("it is under way");
        let (_, zeroing) = self.zeroings.remove(at);
        self.job_part_done(now, zeroing.job, result);
        self.start_zeroings(now);
        self.arrive_again(now);
    }
}
