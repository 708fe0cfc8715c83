//! Planted bugs: ways to be wrong that the simulator must find.
//!
//! A checker that never found anything proves nothing. So each [`PlantedBug`] breaks one decision
//! of the engine, at a place that asks [`planted`]. The feature `planted-bugs` compiles these
//! places in; only tests turn it on. Without the feature `planted` is a constant `false`, and the
//! compiler removes what depends on it. The bug that is planted belongs to the thread ([`plant`]),
//! so that no structure of the engine has a field for it.

/// The table below as [`PlantedBug`] and its names.
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
    /// No FLUSH fails for writes past the cache that a failed flush of the engine's own dropped.
    ForgetFailedFlush = "forget-failed-flush",
    /// Intents of writes that a failed flush may have dropped end with the next flush.
    EndDroppedIntents = "end-dropped-intents",
    /// A failed flush of a backing store concerns only those writes past the cache that had ended
    /// before it began.
    TrustWritesInFlight = "trust-writes-in-flight",
    /// The same for what destage writes.
    TrustDestageInFlight = "trust-destage-in-flight",
    /// A stop waits for writers that wait for a store that fails.
    StopWaitsForStore = "stop-waits-for-store",
    /// A flush counts for what a backing store acknowledged before it was opened again.
    TrustOldDevice = "trust-old-device",
    /// A destaged block is called clean before the backing store was flushed.
    CleanBeforeBackingFlush = "clean-before-backing-flush",
    /// A write past the cache leaves the clean copy in place.
    ForgetInvalidation = "forget-invalidation",
    /// A batch is believed without checking its checksums.
    AcceptTornHeader = "accept-torn-header",
    /// A segment is reused before a checkpoint says that it is free.
    ReuseSegmentEarly = "reuse-segment-early",
    /// The window is extended before what made its segments void was flushed.
    ExtendBeforeFlush = "extend-before-flush",
    /// The window is extended by segments that the checkpoint does not account for.
    ExtendWithNewSegments = "extend-with-new-segments",
    /// An extension of the window lists only the segments that it adds.
    ForgetEarlierExtensions = "forget-earlier-extensions",
    /// A restart overlooks that the window was extended.
    OverlookExtension = "overlook-extension",
    /// The search for segments that a damaged extension added passes over those that the checkpoint
    /// calls open, though they may have been filled, emptied and added since.
    PassOverOpen = "pass-over-open",
    /// Of a segment that a lost extension has added, and whose first block was not durable, what is
    /// found further on counts for its earlier use.
    BelieveLaterUse = "believe-later-use",
    /// A segment is discarded before a checkpoint says that it holds nothing.
    DiscardEarly = "discard-early",
    /// A segment that is being discarded may be written.
    WriteUnderDiscard = "write-under-discard",
    /// A snapshot does not list a segment of the window that is being discarded.
    UnlistDiscarded = "unlist-discarded",
    /// An increment of a checkpoint leaves out the segments that were sealed.
    IncrementForgetsSegment = "increment-forgets-segment",
    /// An increment of a checkpoint leaves out what became void.
    IncrementForgetsVoid = "increment-forgets-void",
    /// An increment is written in the place of the one before it.
    IncrementOverLast = "increment-over-last",
    /// What increments said while a base was written is not in its chain.
    BaseWithoutIncrements = "base-without-increments",
    /// A base is named before all of it is written.
    BaseNamedEarly = "base-named-early",
    /// The first step over a large range to zero zeroes all of it, and is the only one.
    FirstStepZeroesAll = "first-step-zeroes-all",
    /// A stretch of the volume counts as empty once one block of it is cached no more.
    MiscountStretch = "miscount-stretch",
    /// Replay applies batches in the order found, not in the order of their sequence.
    IgnoreSequence = "ignore-sequence",
    /// Only the first superblock copy is written and read.
    DropSecondSuperblock = "drop-second-superblock",
    /// A write past the cache does not make its intent durable first.
    SkipIntent = "skip-intent",
    /// Blocks are destaged before the cache device holds them durably.
    DestageBeforeDurable = "destage-before-durable",
    /// A write is acknowledged before earlier batches of its stream completed.
    AcknowledgeOutOfOrder = "acknowledge-out-of-order",
    /// The endurance budget holds nothing back.
    OverspendEndurance = "overspend-endurance",
    /// A read fill is kept although the block was written meanwhile.
    KeepOvertakenFill = "keep-overtaken-fill",
    /// A read is answered by a fill that waits for its batch although the block was written
    /// meanwhile.
    AnswerOvertakenFill = "answer-overtaken-fill",
    /// A read joins another one although the block was written since that began.
    JoinOvertakenRead = "join-overtaken-read",
    /// Checksums of cached blocks are not compared on read.
    SkipChecksum = "skip-checksum",
    /// Relocation does not hold off writers of the block.
    RelocateWithoutLock = "relocate-without-lock",
    /// A write past the cache does not wait until clean marks are durable.
    TrustUnflushedMarks = "trust-unflushed-marks",
    /// A write past the cache waits for marks of other blocks that were added while it waited.
    ChaseMarks = "chase-marks",
    /// Clean marks wait for a second though writers wait at a dirty limit for what they mark.
    DawdleWithMarks = "dawdle-with-marks",
    /// Every victim of reclaim is searched for among all segments.
    PassForEachVictim = "pass-for-each-victim",
    /// The batches of a stream share the memory of their header, though the owner may not have
    /// started the write of one when the next one is made.
    ShareHeader = "share-header",
    /// Blocks may get older than `flush_period`.
    IgnoreFlushPeriod = "ignore-flush-period",
    /// What was taken from the buckets of the destage limits is never worked off.
    StarveLimiter = "starve-limiter",
    /// What was destaged before a limit was set counts against it.
    ChargeUnlimited = "charge-unlimited",
    /// Destage exceeds the limits that the operator set.
    ExceedLimits = "exceed-limits",
    /// Writers are let in beyond the dirty limit of their volume.
    ThrottleBeyondLimit = "throttle-beyond-limit",
    /// A change of the destage order forgets which blocks wait.
    ForgetOnOrderChange = "forget-on-order-change",
    /// The number of a volume that was detached is free before its blocks are forgotten.
    ReuseVolumeEarly = "reuse-volume-early",
    /// Blocks beyond the new end of a volume stay in the cache.
    KeepBeyondShrink = "keep-beyond-shrink",
    /// Segments that are being retired are appended to, and left out without being emptied.
    AppendToRetired = "append-to-retired",
    /// A volume is called drained although it has dirty blocks.
    ForgetDirtyAtDetach = "forget-dirty-at-detach",
    /// A new volume, or a larger size, is served before a checkpoint says so.
    ServeBeforeCheckpoint = "serve-before-checkpoint",
    /// A block that gets a second chance forgets that it was dirty.
    ForgetDirtySurvivor = "forget-dirty-survivor",
    /// A write of a long stream, past the cache, leaves the clean copy in place.
    SequentialLeavesCopy = "sequential-leaves-copy",
    /// A volume above its largest share gives up dirty blocks too.
    TrimDirty = "trim-dirty",
    /// Reclaim keeps pinned blocks even if nothing is left to be gained.
    KeepWithoutBound = "keep-without-bound",
    /// Reclaim compacts segments however full they and the cache are, and goes on if it is in vain.
    CompactWithoutBound = "compact-without-bound",
    /// Dirty blocks are moved although the cache does not hold them durably yet.
    MoveBeforeDurable = "move-before-durable",
    /// Blocks on the move for which there is no room go on waiting for it.
    KeepStuckMoves = "keep-stuck-moves",
    /// Writes wait for a segment though lost blocks hold all of them.
    WaitForLostRoom = "wait-for-lost-room",
    /// A block that is moved while it is written back is written back no more.
    LoseMovedExtent = "lose-moved-extent",
    /// A block that was dropped while it moved is forgotten, though its new record calls it dirty.
    ForgetRecordOfDropped = "forget-record-of-dropped",
    /// A flush epoch may end in 32 bits of zeroes, as if there were no order.
    WrapEpoch = "wrap-epoch",
    /// Ordered destage begins a flush epoch before the one before it is durable on the backing
    /// store.
    MixFlushEpochs = "mix-flush-epochs",
    /// Ordered destage begins a flush epoch before the clean marks of the one before it are
    /// durable.
    EpochBeforeMarks = "epoch-before-marks",
    /// A dirty block that is overwritten in a later flush epoch leaves no shadow.
    CoalesceEpochs = "coalesce-epochs",
    /// Recovery forgets flush epochs.
    ForgetEpochs = "forget-epochs",
    /// A write past the cache does not wait for earlier flush epochs.
    OvertakeEpochs = "overtake-epochs",
    /// A FUA write does not end its flush epoch.
    FuaKeepsEpoch = "fua-keeps-epoch",
    /// A volume that is attached to an open cache does not go on with its flush epochs.
    ForgetOrderAtAttach = "forget-order-at-attach",
    /// Flush epochs go on while a shrinking volume has given up blocks that a crash would bring
    /// back.
    AdvanceInShrink = "advance-in-shrink",
    /// Gaps between dirty blocks are written along with them without keeping others from writing
    /// there.
    FillGapsUnlocked = "fill-gaps-unlocked",
    /// Gaps are filled with what the cache has, even if that is dirty.
    FillGapsFromDirty = "fill-gaps-from-dirty",
    /// Gaps are filled from the cache even if it does not have all sectors.
    FillGapsFromPartial = "fill-gaps-from-partial",
    /// Requests go past a failed cache before a durable record says that it must not be opened
    /// again.
    PassBeforeRecord = "pass-before-record",
    /// A FLUSH without the cache does not wait until what the failed cache had is on the backing
    /// store.
    FlushBeforeRescue = "flush-before-rescue",
    /// A FLUSH without the cache does not wait for a record that says what is safe.
    FlushBeforeRecord = "flush-before-record",
    /// What is lost with the cache is read from the backing store.
    ReadLostFromBacking = "read-lost-from-backing",
    /// What a failed cache had is rescued though it was overwritten since.
    RescueSuperseded = "rescue-superseded",
    /// Batches that complete after the cache was fenced count.
    CountAfterFence = "count-after-fence",
    /// A flush of the cache device that succeeds after one that failed is believed.
    TrustFlushAfterFailure = "trust-flush-after-failure",
    /// A scrub does not look at dirty blocks.
    ScrubOverlooksDirty = "scrub-overlooks-dirty",
    /// A scrub gives up what a slot held even if that was overwritten meanwhile.
    ScrubJudgesVoid = "scrub-judges-void",
    /// A scrub of a mirrored cache looks at one copy only.
    ScrubOneCopy = "scrub-one-copy",
    /// A scrub judges a block by what it read from a member that does not count any more.
    JudgeFailedCopy = "judge-failed-copy",
    /// A volume that grows leaves the block at its old end to others before the new size is served.
    GrowUnlocked = "grow-unlocked",
    /// A shrink fails if the cache fails, though blocks beyond the new end were given up.
    FailAfterCut = "fail-after-cut",
    /// After a start, blocks that have no place in the index yet are not found.
    OverlookListed = "overlook-listed",
    /// A batch of a mirrored cache counts when one member has it.
    CountHalfBatches = "count-half-batches",
    /// A flush of a mirrored cache flushes one member.
    FlushOneMember = "flush-one-member",
    /// What only one member of a mirrored cache has counts before it is noted that the other has
    /// failed.
    CountBeforeNote = "count-before-note",
    /// A member of a mirrored cache that was put out is believed at the next start.
    TrustStaleMember = "trust-stale-member",
    /// A block that cannot be read from one member of a mirrored cache is not read from the other.
    ReadOneCopy = "read-one-copy",
    /// What recovery finds on one member only stays there only.
    LeaveUnmended = "leave-unmended",
    /// A new member does not get everything.
    ForgetInRebuild = "forget-in-rebuild",
    /// What an earlier use of a segment left where a write was lost is taken for what the
    /// checkpoint means.
    BelieveEarlierUse = "believe-earlier-use",
    /// What is known of the cache from outside of its device is not compared with it.
    BelieveOlderCopy = "believe-older-copy",
    /// A dirty block that cannot be read for a moment is lost.
    GiveUpAtOnce = "give-up-at-once",
    /// Without the cache a write is acknowledged while the record still calls lost what it wrote.
    AcknowledgeUnrecorded = "acknowledge-unrecorded",
    /// A batch of a mirrored cache counts although only a member has it that does not count.
    CountAnywhere = "count-anywhere",
    /// A checkpoint in the middle of a rebuild gives the new member a superblock that calls it out.
    OutInItsOwnWords = "out-in-its-own-words",
    /// At the end of a rebuild the superblocks of both members are written at once.
    ListAtOnce = "list-at-once",
    /// A cache is opened although a member that counts does not take what it lacks.
    MendInVain = "mend-in-vain",
    /// What is filled on a member of a mirrored cache that is out stays in the map.
    KeepLostFill = "keep-lost-fill",
    /// What is found at a start is called durable after a flush, though the flush before may have
    /// failed.
    TrustWhatIsRead = "trust-what-is-read",
    /// A block that was written after it was discarded is given back on the backing store all the
    /// same.
    KeepDiscard = "keep-discard",
    /// The owner of an encrypted cache writes metadata without encrypting it.
    WriteMetaInClear = "write-meta-in-clear",
    /// What the owner says of a backing store that somebody else wrote to after a crash is not
    /// heard.
    TrustAfterCrash = "trust-after-crash",
    /// An orderly stop keeps what was noted at the attach of a backing store that the owner could
    /// not look at.
    KeepOldNotes = "keep-old-notes",
    /// The owner of an encrypted cache encrypts a batch that could not be written, and is written
    /// elsewhere, for its first place.
    TweakOfFailedWrite = "tweak-of-failed-write",
    /// A batch takes twice as many marks as its header has room for.
    OverfillHeader = "overfill-header",
    /// The intent of a write past the cache names the first of its regions only.
    IntentOfOneRegion = "intent-of-one-region",
    /// A FLUSH succeeds though something that was written before it is lost, and nobody has been
    /// told.
    FlushOverLoss = "flush-over-loss",
    /// A read is answered by a partly cached block though it has not all sectors that are asked
    /// for.
    ServeInvalidSectors = "serve-invalid-sectors",
    /// A partly cached block is dropped and read as a whole although it is dirty.
    HealDirty = "heal-dirty",
    /// The owner reads what a backing store that has ended does not have as zeroes.
    EndIsZeroes = "end-is-zeroes",
    /// An operation on a cache device that has ended for a moment counts as failed.
    FailAtEnd = "fail-at-end",
    /// At a start, blocks that the log has replaced since the checkpoint are listed like all
    /// others, and are not found when the log replaces them.
    ListReplaced = "list-replaced",
    /// While a cache device is copied, writes to what was copied go to the old device only.
    CopyWithoutSecondWrite = "copy-without-second-write",
    /// A chunk of a cache device counts as copied though it was written meanwhile.
    CopyBehindWrite = "copy-behind-write",
    /// The head of a cache device is copied before the rest was flushed.
    HeadBeforeFlush = "head-before-flush",
    /// A flush of a cache device that was copied does not go to the new one.
    FlushOldDeviceOnly = "flush-old-device-only",
    /// What fails on a new cache device is not told though the configuration may name it.
    TrustFailedSecond = "trust-failed-second",
    /// A member of a mirrored cache was replaced, and the change counts as done while a start
    /// elsewhere would still believe the old one.
    LeaveOldBelieved = "leave-old-believed",
}

