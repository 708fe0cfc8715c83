//! The Forebay daemon: names, settings and lifetimes around one engine.
//!
//! `setup` opens devices and decides whether there is a cache to open or one to make; `runner` is the loop that
//! translates between the engine and the reactor; `server` is the NBD side of it; `admin` answers questions from other
//! processes; `rules` says which requests of which clients are cached; `meter` counts and times. Nothing here knows
//! on-disk bytes beyond asking `forebay-format` who a cache belongs to.
#![forbid(unsafe_code)]

pub mod admin;
pub mod clock;
pub mod config;
pub mod control;
mod engine_io;
mod error;
pub mod events;
pub mod fuse_server;
pub mod jobs;
pub mod meter;
pub mod rules;
mod runner;
mod server;
mod settings;
mod setup;

pub use error::RunError;
pub use settings::{SettingHelp, settings};

use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::checkpoint::Mode;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What `forebay run` serves.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The slow device.
    pub backing: BackingUri,
    /// The fast device.
    pub cache: CacheSpec,
    /// Where clients find the volume; the name of the first is the volume's name.
    pub exports: Vec<ExportUri>,
    /// How the cache is used.
    pub mode: Mode,
    /// A disk to imitate in front of the backing store.
    pub emulate: Option<forebay_io::DiskModel>,
    /// `key=value` settings, see [`settings`].
    pub settings: Vec<(String, String)>,
    /// Socket of the admin API.
    pub admin: Option<PathBuf>,
    /// Which I/O engine to use.
    pub io: forebay_io::EnginePreference,
}

/// A cache device as given by the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSpec {
    /// File or block device.
    pub path: PathBuf,
    /// Size in bytes, if one was given. Needed to make a new cache file.
    pub size_bytes: Option<u64>,
}

/// What happens while [`run`] runs. `Display` gives the line for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunEvent {
    /// Something that the operator should know.
    Note(String),
    /// The cache was opened.
    Opened {
        /// It is new.
        created: bool,
        /// Time that it took to open it.
        took: Duration,
        /// Blocks in the cache.
        cached_blocks: u64,
        /// Of those, blocks that only the cache has.
        dirty_blocks: u64,
    },
    /// Clients can connect.
    Ready {
        /// URI of the export.
        export: String,
    },
    /// A signal asked to stop.
    Stopping,
    /// Stopped in an orderly way.
    Stopped {
        /// Bytes that only the cache has.
        dirty_bytes: u64,
    },
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => f.write_str(text),
            Self::Opened { created: true, .. } => f.write_str("made a new, empty cache"),
            Self::Opened { took, cached_blocks, dirty_blocks, .. } => write!(
                f,
                "opened the cache in {} ms: {cached_blocks} blocks cached, {dirty_blocks} of them dirty",
                took.as_millis()
            ),
            Self::Ready { export } => write!(f, "ready: {export}"),
            Self::Stopping => f.write_str("stopping: open requests are finished first"),
            Self::Stopped { dirty_bytes: 0 } => {
                f.write_str("stopped; the backing store has everything, nothing is dirty")
            }
            Self::Stopped { dirty_bytes } => write!(
                f,
                "stopped; {dirty_bytes} bytes are dirty: they are safe in the cache, and only there. \
                 Do not use the backing store without the cache"
            ),
        }
    }
}

/// Serves one volume until SIGINT or SIGTERM.
///
/// # Errors
/// [`RunError::Usage`] if the options make no sense; [`RunError::Failed`] if a device, the cache or a socket cannot be
/// used. Nothing was changed on the devices then, unless the message says so.
pub fn run(options: RunOptions, report: &mut dyn FnMut(RunEvent)) -> Result<(), RunError> {
    let plan = settings::plan(&options)?;
    let parts = setup::open(&options, &plan, report)?;
    runner::run(options, plan, parts, report)
}

/// The name under which clients find an export.
pub(crate) fn export_name(uri: &ExportUri) -> &str {
    match uri {
        ExportUri::Nbd { name, .. } => name,
        ExportUri::Fuse { path } => path.file_name().and_then(|name| name.to_str()).unwrap_or(""),
    }
}
