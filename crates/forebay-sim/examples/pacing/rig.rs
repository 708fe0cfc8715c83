//! The engine between clients with a steady load and an emulated 7200 rpm disk, in virtual time
//! ([`crate::figures::machine`]).
//!
//! Two volumes, each on its own disk ([`forebay_models::hdd::HddModel`], 1 GiB with the seeks of a
//! whole disk); clients use the first one, the second is for single requests of tests. The cache
//! device takes 80 us and 2 us a block, regardless of concurrency. A run is deterministic.

use crate::figures::machine::{Disk, DiskOp, Flash, Machine, Reply, Setup};
use forebay_core::{Drain, EngineConfig, Limit, RequestKind, Treatment, VolumeSettings};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_models::hdd::{HddModel, HddOp};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of the volume and the disk.
pub(crate) const VOLUME_BYTES: u64 = 1 << 30;
/// Size of the cache device.
pub(crate) const CACHE_BYTES: u64 = 256 << 20;
pub(crate) const SECOND: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);
/// Volumes, and disks.
const VOLUMES: u16 = 2;
const FLASH: Flash = Flash { op_ns: 80_000, block_ns: 2_000, each_ns: 0, flush_ns: 300_000, shared: false };
/// Limit of writes in flight of an open-loop writer.
const WRITES_OPEN_MAX: usize = 256;

/// The load of clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Writes of one random block per second, whether or not earlier ones have been answered.
    pub(crate) writes_per_s: u64,
    /// Readers of random blocks that are not cached, each with one request at a time.
    pub(crate) readers: u32,
}

/// One second of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_s: u64,
    pub(crate) writes: u64,
    pub(crate) write_ns: Vec<u64>,
    pub(crate) reads: u64,
    pub(crate) read_ns: Vec<u64>,
    pub(crate) backing_blocks: u64,
    pub(crate) dirty_blocks: u64,
    pub(crate) oldest_age_ns: u64,
    pub(crate) limited_by: Limit,
    pub(crate) target: Option<u64>,
}

/// Adapts the disk of `forebay-io` to the machine.
pub(crate) struct Hdd(pub(crate) HddModel);

impl Disk for Hdd {
    fn submit(&mut self, now: u64, id: u64, op: DiskOp, offset: u64, len: u64) {
        let op = match op {
            DiskOp::Read => HddOp::Read,
            DiskOp::Write => HddOp::Write,
            DiskOp::Flush => HddOp::Flush,
        };
        self.0.submit(now, id, op, offset, len);
    }

    fn next_event(&self) -> Option<u64> {
        self.0.next_event()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        self.0.advance(now, done);
    }
}

/// The whole set-up.
pub(crate) struct Rig {
    pub(crate) machine: Machine<Hdd>,
    pub(crate) load: Load,
    pub(crate) samples: Vec<Sample>,
    reading: u32,
    next_write: u64,
    seed: u64,
    current: Sample,
    replies: Vec<Reply>,
}

impl Rig {
    /// Creates a rig with a new cache in front of the disk.
    pub(crate) fn new(settings: VolumeSettings) -> Self {
        let setup = Setup {
            cache_bytes: CACHE_BYTES,
            segment_blocks: Some(256),
            volume_bytes: VOLUME_BYTES,
            settings,
            engine: EngineConfig { scratch_blocks: 8192, ..EngineConfig::default() },
            flash: FLASH,
        };
        let disks = (0..VOLUMES).map(|_| Hdd(HddModel::new(VOLUME_BYTES))).collect();
        let mut rig = Self {
            machine: Machine::new(&setup, disks),
            load: Load::default(),
            samples: Vec::new(),
            reading: 0,
            next_write: 0,
            seed: 0x9e37_79b9,
            current: Sample::default(),
            replies: Vec::new(),
        };
        let start = rig.machine.now.next_multiple_of(SECOND);
        rig.run_until(start);
        rig.samples.clear();
        rig
    }

