//! Accepting of connections, and limits on connections that have not chosen an export.
//!
//! A client that has not chosen an export yet has [`GREETING_WITHIN`] for it, and there are at most
//! [`GREETINGS_MAX`] of them: the one that has taken longest is disconnected first. Where accepting
//! fails the listener pauses for a moment.

use super::connection::Connection;
use super::{
    ACCEPT_PAUSE, GREETING_WITHIN, GREETINGS_EVERY, GREETINGS_MAX, STALLED_EVERY, Server, WANTS_MEMORY_AFTER,
};
use crate::guard::Peer;
use forebay_export::nbd::Tls;
use forebay_io::{Reactor, SocketId};
use std::time::{Duration, Instant};

impl Server {
    /// A listening socket has accepted a client, or failed.
    pub(super) fn accepted(
        &mut self,
        reactor: &mut Reactor,
        index: u32,
        result: Result<u32, forebay_io::IoFailure>,
    ) {
        self.directory.set_accepting(index, false);
        if self.closing || !self.directory.is_open(index) {
            if let Ok(socket) = result {
                reactor.close_socket(SocketId(socket));
            }
            return;
        }
        if let Ok(socket) = result {
            let socket = SocketId(socket);
            if self.connections() >= self.connections_max {
                let max = self.connections_max;
                self.refusals.note(format!(
                    "a client was refused: there are {max} connections (pool_connections_max)"
                ));
                reactor.close_socket(socket);
            } else {
                self.open(reactor, socket, index);
            }
        } else if !self.quiescing {
            // Out of descriptors or the like: tries again later, and other connections go on
            // meanwhile.
            if let Err(failure) = result {
                self.refusals.note(format!("clients wait: a connection cannot be accepted: {failure}"));
            }
            self.paused.push(index);
            self.resume_at = Some(Instant::now() + ACCEPT_PAUSE);
            return;
        }
        self.accept(reactor, index);
    }

    /// Accepts again where that failed a while ago; returns how long the loop may sleep.
    pub(super) fn resume_accepting(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        let left = self.resume_at?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        self.resume_at = None;
        for index in std::mem::take(&mut self.paused) {
            if !self.closing && self.directory.is_open(index) {
                self.accept(reactor, index);
            }
        }
        None
    }

    /// Ends the connections whose time to choose an export is over.
    pub(super) fn end_slow_greetings(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        if self.greeting == 0 {
            return None;
        }
        let now = Instant::now();
        let look_at = *self.greetings_at.get_or_insert(now + GREETINGS_EVERY);
        if now < look_at {
            return Some(look_at - now);
        }
        self.greetings_at = Some(now + GREETINGS_EVERY);
        for index in 0..self.connections.len() as u32 {
            let connection = self.connections[index as usize].as_ref();
            if connection.is_some_and(|connection| connection.greeted_by.is_some_and(|by| by <= now)) {
                self.end_greeting(reactor, index, "did not choose an export in time");
            }
        }
        Some(GREETINGS_EVERY)
    }

