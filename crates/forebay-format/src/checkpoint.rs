//! Checkpoints: the whole truth about the cache at one instant, apart from what the log says afterwards.
//!
//! A checkpoint is a header block and a body, written to the two slots of its generation's parity. It takes effect
//! when the superblock names its generation. The body holds, in this order: the volume table, one segment entry per
//! segment, two state bits per slot for every segment that is in use, the append window, and the write intents.
//!
//! The **append window** lists the segments that may be written before the next checkpoint. A segment enters a window
//! only if this very checkpoint says that it holds nothing: so whatever a crash leaves behind, the blocks that the
//! newest checkpoint calls valid have not been written over, and the log after it lies in the window and nowhere else.

use crate::geometry::{INTENTS_MAX, VOLUMES_MAX};
use crate::layout::{check_envelope, crc_without, structure};
use crate::units::{BLOCK_BYTES, CacheUuid, StreamKind, VolumeId};
use crate::{FormatError, VERSION};

/// Blocks of a volume in one write-intent region (64 MiB): small enough that a crash forgets little of the clean
/// cache, large enough that a busy volume pays for few intents.
pub const INTENT_REGION_BLOCKS: u64 = 16384;
/// Sampled checksums kept per volume.
pub const SAMPLES_MAX: usize = 16;
/// Longest volume name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

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
        F_RESERVED = "reserved", 108, 3984;
        F_CRC = "crc32c", 4092, 4;
    }
}

pub(crate) mod volume {
    use super::structure;
    structure! { "volume entry", 512;
        F_ID = "id", 0, 2;
        F_MODE = "mode", 2, 1;
        F_FLAGS = "flags", 3, 1;
        F_NAME_LEN = "name_bytes", 4, 2;
        F_SAMPLES = "sample_count", 6, 2;
        F_SIZE = "size_bytes", 8, 8;
        F_UUID = "uuid", 16, 16;
        F_NAME = "name", 32, 64;
        F_KIND = "backing_kind", 96, 4;
        F_RESERVED_A = "reserved_a", 100, 4;
        F_BACKING_SIZE = "backing_size_bytes", 104, 8;
        F_UNIQUE_0 = "backing_unique_0", 112, 8;
        F_UNIQUE_1 = "backing_unique_1", 120, 8;
        F_STAMP = "backing_stamp_ns", 128, 8;
        F_SAMPLE_TABLE = "samples", 136, 192;
        F_RESERVED = "reserved", 328, 184;
    }
}

pub(crate) mod segment {
    use super::structure;
    structure! { "segment entry", 24;
        F_SEQUENCE = "first_stream_sequence", 0, 8;
        F_USED = "used_blocks", 8, 4;
        F_SUMMARY = "summary_block", 12, 4;
        F_STATE = "state", 16, 1;
        F_STREAM = "stream", 17, 1;
        F_RESERVED = "reserved", 18, 6;
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

const SAMPLE_BYTES: usize = 12;
const _: () = assert!(volume::F_SAMPLE_TABLE.len == SAMPLES_MAX * SAMPLE_BYTES);
const _: () = assert!(volume::F_NAME.len == NAME_BYTES_MAX);

/// How a volume uses the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Writes are acknowledged by the cache and destaged later.
    #[default]
    Writeback = 1,
    /// Writes go to cache and backing store before they are acknowledged.
    Writethrough = 2,
    /// Writes go to the backing store and remove what the cache held.
    Writearound = 3,
    /// As write-back, but reads are not cached.
    Writeonly = 4,
    /// Nothing new is cached.
    Passthrough = 5,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 5] =
        [Self::Writeback, Self::Writethrough, Self::Writearound, Self::Writeonly, Self::Passthrough];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::Writearound => "writearound",
            Self::Writeonly => "writeonly",
            Self::Passthrough => "passthrough",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// One volume in the volume table, with what is needed to recognise its backing store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeEntry {
    /// Number of the volume on this cache.
    pub id: VolumeId,
    /// Mode it was last run in.
    pub mode: Mode,
    /// Name, at most [`NAME_BYTES_MAX`] bytes of UTF-8.
    pub name: String,
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// What the backing store looked like when this entry was written.
    pub backing: BackingRecord,
}

