//! Quiescing between two requests, and going on: in this process, or in another one.
//!
//! In a quiesced connection every request that was taken is answered and the answer is sent; what
//! was received behind it lies unread. Then a connection is its socket, what was agreed on, and the
//! unread bytes: it can change hands, and the client sees a pause. Who uses TLS cannot be passed on
//! (its keys and record numbers are rustls's own), and is disconnected between two requests.

use super::Server;
use super::connection::Connection;
use crate::handover::{Guest, Inheritance};
use forebay_config::rules::{Client, Identity};
use forebay_export::nbd::Tls;
use forebay_export::nbd::session::{Limits, Session};
use forebay_format::VolumeId;
use forebay_io::{Reactor, Span};
use std::time::Instant;

impl Server {
    /// From now on nothing is accepted, and no further request is taken.
    pub(crate) fn quiesce(&mut self, reactor: &mut Reactor) {
        self.quiescing = true;
        self.directory.cancel_accepts(reactor);
        for index in 0..self.connections.len() as u32 {
            self.enqueue(index);
        }
    }

    /// Everybody is quiesced, those who are about to choose an export included.
    pub(crate) fn is_quiesced(&self) -> bool {
        let mut connections = self.connections.iter().flatten();
        self.quiescing && !self.directory.is_accepting() && connections.all(Connection::is_quiesced)
    }

    /// Disconnects those who have not chosen an export.
    pub(crate) fn cut_greetings(&mut self, reactor: &mut Reactor) {
        for index in 0..self.connections.len() as u32 {
            let connection = self.connections[index as usize].as_ref();
            if connection.is_some_and(|connection| connection.greeted_by.is_some()) {
                self.end_greeting(reactor, index, "had not chosen an export when an upgrade began");
            }
        }
    }

    /// Disconnects those who do not quiesce because of themselves: who sends half a request, or
    /// takes no answers. Nobody, if others wait for a device: the pool does not quiesce then. Nor
    /// who waits for memory that others have.
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

    /// Gives away all listeners, and all connections that can go on elsewhere; the others are
    /// closed. Every connection is quiesced. `is_owed`: clients of the volume must be told of an
    /// error that only this process knows.
    pub(crate) fn hand_over(
        &mut self,
        reactor: &mut Reactor,
        is_owed: impl Fn(VolumeId) -> bool,
    ) -> Inheritance {
        let listeners = self.directory.release(reactor);
        let mut guests = Vec::new();
        for index in 0..self.connections.len() {
            let Some(mut connection) = self.connections[index].take_if(|connection| connection.is_quiesced())
            else {
                continue;
            };
            self.count(index as u32);
            self.directory.went(connection.volume);
            // Closed is an error as well, and one that nobody overlooks.
            let owed = connection.volume.is_some_and(&is_owed);
            let guest = if owed { None } else { self.guest_of(reactor, &mut connection) };
            connection.free_buffers(reactor);
            reactor.close_socket(connection.socket); // does nothing to one that was given away
            guests.extend(guest);
        }
        Inheritance { listeners, guests }
    }

    fn guest_of(&self, reactor: &mut Reactor, connection: &mut Connection) -> Option<Guest> {
        if connection.tls.is_some() {
            return None;
        }
        let endpoint = self.directory.asked(connection.endpoint)?.clone();
        let info = connection.session.export()?;
        let (export, size_bytes) = (info.name.clone(), info.size_bytes);
        if self.directory.volume(connection.endpoint, &export) != connection.volume {
            return None; // the name was given to another one since
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

    /// Takes the connections to an export that somebody else has had until now.
    pub(super) fn adopt_guests(&mut self, reactor: &mut Reactor, endpoint: u32, export: &str) {
        let Some(asked) = self.directory.asked(endpoint).cloned() else { return };
        for guest in self.directory.listener_store().guests(&asked, export) {
            if let Err(why) = self.adopt(reactor, endpoint, guest) {
                self.refusals
                    .note(format!("a connection to \"{}\" cannot go on: {why}", export.escape_debug()));
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
            return Err(format!("{peer} is not let in any more"));
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
            return Err("there is no memory for what it has sent already".into());
        }
        self.directory.came(Some(volume));
        let index = self.place_for(connection);
        self.enqueue(index);
        Ok(())
    }

    /// Puts bytes where they would lie had they just been received.
    fn put_unread(reactor: &mut Reactor, connection: &mut Connection, unread: &[u8]) -> bool {
        if unread.is_empty() {
            return true;
        }
        let Some(buffer) = reactor.pool_mut().alloc_leaving(super::FOR_ENGINE, unread.len()) else {
            return false;
        };
        reactor.pool_mut().copy_in(Span { buf: buffer, offset: 0, len: unread.len() as u32 }, unread);
        connection.buffer = Some(buffer);
        connection.filled = unread.len();
        true
    }
}
