//! The layout of a cache device of a given size.

use crate::checkpoint;
use crate::error::FormatError;
use crate::units::BLOCK_BYTES;
pub use crate::units::{INTENTS_MAX, SEGMENT_BLOCKS_MAX, SEGMENT_BLOCKS_MIN, SEGMENTS_MIN, VOLUMES_MAX};

/// Block that holds superblock copy A.
pub const SUPERBLOCK_A_BLOCK: u64 = 0;
/// Block that holds superblock copy B: another flash page and, on most devices, another erase
/// block.
pub const SUPERBLOCK_B_BLOCK: u64 = 16;
/// First block of the checkpoint slots.
pub const CHECKPOINT_START_BLOCK: u64 = 32;
/// Checkpoint slots: two generations, two copies each.
pub const CHECKPOINT_SLOTS: u64 = 4;
/// How many times its initial number of segments a cache can grow to by default: its checkpoint
/// slots have that size.
pub const GROWTH_DEFAULT: u32 = 4;

/// The division of a cache device into superblocks, checkpoint slots and segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Total blocks of the device that the cache uses.
    pub device_blocks: u64,
    /// Blocks in one segment, a power of two.
    pub segment_blocks: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Blocks in one checkpoint slot.
    pub checkpoint_slot_blocks: u32,
    /// First block of segment 0.
    pub segments_start_block: u64,
}

impl Geometry {
    /// Divides a device of `device_bytes` with segments of `segment_blocks` and room to grow to
    /// [`GROWTH_DEFAULT`] times its size. If `None`, the segment size depends on the device: 64 KiB
    /// to 4 MiB, so that there are some hundreds of segments where possible, and more than 4 MiB
    /// above 1 TiB.
    ///
    /// # Errors
    /// As [`Geometry::with_growth`].
    pub fn for_device(device_bytes: u64, segment_blocks: Option<u32>) -> Result<Self, FormatError> {
        Self::with_growth(device_bytes, segment_blocks, GROWTH_DEFAULT)
    }

    /// Like [`Geometry::for_device`], for a cache that can grow to `growth` times its number of
    /// segments (at least 1: it cannot grow). Each additional multiple costs 0.025 % of the device.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] if the device is too small or the segment size is not a power of
    /// two in range.
    pub fn with_growth(
        device_bytes: u64,
        segment_blocks: Option<u32>,
        growth: u32,
    ) -> Result<Self, FormatError> {
        let device_blocks = device_bytes / BLOCK_BYTES as u64;
        let segment_blocks = segment_blocks.unwrap_or_else(|| default_segment_blocks(device_blocks));
        if !segment_blocks.is_power_of_two()
            || !(SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&segment_blocks)
        {
            return Err(FormatError::Geometry(format!(
                "a segment of {segment_blocks} blocks is not a power of two \
                 from {SEGMENT_BLOCKS_MIN} to {SEGMENT_BLOCKS_MAX}"
            )));
        }
        // The checkpoint grows with the segments, and the segments shrink with the checkpoint:
        // start from the largest possible number of segments, which makes the slot slightly too
        // large rather than too small.
        let segments_most = device_blocks / u64::from(segment_blocks);
        // Slot numbers limit the segments of every cache, so room for more is useless.
        let grown = (segments_most * u64::from(growth.max(1))).min(segments_limit(segment_blocks));
        let slot_blocks = checkpoint::slot_blocks_for(grown.max(segments_most), segment_blocks);
        let meta_blocks = CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * slot_blocks;
        let segments_start_block = meta_blocks.next_multiple_of(u64::from(segment_blocks.min(256)));
        let segment_count = device_blocks.saturating_sub(segments_start_block) / u64::from(segment_blocks);
        if segment_count < u64::from(SEGMENTS_MIN) {
            let least =
                (segments_start_block + u64::from(SEGMENTS_MIN * segment_blocks)) * BLOCK_BYTES as u64;
            return Err(FormatError::Geometry(format!(
                "a cache of {device_bytes} bytes is too small: with segments of {} KiB it needs at least {least} \
                 bytes; give the cache a larger SIZE",
                segment_blocks as usize * BLOCK_BYTES / 1024
            )));
        }
        if segment_count * u64::from(segment_blocks) > u64::from(u32::MAX) {
            return Err(FormatError::Geometry(format!(
                "a cache of {device_bytes} bytes has more than {} blocks; use a smaller part of the device",
                u32::MAX
            )));
        }
        Ok(Self {
            device_blocks,
            segment_blocks,
            segment_count: segment_count as u32,
            checkpoint_slot_blocks: slot_blocks as u32,
            segments_start_block,
        })
    }

    /// The same cache on a device that has become longer or shorter: segments are added or removed
    /// at the end, and nothing else moves.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] with the limit to which this cache can grow or shrink.
    pub fn resized(&self, device_bytes: u64) -> Result<Self, FormatError> {
        let device_blocks = device_bytes / BLOCK_BYTES as u64;
        let count = device_blocks.saturating_sub(self.segments_start_block) / u64::from(self.segment_blocks);
        let bytes_for = |count: u64| {
            (self.segments_start_block + count * u64::from(self.segment_blocks)) * BLOCK_BYTES as u64
        };
        let most = u64::from(self.segments_max());
        if count > most {
            return Err(FormatError::Geometry(format!(
                "{device_bytes} bytes are {count} segments, but this cache was made with room for {most}: it can grow to \
                 {} bytes; for more, make a new cache",
                bytes_for(most)
            )));
        }
        if count < u64::from(SEGMENTS_MIN) {
            return Err(FormatError::Geometry(format!(
                "{device_bytes} bytes are {count} segments, but a cache works with {SEGMENTS_MIN} at least: it can shrink \
                 to {} bytes",
                bytes_for(u64::from(SEGMENTS_MIN))
            )));
        }
        Ok(Self { device_blocks, segment_count: count as u32, ..*self })
    }

