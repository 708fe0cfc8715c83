//! Planted bugs: defects that the simulator must find.
//!
//! A checker that never finds a violation proves nothing. So each [`PlantedBug`] breaks one
//! decision of the engine, at a place that checks [`planted`]. The feature `planted-bugs` compiles
//! these places in; only tests enable it. Without the feature `planted` is a constant `false`, and
//! the compiler removes the dependent code. The planted bug is a property of the thread
//! ([`plant`]), so no structure of the engine has a field for it.

/// Defines [`PlantedBug`] and its names from the table below.
macro_rules! planted_bugs {
    ($($(#[$what:meta])* $bug:ident = $name:literal,)*) => {
        /// A bug that can be planted in the engine, or in its owner, to show that the simulator
        /// finds it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum PlantedBug {
            $($(#[$what])* $bug,)*
        }

        impl PlantedBug {
            /// Every planted bug with the name used on the command line.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$bug, $name),)*];
        }
    };
}

planted_bugs! {
    /// A client FLUSH is acknowledged without flushing the cache device.
    SkipDeviceFlush = "skip-device-flush",
    /// No FLUSH fails for bypass writes that a failed flush by the engine dropped.
    ForgetFailedFlush = "forget-failed-flush",
    /// Intents of bypass writes that a failed flush might have dropped end with the next flush.
    EndDroppedIntents = "end-dropped-intents",
    /// A failed flush of a backing store concerns only those bypass writes that had ended before it
    /// began.
    TrustWritesInFlight = "trust-writes-in-flight",
    /// The same for destage writes.
    TrustDestageInFlight = "trust-destage-in-flight",
    /// A stop waits for writers that wait for a failing backing store.
    StopWaitsForStore = "stop-waits-for-store",
    /// A flush covers writes that a backing store acknowledged before it was reopened.
    TrustOldDevice = "trust-old-device",
    /// A destaged block is marked clean before the backing store was flushed.
    CleanBeforeBackingFlush = "clean-before-backing-flush",
    /// A bypass write leaves the clean copy in place.
    ForgetInvalidation = "forget-invalidation",
    /// A batch is accepted without verifying its checksums.
    AcceptTornHeader = "accept-torn-header",
    /// A segment is reused before a checkpoint records it as free.
    ReuseSegmentEarly = "reuse-segment-early",
    /// The append window is extended before the entries that voided its segments were flushed.
    ExtendBeforeFlush = "extend-before-flush",
    /// The append window is extended by segments that the checkpoint does not account for.
    ExtendWithNewSegments = "extend-with-new-segments",
    /// A window extension lists only the segments that it adds.
    ForgetEarlierExtensions = "forget-earlier-extensions",
    /// A restart overlooks a window extension.
    OverlookExtension = "overlook-extension",
    /// The search for segments that a damaged extension added skips those that the checkpoint
    /// records as open, though they might have been filled, emptied and added since.
    PassOverOpen = "pass-over-open",
    /// If a lost extension added a segment whose first block was not durable, later blocks in it
    /// are accepted as part of its earlier use.
    BelieveLaterUse = "believe-later-use",
    /// A segment is discarded before a checkpoint records it as empty.
    DiscardEarly = "discard-early",
    /// A segment can be written while it is being discarded.
    WriteUnderDiscard = "write-under-discard",
    /// A snapshot does not list a segment of the append window that is being discarded.
    UnlistDiscarded = "unlist-discarded",
    /// An increment of a checkpoint omits the segments that were sealed.
    IncrementForgetsSegment = "increment-forgets-segment",
    /// An increment of a checkpoint omits the slots that became void.
    IncrementForgetsVoid = "increment-forgets-void",
    /// An increment overwrites the previous one.
    IncrementOverLast = "increment-over-last",
    /// The chain of a base omits the increments that were written while the base was being written.
    BaseWithoutIncrements = "base-without-increments",
    /// The superblock names a base before all of it is written.
    BaseNamedEarly = "base-named-early",
    /// The first step of zeroing a large range zeroes all of it, and is the only one.
    FirstStepZeroesAll = "first-step-zeroes-all",
    /// A stretch of the volume counts as empty once one of its blocks leaves the cache.
    MiscountStretch = "miscount-stretch",
    /// Replay applies batches in the order in which it finds them, not in the order of their
    /// sequence.
    IgnoreSequence = "ignore-sequence",
    /// Only the first superblock copy is written and read.
    DropSecondSuperblock = "drop-second-superblock",
    /// A bypass write does not wait until its intent is durable.
    SkipIntent = "skip-intent",
    /// Blocks are destaged before they are durable on the cache device.
    DestageBeforeDurable = "destage-before-durable",
    /// A write is acknowledged before earlier batches of its stream completed.
    AcknowledgeOutOfOrder = "acknowledge-out-of-order",
    /// The endurance budget does not limit anything.
    OverspendEndurance = "overspend-endurance",
    /// A fill is kept although the block was written meanwhile.
    KeepOvertakenFill = "keep-overtaken-fill",
    /// A read is answered from a fill that waits for its batch although the block was written
    /// meanwhile.
    AnswerOvertakenFill = "answer-overtaken-fill",
    /// A read joins another one although the block was written since that one began.
    JoinOvertakenRead = "join-overtaken-read",
    /// Reads do not verify the checksums of cached blocks.
    SkipChecksum = "skip-checksum",
    /// Relocation does not lock out writers of the block.
    RelocateWithoutLock = "relocate-without-lock",
    /// A bypass write does not wait until clean marks are durable.
    TrustUnflushedMarks = "trust-unflushed-marks",
    /// A bypass write waits for marks of other blocks that were added while it waited.
    ChaseMarks = "chase-marks",
    /// Clean marks are delayed by a second though writers at a dirty limit wait for them.
    DawdleWithMarks = "dawdle-with-marks",
    /// Reclaim searches all segments for every victim.
    PassForEachVictim = "pass-for-each-victim",
    /// The batches of a stream share the memory of their header, though the owner might not have
    /// started the write of one when the next one is built.
    ShareHeader = "share-header",
    /// Blocks can get older than `flush_period`.
    IgnoreFlushPeriod = "ignore-flush-period",
    /// The buckets of the destage limits are never refilled.
    StarveLimiter = "starve-limiter",
    /// Destage before a limit was set is charged to that limit.
    ChargeUnlimited = "charge-unlimited",
    /// Destage exceeds the operator's limits.
    ExceedLimits = "exceed-limits",
    /// Writers are admitted beyond the dirty limit of their volume.
    ThrottleBeyondLimit = "throttle-beyond-limit",
    /// A change of the destage order loses the set of waiting blocks.
    ForgetOnOrderChange = "forget-on-order-change",
    /// The number of a detached volume is reused before its blocks are forgotten.
    ReuseVolumeEarly = "reuse-volume-early",
    /// Blocks beyond the new end of a volume stay in the cache.
    KeepBeyondShrink = "keep-beyond-shrink",
    /// Segments that are being retired are appended to, and removed without being emptied.
    AppendToRetired = "append-to-retired",
    /// A volume is reported as drained although it has dirty blocks.
    ForgetDirtyAtDetach = "forget-dirty-at-detach",
    /// A new volume, or a larger size, is served before a checkpoint records it.
    ServeBeforeCheckpoint = "serve-before-checkpoint",
    /// A block that gets a second chance loses its dirty state.
    ForgetDirtySurvivor = "forget-dirty-survivor",
    /// A bypass write of a sequential stream leaves the clean copy in place.
    SequentialLeavesCopy = "sequential-leaves-copy",
    /// A volume above its maximum share drops dirty blocks too.
    TrimDirty = "trim-dirty",
    /// Reclaim keeps pinned blocks even if it gains nothing.
    KeepWithoutBound = "keep-without-bound",
    /// Reclaim compacts segments regardless of how full they and the cache are, and continues
    /// without gain.
    CompactWithoutBound = "compact-without-bound",
    /// Reclaim moves dirty blocks before they are durable on the cache device.
    MoveBeforeDurable = "move-before-durable",
    /// Blocks that are being moved wait for room that does not come.
    KeepStuckMoves = "keep-stuck-moves",
    /// Writes wait for a segment though lost blocks occupy all of them.
    WaitForLostRoom = "wait-for-lost-room",
    /// A block that is moved while it is being written back is no longer destaged.
    LoseMovedExtent = "lose-moved-extent",
    /// A block that was dropped while it moved is forgotten, though its new entry in the log is
    /// dirty.
    ForgetRecordOfDropped = "forget-record-of-dropped",
    /// A flush epoch can have 32 low bits of zero, as if the volume were not ordered.
    WrapEpoch = "wrap-epoch",
    /// Ordered destage begins a flush epoch before the previous one is durable on the backing
    /// store.
    MixFlushEpochs = "mix-flush-epochs",
    /// Ordered destage begins a flush epoch before the clean marks of the previous one are durable.
    EpochBeforeMarks = "epoch-before-marks",
    /// A dirty block that is overwritten in a later flush epoch leaves no shadow.
    CoalesceEpochs = "coalesce-epochs",
    /// Recovery loses flush epochs.
    ForgetEpochs = "forget-epochs",
    /// A bypass write does not wait for earlier flush epochs.
    OvertakeEpochs = "overtake-epochs",
    /// A FUA write does not end its flush epoch.
    FuaKeepsEpoch = "fua-keeps-epoch",
    /// A volume that is attached to an open cache does not continue its flush epochs.
    ForgetOrderAtAttach = "forget-order-at-attach",
    /// Flush epochs advance while a crash would bring back blocks that a shrinking volume has
    /// dropped.
    AdvanceInShrink = "advance-in-shrink",
    /// Destage writes gaps between dirty blocks without locking out other writers.
    FillGapsUnlocked = "fill-gaps-unlocked",
    /// Gaps are filled from the cache, even with dirty blocks.
    FillGapsFromDirty = "fill-gaps-from-dirty",
    /// Gaps are filled from the cache even if it does not have all sectors.
    FillGapsFromPartial = "fill-gaps-from-partial",
    /// Requests bypass a failed cache before a durable record prevents it from being opened again.
    PassBeforeRecord = "pass-before-record",
    /// A FLUSH without the cache does not wait until the dirty data of the failed cache is rescued.
    FlushBeforeRescue = "flush-before-rescue",
    /// A FLUSH without the cache does not wait until the record of the failed cache is durable.
    FlushBeforeRecord = "flush-before-record",
    /// Blocks that were lost with the cache are read from the backing store.
    ReadLostFromBacking = "read-lost-from-backing",
    /// Rescue writes blocks of a failed cache though they were overwritten since.
    RescueSuperseded = "rescue-superseded",
    /// Batches that complete after the cache was fenced count.
    CountAfterFence = "count-after-fence",
    /// A flush of the cache device that succeeds after a failed one is trusted.
    TrustFlushAfterFailure = "trust-flush-after-failure",
    /// A scrub skips dirty blocks.
    ScrubOverlooksDirty = "scrub-overlooks-dirty",
    /// A scrub drops the content of a slot even if the block was overwritten meanwhile.
    ScrubJudgesVoid = "scrub-judges-void",
    /// A scrub of a mirrored cache reads one copy only.
    ScrubOneCopy = "scrub-one-copy",
    /// A scrub judges a block by a read from a member that is no longer active.
    JudgeFailedCopy = "judge-failed-copy",
    /// A volume that grows releases the lock of the block at its old end before the new size is
    /// served.
    GrowUnlocked = "grow-unlocked",
    /// A shrink fails if the cache fails, though blocks beyond the new end were dropped.
    FailAfterCut = "fail-after-cut",
    /// After a start, lookups do not find blocks that are not in the index yet.
    OverlookListed = "overlook-listed",
    /// A batch of a mirrored cache counts when one member has it.
    CountHalfBatches = "count-half-batches",
    /// A flush of a mirrored cache flushes one member.
    FlushOneMember = "flush-one-member",
    /// A batch that only one member of a mirrored cache has counts before the owner has recorded
    /// the failure of the other.
    CountBeforeNote = "count-before-note",
    /// The next start trusts a member of a mirrored cache that was failed out.
    TrustStaleMember = "trust-stale-member",
    /// A block that one member of a mirrored cache cannot read is not read from the other.
    ReadOneCopy = "read-one-copy",
    /// Recovery does not repair a member that lacks blocks of the other.
    LeaveUnrepaired = "leave-unrepaired",
    /// A rebuild does not copy everything.
    ForgetInRebuild = "forget-in-rebuild",
    /// After a lost write, remains of an earlier use of a segment are accepted as the content that
    /// the checkpoint refers to.
    BelieveEarlierUse = "believe-earlier-use",
    /// The superblock lists the devices of a new pool size before that size is in effect.
    ListDeviceEarly = "list-device-early",
    /// A start that finds a damaged summary of a segment does not load the segment after it.
    SkipBehindDamage = "skip-behind-damage",
    /// The owner's record of the cache is not compared with the cache device.
    BelieveOlderCopy = "believe-older-copy",
    /// A dirty block that is unreadable for a moment is lost.
    GiveUpAtOnce = "give-up-at-once",
    /// A write without the cache is acknowledged while the record still lists its blocks as lost.
    AcknowledgeUnrecorded = "acknowledge-unrecorded",
    /// A batch of a mirrored cache counts although only an inactive member has it.
    CountAnywhere = "count-anywhere",
    /// A checkpoint during a rebuild gives the new member a superblock that lists it as out.
    OutInItsOwnWords = "out-in-its-own-words",
    /// At the end of a rebuild the superblocks of both members are written concurrently.
    ListAtOnce = "list-at-once",
    /// A cache is opened although writing the missing blocks to an active member failed.
    RepairInVain = "repair-in-vain",
    /// A fill on a member of a mirrored cache that is out stays in the map.
    KeepLostFill = "keep-lost-fill",
    /// Batches that recovery found are trusted as durable after a flush, though the previous flush
    /// might have failed.
    TrustWhatIsRead = "trust-what-is-read",
    /// Destage punches a hole for a block that was written after it was discarded.
    KeepDiscard = "keep-discard",
    /// The owner of an encrypted cache writes metadata without encrypting it.
    WriteMetaInClear = "write-meta-in-clear",
    /// The engine ignores the owner's report that another program wrote to a backing store after a
    /// crash.
    TrustAfterCrash = "trust-after-crash",
    /// An orderly stop keeps the stamp that was taken at the attach of a backing store that the
    /// owner could not examine.
    KeepOldNotes = "keep-old-notes",
    /// The owner of an encrypted cache encrypts a batch that is rewritten elsewhere after a failed
    /// write for its first location.
    TweakOfFailedWrite = "tweak-of-failed-write",
    /// A batch takes twice as many marks as fit in its header.
    OverfillHeader = "overfill-header",
    /// The intent of a bypass write names the first of its regions only.
    IntentOfOneRegion = "intent-of-one-region",
    /// A FLUSH succeeds though a write before it is lost and no client has had an error for it.
    FlushOverLoss = "flush-over-loss",
    /// A read is answered from a partly cached block that lacks some of the requested sectors.
    ServeInvalidSectors = "serve-invalid-sectors",
    /// A partly cached block is dropped and read as a whole although it is dirty.
    HealDirty = "heal-dirty",
    /// The owner returns zeroes for reads beyond the end of a shortened backing store.
    EndIsZeroes = "end-is-zeroes",
    /// An operation on a cache device that is shortened for a moment counts as failed.
    FailAtEnd = "fail-at-end",
    /// At a start, blocks that the log has replaced since the checkpoint are listed like all
    /// others, and the log does not find them when it replaces them.
    ListReplaced = "list-replaced",
    /// While a cache device is copied, writes to the copied part go to the old device only.
    CopyWithoutSecondWrite = "copy-without-second-write",
    /// A chunk of a cache device counts as copied though it was written meanwhile.
    CopyBehindWrite = "copy-behind-write",
    /// The head of a cache device is copied before the rest was flushed.
    HeadBeforeFlush = "head-before-flush",
    /// A flush of a cache device that was copied does not reach the new one.
    FlushOldDeviceOnly = "flush-old-device-only",
    /// Errors of a new cache device are not reported though the configuration might name it.
    TrustFailedSecond = "trust-failed-second",
    /// The replacement of a member of a mirrored cache counts as done while a start on another host
    /// would still trust the old member.
    LeaveOldBelieved = "leave-old-believed",
}

impl PlantedBug {
    /// Returns the name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(bug, _)| *bug == self).map_or("", |(_, name)| name)
    }

    /// Returns the bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug)
    }
}

/// True if bugs can be planted in this build: it has the feature `planted-bugs`.
pub const AVAILABLE: bool = cfg!(feature = "planted-bugs");

/// Returns true if this bug is planted in the engines of this thread.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
#[inline(always)]
pub const fn planted(_: PlantedBug) -> bool {
    false
}

/// Plants a bug in the engines of this thread; this build has none.
///
/// # Panics
/// If `bug` is not `None`: see [`AVAILABLE`].
#[cfg(not(feature = "planted-bugs"))]
pub fn plant(bug: Option<PlantedBug>) -> Planting {
    assert!(bug.is_none(), "this build has no planted bugs: it needs the feature planted-bugs");
    Planting
}

/// The guard of a build without planted bugs.
#[cfg(not(feature = "planted-bugs"))]
#[derive(Debug)]
pub struct Planting;

#[cfg(feature = "planted-bugs")]
pub use thread::{Planting, plant, planted};

/// The planted bug of each thread.
#[cfg(feature = "planted-bugs")]
mod thread {
    extern crate std;

    use super::PlantedBug;
    use std::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// Returns true if this bug is planted in the engines of this thread.
    #[must_use]
    pub fn planted(bug: PlantedBug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug, or none, in the engines of this thread until the result is dropped.
    pub fn plant(bug: Option<PlantedBug>) -> Planting {
        Planting { before: PLANTED.replace(bug) }
    }

    /// Keeps a bug planted until it is dropped, then restores the previous one.
    #[derive(Debug)]
    pub struct Planting {
        before: Option<PlantedBug>,
    }

    impl Drop for Planting {
        fn drop(&mut self) {
            PLANTED.set(self.before);
        }
    }
}
