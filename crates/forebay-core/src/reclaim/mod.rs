//! Reclaim: emptying segments so that they can be rewritten.
//!
//! One victim at a time, chosen by `victims`. While there is room (`compaction`), all live blocks
//! are kept. Otherwise some of the clean blocks are kept (hit, pinned, within the minimum share of
//! their volume), and the rest are evicted. Kept and dirty blocks are relocated to the survivor
//! stream. Relocation holds the lock of the block, so the copy, which carries a newer sequence than
//! anything written before, can never overtake a newer write (I8). If there is no room to relocate
//! dirty blocks, reclaim asks destage to hurry; reclaim never needs space to make progress. Dirty
//! blocks of an ordered volume are never relocated: they would lose their place in the order (I23).
//! As a last resort, volumes that are not attached give up their order (`ordered`). A lost block is
//! never relocated either, and holds its segment until it is overwritten. If such blocks hold all
//! segments, the cache has failed (`failure::damage`).
//!
//! An empty segment is *freed*; it is rewritten only after a checkpoint that lists it as free is in
//! effect (I7).

pub(crate) mod compaction;
pub(crate) mod relocate;
pub(crate) mod shares;
pub(crate) mod victims;

use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::free::FreeSegments;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, SegmentPhase};
use crate::reclaim::compaction::{Compacting, Compaction};
use crate::reclaim::relocate::Relocations;
use crate::reclaim::victims::{Block, Candidate, Choice, Keep, Keeping, Kept, Victims, View};
use alloc::vec::Vec;
use forebay_format::StreamKind;

/// Segments of the append window that fills do not take.
pub(crate) const FILL_RESERVE: usize = 2;

/// Victims that make room for a segment of writes or fills: each gains at least an eighth, of which
/// headers take some.
const VICTIMS_FOR_A_SEGMENT: u64 = 16;

/// The victim being emptied.
#[derive(Debug)]
struct Victim {
    segment: u32,
    next: u32,
    kept: Kept,
}

/// Reclaim: a part of the engine. Its state is lost with the process.
#[derive(Debug)]
pub(crate) struct Reclaim {
    victim: Option<Victim>,
    victims: Victims,
    compaction: Compaction,
    /// Rounds of reclaim, from 1: one ends when as many victims were taken as there are segments.
    round: u64,
    taken: u32,
    /// Victims taken since there were enough free segments, minus those that made room for writes
    /// and fills.
    victims_in_vain: u64,
    /// Segments that writes and fills had taken when they were last counted.
    begun_for_clients: u64,
    /// Blocks that may still be evicted in this call.
    evictions_left: u32,
}

/// Blocks that one call may evict: each takes up to four microseconds if it misses the processor's
/// caches. The limit is small enough in a small cache that a victim takes several calls there, too.
fn evictions_in_a_call(slot_count: u32) -> u32 {
    (slot_count / 64).clamp(8, 256)
}

/// Progress of emptying the victim.
enum Emptying {
    /// Empty.
    Done,
    /// It continues later: relocations are in flight, or this call has evicted enough.
    Moving,
    /// Nothing more can be done for this segment now.
    Stuck(u32),
}

/// A segment as seen by reclaim, if it may be a victim.
fn candidate(map: &CacheMap, number: u32, round: u64) -> Option<Candidate> {
    let segment = map.segments.get(number as usize)?;
    // Blocks in relocation would look like blocks that cannot be relocated, and be evicted.
    let held = segment.leaving > 0 || segment.fixed > 0 || segment.lost > 0;
    let offered = segment.phase == SegmentPhase::Sealed && segment.live > 0 && !held;
    offered.then_some(Candidate {
        segment: number,
        first_sequence: segment.first_sequence,
        unclean: segment.unclean,
        pinned: if segment.spared == round { map.geometry.segment_blocks } else { segment.pinned },
        live: segment.live,
        probation: segment.stream != StreamKind::Survivor,
    })
}

impl CacheMap {
    fn is_on_probation(&self, slot: u32) -> bool {
        self.segments[self.place(slot).0 as usize].stream != StreamKind::Survivor
    }
}

impl FreeSegments {
    /// Empty segments, usable now or after the next checkpoint.
    pub(crate) fn free_segments(&self) -> usize {
        self.window.len() + self.pool.len()
    }

    /// True if reclaim is behind: then marks and checkpoints must not be delayed.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.free_segments() < self.window_size as usize / 2
    }
}

impl Context {
    /// A clean block of the victim is being relocated: counts it by reason.
    fn count_survivor(&mut self, slot: u32, kept: &mut Kept) {
        kept.all += 1;
        if kept.choice.compacts {
            self.stats.survivor_compacted_blocks += 1;
        } else if self.map.is_pinned(slot) {
            self.stats.survivor_pinned_blocks += 1;
        } else if self.map.is_hit(slot) {
            kept.hits += 1;
            self.stats.survivor_hit_blocks += 1;
        } else {
            self.stats.survivor_share_blocks += 1;
        }
    }

