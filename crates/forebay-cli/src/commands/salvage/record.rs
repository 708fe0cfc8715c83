//! The daemon's record that it gave up a cache, and the search for it.
//!
//! Without the record, data that was dirty when the cache failed looks current, although the
//! backing store has newer data. So the output always names the directories searched. If none of
//! them exists, nothing is written onto a copy of the backing store, unless the operator has named
//! the directory.

use forebay_admin::MessageId;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_daemon::state_dir;
use forebay_format::CacheUuid;
use forebay_format::superblock::Superblock;
use forebay_offline::Refusal;
use forebay_offline::salvage::OnlyCopies;
use forebay_pool::{CacheRecord, Objection, cache_record, is_noted_out, only_copies};
use serde_json::{Value, json};

use super::Options;
use crate::commands::config;
use crate::failure::Failure;
use crate::screen::{self, bytes, uptime};

/// State directories of daemons that may have had the cache.
#[derive(Debug)]
pub(in crate::commands) struct Sought {
    folders: Vec<PathBuf>,
    /// The operator named the directory.
    named: bool,
}

/// Returns the reason, from a daemon's record, why the content of a cache may not be the latest.
pub(in crate::commands) fn against(superblock: &Superblock, path: &Path, known: &CacheRecord) -> Vec<String> {
    let say = |objection| match objection {
        // A reconstructed superblock has no generation.
        Objection::Older if superblock.generation == 0 => None,
        Objection::Older => Some(format!(
            "this is an older copy of the cache: its generation is {}, but {} is recorded in {}",
            superblock.generation,
            known.generation,
            path.display()
        )),
        Objection::GivenUp => {
            Some(format!("the cache was given up, and another one took its place: {}", path.display()))
        }
    };
    known.objections(superblock).filter_map(say).collect()
}

