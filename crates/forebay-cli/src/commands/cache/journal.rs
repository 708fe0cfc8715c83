//! Journals of changes in progress, in `/run`: for repeating the same command after it was killed,
//! and for the rollback.
//!
//! Invariants
//! - A step is recorded before it begins, so each step that may have taken effect is known.
//! - Only one process works on a mount point at a time.
//! - The journal does not survive a reboot: then the line of `/etc/fstab` and the configuration of
//!   the daemon determine the state.

use forebay_admin::MessageId;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::fstab::escaped_path;
use super::steps::Step;
use crate::failure::{Failure, system};

/// Directory of the journals, accessible by root only.
const FOLDER: &str = "/run/forebay-cache";

/// Direction of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Direction {
    /// Put a cache in front of a disk.
    Attach,
    /// Take it away.
    Detach,
}

/// A change in progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) direction: Direction,
    /// The request as text.
    pub(super) asked: String,
    /// All steps, in order.
    pub(super) plan: Vec<Step>,
    /// Indices of the begun steps; steps whose effects were present before are not among them.
    pub(super) begun: Vec<usize>,
    /// Message after the last step.
    pub(super) ending: String,
}

/// The journal of a mount point, held exclusively by this process.
#[derive(Debug)]
pub(super) struct Journal {
    point: PathBuf,
    path: PathBuf,
    _lock: File,
}

impl Journal {
    /// Opens the journal of a mount point.
    ///
    /// # Errors
    /// Another process has it, or its directory cannot be created.
    pub(super) fn open(point: &Path) -> Result<Self, Failure> {
        Self::open_in(Path::new(FOLDER), point)
    }

    fn open_in(folder: &Path, point: &Path) -> Result<Self, Failure> {
        // No escaped path begins with a dot.
        let path = folder.join(escaped_path(point));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(system(folder.display()))?;
        let lock_path = folder.join(".lock");
        let lock = File::create(&lock_path).map_err(system(lock_path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { point: point.to_owned(), path, _lock: lock }),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(Failure::new(
                MessageId::AttachBusy,
                "another `forebay cache` or `forebay uncache` is in progress",
            )
            .hint("wait until it has ended; its own output shows what it does")),
            Err(error) => Err(system(lock_path.display())(error.into())),
        }
    }

    /// Returns the mount point.
    pub(super) fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the change in progress, if there is one.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) fn read(&self) -> Result<Option<Begun>, Failure> {
        read(&self.path)
    }

    /// As [`Self::read`], without opening the journal.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) fn look(point: &Path) -> Result<Option<Begun>, Failure> {
        read(&Path::new(FOLDER).join(escaped_path(point)))
    }

    /// Replaces the journal as a whole.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(super) fn write(&self, begun: &Begun) -> Result<(), Failure> {
        let fresh = self.path.with_file_name(".new");
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(&serde_json::to_vec(begun)?)?;
            std::fs::rename(&fresh, &self.path)
        };
        write().map_err(system(self.path.display()))
    }

    /// Removes the journal: all steps are done, or undone.
    ///
    /// # Errors
    /// The journal cannot be removed.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(system(self.path.display())),
        }
    }
}

fn read(path: &Path) -> Result<Option<Begun>, Failure> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(system(path.display()))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Failure::new(MessageId::AttachNote, format!("{} cannot be parsed: {error}", path.display())).hint(
            "another version of forebay was interrupted: finish with that one, or remove the file and check \
             `findmnt`, /etc/fstab and `forebay status` yourself",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_has_one_holder_per_mount_point() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("notes");
        let journal = Journal::open_in(&folder, Path::new("/srv/db")).unwrap();
        assert!(journal.read().unwrap().is_none());
        let begun = Begun {
            direction: Direction::Attach,
            asked: "x".into(),
            plan: vec![Step::LoadDriver],
            begun: vec![0],
            ending: String::new(),
        };
        journal.write(&begun).unwrap();
        assert!(
            Journal::open_in(&folder, Path::new("/srv/db")).unwrap_err().to_string().contains("in progress")
        );
        drop(journal);
        assert!(Journal::open_in(&folder, Path::new("/srv/db2")).unwrap().read().unwrap().is_none());
        let journal = Journal::open_in(&folder, Path::new("/srv/db")).unwrap();
        let read = journal.read().unwrap().unwrap();
        assert_eq!((read.direction, read.asked.as_str(), read.begun), (Direction::Attach, "x", vec![0]));
        std::fs::write(&journal.path, "{").unwrap();
        assert!(journal.read().unwrap_err().to_string().contains("cannot be parsed"));
        journal.remove().unwrap();
        journal.remove().unwrap();
        assert!(journal.read().unwrap().is_none());
    }
}
