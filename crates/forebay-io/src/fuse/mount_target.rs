//! Interprets the path of a volume export.
//!
//! A volume appears as the file of `fuse:/some/path`. There are two ways to make it appear:
//!
//! | existing | mounted |
//! | --- | --- |
//! | `/some/path` is a regular file | a file system whose root *is* a file, on that file |
//! | `/some/path` does not exist, `/some` is an empty directory | a directory with the file `path`, on `/some` |
//! | neither exists | the same; `/some` is created, and removed at the end |
//! | `/some/path` is a mount left by a killed daemon | the same way as before, after that mount is removed |
//!
//! All other cases are refused: mounting on a directory hides its contents.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::device_dependencies::own_mount;
use super::table::{self, Mount, Mounts};
use crate::error::MountError;

/// A mount: its kind and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountTarget {
    /// The root is a regular file, and so is the target.
    File {
        /// An existing regular file.
        target: PathBuf,
    },
    /// The root is a directory, and so is the target.
    Directory {
        /// A directory; created if it does not exist.
        target: PathBuf,
    },
}

impl MountTarget {
    /// The mount point.
    pub fn target(&self) -> &Path {
        match self {
            MountTarget::File { target } | MountTarget::Directory { target } => target,
        }
    }

    /// Creates the directory if it does not exist (then returns true); refuses one that is not
    /// empty.
    pub(super) fn prepare(&self) -> Result<bool, MountError> {
        let MountTarget::Directory { target } = self else { return Ok(false) };
        let bad = |problem: &str| MountError::BadPlace {
            place: target.clone(),
            problem: problem.into(),
            hint: "give a path in an empty directory, or in one that does not exist yet",
        };
        match std::fs::read_dir(target) {
            Ok(mut entries) => match entries.next() {
                None => Ok(false),
                Some(_) => Err(bad("the directory is not empty, and a mount would hide its content")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => match std::fs::create_dir(target) {
                Ok(()) => Ok(true),
                Err(source) => Err(MountError::system(target, "making the directory", source)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(bad("it is not a directory")),
            Err(source) => Err(MountError::system(target, "look", source)),
        }
    }
}

/// Decides how the volume appears at `path`, which must be absolute: the mount, and the file's name
/// within it (`None` if the mount itself is the file).
///
/// # Errors
/// [`MountError::BadPlace`], [`MountError::System`].
pub fn volume_place(path: &Path) -> Result<(MountTarget, Option<OsString>), MountError> {
    let bad =
        |problem: &str, hint| MountError::BadPlace { place: path.into(), problem: problem.into(), hint };
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return Err(bad("an absolute path without \"..\" is needed", "such as fuse:/mnt/forebay/volume"));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(bad("there is no file name in it", "such as fuse:/mnt/forebay/volume"));
    };
    // The table comes first: accessing the file would fail on the mount of a killed daemon.
    if table::is_ours(path)? {
        return Ok((MountTarget::File { target: path.into() }, None));
    }
    if table::is_ours(parent)? {
        return directory(parent, name);
    }
    if own_mount(path).is_some() {
        return Err(MountError::Own { target: path.into() });
    }
    match std::fs::metadata(path).as_ref().map(Metadata::file_type) {
        Ok(kind) if kind.is_file() => Ok((MountTarget::File { target: path.into() }, None)),
        Ok(kind) if kind.is_dir() => {
            Err(bad("it is a directory, but a volume appears as a file", "add the name of the file"))
        }
        Ok(_) => Err(bad("it exists and is not a regular file", "choose another path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => directory(parent, name),
        Err(error) => Err(MountError::system(path, "look", io::Error::from(error.kind()))),
    }
}

/// The path that a volume's file at `path` hides: the file if there is one, otherwise the folder.
pub(super) fn volume_claim_in(mounts: &Mounts, path: &Path) -> PathBuf {
    let path = mounts.resolve(path);
    let is_ours = |path: &Path| mounts.at(path).is_some_and(Mount::is_forebay);
    let Some(parent) = path.parent().filter(|parent| parent.parent().is_some()) else { return path };
    let is_there = || {
        let is_served = mounts.covering(&path).is_some_and(Mount::is_served_elsewhere);
        is_served || std::fs::metadata(&path).is_ok()
    };
    if is_ours(&path) || !is_ours(parent) && is_there() { path } else { parent.into() }
}

fn directory(parent: &Path, name: &OsStr) -> Result<(MountTarget, Option<OsString>), MountError> {
    Ok((MountTarget::Directory { target: parent.into() }, Some(name.into())))
}
