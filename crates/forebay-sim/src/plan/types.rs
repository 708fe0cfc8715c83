//! The plan of a run as data, with queries for all parts of the simulator.

use crate::device::{Death, Faults, Latency};
use crate::rng::Rng;
use forebay_core::{DestageOrder, EngineConfig, VolumeSettings};
use forebay_crypt::CacheCipher;
use forebay_format::checkpoint::Mode;
use forebay_format::{CacheUuid, Encryption, Geometry};
use std::sync::Arc;

/// How crashes occur in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// The main line never crashes; the simulator explores crashed copies of its devices
    /// separately.
    Fork,
    /// The main line itself crashes, again and again.
    InLine,
}

/// Faults of a run besides crashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// Rates for the cache device.
    pub cache: Faults,
    /// Rates for the backing stores.
    pub backing: Faults,
    /// Sectors of the cache device that rot, in parts per million of requests.
    pub rot: u32,
    /// Sectors of the cache device that become unreadable, in parts per million of requests.
    pub spoil: u32,
}

impl FaultPlan {
    /// Returns true if the cache device may lose or change acknowledged bytes.
    #[must_use]
    pub fn damages(&self) -> bool {
        self.rot > 0 || self.spoil > 0 || self.cache.lost > 0 || self.cache.misdirected > 0
    }
}

/// The owner's reaction when the engine requests a record of a cache failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerPlan {
    /// It writes the record.
    Records,
    /// It cannot at first, and tries again.
    Later,
    /// It always fails.
    Never,
}

/// Relative frequencies of requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Writes.
    pub write: u32,
    /// Flushes.
    pub flush: u32,
    /// Discards and zeroes.
    pub zero: u32,
    /// Prefetches.
    pub prefetch: u32,
    /// Changes of mode.
    pub mode: u32,
    /// Changes of other settings, of volumes and of the pool.
    pub tune: u32,
    /// Drains begun or ended.
    pub drain: u32,
    /// Sweeps that the operator starts: pins released, clean blocks forgotten.
    pub sweep: u32,
    /// Pauses long enough for idle destage.
    pub pause: u32,
    /// Requests that must be refused.
    pub invalid: u32,
    /// Orderly stops and starts.
    pub restart: u32,
    /// Volumes attached, detached and resized.
    pub lifecycle: u32,
    /// The pool grown or shrunk.
    pub pool: u32,
    /// Scrubs begun and ended.
    pub scrub: u32,
    /// Percentage of writes and zeroes with FUA.
    pub fua_pct: u64,
    /// Percentage of requests that are not whole blocks but whole sectors.
    pub sector_pct: u64,
    /// Percentage of requests that are not even whole sectors.
    pub byte_pct: u64,
    /// Percentage of requests with a treatment by a rule.
    pub rule_pct: u64,
    /// Percentage of requests of many blocks.
    pub large_pct: u64,
    /// One request in this many to a sparse volume has up to 32 MiB, and one discard or zeroing in
    /// this many covers its volume; 0: none.
    pub huge_of: u64,
    /// Percentage of requests that go to a few hot blocks.
    pub hot_pct: u64,
    /// Percentage of requests that continue where the last one ended.
    pub run_pct: u64,
}

/// One volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumePlan {
    /// Size at the start.
    pub bytes: u64,
    /// Size of the backing store: the limit of growth.
    pub bytes_max: u64,
    /// Smallest unit of writes of the backing store.
    pub sector_bytes: u32,
    /// Mode at the start.
    pub mode: Mode,
}

/// Large dimensions of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Nothing.
    Small,
    /// Some hundreds of small segments: a long window, lists of victims, checkpoints of several
    /// blocks.
    Wide,
    /// Segments have 1,024 blocks: full batches, summaries of several blocks.
    Long,
    /// Some hundreds of segments of 1,024 blocks, more than the run can fill.
    Real,
}

