//! CoverageMarks: rare paths of the engine that a run has come by.
//!
//! A test that never comes where a bug would be proves nothing. Each coverage mark is one bit, set
//! where the path is taken: nothing on the paths of ordinary requests, one instruction elsewhere.
//! The simulator counts the engines that reached each and demands that none is left out (`forebay
//! sim`, `docs/internals/simulation.md`).

/// CoverageMarks that an engine has reached since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CoverageMarks(u128);

impl CoverageMarks {
    /// True if this one was reached.
    #[must_use]
    pub fn contains(self, mark: CoverageMark) -> bool {
        self.0 >> mark as u32 & 1 == 1
    }

    pub(crate) fn add(&mut self, mark: CoverageMark) {
        self.0 |= 1 << mark as u32;
    }
}

macro_rules! coverage {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// A rare path of the engine.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum CoverageMark {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl CoverageMark {
            /// All of them, with name and meaning.
            pub const ALL: &[(Self, &'static str, &'static str)] =
                &[$((Self::$variant, $name, concat!($($doc),+)),)*];
        }
    };
}

coverage! {
    /// The endurance budget had nothing for a fill.
    UnfilledForEndurance = "unfilled-for-endurance",
    /// The endurance budget had nothing for a block that reclaim would have kept.
    UnkeptForEndurance = "unkept-for-endurance",
    /// A segment of the append window was discarded.
    WindowDiscarded = "window-discarded",
    /// A segment that is not in the append window was discarded.
    PoolDiscarded = "pool-discarded",
    /// The cache device turned out not to have discards.
    DiscardsRefused = "discards-refused",
    /// A scrub fetched a damaged block from the backing store.
    ScrubRepaired = "scrub-repaired",
    /// A member of a mirrored cache failed.
    MemberFailed = "member-failed",
    /// The owner could not note that a member of a mirrored cache failed.
    NoteRefused = "note-refused",
    /// A flush of a mirrored cache waited for the note that a member had failed.
    FlushWaitsForNote = "flush-waits-for-note",
    /// What only the lost member of a mirrored cache had was forgotten.
    LostSwept = "lost-swept",
    /// Recovery began with one member of a mirrored cache, because the other was missing or stale.
    MemberMissing = "member-missing",
    /// Recovery found something on one member of a mirrored cache that the other lacked, and mended
    /// it.
    MemberMended = "member-mended",
    /// A bad copy on one member of a mirrored cache was written again from the other.
    CopyMended = "copy-mended",
    /// A batch of a mirrored cache failed on a member that counts, and was written again though the
    /// other one had it.
    HalfRewritten = "half-rewritten",
    /// A new member of a mirrored cache was filled.
    RebuildEnded = "rebuild-ended",
    /// A new member of a mirrored cache failed before its end.
    RebuildFailed = "rebuild-failed",
    /// A batch whose write failed was moved to another segment.
    BatchMoved = "batch-moved",
    /// The requests of a batch failed, because no segment takes it.
    BatchGivenUp = "batch-given-up",
    /// A batch had as many entries as its header has room for.
    FullBatch = "full-batch",
    /// Recovery believed a summary of several blocks.
    LongSummary = "long-summary",
    /// A pass over the segments listed victims for later choices.
    VictimsListed = "victims-listed",
    /// A segment was compacted: everything in it was kept.
    Compacted = "compacted",
    /// The write of a summary failed: its segment stays without.
    SummaryFailed = "summary-failed",
    /// A segment got no summary because its flush epochs were forgotten.
    SummaryLeftOut = "summary-left-out",
    /// A small segment was closed, which gets no summary.
    SegmentWithoutSummary = "segment-without-summary",
    /// Recovery found a summary damaged and read the batches instead.
    SummaryDamaged = "summary-damaged",
    /// Recovery read a segment block by block, because it cannot be read as a whole.
    SegmentInPieces = "segment-in-pieces",
    /// Recovery read something once more after an error.
    RecoveryRetried = "recovery-retried",
    /// The second superblock counted, or the first was behind.
    SecondSuperblock = "second-superblock",
    /// A stale superblock copy was mended before a checkpoint.
    SuperblockMended = "superblock-mended",
    /// The second copy of a checkpoint counted.
    SecondCheckpoint = "second-checkpoint",
    /// A checkpoint or superblock was written again after an error.
    CheckpointRetried = "checkpoint-retried",
    /// A checkpoint made clean marks durable that had not been logged.
    MarksByCheckpoint = "marks-by-checkpoint",
    /// A checkpoint made drop marks or intents durable that found no room in the log.
    ItemsByCheckpoint = "items-by-checkpoint",
    /// A checkpoint was due because the log was full and marks waited.
    CheckpointOfFullLog = "checkpoint-of-full-log",
    /// The window was extended without a checkpoint.
    WindowExtended = "window-extended",
    /// Both copies of an extension were damaged, and the segments were asked.
    ExtensionSearched = "extension-searched",
    /// A segment whose first block was not durable was found to have been added.
    LaterUseFound = "later-use-found",
    /// A checkpoint was an increment.
    CheckpointIncrement = "checkpoint-increment",
    /// A base was begun beside the checkpoint in effect.
    BaseBegun = "base-begun",
    /// An increment was written to two chains.
    BaseGrows = "base-grows",
    /// A checkpoint began with a new base.
    BaseInEffect = "base-in-effect",
    /// A base was given up.
    BaseDropped = "base-dropped",
    /// There were too many changes for an increment.
    ChangesLost = "changes-lost",
    /// A checkpoint waited for its base.
    CheckpointWaits = "checkpoint-waits",
    /// Enough blocks were evicted in one call: the rest of a victim waits for the next one.
    EvictionPauses = "eviction-pauses",
    /// A checkpoint ended write intents.
    IntentCleared = "intent-cleared",
    /// Recovery dropped clean blocks in a region with intent.
    IntentDropsClean = "intent-drops-clean",
    /// Recovery found a header whose payload is not whole, at the end of a stream.
    TornBatch = "torn-batch",
    /// Recovery left out batches behind a gap of their stream.
    BatchesBehindGap = "batches-behind-gap",
    /// Recovery found batches that were written again elsewhere after a failure.
    BatchesWrittenTwice = "batches-written-twice",
    /// What was found at a start, and may not have been durable, was written again.
    Rewritten = "rewritten",
    /// A request came to a block that was loaded and had no place in the index yet.
    ListedBlockAsked = "listed-block-asked",
    /// A damaged clean block was dropped.
    CleanDamaged = "clean-damaged",
    /// A dirty block that could not be read was asked for again some time later.
    DirtyReadLater = "dirty-read-later",
    /// An operation on a cache device that had ended was asked for again some time later.
    EndedLater = "ended-later",
    /// A cache device that had ended did not come back in time.
    EndedForGood = "ended-for-good",
    /// A member of a mirrored cache had ended, and was put out.
    MemberEnded = "member-ended",
    /// A dirty block was lost.
    DirtyLost = "dirty-lost",
    /// A cached block that a read found wrong had changed its place meanwhile.
    HitMoved = "hit-moved",
    /// A fill was left out or undone because its block was written meanwhile.
    FillOvertaken = "fill-overtaken",
    /// A clean block that was cached in part was read as a whole, and cached again.
    PartialHealed = "partial-healed",
    /// Fills were forgotten because the log had no room for them.
    FillsForgotten = "fills-forgotten",
    /// Reclaim moved a dirty block.
    DirtySurvivor = "dirty-survivor",
    /// A block was destaged while reclaim moved it.
    SurvivorDestaged = "survivor-destaged",
    /// A block was moved while it was being written back: destage went on with the copy.
    SurvivorFollowed = "survivor-followed",
    /// A block that reclaim moved had left the map meanwhile.
    RelocationLost = "relocation-lost",
    /// Reclaim found no room for what it wanted to keep, or a block under a lock.
    VictimWaits = "victim-waits",
    /// Reclaim could not go on until something is written back.
    ReclaimWantsDestage = "reclaim-wants-destage",
    /// Reclaim gave up keeping anything because it never had enough.
    ReclaimInVain = "reclaim-in-vain",
    /// A gap between dirty blocks was read from the backing store and written along.
    GapFromBacking = "gap-from-backing",
    /// A gap between dirty blocks was filled from the cache.
    GapFromCache = "gap-from-cache",
    /// A gap could not be read.
    GapUnreadable = "gap-unreadable",
    /// A flush of a backing store failed under destage.
    DestageFlushFailed = "destage-flush-failed",
    /// A read was answered by a fill that waited for its batch.
    PendingFillRead = "pending-fill-read",
    /// A read waited for a block that another one was bringing.
    ReadJoined = "read-joined",
    /// A read that another one had joined failed.
    JoinedReadFailed = "joined-read-failed",
    /// A write past the cache undid the destage of dirty blocks.
    DestageUndone = "destage-undone",
    /// A write past the cache made clean marks durable first.
    MarksSettled = "marks-settled",
    /// A range to zero past the cache took more than one step.
    ZeroedInSteps = "zeroed-in-steps",
    /// A write past the cache voided dirty blocks.
    DirtyDropped = "dirty-dropped",
    /// A dirty block was overwritten in a later flush epoch and stays as a shadow.
    Shadow = "shadow",
    /// A flush epoch waited until clean marks were durable.
    EpochWaitsForMarks = "epoch-waits-for-marks",
    /// The order of a volume that is not attached gave way.
    OrderYielded = "order-yielded",
    /// The order of a volume broke because a block was lost.
    OrderBroken = "order-broken",
    /// A flush of the cache device failed: nothing is promised any more.
    Fenced = "fenced",
    /// Opening was refused because the device lost what it had flushed.
    LostFlushFound = "lost-flush-found",
    /// Opening was refused because dirty blocks cannot be found any more.
    SegmentLost = "segment-lost",
    /// A backing store that had changed was recognised.
    BackingChanged = "backing-changed",
    /// A pinned or dirty block was moved out of a segment that a pool gives up.
    Evacuated = "evacuated",
    /// A change of a volume or of the pool was refused by its last moment: fenced, lost, cancelled.
    ChangeFailed = "change-failed",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_coverage_mark_has_a_bit_and_a_name_of_its_own() {
        let mut all = CoverageMarks::default();
        assert!(CoverageMark::ALL.len() <= 128);
        for (at, (mark, name, _)) in CoverageMark::ALL.iter().enumerate() {
            assert!(!all.contains(*mark));
            all.add(*mark);
            assert!(CoverageMark::ALL[..at].iter().all(|(_, other, _)| other != name));
        }
        assert_eq!(all.0.count_ones() as usize, CoverageMark::ALL.len());
    }
}
