//! Loading of segments: by their summary, or else batch by batch.

use crate::api::DeviceFailure;
use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::recovery_reads::RecoveryTarget;
use crate::context::sectors::{BLOCK, sector_mask};
use crate::fault::{self, PlantedBug};
use crate::map::load::FoundSlot;
use crate::map::segment::{BlockState, Key, SegmentPhase};
use crate::recovery::scan::{self, Place};
use crate::recovery::scan::{After, Bytes};
use crate::recovery::state::{Pieces, Recovery};
use alloc::vec::Vec;
use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::{Checkpoint, SegmentState, SlotState, SlotStates};
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::superblock::CacheState;
use forebay_format::{BLOCK_BYTES, StreamKind, VolumeId, summary};

/// Maximum number of small reads in flight: enough to keep a fast device busy. A large cache needs
/// as many of them as it has segments.
const READS_IN_FLIGHT: usize = 32;
/// Maximum number of reads of whole segments in flight, and their bytes, if that is less: each
/// takes the memory of a segment.
const WHOLE_READS_IN_FLIGHT: u64 = 8;
const WHOLE_BYTES_IN_FLIGHT: u64 = 64 << 20;

impl Context {
    pub(crate) fn place(&self, number: u32) -> Place {
        let segment = &self.map.segments[number as usize];
        let known = segment.has_table() && !fault::planted(PlantedBug::BelieveEarlierUse);
        Place {
            uuid: self.superblock.uuid,
            segment: number,
            since: if known { segment.first_sequence } else { 0 },
        }
    }
}

/// Returns true if the summary of the segment before this one was found damaged.
fn is_behind_damage(cx: &Context, checkpoint: &Checkpoint, number: u32) -> bool {
    let Some(before) = number.checked_sub(1) else { return false };
    let (found, listed) = (&cx.map.segments[before as usize], &checkpoint.segments[before as usize]);
    listed.summary_block > 0 && found.has_table() && found.summary_block == 0
}

impl Recovery {
    /// Plans which segments to read, and how.
    pub(super) fn plan_segments(&mut self, cx: &mut Context) {
        let unclean = cx.superblock.state == CacheState::Open;
        let checkpoint = core::mem::take(&mut self.checkpoint);
        cx.map.recover_orders(&checkpoint.volumes);
        let mut jobs = Vec::new();
        for (number, entry) in (0..).zip(&checkpoint.segments) {
            if entry.state.has_slots() && cx.members.is_on_lost_member(number, &checkpoint.segments) {
                continue;
            }
            let counts = entry.slots.live() > 0;
            match entry.state {
                SegmentState::Free => continue,
                SegmentState::Twin => {
                    cx.map.segments[number as usize].phase = SegmentPhase::Twin;
                    continue;
                }
                SegmentState::Open if unclean => jobs.push(RecoveryTarget::Whole(number)),
                _ if counts && entry.summary_block > 0 => jobs.push(RecoveryTarget::Summary(number)),
                _ if counts => jobs.push(RecoveryTarget::Whole(number)),
                _ => continue,
            }
            let stream = StreamKind::from_u8(entry.stream).expect("the decoder checked it");
            let first = (entry.first_stream_sequence, entry.first_sequence);
            cx.map.begin_segment(number, SegmentPhase::Sealed, stream, first);
            let segment = &mut cx.map.segments[number as usize];
            segment.completed = entry.used_blocks;
            segment.durable = entry.used_blocks;
            segment.summary_block = entry.summary_block;
        }
        if checkpoint.volumes.iter().all(|volume| volume.flush_epoch == 0) {
            cx.map.begin_loading();
        }
        if unclean && cx.members.is_mirrored() {
            cx.members.plan_heads(&checkpoint, &mut jobs);
        } else if unclean {
            jobs.extend(checkpoint.window.iter().map(|number| RecoveryTarget::Head(*number)));
        }
        jobs.reverse();
        cx.log.next_sequence = checkpoint.next_sequence;
        for (stream, next) in cx.log.streams.iter_mut().zip(checkpoint.next_stream_sequence) {
            stream.start_at(next);
        }
        let mut ends = alloc::vec![0; VOLUMES_MAX as usize];
        for volume in &checkpoint.volumes {
            ends[usize::from(volume.id.0)] = volume.size_bytes;
        }
        let recovery = &mut *self;
        (recovery.checkpoint, recovery.jobs, recovery.ends) = (checkpoint, jobs, ends);
        self.read_pairs_whole(cx);
    }

