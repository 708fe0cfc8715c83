//! The further devices of a cache on several devices: whether they belong to it, and their parts of
//! the space.
//!
//! This module reads headers and never writes them. It does not trust their lengths where there is
//! a superblock.

use crate::Refusal;
use forebay_admin::MessageId;
use forebay_format::member::{DATA_START_BLOCK, HEADER_BLOCKS, MemberHeader, divide};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, FormatError};
use forebay_io::Device;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Reads and checks the headers of all members but the first, whose superblock is given. Returns
/// headers for the present layout, regardless of the lengths on the devices.
///
/// # Errors
/// Refuses if a member is missing, too short, in the wrong place, of another cache, or left over
/// from before its removal from the pool.
pub fn open_members(
    superblock: &Superblock,
    first: &Device,
    others: &[Device],
) -> Result<Vec<MemberHeader>, Refusal> {
    let found: Vec<Found> = others
        .iter()
        .map(|device| Found {
            name: device.path().display().to_string(),
            bytes: device.size_bytes(),
            header: read_header(device, superblock.members.tags()),
        })
        .collect();
    let headers = check(superblock, &found)?;
    let needed = headers.first().map_or(0, |header| header.first_block * BLOCK);
    check_length(&first.path().display(), first.size_bytes(), needed)?;
    Ok(headers)
}

/// A device with its header.
#[derive(Debug)]
struct Found {
    name: String,
    bytes: u64,
    header: Result<MemberHeader, FormatError>,
}

/// Returns the header of a device of a cache whose superblock lists these tags, if its two copies
/// do not contradict each other. Without a superblock the list is empty.
///
/// # Errors
/// Returns an error if neither copy is intact, or they contradict each other.
pub fn read_header(device: &Device, tags: &[u64]) -> Result<MemberHeader, FormatError> {
    choose(read_copies(device), tags)
}

/// Returns both copies of the header of a device.
pub fn read_copies(device: &Device) -> [Result<MemberHeader, FormatError>; 2] {
    HEADER_BLOCKS.map(|block| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let missing = FormatError::TooShort { structure: "member header", needed: BLOCK_BYTES, found: 0 };
        device.read_at(block * BLOCK, &mut bytes).map_err(|_| missing)?;
        MemberHeader::decode(&bytes)
    })
}

/// Chooses the header of a device of a cache whose superblock lists these tags, if its two copies
/// do not contradict each other.
fn choose(copies: [Result<MemberHeader, FormatError>; 2], tags: &[u64]) -> Result<MemberHeader, FormatError> {
    let is_listed =
        |header: &MemberHeader| tags.get(usize::from(header.index) - 1).is_some_and(|tag| *tag == header.tag);
    match copies {
        // A crash between the two writes: the used part never exceeded the larger one.
        [Ok(a), Ok(b)] if a == (MemberHeader { blocks: a.blocks, ..b }) => {
            Ok(MemberHeader { blocks: a.blocks.max(b.blocks), ..a })
        }
        // A crash while the member got another tag: the superblock lists the one in effect.
        [Ok(a), Ok(b)] if a == (MemberHeader { tag: a.tag, blocks: a.blocks, ..b }) => {
            Ok(if is_listed(&b) { b } else { a })
        }
        [Ok(a), Ok(b)] => {
            let (expected, found) = (u64::from(a.index), u64::from(b.index));
            Err(FormatError::Misplaced { structure: "member header", field: "index", expected, found })
        }
        [Ok(header), _] | [Err(_), Ok(header)] => Ok(header),
        [Err(error), Err(_)] => Err(error),
    }
}

fn check(superblock: &Superblock, found: &[Found]) -> Result<Vec<MemberHeader>, Refusal> {
    let tags = superblock.members.tags();
    let mut headers = Vec::new();
    for device in found {
        headers.push(belongs(superblock, device)?);
    }
    for (at, header) in (1..).zip(&headers) {
        if usize::from(header.index) != at {
            let name = &found[at - 1].name;
            return Err(Refusal::new(
                MessageId::CacheMemberOrder,
                format!("{name} is member {} of the cache, but it was given as member {at}", header.index),
            )
            .hint("give the devices in the order of their numbers, each once"));
        }
    }
    if headers.len() < tags.len() {
        return Err(Refusal::new(
            MessageId::CacheMemberMissing,
            format!(
                "the cache lies on {} devices, but only {} were given: member {} is missing",
                tags.len() + 1,
                headers.len() + 1,
                headers.len() + 1
            ),
        )
        .hint("give all of them, in order"));
    }
    check_space(superblock, found, &mut headers)?;
    Ok(headers)
}

