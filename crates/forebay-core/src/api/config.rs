//! Settings of the engine, and volumes to attach.

use crate::api::Nanos;
use crate::api::settings::{PoolSettings, VolumeSettings};
use alloc::string::String;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;

/// Settings that belong to the whole cache.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Blocks in the [`crate::api::SCRATCH`] buffer: bounds destage, fills, merges and relocation
    /// in flight.
    pub scratch_blocks: u32,
    /// What can be changed while the engine runs.
    pub pool: PoolSettings,
    /// How checkpoints are made.
    pub checkpoint: CheckpointConfig,
    /// Blocks of a discard, or of zeroes past the cache, that are dealt with at once: bounds the
    /// length of a call. The default is for everything but tests.
    pub zero_step_blocks: u64,
    /// Cached blocks are counted by stretches of so many blocks, a power of two of at most 1024: a
    /// walk over a long range passes over those that are empty. The default is for everything but
    /// tests.
    pub stretch_blocks: u64,
    /// Segments of fewer blocks end without a summary: it would take a thirtieth of them and more,
    /// and such a cache is read whole in a moment. The default is for everything but tests.
    pub summaries_from_blocks: u32,
    /// What the cache is known to hold durably, from a record outside of its device: one that holds
    /// less is not opened (I75).
    pub known: CacheMark,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scratch_blocks: 4096,
            pool: PoolSettings::default(),
            checkpoint: CheckpointConfig::default(),
            zero_step_blocks: 16384,
            stretch_blocks: 1024,
            summaries_from_blocks: 128,
            known: CacheMark::default(),
        }
    }
}

/// How checkpoints are made. The default is for everything but tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointConfig {
    /// Blocks of a base that are made and written at once: bounds the time that this takes.
    pub piece_blocks: u32,
    /// Pause between two of these pieces, so that other writes pass.
    pub piece_pause: Nanos,
    /// Caches whose whole checkpoint has so many blocks take increments; of the others it is made
    /// in one call. 64 blocks describe about 4 GiB, and take about a millisecond.
    pub chain_from_blocks: u64,
    /// Most blocks of all increments of a chain.
    pub chain_blocks_max: u64,
    /// Most changes of slots in an increment. A million take 8 MiB of memory, and are encoded in
    /// about a millisecond.
    pub changes_max: u32,
    /// A restart may read so many bytes of log, even if that is more than a sixteenth of the cache:
    /// checkpoints of small caches are so much rarer.
    pub log_bytes: u64,
    /// For tests: what the last snapshot means is kept, see [`crate::Engine::last_snapshot`].
    pub keep_snapshot: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            piece_blocks: 64,
            piece_pause: 2_000_000,
            chain_from_blocks: 64,
            chain_blocks_max: u64::MAX,
            changes_max: 1 << 20,
            log_bytes: 64 << 20,
            keep_snapshot: false,
        }
    }
}

/// How far a cache has come, as its device holds it durably. It only ever rises: whoever finds a
/// cache below a mark that was taken of it has an older copy, or a device that lost what it had
/// flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheMark {
    /// Generation of the superblock in effect.
    pub generation: u64,
    /// By stream: batches before this sequence number were flushed.
    pub flushed: [u64; 3],
}

/// What to do if a backing store is not as the cache left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnBackingChange {
    /// Drop clean blocks; refuse to open if there are dirty ones.
    #[default]
    Refuse,
    /// Drop clean blocks and keep the dirty ones: they will be written over what changed.
    KeepDirty,
    /// Drop everything that the cache holds of the volume.
    DiscardDirty,
}

/// What the owner knows of a backing store beyond what the cache noted of it: has somebody else
/// written to it since the cache did?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Suspicion {
    /// Nothing says so.
    #[default]
    None,
    /// It cannot be told: the last run ended in the middle of its own writes. After an unclean stop
    /// clean blocks are dropped, dirty ones stay.
    Uncertain,
    /// Somebody has: what becomes of dirty blocks is said by [`OnBackingChange`].
    Changed,
}

/// A volume to serve.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Number in the volume table of the cache.
    pub volume: VolumeId,
    /// How to use the cache, and everything else that can be changed while the volume is served.
    pub settings: VolumeSettings,
    /// Size now, in bytes, a multiple of 512; not below what the volume table says. (A volume whose
    /// backing store has grown keeps its old size for one more run if its last block is not whole
    /// and dirty.)
    pub size_bytes: u64,
    /// What the backing store looks like now. `samples` is not used.
    pub backing: BackingRecord,
    /// Smallest unit that the backing store writes: 512 or 4096 bytes.
    pub backing_sector_bytes: u32,
    /// What to do if the backing store changed while the cache was away.
    pub on_change: OnBackingChange,
    /// What speaks for such a change.
    pub suspicion: Suspicion,
}

/// What to write to a device to make it an empty cache, see [`crate::format_cache`].
#[derive(Clone, Debug)]
pub struct FormatParams {
    /// Layout.
    pub geometry: forebay_format::Geometry,
    /// Devices that the cache lies on.
    pub members: forebay_format::Members,
    /// Identity, drawn at random.
    pub uuid: forebay_format::CacheUuid,
    /// The cache is encrypted: who writes it to its devices does that, and the superblock says so.
    pub encryption: Option<forebay_format::Encryption>,
    /// Volumes of the cache.
    pub volumes: Vec<forebay_format::checkpoint::VolumeEntry>,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Product and version.
    pub written_by: String,
}