    /// The next job, if its read may start now.
    pub(super) fn next_job(&mut self, segment_bytes: u64) -> Option<RecoveryTarget> {
        let whole = (WHOLE_BYTES_IN_FLIGHT / segment_bytes).clamp(1, WHOLE_READS_IN_FLIGHT);
        let room = self.in_flight < READS_IN_FLIGHT
            && ((self.whole_in_flight as u64) < whole
                || !matches!(self.jobs.last(), Some(RecoveryTarget::Whole(_))));
        if room { self.jobs.pop() } else { None }
    }

    /// Starts the remaining reads; begins the next step when there are none.
    pub(super) fn next_jobs(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        if self.checkpoint.segments.is_empty() {
            return Ok(()); // Still at superblocks or checkpoint.
        }
        let geometry = cx.map.geometry;
        while let Some(target) = self.next_job(geometry.segment_bytes()) {
            let (number, from, blocks) = match target {
                RecoveryTarget::Summary(number) => {
                    let half = cx.members.readable_half(&cx.map, number);
                    let at = cx.map.segments[number as usize].summary_block;
                    let blocks = 1 + summary::payload_blocks(at);
                    (half, at, blocks.min(geometry.segment_blocks - at))
                }
                RecoveryTarget::Head(number) => (number, 0, 1),
                RecoveryTarget::Whole(number) => (number, 0, geometry.segment_blocks),
                RecoveryTarget::Block(number, index) => (number, index, 1),
                RecoveryTarget::Superblock(_)
                | RecoveryTarget::Checkpoint(_)
                | RecoveryTarget::Extension(..)
                | RecoveryTarget::Searched(_)
                | RecoveryTarget::Rewritten(_) => {
                    unreachable!("they are read before or later")
                }
            };
            self.read(cx, target, geometry.segment_offset(number, from), u64::from(blocks) * BLOCK);
        }
        if self.in_flight > 0 {
            return Ok(());
        }
        self.replay(cx)?;
        self.drop_intended(cx);
        self.attach(cx)
    }

    /// Gives a slot the state of the checkpoint, now that its key is known.
    pub(super) fn restore(
        &self,
        cx: &mut Context,
        number: u32,
        index: u32,
        key: Key,
        crc: u32,
        (mask, epoch): (u8, u32),
    ) {
        let found = self.checkpoint.segments[number as usize].slots.get(index);
        if cx.map.is_loading() {
            let keep = fault::planted(PlantedBug::KeepBeyondShrink);
            let slot = self.found_slot(found, index, key, (crc, mask), keep);
            cx.map.load_segment(number, slot.into_iter());
            return;
        }
        let state = match found {
            SlotState::Void => return,
            SlotState::Clean => BlockState::Clean,
            SlotState::Dirty | SlotState::Shadow => BlockState::Dirty,
        };
        if cx.map.state(cx.map.slot(number, index)) != BlockState::Void {
            return;
        }
        let slot = cx.map.slot(number, index);
        cx.map.describe(slot, key, crc, mask);
        if !self.belongs(key, mask) {
            return;
        }
        let ordered = state == BlockState::Dirty && cx.map.recover_epoch(slot, epoch);
        match found {
            SlotState::Shadow if ordered => cx.map.insert_shadow(slot),
            SlotState::Shadow => {}
            _ => {
                cx.map.insert(slot, state);
            }
        }
    }

    /// True if a block belongs to a volume of the table. Others were being dropped when the last
    /// run ended.
    pub(super) fn belongs(&self, key: Key, mask: u8) -> bool {
        let keep = fault::planted(PlantedBug::KeepBeyondShrink);
        belongs(&self.ends, key, mask, keep)
    }

