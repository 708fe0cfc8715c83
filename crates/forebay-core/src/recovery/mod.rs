//! Opening a cache: from bytes on a device to a map that can be trusted.
//!
//! 1. Both superblocks; the intact one with the higher generation counts.
//! 2. The checkpoint that it names (two copies; no other generation will do: an older one may point
//!    at segments that have been written over since).
//! 3. For every segment in use its summary, or else its batch headers, to know which block each
//!    slot holds. The checkpoint says which slots count.
//! 4. If the cache was not closed in an orderly way: the segments of the append window and the rest
//!    of the open ones. Of every stream, the batches from the checkpoint on count up to the first
//!    one that is torn or missing. A batch that says that a later one than the last found had been
//!    flushed proves that the device lost a flushed write: then the cache is not opened.
//! 5. The records of all streams are applied in the order of their sequence.
//! 6. Clean blocks in regions with write intent are dropped (I10).
//! 7. The backing stores are compared with what was noted of them; see `attach`.
//! 8. What may not be durable is written again where it is, see `rewrite`. Cache device and backing
//!    stores are flushed. A checkpoint with the next epoch is taken; from then on nothing that an
//!    earlier run left behind can be mistaken for new.
//!
//! Up to step 8 nothing is written, so a crash in the middle, or a refusal, leaves everything as it
//! was.

pub(crate) mod attach;
pub(crate) mod mirrored;
mod overlay;
pub(crate) mod rewrite;
pub(crate) mod scan;

use crate::api::config::Attachment;
use crate::api::open_error::OpenError;
use crate::api::{Device, DeviceFailure};
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::ledger::Waiter;
use crate::context::recovery_reads::{CopyOf, RecoveryRead, What};
use crate::context::sectors::{BLOCK, sector_mask};
use crate::context::{Context, Status};
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::load::FoundSlot;
use crate::map::segment::{BLOCK_LAST, BlockState, Key, SegmentPhase};
use crate::recovery::attach::Verdict;
use crate::recovery::mirrored::Pairs;
use crate::recovery::rewrite::Rewrite;
use crate::recovery::scan::{After, Bytes, Found, Place, Tail};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::{Checkpoint, INTENT_REGION_BLOCKS, Intent, SegmentState, SlotState};
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry, StreamKind, VolumeId, summary};

/// Attempts at each read.
const READ_TRIES: u32 = 3;
/// Small reads under way: enough to keep a fast device busy, of which a large cache has as many to
/// do as it has segments.
const READS_IN_FLIGHT: usize = 32;
/// Reads of whole segments under way: each takes the memory of a segment.
const WHOLE_READS_IN_FLIGHT: usize = 8;

/// A segment that is read block by block.
#[derive(Debug)]
struct Pieces {
    bytes: Vec<u8>,
    bad: Vec<bool>,
    left: u32,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    device_bytes: u64,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) superblocks: Vec<(CopyOf, Result<Superblock, FormatError>)>,
    /// Copies that are read.
    expected: usize,
    unreadable: usize,
    /// Members (of a mirrored cache, else 0) and copies of the checkpoint in effect, in the order
    /// in which they are tried.
    pub(crate) checkpoints: Vec<(usize, u64)>,
    /// A mirrored cache: pairs of which both halves are read.
    pub(crate) pairs: Pairs,
    pub(crate) rewrite: Rewrite,
    pub(crate) checkpoint: Checkpoint,
    /// Size of every volume of the table in bytes, 0 for those that it does not list.
    ends: Vec<u64>,
    pub(crate) jobs: Vec<What>,
    in_flight: usize,
    whole_in_flight: usize,
    tails: Vec<Tail>,
    pieces: BTreeMap<u32, Pieces>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) settling: Vec<VolumeId>,
    pending_flushes: u32,
    flush_failed: bool,
}

impl Recovery {
    /// The next thing to read, if it may be read now.
    fn next_job(&mut self) -> Option<What> {
        let room = self.in_flight < READS_IN_FLIGHT
            && (self.whole_in_flight < WHOLE_READS_IN_FLIGHT
                || !matches!(self.jobs.last(), Some(What::Whole(_))));
        if room { self.jobs.pop() } else { None }
    }
}

impl Context {
    fn fail_opening(&mut self, error: OpenError) {
        self.status = Status::Failed(error);
    }

