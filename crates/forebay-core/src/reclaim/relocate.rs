//! Relocation of blocks from a segment that is being emptied to the survivor stream.
//!
//! A relocation holds the lock of its block, so the copy, which carries a newer sequence than
//! anything written before, can never overtake a newer write (I8).
//!
//! Blocks that are close to each other and whose relocations begin in one turn of the engine are
//! read in one operation, with the blocks between them.
//!
//! Relocation and destage do not wait for each other. A dirty block is relocated once the cache
//! device holds it durably, so its copy may be destaged before the copy itself is durable (I11). If
//! destage picked the block meanwhile, it writes the copy (`destage::Destager::follow`): a block
//! that waited for another turn of the sweep would be too old by then.

use crate::api::{Span, WASTE};
use crate::base::slab::Slab;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::locks::BlockRange;
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::push_span;
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId};

/// Maximum number of relocations in flight. With 64 reclaim is slower than writers at a device
/// utilisation of three quarters; with 256 it relocates blocks that would have been overwritten
/// (`overwrite-bench` of the simulator).
const RELOCATIONS_MAX: usize = 128;
/// Maximum number of blocks in one read: 128 KiB, beyond which a flash device gains little.
const RUN_BLOCKS_MAX: u32 = 32;
/// Blocks between two others that are read with them: on flash with 100,000 operations and 2 GB per
/// second an operation takes as long as five blocks.
const GAP_BLOCKS_MAX: u32 = 4;

/// A block in relocation to the survivor stream.
#[derive(Debug)]
pub(crate) struct Relocation {
    key: Key,
    from: u32,
    /// Sectors of the block that the copy keeps; `None`: all.
    mask: Option<u8>,
    page: Page,
    tries: u32,
    /// The next block, which is read together with this one.
    next: Option<u32>,
    /// Its new entry records it as dirty.
    recorded_dirty: bool,
    /// It could have been evicted.
    kept: bool,
}

/// Blocks that will be read in one operation: the first and last relocation, and the number of
/// blocks in between, both included.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u32,
    last: u32,
    blocks: u32,
}

/// Relocations in flight: a part of the engine.
#[derive(Debug)]
pub(crate) struct Relocations {
    moves: Slab<Relocation>,
    /// Begun in this turn of the engine, and not read yet.
    gathering: Option<Run>,
    /// Memory for the pages of a read.
    spans: Vec<Span>,
}

impl CacheMap {
    /// True if a dirty block is in destage: it is being written, or waits for a flush of the
    /// backing store.
    fn is_being_destaged(&self, slot: u32) -> bool {
        let key = self.key(slot);
        let waiting = &self.volumes[usize::from(key.volume().0)].waiting;
        self.state(slot) == BlockState::Dirty && !self.is_lost(slot) && !waiting.has(key.block())
    }
}

impl Context {
    pub(crate) fn can_relocate(&self) -> bool {
        !self.failure.is_fenced()
            && self.log.moves < RELOCATIONS_MAX
            && self.pages.available(PageUse::Survivor) > 0
            && self.has_room_to_relocate()
    }

    /// True if the block is dirty, and not durable on the cache device yet.
    pub(crate) fn moves_too_early(&self, slot: u32) -> bool {
        let early = self.map.state(slot) == BlockState::Dirty && !self.is_held(slot);
        early && !fault::planted(PlantedBug::MoveBeforeDurable)
    }

    /// True if there is room for one more survivor: the worst case is a header block for each.
    fn has_room_to_relocate(&self) -> bool {
        let stream = &self.log.streams[StreamKind::Survivor.index()];
        let segments = self.free.window.len() as u32;
        let room = stream.room(self.batch_blocks()) + segments * self.batch_blocks();
        let waiting = self.log.moves + stream.queue.len();
        (waiting as u32 + 2) * 2 < room
    }
}

impl Relocations {
    pub(crate) fn new() -> Self {
        Self { moves: Slab::new(), gathering: None, spans: Vec::new() }
    }

    /// True if a block of the volume is being relocated.
    pub(crate) fn any_of(&self, volume: VolumeId) -> bool {
        self.moves.iter().any(|relocation| relocation.key.volume() == volume)
    }

    /// Starts to relocate a block; false if that is not possible now.
    pub(crate) fn relocate(&mut self, cx: &mut Context, slot: u32) -> bool {
        self.begin(cx, slot, None, false)
    }

    /// As `relocate`, for a block that could be evicted.
    pub(crate) fn keep(&mut self, cx: &mut Context, slot: u32) -> bool {
        self.begin(cx, slot, None, true)
    }

