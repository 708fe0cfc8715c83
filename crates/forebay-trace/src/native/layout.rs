//! The header of a trace, and the heads of its blocks.

use super::BLOCK_RECORDS_MAX;

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"FBYTRACE";
/// The only version that is written and read.
pub const VERSION: u32 = 1;
/// Extension of files of this format.
pub const EXTENSION: &str = "fbtrace";
/// Longest name of a volume in a header, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a header before the name.
pub(super) const HEADER_BYTES: usize = 32;
/// First bytes of a block.
pub(super) const BLOCK_MAGIC: [u8; 4] = *b"FBTB";
/// Bytes of the head of a block.
pub(super) const HEAD_BYTES: usize = 32;
/// Longest record: a byte and four numbers.
pub(super) const RECORD_BYTES_MAX: usize = 1 + 4 * 10;
/// Longest block before and after packing.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_RECORDS_MAX * RECORD_BYTES_MAX;

/// The header of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Time of the first record's origin, in nanoseconds since 1970; 0: unknown.
    pub started_unix_ns: u64,
    /// Size of the volume in bytes; 0: unknown.
    pub volume_bytes: u64,
    /// Name of the volume; may be empty.
    pub volume: String,
}

impl Header {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut end = self.volume.len().min(NAME_BYTES_MAX);
        while !self.volume.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + end + 4);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(end as u32).to_le_bytes());
        bytes.extend_from_slice(&self.started_unix_ns.to_le_bytes());
        bytes.extend_from_slice(&self.volume_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.volume.as_bytes()[..end]);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }
}

/// The packing of a block's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packing {
    Stored,
    Zstd,
}

/// The head of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) packing: Packing,
    /// Records in it; 0: the end of the trace.
    pub(super) records: u32,
    /// Bytes before packing, and packed.
    pub(super) raw_bytes: u32,
    pub(super) packed_bytes: u32,
    /// Records lost since the previous block.
    pub(super) lost: u64,
}

impl Head {
    /// Returns its bytes, with the checksum of all fields before it and of the packed records.
    pub(super) fn to_bytes(self, packed: &[u8]) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4..8].copy_from_slice(&u32::from(self.packing == Packing::Zstd).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.records.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.packed_bytes.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.lost.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), packed);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses a head. Returns it and its checksum; the error describes the invalid field.
    pub(super) fn from_bytes(bytes: &[u8; HEAD_BYTES]) -> Result<(Self, u32), String> {
        if bytes[..4] != BLOCK_MAGIC {
            return Err("no block begins here".into());
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let packing = match word(4) {
            0 => Packing::Stored,
            1 => Packing::Zstd,
            other => return Err(format!("a block is packed in way {other}, which is not known")),
        };
        let head = Self {
            packing,
            records: word(8),
            raw_bytes: word(12),
            packed_bytes: word(16),
            lost: u64::from(word(20)) | u64::from(word(24)) << 32,
        };
        let largest = BLOCK_BYTES_MAX as u32;
        if head.records > BLOCK_RECORDS_MAX as u32
            || head.raw_bytes > largest
            || head.packed_bytes > largest
            || (head.records == 0) != (head.raw_bytes == 0)
            || (head.raw_bytes == 0) != (head.packed_bytes == 0)
        {
            return Err("the head of a block makes no sense".into());
        }
        Ok((head, word(28)))
    }
}
