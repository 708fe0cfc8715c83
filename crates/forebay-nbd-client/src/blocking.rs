//! A small blocking client over anything that reads and writes: a [`Session`] and its stream.
//!
//! Purpose
//! - Load and verify volumes in demos and tests. One thread can keep many requests in flight:
//!   `send_*` with cookies of its own, then [`NbdClient::recv_reply`] in the order of the server's
//!   replies. `read_at` and `write_at` wait for each request.
//!
//! Invariants
//! - Sends are collected, and sent when [`SEND_BYTES_KEPT`] are reached, when the client waits for
//!   a reply, or with [`NbdClient::submit`].
//! - After an I/O or protocol error the client sends and receives nothing.
//!
//! A caller that sends much more than the sockets hold without receiving can deadlock with a server
//! that does the same; keep the bytes in flight bounded.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::ops::Range;

use forebay_export::nbd::codec::{cmd, cmd_flag};
use thiserror::Error;

use crate::session::{
    ContextStatus, HandshakeOptions, Request, RequestError, ServerInfo, Session, SessionError, SessionEvent,
};

/// Sends above this size are not collected.
pub const SEND_BYTES_KEPT: usize = 64 << 10;
/// Most bytes of one receive.
const RECEIVE_BYTES: usize = 64 << 10;

/// Errors of a client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("connection to the NBD server failed")]
    Io(#[from] io::Error),
    /// The server broke the protocol, or refused the handshake.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The server refused or failed one request; the connection continues.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The caller's request cannot be sent.
    #[error("{0}")]
    Misuse(&'static str),
}

/// The reply to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// Its result.
    pub result: Result<(), RequestError>,
    /// For block status: the extents of each context.
    pub status: Vec<ContextStatus>,
}

/// A session and its stream.
#[derive(Debug)]
struct Wire<S> {
    stream: S,
    session: Session,
    /// Bytes that were received, and which of them the session has not taken.
    received: Vec<u8>,
    untaken: Range<usize>,
}

impl<S: Read + Write> Wire<S> {
    fn new(stream: S, session: Session) -> Self {
        Wire { stream, session, received: vec![0; RECEIVE_BYTES], untaken: 0..0 }
    }

    fn send(&mut self) -> io::Result<()> {
        let count = self.session.output().len();
        self.stream.write_all(self.session.output())?;
        self.session.sent(count);
        self.stream.flush()
    }