    pub(super) fn summary_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let at = cx.map.segments[number as usize].summary_block;
        if fault::planted(PlantedBug::SkipBehindDamage) && is_behind_damage(cx, &self.checkpoint, number) {
            return Ok(());
        }
        let found = result.ok().and_then(|bytes| summary_payload(bytes, cx.place(number), at));
        if found.as_ref().is_some_and(|(header, _)| self.is_later(header)) {
            self.forget_earlier_use(cx, number);
            return Ok(());
        }
        let Some((_, payload)) = found else {
            // The batch headers have the same content.
            cx.coverage.add(CoverageMark::SummaryDamaged);
            cx.map.segments[number as usize].summary_block = 0;
            self.read_whole(cx, number);
            return Ok(());
        };
        if payload.len() > BLOCK_BYTES {
            cx.coverage.add(CoverageMark::LongSummary);
        }
        let items = summary::decode(payload, at).enumerate();
        let items = items.filter_map(|(index, item)| Some((index as u32, item?)));
        if cx.map.is_loading() {
            return self.load_summary(cx, number, items);
        }
        for (index, item) in items {
            let rest = (item.sector_mask, item.flush_epoch);
            self.restore(cx, number, index, Key::new(item.volume, item.block), item.crc32c, rest);
        }
        self.account(cx, number)
    }

    /// As `restore`, for a whole segment of a cache without ordered volumes.
    pub(super) fn load_summary(
        &self,
        cx: &mut Context,
        number: u32,
        items: impl Iterator<Item = (u32, summary::SummaryItem)>,
    ) -> Result<(), OpenError> {
        let keep = fault::planted(PlantedBug::KeepBeyondShrink);
        let counted = &self.checkpoint.segments[number as usize].slots;
        let mut found = 0;
        let slots = items.filter_map(|(index, item)| {
            let (key, rest) = (Key::new(item.volume, item.block), (item.crc32c, item.sector_mask));
            let slot = self.found_slot(counted.get(index), index, key, rest, keep);
            found += u32::from(slot.is_some());
            slot
        });
        cx.map.load_segment(number, slots);
        if found == counted.live() { Ok(()) } else { self.account(cx, number) }
    }

    /// Content of a slot that is live in a checkpoint without ordered volumes. `keep` is a planted
    /// bug.
    fn found_slot(
        &self,
        counts: SlotState,
        index: u32,
        key: Key,
        (crc, mask): (u32, u8),
        keep: bool,
    ) -> Option<FoundSlot> {
        let state = match counts {
            SlotState::Void => return None,
            _ if !belongs(&self.ends, key, mask, keep) => BlockState::Void,
            SlotState::Clean => BlockState::Clean,
            SlotState::Dirty => BlockState::Dirty,
            SlotState::Shadow => BlockState::Void, // Of an order that has ended.
        };
        Some(FoundSlot { index, key, crc, mask, state })
    }

    pub(super) fn segment_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        if let Ok(all) = result {
            return self.segment_bytes(cx, number, Bytes { all, bad: &[] });
        }
        cx.coverage.add(CoverageMark::SegmentInPieces);
        // One bad sector fails the whole read: read block by block and lose only the unreadable
        // ones.
        let blocks = cx.map.geometry.segment_blocks;
        let pieces = Pieces {
            bytes: alloc::vec![0; blocks as usize * BLOCK_BYTES],
            bad: alloc::vec![true; blocks as usize],
            left: blocks,
        };
        let recovery = &mut *self;
        recovery.pieces.insert(number, pieces);
        recovery.jobs.extend((0..blocks).map(|index| RecoveryTarget::Block(number, index)));
        Ok(())
    }

    pub(super) fn block_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        index: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let recovery = &mut *self;
        let pieces = recovery.pieces.get_mut(&number).expect("its blocks are being read");
        if let Ok(bytes) = result {
            pieces.bytes[index as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(bytes);
            pieces.bad[index as usize] = false;
        }
        pieces.left -= 1;
        if pieces.left > 0 {
            return Ok(());
        }
        let Pieces { bytes, bad, .. } = recovery.pieces.remove(&number).expect("it was found just now");
        self.segment_bytes(cx, number, Bytes { all: &bytes, bad: &bad })
    }

    pub(crate) fn scan_segment(
        &mut self,
        cx: &mut Context,
        number: u32,
        bytes: Bytes<'_>,
    ) -> Result<(), OpenError> {
        let used = cx.map.segments[number as usize].completed;
        let batches = scan::accounted(bytes, cx.place(number), used);
        if batches.iter().any(|batch| self.is_later(&batch.header)) {
            self.forget_earlier_use(cx, number);
            return Ok(());
        }
        let state = self.checkpoint.segments[number as usize].state;
        for batch in &batches {
            for (index, entry) in batch.data() {
                if let Entry::Data { volume, block, crc32c, sector_mask, flush_epoch, .. } = entry {
                    self.restore(
                        cx,
                        number,
                        index,
                        Key::new(volume, block),
                        crc32c,
                        (sector_mask, flush_epoch),
                    );
                }
            }
        }
        if state != SegmentState::Free {
            self.account(cx, number)?;
        }
        if state != SegmentState::Sealed && cx.superblock.state == CacheState::Open {
            let trust = fault::planted(PlantedBug::AcceptTornHeader);
            let sequence = self.checkpoint.next_sequence;
            let after = After { epoch: cx.superblock.epoch, sequence };
            let scan = scan::tail(bytes, cx.place(number), used, after, trust);
            if scan.torn {
                cx.coverage.add(CoverageMark::TornBatch);
            }
            if scan.unreadable && !self.has_fills_only(cx, number) {
                return Err(OpenError::TailUnreadable { segment: number });
            }
            let tail = scan.tail.filter(|tail| cx.members.may_hold(&cx.map, number, tail.stream));
            self.tails.extend(tail);
        }
        Ok(())
    }

    /// True if the checkpoint should account for a batch but does not: a lost extension has added
    /// the segment, and its first block was not durable.
    fn is_later(&self, header: &BatchHeader) -> bool {
        header.epoch == self.checkpoint.epoch
            && header.sequence >= self.checkpoint.next_sequence
            && !fault::planted(PlantedBug::BelieveLaterUse)
    }

    /// Voids the use of the segment that the checkpoint knows: the entries that voided it were
    /// durable before the segment was added. Without its first batch, nothing of the new use is
    /// valid either.
    fn forget_earlier_use(&mut self, cx: &mut Context, number: u32) {
        cx.coverage.add(CoverageMark::LaterUseFound);
        self.checkpoint.segments[number as usize].slots = SlotStates::default();
        cx.map.segments[number as usize].summary_block = 0;
    }

    /// Checks that every live slot of the checkpoint was found. Missing clean ones are merely
    /// dropped.
    pub(super) fn account(&self, cx: &mut Context, number: u32) -> Result<(), OpenError> {
        let (mut lost, mut shadows) = (0, 0);
        for index in 0..cx.map.geometry.segment_blocks {
            let counts = self.checkpoint.segments[number as usize].slots.get(index);
            let known = cx.map.segments[number as usize].has_data(index);
            lost += u32::from(counts == SlotState::Dirty && !known);
            shadows += u32::from(counts == SlotState::Shadow && !known);
        }
        if shadows > 0 {
            // The newest versions are there, but it is unknown which volume's order has a gap.
            for volume in 0..VOLUMES_MAX as u16 {
                cx.map.forget_order(VolumeId(volume));
            }
        }
        if lost > 0 {
            cx.coverage.add(CoverageMark::SegmentLost);
            return Err(OpenError::SegmentLost { segment: number, dirty_blocks: lost });
        }
        Ok(())
    }

    /// The first block of a window segment shows whether the segment was written since the
    /// checkpoint.
    pub(super) fn head_read(
        &mut self,
        cx: &Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let mut entries = Vec::new();
        let written = match result {
            Err(_) => true, // Look closer: the rest may be readable, and must not be overlooked.
            Ok(bytes) => BatchHeader::decode(bytes, &mut entries)
                .is_ok_and(|header| header.epoch == cx.superblock.epoch),
        };
        if written && cx.members.is_mirrored() {
            self.read_column(cx, number);
        } else if written {
            self.jobs.push(RecoveryTarget::Whole(number));
        }
        Ok(())
    }
}

