//! Restart without an I/O error: sockets and connections that outlive a process.
//!
//! Two ways, which share everything except the source of the sockets:
//! - **A crash.** The daemon passes its listening sockets to the service manager (`manager`), which
//!   keeps them open and passes them to the next start. Clients that connect meanwhile wait instead
//!   of being refused. Connections are lost: the progress of a killed daemon's replies is unknown.
//!   Clients that reconnect see a pause.
//! - **An upgrade.** The running daemon starts its successor, and quiesces every connection between
//!   two requests. It closes the pools in an orderly way, and hands over listeners and connections
//!   (`wire`). The successor opens the pools. Clients see a pause, whether they can reconnect or
//!   not.
//!
//! Invariants
//! - Only the holder of a pool's locks accesses its devices: the predecessor has released them
//!   before it reports that, and takes them back only once the successor's process has ended.
//! - The successor reads, writes and accepts nothing on a socket before the predecessor has told it
//!   to continue, or has ended. Until then the predecessor can take everything back, and does if
//!   the successor ends, refuses, or takes too long.
//! - Between two requests means: every request taken is answered, and the answer was sent. Bytes
//!   received after them are handed over with the connection unchanged.
//! - On an error a connection is closed, never continued at another byte.
//!
//! Rationale and rejected alternatives: docs/decisions/0021-restart-without-an-error.md.

mod predecessor;
mod successor;
mod wire;

pub(crate) use predecessor::Successor;
pub(crate) use successor::Predecessor;

use forebay_admin::{AdminError, UpgradeBegun};
use forebay_config::{Config, ConfigFile};
use forebay_pool::PromiseSender;
use forebay_pool::handover::HandoverSockets;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Destination of the answer to a request for an upgrade.
pub(crate) type UpgradeAnswer = PromiseSender<Result<UpgradeBegun, AdminError>>;
/// Requests an upgrade.
pub(crate) type Upgrader = Box<dyn Fn(UpgradeAnswer) + Send + Sync>;

/// State that a service leaves behind after the handover.
pub(crate) struct HandoverState {
    pub(crate) sockets: HandoverSockets,
    /// Why a successor cannot have the pools: one is not closed, so its devices are not free.
    pub(crate) unclosed: Option<String>,
    /// The configuration with live changes, regardless of the present file.
    pub(crate) config: Config,
    pub(crate) file: Option<ConfigFile>,
}

/// The volumes and sockets that a predecessor has served, and its successor must serve too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandoverManifest {
    /// Volumes.
    pub(crate) volumes: BTreeSet<String>,
    /// The service manager passed the sockets, so the daemon must not remove their files.
    #[serde(default)]
    pub(crate) passed: bool,
    /// Time at which clients began to wait, in nanoseconds since 1970.
    #[serde(rename = "still_since_unix_ns")]
    pub(crate) quiesced_since_unix_ns: u64,
    /// Process ID of the predecessor.
    pub(crate) pid: u32,
    /// Version of the predecessor.
    pub(crate) version: String,
}
