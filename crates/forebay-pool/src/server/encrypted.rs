//! Connections with TLS: input is decrypted before the session sees it, and output is encrypted
//! when it is sent.
//!
//! Ciphertext is received into the connection's buffer, and decrypted in memory that all
//! connections share. The plaintext goes to the awaited payload, the rest of it back into the same
//! buffer. Replies are collected as without TLS, and encrypted into buffers of their own, record by
//! record, as far as there are buffers: a connection that is not read from keeps [`SENDS_MAX`] of
//! them, and then its replies wait and count as unsent.
//!
//! A thread performs the handshake: until it ends, nothing is received, parsed or sent, and the
//! connection is not closed.
//!
//! Each connection has one buffer of its own to send from, so that it progresses when requests use
//! all other memory.

use super::tls::{RECORD_BYTES, RECORD_OVERHEAD_BYTES, TlsFailure, TlsLink};
use super::{BLOCK, Server, ServerToken};
use crate::client_request::FOR_REPLIES;
use forebay_io::{BufId, BufPool, Op, Reactor, Span};
use std::collections::VecDeque;
use std::sync::mpsc;

/// Size of a connection's own buffer.
const OWN_BYTES: usize = 64 << 10;
/// Size of the buffers for large sends.
const LARGE_BYTES: usize = 256 << 10;
/// Sends of a connection in flight.
const SENDS_MAX: u32 = 4;

/// A buffer to send from, reserved for its connection, which so progresses even when all other
/// memory is in use. It stays here while a thread has the rest for the handshake, because a send
/// from it can end meanwhile.
#[derive(Debug)]
pub(super) struct OwnBuffer {
    buffer: BufId,
    is_free: bool,
}

impl OwnBuffer {
    /// Takes the buffer if it is free.
    fn take(&mut self) -> Option<BufId> {
        std::mem::take(&mut self.is_free).then_some(self.buffer)
    }

    /// Takes a buffer back if it is that one.
    pub(super) fn give_back(&mut self, buffer: BufId) -> bool {
        let is_it = buffer == self.buffer;
        self.is_free |= is_it;
        is_it
    }

    /// Gives up the buffer, at the end.
    pub(super) fn let_go(self) -> BufId {
        self.buffer
    }
}

/// Result of a thread that continued a handshake.
#[derive(Debug)]
pub(super) struct Handshaken {
    link: Box<TlsLink>,
    /// Plaintext that the client sent behind its part of the handshake.
    plain: Vec<u8>,
    result: Result<(), TlsFailure>,
}

impl Server {
    /// The client has requested TLS, and the server has agreed.
    pub(super) fn begin_tls(&mut self, reactor: &mut Reactor, index: u32) {
        self.send(reactor, index); // the last reply in plaintext
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.tls.is_some() {
            return; // the handshake is in progress
        }
        let config = self.directory.tls(connection.endpoint).and_then(|entry| entry.current());
        let own = reactor.pool_mut().alloc_leaving(FOR_REPLIES, OWN_BYTES);
        let (Some(config), Some(own)) = (config, own) else {
            connection.closing = true;
            if let Some(own) = own {
                reactor.pool_mut().free(own);
            }
            return self
                .refusals
                .note(format!("{}: there is no memory for TLS, or no certificate", connection.peer));
        };
        match TlsLink::new(config) {
            Ok(link) => {
                connection.tls = Some(Box::new(link));
                connection.own = Some(OwnBuffer { buffer: own, is_free: true });
            }
            Err(failure) => {
                connection.closing = true;
                reactor.pool_mut().free(own);
                self.refusals.note(format!("{}: {failure}", connection.peer));
            }
        }
    }

    /// Continues a handshake in a thread: its signatures take up to a millisecond, and new
    /// connections must not delay active ones.
    fn shake_hands(&mut self, reactor: &mut Reactor, index: u32, bytes: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        let Some(buffer) = connection.buffer else { return };
        let Some(mut link) = connection.tls.take() else { return };
        let mut work = Vec::new();
        link.begin(&mut work);
        let before = work.len();
        work.resize(before + bytes as usize, 0);
        reactor.pool().copy_out(Span { buf: buffer, offset: 0, len: bytes }, &mut work[before..]);
        (connection.used, connection.filled) = (0, 0);
        let (give, take) = mpsc::sync_channel(1);
        connection.handshake = Some(take);
        reactor.run(ServerToken::Handshake(index).encode(), move || {
            let mut plain = Vec::new();
            let result = link.received(&mut work, &mut |piece| plain.extend_from_slice(piece));
            let _ = give.send(Handshaken { link, plain, result }); // it has room
        });
    }

