//! Whether a backing store is the one that a cache has recorded, before anything is opened for it:
//! for an import, which searches for the stores of its volumes, and for a store that has moved.
//!
//! The engine judges again when the volume is attached, and has more data: this only keeps a wrong
//! disk out of the configuration.

use super::backing::unique;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, checksum};
use forebay_io::{Device, DeviceError, DeviceKind, DeviceOptions};
use std::path::Path;

use crate::may_wait::MayWait;

/// Relation of a store to a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Likeness {
    /// It is the volume's store, as far as the samples show. `proven` if a non-empty sample, the
    /// recorded time or the recorded serial number confirms it: then it may be taken although it
    /// was found elsewhere.
    Same {
        /// See above.
        proven: bool,
    },
    /// No sample differs, but the time does. Only an operator can decide.
    Unsure,
    /// It is shorter than the volume, and so cannot be its store: a message.
    Smaller(String),
    /// It is another store, or was changed: a message.
    Other(String),
    /// It does not exist, or cannot be read: a message.
    Unreadable(String),
}

/// Compares a store with the cache's record of a volume's store.
#[must_use]
pub fn likeness(_: &MayWait, path: &Path, entry: &VolumeEntry) -> Likeness {
    let options = DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
    match Device::open_backing(path, options) {
        Ok(device) => compare(&device, entry).unwrap_or_else(|error| Likeness::Unreadable(error.to_string())),
        Err(error) => Likeness::Unreadable(error.to_string()),
    }
}

/// True if a file is the very one that a cache on this host has recorded, under any name: after a
/// crash there is no other record of it.
#[must_use]
pub fn is_same_file(_: &MayWait, path: &Path, entry: &VolumeEntry) -> bool {
    let options = DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
    let identity = Device::open_backing(path, options).and_then(|device| device.identity());
    identity.is_ok_and(|now| now.kind == DeviceKind::File && unique(&now) == entry.backing.unique)
}

fn compare(device: &Device, entry: &VolumeEntry) -> Result<Likeness, DeviceError> {
    let noted = &entry.backing;
    if device.size_bytes() < entry.size_bytes {
        let (there, wanted) = (device.size_bytes(), entry.size_bytes);
        return Ok(Likeness::Smaller(format!("it has {there} bytes, but the volume has {wanted}")));
    }
    let (mut differ, mut compared, mut telling) = (0_usize, 0_usize, false);
    let (empty, mut bytes) = (checksum(&[0; BLOCK_BYTES]), vec![0; BLOCK_BYTES]);
    for (block, crc32c) in samples(noted, device.size_bytes()) {
        device.read_at(block * BLOCK_BYTES as u64, &mut bytes)?;
        compared += 1;
        differ += usize::from(checksum(&bytes) != crc32c);
        telling |= crc32c != empty;
    }
    if differ > 0 {
        return Ok(Likeness::Other(format!(
            "{differ} of {compared} sampled blocks are not as the cache left them"
        )));
    }
    let identity = device.identity()?;
    let times = noted.stamp_ns.zip(identity.mtime_ns);
    telling |= times.is_some_and(|(then, now)| then == now);
    // Device and inode numbers mean nothing on another host.
    telling |= identity.unique.starts_with("serial:") && unique(&identity) == noted.unique;
    if !telling && times.is_some() {
        return Ok(Likeness::Unsure);
    }
    Ok(Likeness::Same { proven: telling && device.size_bytes() == noted.size_bytes })
}

/// The samples that lie within a store of this size.
fn samples(noted: &BackingRecord, size_bytes: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
    let whole = size_bytes / BLOCK_BYTES as u64;
    noted.samples.iter().copied().filter(move |(block, _)| *block < whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::VolumeId;
    use forebay_format::checkpoint::Mode;

    const BYTES: u64 = 1 << 20;

    fn entry(content: &[u8], blocks: &[u64]) -> VolumeEntry {
        let sample = |block: &u64| {
            let at = *block as usize * BLOCK_BYTES;
            (*block, checksum(&content[at..at + BLOCK_BYTES]))
        };
        VolumeEntry {
            id: VolumeId(0),
            mode: Mode::Writeback,
            size_bytes: BYTES,
            uuid: [1; 16],
            name: "db".into(),
            backing: BackingRecord {
                kind: 1,
                size_bytes: BYTES,
                unique: [1, 2],
                stamp_ns: None,
                samples: blocks.iter().map(sample).collect(),
            },
            flush_epoch: 0,
        }
    }

    #[test]
    fn likeness_depends_on_size_and_samples() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let mut content = vec![0_u8; BYTES as usize];
        content[5 * BLOCK_BYTES] = 7;
        let is = |content: &[u8], entry: &VolumeEntry| {
            std::fs::write(&path, content).unwrap();
            likeness(&MayWait::here(), &path, entry)
        };
        let (same, proven) = (Likeness::Same { proven: false }, Likeness::Same { proven: true });
        assert_eq!(is(&content, &entry(&content, &[0, 5])), proven);
        assert_eq!(is(&content, &entry(&content, &[0, 1])), same, "any empty disk has these");
        assert_eq!(is(&content, &entry(&content, &[])), same, "nothing was noted");
        assert_eq!(is(&[&content[..], &[0; 4096]].concat(), &entry(&content, &[5])), same, "it has grown");
        let stamped = |stamp_ns, blocks: &[u64]| {
            let entry = entry(&content, blocks);
            VolumeEntry { backing: BackingRecord { stamp_ns: Some(stamp_ns), ..entry.backing }, ..entry }
        };
        let mtime = |entry: &VolumeEntry| {
            is(&content, entry);
            let time = std::fs::metadata(&path).unwrap().modified().unwrap();
            time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64
        };
        let now = mtime(&stamped(3, &[]));
        assert_eq!(likeness(&MayWait::here(), &path, &stamped(now, &[0])), proven, "its time says so");
        assert_eq!(is(&content, &stamped(3, &[0, 1])), Likeness::Unsure, "another time, and empty blocks");
        assert_eq!(is(&content, &stamped(3, &[0, 5])), proven, "copied without its time");
        let other = |likeness| match likeness {
            Likeness::Other(why) | Likeness::Smaller(why) => why,
            else_ => panic!("{else_:?}"),
        };
        let changed = entry(&content, &[0, 5, 6]);
        assert!(other(is(&vec![0; BYTES as usize], &changed)).contains("1 of 3 sampled blocks"));
        assert!(other(is(&content[4096..], &changed)).contains("the volume has 1048576"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(likeness(&MayWait::here(), &path, &changed), Likeness::Unreadable(_)));
    }
}
