//! A cache on several devices: the mapping of the pool's space to devices, and the headers of the
//! further ones. `forebay_offline::members` judges whether they belong together.
//!
//! The engine sees one device. Members meet at a segment boundary, and superblocks, checkpoint
//! slots and headers lie on the first: so no operation of the engine ever straddles two members.
//! Only a flush affects all of them.
//!
//! A header is written when its member joins, and again when the size of the last member changes:
//! one copy durably before the other; before the superblock when the pool grows, and after it, but
//! before a file is truncated, when it shrinks. Its size is ignored where there is a superblock, so
//! a cache opens after a crash at any point; `mend_headers` corrects the header.

use crate::may_wait::MayWait;
use forebay_format::member::{DATA_START_BLOCK, HEADER_BLOCKS, MemberHeader};
use forebay_format::{BLOCK_BYTES, Geometry};
use forebay_io::Device;
use forebay_offline::members::read_copies;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Maps the pool's space to the members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberMap {
    /// First byte in the pool's space of each member, and first byte on the member itself.
    starts: Vec<(u64, u64)>,
    /// Of a mirrored cache: the positions of its two devices among those of the pool.
    mirror: Option<(Geometry, [Option<usize>; 2])>,
}

impl MemberMap {
    /// One device, which is the pool's space.
    pub(crate) fn single() -> Self {
        Self { starts: vec![(0, 0)], mirror: None }
    }

    /// The map of the first member and those with these headers, in order.
    pub(crate) fn new(headers: &[MemberHeader]) -> Self {
        let others = headers.iter().map(|header| (header.first_block * BLOCK, DATA_START_BLOCK * BLOCK));
        Self { starts: std::iter::once((0, 0)).chain(others).collect(), mirror: None }
    }

    /// The map of a mirrored cache on these devices of the pool; `None` for a missing member.
    pub(crate) fn mirrored(geometry: Geometry, places: [Option<usize>; 2]) -> Self {
        Self { mirror: Some((geometry, places)), ..Self::single() }
    }

    /// Position of the device of a member of a mirrored cache among those of the pool.
    pub(crate) fn device_of(&self, member: u8) -> Option<usize> {
        self.mirror.and_then(|(_, places)| places[usize::from(member)])
    }

    /// Replaces the device of a member of a mirrored cache, or removes it.
    pub(crate) fn set_device(&mut self, member: u8, device: Option<usize>) {
        if let Some((_, places)) = &mut self.mirror {
            places[usize::from(member)] = device;
        }
    }

    /// True if the cache is mirrored.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirror.is_some()
    }

    /// The member of a mirrored cache that has this byte of the pool's space.
    pub(crate) fn mirror_member(&self, offset: u64) -> Option<u8> {
        self.mirror.map(|(geometry, _)| geometry.mirror_place(offset).0 as u8)
    }

    /// First byte of a member's part of the pool's space.
    pub(crate) fn start_of(&self, member: usize) -> u64 {
        self.starts.get(member).map_or(0, |(first, _)| *first)
    }

    /// Byte of a member where its part of the pool's space begins.
    pub(crate) fn base_of(&self, member: usize) -> u64 {
        self.starts.get(member).map_or(0, |(_, base)| *base)
    }

    /// Bytes at the beginning of the last member that are not in the pool's space.
    pub(crate) fn header_bytes(&self) -> u64 {
        self.starts.last().map_or(0, |(_, base)| *base)
    }

    /// First byte of the last member's part of the pool's space.
    pub(crate) fn last_start(&self) -> u64 {
        self.starts.last().map_or(0, |(first, _)| *first)
    }

    /// Adds a member.
    pub(crate) fn join(&mut self, header: &MemberHeader) {
        self.starts.push((header.first_block * BLOCK, DATA_START_BLOCK * BLOCK));
    }

    /// Removes the last member.
    pub(crate) fn leave(&mut self) {
        self.starts.truncate(self.starts.len().saturating_sub(1).max(1));
    }

    /// The member that has these bytes of the pool's space, and their offset on it; `None` if they
    /// lie on two.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Option<(usize, u64)> {
        if let Some((geometry, places)) = &self.mirror {
            let (member, offset) = geometry.mirror_place(offset);
            return Some((places[member]?, offset));
        }
        let member = self.starts.partition_point(|(first, _)| *first <= offset) - 1;
        let next = self.starts.get(member + 1).map_or(u64::MAX, |(first, _)| *first);
        let (first, base) = self.starts[member];
        (offset.checked_add(len)? <= next).then_some((member, base + (offset - first)))
    }
}

/// Rewrites the headers that differ from `headers`; returns messages about it.
pub(crate) fn mend_headers(others: &[Device], headers: &[MemberHeader]) -> Vec<String> {
    let mut notes = Vec::new();
    for (device, header) in others.iter().zip(headers) {
        let is_right = |copy: &Result<MemberHeader, _>| copy.as_ref() == Ok(header);
        // An empty member has no header with its size.
        if header.blocks == 0 || read_copies(device).iter().all(is_right) {
            continue;
        }
        let path = device.path().display();
        notes.push(match write_header(&MayWait::here(), device, header) {
            Ok(()) => {
                format!("the header of {path} was updated: {} blocks lie on it", header.blocks)
            }
            Err(error) => format!("the header of {path} is not up to date, and cannot be written: {error}"),
        });
    }
    notes
}