    /// I75: a superblock below the generation that is known to be durable is not that of this cache
    /// any more. Nor is one believed that says that the cache has failed.
    pub(crate) fn check_generation(&self, superblock: &Superblock) -> Result<(), OpenError> {
        if superblock.state == CacheState::Failed {
            return Err(OpenError::GivenUp);
        }
        let older = superblock.generation < self.config.known.generation;
        if older && !fault::planted(PlantedBug::BelieveOlderCopy) {
            return Err(OpenError::Older);
        }
        Ok(())
    }

    /// The superblock that counts is known.
    pub(crate) fn begin_map_of(&mut self, superblock: Superblock) {
        self.map = CacheMap::new(superblock.geometry);
        self.superblock = superblock;
    }

    pub(crate) fn place(&self, number: u32) -> Place {
        let segment = &self.map.segments[number as usize];
        let known = segment.has_table() && !fault::planted(PlantedBug::BelieveEarlierUse);
        Place { uuid: self.superblock.uuid, segment: number, since: if known { segment.born } else { 0 } }
    }

    pub(crate) fn drop_clean(&mut self, volume: VolumeId, first: u64, last: u64) -> u64 {
        let mut clean = Vec::new();
        self.map.for_each_in(volume, first, last, |slot| {
            if self.map.state(slot) == BlockState::Clean {
                clean.push(self.map.key(slot));
            }
        });
        for key in &clean {
            self.map.remove(*key);
        }
        clean.len() as u64
    }
}

impl Recovery {
    /// Begins to open the cache device of `device_bytes`.
    pub(crate) fn begin(cx: &mut Context, device_bytes: u64, attachments: Vec<Attachment>) -> Box<Self> {
        let members = cx.meta_members();
        let mut recovery = Box::new(Self {
            device_bytes,
            attachments,
            superblocks: Vec::new(),
            expected: 2 * members.len(),
            unreadable: 0,
            checkpoints: Vec::new(),
            pairs: Pairs::default(),
            rewrite: Rewrite::default(),
            checkpoint: Checkpoint::default(),
            ends: Vec::new(),
            jobs: Vec::new(),
            in_flight: 0,
            whole_in_flight: 0,
            tails: Vec::new(),
            pieces: BTreeMap::new(),
            verdicts: Vec::new(),
            settling: Vec::new(),
            pending_flushes: 0,
            flush_failed: false,
        });
        for (member, copy) in members.flat_map(|member| [(member, 0), (member, 1)]) {
            let offset = cx.map.geometry.mirror_meta(member, Geometry::superblock_offset(copy));
            recovery.read(cx, What::Superblock((member, copy)), offset, BLOCK);
        }
        recovery
    }

    pub(crate) fn read(&mut self, cx: &mut Context, what: What, offset: u64, len: u64) {
        let recovery = &mut *self;
        recovery.in_flight += 1;
        recovery.whole_in_flight += usize::from(matches!(what, What::Whole(_)));
        cx.read_meta(RecoveryRead { what, offset, len, tries: 1 });
    }

    pub(crate) fn completed(
        &mut self,
        cx: &mut Context,
        read: RecoveryRead,
        result: Result<&[u8], DeviceFailure>,
    ) {
        if result == Err(DeviceFailure::Ended) && cx.mirror.is_none() {
            // What is missing is no damage: nothing is to be concluded from it.
            return cx.fail_opening(OpenError::CacheEnded);
        }
        if result.is_err() && read.tries < READ_TRIES {
            cx.cover(CoverageMark::RecoveryRetried);
            cx.read_meta(RecoveryRead { tries: read.tries + 1, ..read });
            return;
        }
        if let What::Rewritten(number) = read.what {
            self.rewrite_read(cx, number, read.offset, result);
            return;
        }
        let recovery = &mut *self;
        recovery.in_flight -= 1;
        recovery.whole_in_flight -= usize::from(matches!(read.what, What::Whole(_)));
        let next = match read.what {
            What::Superblock(copy) => self.superblock_read(cx, copy, result),
            What::Checkpoint(at) => self.checkpoint_read(cx, at, result),
            What::Summary(number) => self.summary_read(cx, number, result),
            What::Whole(number) => self.segment_read(cx, number, result),
            What::Head(number) => self.head_read(cx, number, result),
            What::Block(number, index) => self.block_read(cx, number, index, result),
            What::Rewritten(_) => unreachable!("it does not come here"),
        };
        if let Err(error) = next.and_then(|()| self.next_jobs(cx)) {
            cx.fail_opening(error);
        }
    }