/// Returns the header of a device that belongs to this cache now.
fn belongs(superblock: &Superblock, device: &Found) -> Result<MemberHeader, Refusal> {
    let name = &device.name;
    let header = device.header.clone().map_err(|error| {
        let what = format!("{name} is not a member of a cache: {error}");
        Refusal::new(MessageId::CacheMemberForeign, what)
            .hint("give the devices that the cache was made or grown with")
    })?;
    if header.uuid != superblock.uuid {
        return Err(Refusal::new(
            MessageId::CacheMemberForeign,
            format!("{name} belongs to the cache {}, not to {}", header.uuid, superblock.uuid),
        )
        .hint("give the devices of one cache"));
    }
    let tag = superblock.members.tags().get(usize::from(header.index) - 1);
    if tag != Some(&header.tag) {
        return Err(Refusal::new(
            MessageId::CacheMemberRemoved,
            format!(
                "{name} was a member of this cache, but it was removed or replaced since: its data is stale"
            ),
        )
        .hint("leave it out; to use it again, erase its beginning and grow the cache by it"));
    }
    Ok(header)
}

/// Checks that the members follow one another, meet where segments begin, and have the lengths
/// required by the superblock. The start of a member never changes; lengths in headers are
/// corrected.
fn check_space(
    superblock: &Superblock,
    found: &[Found],
    headers: &mut [MemberHeader],
) -> Result<(), Refusal> {
    let geometry = &superblock.geometry;
    let mut before = geometry.segments_start_block;
    for (device, header) in found.iter().zip(headers.iter()) {
        let meets_segment = header
            .first_block
            .checked_sub(before)
            .is_some_and(|blocks| blocks.is_multiple_of(u64::from(geometry.segment_blocks)));
        if !meets_segment || header.first_block > geometry.device_blocks {
            return Err(Refusal::new(
                MessageId::CacheMemberOrder,
                format!(
                    "{}: its blocks, from {} on, do not follow those of the member before it",
                    device.name, header.first_block
                ),
            )
            .hint("its header is damaged: restore the device from a copy, or make a new cache"));
        }
        before = header.first_block;
    }
    divide(headers, &superblock.members, geometry);
    for (device, header) in found.iter().zip(headers) {
        check_length(&device.name, device.bytes, (DATA_START_BLOCK + header.blocks) * BLOCK)?;
    }
    Ok(())
}

