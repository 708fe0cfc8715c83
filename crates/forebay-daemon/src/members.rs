//! A cache on several devices: opening them, checking that they belong together, and finding out which of them has a block
//! of the pool's space.
//!
//! The engine sees one device. Members meet at the beginning of a segment, and superblocks, checkpoint slots and headers
//! lie on the first: so no operation of the engine ever straddles two members. Only a flush concerns all of them.

use crate::error::RunError;
use forebay_format::member::{DATA_START_BLOCK, HEADER_BLOCKS, MemberHeader};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, FormatError, Geometry};
use forebay_io::Device;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Which part of the pool's space lies on which member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberMap {
    /// First byte in the pool's space of each member, and first byte on the member itself.
    starts: Vec<(u64, u64)>,
    /// The cache is mirrored: where its two devices are among those of the pool.
    mirror: Option<(Geometry, [Option<usize>; 2])>,
}

impl MemberMap {
    /// One device, which is the pool's space.
    pub(crate) fn single() -> Self {
        Self { starts: vec![(0, 0)], mirror: None }
    }

    /// The first member and those with these headers, in order.
    pub(crate) fn new(headers: &[MemberHeader]) -> Self {
        let others = headers.iter().map(|header| (header.first_block * BLOCK, DATA_START_BLOCK * BLOCK));
        Self { starts: std::iter::once((0, 0)).chain(others).collect(), mirror: None }
    }

    /// A mirrored cache on these devices of the pool; a member that is not there has none.
    pub(crate) fn mirrored(geometry: Geometry, places: [Option<usize>; 2]) -> Self {
        Self { mirror: Some((geometry, places)), ..Self::single() }
    }

    /// The device of a member of a mirrored cache, of those of the pool.
    pub(crate) fn device_of(&self, member: u8) -> Option<usize> {
        self.mirror.and_then(|(_, places)| places[usize::from(member)])
    }

