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
    /// Settings that can change while the engine runs.
    pub pool: PoolSettings,
    /// Parameters of checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Blocks of a discard, or of zeroes that bypass the cache, processed at once: bounds the
    /// length of a call. Only tests change the default.
    pub zero_step_blocks: u64,
    /// Blocks per stretch, a power of two of at most 1024: the map counts cached blocks by stretch,
    /// so that a walk over a long range skips empty stretches. Only tests change the default.
    pub stretch_blocks: u64,
    /// Segments of fewer blocks end without a summary: it would take a thirtieth of them or more,
    /// and recovery reads such a cache completely in a moment. Only tests change the default.
    pub summaries_from_blocks: u32,
    /// Durable progress of the cache, from a record outside its device: the engine does not open a
    /// cache that holds less (I75).
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

/// Parameters of checkpoints. Only tests change the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointConfig {
    /// Blocks of a base that are encoded and written at once: bounds the length of a call.
    pub piece_blocks: u32,
    /// Pause between two of these pieces, for other writes, in nanoseconds.
    pub piece_pause: Nanos,
    /// Caches whose whole checkpoint has at least so many blocks take increments; the others encode
    /// whole checkpoints in one call. 64 blocks describe about 4 GiB, and take about a millisecond.
    pub chain_from_blocks: u64,
    /// Maximum blocks of all increments of a chain.
    pub chain_blocks_max: u64,
    /// Maximum slot changes in an increment. A million take 8 MiB of memory and about a millisecond
    /// to encode.
    pub changes_max: u32,
    /// Bytes of log that recovery may read even if that is more than a sixteenth of the cache:
    /// makes checkpoints of small caches rarer.
    pub log_bytes: u64,
    /// For tests: keep the state that the last snapshot describes, see
    /// [`crate::Engine::last_snapshot`].
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

/// Durable progress of a cache on its device. It only rises: a cache below an earlier mark of it is
/// an older copy, or its device lost flushed data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheMark {
    /// Generation of the superblock in effect.
    pub generation: u64,
    /// By stream: batches before this sequence number were flushed.
    pub flushed: [u64; 3],
}

/// Action if a backing store has changed since the cache last used it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnBackingChange {
    /// Drop clean blocks; refuse to open the cache if there are dirty ones.
    #[default]
    Refuse,
    /// Drop clean blocks and keep the dirty ones: destage will overwrite the changes with them.
    KeepDirty,
    /// Drop all blocks of the volume.
    DiscardDirty,
}

/// The owner's knowledge of foreign writes to a backing store since the cache last used it, in
/// addition to the cache's own record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Suspicion {
    /// No sign of foreign writes.
    #[default]
    None,
    /// Unknown: the last run ended during its own writes. After a crash the engine drops clean
    /// blocks; dirty ones stay.
    Uncertain,
    /// Foreign writes happened: [`OnBackingChange`] decides on dirty blocks.
    Changed,
}

/// A volume to serve.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Number in the volume table of the cache.
    pub volume: VolumeId,
    /// Settings that can change while the volume is served.
    pub settings: VolumeSettings,
    /// Present size in bytes, a multiple of 512; not below the one in the volume table. (A volume
    /// whose backing store has grown keeps its old size for one more run if its last block is
    /// partial and dirty.)
    pub size_bytes: u64,
    /// Present state of the backing store. `samples` is not used.
    pub backing: BackingRecord,
    /// Smallest unit that the backing store writes: 512 or 4096 bytes.
    pub backing_sector_bytes: u32,
    /// Action if the backing store changed while the cache was not in use.
    pub on_change: OnBackingChange,
    /// Evidence of such a change.
    pub suspicion: Suspicion,
}

/// Parameters for formatting a device as an empty cache, see [`crate::format_cache`].
#[derive(Clone, Debug)]
pub struct FormatParams {
    /// Layout.
    pub geometry: forebay_format::Geometry,
    /// Devices of the cache.
    pub members: forebay_format::Members,
    /// Identity, drawn at random.
    pub uuid: forebay_format::CacheUuid,
    /// Encryption of the cache, which the superblock records; the owner encrypts writes to its
    /// devices.
    pub encryption: Option<forebay_format::Encryption>,
    /// Volumes of the cache.
    pub volumes: Vec<forebay_format::checkpoint::VolumeEntry>,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Product and version.
    pub written_by: String,
}
