//! An exported cache: its devices in order, and the settings written to them.
//!
//! The caller passes all devices in any order: their headers and superblocks determine the order.
//! This module does not decrypt or write.

use forebay_admin::MessageId;
use std::path::{Path, PathBuf};

use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{FormatError, SettingsCopy};

use crate::Refusal;
use crate::device::{settings_copies, superblocks};
use crate::space::Space;

/// A cache that was exported, and not opened since.
#[derive(Debug)]
pub struct Exported {
    /// Its superblock.
    pub superblock: Superblock,
    /// The settings written by the export.
    pub copy: SettingsCopy,
    /// Its devices, in the order of the pool's space.
    pub devices: Vec<PathBuf>,
}

/// Finds the devices of an exported cache.
///
/// # Errors
/// Refuses if the cache was not exported, or was used since, or if a device is missing, of another
/// cache, or in use.
pub fn find(paths: &[PathBuf]) -> Result<Exported, Refusal> {
    let mut space = Space::open(paths, &|_, _| Ok(None))?;
    let found = Superblock::choose(superblocks(space.first()));
    let superblock = found.map_err(|error| crate::image::refusal(&space, error))?;
    let devices = arranged(&mut space, &superblock)?;
    let copy = current(&space.shown(), SettingsCopy::choose(settings_copies(space.first())), &superblock)?;
    Ok(Exported { superblock, copy, devices })
}

/// Returns the devices in the order of the pool's space, or a refusal if one is missing.
fn arranged(space: &mut Space, superblock: &Superblock) -> Result<Vec<PathBuf>, Refusal> {
    if let Some(mark) = superblock.mirror {
        let found = space.mirror().map(|mirror| [0, 1].map(|member| mirror.path(member))).unwrap_or_default();
        let missing = (0..2).filter(|member| found[*member].is_none());
        let missing: Vec<String> =
            missing.map(|member| format!("device {} ({:016x})", member + 1, mark.tags[member])).collect();
        if !missing.is_empty() {
            return Err(lacks(space, &missing, 2));
        }
        return Ok(found.into_iter().flatten().map(Path::to_owned).collect());
    }
    let tags = superblock.members.tags();
    let belongs = |index: u16, tag: u64| tags.get(usize::from(index).wrapping_sub(1)) == Some(&tag);
    let ours =
        space.headers().all(|header| header.uuid == superblock.uuid && belongs(header.index, header.tag));
    let is_there = |tag: &u64| space.headers().any(|header| header.tag == *tag);
    let missing = tags.iter().enumerate().filter(|(_, tag)| !is_there(tag));
    let missing: Vec<String> = missing.map(|(at, tag)| format!("device {} ({tag:016x})", at + 2)).collect();
    if ours && !missing.is_empty() {
        return Err(lacks(space, &missing, tags.len() + 1));
    }
    space.arrange(superblock)?;
    Ok(space.devices().map(|device| device.path().to_owned()).collect())
}

fn lacks(space: &Space, missing: &[String], of: usize) -> Refusal {
    let is_or_are = if missing.len() == 1 { "is" } else { "are" };
    let what = format!(
        "{}: the cache lies on {of} devices, and {} {is_or_are} missing",
        space.shown(),
        missing.join(", ")
    );
    Refusal::new(MessageId::CacheMemberMissing, what)
        .hint("give all of them, in any order: --device PATH for each")
}