    /// Ends a connection that has not chosen an export yet, at once, even if the client does not
    /// take its replies.
    pub(super) fn end_greeting(&mut self, reactor: &mut Reactor, index: u32, why: &str) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.greeted_by.take().is_some() {
            self.greeting -= 1;
        }
        connection.closing = true;
        self.refusals.note(format!("{} {why}", connection.peer));
        reactor.abort_socket(connection.socket);
        self.enqueue(index);
    }

    /// Makes room for one more connection that has not chosen an export.
    pub(super) fn end_oldest_greeting(&mut self, reactor: &mut Reactor) {
        let since = |connection: &Option<Connection>| connection.as_ref().and_then(|one| one.greeted_by);
        let strangers = self.connections.iter().enumerate();
        let strangers = strangers.filter_map(|(index, connection)| Some((since(connection)?, index as u32)));
        if let Some((_, index)) = strangers.min() {
            self.end_greeting(reactor, index, "was disconnected: too many clients have not chosen an export");
        }
    }

    /// Ends connections whose clients have disconnected while nothing is received from them: they
    /// wait for memory, or have reached their limit of requests. A TCP client that has shut down
    /// its sending side counts as disconnected while it waits for memory: a close looks the same.
    pub(super) fn notice_gone(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        let quiescing = self.quiescing;
        let is_not_received_from = |connection: &Connection| {
            !(connection.receiving || connection.closing || quiescing && connection.may_quiesce())
        };
        self.counters();
        let of = |index: &u32| self.connections[*index as usize].as_ref();
        if !self.counters.waiting().iter().filter_map(of).any(is_not_received_from) {
            self.gone_at = None;
            return None;
        }
        let now = Instant::now();
        let look_at = *self.gone_at.get_or_insert(now + STALLED_EVERY);
        if now < look_at {
            return Some(look_at - now);
        }
        self.gone_at = Some(now + STALLED_EVERY);
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_mut().filter(|one| is_not_received_from(one))
            else {
                continue;
            };
            let half = connection.wants_memory && connection.peer.uid.is_none();
            if reactor.has_hung_up(connection.socket, half) {
                (connection.closing, connection.ignore_input) = (true, true);
                self.enqueue(index as u32);
            }
        }
        Some(STALLED_EVERY)
    }

    /// Ends a connection that holds memory for replies that it does not take, or for a write that
    /// does not arrive, if others have waited long enough for memory.
    pub(super) fn end_stalled(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        if self.counters().wanting().is_empty() {
            if self.wants_memory_since.take().is_some() {
                self.connections.iter_mut().flatten().for_each(|connection| connection.seen_left = None);
            }
            self.stalled_at = None;
            return None;
        }
        let now = Instant::now();
        let since = *self.wants_memory_since.get_or_insert(now);
        let look_at = *self.stalled_at.get_or_insert(now);
        if now < look_at {
            return Some(look_at - now);
        }
        self.stalled_at = Some(now + STALLED_EVERY);
        for connection in self.connections.iter_mut().flatten().filter(|connection| connection.sends > 0) {
            connection.see_progress(reactor.unsent_bytes(connection.socket), now);
        }
        for connection in self.connections.iter_mut().flatten() {
            if let Some(arriving) = &mut connection.arriving {
                arriving.pace.look(arriving.received);
            }
        }
        if now < since + WANTS_MEMORY_AFTER {
            return Some(STALLED_EVERY);
        }
        let stalls = |connection: &Connection| match &connection.arriving {
            _ if connection.closing => None,
            _ if connection.has_stalled(now) => Some("does not read replies"),
            arriving => arriving.as_ref()?.pace.is_too_slow(),
        };
        let connections = self.connections.iter_mut().enumerate();
        let stalled = connections.filter_map(|(index, connection)| Some((index, connection.as_mut()?)));
        let stalled =
            stalled.filter_map(|(index, connection)| Some((index, stalls(connection)?, connection)));
        if let Some((index, what, connection)) =
            stalled.max_by_key(|(_, _, connection)| connection.held_bytes)
        {
            let bytes = connection.held_bytes;
            connection.closing = true;
            let why = format!("{what}, and holds {bytes} bytes of memory that other clients need");
            self.refusals.note(format!("{} {why}", connection.peer));
            reactor.abort_socket(connection.socket);
            self.enqueue(index as u32);
        }
        Some(STALLED_EVERY)
    }

    /// The client of a socket.
    pub(super) fn peer(reactor: &Reactor, socket: SocketId) -> Peer {
        match reactor.peer_cred(socket) {
            Ok(cred) if cred.uid != u32::MAX => {
                let mut gids = reactor.peer_groups(socket).unwrap_or_default();
                gids.push(cred.gid);
                Peer { uid: Some(cred.uid), gids, ..Peer::default() }
            }
            _ => Peer { address: reactor.peer_address(socket).ok(), ..Peer::default() },
        }
    }

    pub(super) fn open(&mut self, reactor: &mut Reactor, socket: SocketId, endpoint: u32) {
        let peer = Self::peer(reactor, socket);
        if !self.directory.may_greet(endpoint, &peer) {
            self.refusals.note(format!("{peer} has an address that no export here admits"));
            return reactor.close_socket(socket);
        }
        if self.greeting >= GREETINGS_MAX {
            self.end_oldest_greeting(reactor);
        }
        let tls = if self.directory.tls(endpoint).is_some() { Tls::Required } else { Tls::Off };
        let by = Instant::now() + GREETING_WITHIN;
        let connection = Connection::new(socket, endpoint, peer, tls, by, self.held_bytes_max);
        self.greeting += 1;
        let index = self.place_for(connection);
        self.enqueue(index);
    }

    /// Puts a connection into the table; returns its number.
    pub(super) fn place_for(&mut self, connection: Connection) -> u32 {
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.connections[index] = Some(connection);
        self.count(index as u32);
        index as u32
    }
}
