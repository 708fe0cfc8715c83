//! NBD connections on the reactor.
//!
//! A connection is a protocol session, a receive buffer, and what it waits for. Life of a connection:
//!
//! - receive into a pool buffer, step the session over what came, start every request in it (they share a batch of the
//!   log), and only then receive again;
//! - replies of one turn of the loop are gathered and sent with one system call: headers from a reply buffer, data
//!   straight from the buffer that the device read into;
//! - a write whose payload has not arrived yet is received straight into its own buffer.
//!
//! Back-pressure, so that no client can take memory without bound: a connection that has [`REQUESTS_MAX`] requests or
//! [`UNSENT_BYTES_MAX`] of unsent replies is not read from until some have ended, and when the pool has no memory left
//! a request waits in its session until it has. The last eighth of the memory is not for requests ([`FOR_REPLIES`]), for headers
//! of replies cannot wait; and the last sixteenth is for the engine alone ([`FOR_ENGINE`]), whose writes would fail.
//!
//! Strangers: who has not finished the handshake has [`GREETING_WITHIN`] for it, and there are at most [`GREETINGS_MAX`] of
//! them; the one that has taken longest goes first. With TLS (`encrypted`, `tls`) what is received is decrypted into the same
//! buffer, and replies are encrypted when they are sent; the session sees no difference.

use crate::guard::Peer;
use crate::rules::RuleSet;
use forebay_core::{Engine, Request, RequestError, RequestId, RequestKind};
use forebay_export::nbd::reply::{Extent, Replier};
use forebay_export::nbd::session::{Input, NbdRequest, Step};
use forebay_export::nbd::{CloseReason, Errno, Tls};
use forebay_export::request::Operation;
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufId, Op, Reactor, SocketId, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod connection;
mod encrypted;
mod exports;
mod refusals;
mod tls;

use connection::Connection;
use exports::Directory;
pub(crate) use exports::Offer;
use refusals::Refusals;
pub(crate) use refusals::Refused;

/// Bytes received at once when no payload is awaited.
const RECV_BYTES: usize = 128 << 10;
/// Requests of one connection under way.
const REQUESTS_MAX: u32 = 512;
/// Replies of one connection that have not been sent.
const UNSENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes received at once if there is no memory for more: everybody can be heard. With TLS, a record and what is left of one.
const RECV_BYTES_SMALL: usize = 16 << 10;
const RECV_BYTES_SMALL_TLS: usize = 64 << 10;
/// Requests leave this part of the memory to others.
const FOR_REPLIES: usize = 8;
/// Replies leave this part of the memory to the engine.
const FOR_ENGINE: usize = 16;
/// Bytes of reply headers gathered in one buffer.
const REPLY_BYTES: usize = 4 << 10;
/// Connections at once; further ones are closed at once.
const CONNECTIONS_MAX: usize = 1024;
/// Time for a client to choose an export, the handshake of TLS included.
pub(crate) const GREETING_WITHIN: Duration = Duration::from_secs(15);
/// Connections at once that have not chosen an export yet.
const GREETINGS_MAX: usize = 256;
/// How often slow greetings are looked for.
const GREETINGS_EVERY: Duration = Duration::from_secs(1);
/// Blocks looked at for one BLOCK_STATUS; the client asks again for the rest.
const STATUS_BLOCKS_MAX: u64 = 1 << 16;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// How long a listener rests after accepting failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a token of the server stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerToken {
    Accept(u32),
    Receive(u32),
    Send(u32),
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
}

/// A write whose payload is still coming.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    request: NbdRequest,
    buffer: BufId,
    received: u32,
}

