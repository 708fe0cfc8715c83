//! Reclaim: emptying segments so that they can be written again.
//!
//! One victim at a time, chosen by `policy`: of the clean blocks some are kept (hit, pinned, within
//! the smallest share of their volume), the rest is dropped from the map. What is kept, and what is
//! dirty, moves to the survivor stream. Moving a block takes its block lock, so that the copy,
//! which carries a newer sequence than anything written before, can never overtake a newer write
//! (I8). If there is no room to move dirty blocks, destage is asked to hurry instead; reclaim never
//! needs space to make progress. Dirty blocks of a volume that is destaged in order are never
//! moved: they would lose their place (I23). If nothing else helps, volumes that are not attached
//! give up their order (`ordered`).
//!
//! An empty segment is *freed*; it is written again only after a checkpoint that says so is in
//! effect (I7).

pub(crate) mod policy;
pub(crate) mod shares;

use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::locks::BlockRange;
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, Key, SegmentPhase};
use crate::map::{CacheMap, MASK_FULL};
use crate::reclaim::policy::{Block, Candidate, Choice, Keep, Keeping, Kept, View};
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId, summary};

/// Most relocations under way.
const RELOCATIONS_MAX: usize = 64;

/// Segments of the append window that fills leave alone.
pub(crate) const FILL_RESERVE: usize = 2;

/// The victim being emptied.
#[derive(Debug)]
pub(crate) struct Reclaim {
    segment: u32,
    next: u32,
    kept: Kept,
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

/// A segment as reclaim sees it, if it may be a victim.
fn candidate(map: &CacheMap, number: u32, round: u64) -> Option<Candidate> {
    let segment = map.segments.get(number as usize)?;
    // What is on its way out of a victim would look like something that cannot be moved, and be
    // evicted.
    let held = segment.leaving > 0 || segment.fixed > 0 || segment.unreclaimable;
    let offered = segment.phase == SegmentPhase::Sealed && segment.live > 0 && !held;
    offered.then_some(Candidate {
        segment: number,
        born: segment.born,
        unclean: segment.unclean,
        pinned: if segment.spared == round { map.geometry.segment_blocks } else { segment.pinned },
        live: segment.live,
        probation: segment.stream != StreamKind::Survivor,
    })
}

impl Context {
    fn is_on_probation(&self, slot: u32) -> bool {
        self.map.segments[self.map.place(slot).0 as usize].stream != StreamKind::Survivor
    }

    /// A clean block of the victim is on its way: why?
    fn count_survivor(&mut self, slot: u32, kept: &mut Kept) {
        kept.all += 1;
        if self.map.is_pinned(slot) {
            self.stats.survivor_pinned_blocks += 1;
        } else if self.map.is_hit(slot) {
            kept.hits += 1;
            self.stats.survivor_hit_blocks += 1;
        } else {
            self.stats.survivor_share_blocks += 1;
        }
    }

    /// Segments that hold nothing, usable now or after the next checkpoint.
    pub(crate) fn free_segments(&self) -> usize {
        self.free.window.len() + self.free.pool.len()
    }

    /// True if reclaim is behind: then marks and checkpoints should not dawdle.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.free_segments() < self.free.window_size as usize / 2
    }

    /// Takes a segment for a stream out of the append window. The last ones are kept for the
    /// survivors, so that reclaim can always go on, and fills go without before writes do.
    pub(crate) fn take_segment(&mut self, stream: StreamKind) -> Option<u32> {
        let reserve = match stream {
            StreamKind::Survivor => 0,
            StreamKind::Write => 1,
            StreamKind::Fill => FILL_RESERVE,
        };
        if self.mirror.is_some() {
            return self.take_half(stream, reserve);
        }
        if self.free.window.len() <= reserve {
            return None;
        }
        self.free.window.pop_front()
    }
}

