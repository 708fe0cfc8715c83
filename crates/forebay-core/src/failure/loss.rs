//! Data that only the failed cache holds: at risk, safe, or lost; sector by sector (I52, I53, I55).

use crate::api::{Loss, LossTotal, Nanos};
use crate::context::Context;
use crate::context::failure::CacheFailure;
use crate::context::failure::{Gone, Safe};
use crate::context::locks::{BlockRange, whole_volume};
use crate::context::sectors::{BLOCK, sector_mask, sector_mask_inside, sector_runs};
use crate::context::volumes::Volumes;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// A walk over the data at risk, in pieces ([`Engine::walk_risk`](crate::Engine::walk_risk)).
#[derive(Clone, Debug, Default)]
pub struct RiskWalk {
    /// Segments before this one have been visited.
    next: u32,
    parts: Vec<(Key, u8, Nanos)>,
}

/// Result of a walk.
#[derive(Clone, Debug)]
pub struct AtRisk(Vec<(Key, u8, Nanos)>);

impl AtRisk {
    /// Ranges at risk, by address. Takes long if there are many; another thread may call it.
    #[must_use]
    pub fn losses(self) -> Vec<(VolumeId, Vec<Loss>)> {
        losses_of(self.0)
    }
}

impl CacheFailure {
    /// Notes data that was lost before this engine began.
    pub(crate) fn note_loss(&mut self, volume: VolumeId, loss: &Loss, now: Nanos) {
        let end = loss.offset + loss.bytes;
        let written_at = (now as i64).saturating_sub_unsigned(loss.age);
        for block in loss.offset / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = (loss.offset.max(block * BLOCK), end.min((block + 1) * BLOCK));
            let mask = sector_mask(from - block * BLOCK, to - block * BLOCK);
            self.add_gone(Key::new(volume, block), Gone { mask, written_at });
        }
    }

    fn gone_parts(&self, now: Nanos) -> Vec<(Key, u8, Nanos)> {
        let age = |gone: &Gone| (now as i64).saturating_sub(gone.written_at).max(0) as Nanos;
        self.gone().map(|(key, gone)| (*key, gone.mask, age(gone))).collect()
    }

    /// The part of [`Context::at_risk`] that became safe since the last record, by address:
    /// subtracted from that record it yields the one that is requested now. Safe data stays safe,
    /// so subtracting it twice changes nothing. `None`: there was too much to remember, and a
    /// complete record is needed.
    pub(crate) fn made_safe(&self) -> Option<Vec<(VolumeId, Vec<Loss>)>> {
        Some(losses_of(self.safe()?.map(|(key, mask)| (key, mask, 0)).collect()))
    }
}

impl Volumes {
    /// A dirty block of an attached volume was lost.
    pub(crate) fn note_lost(&mut self, volume: VolumeId) {
        if let Some(volume) = self.get_mut(volume) {
            volume.losses_found += 1;
        }
    }

    /// True if a volume has losses, and no FLUSH has failed since. An engine that is opened later
    /// does not know that (I54): if it serves the same clients, the owner must report the loss in
    /// another way.
    pub(crate) fn is_loss_unreported(&self, volume: VolumeId) -> bool {
        self.get(volume).is_some_and(|volume| volume.losses_found > volume.losses_reported)
    }
}

impl Context {
    /// Blocks of a volume that are lost at least in part.
    pub(crate) fn lost_blocks(&self, volume: VolumeId) -> u64 {
        let all = whole_volume(volume);
        let gone = self.failure.gone_in(all).count() as u64;
        self.map.volumes[usize::from(volume.0)].lost + gone
    }

    /// Masks off sectors beyond the end of the volume, which no request can cover.
    fn valid_mask(&self, key: Key, mask: u8) -> u8 {
        let attached = self.volumes.get(key.volume());
        let in_table = self.table_entry(key.volume()).map(|entry| entry.size_bytes);
        let size = attached.map(|volume| volume.size_bytes).or(in_table).unwrap_or(0);
        let left = size.saturating_sub(key.block() * BLOCK).min(BLOCK);
        if left == 0 { 0 } else { mask & sector_mask(0, left) }
    }

