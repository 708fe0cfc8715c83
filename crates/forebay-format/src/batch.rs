//! Batches: the records of the log.
//!
//! A batch is one header block followed by `payload_blocks` blocks, written to the device as one
//! sequential write. The header carries up to [`ENTRIES_MAX`] entries. Data entries own the payload
//! blocks in order: the i-th data entry describes the i-th payload block. Marks and intents have no
//! payload.
//!
//! A batch counts only if its header and every payload block match their checksums and it lies at
//! the position that its header names.

use crate::checkpoint::REGIONS_MAX;
use crate::error::FormatError;
use crate::layout::{Field, check_envelope, check_zero, crc_without, structure};
use crate::summary;
use crate::units::{
    BLOCK_BYTES, CacheUuid, SEGMENT_BLOCKS_MAX, Slot, StreamKind, VERSION, VOLUME_BLOCKS_MAX, VOLUMES_MAX,
    VolumeId,
};

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
    F_BLOCK, F_CRC, F_ENTRIES, F_EPOCH, F_FLUSHED, F_KIND, F_MAGIC, F_PAYLOAD, F_SEGMENT, F_SEQUENCE,
    F_STREAM, F_STREAM_SEQUENCE, F_TABLE, F_UUID_TAG, F_VERSION,
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
        F_FLUSH_EPOCH = "flush_epoch", 20, 4;
    }
}

/// First bytes of a batch header.
pub const MAGIC: [u8; 4] = *b"FBAT";
/// Most entries of one header block.
pub const ENTRIES_MAX: usize = F_TABLE.len / entry::STRUCTURE.len;

const _: () = assert!(ENTRIES_MAX == 168);
const _: () = assert!(header::STRUCTURE.len == BLOCK_BYTES, "a header is one block");
const _: () = assert!(ENTRIES_MAX * entry::STRUCTURE.len == F_TABLE.len, "entries fill the header");

const KIND_DIRTY: u64 = 1;
const KIND_CLEAN: u64 = 2;
const KIND_CLEAN_MARK: u64 = 3;
const KIND_DROP_MARK: u64 = 4;
const KIND_INTENT: u64 = 5;
const KIND_SUMMARY: u64 = 6;