impl PlantedBug {
    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(bug, _)| *bug == self).map_or("", |(_, name)| name)
    }

    /// The bug of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(bug, _)| *bug)
    }
}

/// True if bugs can be planted in this build: it has the feature `planted-bugs`.
pub const AVAILABLE: bool = cfg!(feature = "planted-bugs");

/// True if this bug is planted in the engines of this thread.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
#[inline(always)]
pub const fn planted(_: PlantedBug) -> bool {
    false
}

/// Plants a bug in the engines of this thread: none, in this build.
///
/// # Panics
/// With a bug: see [`AVAILABLE`].
#[cfg(not(feature = "planted-bugs"))]
pub fn plant(bug: Option<PlantedBug>) -> Planting {
    assert!(bug.is_none(), "this build has no planted bugs: it needs the feature planted-bugs");
    Planting
}

/// Nothing is planted.
#[cfg(not(feature = "planted-bugs"))]
#[derive(Debug)]
pub struct Planting;

#[cfg(feature = "planted-bugs")]
pub use thread::{Planting, plant, planted};

/// What is planted in a thread.
#[cfg(feature = "planted-bugs")]
mod thread {
    extern crate std;

    use super::PlantedBug;
    use std::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// True if this bug is planted in the engines of this thread.
    #[must_use]
    pub fn planted(bug: PlantedBug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug, or none, in the engines of this thread until the result is dropped.
    pub fn plant(bug: Option<PlantedBug>) -> Planting {
        Planting { before: PLANTED.replace(bug) }
    }

    /// A bug is planted until this is dropped; then the one before is again.
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
