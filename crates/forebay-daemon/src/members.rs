//! A cache on several devices: opening them, checking that they belong together, and finding out which of them has a block
//! of the pool's space.
//!
//! The engine sees one device. Members meet at the beginning of a segment, and superblocks, checkpoint slots and headers
//! lie on the first: so no operation of the engine ever straddles two members. Only a flush concerns all of them.
//!
//! A header is written when its member joins, and again when the size of the last member changes: one copy durably before
//! the other, before the superblock when the pool grows and after it, before a file is cut, when it shrinks. What it says
//! of the size is not believed where there is a superblock, so whatever a crash leaves opens; `mend_headers` puts it right.

use crate::error::RunError;
use forebay_format::member::{DATA_START_BLOCK, HEADER_BLOCKS, MemberHeader, divide};
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

/// Reads and checks the headers of all members but the first, whose superblock is given. They say what lies on each member
/// now, whatever is on the devices.
///
/// # Errors
/// A member is missing, too short, in the wrong place, of another cache, or left over from before it was taken out of the
/// pool.
pub fn open_members(
    superblock: &Superblock,
    first: &Device,
    others: &[Device],
) -> Result<Vec<MemberHeader>, RunError> {
    let found: Vec<Found> = others
        .iter()
        .map(|device| Found {
            name: device.path().display().to_string(),
            bytes: device.size_bytes(),
            header: read_header(device),
        })
        .collect();
    let headers = check(superblock, &found)?;
    let needed = headers.first().map_or(0, |header| header.first_block * BLOCK);
    check_length(&first.path().display(), first.size_bytes(), needed)?;
    Ok(headers)
}

/// Rewrites the headers that do not say what `headers` does; says what was done.
pub(crate) fn mend_headers(others: &[Device], headers: &[MemberHeader]) -> Vec<String> {
    let mut notes = Vec::new();
    for (device, header) in others.iter().zip(headers) {
        let is_right = |copy: &Result<MemberHeader, _>| copy.as_ref() == Ok(header);
        // A member on which nothing lies has no header that says so.
        if header.blocks == 0 || read_copies(device).iter().all(is_right) {
            continue;
        }
        let path = device.path().display();
        notes.push(match write_header(device, header) {
            Ok(()) => {
                format!("the header of {path} is brought up to date: {} blocks lie on it", header.blocks)
            }
            Err(error) => format!("the header of {path} is not up to date, and cannot be written: {error}"),
        });
    }
    notes
}

/// Writes the header of a member, durably, one copy after the other: one of them is intact at any time.
///
/// # Errors
/// The device failed.
pub(crate) fn write_header(device: &Device, header: &MemberHeader) -> Result<(), forebay_io::DeviceError> {
    let bytes = header.encode();
    for block in HEADER_BLOCKS {
        device.write_at(block * BLOCK, &bytes)?;
        device.flush()?;
    }
    Ok(())
}

/// What was found on a device.
#[derive(Debug)]
struct Found {
    name: String,
    bytes: u64,
    header: Result<MemberHeader, FormatError>,
}

/// The header of a device, if its two copies do not contradict each other.
///
/// # Errors
/// Neither copy is intact, or they contradict each other.
pub fn read_header(device: &Device) -> Result<MemberHeader, FormatError> {
    choose(read_copies(device))
}

/// Both copies of the header of a device.
pub(crate) fn read_copies(device: &Device) -> [Result<MemberHeader, FormatError>; 2] {
    HEADER_BLOCKS.map(|block| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let missing = FormatError::TooShort { structure: "member header", needed: BLOCK_BYTES, found: 0 };
        device.read_at(block * BLOCK, &mut bytes).map_err(|_| missing)?;
        MemberHeader::decode(&bytes)
    })
}

fn choose(copies: [Result<MemberHeader, FormatError>; 2]) -> Result<MemberHeader, FormatError> {
    match copies {
        // A crash between the two: there was never more used of the device than the larger one says.
        [Ok(a), Ok(b)] if a == (MemberHeader { blocks: a.blocks, ..b }) => {
            Ok(MemberHeader { blocks: a.blocks.max(b.blocks), ..a })
        }
        [Ok(a), Ok(b)] => {
            let (expected, found) = (a.tag, b.tag);
            Err(FormatError::Misplaced { structure: "member header", field: "tag", expected, found })
        }
        [Ok(header), _] | [Err(_), Ok(header)] => Ok(header),
        [Err(error), Err(_)] => Err(error),
    }
}

