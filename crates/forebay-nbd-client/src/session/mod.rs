//! The client's half of an NBD connection, as a state machine: bytes in, bytes and events out. It
//! has no socket and no clock; its owner moves the bytes.
//!
//! Invariants
//! - A cookie is used once in a session. The owner names requests by tags of its own.
//! - Data from the server is checked: replies only to known requests, data only within the
//!   requested range, no structure above its maximum length. No length from the server is trusted:
//!   it is compared with the request, or with a limit, before memory is allocated.
//! - The result does not depend on how the bytes are cut into pieces.
//! - After an error the session ignores all bytes.

mod handshake;
mod reply;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use forebay_export::nbd::codec::{self, ChunkHeader, Errno, OptionReplyHeader, RequestHeader, cmd, rep};
use thiserror::Error;

use crate::fault::{PlantedBug, planted};
use handshake::Goal;
pub use handshake::HandshakeOptions;

/// Read buffers kept for reuse, and the longest of them.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Why a session has ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The server broke the protocol.
    #[error("the server broke the NBD protocol: {0}")]
    Protocol(&'static str),
    /// The server refused an option, such as an unknown export.
    #[error("the server refused the handshake ({}){}{message}", refusal_name(*kind),
        if .message.is_empty() { "" } else { ": " })]
    Refused {
        /// One of [`rep`].
        kind: u32,
        /// The server's message.
        message: String,
    },
}

/// Most letters of a server's message.
const MESSAGE_LETTERS_MAX: usize = 200;

/// Returns a server's message as part of one line: without control characters, and cut.
fn server_text(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let letters = text.trim().chars().take(MESSAGE_LETTERS_MAX);
    letters.map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn refusal_name(kind: u32) -> &'static str {
    match kind {
        rep::ERR_UNSUP => "not supported",
        rep::ERR_POLICY => "forbidden by policy",
        rep::ERR_INVALID => "invalid",
        rep::ERR_TLS_REQD => "TLS is required",
        rep::ERR_UNKNOWN => "unknown export",
        rep::ERR_SHUTDOWN => "shutting down",
        rep::ERR_TOO_BIG => "too big",
        _ => "error",
    }
}

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

    /// Returns the longest read or write to request, in bytes: at most 32 MiB.
    pub fn payload_bytes_max(&self) -> u32 {
        self.block_sizes.map_or(32 << 20, |(_, _, max)| max.clamp(512, 32 << 20))
    }

    /// Returns the smallest unit of a request in bytes, as the server gave it; 1 by default.
    pub fn unit_bytes(&self) -> u32 {
        self.block_sizes.map_or(1, |(min, _, _)| min.max(1))
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

/// A request. The payload of a write follows it in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// One of [`cmd`].
    pub kind: u16,
    /// Bits of [`codec::cmd_flag`].
    pub flags: u16,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

/// What a session reports.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The handshake has ended: [`Session::info`] is complete, and requests may be sent.
    Established,
    /// The names and descriptions of all exports, of a session that asked for them.
    Exports(Vec<(String, String)>),
    /// The whole reply to a request.
    Reply {
        /// The request's tag.
        tag: u64,
        /// Its result.
        result: Result<(), RequestError>,
        /// For a successful read, the bytes; otherwise empty.
        data: Vec<u8>,
        /// For block status: the extents of each context.
        status: Vec<ContextStatus>,
    },
}

/// A request that was sent and has no whole reply yet.
#[derive(Debug, Default)]
struct Pending {
    tag: u64,
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

/// What the next bytes from the server are.
#[derive(Debug)]
enum Stage {
    Greeting,
    OptionHead,
    OptionData(OptionReplyHeader),
    ExportName,
    /// The first four bytes of a reply, then the rest of its head.
    ReplyMagic,
    ReplyHead(usize),
    /// The offset of a chunk with data.
    DataOffset(ChunkHeader),
    /// Data of a read, for this place in its buffer; `last` if the reply ends behind it.
    Data {
        cookie: u64,
        place: Range<usize>,
        last: bool,
    },
    /// All other chunks.
    ChunkBody(ChunkHeader),
    Ended,
}

/// The client's half of one connection; see the module documentation.
#[derive(Debug)]
pub struct Session {
    stage: Stage,
    goal: Goal,
    /// The structure in progress.
    partial: Vec<u8>,
    /// Output, and how many of its first bytes have been sent.
    out: Vec<u8>,
    out_sent: usize,
    events: VecDeque<SessionEvent>,
    info: ServerInfo,
    pending: HashMap<u64, Pending>,
    next_cookie: u64,
    spare: Vec<Vec<u8>>,
}

impl Session {
    /// Begins a session that negotiates access to the export `name`.
    ///
    /// # Errors
    /// The name is longer than the protocol permits.
    pub fn new(name: &str, options: &HandshakeOptions) -> Result<Session, &'static str> {
        if name.len() > codec::STRING_BYTES_MAX {
            return Err("an export's name is at most 4096 bytes long");
        }
        Ok(Session::with(Goal::transmission(options), name))
    }

    /// Begins a session that asks for the list of exports, and ends.
    #[must_use]
    pub fn list() -> Session {
        Session::with(Goal::list(), "")
    }

