//! The plan of a run as data, and the questions that every part of the simulator asks of it.

use crate::device::{Death, Faults, Latency};
use crate::rng::Rng;
use forebay_core::{DestageOrder, EngineConfig, VolumeSettings};
use forebay_crypt::CacheCipher;
use forebay_format::checkpoint::Mode;
use forebay_format::{CacheUuid, Encryption, Geometry};
use std::sync::Arc;

/// How crashes come about in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// The main line never crashes; crashed copies of its devices are explored on the side.
    Fork,
    /// The main line itself crashes, again and again.
    InLine,
}

/// Which kinds of faults a run has besides crashes.
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
    /// True if the cache device may lose or change bytes that it has acknowledged.
    #[must_use]
    pub fn damages(&self) -> bool {
        self.rot > 0 || self.spoil > 0 || self.cache.lost > 0 || self.cache.misdirected > 0
    }
}

/// What the owner does when the engine asks it to record that the cache failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerPlan {
    /// It makes the record.
    Records,
    /// It cannot at first, and tries again.
    Later,
    /// It never can.
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
    /// Walks that an operator asks for: pins released, clean blocks forgotten.
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
    /// Percentage of requests that a rule treats in a way of its own.
    pub rule_pct: u64,
    /// Percentage of requests of many blocks.
    pub large_pct: u64,
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
    /// Size of the backing store: as far as it can grow.
    pub bytes_max: u64,
    /// Smallest unit that the backing store writes.
    pub sector_bytes: u32,
    /// Mode at the start.
    pub mode: Mode,
}

/// What is large in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Nothing.
    Small,
    /// There are some hundreds of small segments: a long window, lists of victims, checkpoints of
    /// several blocks.
    Wide,
    /// Segments have 1,024 blocks: full batches, summaries of several blocks.
    Long,
    /// There are some hundreds of segments of 1,024 blocks, more than the run can fill.
    Real,
}

/// What happens to the members in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorPlan {
    /// After so many requests this member fails, in this way; `None`: the owner only says that it
    /// is gone.
    pub failures: Vec<(u64, usize, Option<Death>)>,
    /// Rates of the faults of each member.
    pub faults: [Faults; 2],
    /// Members whose sectors rot or become unreadable.
    pub harms: [bool; 2],
    /// Sectors of those that rot, in parts per million of requests.
    pub rot: u32,
    /// Sectors of those that become unreadable, in parts per million of requests.
    pub spoil: u32,
    /// Writes to either member that fail while a cache is opened after a crash, in parts per
    /// million.
    pub opening_errors: u32,
    /// Of the requests made while a member is out, one in so many replaces it; 0: none does.
    pub replaces_of: u64,
    /// At one start in so many a member is missing; 0: never.
    pub misses_of: u64,
}

/// The cache device, or members, are copied onto others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// After so many requests of a world the next one begins, if it can.
    pub starts: Vec<u64>,
    /// Most bytes that are copied at once.
    pub chunk_bytes: u64,
    /// Longest pause between two steps, in nanoseconds.
    pub pause_ns_max: u64,
    /// Longest time that a change of the configuration takes, in nanoseconds.
    pub naming_ns_max: u64,
    /// Steps before which the operator cancels the copy, in parts per million.
    pub cancel_ppm: u32,
    /// Faults of the new devices.
    pub faults: Faults,
    /// They begin when the new device counts.
    pub begins_late: bool,
}

/// How the cache device takes discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiscardPlan {
    /// It does not have them.
    pub refuses: bool,
    /// Those that fail, in parts per million.
    pub error_ppm: u32,
    /// Longest time that is added to the time of a write, in nanoseconds.
    pub ns_max: u64,
}

/// How often the owner cannot, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LateStartPlan {
    /// Percentage of operations.
    pub pct: u64,
    /// Longest time, in nanoseconds.
    pub ns_max: u64,
}

/// Which device ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TruncatedDevice {
    /// The cache device, which is not mirrored.
    Cache,
    /// The backing store of a volume.
    Backing(usize),
    /// A member of a mirrored cache.
    Member(usize),
}

