//! NBD connections on the reactor.
//!
//! A connection is a protocol session, a receive buffer, and the state of its waits. Its cycle:
//!
//! - The server receives into a pool buffer, steps the session over the received bytes, and starts
//!   every request in them. They share a batch of the log. Only then it receives again.
//! - Replies of one turn of the loop are collected and sent with one system call: headers from a
//!   reply buffer, data directly from the buffer that the device read into.
//! - A write whose payload has not arrived yet is received directly into its own buffer.
//!
//! Back-pressure keeps any client from taking memory without bound. A connection that has
//! `REQUESTS_MAX` requests or `UNSENT_BYTES_MAX` of unsent replies is not read from until some have
//! ended. When the pool has no memory left, a request waits in its session. Requests cannot take
//! the last eighth of the memory (`FOR_REPLIES`), because reply headers cannot wait. The last
//! sixteenth is for the engine alone (`FOR_ENGINE`), whose writes would fail. A connection has at
//! most a quarter of the memory (`CONNECTION_PART`). Connections above their share wait for those
//! below. While others wait for memory, two kinds of clients are disconnected: those that take no
//! replies (`STALLED_AFTER`), and those that hold memory for a write whose payload does not arrive
//! (`Pace`). So clients can slow others down for some seconds, not forever. Incoming payloads have
//! a quarter of the memory for each volume, and half of it for all volumes (`ARRIVING_PART`).
//!
//! One buffer for a request of maximum length is set aside ([`reserve_request_buffer`]). If the
//! rest is in use, it goes to the connection that has waited longest among those that hold no
//! memory; those of volumes without incoming payloads are first. So every request finds memory.
//!
//! With TLS (`encrypted`, `tls`) received bytes are decrypted into the same buffer, and replies are
//! encrypted when they are sent; the session sees no difference.
//!
//! Files: `accept` (new connections), `exports` (endpoints and exports), `connection` (the state of
//! a connection), `receive`, `requests`, `send` (the path of a request), `quiesce` (quiescing and
//! handover), `encrypted` and `tls`, `refusals` (reports to the operator), `connection_counters`
//! (sums over all connections).

use crate::client_request::FOR_REQUESTS;
use crate::handover::ListenerStore;
use crate::token::{FrontendOp, Protocol};
use forebay_config::rules::RuleSet;
use forebay_export::nbd::reply::Replier;
use forebay_export::nbd::session::NbdRequest;
use forebay_format::BLOCK_BYTES;
use forebay_io::{BufId, BufPool, IoFailure, Reactor, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod accept;
mod connection;
mod connection_counters;
mod encrypted;
mod exports;
mod quiesce;
mod receive;
mod refusals;
mod requests;
mod send;
mod status;
mod tls;

use connection::Connection;
use connection_counters::ConnectionCounters;
use exports::Directory;
pub use exports::{Offer, Socket, ToListen};
use refusals::Refusals;
pub(crate) use refusals::Refused;
pub use status::HoleLook;

/// Bytes received at once when no payload is awaited.
const RECV_BYTES: usize = 128 << 10;
/// Requests of one connection in flight.
const REQUESTS_MAX: u32 = 512;
/// Bytes of one send.
const SEND_BYTES_MAX: u64 = 1 << 20;
/// Replies of one connection that have not been sent.
const UNSENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes received at once if there is no memory for more, so that every client can be received
/// from. With TLS, a record and the rest of another.
const RECV_BYTES_SMALL: usize = 16 << 10;
const RECV_BYTES_SMALL_TLS: usize = 64 << 10;
/// Bytes of reply headers collected in one buffer.
const REPLY_BYTES: usize = 4 << 10;
/// Incoming payloads of the writes of one volume have at most this part of the memory (and one
/// request more).
const ARRIVING_PART: u64 = 4;
/// Those of all volumes together have as much as this number of volumes may have (and one request
/// more for each volume that had none).
const ARRIVING_VOLUMES: u64 = 2;
/// One connection has at most this part of the memory for its requests and their replies (and one
/// request more).
const CONNECTION_PART: u64 = 4;
/// A connection that has waited this long for memory ...
const WANTS_MEMORY_AFTER: Duration = Duration::from_secs(1);
/// ... gets that of a client that has taken no reply for this long ...
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// ... and was observed for this long to take nothing, not even part of a send.
const STALLED_SEEN: Duration = Duration::from_secs(2);
/// Looks ([`STALLED_EVERY`]) at a payload that does not grow while others wait for memory, before
/// its client is disconnected: 5 s.
const SILENT_LOOKS: u32 = 20;
/// Looks at a payload that is too slow to complete: 60 s, and 10 s more for each MiB received.
const SLOW_LOOKS: u32 = 240;
const SLOW_LOOKS_PER_MIB: u32 = 40;
/// A client over TCP has this long to take the last replies and to end the connection.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of a client that are received and dropped in that time: for requests that it had in
/// flight, not for new ones.
const LINGER_BYTES_MAX: u64 = 4 << 20;
/// Interval of these looks.
const STALLED_EVERY: Duration = Duration::from_millis(250);
/// Time for a client to choose an export, the TLS handshake included.
pub(crate) const GREETING_WITHIN: Duration = Duration::from_secs(15);
/// Connections at once that have not chosen an export yet.
const GREETINGS_MAX: usize = 256;
/// Interval of the search for slow greetings.
const GREETINGS_EVERY: Duration = Duration::from_secs(1);
/// Blocks that one BLOCK_STATUS examines; the client asks again for the rest.
const STATUS_BLOCKS_MAX: u64 = 1 << 16;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// The longest request, with any offset within its first block.
const LONGEST_BYTES: usize = forebay_core::REQUEST_BYTES_MAX as usize + BLOCK_BYTES;
/// Pause of a listener after accepting failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An operation of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServerToken {
    /// A listening socket accepts.
    Accept(u32),
    /// A connection receives.
    Receive(u32),
    /// A connection sends.
    Send(u32),
    /// A thread continues the TLS handshake of a connection.
    Handshake(u32),
}

