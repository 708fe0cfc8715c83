//! Checkpoints: the whole state of the cache at one instant, apart from the log behind it.
//!
//! A checkpoint is a header block and a body, written to the two slots of its generation's parity.
//! It takes effect when the superblock names its generation. The body holds, in this order: the
//! volume table, one segment entry per segment, two state bits per slot for every segment that is
//! in use, the append window, and the write intents.
//!
//! That is a **whole** checkpoint. Its cost is proportional to the size of the cache. In large
//! caches a checkpoint is a chain instead ([`increment`]): a whole checkpoint or a base with the
//! state of all segments, followed by increments with the changes.
//!
//! The **append window** lists the segments that may be taken before the next checkpoint. A segment
//! enters a window only if the same checkpoint has it as empty; open segments are only appended to,
//! behind their used blocks. So after any crash, the blocks that the newest checkpoint lists as
//! valid have not been overwritten, and the log after it lies behind the used blocks of open
//! segments and in the window, and nowhere else.

use crate::error::FormatError;
use crate::layout::{Field, Structure, check_envelope, check_zero, crc_without, structure};
use crate::units::{
    BLOCK_BYTES, CacheUuid, INTENTS_MAX, SEGMENT_BLOCKS_MAX, StreamKind, VERSION, VOLUME_BLOCKS_MAX,
    VOLUMES_MAX, VolumeId,
};

pub mod increment;
mod slots;
pub(crate) mod volume;
pub use slots::{SlotState, SlotStates};
pub use volume::{BackingRecord, Mode, NAME_BYTES_MAX, SAMPLES_MAX, VolumeEntry};

/// Blocks of a volume in one write-intent region (64 MiB): small enough that a crash invalidates
/// little of the clean cache, large enough that a busy volume needs few intents.
pub const INTENT_REGION_BLOCKS: u64 = 16384;
/// Regions of the largest volume.
pub(crate) const REGIONS_MAX: u64 = VOLUME_BLOCKS_MAX / INTENT_REGION_BLOCKS;

pub(crate) mod header {
    use super::structure;
    structure! { "checkpoint header", 4096;
        F_MAGIC = "magic", 0, 8;
        F_VERSION = "version", 8, 4;
        F_VOLUMES = "volume_count", 12, 4;
        F_UUID = "uuid", 16, 16;
        F_GENERATION = "generation", 32, 8;
        F_EPOCH = "epoch", 40, 8;
        F_SEQUENCE = "next_sequence", 48, 8;
        F_STREAM_0 = "next_stream_sequence_write", 56, 8;
        F_STREAM_1 = "next_stream_sequence_fill", 64, 8;
        F_STREAM_2 = "next_stream_sequence_survivor", 72, 8;
        F_SEGMENTS = "segment_count", 80, 4;
        F_WINDOW = "window_count", 84, 4;
        F_INTENTS = "intent_count", 88, 4;
        F_BODY_CRC = "body_crc32c", 92, 4;
        F_BODY_BYTES = "body_bytes", 96, 8;
        F_SEGMENT_BLOCKS = "segment_blocks", 104, 4;
        F_CHANGES = "change_count", 108, 4;
        F_FOLLOWS = "follows_generation", 112, 8;
        F_RESERVED = "reserved", 120, 3972;
        F_CRC = "crc32c", 4092, 4;
    }
}

pub(crate) mod segment {
    use super::structure;
    structure! { "segment entry", 32;
        F_SEQUENCE = "first_stream_sequence", 0, 8;
        F_BORN = "first_sequence", 8, 8;
        F_USED = "used_blocks", 16, 4;
        F_SUMMARY = "summary_block", 20, 4;
        F_STATE = "state", 24, 1;
        F_STREAM = "stream", 25, 1;
        F_RESERVED = "reserved", 26, 6;
    }
}

