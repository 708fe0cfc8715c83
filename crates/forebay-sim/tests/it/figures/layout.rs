//! Writes of caches to their flash devices, and their effects there.
//!
//! A *layout* is a cache that is driven by a [`Load`] and reports its writes and trims; [`measure`]
//! feeds these to models of devices. The devices are full: every page was written before.
//! [`ForebayLog`] is the engine itself, in virtual time, in front of a fast disk.
//!
//! Clients do not wait for each other: requests come in bursts, at a rate that a cache can keep up
//! with, so that destage is no bottleneck and each layout serves the same requests at the same
//! times.
//!
//! Invariant: a run is deterministic, on every machine.

use super::arm::{ArmDisk, ArmTimes};
use super::machine::{CacheChange, Flash, Machine, Reply, Setup};
use super::zipf::Zipf;
use forebay_core::{EngineConfig, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_models::flash::ftl::{Ftl, FtlStats};
use forebay_sim::rng::Rng;

/// Bytes of a page of the devices: their unit of mapping.
pub const PAGE: u64 = BLOCK_BYTES as u64;
/// The flash device: an ordinary drive, 4 KiB in 80 us, 1 GB/s.
pub const FLASH: Flash =
    Flash { op_ns: 80_000, block_ns: 4_096, each_ns: 0, flush_ns: 500_000, shared: true };
/// Latency of any request to the disk, in nanoseconds.
pub const DISK_NS: u64 = 100_000;
/// Limit of requests in flight, beyond which clients wait.
pub const OPEN_MAX: usize = 256;
/// Bursts between two checks of the bytes written.
const ROUND: u64 = 16;
/// Skew of Zipf's law.
const THETA: f64 = 1.1;

/// An operation of a cache on its flash device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashOp {
    /// Writes this range, in bytes.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Releases this range, in bytes.
    Trim {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// The load of clients.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// Blocks of 4 KiB of a request, which is aligned to them.
    pub blocks: u32,
    /// Percentage of reads.
    pub reads_pct: u64,
    /// Requests are drawn by Zipf's law with a skew of 1.1, not uniformly.
    pub skewed: bool,
}

/// The workloads to compare.
pub const WORKLOADS: [Workload; 4] = [
    Workload { name: "uniform-4k", blocks: 1, reads_pct: 0, skewed: false },
    Workload { name: "zipf-4k", blocks: 1, reads_pct: 0, skewed: true },
    Workload { name: "zipf-16k", blocks: 4, reads_pct: 0, skewed: true },
    Workload { name: "mix-16k", blocks: 4, reads_pct: 70, skewed: true },
];

/// The arrival times of requests.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalRate {
    /// Requests per burst, at least one.
    pub burst: u32,
    /// Blocks of 4 KiB per second, at least one.
    pub blocks_per_s: u32,
}

impl Default for ArrivalRate {
    fn default() -> Self {
        Self { burst: 16, blocks_per_s: 8_000 }
    }
}

/// Requests of a [`Workload`] over a volume, one after the other.
#[derive(Clone, Debug)]
pub struct Load {
    workload: Workload,
    arrivals: ArrivalRate,
    positions: u64,
    zipf: Zipf,
    rng: Rng,
    /// Bytes written so far.
    pub written_bytes: u64,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Whether it is a read.
    pub is_read: bool,
    /// First block of 4 KiB.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl Load {
    /// Creates a load over a volume of this many bytes.
    #[must_use]
    pub fn new(workload: Workload, volume_bytes: u64, arrivals: ArrivalRate, seed: u64) -> Self {
        let positions = volume_bytes / PAGE / u64::from(workload.blocks);
        let zipf = Zipf::new(positions, THETA);
        Self { workload, arrivals, positions, zipf, rng: Rng::new(seed), written_bytes: 0 }
    }

    /// Returns the time between two bursts, in nanoseconds.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        let blocks = u64::from(self.arrivals.burst) * u64::from(self.workload.blocks);
        blocks * 1_000_000_000 / u64::from(self.arrivals.blocks_per_s)
    }

    /// Returns the next burst.
    pub fn next_burst(&mut self) -> Vec<Ask> {
        (0..self.arrivals.burst).map(|_| self.next_ask()).collect()
    }

    fn next_ask(&mut self) -> Ask {
        let is_read = self.rng.below(100) < self.workload.reads_pct;
        let position = if self.workload.skewed {
            self.zipf.block(&mut self.rng)
        } else {
            self.rng.below(self.positions)
        };
        let blocks = self.workload.blocks;
        self.written_bytes += if is_read { 0 } else { u64::from(blocks) * PAGE };
        Ask { is_read, block: position * u64::from(blocks), blocks }
    }
}

/// A cache, as seen by its flash device.
pub trait Layout {
    /// Serves this many bursts of a load, each for [`Load::interval_ns`]. Passes the resulting
    /// writes to the flash device to `flash`, in order.
    fn serve(&mut self, load: &mut Load, bursts: u64, flash: &mut dyn FnMut(FlashOp));
    /// Returns the bytes of bypass writes so far, which went only to the disk.
    fn past_cache_bytes(&self) -> u64;
}

/// Sizes of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The flash device, in bytes.
    pub cache_bytes: u64,
    /// The volume, and the disk, in bytes.
    pub volume_bytes: u64,
    /// Blocks of a Forebay segment; `None`: as the size of the device suggests.
    pub segment_blocks: Option<u32>,
}

/// The effects of a layout on devices, after a warm-up.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes written by clients.
    pub user_bytes: u64,
    /// Bytes written to the flash device.
    pub device_bytes: u64,
    /// Bytes of bypass writes of clients.
    pub past_cache_bytes: u64,
    /// Counters of each device.
    pub devices: Vec<FtlStats>,
}