fn check(superblock: &Superblock, found: &[Found]) -> Result<Vec<MemberHeader>, RunError> {
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
    check_space(superblock, found, &mut headers)?;
    Ok(headers)
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

/// The members follow one another, meet where segments begin, and are as long as the superblock says. Where a member begins
/// never changes; what headers say of their lengths is put right.
fn check_space(
    superblock: &Superblock,
    found: &[Found],
    headers: &mut [MemberHeader],
) -> Result<(), RunError> {
    let geometry = &superblock.geometry;
    let mut before = geometry.segments_start_block;
    for (device, header) in found.iter().zip(headers.iter()) {
        let meets_segment = header
            .first_block
            .checked_sub(before)
            .is_some_and(|blocks| blocks.is_multiple_of(u64::from(geometry.segment_blocks)));
        if !meets_segment || header.first_block > geometry.device_blocks {
            return Err(RunError::failed(
                format!(
                    "{}: its blocks, from {} on, do not follow those of the member before it",
                    device.name, header.first_block
                ),
                "its header is damaged: restore the device from a copy, or make a new cache",
            ));
        }
        before = header.first_block;
    }
    divide(headers, &superblock.members, geometry);
    for (device, header) in found.iter().zip(headers) {
        check_length(&device.name, device.bytes, (DATA_START_BLOCK + header.blocks) * BLOCK)?;
    }
    Ok(())
}

fn check_length(name: &dyn std::fmt::Display, bytes: u64, needed: u64) -> Result<(), RunError> {
    if bytes >= needed {
        return Ok(());
    }
    Err(RunError::failed(
        format!("{name} has {bytes} bytes, but its part of the cache needs {needed}"),
        "restore its full length",
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::CacheState;
    use forebay_format::{CacheUuid, Members};

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
        let map = MemberMap::new(&check(&superblock(), &found).unwrap());
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
        for first_block in [b.first_block + 1, a.first_block - 64, superblock().geometry.device_blocks + 64] {
            assert!(refused(&[a, MemberHeader { first_block, ..b }]).contains("do not follow"));
        }
        let end = superblock().geometry.device_blocks;
        let found = [device(Ok(a)), device(Ok(b))];
        let cut = check(&superblock_until(end + 2048), &found).unwrap_err().to_string();
        assert!(cut.contains("has 8388608 bytes, but its part of the cache needs 9699328"), "{cut}");
        let blank = device(Err(FormatError::Magic { structure: "member header" }));
        assert!(check(&superblock(), &[blank]).unwrap_err().to_string().contains("no member of a cache"));
    }

    #[test]
    fn what_a_header_says_of_its_length_is_put_right_by_the_superblock() {
        let [a, b] = headers();
        let end = superblock().geometry.device_blocks;
        for (of_a, of_b) in [(1024, 64), (64, 640), (4096, 1), (1 << 39, 1 << 39)] {
            let stale = [MemberHeader { blocks: of_a, ..a }, MemberHeader { blocks: of_b, ..b }];
            let found = stale.map(|header| device(Ok(header)));
            assert_eq!(check(&superblock(), &found).unwrap(), [a, b]);
            let grown = check(&superblock_until(end + 640), &found).unwrap();
            assert_eq!(grown, [a, MemberHeader { blocks: 704, ..b }]);
            // An earlier build could shrink a pool so far that nothing was left of its last device.
            let nothing = check(&superblock_until(b.first_block), &found).unwrap();
            assert_eq!(nothing[1].blocks, 0);
            assert_eq!(MemberMap::new(&nothing).place((b.first_block - 64) * 4096, 4096).unwrap().0, 1);
        }
    }

    fn file(folder: &tempfile::TempDir, name: &str, bytes: u64) -> Device {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        Device::open_cache(&path, forebay_io::DeviceOptions { direct: false, ..Default::default() }).unwrap()
    }

    #[test]
    fn headers_that_are_stale_torn_or_different_are_mended_on_both_places() {
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
            write_header(&others[0], &right[0]).unwrap();
            for (block, copy) in HEADER_BLOCKS.iter().zip(&copies) {
                others[1].write_at(block * BLOCK, copy).unwrap();
            }
            let headers = open_members(&superblock(), &first, &others).unwrap();
            assert_eq!(headers, right);
            let notes = mend_headers(&others, &headers);
            assert!(
                notes.len() == 1 && notes[0].contains("/b is brought up to date: 64 blocks"),
                "{notes:?}"
            );
            assert_eq!(read_copies(&others[1]), [Ok(right[1]), Ok(right[1])]);
            assert_eq!(mend_headers(&others, &headers), [""; 0]);
        }
        drop(first);
        let cut = file(&folder, "first", 32 << 20);
        let refused = open_members(&superblock(), &cut, &others).unwrap_err().to_string();
        assert!(refused.contains("first has 33554432 bytes, but its part of the cache needs"), "{refused}");
    }

    #[test]
    fn one_intact_copy_of_a_header_is_enough_and_two_different_ones_are_too_many() {
        let [a, b] = headers();
        let torn = FormatError::Magic { structure: "member header" };
        assert_eq!(choose([Err(torn.clone()), Ok(a)]), Ok(a));
        assert_eq!(choose([Ok(a), Err(torn)]), Ok(a));
        assert!(choose([Ok(a), Ok(b)]).is_err());
        assert!(choose([Ok(a), Ok(MemberHeader { tag: 12, ..a })]).is_err());
        // A change of the size was cut off between the two.
        let longer = MemberHeader { blocks: 2048, ..a };
        assert_eq!(choose([Ok(longer), Ok(a)]), Ok(longer));
        assert_eq!(choose([Ok(a), Ok(longer)]), Ok(longer));
    }
}
