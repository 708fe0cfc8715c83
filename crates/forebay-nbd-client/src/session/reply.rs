//! Replies: heads, chunks, and the data of reads.

use std::ops::Range;

use forebay_export::nbd::codec::{self, ChunkHeader, Errno, Fields, ReplyHead, SimpleReply, chunk, cmd};

use super::{
    ContextStatus, Pending, RequestError, Session, SessionError, SessionEvent, Stage, StatusExtent,
    server_text,
};

/// Longest error chunk: 6 bytes, a message, an offset; and room for additions of later versions.
const ERROR_BYTES_MAX: usize = 6 + (u16::MAX as usize) + 8;
/// Most extents accepted in one chunk.
const STATUS_EXTENTS_MAX: usize = 1 << 20;

pub(super) const NOT_IN_FLIGHT: SessionError =
    SessionError::Protocol("an answer to a request that is not in flight");
const NO_REPLY: SessionError = SessionError::Protocol("neither a simple nor a structured reply");

impl Session {
    pub(super) fn take_magic(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let magic: [u8; 4] = bytes.try_into().map_err(|_| NO_REPLY)?;
        let length = ReplyHead::length_of(magic).ok_or(NO_REPLY)?;
        self.partial.extend_from_slice(&magic);
        self.stage = Stage::ReplyHead(length);
        Ok(())
    }

    pub(super) fn take_reply_head(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        match ReplyHead::decode(bytes).ok_or(NO_REPLY)? {
            ReplyHead::Simple(simple) => self.take_simple(simple),
            ReplyHead::Chunk(head) => self.take_chunk_head(head),
        }
    }

    fn take_simple(&mut self, simple: SimpleReply) -> Result<(), SessionError> {
        let pending = self.pending.get_mut(&simple.cookie).ok_or(NOT_IN_FLIGHT)?;
        if simple.error != 0 {
            let errno = Errno::from_code(simple.error);
            pending.error = Some(RequestError { errno, message: String::new(), offset_bytes: None });
        } else if pending.kind == cmd::READ {
            if self.info.structured {
                return Err(SessionError::Protocol(
                    "a simple reply with data after structured ones were agreed",
                ));
            }
            size_data(pending, &mut self.spare);
            pending.covered = u64::from(pending.length);
            let place = 0..pending.data.len();
            self.stage = Stage::Data { cookie: simple.cookie, place, last: true };
            return Ok(());
        }
        self.chunk_ended(simple.cookie, true)
    }

    /// Checks the head of a chunk before any of its body is taken.
    fn take_chunk_head(&mut self, head: ChunkHeader) -> Result<(), SessionError> {
        if !self.info.structured {
            return Err(SessionError::Protocol("a structured reply that was not agreed"));
        }
        let pending = self.pending.get(&head.cookie).ok_or(NOT_IN_FLIGHT)?;
        let length = head.length as usize;
        let fits = match head.kind {
            chunk::NONE => length == 0 && head.flags & chunk::FLAG_DONE != 0,
            chunk::OFFSET_DATA => pending.kind == cmd::READ && length > codec::CHUNK_OFFSET_BYTES,
            chunk::OFFSET_HOLE => pending.kind == cmd::READ && length == 12,
            chunk::BLOCK_STATUS if pending.kind == cmd::BLOCK_STATUS => {
                if length < 12 || !(length - 4).is_multiple_of(8) || (length - 4) / 8 > STATUS_EXTENTS_MAX {
                    return Err(SessionError::Protocol("a block status chunk of impossible length"));
                }
                if pending.status.len() >= self.info.contexts.len() {
                    return Err(SessionError::Protocol("more block status chunks than contexts"));
                }
                true
            }
            kind => kind & chunk::ERROR_BIT != 0 && (6..=ERROR_BYTES_MAX).contains(&length),
        };
        if !fits {
            return Err(SessionError::Protocol("a chunk that does not fit the request"));
        }
        let has_data = head.kind == chunk::OFFSET_DATA;
        self.stage = if has_data { Stage::DataOffset(head) } else { Stage::ChunkBody(head) };
        Ok(())
    }

