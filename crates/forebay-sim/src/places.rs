//! What lies where on the cache device, learned from the batches as they are written.
//!
//! When a fault damages a range of the cache device, the simulator must know of which blocks it may have hit the only
//! copy: there an I/O error is legal from then on.

use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::{BLOCK_BYTES, Geometry};

/// The blocks on the cache device that may be the only copy of something.
#[derive(Clone)]
pub struct Places {
    start: u64,
    slots: Vec<Option<(usize, u64)>>,
}

impl Places {
    /// An empty cache on a device that may grow to this length.
    #[must_use]
    pub fn new(geometry: &Geometry, device_bytes: u64) -> Self {
        Self {
            start: geometry.segments_start_block * BLOCK_BYTES as u64,
            slots: vec![None; (device_bytes / BLOCK_BYTES as u64 - geometry.segments_start_block) as usize],
        }
    }

    /// A batch is being written at this byte of the device.
    ///
    /// # Errors
    /// The header cannot be decoded.
    pub fn batch(&mut self, offset: u64, header: &[u8]) -> Result<(), String> {
        let mut entries = Vec::new();
        let decoded = BatchHeader::decode(header, &mut entries);
        decoded.map_err(|why| format!("the batch header written at byte {offset} is not valid: {why}"))?;
        let first = ((offset - self.start) / BLOCK_BYTES as u64) as usize;
        self.slots[first] = None;
        let data = entries.iter().filter(|entry| entry.has_payload());
        for (entry, slot) in data.zip(self.slots[first + 1..].iter_mut()) {
            *slot = match entry {
                Entry::Data { volume, block, dirty: true, .. } => Some((usize::from(volume.0), *block)),
                _ => None,
            };
        }
        Ok(())
    }

    /// Blocks whose dirty copies were written in this range of the device.
    pub fn hit(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let block = BLOCK_BYTES as u64;
        let first = (offset.saturating_sub(self.start) / block) as usize;
        let end = ((offset + len).saturating_sub(self.start).div_ceil(block) as usize).min(self.slots.len());
        self.slots[first.min(end)..end].iter().flatten().copied()
    }
}