pub(crate) mod intent {
    use super::structure;
    structure! { "intent", 16;
        F_REGION = "region", 0, 8;
        F_COUNT = "count", 8, 4;
        F_VOLUME = "volume", 12, 2;
        F_RESERVED = "reserved", 14, 2;
    }
}

/// First bytes of a checkpoint.
pub const MAGIC: [u8; 8] = *b"FBAYCKPT";

/// Size of a segment number in the append window.
const WINDOW_ITEM_BYTES: usize = 4;

/// State of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum SegmentState {
    /// Empty.
    #[default]
    Free = 0,
    /// Has batches, and more can follow.
    Open = 1,
    /// Has batches, and no more will follow.
    Sealed = 2,
    /// In a mirrored cache: a copy of the segment whose number is lower by half the number of
    /// segments.
    Twin = 3,
}

impl SegmentState {
    /// All states, in the order of their numbers on disk.
    const ALL: [Self; 4] = [Self::Free, Self::Open, Self::Sealed, Self::Twin];

    /// Returns whether the segment has batches and a slot table of its own.
    #[must_use]
    pub fn has_slots(self) -> bool {
        matches!(self, Self::Open | Self::Sealed)
    }
}

/// A segment in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentEntry {
    /// Free, open or sealed.
    pub state: SegmentState,
    /// Stream number; meaningless for free segments.
    pub stream: u8,
    /// Stream sequence of the first batch in the segment.
    pub first_stream_sequence: u64,
    /// Sequence of the first batch in the segment: its age.
    pub first_sequence: u64,
    /// Blocks from the start that hold complete batches.
    pub used_blocks: u32,
    /// Block of the summary's header; 0 if there is no summary.
    pub summary_block: u32,
    /// State of each slot; empty for free segments.
    pub slots: SlotStates,
}

/// A range of regions with write intent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Intent {
    /// Volume.
    pub volume: VolumeId,
    /// First region.
    pub region: u64,
    /// Consecutive regions.
    pub count: u32,
}

/// Contents of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Increases with every checkpoint.
    pub generation: u64,
    /// Number of the start that wrote it.
    pub epoch: u64,
    /// Batches with a lower sequence are included here; this one and later ones must be replayed.
    pub next_sequence: u64,
    /// The same, by stream.
    pub next_stream_sequence: [u64; 3],
    /// Blocks of a segment, for the length of the slot tables.
    pub segment_blocks: u32,
    /// Volume table.
    pub volumes: Vec<VolumeEntry>,
    /// All segments of the device.
    pub segments: Vec<SegmentEntry>,
    /// Segments that may be written before the next checkpoint, in the order of use.
    pub window: Vec<u32>,
    /// Regions in which bypass writes can be in flight.
    pub intents: Vec<Intent>,
}

/// Blocks that a checkpoint slot needs for this many segments, with the most volumes and intents.
#[must_use]
pub fn slot_blocks_for(segments: u64, segment_blocks: u32) -> u64 {
    1 + (FIXED_BYTES + segments * segment_bytes(segment_blocks)).div_ceil(BLOCK_BYTES as u64)
}

/// Segments for which a checkpoint slot of this many blocks has room, with the most volumes and
/// intents.
pub(crate) fn segments_in_slot(slot_blocks: u64, segment_blocks: u32) -> u64 {
    let body = slot_blocks.saturating_sub(1) * BLOCK_BYTES as u64;
    body.saturating_sub(FIXED_BYTES) / segment_bytes(segment_blocks)
}

/// Bytes of a checkpoint's body for the most volumes and intents.
const FIXED_BYTES: u64 =
    VOLUMES_MAX as u64 * volume::STRUCTURE.len as u64 + INTENTS_MAX as u64 * intent::STRUCTURE.len as u64;

/// Most bytes of a checkpoint's body for one segment.
fn segment_bytes(segment_blocks: u32) -> u64 {
    (segment::STRUCTURE.len + slot_table_bytes(segment_blocks) + WINDOW_ITEM_BYTES) as u64
}