/// Describes the record of a cache.
pub(super) fn recorded(path: &Path, known: &CacheRecord) -> String {
    let pool = known.pool.as_ref().map_or_else(String::new, |pool| format!(" of pool {pool}"));
    let how = match known.in_use {
        true => "in use, or not closed in an orderly way".to_owned(),
        false => format!("closed, with {} of dirty data", bytes(known.dirty_bytes)),
    };
    let seconds = unix_s().saturating_sub(known.recorded_unix_s);
    format!("the cache{pool} was recorded {} ago as {how}: {}", uptime(seconds), path.display())
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

impl Sought {
    /// Returns the directory in the options; without one, the defaults of `forebay run` and
    /// `forebay serve`.
    pub(super) fn new(options: &Options) -> Result<Self, Failure> {
        let config = options.config.as_deref();
        Self::of(options.state_dir.as_deref(), config, state_dir(), Path::new(config::DEFAULT_FILE))
    }

    /// As [`Self::new`], for a command without a configuration option.
    pub(in crate::commands) fn in_folder(folder: Option<&Path>) -> Result<Self, Failure> {
        Self::of(folder, None, state_dir(), Path::new(config::DEFAULT_FILE))
    }

    fn of(
        folder: Option<&Path>,
        file: Option<&Path>,
        usual: PathBuf,
        usual_file: &Path,
    ) -> Result<Self, Failure> {
        if let Some(folder) = folder {
            if !folder.is_dir() {
                let what = format!(
                    "{} is not a folder: it cannot have a record of caches that were given up",
                    folder.display()
                );
                let hint = "give the state directory of the daemon that had the cache (state_dir in its configuration); if that is lost, an empty folder";
                return Err(Failure::new(MessageId::SalvageRecord, what).hint(hint));
            }
            return Ok(Self { folders: vec![folder.to_owned()], named: true });
        }
        if let Some(file) = file {
            return Ok(Self { folders: vec![config::state_dir(file)?], named: true });
        }
        let mut folders = vec![usual];
        // A file that cannot be accessed may exist.
        if usual_file.try_exists().unwrap_or(true) {
            folders.push(config::state_dir(usual_file)?);
        }
        folders.dedup();
        Ok(Self { folders, named: false })
    }

    /// Refuses if none of the directories exists: then the record may be anywhere.
    pub(super) fn check_there(&self) -> Result<(), Failure> {
        if self.folders.iter().any(|folder| folder.is_dir()) {
            return Ok(());
        }
        let what = format!(
            "--onto: there is no folder where a daemon could have recorded that it gave this cache up: {}",
            self.list()
        );
        Err(Failure::new(MessageId::SalvageRecord, what).hint(
            "give the configuration of the daemon that had the cache with --config FILE, or its state \
             directory with --state-dir DIR: if it gave the cache up and continued without it, old data \
             would overwrite newer data",
        ))
    }

    /// Returns the content of the record, if there is one.
    pub(super) fn find(&self, cache: CacheUuid) -> Result<Option<OnlyCopies>, Failure> {
        for folder in &self.folders {
            if let Some(only) = only_copies(folder, cache)? {
                return Ok(Some(only));
            }
        }
        Ok(None)
    }

    /// Returns the record of the cache outside of its devices, and its path: the most informative
    /// one.
    pub(in crate::commands) fn cache_record(
        &self,
        cache: CacheUuid,
    ) -> Result<Option<(PathBuf, CacheRecord)>, Failure> {
        let mut known: Option<(PathBuf, CacheRecord)> = None;
        for folder in &self.folders {
            let here = cache_record(folder, cache)?;
            let here = here.map(|record| (record.path(folder), record));
            let better =
                |new: &CacheRecord| known.as_ref().is_none_or(|(_, old)| old.generation < new.generation);
            if here.as_ref().is_some_and(|(_, record)| better(record)) {
                known = here;
            }
        }
        Ok(known)
    }

    /// Returns whether the notes list a device of a mirrored cache as out; `None` if there are no
    /// notes of this cache.
    pub(super) fn is_out(&self, cache: CacheUuid, tag: u64) -> Result<Option<bool>, Refusal> {
        let mut said = None;
        for folder in &self.folders {
            let here = is_noted_out(folder, cache, tag)?;
            said = said.max(here);
        }
        Ok(said)
    }

    /// Returns the message that there is no record, with the directories searched.
    pub(super) fn nothing(&self) -> String {
        let hint = match self.named {
            true => "",
            false => "; if its daemon had another state_dir, name it: --config FILE or --state-dir DIR",
        };
        format!("no record that a daemon gave this cache up: looked in {}{hint}", self.list())
    }

    /// Returns the JSON form.
    pub(super) fn json(&self) -> Value {
        self.folders.iter().map(|folder| json!(folder.display().to_string())).collect()
    }

    fn list(&self) -> String {
        let name = |folder: &PathBuf| {
            let gone = if folder.is_dir() { "" } else { " (does not exist)" };
            format!("{}{gone}", folder.display())
        };
        self.folders.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

/// Describes a record.
pub(super) fn told(only: &OnlyCopies) -> String {
    let when = UNIX_EPOCH + Duration::from_secs(only.failed_unix_s);
    let ago = when.elapsed().map_or(0, |ago| ago.as_secs());
    format!(
        "a daemon gave this cache up {} ago and continued without it: only the data that {} lists can be \
         current, and even that may have been rewritten since",
        screen::uptime(ago),
        only.record.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_record_folder_is_the_only_one() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("forebay.toml");
        std::fs::write(&file, "[daemon]\nstate_dir = \"/srv/state\"\n").unwrap();
        let usual = || place.path().join("usual");
        let sought = |folder, config, default: &Path| Sought::of(folder, config, usual(), default).unwrap();
        let none = place.path().join("none.toml");
        let by_file = sought(None, Some(&file), &none);
        assert_eq!((by_file.folders, by_file.named), (vec!["/srv/state".into()], true));
        let by_folder = sought(Some(place.path()), None, &file);
        assert_eq!((&by_folder.folders, by_folder.named), (&vec![place.path().to_owned()], true));
        assert!(by_folder.check_there().is_ok(), "somebody said that this is it");
        let mistyped = Sought::of(Some(Path::new("/a")), None, usual(), &file);
        assert!(mistyped.unwrap_err().to_string().contains("/a is not a folder"));
        assert_eq!(sought(None, None, &file).folders, [usual(), "/srv/state".into()]);
        std::fs::write(&file, "[daemon]\nstate_dir = 7\n").unwrap();
        assert!(
            Sought::of(None, None, usual(), &file).is_err(),
            "a file that cannot be used may name another"
        );
    }

    #[test]
    fn a_copy_is_kept_if_no_record_is_possible() {
        let place = tempfile::tempdir().unwrap();
        let none = place.path().join("none.toml");
        let sought = Sought::of(None, None, place.path().join("none"), &none).unwrap();
        let refused = sought.check_there().unwrap_err().to_string();
        assert!(refused.contains("none (does not exist)"), "{refused}");
        assert!(sought.find(CacheUuid([1; 16])).unwrap().is_none());
        assert!(sought.nothing().contains("none (does not exist); if its daemon"), "{}", sought.nothing());
        let there = Sought::of(None, None, place.path().to_owned(), &none).unwrap();
        assert!(there.check_there().is_ok() && !there.nothing().contains("does not exist"));
    }
}
