//! The state of one NBD connection.

use super::encrypted::{Handshaken, OwnBuffer};
use super::tls::{LEFTOVER_BYTES_MAX, TlsLink};
use super::{
    Arriving, RECV_BYTES, RECV_BYTES_SMALL, RECV_BYTES_SMALL_TLS, REPLY_BYTES, REQUESTS_MAX, STALLED_AFTER,
    STALLED_SEEN, UNSENT_BYTES_MAX,
};
use crate::client_request::{FOR_ENGINE, FOR_REQUESTS, treatment};
use crate::guard::Peer;
use forebay_config::rules::Client;
use forebay_core::Treatment;
use forebay_export::nbd::Tls;
use forebay_export::nbd::session::{Limits, NbdRequest, Session};
use forebay_export::request::ClientRequest;
use forebay_format::VolumeId;
use forebay_io::{BufId, BufPool, Reactor, SocketId, Span};
use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Instant;

/// One client: its session, its requests in flight, and its next sends.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: SocketId,
    /// Endpoint that accepted it.
    pub(super) endpoint: u32,
    pub(super) session: Session,
    /// The client.
    pub(super) peer: Peer,
    /// All data passes through it once TLS has begun.
    pub(super) tls: Option<Box<TlsLink>>,
    /// With TLS: a buffer to send from.
    pub(super) own: Option<OwnBuffer>,
    /// Set while a thread has the link for the handshake, which returns it through this.
    pub(super) handshake: Option<mpsc::Receiver<Handshaken>>,
    /// Deadline of the handshake; `None` once it is complete.
    pub(super) greeted_by: Option<Instant>,
    /// Known once the handshake is complete.
    pub(super) volume: Option<VolumeId>,
    /// The rules as they apply to this client; known with the volume.
    pub(super) client: Option<Client>,
    pub(super) buffer: Option<BufId>,
    /// Bytes of the receive buffer that hold data, and how many of them were consumed.
    pub(super) filled: usize,
    pub(super) used: usize,
    pub(super) receiving: bool,
    /// The receive in flight is being cancelled.
    pub(super) cancelling: bool,
    pub(super) arriving: Option<Arriving>,
    /// A request that waits for memory.
    pub(super) blocked: Option<NbdRequest>,
    pub(super) requests: u32,
    pub(super) unsent_bytes: u64,
    /// Memory of requests in flight, and of replies until they are sent.
    pub(super) held_bytes: u64,
    /// Limit of that memory.
    held_bytes_max: u64,
    /// The part of it that lies in `owned`.
    pub(super) owned_bytes: u64,
    /// A request waits for memory; and since when one does.
    pub(super) wants_memory: bool,
    pub(super) wants_memory_since: Option<Instant>,
    /// It waits for a payload, and others of its volume have all the memory that the volume may
    /// have.
    pub(super) crowded: bool,
    pub(super) sends: u32,
    /// Since when the client has taken nothing of its sends.
    pub(super) stalled_since: Option<Instant>,
    /// Unsent bytes at the last look, and since when they have not changed.
    pub(super) seen_left: Option<(u64, Instant)>,
    /// Collected for the next sends: headers and data; the buffers of data, in the order of their
    /// spans; buffers that are full of headers.
    pub(super) spans: Vec<Span>,
    pub(super) owned: VecDeque<BufId>,
    pub(super) headers: Vec<BufId>,
    pub(super) reply: Option<(BufId, u32)>,
    pub(super) closing: bool,
    /// The client has ended the connection, or it has failed: sends are useless.
    pub(super) ignore_input: bool,
    /// Since when it only waits for the end of its operations in flight.
    pub(super) leaving_since: Option<Instant>,
    /// Since when everything is answered, and the server waits until the client has taken it.
    pub(super) lingers_since: Option<Instant>,
    /// Bytes received and dropped since then.
    pub(super) lingered_bytes: u64,
    /// A reply is missing: nothing after it may be sent.
    pub(super) gap: bool,
    pub(super) queued: bool,
}

impl Connection {
    pub(super) fn new(
        socket: SocketId,
        endpoint: u32,
        peer: Peer,
        tls: Tls,
        greeted_by: Instant,
        held_bytes_max: u64,
    ) -> Self {
        Self {
            socket,
            endpoint,
            session: Session::with_tls(Limits::default(), tls),
            peer,
            tls: None,
            own: None,
            handshake: None,
            greeted_by: Some(greeted_by),
            volume: None,
            client: None,
            buffer: None,
            filled: 0,
            used: 0,
            receiving: false,
            cancelling: false,
            arriving: None,
            blocked: None,
            requests: 0,
            unsent_bytes: 0,
            held_bytes: 0,
            held_bytes_max,
            owned_bytes: 0,
            wants_memory: false,
            wants_memory_since: None,
            crowded: false,
            sends: 0,
            stalled_since: None,
            seen_left: None,
            spans: Vec::new(),
            owned: VecDeque::new(),
            headers: Vec::new(),
            reply: None,
            closing: false,
            ignore_input: false,
            leaving_since: None,
            lingers_since: None,
            lingered_bytes: 0,
            gap: false,
            queued: false,
        }
    }

    /// Notes how many bytes of its sends the client has not taken yet.
    pub(super) fn see_progress(&mut self, left: u64, now: Instant) {
        match self.seen_left {
            Some((before, _)) if before == left => {}
            before => {
                self.seen_left = Some((left, now));
                if before.is_some() {
                    self.stalled_since = Some(now);
                }
            }
        }
    }

