//! Signatures of cache devices, for programs that only identify devices: udev does so for every
//! block device.
//!
//! Reads two blocks. Takes no lock, judges nothing, and needs no key: superblocks and headers are
//! never encrypted.
//!
//! Invariants
//! - A device that begins like a part of a cache is reported as one, however damaged: salvage may
//!   find dirty data.
//! - An identity is returned only if its checksum is right.

use forebay_format::member::{HEADER_BLOCKS, MemberHeader};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, Geometry, VERSION};
use std::io;

/// The device belongs to a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Identity of the cache, shared by all of its devices; `None` if it is damaged.
    pub uuid: Option<CacheUuid>,
    /// Version of the structure that contains it, if this program can read it.
    pub version: Option<u32>,
}

/// Looks for the signature of a cache: superblocks, or the headers of a further device of a cache
/// on several ones. `read` fills the buffer from an offset, and returns the number of bytes read.
///
/// # Errors
/// Returns the errors of `read`.
pub fn find(mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>) -> io::Result<Option<Signature>> {
    let mut block = |offset| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let there = read(offset, &mut bytes)?;
        bytes.truncate(there);
        Ok::<_, io::Error>(bytes)
    };
    let superblocks = [block(Geometry::superblock_offset(0))?, block(Geometry::superblock_offset(1))?];
    if let Some(found) = of_superblocks(&superblocks) {
        return Ok(Some(found));
    }
    let headers =
        [block(HEADER_BLOCKS[0] * BLOCK_BYTES as u64)?, block(HEADER_BLOCKS[1] * BLOCK_BYTES as u64)?];
    Ok(of_headers(&headers))
}

fn of_superblocks(blocks: &[Vec<u8>; 2]) -> Option<Signature> {
    let copies = [0, 1].map(|copy| Superblock::decode(&blocks[copy]));
    match Superblock::choose(copies.clone()) {
        Ok(superblock) => {
            Some(Signature { uuid: Some(superblock.uuid), version: Some(superblock.version()) })
        }
        Err(error) => is_ours(&error).then(|| Signature {
            uuid: blocks.iter().zip(&copies).find_map(|(block, copy)| identity(block, copy)),
            version: None,
        }),
    }
}

/// Returns the identity in a copy that this program cannot use, if its checksum is right: for
/// instance one of a newer version.
fn identity(block: &[u8], copy: &Result<Superblock, FormatError>) -> Option<CacheUuid> {
    match copy {
        Err(FormatError::Checksum { .. }) => None,
        _ => Superblock::identity_of_damaged(block),
    }
}

fn of_headers(blocks: &[Vec<u8>; 2]) -> Option<Signature> {
    let copies = [0, 1].map(|copy| MemberHeader::decode(&blocks[copy]));
    if let Some(header) = copies.iter().flatten().next() {
        return Some(Signature { uuid: Some(header.uuid), version: Some(VERSION) });
    }
    let is_damaged = copies.iter().any(|copy| copy.as_ref().is_err_and(is_ours));
    is_damaged.then_some(Signature { uuid: None, version: None })
}

