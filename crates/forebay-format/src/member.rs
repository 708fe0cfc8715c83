//! A cache on several devices: the devices, and the part of the pool's blocks that each one holds.
//!
//! The cache sees one sequence of blocks, the *pool's space*. It begins on member 0, which has the
//! superblocks and the checkpoint slots, and continues over the other members in order. Every
//! member after the first begins with a **member header** (block 0, and a copy in block 16). The
//! header names the cache and the part of the space that the member holds, which begins at
//! [`DATA_START_BLOCK`].
//!
//! Invariants:
//! - member boundaries are segment boundaries, so that no segment lies on two members;
//! - the superblock lists the tag of every member, drawn at random when the member joined: a member
//!   that was removed from the pool, or belonged to it earlier, is refused;
//! - the start of the next member determines how much lies on a member, and for the last one the
//!   superblock does ([`divide`]). The value in a header is a copy for readers without a
//!   superblock, and never less than the used part.

use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::layout::{check_envelope, check_zero, crc_without, structure};
use crate::units::{BLOCK_BYTES, CacheUuid, SEGMENTS_MIN, VERSION};

/// Most devices of one cache.
pub const MEMBERS_MAX: usize = 16;
/// Blocks that hold the copies of a member header: different flash pages and, on most devices,
/// different erase blocks.
pub const HEADER_BLOCKS: [u64; 2] = [0, 16];
/// First block of a member, after the first one, that belongs to the pool's space (1 MiB).
pub const DATA_START_BLOCK: u64 = 256;
/// First bytes of a member header.
pub const MAGIC: [u8; 8] = *b"FBAYMEMB";

structure! { "member header", 4096;
    F_MAGIC = "magic", 0, 8;
    F_VERSION = "version", 8, 4;
    F_INDEX = "index", 12, 2;
    F_RESERVED_A = "reserved_a", 14, 2;
    F_UUID = "uuid", 16, 16;
    F_TAG = "tag", 32, 8;
    F_FIRST = "first_block", 40, 8;
    F_BLOCKS = "blocks", 48, 8;
    F_RESERVED = "reserved", 56, 4036;
    F_CRC = "crc32c", 4092, 4;
}

/// The members of a cache as listed in its superblock: their number, and the tag of each after the
/// first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Members {
    others: usize,
    tags: [u64; MEMBERS_MAX - 1],
}

impl Members {
    /// A first member and others with these tags; `None` if there are too many, or a tag is zero.
    #[must_use]
    pub fn new(tags: &[u64]) -> Option<Self> {
        let mut members = Self { others: tags.len(), ..Self::default() };
        members.tags.get_mut(..tags.len())?.copy_from_slice(tags);
        (!tags.contains(&0)).then_some(members)
    }

    /// Number of members, including the first.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.others
    }

    /// Tags of all members except the first.
    #[must_use]
    pub fn tags(&self) -> &[u64] {
        &self.tags[..self.others]
    }
}

/// Contents of a member header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberHeader {
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Position among the members, at least 1.
    pub index: u16,
    /// Drawn at random when the member joined; never zero.
    pub tag: u64,
    /// First block of the pool's space on this member.
    pub first_block: u64,
    /// Number of blocks of the pool's space on this member; see [`divide`].
    pub blocks: u64,
}

/// Sets in headers, in the order of the members, how much lies on each member: up to the start of
/// the next one, and on the last of `members` up to the end of the pool's space. The old value can
/// differ: a header is rewritten before the superblock when a pool grows, and after it when a pool
/// shrinks. A header whose next member is missing stays unchanged.
pub fn divide(headers: &mut [MemberHeader], members: &Members, geometry: &Geometry) {
    for at in 0..headers.len() {
        let next = headers.get(at + 1).filter(|next| next.index == headers[at].index + 1);
        let is_last = usize::from(headers[at].index) == members.tags().len();
        let end = next.map(|next| next.first_block).or(is_last.then_some(geometry.device_blocks));
        if let Some(end) = end {
            headers[at].blocks = end.saturating_sub(headers[at].first_block);
        }
    }
}

impl MemberHeader {
    /// The header of a device of `device_bytes` that continues a pool of this geometry. The pool's
    /// space so far ends with its last whole segment.
    ///
    /// # Errors
    /// [`FormatError::Geometry`] if the device has no room for a segment, or the pool has too many
    /// members.
    pub fn joining(
        uuid: CacheUuid,
        geometry: &Geometry,
        members: &Members,
        tag: u64,
        device_bytes: u64,
    ) -> Result<Self, FormatError> {
        let unit = u64::from(geometry.segment_blocks);
        let available = (device_bytes / BLOCK_BYTES as u64).saturating_sub(DATA_START_BLOCK);
        let blocks = available / unit * unit;
        if blocks == 0 {
            return Err(FormatError::Geometry(format!(
                "a further device of a cache with segments of {} KiB needs at least {} bytes, not {device_bytes}",
                unit * BLOCK_BYTES as u64 / 1024,
                (DATA_START_BLOCK + unit) * BLOCK_BYTES as u64
            )));
        }
        if members.count() >= MEMBERS_MAX {
            return Err(FormatError::Geometry(format!("a cache lies on {MEMBERS_MAX} devices at most")));
        }
        let first_block = geometry.segments_start_block + u64::from(geometry.segment_count) * unit;
        Ok(Self { uuid, index: members.count() as u16, tag, first_block, blocks })
    }

