//! Quiescing between two requests, and resuming: in this process, or in another one.
//!
//! In a quiesced connection every request taken is answered and the reply is sent; bytes received
//! behind them are unread. Then a connection consists of its socket, the negotiated options, and
//! the unread bytes: another process can take it over, and the client sees a pause. Clients with
//! TLS cannot be handed over (rustls does not give out keys and record numbers), and are
//! disconnected between two requests.

use super::Server;
use super::connection::Connection;
use crate::client_request::FOR_ENGINE;
use crate::handover::{Guest, HandoverSockets};
use forebay_config::rules::{Client, Identity};
use forebay_export::nbd::Tls;
use forebay_export::nbd::session::{Limits, Session};
use forebay_format::VolumeId;
use forebay_io::{Reactor, Span};
use std::time::Instant;

impl Server {
    /// Stops accepting connections and taking requests.
    pub(crate) fn quiesce(&mut self, reactor: &mut Reactor) {
        self.quiescing = true;
        self.directory.cancel_accepts(reactor);
        for index in 0..self.connections.len() as u32 {
            self.enqueue(index);
        }
    }

    /// True if all connections are quiesced, and none is still choosing an export.
    pub(crate) fn is_quiesced(&self) -> bool {
        let mut connections = self.connections.iter().flatten();
        self.quiescing && !self.directory.is_accepting() && connections.all(Connection::is_quiesced)
    }

    /// Disconnects clients that have not chosen an export.
    pub(crate) fn cut_greetings(&mut self, reactor: &mut Reactor) {
        for index in 0..self.connections.len() as u32 {
            let connection = self.connections[index as usize].as_ref();
            if connection.is_some_and(|connection| connection.greeted_by.is_some()) {
                self.end_greeting(reactor, index, "had not chosen an export when an upgrade began");
            }
        }
    }

    /// Disconnects clients that do not quiesce by their own fault: those that have sent half a
    /// request, or take no replies. Does nothing if a request waits for a device: the pool does not
    /// quiesce then. Spares clients that wait for memory that others have.
    pub(crate) fn cut_busy(&mut self, reactor: &mut Reactor) {
        if self.connections.iter().flatten().any(|connection| connection.requests > 0) {
            return;
        }
        for index in 0..self.connections.len() as u32 {
            let Some(Some(connection)) = self.connections.get_mut(index as usize) else { continue };
            if connection.is_quiesced() || connection.wants_memory || connection.blocked.is_some() {
                continue;
            }
            connection.closing = true;
            self.refusals.note(format!("{} did not quiesce between two requests", connection.peer));
            reactor.abort_socket(connection.socket);
            self.enqueue(index);
        }
    }

    /// Takes requests and clients again.
    pub(crate) fn go_on(&mut self, reactor: &mut Reactor) {
        self.quiescing = false;
        self.paused.clear();
        self.resume_at = None;
        for endpoint in self.directory.open_endpoints() {
            self.accept(reactor, endpoint);
        }
        for index in 0..self.connections.len() as u32 {
            self.enqueue(index);
        }
    }

    /// Hands over all listeners, and all connections that another process can continue; closes the
    /// others. Every connection is quiesced. `is_owed`: clients of the volume must see an error
    /// that only this process knows.
    pub(crate) fn hand_over(
        &mut self,
        reactor: &mut Reactor,
        is_owed: impl Fn(VolumeId) -> bool,
    ) -> HandoverSockets {
        let listeners = self.directory.release(reactor);
        let mut guests = Vec::new();
        for index in 0..self.connections.len() {
            let Some(mut connection) = self.connections[index].take_if(|connection| connection.is_quiesced())
            else {
                continue;
            };
            self.count(index as u32);
            self.directory.went(connection.volume);
            // A closed connection is an error as well, and one that no client overlooks.
            let owed = connection.volume.is_some_and(&is_owed);
            let guest = if owed { None } else { self.guest_of(reactor, &mut connection) };
            connection.free_buffers(reactor);
            reactor.close_socket(connection.socket); // no effect if the socket was handed over
            guests.extend(guest);
        }
        HandoverSockets { listeners, guests }
    }

