//! Batches: the records of the log.
//!
//! A batch is one header block followed by `payload_blocks` blocks, written to the device as one sequential write.
//! The header carries up to [`ENTRIES_MAX`] entries. Data entries own the payload blocks in order: the i-th data
//! entry describes the i-th payload block. Marks and intents have no payload.
//!
//! A batch counts only if its header and every payload block match their checksums and it stands where it says.

use crate::layout::{check_envelope, crc_without, structure};
use crate::units::{BLOCK_BYTES, CacheUuid, Slot, StreamKind, VolumeId};
use crate::{FormatError, VERSION};

pub(crate) mod header {
    use super::structure;
    structure! { "batch header", 4096;
        F_MAGIC = "magic", 0, 4;
        F_VERSION = "version", 4, 2;
        F_STREAM = "stream", 6, 1;
        F_KIND = "kind", 7, 1;
        F_UUID_TAG = "uuid_tag", 8, 8;
        F_EPOCH = "epoch", 16, 8;
        F_SEQUENCE = "sequence", 24, 8;
        F_STREAM_SEQUENCE = "stream_sequence", 32, 8;
        F_FLUSHED = "flushed_stream_sequence", 40, 8;
        F_SEGMENT = "segment", 48, 4;
        F_BLOCK = "block_in_segment", 52, 4;
        F_ENTRIES = "entry_count", 56, 2;
        F_PAYLOAD = "payload_blocks", 58, 2;
        F_CRC = "crc32c", 60, 4;
        F_TABLE = "entries", 64, 4032;
    }
}
use header::{
    F_BLOCK, F_CRC, F_ENTRIES, F_EPOCH, F_FLUSHED, F_KIND, F_MAGIC, F_PAYLOAD, F_SEGMENT, F_SEQUENCE, F_STREAM,
    F_STREAM_SEQUENCE, F_TABLE, F_UUID_TAG, F_VERSION,
};

pub(crate) mod entry {
    use super::structure;
    structure! { "batch entry", 24;
        F_BLOCK = "block", 0, 8;
        F_COUNT = "count", 8, 4;
        F_CRC = "crc32c", 12, 4;
        F_VOLUME = "volume", 16, 2;
        F_KIND = "kind", 18, 1;
        F_SECTORS = "sector_mask", 19, 1;
        F_RESERVED = "reserved", 20, 4;
    }
}

/// First bytes of a batch header.
pub const MAGIC: [u8; 4] = *b"FBAT";
/// Entries that fit one header block.
pub const ENTRIES_MAX: usize = F_TABLE.len / entry::STRUCTURE.len;

const _: () = assert!(ENTRIES_MAX == 168);
const _: () = assert!(header::STRUCTURE.len == BLOCK_BYTES, "a header is one block");
const _: () = assert!(ENTRIES_MAX * entry::STRUCTURE.len == F_TABLE.len, "entries fill the header");

/// What a batch is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BatchKind {
    /// Data, marks and intents.
    Records = 1,
    /// The summary that closes a segment: one [`Entry::Summary`], payload as in [`crate::summary`].
    Summary = 2,
}

/// One entry of a batch header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A block of a volume; its bytes are the next payload block of the batch.
    Data {
        /// Volume that the block belongs to.
        volume: VolumeId,
        /// Block of the volume (4 KiB units), below 2^40.
        block: u64,
        /// CRC32C of the whole payload block.
        crc32c: u32,
        /// One bit per valid sector, lowest bit first; never zero.
        sector_mask: u8,
        /// True if the backing store does not have these bytes yet.
        dirty: bool,
    },
    /// These slots were written to the backing store, which was flushed afterwards: they are clean.
    CleanMark {
        /// First slot.
        slot: Slot,
        /// Consecutive slots.
        count: u32,
    },
    /// These slots are void: the backing store holds newer bytes and was flushed.
    DropMark {
        /// First slot.
        slot: Slot,
        /// Consecutive slots.
        count: u32,
    },
    /// Writes past the cache may happen in these regions from now on: after a crash no clean block in them counts.
    Intent {
        /// Volume written to.
        volume: VolumeId,
        /// First region ([`crate::checkpoint::INTENT_REGION_BLOCKS`] blocks each).
        region: u64,
        /// Consecutive regions.
        count: u32,
    },
    /// Payload of a summary batch.
    Summary {
        /// Slots described, from the start of the segment.
        slots: u32,
        /// CRC32C of the whole payload.
        crc32c: u32,
    },
}

