//! Settings of the engine, volumes to attach, and the planted bugs that the simulator must catch.

use crate::settings::{PoolSettings, VolumeSettings};
use alloc::string::String;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;

/// Settings that belong to the whole cache.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Blocks in the [`crate::api::SCRATCH`] buffer: bounds destage, fills, merges and relocation in flight.
    pub scratch_blocks: u32,
    /// What can be changed while the engine runs.
    pub pool: PoolSettings,
    /// What the cache is known to hold durably, from a record outside of its device: one that holds less is not opened (I75).
    pub known: CacheMark,
    /// A bug to plant; only the simulator does.
    pub planted: Option<PlantedBug>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scratch_blocks: 4096,
            pool: PoolSettings::default(),
            known: CacheMark::default(),
            planted: None,
        }
    }
}

/// How far a cache has come, as its device holds it durably. It only ever rises: whoever finds a cache below a mark that was taken of it
/// has an older copy, or a device that lost what it had flushed.
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

/// What the owner knows of a backing store beyond what the cache noted of it: has somebody else written to it since the cache did?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Suspicion {
    /// Nothing says so.
    #[default]
    None,
    /// It cannot be told: the last run ended in the middle of its own writes. After an unclean stop clean blocks are dropped, dirty ones stay.
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
    /// Size now, in bytes, a multiple of 512; not below what the volume table says. (A volume whose backing store has
    /// grown keeps its old size for one more run if its last block is not whole and dirty.)
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