/// A device ends for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TruncationPlan {
    /// After so many requests of a main line.
    pub at: u64,
    /// Which one.
    pub what: TruncatedDevice,
    /// How much of it is left, in percent.
    pub kept_pct: u64,
    /// It is a backing store that is unplugged: it comes back as another device, and may lack what
    /// it had not flushed.
    pub unplugged: bool,
    /// For so long.
    pub ns: u64,
}

/// A device takes long for everything, for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StallPlan {
    /// After so many requests of a main line.
    pub at: u64,
    /// Which one.
    pub device: usize,
    /// Reads do not take long.
    pub spares_reads: bool,
    /// What begins meanwhile ends after that, in nanoseconds.
    pub ns: u64,
}

/// The cipher of an encrypted cache, and what its superblock says of it.
#[derive(Clone, Debug)]
pub struct CipherPlan {
    pub(crate) cipher: Arc<CacheCipher>,
    pub(crate) mark: Encryption,
}

/// What a run has to have for a bug, beside the situation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A cache on two members; the situation is made once they are drawn.
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
    /// A cache device that is told which segments hold nothing.
    Discards,
    /// Crashes that damage both copies of an extension of the window.
    LostExtensions,
    /// A cache device that is copied onto another one.
    Copies,
    /// The same, and the new one fails when it counts.
    FailingCopies,
    /// Members of a mirrored cache that are copied onto others.
    MirroredCopies,
    /// A test of another kind: no plan shows it.
    OtherTest,
}

/// A change of a plan.
pub(crate) type Situation = fn(&mut Plan, &mut Rng);

/// The whole plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Crashes beside the main line or in it.
    pub style: Style,
    /// What is of real size.
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
    /// Times of the cache device.
    pub cache_latency: Latency,
    /// Times of the backing stores.
    pub backing_latency: Latency,
    /// Faults.
    pub faults: FaultPlan,
    /// After so many requests of a main line the cache device dies, and how.
    pub death: Option<(u64, Death)>,
    /// After so many requests of a main line no cached block can be read, for so many nanoseconds:
    /// a path that fails over.
    pub outage: Option<(u64, u64)>,
    /// Devices that end for a while, in this order.
    pub truncations: Vec<TruncationPlan>,
    /// Devices that take long for a while, in this order.
    pub stalls: Vec<StallPlan>,
    /// The settings of the engine are drawn anew at each start, as those of another build or
    /// another configuration.
    pub redraws: bool,
    /// The flush epoch of ordered volumes at the start.
    pub first_flush_epoch: u64,
    /// The clock begins anew after a power cut.
    pub clock_restarts: bool,
    /// One crash in so many leaves both copies of an extension of the window damaged; 0: none does.
    pub lost_extensions_of: u64,
    /// How the cache device takes discards.
    pub discards: DiscardPlan,
    /// The owner cannot start some operations at once.
    pub late_starts: Option<LateStartPlan>,
    /// The cache is mirrored over two devices, and this happens to them.
    pub mirror: Option<MirrorPlan>,
    /// The cache device, or members, are copied onto others.
    pub copies: Option<CopyPlan>,
    /// The cache is encrypted.
    pub cipher: Option<CipherPlan>,
    /// What the owner does then, and whenever the cache is fenced.
    pub owner: OwnerPlan,
    /// Failed flushes of backing stores drop what was written past the cache, too.
    pub drops_past: bool,
    /// Requests of the main line.
    pub requests: u32,
    /// Requests in flight.
    pub depth: usize,
    /// Crash points taken of so many that pass by, one in ...
    pub sample: u64,
    /// Frequencies.
    pub mix: Mix,
}

impl Plan {
    /// The longest cache device that occurs: twice the segments.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        if self.mirror.is_some() {
            return self.cache_bytes;
        }
        self.cache_bytes + u64::from(self.geometry.segment_count) * self.geometry.segment_bytes()
    }

    /// True if volumes may be destaged in order.
    #[must_use]
    pub fn may_order(&self) -> bool {
        self.orders.contains(&DestageOrder::Ordered)
    }

    /// True if no mode of this run keeps acknowledged data in the cache only.
    #[must_use]
    pub fn writes_past(&self) -> bool {
        let past = [Mode::Writethrough, Mode::Writearound, Mode::Passthrough];
        self.modes.iter().all(|mode| past.contains(mode))
    }
}