fn slot_table_bytes(segment_blocks: u32) -> usize {
    (segment_blocks as usize).div_ceil(4)
}

impl Checkpoint {
    /// Encodes header and body, padded to whole blocks. Truncates a long volume name and a long
    /// list of samples; pads a short slot table with void slots.
    ///
    /// # Panics
    /// If [`Checkpoint::decode`] would refuse the result (too many volumes or intents, numbers out
    /// of bounds): a bug of the caller, better detected now than by the recovery that needs the
    /// checkpoint.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_with(|number, to| to.extend_from_slice(self.segments[number].slots.packed()))
    }

    /// Like [`Checkpoint::encode`], with slot tables from elsewhere: calls `append_slots` with the
    /// number of each segment that is in use, to append the bytes of [`SlotStates::packed`].
    ///
    /// # Panics
    /// As [`Checkpoint::encode`].
    #[must_use]
    pub fn encode_with(&self, mut append_slots: impl FnMut(usize, &mut Vec<u8>)) -> Vec<u8> {
        assert_eq!(self.check(), Ok(()), "checkpoint out of bounds");
        let used = self.segments.iter().filter(|entry| entry.state.has_slots()).count();
        let body = self.volumes.len() * volume::STRUCTURE.len
            + self.segments.len() * segment::STRUCTURE.len
            + used * slot_table_bytes(self.segment_blocks)
            + self.window.len() * WINDOW_ITEM_BYTES
            + self.intents.len() * intent::STRUCTURE.len;
        let mut bytes = Vec::with_capacity(BLOCK_BYTES + body.next_multiple_of(BLOCK_BYTES));
        bytes.resize(BLOCK_BYTES, 0);
        self.put_volumes(&mut bytes);
        for entry in &self.segments {
            encode_segment(entry, &mut bytes);
        }
        let table_bytes = slot_table_bytes(self.segment_blocks);
        for (number, _) in self.segments.iter().enumerate().filter(|(_, entry)| entry.state.has_slots()) {
            let end = bytes.len() + table_bytes;
            append_slots(number, &mut bytes);
            bytes.resize(end, 0);
        }
        self.put_rest(&mut bytes);
        self.finish(&Part::WHOLE, self.segments.len(), bytes)
    }

    fn put_volumes(&self, to: &mut Vec<u8>) {
        for volume in &self.volumes {
            volume::encode(volume, to);
        }
    }

    fn put_rest(&self, to: &mut Vec<u8>) {
        for segment in &self.window {
            to.extend_from_slice(&segment.to_le_bytes());
        }
        for item in &self.intents {
            encode_intent(*item, to);
        }
    }

    /// Pads `bytes`, which has the body behind one block, and writes the header to that block.
    fn finish(&self, part: &Part, segments: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        let body = (bytes.len() - BLOCK_BYTES, crc32c::crc32c(&bytes[BLOCK_BYTES..]));
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        self.encode_header(part, segments, body, &mut bytes[..BLOCK_BYTES]);
        bytes
    }

    /// `body`: its length in bytes and its checksum.
    fn encode_header(&self, part: &Part, segments: usize, body: (usize, u32), to: &mut [u8]) {
        use header as h;
        h::F_MAGIC.put_bytes(to, &part.magic);
        h::F_VERSION.put(to, u64::from(VERSION));
        h::F_VOLUMES.put(to, self.volumes.len() as u64);
        h::F_UUID.put_bytes(to, &self.uuid.0);
        h::F_GENERATION.put(to, self.generation);
        h::F_EPOCH.put(to, self.epoch);
        h::F_SEQUENCE.put(to, self.next_sequence);
        for (field, value) in
            [h::F_STREAM_0, h::F_STREAM_1, h::F_STREAM_2].into_iter().zip(self.next_stream_sequence)
        {
            field.put(to, value);
        }
        h::F_SEGMENTS.put(to, segments as u64);
        h::F_WINDOW.put(to, self.window.len() as u64);
        h::F_INTENTS.put(to, self.intents.len() as u64);
        h::F_BODY_CRC.put(to, u64::from(body.1));
        h::F_BODY_BYTES.put(to, body.0 as u64);
        h::F_SEGMENT_BLOCKS.put(to, u64::from(self.segment_blocks));
        h::F_CHANGES.put(to, u64::from(part.changes));
        h::F_FOLLOWS.put(to, part.follows);
        let crc = crc_without(to, h::F_CRC);
        h::F_CRC.put(to, u64::from(crc));
    }

    /// Decodes a checkpoint slot.
    ///
    /// # Errors
    /// Not a checkpoint, torn, of a newer version, or with inconsistent counts and fields.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (checkpoint, part) = Self::decode_all(bytes, &MAGIC)?;
        if part.follows != 0 {
            return Err(header::STRUCTURE.wrong(header::F_FOLLOWS, part.follows));
        }
        Ok(checkpoint)
    }

    /// Decodes a part with the state of all segments: a whole checkpoint or a base.
    fn decode_all(bytes: &[u8], magic: &[u8; 8]) -> Result<(Self, Part), FormatError> {
        let (mut checkpoint, part, mut body) = Self::decode_header(bytes, magic)?;
        checkpoint.take_volumes(bytes, &mut body)?;
        let count = header::F_SEGMENTS.get_u32(bytes);
        checkpoint.segments = body.items(count, segment::STRUCTURE.len, decode_segment)?;
        let table_bytes = slot_table_bytes(checkpoint.segment_blocks);
        for entry in checkpoint.segments.iter_mut().filter(|entry| entry.state.has_slots()) {
            entry.slots = SlotStates::from_packed(body.take(table_bytes)?.to_vec());
        }
        checkpoint.take_rest(bytes, &mut body)?;
        checkpoint.check()?;
        if part.changes != 0 {
            return Err(header::STRUCTURE.wrong(header::F_CHANGES, u64::from(part.changes)));
        }
        Ok((checkpoint, part))
    }

    /// Decodes a header; also returns the body.
    fn decode_header<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<(Self, Part, Cursor<'a>), FormatError> {
        use header as h;
        let body = Self::checked_body(bytes, magic)?;
        let segment_blocks = h::F_SEGMENT_BLOCKS.get_u32(bytes);
        if segment_blocks > SEGMENT_BLOCKS_MAX {
            return Err(h::STRUCTURE.wrong(h::F_SEGMENT_BLOCKS, u64::from(segment_blocks)));
        }
        let checkpoint = Self {
            uuid: CacheUuid(h::F_UUID.array(bytes)),
            generation: h::F_GENERATION.get(bytes),
            epoch: h::F_EPOCH.get(bytes),
            next_sequence: h::F_SEQUENCE.get(bytes),
            next_stream_sequence: [h::F_STREAM_0, h::F_STREAM_1, h::F_STREAM_2].map(|f| f.get(bytes)),
            segment_blocks,
            ..Self::default()
        };
        let (changes, follows) = (h::F_CHANGES.get_u32(bytes), h::F_FOLLOWS.get(bytes));
        Ok((checkpoint, Part { magic: *magic, changes, follows }, Cursor { left: body }))
    }

    /// Takes the part that begins every body.
    fn take_volumes(&mut self, bytes: &[u8], body: &mut Cursor<'_>) -> Result<(), FormatError> {
        let count = header::F_VOLUMES.get_u32(bytes);
        self.volumes = body.items(count, volume::STRUCTURE.len, volume::decode)?;
        Ok(())
    }

    /// Takes the part that ends every body.
    fn take_rest(&mut self, bytes: &[u8], body: &mut Cursor<'_>) -> Result<(), FormatError> {
        use header as h;
        self.window = body.items(h::F_WINDOW.get_u32(bytes), WINDOW_ITEM_BYTES, decode_number)?;
        self.intents = body.items(h::F_INTENTS.get_u32(bytes), intent::STRUCTURE.len, decode_intent)?;
        if !body.left.is_empty() {
            return Err(h::STRUCTURE.wrong(h::F_BODY_BYTES, h::F_BODY_BYTES.get(bytes)));
        }
        Ok(())
    }

    /// Checks header and checksums, and returns the body.
    fn checked_body<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<&'a [u8], FormatError> {
        use header as h;
        let name = increment::name_of(magic);
        let structure = Structure { name, ..h::STRUCTURE };
        check_envelope(&structure, bytes, (h::F_MAGIC, magic), (h::F_VERSION, VERSION), h::F_CRC)?;
        check_zero(&structure, bytes, &[h::F_RESERVED])?;
        let body_bytes = h::F_BODY_BYTES.get(bytes);
        let end = usize::try_from(body_bytes).ok().and_then(|body| body.checked_add(BLOCK_BYTES));
        let Some(body) = end.and_then(|end| bytes.get(BLOCK_BYTES..end)) else {
            return Err(FormatError::TooShort {
                structure: name,
                needed: end.unwrap_or(usize::MAX),
                found: bytes.len(),
            });
        };
        let (found, computed) = (h::F_BODY_CRC.get_u32(bytes), crc32c::crc32c(body));
        if found != computed {
            return Err(FormatError::Checksum { structure: "checkpoint body", found, computed });
        }
        Ok(body)
    }

    /// The bounds that hold on both sides of the device: asserted before writing, checked after
    /// reading.
    fn check(&self) -> Result<(), FormatError> {
        use header as h;
        most(h::F_WINDOW, self.window.len(), self.segments.len() as u64)?;
        self.check_but_segments()?;
        self.check_window()?;
        self.segments.iter().try_for_each(|entry| check_segment(entry, self.segment_blocks))
    }

    /// Checks the bounds of the parts that do not belong to segments.
    fn check_but_segments(&self) -> Result<(), FormatError> {
        use header as h;
        most(h::F_VOLUMES, self.volumes.len(), u64::from(VOLUMES_MAX))?;
        most(h::F_INTENTS, self.intents.len(), u64::from(INTENTS_MAX))?;
        most(h::F_SEGMENT_BLOCKS, self.segment_blocks as usize, u64::from(SEGMENT_BLOCKS_MAX))?;
        volume::check_table(&self.volumes)?;
        self.intents.iter().try_for_each(check_intent)
    }

    /// Checks that the window lists only empty segments, each once.
    fn check_window(&self) -> Result<(), FormatError> {
        let mut free: Vec<bool> = self.segments.iter().map(|s| s.state == SegmentState::Free).collect();
        for segment in &self.window {
            match free.get_mut(*segment as usize) {
                Some(free @ true) => *free = false,
                _ => {
                    let value = u64::from(*segment);
                    return Err(FormatError::Field { structure: "append window", field: "segment", value });
                }
            }
        }
        Ok(())
    }
}