/// Failures of the members in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorPlan {
    /// After this many requests this member fails, in this way; `None`: the owner only reports that
    /// it is gone.
    pub failures: Vec<(u64, usize, Option<Death>)>,
    /// Rates of the faults of each member.
    pub faults: [Faults; 2],
    /// Members whose sectors rot or become unreadable.
    pub harms: [bool; 2],
    /// Sectors of those members that rot, in parts per million of requests.
    pub rot: u32,
    /// Sectors of those members that become unreadable, in parts per million of requests.
    pub spoil: u32,
    /// Writes to either member that fail while a cache is opened after a crash, in parts per
    /// million.
    pub opening_errors: u32,
    /// Of the requests made while a member is out, one in this many replaces it; 0: none does.
    pub replaces_of: u64,
    /// At one start in this many a member is missing; 0: never.
    pub misses_of: u64,
}

/// Copies of the cache device, or of members, onto others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// After this many requests of a world the next copy begins, if it can.
    pub starts: Vec<u64>,
    /// Most bytes that are copied at once.
    pub chunk_bytes: u64,
    /// Longest pause between two steps, in nanoseconds.
    pub pause_ns_max: u64,
    /// Longest time that a change of the configuration takes, in nanoseconds.
    pub naming_ns_max: u64,
    /// Steps before which the operator cancels the copy, in parts per million of steps.
    pub cancel_ppm: u32,
    /// Faults of the new devices.
    pub faults: Faults,
    /// The faults begin only once the new device counts.
    pub begins_late: bool,
}

/// The cache device's handling of discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiscardPlan {
    /// It does not support them.
    pub refuses: bool,
    /// Discards that fail, in parts per million.
    pub error_ppm: u32,
    /// Longest time added to the time of a write, in nanoseconds.
    pub ns_max: u64,
}

/// Operations that the owner starts late: frequency and delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LateStartPlan {
    /// Percentage of operations.
    pub pct: u64,
    /// Longest time, in nanoseconds.
    pub ns_max: u64,
}

/// The device that ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TruncatedDevice {
    /// The cache device, not mirrored.
    Cache,
    /// The backing store of a volume.
    Backing(usize),
    /// A member of a mirrored cache.
    Member(usize),
}

/// A temporary truncation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TruncationPlan {
    /// Begins after this many requests of a main line.
    pub at: u64,
    /// The device.
    pub what: TruncatedDevice,
    /// The part of it that is left, in percent.
    pub kept_pct: u64,
    /// It is an unplugged backing store: it comes back as another device, and may lack unflushed
    /// data.
    pub unplugged: bool,
    /// Duration, in nanoseconds.
    pub ns: u64,
}

/// A device that is slow for all operations, for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StallPlan {
    /// Begins after this many requests of a main line.
    pub at: u64,
    /// The device.
    pub device: usize,
    /// Reads are not slow.
    pub spares_reads: bool,
    /// Duration, in nanoseconds: operations that begin meanwhile end after it.
    pub ns: u64,
}

/// The cipher of an encrypted cache, and its description in the superblock.
#[derive(Clone, Debug)]
pub struct CipherPlan {
    pub(crate) cipher: Arc<CacheCipher>,
    pub(crate) mark: Encryption,
}

/// Properties of a run that a bug needs in addition to its situation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A cache on two members; the situation is applied once they are drawn.
    Mirror,
    /// An encrypted cache.
    Cipher,
    /// An owner that starts operations late.
    LateStarts,
    /// A backing store that is too short for a while.
    ShortBacking,
    /// A backing store that is unplugged for a while.
    UnpluggedBacking,
    /// A cache device that is too short for a while.
    ShortCache,
    /// A cache device that cannot be read for a while.
    Outage,
    /// Segments of 1,024 blocks.
    LongSegments,
    /// Volumes of several intent regions.
    Regions,
    /// Checkpoints that are chains.
    Chain,
    /// A cache device that gets discards for empty segments.
    Discards,
    /// Crashes that damage both copies of a window extension.
    LostExtensions,
    /// A cache device that is copied onto another one.
    Copies,
    /// A cache device that is copied, with a new one that fails once it counts.
    FailingCopies,
    /// Members of a mirrored cache that are copied onto others.
    MirroredCopies,
    /// Another kind of test: no plan reveals it.
    OtherTest,
}

