//! Replies to requests, in the negotiated form.
//!
//! Purpose
//! - [`Replier`] is small and `Copy`, so that code which completes a request can encode its reply
//!   without the session.
//!
//! Invariants
//! - With structured replies, READ gets exactly one chunk, which has the DONE flag, and every error
//!   is a chunk with a message. All other replies are simple, which the protocol permits and which
//!   is shorter. Without structured replies, all replies are simple.
//! - Every call appends one whole reply (or, for a read, its whole header), so replies to different
//!   requests may be sent in any order but never interleaved.

use super::codec::{self, ChunkHeader, Errno, chunk, extent_flag};
use super::handshake::{Context, Contexts};
use crate::request::{ClientRequest, Operation};

/// The longest header from [`Replier::read_header`], in bytes.
pub const READ_HEADER_BYTES_MAX: usize = codec::CHUNK_HEADER_BYTES + codec::CHUNK_OFFSET_BYTES;

/// Most extents in one reply; a client sends a further query from its end.
pub const EXTENTS_MAX: usize = 1 << 15;

/// The part of a reply before the data of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    bytes: [u8; READ_HEADER_BYTES_MAX],
    length: usize,
}

impl ReplyHeader {
    fn of(parts: &[&[u8]]) -> ReplyHeader {
        let mut header = ReplyHeader { bytes: [0; READ_HEADER_BYTES_MAX], length: 0 };
        for part in parts {
            header.bytes[header.length..header.length + part.len()].copy_from_slice(part);
            header.length += part.len();
        }
        header
    }

    /// Returns the bytes to send before the data.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A range of the volume in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Its length.
    pub length_bytes: u64,
    /// Nothing is allocated for it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
    /// It is cached.
    pub cached: bool,
    /// It is dirty.
    pub dirty: bool,
}

impl Extent {
    /// Returns the flags of this extent in a context.
    fn flags(&self, context: Context) -> u32 {
        let pick = |on: bool, flag: u32| if on { flag } else { 0 };
        match context {
            Context::Allocation => pick(self.hole, extent_flag::HOLE) | pick(self.zero, extent_flag::ZERO),
            Context::Cache => pick(self.cached, extent_flag::CACHED) | pick(self.dirty, extent_flag::DIRTY),
        }
    }
}

/// Encodes replies in the negotiated form of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replier {
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The negotiated metadata contexts.
    pub contexts: Contexts,
}

impl Replier {
    /// Returns whether the client requested holes and ranges that read as zeroes.
    #[must_use]
    pub fn tells_allocation(&self) -> bool {
        self.structured && self.contexts.iter().any(|context| context == Context::Allocation)
    }

    /// Appends success without data: the reply to all requests but READ and BLOCK_STATUS.
    pub fn ok(&self, out: &mut Vec<u8>, cookie: u64) {
        out.extend_from_slice(&codec::simple_reply(0, cookie));
    }

    /// Returns the header before the `length_bytes` bytes of a successful read.
    pub fn read_header(&self, cookie: u64, offset_bytes: u64, length_bytes: u32) -> ReplyHeader {
        if !self.structured {
            return ReplyHeader::of(&[&codec::simple_reply(0, cookie)]);
        }
        let mut head = ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::NONE, cookie, length: 0 };
        if length_bytes == 0 {
            return ReplyHeader::of(&[&head.encode()]);
        }
        head.kind = chunk::OFFSET_DATA;
        head.length = length_bytes.saturating_add(codec::wire_len(codec::CHUNK_OFFSET_BYTES));
        ReplyHeader::of(&[&head.encode(), &offset_bytes.to_be_bytes()])
    }

    /// Appends a failure. The message reaches the client only with structured replies.
    pub fn error(&self, out: &mut Vec<u8>, cookie: u64, errno: Errno, message: &str) {
        if !self.structured {
            out.extend_from_slice(&codec::simple_reply(errno.code(), cookie));
            return;
        }
        let message = codec::cut(message);
        let length = codec::wire_len(6 + message.len());
        let head = ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::ERROR, cookie, length };
        out.extend_from_slice(&head.encode());
        out.extend_from_slice(&errno.code().to_be_bytes());
        let message_length = u16::try_from(message.len()).unwrap_or(0); // `cut` keeps it at 4096 or less
        out.extend_from_slice(&message_length.to_be_bytes());
        out.extend_from_slice(message.as_bytes());
    }

    /// Appends the reply to a BLOCK_STATUS request: one chunk for each negotiated context.
    ///
    /// `extents` describe the volume from the start of the request on, without gaps. They are
    /// clipped to the request and merged where their flags in a context are equal; they may end
    /// before the request does. An empty list means "plain data, not cached".
    pub fn block_status(&self, out: &mut Vec<u8>, cookie: u64, request: &ClientRequest, extents: &[Extent]) {
        if !self.structured || self.contexts.is_empty() {
            return self.error(out, cookie, Errno::Invalid, "no metadata context was agreed on");
        }
        let one = matches!(request.operation, Operation::BlockStatus { one_extent: true });
        let mut left = self.contexts.iter().count();
        for context in self.contexts.iter() {
            left -= 1;
            let runs = project(context, request.length_bytes, extents, if one { 1 } else { EXTENTS_MAX });
            let flags = if left == 0 { chunk::FLAG_DONE } else { 0 };
            let length = codec::wire_len(4 + 8 * runs.len());
            let head = ChunkHeader { flags, kind: chunk::BLOCK_STATUS, cookie, length };
            out.extend_from_slice(&head.encode());
            out.extend_from_slice(&context.id().to_be_bytes());
            for (length, flags) in runs {
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
        }
    }
}

/// Returns the extents in one context: within the request, neighbours merged, at most `count_max`,
/// at least one.
fn project(context: Context, length_bytes: u64, extents: &[Extent], count_max: usize) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut left = u32::try_from(length_bytes).unwrap_or(u32::MAX);
    for extent in extents {
        let length = u32::try_from(extent.length_bytes).unwrap_or(u32::MAX).min(left);
        if length == 0 {
            continue;
        }
        let flags = extent.flags(context);
        let full = runs.len() == count_max;
        match runs.last_mut() {
            Some(last) if last.1 == flags => last.0 += length, // the sum of all is at most `left` at the start
            _ if full => break,
            _ => runs.push((length, flags)),
        }
        left -= length;
    }
    if runs.is_empty() {
        runs.push((left, 0));
    }
    runs
}