/// What answers the requests of clients: the engine of a pool, or what stands in for it.
pub(crate) trait Volumes {
    /// Takes a request; the owner of both hands the answer to [`Server::replied`].
    fn submit(&mut self, now: u64, request: Request<'_>);

    /// Calls `f(blocks, cached, dirty)` for runs of equal blocks of a range, until it returns false.
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
pub(crate) struct Server {
    directory: Directory,
    /// By volume number.
    rules: Vec<Option<Arc<RuleSet>>>,
    connections: Vec<Option<Connection>>,
    pending: Vec<Option<Pending>>,
    free_pending: Vec<u32>,
    sendings: Vec<Sending>,
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
    tokens: fn(ServerToken) -> u64,
    closing: bool,
    /// When this turn of the loop began, for the counters of rules.
    turn_at: Instant,
    /// Listeners on which accepting failed, and when to try again.
    paused: Vec<u32>,
    /// Where the next look at starved connections begins.
    starved_from: u32,
    resume_at: Option<Instant>,
    /// Connections that have not chosen an export yet, and when to look for those that take too long.
    greeting: usize,
    greetings_at: Option<Instant>,
    refusals: Refusals,
}

impl Server {
    pub(crate) fn new(tokens: fn(ServerToken) -> u64) -> Self {
        Self {
            directory: Directory::default(),
            rules: Vec::new(),
            connections: Vec::new(),
            pending: Vec::new(),
            free_pending: Vec::new(),
            sendings: Vec::new(),
            free_sendings: Vec::new(),
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
            starved_from: 0,
            resume_at: None,
            greeting: 0,
            greetings_at: None,
            refusals: Refusals::default(),
        }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.iter().flatten().count() as u64
    }

    /// No new connections, no new requests.
    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        self.closing = true;
        self.directory.close(reactor);
    }

    /// True when every reply has been sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.connections.iter().flatten().all(|connection| connection.sends == 0 && connection.requests == 0)
    }

    // --- completions

    pub(crate) fn accepted(
        &mut self,
        reactor: &mut Reactor,
        index: u32,
        result: Result<u32, forebay_io::IoFailure>,
    ) {
        if self.closing || !self.directory.is_open(index) {
            if let Ok(socket) = result {
                reactor.close_socket(SocketId(socket));
            }
            return;
        }
        if let Ok(socket) = result {
            let socket = SocketId(socket);
            if self.connections().try_into().unwrap_or(usize::MAX) >= CONNECTIONS_MAX {
                reactor.close_socket(socket);
            } else {
                self.open(reactor, socket, index);
            }
        } else {
            // Out of descriptors or the like: try again later, the others go on meanwhile.
            self.paused.push(index);
            self.resume_at = Some(Instant::now() + ACCEPT_PAUSE);
            return;
        }
        self.accept(reactor, index);
    }

    /// Does what is due by the clock; returns how long the loop may sleep because of it.
    pub(crate) fn timers(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        let resume = self.resume_accepting(reactor);
        let greetings = self.end_slow_greetings(reactor);
        resume.into_iter().chain(greetings).chain(self.refusals.due(Instant::now)).min()
    }

    /// What the operator is to be told now of clients that were turned away.
    pub(crate) fn take_refused(&mut self) -> Option<Refused> {
        self.refusals.take(Instant::now)
    }

