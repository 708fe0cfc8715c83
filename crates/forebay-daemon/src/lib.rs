//! The Forebay daemon: pools and volumes by name, over their whole life.
//!
//! - [`serve`](fn@serve): the entry point; [`run`](fn@run): the same with a configuration built
//!   from options.
//! - `main_thread`: log lines, signals and upgrade requests.
//! - `service`: the management side. It implements [`forebay_admin::Admin`] over pools,
//!   configuration, jobs and events.
//! - [`api`]: HTTP in front of it; [`control_files`]: the same as plain files.
//! - `upgrade`: a successor takes over.
//! - `wear`: the wear of the disks of caches.
//! - `log_level`: which events are logged, and their severity.
//! - `alarm_command`: the operator's own program for alarms.
//! - `event_files`: the history of events that outlives the daemon.
//! - `late_devices`: how long devices may take to appear while the machine boots.
//! - `state_lock`: one daemon for each state directory.
//! - `limits`: descriptors and locked memory of the process.
#![forbid(unsafe_code)]

mod alarm_command;
pub mod api;
pub mod control_files;
mod event_files;
mod late_devices;
mod limits;
mod log_level;
mod main_thread;
mod run;
mod serve;
mod service;
mod state_lock;
mod upgrade;
mod wear;

pub use run::{SettingHelp, run, settings, state_dir};
pub use serve::serve;

use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::checkpoint::Mode;
pub use forebay_pool::PoolEvent;
use std::fmt;
use std::path::PathBuf;

/// Options of `forebay run`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The backing store.
    pub backing: BackingUri,
    /// The cache devices: one, or two if the cache is mirrored (`mirror=on`).
    pub caches: Vec<CacheSpec>,
    /// Exports of the volume; the name of the first is the volume's name.
    pub exports: Vec<ExportUri>,
    /// Mode of the volume.
    pub mode: Mode,
    /// A device model to emulate in front of the backing store.
    pub emulate: Option<forebay_io::DeviceModel>,
    /// A device model to emulate in front of the cache device.
    pub emulate_cache: Option<forebay_io::DeviceModel>,
    /// `key=value` settings, see [`settings()`].
    pub settings: Vec<(String, String)>,
    /// Socket of the admin API.
    pub admin: Option<PathBuf>,
    /// Preferred I/O engine.
    pub io: forebay_io::EnginePreference,
    /// Create a new cache if the recorded one is missing.
    pub new_cache: bool,
    /// Permitted use of existing cache devices.
    pub taking: forebay_admin::Taking,
}

/// Errors of a start end the program; later events are reported line by line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunEvent {
    /// An event of a pool; the name of the pool is empty for `forebay run`.
    Pool {
        /// Name of the pool.
        pool: String,
        /// The event.
        event: PoolEvent,
    },
    /// An operation failed; the rest continues.
    Problem(MessageId, String),
    /// An operation was completed.
    Note(MessageId, String),
    /// The admin API listens here.
    Admin(PathBuf),
    /// Everything was opened.
    Serving,
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool { pool, event } if pool.is_empty() => write!(f, "{event}"),
            Self::Pool { pool, event } => write!(f, "{pool}: {event}"),
            Self::Problem(_, what) | Self::Note(_, what) => f.write_str(what),
            Self::Admin(socket) => write!(f, "the admin API is at {}", socket.display()),
            Self::Serving => f.write_str("serving"),
        }
    }
}

/// Options of `forebay serve`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Pools that get a new cache if the recorded one is missing.
    pub new_cache: Vec<String>,
    /// A running daemon has started this one as its successor, and communicates through the
    /// standard input.
    pub successor: bool,
}