fn check_length(name: &dyn std::fmt::Display, bytes: u64, needed: u64) -> Result<(), Refusal> {
    if bytes >= needed {
        return Ok(());
    }
    Err(Refusal::new(
        MessageId::CacheTruncated,
        format!("{name} has {bytes} bytes, but its part of the cache needs {needed}"),
    )
    .hint("restore its full length"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::CacheState;
    use forebay_format::{CacheUuid, Geometry, Members};

    const UUID: CacheUuid = CacheUuid([7; 16]);

    /// Returns the superblock of a cache on three devices, of which the further ones have 1024 and
    /// 64 blocks.
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

    fn refused(headers: &[MemberHeader]) -> String {
        let found: Vec<Found> = headers.iter().map(|header| device(Ok(*header))).collect();
        check(&superblock(), &found).unwrap_err().to_string()
    }

    fn device(header: Result<MemberHeader, FormatError>) -> Found {
        Found { name: "/dev/x".into(), bytes: 8 << 20, header }
    }

    #[test]
    fn unrelated_devices_are_refused() {
        let [a, b] = headers();
        assert!(refused(&[a]).contains("member 2 is missing"));
        assert!(refused(&[]).contains("member 1 is missing"));
        assert!(refused(&[b, a]).contains("is member 2 of the cache, but it was given as member 1"));
        assert!(refused(&[a, a]).contains("given as member 2"));
        assert!(
            refused(&[MemberHeader { uuid: CacheUuid([8; 16]), ..a }, b]).contains("belongs to the cache")
        );
        assert!(refused(&[a, MemberHeader { tag: 23, ..b }]).contains("removed or replaced"));
        assert!(refused(&[a, b, MemberHeader { index: 3, tag: 33, ..b }]).contains("removed or replaced"));
        for first_block in [b.first_block + 1, a.first_block - 64, superblock().geometry.device_blocks + 64] {
            assert!(refused(&[a, MemberHeader { first_block, ..b }]).contains("do not follow"));
        }
        let end = superblock().geometry.device_blocks;
        let found = [device(Ok(a)), device(Ok(b))];
        let cut = check(&superblock_until(end + 2048), &found).unwrap_err().to_string();
        assert!(cut.contains("has 8388608 bytes, but its part of the cache needs 9699328"), "{cut}");
        let blank = device(Err(FormatError::Magic { structure: "member header" }));
        assert!(check(&superblock(), &[blank]).unwrap_err().to_string().contains("not a member of a cache"));
    }

    #[test]
    fn superblock_corrects_member_lengths() {
        let [a, b] = headers();
        let end = superblock().geometry.device_blocks;
        for (of_a, of_b) in [(1024, 64), (64, 640), (4096, 1), (1 << 39, 1 << 39)] {
            let stale = [MemberHeader { blocks: of_a, ..a }, MemberHeader { blocks: of_b, ..b }];
            let found = stale.map(|header| device(Ok(header)));
            assert_eq!(check(&superblock(), &found).unwrap(), [a, b]);
            let grown = check(&superblock_until(end + 640), &found).unwrap();
            assert_eq!(grown, [a, MemberHeader { blocks: 704, ..b }]);
            // An earlier build could shrink a pool until its last device had no space left.
            let nothing = check(&superblock_until(b.first_block), &found).unwrap();
            assert_eq!(nothing[1].blocks, 0);
        }
    }

    #[test]
    fn one_intact_header_copy_suffices() {
        let [a, b] = headers();
        let torn = FormatError::Magic { structure: "member header" };
        let choose = |copies| choose(copies, &[11, 22]);
        assert_eq!(choose([Err(torn.clone()), Ok(a)]), Ok(a));
        assert_eq!(choose([Ok(a), Err(torn)]), Ok(a));
        assert!(choose([Ok(a), Ok(b)]).is_err());
        assert!(choose([Ok(a), Ok(MemberHeader { uuid: CacheUuid([8; 16]), ..a })]).is_err());
        assert!(choose([Ok(a), Ok(MemberHeader { first_block: a.first_block + 64, ..a })]).is_err());
        // A resize was interrupted between the two writes.
        let longer = MemberHeader { blocks: 2048, ..a };
        assert_eq!(choose([Ok(longer), Ok(a)]), Ok(longer));
        assert_eq!(choose([Ok(a), Ok(longer)]), Ok(longer));
    }

    #[test]
    fn superblock_decides_between_two_tags() {
        let [a, b] = headers();
        let other = MemberHeader { tag: 12, ..a };
        let belongs = |copies, tags: &[u64]| {
            let listing = Superblock { members: Members::new(tags).unwrap(), ..superblock() };
            let header = choose(copies, tags);
            check(&listing, &[device(header), device(Ok(b))]).map(|headers| headers[0].tag)
        };
        for (listed, right) in [(11, a), (12, other)] {
            assert_eq!(belongs([Ok(other), Ok(a)], &[listed, 22]).unwrap(), right.tag);
            assert_eq!(belongs([Ok(a), Ok(other)], &[listed, 22]).unwrap(), right.tag);
            // A device that was replaced before has only the former tag.
            let gone = if listed == 11 { other } else { a };
            let why = belongs([Ok(gone), Ok(gone)], &[listed, 22]).unwrap_err().to_string();
            assert!(why.contains("removed or replaced"), "{why}");
        }
        assert!(
            belongs([Ok(other), Ok(a)], &[13, 22]).unwrap_err().to_string().contains("removed or replaced")
        );
    }
}