/// Purpose of a batch.
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
        /// Low half of the flush epoch that a dirty block was written in, if its volume is destaged
        /// in order; else 0.
        flush_epoch: u32,
    },
    /// These slots were written to the backing store, which was then flushed: they are clean.
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
    /// Bypass writes can happen in these regions from now on: after a crash no clean block in them
    /// counts.
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
    /// Returns whether a payload block belongs to this entry.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        matches!(self, Self::Data { .. })
    }

    fn encode(self, to: &mut [u8]) {
        use entry::{F_BLOCK, F_COUNT, F_CRC, F_FLUSH_EPOCH, F_KIND, F_SECTORS, F_VOLUME};
        if let Self::Data { flush_epoch, .. } = self {
            F_FLUSH_EPOCH.put(to, u64::from(flush_epoch));
        }
        let (kind, volume, block, count, crc32c, sector_mask) = match self {
            Self::Data { volume, block, crc32c, sector_mask, dirty, .. } => {
                (if dirty { KIND_DIRTY } else { KIND_CLEAN }, volume, block, 1, crc32c, sector_mask)
            }
            Self::CleanMark { slot, count } => (KIND_CLEAN_MARK, VolumeId(0), u64::from(slot.0), count, 0, 0),
            Self::DropMark { slot, count } => (KIND_DROP_MARK, VolumeId(0), u64::from(slot.0), count, 0, 0),
            Self::Intent { volume, region, count } => (KIND_INTENT, volume, region, count, 0, 0),
            Self::Summary { slots, crc32c } => (KIND_SUMMARY, VolumeId(0), 0, slots, crc32c, 0),
        };
        F_KIND.put(to, kind);
        F_VOLUME.put(to, u64::from(volume.0));
        F_BLOCK.put(to, block);
        F_COUNT.put(to, u64::from(count));
        F_CRC.put(to, u64::from(crc32c));
        F_SECTORS.put(to, u64::from(sector_mask));
    }

    fn decode(from: &[u8]) -> Result<Self, FormatError> {
        use entry::{F_BLOCK, F_COUNT, F_CRC, F_FLUSH_EPOCH, F_KIND, F_SECTORS, F_VOLUME, STRUCTURE};
        let unused = |fields: &[Field]| check_zero(&STRUCTURE, from, fields);
        let volume = VolumeId(F_VOLUME.get(from) as u16);
        let (block, count, crc32c) = (F_BLOCK.get(from), F_COUNT.get_u32(from), F_CRC.get_u32(from));
        let entry = match F_KIND.get(from) {
            kind @ (KIND_DIRTY | KIND_CLEAN) => {
                if count != 1 {
                    return Err(entry::STRUCTURE.wrong(F_COUNT, u64::from(count)));
                }
                let sector_mask = F_SECTORS.get(from) as u8;
                let flush_epoch = F_FLUSH_EPOCH.get_u32(from);
                Self::Data { volume, block, crc32c, sector_mask, dirty: kind == KIND_DIRTY, flush_epoch }
            }
            kind @ (KIND_CLEAN_MARK | KIND_DROP_MARK) => {
                unused(&[F_CRC, F_VOLUME, F_SECTORS, F_FLUSH_EPOCH])?;
                let slot = Slot(u32::try_from(block).map_err(|_| entry::STRUCTURE.wrong(F_BLOCK, block))?);
                match kind {
                    KIND_CLEAN_MARK => Self::CleanMark { slot, count },
                    _ => Self::DropMark { slot, count },
                }
            }
            KIND_INTENT => {
                unused(&[F_CRC, F_SECTORS, F_FLUSH_EPOCH])?;
                Self::Intent { volume, region: block, count }
            }
            KIND_SUMMARY => {
                unused(&[F_BLOCK, F_VOLUME, F_SECTORS, F_FLUSH_EPOCH])?;
                Self::Summary { slots: count, crc32c }
            }
            other => return Err(entry::STRUCTURE.wrong(F_KIND, other)),
        };
        entry.check()?;
        Ok(entry)
    }

    /// The bounds that hold on both sides of the device: asserted before an entry is written,
    /// checked after it is read.
    fn check(&self) -> Result<(), FormatError> {
        use entry::{F_BLOCK, F_COUNT, F_FLUSH_EPOCH, F_SECTORS, F_VOLUME};
        if let Self::Data { volume, .. } | Self::Intent { volume, .. } = self
            && u32::from(volume.0) >= VOLUMES_MAX
        {
            return Err(entry::STRUCTURE.wrong(F_VOLUME, u64::from(volume.0)));
        }
        let range = |first: u64, count: u32, end: u64| {
            if count == 0 || u64::from(count) > end {
                return Err(entry::STRUCTURE.wrong(F_COUNT, u64::from(count)));
            }
            if first > end - u64::from(count) {
                return Err(entry::STRUCTURE.wrong(F_BLOCK, first));
            }
            Ok(())
        };
        match *self {
            Self::Data { sector_mask: 0, .. } => Err(entry::STRUCTURE.wrong(F_SECTORS, 0)),
            Self::Data { dirty: false, flush_epoch: epoch @ 1.., .. } => {
                Err(entry::STRUCTURE.wrong(F_FLUSH_EPOCH, u64::from(epoch)))
            }
            Self::Data { block, .. } => range(block, 1, VOLUME_BLOCKS_MAX),
            Self::CleanMark { slot, count } | Self::DropMark { slot, count } => {
                range(u64::from(slot.0), count, 1 << u32::BITS)
            }
            Self::Intent { region, count, .. } => range(region, count, REGIONS_MAX),
            Self::Summary { slots, .. } => range(0, slots, u64::from(SEGMENT_BLOCKS_MAX)),
        }
    }
}

/// A batch header without its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Records or summary.
    pub kind: BatchKind,
    /// Stream that the batch belongs to.
    pub stream: StreamKind,
    /// First bytes of the cache's uuid.
    pub uuid_tag: u64,
    /// Number of the start that wrote it, see [`crate::superblock::Superblock::epoch`].
    pub epoch: u64,
    /// Position in the order of all batches of the cache.
    pub sequence: u64,
    /// Position in the order of the stream's batches, without gaps.
    pub stream_sequence: u64,
    /// All batches of the stream before this number were covered by a device flush when this one
    /// was built.
    pub flushed_stream_sequence: u64,
    /// Segment that the batch was written to.
    pub segment: u32,
    /// Block in the segment that holds the header.
    pub block_in_segment: u32,
    /// Payload blocks that follow the header.
    pub payload_blocks: u16,
}