    /// The only copy of a block is unreadable.
    pub(crate) fn lose(&mut self, slot: u32) {
        let key = self.map.key(slot);
        let mask = self.valid_mask(key, self.map.mask(slot));
        let written_at = (self.now as i64).saturating_sub_unsigned(self.map.write_time(slot).age(self.now));
        let known = self.map.is_lost(slot);
        self.map.remove(key);
        if mask == 0 {
            return;
        }
        self.failure.set_gone(key, Gone { mask, written_at });
        if !known {
            self.volumes.note_lost(key.volume());
        }
        self.settle_again();
    }

    /// The backing store holds a block durably: drops the copy in the cache.
    pub(crate) fn rescued(&mut self, slot: u32) {
        let (key, mask) = (self.map.key(slot), self.map.mask(slot));
        self.map.remove(key);
        self.note_safer(key, mask);
    }

    /// Sectors of a block are no longer at risk: a record that lists them is out of date.
    pub(crate) fn note_safer(&mut self, key: Key, mask: u8) {
        let change = self.failure.next_change();
        self.volume_mut(key.volume()).safer_at = change;
        let mask = self.valid_mask(key, mask);
        self.failure.add_safe(key, Safe { mask, change });
        self.settle_again();
    }

    /// A bypass write of bytes `from` to `to` of the volume is durable on the backing store: voids
    /// the cached copies of these blocks. Entirely overwritten sectors are no longer lost. (I55)
    pub(crate) fn supersede(&mut self, range: BlockRange, from: u64, to: u64) {
        let volume = range.first.volume();
        let mut slots = Vec::new();
        self.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| slots.push(slot));
        if !fault::planted(PlantedBug::RescueSuperseded) {
            for slot in slots {
                // The rest of a partially written block was merged and written with it.
                self.rescued(slot);
            }
        }
        let lost: Vec<Key> = self.failure.gone_in(range).map(|(key, _)| *key).collect();
        for key in lost {
            let start = key.block() * BLOCK;
            let written = sector_mask_inside(from.max(start) - start, to.min(start + BLOCK) - start);
            let Some(healed) = self.failure.heal(key, written) else { continue };
            self.note_safer(key, healed);
        }
    }

    /// Data that only the cache has, or had, of each volume: dirty and lost blocks, by address. The
    /// record must list it. It never grows while the engine is fenced. Looks at all slots.
    pub(crate) fn at_risk(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        self.walk_risk(&mut RiskWalk::default(), u32::MAX).map_or_else(Vec::new, AtRisk::losses)
    }

    /// Continues a walk over the data at risk by at most `segments_max` segments; returns the data
    /// once all have been visited. Blocks that become safe meanwhile may be listed nevertheless
    /// ([`CacheFailure::made_safe`] has them); blocks that become lost are always listed.
    pub(crate) fn walk_risk(&self, walk: &mut RiskWalk, segments_max: u32) -> Option<AtRisk> {
        let all = self.map.segments.len() as u32;
        let end = walk.next.saturating_add(segments_max).min(all);
        let parts = &mut walk.parts;
        for number in walk.next..end {
            let segment = &self.map.segments[number as usize];
            if segment.unclean == 0 {
                continue;
            }
            self.map.look_at(self.map.geometry.segment_blocks.into());
            for index in 0..self.map.geometry.segment_blocks {
                if segment.state(index) == BlockState::Dirty && !segment.is_shadow(index) {
                    let slot = self.map.slot(number, index);
                    let mask = self.valid_mask(segment.key(index), self.map.mask(slot));
                    parts.push((segment.key(index), mask, self.map.write_time(slot).age(self.now)));
                }
            }
        }
        walk.next = end;
        if end < all {
            return None;
        }
        // At the end: blocks that were dirty when the walk began and were lost before it reached
        // their segment.
        parts.extend(self.failure.gone_parts(self.now));
        Some(AtRisk(core::mem::take(parts)))
    }

    /// Lost ranges of each volume, by address: reads of them fail until they are overwritten. Lost
    /// with a failed cache device, or because the only copy of a dirty block was damaged.
    pub(crate) fn losses(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        let mut parts = self.failure.gone_parts(self.now);
        let damaged = self.map.lost.iter().filter_map(|key| self.map.lookup(*key).map(|slot| (*key, slot)));
        parts.extend(damaged.map(|(key, slot)| {
            (key, self.valid_mask(key, self.map.mask(slot)), self.map.write_time(slot).age(self.now))
        }));
        losses_of(parts)
    }

    /// Lost bytes and ranges of each volume that has any.
    pub(crate) fn loss_totals(&self) -> Vec<LossTotal> {
        let bytes = |losses: &[Loss]| losses.iter().map(|loss| loss.bytes).sum();
        let total = |(volume, losses): (VolumeId, Vec<Loss>)| LossTotal {
            volume,
            bytes: bytes(&losses),
            ranges: losses.len() as u64,
        };
        self.losses().into_iter().map(total).collect()
    }

    /// True if nothing is lost, of any volume.
    pub(crate) fn has_lost_nothing(&self) -> bool {
        self.map.lost.is_empty() && self.failure.lost_blocks() == 0
    }

    /// Lost bytes of a volume.
    pub(crate) fn lost_bytes(&self, volume: VolumeId) -> u64 {
        let all = whole_volume(volume);
        let gone = self.failure.gone_in(all);
        let gone: u64 = gone.map(|(_, gone)| u64::from(gone.mask.count_ones()) * 512).sum();
        let damaged = self.map.lost.range(all.first..=all.last).filter_map(|key| self.map.lookup(*key));
        let damaged: u64 = damaged
            .map(|slot| {
                u64::from(self.valid_mask(self.map.key(slot), self.map.mask(slot)).count_ones()) * 512
            })
            .sum();
        gone + damaged
    }
}

