//! Sockets and connections that outlive a process.
//!
//! - `listener_store`: listening sockets that were there before this process, and those that are to
//!   be there after it.
//! - `manager`: the service manager, which keeps listening sockets over a crash.
//! - here: a connection between two requests, as it changes hands.

mod listener_store;
mod manager;

pub use listener_store::ListenerStore;
pub use manager::Manager;

use forebay_export::nbd::reply::Replier;
use forebay_export::uri::Endpoint;
use std::os::fd::OwnedFd;

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listener {
    /// Where, as the configuration says it.
    pub endpoint: Endpoint,
    /// The socket.
    pub fd: OwnedFd,
}

/// A connection between two requests.
#[derive(Debug)]
pub struct Guest {
    /// Through which endpoint it came.
    pub endpoint: Endpoint,
    /// The name of the export that it has chosen.
    pub export: String,
    /// What it found there ([`crate::server::Offer::mark`]), and of which size: the same name can
    /// belong to another volume.
    pub volume: String,
    /// Size of that volume in bytes.
    pub size_bytes: u64,
    /// How answers are told.
    pub replier: Replier,
    /// What was received and not looked at yet.
    pub unread: Vec<u8>,
    /// The socket.
    pub fd: OwnedFd,
}

/// Sockets that somebody else has held until now.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// Sockets that are listened on.
    pub listeners: Vec<Listener>,
    /// Connections between two requests.
    pub guests: Vec<Guest>,
}

impl Inheritance {
    /// Adds what another one holds.
    pub fn append(&mut self, mut other: Inheritance) {
        self.listeners.append(&mut other.listeners);
        self.guests.append(&mut other.guests);
    }
}
