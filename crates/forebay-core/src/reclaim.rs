//! Reclaim: emptying segments so that they can be written again.
//!
//! One victim at a time: clean blocks that were not hit are dropped from the map, clean ones that were hit and dirty
//! ones move to the survivor stream. Moving a block takes its block lock, so that the copy, which carries a newer
//! sequence than anything written before, can never overtake a newer write (I8). If there is no room to move dirty
//! blocks, destage is asked to hurry instead; reclaim never needs space to make progress. Dirty blocks of a volume that is
//! destaged in order are never moved: they would lose their place (I23). If nothing else helps, volumes that are not attached
//! give up their order (`ordered`).
//!
//! An empty segment is *freed*; it is written again only after a checkpoint that says so is in effect (I7).

use crate::api::Device;
use crate::append::{Done, Item, ItemKind};
use crate::config::PlantedBug;
use crate::engine::{Engine, LockOwner, OpKind};
use crate::locks::BlockRange;
use crate::map::MASK_FULL;
use crate::pages::{Page, PageUse};
use crate::policy::{Candidate, Eviction, SecondChance};
use crate::read::CACHE_READ_TRIES;
use crate::segment::{Key, Phase, State};
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId, summary};

/// Most relocations under way.
const RELOCATIONS_MAX: usize = 64;

/// The victim being emptied.
#[derive(Debug)]
pub(crate) struct Reclaim {
    segment: u32,
    next: u32,
    kept: u32,
}

impl Reclaim {
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }
}

/// How far the victim is.
enum Emptying {
    /// Empty.
    Done,
    /// Moves are under way.
    Moving,
    /// Nothing more can be done for this segment now.
    Stuck(u32),
}

/// A block on its way to the survivor stream.
#[derive(Debug)]
pub(crate) struct Relocation {
    key: Key,
    from: u32,
    /// Sectors to leave out of the copy are not in this mask.
    mask: Option<u8>,
    page: Page,
    tries: u32,
    /// Its new record says that it is dirty.
    recorded_dirty: bool,
}

impl Relocation {
    pub(crate) fn volume(&self) -> VolumeId {
        self.key.volume()
    }
}

impl Engine {
    /// Segments that hold nothing, usable now or after the next checkpoint.
    pub(crate) fn free_segments(&self) -> usize {
        self.checkpoint.window.len() + self.checkpoint.pool.len()
    }

