//! Devices that hold a copy of a part of a cache and must not be taken for it: the old device of a
//! pair after the new one took over, or the new one if it did not.
//!
//! `STATE_DIR/replaced/POOL.json` lists such pairs, from before the first byte is written to the
//! new device until the stale one has been erased. The configuration decides which one is stale: it
//! is changed in one step, when both devices are complete. So after a crash at any instant the next
//! start knows which one to erase. If the pool then cannot switch to the new device, and the
//! configuration cannot be changed back either, the list records that the old one is current.
//!
//! - A device is erased only if its own metadata names this cache.
//! - A device that the configuration names is never erased, with one exception: the new device of a
//!   pair whose old one it names too, and that has not taken over. It is the last device of a pool,
//!   and was meant to replace another one.
//! - A pool is not opened with an old device in place of the one that took over from it.
//! - A missing device stays on the list: it can reappear. A device that rejoins a pool is removed
//!   from the list first.
//! - A device that could not be erased can be found by another host, which does not have this list.
//!   So the pool changes until no start accepts the device ([`believed`]), and that is recorded
//!   here.

use crate::cache_device::{device_error, is_same};
use crate::durable;
use crate::error::RunError;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use crate::open::{give_up, says_of};
use crate::time_limit::{Undone, within};
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_config::CacheSpec;
use forebay_format::superblock::being_made;
use forebay_format::{BLOCK_BYTES, CacheUuid};
use forebay_io::{Device, DeviceError, DeviceOptions};
use forebay_offline::device::{Found, look, wait_for};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const FOLDER: &str = "replaced";
/// Time for a stale device at a start.
const EACH_WITHIN: Duration = Duration::from_secs(10);
const VERSION: u32 = 1;

/// A device that will replace another one, or has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    cache_uuid: String,
    old: PathBuf,
    new: PathBuf,
    /// The configuration has named the new one.
    took_over: bool,
    /// No start accepts the stale device, on any host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_behind: bool,
    /// The new one has not taken over, but the configuration names it: it could not be changed
    /// back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    old_counts: bool,
    /// Number of bytes at the beginning of the old one that belong to the cache.
    #[serde(default)]
    used_bytes: u64,
}

impl Pair {
    /// A pair of one cache, with the number of bytes that it uses of the old device.
    #[must_use]
    pub fn new(cache: CacheUuid, (old, used_bytes): (&Path, u64), new: &Path) -> Self {
        Self {
            cache_uuid: hex(&cache.0),
            old: old.to_owned(),
            new: new.to_owned(),
            took_over: false,
            left_behind: false,
            old_counts: false,
            used_bytes,
        }
    }

    /// The pair after the configuration has named the new one.
    #[must_use]
    pub fn after_take_over(self) -> Self {
        Self { took_over: true, ..self }
    }

    /// A device that leaves a pool, which is on `stays` from now on: it is erased, unless the
    /// configuration names it again. The superblock no longer lists its tag.
    #[must_use]
    pub fn given_up(cache: CacheUuid, leaves: (&Path, u64), stays: &Path) -> Self {
        Self { took_over: true, left_behind: true, ..Self::new(cache, leaves, stays) }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.cache_uuid == other.cache_uuid
            && is_place(&self.old, &other.old)
            && is_place(&self.new, &other.new)
    }

    /// The stale device.
    #[must_use]
    pub fn leaves(&self) -> &Path {
        if self.took_over { &self.old } else { &self.new }
    }

    /// The current device.
    #[must_use]
    pub fn stays(&self) -> &Path {
        if self.took_over { &self.new } else { &self.old }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pairs {
    version: u32,
    pairs: Vec<Pair>,
}

fn path_of(state_dir: &Path, pool: &str) -> PathBuf {
    state_dir.join(FOLDER).join(format!("{pool}.json"))
}

fn read(state_dir: &Path, pool: &str) -> Result<Vec<Pair>, RunError> {
    let path = path_of(state_dir, pool);
    let failed = |why: &dyn std::fmt::Display| {
        RunError::failed(
            MessageId::StateUnreadable,
            format!("cannot read {}, which records replaced cache devices: {why}", path.display()),
            "restore it from a backup; or, if no cache device was being replaced, remove the file",
        )
    };
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| failed(&error))?,
    };
    let read: Pairs = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    if read.version == VERSION { Ok(read.pairs) } else { Err(failed(&"it has another version")) }
}

