//! The known facts about a client, and the allow lists in use. Unknown facts satisfy no condition.

use super::names;
use forebay_config::{AccessList, ClientName};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The known facts about a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Peer {
    /// User, over a unix socket.
    pub(crate) uid: Option<u32>,
    /// All its groups, over a unix socket.
    pub(crate) gids: Vec<u32>,
    /// Address, over TCP.
    pub(crate) address: Option<IpAddr>,
    /// Names in its verified certificate.
    pub(crate) names: Vec<ClientName>,
}

impl Peer {
    /// Takes the names of the certificate (DER) whose key the client has proved to hold.
    pub(crate) fn certified(&mut self, der: &[u8]) {
        self.names = names::of_certificate(der);
    }

    /// True if a list allows the client.
    fn is_allowed_by(&self, list: &AccessList) -> bool {
        let by_user = || {
            self.uid.is_some_and(|uid| list.uids.contains(&uid))
                || self.gids.iter().any(|gid| list.gids.contains(gid))
        };
        let by_name = || self.names.iter().any(|name| list.clients.contains(name));
        !list.is_empty()
            && self.has_address_of(list)
            && (list.clients.is_empty() || by_name())
            && (!list.is_of_users() || by_user())
    }

    fn has_address_of(&self, list: &AccessList) -> bool {
        let here = |address| list.addresses.iter().any(|range| range.contains(address));
        list.addresses.is_empty() || self.address.is_some_and(here)
    }
}

impl fmt::Display for Peer {
    /// For logs: the known facts, without any text that a client could choose freely.
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

/// An allow list in use. `None`: it was removed, and allows no client.
#[derive(Debug, Default)]
pub struct AccessEntry(Mutex<Option<AccessList>>);

impl AccessEntry {
    /// Replaces the list; true if it differs.
    pub(super) fn replace(&self, list: Option<AccessList>) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *current != list;
        *current = list;
        differs
    }

    /// True if the client is allowed.
    pub(crate) fn allows(&self, peer: &Peer) -> bool {
        self.with(|list| peer.is_allowed_by(list))
    }

    /// True if the client may be allowed, as far as its address shows: all that is known before it
    /// sends anything.
    pub(crate) fn allows_address(&self, peer: &Peer) -> bool {
        self.with(|list| peer.has_address_of(list))
    }

    fn with(&self, ask: impl FnOnce(&AccessList) -> bool) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(ask)
    }
}
