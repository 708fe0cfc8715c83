//! The control file system: statistics and tunables of the daemon as plain files, one value per
//! file.
//!
//! `cat volumes/db/stats`, `echo 30 > volumes/db/config/dirty_high_pct`, `echo 1 >
//! volumes/db/flush`. `docs/operate/control-fs.md` describes the files. They call [`Admin`], with
//! the same checks and effects as all other interfaces.
//!
//! - [`mount`] mounts and starts the threads; dropping the [`ControlFiles`] unmounts and ends them.
//! - Dedicated threads call the daemon, so they may block. A writer that waits for a flush holds
//!   none of them.
//! - This module is not on the I/O path.
//!
//! Reading order: `layout` (the tree of files), `content` and `write` (their content, the effects
//! of writes), `server` and `pending_requests` (requests and threads). The protocol is that of
//! `forebay_export::fuse`.

mod content;
mod format;
mod layout;
mod pending_requests;
mod refusals;
mod server;
mod write;

use content::Content;
use forebay_admin::{Admin, ErrorKind};
use forebay_export::fuse::prepared::Prepared;
use forebay_export::fuse::{ControlTree, Errno, Session};
use forebay_io::fuse::{Connection, FuseMount, MountError, MountOptions, MountTarget, process_owner};
use server::Server;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// Time that an unmount waits for threads with a call to the daemon in progress.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Returns the active alarms, each as in the HTTP API.
pub type AlarmSource = Arc<dyn Fn() -> Vec<serde_json::Value> + Send + Sync>;

/// Reason why there is no control file system.
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
        /// The failed operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Content of a mount in addition to that from [`Admin`].
#[derive(Clone, Default)]
pub struct Options {
    /// Source of alarms; without it there is no file `alarms`.
    pub alarms: Option<AlarmSource>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("alarms", &self.alarms.is_some()).finish()
    }
}

/// A mounted control file system. Dropping it unmounts: open files then return errors, waiting
/// writers get `ESHUTDOWN`, and jobs continue. The drop may take as long as the slowest call in
/// progress, at most 5 s.
pub struct ControlFiles {
    server: Arc<Server>,
    /// Taken on drop.
    mount: Option<FuseMount>,
    /// Disconnected once all threads have ended; nothing is ever sent. (The lock makes it `Sync`.)
    ended: Mutex<Receiver<()>>,
    path: PathBuf,
}

impl fmt::Debug for ControlFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFiles").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Has the effect of a write of `text` to the control file at `path`, without a mount, for fuzzing.
///
/// # Errors
/// The error that the writer receives.
#[doc(hidden)]
pub fn write_text(admin: Arc<dyn Admin>, path: &str, text: &[u8]) -> Result<(), Errno> {
    let content = Content { admin, alarms: None, refusals: Default::default() };
    content.write(path, text, true).map(drop)
}

/// Mounts the control file system at `path`: an empty directory, one that it creates (the parent
/// must exist), or the mount that a killed daemon left.
///
/// # Errors
/// [`enum@Error`]; then nothing is mounted. The daemon can continue without it.
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
    let place = MountTarget::Directory { target: target.clone() };
    let (device, mount) = forebay_io::fuse::mount(&place, MountOptions::default())?;
    let connection = Connection::new(device).map_err(failed("setting up the connection"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let tree = ControlTree::new(Prepared::new(), process_owner(), now.as_secs()).with_own_nodes();
    let server = Arc::new(Server {
        connection,
        session: Mutex::new(Session::new(tree, server::LIMITS)),
        content: Content { admin, alarms: options.alarms, refusals: Default::default() },
        pending: Default::default(),
    });
    let (running, ended) = channel();
    let mounted = ControlFiles { server, mount: Some(mount), ended: Mutex::new(ended), path: target };
    mounted.start_threads(&running).map_err(failed("starting a thread"))?;
    Ok(mounted)
}

impl ControlFiles {
    /// Returns the mount point.
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
            // The last reference closes the connection, so drop it before the sender.
            drop(server);
            drop(running);
        };
        std::thread::Builder::new().name(name.into()).spawn(thread).map(drop)
    }
}

impl Drop for ControlFiles {
    fn drop(&mut self) {
        // Remove it from the name space first, so that there are no new users.
        drop(self.mount.take());
        self.server.stop();
        let ended = self.ended.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A thread that hangs in a call to the daemon ends by itself later, and the connection is
        // closed only then.
        let _ = ended.recv_timeout(STOP_WITHIN);
    }
}

/// Returns the path as the mount table will list it: absolute, with symbolic links resolved.
fn mount_point(path: &Path) -> io::Result<PathBuf> {
    let path: PathBuf = std::path::absolute(path)?.components().collect();
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => path.canonicalize(),
        // It does not exist yet, or is the mount of a killed daemon, whose content is inaccessible.
        _ => Ok(path),
    }
}

/// Returns the error code for the program that reads or writes a file.
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
