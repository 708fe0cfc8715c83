//! Opening a mirrored cache: which members are trusted, and their merged content.
//!
//! The intact superblock with the highest generation is valid. A member is trusted if it has the
//! tag in that superblock, is not listed as out there, and is not older than a crash between two
//! writes of superblocks explains. The owner leaves out members that it has recorded as stale
//! (I61). If another member is left out, its record must be durable before anything is
//! acknowledged. Two devices that contradict each other are refused: they belong to different
//! caches, or each has continued without the other (I65).
//!
//! A batch of a pair is valid if both members together have it whole: flushed batches are on both,
//! so one that is on one member only was never acknowledged as durable, or the other member has
//! lost it. Before the cache is used, each member gets the valid data that it lacks (I63), or is
//! failed out, or the cache does not open. So the later loss of one member loses nothing.

use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::mirror::{Members, Mirror};
use crate::context::operations::OpKind;
use crate::context::recovery_reads::{CopyOf, RecoveryTarget};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::SegmentPhase;
use crate::recovery::scan::{After, Bytes};
use crate::recovery::state::{Half, PairRead, Recovery};
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, FormatError, Geometry, MirrorMark, StreamKind, VolumeId};

/// The devices of a mirrored cache, as its owner finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorDevices {
    /// Layout in the superblocks.
    pub geometry: Geometry,
    /// Which members are present and not recorded as out.
    pub there: [bool; 2],
}

impl Members {
    /// The number of an entry with an unexpected or a missing twin.
    pub(crate) fn wrong_twin(&self, checkpoint: &Checkpoint) -> Option<u64> {
        let columns = self.mirror().map(|mirror| mirror.columns() as usize);
        wrong_twin(&checkpoint.segments, columns)
    }

    /// True if a segment was only on the member that is out: a clean one, which is not live.
    pub(crate) fn is_on_lost_member(&self, number: u32, entries: &[SegmentEntry]) -> bool {
        let Some(mirror) = self.mirror() else { return false };
        let twin = entries.get((number + mirror.columns()) as usize).map(|entry| entry.state);
        let single = number >= mirror.columns() || twin != Some(SegmentState::Twin);
        single && !mirror.counts(mirror.member_of(number))
    }

    /// Plans the heads of window segments to read: those of both halves of each column.
    pub(crate) fn plan_heads(&self, checkpoint: &Checkpoint, jobs: &mut Vec<RecoveryTarget>) {
        let Some(mirror) = self.mirror() else { return };
        let is_free = |number: u32| {
            checkpoint.segments.get(number as usize).is_some_and(|entry| entry.state == SegmentState::Free)
        };
        for number in &checkpoint.window {
            let (first, twin) = mirror.halves(*number);
            let column = is_free(first) && is_free(twin);
            for half in [first, twin] {
                if (column || half == *number) && mirror.counts(mirror.member_of(half)) {
                    jobs.push(RecoveryTarget::Head(half));
                }
            }
        }
    }

    /// The half of a pair from which metadata is read.
    pub(crate) fn readable_half(&self, map: &CacheMap, number: u32) -> u32 {
        match self.mirror() {
            Some(mirror) if self.is_pair(map, number) && !mirror.counts(0) => number + mirror.columns(),
            _ => number,
        }
    }

    /// True if batches of this stream after the checkpoint can be in this segment: one that is not
    /// a pair has only fills.
    pub(crate) fn may_hold(&self, map: &CacheMap, number: u32, stream: StreamKind) -> bool {
        let Some(mirror) = self.mirror() else { return true };
        let (first, twin) = mirror.halves(number);
        stream == StreamKind::Fill && !self.is_pair(map, first)
            || number == first
                && stream != StreamKind::Fill
                && matches!(map.segments[twin as usize].phase, SegmentPhase::Free | SegmentPhase::Twin)
    }