/// A bug that can be planted in the engine, to show that the simulator finds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PlantedBug {
    /// A client FLUSH is acknowledged without flushing the cache device.
    SkipDeviceFlush,
    /// A destaged block is called clean before the backing store was flushed.
    CleanBeforeBackingFlush,
    /// A write past the cache leaves the clean copy in place.
    ForgetInvalidation,
    /// A batch is believed without checking its checksums.
    AcceptTornHeader,
    /// A segment is reused before a checkpoint says that it is free.
    ReuseSegmentEarly,
    /// Replay applies batches in the order found, not in the order of their sequence.
    IgnoreSequence,
    /// Only the first superblock copy is written and read.
    DropSecondSuperblock,
    /// A write past the cache does not make its intent durable first.
    SkipIntent,
    /// Blocks are destaged before the cache device holds them durably.
    DestageBeforeDurable,
    /// A write is acknowledged before earlier batches of its stream completed.
    AcknowledgeOutOfOrder,
    /// A read fill is kept although the block was written meanwhile.
    KeepOvertakenFill,
    /// Checksums of cached blocks are not compared on read.
    SkipChecksum,
    /// Relocation does not hold off writers of the block.
    RelocateWithoutLock,
    /// A write past the cache does not wait until clean marks are durable.
    TrustUnflushedMarks,
    /// A write past the cache waits for marks of other blocks that were added while it waited.
    ChaseMarks,
    /// Clean marks gather for a second though writers wait at a dirty limit for what they mark.
    DawdleWithMarks,
    /// Every victim of reclaim is searched for among all segments.
    PassForEachVictim,
    /// The batches of a stream share the memory of their header, though the owner may not have started the write of one when the next
    /// one is made.
    ShareHeader,
    /// Blocks may get older than `flush_period`.
    IgnoreFlushPeriod,
    /// What was taken from the buckets of the destage limits is never worked off.
    StarveLimiter,
    /// What was destaged before a limit was set counts against it.
    ChargeUnlimited,
    /// Destage exceeds the limits that the operator set.
    ExceedLimits,
    /// Writers are let in beyond the dirty limit of their volume.
    ThrottleBeyondLimit,
    /// A change of the destage order forgets which blocks wait.
    ForgetOnOrderChange,
    /// The number of a volume that was detached is free before its blocks are forgotten.
    ReuseVolumeEarly,
    /// Blocks beyond the new end of a volume stay in the cache.
    KeepBeyondShrink,
    /// Segments that are being retired are appended to, and left out without being emptied.
    AppendToRetired,
    /// A volume is called drained although it has dirty blocks.
    ForgetDirtyAtDetach,
    /// A new volume, or a larger size, is served before a checkpoint says so.
    ServeBeforeCheckpoint,
    /// A block that gets a second chance forgets that it was dirty.
    ForgetDirtySurvivor,
    /// A write of a long stream, past the cache, leaves the clean copy in place.
    SequentialLeavesCopy,
    /// A volume above its largest share gives up dirty blocks too.
    TrimDirty,
    /// Reclaim keeps pinned blocks even if nothing is left to be gained.
    KeepWithoutBound,
    /// Ordered destage begins a flush epoch before the one before it is durable on the backing store.
    MixFlushEpochs,
    /// Ordered destage begins a flush epoch before the clean marks of the one before it are durable.
    EpochBeforeMarks,
    /// A dirty block that is overwritten in a later flush epoch leaves no shadow.
    CoalesceEpochs,
    /// Recovery forgets flush epochs.
    ForgetEpochs,
    /// A write past the cache does not wait for earlier flush epochs.
    OvertakeEpochs,
    /// A FUA write does not end its flush epoch.
    FuaKeepsEpoch,
    /// A volume that is attached to an open cache does not go on with its flush epochs.
    ForgetOrderAtAttach,
    /// Flush epochs go on while a shrinking volume has given up blocks that a crash would bring back.
    AdvanceInShrink,
    /// Gaps between dirty blocks are written along with them without keeping others from writing there.
    FillGapsUnlocked,
    /// Gaps are filled with what the cache has, even if that is dirty.
    FillGapsFromDirty,
    /// Gaps are filled from the cache even if it does not have all sectors.
    FillGapsFromPartial,
    /// Requests go past a failed cache before a durable record says that it must not be opened again.
    PassBeforeRecord,
    /// A FLUSH without the cache does not wait until what the failed cache had is on the backing store.
    FlushBeforeRescue,
    /// A FLUSH without the cache does not wait for a record that says what is safe.
    FlushBeforeRecord,
    /// What is lost with the cache is read from the backing store.
    ReadLostFromBacking,
    /// What a failed cache had is rescued though it was overwritten since.
    RescueSuperseded,
    /// Batches that complete after the cache was fenced count.
    CountAfterFence,
    /// A flush of the cache device that succeeds after one that failed is believed.
    TrustFlushAfterFailure,
    /// A scrub does not look at dirty blocks.
    ScrubOverlooksDirty,
    /// A scrub gives up what a slot held even if that was overwritten meanwhile.
    ScrubJudgesVoid,
    /// A scrub of a mirrored cache looks at one copy only.
    ScrubOneCopy,
    /// A scrub judges a block by what it read from a member that does not count any more.
    JudgeFailedCopy,
    /// A shrink fails if the cache fails, though blocks beyond the new end were given up.
    FailAfterCut,
    /// After a start, blocks that have no place in the index yet are not found.
    OverlookListed,
    /// A batch of a mirrored cache counts when one member has it.
    CountHalfBatches,
    /// A flush of a mirrored cache flushes one member.
    FlushOneMember,
    /// What only one member of a mirrored cache has counts before it is noted that the other has failed.
    CountBeforeNote,
    /// A member of a mirrored cache that was put out is believed at the next start.
    TrustStaleMember,
    /// A block that cannot be read from one member of a mirrored cache is not read from the other.
    ReadOneCopy,
    /// What recovery finds on one member only stays there only.
    LeaveUnmended,
    /// A new member does not get everything.
    ForgetInRebuild,
    /// What an earlier use of a segment left where a write was lost is taken for what the checkpoint means.
    BelieveEarlierUse,
    /// What is known of the cache from outside of its device is not compared with it.
    BelieveOlderCopy,
    /// A dirty block that cannot be read for a moment is lost.
    GiveUpAtOnce,
    /// Without the cache a write is acknowledged while the record still calls lost what it wrote.
    AcknowledgeUnrecorded,
    /// A batch of a mirrored cache counts although only a member has it that does not count.
    CountAnywhere,
    /// A checkpoint in the middle of a rebuild gives the new member a superblock that calls it out.
    OutInItsOwnWords,
    /// At the end of a rebuild the superblocks of both members are written at once.
    ListAtOnce,
    /// A cache is opened although a member that counts does not take what it lacks.
    MendInVain,
    /// What is filled on a member of a mirrored cache that is out stays in the map.
    KeepLostFill,
    /// What is found at a start is called durable after a flush, though the flush before may have failed.
    TrustWhatIsRead,
    /// A block that was written after it was discarded is given back on the backing store all the same.
    KeepDiscard,
    /// The owner of an encrypted cache writes metadata without encrypting it.
    WriteMetaInClear,
    /// What the owner says of a backing store that somebody else wrote to after a crash is not heard.
    TrustAfterCrash,
    /// The owner of an encrypted cache encrypts a batch that could not be written, and is written elsewhere, for its first place.
    TweakOfFailedWrite,
    /// A batch takes twice as many marks as its header has room for.
    OverfillHeader,
    /// The intent of a write past the cache names the first of its regions only.
    IntentOfOneRegion,
    /// A FLUSH succeeds though something that was written before it is lost, and nobody has been told.
    FlushOverLoss,
    /// A read is answered by a partly cached block though it has not all sectors that are asked for.
    ServeInvalidSectors,
    /// A partly cached block is dropped and read as a whole although it is dirty.
    HealDirty,
    /// The owner reads what a backing store that has ended does not have as zeroes.
    EndIsZeroes,
    /// An operation on a cache device that has ended for a moment counts as failed.
    FailAtEnd,
}