impl Engine {
    /// Frees segments that have become empty.
    pub(crate) fn collect_emptied(&mut self) {
        while let Some(number) = self.cx.map.take_emptied() {
            if self.reclaim.as_ref().is_some_and(|reclaim| reclaim.segment == number) {
                self.reclaim = None;
            }
            self.cx.map.end_segment(number, SegmentPhase::Freed);
            if self.cx.mirror.is_some() {
                self.cx.half_freed(number);
                continue;
            }
            if fault::planted(PlantedBug::ReuseSegmentEarly) {
                self.cx.map.end_segment(number, SegmentPhase::Free);
                self.cx.free.window.push_front(number);
            } else if !self.cx.keep_retired(number) {
                self.cx.free.pool.push_back(number);
            }
        }
    }

    pub(crate) fn step_reclaim(&mut self) {
        self.cx.reclaim_wants_destage = false;
        if self.cx.is_winding_down() {
            return;
        }
        if self.cx.free_segments() >= self.cx.free.window_size as usize {
            self.memory.victims_since_enough = 0;
        }
        // Each pass either frees a segment, leaves moves under way, or finds that this victim has
        // to wait.
        let mut skipped = Vec::new();
        while self.cx.free_segments() < self.cx.free.window_size as usize {
            if self.reclaim.is_none() {
                if self.is_busy_relocating() {
                    return; // What is under way makes room; a victim chosen now would lose what deserves to stay.
                }
                let Some(choice) = self.choose_victim(&skipped) else {
                    self.cx.reclaim_wants_destage = true;
                    self.cx.cover(CoverageMark::ReclaimWantsDestage);
                    self.yield_kept_orders();
                    return;
                };
                let segment = choice.segment;
                if self.spares(segment) && !choice.forced && !self.is_moving_in_vain() {
                    continue;
                }
                self.memory.victims_since_enough += 1;
                if self.is_moving_in_vain() {
                    self.cx.cover(CoverageMark::ReclaimInVain);
                }
                let all = self.cx.map.segments[segment as usize].unclean;
                self.reclaim = Some(Reclaim { segment, next: 0, kept: Kept { choice, hits: 0, all } });
            }
            match self.empty_victim() {
                Emptying::Done => self.collect_emptied(),
                Emptying::Moving => return,
                Emptying::Stuck(segment) => skipped.push(segment),
            }
        }
    }

    /// So many victims were emptied without ever having enough free segments that what is kept of
    /// them must take all the room that they give. From here on nothing is kept and nothing dirty
    /// is moved, until there is enough: what is clean goes, and destage makes clean what is not, so
    /// reclaim ends whatever the policies want (I25).
    fn is_moving_in_vain(&self) -> bool {
        self.memory.victims_since_enough > 2 * self.cx.map.segments.len() as u64
    }

    /// What the choice of a victim depends on.
    fn view(&self) -> View {
        let blocks = self.cx.map.geometry.segment_blocks;
        // A segment full of dirty blocks gains nothing when it is moved; without room, nothing can
        // be moved at all.
        let most = blocks - summary::reserved_blocks(blocks);
        View {
            policy: self.cx.config.pool.reclaim_policy,
            segment_blocks: blocks,
            movable: if self.can_relocate() && !self.is_moving_in_vain() { most * 3 / 4 } else { 1 },
            newest: self.cx.log.next_sequence,
        }
    }

    fn choose_victim(&mut self, skipped: &[u32]) -> Option<Choice> {
        if let Some(choice) = self.cx.half_victim(skipped) {
            return Some(choice);
        }
        let view = self.view();
        let (map, round) = (&self.cx.map, self.memory.round);
        // Retired segments are emptied by `pool`.
        let count = self.cx.segments_staying();
        let offered = |number: &u32| *number < count && !skipped.contains(number);
        let look =
            |number: u32| Some(number).filter(offered).and_then(|number| candidate(map, number, round));
        let passes = fault::planted(PlantedBug::PassForEachVictim);
        let victims = &mut self.memory.victims;
        if !passes && let Some(choice) = victims.next(&view, look) {
            return Some(choice);
        }
        if victims.is_barren(map.relief, &view) {
            return None;
        }
        map.look_at(count.into());
        let relief = skipped.is_empty().then_some(map.relief);
        let choice = victims.pass(&view, relief, (0..count).filter_map(look), count, look);
        if victims.has_more() {
            self.cx.coverage.add(CoverageMark::VictimsListed);
        }
        choice
    }

