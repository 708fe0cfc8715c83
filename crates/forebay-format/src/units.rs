//! Units, limits and identities that appear in the on-disk structures.

/// Bytes in one cache block, the unit of the index and of checksums.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes in one sector, the smallest unit of validity inside a block.
pub const SECTOR_BYTES: usize = 512;
/// Sectors in one block; one bit each in a sector mask.
pub const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(SECTORS_PER_BLOCK == 8, "a sector mask is one byte");

/// Most blocks of a volume: block numbers have 40 bits on the device.
pub(crate) const VOLUME_BLOCKS_MAX: u64 = 1 << 40;

/// Fewest segments of a cache: for the streams, a reserve, and data.
pub const SEGMENTS_MIN: u32 = 16;
/// Smallest segment, in blocks: room for a header, a summary and some data.
pub const SEGMENT_BLOCKS_MIN: u32 = 16;
/// Largest segment, in blocks (64 MiB): flash devices erase up to that much at once.
pub const SEGMENT_BLOCKS_MAX: u32 = 16384;
/// Most volumes on one cache; their numbers are below this.
pub const VOLUMES_MAX: u32 = 64;
/// Most write-intent ranges of a checkpoint; beyond it the engine widens ranges.
pub const INTENTS_MAX: u32 = 4096;

/// The on-disk format version that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// A volume of the cache, as numbered in its volume table: below [`VOLUMES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VolumeId(pub u16);

/// A block-sized place on the cache device: `segment * segment_blocks + block in segment`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u32);

/// Identity of one formatted cache, drawn at random when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CacheUuid(pub [u8; 16]);

impl CacheUuid {
    /// The first eight bytes, which every batch header carries.
    #[must_use]
    pub fn tag(self) -> u64 {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(tag)
    }
}

impl core::fmt::Display for CacheUuid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The append stream that a segment belongs to. Blocks that become void together are written
/// together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum StreamKind {
    /// Client writes, and the marks and intents that order them.
    Write = 0,
    /// Blocks read from the backing store.
    Fill = 1,
    /// Blocks that reclaim moved because they were dirty or recently hit.
    Survivor = 2,
}

impl StreamKind {
    /// All streams, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Write, Self::Fill, Self::Survivor];

    /// The stream with this number on disk.
    #[must_use]
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// Position in arrays that hold one item per stream.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}