fn write(may_wait: &MayWait, state_dir: &Path, pool: &str, pairs: Vec<Pair>) -> Result<(), RunError> {
    let path = path_of(state_dir, pool);
    let written = match pairs.is_empty() {
        true => durable::remove(may_wait, state_dir, &path),
        false => durable::replace_json(may_wait, state_dir, &path, &Pairs { version: VERSION, pairs }),
    };
    written.map_err(|error| {
        RunError::failed(
            MessageId::Event(EventKind::StateUnwritable),
            format!("cannot write {}, which records replaced cache devices: {error}", path.display()),
            "free space in state_dir, or give the daemon write access there; then try again",
        )
    })
}

/// Changes the list of a pool. Concurrent changes, such as by a job that erases a device and by an
/// operator who adds one, are serialized.
fn change(
    may_wait: &MayWait,
    state_dir: &Path,
    pool: &str,
    change: impl FnOnce(&mut Vec<Pair>),
) -> Result<(), RunError> {
    static WRITERS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let writer = {
        let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(writers.entry(path_of(state_dir, pool)).or_default())
    };
    let _alone = writer.lock().unwrap_or_else(PoisonError::into_inner);
    let before = read(state_dir, pool)?;
    let mut pairs = before.clone();
    change(&mut pairs);
    if pairs == before { Ok(()) } else { write(may_wait, state_dir, pool, pairs) }
}

/// Lists a pair, durably, before anything is copied.
///
/// # Errors
/// The list cannot be read or written.
pub fn add(may_wait: &MayWait, state_dir: &Path, pool: &str, pair: &Pair) -> Result<(), RunError> {
    change(may_wait, state_dir, pool, |pairs| {
        pairs.retain(|other| !other.is_of(pair));
        pairs.push(pair.clone());
    })
}

/// Records that the configuration names the new device of a pair.
///
/// # Errors
/// The list cannot be read or written; the next start learns it from the configuration.
pub fn took_over(may_wait: &MayWait, state_dir: &Path, pool: &str, pair: &Pair) -> Result<(), RunError> {
    add(may_wait, state_dir, pool, &Pair { took_over: true, ..pair.clone() })
}

/// Records that the new device of a pair has not taken over although the configuration names it:
/// the next start refuses that, and erases neither.
///
/// # Errors
/// The list cannot be read or written.
pub fn old_counts(may_wait: &MayWait, state_dir: &Path, pool: &str, pair: &Pair) -> Result<(), RunError> {
    add(may_wait, state_dir, pool, &Pair { old_counts: true, ..pair.clone() })
}

/// Records that no start accepts the stale device of a listed pair, on any host.
///
/// # Errors
/// The list cannot be read or written; the next start repeats it.
pub fn left_behind(may_wait: &MayWait, state_dir: &Path, pool: &str, pair: &Pair) -> Result<(), RunError> {
    change(may_wait, state_dir, pool, |pairs| {
        pairs.iter_mut().filter(|other| other.is_of(pair)).for_each(|other| other.left_behind = true);
    })
}

/// Pairs of a pool that is open on these devices, with a stale device that could not be erased and
/// that a start could still accept.
///
/// # Errors
/// The list cannot be read.
pub fn believed(state_dir: &Path, pool: &str, specs: &[CacheSpec]) -> Result<Vec<Pair>, RunError> {
    let is_named = |path: &Path| specs.iter().any(|spec| is_place(&spec.path, path));
    let pairs = read(state_dir, pool)?.into_iter();
    Ok(pairs.filter(|pair| !pair.left_behind && is_named(pair.stays())).collect())
}

/// Removes a pair whose stale device was erased.
///
/// # Errors
/// The list cannot be read or written.
pub fn remove(may_wait: &MayWait, state_dir: &Path, pool: &str, pair: &Pair) -> Result<(), RunError> {
    change(may_wait, state_dir, pool, |pairs| pairs.retain(|other| !other.is_of(pair)))
}

/// Removes a device that is about to join the pool from the list, so that it is not erased.
///
/// # Errors
/// The list cannot be read or written.
pub fn forget(may_wait: &MayWait, state_dir: &Path, pool: &str, path: &Path) -> Result<(), RunError> {
    change(may_wait, state_dir, pool, |pairs| pairs.retain(|pair| !is_place(pair.leaves(), path)))
}

fn is_place(a: &Path, b: &Path) -> bool {
    a == b || is_same(a, b)
}