impl BatchHeader {
    /// Encodes header and entries into `to`, which must be one block.
    ///
    /// # Panics
    /// If `to` is not one block, or [`BatchHeader::decode`] would refuse the result (too many
    /// entries, entries out of bounds or not of the batch's kind, payload of another length): a bug
    /// of the caller, better detected now than by the recovery that needs the batch.
    pub fn encode(&self, entries: &[Entry], to: &mut [u8]) {
        assert!(to.len() == BLOCK_BYTES && entries.len() <= ENTRIES_MAX, "batch header out of bounds");
        assert_eq!(entries.iter().try_for_each(Entry::check), Ok(()), "batch entry out of bounds");
        assert_eq!(self.check(entries), Ok(()), "batch header and entries do not fit together");
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

    /// Decodes a header block and replaces the contents of `entries` with its entries.
    ///
    /// # Errors
    /// Not a header, torn, of a newer version, or with inconsistent fields; `entries` is then
    /// empty. The caller checks identity and position, see [`BatchHeader::check_place`].
    pub fn decode(block: &[u8], entries: &mut Vec<Entry>) -> Result<Self, FormatError> {
        entries.clear();
        let decoded = Self::decode_into(block, entries);
        if decoded.is_err() {
            entries.clear();
        }
        decoded
    }

    fn decode_into(block: &[u8], entries: &mut Vec<Entry>) -> Result<Self, FormatError> {
        check_envelope(&header::STRUCTURE, block, (F_MAGIC, &MAGIC), (F_VERSION, VERSION), F_CRC)?;
        let bad = |field, value| header::STRUCTURE.wrong(field, value);
        let kind = match F_KIND.get(block) {
            1 => BatchKind::Records,
            2 => BatchKind::Summary,
            other => return Err(bad(F_KIND, other)),
        };
        let stream = F_STREAM.get(block) as u8;
        let stream = StreamKind::from_u8(stream).ok_or(bad(F_STREAM, u64::from(stream)))?;
        let count = F_ENTRIES.get(block) as usize;
        if count > ENTRIES_MAX {
            return Err(bad(F_ENTRIES, count as u64));
        }
        let (used, unused) = F_TABLE.bytes(block).split_at(count * entry::STRUCTURE.len);
        // Searching for the nonzero byte is slower, byte by byte, and most headers have none.
        if unused.iter().fold(0, |any, byte| any | byte) != 0
            && let Some(byte) = unused.iter().find(|byte| **byte != 0)
        {
            return Err(bad(F_TABLE, u64::from(*byte)));
        }
        for bytes in used.chunks_exact(entry::STRUCTURE.len) {
            entries.push(Entry::decode(bytes)?);
        }
        let header = Self {
            kind,
            stream,
            uuid_tag: F_UUID_TAG.get(block),
            epoch: F_EPOCH.get(block),
            sequence: F_SEQUENCE.get(block),
            stream_sequence: F_STREAM_SEQUENCE.get(block),
            flushed_stream_sequence: F_FLUSHED.get(block),
            segment: F_SEGMENT.get_u32(block),
            block_in_segment: F_BLOCK.get_u32(block),
            payload_blocks: F_PAYLOAD.get(block) as u16,
        };
        header.check(entries)?;
        Ok(header)
    }

    /// Constraints between the fields and the entries, checked before writing and after reading.
    fn check(&self, entries: &[Entry]) -> Result<(), FormatError> {
        let bad = |field, value| Err(header::STRUCTURE.wrong(field, value));
        let payload_blocks = match (self.kind, entries) {
            (BatchKind::Summary, [Entry::Summary { slots, .. }]) => summary::payload_blocks(*slots) as usize,
            (BatchKind::Records, entries) if !entries.iter().any(|e| matches!(e, Entry::Summary { .. })) => {
                entries.iter().filter(|entry| entry.has_payload()).count()
            }
            _ => return bad(F_KIND, self.kind as u64),
        };
        if usize::from(self.payload_blocks) != payload_blocks {
            return bad(F_PAYLOAD, u64::from(self.payload_blocks));
        }
        if self.flushed_stream_sequence > self.stream_sequence {
            return bad(F_FLUSHED, self.flushed_stream_sequence);
        }
        if u64::from(self.block_in_segment) + 1 + payload_blocks as u64 > u64::from(SEGMENT_BLOCKS_MAX) {
            return bad(F_BLOCK, u64::from(self.block_in_segment));
        }
        Ok(())
    }

    /// Checks that the header belongs to this cache and was written for this place.
    ///
    /// # Errors
    /// [`FormatError::Misplaced`] naming the field.
    pub fn check_place(
        &self,
        uuid: CacheUuid,
        segment: u32,
        block_in_segment: u32,
    ) -> Result<(), FormatError> {
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