/// Returns the settings, if they belong to the present state of the cache.
fn current(
    shown: &str,
    found: Result<SettingsCopy, FormatError>,
    superblock: &Superblock,
) -> Result<SettingsCopy, Refusal> {
    const AS_IT_IS: &str = "`forebay pool create NAME --device DEVICE` opens a cache that was not exported, and `forebay volume attach` finds its \
                            volumes by their names; the settings are in forebay.toml of the host that had it";
    let copy = match found {
        Ok(copy) => copy,
        Err(error @ FormatError::Version { .. }) => {
            return Err(Refusal::new(MessageId::CacheVersion, format!("{shown}: {error}"))
                .hint("nothing was changed; import it with a forebay as new as the one that exported it"));
        }
        Err(FormatError::Magic { .. }) => {
            return Err(Refusal::new(
                MessageId::CacheNotExported,
                format!("{shown}: this cache was not exported"),
            )
            .hint(AS_IT_IS));
        }
        Err(error) => {
            let what = format!("{shown}: the settings that the export wrote cannot be read: {error}");
            return Err(Refusal::new(MessageId::CacheExportUnreadable, what).hint(AS_IT_IS));
        }
    };
    if copy.is_current(superblock) {
        return Ok(copy);
    }
    let since = match superblock.state {
        _ if copy.uuid != superblock.uuid => "the settings on it are those of another cache",
        CacheState::Clean => "it was opened since it was exported, and its settings may have changed",
        CacheState::Open => "it has been in use since it was exported, or was not closed in an orderly way",
        CacheState::Failed => "it has failed since it was exported",
    };
    Err(Refusal::new(MessageId::CacheNotExported, format!("{shown}: this cache is not exported: {since}"))
        .hint(AS_IT_IS))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::member::{HEADER_BLOCKS, MemberHeader};
    use forebay_format::settings_copy::{SETTINGS_BLOCKS, SETTINGS_MAC_BYTES};
    use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members, MirrorMark};

    const UUID: CacheUuid = CacheUuid([7; 16]);
    const BYTES: u64 = 40 << 20;

    fn superblock() -> Superblock {
        Superblock {
            uuid: UUID,
            generation: 9,
            epoch: 1,
            checkpoint_generation: 1,
            chain: None,
            state: CacheState::Clean,
            geometry: Geometry::for_device(BYTES, Some(64)).unwrap(),
            members: Members::default(),
            mirror: None,
            encryption: None,
            shard_index: 0,
            shard_count: 1,
            created_unix_s: 0,
            written_by: String::new(),
        }
    }

    fn settings() -> SettingsCopy {
        SettingsCopy {
            uuid: UUID,
            generation: 9,
            exported_unix_s: 5,
            host: "old".into(),
            written_by: String::new(),
            mac: [0; SETTINGS_MAC_BYTES],
            text: "[pool.p]".into(),
        }
    }

    struct Stage(tempfile::TempDir);

    impl Stage {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Creates a file with these bytes at these blocks.
        fn file(&self, name: &str, parts: &[(u64, Vec<u8>)]) -> PathBuf {
            use std::os::unix::fs::FileExt;
            let path = self.0.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(BYTES).unwrap();
            for (block, bytes) in parts {
                file.write_all_at(bytes, block * BLOCK_BYTES as u64).unwrap();
            }
            path
        }

        fn first(&self, superblock: &Superblock, copies: [Option<Vec<u8>>; 2]) -> PathBuf {
            let copies = SETTINGS_BLOCKS.into_iter().zip(copies);
            let copies = copies.filter_map(|(block, copy)| Some((block, copy?)));
            let superblocks = [(0, superblock.encode()), (16, superblock.encode())];
            self.file("first", &superblocks.into_iter().chain(copies).collect::<Vec<_>>())
        }
    }

    fn refused(paths: &[PathBuf]) -> String {
        let refusal = find(paths).unwrap_err();
        format!("{refusal}; {}", refusal.hint)
    }

    #[test]
    fn only_intact_current_settings_are_found() {
        let stage = Stage::new();
        let (good, none) = (settings().encode(), None);
        let torn = || Some([&good[..600], &[0; 100]].concat());
        for copies in [[Some(good.clone()), none.clone()], [torn(), Some(good.clone())]] {
            let found = find(&[stage.first(&superblock(), copies)]).unwrap();
            assert_eq!((found.copy, found.devices.len()), (settings(), 1));
        }
        let encode = |settings: SettingsCopy| Some(settings.encode());
        let mut newer = good.clone();
        newer[8] = 2;
        newer[508..512].fill(0);
        let crc = forebay_format::checksum(&newer[..512]);
        newer[508..512].copy_from_slice(&crc.to_le_bytes());
        for (copies, superblock, why) in [
            ([none.clone(), none.clone()], superblock(), "was not exported; `forebay pool create"),
            ([Some(vec![0xff; 512]), none.clone()], superblock(), "was not exported"),
            (
                [Some(good[..300].to_vec()), none.clone()],
                superblock(),
                "cannot be read: settings copy: checksum",
            ),
            ([Some(newer), Some(good.clone())], superblock(), "a forebay as new as"),
            (
                [Some(good.clone()), none.clone()],
                Superblock { generation: 10, ..superblock() },
                "was opened since",
            ),
            (
                [Some(good.clone()), none.clone()],
                Superblock { state: CacheState::Open, ..superblock() },
                "in use since",
            ),
            (
                [Some(good.clone()), none.clone()],
                Superblock { state: CacheState::Failed, ..superblock() },
                "has failed since",
            ),
            (
                [encode(SettingsCopy { uuid: CacheUuid([8; 16]), ..settings() }), none.clone()],
                superblock(),
                "of another cache",
            ),
        ] {
            let said = refused(&[stage.first(&superblock, copies)]);
            assert!(said.contains(why), "{why}: {said}");
        }
    }

    #[test]
    fn devices_are_sorted_and_missing_are_named() {
        let stage = Stage::new();
        let geometry = superblock().geometry;
        let (first, second) =
            (geometry.segments_start_block + 128 * 64, geometry.segments_start_block + 192 * 64);
        let device_blocks = second + 64;
        let superblock = Superblock {
            geometry: Geometry { device_blocks, ..geometry },
            members: Members::new(&[0xa1, 0xa2]).unwrap(),
            ..superblock()
        };
        let member = |name: &str, index, tag, first_block| {
            let header = MemberHeader { uuid: UUID, index, tag, first_block, blocks: 64 };
            stage.file(name, &HEADER_BLOCKS.map(|block| (block, header.encode())))
        };
        let one = stage.first(&superblock, [Some(settings().encode()), None]);
        let (two, three) = (member("b", 1, 0xa1, first), member("a", 2, 0xa2, second));
        let found = find(&[three.clone(), one.clone(), two.clone()]).unwrap();
        assert_eq!(found.devices, [one.clone(), two.clone(), three.clone()]);
        let said = refused(&[one.clone(), three.clone()]);
        assert!(said.contains("lies on 3 devices, and device 2 (00000000000000a1) is missing"), "{said}");
        let said = refused(std::slice::from_ref(&one));
        assert!(
            said.contains("device 2 (00000000000000a1), device 3 (00000000000000a2) are missing"),
            "{said}"
        );
        assert!(refused(&[two, three.clone()]).contains("its first one is missing"));
        let left = member("left", 1, 0xa9, first);
        assert!(refused(&[one, left, three]).contains("was removed or replaced since"));
    }

    #[test]
    fn mirrored_cache_requires_both_devices() {
        let stage = Stage::new();
        let mirrored = |member, name: &str| {
            let mirror = Some(MirrorMark { member, out: None, tags: [0xb1, 0xb2] });
            let geometry = Geometry::mirrored(BYTES, Some(64)).unwrap();
            let superblock = Superblock { geometry, mirror, ..superblock() };
            let blocks = [0, 16].map(|block| (block, superblock.encode()));
            let copies = SETTINGS_BLOCKS.map(|block| (block, settings().encode()));
            stage.file(name, &[blocks, copies].concat())
        };
        let (one, two) = (mirrored(0, "one"), mirrored(1, "two"));
        assert_eq!(find(&[two.clone(), one.clone()]).unwrap().devices, [one.clone(), two]);
        let said = refused(&[one]);
        assert!(said.contains("lies on 2 devices, and device 2 (00000000000000b2) is missing"), "{said}");
    }
}