    /// Takes a segment from the append window for a stream. The last ones are reserved for
    /// survivors, so that reclaim can always continue, and fills run out before writes do.
    pub(crate) fn take_segment(&mut self, stream: StreamKind) -> Option<u32> {
        let reserve = match stream {
            StreamKind::Survivor => 0,
            StreamKind::Write => 1,
            StreamKind::Fill => FILL_RESERVE,
        };
        if self.members.is_mirrored() {
            return self.take_half(stream, reserve);
        }
        if self.free.window.len() <= reserve {
            return None;
        }
        self.free.take()
    }

    /// Takes a victim from the lists, or from a pass over all segments.
    fn choose_from(
        &mut self,
        victims: &mut Victims,
        (view, round): (&View, u64),
        skipped: &[u32],
    ) -> Option<Choice> {
        let map = &self.map;
        // Retired segments are emptied by `pool`.
        let count = self.segments_staying();
        let offered = |number: &u32| *number < count && !skipped.contains(number);
        let look =
            |number: u32| Some(number).filter(offered).and_then(|number| candidate(map, number, round));
        let passes = fault::planted(PlantedBug::PassForEachVictim);
        if !passes && let Some(choice) = victims.next(view, look) {
            return Some(choice);
        }
        if victims.is_barren(map.relief, view) {
            return None;
        }
        map.look_at(count.into());
        let relief = skipped.is_empty().then_some(map.relief);
        let choice = victims.pass(view, relief, (0..count).filter_map(look), count, look);
        if victims.has_more() {
            self.coverage.add(CoverageMark::VictimsListed);
        }
        choice
    }

    fn evict(&mut self, slot: u32) {
        let key = self.map.key(slot);
        let is_survivor = !self.map.is_on_probation(slot);
        self.map.remove(key);
        self.stats.evicted_blocks += 1;
        self.counters.of(key.volume()).evicted_blocks += 1;
        let (policy, capacity) = (self.config.pool.reclaim_policy, self.space());
        policy.evicted(&mut self.ghosts, key, policy.queue(is_survivor), capacity);
    }
}

impl Reclaim {
    pub(crate) fn new() -> Self {
        Self {
            victim: None,
            victims: Victims::default(),
            compaction: Compaction::default(),
            round: 1,
            taken: 0,
            victims_in_vain: 0,
            begun_for_clients: 0,
            evictions_left: 0,
        }
    }

    /// Ends reclaim.
    pub(crate) fn end(&mut self) {
        self.victim = None;
    }

    /// The pool no longer has segments from `count` on.
    pub(crate) fn forget_segments(&mut self, count: u32) {
        self.victim.take_if(|victim| victim.segment >= count);
    }

    /// Frees segments that have become empty.
    #[inline]
    pub(crate) fn collect_emptied(&mut self, cx: &mut Context) {
        while let Some(number) = cx.map.take_emptied() {
            self.free(cx, number);
        }
    }

    fn free(&mut self, cx: &mut Context, number: u32) {
        if self.victim.as_ref().is_some_and(|victim| victim.segment == number) {
            self.victim = None;
        }
        cx.segment_is_freed(number);
        if cx.members.is_mirrored() {
            cx.half_freed(number);
            return;
        }
        if fault::planted(PlantedBug::ReuseSegmentEarly) {
            cx.map.end_segment(number, SegmentPhase::Free);
            cx.free.window.push_front(number);
        } else if !cx.free.keep_retired(number) {
            cx.free.add(number);
        }
    }

