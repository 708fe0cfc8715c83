//! Restart without an I/O error: sockets and connections that outlive a process.
//!
//! Two ways, which share everything but where the sockets come from:
//! - **A crash.** Listening sockets are given to the service manager (`manager`), which keeps them
//!   open and passes them to the next start. Who connects meanwhile waits instead of being refused.
//!   Connections are lost: nobody can know what a killed daemon had half answered. Clients that
//!   reconnect see a pause.
//! - **An upgrade.** The running daemon starts its successor, and quiesces between two requests of
//!   every connection. It closes the pools in an orderly way, and passes listeners and connections
//!   (`wire`). The successor opens the pools. Clients see a pause, whether they can reconnect or
//!   not.
//!
//! Invariants
//! - Nobody but the holder of a pool's locks touches its devices: the predecessor has let go of
//!   them before it says so, and takes them back only once the successor's process has ended.
//! - The successor reads, writes and accepts nothing on a socket before the predecessor has told it
//!   to go on, or has ended. Until then the predecessor can take everything back, and does if the
//!   successor ends, refuses, or takes too long.
//! - Between two requests means: every request that was taken is answered, and the answer was sent.
//!   What was received behind them travels along with the connection, byte by byte.
//! - Where something goes wrong a connection is closed, never continued at another byte.
//!
//! Why it is so, and what was not chosen: docs/decisions/0021-restart-without-an-error.md.

mod predecessor;
mod successor;
mod wire;

pub(crate) use predecessor::Successor;
pub(crate) use successor::Predecessor;

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a predecessor has served, so that its successor must serve it too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Duties {
    /// Volumes.
    pub(crate) volumes: BTreeSet<String>,
    /// Sockets came from the service manager, so their files are not the daemon's to remove.
    #[serde(default)]
    pub(crate) passed: bool,
    /// When clients began to wait, in nanoseconds since 1970.
    #[serde(rename = "still_since_unix_ns")]
    pub(crate) quiesced_since_unix_ns: u64,
    /// Process of the predecessor, and its version.
    pub(crate) pid: u32,
    /// Version of the predecessor.
    pub(crate) version: String,
}