    /// True if reclaim is behind: then marks and checkpoints should not dawdle.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.free_segments() < self.checkpoint.window_size as usize / 2
    }

    /// Frees segments that have become empty.
    pub(crate) fn collect_emptied(&mut self) {
        while let Some(number) = self.map.take_emptied() {
            if self.reclaim.as_ref().is_some_and(|reclaim| reclaim.segment == number) {
                self.reclaim = None;
            }
            self.map.end_segment(number, Phase::Freed);
            if self.planted(PlantedBug::ReuseSegmentEarly) {
                self.map.end_segment(number, Phase::Free);
                self.checkpoint.window.push_front(number);
            } else if !self.keep_retired(number) {
                self.checkpoint.pool.push_back(number);
            }
        }
    }

    pub(crate) fn step_reclaim(&mut self) {
        self.reclaim_wants_destage = false;
        if self.is_winding_down() {
            return;
        }
        // Each pass either frees a segment, leaves moves under way, or finds that this victim has to wait.
        let mut skipped = Vec::new();
        while self.free_segments() < self.checkpoint.window_size as usize {
            if self.reclaim.is_none() {
                if self.is_busy_relocating() {
                    return; // What is under way makes room; a victim chosen now would lose what deserves to stay.
                }
                let Some(segment) = self.choose_victim(&skipped) else {
                    self.reclaim_wants_destage = true;
                    self.yield_kept_orders();
                    return;
                };
                self.reclaim = Some(Reclaim { segment, next: 0, kept: 0 });
            }
            match self.empty_victim() {
                Emptying::Done => self.collect_emptied(),
                Emptying::Moving => return,
                Emptying::Stuck(segment) => skipped.push(segment),
            }
        }
    }

    fn eviction(&self) -> SecondChance {
        let blocks = self.map.geometry.segment_blocks;
        SecondChance {
            survivors_max: blocks * self.config.pool.survivors_max_pct / 100,
            segment_blocks: blocks,
        }
    }

    fn choose_victim(&self, skipped: &[u32]) -> Option<u32> {
        let blocks = self.map.geometry.segment_blocks;
        // A segment full of dirty blocks gains nothing when it is moved; without room, nothing can be moved at all.
        let most = blocks - summary::reserved_blocks(blocks);
        let movable = if self.can_relocate() { most * 3 / 4 } else { 1 };
        let candidates: Vec<Candidate> = (0..self.map.segments.len() as u32)
            .filter_map(|number| {
                let segment = &self.map.segments[number as usize];
                let offered = segment.phase == Phase::Sealed
                    && segment.live > 0
                    && segment.unclean < movable
                    && segment.fixed == 0
                    && !segment.unreclaimable
                    && !skipped.contains(&number);
                offered.then_some(Candidate {
                    segment: number,
                    born: segment.born,
                    unclean: segment.unclean,
                    live: segment.live,
                })
            })
            .collect();
        self.eviction().victim(&candidates)
    }

    /// Goes on with the victim.
    fn empty_victim(&mut self) -> Emptying {
        let Some(Reclaim { segment, mut next, mut kept }) = self.reclaim.take() else {
            return Emptying::Done;
        };
        let policy = self.eviction();
        while next < self.map.geometry.segment_blocks {
            let slot = self.map.slot(segment, next);
            let moves = match self.map.state(slot) {
                State::Void => false,
                State::Clean => {
                    let hit = self.map.segments[segment as usize].is_hit(next);
                    let keep = policy.keeps(hit, kept);
                    if keep && self.is_busy_relocating() {
                        return self.wait_with_victim(Reclaim { segment, next, kept });
                    }
                    if keep && self.relocate(slot) {
                        kept += 1;
                    } else {
                        let key = self.map.key(slot);
                        self.map.remove(key);
                        self.stats.evicted_blocks += 1;
                        self.counters.of(key.volume()).evicted_blocks += 1;
                    }
                    false
                }
                State::Dirty if self.map.is_lost(slot) => {
                    self.map.segments[segment as usize].unreclaimable = true;
                    return Emptying::Stuck(segment);
                }
                State::Dirty | State::Destaged => true,
            };
            if moves && !self.relocate(slot) {
                return self.wait_with_victim(Reclaim { segment, next, kept });
            }
            next += 1;
        }
        // Everything is dropped or on its way. It frees itself when the last move has ended.
        if self.map.segments[segment as usize].live == 0 { Emptying::Done } else { Emptying::Stuck(segment) }
    }

    /// A block of the victim cannot be moved now. If moves are under way, they will make it possible; if not, the
    /// block is being changed or there is no room: another victim may do.
    fn wait_with_victim(&mut self, victim: Reclaim) -> Emptying {
        if self.relocations.len() == 0 {
            self.reclaim_wants_destage = true;
            return Emptying::Stuck(victim.segment);
        }
        self.reclaim = Some(victim);
        Emptying::Moving
    }

    /// As many moves are under way as there may be, and there is room for them: it is only a matter of time.
    fn is_busy_relocating(&self) -> bool {
        self.relocations.len() > 0 && self.has_room_to_relocate() && !self.can_relocate()
    }

    fn can_relocate(&self) -> bool {
        !self.fenced
            && self.relocations.len() < RELOCATIONS_MAX
            && self.pages.available(PageUse::Survivor) > 0
            && self.has_room_to_relocate()
    }

    /// Room for one more survivor: the worst case is a header block for each.
    fn has_room_to_relocate(&self) -> bool {
        let stream = &self.streams[StreamKind::Survivor.index()];
        let segments = self.checkpoint.window.len() as u32;
        let room = stream.room(self.batch_blocks()) + segments * self.batch_blocks();
        (self.relocations.len() as u32 + 2) * 2 < room
    }

    /// Starts to move a block; false if that is not possible now.
    pub(crate) fn relocate(&mut self, slot: u32) -> bool {
        self.relocate_masked(slot, None)
    }

    /// As [`Engine::relocate`]; the copy has no sectors but those of `mask`.
    pub(crate) fn relocate_masked(&mut self, slot: u32, mask: Option<u8>) -> bool {
        let key = self.map.key(slot);
        let range = BlockRange { first: key, last: key };
        if !self.can_relocate() || self.map.is_fixed(slot) {
            return false;
        }
        if !self.planted(PlantedBug::RelocateWithoutLock) && !self.locks.try_acquire(range) {
            return false;
        }
        let page = self.pages.take(PageUse::Survivor).expect("a page is available");
        let relocation = Relocation { key, from: slot, mask, page, tries: 1, recorded_dirty: false };
        let relocation = self.relocations.insert(relocation);
        self.read_for_relocation(relocation);
        true
    }

    fn read_for_relocation(&mut self, number: u32) {
        let relocation = self.relocations.get(number);
        let (slot, page) = (relocation.from, relocation.page);
        self.map.pin(slot);
        let kind = OpKind::RelocateRead { relocation: number };
        self.read(Device::Cache, self.map.offset(slot), &[page.span()], true, kind);
    }

    pub(crate) fn relocation_read(&mut self, number: u32, ok: bool, crcs: &[u32]) {
        let relocation = self.relocations.get_mut(number);
        let (slot, key, page) = (relocation.from, relocation.key, relocation.page);
        relocation.tries += 1;
        let mask = relocation.mask.unwrap_or(MASK_FULL);
        let tries = relocation.tries;
        let right = ok && crcs.first() == Some(&self.map.crc(slot));
        let current = self.map.lookup(key) == Some(slot);
        self.map.unpin(slot);
        if !current {
            self.end_relocation(number);
        } else if right {
            let dirty = self.map.state(slot) == State::Dirty;
            self.relocations.get_mut(number).recorded_dirty = dirty;
            let item = Item {
                key,
                crc: self.map.crc(slot),
                kind: ItemKind::Data { mask: self.map.mask(slot) & mask, dirty },
                span: Some(page.span()),
                done: Done::Survivor(number),
            };
            self.map.pin(slot);
            self.enqueue(StreamKind::Survivor, item);
        } else if tries <= CACHE_READ_TRIES {
            self.read_for_relocation(number);
        } else {
            self.give_up(slot);
            self.end_relocation(number);
        }
    }

    /// The copy was appended to `slot` (with the pin of the original still held), or not.
    pub(crate) fn relocated(&mut self, number: u32, slot: Option<u32>) {
        let relocation = self.relocations.get(number);
        let (from, key, recorded_dirty) = (relocation.from, relocation.key, relocation.recorded_dirty);
        let current = self.map.lookup(key) == Some(from) || self.planted(PlantedBug::RelocateWithoutLock);
        if let (Some(slot), true) = (slot, current) {
            // The block may have been destaged on the way. If its record says dirty, a mark must follow.
            let state = self.map.state(from);
            let state = match state {
                State::Void => State::Dirty,
                State::Clean if recorded_dirty => State::Destaged,
                state => state,
            };
            let born = self.map.born(from);
            self.map.insert_born(slot, state, born);
            self.stats.relocated_blocks += 1;
            if state == State::Destaged {
                self.add_mark(slot);
            }
            // The record of a clean survivor is a clean mark as well, if that of the original says dirty.
            self.marks_ticket = self.cache_flush.ticket();
        }
        self.map.unpin(from);
        self.end_relocation(number);
    }

    fn end_relocation(&mut self, number: u32) {
        let relocation = self.relocations.remove(number);
        self.pages.give(PageUse::Survivor, relocation.page);
        if self.planted(PlantedBug::RelocateWithoutLock) {
            return;
        }
        let range = BlockRange { first: relocation.key, last: relocation.key };
        let mut granted: Vec<LockOwner> = Vec::new();
        self.locks.release(range, &mut granted);
        self.lock_granted(granted);
    }

    /// Takes a segment for a stream out of the append window. The last ones are kept for the survivors, so that
    /// reclaim can always go on, and fills go without before writes do.
    pub(crate) fn take_segment(&mut self, stream: StreamKind) -> Option<u32> {
        let reserve = match stream {
            StreamKind::Survivor => 0,
            StreamKind::Write => 1,
            StreamKind::Fill => 2,
        };
        if self.checkpoint.window.len() <= reserve {
            return None;
        }
        self.checkpoint.window.pop_front()
    }
}