    /// A segment was written since the checkpoint: if it is a pair, it has a twin.
    pub(crate) fn begin_twin(&mut self, map: &mut CacheMap, number: u32, stream: StreamKind) {
        let Some(mirror) = self.mirror() else { return };
        if stream != StreamKind::Fill {
            let (_, twin) = mirror.halves(number);
            map.segments[twin as usize].phase = SegmentPhase::Twin;
        }
    }

    /// True if batches of this stream may be missing: fills are on one member, and are no reason to
    /// refuse the cache.
    pub(crate) fn may_lack(&self, stream: StreamKind) -> bool {
        stream == StreamKind::Fill && self.is_mirrored()
    }

    /// Frees an empty segment, with its twin if it has one.
    pub(crate) fn end_with_twin(&mut self, map: &mut CacheMap, number: u32) {
        let twin =
            self.mirror().filter(|_| self.is_pair(map, number)).map(|mirror| number + mirror.columns());
        map.end_segment(number, SegmentPhase::Free);
        if let Some(twin) = twin {
            map.end_segment(twin, SegmentPhase::Free);
        }
    }
}

impl Context {
    /// True if the other member mirrors the one with the valid superblock.
    fn believes(&self, chosen: &Superblock, other: &Superblock) -> bool {
        let (Some(mark), Some(its)) = (chosen.mirror, other.mirror) else { return false };
        if fault::planted(PlantedBug::TrustStaleMember) {
            return chosen.uuid == other.uuid;
        }
        chosen.uuid == other.uuid
            && mark.out.is_none()
            && mark.tags[usize::from(its.member)] == its.tags[usize::from(its.member)]
            && chosen.generation - other.generation <= 1
            // The superblock of an active member is never below the known generation of both (I75).
            && other.generation >= self.config.known.generation
    }
}

impl Recovery {
    /// All superblocks were read: decides which members are active.
    pub(crate) fn choose_member(
        &mut self,
        cx: &mut Context,
        all: Vec<(CopyOf, Result<Superblock, FormatError>)>,
    ) -> Result<(), OpenError> {
        let geometry = cx.map.geometry;
        let mut best: [Option<Superblock>; 2] = [None, None];
        let mut refusal = None;
        for ((member, _), copy) in &all {
            match copy {
                Err(error @ FormatError::Version { .. }) => {
                    return Err(OpenError::Superblock(error.clone()));
                }
                Err(error) => refusal = Some(error.clone()),
                Ok(found) => {
                    let ours = found.mirror.is_some_and(|mark| usize::from(mark.member) == *member);
                    let newer = best[*member].as_ref().is_none_or(|best| best.generation < found.generation);
                    if ours && found.geometry == geometry && newer {
                        best[*member] = Some(found.clone());
                    }
                }
            }
        }
        let chosen = match &best {
            [Some(a), Some(b)] if b.generation > a.generation => 1,
            [Some(_), _] => 0,
            [None, Some(_)] => 1,
            [None, None] => return Err(refusal.map_or(OpenError::NoMember, OpenError::Superblock)),
        };
        let (other, superblock) = (1 - chosen, best[chosen].clone().ok_or(OpenError::NoMember)?);
        if let Some(found) = &best[other] {
            check_together(&superblock, found)?;
        }
        cx.check_generation(&superblock)?;
        let believed = best[other].as_ref().is_some_and(|found| cx.believes(&superblock, found));
        if let Some(mirror) = cx.members.mirror_mut().filter(|_| !believed) {
            // Even if a superblock already lists it as out: the owner may have lost its records,
            // and may later present the other one alone.
            mirror.leave_out(other as u8, !fault::planted(PlantedBug::TrustStaleMember));
            cx.coverage.add(CoverageMark::MemberMissing);
        }
        self.begin_mirrored_map(cx, superblock, &all);
        Ok(())
    }

