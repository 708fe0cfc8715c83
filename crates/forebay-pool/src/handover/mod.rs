//! Sockets and connections that outlive a process.
//!
//! - `listener_store`: listening sockets that existed before this process, and those that will
//!   outlive it.
//! - `manager`: the service manager, which keeps listening sockets open over a crash.
//! - here: a connection between two requests, for its handover.

mod listener_store;
mod manager;

pub use listener_store::ListenerStore;
pub use manager::Manager;

use forebay_export::nbd::reply::Replier;
use forebay_export::uri::Endpoint;
use std::os::fd::OwnedFd;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    /// Its endpoint as configured.
    pub endpoint: Endpoint,
    /// The socket.
    pub fd: OwnedFd,
}

/// A connection between two requests.
#[derive(Debug)]
pub struct Guest {
    /// The endpoint that accepted it.
    pub endpoint: Endpoint,
    /// The name of its export.
    pub export: String,
    /// Identifies the volume of the export ([`crate::server::Offer::mark`]): the same name can
    /// belong to another volume.
    pub volume: String,
    /// Size of that volume in bytes.
    pub size_bytes: u64,
    /// Encodes the replies.
    pub replier: Replier,
    /// Received bytes that have not been parsed yet.
    pub unread: Vec<u8>,
    /// The socket.
    pub fd: OwnedFd,
}

/// Sockets of another process or of the service manager.
#[derive(Debug, Default)]
pub struct HandoverSockets {
    /// Listening sockets.
    pub listeners: Vec<Listener>,
    /// Connections between two requests.
    pub guests: Vec<Guest>,
}

impl HandoverSockets {
    /// Adds other ones.
    pub fn append(&mut self, mut other: HandoverSockets) {
        self.listeners.append(&mut other.listeners);
        self.guests.append(&mut other.guests);
    }
}
