//! An allow list, and what is known of a client.
//!
//! Every kind of condition that a list has must be met: an address of `addresses`, a name of `clients`, and a user of `uids`
//! or a group of `gids` (a user has groups, so those two are one kind). What is not known meets no condition.

use super::address::AddressRange;
use super::names::{self, ClientName};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// `[access.NAME]`
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessList {
    /// Names in the client's certificate.
    pub clients: Vec<ClientName>,
    /// Users, over a unix socket.
    pub uids: Vec<u32>,
    /// Groups, over a unix socket: the one that the process has, or a supplementary one.
    pub gids: Vec<u32>,
    /// Addresses, over TCP.
    pub addresses: Vec<AddressRange>,
}

impl AccessList {
    /// It has no condition at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.addresses.is_empty() && !self.is_of_users()
    }

    /// It has conditions that only a unix socket can meet.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        !(self.uids.is_empty() && self.gids.is_empty())
    }

    fn allows(&self, peer: &Peer) -> bool {
        let by_user = || {
            peer.uid.is_some_and(|uid| self.uids.contains(&uid))
                || peer.gids.iter().any(|gid| self.gids.contains(gid))
        };
        let by_name = || peer.names.iter().any(|name| self.clients.contains(name));
        !self.is_empty()
            && self.allows_address(peer)
            && (self.clients.is_empty() || by_name())
            && (!self.is_of_users() || by_user())
    }

    fn allows_address(&self, peer: &Peer) -> bool {
        let here = |address| self.addresses.iter().any(|range| range.contains(address));
        self.addresses.is_empty() || peer.address.is_some_and(here)
    }
}

/// A client, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Peer {
    /// User, over a unix socket.
    pub(crate) uid: Option<u32>,
    /// All its groups, over a unix socket.
    pub(crate) gids: Vec<u32>,
    /// Address, over TCP.
    pub(crate) address: Option<IpAddr>,
    /// Names in its certificate, which was verified.
    pub(crate) names: Vec<ClientName>,
}

impl Peer {
    /// Takes the names of the certificate (DER) that the client has proved to be its own.
    pub(crate) fn certified(&mut self, der: &[u8]) {
        self.names = names::of_certificate(der);
    }
}

impl fmt::Display for Peer {
    /// For logs: what is known, with nothing in it that a client could have chosen freely.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.uid, self.address) {
            (Some(uid), _) => write!(f, "uid {uid}")?,
            (None, Some(address)) => write!(f, "{address}")?,
            (None, None) => f.write_str("a client")?,
        }
        for (at, name) in self.names.iter().take(3).enumerate() {
            write!(f, "{}{name}", if at == 0 { " as " } else { ", " })?;
        }
        Ok(())
    }
}

/// An allow list in use. `None`: it is gone, and lets nobody in.
#[derive(Debug, Default)]
pub(crate) struct AccessEntry(Mutex<Option<AccessList>>);

impl AccessEntry {
    /// Puts another list in its place; true if it is different.
    pub(super) fn replace(&self, list: Option<AccessList>) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *current != list;
        *current = list;
        differs
    }

    /// Whether the client is let in.
    pub(crate) fn allows(&self, peer: &Peer) -> bool {
        self.with(|list| list.allows(peer))
    }

    /// Whether the client may be let in, as far as its address tells: what can be said before it has said a word.
    pub(crate) fn allows_address(&self, peer: &Peer) -> bool {
        self.with(|list| list.allows_address(peer))
    }

    fn with(&self, ask: impl FnOnce(&AccessList) -> bool) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(ask)
    }
}
