//! Coverage marks: rare paths that the engine has taken.
//!
//! A test that never reaches the place of a bug proves nothing. Each coverage mark is one bit, set
//! where the path is taken: no cost on the paths of ordinary requests, one instruction elsewhere.
//! The simulator counts the engines that reached each mark and requires that none is left out
//! (`forebay-sim`, `docs/internals/simulation.md`).

/// Coverage marks that an engine has reached since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CoverageMarks(u128);

impl CoverageMarks {
    /// Returns true if this mark was reached.
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
            /// All marks, with name and meaning.
            pub const ALL: &[(Self, &'static str, &'static str)] =
                &[$((Self::$variant, $name, concat!($($doc),+)),)*];
        }
    };
}

coverage! {
    /// The endurance budget did not allow a fill.
    UnfilledForEndurance = "unfilled-for-endurance",
    /// The endurance budget did not allow a block that reclaim would have kept.
    UnkeptForEndurance = "unkept-for-endurance",
    /// A segment of the append window was discarded.
    WindowDiscarded = "window-discarded",
    /// A segment that is not in the append window was discarded.
    PoolDiscarded = "pool-discarded",
    /// The cache device turned out not to support discards.
    DiscardsRefused = "discards-refused",
    /// A scrub fetched a damaged block from the backing store.
    ScrubRepaired = "scrub-repaired",
    /// A member of a mirrored cache failed.
    MemberFailed = "member-failed",
    /// The owner could not record that a member of a mirrored cache failed.
    NoteRefused = "note-refused",
    /// A flush of a mirrored cache waited until the failure of a member was recorded.
    FlushWaitsForNote = "flush-waits-for-note",
    /// Blocks that only the lost member of a mirrored cache had were forgotten.
    LostSwept = "lost-swept",
    /// Recovery began with one member of a mirrored cache, because the other was missing or stale.
    MemberMissing = "member-missing",
    /// Recovery found something on one member of a mirrored cache that the other lacked, and
    /// repaired the other.
    MemberRepaired = "member-repaired",
    /// A bad copy on one member of a mirrored cache was rewritten from the other.
    CopyRepaired = "copy-repaired",
    /// A batch of a mirrored cache failed on an active member, and was rewritten though the other
    /// one had it.
    HalfRewritten = "half-rewritten",
    /// A new member of a mirrored cache was filled.
    RebuildEnded = "rebuild-ended",
    /// A new member of a mirrored cache failed before its rebuild ended.
    RebuildFailed = "rebuild-failed",
    /// A batch whose write failed was moved to another segment.
    BatchMoved = "batch-moved",
    /// The requests of a batch failed because no segment could take it.
    BatchGivenUp = "batch-given-up",
    /// A batch had as many entries as fit in its header.
    FullBatch = "full-batch",
    /// Recovery accepted a summary of several blocks.
    LongSummary = "long-summary",
    /// A pass over the segments listed victims for later choices.
    VictimsListed = "victims-listed",
    /// A segment was compacted: reclaim kept everything in it.
    Compacted = "compacted",
    /// The write of a summary failed: the segment has none.
    SummaryFailed = "summary-failed",
    /// A segment got no summary because its flush epochs were forgotten.
    SummaryLeftOut = "summary-left-out",
    /// A small segment was closed, which gets no summary.
    SegmentWithoutSummary = "segment-without-summary",
    /// Recovery found a summary damaged and read the batches instead.
    SummaryDamaged = "summary-damaged",
    /// Recovery read a segment block by block, because reading it as a whole failed.
    SegmentInPieces = "segment-in-pieces",
    /// Recovery repeated a read after an error.
    RecoveryRetried = "recovery-retried",
    /// The second superblock was used, or the first was behind.
    SecondSuperblock = "second-superblock",
    /// A stale superblock copy was repaired before a checkpoint.
    SuperblockRepaired = "superblock-repaired",
    /// The second copy of a checkpoint was used.
    SecondCheckpoint = "second-checkpoint",
    /// A checkpoint or superblock was rewritten after an error.
    CheckpointRetried = "checkpoint-retried",
    /// A checkpoint made clean marks durable that had not been logged.
    MarksByCheckpoint = "marks-by-checkpoint",
    /// A checkpoint made drop marks or intents durable for which the log had no room.
    ItemsByCheckpoint = "items-by-checkpoint",
    /// A checkpoint was due because the log was full and marks waited.
    CheckpointOfFullLog = "checkpoint-of-full-log",
    /// The append window was extended without a checkpoint.
    WindowExtended = "window-extended",
    /// Both copies of a window extension were damaged, and recovery read the segments instead.
    ExtensionSearched = "extension-searched",
    /// Recovery found that a segment whose first block was not durable had been added to the
    /// window.
    LaterUseFound = "later-use-found",
    /// A checkpoint was an increment.
    CheckpointIncrement = "checkpoint-increment",
    /// A base was begun in addition to the checkpoint in effect.
    BaseBegun = "base-begun",
    /// An increment was written to two chains.
    BaseGrows = "base-grows",
    /// A checkpoint began with a new base.
    BaseInEffect = "base-in-effect",
    /// A base was abandoned.
    BaseDropped = "base-dropped",
    /// There were too many changes for an increment.
    ChangesLost = "changes-lost",
    /// A checkpoint waited for its base.
    CheckpointWaits = "checkpoint-waits",
    /// One call evicted its maximum of blocks: the rest of a victim waits for the next one.
    EvictionPauses = "eviction-pauses",
    /// A checkpoint ended write intents.
    IntentCleared = "intent-cleared",
    /// Recovery dropped clean blocks in a region with an intent.
    IntentDropsClean = "intent-drops-clean",
    /// Recovery found a header whose payload is incomplete, at the end of a stream.
    TornBatch = "torn-batch",
    /// Recovery ignored batches behind a gap of their stream.
    BatchesBehindGap = "batches-behind-gap",
    /// Recovery found batches that were rewritten elsewhere after a failure.
    BatchesWrittenTwice = "batches-written-twice",
    /// Recovery rewrote batches that might not have been durable.
    Rewritten = "rewritten",
    /// A request arrived for a block that was loaded but not in the index yet.
    ListedBlockAsked = "listed-block-asked",
    /// A damaged clean block was dropped.
    CleanDamaged = "clean-damaged",
    /// A dirty block that could not be read was read again some time later.
    DirtyReadLater = "dirty-read-later",
    /// An operation on a shortened cache device was repeated some time later.
    EndedLater = "ended-later",
    /// A shortened cache device did not come back in time.
    EndedForGood = "ended-for-good",
    /// A member of a mirrored cache was shortened, and was failed out.
    MemberEnded = "member-ended",
    /// A dirty block was lost.
    DirtyLost = "dirty-lost",
    /// A cached block whose read failed verification had moved meanwhile.
    HitMoved = "hit-moved",
    /// A fill was omitted or undone because its block was written meanwhile.
    FillOvertaken = "fill-overtaken",
    /// A partly cached clean block was read as a whole, and cached again.
    PartialHealed = "partial-healed",
    /// Fills were forgotten because the log had no room for them.
    FillsForgotten = "fills-forgotten",
    /// Reclaim moved a dirty block.
    DirtySurvivor = "dirty-survivor",
    /// A block was destaged while reclaim moved it.
    SurvivorDestaged = "survivor-destaged",
    /// A block was moved while it was being written back: destage continued with the copy.
    SurvivorFollowed = "survivor-followed",
    /// A block that reclaim moved had left the map meanwhile.
    RelocationLost = "relocation-lost",
    /// Reclaim found no room for a block that it must keep, or found it locked.
    VictimWaits = "victim-waits",
    /// Reclaim could not continue until destage writes something back.
    ReclaimWantsDestage = "reclaim-wants-destage",
    /// Reclaim stopped keeping blocks because it never gained enough.
    ReclaimInVain = "reclaim-in-vain",
    /// A gap between dirty blocks was read from the backing store and written along.
    GapFromBacking = "gap-from-backing",
    /// A gap between dirty blocks was filled from the cache.
    GapFromCache = "gap-from-cache",
    /// A gap could not be read.
    GapUnreadable = "gap-unreadable",
    /// A flush of a backing store failed during destage.
    DestageFlushFailed = "destage-flush-failed",
    /// A read was answered from a fill that waited for its batch.
    PendingFillRead = "pending-fill-read",
    /// A read waited for a block that another one was reading.
    ReadJoined = "read-joined",
    /// A read that another one had joined failed.
    JoinedReadFailed = "joined-read-failed",
    /// A bypass write undid the destage of dirty blocks.
    DestageUndone = "destage-undone",
    /// A bypass write made clean marks durable first.
    MarksSettled = "marks-settled",
    /// Zeroing a range on the backing store took more than one step.
    ZeroedInSteps = "zeroed-in-steps",
    /// A bypass write voided dirty blocks.
    DirtyDropped = "dirty-dropped",
    /// A dirty block was overwritten in a later flush epoch and stays as a shadow.
    Shadow = "shadow",
    /// A flush epoch waited until clean marks were durable.
    EpochWaitsForMarks = "epoch-waits-for-marks",
    /// A volume that is not attached lost its destage order to make room.
    OrderYielded = "order-yielded",
    /// The destage order of a volume ended because a block was lost.
    OrderBroken = "order-broken",
    /// A flush of the cache device failed: the engine cannot guarantee durability any longer.
    Fenced = "fenced",
    /// Opening was refused because the device lost flushed data.
    LostFlushFound = "lost-flush-found",
    /// Opening was refused because dirty blocks cannot be found.
    SegmentLost = "segment-lost",
    /// Recovery detected that a backing store had changed.
    BackingChanged = "backing-changed",
    /// A pinned or dirty block was moved out of a segment that a shrinking pool gives up.
    Evacuated = "evacuated",
    /// A change of a volume or of the pool failed late: fenced, lost, cancelled.
    ChangeFailed = "change-failed",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_marks_have_own_bits_and_names() {
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