    /// Spares a victim for the rest of the round if most of it would be kept for the smallest share
    /// of its volume: moving it would gain nothing.
    fn spares(&mut self, number: u32) -> bool {
        self.memory.taken += 1;
        if self.memory.taken as usize >= self.cx.map.segments.len() {
            self.memory.taken = 0;
            self.memory.round += 1;
        }
        // A bit for each volume; there are at most 64.
        let mut within = 0_u64;
        for volume in self.cx.volumes.iter().flatten() {
            within |= u64::from(self.cx.held(volume.id) <= self.cx.share(volume.id).minimum) << volume.id.0;
        }
        if within == 0 {
            return false;
        }
        let segment = &self.cx.map.segments[number as usize];
        let blocks = self.cx.map.geometry.segment_blocks;
        self.cx.map.look_at(blocks.into());
        let kept = (0..blocks).filter(|index| match segment.state(*index) {
            BlockState::Void => false,
            BlockState::Clean => {
                segment.is_pinned(*index) || within >> segment.key(*index).volume().0 & 1 == 1
            }
            BlockState::Dirty | BlockState::Destaged => true,
        });
        let spared = kept.count() as u32 >= blocks * 5 / 8;
        if spared {
            self.cx.map.segments[number as usize].spared = self.memory.round;
        }
        spared
    }

    /// Goes on with the victim.
    fn empty_victim(&mut self) -> Emptying {
        let Some(Reclaim { segment, mut next, mut kept }) = self.reclaim.take() else {
            return Emptying::Done;
        };
        while next < self.cx.map.geometry.segment_blocks {
            let slot = self.cx.map.slot(segment, next);
            self.cx.map.look_at(1);
            let moves = match self.cx.map.state(slot) {
                BlockState::Void => false,
                BlockState::Clean => {
                    let keep = self.keeps(slot, &kept);
                    if keep != Keep::No && self.is_busy_relocating() {
                        self.reclaim = Some(Reclaim { segment, next, kept });
                        return Emptying::Moving;
                    }
                    if keep != Keep::No && self.relocate(slot) {
                        self.cx.count_survivor(slot, &mut kept);
                        false
                    } else if keep == Keep::Must {
                        return self.wait_with_victim(Reclaim { segment, next, kept });
                    } else {
                        self.evict(slot);
                        false
                    }
                }
                BlockState::Dirty if self.cx.map.is_lost(slot) => {
                    self.cx.map.segments[segment as usize].unreclaimable = true;
                    return Emptying::Stuck(segment);
                }
                BlockState::Dirty | BlockState::Destaged => true,
            };
            if moves && !self.relocate(slot) {
                return self.wait_with_victim(Reclaim { segment, next, kept });
            }
            self.cx.stats.survivor_unclean_blocks += u64::from(moves);
            next += 1;
        }
        // Everything is dropped or on its way. It frees itself when the last move has ended.
        if self.cx.map.segments[segment as usize].live == 0 {
            Emptying::Done
        } else {
            Emptying::Stuck(segment)
        }
    }

    /// What becomes of a clean block of the victim.
    fn keeps(&self, slot: u32, kept: &Kept) -> Keep {
        let pinned = self.cx.map.is_pinned(slot);
        if fault::planted(PlantedBug::KeepWithoutBound) && pinned {
            return Keep::Must;
        }
        if self.is_moving_in_vain() {
            return Keep::No;
        }
        let volume = self.cx.map.key(slot).volume();
        let (share, held) = (self.cx.share(volume), self.cx.held(volume));
        let block = Block {
            hit: self.cx.map.is_hit(slot),
            pinned,
            probation: self.cx.is_on_probation(slot),
            priority: share.priority,
            within_minimum: held <= share.minimum,
            above_maximum: held > share.maximum,
        };
        let keeping = Keeping {
            policy: self.cx.config.pool.reclaim_policy,
            segment_blocks: self.cx.map.geometry.segment_blocks,
            survivors_max_pct: self.cx.config.pool.survivors_max_pct,
        };
        keeping.decide(&block, kept)
    }