    pub(crate) fn step(&mut self, cx: &mut Context, relocations: &mut Relocations, checkpoint: &Checkpoints) {
        cx.reclaim_wants_destage = false;
        cx.free.more_comes = false;
        if cx.is_winding_down() {
            return;
        }
        let begun = cx.map.begun_for_clients - self.begun_for_clients;
        self.begun_for_clients = cx.map.begun_for_clients;
        self.victims_in_vain = self.victims_in_vain.saturating_sub(begun * VICTIMS_FOR_A_SEGMENT);
        if cx.free.free_segments() >= cx.free.window_size as usize {
            self.victims_in_vain = 0;
            return;
        }
        self.evictions_left = evictions_in_a_call(cx.map.geometry.slot_count());
        // Each pass frees a segment, leaves relocations in flight, or finds that this victim has to
        // wait.
        let mut skipped = Vec::new();
        while cx.free.free_segments() < cx.free.window_size as usize {
            if self.victim.is_none() {
                if Self::is_busy_relocating(cx, checkpoint) {
                    return; // Relocations in flight make room; a victim chosen now would lose blocks worth keeping.
                }
                let half = cx.half_victim(&skipped);
                let compacting = match half {
                    None => self.choose_to_compact(cx, &skipped),
                    Some(_) => Compacting::No,
                };
                let choice = match compacting {
                    Compacting::Take(choice) => Some(choice),
                    Compacting::Wait => {
                        self.victims_in_vain = 0; // Enough for now.
                        cx.reclaim_wants_destage = false;
                        return;
                    }
                    Compacting::No => half.or_else(|| self.choose_victim(cx, &skipped)),
                };
                let Some(choice) = choice else {
                    cx.reclaim_wants_destage = true;
                    cx.coverage.add(CoverageMark::ReclaimWantsDestage);
                    cx.yield_kept_orders(checkpoint.is_idle());
                    return;
                };
                let segment = choice.segment;
                let spared = !choice.compacts && self.spares(cx, segment);
                if spared && !choice.forced && !self.is_moving_in_vain(cx) {
                    continue;
                }
                self.victims_in_vain += 1;
                if self.is_moving_in_vain(cx) {
                    cx.coverage.add(CoverageMark::ReclaimInVain);
                }
                let all = cx.map.segments[segment as usize].unclean;
                self.victim = Some(Victim { segment, next: 0, kept: Kept { choice, hits: 0, all } });
            }
            match self.empty_victim(cx, relocations, checkpoint) {
                Emptying::Done => self.collect_emptied(cx),
                Emptying::Moving => return,
                Emptying::Stuck(segment) => skipped.push(segment),
            }
        }
    }

    /// True if so many victims were emptied, without enough free segments and with little room for
    /// writes and fills, that their kept blocks must take all the room that they gain. Until there
    /// is enough, nothing is kept and no dirty block is relocated: clean blocks are evicted and
    /// destage cleans the others, so reclaim ends under any policy (I25).
    fn is_moving_in_vain(&self, cx: &Context) -> bool {
        self.victims_in_vain > 2 * cx.map.segments.len() as u64
    }

    /// Inputs of the choice of a victim.
    fn view(&self, cx: &Context) -> View {
        let blocks = cx.map.geometry.segment_blocks;
        // A segment full of dirty blocks gains nothing when it is relocated; without room, nothing
        // can be relocated at all.
        let most = cx.batch_blocks();
        // If the endurance budget is spent, destage cleans the blocks, as long as writers have
        // room.
        let waits = cx.spares_flash() && !cx.free.is_short_of_segments();
        View {
            policy: cx.config.pool.reclaim_policy,
            segment_blocks: blocks,
            movable: if cx.can_relocate() && !self.is_moving_in_vain(cx) && !waits {
                most * 3 / 4
            } else {
                1
            },
            newest: cx.log.next_sequence,
            probation_share: cx.ghosts.probation_share(),
            densest: None,
        }
    }

    fn choose_to_compact(&mut self, cx: &mut Context, skipped: &[u32]) -> Compacting {
        if self.is_moving_in_vain(cx) && !fault::planted(PlantedBug::CompactWithoutBound) {
            return Compacting::No;
        }
        let view = self.view(cx);
        self.compaction.choose(cx, (&view, self.round), skipped)
    }

    fn choose_victim(&mut self, cx: &mut Context, skipped: &[u32]) -> Option<Choice> {
        let view = self.view(cx);
        cx.choose_from(&mut self.victims, (&view, self.round), skipped)
    }

    /// Spares a victim for the rest of the round if most of it would be kept for the minimum share
    /// of its volume: relocation would gain nothing.
    fn spares(&mut self, cx: &mut Context, number: u32) -> bool {
        self.taken += 1;
        if self.taken as usize >= cx.map.segments.len() {
            self.taken = 0;
            self.round += 1;
        }
        // A bit for each volume; there are at most 64.
        let mut within = 0_u64;
        for volume in cx.volumes.iter() {
            within |= u64::from(cx.held(volume.id) <= cx.share(volume.id).minimum) << volume.id.0;
        }
        if within == 0 {
            return false;
        }
        let segment = &cx.map.segments[number as usize];
        let blocks = cx.map.geometry.segment_blocks;
        cx.map.look_at(blocks.into());
        let kept = (0..blocks).filter(|index| match segment.state(*index) {
            BlockState::Void => false,
            BlockState::Clean => {
                segment.is_pinned(*index) || within >> segment.key(*index).volume().0 & 1 == 1
            }
            BlockState::Dirty | BlockState::Destaged => true,
        });
        let spared = kept.count() as u32 >= blocks * 5 / 8;
        if spared {
            cx.map.segments[number as usize].spared = self.round;
        }
        spared
    }