    fn begin_mirrored_map(
        &mut self,
        cx: &mut Context,
        superblock: Superblock,
        all: &[(CopyOf, Result<Superblock, FormatError>)],
    ) {
        let geometry = superblock.geometry;
        let members: Vec<usize> = cx.members.meta_members().collect();
        cx.begin_map_of(superblock);
        let mut again = Vec::new();
        for ((member, copy), found) in all {
            let right = cx.superblock_of(*member, cx.superblock.mirror);
            if members.contains(member) {
                let offset = geometry.mirror_meta(*member, Geometry::superblock_offset(*copy));
                let says = (found.as_ref() == Ok(&right), found.as_ref().map_or(0, |found| found.generation));
                again.push((says, (offset, right.encode())));
            }
        }
        // The oldest copies are first: at any instant each member has a trusted one.
        again.sort_by_key(|(says, _)| *says);
        cx.plan_superblocks(again.into_iter().map(|((right, _), copy)| (right, copy)));
        let copies = members.into_iter().flat_map(|member| [(member, 0), (member, 1)]);
        self.checkpoints = copies.collect();
        self.read_checkpoint(cx, 0);
    }

    /// Plans to read both halves of those pairs that are read whole.
    pub(crate) fn read_pairs_whole(&mut self, cx: &Context) {
        if !cx.members.is_mirrored() {
            return;
        }
        let jobs = core::mem::take(&mut self.jobs);
        let (whole, others): (Vec<RecoveryTarget>, Vec<RecoveryTarget>) = jobs.into_iter().partition(
            |target| matches!(target, RecoveryTarget::Whole(number) if cx.members.is_pair(&cx.map, *number)),
        );
        self.jobs = others;
        for target in whole {
            if let RecoveryTarget::Whole(number) = target {
                self.read_whole(cx, number);
            }
        }
    }

    /// Plans to read a whole segment; a pair from both members.
    pub(crate) fn read_whole(&mut self, cx: &Context, number: u32) {
        if cx.members.is_pair(&cx.map, number) {
            self.read_halves(cx, number, false);
        } else {
            self.jobs.push(RecoveryTarget::Whole(number));
        }
    }

    /// A window segment was written: plans to read this half or the pair that it belongs to.
    pub(crate) fn read_column(&mut self, cx: &Context, number: u32) {
        let Some(mirror) = cx.members.mirror() else { return };
        let (first, twin) = mirror.halves(number);
        let segments = &self.checkpoint.segments;
        let is_free = |number: u32| segments[number as usize].state == SegmentState::Free;
        if is_free(first) && is_free(twin) {
            self.read_halves(cx, first, true);
        } else {
            self.jobs.push(RecoveryTarget::Whole(number));
        }
    }

    fn read_halves(&mut self, cx: &Context, first: u32, single: bool) {
        let Some(mirror) = cx.members.mirror() else { return };
        let expected = [mirror.counts(0), mirror.counts(1)];
        let (_, twin) = mirror.halves(first);
        let recovery = &mut *self;
        if !recovery.pairs.begun.insert(first) {
            return;
        }
        recovery.pairs.reads.insert(first, PairRead { expected, single, ..PairRead::default() });
        let halves = [first, twin].into_iter().zip(expected).filter(|(_, expected)| *expected);
        recovery.jobs.extend(halves.map(|(half, _)| RecoveryTarget::Whole(half)));
    }

    /// A segment was read, as far as possible: the halves of a pair are processed together.
    pub(crate) fn segment_bytes(
        &mut self,
        cx: &mut Context,
        number: u32,
        bytes: Bytes<'_>,
    ) -> Result<(), OpenError> {
        let Some(mirror) = cx.members.mirror() else { return self.scan_segment(cx, number, bytes) };
        let (first, twin) = mirror.halves(number);
        let half = usize::from(number != first);
        let Some(read) = self.pairs.reads.get_mut(&first) else {
            return self.scan_segment(cx, number, bytes);
        };
        let mut bad = bytes.bad.to_vec();
        bad.resize(bytes.all.len() / BLOCK_BYTES, false);
        read.found[half] = Some(Half { bytes: bytes.all.to_vec(), bad });
        if (0..2).any(|half| read.expected[half] && read.found[half].is_none()) {
            return Ok(());
        }
        let Some(read) = self.pairs.reads.remove(&first) else { return Ok(()) };
        let second = read.found[1].as_ref().map(|half| (half.bytes.clone(), half.bad.clone()));
        let whole = self.put_together(cx, first, read.found);
        self.scan_segment(cx, first, Bytes { all: &whole.bytes, bad: &whole.bad })?;
        match second.filter(|_| read.single) {
            Some((all, bad)) => self.scan_segment(cx, twin, Bytes { all: &all, bad: &bad }),
            None => Ok(()),
        }
    }

