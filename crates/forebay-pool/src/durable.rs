//! Small files in the state directory that must survive a loss of power: each is replaced as a
//! whole.

use crate::may_wait::MayWait;
use serde::Serialize;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Creates a directory of the state directory, and its parents, for the daemon's user alone: a
/// process that can read a lock file can take the lock, and records name devices and volumes.
///
/// # Errors
/// It cannot be created.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Options for files of the state directory: for the daemon's user alone.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Replaces the file `path`, in a directory of the state directory, as a whole: a new file, its
/// name, and every name on the path to it are durable when this returns. Missing directories are
/// created. Only one caller at a time for each path.
///
/// # Errors
/// Any step fails. The file is then unchanged, or already the new one.
pub(crate) fn replace(
    _: &MayWait,
    state_dir: &Path,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().unwrap_or(state_dir);
    make_folder(folder)?;
    let fresh = path.with_extension("new");
    let made = private().truncate(true).open(&fresh).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        fs::rename(&fresh, path)
    });
    made.inspect_err(|_| {
        let _ = fs::remove_file(&fresh); // it is useless, and takes room from the next attempt
    })?;
    sync_names(state_dir, folder)
}

/// Replaces the file `path`, in a directory of the state directory, by a value as JSON: as a whole,
/// and durably. Missing directories are created. Only one caller at a time for each path.
///
/// # Errors
/// Any step fails. The file is then unchanged, or already the new one.
pub fn replace_json(
    may_wait: &MayWait,
    state_dir: &Path,
    path: &Path,
    value: &impl Serialize,
) -> io::Result<()> {
    replace(may_wait, state_dir, path, |out| {
        serde_json::to_writer_pretty(out, value).map_err(io::Error::other)
    })
}

/// Removes a file of the state directory durably; a missing file is no error.
///
/// # Errors
/// Any step fails.
pub(crate) fn remove(_: &MayWait, state_dir: &Path, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.and_then(|()| sync_names(state_dir, path.parent().unwrap_or(state_dir))),
    }
}

/// The directory can be as new as the file: every name on the path to it must be durable.
fn sync_names(state_dir: &Path, folder: &Path) -> io::Result<()> {
    for folder in [folder, state_dir].into_iter().chain(state_dir.parent()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn state_files_are_private_to_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let (state, path) = (folder.path().join("state"), folder.path().join("state/caches/x.json"));
        for value in [1, 2] {
            replace_json(&MayWait::here(), &state, &path, &value).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&state), mode(path.parent().unwrap()), mode(&path)), (0o700, 0o700, 0o600));
        }
    }
}