    fn evict(&mut self, slot: u32) {
        let key = self.cx.map.key(slot);
        let probation = self.cx.is_on_probation(slot);
        self.cx.map.remove(key);
        self.cx.stats.evicted_blocks += 1;
        self.cx.counters.of(key.volume()).evicted_blocks += 1;
        self.note_evicted(key, probation);
    }

    /// A block of the victim cannot be moved now. If moves are under way, they will make it
    /// possible; if not, the block is being changed or there is no room: another victim may do.
    fn wait_with_victim(&mut self, victim: Reclaim) -> Emptying {
        self.cx.cover(CoverageMark::VictimWaits);
        if self.cx.log.moves == 0 {
            self.cx.reclaim_wants_destage = true;
            return Emptying::Stuck(victim.segment);
        }
        self.reclaim = Some(victim);
        Emptying::Moving
    }

    /// Nothing can be moved now, but it is only a matter of time: moves that are under way will
    /// end, or segments will join the window. Who evicted now would lose what deserves to stay.
    fn is_busy_relocating(&self) -> bool {
        let stream = &self.cx.log.streams[StreamKind::Survivor.index()];
        let drains = !self.cx.free.window.is_empty() || stream.room(self.cx.batch_blocks()) > 1;
        !self.cx.fenced
            && !self.can_relocate()
            && (self.cx.log.moves > 0 && drains || self.checkpoint.is_room_coming(&self.cx))
    }

    fn can_relocate(&self) -> bool {
        !self.cx.fenced
            && self.cx.log.moves < RELOCATIONS_MAX
            && self.cx.pages.available(PageUse::Survivor) > 0
            && self.has_room_to_relocate()
    }

    /// Room for one more survivor: the worst case is a header block for each.
    fn has_room_to_relocate(&self) -> bool {
        let stream = &self.cx.log.streams[StreamKind::Survivor.index()];
        let segments = self.cx.free.window.len() as u32;
        let room = stream.room(self.cx.batch_blocks()) + segments * self.cx.batch_blocks();
        let waiting = self.cx.log.moves + stream.queue.len();
        (waiting as u32 + 2) * 2 < room
    }

    /// Starts to move a block; false if that is not possible now.
    pub(crate) fn relocate(&mut self, slot: u32) -> bool {
        self.relocate_masked(slot, None)
    }

    /// As `relocate`; the copy has no sectors but those of `mask`.
    pub(crate) fn relocate_masked(&mut self, slot: u32, mask: Option<u8>) -> bool {
        let key = self.cx.map.key(slot);
        let range = BlockRange { first: key, last: key };
        if !self.can_relocate() || self.cx.map.is_fixed(slot) || !self.cx.has_room_for_single(slot) {
            return false;
        }
        if !fault::planted(PlantedBug::RelocateWithoutLock) && !self.cx.locks.try_acquire(range) {
            return false;
        }
        let page = self.cx.pages.take(PageUse::Survivor).expect("a page is available");
        let relocation = Relocation { key, from: slot, mask, page, tries: 1, recorded_dirty: false };
        let relocation = self.relocations.insert(relocation);
        self.cx.log.moves += 1;
        self.cx.map.leaves(slot, true);
        self.read_for_relocation(relocation);
        true
    }

    fn read_for_relocation(&mut self, number: u32) {
        let relocation = self.relocations.get(number);
        let (slot, page, tries) = (relocation.from, relocation.page, relocation.tries);
        self.cx.map.pin(slot);
        self.cx.log.survivor_reads += 1;
        let kind = OpKind::RelocateRead { relocation: number };
        self.cx.read_slots((slot, 1), tries, &[page.span()], kind);
    }