    /// Notes that a request finds no memory; `crowded`: there can be some, but its volume has
    /// reached its limit for incoming payloads.
    pub(super) fn waits_for_memory(&mut self, now: Instant, crowded: bool) {
        (self.wants_memory, self.crowded) = (true, crowded);
        self.wants_memory_since.get_or_insert(now);
    }

    /// True if the client has taken nothing of its sends for too long.
    pub(super) fn has_stalled(&self, now: Instant) -> bool {
        self.stalled_since.is_some_and(|since| since + STALLED_AFTER <= now)
            && self.seen_left.is_some_and(|(_, since)| since + STALLED_SEEN <= now)
    }

    /// The treatment that the rules decide for a request.
    pub(super) fn treatment(&mut self, what: &ClientRequest, now: Instant) -> Treatment {
        let Some(client) = &mut self.client else { return Treatment::Cache };
        treatment(what, |direction, offset, len| client.decide(direction, offset, len, now))
    }

    /// True if no receive is incomplete: the next bytes are the header of a request.
    pub(super) fn may_quiesce(&self) -> bool {
        self.volume.is_some()
            && self.session.is_between_requests()
            && self.arriving.is_none()
            && self.blocked.is_none()
    }

    /// True if every request is answered, the replies are sent, and nothing is in flight.
    pub(super) fn is_quiesced(&self) -> bool {
        let idle = self.requests == 0 && self.sends == 0 && !self.receiving && !self.closing;
        idle && self.may_quiesce() && self.spans.is_empty()
    }

    /// True if remaining input must be received first: closing a TCP socket with unread data sends
    /// an RST, which discards the last replies.
    pub(super) fn must_linger(&self) -> bool {
        !self.ignore_input && self.peer.uid.is_none()
    }

    /// Frees all memory; the kernel no longer uses any of it.
    pub(super) fn free_buffers(&mut self, reactor: &mut Reactor) {
        let received =
            self.buffer.take().into_iter().chain(self.arriving.take().map(|arriving| arriving.buffer));
        let own = self.own.take().map(OwnBuffer::let_go);
        let sent = self.owned.drain(..).chain(self.headers.drain(..));
        let reply = self.reply.take().map(|(buffer, _)| buffer);
        for buffer in received.chain(own).chain(sent).chain(reply) {
            reactor.pool_mut().free(buffer);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        let waiting = self.tls.as_ref().map_or(0, |tls| tls.waiting_bytes);
        self.requests >= REQUESTS_MAX
            || self.held_bytes >= self.held_bytes_max
            || self.unsent_bytes + waiting >= UNSENT_BYTES_MAX
    }

    /// Where to receive if no payload is awaited: a large buffer if there is memory for it, else a
    /// small one, which is replaced as soon as there is. The buffer holds no data at this point.
    /// With TLS there is room behind the received bytes for the incomplete rest of the last
    /// receive, as its plaintext goes there too.
    pub(super) fn receive_buffer(&mut self, pool: &mut BufPool) -> Option<Span> {
        let (extra, small, leftover) = match &self.tls {
            None => (0, RECV_BYTES_SMALL, 0),
            Some(tls) => (LEFTOVER_BYTES_MAX, RECV_BYTES_SMALL_TLS, tls.leftover_bytes()),
        };
        let is_large = self.buffer.is_some_and(|buffer| pool.capacity(buffer) >= RECV_BYTES + extra);
        if !is_large && let Some(large) = pool.alloc_leaving(FOR_REQUESTS, RECV_BYTES + extra) {
            self.buffer.replace(large).into_iter().for_each(|old| pool.free(old));
        }
        let buffer = match self.buffer {
            Some(buffer) if pool.capacity(buffer) >= small => buffer,
            _ => {
                let new = pool.alloc_leaving(FOR_ENGINE, small)?;
                self.buffer.replace(new).into_iter().for_each(|old| pool.free(old));
                new
            }
        };
        let room = pool.capacity(buffer).saturating_sub(leftover).min(RECV_BYTES);
        (room > 0).then_some(Span { buf: buffer, offset: 0, len: room as u32 })
    }

    /// Copies bytes to the reply buffer and adds them to the next send; false after a missing
    /// reply, after which nothing more is sent.
    pub(super) fn gather(&mut self, reactor: &mut Reactor, piece: &[u8]) -> bool {
        if self.gap {
            return false;
        }
        if let Some((buffer, used)) = self.reply
            && used as usize + piece.len() > REPLY_BYTES
        {
            self.headers.push(buffer);
            self.reply = None;
        }
        if self.reply.is_none() {
            let Some(buffer) = reactor.pool_mut().alloc_leaving(FOR_ENGINE, REPLY_BYTES) else {
                // Without memory for a reply the connection cannot go on; the client sees it
                // closed, never a gap: it would take data for a header.
                (self.closing, self.gap) = (true, true);
                self.spans.clear();
                return false;
            };
            self.reply = Some((buffer, 0));
        }
        let Some((buffer, used)) = &mut self.reply else { return false };
        let span = Span { buf: *buffer, offset: *used, len: piece.len() as u32 };
        reactor.pool_mut().copy_in(span, piece);
        *used += span.len;
        match self.spans.last_mut() {
            Some(last) if last.buf == span.buf && last.offset + last.len == span.offset => {
                last.len += span.len
            }
            _ => self.spans.push(span),
        }
        true
    }
}