    fn superblock_read(
        &mut self,
        cx: &mut Context,
        copy: CopyOf,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let only_first = fault::planted(PlantedBug::DropSecondSuperblock);
        let recovery = &mut *self;
        let missing = FormatError::TooShort { structure: "superblock", needed: BLOCK_BYTES, found: 0 };
        recovery.unreadable += usize::from(result.is_err());
        recovery.superblocks.push((copy, result.map_or(Err(missing), Superblock::decode)));
        if recovery.superblocks.len() < recovery.expected {
            return Ok(());
        }
        if recovery.unreadable == recovery.expected {
            return Err(OpenError::Unreadable);
        }
        let mut all = core::mem::take(&mut recovery.superblocks);
        all.sort_by_key(|(copy, _)| *copy);
        if cx.mirror.is_some() {
            return self.choose_member(cx, all);
        }
        let copies: [_; 2] = core::array::from_fn(|copy| all[copy].1.clone());
        let recovery = &mut *self;
        let chosen = if only_first { copies[0].clone() } else { Superblock::choose(copies.clone()) };
        let superblock = chosen.map_err(OpenError::Superblock)?;
        let device_bytes = recovery.device_bytes;
        let right = [0, 1].map(|copy: usize| copies[copy].as_ref() == Ok(&superblock));
        if !right[0] {
            cx.cover(CoverageMark::SecondSuperblock);
        }
        // First the one that is stale; the other one may not be durable.
        let mut again = Vec::from([0, 1]);
        again.sort_by_key(|copy| right[*copy]);
        self.plan_superblocks(
            cx,
            again
                .into_iter()
                .map(|copy| (right[copy], (Geometry::superblock_offset(copy), superblock.encode())))
                .filter(|_| !only_first),
        );
        superblock.geometry.validate(device_bytes).map_err(OpenError::Superblock)?;
        cx.check_generation(&superblock)?;
        if superblock.mirror.is_some() {
            return Err(OpenError::Mirrored);
        }
        self.checkpoints = [(0, 0), (0, 1)].into();
        cx.begin_map_of(superblock);
        self.read_checkpoint(cx, 0);
        Ok(())
    }

    pub(crate) fn read_checkpoint(&mut self, cx: &mut Context, at: usize) {
        let (member, copy) = self.checkpoints[at];
        let geometry = cx.map.geometry;
        let offset = geometry.checkpoint_offset(cx.superblock.checkpoint_generation, copy);
        let len = geometry.checkpoint_blocks() * BLOCK;
        self.read(cx, What::Checkpoint(at), geometry.mirror_meta(member, offset), len);
    }

    fn checkpoint_read(
        &mut self,
        cx: &mut Context,
        at: usize,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let generation = cx.superblock.checkpoint_generation;
        let missing = FormatError::TooShort { structure: "checkpoint header", needed: BLOCK_BYTES, found: 0 };
        let decoded = result.map_or(Err(missing), Checkpoint::decode);
        match decoded.and_then(|checkpoint| self.fits(cx, checkpoint)) {
            Ok(checkpoint) => {
                if at > 0 {
                    cx.cover(CoverageMark::SecondCheckpoint);
                }
                self.checkpoint = checkpoint;
                self.plan_segments(cx);
                Ok(())
            }
            Err(_) if at + 1 < self.checkpoints.len() => {
                self.read_checkpoint(cx, at + 1);
                Ok(())
            }
            Err(error) => Err(OpenError::CheckpointLost { generation, error }),
        }
    }