impl PlantedBug {
    /// Every planted bug with the name used on the command line.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::SkipDeviceFlush, "skip-device-flush"),
        (Self::CleanBeforeBackingFlush, "clean-before-backing-flush"),
        (Self::ForgetInvalidation, "forget-invalidation"),
        (Self::AcceptTornHeader, "accept-torn-header"),
        (Self::ReuseSegmentEarly, "reuse-segment-early"),
        (Self::IgnoreSequence, "ignore-sequence"),
        (Self::DropSecondSuperblock, "drop-second-superblock"),
        (Self::SkipIntent, "skip-intent"),
        (Self::DestageBeforeDurable, "destage-before-durable"),
        (Self::AcknowledgeOutOfOrder, "acknowledge-out-of-order"),
        (Self::KeepOvertakenFill, "keep-overtaken-fill"),
        (Self::SkipChecksum, "skip-checksum"),
        (Self::RelocateWithoutLock, "relocate-without-lock"),
        (Self::TrustUnflushedMarks, "trust-unflushed-marks"),
        (Self::ChaseMarks, "chase-marks"),
        (Self::DawdleWithMarks, "dawdle-with-marks"),
        (Self::IgnoreFlushPeriod, "ignore-flush-period"),
        (Self::StarveLimiter, "starve-limiter"),
        (Self::ChargeUnlimited, "charge-unlimited"),
        (Self::ExceedLimits, "exceed-limits"),
        (Self::ThrottleBeyondLimit, "throttle-beyond-limit"),
        (Self::ForgetOnOrderChange, "forget-on-order-change"),
        (Self::ReuseVolumeEarly, "reuse-volume-early"),
        (Self::KeepBeyondShrink, "keep-beyond-shrink"),
        (Self::AppendToRetired, "append-to-retired"),
        (Self::ForgetDirtyAtDetach, "forget-dirty-at-detach"),
        (Self::ServeBeforeCheckpoint, "serve-before-checkpoint"),
        (Self::ForgetDirtySurvivor, "forget-dirty-survivor"),
        (Self::SequentialLeavesCopy, "sequential-leaves-copy"),
        (Self::TrimDirty, "trim-dirty"),
        (Self::KeepWithoutBound, "keep-without-bound"),
        (Self::MixFlushEpochs, "mix-flush-epochs"),
        (Self::EpochBeforeMarks, "epoch-before-marks"),
        (Self::CoalesceEpochs, "coalesce-epochs"),
        (Self::ForgetEpochs, "forget-epochs"),
        (Self::OvertakeEpochs, "overtake-epochs"),
        (Self::FuaKeepsEpoch, "fua-keeps-epoch"),
        (Self::ForgetOrderAtAttach, "forget-order-at-attach"),
        (Self::AdvanceInShrink, "advance-in-shrink"),
        (Self::FillGapsUnlocked, "fill-gaps-unlocked"),
        (Self::FillGapsFromDirty, "fill-gaps-from-dirty"),
        (Self::FillGapsFromPartial, "fill-gaps-from-partial"),
        (Self::PassBeforeRecord, "pass-before-record"),
        (Self::FlushBeforeRescue, "flush-before-rescue"),
        (Self::FlushBeforeRecord, "flush-before-record"),
        (Self::ReadLostFromBacking, "read-lost-from-backing"),
        (Self::RescueSuperseded, "rescue-superseded"),
        (Self::CountAfterFence, "count-after-fence"),
        (Self::TrustFlushAfterFailure, "trust-flush-after-failure"),
        (Self::ScrubOverlooksDirty, "scrub-overlooks-dirty"),
        (Self::ScrubJudgesVoid, "scrub-judges-void"),
        (Self::ScrubOneCopy, "scrub-one-copy"),
        (Self::JudgeFailedCopy, "judge-failed-copy"),
        (Self::FailAfterCut, "fail-after-cut"),
        (Self::OverlookListed, "overlook-listed"),
        (Self::CountHalfBatches, "count-half-batches"),
        (Self::FlushOneMember, "flush-one-member"),
        (Self::CountBeforeNote, "count-before-note"),
        (Self::TrustStaleMember, "trust-stale-member"),
        (Self::ReadOneCopy, "read-one-copy"),
        (Self::LeaveUnmended, "leave-unmended"),
        (Self::ForgetInRebuild, "forget-in-rebuild"),
        (Self::BelieveEarlierUse, "believe-earlier-use"),
        (Self::BelieveOlderCopy, "believe-older-copy"),
        (Self::GiveUpAtOnce, "give-up-at-once"),
        (Self::AcknowledgeUnrecorded, "acknowledge-unrecorded"),
        (Self::CountAnywhere, "count-anywhere"),
        (Self::OutInItsOwnWords, "out-in-its-own-words"),
        (Self::ListAtOnce, "list-at-once"),
        (Self::MendInVain, "mend-in-vain"),
        (Self::KeepLostFill, "keep-lost-fill"),
        (Self::TrustWhatIsRead, "trust-what-is-read"),
        (Self::KeepDiscard, "keep-discard"),
        (Self::WriteMetaInClear, "write-meta-in-clear"),
        (Self::TrustAfterCrash, "trust-after-crash"),
        (Self::TweakOfFailedWrite, "tweak-of-failed-write"),
        (Self::OverfillHeader, "overfill-header"),
        (Self::IntentOfOneRegion, "intent-of-one-region"),
        (Self::FlushOverLoss, "flush-over-loss"),
        (Self::ServeInvalidSectors, "serve-invalid-sectors"),
        (Self::HealDirty, "heal-dirty"),
        (Self::EndIsZeroes, "end-is-zeroes"),
        (Self::FailAtEnd, "fail-at-end"),
        (Self::ShareHeader, "share-header"),
        (Self::PassForEachVictim, "pass-for-each-victim"),
    ];

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(bug, _)| *bug == self).map_or("", |(_, name)| name)
    }
}