    /// A thread has continued the handshake of a connection as far as its input went.
    pub(super) fn handshaken(&mut self, reactor: &mut Reactor, index: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        match connection.handshake.take().map(|handshake| handshake.try_recv()) {
            Some(Ok(Handshaken { link, plain, result })) => {
                connection.tls = Some(link);
                if let Some(buffer) = connection.buffer {
                    let span = Span { buf: buffer, offset: 0, len: plain.len() as u32 };
                    reactor.pool_mut().copy_in(span, &plain);
                    connection.filled = plain.len();
                }
                self.note_decrypted(index, result);
            }
            // The thread has panicked.
            _ => connection.closing = true,
        }
        self.enqueue(index);
    }

    /// Decrypts bytes that were received into the buffer of a connection.
    pub(super) fn decrypt(&mut self, reactor: &mut Reactor, index: u32, bytes: u32) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.tls.as_ref().is_some_and(|tls| tls.is_shaking_hands()) {
            return self.shake_hands(reactor, index, bytes);
        }
        let (Some(tls), Some(buffer)) = (&mut connection.tls, connection.buffer) else { return };
        let work = &mut self.cipher;
        tls.begin(work);
        let before = work.len();
        work.resize(before + bytes as usize, 0);
        reactor.pool().copy_out(Span { buf: buffer, offset: 0, len: bytes }, &mut work[before..]);
        (connection.used, connection.filled) = (0, 0);
        let (session, arriving, filled) =
            (&mut connection.session, &mut connection.arriving, &mut connection.filled);
        let pool = reactor.pool_mut();
        let result = tls.received(work, &mut |mut plain| {
            if let Some(arriving) = arriving {
                let now = session.payload_remaining().min(plain.len());
                let lead = (arriving.request.request.offset_bytes % BLOCK) as u32;
                let to = Span { buf: arriving.buffer, offset: lead + arriving.received, len: now as u32 };
                pool.copy_in(to, &plain[..now]);
                arriving.received += now as u32;
                session.payload_received(now);
                plain = &plain[now..];
            }
            pool.copy_in(Span { buf: buffer, offset: *filled as u32, len: plain.len() as u32 }, plain);
            *filled += plain.len();
        });
        self.note_decrypted(index, result);
    }

    /// Handles the result of decrypting the input of a connection.
    fn note_decrypted(&mut self, index: u32, result: Result<(), TlsFailure>) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        let Some(tls) = &connection.tls else { return };
        if let Err(failure) = result {
            connection.closing = true;
            self.refusals.note(format!("{}: {failure}", connection.peer));
        } else if tls.is_established() && connection.session.export().is_none() {
            if let Some(certificate) = tls.client_certificate() {
                connection.peer.certified(certificate);
            }
            connection.session.tls_established(); // every time: only the first has an effect
        }
    }

    /// Encrypts and sends the output of a connection, as far as there are buffers for it.
    pub(super) fn send_encrypted(&mut self, reactor: &mut Reactor, index: u32) {
        while let Some((out, bytes)) = self.encrypt(reactor, index) {
            let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
            let id = self.free_sendings.pop().unwrap_or_else(|| {
                self.sendings.push(super::Sending::default());
                (self.sendings.len() - 1) as u32
            });
            let sending = &mut self.sendings[id as usize];
            sending.connection = index;
            sending.bytes = u64::from(bytes);
            sending.buffers.push(out);
            connection.unsent_bytes += sending.bytes;
            connection.sends += 1;
            connection.stalled_since.get_or_insert(self.turn_at);
            let token = ServerToken::Send(id).encode();
            let span = Span { buf: out, offset: 0, len: bytes };
            reactor.submit(token, Op::Send { socket: connection.socket, spans: &[span] });
        }
        if let Some(Some(connection)) = self.connections.get_mut(index as usize)
            && let Some(tls) = &mut connection.tls
        {
            tls.waiting_bytes = connection.spans.iter().map(|span| u64::from(span.len)).sum();
        }
    }

    /// Fills one buffer with the next output; `None` if there is nothing, or no buffer.
    fn encrypt(&mut self, reactor: &mut Reactor, index: u32) -> Option<(BufId, u32)> {
        let connection = self.connections.get_mut(index as usize)?.as_mut()?;
        let tls = connection.tls.as_mut()?;
        let is_last = connection.closing && connection.requests == 0;
        let replies = tls.is_established() && !connection.spans.is_empty();
        let goodbye = is_last && tls.may_say_goodbye();
        if connection.sends >= SENDS_MAX || !(tls.wants_to_speak() || replies || goodbye) {
            return None;
        }
        let bytes: usize = connection.spans.iter().map(|span| span.len as usize).sum();
        let pool = reactor.pool_mut();
        let out = buffer(connection.own.as_mut(), pool, bytes)?;
        let room = pool.capacity(out);
        let mut len = tls.speak(pool.bytes_mut(out));
        let mut failure = None;
        let mut taken = Taken::default();
        while replies && failure.is_none() && len + 2 * RECORD_OVERHEAD_BYTES < room {
            let most = (room - len - RECORD_OVERHEAD_BYTES).min(RECORD_BYTES);
            let spans = taken.spans;
            taken.fill(pool, &mut connection.spans, most, &mut self.plain);
            connection.held_bytes -= free_taken(
                &connection.spans[spans..taken.spans],
                &mut connection.owned,
                &mut connection.owned_bytes,
                pool,
            );
            if self.plain.is_empty() {
                break;
            }
            match tls.encrypt(&self.plain, &mut pool.bytes_mut(out)[len..]) {
                Ok(more) => len += more,
                Err(error) => failure = Some(error),
            }
        }
        connection.spans.drain(..taken.spans);
        if let Some(failure) = failure {
            // No byte must be missing in the middle: nothing more is sent.
            (connection.closing, connection.gap) = (true, true);
            connection.spans.clear();
            self.refusals.note(format!("{}: {failure}", connection.peer));
        }
        if connection.spans.is_empty() {
            let gathered = connection.reply.take().map(|(buffer, _)| buffer);
            let headers = connection.headers.drain(..).chain(gathered);
            connection.owned.drain(..).chain(headers).for_each(|buffer| pool.free(buffer));
            connection.held_bytes -= std::mem::take(&mut connection.owned_bytes);
            if is_last && len + RECORD_OVERHEAD_BYTES < room {
                len += tls.say_goodbye(&mut pool.bytes_mut(out)[len..]);
            }
        }
        if len == 0 {
            if !connection.own.as_mut().is_some_and(|own| own.give_back(out)) {
                pool.free(out);
            }
            return None;
        }
        Some((out, len as u32))
    }
}

