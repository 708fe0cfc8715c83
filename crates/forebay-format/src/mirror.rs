//! The layout of a cache that is mirrored over two devices.
//!
//! Each of the two *members* is laid out like a cache of its own: superblocks, checkpoint slots,
//! segments. Superblocks and checkpoints are written to both. The segments of both are numbered
//! consecutively, first those of member 0, then as many of member 1: segments `i` and `i + n` are a
//! *column*, at the same place of their members. A *pair* uses a column for one segment, number
//! `i`, with the same bytes on both; otherwise each segment is independent.
//!
//! The cache sees one sequence of blocks, the *pool's space*, of [`Geometry::device_blocks`]
//! blocks:
//!
//! ```text
//! | member 0: superblocks, checkpoints | its n segments | the n segments of member 1 | superblocks, checkpoints of member 1 |
//! ```
//!
//! So everything that a [`Geometry`] defines for segments holds, and it locates the metadata of
//! member 0.

use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::units::{BLOCK_BYTES, SEGMENTS_MIN};

/// A mirrored cache's superblock record of its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorMark {
    /// The member that this copy is for: 0 or 1.
    pub member: u8,
    /// The member that is out: its contents are stale.
    pub out: Option<u8>,
    /// Drawn at random for each member when it joined; never zero. A device with another tag is
    /// refused.
    pub tags: [u64; 2],
}

impl Geometry {
    /// Divides a mirrored cache on two devices of at least `member_bytes`. It cannot grow.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] if the devices are too small, or the segment size is not a power
    /// of two in range.
    pub fn mirrored(member_bytes: u64, segment_blocks: Option<u32>) -> Result<Self, FormatError> {
        let both = member_bytes
            .checked_mul(2)
            .ok_or_else(|| FormatError::Geometry(format!("{member_bytes} bytes are no device")))?;
        // Checkpoint slots with room for the segments of both.
        let all = Self::with_growth(both, segment_blocks, 1)?;
        let unit = u64::from(all.segment_blocks);
        let columns = (member_bytes / BLOCK_BYTES as u64).saturating_sub(all.segments_start_block) / unit;
        if columns < u64::from(SEGMENTS_MIN) {
            let least = (all.segments_start_block + u64::from(SEGMENTS_MIN) * unit) * BLOCK_BYTES as u64;
            return Err(FormatError::Geometry(format!(
                "{member_bytes} bytes on each device are too little for a mirrored cache: it needs at least {least} bytes on each"
            )));
        }
        Ok(Self {
            device_blocks: 2 * (all.segments_start_block + columns * unit),
            segment_count: 2 * columns as u32,
            ..all
        })
    }

    /// Segments of each member of a mirrored cache.
    #[must_use]
    pub fn columns(&self) -> u32 {
        self.segment_count / 2
    }

    /// Bytes of each member that a mirrored cache uses.
    #[must_use]
    pub fn member_bytes(&self) -> u64 {
        self.device_blocks / 2 * BLOCK_BYTES as u64
    }

    /// Checks, in addition to [`Geometry::validate`], that this divides a mirrored cache.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] if it does not.
    pub fn validate_mirrored(&self) -> Result<(), FormatError> {
        let unit = u64::from(self.segment_blocks);
        let blocks = u64::from(self.columns())
            .checked_mul(unit)
            .and_then(|segments| segments.checked_add(self.segments_start_block))
            .and_then(|half| half.checked_mul(2));
        if self.segment_count.is_multiple_of(2)
            && self.columns() >= SEGMENTS_MIN
            && blocks == Some(self.device_blocks)
        {
            return Ok(());
        }
        Err(FormatError::Geometry(format!(
            "the superblock speaks of a mirrored cache of {} segments in {} blocks, which are not two equal halves; it was not \
             written by this product, make a new cache",
            self.segment_count, self.device_blocks
        )))
    }

    /// Converts a byte offset in a mirrored pool's space to a member and the offset there.
    #[must_use]
    pub fn mirror_place(&self, offset: u64) -> (usize, u64) {
        let (start, member) = (self.segments_start_block * BLOCK_BYTES as u64, self.member_bytes());
        let segments = member - start;
        if offset < member {
            (0, offset)
        } else if offset < member + segments {
            (1, offset - segments)
        } else {
            (1, offset - member - segments)
        }
    }

    /// The offset in a mirrored pool's space of byte `offset` of a member's metadata, which
    /// precedes the member's segments.
    #[must_use]
    pub fn mirror_meta(&self, member: usize, offset: u64) -> u64 {
        let start = self.segments_start_block * BLOCK_BYTES as u64;
        if member == 0 { offset } else { 2 * self.member_bytes() - start + offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_members_are_divided_alike() {
        let geometry = Geometry::mirrored(8 << 20, Some(16)).unwrap();
        geometry.validate(2 * (8 << 20)).unwrap();
        geometry.validate_mirrored().unwrap();
        assert!(geometry.member_bytes() <= 8 << 20);
        let n = geometry.columns();
        for column in [0, 1, n - 1] {
            let (a, b) = (geometry.segment_offset(column, 3), geometry.segment_offset(column + n, 3));
            assert_eq!(geometry.mirror_place(a), (0, a));
            assert_eq!(geometry.mirror_place(b), (1, a), "column {column}");
        }
        for offset in [0, 16 * 4096, geometry.checkpoint_offset(3, 1)] {
            for member in [0, 1] {
                let place = geometry.mirror_place(geometry.mirror_meta(member, offset));
                assert_eq!(place, (member, offset));
            }
        }
        assert!(Geometry::mirrored(1 << 20, Some(64)).is_err());
        assert!(Geometry::mirrored(u64::MAX, None).is_err());
        let odd = Geometry { device_blocks: geometry.device_blocks + 1, ..geometry };
        assert!(odd.validate_mirrored().is_err());
    }
}