    /// Checks that a checkpoint is the one that the superblock means.
    fn fits(&self, cx: &Context, checkpoint: Checkpoint) -> Result<Checkpoint, FormatError> {
        let check = |field, expected: u64, found: u64| {
            if expected == found {
                return Ok(());
            }
            Err(FormatError::Misplaced { structure: "checkpoint header", field, expected, found })
        };
        check("uuid", cx.superblock.uuid.tag(), checkpoint.uuid.tag())?;
        check("generation", cx.superblock.checkpoint_generation, checkpoint.generation)?;
        check("segment_count", u64::from(cx.map.geometry.segment_count), checkpoint.segments.len() as u64)?;
        check(
            "segment_blocks",
            u64::from(cx.map.geometry.segment_blocks),
            u64::from(checkpoint.segment_blocks),
        )?;
        let bad = |field, value| FormatError::Field { structure: "checkpoint body", field, value };
        for entry in &checkpoint.segments {
            if entry.used_blocks > checkpoint.segment_blocks
                || entry.summary_block >= checkpoint.segment_blocks
            {
                return Err(bad("used_blocks", u64::from(entry.used_blocks)));
            }
        }
        for number in &checkpoint.window {
            let entry = checkpoint.segments.get(*number as usize);
            if entry.is_none_or(|entry| entry.state != SegmentState::Free) {
                return Err(bad("window", u64::from(*number)));
            }
        }
        if let Some(number) = self.wrong_twin(cx, &checkpoint) {
            return Err(bad("state", number));
        }
        for volume in &checkpoint.volumes {
            if u32::from(volume.id.0) >= VOLUMES_MAX {
                return Err(bad("volume", u64::from(volume.id.0)));
            }
        }
        Ok(checkpoint)
    }