    fn with(goal: Goal, name: &str) -> Session {
        Session {
            stage: Stage::Greeting,
            goal,
            partial: Vec::new(),
            out: Vec::new(),
            out_sent: 0,
            events: VecDeque::new(),
            info: ServerInfo { name: name.to_owned(), ..ServerInfo::default() },
            pending: HashMap::new(),
            next_cookie: 1,
            spare: Vec::new(),
        }
    }

    /// The server's description of the export, complete once the session is established.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Requests without a whole reply.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Bytes to send. The owner removes what it has sent ([`Session::sent`]).
    pub fn output(&self) -> &[u8] {
        &self.out[self.out_sent..]
    }

    /// Removes the first bytes of the output.
    pub fn sent(&mut self, count: usize) {
        self.out_sent += count;
        // Moving the rest costs as much as was sent, at most.
        if self.out_sent >= self.out.len() / 2 {
            self.out.drain(..self.out_sent);
            self.out_sent = 0;
        }
    }

    /// Queues a request of an established session; its reply has this tag. The payload of a write
    /// must follow in the stream ([`Session::payload`]).
    pub fn send(&mut self, tag: u64, request: Request) {
        let Request { kind, flags, offset, length } = request;
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if planted(PlantedBug::ReuseCookie) {
            self.next_cookie = cookie % 3 + 1;
        }
        self.pending.insert(cookie, Pending { tag, kind, offset, length, ..Pending::default() });
        self.out.extend_from_slice(&RequestHeader { flags, kind, cookie, offset, length }.encode());
    }

    /// Queues the payload of the write queued last.
    pub fn payload(&mut self, data: &[u8]) {
        self.out.extend_from_slice(data);
    }

    /// Queues the end of the session; outstanding replies are lost.
    pub fn disconnect(&mut self) {
        let end = RequestHeader { flags: 0, kind: cmd::DISC, cookie: 0, offset: 0, length: 0 };
        self.out.extend_from_slice(&end.encode());
    }

    /// The next event, in the order of the bytes.
    pub fn event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Returns a buffer that came with an event, for reuse.
    pub fn recycle(&mut self, data: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && data.capacity() > 0 && data.capacity() <= SPARE_BYTES_MAX {
            self.spare.push(data);
        }
    }

    /// Takes bytes from the server; returns their number. That is all of them, unless the handshake
    /// ended before the last: the others are for when [`SessionEvent::Established`] has been taken.
    ///
    /// # Errors
    /// The server broke the protocol, or refused the handshake. The session has then ended; events
    /// before the error are valid.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        let mut left = bytes;
        let result = self.consume(&mut left);
        if result.is_err() {
            self.stage = Stage::Ended;
        }
        result.map(|()| bytes.len() - left.len())
    }

    fn consume(&mut self, left: &mut &[u8]) -> Result<(), SessionError> {
        loop {
            let bytes = *left;
            if matches!(self.events.back(), Some(SessionEvent::Established)) {
                return Ok(());
            }
            if let Stage::Data { cookie, place, last } = &mut self.stage {
                let pending = self.pending.get_mut(cookie).ok_or(reply::NOT_IN_FLIGHT)?;
                let (now, later) = bytes.split_at(bytes.len().min(place.len()));
                pending.data[place.start..place.start + now.len()].copy_from_slice(now);
                place.start += now.len();
                *left = later;
                if place.start < place.end {
                    return Ok(());
                }
                let (cookie, last) = (*cookie, *last);
                self.chunk_ended(cookie, last)?;
                continue;
            }
            let Some(length) = self.length_of_structure() else {
                *left = &[];
                return Ok(());
            };
            let (now, later) = bytes.split_at(bytes.len().min(length - self.partial.len()));
            self.partial.extend_from_slice(now);
            *left = later;
            if self.partial.len() < length {
                return Ok(());
            }
            let mut structure = std::mem::take(&mut self.partial);
            self.take_structure(&structure)?;
            structure.clear();
            if self.partial.is_empty() && structure.capacity() <= SPARE_BYTES_MAX {
                self.partial = structure;
            }
        }
    }

    /// Length of the structure in progress; `None` after the end.
    fn length_of_structure(&self) -> Option<usize> {
        Some(match &self.stage {
            Stage::Greeting => codec::GREETING_BYTES,
            Stage::OptionHead => codec::OPTION_REPLY_HEADER_BYTES,
            Stage::OptionData(head) => head.length as usize,
            Stage::ExportName => self.goal.export_name_bytes(),
            Stage::ReplyMagic => 4,
            Stage::ReplyHead(length) => *length,
            Stage::DataOffset(_) => codec::CHUNK_OFFSET_BYTES,
            Stage::ChunkBody(head) => head.length as usize,
            Stage::Data { .. } | Stage::Ended => return None,
        })
    }

    fn take_structure(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Greeting => self.take_greeting(bytes),
            Stage::OptionHead => self.take_option_head(bytes),
            Stage::OptionData(head) => self.take_option_reply(head, bytes),
            Stage::ExportName => self.take_export_name(bytes),
            Stage::ReplyMagic => self.take_magic(bytes),
            Stage::ReplyHead(_) => self.take_reply_head(bytes),
            Stage::DataOffset(head) => self.take_data_offset(head, bytes),
            Stage::ChunkBody(head) => self.take_chunk(head, bytes),
            Stage::Data { .. } | Stage::Ended => Ok(()),
        }
    }
}
