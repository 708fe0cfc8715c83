//! NBD connections on the reactor.
//!
//! A connection is a protocol session, a receive buffer, and what it waits for. Life of a
//! connection:
//!
//! - receive into a pool buffer, step the session over what came, and start every request in it.
//!   They share a batch of the log. Only then it receives again;
//! - replies of one turn of the loop are gathered and sent with one system call: headers from a
//!   reply buffer, data straight from the buffer that the device read into;
//! - a write whose payload has not arrived yet is received straight into its own buffer.
//!
//! Back-pressure, so that no client can take memory without bound. A connection that has
//! `REQUESTS_MAX` requests or `UNSENT_BYTES_MAX` of unsent replies is not read from until some have
//! ended. When the pool has no memory left a request waits in its session. The last eighth of the
//! memory is not for requests (`FOR_REPLIES`), because headers of replies cannot wait. The last
//! sixteenth is for the engine alone (`FOR_ENGINE`), whose writes would fail. No connection has
//! more than a quarter of it (`CONNECTION_PART`). Who has more than its share of it waits for those
//! who have less. Two kinds of clients are disconnected while others wait for memory: who takes no
//! answers (`STALLED_AFTER`), and who keeps it for a write whose payload does not come (`Pace`). So
//! clients can slow others down for some seconds, not for ever. Payloads that are still coming have
//! a quarter of the memory for each volume, and half of it for all volumes (`ARRIVING_PART`).
//!
//! One buffer for a request of the longest kind is put by ([`put_memory_by`]). If the rest is in
//! use, it goes to the one who has waited longest among those who have nothing. Volumes that have
//! no payload coming are first. So every request finds memory.
//!
//! With TLS (`encrypted`, `tls`) what is received is decrypted into the same buffer, and replies
//! are encrypted when they are sent; the session sees no difference.
//!
//! Files: `accept` (who comes in), `exports` (what is found where), `connection` (the state of
//! one), `receive`, `requests`, `send` (the way of a request), `quiesce` (quiescing, and changing
//! hands), `encrypted` and `tls`, `refusals` (what the operator is told), `tally` (what is known of
//! all without a look at each).

use crate::handover::ListenerStore;
use forebay_config::rules::RuleSet;
use forebay_core::{Engine, Request};
use forebay_export::nbd::reply::Replier;
use forebay_export::nbd::session::NbdRequest;
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufId, BufPool, Reactor, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod accept;
mod connection;
mod encrypted;
mod exports;
mod quiesce;
mod receive;
mod refusals;
mod requests;
mod send;
mod status;
mod tally;
mod tls;

use connection::Connection;
use exports::Directory;
pub use exports::{Offer, Socket, ToListen};
use refusals::Refusals;
pub(crate) use refusals::Refused;
pub use status::HoleLook;
use tally::Tally;

/// Bytes received at once when no payload is awaited.
const RECV_BYTES: usize = 128 << 10;
/// Requests of one connection under way.
const REQUESTS_MAX: u32 = 512;
/// Bytes that are sent together.
const SEND_BYTES_MAX: u64 = 1 << 20;
/// Replies of one connection that have not been sent.
const UNSENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes received at once if there is no memory for more: everybody can be heard. With TLS, a
/// record and what is left of one.
const RECV_BYTES_SMALL: usize = 16 << 10;
const RECV_BYTES_SMALL_TLS: usize = 64 << 10;
/// Large receive buffers leave this part of the memory to others: clients that are only there must
/// not take it from requests.
const FOR_REQUESTS: usize = 2;
/// Requests leave this part of the memory to others.
const FOR_REPLIES: usize = 8;
/// Replies leave this part of the memory to the engine.
const FOR_ENGINE: usize = 16;
/// Bytes of reply headers gathered in one buffer.
const REPLY_BYTES: usize = 4 << 10;
/// Payloads of writes that are still coming have at most this part of the memory, those of one
/// volume together (and one request more).
const ARRIVING_PART: u64 = 4;
/// And those of all volumes together as much as so many volumes may have (and each that had none
/// one request more).
const ARRIVING_VOLUMES: u64 = 2;
/// One connection has at most this part of the memory for its requests and their answers (and one
/// request more).
const CONNECTION_PART: u64 = 4;
/// Who waits so long for memory ...
const WANTS_MEMORY_AFTER: Duration = Duration::from_secs(1);
/// ... gets that of a client that has taken none of its answers for so long.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// ... and of which so long was seen that it takes nothing, not a part of a send either.
const STALLED_SEEN: Duration = Duration::from_secs(2);
/// Looks ([`STALLED_EVERY`]) at a payload of which nothing comes while others wait for memory,
/// before its client is disconnected: 5 s.
const SILENT_LOOKS: u32 = 20;
/// And at one that comes so slowly that it is not complete: 60 s, and 10 s more for each MiB that
/// has come.
const SLOW_LOOKS: u32 = 240;
const SLOW_LOOKS_PER_MIB: u32 = 40;
/// Once everything is answered, a client over TCP has so long to take it and to end the connection.
const LINGER: Duration = Duration::from_secs(1);
/// And so many bytes of a client are taken and dropped meanwhile: what it had under way, not what
/// it goes on with.
const LINGER_BYTES_MAX: u64 = 4 << 20;
/// How often that is looked at.
const STALLED_EVERY: Duration = Duration::from_millis(250);
/// Time for a client to choose an export, the handshake of TLS included.
pub(crate) const GREETING_WITHIN: Duration = Duration::from_secs(15);
/// Connections at once that have not chosen an export yet.
const GREETINGS_MAX: usize = 256;
/// How often slow greetings are looked for.
const GREETINGS_EVERY: Duration = Duration::from_secs(1);
/// Blocks looked at for one BLOCK_STATUS; the client asks again for the rest.
const STATUS_BLOCKS_MAX: u64 = 1 << 16;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// The longest request, wherever it begins within a block.
const LONGEST_BYTES: usize = forebay_core::REQUEST_BYTES_MAX as usize + BLOCK_BYTES;
/// How long a listener rests after accepting failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a token of the server stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerToken {
    /// A listening socket accepts.
    Accept(u32),
    /// A connection receives.
    Receive(u32),
    /// A connection sends.
    Send(u32),
    /// A thread goes on with the TLS handshake of a connection.
    Handshake(u32),
}

