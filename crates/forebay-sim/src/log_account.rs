//! An account of the log on the cache device, taken from the batches as they are written.
//!
//! It answers two questions about damage:
//!
//! - Which blocks have their dirty copy in this range ([`LogAccount::hit`])? A fault may hit the
//!   only copy: from then on an I/O error for such a block is legal.
//! - Which blocks may have other contents after a crash ([`LogAccount::behind_damage`])? Damage to
//!   a segment may end the log there, so they are the blocks that any batch named since the present
//!   use of the oldest damaged segment began. All other blocks are judged as if nothing were
//!   damaged.

use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::checkpoint::INTENT_REGION_BLOCKS;
use forebay_format::{BLOCK_BYTES, Geometry};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Slots that copies share as a unit.
const SLOTS_PER_CHUNK: usize = 64;

/// The block in a slot, and whether it was written as dirty.
type Slot = Option<(usize, u64, bool)>;

/// The present use of each segment, and the last batch that named each block.
#[derive(Clone)]
struct Uses {
    /// Number of the first batch of the segment's present use; `None`: never written.
    since: Vec<Option<u64>>,
    /// The segment was damaged in its present use.
    damaged: BTreeSet<usize>,
    /// Number of the last batch that named this block of a volume.
    named: BTreeMap<(usize, u64), u64>,
    /// Number of the last batch.
    batch: u64,
}

/// The blocks on the cache device, by slot, and the batches that named them.
#[derive(Clone)]
pub struct LogAccount {
    start: u64,
    slots: usize,
    slots_per_segment: usize,
    volume_blocks: Vec<u64>,
    /// `None`: no slot was written.
    chunks: Vec<Option<Rc<[Slot; SLOTS_PER_CHUNK]>>>,
    /// `None` in runs without damage.
    uses: Option<Rc<Uses>>,
}

impl LogAccount {
    /// Creates the account of an empty cache on a device that may grow to this length. Runs with
    /// damage need the largest sizes of the volumes, in blocks.
    #[must_use]
    pub fn new(geometry: &Geometry, device_bytes: u64, volume_blocks: Option<Vec<u64>>) -> Self {
        let slots = (device_bytes / BLOCK_BYTES as u64 - geometry.segments_start_block) as usize;
        let slots_per_segment = (geometry.segment_bytes() / BLOCK_BYTES as u64) as usize;
        let uses = volume_blocks.is_some().then(|| {
            Rc::new(Uses {
                since: vec![None; slots.div_ceil(slots_per_segment)],
                damaged: BTreeSet::new(),
                named: BTreeMap::new(),
                batch: 0,
            })
        });
        Self {
            start: geometry.segments_start_block * BLOCK_BYTES as u64,
            slots,
            slots_per_segment,
            volume_blocks: volume_blocks.unwrap_or_default(),
            chunks: vec![None; slots.div_ceil(SLOTS_PER_CHUNK)],
            uses,
        }
    }

    fn set(&mut self, slot: usize, block: Slot) {
        let chunk = &mut self.chunks[slot / SLOTS_PER_CHUNK];
        if chunk.is_some() || block.is_some() {
            let chunk = chunk.get_or_insert_with(|| Rc::new([None; SLOTS_PER_CHUNK]));
            Rc::make_mut(chunk)[slot % SLOTS_PER_CHUNK] = block;
        }
    }

    fn get(&self, slot: usize) -> Slot {
        self.chunks[slot / SLOTS_PER_CHUNK].as_ref()?[slot % SLOTS_PER_CHUNK]
    }

    /// Takes in a batch that is written at this offset of the device, in bytes.
    ///
    /// # Errors
    /// Reports a header that cannot be decoded.
    pub fn batch(&mut self, offset: u64, header: &[u8]) -> Result<(), String> {
        let mut entries = Vec::new();
        let decoded = BatchHeader::decode(header, &mut entries);
        decoded.map_err(|why| format!("the batch header written at byte {offset} is not valid: {why}"))?;
        self.take(((offset - self.start) / BLOCK_BYTES as u64) as usize, &entries);
        Ok(())
    }

    /// Takes in the entries of a batch whose header is in this slot.
    fn take(&mut self, first: usize, entries: &[Entry]) {
        self.note_named(first, entries);
        self.set(first, None);
        let data = entries.iter().filter(|entry| entry.has_payload());
        for (entry, slot) in data.zip(first + 1..self.slots) {
            let block = match entry {
                Entry::Data { volume, block, dirty, .. } => Some((usize::from(volume.0), *block, *dirty)),
                _ => None,
            };
            self.set(slot, block);
        }
    }

    /// Notes the blocks that a batch names, by themselves, by slot or by region.
    fn note_named(&mut self, first: usize, entries: &[Entry]) {
        let Some(mut uses) = self.uses.take() else { return };
        let noted = Rc::make_mut(&mut uses);
        noted.batch += 1;
        let (batch, segment) = (noted.batch, first / self.slots_per_segment);
        if first.is_multiple_of(self.slots_per_segment) {
            noted.since[segment] = Some(batch);
            noted.damaged.remove(&segment);
        }
        for entry in entries {
            match *entry {
                Entry::Data { volume, block, .. } => {
                    noted.named.insert((usize::from(volume.0), block), batch);
                }
                Entry::CleanMark { slot, count } | Entry::DropMark { slot, count } => {
                    let marked = slot.0 as usize..(slot.0 + count) as usize;
                    let blocks = marked.filter_map(|slot| self.get(slot));
                    noted.named.extend(blocks.map(|(volume, block, _)| ((volume, block), batch)));
                }
                Entry::Intent { volume, region, count } => {
                    let volume = usize::from(volume.0);
                    let end = (region + u64::from(count)) * INTENT_REGION_BLOCKS;
                    let end = end.min(self.volume_blocks.get(volume).copied().unwrap_or(0));
                    let blocks = region * INTENT_REGION_BLOCKS..end;
                    noted.named.extend(blocks.map(|block| ((volume, block), batch)));
                }
                Entry::Summary { .. } => {}
            }
        }
        self.uses = Some(uses);
    }

    fn slots_of(&self, offset: u64, len: u64) -> core::ops::Range<usize> {
        let block = BLOCK_BYTES as u64;
        let first = (offset.saturating_sub(self.start) / block) as usize;
        let end = ((offset + len).saturating_sub(self.start).div_ceil(block) as usize).min(self.slots);
        first.min(end)..end
    }

    /// Returns the blocks whose dirty copies were written in this range of the device.
    pub fn hit(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let slots = self.slots_of(offset, len).filter_map(|slot| self.get(slot));
        slots.filter(|(_, _, dirty)| *dirty).map(|(volume, block, _)| (volume, block))
    }

    /// Notes damage to this range of the device.
    pub fn note_damage(&mut self, offset: u64, len: u64) {
        let (slots, per_segment) = (self.slots_of(offset, len), self.slots_per_segment);
        let Some(uses) = &mut self.uses else { return };
        Rc::make_mut(uses).damaged.extend(slots.map(|slot| slot / per_segment));
    }

    /// Returns the blocks whose contents damage may change at a crash.
    #[must_use]
    pub fn behind_damage(&self) -> Vec<(usize, u64)> {
        let Some(uses) = &self.uses else { return Vec::new() };
        let oldest = uses.damaged.iter().filter_map(|segment| uses.since[*segment]).min();
        let Some(oldest) = oldest else { return Vec::new() };
        let named = uses.named.iter().filter(|(_, batch)| **batch >= oldest);
        named.map(|(block, _)| *block).collect()
    }
}

#[cfg(test)]
mod tests;