/// The part of a chain that a header begins, and its specific fields.
#[derive(Clone, Copy, Debug)]
struct Part {
    magic: [u8; 8],
    /// Changes of slots that an increment lists.
    changes: u32,
    /// Generation of the checkpoint in effect when this part was begun.
    follows: u64,
}

impl Part {
    const WHOLE: Self = Self { magic: MAGIC, changes: 0, follows: 0 };
}

/// Reads the body front to back; never past its end.
struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, tail)) = self.left.split_at_checked(len) else {
            return Err(FormatError::TooShort {
                structure: "checkpoint body",
                needed: len,
                found: self.left.len(),
            });
        };
        self.left = tail;
        Ok(head)
    }

    fn items<T>(
        &mut self,
        count: u32,
        len: usize,
        decode: impl Fn(&[u8]) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let bytes = self.take((count as usize).saturating_mul(len))?;
        bytes.chunks_exact(len).map(decode).collect()
    }
}

fn most(field: Field, found: usize, most: u64) -> Result<(), FormatError> {
    if found as u64 > most { Err(header::STRUCTURE.wrong(field, found as u64)) } else { Ok(()) }
}

fn grow(to: &mut Vec<u8>, len: usize) -> &mut [u8] {
    let start = to.len();
    to.resize(start + len, 0);
    &mut to[start..]
}

