//! Output of a connection: replies are collected over a turn of the loop and sent together, in
//! pieces of at most [`SEND_BYTES_MAX`]. Then the connection receives again, or is closed.
//!
//! The end of the send frees the memory of a piece. A client that takes pieces does not count as
//! stalled, however much is queued behind.

use super::connection::Connection;
use super::{BLOCK, LINGER, REPLY_BYTES, SEND_BYTES_MAX, STALLED_EVERY, Sending, Server, ServerToken};
use forebay_io::{BufPool, Op, Reactor, Span};
use std::time::{Duration, Instant};

impl Server {
    /// A connection has sent bytes, or failed.
    pub(super) fn sent(&mut self, reactor: &mut Reactor, send: u32, ok: bool) {
        let sending = &mut self.sendings[send as usize];
        let index = sending.connection;
        let mut connection = self.connections.get_mut(index as usize).and_then(Option::as_mut);
        for buffer in sending.buffers.drain(..) {
            let own = connection.as_mut().and_then(|connection| connection.own.as_mut());
            if !own.is_some_and(|own| own.give_back(buffer)) {
                reactor.pool_mut().free(buffer);
            }
        }
        let (bytes, held) = (sending.bytes, std::mem::take(&mut sending.held_bytes));
        self.free_sendings.push(send);
        if let Some(connection) = connection {
            connection.sends -= 1;
            connection.held_bytes -= held;
            connection.stalled_since = (connection.sends > 0).then(Instant::now);
            connection.unsent_bytes -= bytes;
            connection.closing |= !ok;
        }
        self.enqueue(index);
    }

    /// Sends the collected replies of this turn.
    pub fn send_all(&mut self, reactor: &mut Reactor) {
        for index in 0..self.queue.len() {
            self.send(reactor, self.queue[index]);
        }
    }

