//! Slots of the cache device that hold dirty blocks, taken from the batches as they are written.
//!
//! A fault that damages a slot may hit the only copy of its block. From then on an I/O error for
//! that block is legal.

use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::{BLOCK_BYTES, Geometry};
use std::rc::Rc;

/// Slots that copies share as a unit.
const SLOTS_PER_CHUNK: usize = 64;

/// The block whose dirty copy is in a slot.
type Slot = Option<(usize, u64)>;

/// The blocks on the cache device that may be the only copy.
#[derive(Clone)]
pub struct DirtySlots {
    start: u64,
    slots: usize,
    /// `None`: no slot was written.
    chunks: Vec<Option<Rc<[Slot; SLOTS_PER_CHUNK]>>>,
}

impl DirtySlots {
    /// Creates an empty cache on a device that may grow to this length.
    #[must_use]
    pub fn new(geometry: &Geometry, device_bytes: u64) -> Self {
        let slots = (device_bytes / BLOCK_BYTES as u64 - geometry.segments_start_block) as usize;
        Self {
            start: geometry.segments_start_block * BLOCK_BYTES as u64,
            slots,
            chunks: vec![None; slots.div_ceil(SLOTS_PER_CHUNK)],
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
        let first = ((offset - self.start) / BLOCK_BYTES as u64) as usize;
        self.set(first, None);
        let data = entries.iter().filter(|entry| entry.has_payload());
        for (entry, slot) in data.zip(first + 1..self.slots) {
            let block = match entry {
                Entry::Data { volume, block, dirty: true, .. } => Some((usize::from(volume.0), *block)),
                _ => None,
            };
            self.set(slot, block);
        }
        Ok(())
    }

    /// Returns the blocks whose dirty copies were written in this range of the device.
    pub fn hit(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let block = BLOCK_BYTES as u64;
        let first = (offset.saturating_sub(self.start) / block) as usize;
        let end = ((offset + len).saturating_sub(self.start).div_ceil(block) as usize).min(self.slots);
        (first.min(end)..end).filter_map(|slot| self.get(slot))
    }
}