/// Runs before a pool is opened on these devices: erases stale devices that remained when the
/// daemon was killed in the middle of a replacement, or that could not be erased then. Returns a
/// line for each.
///
/// # Errors
/// The configuration names an incomplete new device, or an old one in place of the one that took
/// over from it, or the list cannot be read.
pub fn settle(
    may_wait: &MayWait,
    state_dir: &Path,
    pool: &str,
    specs: &[CacheSpec],
) -> Result<Vec<String>, RunError> {
    let pairs = read(state_dir, pool)?;
    if pairs.is_empty() {
        return Ok(Vec::new());
    }
    let (mut left, mut notes) = (Vec::new(), Vec::new());
    for mut pair in pairs.iter().cloned() {
        let (of, named, pool) = (pair.clone(), specs.to_vec(), pool.to_owned());
        let settled = within(EACH_WITHIN, "settle", move |may_wait| of.settle(may_wait, &pool, &named));
        let settled = match settled {
            Ok(settled) => Some(settled),
            Err(Undone::Late) => None,
            Err(Undone::NoThread(error)) => return Err(AdminError::no_thread(&error).into()),
        };
        let Some(settled) = settled else {
            let is_named = |path: &Path| specs.iter().any(|spec| spec.path == path);
            pair.took_over |= is_named(&pair.new) && !is_named(&pair.old);
            notes.push(pair.does_not_answer(is_named(pair.stays()))?);
            left.push(pair);
            continue;
        };
        let Settled { took_over, is_left, note } = settled?;
        pair.took_over = took_over;
        notes.extend(note);
        left.extend(is_left.then_some(pair));
    }
    if left != pairs {
        change(may_wait, state_dir, pool, |pairs| *pairs = left)?;
    }
    Ok(notes)
}

/// The state of a pair after a start.
struct Settled {
    took_over: bool,
    /// It stays on the list.
    is_left: bool,
    note: Option<String>,
}

impl Pair {
    fn settle(&self, may_wait: &MayWait, pool: &str, specs: &[CacheSpec]) -> Result<Settled, RunError> {
        let is_named = |path: &Path| specs.iter().any(|spec| is_place(&spec.path, path));
        let (old, new) = (is_named(&self.old), is_named(&self.new));
        if !self.took_over && !old && new && (self.old_counts || is_begun(&self.new)) {
            return Err(RunError::failed(
                MessageId::CacheReplacementIncomplete,
                format!("{} was to replace {}, and is incomplete", self.new.display(), self.old.display()),
                format!("put {} back into the devices of pool {pool}", self.old.display()),
            ));
        }
        let pair = Self { took_over: self.took_over || !old && new, ..self.clone() };
        let settled = |is_left, note| Ok(Settled { took_over: pair.took_over, is_left, note });
        if pair.took_over && old {
            if !new && is_of_cache(&pair.old, &pair.cache_uuid) {
                return Err(RunError::failed(
                    MessageId::CacheReplaced,
                    format!(
                        "{} was replaced by {}, and its data is stale",
                        pair.old.display(),
                        pair.new.display()
                    ),
                    format!("put {} back into the devices of pool {pool}", pair.new.display()),
                ));
            }
            return settled(false, None); // it has rejoined the pool
        }
        let leaves = pair.leaves();
        if !pair.took_over && !old || !leaves.exists() {
            // Neither is named (both can have other names by now), or the device is missing.
            return settled(true, None);
        }
        match erase_at(may_wait, leaves, &pair) {
            Ok(true) => settled(false, Some(format!("{} {}: it is erased", leaves.display(), pair.why()))),
            Ok(false) => settled(false, None), // it has other content by now
            Err(error) => {
                let why = pair.why();
                settled(true, Some(format!("{} {why}, and cannot be erased: {error}", leaves.display())))
            }
        }
    }

    fn why(&self) -> &'static str {
        if self.took_over { "was replaced" } else { "was to replace another device, and did not" }
    }

    /// The stale device seems to hang. A pool whose configuration names the current one, by the
    /// same path, is opened nevertheless.
    fn does_not_answer(&self, stays: bool) -> Result<String, RunError> {
        let what = format!("{} {}, and does not answer", self.leaves().display(), self.why());
        if stays {
            return Ok(format!("{what}; the next start erases it"));
        }
        let hint = "check the device, or the server that provides it; then try again";
        Err(RunError::failed(MessageId::CacheReplacedSilent, what, hint))
    }
}

fn looked_at(path: &Path) -> Option<Device> {
    let options = DeviceOptions { read_only: true, lock: false, ..DeviceOptions::default() };
    Device::open_cache(path, options).ok()
}

fn is_begun(path: &Path) -> bool {
    looked_at(path).is_some_and(|device| matches!(look(&device), Found::Begun))
}

fn is_of_cache(path: &Path, cache: &str) -> bool {
    looked_at(path).is_some_and(|device| says_of(&device, cache))
}

fn erase_at(may_wait: &MayWait, path: &Path, pair: &Pair) -> Result<bool, RunError> {
    let opened = wait_for(|| Device::open_cache(path, DeviceOptions::default())).map_err(device_error)?;
    erase(may_wait, opened, pair).map_err(device_error)
}