impl ServerToken {
    fn encode(self) -> u64 {
        let (slot, number) = match self {
            Self::Accept(number) => (0, number),
            Self::Receive(number) => (1, number),
            Self::Send(number) => (2, number),
            Self::Handshake(number) => (3, number),
        };
        FrontendOp::new(Protocol::Nbd, slot, number).token()
    }

    fn decode(FrontendOp { slot, number, .. }: FrontendOp) -> Self {
        match slot {
            0 => Self::Accept(number),
            1 => Self::Receive(number),
            2 => Self::Send(number),
            3 => Self::Handshake(number),
            other => unreachable!("the server has no operation {other}"),
        }
    }
}

/// A client's request that the engine works on.
#[derive(Debug)]
struct Pending {
    connection: u32,
    request: NbdRequest,
    buffer: Option<BufId>,
    replier: Replier,
}

/// A send in flight.
#[derive(Debug, Default)]
struct Sending {
    connection: u32,
    buffers: Vec<BufId>,
    bytes: u64,
    /// Memory of requests that the end of the send frees.
    held_bytes: u64,
}

/// Sets memory aside for one request of maximum length, for the connection that has waited longest,
/// so that no wait lasts forever. False if there is none.
pub fn reserve_request_buffer(pool: &mut BufPool) -> bool {
    pool.put_by(LONGEST_BYTES)
}

/// A write whose payload is incoming.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    request: NbdRequest,
    buffer: BufId,
    received: u32,
    pace: Pace,
}

/// Progress of a payload, as seen by looks that are taken while others wait for memory. Counted in
/// looks, not by the clock: a delayed thread blames no client.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Pace {
    /// Bytes received at the last look.
    seen: u32,
    /// Looks since then that found no more bytes.
    silent: u32,
    looks: u32,
}

impl Pace {
    /// Notes the bytes received so far.
    fn look(&mut self, received: u32) {
        self.silent = if self.looks > 0 && received == self.seen { self.silent + 1 } else { 0 };
        (self.seen, self.looks) = (received, self.looks + 1);
    }

    /// The reason to disconnect its client, if there is one.
    fn is_too_slow(&self) -> Option<&'static str> {
        if self.silent >= SILENT_LOOKS {
            Some("has stopped sending in the middle of a write")
        } else {
            let allowed = SLOW_LOOKS + ((SLOW_LOOKS_PER_MIB * self.seen) >> 20);
            (self.looks >= allowed).then_some("sends a write too slowly")
        }
    }
}