    fn guest_of(&self, reactor: &mut Reactor, connection: &mut Connection) -> Option<Guest> {
        if connection.tls.is_some() {
            return None;
        }
        let endpoint = self.directory.asked(connection.endpoint)?.clone();
        let info = connection.session.export()?;
        let (export, size_bytes) = (info.name.clone(), info.size_bytes);
        if self.directory.volume(connection.endpoint, &export) != connection.volume {
            return None; // the name was given to another volume since
        }
        let volume = self.directory.mark(connection.endpoint, &export)?.to_owned();
        let replier = connection.session.replier();
        let mut unread = connection.session.take_held();
        if let Some(buffer) = connection.buffer {
            unread.extend_from_slice(&reactor.pool().bytes(buffer)[connection.used..connection.filled]);
        }
        let fd = reactor.release_socket(connection.socket)?;
        Some(Guest { endpoint, export, volume, size_bytes, replier, unread, fd })
    }

    /// Takes over the connections to an export that another process has had until now.
    pub(super) fn adopt_guests(&mut self, reactor: &mut Reactor, endpoint: u32, export: &str) {
        let Some(asked) = self.directory.asked(endpoint).cloned() else { return };
        for guest in self.directory.listener_store().guests(&asked, export) {
            if let Err(why) = self.adopt(reactor, endpoint, guest) {
                self.refusals
                    .note(format!("a connection to \"{}\" cannot continue: {why}", export.escape_debug()));
            }
        }
    }

    fn adopt(&mut self, reactor: &mut Reactor, endpoint: u32, guest: Guest) -> Result<(), String> {
        let info = self.directory.info(endpoint, &guest.export).ok_or("there is no such export")?;
        let volume = self.directory.volume(endpoint, &guest.export).ok_or("there is no such export")?;
        if self.directory.mark(endpoint, &guest.export) != Some(&*guest.volume) {
            return Err("another volume has this name now".into());
        }
        if info.size_bytes < guest.size_bytes {
            return Err("the volume is smaller now".into());
        }
        let rules = self.rules.get(usize::from(volume.0)).cloned().flatten().ok_or("it has no rules")?;
        if self.directory.tls(endpoint).is_some() {
            return Err("the export has TLS now".into());
        }
        let socket = reactor.add_socket(guest.fd).map_err(|error| error.to_string())?;
        let peer = Self::peer(reactor, socket);
        if !self.directory.still_allows(endpoint, &guest.export, &peer) {
            reactor.close_socket(socket);
            return Err(format!("{peer} no longer has access"));
        }
        let identity = match reactor.peer_cred(socket) {
            Ok(peer) => Identity::of_peer(rules.proc(), peer),
            Err(_) => Identity::unknown(), // not a unix socket
        };
        let mut connection =
            Connection::new(socket, endpoint, peer, Tls::Off, Instant::now(), self.held_bytes_max);
        connection.greeted_by = None;
        connection.session = Session::resume(Limits::default(), info, guest.replier);
        connection.volume = Some(volume);
        connection.client = Some(Client::new(rules, guest.export, identity));
        if !Self::put_unread(reactor, &mut connection, &guest.unread) {
            reactor.close_socket(socket);
            return Err("there is no memory for the data it has already sent".into());
        }
        self.directory.came(Some(volume));
        let index = self.place_for(connection);
        self.enqueue(index);
        Ok(())
    }

    /// Puts bytes where they would lie if they had just been received.
    fn put_unread(reactor: &mut Reactor, connection: &mut Connection, unread: &[u8]) -> bool {
        if unread.is_empty() {
            return true;
        }
        let Some(buffer) = reactor.pool_mut().alloc_leaving(FOR_ENGINE, unread.len()) else {
            return false;
        };
        reactor.pool_mut().copy_in(Span { buf: buffer, offset: 0, len: unread.len() as u32 }, unread);
        connection.buffer = Some(buffer);
        connection.filled = unread.len();
        true
    }
}
