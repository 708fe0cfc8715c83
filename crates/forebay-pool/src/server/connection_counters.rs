//! Sums over the connections of the server, without a look at each: their number, the memory that
//! they hold, and which of them wait.
//!
//! A turn of the loop must not cost more because of a thousand idle clients. So every connection
//! has a share in the sums ([`Share`]), and is counted again when that can have changed.
//!
//! Invariant: each change of a connection queues it, and each queued one is counted again before
//! the counters are used ([`Server::counters`]). Builds with debug assertions compare them with a
//! count of all connections.

use super::Server;
use super::connection::Connection;

/// The share of one connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// Memory of its requests, in bytes.
    held_bytes: u64,
    /// It exists, and has requests in flight.
    counts: bool,
    is_busy: bool,
    /// A request of it waits for memory.
    wants_memory: bool,
    /// It continues only when something becomes free: nothing is received from it, or received
    /// input waits.
    waits: bool,
}

impl Share {
    fn of(connection: &Connection) -> Self {
        let has_more = connection.blocked.is_some() || connection.used < connection.filled;
        Self {
            held_bytes: connection.held_bytes,
            counts: true,
            is_busy: connection.requests > 0,
            wants_memory: connection.wants_memory && !connection.closing,
            waits: has_more || !connection.receiving,
        }
    }
}

/// Sums over all connections.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct ConnectionCounters {
    /// The counted share of each connection, by number.
    shares: Vec<Share>,
    connections: u32,
    busy: u32,
    held_bytes: u64,
    /// Connections that hold memory.
    holders: u64,
    /// Those that wait for memory, and those that wait for anything, in order of number.
    wanting: Vec<u32>,
    waiting: Vec<u32>,
}

impl ConnectionCounters {
    fn count(&mut self, index: u32, share: Share) {
        let place = index as usize;
        if self.shares.len() <= place {
            self.shares.resize(place + 1, Share::default());
        }
        let old = std::mem::replace(&mut self.shares[place], share);
        if old == share {
            return;
        }
        self.connections = self.connections + u32::from(share.counts) - u32::from(old.counts);
        self.busy = self.busy + u32::from(share.is_busy) - u32::from(old.is_busy);
        self.held_bytes = self.held_bytes + share.held_bytes - old.held_bytes;
        self.holders = self.holders + u64::from(share.held_bytes > 0) - u64::from(old.held_bytes > 0);
        list(&mut self.wanting, index, share.wants_memory);
        list(&mut self.waiting, index, share.waits);
    }

    /// Connections.
    pub(super) fn connections(&self) -> u32 {
        self.connections
    }

    /// Number of connections with requests in flight.
    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// Memory that they hold, in bytes, and how many of them hold some.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.held_bytes, self.holders)
    }

    /// Numbers of those that wait for memory, in order.
    pub(super) fn wanting(&self) -> &[u32] {
        &self.wanting
    }

    /// Numbers of those that continue only when something becomes free, in order.
    pub(super) fn waiting(&self) -> &[u32] {
        &self.waiting
    }
}

/// Inserts a number into an ordered list, or removes it.
fn list(numbers: &mut Vec<u32>, number: u32, is_in: bool) {
    match (numbers.binary_search(&number), is_in) {
        (Err(at), true) => numbers.insert(at, number),
        (Ok(at), false) => drop(numbers.remove(at)),
        _ => {}
    }
}

impl Server {
    /// Counts the current state of a connection, or its absence.
    pub(super) fn count(&mut self, index: u32) {
        let connection = self.connections.get(index as usize).and_then(Option::as_ref);
        self.counters.count(index, connection.map(Share::of).unwrap_or_default());
    }

    /// The current sums.
    pub(super) fn counters(&mut self) -> &ConnectionCounters {
        for at in 0..self.queue.len() {
            self.count(self.queue[at]);
        }
        debug_assert!(self.counters == self.counters_of_all(), "who changes a connection queues it");
        &self.counters
    }

    /// As [`Server::counters`] should be, by counting all connections.
    fn counters_of_all(&self) -> ConnectionCounters {
        let mut all = ConnectionCounters::default();
        all.shares.resize(self.counters.shares.len(), Share::default());
        let connections = self.connections.iter().enumerate();
        for (index, connection) in connections.filter_map(|(at, one)| Some((at, one.as_ref()?))) {
            all.count(index as u32, Share::of(connection));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(held_bytes: u64, wants_memory: bool) -> Share {
        Share { held_bytes, counts: true, is_busy: held_bytes > 0, wants_memory, waits: wants_memory }
    }

    #[test]
    fn sums_follow_each_connection() {
        let mut counters = ConnectionCounters::default();
        counters.count(2, share(10, true));
        counters.count(0, share(5, true));
        counters.count(1, share(0, false));
        assert_eq!((counters.connections(), counters.busy(), counters.held()), (3, 2, (15, 2)));
        assert_eq!((counters.wanting(), counters.waiting()), (&[0, 2][..], &[0, 2][..]));
        counters.count(2, share(0, true));
        counters.count(0, Share::default());
        assert_eq!((counters.connections(), counters.busy(), counters.held()), (2, 0, (0, 0)));
        assert_eq!(counters.wanting(), [2]);
        counters.count(2, Share::default());
        counters.count(2, Share::default());
        assert_eq!((counters.connections(), counters.wanting(), counters.waiting()), (1, &[][..], &[][..]));
    }
}