    /// Waits for the next event.
    fn event(&mut self) -> Result<SessionEvent, ClientError> {
        loop {
            self.send()?;
            if let Some(event) = self.session.event() {
                return Ok(event);
            }
            let taken = self.session.receive(&self.received[self.untaken.clone()])?;
            self.untaken.start += taken;
            if taken > 0 {
                continue;
            }
            match self.stream.read(&mut self.received) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.untaken = 0..count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the names and descriptions of all exports of the server at the other end of `stream`.
///
/// # Errors
/// The connection failed, or the server broke the protocol or refused.
pub fn list_exports<S: Read + Write>(stream: S) -> Result<Vec<(String, String)>, ClientError> {
    let mut wire = Wire::new(stream, Session::list());
    loop {
        if let SessionEvent::Exports(exports) = wire.event()? {
            wire.send().ok(); // the list is complete; a failed disconnect does not matter
            return Ok(exports);
        }
    }
}

/// A connection to one export.
#[derive(Debug)]
pub struct NbdClient<S> {
    wire: Wire<S>,
    /// Cookies of the requests in flight.
    cookies: HashSet<u64>,
    next_cookie: u64,
    broken: bool,
}

impl<S: Read + Write> NbdClient<S> {
    /// Negotiates with the server at the other end of `stream` and starts transmission to the
    /// export `name`.
    ///
    /// # Errors
    /// The connection failed, or the server broke the protocol or refused.
    pub fn handshake(stream: S, name: &str, options: &HandshakeOptions) -> Result<Self, ClientError> {
        let session = Session::new(name, options).map_err(ClientError::Misuse)?;
        let mut wire = Wire::new(stream, session);
        while wire.event()? != SessionEvent::Established {}
        Ok(NbdClient { wire, cookies: HashSet::new(), next_cookie: 1, broken: false })
    }

    /// Returns the server's description of the export.
    pub fn info(&self) -> &ServerInfo {
        self.wire.session.info()
    }

    /// Returns the size of the export.
    pub fn size_bytes(&self) -> u64 {
        self.info().size_bytes
    }

    /// Returns the underlying stream, to set timeouts.
    pub fn stream(&self) -> &S {
        &self.wire.stream
    }

    /// Returns the number of requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.cookies.len()
    }

    /// Sends a read.
    pub fn send_read(
        &mut self,
        cookie: u64,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> Result<(), ClientError> {
        self.send_request(cmd::READ, 0, cookie, offset_bytes, length_bytes)
    }

    /// Sends a write.
    pub fn send_write(
        &mut self,
        cookie: u64,
        offset_bytes: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), ClientError> {
        let length =
            u32::try_from(data.len()).map_err(|_| ClientError::Misuse("a write of 4 GiB or more"))?;
        self.send_request(cmd::WRITE, fua_flag(fua), cookie, offset_bytes, length)?;
        if data.len() >= SEND_BYTES_KEPT {
            self.submit()?;
            return self.guard(|client| Ok(client.wire.stream.write_all(data)?));
        }
        self.wire.session.payload(data);
        self.submit_if_long()
    }

    /// Queues any request, checking only its cookie. A write's payload must follow.
    pub fn send_request(
        &mut self,
        kind: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u32,
    ) -> Result<(), ClientError> {
        if !self.cookies.insert(cookie) {
            return Err(ClientError::Misuse("a request with this cookie is in flight"));
        }
        self.wire.session.send(cookie, Request { kind, flags, offset, length });
        if kind == cmd::WRITE { Ok(()) } else { self.submit_if_long() }
    }

    fn submit_if_long(&mut self) -> Result<(), ClientError> {
        if self.wire.session.output().len() >= SEND_BYTES_KEPT { self.submit() } else { Ok(()) }
    }

    /// Sends all collected bytes.
    pub fn submit(&mut self) -> Result<(), ClientError> {
        if self.wire.session.output().is_empty() {
            return Ok(());
        }
        self.guard(|client| Ok(client.wire.send()?))
    }

    /// Runs an operation; after its failure the connection cannot be used.
    fn guard<T>(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        if self.broken {
            return Err(ClientError::Misuse("the connection has failed before"));
        }
        let result = action(self);
        self.broken |= matches!(result, Err(ClientError::Io(_) | ClientError::Session(_)));
        result
    }

    /// Waits for the next reply. For a successful read, `data` holds the bytes read; otherwise
    /// `data` is empty.
    pub fn recv_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, ClientError> {
        if self.cookies.is_empty() {
            return Err(ClientError::Misuse("no request is in flight"));
        }
        self.submit()?;
        self.guard(|client| client.receive_reply(data))
    }

    fn receive_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, ClientError> {
        loop {
            if let SessionEvent::Reply { tag, result, data: bytes, status } = self.wire.event()? {
                self.wire.session.recycle(std::mem::replace(data, bytes));
                self.cookies.remove(&tag);
                return Ok(Reply { cookie: tag, result, status });
            }
        }
    }

    /// Returns a cookie for a request that the caller waits for.
    fn lone_cookie(&mut self) -> Result<u64, ClientError> {
        if !self.cookies.is_empty() {
            return Err(ClientError::Misuse("receive the replies to the requests in flight first"));
        }
        self.next_cookie = self.next_cookie.wrapping_add(1);
        Ok(self.next_cookie)
    }

    fn wait(&mut self, data: &mut Vec<u8>) -> Result<Reply, ClientError> {
        let reply = self.recv_reply(data)?;
        reply.result.clone()?;
        Ok(reply)
    }

    /// Reads, in several requests if necessary.
    pub fn read_at(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), ClientError> {
        let mut data = Vec::new();
        let mut at = offset_bytes;
        for piece in into.chunks_mut(self.info().payload_bytes_max() as usize) {
            let cookie = self.lone_cookie()?;
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX); // below 32 MiB
            self.send_read(cookie, at, length)?;
            self.wait(&mut data)?;
            piece.copy_from_slice(&data); // `data` has the requested length, or `wait` would have failed
            at = at.saturating_add(u64::from(length));
        }
        self.wire.session.recycle(data);
        Ok(())
    }

    /// Writes, in several requests if necessary.
    pub fn write_at(&mut self, offset_bytes: u64, data: &[u8], fua: bool) -> Result<(), ClientError> {
        let mut at = offset_bytes;
        for piece in data.chunks(self.info().payload_bytes_max() as usize) {
            let cookie = self.lone_cookie()?;
            self.send_write(cookie, at, piece, fua)?;
            self.wait(&mut Vec::new())?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Disconnects. Outstanding replies are lost.
    pub fn disconnect(mut self) -> Result<S, ClientError> {
        self.wire.session.disconnect();
        self.submit()?;
        Ok(self.wire.stream)
    }
}

fn fua_flag(fua: bool) -> u16 {
    if fua { cmd_flag::FUA } else { 0 }
}