/// Returns true if it begins like a structure of a cache.
fn is_ours(error: &FormatError) -> bool {
    !matches!(error, FormatError::Magic { .. } | FormatError::TooShort { .. })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::{CacheState, being_made};
    use forebay_format::{Encryption, Members, MirrorMark};

    const UUID: CacheUuid = CacheUuid([0xab; 16]);
    const SECOND: usize = 16 * BLOCK_BYTES;

    fn superblock() -> Superblock {
        Superblock {
            uuid: UUID,
            generation: 7,
            epoch: 1,
            checkpoint_generation: 1,
            chain: None,
            state: CacheState::Open,
            geometry: Geometry::for_device(64 << 20, Some(64)).unwrap(),
            members: Members::default(),
            mirror: None,
            encryption: None,
            shard_index: 0,
            shard_count: 1,
            created_unix_s: 0,
            written_by: String::new(),
        }
    }

    /// Creates a device with this block twice.
    fn twice(block: &[u8]) -> Vec<u8> {
        let mut device = vec![0; 1 << 20];
        device[..block.len()].copy_from_slice(block);
        device[SECOND..SECOND + block.len()].copy_from_slice(block);
        device
    }

    fn found(device: &[u8]) -> Option<Signature> {
        find(|offset, bytes| {
            let rest = device.get(offset as usize..).unwrap_or_default();
            let there = rest.len().min(bytes.len());
            bytes[..there].copy_from_slice(&rest[..there]);
            Ok(there)
        })
        .unwrap()
    }

    fn whole(version: u32) -> Option<Signature> {
        Some(Signature { uuid: Some(UUID), version: Some(version) })
    }

    const DAMAGED: Option<Signature> = Some(Signature { uuid: None, version: None });

    #[test]
    fn each_copy_identifies_every_cache_type() {
        let mirror = MirrorMark { member: 1, out: None, tags: [1, 2] };
        let encryption = Encryption { key_check: [3; 16] };
        for (superblock, version) in [
            (superblock(), 1),
            (Superblock { state: CacheState::Failed, ..superblock() }, 1),
            (Superblock { members: Members::new(&[5]).unwrap(), ..superblock() }, 1),
            (Superblock { mirror: Some(mirror), ..superblock() }, 2),
            (Superblock { encryption: Some(encryption), ..superblock() }, 3),
        ] {
            let device = twice(&superblock.encode());
            assert_eq!(found(&device), whole(version), "{superblock:?}");
            for copy in [0, SECOND] {
                for damage in [0, 40] {
                    let mut device = device.clone();
                    device[copy + damage] ^= 1;
                    assert_eq!(found(&device), whole(version), "the copy at {copy} is damaged at {damage}");
                }
            }
        }
    }

    #[test]
    fn member_devices_of_a_cache_are_recognised() {
        let header = MemberHeader { uuid: UUID, index: 1, tag: 5, first_block: 1 << 20, blocks: 64 };
        let device = twice(&header.encode());
        assert_eq!(found(&device), whole(1));
        for copy in [0, SECOND] {
            let mut device = device.clone();
            device[copy + 100] ^= 1;
            assert_eq!(found(&device), whole(1));
        }
    }

    /// Damaged data may be dirty data: such a device must not be formatted. But no identity is made
    /// up.
    #[test]
    fn damaged_cache_is_recognised_without_uuid() {
        let header = MemberHeader { uuid: UUID, index: 1, tag: 5, first_block: 1 << 20, blocks: 64 };
        for block in [superblock().encode(), header.encode()] {
            let mut device = twice(&block);
            device[40] ^= 1;
            device[SECOND + 41] ^= 1;
            assert_eq!(found(&device), DAMAGED);
            device[0] = 0;
            assert_eq!(found(&device), DAMAGED, "one copy is gone and the other one damaged");
            device[SECOND] = 0;
            assert_eq!(found(&device), None);
        }
    }

    #[test]
    fn newer_version_of_a_cache_has_an_identity() {
        let mut block = superblock().encode();
        block[8] = 99;
        let right = FormatError::Version { structure: "superblock", found: 99, supported: 4 };
        let Err(FormatError::Checksum { computed, .. }) = Superblock::decode(&block) else { panic!() };
        block[508..512].copy_from_slice(&computed.to_le_bytes());
        assert_eq!(Superblock::decode(&block), Err(right));
        assert_eq!(found(&twice(&block)), Some(Signature { uuid: Some(UUID), version: None }));
    }

    #[test]
    fn short_or_foreign_device_is_no_cache() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&vec![0; 1 << 20]), None);
        assert_eq!(found(&vec![0xff; 1 << 20]), None);
        assert_eq!(found(&twice(&being_made())), None, "nothing on it counts yet");
        let device = twice(&superblock().encode());
        for (length, expected) in [(7, None), (511, None), (512, whole(1)), (SECOND + 100, whole(1))] {
            assert_eq!(found(&device[..length]), expected, "{length} bytes");
        }
        assert_eq!(
            find(|_, _| Err(io::ErrorKind::NotConnected.into())).unwrap_err().kind(),
            io::ErrorKind::NotConnected
        );
    }
}