/// What was noted of a backing store, to notice that it changed while the cache was away.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BackingRecord {
    /// 1 file, 2 block device, 3 other.
    pub kind: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What identifies it on its host: device and inode of a file, numbers of a block device.
    pub unique: [u64; 2],
    /// Modification stamp at an orderly stop, nanoseconds since 1970; `None` while in use.
    pub stamp_ns: Option<i64>,
    /// Checksums of some blocks at an orderly stop: `(block, CRC32C)`.
    pub samples: Vec<(u64, u32)>,
}

/// What a segment holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SegmentState {
    /// Nothing.
    #[default]
    Free,
    /// Batches, and more may follow.
    Open,
    /// Batches, and no more will follow.
    Sealed,
}

/// One segment as a checkpoint describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentEntry {
    /// Free, open or sealed.
    pub state: SegmentState,
    /// Stream number; meaningless for free segments.
    pub stream: u8,
    /// Stream sequence of the first batch in the segment.
    pub first_stream_sequence: u64,
    /// Blocks from the start that hold complete batches.
    pub used_blocks: u32,
    /// Block of the summary's header; 0 if there is no summary.
    pub summary_block: u32,
    /// State of each slot; empty for free segments.
    pub slots: Vec<SlotState>,
}

/// What a slot holds according to a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum SlotState {
    /// Nothing that counts.
    #[default]
    Void = 0,
    /// A block that the backing store has too.
    Clean = 1,
    /// A block that only the cache has.
    Dirty = 2,
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
    /// Increases by one with every checkpoint.
    pub generation: u64,
    /// Start of the daemon that wrote it.
    pub epoch: u64,
    /// Batches with a lower sequence are accounted for here; those from it on must be replayed.
    pub next_sequence: u64,
    /// The same, by stream.
    pub next_stream_sequence: [u64; 3],
    /// Blocks of a segment, for the length of the slot tables.
    pub segment_blocks: u32,
    /// Volume table.
    pub volumes: Vec<VolumeEntry>,
    /// All segments of the device.
    pub segments: Vec<SegmentEntry>,
    /// Segments that may be written before the next checkpoint, in the order in which they will be taken.
    pub window: Vec<u32>,
    /// Regions in which writes past the cache may be under way.
    pub intents: Vec<Intent>,
}

/// Blocks that a checkpoint slot needs for this many segments, at the most volumes and intents.
#[must_use]
pub fn slot_blocks_for(segments: u64, segment_blocks: u32) -> u64 {
    let per_segment = segment::STRUCTURE.len as u64 + slot_table_bytes(segment_blocks) as u64 + 4;
    let body = u64::from(VOLUMES_MAX) * volume::STRUCTURE.len as u64
        + segments * per_segment
        + u64::from(INTENTS_MAX) * intent::STRUCTURE.len as u64;
    1 + body.div_ceil(BLOCK_BYTES as u64)
}

fn slot_table_bytes(segment_blocks: u32) -> usize {
    (segment_blocks as usize).div_ceil(4)
}

