//! A disk with one arm, in virtual time: simple enough to reason about, and the same as the
//! `dm-hdd` target for measurements of the kernel's caches, so that figures are comparable.
//!
//! A request costs `seek_min + (seek_max - seek_min) * sqrt(distance)` (as a share of the disk) and
//! `rotation`, unless it begins where the last one ended; and its bytes at `bytes_per_s`. Waiting
//! requests are served in one direction, then from the start again (C-SCAN), among the 32 oldest;
//! At most 128 wait; further ones queue outside, in order. A flush costs `rotation` and does not
//! move the arm. There is no write cache: completed writes are on the platter.
//!
//! Invariant: integer time; the same requests give the same completions.

use super::machine::{Disk, DiskOp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Requests among which the disk chooses.
const CHOICE: usize = 32;
/// Longest piece that is served before the disk chooses again.
const PIECE_BYTES: u64 = 1 << 20;

/// Times of a disk.
#[derive(Clone, Copy, Debug)]
pub struct ArmTimes {
    /// Shortest seek.
    pub seek_min_ns: u64,
    /// Seek over the whole disk.
    pub seek_max_ns: u64,
    /// Rotational latency.
    pub rotation_ns: u64,
    /// Transfer rate.
    pub bytes_per_s: u64,
}

impl Default for ArmTimes {
    fn default() -> Self {
        Self {
            seek_min_ns: 600_000,
            seek_max_ns: 3_500_000,
            rotation_ns: 3_000_000,
            bytes_per_s: 160_000_000,
        }
    }
}

/// Counters of a disk.
#[derive(Clone, Debug, Default)]
pub struct ArmCounters {
    /// Time that the arm was busy.
    pub busy_ns: u64,
    /// Requests that needed a seek.
    pub seeks: u64,
    /// Reads and writes by size class: 4 KiB, up to 32 KiB, up to 128 KiB, up to 512 KiB, more.
    pub by_size: [[u64; 5]; 2],
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// Flushes.
    pub flushes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    op: DiskOp,
    offset: u64,
    len: u64,
    /// The request ends with this piece.
    last: bool,
}

/// The disk; see the head of this file.
#[derive(Debug)]
pub struct ArmDisk {
    times: ArmTimes,
    size_bytes: u64,
    waiting: VecDeque<Waiting>,
    current: Option<(Waiting, u64)>,
    head: u64,
    /// If set there are no seeks: each request takes this long, in nanoseconds, regardless of
    /// concurrency.
    fast: Option<u64>,
    quick: BinaryHeap<Reverse<(u64, u64)>>,
    /// Its counters.
    pub counters: ArmCounters,
}

impl ArmDisk {
    /// Creates an idle disk with its head at byte 0.
    #[must_use]
    pub fn new(size_bytes: u64, times: ArmTimes) -> Self {
        Self {
            times,
            size_bytes,
            waiting: VecDeque::new(),
            current: None,
            head: 0,
            fast: None,
            quick: BinaryHeap::new(),
            counters: ArmCounters::default(),
        }
    }

    /// Sets the latency of every later request to `latency_ns`, or to the model of the arm.
    pub fn set_fast(&mut self, latency_ns: Option<u64>) {
        self.fast = latency_ns;
    }

    fn count(&mut self, op: DiskOp, len: u64) {
        let kind = match op {
            DiskOp::Read => 0,
            DiskOp::Write => 1,
            DiskOp::Flush => return self.counters.flushes += 1,
        };
        let class = [4 << 10, 32 << 10, 128 << 10, 512 << 10].iter().filter(|most| len > **most).count();
        self.counters.by_size[kind][class] += 1;
        self.counters.bytes[kind] += len;
    }

    /// Returns the next request ahead of the head, else the first one.
    fn choose(&self) -> Option<usize> {
        let choice = || self.waiting.iter().take(CHOICE).enumerate();
        let ahead =
            choice().filter(|(_, one)| one.offset >= self.head).min_by_key(|(at, one)| (one.offset, *at));
        ahead.or_else(|| choice().min_by_key(|(at, one)| (one.offset, *at))).map(|(at, _)| at)
    }

    fn cost_ns(&mut self, one: &Waiting) -> u64 {
        if one.op == DiskOp::Flush {
            return self.times.rotation_ns;
        }
        let transfer = one.len * 1_000_000_000 / self.times.bytes_per_s;
        let distance = one.offset.abs_diff(self.head) as f64 / self.size_bytes as f64;
        self.head = one.offset + one.len;
        if distance == 0.0 {
            return transfer;
        }
        self.counters.seeks += 1;
        let times = &self.times;
        let stroke = (times.seek_max_ns - times.seek_min_ns) as f64 * distance.sqrt();
        times.seek_min_ns + stroke as u64 + times.rotation_ns + transfer
    }

    fn begin(&mut self, now: u64) {
        if self.current.is_none()
            && let Some(at) = self.choose()
            && let Some(one) = self.waiting.remove(at)
        {
            let cost = self.cost_ns(&one);
            self.counters.busy_ns += cost;
            self.current = Some((one, now + cost));
        }
    }
}

impl Disk for ArmDisk {
    fn submit(&mut self, now: u64, id: u64, op: DiskOp, offset: u64, len: u64) {
        self.count(op, len);
        if let Some(latency) = self.fast {
            self.quick.push(Reverse((now + latency + len / 4096 * 1000, id)));
            return;
        }
        let mut at = 0;
        loop {
            let piece = (len - at).min(PIECE_BYTES);
            let last = at + piece == len;
            self.waiting.push_back(Waiting { id, op, offset: offset + at, len: piece, last });
            at += piece;
            if last {
                break;
            }
        }
        self.begin(now);
    }

    fn next_event(&self) -> Option<u64> {
        let quick = self.quick.peek().map(|Reverse((at, _))| *at);
        self.current.iter().map(|(_, at)| *at).chain(quick).min()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        while let Some(Reverse((at, id))) = self.quick.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            debug_assert!(at <= now);
            self.quick.pop();
            done.push(id);
        }
        while let Some((one, at)) = self.current.filter(|(_, at)| *at <= now) {
            self.current = None;
            if one.last {
                done.push(one.id);
            }
            self.begin(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times_of(requests: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut disk = ArmDisk::new(1 << 30, ArmTimes::default());
        for (id, (offset, len)) in requests.iter().enumerate() {
            disk.submit(0, id as u64, DiskOp::Read, *offset, *len);
        }
        let mut all = Vec::new();
        while let Some(at) = disk.next_event() {
            let mut done = Vec::new();
            disk.advance(at, &mut done);
            all.extend(done.into_iter().map(|id| (id, at)));
        }
        all
    }

    #[test]
    fn sequential_access_costs_only_its_bytes() {
        let all = times_of(&[(0, 4096), (4096, 160_000), (1 << 28, 4096)]);
        assert_eq!(all[0], (0, 25_600));
        assert_eq!(all[1], (1, 25_600 + 1_000_000));
        // Just under a quarter of the disk: half of the range of seeks.
        let moved = all[2].1 - all[1].1;
        assert!((5_070_000..5_080_000).contains(&moved), "{moved}");
    }

    #[test]
    fn the_arm_goes_one_way_and_starts_again() {
        let places = [500 << 20, 100 << 20, 300 << 20, 900 << 20, 0];
        let requests: Vec<_> = places.iter().map(|offset| (*offset, 4096)).collect();
        let order: Vec<u64> = times_of(&requests).iter().map(|(id, _)| *id).collect();
        assert_eq!(order, [0, 3, 4, 1, 2], "the first one began at once; then forwards");
    }
}
