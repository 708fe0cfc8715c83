//! Planted bugs: the situation that reveals each of them. A new bug is one row here.
//!
//! The simulator finds most of them without their situation too, only later. Situations are in
//! `situations.rs`.

use super::types::{Needs, Plan, Situation};
use forebay_core::PlantedBug::{self, *};

const BUGS: &[(PlantedBug, Needs, Situation)] = &[
    (SkipDeviceFlush, Needs::Nothing, Plan::only_writeback),
    (ForgetFailedFlush, Needs::Nothing, Plan::flushes_that_drop_writes_past),
    (EndDroppedIntents, Needs::Nothing, Plan::flushes_that_drop_writes_past),
    (TrustWritesInFlight, Needs::Nothing, Plan::flushes_that_drop_writes_past),
    (TrustDestageInFlight, Needs::Nothing, Plan::flushes_that_drop_destage),
    (StopWaitsForStore, Needs::Nothing, Plan::barred_and_stopped),
    (TrustOldDevice, Needs::UnpluggedBacking, Plan::destaged_at_once),
    (CleanBeforeBackingFlush, Needs::Nothing, Plan::destaged_at_once),
    (ForgetInvalidation, Needs::Nothing, Plan::written_past),
    (AcceptTornHeader, Needs::Nothing, Plan::only_writeback),
    (ReuseSegmentEarly, Needs::Nothing, Plan::full_cache),
    (ExtendBeforeFlush, Needs::Nothing, Plan::full_of_dirty),
    (ExtendWithNewSegments, Needs::Nothing, Plan::full_cache),
    (ForgetEarlierExtensions, Needs::Nothing, Plan::full_cache),
    (OverlookExtension, Needs::Nothing, Plan::full_cache),
    (PassOverOpen, Needs::LostExtensions, Plan::refilled_segments),
    (BelieveLaterUse, Needs::LostExtensions, Plan::refilled_clean_segments),
    (DiscardEarly, Needs::Discards, Plan::full_of_dirty),
    (WriteUnderDiscard, Needs::Discards, Plan::full_cache),
    (UnlistDiscarded, Needs::Discards, Plan::full_cache),
    (IncrementForgetsSegment, Needs::Chain, Plan::without_faults),
    (IncrementForgetsVoid, Needs::Chain, Plan::without_faults),
    (IncrementOverLast, Needs::Chain, Plan::without_faults),
    (BaseWithoutIncrements, Needs::Chain, Plan::without_faults),
    (BaseNamedEarly, Needs::Chain, Plan::without_faults),
    (FirstStepZeroesAll, Needs::Nothing, Plan::zeroed_in_steps),
    (MiscountStretch, Needs::Nothing, Plan::zeroed_in_stretches),
    (IgnoreSequence, Needs::Nothing, Plan::only_writeback),
    (DropSecondSuperblock, Needs::Nothing, Plan::without_faults),
    (SkipIntent, Needs::Nothing, Plan::written_past),
    (DestageBeforeDurable, Needs::Nothing, Plan::destaged_at_once),
    (AcknowledgeOutOfOrder, Needs::Nothing, Plan::batches_out_of_order),
    (OverspendEndurance, Needs::Nothing, Plan::small_endurance),
    (KeepOvertakenFill, Needs::Nothing, Plan::reads_beside_writes),
    (AnswerOvertakenFill, Needs::Nothing, Plan::reads_beside_writes),
    (JoinOvertakenRead, Needs::Nothing, Plan::reads_beside_writes),
    (SkipChecksum, Needs::Nothing, Plan::rot_that_is_read),
    (RelocateWithoutLock, Needs::Nothing, Plan::full_cache),
    (TrustUnflushedMarks, Needs::Nothing, Plan::unflushed_marks),
    // Found by `tests/it/pacing.rs`: needs a flush that takes as long as all concurrent writes.
    (ChaseMarks, Needs::Nothing, Plan::as_drawn),
    // Found by `tests/it/liveness.rs`: needs a load that does not end.
    (DawdleWithMarks, Needs::OtherTest, Plan::as_drawn),
    // Found by `tests/it/work.rs` of the core: only the run time is wrong.
    (PassForEachVictim, Needs::OtherTest, Plan::as_drawn),
    (ShareHeader, Needs::LateStarts, Plan::batches_in_flight),
    (IgnoreFlushPeriod, Needs::Nothing, Plan::flush_period),
    (StarveLimiter, Needs::Nothing, Plan::limited_destage),
    (ChargeUnlimited, Needs::Nothing, Plan::limit_that_begins),
    (ExceedLimits, Needs::Nothing, Plan::limit_below_load),
    (ThrottleBeyondLimit, Needs::Nothing, Plan::dirty_limit),
    (ForgetOnOrderChange, Needs::Nothing, Plan::changing_order),
    (ReuseVolumeEarly, Needs::Nothing, Plan::lifecycle),
    (KeepBeyondShrink, Needs::Nothing, Plan::lifecycle),
    (AppendToRetired, Needs::Nothing, Plan::pool_resizes),
    (ForgetDirtyAtDetach, Needs::Nothing, Plan::lifecycle),
    (ServeBeforeCheckpoint, Needs::Nothing, Plan::lifecycle),
    (ForgetDirtySurvivor, Needs::Nothing, Plan::full_of_dirty),
    (SequentialLeavesCopy, Needs::Nothing, Plan::sequential_writes),
    (TrimDirty, Needs::Nothing, Plan::small_share),
    (KeepWithoutBound, Needs::Nothing, Plan::full_of_pins),
    // Found by `tests/it/room.rs` of the core: `CompactWithoutBound` writes too much.
    (CompactWithoutBound, Needs::OtherTest, Plan::as_drawn),
    (MoveBeforeDurable, Needs::Nothing, Plan::destaged_at_once),
    // Found by `tests/it/room.rs` of the core: needs small segments and many requests.
    (KeepStuckMoves, Needs::OtherTest, Plan::as_drawn),
    // Found by `tests/it/damage.rs` of the core: needs a lost block in each segment.
    (WaitForLostRoom, Needs::OtherTest, Plan::as_drawn),
    (LoseMovedExtent, Needs::Nothing, Plan::as_drawn),
    // Found by `tests/it/lifecycle.rs` of the core: needs a read that hangs.
    (ForgetRecordOfDropped, Needs::OtherTest, Plan::as_drawn),
    (WrapEpoch, Needs::Nothing, Plan::ordered_beyond_32_bits),
    (MixFlushEpochs, Needs::Nothing, Plan::ordered),
    (EpochBeforeMarks, Needs::Nothing, Plan::ordered),
    (CoalesceEpochs, Needs::Nothing, Plan::ordered),
    (ForgetEpochs, Needs::Nothing, Plan::ordered_and_dirty),
    (OvertakeEpochs, Needs::Nothing, Plan::ordered_and_written_past),
    (FuaKeepsEpoch, Needs::Nothing, Plan::ordered_by_fua),
    (ForgetOrderAtAttach, Needs::Nothing, Plan::ordered),
    (AdvanceInShrink, Needs::Nothing, Plan::ordered_that_shrink),
    (FillGapsUnlocked, Needs::Nothing, Plan::gaps_written_past),
    (FillGapsFromDirty, Needs::Nothing, Plan::gaps_of_dirty),
    (FillGapsFromPartial, Needs::Nothing, Plan::gaps_of_sectors),
    (PassBeforeRecord, Needs::Nothing, Plan::failing_cache),
    (FlushBeforeRescue, Needs::Nothing, Plan::failing_cache_and_flushes),
    (FlushBeforeRecord, Needs::Nothing, Plan::failing_cache_and_flushes),
    (ReadLostFromBacking, Needs::Nothing, Plan::lost_cache),
    (RescueSuperseded, Needs::Nothing, Plan::failing_cache),
    (CountAfterFence, Needs::Nothing, Plan::batches_beside_failing_flush),
    (TrustFlushAfterFailure, Needs::Nothing, Plan::failing_flushes_unrecorded),
    (ScrubOverlooksDirty, Needs::Nothing, Plan::scrubbed_dirty),
    (ScrubJudgesVoid, Needs::Nothing, Plan::scrubbed_beside_writes),
    (ScrubOneCopy, Needs::Mirror, Plan::scrubbed_mirror),
    (JudgeFailedCopy, Needs::Mirror, Plan::scrubbed_member_that_fails),
    (GrowUnlocked, Needs::Nothing, Plan::odd_ends),
    (FailAfterCut, Needs::Nothing, Plan::lifecycle_of_failing_cache),
    (OverlookListed, Needs::Nothing, Plan::dirty_at_start),
    (CountHalfBatches, Needs::Mirror, Plan::missing_member),
    (FlushOneMember, Needs::Mirror, Plan::missing_member),
    (CountBeforeNote, Needs::Mirror, Plan::missing_after_failure),
    (TrustStaleMember, Needs::Mirror, Plan::missing_after_failure),
    (ReadOneCopy, Needs::Mirror, Plan::spoilt_member),
    (LeaveUnrepaired, Needs::Mirror, Plan::missing_member_twice),
    (ForgetInRebuild, Needs::Mirror, Plan::other_member_fails),
    // `hostile` finds these two.
    (BelieveEarlierUse, Needs::Nothing, Plan::as_drawn),
    (ListDeviceEarly, Needs::Nothing, Plan::pool_resizes),
    (SkipBehindDamage, Needs::Nothing, Plan::rot_and_crashes),
    (BelieveOlderCopy, Needs::Nothing, Plan::as_drawn),
    (GiveUpAtOnce, Needs::Outage, Plan::much_dirty),
    (AcknowledgeUnrecorded, Needs::Nothing, Plan::failing_cache),
    (CountAnywhere, Needs::Mirror, Plan::members_that_miss_writes),
    (OutInItsOwnWords, Needs::Mirror, Plan::replaced_member),
    (ListAtOnce, Needs::Mirror, Plan::replaced_member),
    (RepairInVain, Needs::Mirror, Plan::opening_errors),
    (KeepLostFill, Needs::Mirror, Plan::fills_of_failing_members),
    (TrustWhatIsRead, Needs::Nothing, Plan::reopened_after_failing_flush),
    (KeepDiscard, Needs::Nothing, Plan::discards),
    (WriteMetaInClear, Needs::Cipher, Plan::as_drawn),
    (TrustAfterCrash, Needs::Nothing, Plan::forked_and_read),
    (KeepOldNotes, Needs::Nothing, Plan::dirty_at_start),
    (TweakOfFailedWrite, Needs::Cipher, Plan::failing_writes),
    (OverfillHeader, Needs::LongSegments, Plan::many_marks),
    (IntentOfOneRegion, Needs::Regions, Plan::large_and_written_past),
    (FlushOverLoss, Needs::Nothing, Plan::rot_and_flushes),
    (ServeInvalidSectors, Needs::Nothing, Plan::partial_blocks),
    (HealDirty, Needs::Nothing, Plan::partial_blocks),
    (EndIsZeroes, Needs::ShortBacking, Plan::read_without_faults),
    (FailAtEnd, Needs::ShortCache, Plan::much_dirty),
    (ListReplaced, Needs::Nothing, Plan::dirty_at_start),
    (CopyWithoutSecondWrite, Needs::Copies, Plan::only_writeback),
    (CopyBehindWrite, Needs::Copies, Plan::only_writeback),
    (HeadBeforeFlush, Needs::Copies, Plan::only_writeback),
    (FlushOldDeviceOnly, Needs::Copies, Plan::only_writeback),
    (TrustFailedSecond, Needs::FailingCopies, Plan::only_writeback),
    (LeaveOldBelieved, Needs::MirroredCopies, Plan::only_writeback),
];

/// Returns the needs of a bug, and its situation.
pub(super) fn row(bug: PlantedBug) -> (Needs, Situation) {
    let row = BUGS.iter().find(|(of, ..)| *of == bug);
    row.map_or((Needs::OtherTest, Plan::as_drawn), |(_, needs, situation)| (*needs, *situation))
}

/// Returns the situations for runs without a bug, which must not find any.
pub(super) fn situations_of_all() -> Vec<Situation> {
    let apart = [
        Needs::Mirror,
        Needs::Cipher,
        Needs::LateStarts,
        Needs::Chain,
        Needs::Discards,
        Needs::LostExtensions,
        Needs::UnpluggedBacking,
        Needs::Copies,
        Needs::FailingCopies,
        Needs::MirroredCopies,
        Needs::OtherTest,
    ];
    BUGS.iter().filter(|(_, needs, _)| !apart.contains(needs)).map(|(.., situation)| *situation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_has_one_row_in_definition_order() {
        let rows: Vec<_> = BUGS.iter().map(|(bug, ..)| *bug).collect();
        let all: Vec<_> = PlantedBug::ALL.iter().map(|(bug, _)| *bug).collect();
        assert_eq!(rows, all);
    }
}