    /// Another device takes the place of a member of a mirrored cache, or none does.
    pub(crate) fn set_device(&mut self, member: u8, device: Option<usize>) {
        if let Some((_, places)) = &mut self.mirror {
            places[usize::from(member)] = device;
        }
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

    /// Bytes of the last member that are not of the pool's space, at its beginning.
    pub(crate) fn header_bytes(&self) -> u64 {
        self.starts.last().map_or(0, |(_, base)| *base)
    }

    /// The bytes from which on the pool's space lies on the last member.
    pub(crate) fn last_start(&self) -> u64 {
        self.starts.last().map_or(0, |(first, _)| *first)
    }

    /// One member more.
    pub(crate) fn join(&mut self, header: &MemberHeader) {
        self.starts.push((header.first_block * BLOCK, DATA_START_BLOCK * BLOCK));
    }

    /// The last member is gone.
    pub(crate) fn leave(&mut self) {
        self.starts.truncate(self.starts.len().saturating_sub(1).max(1));
    }

    /// The member that has these bytes of the pool's space, and where on it they begin; `None` if they lie on two.
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

/// Reads and checks the headers of all members but the first, whose superblock is given.
///
/// # Errors
/// A member is missing, in the wrong place, of another cache, or left over from before it was taken out of the pool.
pub fn open_members(superblock: &Superblock, others: &[Device]) -> Result<MemberMap, RunError> {
    let found: Vec<Found> = others
        .iter()
        .map(|device| Found {
            name: device.path().display().to_string(),
            bytes: device.size_bytes(),
            header: read_header(device),
        })
        .collect();
    check(superblock, &found)
}

/// Writes the header of a device that joins a pool, durably.
///
/// # Errors
/// The device failed.
pub(crate) fn write_header(device: &Device, header: &MemberHeader) -> Result<(), forebay_io::DeviceError> {
    let bytes = header.encode();
    for block in HEADER_BLOCKS {
        device.write_at(block * BLOCK, &bytes)?;
    }
    device.flush()
}

/// What was found on a device.
#[derive(Debug)]
struct Found {
    name: String,
    bytes: u64,
    header: Result<MemberHeader, FormatError>,
}

/// The header of a device: of its two copies the first that is intact, if they do not contradict each other.
///
/// # Errors
/// Neither copy is intact, or they contradict each other.
pub fn read_header(device: &Device) -> Result<MemberHeader, FormatError> {
    let copies = HEADER_BLOCKS.map(|block| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let missing = FormatError::TooShort { structure: "member header", needed: BLOCK_BYTES, found: 0 };
        device.read_at(block * BLOCK, &mut bytes).map_err(|_| missing)?;
        MemberHeader::decode(&bytes)
    });
    choose(copies)
}

fn choose(copies: [Result<MemberHeader, FormatError>; 2]) -> Result<MemberHeader, FormatError> {
    match copies {
        [Ok(a), Ok(b)] if a != b => {
            let (expected, found) = (a.tag, b.tag);
            Err(FormatError::Misplaced { structure: "member header", field: "tag", expected, found })
        }
        [Ok(header), _] | [Err(_), Ok(header)] => Ok(header),
        [Err(error), Err(_)] => Err(error),
    }
}

fn check(superblock: &Superblock, found: &[Found]) -> Result<MemberMap, RunError> {
    let tags = superblock.members.tags();
    let mut headers = Vec::new();
    for device in found {
        headers.push(belongs(superblock, device)?);
    }
    for (at, header) in (1..).zip(&headers) {
        if usize::from(header.index) != at {
            let name = &found[at - 1].name;
            return Err(RunError::failed(
                format!("{name} is member {} of the cache, but it was given as member {at}", header.index),
                "give the devices in the order of their numbers, each once",
            ));
        }
    }
    if headers.len() < tags.len() {
        return Err(RunError::failed(
            format!(
                "the cache lies on {} devices, but only {} were given: member {} is missing",
                tags.len() + 1,
                headers.len() + 1,
                headers.len() + 1
            ),
            "give all of them, in order",
        ));
    }
    check_space(superblock, found, &headers)?;
    Ok(MemberMap::new(&headers))
}

/// The header of a device that belongs to this cache now.
fn belongs(superblock: &Superblock, device: &Found) -> Result<MemberHeader, RunError> {
    let name = &device.name;
    let header = device.header.clone().map_err(|error| {
        let what = format!("{name} is no member of a cache: {error}");
        RunError::failed(what, "give the devices that the cache was made or grown with")
    })?;
    if header.uuid != superblock.uuid {
        return Err(RunError::failed(
            format!("{name} belongs to the cache {}, not to {}", header.uuid, superblock.uuid),
            "give the devices of one cache",
        ));
    }
    let tag = superblock.members.tags().get(usize::from(header.index) - 1);
    if tag != Some(&header.tag) {
        return Err(RunError::failed(
            format!("{name} was a member of this cache, but it was taken out since: nothing on it counts"),
            "leave it out; to use it again, erase its beginning and grow the cache by it",
        ));
    }
    Ok(header)
}

/// The members follow one another, meet where segments begin, and are as long as they say.
fn check_space(superblock: &Superblock, found: &[Found], headers: &[MemberHeader]) -> Result<(), RunError> {
    let geometry = &superblock.geometry;
    let mut next = None;
    for (device, header) in found.iter().zip(headers) {
        let meets_segment = header
            .first_block
            .checked_sub(geometry.segments_start_block)
            .is_some_and(|blocks| blocks.is_multiple_of(u64::from(geometry.segment_blocks)));
        let follows = next.is_none_or(|next| next == header.first_block);
        if !meets_segment || !follows {
            return Err(RunError::failed(
                format!(
                    "{}: its blocks, from {} on, do not follow those of the member before it",
                    device.name, header.first_block
                ),
                "its header is damaged: restore the device from a copy, or make a new cache",
            ));
        }
        let needed = (DATA_START_BLOCK + header.blocks) * BLOCK;
        if device.bytes < needed {
            return Err(RunError::failed(
                format!(
                    "{} has {} bytes, but its part of the cache needs {needed}",
                    device.name, device.bytes
                ),
                "restore its full length",
            ));
        }
        next = Some(header.first_block + header.blocks);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::CacheState;
    use forebay_format::{CacheUuid, Members};

    const UUID: CacheUuid = CacheUuid([7; 16]);

    fn superblock() -> Superblock {
        Superblock {
            uuid: UUID,
            generation: 1,
            epoch: 1,
            checkpoint_generation: 1,
            state: CacheState::Clean,
            geometry: Geometry::for_device(64 << 20, Some(64)).unwrap(),
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

    fn refused(headers: &[MemberHeader]) -> String {
        let found: Vec<Found> = headers.iter().map(|header| device(Ok(*header))).collect();
        check(&superblock(), &found).unwrap_err().to_string()
    }

    fn device(header: Result<MemberHeader, FormatError>) -> Found {
        Found { name: "/dev/x".into(), bytes: 8 << 20, header }
    }

    #[test]
    fn the_space_lies_on_the_members_one_after_the_other() {
        let [a, b] = headers();
        let found = [device(Ok(a)), device(Ok(b))];
        let map = check(&superblock(), &found).unwrap();
        let (first, second) = (a.first_block * 4096, b.first_block * 4096);
        assert_eq!(map.place(4096, 8192), Some((0, 4096)));
        assert_eq!(map.place(first - 4096, 4096), Some((0, first - 4096)));
        assert_eq!(map.place(first - 4096, 8192), None);
        assert_eq!(map.place(first, 4096), Some((1, 1 << 20)));
        assert_eq!(map.place(second - 512, 512), Some((1, (1 << 20) + (4 << 20) - 512)));
        assert_eq!(map.place(second + 4096, 4096), Some((2, (1 << 20) + 4096)));
        assert_eq!(MemberMap::single().place(1 << 40, 4096), Some((0, 1 << 40)));
    }

    #[test]
    fn devices_that_do_not_belong_together_are_refused_with_the_reason() {
        let [a, b] = headers();
        assert!(refused(&[a]).contains("member 2 is missing"));
        assert!(refused(&[]).contains("member 1 is missing"));
        assert!(refused(&[b, a]).contains("is member 2 of the cache, but it was given as member 1"));
        assert!(refused(&[a, a]).contains("given as member 2"));
        assert!(
            refused(&[MemberHeader { uuid: CacheUuid([8; 16]), ..a }, b]).contains("belongs to the cache")
        );
        assert!(refused(&[a, MemberHeader { tag: 23, ..b }]).contains("taken out"));
        assert!(refused(&[a, b, MemberHeader { index: 3, tag: 33, ..b }]).contains("taken out"));
        assert!(
            refused(&[a, MemberHeader { first_block: b.first_block + 64, ..b }]).contains("do not follow")
        );
        assert!(refused(&[a, MemberHeader { blocks: 1 << 20, ..b }]).contains("bytes, but its part"));
        let blank = device(Err(FormatError::Magic { structure: "member header" }));
        assert!(check(&superblock(), &[blank]).unwrap_err().to_string().contains("no member of a cache"));
    }

    #[test]
    fn one_intact_copy_of_a_header_is_enough_and_two_different_ones_are_too_many() {
        let [a, b] = headers();
        let torn = FormatError::Magic { structure: "member header" };
        assert_eq!(choose([Err(torn.clone()), Ok(a)]), Ok(a));
        assert_eq!(choose([Ok(a), Err(torn)]), Ok(a));
        assert!(choose([Ok(a), Ok(b)]).is_err());
    }
}