    /// Continues to empty the victim.
    fn empty_victim(
        &mut self,
        cx: &mut Context,
        relocations: &mut Relocations,
        checkpoint: &Checkpoints,
    ) -> Emptying {
        let Some(Victim { segment, mut next, mut kept }) = self.victim.take() else {
            return Emptying::Done;
        };
        while next < cx.map.geometry.segment_blocks {
            let slot = cx.map.slot(segment, next);
            cx.map.look_at(1);
            let moves = match cx.map.state(slot) {
                BlockState::Void => false,
                BlockState::Clean => {
                    let keep = self.keeps_in_budget(cx, slot, &kept);
                    if keep != Keep::No && Self::is_busy_relocating(cx, checkpoint) {
                        self.victim = Some(Victim { segment, next, kept });
                        return Emptying::Moving;
                    }
                    if keep != Keep::No && relocations.keep(cx, slot) {
                        cx.count_survivor(slot, &mut kept);
                        false
                    } else if keep == Keep::Must {
                        return self.wait_with_victim(cx, Victim { segment, next, kept });
                    } else if self.evictions_left == 0 {
                        cx.coverage.add(CoverageMark::EvictionPauses);
                        cx.wake_in(1);
                        cx.free.more_comes = true;
                        self.victim = Some(Victim { segment, next, kept });
                        return Emptying::Moving;
                    } else {
                        self.evictions_left -= 1;
                        cx.evict(slot);
                        false
                    }
                }
                BlockState::Dirty if cx.map.is_lost(slot) => return Emptying::Stuck(segment),
                BlockState::Dirty | BlockState::Destaged => true,
            };
            if moves && !relocations.relocate(cx, slot) {
                return self.wait_with_victim(cx, Victim { segment, next, kept });
            }
            cx.stats.survivor_unclean_blocks += u64::from(moves);
            next += 1;
        }
        // Everything is dropped or in relocation. The segment is freed when the last relocation has
        // ended.
        if cx.map.segments[segment as usize].live == 0 { Emptying::Done } else { Emptying::Stuck(segment) }
    }

    /// Fate of a clean block of the victim: as [`Self::keeps`], unless the endurance budget is
    /// spent.
    fn keeps_in_budget(&self, cx: &mut Context, slot: u32, kept: &Kept) -> Keep {
        let keep = self.keeps(cx, slot, kept);
        if keep == Keep::No || !cx.spares_flash() {
            return keep;
        }
        cx.coverage.add(CoverageMark::UnkeptForEndurance);
        cx.stats.endurance_unkept_blocks += 1;
        cx.leave_out(cx.map.key(slot));
        Keep::No
    }

    /// Fate of a clean block of the victim.
    fn keeps(&self, cx: &Context, slot: u32, kept: &Kept) -> Keep {
        let pinned = cx.map.is_pinned(slot);
        if fault::planted(PlantedBug::KeepWithoutBound) && pinned {
            return Keep::Must;
        }
        if self.is_moving_in_vain(cx) {
            return Keep::No;
        }
        let volume = cx.map.key(slot).volume();
        let (share, held) = (cx.share(volume), cx.held(volume));
        let block = Block {
            hit: cx.map.is_hit(slot),
            pinned,
            probation: cx.map.is_on_probation(slot),
            priority: share.priority,
            within_minimum: held <= share.minimum,
            above_maximum: held > share.maximum,
        };
        let keeping = Keeping {
            policy: cx.config.pool.reclaim_policy,
            segment_blocks: cx.map.geometry.segment_blocks,
            survivors_max_pct: cx.survivors_max_pct(),
        };
        keeping.decide(&block, kept)
    }

    /// A block of the victim cannot be relocated now. Relocations in flight, or a flush of the
    /// cache device, will make it possible. If there are none, the block is being changed or there
    /// is no room: another victim may do.
    fn wait_with_victim(&mut self, cx: &mut Context, victim: Victim) -> Emptying {
        cx.coverage.add(CoverageMark::VictimWaits);
        let slot = cx.map.slot(victim.segment, victim.next);
        let flush_comes = cx.can_relocate() && !cx.map.is_fixed(slot) && cx.moves_too_early(slot);
        if cx.log.moves == 0 && !flush_comes {
            cx.reclaim_wants_destage = true;
            return Emptying::Stuck(victim.segment);
        }
        self.victim = Some(victim);
        Emptying::Moving
    }

    /// True if nothing can be relocated now, but relocations in flight will end or segments will
    /// join the window. Eviction now would lose blocks worth keeping.
    pub(crate) fn is_busy_relocating(cx: &Context, checkpoint: &Checkpoints) -> bool {
        if cx.failure.is_fenced() || cx.can_relocate() {
            return false;
        }
        let stream = &cx.log.streams[StreamKind::Survivor.index()];
        let drains = !cx.free.window.is_empty() || stream.room(cx.batch_blocks()) > 1;
        cx.log.moves > 0 && drains || checkpoint.is_room_coming(cx)
    }
}