impl Outcome {
    /// Returns the bytes written by clients, and by the cache to the flash device.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.user_bytes - self.past_cache_bytes
    }

    /// Returns the bytes written to the flash device per byte that clients wrote without bypassing
    /// the cache.
    #[must_use]
    pub fn cache_amplification(&self) -> f64 {
        self.device_bytes as f64 / (self.cached_bytes() as f64).max(1.0)
    }
}

/// Lets a layout write `rounds` times the size of its flash device, twice: first to warm up, then
/// counted. All devices get the same operations.
pub fn measure(
    layout: &mut dyn Layout,
    load: &mut Load,
    device_bytes: u64,
    rounds: u64,
    devices: &mut [Ftl],
) -> Outcome {
    for device in &mut *devices {
        (0..(device_bytes / PAGE) as u32).for_each(|page| device.write(page));
    }
    let mut written = 0;
    let mut until = |target: u64, devices: &mut [Ftl]| {
        while written < target {
            layout.serve(load, ROUND, &mut |op| written += feed(devices, op));
        }
        Outcome {
            user_bytes: load.written_bytes,
            device_bytes: written,
            past_cache_bytes: layout.past_cache_bytes(),
            devices: devices.iter().map(Ftl::stats).collect(),
        }
    };
    let warm = until(rounds * device_bytes, devices);
    let all = until(warm.device_bytes + rounds * device_bytes, devices);
    Outcome {
        user_bytes: all.user_bytes - warm.user_bytes,
        device_bytes: all.device_bytes - warm.device_bytes,
        past_cache_bytes: all.past_cache_bytes - warm.past_cache_bytes,
        devices: all.devices.iter().zip(&warm.devices).map(|(all, warm)| all.since(warm)).collect(),
    }
}

/// Applies an operation to all devices. Returns the number of bytes written.
fn feed(devices: &mut [Ftl], op: FlashOp) -> u64 {
    let pages = |offset: u64, len: u64| (offset / PAGE) as u32..(offset + len).div_ceil(PAGE) as u32;
    // A partly trimmed page still holds valid data.
    let whole = |offset: u64, len: u64| offset.div_ceil(PAGE) as u32..((offset + len) / PAGE) as u32;
    for device in devices {
        match op {
            FlashOp::Write { offset, len } => pages(offset, len).for_each(|page| device.write(page)),
            FlashOp::Trim { offset, len } => whole(offset, len).for_each(|page| device.trim(page)),
        }
    }
    if let FlashOp::Write { len, .. } = op { len } else { 0 }
}

/// Forebay's engine.
pub struct ForebayLog {
    machine: Machine<ArmDisk>,
    /// Time of the next burst.
    next: u64,
    replies: Vec<Reply>,
}

impl ForebayLog {
    /// Creates a new cache in front of an empty volume.
    ///
    /// # Panics
    /// Panics if the sizes give no legal layout.
    #[must_use]
    pub fn new(sizes: &Sizes) -> Self {
        Self::with(sizes, PoolSettings::default())
    }

    /// The same with `discard_freed`.
    ///
    /// # Panics
    /// Panics if the sizes give no legal layout.
    #[must_use]
    pub fn discarding(sizes: &Sizes) -> Self {
        Self::with(sizes, PoolSettings { discard_freed: true, ..PoolSettings::default() })
    }

    fn with(sizes: &Sizes, pool: PoolSettings) -> Self {
        let setup = Setup {
            cache_bytes: sizes.cache_bytes,
            segment_blocks: sizes.segment_blocks,
            volume_bytes: sizes.volume_bytes,
            settings: VolumeSettings::default(),
            engine: EngineConfig { pool, ..EngineConfig::default() },
            flash: FLASH,
        };
        let mut disk = ArmDisk::new(sizes.volume_bytes, ArmTimes::default());
        disk.set_fast(Some(DISK_NS));
        let mut machine = Machine::new(&setup, vec![disk]);
        machine.cache_changes = Some(Vec::new());
        let next = machine.now;
        Self { machine, next, replies: Vec::new() }
    }

    fn pass_on(&mut self, flash: &mut dyn FnMut(FlashOp)) {
        for change in self.machine.cache_changes.replace(Vec::new()).unwrap_or_default() {
            flash(match change {
                CacheChange::Write { offset, len } => FlashOp::Write { offset, len },
                CacheChange::Discard { offset, len } => FlashOp::Trim { offset, len },
            });
        }
    }
}

impl Layout for ForebayLog {
    fn serve(&mut self, load: &mut Load, bursts: u64, flash: &mut dyn FnMut(FlashOp)) {
        for _ in 0..bursts {
            for ask in load.next_burst() {
                let kind = if ask.is_read { RequestKind::Read } else { RequestKind::Write { fua: false } };
                self.machine.submit_blocks(VolumeId(0), kind, ask.block, ask.blocks, Treatment::Cache);
            }
            self.machine.pump();
            self.next = self.next.max(self.machine.now) + load.interval_ns();
            while self.machine.step(self.next, None) {}
            self.machine.now = self.machine.now.max(self.next);
            self.machine.tick();
            while self.machine.open() > OPEN_MAX {
                assert!(self.machine.step(u64::MAX, None), "requests are open, and nothing goes on");
            }
            self.machine.take_replies(&mut self.replies);
            self.pass_on(flash);
        }
    }

    fn past_cache_bytes(&self) -> u64 {
        self.machine.engine.stats().write_bypass_blocks * PAGE
    }
}