    /// As `relocate`; the copy has only the sectors of `mask`.
    pub(crate) fn relocate_masked(&mut self, cx: &mut Context, slot: u32, mask: Option<u8>) -> bool {
        self.begin(cx, slot, mask, false)
    }

    fn begin(&mut self, cx: &mut Context, slot: u32, mask: Option<u8>, kept: bool) -> bool {
        let key = cx.map.key(slot);
        let range = BlockRange { first: key, last: key };
        if !cx.can_relocate() || cx.map.is_fixed(slot) || !cx.has_room_for_single(slot) {
            return false;
        }
        if cx.moves_too_early(slot) {
            cx.want_cache_flush();
            return false;
        }
        if !fault::planted(PlantedBug::RelocateWithoutLock) && !cx.locks.try_acquire(range) {
            return false;
        }
        let page = cx.pages.take(PageUse::Survivor).expect("a page is available");
        let relocation =
            Relocation { key, from: slot, mask, page, tries: 1, next: None, recorded_dirty: false, kept };
        let relocation = self.moves.insert(relocation);
        cx.log.moves += 1;
        cx.map.leaves(slot, true);
        self.gather(cx, relocation);
        true
    }

    /// Adds a block to the read of the preceding ones, if they were begun in this turn.
    fn gather(&mut self, cx: &mut Context, number: u32) {
        let slot = self.moves.get(number).from;
        cx.map.pin(slot);
        cx.log.survivor_reads += 1;
        let joined = self.gathering.and_then(|run| {
            let last = self.moves.get(run.last).from;
            let gap = slot.checked_sub(last + 1).filter(|gap| *gap <= GAP_BLOCKS_MAX)?;
            let (blocks, same_segment) = (run.blocks + gap + 1, cx.map.place(last).0 == cx.map.place(slot).0);
            (same_segment && blocks <= RUN_BLOCKS_MAX).then_some(Run { last: number, blocks, ..run })
        });
        match joined {
            Some(run) => {
                if let Some(before) = self.gathering.replace(run) {
                    self.moves.get_mut(before.last).next = Some(number);
                }
            }
            None => {
                self.read_gathered(cx);
                self.gathering = Some(Run { first: number, last: number, blocks: 1 });
            }
        }
    }

    /// Reads the gathered blocks: nothing more begins in this turn.
    #[inline]
    pub(crate) fn read_gathered(&mut self, cx: &mut Context) {
        if let Some(run) = self.gathering.take() {
            self.read(cx, run.first, run.blocks);
        }
    }

    /// Reads the block of a relocation and the others gathered behind it, `blocks` in total.
    fn read(&mut self, cx: &mut Context, first: u32, blocks: u32) {
        let Relocation { from, tries, .. } = *self.moves.get(first);
        self.spans.clear();
        let (mut next, mut at) = (Some(first), from);
        while let Some(number) = next {
            let relocation = self.moves.get(number);
            for _ in at..relocation.from {
                self.spans.push(WASTE);
            }
            push_span(&mut self.spans, relocation.page.span());
            (next, at) = (relocation.next, relocation.from + 1);
        }
        cx.read_slots((from, blocks), tries, &self.spans, OpKind::RelocateRead { relocation: first });
    }

    /// The blocks of `first` and of those gathered behind it were read. Reads those with errors
    /// again one by one, from the other copy if there is one.
    pub(crate) fn relocations_read(&mut self, cx: &mut Context, first: u32, ok: bool, crcs: &[u32]) {
        let from = self.moves.get(first).from;
        let mut next = Some(first);
        while let Some(number) = next {
            let relocation = self.moves.get_mut(number);
            next = relocation.next.take();
            let at = (relocation.from - from) as usize;
            self.relocation_read(cx, number, ok.then(|| crcs.get(at).copied()).flatten());
        }
    }