/// A request of a client that the engine works on.
#[derive(Debug)]
struct Pending {
    connection: u32,
    request: NbdRequest,
    buffer: Option<BufId>,
    replier: Replier,
}

/// A send under way.
#[derive(Debug, Default)]
struct Sending {
    connection: u32,
    buffers: Vec<BufId>,
    bytes: u64,
    /// Memory of requests that is free again afterwards.
    held_bytes: u64,
}

/// Puts memory by for one request of the longest kind: whoever has waited longest gets it, so
/// nobody waits for what never comes. False if there is none.
pub fn put_memory_by(pool: &mut BufPool) -> bool {
    pool.put_by(LONGEST_BYTES)
}

/// A write whose payload is still coming.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    request: NbdRequest,
    buffer: BufId,
    received: u32,
    pace: Pace,
}

/// How a payload comes, as seen by looks that are taken while others wait for memory. Counted in
/// looks, not by the clock: a thread that was held up blames nobody.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Pace {
    /// Bytes that were there at the last look.
    seen: u32,
    /// Looks since then that found no more.
    silent: u32,
    looks: u32,
}

impl Pace {
    /// So much is there now.
    fn look(&mut self, received: u32) {
        self.silent = if self.looks > 0 && received == self.seen { self.silent + 1 } else { 0 };
        (self.seen, self.looks) = (received, self.looks + 1);
    }

    /// Why its client is to be disconnected, if so.
    fn is_too_slow(&self) -> Option<&'static str> {
        if self.silent >= SILENT_LOOKS {
            Some("sends nothing more of a write that it has begun")
        } else {
            let allowed = SLOW_LOOKS + ((SLOW_LOOKS_PER_MIB * self.seen) >> 20);
            (self.looks >= allowed).then_some("sends a write too slowly")
        }
    }
}

/// What answers the requests of clients: the engine of a pool, or what stands in for it.
pub trait Volumes {
    /// Takes a request; the owner of both hands the answer to [`Server::replied`].
    fn submit(&mut self, now: u64, request: Request<'_>);

    /// Calls `f(blocks, cached, dirty)` for runs of equal blocks of a range, until it returns
    /// false.
    fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    );
}

impl Volumes for Engine {
    fn submit(&mut self, now: u64, request: Request<'_>) {
        Engine::submit(self, now, request);
    }

    fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        Engine::block_status(self, volume, first_block, blocks, f);
    }
}

