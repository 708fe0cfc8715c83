//! Restart without an I/O error: sockets and connections that outlive a process.
//!
//! Two ways, which share everything but where the sockets come from:
//! - **A crash.** Listening sockets are given to the service manager (`manager`), which keeps them open and passes them to the next
//!   start. Who connects meanwhile waits instead of being refused. Connections are lost: what a killed daemon had half answered
//!   nobody can know. Clients that reconnect see a pause.
//! - **An upgrade.** The running daemon starts its successor, quiesces between two requests of every connection, closes the
//!   pools in an orderly way, and passes listeners and connections (`wire`) to the successor, which opens the pools. Clients see
//!   a pause, whether they can reconnect or not.
//!
//! Invariants
//! - Nobody but the holder of a pool's locks touches its devices: the predecessor has let go of them before it says so, and takes
//!   them back only once the successor's process has ended.
//! - The successor reads, writes and accepts nothing on a socket before the predecessor has told it to go on, or has ended. Until
//!   then the predecessor can take everything back, and does if the successor ends, refuses, or takes too long.
//! - Between two requests means: every request that was taken is answered, and the answer was sent. What was received behind them
//!   travels along with the connection, byte by byte.
//! - Where something goes wrong a connection is closed, never continued at another byte.
//!
//! Why it is so, and what was not chosen: docs/decisions/0021-restart-without-an-error.md.

mod listener_store;
mod manager;
mod predecessor;
mod successor;
mod wire;

pub(crate) use listener_store::ListenerStore;
pub(crate) use manager::Manager;
pub(crate) use predecessor::Successor;
pub(crate) use successor::Predecessor;

use forebay_export::nbd::reply::Replier;
use forebay_export::uri::Endpoint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// A socket that is listened on.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Where, as the configuration says it.
    pub(crate) endpoint: Endpoint,
    pub(crate) fd: OwnedFd,
}

/// A connection between two requests.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Through which endpoint it came.
    pub(crate) endpoint: Endpoint,
    /// The name of the export that it has chosen.
    pub(crate) export: String,
    /// What it found there ([`crate::server::Offer::mark`]), and of which size: the same name can belong to another volume.
    pub(crate) volume: String,
    pub(crate) size_bytes: u64,
    /// How answers are told.
    pub(crate) replier: Replier,
    /// What was received and not looked at yet.
    pub(crate) unread: Vec<u8>,
    pub(crate) fd: OwnedFd,
}

/// Sockets that somebody else has held until now.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) guests: Vec<Guest>,
}

impl Inheritance {
    pub(crate) fn append(&mut self, mut other: Inheritance) {
        self.listeners.append(&mut other.listeners);
        self.guests.append(&mut other.guests);
    }
}

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
