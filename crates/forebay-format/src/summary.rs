//! Segment summaries: the contents of each slot of a sealed segment, so that a restart need not
//! read its batches again.
//!
//! A summary is the last batch of a segment (kind `Summary`). Its payload has one 16-byte item per
//! slot from the start of the segment up to the summary's own header: an `u64` with the volume
//! block in bits 0..40, the sector mask in bits 40..48, the volume in bits 48..56 and flags in bits
//! 56..64 (bit 56: the slot holds data), then the CRC32C of the block, then the flush epoch of its
//! entry. A summary is an optimisation: if it cannot be read, the batch headers of the segment have
//! the same facts.

use crate::units::{BLOCK_BYTES, VOLUME_BLOCKS_MAX, VOLUMES_MAX, VolumeId};

/// Bytes of one item.
pub const ITEM_BYTES: usize = 16;
const ITEMS_PER_BLOCK: u32 = (BLOCK_BYTES / ITEM_BYTES) as u32;
const FLAG_DATA: u64 = 1 << 56;

const _: () = assert!(VOLUMES_MAX <= 1 << 8, "a volume number fits its bits");

const _: () = assert!(BLOCK_BYTES.is_multiple_of(ITEM_BYTES), "items fill a block");

/// Contents of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryItem {
    /// Volume that the block belongs to.
    pub volume: VolumeId,
    /// Block of the volume.
    pub block: u64,
    /// Valid sectors.
    pub sector_mask: u8,
    /// Checksum of the slot's 4096 bytes.
    pub crc32c: u32,
    /// As in [`crate::batch::Entry::Data`]; meaningful only while the slot is dirty.
    pub flush_epoch: u32,
}

impl SummaryItem {
    fn is_possible(&self) -> bool {
        u32::from(self.volume.0) < VOLUMES_MAX && self.sector_mask != 0
    }
}

/// Payload blocks of a summary of `slots` slots.
#[must_use]
pub const fn payload_blocks(slots: u32) -> u32 {
    slots.div_ceil(ITEMS_PER_BLOCK)
}

/// Blocks reserved at the end of a segment for its summary, header included.
#[must_use]
pub const fn reserved_blocks(segment_blocks: u32) -> u32 {
    1 + payload_blocks(segment_blocks)
}

/// Encodes one item per slot (`None` for slots without data) into whole blocks.
///
/// # Panics
/// If an item has a volume or block number out of bounds or no sectors: a bug of the caller.
#[must_use]
pub fn encode(items: impl ExactSizeIterator<Item = Option<SummaryItem>>) -> Vec<u8> {
    let blocks = payload_blocks(items.len() as u32) as usize;
    let mut payload = vec![0; blocks * BLOCK_BYTES];
    for (item, to) in items.zip(payload.chunks_exact_mut(ITEM_BYTES)) {
        let Some(item) = item else { continue };
        assert!(item.is_possible() && item.block < VOLUME_BLOCKS_MAX, "summary item out of bounds");
        let packed =
            item.block | u64::from(item.sector_mask) << 40 | u64::from(item.volume.0) << 48 | FLAG_DATA;
        to[..8].copy_from_slice(&packed.to_le_bytes());
        to[8..12].copy_from_slice(&item.crc32c.to_le_bytes());
        to[12..].copy_from_slice(&item.flush_epoch.to_le_bytes());
    }
    payload
}

/// Decodes `slots` items, or as many as `payload` holds if that is fewer. The caller has checked
/// the payload against the checksum in the summary's entry. An item that no writer produces counts
/// as a slot without data.
pub fn decode(payload: &[u8], slots: u32) -> impl Iterator<Item = Option<SummaryItem>> {
    payload.as_chunks::<ITEM_BYTES>().0.iter().take(slots as usize).map(decode_item)
}

#[inline]
fn decode_item(from: &[u8; ITEM_BYTES]) -> Option<SummaryItem> {
    let item = u128::from_le_bytes(*from);
    let packed = item as u64;
    let item = SummaryItem {
        volume: VolumeId((packed >> 48) as u16 & 0xff),
        block: packed & (VOLUME_BLOCKS_MAX - 1),
        sector_mask: (packed >> 40) as u8,
        crc32c: (item >> 64) as u32,
        flush_epoch: (item >> 96) as u32,
    };
    (packed & FLAG_DATA != 0 && item.is_possible()).then_some(item)
}
