//! The notes of a mirrored cache: which of its devices are out.
//!
//! The notes of a cache are one file, `STATE_DIR/mirrors/CACHE-UUID.json`: the tags of devices that
//! failed while the other one went on. The file is created with the cache, replaced as a whole, and
//! durable before data that only one device has counts (I61). It never forgets a tag: a device that
//! was failed out must not be opened, alone or with the other, however much later it is found
//! again. Where both devices are present, tags that they record and the file lacks are added to it
//! first: the file can get lost, and the next start can find the stale device only.

use crate::error::RunError;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use forebay_format::CacheUuid;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Directory of the notes in the state directory.
const FOLDER: &str = "mirrors";
/// Format version of the file.
const VERSION: u32 = 1;

/// Hint for a file that cannot be written.
const UNWRITABLE: &str = "a mirrored cache needs it when a device fails: give the daemon write access there, \
    or set state_dir";

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Notes {
    /// Format version of the file.
    version: u32,
    /// Identity of the cache.
    cache_uuid: String,
    /// Tags of devices that are out, in hexadecimal.
    out: Vec<String>,
}

impl Notes {
    pub(crate) fn new(cache: CacheUuid) -> Self {
        Self { version: VERSION, cache_uuid: hex(&cache.0), out: Vec::new() }
    }

    /// Directory of the notes of all caches.
    pub(crate) fn folder(state_dir: &Path) -> PathBuf {
        state_dir.join(FOLDER)
    }

    pub(crate) fn path(state_dir: &Path, cache_uuid: &str) -> PathBuf {
        Self::folder(state_dir).join(format!("{cache_uuid}.json"))
    }

    /// Reads the notes of a cache; `None` if there is no such file.
    ///
    /// # Errors
    /// They cannot be read, or have invalid content.
    pub(crate) fn read(state_dir: &Path, cache_uuid: &str) -> Result<Option<Self>, RunError> {
        let path = Self::path(state_dir, cache_uuid);
        let failed = |why: &dyn std::fmt::Display| {
            RunError::failed(
                MessageId::StateUnreadable,
                format!(
                    "cannot read {}, which records the stale device of a mirrored cache: {why}",
                    path.display()
                ),
                "restore it from a backup; without it stale data could be served as current",
            )
        };
        let bytes = match fs::read(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            other => other.map_err(|error| failed(&error))?,
        };
        let notes: Self = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
        if notes.version != VERSION || notes.cache_uuid != cache_uuid {
            return Err(failed(&"its content is not valid"));
        }
        Ok(Some(notes))
    }

    /// True if the device with this tag is out.
    pub(crate) fn lists(&self, tag: u64) -> bool {
        self.out.contains(&format!("{tag:016x}"))
    }

    /// Adds the tag of a device that is out; [`Notes::keep`] makes that durable.
    pub(crate) fn put(&mut self, tag: u64) {
        if !self.lists(tag) {
            self.out.push(format!("{tag:016x}"));
        }
    }

    /// Makes these notes durable, together with further tags in the file.
    ///
    /// # Errors
    /// Any step fails. The file is complete then, or unchanged.
    pub(crate) fn keep(mut self, may_wait: &MayWait, state_dir: &Path) -> Result<Self, String> {
        // A thread that exceeded its time limit can end late: it must not replace a newer file with
        // an older one.
        static WRITERS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
        let path = Self::path(state_dir, &self.cache_uuid);
        let writer = {
            let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(writers.entry(path.clone()).or_default())
        };
        let _alone = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let there = Self::read(state_dir, &self.cache_uuid).map_err(|error| error.to_string())?;
        let more: Vec<String> = there.into_iter().flat_map(|there| there.out).collect();
        self.out.extend(more.into_iter().filter(|tag| !self.out.contains(tag)).collect::<Vec<_>>());
        let stored = self.store(may_wait, state_dir);
        stored.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(self)
    }

    fn store(&self, may_wait: &MayWait, state_dir: &Path) -> io::Result<()> {
        crate::durable::replace_json(may_wait, state_dir, &Self::path(state_dir, &self.cache_uuid), self)
    }

    /// Creates the file of a cache, with the tags known to be out.
    pub(crate) fn begin(mut self, state_dir: &Path, out: &[u64]) -> Result<Self, RunError> {
        out.iter().for_each(|tag| self.put(*tag));
        self.keep(&MayWait::here(), state_dir)
            .map_err(|why| RunError::failed(MessageId::Event(EventKind::StateUnwritable), why, UNWRITABLE))
    }

    /// Checks that notes could be created, as far as possible without creating any.
    ///
    /// # Errors
    /// The directory is not writable, or is not a directory.
    pub(crate) fn are_possible(state_dir: &Path) -> Result<(), RunError> {
        let folder = Self::folder(state_dir);
        let there = folder.ancestors().find(|path| path.exists()).unwrap_or(state_dir);
        let usable = fs::read_dir(there).and_then(|_| Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?));
        usable.map_err(|error| {
            RunError::failed(
                MessageId::Event(EventKind::StateUnwritable),
                format!("cannot write {}: {error}", there.display()),
                UNWRITABLE,
            )
        })
    }
}

/// Whether the notes of a mirrored cache list the device with this tag as out, for offline tools:
/// `None` if there are no notes.
///
/// # Errors
/// The notes cannot be read.
pub fn is_noted_out(state_dir: &Path, cache: CacheUuid, tag: u64) -> Result<Option<bool>, RunError> {
    Ok(Notes::read(state_dir, &hex(&cache.0))?.map(|notes| notes.lists(tag)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn note(state_dir: &Path, cache: CacheUuid, tag: u64) -> Result<Notes, String> {
        let mut notes = Notes::new(cache);
        notes.put(tag);
        notes.keep(&MayWait::here(), state_dir)
    }

    #[test]
    fn notes_are_kept_and_malformed_ones_fail() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let cache = CacheUuid([7; 16]);
        let uuid = hex(&cache.0);
        assert_eq!(Notes::read(&state, &uuid).unwrap(), None);
        for tag in [5, 9, 5] {
            note(&state, cache, tag).unwrap();
        }
        let notes = Notes::read(&state, &uuid).unwrap().unwrap();
        assert!(notes.lists(5) && notes.lists(9) && !notes.lists(6));
        assert_eq!(notes.out.len(), 2);
        // A holder of the notes recreates the whole file if it is lost meanwhile.
        fs::remove_dir_all(&state).unwrap();
        let anew = notes.keep(&MayWait::here(), &state).unwrap();
        assert_eq!(Notes::read(&state, &uuid).unwrap(), Some(anew));
        for wrong in ["", "{}", "{\"version\": 2, \"cache_uuid\": \"07\", \"out\": []}"] {
            fs::write(Notes::path(&state, &uuid), wrong).unwrap();
            assert!(Notes::read(&state, &uuid).is_err(), "{wrong:?}");
            assert!(note(&state, cache, 6).is_err(), "{wrong:?}");
        }
    }
}