    pub(super) fn take_data_offset(&mut self, head: ChunkHeader, bytes: &[u8]) -> Result<(), SessionError> {
        let pending = self.pending.get_mut(&head.cookie).ok_or(NOT_IN_FLIGHT)?;
        let offset = Fields(bytes).u64().ok_or(NO_REPLY)?;
        let length = head.length as usize - codec::CHUNK_OFFSET_BYTES;
        let place = place(pending, offset, length as u64)?;
        size_data(pending, &mut self.spare);
        self.stage = Stage::Data { cookie: head.cookie, place, last: head.flags & chunk::FLAG_DONE != 0 };
        Ok(())
    }

    pub(super) fn take_chunk(&mut self, head: ChunkHeader, bytes: &[u8]) -> Result<(), SessionError> {
        let pending = self.pending.get_mut(&head.cookie).ok_or(NOT_IN_FLIGHT)?;
        let mut fields = Fields(bytes);
        match head.kind {
            chunk::NONE => {}
            chunk::OFFSET_HOLE => {
                let (offset, hole) = (fields.u64().unwrap_or(0), fields.u32().unwrap_or(0));
                let place = place(pending, offset, u64::from(hole))?;
                size_data(pending, &mut self.spare);
                pending.data[place].fill(0);
            }
            chunk::BLOCK_STATUS => pending.status.push(status(bytes)),
            kind => {
                let error = failure(kind, bytes).ok_or(SessionError::Protocol("a garbled error chunk"))?;
                pending.error.get_or_insert(error);
            }
        }
        self.chunk_ended(head.cookie, head.flags & chunk::FLAG_DONE != 0)
    }

    /// A chunk, or a simple reply, has been taken wholly.
    pub(super) fn chunk_ended(&mut self, cookie: u64, last: bool) -> Result<(), SessionError> {
        self.stage = Stage::ReplyMagic;
        if !last {
            return Ok(());
        }
        let mut pending = self.pending.remove(&cookie).ok_or(NOT_IN_FLIGHT)?;
        let result = pending.error.take().map_or(Ok(()), Err);
        if pending.kind == cmd::READ && result.is_ok() && pending.covered != u64::from(pending.length) {
            return Err(SessionError::Protocol("a read was answered without all of its data"));
        }
        let mut data = pending.data;
        if result.is_err() {
            self.recycle(std::mem::take(&mut data));
        }
        let (tag, status) = (pending.tag, pending.status);
        self.events.push_back(SessionEvent::Reply { tag, result, data, status });
        Ok(())
    }
}

/// Allocates the buffer of a read, with the requested length.
fn size_data(pending: &mut Pending, spare: &mut Vec<Vec<u8>>) {
    if pending.data.is_empty() {
        pending.data = spare.pop().unwrap_or_default();
        pending.data.clear();
        pending.data.resize(pending.length as usize, 0);
    }
}

/// Returns the place of a piece of a read in the buffer.
fn place(pending: &mut Pending, offset: u64, length: u64) -> Result<Range<usize>, SessionError> {
    let outside = SessionError::Protocol("data outside the range that was asked for");
    let Some(start) = offset.checked_sub(pending.offset) else { return Err(outside) };
    let end = start.saturating_add(length);
    pending.covered += length;
    if end > u64::from(pending.length) || pending.covered > u64::from(pending.length) {
        return Err(outside);
    }
    let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX); // at most the length, which is 32 bits
    Ok(index(start)..index(end))
}

fn status(payload: &[u8]) -> ContextStatus {
    let mut fields = Fields(payload);
    let context_id = fields.u32().unwrap_or(0);
    let mut extents = Vec::with_capacity(fields.0.len() / 8);
    while let (Some(length_bytes), Some(flags)) = (fields.u32(), fields.u32()) {
        extents.push(StatusExtent { length_bytes, flags });
    }
    ContextStatus { context_id, extents }
}

fn failure(kind: u16, payload: &[u8]) -> Option<RequestError> {
    let mut fields = Fields(payload);
    let errno = Errno::from_code(fields.u32()?);
    let message_length = usize::from(fields.u16()?);
    let message = server_text(fields.bytes(message_length)?);
    let offset_bytes = if kind == chunk::ERROR_OFFSET { Some(fields.u64()?) } else { None };
    Some(RequestError { errno, message, offset_bytes })
}