    /// Accepts again where that failed a while ago; returns how long the loop may sleep because of it.
    fn resume_accepting(&mut self, reactor: &mut Reactor) -> Option<Duration> {
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

    /// Ends the connections that have had their time to choose an export.
    fn end_slow_greetings(&mut self, reactor: &mut Reactor) -> Option<Duration> {
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

    /// Ends a connection that has not chosen an export yet, at once: also if the client takes nothing of what is sent.
    fn end_greeting(&mut self, reactor: &mut Reactor, index: u32, why: &str) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.greeted_by.take().is_some() {
            self.greeting -= 1;
        }
        connection.closing = true;
        self.refusals.note(format!("{} {why}", connection.peer));
        reactor.abort_socket(connection.socket);
        self.enqueue(index);
    }

    /// Makes room for one more stranger.
    fn end_oldest_greeting(&mut self, reactor: &mut Reactor) {
        let since = |connection: &Option<Connection>| connection.as_ref().and_then(|one| one.greeted_by);
        let strangers = self.connections.iter().enumerate();
        let strangers = strangers.filter_map(|(index, connection)| Some((since(connection)?, index as u32)));
        if let Some((_, index)) = strangers.min() {
            self.end_greeting(reactor, index, "had to make room: too many clients have not chosen an export");
        }
    }

    /// Who is on the other side.
    fn peer(reactor: &Reactor, socket: SocketId) -> Peer {
        match reactor.peer_cred(socket) {
            Ok(cred) if cred.uid != u32::MAX => {
                let mut gids = reactor.peer_groups(socket).unwrap_or_default();
                gids.push(cred.gid);
                Peer { uid: Some(cred.uid), gids, ..Peer::default() }
            }
            _ => Peer { address: reactor.peer_address(socket).ok(), ..Peer::default() },
        }
    }

    fn open(&mut self, reactor: &mut Reactor, socket: SocketId, endpoint: u32) {
        let peer = Self::peer(reactor, socket);
        if !self.directory.may_greet(endpoint, &peer) {
            self.refusals.note(format!("{peer} has an address that no export here is for"));
            return reactor.close_socket(socket);
        }
        if self.greeting >= GREETINGS_MAX {
            self.end_oldest_greeting(reactor);
        }
        let tls = if self.directory.tls(endpoint).is_some() { Tls::Required } else { Tls::Off };
        let connection = Connection::new(socket, endpoint, peer, tls, Instant::now() + GREETING_WITHIN);
        self.greeting += 1;
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.connections[index] = Some(connection);
        self.enqueue(index as u32);
    }

    fn enqueue(&mut self, index: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(index as usize)
            && !connection.queued
        {
            connection.queued = true;
            self.queue.push(index);
        }
    }

    pub(crate) fn received(
        &mut self,
        reactor: &mut Reactor,
        index: u32,
        result: Result<u32, forebay_io::IoFailure>,
    ) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        connection.receiving = false;
        match result {
            Ok(0) | Err(_) => connection.closing = true,
            Ok(bytes) if connection.tls.is_some() => self.decrypt(reactor, index, bytes),
            Ok(bytes) => match &mut connection.arriving {
                Some(arriving) => {
                    arriving.received += bytes;
                    connection.session.payload_received(bytes as usize);
                }
                None => {
                    connection.filled = bytes as usize;
                    connection.used = 0;
                }
            },
        }
        self.enqueue(index);
    }

    pub(crate) fn sent(&mut self, reactor: &mut Reactor, send: u32, ok: bool) {
        let sending = &mut self.sendings[send as usize];
        let index = sending.connection;
        let mut connection = self.connections.get_mut(index as usize).and_then(Option::as_mut);
        for buffer in sending.buffers.drain(..) {
            let tls = connection.as_mut().and_then(|connection| connection.tls.as_mut());
            if !tls.is_some_and(|tls| tls.give_back(buffer)) {
                reactor.pool_mut().free(buffer);
            }
        }
        let bytes = sending.bytes;
        self.free_sendings.push(send);
        if let Some(connection) = connection {
            connection.sends -= 1;
            connection.unsent_bytes -= bytes;
            connection.closing |= !ok;
        }
        self.enqueue(index);
    }

    /// The engine has answered a request.
    pub(crate) fn replied(&mut self, reactor: &mut Reactor, id: RequestId, result: Result<(), RequestError>) {
        let pending = self.pending[id.0 as usize].take().expect("the engine answers each request once");
        self.free_pending.push(id.0 as u32);
        let Pending { connection: index, request: NbdRequest { cookie, request }, buffer, replier } = pending;
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        connection.requests -= 1;
        self.scratch.clear();
        let mut data = None;
        match result {
            Ok(()) if request.operation == Operation::Read => {
                let header = replier.read_header(cookie, request.offset_bytes, request.length_bytes as u32);
                self.scratch.extend_from_slice(header.as_bytes());
                let lead = (request.offset_bytes % BLOCK) as u32;
                data = buffer.map(|buf| Span { buf, offset: lead, len: request.length_bytes as u32 });
            }
            Ok(()) => replier.ok(&mut self.scratch, cookie),
            Err(error) => replier.error(&mut self.scratch, cookie, errno(error), &error.to_string()),
        }
        if let (Some(buffer), None) = (buffer, data) {
            reactor.pool_mut().free(buffer);
        }
        let bytes = std::mem::take(&mut self.scratch);
        self.queue_reply(reactor, index, &bytes, data);
        self.scratch = bytes;
    }

    // --- work