    /// Merges both halves of a pair; records the parts that one of them lacks.
    fn put_together(&mut self, cx: &mut Context, first: u32, found: [Option<Half>; 2]) -> Half {
        let (mut a, mut b) = match found {
            [Some(a), Some(b)] => (a, b),
            [Some(one), None] | [None, Some(one)] => return one,
            [None, None] => return Half { bytes: Vec::new(), bad: Vec::new() },
        };
        let place = cx.place(first);
        let used = cx.map.segments[first as usize].completed;
        let sequence = self.checkpoint.next_sequence;
        let after = After { epoch: cx.superblock.epoch, sequence };
        let (to, other) = ((&mut a.bytes[..], &mut a.bad[..]), (&mut b.bytes[..], &mut b.bad[..]));
        let lacks = crate::recovery::overlay::overlay(to, other, place, used, after);
        if fault::planted(PlantedBug::LeaveUnrepaired) {
            return a;
        }
        let columns = cx.members.mirror().map_or(0, |mirror| mirror.columns());
        for (member, start, end) in lacks {
            cx.coverage.add(CoverageMark::MemberRepaired);
            let offset = cx.map.geometry.segment_offset(first + member * columns, start);
            let bytes = a.bytes[start as usize * BLOCK_BYTES..end as usize * BLOCK_BYTES].to_vec();
            self.pairs.repairs.push((offset, bytes));
        }
        a
    }

    /// True if the segment can only have fills.
    pub(crate) fn has_fills_only(&self, cx: &Context, number: u32) -> bool {
        let entries = &self.checkpoint.segments;
        let Some(entry) = entries.get(number as usize) else { return false };
        let fills = entry.state.has_slots() && entry.stream == StreamKind::Fill as u8;
        cx.members.mirror().is_some_and(|mirror| {
            // The spare half of a column: the other half is a segment of its own.
            let twin = entries.get((number + mirror.columns()) as usize);
            let spare = entry.state == SegmentState::Free && twin.is_some_and(|twin| twin.state.has_slots());
            number >= mirror.columns() || fills || spare
        })
    }

    /// Writes to each member the data that it lacks, and requests the record of one that is left
    /// out; false while writes are in flight.
    pub(crate) fn mend_members(&mut self, cx: &mut Context, volumes: &[VolumeId]) -> bool {
        let recovery = &mut *self;
        let repairs = core::mem::take(&mut recovery.pairs.repairs);
        if !repairs.is_empty() {
            recovery.settling = volumes.to_vec();
            recovery.pairs.repairing = repairs.len() as u32;
            for (offset, bytes) in repairs {
                cx.write_meta(offset, Arc::new(bytes), OpKind::MemberRepair);
            }
            return false;
        }
        if let Some(member) = cx.members.mirror_mut().and_then(Mirror::take_unrecorded) {
            cx.member_failed(member);
        }
        true
    }

    pub(crate) fn repaired(&mut self, cx: &mut Context, member: u8, ok: bool) {
        if !ok {
            cx.member_failed(member);
            let counts = cx.members.mirror().is_some_and(|mirror| mirror.counts(member));
            if counts && !fault::planted(PlantedBug::RepairInVain) {
                cx.fail_opening(OpenError::CacheWrite);
                return;
            }
        }
        let recovery = &mut *self;
        recovery.pairs.repairing -= 1;
        if recovery.pairs.repairing == 0 {
            let volumes = core::mem::take(&mut recovery.settling);
            self.settle_devices(cx, &volumes);
        }
    }
}

