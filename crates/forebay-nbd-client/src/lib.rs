//! A small blocking NBD client over anything that reads and writes.
//!
//! Purpose
//! - Load and verify volumes in demos and tests. One thread can keep many requests in flight:
//!   `send_*` with cookies of its own, then [`NbdClient::recv_reply`] in the order of the server's
//!   replies. `read_at` and `write_at` wait for each request.
//!
//! Invariants
//! - Sends are collected, and sent when [`SEND_BYTES_KEPT`] are reached, when the client waits for
//!   a reply, or with [`NbdClient::submit`].
//! - Data from the server is checked: replies only to known requests, data only within the
//!   requested range, no structure above its maximum length. A server that breaks the protocol ends
//!   the connection, not the program.
//! - After an I/O or protocol error the client sends and receives nothing.
//!
//! A caller that sends much more than the sockets hold without receiving can deadlock with a server
//! that does the same; keep the bytes in flight bounded.

#![forbid(unsafe_code)]

mod connect;
mod handshake;
mod receive;

use std::collections::HashMap;
use std::io::{Read, Write};

use thiserror::Error;

pub use connect::Transport;
use forebay_export::nbd::codec::{Errno, RequestHeader, cmd, cmd_flag, rep};
pub use handshake::{HandshakeOptions, list_exports};

/// Sends above this size are not collected.
pub const SEND_BYTES_KEPT: usize = 64 << 10;

/// A request that the server refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the server answered {errno}{}{}", .offset_bytes.map(|at| format!(" at byte {at}")).unwrap_or_default(),
    if .message.is_empty() { String::new() } else { format!(": {}", .message) })]
pub struct RequestError {
    /// The error number.
    pub errno: Errno,
    /// The server's message; empty without structured replies.
    pub message: String,
    /// The first bad byte, if the server reported it.
    pub offset_bytes: Option<u64>,
}

/// Errors of a client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("connection to the NBD server failed")]
    Io(#[from] std::io::Error),
    /// The server broke the protocol.
    #[error("the server broke the NBD protocol: {0}")]
    Protocol(&'static str),
    /// The server refused an option, such as an unknown export.
    #[error("the server refused the handshake ({}): {message}", refusal_name(*kind))]
    Handshake {
        /// One of [`rep`].
        kind: u32,
        /// The server's message.
        message: String,
    },
    /// The server refused or failed one request; the connection continues.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The caller's request cannot be sent.
    #[error("{0}")]
    Misuse(&'static str),
}

fn refusal_name(kind: u32) -> &'static str {
    match kind {
        rep::ERR_UNSUP => "not supported",
        rep::ERR_POLICY => "forbidden by policy",
        rep::ERR_INVALID => "invalid",
        rep::ERR_UNKNOWN => "unknown export",
        rep::ERR_SHUTDOWN => "shutting down",
        rep::ERR_TOO_BIG => "too big",
        _ => "error",
    }
}

/// The server's description of the export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerInfo {
    /// The canonical name, or the requested one if the server gave none.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Size of the export.
    pub size_bytes: u64,
    /// Bits of [`forebay_export::nbd::codec::transmission_flag`].
    pub flags: u16,
    /// Smallest, preferred and largest request, if the server gave them.
    pub block_sizes: Option<(u32, u32, u32)>,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The negotiated metadata contexts: their numbers and names.
    pub contexts: Vec<(u32, String)>,
}

impl ServerInfo {
    /// Returns whether a bit of [`forebay_export::nbd::codec::transmission_flag`] is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns the longest read or write to request.
    pub fn payload_bytes_max(&self) -> u32 {
        self.block_sizes.map_or(32 << 20, |(_, _, max)| max.clamp(512, 32 << 20))
    }
}

/// One extent of a metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    /// Its length.
    pub length_bytes: u32,
    /// Bits of [`forebay_export::nbd::codec::extent_flag`], or of another server's context.
    pub flags: u32,
}

/// The extents of one metadata context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextStatus {
    /// The negotiated number of the context.
    pub context_id: u32,
    /// In order, without gaps, from the start of the requested range.
    pub extents: Vec<StatusExtent>,
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

/// A request that was sent and has no reply yet.
#[derive(Debug, Default)]
struct Pending {
    kind: u16,
    offset: u64,
    length: u32,
    /// Read data so far; allocated at the first piece.
    data: Vec<u8>,
    /// Number of bytes of a read received.
    covered: u64,
    error: Option<RequestError>,
    status: Vec<ContextStatus>,
}