impl Checkpoint {
    /// Encodes header and body, padded to whole blocks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        use header as h;
        let mut bytes = vec![0; BLOCK_BYTES];
        for volume in &self.volumes {
            encode_volume(volume, &mut bytes);
        }
        for entry in &self.segments {
            encode_segment(entry, &mut bytes);
        }
        for entry in self.segments.iter().filter(|entry| entry.state != SegmentState::Free) {
            encode_slots(&entry.slots, self.segment_blocks, &mut bytes);
        }
        for segment in &self.window {
            bytes.extend_from_slice(&segment.to_le_bytes());
        }
        for item in &self.intents {
            encode_intent(*item, &mut bytes);
        }
        let body_bytes = bytes.len() - BLOCK_BYTES;
        let body_crc = crc32c::crc32c(&bytes[BLOCK_BYTES..]);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let to = &mut bytes[..BLOCK_BYTES];
        h::F_MAGIC.put_bytes(to, &MAGIC);
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
        h::F_SEGMENTS.put(to, self.segments.len() as u64);
        h::F_WINDOW.put(to, self.window.len() as u64);
        h::F_INTENTS.put(to, self.intents.len() as u64);
        h::F_BODY_CRC.put(to, u64::from(body_crc));
        h::F_BODY_BYTES.put(to, body_bytes as u64);
        h::F_SEGMENT_BLOCKS.put(to, u64::from(self.segment_blocks));
        let crc = crc_without(to, h::F_CRC);
        h::F_CRC.put(to, u64::from(crc));
        bytes
    }

    /// Decodes a checkpoint slot.
    ///
    /// # Errors
    /// Not a checkpoint, torn, of a newer version, or with counts and fields that do not fit together.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        use header as h;
        let name = h::STRUCTURE.name;
        check_envelope(&h::STRUCTURE, bytes, (h::F_MAGIC, &MAGIC), h::F_VERSION, h::F_CRC)?;
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
        let mut uuid = [0; 16];
        uuid.copy_from_slice(h::F_UUID.bytes(bytes));
        let segment_blocks = h::F_SEGMENT_BLOCKS.get_u32(bytes);
        let mut body = Cursor { left: body };
        let volumes = body.items(h::F_VOLUMES.get_u32(bytes), volume::STRUCTURE.len, decode_volume)?;
        let mut segments = body.items(h::F_SEGMENTS.get_u32(bytes), segment::STRUCTURE.len, decode_segment)?;
        for entry in segments.iter_mut().filter(|entry| entry.state != SegmentState::Free) {
            entry.slots = decode_slots(body.take(slot_table_bytes(segment_blocks))?, segment_blocks)?;
        }
        let window = body.items(h::F_WINDOW.get_u32(bytes), 4, |item| {
            Ok(u32::from_le_bytes([item[0], item[1], item[2], item[3]]))
        })?;
        let intents = body.items(h::F_INTENTS.get_u32(bytes), intent::STRUCTURE.len, |item| {
            Ok(Intent {
                volume: VolumeId(intent::F_VOLUME.get(item) as u16),
                region: intent::F_REGION.get(item),
                count: intent::F_COUNT.get_u32(item),
            })
        })?;
        Ok(Self {
            uuid: CacheUuid(uuid),
            generation: h::F_GENERATION.get(bytes),
            epoch: h::F_EPOCH.get(bytes),
            next_sequence: h::F_SEQUENCE.get(bytes),
            next_stream_sequence: [h::F_STREAM_0, h::F_STREAM_1, h::F_STREAM_2].map(|f| f.get(bytes)),
            segment_blocks,
            volumes,
            segments,
            window,
            intents,
        })
    }
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

fn grow(to: &mut Vec<u8>, len: usize) -> &mut [u8] {
    let start = to.len();
    to.resize(start + len, 0);
    &mut to[start..]
}

