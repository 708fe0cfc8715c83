//! Writes of caches to their flash devices, and what those do because of them.
//!
//! A *layout* is a cache that is driven by a [`Load`] and says what it writes and trims;
//! [`measure`] feeds that to models of devices. The devices are full: everything was written
//! before. [`ForebayLog`] is the engine itself, in virtual time, in front of a disk that is not
//! slow.
//!
//! Clients do not wait for each other: requests come in bursts, at a rate that a cache can keep up
//! with, so that its destage limits nothing and each layout serves the same requests at the same
//! times.
//!
//! Invariant: a run is the same every time, on every machine.

use super::arm::{ArmDisk, ArmTimes};
use super::machine::{CacheChange, Flash, Machine, Reply, Setup};
use super::zipf::Zipf;
use forebay_core::{EngineConfig, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::flash::ftl::{Ftl, FtlStats};
use forebay_sim::rng::Rng;

/// Bytes of a page of the devices: what they map by itself.
pub const PAGE: u64 = BLOCK_BYTES as u64;
/// What the flash device takes: an ordinary drive, 4 KiB in 80 us, 1 GB/s.
pub const FLASH: Flash =
    Flash { op_ns: 80_000, block_ns: 4_096, each_ns: 0, flush_ns: 500_000, shared: true };
/// What the disk takes for any request, in nanoseconds.
pub const DISK_NS: u64 = 100_000;
/// Requests that may be open: clients wait while there are more.
pub const OPEN_MAX: usize = 256;
/// Bursts between two looks at how much was written.
const ROUND: u64 = 16;
/// Skew of what is drawn by Zipf's law.
const THETA: f64 = 1.1;

/// What a cache does to its flash device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashOp {
    /// Writes this range, in bytes.
    Write {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Does not need this range any more, in bytes.
    Trim {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
}

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// As people type it.
    pub name: &'static str,
    /// Blocks of 4 KiB of a request, which is aligned to them.
    pub blocks: u32,
    /// So many of a hundred requests are reads.
    pub reads_pct: u64,
    /// Requests are drawn by Zipf's law with a skew of 1.1, not uniformly.
    pub skewed: bool,
}

/// The workloads that are compared.
pub const WORKLOADS: [Workload; 4] = [
    Workload { name: "uniform-4k", blocks: 1, reads_pct: 0, skewed: false },
    Workload { name: "zipf-4k", blocks: 1, reads_pct: 0, skewed: true },
    Workload { name: "zipf-16k", blocks: 4, reads_pct: 0, skewed: true },
    Workload { name: "mix-16k", blocks: 4, reads_pct: 70, skewed: true },
];

/// When requests come.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalRate {
    /// Requests at a time, at least one.
    pub burst: u32,
    /// Blocks of 4 KiB in a second, at least one.
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
    /// Bytes that were written so far.
    pub written_bytes: u64,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// It reads.
    pub is_read: bool,
    /// First block of 4 KiB.
    pub block: u64,
    /// How many.
    pub blocks: u32,
}

impl Load {
    /// Over a volume of so many bytes.
    #[must_use]
    pub fn new(workload: Workload, volume_bytes: u64, arrivals: ArrivalRate, seed: u64) -> Self {
        let positions = volume_bytes / PAGE / u64::from(workload.blocks);
        let zipf = Zipf::new(positions, THETA);
        Self { workload, arrivals, positions, zipf, rng: Rng::new(seed), written_bytes: 0 }
    }

    /// Time between two bursts, in nanoseconds.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        let blocks = u64::from(self.arrivals.burst) * u64::from(self.workload.blocks);
        blocks * 1_000_000_000 / u64::from(self.arrivals.blocks_per_s)
    }

    /// The next burst.
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

/// A cache, as far as its flash device is concerned.
pub trait Layout {
    /// Serves so many bursts of a load, each for [`Load::interval_ns`]. What that writes to the
    /// flash device goes to `flash`, in order.
    fn serve(&mut self, load: &mut Load, bursts: u64, flash: &mut dyn FnMut(FlashOp));
    /// Bytes that clients wrote past the cache so far, to the disk alone.
    fn past_cache_bytes(&self) -> u64;
}

/// Sizes of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The flash device.
    pub cache_bytes: u64,
    /// The volume, and the disk.
    pub volume_bytes: u64,
    /// Segments of Forebay, if not as the size of the device suggests.
    pub segment_blocks: Option<u32>,
}

/// What a layout made devices do, after a warm-up.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Written by clients.
    pub user_bytes: u64,
    /// Written to the flash device.
    pub device_bytes: u64,
    /// Of what clients wrote: past the cache.
    pub past_cache_bytes: u64,
    /// For each device.
    pub devices: Vec<FtlStats>,
}

impl Outcome {
    /// Written by clients, and by the cache to the flash device.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.user_bytes - self.past_cache_bytes
    }

    /// Bytes written to the flash device for each that clients wrote and that did not go past the
    /// cache.
    #[must_use]
    pub fn cache_amplification(&self) -> f64 {
        self.device_bytes as f64 / (self.cached_bytes() as f64).max(1.0)
    }
}

/// Has a layout write `rounds` times as much as its flash device holds, twice: first to warm up,
/// then counted. All devices see the same.
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

/// Returns how many bytes were written.
fn feed(devices: &mut [Ftl], op: FlashOp) -> u64 {
    let pages = |offset: u64, len: u64| (offset / PAGE) as u32..(offset + len).div_ceil(PAGE) as u32;
    // Of a page that is trimmed in part something counts.
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
    /// When the next burst comes.
    next: u64,
    replies: Vec<Reply>,
}

impl ForebayLog {
    /// A new cache in front of an empty volume.
    ///
    /// # Panics
    /// If the sizes make no legal layout.
    #[must_use]
    pub fn new(sizes: &Sizes) -> Self {
        Self::with(sizes, PoolSettings::default())
    }

    /// The same with `discard_freed`.
    ///
    /// # Panics
    /// If the sizes make no legal layout.
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
