//! The client of a lane, and the oracle. Each write has a number, and its blocks hold it.

use std::collections::HashMap;
use std::time::Duration;

use super::server::Server;
use super::{BLOCK, BLOCKS, Random};
use forebay_io::RemoteOp;
use forebay_nbd_client::lane::{Lane, LaneError};

#[derive(Debug)]
enum Kind {
    /// The blocks, and for each the newest write that had completed at its submission.
    Read(u64, Vec<u64>),
    /// The blocks and its number.
    Change(u64, u64, u64),
    /// For each block the newest write that had completed at its submission.
    Flush(Vec<u64>),
}

#[derive(Debug)]
pub(super) struct Client {
    /// A block has one write at a time, as with the engine.
    locks: bool,
    next: u64,
    ops: HashMap<u64, Kind>,
    /// Numbers of the zeroings of a block, which all have the same content.
    zeroes: Vec<Vec<u64>>,
    submitted: Vec<u64>,
    completed: Vec<u64>,
    /// Changes that completed after they were repeated.
    repeated: u64,
}

impl Client {
    pub(super) fn new(locks: bool) -> Client {
        let none = vec![0; BLOCKS as usize];
        let zeroes = vec![vec![0]; BLOCKS as usize];
        let (submitted, completed) = (none.clone(), none);
        Client { locks, next: 1, ops: HashMap::new(), zeroes, submitted, completed, repeated: 0 }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ops.len()
    }

    pub(super) fn repeated(&self) -> u64 {
        self.repeated
    }

    pub(super) fn submit(&mut self, lane: &mut Lane, now: Duration, random: &mut Random) {
        if self.ops.len() > 20 {
            return;
        }
        let first = random.below(BLOCKS);
        let count = 1 + random.below(3.min(BLOCKS - first));
        match random.below(8) {
            0..3 => {
                let floor = self.completed[first as usize..][..count as usize].to_vec();
                let (offset, len) = (first * BLOCK, (count * BLOCK) as u32);
                self.begin(lane, now, Kind::Read(first, floor), RemoteOp::Read { offset, len });
            }
            3..7 => self.change(lane, now, first, count, random),
            _ => self.flush(lane, now),
        }
    }

    fn change(&mut self, lane: &mut Lane, now: Duration, first: u64, count: u64, random: &mut Random) {
        let is_busy = |kind: &Kind| matches!(kind, Kind::Change(other, n, _) if *other < first + count && other + n > first);
        if self.locks && self.ops.values().any(is_busy) {
            return;
        }
        let number = self.next;
        for block in first..first + count {
            self.submitted[block as usize] = number;
        }
        let offset = first * BLOCK;
        let operation = if random.one_in(6) {
            (first..first + count).for_each(|block| self.zeroes[block as usize].push(number));
            RemoteOp::Zero { offset, len: count * BLOCK, may_unmap: random.one_in(2) }
        } else {
            let mut data = vec![7; (count * BLOCK) as usize];
            data.chunks_mut(BLOCK as usize)
                .for_each(|block| block[..8].copy_from_slice(&number.to_be_bytes()));
            RemoteOp::Write { offset, data }
        };
        self.begin(lane, now, Kind::Change(first, count, number), operation);
    }

    pub(super) fn flush(&mut self, lane: &mut Lane, now: Duration) {
        let covered = self.completed.clone();
        self.begin(lane, now, Kind::Flush(covered), RemoteOp::Flush { reports: true });
    }

    fn begin(&mut self, lane: &mut Lane, now: Duration, kind: Kind, operation: RemoteOp) {
        self.ops.insert(self.next, kind);
        lane.submit(now, self.next, operation);
        self.next += 1;
    }

    /// The newest write that a content can come from.
    fn number_of(&self, block: u64, content: &[u8]) -> u64 {
        let number = u64::from_be_bytes(content[..8].try_into().unwrap());
        let zeroes = &self.zeroes[block as usize];
        if number == 0 { zeroes.last().copied().unwrap_or(0) } else { number }
    }

    pub(super) fn completed(
        &mut self,
        id: u64,
        result: Result<Vec<u8>, LaneError>,
        server: &Server,
    ) -> Result<(), String> {
        let kind = self.ops.remove(&id).ok_or("an operation completed twice")?;
        let data = match result {
            Ok(data) => data,
            Err(LaneError::TimedOut) => return Ok(()),
            Err(error) => return Err(format!("{kind:?} failed: {error:?}")),
        };
        match kind {
            Kind::Read(first, floor) => {
                for (at, (content, floor)) in data.chunks(BLOCK as usize).zip(floor).enumerate() {
                    let block = first + at as u64;
                    let number = self.number_of(block, content);
                    if number < floor {
                        return Err(format!("a read of block {block} returned {number} after {floor}"));
                    }
                }
            }
            Kind::Change(first, count, number) => {
                for block in first..first + count {
                    let completed = &mut self.completed[block as usize];
                    if *completed > number {
                        return Err(format!("block {block}: {number} completed after {completed}"));
                    }
                    *completed = number;
                }
                if server.is_repeated(number) {
                    self.repeated += 1;
                    self.check_durable(server, first..first + count, "a repeated change")?;
                }
            }
            Kind::Flush(covered) => {
                for (block, number) in (0..BLOCKS).zip(covered) {
                    let durable = self.number_of(block, server.durable(block));
                    if durable < number {
                        return Err(format!("a FLUSH left {durable} in block {block} instead of {number}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_durable(&self, server: &Server, blocks: std::ops::Range<u64>, what: &str) -> Result<(), String> {
        for block in blocks {
            let (durable, completed) =
                (self.number_of(block, server.durable(block)), self.completed[block as usize]);
            if durable < completed {
                return Err(format!("{what} completed with {durable} in block {block}, not {completed}"));
            }
        }
        Ok(())
    }

    /// All operations have ended, all late requests have taken effect, and all is flushed.
    pub(super) fn check_end(&self, server: &Server) -> Result<(), String> {
        for block in 0..BLOCKS {
            let number = self.number_of(block, server.image(block));
            let completed = self.completed[block as usize];
            if number < completed {
                return Err(format!("at the end block {block} has {number}, not {completed}"));
            }
            let durable = self.number_of(block, server.durable(block));
            if durable < completed {
                return Err(format!("at the end {durable} is durable in block {block}, not {completed}"));
            }
        }
        Ok(())
    }
}