impl Entry {
    /// True if a payload block belongs to this entry.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        matches!(self, Self::Data { .. })
    }

    fn encode(self, to: &mut [u8]) {
        use entry::{F_BLOCK, F_COUNT, F_CRC, F_KIND, F_SECTORS, F_VOLUME};
        let put = |to: &mut [u8], kind: u64, volume: VolumeId, block: u64, count: u32| {
            F_KIND.put(to, kind);
            F_VOLUME.put(to, u64::from(volume.0));
            F_BLOCK.put(to, block);
            F_COUNT.put(to, u64::from(count));
        };
        match self {
            Self::Data { volume, block, crc32c, sector_mask, dirty } => {
                put(to, if dirty { 1 } else { 2 }, volume, block, 1);
                F_CRC.put(to, u64::from(crc32c));
                F_SECTORS.put(to, u64::from(sector_mask));
            }
            Self::CleanMark { slot, count } => put(to, 3, VolumeId(0), u64::from(slot.0), count),
            Self::DropMark { slot, count } => put(to, 4, VolumeId(0), u64::from(slot.0), count),
            Self::Intent { volume, region, count } => put(to, 5, volume, region, count),
            Self::Summary { slots, crc32c } => {
                put(to, 6, VolumeId(0), 0, slots);
                F_CRC.put(to, u64::from(crc32c));
            }
        }
    }

    fn decode(from: &[u8]) -> Result<Self, FormatError> {
        use entry::{F_BLOCK, F_COUNT, F_CRC, F_KIND, F_SECTORS, F_VOLUME, STRUCTURE};
        let bad = |field, value| Err(FormatError::Field { structure: STRUCTURE.name, field, value });
        let volume = VolumeId(F_VOLUME.get(from) as u16);
        let (block, count) = (F_BLOCK.get(from), F_COUNT.get_u32(from));
        let crc32c = F_CRC.get_u32(from);
        let kind = F_KIND.get(from);
        let slot = match u32::try_from(block) {
            Ok(slot) => Slot(slot),
            Err(_) if matches!(kind, 3 | 4) => return bad(F_BLOCK.name, block),
            Err(_) => Slot(0),
        };
        Ok(match kind {
            1 | 2 => {
                let sector_mask = F_SECTORS.get(from) as u8;
                if sector_mask == 0 {
                    return bad(F_SECTORS.name, 0);
                }
                if block >> 40 != 0 {
                    return bad(F_BLOCK.name, block);
                }
                Self::Data { volume, block, crc32c, sector_mask, dirty: kind == 1 }
            }
            3 => Self::CleanMark { slot, count },
            4 => Self::DropMark { slot, count },
            5 => Self::Intent { volume, region: block, count },
            6 => Self::Summary { slots: count, crc32c },
            other => return bad(F_KIND.name, other),
        })
    }
}

/// Everything in a batch header but its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Records or summary.
    pub kind: BatchKind,
    /// Stream that the batch belongs to.
    pub stream: StreamKind,
    /// First bytes of the cache's uuid.
    pub uuid_tag: u64,
    /// Start of the daemon that wrote it, see [`crate::superblock::Superblock::epoch`].
    pub epoch: u64,
    /// Position in the order of all batches of the cache.
    pub sequence: u64,
    /// Position in the order of the stream's batches, without gaps.
    pub stream_sequence: u64,
    /// All batches of the stream before this number were covered by a device flush when this one was built.
    pub flushed_stream_sequence: u64,
    /// Segment that the batch was written to.
    pub segment: u32,
    /// Block in the segment where the header stands.
    pub block_in_segment: u32,
    /// Payload blocks that follow the header.
    pub payload_blocks: u16,
}