    /// Encodes one copy.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = vec![0; BLOCK_BYTES];
        F_MAGIC.put_bytes(&mut to, &MAGIC);
        F_VERSION.put(&mut to, u64::from(VERSION));
        F_INDEX.put(&mut to, u64::from(self.index));
        F_UUID.put_bytes(&mut to, &self.uuid.0);
        F_TAG.put(&mut to, self.tag);
        F_FIRST.put(&mut to, self.first_block);
        F_BLOCKS.put(&mut to, self.blocks);
        let crc = crc_without(&to, F_CRC);
        F_CRC.put(&mut to, u64::from(crc));
        to
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not a member header, torn, of a newer version, or with fields out of range.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        check_envelope(&STRUCTURE, block, (F_MAGIC, &MAGIC), (F_VERSION, VERSION), F_CRC)?;
        check_zero(&STRUCTURE, block, &[F_RESERVED_A, F_RESERVED])?;
        let checked = |field: crate::layout::Field, right: &dyn Fn(u64) -> bool| {
            let value = field.get(block);
            if right(value) { Ok(value) } else { Err(STRUCTURE.wrong(field, value)) }
        };
        Ok(Self {
            uuid: CacheUuid(F_UUID.array(block)),
            index: checked(F_INDEX, &|index| (1..MEMBERS_MAX as u64).contains(&index))? as u16,
            tag: checked(F_TAG, &|tag| tag != 0)?,
            first_block: checked(F_FIRST, &|first| first > u64::from(SEGMENTS_MIN) && first < 1 << 40)?,
            blocks: checked(F_BLOCKS, &|blocks| blocks > 0 && blocks < 1 << 40)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_continues_at_the_end_of_segments() {
        let geometry = Geometry::for_device(64 << 20, Some(64)).unwrap();
        let uuid = CacheUuid([3; 16]);
        let header = MemberHeader::joining(uuid, &geometry, &Members::default(), 9, 4 << 20).unwrap();
        let segments_end = geometry.segments_start_block + u64::from(geometry.segment_count) * 64;
        assert_eq!((header.index, header.first_block, header.blocks), (1, segments_end, 768));
        assert_eq!(MemberHeader::decode(&header.encode()), Ok(header));
        let grown = geometry.resized((header.first_block + header.blocks) * 4096).unwrap();
        assert_eq!(grown.segment_count, geometry.segment_count + 12);
        assert!(MemberHeader::joining(uuid, &geometry, &Members::default(), 9, 1 << 20).is_err());
    }

    /// The data of the last member ends with the space.
    #[test]
    fn member_data_ends_at_the_next_member() {
        let geometry = Geometry { device_blocks: 700, ..Geometry::for_device(64 << 20, Some(64)).unwrap() };
        let header = |index: u16, first_block| MemberHeader {
            uuid: CacheUuid([3; 16]),
            index,
            tag: u64::from(index),
            first_block,
            blocks: 1000,
        };
        let blocks = |mut headers: Vec<MemberHeader>| {
            divide(&mut headers, &Members::new(&[1, 2, 3]).unwrap(), &geometry);
            headers.iter().map(|header| header.blocks).collect::<Vec<_>>()
        };
        assert_eq!(blocks(vec![header(1, 100), header(2, 164), header(3, 600)]), [64, 436, 100]);
        // One member is missing: the other headers are all that is known.
        assert_eq!(blocks(vec![header(1, 100), header(3, 600)]), [1000, 100]);
        assert_eq!(blocks(vec![header(1, 100), header(2, 164)]), [64, 1000]);
        assert_eq!(blocks(vec![header(3, 800)]), [0]);
    }

    #[test]
    fn headers_out_of_range_are_refused() {
        let good = MemberHeader { uuid: CacheUuid([3; 16]), index: 1, tag: 5, first_block: 4096, blocks: 64 };
        for bad in [
            MemberHeader { index: 0, ..good },
            MemberHeader { index: 16, ..good },
            MemberHeader { tag: 0, ..good },
            MemberHeader { first_block: 3, ..good },
            MemberHeader { blocks: 0, ..good },
        ] {
            assert!(MemberHeader::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        assert_eq!(Members::new(&[1, 0]), None);
        assert_eq!(Members::new(&[7; MEMBERS_MAX]), None);
        assert_eq!(Members::new(&[7, 8]).map(|members| members.count()), Some(3));
    }
}
