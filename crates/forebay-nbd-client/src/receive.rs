//! Receiving: a read buffer, and the replies decoded from it.
//!
//! Invariants
//! - No length from the server is trusted: it is compared with the request, or with a limit, before
//!   memory is allocated.

use std::io::{self, Read, Write};

use super::{ClientError, ContextStatus, NbdClient, Pending, Reply, RequestError, StatusExtent};
use forebay_export::nbd::codec::{self, ChunkHeader, Errno, Fields, ReplyHead, SimpleReply, chunk, cmd};

/// Size of the read buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest error chunk: 6 bytes, a message, an offset; and room for additions of later versions.
const ERROR_BYTES_MAX: usize = 6 + (u16::MAX as usize) + 8;
/// Most extents accepted in one chunk.
const STATUS_EXTENTS_MAX: usize = 1 << 20;

/// Bytes received and not yet consumed.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Buffer { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Receives once, as many bytes as are available.
    fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match stream.read(&mut self.bytes[self.end..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.end += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Fills `into`: from the buffer first, the bulk of long data straight from the stream.
    pub(super) fn read_exact(&mut self, stream: &mut impl Read, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.start == self.end {
                if into.len() >= BUFFER_BYTES {
                    return stream.read_exact(into);
                }
                self.fill(stream)?;
            }
            let count = into.len().min(self.end - self.start);
            let (now, later) = into.split_at_mut(count);
            now.copy_from_slice(&self.ready()[..count]);
            self.start += count;
            into = later;
        }
        Ok(())
    }

    /// Returns the next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, stream: &mut impl Read) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(stream, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the next `length` bytes; the caller has compared `length` with a limit.
    pub(super) fn vec(&mut self, stream: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_exact(stream, &mut bytes)?;
        Ok(bytes)
    }
}

impl<S: Read + Write> NbdClient<S> {
    /// Receives chunks until one request has its whole reply.
    pub(super) fn receive_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, ClientError> {
        data.clear();
        loop {
            let cookie = match self.receive_head()? {
                ReplyHead::Simple(simple) => {
                    self.receive_simple(simple)?;
                    simple.cookie
                }
                ReplyHead::Chunk(head) => {
                    self.receive_chunk(head)?;
                    if head.flags & chunk::FLAG_DONE == 0 {
                        continue;
                    }
                    head.cookie
                }
            };
            let Some(pending) = self.pending.remove(&cookie) else { continue };
            return self.finish(cookie, pending, data);
        }
    }

    fn receive_head(&mut self) -> Result<ReplyHead, ClientError> {
        let magic: [u8; 4] = self.receive.array(&mut self.stream)?;
        let bad = ClientError::Protocol("neither a simple nor a structured reply");
        let Some(length) = ReplyHead::length_of(magic) else { return Err(bad) };
        let mut head = [0; codec::CHUNK_HEADER_BYTES];
        head[..4].copy_from_slice(&magic);
        self.receive.read_exact(&mut self.stream, &mut head[4..length])?;
        ReplyHead::decode(&head[..length]).ok_or(bad)
    }

    fn receive_simple(&mut self, simple: SimpleReply) -> Result<(), ClientError> {
        let pending = lookup(&mut self.pending, simple.cookie)?;
        if simple.error != 0 {
            let errno = Errno::from_code(simple.error);
            pending.error = Some(RequestError { errno, message: String::new(), offset_bytes: None });
            return Ok(());
        }
        if pending.kind == cmd::READ {
            if self.info.structured {
                return Err(ClientError::Protocol(
                    "a simple reply with data after structured ones were agreed",
                ));
            }
            size_data(pending, &mut self.spare);
            self.receive.read_exact(&mut self.stream, &mut pending.data)?;
            pending.covered = u64::from(pending.length);
        }
        Ok(())
    }

    fn receive_chunk(&mut self, head: ChunkHeader) -> Result<(), ClientError> {
        if !self.info.structured {
            return Err(ClientError::Protocol("a structured reply that was not agreed"));
        }
        let pending = lookup(&mut self.pending, head.cookie)?;
        let length = head.length as usize;
        match head.kind {
            chunk::NONE if length == 0 && head.flags & chunk::FLAG_DONE != 0 => Ok(()),
            chunk::OFFSET_DATA if pending.kind == cmd::READ && length > codec::CHUNK_OFFSET_BYTES => {
                let offset = u64::from_be_bytes(self.receive.array(&mut self.stream)?);
                let place = place(pending, offset, (length - codec::CHUNK_OFFSET_BYTES) as u64)?;
                size_data(pending, &mut self.spare);
                Ok(self.receive.read_exact(&mut self.stream, &mut pending.data[place])?)
            }
            chunk::OFFSET_HOLE if pending.kind == cmd::READ && length == 12 => {
                let offset = u64::from_be_bytes(self.receive.array(&mut self.stream)?);
                let hole = u32::from_be_bytes(self.receive.array(&mut self.stream)?);
                let place = place(pending, offset, u64::from(hole))?;
                size_data(pending, &mut self.spare);
                pending.data[place].fill(0);
                Ok(())
            }
            chunk::BLOCK_STATUS if pending.kind == cmd::BLOCK_STATUS => {
                if length < 12 || !(length - 4).is_multiple_of(8) || (length - 4) / 8 > STATUS_EXTENTS_MAX {
                    return Err(ClientError::Protocol("a block status chunk of impossible length"));
                }
                if pending.status.len() >= self.info.contexts.len() {
                    return Err(ClientError::Protocol("more block status chunks than contexts"));
                }
                let payload = self.receive.vec(&mut self.stream, length)?;
                pending.status.push(status(&payload));
                Ok(())
            }
            kind if kind & chunk::ERROR_BIT != 0 && (6..=ERROR_BYTES_MAX).contains(&length) => {
                let payload = self.receive.vec(&mut self.stream, length)?;
                let error = failure(kind, &payload).ok_or(ClientError::Protocol("a garbled error chunk"))?;
                pending.error.get_or_insert(error);
                Ok(())
            }
            _ => Err(ClientError::Protocol("a chunk that does not fit the request")),
        }
    }

    fn finish(
        &mut self,
        cookie: u64,
        mut pending: Pending,
        data: &mut Vec<u8>,
    ) -> Result<Reply, ClientError> {
        let result = pending.error.map_or(Ok(()), Err);
        if pending.kind == cmd::READ && result.is_ok() {
            if pending.covered != u64::from(pending.length) {
                return Err(ClientError::Protocol("a read was answered without all of its data"));
            }
            std::mem::swap(data, &mut pending.data);
        }
        self.recycle(pending.data);
        Ok(Reply { cookie, result, status: pending.status })
    }
}

fn lookup(
    pending: &mut std::collections::HashMap<u64, Pending>,
    cookie: u64,
) -> Result<&mut Pending, ClientError> {
    pending.get_mut(&cookie).ok_or(ClientError::Protocol("an answer to a request that is not in flight"))
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
fn place(pending: &mut Pending, offset: u64, length: u64) -> Result<std::ops::Range<usize>, ClientError> {
    let outside = ClientError::Protocol("data outside the range that was asked for");
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
    let message = String::from_utf8_lossy(fields.bytes(message_length)?).into_owned();
    let offset_bytes = if kind == chunk::ERROR_OFFSET { Some(fields.u64()?) } else { None };
    Some(RequestError { errno, message, offset_bytes })
}
