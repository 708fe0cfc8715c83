//! The control file system: statistics and tunables of the daemon as plain files, one value a file.
//!
//! `cat volumes/db/stats`, `echo 30 > volumes/db/config/dirty_high_pct`, `echo 1 >
//! volumes/db/flush`. What the files are is in `docs/operate/control-fs.md`. They call
//! [`Admin`], with the same checks and effects as all others.
//!
//! - [`mount`] mounts and starts the threads; dropping the [`ControlFiles`] unmounts and ends them.
//! - Threads of its own ask the daemon, so they may block. A writer that waits for a flush holds
//!   none of them.
//! - Nothing here is on the I/O path.
//!
//! Reading order: `layout` (which files), `content` and `write` (what is in them, what a write
//! does), `server` and `under_way` (requests and threads). The protocol is that of
//! `forebay_export::fuse`.

mod content;
mod format;
mod layout;
mod refusals;
mod server;
mod under_way;
mod write;

use content::Content;
use forebay_admin::{Admin, ErrorKind};
use forebay_export::fuse::prepared::Prepared;
use forebay_export::fuse::{ControlTree, Errno, Session};
use forebay_io::fuse::{Connection, FuseMount, MountError, MountOptions, Place, process_owner};
use server::Server;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// How long an unmount waits for threads that are in the middle of a question to the daemon.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Tells the active alarms, each as the HTTP API has it.
pub type AlarmSource = Arc<dyn Fn() -> Vec<serde_json::Value> + Send + Sync>;

/// Why the control file system is not there.
#[derive(Debug, Error)]
pub enum Error {
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// It could not be served; nothing is mounted now.
    #[error("cannot serve the control file system at {path}: {what}: {source}")]
    Serve {
        /// The mount point.
        path: PathBuf,
        /// What failed.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What a mount shows beside what [`Admin`] tells.
#[derive(Clone, Default)]
pub struct Options {
    /// Where alarms come from; without, there is no file `alarms`.
    pub alarms: Option<AlarmSource>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("alarms", &self.alarms.is_some()).finish()
    }
}

/// A mounted control file system. Dropping it unmounts: files that are open give errors from then
/// on, writers that wait get `ESHUTDOWN`, jobs go on. A drop may take as long as the slowest
/// question that is under way, at most 5 s.
pub struct ControlFiles {
    server: Arc<Server>,
    /// Taken when it is dropped.
    mount: Option<FuseMount>,
    /// Disconnected once all threads have ended; nothing is ever sent. (The lock makes it usable
    /// from any thread.)
    ended: Mutex<Receiver<()>>,
    path: PathBuf,
}

impl fmt::Debug for ControlFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFiles").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Does what a write of `text` to the control file at `path` does, without a mount, for fuzzing.
///
/// # Errors
/// What the writer is told.
#[doc(hidden)]
pub fn write_text(admin: Arc<dyn Admin>, path: &str, text: &[u8]) -> Result<(), Errno> {
    let content = Content { admin, alarms: None, refusals: Default::default() };
    content.write(path, text, true).map(drop)
}

/// Mounts the control file system at `path`: an empty directory, one that is made now (its parent
/// must be there), or what a killed daemon left there.
///
/// # Errors
/// [`enum@Error`]; nothing is mounted then. The daemon can go on without.
pub fn mount(path: &Path, admin: Arc<dyn Admin>) -> Result<ControlFiles, Error> {
    mount_with(path, admin, Options::default())
}

/// [`mount`], with options.
///
/// # Errors
/// As those of [`mount`].
pub fn mount_with(path: &Path, admin: Arc<dyn Admin>, options: Options) -> Result<ControlFiles, Error> {
    let failed = |what| move |source| Error::Serve { path: path.into(), what, source };
    let target = mount_point(path).map_err(failed("the path cannot be made absolute"))?;
    let place = Place::Directory { target: target.clone() };
    let (device, mount) = forebay_io::fuse::mount(&place, MountOptions::default())?;
    let connection = Connection::new(device).map_err(failed("setting up the connection"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let tree = ControlTree::new(Prepared::new(), process_owner(), now.as_secs()).with_own_nodes();
    let server = Arc::new(Server {
        connection,
        session: Mutex::new(Session::new(tree, server::LIMITS)),
        content: Content { admin, alarms: options.alarms, refusals: Default::default() },
        under_way: Default::default(),
    });
    let (running, ended) = channel();
    let mounted = ControlFiles { server, mount: Some(mount), ended: Mutex::new(ended), path: target };
    mounted.start_threads(&running).map_err(failed("starting a thread"))?;
    Ok(mounted)
}

impl ControlFiles {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn start_threads(&self, running: &Sender<()>) -> io::Result<()> {
        self.start_thread("control-fs-wait", running, Server::look_after_waiting)?;
        for _ in 0..server::THREADS {
            self.start_thread("control-fs", running, Server::take_requests)?;
        }
        Ok(())
    }

    fn start_thread(&self, name: &str, running: &Sender<()>, work: fn(&Server)) -> io::Result<()> {
        let (server, running) = (Arc::clone(&self.server), running.clone());
        let thread = move || {
            work(&server);
            // The connection is closed with the last reference, so that goes before the word that
            // all is over.
            drop(server);
            drop(running);
        };
        std::thread::Builder::new().name(name.into()).spawn(thread).map(drop)
    }
}

impl Drop for ControlFiles {
    fn drop(&mut self) {
        // First out of the name space, so that nobody comes in any more.
        drop(self.mount.take());
        self.server.stop();
        let ended = self.ended.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A thread that hangs in the daemon ends by itself later, and the connection is closed only
        // then.
        let _ = ended.recv_timeout(STOP_WITHIN);
    }
}

/// The path as the mount table will have it: absolute, and not that of a symbolic link.
fn mount_point(path: &Path) -> io::Result<PathBuf> {
    let path: PathBuf = std::path::absolute(path)?.components().collect();
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => path.canonicalize(),
        // Not there yet, or the mount of a killed daemon, at which nothing can be looked.
        _ => Ok(path),
    }
}

/// What a program that reads or writes a file is told.
fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Denied => Errno::NotPermitted,
        ErrorKind::NotFound => Errno::NotFound,
        ErrorKind::Invalid => Errno::Invalid,
        ErrorKind::Conflict => Errno::Busy,
        ErrorKind::Failed => Errno::Io,
        ErrorKind::Unavailable => Errno::TryAgain,
    }
}
