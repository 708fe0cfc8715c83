//! The bytes on a Forebay cache device.
//!
//! This crate knows the layout of a cache device and nothing else: no clock, no file, no policy.
//! Its companion document is `docs/internals/on-disk-format.md`; `tests/it/document.rs` checks
//! every offset table there against the [`layout::Structure`]s here, and `tests/it/golden.rs` pins
//! the bytes themselves.
//!
//! A cache device is
//!
//! ```text
//! block 0          superblock, copy A                       (one 512-byte sector used)
//! block 16         superblock, copy B
//! blocks 4, 8      window extensions, copy A                (and copy B in blocks 20 and 24)
//! blocks 9 to 15   settings copy, copy A                    (and copy B in blocks 25 to 31)
//! block 32         checkpoint slots 0..4                    (geometry.checkpoint_slot_blocks each)
//! segments_start   segment 0, segment 1, ...                (geometry.segment_blocks each)
//! ```
//!
//! Invariants of every structure:
//! - little-endian, fixed offsets, no implicit padding; reserved bytes are written as zero and must
//!   be zero;
//! - a CRC32C covers the whole structure, identity (cache uuid) and position included. So a
//!   structure that was misdirected, or belongs to another cache, is refused;
//! - a structure with a version newer than [`VERSION`] is refused with its version, never
//!   interpreted.
#![forbid(unsafe_code)]

pub mod encryption;
pub mod error;
pub mod units;

pub mod layout;

pub mod checkpoint;
pub mod extension;

pub mod geometry;
pub mod summary;

pub mod batch;
pub mod member;
pub mod mirror;

pub mod superblock;

pub mod settings_copy;

pub mod structures;

pub use encryption::Encryption;
pub use error::FormatError;
pub use extension::WindowExtension;
pub use geometry::Geometry;
pub use member::Members;
pub use mirror::MirrorMark;
pub use settings_copy::SettingsCopy;
pub use units::{
    BLOCK_BYTES, CacheUuid, SECTOR_BYTES, SECTORS_PER_BLOCK, Slot, StreamKind, VERSION, VolumeId,
};

/// The checksum of blocks and payloads: CRC32C (Castagnoli).
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
