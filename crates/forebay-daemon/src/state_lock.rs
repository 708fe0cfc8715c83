//! One daemon for each state directory: the records of caches, job numbers and the history of
//! events belong to one daemon, and a second daemon would mistake the first one's caches for its
//! own.
//!
//! `STATE_DIR/daemon.lock` holds the daemon's PID and an advisory lock. The directory is locked
//! too, where the file system has locks for directories (NFS has none): its lock holds even if an
//! administrator removes the file. The kernel releases both when the process ends, for any reason.
//! An upgrade releases them for the successor.
//!
//! If the directory takes no file, or the file system has no locks, the daemon serves nevertheless:
//! other alarms report the directory.

use forebay_admin::MessageId;
use forebay_pool::RunError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for the end of a daemon that was killed, or that hands over.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// The locks of a state directory, until this is dropped.
#[derive(Debug)]
pub(crate) struct StateLock {
    _directory: Option<File>,
    _file: File,
}

impl StateLock {
    /// Takes the lock; `None` if the directory cannot have one. May wait for the disk.
    ///
    /// # Errors
    /// Another daemon has it.
    pub(crate) fn take(state_dir: &Path) -> Result<Option<Self>, RunError> {
        let Some(mut file) = open(state_dir) else { return Ok(None) };
        let until = Instant::now() + ENDS_WITHIN;
        let directory = File::open(state_dir).ok();
        let locked = directory.as_ref().map(|directory| lock(directory, until));
        if locked == Some(Err(Errno::WOULDBLOCK)) {
            return Err(in_use(state_dir, &mut file));
        }
        match lock(&file, until) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(state_dir, &mut file)),
            Err(_) => return Ok(None),
        }
        // Only for the message of another daemon.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Some(Self { _directory: directory, _file: file }))
    }
}

/// Takes a lock. `WOULDBLOCK` if another process has it until then.
fn lock(file: &File, until: Instant) -> Result<(), Errno> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOOK),
            taken => return taken,
        }
    }
}

/// Opens the file, and creates it if needed. A read-only file can be locked as well.
fn open(state_dir: &Path) -> Option<File> {
    let path = state_dir.join("daemon.lock");
    DirBuilder::new().recursive(true).mode(0o700).create(state_dir).ok()?;
    let write =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    write.or_else(|_| File::open(&path)).ok()
}

fn in_use(state_dir: &Path, file: &mut File) -> RunError {
    let mut pid = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    let by = match pid.trim().parse::<u32>() {
        Ok(pid) => format!("another daemon (pid {pid})"),
        Err(_) => "another daemon".into(),
    };
    RunError::failed(
        MessageId::DaemonRunsAlready,
        format!("{by} uses the state directory {}", state_dir.display()),
        "stop that daemon, or give this one its own: state_dir in [daemon] of its configuration",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_daemon_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let first = StateLock::take(&state_dir).unwrap();
        assert!(first.is_some());
        let text = StateLock::take(&state_dir).unwrap_err().to_string();
        let named = format!("another daemon (pid {}) uses the state directory", std::process::id());
        assert!(text.contains(&named), "{text}");
        drop(first);
        assert!(StateLock::take(&state_dir).unwrap().is_some());
    }

    #[test]
    fn removed_lock_file_admits_no_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::take(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join("daemon.lock")).unwrap();
        let text = StateLock::take(dir.path()).unwrap_err().to_string();
        assert!(text.contains("another daemon uses the state directory"), "{text}");
        drop(first);
        assert!(StateLock::take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn unlockable_directory_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(StateLock::take(&file.join("state")).unwrap().is_none());
    }
}