/// A change of a plan.
pub(crate) type Situation = fn(&mut Plan, &mut Rng);

/// The whole plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Whether crashes are explored separately or occur in the main line.
    pub style: Style,
    /// Large dimensions.
    pub scale: Scale,
    /// Layout of the cache device.
    pub geometry: Geometry,
    /// Size of the cache device.
    pub cache_bytes: u64,
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Identity of the machine that the backing stores are on.
    pub identity: u64,
    /// Volumes.
    pub volumes: Vec<VolumePlan>,
    /// Modes that occur.
    pub modes: Vec<Mode>,
    /// Orders of destage that occur.
    pub orders: Vec<DestageOrder>,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// Settings of the volumes at the start, apart from the mode.
    pub settings: VolumeSettings,
    /// Latencies of the cache device.
    pub cache_latency: Latency,
    /// Latencies of the backing stores.
    pub backing_latency: Latency,
    /// Faults.
    pub faults: FaultPlan,
    /// The cache device dies after this many requests of a main line, in this way.
    pub death: Option<(u64, Death)>,
    /// After this many requests of a main line no cached block is readable, for this many
    /// nanoseconds: a path that fails over.
    pub outage: Option<(u64, u64)>,
    /// Temporary truncations of devices, in this order.
    pub truncations: Vec<TruncationPlan>,
    /// Temporary stalls of devices, in this order.
    pub stalls: Vec<StallPlan>,
    /// Each start draws new engine settings, as with another build or another configuration.
    pub redraws: bool,
    /// The flush epoch of ordered volumes at the start.
    pub first_flush_epoch: u64,
    /// The clock restarts after a power cut.
    pub clock_restarts: bool,
    /// Time between two of the owner's records of the cache's progress; 0: it is always up to date,
    /// so that a wrong refusal of a cache is noticed.
    pub record_lag_ns: u64,
    /// One crash in this many damages both copies of a window extension; 0: none does.
    pub lost_extensions_of: u64,
    /// The cache device's handling of discards.
    pub discards: DiscardPlan,
    /// The owner cannot start some operations at once.
    pub late_starts: Option<LateStartPlan>,
    /// The cache is mirrored over two devices, with these failures.
    pub mirror: Option<MirrorPlan>,
    /// Copies of the cache device, or of members, onto others.
    pub copies: Option<CopyPlan>,
    /// The cache is encrypted.
    pub cipher: Option<CipherPlan>,
    /// The owner's reaction to a fenced cache.
    pub owner: OwnerPlan,
    /// Failed flushes of backing stores drop bypass writes, too.
    pub drops_past: bool,
    /// Requests of the main line.
    pub requests: u32,
    /// Requests in flight.
    pub depth: usize,
    /// One crash point in this many is taken.
    pub sample: u64,
    /// Frequencies of requests.
    pub mix: Mix,
}

impl Plan {
    /// Returns the size of the longest cache device that occurs: twice the segments.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        if self.mirror.is_some() {
            return self.cache_bytes;
        }
        self.cache_bytes + u64::from(self.geometry.segment_count) * self.geometry.segment_bytes()
    }

    /// Returns true if volumes may be destaged in order.
    #[must_use]
    pub fn may_order(&self) -> bool {
        self.orders.contains(&DestageOrder::Ordered)
    }

    /// Returns true if no mode of this run leaves acknowledged data only in the cache.
    #[must_use]
    pub fn writes_past(&self) -> bool {
        let past = [Mode::Writethrough, Mode::Writearound, Mode::Passthrough];
        self.modes.iter().all(|mode| past.contains(mode))
    }
}