/// All NBD connections of a pool.
#[derive(Debug)]
pub struct Server {
    directory: Directory,
    /// By volume number.
    rules: Vec<Option<Arc<RuleSet>>>,
    connections: Vec<Option<Connection>>,
    counters: ConnectionCounters,
    pending: Vec<Option<Pending>>,
    free_pending: Vec<u32>,
    sendings: Vec<Sending>,
    /// Spans of one send; empty between sends.
    piece: Vec<Span>,
    free_sendings: Vec<u32>,
    /// Connections that have something to parse or to send.
    queue: Vec<u32>,
    /// Connections that the current turn works on; empty between turns.
    taken: Vec<u32>,
    scratch: Vec<u8>,
    /// Memory for decrypting and for encrypting.
    cipher: Vec<u8>,
    plain: Vec<u8>,
    crcs: Vec<u32>,
    /// The owner looks for holes of backing stores; the ranges to look at, and the requests that
    /// wait.
    looks_for_holes: bool,
    hole_looks: Vec<status::HoleLook>,
    waiting_for_holes: Vec<status::StatusWaiting>,
    closing: bool,
    /// Connections quiesce between two requests, or are quiesced; nothing is accepted.
    quiescing: bool,
    /// Start of this turn of the loop, for the counters of rules.
    turn_at: Instant,
    /// Listeners on which accepting failed, and the time of the next attempt.
    paused: Vec<u32>,
    /// Where the next look at blocked connections begins.
    blocked_from: usize,
    resume_at: Option<Instant>,
    /// Connections that have not chosen an export yet, and the time of the next look for slow ones.
    greeting: usize,
    greetings_at: Option<Instant>,
    connections_max: u32,
    held_bytes_max: u64,
    /// Connections with more memory than this get none at present, because others wait for some.
    share_bytes: u64,
    /// The connection that gets the memory set aside: the one that has waited longest among those
    /// that wait for memory and hold none.
    reserve_owner: Option<u32>,
    /// Memory of incoming payloads, by volume number, and the limit for one volume.
    arriving_bytes: Vec<u64>,
    arriving_bytes_max: u64,
    /// Time of the next check whether clients that are not received from have disconnected.
    gone_at: Option<Instant>,
    /// Since when a connection waits for memory, and the time of the next look for connections that
    /// hold memory without progress.
    wants_memory_since: Option<Instant>,
    stalled_at: Option<Instant>,
    /// Connections that are being closed, and the time of the next check whether they can be.
    leaving: usize,
    leaving_at: Option<Instant>,
    refusals: Refusals,
}

impl Server {
    /// Creates a server without clients. If the listener store is parked, nothing is read or
    /// accepted before `Server::go_on`.
    pub fn new(listener_store: Arc<ListenerStore>, connections_max: u32, buffer_bytes: usize) -> Self {
        Self {
            // Each has at least a small receive buffer, and half of the memory is not for those.
            connections_max: connections_max.min((buffer_bytes / FOR_REQUESTS / RECV_BYTES_SMALL) as u32),
            held_bytes_max: buffer_bytes as u64 / CONNECTION_PART,
            share_bytes: u64::MAX,
            reserve_owner: None,
            arriving_bytes: Vec::new(),
            arriving_bytes_max: buffer_bytes as u64 / ARRIVING_PART,
            gone_at: None,
            wants_memory_since: None,
            stalled_at: None,
            leaving: 0,
            leaving_at: None,
            quiescing: listener_store.is_parked(),
            directory: Directory::new(listener_store),
            rules: Vec::new(),
            connections: Vec::new(),
            counters: ConnectionCounters::default(),
            pending: Vec::new(),
            free_pending: Vec::new(),
            sendings: Vec::new(),
            piece: Vec::new(),
            free_sendings: Vec::new(),
            looks_for_holes: false,
            hole_looks: Vec::new(),
            waiting_for_holes: Vec::new(),
            queue: Vec::new(),
            taken: Vec::new(),
            scratch: Vec::new(),
            cipher: Vec::new(),
            plain: Vec::new(),
            crcs: Vec::new(),
            closing: false,
            turn_at: Instant::now(),
            paused: Vec::new(),
            blocked_from: 0,
            resume_at: None,
            greeting: 0,
            greetings_at: None,
            refusals: Refusals::default(),
        }
    }