    /// Parses what has come and sends what is ready, for every connection that has either. Returns true if requests were
    /// given to the engine.
    pub(crate) fn turn(&mut self, volumes: &mut impl Volumes, reactor: &mut Reactor, now: u64) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let mut started = false;
        self.turn_at = Instant::now();
        std::mem::swap(&mut self.queue, &mut self.taken);
        for at in 0..self.taken.len() {
            let index = self.taken[at];
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.queued = false;
                started |= self.parse(volumes, reactor, index, now);
            }
            self.settle(reactor, index);
        }
        self.taken.clear();
        started
    }

    /// Sends what the replies of this turn have gathered.
    pub(crate) fn send_all(&mut self, reactor: &mut Reactor) {
        for index in 0..self.queue.len() {
            self.send(reactor, self.queue[index]);
        }
    }

    /// Something was freed: connections that waited for memory go on.
    pub(crate) fn wake_starved(&mut self) {
        let count = self.connections.len() as u32;
        // Each time another one is the first to get what was freed.
        self.starved_from = (self.starved_from + 1).checked_rem(count).unwrap_or(0);
        for index in (self.starved_from..count).chain(0..self.starved_from) {
            let waits = self.connections[index as usize].as_ref().is_some_and(|connection| {
                connection.starved.is_some() || connection.used < connection.filled || !connection.receiving
            });
            if waits {
                self.enqueue(index);
            }
        }
    }

    /// Steps the session over what the receive buffer holds.
    fn parse(&mut self, volumes: &mut impl Volumes, reactor: &mut Reactor, index: u32, now: u64) -> bool {
        let mut started = false;
        loop {
            let connection = self.connections[index as usize].as_mut().expect("checked by the caller");
            if connection.closing || self.closing || connection.is_full() {
                return started;
            }
            if let Some(arriving) = connection.arriving {
                if connection.session.payload_remaining() > 0 {
                    return started;
                }
                connection.arriving = None;
                self.submit(volumes, reactor, index, arriving.request, Some(arriving.buffer), now);
                started = true;
                continue;
            }
            if let Some(request) = connection.starved.take() {
                if !self.start(volumes, reactor, index, request, now) {
                    return started;
                }
                started = true;
                continue;
            }
            match self.step(reactor, index) {
                Step::NeedMore => return started,
                Step::Output => {
                    self.scratch.clear();
                    let connection = self.connections[index as usize].as_mut().expect("it is stepped");
                    connection.session.take_output(&mut self.scratch);
                    let bytes = std::mem::take(&mut self.scratch);
                    self.queue_reply(reactor, index, &bytes, None);
                    self.scratch = bytes;
                }
                Step::StartTls => {
                    self.begin_tls(reactor, index);
                    return started;
                }
                Step::Established => self.established(reactor, index),
                Step::Request(request) => {
                    if !self.start(volumes, reactor, index, request, now) {
                        return started;
                    }
                    started = true;
                }
                Step::WritePayload(request) => {
                    if !self.take_payload(reactor, index, request) {
                        return started;
                    }
                }
                Step::Close(reason) => {
                    let connection = self.connections[index as usize].as_mut().expect("it is stepped");
                    connection.closing = true;
                    if !reason.is_clean() && !matches!(reason, CloseReason::Disconnected) {
                        self.refusals.note(format!("closed a connection of {}: {reason}", connection.peer));
                    }
                    return started;
                }
            }
        }
    }

    fn step(&mut self, reactor: &Reactor, index: u32) -> Step {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let bytes: &[u8] = match connection.buffer {
            Some(buffer) if connection.used < connection.filled => {
                &reactor.pool().bytes(buffer)[connection.used..connection.filled]
            }
            _ => &[],
        };
        let mut input = Input::new(bytes);
        let seen = self.directory.seen_by(connection.endpoint, &connection.peer);
        let step = connection.session.step(&mut input, &seen);
        if let Some(name) = seen.hidden.into_inner() {
            let name = name.escape_debug();
            self.refusals.note(format!("{} is not let in to \"{name}\"", connection.peer));
        }
        connection.used += input.used();
        step
    }

    /// Gives a write its buffer and the part of its payload that is there; false if there is no memory.
    fn take_payload(&mut self, reactor: &mut Reactor, index: u32, request: NbdRequest) -> bool {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let lead = (request.request.offset_bytes % BLOCK) as usize;
        let len = request.request.length_bytes as usize;
        let Some(buffer) =
            reactor.pool_mut().alloc_leaving(FOR_REPLIES, (lead + len).next_multiple_of(BLOCK_BYTES))
        else {
            return false;
        };
        let mut received = 0;
        if let Some(from) = connection.buffer {
            // The payload goes from one pool buffer to another; the session only counts.
            let (used, filled) = (connection.used, connection.filled);
            let there = (filled - used).min(connection.session.payload_remaining());
            let piece = |buf, offset: usize| Span { buf, offset: offset as u32, len: there as u32 };
            if there > 0 {
                reactor.pool_mut().copy(piece(from, used), piece(buffer, lead));
                connection.session.payload_received(there);
                connection.used += there;
                received = there as u32;
            }
        }
        connection.arriving = Some(Arriving { request, buffer, received });
        true
    }

    /// Starts a request without payload; false if it has to wait for memory.
    fn start(
        &mut self,
        volumes: &mut impl Volumes,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
        now: u64,
    ) -> bool {
        let NbdRequest { cookie, request: what } = request;
        if let Operation::BlockStatus { .. } = what.operation {
            self.block_status(volumes, reactor, index, request);
            return true;
        }
        if !matches!(what.operation, Operation::Read | Operation::Cache) {
            self.submit(volumes, reactor, index, request, None, now);
            return true;
        }
        let lead = what.offset_bytes % BLOCK;
        let len = what.length_bytes.min(forebay_core::REQUEST_BYTES_MAX);
        let request =
            NbdRequest { cookie, request: forebay_export::request::Request { length_bytes: len, ..what } };
        let Some(buffer) =
            reactor.pool_mut().alloc_leaving(FOR_REPLIES, (lead + len).next_multiple_of(BLOCK) as usize)
        else {
            let connection = self.connections[index as usize].as_mut().expect("it is stepped");
            connection.starved = Some(request);
            return false;
        };
        self.submit(volumes, reactor, index, request, Some(buffer), now);
        true
    }

    /// Hands a request to the engine.
    fn submit(
        &mut self,
        volumes: &mut impl Volumes,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
        buffer: Option<BufId>,
        now: u64,
    ) {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        connection.requests += 1;
        let volume = connection.volume.expect("requests follow the handshake");
        let what = request.request;
        let treatment = connection.treatment(&what, self.turn_at);
        let pending = Pending { connection: index, request, buffer, replier: connection.session.replier() };
        let id = self.free_pending.pop().unwrap_or_else(|| {
            self.pending.push(None);
            (self.pending.len() - 1) as u32
        });
        self.pending[id as usize] = Some(pending);
        self.crcs.clear();
        if let (Operation::Write { .. }, Some(buf)) = (what.operation, buffer) {
            let len = (what.offset_bytes % BLOCK + what.length_bytes).next_multiple_of(BLOCK) as u32;
            reactor.pool().crc32c_blocks(Span { buf, offset: 0, len }, &mut self.crcs);
        }
        let kind = match what.operation {
            Operation::Read => RequestKind::Read,
            Operation::Write { fua } => RequestKind::Write { fua },
            Operation::Flush => RequestKind::Flush,
            Operation::Trim { fua } => RequestKind::Discard { fua },
            Operation::WriteZeroes { fua, no_hole, .. } => {
                RequestKind::WriteZeroes { fua, may_unmap: !no_hole }
            }
            Operation::Cache | Operation::BlockStatus { .. } => RequestKind::Prefetch,
        };
        volumes.submit(
            now,
            Request {
                id: RequestId(u64::from(id)),
                volume,
                kind,
                offset: what.offset_bytes,
                len: what.length_bytes,
                buf: buffer.map(|buf| forebay_core::BufId(buf.0)),
                treatment,
                block_crcs: &self.crcs,
            },
        );
    }

    fn block_status(
        &mut self,
        volumes: &impl Volumes,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
    ) {
        let connection = self.connections[index as usize].as_ref().expect("it is stepped");
        let volume = connection.volume.expect("requests follow the handshake");
        let replier = connection.session.replier();
        let what = request.request;
        let first = what.offset_bytes / BLOCK;
        let end = what.end_bytes().div_ceil(BLOCK);
        let mut at = what.offset_bytes;
        let mut extents = Vec::new();
        let mut block = first;
        volumes.block_status(
            volume,
            first,
            (end - first).min(STATUS_BLOCKS_MAX),
            &mut |blocks, cached, dirty| {
                block += blocks;
                let next = (block * BLOCK).min(what.end_bytes());
                extents.push(Extent { length_bytes: next - at, cached, dirty, ..Extent::default() });
                at = next;
                extents.len() < forebay_export::nbd::reply::EXTENTS_MAX
            },
        );
        self.scratch.clear();
        replier.block_status(&mut self.scratch, request.cookie, &what, &extents);
        let bytes = std::mem::take(&mut self.scratch);
        self.queue_reply(reactor, index, &bytes, None);
        self.scratch = bytes;
    }

    // --- sending

    /// Adds bytes, and data that follows them, to what a connection sends next.
    fn queue_reply(&mut self, reactor: &mut Reactor, index: u32, bytes: &[u8], data: Option<Span>) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        // Whatever becomes of the rest: this buffer is the connection's now.
        connection.owned.extend(data.map(|span| span.buf));
        let complete = bytes.chunks(REPLY_BYTES).all(|piece| connection.gather(reactor, piece));
        if let (Some(span), true) = (data, complete) {
            connection.spans.push(span);
        }
        self.enqueue(index);
    }

    fn send(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.tls.is_some() {
            return self.send_encrypted(reactor, index);
        }
        if connection.spans.is_empty() {
            return;
        }
        let id = self.free_sendings.pop().unwrap_or_else(|| {
            self.sendings.push(Sending::default());
            (self.sendings.len() - 1) as u32
        });
        let sending = &mut self.sendings[id as usize];
        sending.connection = index;
        sending.bytes = connection.spans.iter().map(|span| u64::from(span.len)).sum();
        std::mem::swap(&mut sending.buffers, &mut connection.owned);
        if let Some((buffer, _)) = connection.reply.take() {
            sending.buffers.push(buffer);
        }
        connection.unsent_bytes += sending.bytes;
        connection.sends += 1;
        let token = (self.tokens)(ServerToken::Send(id));
        reactor.submit(token, Op::Send { socket: connection.socket, spans: &connection.spans });
        connection.spans.clear();
    }

    /// Sends, receives again, or closes.
    fn settle(&mut self, reactor: &mut Reactor, index: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(index as usize)
            && connection.used == connection.filled
            && connection.tls.as_ref().is_some_and(|tls| tls.has_ended())
        {
            connection.closing = true;
        }
        self.send(reactor, index);
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.closing {
            self.try_close(reactor, index);
            return;
        }
        if connection.receiving || self.closing || connection.is_full() || connection.starved.is_some() {
            return;
        }
        let span = if let (Some(arriving), None) = (connection.arriving, &connection.tls) {
            let lead = (arriving.request.request.offset_bytes % BLOCK) as u32;
            let len = connection.session.payload_remaining() as u32;
            Span { buf: arriving.buffer, offset: lead + arriving.received, len }
        } else if connection.used < connection.filled {
            return; // A request waits for memory; what follows it is here already.
        } else {
            let Some(span) = connection.receive_buffer(reactor.pool_mut()) else { return };
            span
        };
        connection.receiving = true;
        let token = (self.tokens)(ServerToken::Receive(index));
        reactor.submit(token, Op::Recv { socket: connection.socket, span });
    }

    /// Forgets a closing connection once nothing of it is under way.
    fn try_close(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(slot) = self.connections.get_mut(index as usize) else { return };
        let Some(connection) = slot else { return };
        if connection.receiving {
            reactor.close_socket(connection.socket);
            return;
        }
        if connection.requests > 0 || connection.sends > 0 {
            return;
        }
        reactor.close_socket(connection.socket);
        let buffers =
            connection.buffer.into_iter().chain(connection.arriving.map(|arriving| arriving.buffer));
        let own = connection.tls.as_mut().and_then(|tls| tls.let_go());
        let buffers = buffers.chain(own);
        for buffer in
            buffers.chain(connection.owned.drain(..)).chain(connection.reply.map(|(buffer, _)| buffer))
        {
            reactor.pool_mut().free(buffer);
        }
        if connection.greeted_by.is_some() {
            self.greeting -= 1;
        }
        *slot = None;
    }
}

fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::Io,
        RequestError::Invalid => Errno::Invalid,
        RequestError::Shutdown => Errno::Shutdown,
    }
}