    /// Notes which segments must be read, and how.
    fn plan_segments(&mut self, cx: &mut Context) {
        let unclean = cx.superblock.state == CacheState::Open;
        let checkpoint = core::mem::take(&mut self.checkpoint);
        cx.recover_orders(&checkpoint.volumes);
        let mut jobs = Vec::new();
        let mut blocks = 0;
        for (number, entry) in (0..).zip(&checkpoint.segments) {
            if entry.state.has_slots() && self.is_on_lost_member(cx, number, &checkpoint.segments) {
                continue;
            }
            let live = entry.slots.live();
            let counts = live > 0;
            blocks += live as usize;
            match entry.state {
                SegmentState::Free => continue,
                SegmentState::Twin => {
                    cx.map.segments[number as usize].phase = SegmentPhase::Twin;
                    continue;
                }
                SegmentState::Open if unclean => jobs.push(What::Whole(number)),
                _ if counts && entry.summary_block > 0 => jobs.push(What::Summary(number)),
                _ if counts => jobs.push(What::Whole(number)),
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
            cx.map.begin_loading(blocks);
        }
        if unclean && cx.mirror.is_some() {
            self.plan_heads(cx, &checkpoint, &mut jobs);
        } else if unclean {
            jobs.extend(checkpoint.window.iter().map(|number| What::Head(*number)));
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

    /// Starts the reads that are left; goes on to the next step when there are none.
    fn next_jobs(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        if self.checkpoint.segments.is_empty() {
            return Ok(()); // Still at superblocks or checkpoint.
        }
        while let Some(what) = self.next_job() {
            let geometry = cx.map.geometry;
            let (number, from, blocks) = match what {
                What::Summary(number) => {
                    let half = self.readable_half(cx, number);
                    let at = cx.map.segments[number as usize].summary_block;
                    let blocks = 1 + summary::payload_blocks(at);
                    (half, at, blocks.min(geometry.segment_blocks - at))
                }
                What::Head(number) => (number, 0, 1),
                What::Whole(number) => (number, 0, geometry.segment_blocks),
                What::Block(number, index) => (number, index, 1),
                What::Superblock(_) | What::Checkpoint(_) | What::Rewritten(_) => {
                    unreachable!("they are read before or later")
                }
            };
            self.read(cx, what, geometry.segment_offset(number, from), u64::from(blocks) * BLOCK);
        }
        if self.in_flight > 0 {
            return Ok(());
        }
        if cx.superblock.state == CacheState::Open {
            // What is replayed next looks at blocks all over the cache.
            while cx.map.settle_some() {}
        }
        self.replay(cx)?;
        self.drop_intended(cx);
        self.attach(cx)
    }

    /// Makes a slot count as the checkpoint says, now that its key is known.
    fn restore(
        &mut self,
        cx: &mut Context,
        number: u32,
        index: u32,
        key: Key,
        crc: u32,
        (mask, epoch): (u8, u32),
    ) {
        let found = self.checkpoint.segments[number as usize].slots.get(index);
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
        let ordered = state == BlockState::Dirty && cx.recover_epoch(slot, epoch);
        match found {
            SlotState::Shadow if ordered => cx.map.insert_shadow(slot),
            SlotState::Shadow => {}
            _ => {
                cx.map.insert(slot, state);
            }
        }
    }

    /// True if a block belongs to a volume of the table. Others were being swept away when the
    /// cache was left.
    fn belongs(&self, key: Key, mask: u8) -> bool {
        let keep = fault::planted(PlantedBug::KeepBeyondShrink);
        belongs(&self.ends, key, mask, keep)
    }

    fn summary_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let at = cx.map.segments[number as usize].summary_block;
        let Some(payload) = result.ok().and_then(|bytes| summary_payload(bytes, cx.place(number), at)) else {
            // The batch headers say the same.
            cx.cover(CoverageMark::SummaryDamaged);
            cx.map.segments[number as usize].summary_block = 0;
            self.read_whole(cx, number);
            return Ok(());
        };
        if payload.len() > BLOCK_BYTES {
            cx.cover(CoverageMark::LongSummary);
        }
        let items = (0..).zip(summary::decode(payload, at));
        let items = items.filter_map(|(index, item)| Some((index, item?)));
        if cx.map.is_unsettled() {
            return self.load_summary(cx, number, items);
        }
        for (index, item) in items {
            let rest = (item.sector_mask, item.flush_epoch);
            self.restore(cx, number, index, Key::new(item.volume, item.block), item.crc32c, rest);
        }
        self.account(cx, number)
    }

    /// As `restore`, for a whole segment of a cache without ordered volumes.
    fn load_summary(
        &mut self,
        cx: &mut Context,
        number: u32,
        items: impl Iterator<Item = (u32, summary::SummaryItem)>,
    ) -> Result<(), OpenError> {
        let keep = fault::planted(PlantedBug::KeepBeyondShrink);
        let recovery = &*self;
        let counted = &recovery.checkpoint.segments[number as usize].slots;
        let mut found = 0;
        let slots = items.filter_map(|(index, item)| {
            let (key, mask) = (Key::new(item.volume, item.block), item.sector_mask);
            let state = match counted.get(index) {
                SlotState::Void => return None,
                _ if !belongs(&recovery.ends, key, mask, keep) => BlockState::Void,
                SlotState::Clean => BlockState::Clean,
                SlotState::Dirty => BlockState::Dirty,
                SlotState::Shadow => BlockState::Void, // Of an order that there is no more.
            };
            found += 1;
            Some(FoundSlot { index, key, crc: item.crc32c, mask, state })
        });
        cx.map.load_segment(number, slots);
        if found == counted.live() { Ok(()) } else { self.account(cx, number) }
    }

    fn segment_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        if let Ok(all) = result {
            return self.segment_bytes(cx, number, Bytes { all, bad: &[] });
        }
        cx.cover(CoverageMark::SegmentInPieces);
        // One bad sector fails the whole read: read block by block and lose only what is really
        // gone.
        let blocks = cx.map.geometry.segment_blocks;
        let pieces = Pieces {
            bytes: alloc::vec![0; blocks as usize * BLOCK_BYTES],
            bad: alloc::vec![true; blocks as usize],
            left: blocks,
        };
        let recovery = &mut *self;
        recovery.pieces.insert(number, pieces);
        recovery.jobs.extend((0..blocks).map(|index| What::Block(number, index)));
        Ok(())
    }

    fn block_read(
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
                cx.cover(CoverageMark::TornBatch);
            }
            if scan.unreadable && !self.has_fills_only(cx, number) {
                return Err(OpenError::TailUnreadable { segment: number });
            }
            let tail = scan.tail.filter(|tail| self.may_hold(cx, number, tail.stream));
            self.tails.extend(tail);
        }
        Ok(())
    }

    /// Every slot that the checkpoint counts must have been found. Missing clean ones are merely
    /// forgotten.
    fn account(&mut self, cx: &mut Context, number: u32) -> Result<(), OpenError> {
        let (mut lost, mut shadows) = (0, 0);
        for index in 0..cx.map.geometry.segment_blocks {
            let counts = self.checkpoint.segments[number as usize].slots.get(index);
            let known = cx.map.segments[number as usize].has_data(index);
            lost += u32::from(counts == SlotState::Dirty && !known);
            shadows += u32::from(counts == SlotState::Shadow && !known);
        }
        if shadows > 0 {
            // The newest versions are there; but nobody knows in which volume the order has a gap.
            for volume in 0..VOLUMES_MAX as u16 {
                cx.forget_order(VolumeId(volume));
            }
        }
        if lost > 0 {
            cx.cover(CoverageMark::SegmentLost);
            return Err(OpenError::SegmentLost { segment: number, dirty_blocks: lost });
        }
        Ok(())
    }

    /// The first block of a window segment tells whether the segment was written since the
    /// checkpoint.
    fn head_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let mut entries = Vec::new();
        let written = match result {
            Err(_) => true, // Look closer: the rest may be readable, and must not be overlooked.
            Ok(bytes) => BatchHeader::decode(bytes, &mut entries)
                .is_ok_and(|header| header.epoch == cx.superblock.epoch),
        };
        if written && cx.mirror.is_some() {
            self.read_column(cx, number);
        } else if written {
            self.jobs.push(What::Whole(number));
        }
        Ok(())
    }

    /// Finds out which batches after the checkpoint count, and applies them.
    fn replay(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        let mut tails = core::mem::take(&mut self.tails);
        tails.sort_by_key(Tail::first);
        let mut counting: Vec<(u32, Found)> = Vec::new();
        for stream in StreamKind::ALL {
            let of_stream = tails.extract_if(.., |tail| tail.stream == stream).collect();
            self.follow(cx, stream, of_stream, &mut counting)?;
        }
        if fault::planted(PlantedBug::IgnoreSequence) {
            counting.sort_by_key(|(segment, batch)| (*segment, batch.start));
        } else {
            counting.sort_by_key(|(_, batch)| batch.header.sequence);
        }
        for (segment, batch) in counting {
            self.apply(cx, segment, &batch);
        }
        Ok(())
    }

    /// Follows one stream from the checkpoint to its end.
    fn follow(
        &mut self,
        cx: &mut Context,
        stream: StreamKind,
        tails: Vec<Tail>,
        counting: &mut Vec<(u32, Found)>,
    ) -> Result<(), OpenError> {
        let mut expected = cx.log.streams[stream.index()].next_sequence;
        let flushed = tails.iter().map(|tail| tail.flushed).max().unwrap_or(0);
        // A segment's claim ends where that of the next one begins: after a failed write batches
        // are written again.
        let limits: Vec<u64> = tails.iter().skip(1).map(|tail| tail.first().0).chain([u64::MAX]).collect();
        for (tail, limit) in tails.into_iter().zip(limits) {
            if tail.first().0 != expected {
                cx.cover(CoverageMark::BatchesBehindGap);
                break;
            }
            let whole = tail.batches.len();
            let batches: Vec<Found> =
                tail.batches.into_iter().take_while(|batch| batch.header.stream_sequence < limit).collect();
            if batches.len() < whole {
                cx.cover(CoverageMark::BatchesWrittenTwice);
            }
            let Some(last) = batches.last() else { continue };
            expected = last.header.stream_sequence + 1;
            let (end, all) = (last.end(), batches.len() == whole);
            let first = (batches[0].header.stream_sequence, batches[0].header.sequence);
            if !cx.map.segments[tail.segment as usize].has_table() {
                cx.map.begin_segment(tail.segment, SegmentPhase::Sealed, stream, first);
                self.begin_twin(cx, tail.segment, stream);
            }
            let segment = &mut cx.map.segments[tail.segment as usize];
            segment.completed = end;
            segment.durable = end;
            if let (Some(at), true) = (tail.summary, all) {
                segment.summary_block = at;
                segment.completed = at + 1 + summary::payload_blocks(at);
            }
            if cx.rewrites(stream) {
                let unflushed = batches.iter().filter(|batch| batch.header.stream_sequence >= flushed);
                unflushed.for_each(|batch| self.rewrite.add(tail.segment, batch));
            }
            counting.extend(batches.into_iter().map(|batch| (tail.segment, batch)));
        }
        if flushed > expected && !self.may_lack(cx, stream) {
            cx.cover(CoverageMark::LostFlushFound);
            return Err(OpenError::LostFlushedBatch { stream: stream as u8, lost: expected });
        }
        // I75. Fills are clean: a copy of them that cannot be read any more is no reason to refuse
        // everything else.
        let known = cx.config.known.flushed[stream.index()];
        if known > expected && stream != StreamKind::Fill && !fault::planted(PlantedBug::BelieveOlderCopy) {
            return Err(OpenError::Older);
        }
        cx.log.streams[stream.index()].start_at(expected);
        Ok(())
    }

    fn apply(&mut self, cx: &mut Context, number: u32, batch: &Found) {
        cx.log.next_sequence = cx.log.next_sequence.max(batch.header.sequence + 1);
        for (index, entry) in batch.data() {
            if let (Entry::Data { crc32c, sector_mask, dirty, flush_epoch, .. }, Some(key)) =
                (entry, scan::key_of(entry))
            {
                let slot = cx.map.slot(number, index);
                cx.map.describe(slot, key, crc32c, sector_mask);
                if !self.belongs(key, sector_mask) {
                    continue;
                }
                if dirty {
                    cx.replay_epoch(slot, flush_epoch);
                }
                let state = if dirty { BlockState::Dirty } else { BlockState::Clean };
                cx.map.insert(slot, state);
            }
        }
        for entry in &batch.entries {
            match *entry {
                Entry::CleanMark { slot, count } => self.for_marked(cx, slot.0, count, |cx, slot| {
                    if cx.map.state(slot) == BlockState::Dirty {
                        cx.map.mark_clean(slot);
                    }
                }),
                Entry::DropMark { slot, count } => self.for_marked(cx, slot.0, count, |cx, slot| {
                    if cx.map.is_shadow(slot) {
                        cx.map.end_shadow(slot);
                    } else if cx.map.state(slot) != BlockState::Void {
                        cx.map.remove(cx.map.key(slot));
                    }
                }),
                Entry::Intent { volume, region, count } => {
                    self.checkpoint.intents.push(Intent { volume, region, count });
                }
                Entry::Data { .. } | Entry::Summary { .. } => {}
            }
        }
    }

    fn for_marked(&mut self, cx: &mut Context, slot: u32, count: u32, mut f: impl FnMut(&mut Context, u32)) {
        let end = slot.saturating_add(count).min(cx.map.geometry.slot_count());
        for slot in slot..end {
            f(cx, slot);
        }
    }

    /// Clean blocks where writes past the cache may have happened cannot be trusted.
    fn drop_intended(&mut self, cx: &mut Context) {
        for Intent { volume, region, count } in core::mem::take(&mut self.checkpoint.intents) {
            let first = region.saturating_mul(INTENT_REGION_BLOCKS).min(BLOCK_LAST);
            let blocks = u64::from(count).max(1).saturating_mul(INTENT_REGION_BLOCKS);
            let last = first.saturating_add(blocks - 1).min(BLOCK_LAST);
            if cx.drop_clean(volume, first, last) > 0 {
                cx.cover(CoverageMark::IntentDropsClean);
            }
        }
    }

    pub(crate) fn settle_devices(&mut self, cx: &mut Context, volumes: &[VolumeId]) {
        if cx.mirror.is_some() && !self.mend_members(cx, volumes) || !self.rewrite_unflushed(cx, volumes) {
            return;
        }
        self.pending_flushes = 1 + volumes.len() as u32;
        cx.flush(Device::Cache, Waiter::Recovery);
        for volume in volumes {
            cx.flush(Device::Backing(*volume), Waiter::Recovery);
        }
    }

    pub(crate) fn flushed(&mut self, cx: &mut Context, ok: bool) {
        let recovery = &mut *self;
        recovery.flush_failed |= !ok;
        recovery.pending_flushes -= 1;
        if recovery.pending_flushes > 0 {
            return;
        }
        if recovery.flush_failed {
            let error = if cx.fenced { OpenError::CacheWrite } else { OpenError::BackingFlush };
            cx.fail_opening(error);
            return;
        }
        cx.resume_orders();
        let counted = cx.segments_counted(cx.map.geometry.segment_count);
        cx.free.window_size = crate::checkpoint::window_size(counted);
        while cx.map.take_emptied().is_some() {}
        for number in 0..cx.map.segments.len() as u32 {
            let segment = &cx.map.segments[number as usize];
            if segment.live == 0 && segment.phase != SegmentPhase::Twin {
                self.end_with_twin(cx, number);
                if cx.mirror.is_none() {
                    cx.free.pool.push_back(number);
                }
            }
        }
        cx.free_columns();
        cx.tell(Event::Recovered);
    }
}

impl Engine {
    // --- superblock and checkpoint

    // --- segments

    // --- replay

    // --- the end
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

/// The payload of a summary, if header and payload are intact and in their place.
fn summary_payload(bytes: &[u8], place: Place, at: u32) -> Option<&[u8]> {
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
    right.then_some(payload)
}