    /// Open connections.
    pub(crate) fn connections(&self) -> u32 {
        self.counters.connections()
    }

    /// Connections with requests in flight.
    pub(crate) fn busy_connections(&mut self) -> u32 {
        self.counters().busy()
    }

    /// Stops accepting connections and taking requests. Connections end once their requests are
    /// answered.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.closing = true;
        self.directory.close(reactor);
        for index in 0..self.connections.len() as u32 {
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.closing = true;
                self.enqueue(index);
            }
        }
    }

    /// True when every reply has been sent, and every client has had the time to take it.
    pub fn is_quiet(&self) -> bool {
        self.connections.iter().flatten().all(|connection| {
            connection.sends == 0 && connection.requests == 0 && connection.lingers_since.is_none()
        })
    }

    /// An operation has completed.
    pub fn completed(&mut self, reactor: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        match ServerToken::decode(op) {
            ServerToken::Accept(endpoint) => self.accepted(reactor, endpoint, result),
            ServerToken::Receive(connection) => self.received(reactor, connection, result),
            ServerToken::Send(send) => self.sent(reactor, send, result.is_ok()),
            ServerToken::Handshake(connection) => self.handshaken(reactor, connection),
        }
    }

    /// Performs due timers; returns how long the loop may sleep because of them.
    pub fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        let resume = self.resume_accepting(reactor);
        let greetings = self.end_slow_greetings(reactor);
        let gone = self.notice_gone(reactor);
        let stalled =
            self.end_stalled(reactor).into_iter().chain(self.end_leaving(reactor)).chain(gone).min();
        resume.into_iter().chain(greetings).chain(stalled).chain(self.refusals.due(Instant::now)).min()
    }

    /// Notes a refusal that was decided elsewhere.
    pub(crate) fn note_refusal(&mut self, what: String) {
        self.refusals.note(what);
    }

    /// The refused clients to report to the operator now.
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.refusals.take(Instant::now)
    }

    pub(super) fn enqueue(&mut self, index: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(index as usize)
            && !connection.queued
        {
            connection.queued = true;
            self.queue.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of looks until a payload that grows by `more` bytes between two of them is too slow.
    fn looks_until_too_slow(mut received: u32, more: impl Fn(u32) -> u32) -> (u32, &'static str) {
        let mut pace = Pace::default();
        for look in 1.. {
            pace.look(received);
            if let Some(why) = pace.is_too_slow() {
                return (look, why);
            }
            received += more(look);
        }
        unreachable!()
    }

    /// Silence ends after five seconds, a trickle after a minute.
    #[test]
    fn silent_and_slow_senders_are_disconnected() {
        let per_s = (Duration::from_secs(1).as_millis() / STALLED_EVERY.as_millis()) as u32;
        let (silent, why) = looks_until_too_slow(1000, |_| 0);
        assert_eq!(silent, 5 * per_s + 1, "the first look finds what is there");
        assert!(why.contains("stopped sending"));
        assert_eq!(looks_until_too_slow(0, |_| 0).0, silent, "also if nothing came at all");
        for (bytes, each) in [(1, 4 * per_s), (1, 1), (64, 1)] {
            let pace = |look: u32| if look.is_multiple_of(each) { bytes } else { 0 };
            let (slow, why) = looks_until_too_slow(0, pace);
            assert_eq!(slow, 60 * per_s);
            assert!(why.contains("slowly"));
        }
        // Half the required speed, and a little more than that.
        let half = looks_until_too_slow(0, |_| (1 << 20) / 80).0;
        assert!(half.abs_diff(2 * 60 * per_s) < per_s, "{half}");
        let mut steady = Pace::default();
        for look in 0..(32 * 39) {
            steady.look(look * ((1 << 20) / 39));
            assert_eq!(steady.is_too_slow(), None, "{steady:?}");
        }
        let pauses = |look: u32| u32::from(look < 10);
        assert_eq!(looks_until_too_slow(0, pauses).0, 10 + 5 * per_s, "from the last byte on");
    }
}