    /// Most segments that this cache can have, limited by the room in its checkpoint slots.
    #[must_use]
    pub fn segments_max(&self) -> u32 {
        let slot_blocks = u64::from(self.checkpoint_slot_blocks);
        checkpoint::segments_in_slot(slot_blocks, self.segment_blocks)
            .min(segments_limit(self.segment_blocks)) as u32
    }

    /// Blocks of a checkpoint slot that a checkpoint of this many segments can fill, and that a
    /// reader must read.
    #[must_use]
    pub fn checkpoint_blocks(&self) -> u64 {
        let needed = checkpoint::slot_blocks_for(u64::from(self.segment_count), self.segment_blocks);
        needed.min(u64::from(self.checkpoint_slot_blocks))
    }

    /// Checks that the numbers read from a superblock are consistent and fit `device_bytes`.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] that describes the inconsistency.
    pub fn validate(&self, device_bytes: u64) -> Result<(), FormatError> {
        let fail = |why: String| Err(FormatError::Geometry(why));
        let device_blocks = device_bytes / BLOCK_BYTES as u64;
        if self.device_blocks > device_blocks {
            return fail(format!(
                "the superblock speaks of {} blocks but the device has only {device_blocks}: \
                 it was truncated, or only a part of it was copied; restore its full length",
                self.device_blocks
            ));
        }
        if !self.segment_blocks.is_power_of_two()
            || !(SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&self.segment_blocks)
            || self.segment_count < SEGMENTS_MIN
        {
            return fail(format!(
                "the superblock speaks of {} segments of {} blocks, but there are at least {SEGMENTS_MIN} segments, \
                 of a power of two of blocks from {SEGMENT_BLOCKS_MIN} to {SEGMENT_BLOCKS_MAX}; it was not written by \
                 this product, make a new cache",
                self.segment_count, self.segment_blocks
            ));
        }
        let segments_end = u64::from(self.segment_count)
            .checked_mul(u64::from(self.segment_blocks))
            .and_then(|blocks| blocks.checked_add(self.segments_start_block));
        let checkpoints_end =
            CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * u64::from(self.checkpoint_slot_blocks);
        let needed = checkpoint::slot_blocks_for(u64::from(self.segment_count), self.segment_blocks);
        if segments_end.is_none_or(|end| end > self.device_blocks)
            || checkpoints_end > self.segments_start_block
            || u64::from(self.checkpoint_slot_blocks) < needed
            || u64::from(self.segment_count) * u64::from(self.segment_blocks) > u64::from(u32::MAX)
        {
            return fail(format!(
                "{} segments of {} blocks from block {}, with checkpoint slots of {} blocks, do not fit {} blocks; \
                 the superblock was not written by this product, make a new cache",
                self.segment_count,
                self.segment_blocks,
                self.segments_start_block,
                self.checkpoint_slot_blocks,
                self.device_blocks
            ));
        }
        Ok(())
    }

    /// Byte offset of superblock copy 0 or 1.
    #[must_use]
    pub fn superblock_offset(copy: usize) -> u64 {
        [SUPERBLOCK_A_BLOCK, SUPERBLOCK_B_BLOCK][copy] * BLOCK_BYTES as u64
    }

    /// Byte offset of `copy` (0 or 1) of the checkpoint with this generation.
    #[must_use]
    pub fn checkpoint_offset(&self, generation: u64, copy: u64) -> u64 {
        debug_assert!(copy < 2);
        let slot = (generation % 2) * 2 + copy;
        (CHECKPOINT_START_BLOCK + slot * u64::from(self.checkpoint_slot_blocks)) * BLOCK_BYTES as u64
    }

    /// Byte offset of a block of a segment.
    #[must_use]
    pub fn segment_offset(&self, segment: u32, block: u32) -> u64 {
        debug_assert!(segment < self.segment_count && block <= self.segment_blocks);
        let blocks = self.segments_start_block + u64::from(segment) * u64::from(self.segment_blocks);
        (blocks + u64::from(block)) * BLOCK_BYTES as u64
    }

    /// Bytes in one segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_blocks) * BLOCK_BYTES as u64
    }

    /// Number of slots in all segments.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.segment_count * self.segment_blocks
    }
}

/// Most segments whose slots all have 32-bit numbers.
fn segments_limit(segment_blocks: u32) -> u64 {
    u64::from(u32::MAX / segment_blocks.max(1))
}

/// Most segments before segments become larger than 4 MiB: the number that 1 TiB has of those. Each
/// costs memory and time, whether used or not.
const SEGMENTS_WANTED_MAX: u64 = 1 << 18;

fn default_segment_blocks(device_blocks: u64) -> u32 {
    let mut blocks = 1024; // 4 MiB
    while blocks < SEGMENT_BLOCKS_MAX && device_blocks / u64::from(blocks) > SEGMENTS_WANTED_MAX {
        blocks *= 2;
    }
    while blocks > SEGMENT_BLOCKS_MIN && device_blocks / u64::from(blocks) < 256 {
        blocks /= 2;
    }
    blocks
}
