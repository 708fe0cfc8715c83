//! `[access.NAME]`: which clients may use an export.
//!
//! A client must meet each kind of condition in the list: an address of `addresses`, a name of
//! `clients`, and a user of `uids` or a group of `gids` (a user has groups, so those two are one
//! kind).

use super::address_range::AddressRange;
use super::client_name::ClientName;

/// `[access.NAME]`
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessList {
    /// Names in the client's certificate.
    pub clients: Vec<ClientName>,
    /// Users, over a unix socket.
    pub uids: Vec<u32>,
    /// Groups, over a unix socket: the primary group of the process, or a supplementary one.
    pub gids: Vec<u32>,
    /// Addresses, over TCP.
    pub addresses: Vec<AddressRange>,
}

impl AccessList {
    /// Returns whether it has no conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.addresses.is_empty() && !self.is_of_users()
    }

    /// Returns whether it has conditions that only clients of a unix socket can meet.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        !(self.uids.is_empty() && self.gids.is_empty())
    }
}
