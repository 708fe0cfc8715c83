//! Every planted bug is caught, within a bounded number of crash points, and its replay command hits it again.

use forebay_sim::{PlantedBug, SimOptions, run};

/// Crash points within which every planted bug must show.
const BOUND: u64 = 20_000;

fn caught(bug: PlantedBug) {
    let options =
        SimOptions { seed: 1, crashes: BOUND, bug: Some(bug), violations_max: 1, ..SimOptions::default() };
    let report = run(&options, &mut |_| {});
    let Some(violation) = report.violations.first() else {
        panic!("{} was not caught within {} crash points", bug.name(), report.crash_points);
    };
    println!(
        "{}: {} crash points, {}: {}",
        bug.name(),
        report.crash_points,
        violation.replay_command,
        violation.what
    );
    let replay = SimOptions { seed: violation.seed, crashes: violation.crash_point + 1, ..options };
    let again = run(&replay, &mut |_| {});
    assert_eq!(again.violations.first(), Some(violation), "the replay shows something else");
}

macro_rules! planted {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test]
        fn $name() {
            caught(PlantedBug::$bug);
        })*

        #[test]
        fn every_planted_bug_has_a_test() {
            // The last ones have tests in `hostile.rs`, `pacing.rs`, `liveness.rs`, and `work.rs` of the core.
            let elsewhere = [
                PlantedBug::BelieveEarlierUse,
                PlantedBug::BelieveOlderCopy,
                PlantedBug::ChaseMarks,
                PlantedBug::DawdleWithMarks,
                PlantedBug::PassForEachVictim,
            ];
            let tested = [&[$(PlantedBug::$bug,)*][..], &elsewhere].concat();
            assert!(PlantedBug::ALL.iter().all(|(bug, _)| tested.contains(bug)));
        }
    };
}

planted! {
    skip_device_flush: SkipDeviceFlush,
    clean_before_backing_flush: CleanBeforeBackingFlush,
    forget_invalidation: ForgetInvalidation,
    accept_torn_header: AcceptTornHeader,
    reuse_segment_early: ReuseSegmentEarly,
    ignore_sequence: IgnoreSequence,
    drop_second_superblock: DropSecondSuperblock,
    skip_intent: SkipIntent,
    destage_before_durable: DestageBeforeDurable,
    acknowledge_out_of_order: AcknowledgeOutOfOrder,
    keep_overtaken_fill: KeepOvertakenFill,
    skip_checksum: SkipChecksum,
    relocate_without_lock: RelocateWithoutLock,
    trust_unflushed_marks: TrustUnflushedMarks,
    ignore_flush_period: IgnoreFlushPeriod,
    starve_limiter: StarveLimiter,
    charge_unlimited: ChargeUnlimited,
    exceed_limits: ExceedLimits,
    throttle_beyond_limit: ThrottleBeyondLimit,
    forget_on_order_change: ForgetOnOrderChange,
    reuse_volume_early: ReuseVolumeEarly,
    keep_beyond_shrink: KeepBeyondShrink,
    append_to_retired: AppendToRetired,
    forget_dirty_at_detach: ForgetDirtyAtDetach,
    serve_before_checkpoint: ServeBeforeCheckpoint,
    forget_dirty_survivor: ForgetDirtySurvivor,
    sequential_leaves_copy: SequentialLeavesCopy,
    trim_dirty: TrimDirty,
    keep_without_bound: KeepWithoutBound,
    mix_flush_epochs: MixFlushEpochs,
    epoch_before_marks: EpochBeforeMarks,
    coalesce_epochs: CoalesceEpochs,
    forget_epochs: ForgetEpochs,
    overtake_epochs: OvertakeEpochs,
    fua_keeps_epoch: FuaKeepsEpoch,
    forget_order_at_attach: ForgetOrderAtAttach,
    advance_in_shrink: AdvanceInShrink,
    fill_gaps_unlocked: FillGapsUnlocked,
    fill_gaps_from_dirty: FillGapsFromDirty,
    fill_gaps_from_partial: FillGapsFromPartial,
    pass_before_record: PassBeforeRecord,
    flush_before_rescue: FlushBeforeRescue,
    flush_before_record: FlushBeforeRecord,
    read_lost_from_backing: ReadLostFromBacking,
    rescue_superseded: RescueSuperseded,
    count_after_fence: CountAfterFence,
    trust_flush_after_failure: TrustFlushAfterFailure,
    scrub_overlooks_dirty: ScrubOverlooksDirty,
    scrub_judges_void: ScrubJudgesVoid,
    scrub_one_copy: ScrubOneCopy,
    judge_failed_copy: JudgeFailedCopy,
    fail_after_cut: FailAfterCut,
    overlook_listed: OverlookListed,
    count_half_batches: CountHalfBatches,
    flush_one_member: FlushOneMember,
    count_before_note: CountBeforeNote,
    trust_stale_member: TrustStaleMember,
    read_one_copy: ReadOneCopy,
    leave_unmended: LeaveUnmended,
    forget_in_rebuild: ForgetInRebuild,
    give_up_at_once: GiveUpAtOnce,
    acknowledge_unrecorded: AcknowledgeUnrecorded,
    count_anywhere: CountAnywhere,
    out_in_its_own_words: OutInItsOwnWords,
    list_at_once: ListAtOnce,
    mend_in_vain: MendInVain,
    keep_lost_fill: KeepLostFill,
    trust_what_is_read: TrustWhatIsRead,
    keep_discard: KeepDiscard,
    write_meta_in_clear: WriteMetaInClear,
    trust_after_crash: TrustAfterCrash,
    tweak_of_failed_write: TweakOfFailedWrite,
    overfill_header: OverfillHeader,
    intent_of_one_region: IntentOfOneRegion,
    flush_over_loss: FlushOverLoss,
    serve_invalid_sectors: ServeInvalidSectors,
    heal_dirty: HealDirty,
    end_is_zeroes: EndIsZeroes,
    fail_at_end: FailAtEnd,
    share_header: ShareHeader,
}
