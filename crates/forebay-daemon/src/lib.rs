//! The Forebay daemon: pools and volumes by name, over their whole life.
//!
//! - [`serve`](fn@serve): the way in; [`run`](fn@run): the same with a configuration that is made
//!   from options.
//! - `main_thread`: log lines, signals and upgrade requests.
//! - `service`: the operator's side. It implements [`forebay_admin::Admin`] over pools,
//!   configuration, jobs and events.
//! - [`api`]: HTTP in front of it; [`control_files`]: the same as plain files.
//! - `upgrade`: a successor takes over.
//! - `wear`: how worn the disks of caches are.
//! - `log_level`: which events are told, and how severe each is.
//! - `alarm_command`: the operator's own program for alarms.
//! - `event_files`: the history of events that outlives the daemon.
//! - `late_devices`: how long devices may take to appear while the machine starts.
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

/// What `forebay run` serves.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The slow device.
    pub backing: BackingUri,
    /// The fast devices: one, or two if the cache is mirrored (`mirror=on`).
    pub caches: Vec<CacheSpec>,
    /// Where clients find the volume; the name of the first is the volume's name.
    pub exports: Vec<ExportUri>,
    /// How the cache is used.
    pub mode: Mode,
    /// A device to imitate in front of the backing store.
    pub emulate: Option<forebay_io::DeviceModel>,
    /// A device to imitate in front of the fast device.
    pub emulate_cache: Option<forebay_io::DeviceModel>,
    /// `key=value` settings, see [`settings()`].
    pub settings: Vec<(String, String)>,
    /// Socket of the admin API.
    pub admin: Option<PathBuf>,
    /// Which I/O engine to use.
    pub io: forebay_io::EnginePreference,
    /// Make a new cache where the recorded one is not there.
    pub new_cache: bool,
    /// What may be done to cache devices that are there.
    pub taking: forebay_admin::Taking,
}

/// Errors of a start end the program; what happens later is told line by line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunEvent {
    /// Something happened in a pool; the name of the pool is empty for `forebay run`.
    Pool {
        /// Name of the pool.
        pool: String,
        /// What happened.
        event: PoolEvent,
    },
    /// Something could not be done; the rest goes on.
    Problem(MessageId, String),
    /// Something was done.
    Note(MessageId, String),
    /// The admin API answers here.
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

/// What `forebay serve` needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Pools for which a new cache is made where the recorded one is not there.
    pub new_cache: Vec<String>,
    /// A running daemon has started this one to take over from it, and speaks through the standard
    /// input.
    pub successor: bool,
}
