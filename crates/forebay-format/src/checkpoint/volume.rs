//! The volume table: the cache's record of each volume and its backing store.

use super::grow;
use crate::error::FormatError;
use crate::layout::{check_zero, fitting, structure};
use crate::units::{BLOCK_BYTES, SECTOR_BYTES, VOLUME_BLOCKS_MAX, VOLUMES_MAX, VolumeId};

/// Sampled checksums kept per volume.
pub const SAMPLES_MAX: usize = 16;
/// Longest volume name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

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
    F_FLUSH_EPOCH = "flush_epoch", 328, 8;
    F_RESERVED = "reserved", 336, 176;
}

const SAMPLE_BYTES: usize = 12;
/// Flag bit: the modification stamp was taken at an orderly stop.
const FLAG_STAMP: u64 = 1;
const _: () = assert!(F_SAMPLE_TABLE.len == SAMPLES_MAX * SAMPLE_BYTES);
const _: () = assert!(F_NAME.len == NAME_BYTES_MAX);

/// Cache mode of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// The cache acknowledges writes and destages them later.
    #[default]
    Writeback = 1,
    /// Writes reach cache and backing store before they are acknowledged.
    Writethrough = 2,
    /// Writes go to the backing store and remove cached blocks.
    Writearound = 3,
    /// As write-back, but reads are not cached.
    Writeonly = 4,
    /// No block is added to the cache.
    Passthrough = 5,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 5] =
        [Self::Writeback, Self::Writethrough, Self::Writearound, Self::Writeonly, Self::Passthrough];

    /// The name that operators enter.
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

/// One volume in the volume table, with the facts that identify its backing store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeEntry {
    /// Number of the volume on this cache.
    pub id: VolumeId,
    /// Mode of its last run.
    pub mode: Mode,
    /// Name, at most [`NAME_BYTES_MAX`] bytes of UTF-8.
    pub name: String,
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// The open flush epoch, if the backing store alone is a crash-consistent older image of the
    /// volume; else 0.
    pub flush_epoch: u64,
    /// State of the backing store when this entry was written.
    pub backing: BackingRecord,
}

/// Facts about a backing store, to detect that it changed while the cache was not in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BackingRecord {
    /// 1 file, 2 block device, 3 other.
    pub kind: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Identity on its host: device and inode of a file, device numbers of a block device.
    pub unique: [u64; 2],
    /// Modification stamp at an orderly stop, nanoseconds since 1970; `None` while in use.
    pub stamp_ns: Option<i64>,
    /// Checksums of some blocks at an orderly stop: `(block, CRC32C)`.
    pub samples: Vec<(u64, u32)>,
}

pub(super) fn encode(entry: &VolumeEntry, to: &mut Vec<u8>) {
    let to = grow(to, STRUCTURE.len);
    let backing = &entry.backing;
    let name = fitting(&entry.name, NAME_BYTES_MAX).as_bytes();
    let samples = &backing.samples[..backing.samples.len().min(SAMPLES_MAX)];
    F_ID.put(to, u64::from(entry.id.0));
    F_MODE.put(to, entry.mode as u64);
    F_FLAGS.put(to, if backing.stamp_ns.is_some() { FLAG_STAMP } else { 0 });
    F_NAME_LEN.put(to, name.len() as u64);
    F_SAMPLES.put(to, samples.len() as u64);
    F_SIZE.put(to, entry.size_bytes);
    F_UUID.put_bytes(to, &entry.uuid);
    F_FLUSH_EPOCH.put(to, entry.flush_epoch);
    F_NAME.put_bytes(to, name);
    F_KIND.put(to, u64::from(backing.kind));
    F_BACKING_SIZE.put(to, backing.size_bytes);
    F_UNIQUE_0.put(to, backing.unique[0]);
    F_UNIQUE_1.put(to, backing.unique[1]);
    F_STAMP.put(to, backing.stamp_ns.unwrap_or(0) as u64);
    let table = &mut to[F_SAMPLE_TABLE.offset..];
    for ((block, crc), item) in samples.iter().zip(table.chunks_exact_mut(SAMPLE_BYTES)) {
        item[..8].copy_from_slice(&block.to_le_bytes());
        item[8..].copy_from_slice(&crc.to_le_bytes());
    }
}

pub(super) fn decode(from: &[u8]) -> Result<VolumeEntry, FormatError> {
    check_zero(&STRUCTURE, from, &[F_RESERVED_A, F_RESERVED])?;
    let mode = F_MODE.get(from);
    let mode = Mode::ALL.into_iter().find(|m| *m as u64 == mode).ok_or(STRUCTURE.wrong(F_MODE, mode))?;
    let flags = F_FLAGS.get(from);
    if flags & !FLAG_STAMP != 0 {
        return Err(STRUCTURE.wrong(F_FLAGS, flags));
    }
    let name_len = F_NAME_LEN.get(from);
    let name = F_NAME.bytes(from).get(..name_len as usize).ok_or(STRUCTURE.wrong(F_NAME_LEN, name_len))?;
    let name = core::str::from_utf8(name).map_err(|_| STRUCTURE.wrong(F_NAME, 0))?;
    let samples = F_SAMPLES.get(from) as usize;
    if samples > SAMPLES_MAX {
        return Err(STRUCTURE.wrong(F_SAMPLES, samples as u64));
    }
    let table = F_SAMPLE_TABLE.bytes(from).chunks_exact(SAMPLE_BYTES).take(samples);
    let stamp = F_STAMP.get(from) as i64;
    Ok(VolumeEntry {
        id: VolumeId(F_ID.get(from) as u16),
        mode,
        name: name.into(),
        size_bytes: F_SIZE.get(from),
        uuid: F_UUID.array(from),
        flush_epoch: F_FLUSH_EPOCH.get(from),
        backing: BackingRecord {
            kind: F_KIND.get_u32(from),
            size_bytes: F_BACKING_SIZE.get(from),
            unique: [F_UNIQUE_0.get(from), F_UNIQUE_1.get(from)],
            stamp_ns: (flags & FLAG_STAMP != 0).then_some(stamp),
            samples: table
                .map(|item| {
                    let word =
                        |at: usize| u32::from_le_bytes([item[at], item[at + 1], item[at + 2], item[at + 3]]);
                    (u64::from(word(0)) | u64::from(word(4)) << 32, word(8))
                })
                .collect(),
        },
    })
}

/// Checks that sizes are possible, and volume numbers unique.
pub(super) fn check_table(volumes: &[VolumeEntry]) -> Result<(), FormatError> {
    let mut seen = 0_u64;
    const _: () = assert!(VOLUMES_MAX == u64::BITS, "one bit per volume");
    for entry in volumes {
        let Some(bit) = 1_u64.checked_shl(u32::from(entry.id.0)).filter(|bit| seen & bit == 0) else {
            return Err(STRUCTURE.wrong(F_ID, u64::from(entry.id.0)));
        };
        seen |= bit;
        if !entry.size_bytes.is_multiple_of(SECTOR_BYTES as u64)
            || entry.size_bytes.div_ceil(BLOCK_BYTES as u64) > VOLUME_BLOCKS_MAX
        {
            return Err(STRUCTURE.wrong(F_SIZE, entry.size_bytes));
        }
    }
    Ok(())
}