/// Erases the metadata of a device whose cache is not open; true if it belonged to the cache. A
/// device that was being filled is marked so that it can be reused without confirmation.
///
/// # Errors
/// It cannot be written.
fn erase(may_wait: &MayWait, mut device: Device, pair: &Pair) -> Result<bool, DeviceError> {
    if !says_of(&device, &pair.cache_uuid) {
        return Ok(false);
    }
    if pair.took_over {
        return give_up(may_wait, &mut device, pair.used_bytes).map(|()| true);
    }
    // Behind the head are copied data, which is never read while the head has this mark.
    let mut bytes = vec![0; forebay_core::device_copy::HEAD_BYTES as usize];
    let mark = being_made();
    bytes[..mark.len().min(BLOCK_BYTES)].copy_from_slice(&mark);
    device.write_at(0, &bytes)?;
    device.flush()?;
    Ok(true)
}

/// As [`settle`], for one device of a pair that has just left its pool.
///
/// # Errors
/// It cannot be written; it stays on the list, and the next start tries again.
pub fn erase_left(may_wait: &MayWait, device: Device, pair: &Pair) -> Result<(), RunError> {
    erase(may_wait, device, pair).map(drop).map_err(device_error)
}

/// As [`erase_left`], after the pool has closed the device.
///
/// # Errors
/// As [`erase_left`], or it cannot be opened.
pub fn erase_old(may_wait: &MayWait, pair: &Pair) -> Result<(), RunError> {
    erase_at(may_wait, &pair.old, pair).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::cache_device::begin_on;
    use forebay_format::member::{HEADER_BLOCKS, MemberHeader};
    use forebay_offline::device::BLANK_BYTES;
    use forebay_offline::members::read_copies;

    const CACHE: CacheUuid = CacheUuid([7; 16]);

    fn file(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }

    fn open(path: &Path) -> Device {
        Device::open_cache(path, DeviceOptions { direct: false, ..Default::default() }).unwrap()
    }

    fn member(path: &Path, cache: CacheUuid) {
        let header = MemberHeader { uuid: cache, index: 1, tag: 5, first_block: 4096, blocks: 64 };
        fs::File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
        for block in HEADER_BLOCKS {
            open(path).write_at(block * BLOCK_BYTES as u64, &header.encode()).unwrap();
        }
    }

    fn has_header(path: &Path) -> bool {
        read_copies(&open(path)).iter().any(Result::is_ok)
    }

    #[test]
    fn configuration_selects_the_erased_device() {
        let folder = tempfile::tempdir().unwrap();
        let (may_wait, dir) = (MayWait::here(), folder.path());
        let (old, new, state) = (file(dir, "old"), file(dir, "new"), dir.join("state"));
        let pair = Pair::new(CACHE, (&old, 1 << 20), &new);
        let specs = |path: &Path| [CacheSpec { path: path.to_owned(), size_bytes: None }];
        let set_up = || {
            member(&old, CACHE);
            member(&new, CACHE);
            add(&may_wait, &state, "p", &pair).unwrap();
        };
        set_up();
        let notes = settle(&may_wait, &state, "p", &specs(&old)).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("new was to replace"), "{notes:?}");
        assert!(has_header(&old) && is_begun(&new), "the new one can be taken again");
        assert!(!path_of(&state, "p").exists());

        set_up();
        let notes = settle(&may_wait, &state, "p", &specs(&new)).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("old was replaced"), "{notes:?}");
        assert!(!has_header(&old) && has_header(&new));
        assert_eq!(fs::metadata(&old).unwrap().len(), 0, "of a file nothing is left");

        set_up();
        let both = [specs(&old), specs(&new)].concat();
        settle(&may_wait, &state, "p", &both).unwrap();
        assert!(has_header(&old) && is_begun(&new), "the old one is named: nothing took over");

        // It took over, and the old one has rejoined the pool.
        set_up();
        took_over(&may_wait, &state, "p", &pair).unwrap();
        assert_eq!(settle(&may_wait, &state, "p", &both).unwrap(), [""; 0]);
        assert!(has_header(&old) && has_header(&new) && !path_of(&state, "p").exists());

        // It took over, and the configuration names the old one, not erased, in its place.
        set_up();
        took_over(&may_wait, &state, "p", &pair).unwrap();
        let refused = settle(&may_wait, &state, "p", &specs(&old)).unwrap_err().to_string();
        assert!(refused.contains("old was replaced by") && refused.contains("is stale"), "{refused}");
        assert!(has_header(&old) && has_header(&new) && path_of(&state, "p").exists());

        // The pool stayed on the old one, and the configuration could not be changed back.
        set_up();
        old_counts(&may_wait, &state, "p", &pair).unwrap();
        let refused = settle(&may_wait, &state, "p", &specs(&new)).unwrap_err().to_string();
        assert!(refused.contains("was to replace"), "{refused}");
        assert!(has_header(&old) && has_header(&new) && path_of(&state, "p").exists());
        let notes = settle(&may_wait, &state, "p", &specs(&old)).unwrap();
        assert!(notes.len() == 1 && has_header(&old) && is_begun(&new), "{notes:?}");

        // A device that joins is removed from the list, for any reason that it was there.
        set_up();
        forget(&may_wait, &state, "p", &old).unwrap();
        assert!(path_of(&state, "p").exists(), "the new one is still to be erased");
        forget(&may_wait, &state, "p", &new).unwrap();
        assert!(!path_of(&state, "p").exists());

        // Neither is named: which one is current is unknown.
        set_up();
        let other = specs(&file(dir, "other"));
        assert_eq!(settle(&may_wait, &state, "p", &other).unwrap(), [""; 0]);
        assert!(has_header(&old) && has_header(&new) && path_of(&state, "p").exists());
    }

    #[test]
    fn unerased_device_is_listed_until_noted() {
        let folder = tempfile::tempdir().unwrap();
        let (may_wait, dir) = (MayWait::here(), folder.path());
        let (old, new, state) = (dir.join("old"), dir.join("new"), dir.join("state"));
        let specs = |path: &Path| [CacheSpec { path: path.to_owned(), size_bytes: None }];
        let stays = |path: &Path| {
            settle(&may_wait, &state, "p", &specs(path)).unwrap();
            let believed = believed(&state, "p", &specs(path)).unwrap();
            believed.iter().map(|pair| pair.stays().to_owned()).collect::<Vec<_>>()
        };
        let pair = Pair::new(CACHE, (&old, 1 << 20), &new);
        add(&may_wait, &state, "p", &pair).unwrap();
        assert_eq!(
            stays(&old),
            std::slice::from_ref(&old),
            "the new one may have everything, and has vanished"
        );
        assert_eq!(stays(&dir.join("other")), [""; 0].map(PathBuf::from), "nobody knows which one counts");
        // Killed before the take-over was recorded: the configuration shows it.
        assert_eq!(stays(&new), std::slice::from_ref(&new));
        left_behind(&may_wait, &state, "p", &pair).unwrap();
        assert_eq!(stays(&new), [""; 0].map(PathBuf::from));
        assert!(path_of(&state, "p").exists(), "it is erased if it comes back");
        file(dir, "old");
        member(&old, CACHE);
        let notes = settle(&may_wait, &state, "p", &specs(&new)).unwrap();
        assert!(notes.len() == 1 && !path_of(&state, "p").exists(), "{notes:?}");
    }

    #[test]
    fn only_the_listed_cache_is_erased() {
        let folder = tempfile::tempdir().unwrap();
        let (may_wait, dir) = (MayWait::here(), folder.path());
        let (old, new, state) = (file(dir, "old"), file(dir, "new"), dir.join("state"));
        let pair = Pair::new(CACHE, (&old, 1 << 20), &new);
        let specs = [CacheSpec { path: new.clone(), size_bytes: None }];
        member(&new, CACHE);
        add(&may_wait, &state, "p", &pair).unwrap();
        fs::remove_file(&old).unwrap();
        assert_eq!(settle(&may_wait, &state, "p", &specs).unwrap(), [""; 0]);
        assert!(path_of(&state, "p").exists());
        // Another cache has the name by now.
        file(dir, "old");
        member(&old, CacheUuid([8; 16]));
        assert_eq!(settle(&may_wait, &state, "p", &specs).unwrap(), [""; 0]);
        assert!(has_header(&old) && !path_of(&state, "p").exists());
        // The new one is named, and was never filled: only the old one has the data.
        member(&old, CACHE);
        open(&new).write_at(0, &vec![0; BLANK_BYTES]).unwrap();
        begin_on(&may_wait, &open(&new)).unwrap();
        add(&may_wait, &state, "p", &pair).unwrap();
        let refused = settle(&may_wait, &state, "p", &specs).unwrap_err().to_string();
        assert!(refused.contains("new was to replace") && has_header(&old), "{refused}");
        fs::write(path_of(&state, "p"), "{}").unwrap();
        assert!(settle(&may_wait, &state, "p", &specs).unwrap_err().to_string().contains("cannot read"));
    }
}