/// All NBD connections of a pool.
#[derive(Debug)]
pub struct Server {
    directory: Directory,
    /// By volume number.
    rules: Vec<Option<Arc<RuleSet>>>,
    connections: Vec<Option<Connection>>,
    tally: Tally,
    pending: Vec<Option<Pending>>,
    free_pending: Vec<u32>,
    sendings: Vec<Sending>,
    /// Spans that are sent together; empty between sends.
    piece: Vec<Span>,
    free_sendings: Vec<u32>,
    /// Connections that have something to parse or to send.
    queue: Vec<u32>,
    /// Those that a turn works on; empty between turns.
    taken: Vec<u32>,
    scratch: Vec<u8>,
    /// Memory for decrypting, and for encrypting.
    cipher: Vec<u8>,
    plain: Vec<u8>,
    crcs: Vec<u32>,
    /// The owner looks for holes of backing stores; what it is to look at, and who waits for that.
    looks_for_holes: bool,
    hole_looks: Vec<status::HoleLook>,
    waiting_for_holes: Vec<status::StatusWaiting>,
    tokens: fn(ServerToken) -> u64,
    closing: bool,
    /// Connections quiesce between two requests, or are there; nothing is accepted.
    quiescing: bool,
    /// When this turn of the loop began, for the counters of rules.
    turn_at: Instant,
    /// Listeners on which accepting failed, and when to try again.
    paused: Vec<u32>,
    /// Where the next look at blocked connections begins.
    blocked_from: usize,
    resume_at: Option<Instant>,
    /// Connections that have not chosen an export yet, and when to look for those that take too
    /// long.
    greeting: usize,
    greetings_at: Option<Instant>,
    connections_max: u32,
    held_bytes_max: u64,
    /// Who has more memory than this gets none now, because others wait for some.
    share_bytes: u64,
    /// Who gets the memory that is put by: of those who wait for memory and have none, who has
    /// waited longest.
    favoured: Option<u32>,
    /// Memory of payloads that are still coming, by volume number, and how much of it a volume may
    /// have.
    arriving_bytes: Vec<u64>,
    arriving_bytes_max: u64,
    /// When to look whether clients have gone that nothing is received from.
    gone_at: Option<Instant>,
    /// Since when somebody waits for memory, and when to look whether somebody keeps it for
    /// nothing.
    wants_memory_since: Option<Instant>,
    stalled_at: Option<Instant>,
    /// Connections that are being closed, and when to look whether they can be.
    leaving: usize,
    leaving_at: Option<Instant>,
    refusals: Refusals,
}

impl Server {
    /// No client yet. If the listener store is parked nothing is read or accepted before
    /// `Server::go_on`.
    pub fn new(
        tokens: fn(ServerToken) -> u64,
        listener_store: Arc<ListenerStore>,
        connections_max: u32,
        buffer_bytes: usize,
    ) -> Self {
        Self {
            // Each has a small receive buffer at least, and half of the memory is not for those.
            connections_max: connections_max.min((buffer_bytes / FOR_REQUESTS / RECV_BYTES_SMALL) as u32),
            held_bytes_max: buffer_bytes as u64 / CONNECTION_PART,
            share_bytes: u64::MAX,
            favoured: None,
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
            tally: Tally::default(),
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
            tokens,
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

    /// Connections that are there.
    pub(crate) fn connections(&self) -> u32 {
        self.tally.connections()
    }

    /// Connections of which requests are under way.
    pub(crate) fn busy_connections(&mut self) -> u32 {
        self.tally().busy()
    }

    /// No new connections, no new requests. Connections end once what they have asked for is
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

    /// Does what is due by the clock; returns how long the loop may sleep because of it.
    pub fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        let resume = self.resume_accepting(reactor);
        let greetings = self.end_slow_greetings(reactor);
        let gone = self.notice_gone(reactor);
        let stalled =
            self.end_stalled(reactor).into_iter().chain(self.end_leaving(reactor)).chain(gone).min();
        resume.into_iter().chain(greetings).chain(stalled).chain(self.refusals.due(Instant::now)).min()
    }

    /// Somebody was turned away elsewhere.
    pub(crate) fn note_refusal(&mut self, what: String) {
        self.refusals.note(what);
    }

    /// What the operator is to be told now of clients that were turned away.
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

    /// Looks at a payload that comes by so many bytes between two of them; how many it takes until
    /// that is too slow.
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

    #[test]
    fn who_sends_nothing_more_has_five_seconds_and_who_trickles_a_minute() {
        let per_s = (Duration::from_secs(1).as_millis() / STALLED_EVERY.as_millis()) as u32;
        let (silent, why) = looks_until_too_slow(1000, |_| 0);
        assert_eq!(silent, 5 * per_s + 1, "the first look finds what is there");
        assert!(why.contains("nothing more"));
        assert_eq!(looks_until_too_slow(0, |_| 0).0, silent, "also if nothing came at all");
        for (bytes, each) in [(1, 4 * per_s), (1, 1), (64, 1)] {
            let pace = |look: u32| if look.is_multiple_of(each) { bytes } else { 0 };
            let (slow, why) = looks_until_too_slow(0, pace);
            assert_eq!(slow, 60 * per_s);
            assert!(why.contains("slowly"));
        }
        // Half as fast as it must be for ever, and a little faster than that.
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