    /// Adds bytes, and data that follows them, to the next send of a connection.
    pub(super) fn queue_reply(
        &mut self,
        reactor: &mut Reactor,
        index: u32,
        bytes: &[u8],
        data: Option<Span>,
    ) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        // In any case the connection owns this buffer now.
        if let Some(span) = data {
            connection.owned.push_back(span.buf);
            connection.owned_bytes += reactor.pool().capacity(span.buf) as u64;
        }
        let complete = bytes.chunks(REPLY_BYTES).all(|piece| connection.gather(reactor, piece));
        if let (Some(span), true) = (data, complete) {
            connection.spans.push(span);
        }
        self.enqueue(index);
    }

    pub(super) fn send(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.handshake.is_some() {
            return; // only the handshake may send now
        }
        if connection.tls.is_some() {
            return self.send_encrypted(reactor, index);
        }
        let mut at = 0;
        while let Some(connection) = self.connections[index as usize].as_mut()
            && at < connection.spans.len()
        {
            let id = self.free_sendings.pop().unwrap_or_else(|| {
                self.sendings.push(Sending::default());
                (self.sendings.len() - 1) as u32
            });
            let sending = &mut self.sendings[id as usize];
            sending.connection = index;
            connection.next_piece(&mut at, reactor.pool(), sending, &mut self.piece);
            connection.unsent_bytes += sending.bytes;
            connection.sends += 1;
            connection.stalled_since.get_or_insert(self.turn_at);
            let token = ServerToken::Send(id).encode();
            reactor.submit(token, Op::Send { socket: connection.socket, spans: &self.piece });
        }
        if let Some(connection) = &mut self.connections[index as usize] {
            connection.spans.clear();
        }
    }

    /// Ends connections that are being closed and that their clients hold up: by taking no replies,
    /// or by not closing a connection that has ended.
    pub(super) fn end_leaving(&mut self, reactor: &mut Reactor) -> Option<Duration> {
        if self.leaving == 0 {
            self.leaving_at = None;
            return None;
        }
        let now = Instant::now();
        let look_at = *self.leaving_at.get_or_insert(now + STALLED_EVERY);
        if now < look_at {
            return Some(look_at - now);
        }
        self.leaving_at = Some(now + STALLED_EVERY);
        for index in 0..self.connections.len() as u32 {
            let Some(Some(connection)) = self.connections.get_mut(index as usize) else { continue };
            let past = |since: Option<Instant>, limit| since.is_some_and(|since| since + limit <= now);
            let lingers = past(connection.lingers_since, LINGER);
            if connection.leaving_since.is_some() && connection.sends > 0 {
                connection.see_progress(reactor.unsent_bytes(connection.socket), now);
            }
            let unheard = connection.requests == 0 && connection.has_stalled(now);
            if connection.leaving_since.is_some() && (lingers || unheard) {
                connection.ignore_input = true;
                reactor.abort_socket(connection.socket);
                self.enqueue(index);
            }
        }
        Some(STALLED_EVERY)
    }

    /// Sends, receives again, or closes.
    pub(super) fn settle(&mut self, reactor: &mut Reactor, index: u32) {
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
        if self.quiescing && connection.may_quiesce() {
            if connection.receiving && !connection.cancelling {
                connection.cancelling = true;
                reactor.cancel_receives(connection.socket);
            }
            return;
        }
        // A payload that has its memory is received even if the connection is full: else it would
        // hold the memory for nothing.
        let is_full = connection.is_full() && connection.arriving.is_none();
        let waits = is_full || connection.blocked.is_some() || connection.handshake.is_some();
        if connection.receiving || self.closing || waits {
            return;
        }
        let span = if let (Some(arriving), None) = (connection.arriving, &connection.tls) {
            let lead = (arriving.request.request.offset_bytes % BLOCK) as u32;
            let len = connection.session.payload_remaining() as u32;
            Span { buf: arriving.buffer, offset: lead + arriving.received, len }
        } else if connection.used < connection.filled {
            return; // A request waits for memory; the bytes behind it are already here.
        } else {
            let Some(span) = connection.receive_buffer(reactor.pool_mut()) else { return };
            span
        };
        connection.receiving = true;
        let token = ServerToken::Receive(index).encode();
        reactor.submit(token, Op::Recv { socket: connection.socket, span });
    }

    /// Frees a closing connection once it has nothing in flight: its requests are answered, and the
    /// replies are sent.
    pub(super) fn try_close(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(slot) = self.connections.get_mut(index as usize) else { return };
        let Some(connection) = slot else { return };
        if connection.leaving_since.is_none() {
            connection.leaving_since = Some(Instant::now());
            self.leaving += 1;
        }
        if connection.lingers_since.is_none() {
            if connection.receiving {
                if !std::mem::replace(&mut connection.cancelling, true) {
                    reactor.cancel_receives(connection.socket);
                }
                return;
            }
            if connection.requests > 0 || connection.sends > 0 || connection.handshake.is_some() {
                return;
            }
            if connection.must_linger() {
                connection.lingers_since = Some(Instant::now());
                reactor.finish_socket(connection.socket);
            }
        }
        if connection.lingers_since.is_some() && !connection.ignore_input {
            let span =
                if connection.receiving { None } else { connection.receive_buffer(reactor.pool_mut()) };
            if let Some(span) = span {
                connection.receiving = true;
                let token = ServerToken::Receive(index).encode();
                reactor.submit(token, Op::Recv { socket: connection.socket, span });
            }
            return;
        }
        self.leaving -= 1;
        reactor.close_socket(connection.socket);
        if let (Some(volume), Some(arriving)) = (connection.volume, &connection.arriving) {
            self.arriving_bytes[usize::from(volume.0)] -= reactor.pool().capacity(arriving.buffer) as u64;
        }
        connection.free_buffers(reactor);
        if connection.greeted_by.is_some() {
            self.greeting -= 1;
        }
        let volume = connection.volume;
        *slot = None;
        self.count(index);
        self.directory.went(volume);
    }
}

impl Connection {
    /// Takes the spans of one send from `spans[*at..]` on to `piece`, with the buffers that are not
    /// needed afterwards. A span that fits only in part is cut.
    fn next_piece(&mut self, at: &mut usize, pool: &BufPool, sending: &mut Sending, piece: &mut Vec<Span>) {
        piece.clear();
        sending.bytes = 0;
        while let Some(span) = self.spans.get_mut(*at)
            && sending.bytes < SEND_BYTES_MAX
        {
            let now = span.len.min((SEND_BYTES_MAX - sending.bytes) as u32);
            piece.push(Span { len: now, ..*span });
            sending.bytes += u64::from(now);
            (span.offset, span.len) = (span.offset + now, span.len - now);
            if span.len > 0 {
                break;
            }
            *at += 1;
            if self.owned.front() == Some(&span.buf) {
                let buffer = self.owned.pop_front().expect("it is the first");
                let bytes = pool.capacity(buffer) as u64;
                (self.owned_bytes, sending.held_bytes) =
                    (self.owned_bytes - bytes, sending.held_bytes + bytes);
                sending.buffers.push(buffer);
            }
        }
        if *at == self.spans.len() {
            // The remaining buffers have no span, or many.
            sending.buffers.extend(self.owned.drain(..).chain(self.headers.drain(..)));
            sending.buffers.extend(self.reply.take().map(|(buffer, _)| buffer));
            sending.held_bytes += std::mem::take(&mut self.owned_bytes);
        }
    }
}