/// True if a block has sectors inside its volume; `ends` has the sizes of the volumes. `keep` is a
/// planted bug.
fn belongs(ends: &[u64], key: Key, mask: u8, keep: bool) -> bool {
    let end = ends.get(usize::from(key.volume().0)).copied().unwrap_or(0);
    let start = key.block() * BLOCK;
    match end {
        end if start >= end => keep && end > 0,
        end if end - start >= BLOCK => mask != 0,
        end => mask & sector_mask(0, end - start) != 0,
    }
}

/// Header and payload of a summary, if both are intact and in their place.
fn summary_payload(bytes: &[u8], place: Place, at: u32) -> Option<(BatchHeader, &[u8])> {
    let mut entries = Vec::new();
    let header = BatchHeader::decode(bytes.get(..BLOCK_BYTES)?, &mut entries).ok()?;
    header.check_place(place.uuid, place.segment, at).ok()?;
    if header.sequence < place.since {
        return None;
    }
    let [Entry::Summary { slots, crc32c }] = entries[..] else { return None };
    let end = BLOCK_BYTES * (1 + usize::from(header.payload_blocks));
    let payload = bytes.get(BLOCK_BYTES..end)?;
    let right =
        header.kind == BatchKind::Summary && slots == at && forebay_format::checksum(payload) == crc32c;
    right.then_some((header, payload))
}