fn decode_number(item: &[u8]) -> Result<u32, FormatError> {
    Ok(u32::from_le_bytes([item[0], item[1], item[2], item[3]]))
}

fn encode_segment(entry: &SegmentEntry, to: &mut Vec<u8>) {
    use segment as s;
    let to = grow(to, s::STRUCTURE.len);
    s::F_SEQUENCE.put(to, entry.first_stream_sequence);
    s::F_BORN.put(to, entry.first_sequence);
    s::F_USED.put(to, u64::from(entry.used_blocks));
    s::F_SUMMARY.put(to, u64::from(entry.summary_block));
    s::F_STATE.put(to, entry.state as u64);
    s::F_STREAM.put(to, u64::from(entry.stream));
}

fn decode_segment(from: &[u8]) -> Result<SegmentEntry, FormatError> {
    use segment as s;
    check_zero(&s::STRUCTURE, from, &[s::F_RESERVED])?;
    let state = s::F_STATE.get(from);
    let state = SegmentState::ALL.get(state as usize).ok_or(s::STRUCTURE.wrong(s::F_STATE, state))?;
    Ok(SegmentEntry {
        state: *state,
        stream: s::F_STREAM.get(from) as u8,
        first_stream_sequence: s::F_SEQUENCE.get(from),
        first_sequence: s::F_BORN.get(from),
        used_blocks: s::F_USED.get_u32(from),
        summary_block: s::F_SUMMARY.get_u32(from),
        slots: SlotStates::default(),
    })
}

