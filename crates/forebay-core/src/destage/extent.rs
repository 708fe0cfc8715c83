//! Extents: destage writes each with one device write. An extent is a run of adjacent dirty blocks,
//! or several runs with the gaps between them.
//!
//! Scattered dirty blocks cost a disk a seek each. If the gaps are small, it is cheaper to write
//! them too, with the content that the backing store already has there. [`crate::destage::cost`]
//! estimates whether it is cheaper; `destage_gap_bytes` limits the width of a gap.
//!
//! **Destage writes a gap with its present content** (I40). It reads the content from the backing
//! store itself, under the backing lock of the whole extent, which it holds until the write has
//! ended: no other write to these blocks of the backing store runs meanwhile. Or, if all gaps of an
//! extent are cached, it reads them from clean whole blocks, which hold the same data, and verifies
//! their checksums. It never uses dirty blocks: they may be newer than the durable content of the
//! cache device (I11), or belong to a later flush epoch (I23). So
//!
//! - a client's write to a block of a gap through the log does not conflict: its data is in the
//!   cache and newer, and a later extent, which needs the same lock, writes it back. A bypass write
//!   waits for the lock;
//! - a crash during the write changes nothing in a gap: written sectors keep their content. (The
//!   engine requires that every device writes a sector wholly or not at all, see
//!   `forebay_sim::device`.) Data that was visible there but not durable stays so until the next
//!   flush;
//! - if an extent cannot be read or written, the gaps stay as they are, and its dirty blocks wait
//!   again.

use crate::context::Context;
use crate::context::locks::BlockRange;
use crate::context::pages::Page;
use crate::destage::cost::Cost;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// A filled extent must be cheaper than the separate runs by this fraction (one part in `GAIN`) of
/// its cost.
const GAIN: u64 = 8;
/// Of so many extents
const EXPLORE_EVERY: u64 = 128;
/// so many in a row are not filled: else the cost model would see no short operations, and miss
/// that a store became faster.
const EXPLORE: u64 = 8;

/// Maximum size of an extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) blocks: u32,
    /// Dirty ones among them.
    pub(crate) dirty: u32,
}

/// A block of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Dirty, in this slot.
    Dirty(u32),
    /// A gap whose content is also cached, in this slot; or a dirty block that destage reads from
    /// this slot and that has moved since.
    Cached(u32),
    /// A gap.
    Gap,
}

impl Part {
    /// The slot to read the block from.
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Self::Dirty(slot) | Self::Cached(slot) => Some(slot),
            Self::Gap => None,
        }
    }
}

/// Blocks that are written back together.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) volume: VolumeId,
    pub(crate) first: u64,
    /// All of it was discarded: destage zeroes it and deallocates its space on the backing store.
    pub(crate) is_discard: bool,
    /// Its blocks, until their device operations have ended.
    pub(crate) parts: Vec<Part>,
    /// Slots of its dirty blocks, by block; the new slots of blocks that were moved meanwhile.
    pub(crate) slots: Vec<u32>,
    pub(crate) pages: Vec<Page>,
    /// Blocks that were read from the cache and had the right checksum.
    pub(crate) compared: usize,
    pub(crate) pending: u32,
    pub(crate) failed: bool,
    /// Being written, or written and waiting for a flush.
    pub(crate) is_written: bool,
}

impl Extent {
    fn new(volume: VolumeId, first: u64, parts: Vec<Part>) -> Self {
        let slots = parts.iter().filter_map(|part| match part {
            Part::Dirty(slot) => Some(*slot),
            _ => None,
        });
        let slots = slots.collect();
        Self {
            volume,
            first,
            is_discard: false,
            parts,
            slots,
            pages: Vec::new(),
            compared: 0,
            pending: 1,
            failed: false,
            is_written: false,
        }
    }

    pub(crate) fn blocks(&self) -> BlockRange {
        let last = self.first + self.parts.len() as u64 - 1;
        BlockRange { first: Key::new(self.volume, self.first), last: Key::new(self.volume, last) }
    }

    /// Blocks that no other write to the backing store may touch.
    pub(crate) fn locked(&self, forgets_gaps: bool) -> BlockRange {
        let all = self.blocks();
        if forgets_gaps { BlockRange { last: all.first, ..all } } else { all }
    }

    /// Offsets in the extent of the first and the last block to read from the backing store.
    pub(crate) fn to_read(&self) -> Option<(usize, usize)> {
        let gap = |part: &Part| *part == Part::Gap;
        let first = self.parts.iter().position(gap)?;
        Some((first, self.parts.iter().rposition(gap).unwrap_or(first)))
    }
}

/// The blocks of a candidate extent, counted for both ways of writing them.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    runs: u64,
    dirty: u64,
    blocks: u64,
    /// First and last block to read, relative to the start of the extent.
    read: Option<(u64, u64)>,
}

impl Tally {
    fn apart(&self, cost: &Cost) -> u64 {
        cost.of(self.runs, self.dirty)
    }

    fn filled(&self, cost: &Cost) -> u64 {
        cost.of_extent(1, self.blocks, self.read.map_or(0, |(first, last)| last - first + 1))
    }
}