/// A connection to one export.
#[derive(Debug)]
pub struct NbdClient<S> {
    stream: S,
    info: ServerInfo,
    pending: HashMap<u64, Pending>,
    send: Vec<u8>,
    receive: receive::Buffer,
    /// Read buffers for reuse.
    spare: Vec<Vec<u8>>,
    next_cookie: u64,
    broken: bool,
}

impl<S: Read + Write> NbdClient<S> {
    fn new(stream: S, info: ServerInfo, receive: receive::Buffer) -> Self {
        NbdClient {
            stream,
            info,
            pending: HashMap::new(),
            send: Vec::new(),
            receive,
            spare: Vec::new(),
            next_cookie: 1,
            broken: false,
        }
    }

    /// Returns the server's description of the export.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Returns the size of the export.
    pub fn size_bytes(&self) -> u64 {
        self.info.size_bytes
    }

    /// Returns the underlying stream, to set timeouts.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the number of requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
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
            return self.guard(|client| Ok(client.stream.write_all(data)?));
        }
        self.send.extend_from_slice(data);
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
        if self.broken {
            return Err(ClientError::Misuse("the connection has failed before"));
        }
        if self.pending.contains_key(&cookie) {
            return Err(ClientError::Misuse("a request with this cookie is in flight"));
        }
        self.pending.insert(cookie, Pending { kind, offset, length, ..Pending::default() });
        self.send.extend_from_slice(&RequestHeader { flags, kind, cookie, offset, length }.encode());
        if kind == cmd::WRITE { Ok(()) } else { self.submit_if_long() }
    }

    fn submit_if_long(&mut self) -> Result<(), ClientError> {
        if self.send.len() >= SEND_BYTES_KEPT { self.submit() } else { Ok(()) }
    }

    /// Sends all collected bytes.
    pub fn submit(&mut self) -> Result<(), ClientError> {
        if self.send.is_empty() {
            return Ok(());
        }
        self.guard(|client| {
            client.stream.write_all(&client.send)?;
            client.stream.flush()?;
            client.send.clear();
            Ok(())
        })
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
        self.broken |= matches!(result, Err(ClientError::Io(_) | ClientError::Protocol(_)));
        result
    }

    /// Waits for the next reply. For a successful read, `data` holds the bytes read; otherwise
    /// `data` is empty.
    pub fn recv_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, ClientError> {
        if self.pending.is_empty() {
            return Err(ClientError::Misuse("no request is in flight"));
        }
        self.submit()?;
        self.guard(|client| client.receive_reply(data))
    }

    /// Returns a cookie for a request that the caller waits for.
    fn lone_cookie(&mut self) -> Result<u64, ClientError> {
        if !self.pending.is_empty() {
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
        let mut data = self.spare.pop().unwrap_or_default();
        let mut at = offset_bytes;
        for piece in into.chunks_mut(self.info.payload_bytes_max() as usize) {
            let cookie = self.lone_cookie()?;
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX); // below 32 MiB
            self.send_read(cookie, at, length)?;
            self.wait(&mut data)?;
            piece.copy_from_slice(&data); // `data` has the requested length, or `wait` would have failed
            at = at.saturating_add(u64::from(length));
        }
        self.recycle(data);
        Ok(())
    }

    /// Writes, in several requests if necessary.
    pub fn write_at(&mut self, offset_bytes: u64, data: &[u8], fua: bool) -> Result<(), ClientError> {
        let mut at = offset_bytes;
        for piece in data.chunks(self.info.payload_bytes_max() as usize) {
            let cookie = self.lone_cookie()?;
            self.send_write(cookie, at, piece, fua)?;
            self.wait(&mut Vec::new())?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Disconnects. Outstanding replies are lost.
    pub fn disconnect(mut self) -> Result<S, ClientError> {
        let goodbye = RequestHeader { flags: 0, kind: cmd::DISC, cookie: 0, offset: 0, length: 0 };
        self.send.extend_from_slice(&goodbye.encode());
        self.submit()?;
        Ok(self.stream)
    }

    /// Keeps a read buffer for reuse.
    fn recycle(&mut self, data: Vec<u8>) {
        if self.spare.len() < 64 && data.capacity() > 0 && data.capacity() <= 1 << 20 {
            self.spare.push(data);
        }
    }
}

fn fua_flag(fua: bool) -> u16 {
    if fua { cmd_flag::FUA } else { 0 }
}