/// Frees the buffers of data that was taken completely; returns how much memory that was.
fn free_taken(spans: &[Span], owned: &mut VecDeque<BufId>, owned_bytes: &mut u64, pool: &mut BufPool) -> u64 {
    let mut bytes = 0;
    for span in spans {
        if let Some(buffer) = owned.front().copied().filter(|buffer| *buffer == span.buf) {
            owned.pop_front();
            bytes += pool.capacity(buffer) as u64;
            pool.free(buffer);
        }
    }
    *owned_bytes -= bytes;
    bytes
}

/// A buffer to send from: a large one for large output, else the connection's own, else any.
fn buffer(own: Option<&mut OwnBuffer>, pool: &mut BufPool, bytes: usize) -> Option<BufId> {
    if bytes > OWN_BYTES
        && let Some(large) = pool.alloc_leaving(FOR_REPLIES, LARGE_BYTES)
    {
        return Some(large);
    }
    own.and_then(OwnBuffer::take).or_else(|| pool.alloc_leaving(FOR_REPLIES, OWN_BYTES))
}

/// How many spans of a connection have been taken.
#[derive(Default)]
struct Taken {
    /// Complete ones.
    spans: usize,
}

impl Taken {
    /// Copies at most `most` bytes of the spans to `plain`, which is emptied first. A span that is
    /// taken in part is cut.
    fn fill(&mut self, pool: &BufPool, spans: &mut [Span], most: usize, plain: &mut Vec<u8>) {
        plain.clear();
        while plain.len() < most
            && let Some(span) = spans.get_mut(self.spans)
        {
            let now = (span.len as usize).min(most - plain.len());
            let start = plain.len();
            plain.resize(start + now, 0);
            pool.copy_out(Span { len: now as u32, ..*span }, &mut plain[start..]);
            span.offset += now as u32;
            span.len -= now as u32;
            if span.len == 0 {
                self.spans += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_buffer_is_lent_to_one_send_at_a_time() {
        let mut own = OwnBuffer { buffer: BufId(0), is_free: true };
        assert_eq!((own.take(), own.take()), (Some(BufId(0)), None));
        assert!(!own.give_back(BufId(1)) && own.take().is_none(), "another one");
        assert!(own.give_back(BufId(0)));
        assert_eq!((own.take(), own.let_go()), (Some(BufId(0)), BufId(0)));
    }
}