/// Checks that two members can be of one cache: `newer` has the valid superblock.
fn check_together(newer: &Superblock, older: &Superblock) -> Result<(), OpenError> {
    let (Some(a), Some(b)) = (newer.mirror, older.mirror) else { return Ok(()) };
    if newer.uuid != older.uuid {
        return Err(OpenError::OtherCache);
    }
    // The member that failed the other one out has the newer superblock.
    let called_out =
        b.out == Some(a.member) && a.tags[usize::from(a.member)] == b.tags[usize::from(a.member)];
    let of_a = Superblock { mirror: Some(MirrorMark { member: a.member, ..b }), ..older.clone() };
    if called_out || newer.generation == older.generation && *newer != of_a {
        return Err(OpenError::SplitMirror);
    }
    Ok(())
}

/// The number of an entry with an unexpected or a missing twin.
fn wrong_twin(all: &[SegmentEntry], columns: Option<usize>) -> Option<u64> {
    let wrong = |number: &usize| {
        let entry = &all[*number];
        let pairs = entry.state.has_slots() && entry.stream != StreamKind::Fill as u8;
        let Some(columns) = columns else { return entry.state == SegmentState::Twin };
        if *number >= columns {
            return pairs; // Its first half decides whether it may be a twin.
        }
        let twin = all.get(number + columns).is_some_and(|twin| twin.state == SegmentState::Twin);
        entry.state == SegmentState::Twin || pairs != twin
    };
    (0..all.len()).find(wrong).map(|number| number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::CacheUuid;

    fn member(member: u8, generation: u64, out: Option<u8>, tags: [u64; 2]) -> Superblock {
        let mirror = Some(MirrorMark { member, out, tags });
        Superblock { generation, mirror, ..crate::context::blank::blank_superblock() }
    }

    #[test]
    fn contradicting_members_are_refused() {
        let whole = member(0, 7, None, [1, 2]);
        assert_eq!(check_together(&whole, &member(1, 7, None, [1, 2])), Ok(()));
        assert_eq!(check_together(&whole, &member(1, 6, None, [1, 2])), Ok(()));
        let alone = member(0, 9, Some(1), [1, 2]);
        assert_eq!(check_together(&alone, &member(1, 7, None, [1, 2])), Ok(()), "it was put out");
        for generation in [3, 9] {
            let other = member(1, generation, Some(0), [1, 2]);
            assert_eq!(check_together(&alone, &other), Err(OpenError::SplitMirror));
        }
        let replaced = member(1, 5, Some(0), [3, 2]);
        assert_eq!(check_together(&alone, &replaced), Ok(()), "it put out what was there before");
        let unequal = member(1, 7, None, [1, 4]);
        assert_eq!(check_together(&whole, &unequal), Err(OpenError::SplitMirror));
        let other = Superblock { uuid: CacheUuid([9; 16]), ..member(1, 7, None, [1, 2]) };
        assert_eq!(check_together(&whole, &other), Err(OpenError::OtherCache));
    }

    #[test]
    fn twins_and_pairs_require_each_other() {
        let entry =
            |state, stream: StreamKind| SegmentEntry { state, stream: stream as u8, ..Default::default() };
        let free = SegmentEntry::default();
        let twin = entry(SegmentState::Twin, StreamKind::Write);
        let (write, fill) =
            (entry(SegmentState::Sealed, StreamKind::Write), entry(SegmentState::Open, StreamKind::Fill));
        for (halves, wrong) in [
            ([&free, &free], None),
            ([&write, &twin], None),
            ([&fill, &free], None),
            ([&free, &fill], None),
            ([&write, &free], Some(0)),
            ([&write, &fill], Some(0)),
            ([&fill, &twin], Some(0)),
            ([&free, &twin], Some(0)),
            ([&twin, &free], Some(0)),
            ([&free, &write], Some(1)),
        ] {
            assert_eq!(wrong_twin(&halves.map(SegmentEntry::clone), Some(1)), wrong, "{halves:?}");
        }
        assert_eq!(wrong_twin(&[write.clone(), fill.clone()], None), None);
        assert_eq!(wrong_twin(&[write, twin], None), Some(1));
    }
}