fn check_segment(entry: &SegmentEntry, segment_blocks: u32) -> Result<(), FormatError> {
    if StreamKind::from_u8(entry.stream).is_none() {
        return Err(segment::STRUCTURE.wrong(segment::F_STREAM, u64::from(entry.stream)));
    }
    if entry.used_blocks > segment_blocks {
        return Err(segment::STRUCTURE.wrong(segment::F_USED, u64::from(entry.used_blocks)));
    }
    if entry.summary_block != 0 && entry.summary_block >= segment_blocks {
        return Err(segment::STRUCTURE.wrong(segment::F_SUMMARY, u64::from(entry.summary_block)));
    }
    Ok(())
}

fn encode_intent(item: Intent, to: &mut Vec<u8>) {
    let to = grow(to, intent::STRUCTURE.len);
    intent::F_REGION.put(to, item.region);
    intent::F_COUNT.put(to, u64::from(item.count));
    intent::F_VOLUME.put(to, u64::from(item.volume.0));
}

fn decode_intent(from: &[u8]) -> Result<Intent, FormatError> {
    check_zero(&intent::STRUCTURE, from, &[intent::F_RESERVED])?;
    Ok(Intent {
        volume: VolumeId(intent::F_VOLUME.get(from) as u16),
        region: intent::F_REGION.get(from),
        count: intent::F_COUNT.get_u32(from),
    })
}

fn check_intent(item: &Intent) -> Result<(), FormatError> {
    let bad = |field, value| Err(intent::STRUCTURE.wrong(field, value));
    if u32::from(item.volume.0) >= VOLUMES_MAX {
        return bad(intent::F_VOLUME, u64::from(item.volume.0));
    }
    if item.count == 0 || u64::from(item.count) > REGIONS_MAX {
        return bad(intent::F_COUNT, u64::from(item.count));
    }
    if item.region > REGIONS_MAX - u64::from(item.count) {
        return bad(intent::F_REGION, item.region);
    }
    Ok(())
}