    pub(crate) fn relocation_read(&mut self, number: u32, ok: bool, crcs: &[u32]) {
        self.cx.log.survivor_reads -= 1;
        let relocation = self.relocations.get_mut(number);
        let (slot, key, page) = (relocation.from, relocation.key, relocation.page);
        relocation.tries += 1;
        let mask = relocation.mask.unwrap_or(MASK_FULL);
        let tries = relocation.tries;
        let right = ok && crcs.first() == Some(&self.cx.map.crc(slot));
        let current = self.cx.map.lookup(key) == Some(slot);
        self.cx.map.unpin(slot);
        if !current {
            self.cx.cover(CoverageMark::RelocationLost);
            self.end_relocation(number);
        } else if right {
            let dirty = self.cx.map.state(slot) == BlockState::Dirty
                && !fault::planted(PlantedBug::ForgetDirtySurvivor);
            self.relocations.get_mut(number).recorded_dirty = dirty;
            let item = Item {
                key,
                crc: self.cx.map.crc(slot),
                kind: ItemKind::Data { mask: self.cx.map.mask(slot) & mask, dirty },
                span: Some(page.span()),
                done: ItemOwner::Survivor(number),
            };
            self.cx.map.pin(slot);
            // A record that says something of dirty data, be it that it is clean now, belongs on
            // both members.
            let single = self.cx.mirror.is_some() && self.cx.map.state(slot) == BlockState::Clean;
            self.cx.enqueue(if single { StreamKind::Fill } else { StreamKind::Survivor }, item);
        } else if tries <= self.cx.slot_tries(slot) {
            self.read_for_relocation(number);
        } else {
            self.cx.give_up(slot);
            self.end_relocation(number);
        }
    }

    /// The cache is given up: nothing is reclaimed any more, and clean copies do not count.
    pub(crate) fn end_reclaim(&mut self) {
        self.reclaim = None;
        for index in 0..self.cx.map.volumes.len() {
            if self.cx.map.volumes[index].cached > 0 {
                self.forget_clean(self.cx.now, VolumeId(index as u16));
            }
        }
    }

    /// The copy was appended to `slot` (with the pin of the original still held), or not.
    pub(crate) fn relocated(&mut self, number: u32, slot: Option<u32>) {
        let relocation = self.relocations.get(number);
        let (from, key, recorded_dirty) = (relocation.from, relocation.key, relocation.recorded_dirty);
        let current =
            self.cx.map.lookup(key) == Some(from) || fault::planted(PlantedBug::RelocateWithoutLock);
        if let (Some(slot), true) = (slot, current) {
            // The block may have been destaged on the way. If its record says dirty, a mark must
            // follow.
            let state = self.cx.map.state(from);
            let state = match state {
                BlockState::Void => BlockState::Dirty,
                BlockState::Dirty if fault::planted(PlantedBug::ForgetDirtySurvivor) => BlockState::Clean,
                BlockState::Clean if recorded_dirty => BlockState::Destaged,
                state => state,
            };
            match state {
                BlockState::Dirty => self.cx.cover(CoverageMark::DirtySurvivor),
                BlockState::Destaged => self.cx.cover(CoverageMark::SurvivorDestaged),
                BlockState::Clean | BlockState::Void => {}
            }
            let (pinned, born) = (self.cx.map.is_pinned(from), self.cx.map.born(from));
            self.cx.map.insert_born(slot, state, born);
            if pinned {
                self.cx.map.set_pinned(slot);
            }
            self.cx.stats.relocated_blocks += 1;
            if state == BlockState::Destaged {
                self.cx.add_mark(slot);
            }
            // The record of a clean survivor is a clean mark as well, if that of the original says
            // dirty.
            self.cx.log.marks_ticket = self.cx.flushes.cache.ticket();
        } else {
            self.cx.cover(CoverageMark::RelocationLost);
        }
        self.cx.map.unpin(from);
        self.end_relocation(number);
    }

    fn end_relocation(&mut self, number: u32) {
        let relocation = self.relocations.remove(number);
        self.cx.log.moves -= 1;
        self.cx.map.leaves(relocation.from, false);
        self.cx.pages.give(PageUse::Survivor, relocation.page);
        if fault::planted(PlantedBug::RelocateWithoutLock) {
            return;
        }
        let range = BlockRange { first: relocation.key, last: relocation.key };
        self.cx.release_blocks(range);
    }
}
