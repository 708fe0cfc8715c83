//! Models of the devices: the latencies of operations.
//!
//! The flash device has a latency for each operation, regardless of concurrency, and transfers the
//! bytes of all operations one after the other. The disk is [`forebay_models::hdd`], the model that
//! `emulate` puts in front of real devices, or has a constant latency.

use forebay_models::hdd::{HddModel, HddOp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Times of the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashTimes {
    /// Of a read, in nanoseconds, in addition to the transfer of its bytes.
    pub read_ns: u64,
    /// The same of a write.
    pub write_ns: u64,
    /// Of a flush, in nanoseconds.
    pub flush_ns: u64,
    /// Transfer rate of all operations together, in bytes per second.
    pub bytes_per_s: u64,
}

impl Default for FlashTimes {
    /// An ordinary NVMe drive.
    fn default() -> Self {
        Self { read_ns: 80_000, write_ns: 20_000, flush_ns: 500_000, bytes_per_s: 1_000_000_000 }
    }
}

/// The kind of backing store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// A disk with 7200 revolutions a minute.
    Hdd7200,
    /// Every operation takes this many nanoseconds, regardless of concurrency.
    Constant(u64),
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Read,
    Write,
    Flush,
}

/// Operations whose end is known when they begin.
#[derive(Debug, Default)]
pub(crate) struct Due {
    ends: BinaryHeap<Reverse<(u64, u64, u32)>>,
    begun: u64,
}

impl Due {
    fn push(&mut self, at: u64, op: u32) {
        self.begun += 1;
        self.ends.push(Reverse((at, self.begun, op)));
    }

    fn next(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse((at, ..))| *at)
    }

    fn ended(&mut self, now: u64, into: &mut Vec<u32>) {
        while let Some(Reverse((_, _, op))) = self.ends.peek().copied().filter(|Reverse((at, ..))| *at <= now)
        {
            self.ends.pop();
            into.push(op);
        }
    }
}

/// The cache device.
#[derive(Debug)]
pub(crate) struct Flash {
    times: FlashTimes,
    /// Time at which it has transferred all bytes.
    free_at: u64,
    due: Due,
}

impl Flash {
    pub(crate) fn new(times: FlashTimes) -> Self {
        Self { times, free_at: 0, due: Due::default() }
    }

    pub(crate) fn begin(&mut self, now: u64, op: u32, work: Work, bytes: u64) {
        let moved = u128::from(bytes) * 1_000_000_000 / u128::from(self.times.bytes_per_s.max(1));
        self.free_at = self.free_at.max(now) + moved as u64;
        let own = match work {
            Work::Read => self.times.read_ns,
            Work::Write => self.times.write_ns,
            Work::Flush => self.times.flush_ns,
        };
        let begins = if bytes == 0 { now } else { self.free_at };
        self.due.push(begins + own, op);
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.due.next()
    }

    pub(crate) fn ended(&mut self, now: u64, into: &mut Vec<u32>) {
        self.due.ended(now, into);
    }
}

/// The backing store.
pub(crate) enum Disk {
    Hdd(Box<HddModel>, Vec<u64>),
    Constant(u64, Due),
}

impl Disk {
    pub(crate) fn new(kind: DiskKind, size_bytes: u64) -> Self {
        match kind {
            DiskKind::Hdd7200 => Self::Hdd(Box::new(HddModel::new(size_bytes)), Vec::new()),
            DiskKind::Constant(ns) => Self::Constant(ns, Due::default()),
        }
    }

    pub(crate) fn begin(&mut self, now: u64, op: u32, work: Work, offset: u64, bytes: u64) {
        match self {
            Self::Hdd(disk, _) => {
                let work = match work {
                    Work::Read => HddOp::Read,
                    Work::Write => HddOp::Write,
                    Work::Flush => HddOp::Flush,
                };
                disk.submit(now, op.into(), work, offset, bytes);
            }
            Self::Constant(ns, due) => due.push(now + *ns, op),
        }
    }

    pub(crate) fn next(&self) -> Option<u64> {
        match self {
            Self::Hdd(disk, _) => disk.next_event(),
            Self::Constant(_, due) => due.next(),
        }
    }

    pub(crate) fn ended(&mut self, now: u64, into: &mut Vec<u32>) {
        match self {
            Self::Hdd(disk, done) => {
                disk.advance(now, done);
                into.extend(done.drain(..).map(|id| id as u32));
            }
            Self::Constant(_, due) => due.ended(now, into),
        }
    }
}