fn encode_volume(entry: &VolumeEntry, to: &mut Vec<u8>) {
    use volume as v;
    let to = grow(to, v::STRUCTURE.len);
    let backing = &entry.backing;
    let name = &entry.name.as_bytes()[..entry.name.len().min(NAME_BYTES_MAX)];
    let samples = &backing.samples[..backing.samples.len().min(SAMPLES_MAX)];
    v::F_ID.put(to, u64::from(entry.id.0));
    v::F_MODE.put(to, entry.mode as u64);
    v::F_FLAGS.put(to, u64::from(backing.stamp_ns.is_some()));
    v::F_NAME_LEN.put(to, name.len() as u64);
    v::F_SAMPLES.put(to, samples.len() as u64);
    v::F_SIZE.put(to, entry.size_bytes);
    v::F_UUID.put_bytes(to, &entry.uuid);
    v::F_NAME.put_bytes(to, name);
    v::F_KIND.put(to, u64::from(backing.kind));
    v::F_BACKING_SIZE.put(to, backing.size_bytes);
    v::F_UNIQUE_0.put(to, backing.unique[0]);
    v::F_UNIQUE_1.put(to, backing.unique[1]);
    v::F_STAMP.put(to, backing.stamp_ns.unwrap_or(0) as u64);
    let table = &mut to[v::F_SAMPLE_TABLE.offset..];
    for ((block, crc), item) in samples.iter().zip(table.chunks_exact_mut(SAMPLE_BYTES)) {
        item[..8].copy_from_slice(&block.to_le_bytes());
        item[8..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn decode_volume(from: &[u8]) -> Result<VolumeEntry, FormatError> {
    use volume as v;
    let bad = |field, value| FormatError::Field { structure: v::STRUCTURE.name, field, value };
    let mode = v::F_MODE.get(from);
    let mode = Mode::ALL.into_iter().find(|m| *m as u64 == mode).ok_or(bad(v::F_MODE.name, mode))?;
    let name_len = v::F_NAME_LEN.get(from) as usize;
    let name = v::F_NAME.bytes(from).get(..name_len).ok_or(bad(v::F_NAME_LEN.name, name_len as u64))?;
    let name = core::str::from_utf8(name).map_err(|_| bad(v::F_NAME.name, 0))?;
    let samples = v::F_SAMPLES.get(from) as usize;
    if samples > SAMPLES_MAX {
        return Err(bad(v::F_SAMPLES.name, samples as u64));
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(v::F_UUID.bytes(from));
    let table = v::F_SAMPLE_TABLE.bytes(from).chunks_exact(SAMPLE_BYTES).take(samples);
    let stamp = v::F_STAMP.get(from) as i64;
    Ok(VolumeEntry {
        id: VolumeId(v::F_ID.get(from) as u16),
        mode,
        name: name.into(),
        size_bytes: v::F_SIZE.get(from),
        uuid,
        backing: BackingRecord {
            kind: v::F_KIND.get_u32(from),
            size_bytes: v::F_BACKING_SIZE.get(from),
            unique: [v::F_UNIQUE_0.get(from), v::F_UNIQUE_1.get(from)],
            stamp_ns: (v::F_FLAGS.get(from) & 1 != 0).then_some(stamp),
            samples: table
                .map(|item| {
                    let word = |at: usize| {
                        u32::from_le_bytes([item[at], item[at + 1], item[at + 2], item[at + 3]])
                    };
                    (u64::from(word(0)) | u64::from(word(4)) << 32, word(8))
                })
                .collect(),
        },
    })
}

fn encode_segment(entry: &SegmentEntry, to: &mut Vec<u8>) {
    use segment as s;
    let to = grow(to, s::STRUCTURE.len);
    let state = match entry.state {
        SegmentState::Free => 0,
        SegmentState::Open => 1,
        SegmentState::Sealed => 2,
    };
    s::F_SEQUENCE.put(to, entry.first_stream_sequence);
    s::F_USED.put(to, u64::from(entry.used_blocks));
    s::F_SUMMARY.put(to, u64::from(entry.summary_block));
    s::F_STATE.put(to, state);
    s::F_STREAM.put(to, u64::from(entry.stream));
}

fn decode_segment(from: &[u8]) -> Result<SegmentEntry, FormatError> {
    use segment as s;
    let bad = |field, value| FormatError::Field { structure: s::STRUCTURE.name, field, value };
    let state = match s::F_STATE.get(from) {
        0 => SegmentState::Free,
        1 => SegmentState::Open,
        2 => SegmentState::Sealed,
        other => return Err(bad(s::F_STATE.name, other)),
    };
    let stream = s::F_STREAM.get(from) as u8;
    if StreamKind::from_u8(stream).is_none() {
        return Err(bad(s::F_STREAM.name, u64::from(stream)));
    }
    Ok(SegmentEntry {
        state,
        stream,
        first_stream_sequence: s::F_SEQUENCE.get(from),
        used_blocks: s::F_USED.get_u32(from),
        summary_block: s::F_SUMMARY.get_u32(from),
        slots: Vec::new(),
    })
}

fn encode_slots(slots: &[SlotState], segment_blocks: u32, to: &mut Vec<u8>) {
    let to = grow(to, slot_table_bytes(segment_blocks));
    for (index, state) in slots.iter().take(segment_blocks as usize).enumerate() {
        to[index / 4] |= (*state as u8) << (index % 4 * 2);
    }
}

fn decode_slots(from: &[u8], segment_blocks: u32) -> Result<Vec<SlotState>, FormatError> {
    (0..segment_blocks as usize)
        .map(|index| match from[index / 4] >> (index % 4 * 2) & 3 {
            0 => Ok(SlotState::Void),
            1 => Ok(SlotState::Clean),
            2 => Ok(SlotState::Dirty),
            _ => Err(FormatError::Field { structure: "slot table", field: "state", value: 3 }),
        })
        .collect()
}

fn encode_intent(item: Intent, to: &mut Vec<u8>) {
    let to = grow(to, intent::STRUCTURE.len);
    intent::F_REGION.put(to, item.region);
    intent::F_COUNT.put(to, u64::from(item.count));
    intent::F_VOLUME.put(to, u64::from(item.volume.0));
}