/// Merges sectors of blocks to ranges.
fn losses_of(mut parts: Vec<(Key, u8, Nanos)>) -> Vec<(VolumeId, Vec<Loss>)> {
    parts.sort_unstable_by_key(|(key, ..)| *key);
    // A block that was dirty when the walk passed, and was lost before the walk ended.
    parts.dedup_by(|again, first| {
        let same = again.0 == first.0;
        if same {
            (first.1, first.2) = (first.1 | again.1, first.2.max(again.2));
        }
        same
    });
    let mut all: Vec<(VolumeId, Vec<Loss>)> = Vec::new();
    for (key, mask, age) in parts {
        for (from, to) in sector_runs(mask) {
            if all.last().is_none_or(|(volume, _)| *volume != key.volume()) {
                all.push((key.volume(), Vec::new()));
            }
            let Some((_, losses)) = all.last_mut() else { continue };
            let (offset, bytes) = (key.block() * BLOCK + u64::from(from), u64::from(to - from));
            match losses.last_mut() {
                Some(last) if last.offset + last.bytes == offset => {
                    last.bytes += bytes;
                    last.age = last.age.max(age);
                }
                _ => losses.push(Loss { offset, bytes, age }),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_sectors_merge_with_older_age() {
        let key = |block| Key::new(VolumeId(1), block);
        let parts = alloc::vec![(key(4), 0b0000_0011, 7), (key(3), 0b1000_0001, 9)];
        let losses = losses_of(parts);
        let range = |offset, bytes, age| Loss { offset, bytes, age };
        let expected = alloc::vec![range(3 * 4096, 512, 9), range(3 * 4096 + 3584, 512 + 1024, 9)];
        assert_eq!(losses, [(VolumeId(1), expected)]);
    }

    #[test]
    fn block_lost_during_a_walk_is_listed_once() {
        let key = Key::new(VolumeId(1), 5);
        let losses = losses_of(alloc::vec![(key, 0b0000_1111, 7), (key, 0b0000_0110, 9)]);
        assert_eq!(losses, [(VolumeId(1), alloc::vec![Loss { offset: 5 * 4096, bytes: 2048, age: 9 }])]);
    }
}