impl CacheMap {
    /// Returns where to read a block of a gap.
    fn gap(&self, id: VolumeId, block: u64) -> Part {
        let slot = self.lookup(Key::new(id, block)).filter(|slot| {
            let clean =
                self.state(*slot) == BlockState::Clean || fault::planted(PlantedBug::FillGapsFromDirty);
            clean && (self.mask(*slot) == MASK_FULL || fault::planted(PlantedBug::FillGapsFromPartial))
        });
        slot.map_or(Part::Gap, Part::Cached)
    }
}

impl Context {
    /// Plans the extent to write around `block`.
    pub(crate) fn plan_extent(&mut self, id: VolumeId, block: u64, slot: u32, most: Most) -> Extent {
        let (mut parts, mut first) = (alloc::vec![Part::Dirty(slot)], block);
        if self.map.mask(slot) != MASK_FULL {
            return Extent::new(id, first, parts);
        }
        let run_most = most.blocks.min(most.dirty);
        let is_discard = self.map.is_discarded(slot);
        while (parts.len() as u32) < run_most {
            let Some(next) = self.joins(id, block + parts.len() as u64, is_discard) else { break };
            parts.push(Part::Dirty(next));
        }
        self.stats.back_merged_blocks += parts.len() as u64 - 1;
        let mut before = Vec::new();
        while first > 0 && ((parts.len() + before.len()) as u32) < run_most {
            let Some(previous) = self.joins(id, first - 1, is_discard) else { break };
            before.push(Part::Dirty(previous));
            first -= 1;
        }
        self.stats.front_merged_blocks += before.len() as u64;
        if !before.is_empty() {
            before.reverse();
            before.append(&mut parts);
            parts = before;
        }
        if is_discard {
            return Extent { is_discard, ..Extent::new(id, first, parts) };
        }
        let run = parts.len();
        self.bridge_gaps(id, first, &mut parts, most);
        let extent = Extent::new(id, first, parts);
        if extent.parts.len() == run || self.backing_locks.is_idle(extent.blocks()) {
            return extent;
        }
        Extent::new(id, first, extent.parts[..run].to_vec())
    }

    /// Returns the slot of a block if it can join an extent of discards, or of data.
    fn joins(&self, id: VolumeId, block: u64, is_discard: bool) -> Option<u32> {
        let key = Key::new(id, block);
        if !self.map.volumes[usize::from(id.0)].waiting.contains(block)
            || !self.backing_locks.is_idle(BlockRange { first: key, last: key })
        {
            return None;
        }
        self.map
            .slot_to_destage(key)
            .filter(|slot| self.map.mask(*slot) == MASK_FULL && self.is_destageable(*slot))
            .filter(|slot| self.map.is_discarded(*slot) == is_discard)
    }

    /// Adds the runs behind the end of an extent, and the gaps before them, as long as that is
    /// cheaper.
    fn bridge_gaps(&self, id: VolumeId, first: u64, parts: &mut Vec<Part>, most: Most) {
        let volume = self.volume(id);
        let cost = &volume.destage.cost;
        let widest = volume.settings.destage_gap_bytes / crate::context::sectors::BLOCK;
        let explores = volume.destage.started % EXPLORE_EVERY < EXPLORE;
        if widest == 0
            || explores
            || self.failure.runs_without_cache()
            || volume.destage.fill_pause_until > self.now
        {
            return;
        }
        let widest = widest.min(cost.blocks_per_op());
        let waiting = &self.map.volumes[usize::from(id.0)].waiting;
        let run = parts.len() as u64;
        let mut tally = Tally { runs: 1, dirty: run, blocks: run, read: None };
        let mut best = (tally.apart(cost), run, parts.len());
        let mut from = first + run;
        while tally.dirty < u64::from(most.dirty) {
            let end = first + parts.len() as u64;
            let Some(next) = waiting.next_from(from) else { break };
            if next - end > widest || next - first >= u64::from(most.blocks) {
                break;
            }
            let Some(slot) = self.joins(id, next, false) else {
                from = next + 1; // Its block stays in a gap; destage writes it later.
                continue;
            };
            for block in end..next {
                parts.push(self.map.gap(id, block));
                if parts.last() == Some(&Part::Gap) {
                    let at = block - first;
                    tally.read = Some((tally.read.map_or(at, |(first, _)| first), at));
                }
            }
            parts.push(Part::Dirty(slot));
            from = next + 1;
            tally.runs += u64::from(next > end);
            tally.dirty += 1;
            tally.blocks = parts.len() as u64;
            let filled = tally.filled(cost);
            // The lowest cost per dirty block, if it is lower than that of separate runs.
            let pays = filled + filled / GAIN < tally.apart(cost);
            if pays && u128::from(filled) * u128::from(best.1) <= u128::from(best.0) * u128::from(tally.dirty)
            {
                best = (filled, tally.dirty, parts.len());
            }
        }
        parts.truncate(best.2);
        if parts.contains(&Part::Gap) {
            // One long read covers all gaps; the dirty blocks overwrite their part of it.
            let cached = parts.iter_mut().filter(|part| matches!(part, Part::Cached(_)));
            cached.for_each(|part| *part = Part::Gap);
        }
    }
}