/// Writes the header of a member, durably, one copy after the other: one of them is intact at any
/// time.
///
/// # Errors
/// The device failed.
pub fn write_header(
    may_wait: &MayWait,
    device: &Device,
    header: &MemberHeader,
) -> Result<(), forebay_io::DeviceError> {
    (0..HEADER_BLOCKS.len()).try_for_each(|copy| write_copy(may_wait, device, header, copy))?;
    forebay_io::announce_change(device.path());
    Ok(())
}

/// Writes one copy of the header of a member, durably.
pub(crate) fn write_copy(
    _: &MayWait,
    device: &Device,
    header: &MemberHeader,
    copy: usize,
) -> Result<(), forebay_io::DeviceError> {
    device.write_at(HEADER_BLOCKS[copy] * BLOCK, &header.encode())?;
    device.flush()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::CacheState;
    use forebay_format::superblock::Superblock;
    use forebay_format::{CacheUuid, Members};
    use forebay_offline::members::open_members;

    const UUID: CacheUuid = CacheUuid([7; 16]);

    /// A cache on three devices, of which the further ones have 1024 and 64 blocks.
    fn superblock() -> Superblock {
        let geometry = Geometry::for_device(64 << 20, Some(64)).unwrap();
        superblock_until(geometry.segments_start_block + 128 * 64 + 1024 + 64)
    }

    fn superblock_until(device_blocks: u64) -> Superblock {
        Superblock {
            uuid: UUID,
            generation: 1,
            epoch: 1,
            checkpoint_generation: 1,
            chain: None,
            state: CacheState::Clean,
            geometry: Geometry { device_blocks, ..Geometry::for_device(64 << 20, Some(64)).unwrap() },
            members: Members::new(&[11, 22]).unwrap(),
            mirror: None,
            encryption: None,
            shard_index: 0,
            shard_count: 1,
            created_unix_s: 0,
            written_by: String::new(),
        }
    }

    fn headers() -> [MemberHeader; 2] {
        let geometry = superblock().geometry;
        let first_block = geometry.segments_start_block + 128 * 64;
        [
            MemberHeader { uuid: UUID, index: 1, tag: 11, first_block, blocks: 1024 },
            MemberHeader { uuid: UUID, index: 2, tag: 22, first_block: first_block + 1024, blocks: 64 },
        ]
    }

    #[test]
    fn space_is_divided_over_the_members() {
        let [a, b] = headers();
        let map = MemberMap::new(&[a, b]);
        let (first, second) = (a.first_block * 4096, b.first_block * 4096);
        assert_eq!(map.place(4096, 8192), Some((0, 4096)));
        assert_eq!(map.place(first - 4096, 4096), Some((0, first - 4096)));
        assert_eq!(map.place(first - 4096, 8192), None);
        assert_eq!(map.place(first, 4096), Some((1, 1 << 20)));
        assert_eq!(map.place(second - 512, 512), Some((1, (1 << 20) + (4 << 20) - 512)));
        assert_eq!(map.place(second + 4096, 4096), Some((2, (1 << 20) + 4096)));
        // An earlier build could shrink a pool so far that nothing was left of its last device.
        let nothing = MemberMap::new(&[a, MemberHeader { blocks: 0, ..b }]);
        assert_eq!(nothing.place(second - 64 * 4096, 4096).unwrap().0, 1);
        assert_eq!(MemberMap::single().place(1 << 40, 4096), Some((0, 1 << 40)));
    }

    fn file(folder: &tempfile::TempDir, name: &str, bytes: u64) -> Device {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        Device::open_cache(&path, forebay_io::DeviceOptions { direct: false, ..Default::default() }).unwrap()
    }

    #[test]
    fn outdated_headers_are_repaired_twice() {
        let folder = tempfile::tempdir().unwrap();
        let first = file(&folder, "first", 33 << 20);
        let others = [file(&folder, "a", 8 << 20), file(&folder, "b", 8 << 20)];
        let right = headers();
        let short = right.map(|header| MemberHeader { blocks: header.blocks / 2, ..header });
        let torn = vec![0xee; BLOCK_BYTES];
        for copies in [
            [right[1].encode(), short[1].encode()],
            [short[1].encode(), right[1].encode()],
            [short[1].encode(), short[1].encode()],
            [torn.clone(), short[1].encode()],
            [right[1].encode(), torn],
        ] {
            write_header(&MayWait::here(), &others[0], &right[0]).unwrap();
            for (block, copy) in HEADER_BLOCKS.iter().zip(&copies) {
                others[1].write_at(block * BLOCK, copy).unwrap();
            }
            let headers = open_members(&superblock(), &first, &others).unwrap();
            assert_eq!(headers, right);
            let notes = mend_headers(&others, &headers);
            assert!(notes.len() == 1 && notes[0].contains("/b was updated: 64 blocks"), "{notes:?}");
            assert_eq!(read_copies(&others[1]), [Ok(right[1]), Ok(right[1])]);
            assert_eq!(mend_headers(&others, &headers), [""; 0]);
        }
        drop(first);
        let cut = file(&folder, "first", 32 << 20);
        let refused = open_members(&superblock(), &cut, &others).unwrap_err().to_string();
        assert!(refused.contains("first has 33554432 bytes, but its part of the cache needs"), "{refused}");
    }
}