    fn relocation_read(&mut self, cx: &mut Context, number: u32, crc: Option<u32>) {
        cx.log.survivor_reads -= 1;
        let relocation = self.moves.get_mut(number);
        let (slot, key, page) = (relocation.from, relocation.key, relocation.page);
        relocation.tries += 1;
        let mask = relocation.mask.unwrap_or(MASK_FULL);
        let tries = relocation.tries;
        let right = crc == Some(cx.map.crc(slot));
        let current = cx.map.lookup(key) == Some(slot);
        cx.map.unpin(slot);
        if !current {
            cx.coverage.add(CoverageMark::RelocationLost);
            self.end_relocation(cx, number);
        } else if right {
            let dirty =
                cx.map.state(slot) == BlockState::Dirty && !fault::planted(PlantedBug::ForgetDirtySurvivor);
            assert!(
                !dirty || cx.is_held(slot),
                "I11: only what the cache holds durably is moved while it is dirty"
            );
            let relocation = self.moves.get_mut(number);
            relocation.recorded_dirty = dirty;
            let kept = relocation.kept;
            let item = Item {
                key,
                crc: cx.map.crc(slot),
                kind: ItemKind::Data { mask: cx.map.mask(slot) & mask, dirty },
                span: Some(page.span()),
                done: if kept { ItemOwner::Kept(number) } else { ItemOwner::Survivor(number) },
            };
            cx.map.pin(slot);
            // An entry about dirty data belongs on both members, even if it records that the data
            // is clean now.
            let single = cx.members.is_mirrored() && cx.map.state(slot) == BlockState::Clean;
            cx.enqueue(if single { StreamKind::Fill } else { StreamKind::Survivor }, item);
        } else if tries <= cx.members.slot_tries(&cx.map, slot) {
            cx.map.pin(slot);
            cx.log.survivor_reads += 1;
            self.read(cx, number, 1);
        } else {
            cx.give_up(slot);
            self.end_relocation(cx, number);
        }
    }

    /// The copy was appended to `slot` (with the pin of the original still held), or the append
    /// failed.
    ///
    /// Meanwhile the block may have been destaged and, being clean, dropped: its lock excludes
    /// writers, but neither reclaim nor the detection of damage. If its new entry records it as
    /// dirty, the block returns as destaged, and is marked clean: otherwise it would be dirty after
    /// a crash and hide later bypass writes (I74).
    ///
    /// Returns the old and the new slot if destage has picked the block and must follow.
    pub(crate) fn relocated(
        &mut self,
        cx: &mut Context,
        number: u32,
        slot: Option<u32>,
    ) -> Option<(u32, u32)> {
        let relocation = self.moves.get(number);
        let (from, key, recorded_dirty) = (relocation.from, relocation.key, relocation.recorded_dirty);
        let is_whole = relocation.mask.is_none();
        let mut followed = None;
        let current = cx.map.lookup(key) == Some(from) || fault::planted(PlantedBug::RelocateWithoutLock);
        let resurfaces = recorded_dirty && !fault::planted(PlantedBug::ForgetRecordOfDropped);
        if let Some(slot) = slot.filter(|_| current || resurfaces) {
            // The block may have been destaged meanwhile. If its entry records it as dirty, a mark
            // must follow.
            let state = if current { cx.map.state(from) } else { BlockState::Clean };
            let state = match state {
                BlockState::Void => BlockState::Dirty,
                BlockState::Dirty if fault::planted(PlantedBug::ForgetDirtySurvivor) => BlockState::Clean,
                BlockState::Clean if recorded_dirty => BlockState::Destaged,
                state => state,
            };
            match state {
                BlockState::Dirty => cx.coverage.add(CoverageMark::DirtySurvivor),
                BlockState::Destaged => cx.coverage.add(CoverageMark::SurvivorDestaged),
                BlockState::Clean | BlockState::Void => {}
            }
            let (pinned, time) = (cx.map.is_pinned(from), cx.map.write_time(from));
            let follows = current && is_whole && cx.map.is_being_destaged(from);
            cx.map.insert_written_at(slot, state, time);
            if follows {
                cx.map.volumes[usize::from(key.volume().0)].waiting.remove(key.block());
                cx.coverage.add(CoverageMark::SurvivorFollowed);
                followed = Some((from, slot));
            }
            if pinned {
                cx.map.set_pinned(slot);
            }
            cx.stats.relocated_blocks += 1;
            if state == BlockState::Destaged {
                cx.log.marks.add(slot, cx.now);
            }
            // The entry of a clean survivor is also a clean mark if the entry of the original
            // records it as dirty.
            cx.log.marks.note_logged(cx.flushes.cache.ticket());
        } else {
            cx.coverage.add(CoverageMark::RelocationLost);
        }
        cx.map.unpin(from);
        self.end_relocation(cx, number);
        followed
    }

    fn end_relocation(&mut self, cx: &mut Context, number: u32) {
        let relocation = self.moves.remove(number);
        cx.log.moves -= 1;
        cx.map.leaves(relocation.from, false);
        cx.pages.give(PageUse::Survivor, relocation.page);
        if fault::planted(PlantedBug::RelocateWithoutLock) {
            return;
        }
        let range = BlockRange { first: relocation.key, last: relocation.key };
        cx.release_blocks(range);
    }
}