    /// Lets the first disk fail every write, or none, from now on.
    pub(crate) fn set_failing(&mut self, failing: bool) {
        self.machine.failing = failing;
    }

    pub(crate) fn set_drain(&mut self, drain: Drain) {
        self.machine.engine.set_drain(self.machine.now, VOLUME, drain);
        self.machine.pump();
    }

    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.machine.engine.dirty_blocks(VOLUME)
    }

    /// Runs for this many seconds with a load.
    pub(crate) fn run(&mut self, load: Load, seconds: u64) {
        self.load = load;
        self.next_write = self.next_write.max(self.machine.now);
        while self.reading < load.readers {
            self.read();
        }
        for _ in 0..seconds {
            let end = self.machine.now / SECOND * SECOND + SECOND;
            self.run_until(end);
        }
    }

    /// Runs until this time and takes a sample.
    pub(crate) fn run_until(&mut self, end: u64) {
        while self.step(end) {}
        self.machine.now = end;
        self.machine.tick();
        let report = self.machine.engine.destage_report(VOLUME).expect("attached");
        let mut sample = std::mem::take(&mut self.current);
        sample.at_s = end / SECOND;
        sample.backing_blocks = std::mem::take(&mut self.machine.backing_blocks);
        sample.dirty_blocks = report.dirty_blocks;
        sample.oldest_age_ns = report.oldest_dirty_age;
        (sample.limited_by, sample.target) = (report.limited_by, report.target_blocks_per_s);
        self.samples.push(sample);
    }

    /// Lets the next event before `end` happen.
    fn step(&mut self, end: u64) -> bool {
        let write = (self.load.writes_per_s > 0).then_some(self.next_write);
        if !self.machine.step(end, write) {
            return false;
        }
        if write.is_some_and(|at| at <= self.machine.now) {
            self.next_write += SECOND / self.load.writes_per_s;
            if self.machine.open() < WRITES_OPEN_MAX {
                let block = self.random_block();
                self.write_block(VOLUME, block);
            }
        }
        self.take_replies();
        true
    }

    fn take_replies(&mut self) {
        let mut replies = std::mem::take(&mut self.replies);
        self.machine.take_replies(&mut replies);
        for reply in &replies {
            if reply.is_read {
                self.current.reads += 1;
                self.current.read_ns.push(reply.took);
                self.reading -= 1;
                if self.reading < self.load.readers {
                    self.read();
                }
            } else {
                self.current.writes += 1;
                self.current.write_ns.push(reply.took);
            }
        }
        self.replies = replies;
    }

    fn random_block(&mut self) -> u64 {
        // Knuth's MMIX generator; its high bits are good enough for places on a disk.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % (VOLUME_BYTES / BLOCK)
    }

    /// Writes one block.
    pub(crate) fn write_block(&mut self, volume: VolumeId, block: u64) {
        self.machine.submit(volume, RequestKind::Write { fua: false }, block, Treatment::Cache);
        self.machine.pump();
    }

    fn read(&mut self) {
        self.reading += 1;
        let block = self.random_block();
        self.machine.submit(VOLUME, RequestKind::Read, block, Treatment::Bypass);
        self.machine.pump();
    }
}

/// Returns a quantile of latencies, in nanoseconds.
pub(crate) fn quantile(latencies: impl IntoIterator<Item = u64>, share: f64) -> u64 {
    let mut all: Vec<u64> = latencies.into_iter().collect();
    all.sort_unstable();
    all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Returns mean and coefficient of variation of sums over windows of ten seconds, per second.
pub(crate) fn evenness(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (f64, f64) {
    let windows: Vec<f64> =
        samples.chunks_exact(10).map(|window| window.iter().map(&of).sum::<u64>() as f64 / 10.0).collect();
    let mean = windows.iter().sum::<f64>() / windows.len() as f64;
    let variance = windows.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / windows.len() as f64;
    (mean, variance.sqrt() / mean)
}