impl BatchHeader {
    /// Encodes header and entries into `to`, which must be one block.
    ///
    /// # Panics
    /// If `to` is not one block or there are more than [`ENTRIES_MAX`] entries: a bug of the caller.
    pub fn encode(&self, entries: &[Entry], to: &mut [u8]) {
        assert!(to.len() == BLOCK_BYTES && entries.len() <= ENTRIES_MAX, "batch header out of bounds");
        to.fill(0);
        F_MAGIC.put_bytes(to, &MAGIC);
        F_VERSION.put(to, u64::from(VERSION));
        F_STREAM.put(to, self.stream as u64);
        F_KIND.put(to, self.kind as u64);
        F_UUID_TAG.put(to, self.uuid_tag);
        F_EPOCH.put(to, self.epoch);
        F_SEQUENCE.put(to, self.sequence);
        F_STREAM_SEQUENCE.put(to, self.stream_sequence);
        F_FLUSHED.put(to, self.flushed_stream_sequence);
        F_SEGMENT.put(to, u64::from(self.segment));
        F_BLOCK.put(to, u64::from(self.block_in_segment));
        F_ENTRIES.put(to, entries.len() as u64);
        F_PAYLOAD.put(to, u64::from(self.payload_blocks));
        let table = &mut to[F_TABLE.offset..];
        for (entry, bytes) in entries.iter().zip(table.chunks_exact_mut(entry::STRUCTURE.len)) {
            entry.encode(bytes);
        }
        let crc = crc_without(to, F_CRC);
        F_CRC.put(to, u64::from(crc));
    }

    /// Decodes a header block and appends its entries to `entries` (cleared first).
    ///
    /// # Errors
    /// Not a header, torn, of a newer version, or with fields that do not fit together. Identity and position are
    /// for the caller to check, see [`BatchHeader::check_place`].
    pub fn decode(block: &[u8], entries: &mut Vec<Entry>) -> Result<Self, FormatError> {
        entries.clear();
        check_envelope(&header::STRUCTURE, block, (F_MAGIC, &MAGIC), F_VERSION, F_CRC)?;
        let bad = |field, value| FormatError::Field { structure: header::STRUCTURE.name, field, value };
        let kind = match F_KIND.get(block) {
            1 => BatchKind::Records,
            2 => BatchKind::Summary,
            other => return Err(bad(F_KIND.name, other)),
        };
        let stream = F_STREAM.get(block) as u8;
        let stream = StreamKind::from_u8(stream).ok_or(bad(F_STREAM.name, u64::from(stream)))?;
        let count = F_ENTRIES.get(block) as usize;
        if count > ENTRIES_MAX {
            return Err(bad(F_ENTRIES.name, count as u64));
        }
        for bytes in block[F_TABLE.offset..].chunks_exact(entry::STRUCTURE.len).take(count) {
            entries.push(Entry::decode(bytes)?);
        }
        let payload_blocks = F_PAYLOAD.get(block) as u16;
        let owned = entries.iter().filter(|entry| entry.has_payload()).count();
        let summary = matches!(entries[..], [Entry::Summary { .. }]);
        if (kind == BatchKind::Records) != (owned == usize::from(payload_blocks) && !summary) {
            return Err(bad(F_PAYLOAD.name, u64::from(payload_blocks)));
        }
        Ok(Self {
            kind,
            stream,
            uuid_tag: F_UUID_TAG.get(block),
            epoch: F_EPOCH.get(block),
            sequence: F_SEQUENCE.get(block),
            stream_sequence: F_STREAM_SEQUENCE.get(block),
            flushed_stream_sequence: F_FLUSHED.get(block),
            segment: F_SEGMENT.get_u32(block),
            block_in_segment: F_BLOCK.get_u32(block),
            payload_blocks,
        })
    }

    /// Checks that the header belongs to this cache and was written for this place.
    ///
    /// # Errors
    /// [`FormatError::Misplaced`] naming the field.
    pub fn check_place(&self, uuid: CacheUuid, segment: u32, block_in_segment: u32) -> Result<(), FormatError> {
        let check = |field, expected, found| {
            if expected == found {
                return Ok(());
            }
            Err(FormatError::Misplaced { structure: header::STRUCTURE.name, field, expected, found })
        };
        check(F_UUID_TAG.name, uuid.tag(), self.uuid_tag)?;
        check(F_SEGMENT.name, u64::from(segment), u64::from(self.segment))?;
        check(F_BLOCK.name, u64::from(block_in_segment), u64::from(self.block_in_segment))
    }
}
