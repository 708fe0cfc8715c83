//! The owner's memory: the scratch buffer and the buffers of clients, with the rules that the
//! engine must keep.
//!
//! A released buffer no longer exists: naming it in an action is an error, not a harmless access.

use forebay_core::{BufId, SCRATCH, Span};
use forebay_format::BLOCK_BYTES;
use std::collections::BTreeMap;

/// All buffers of a world.
pub struct Memory {
    scratch: Vec<u8>,
    buffers: BTreeMap<u32, Vec<u8>>,
    pool: Vec<Vec<u8>>,
    next: u32,
}

/// Fills unwritten memory: a read of it shows as wrong data.
pub const JUNK: u8 = 0xE7;

impl Memory {
    /// Creates memory with a zeroed scratch buffer.
    #[must_use]
    pub fn new(scratch_blocks: u32) -> Self {
        let scratch = vec![0; scratch_blocks as usize * BLOCK_BYTES];
        Self { scratch, buffers: BTreeMap::new(), pool: Vec::new(), next: 0 }
    }

    /// Allocates a client buffer full of junk. Returns its number, which is never reused.
    pub fn take(&mut self, bytes: usize) -> u32 {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(bytes, JUNK);
        self.next += 1;
        self.buffers.insert(self.next, buffer);
        self.next
    }

    /// Releases a client buffer.
    pub fn release(&mut self, buffer: u32) {
        if let Some(bytes) = self.buffers.remove(&buffer) {
            self.pool.push(bytes);
        }
    }

    /// Returns a client buffer.
    pub fn buffer(&mut self, buffer: u32) -> &mut Vec<u8> {
        self.buffers.get_mut(&buffer).expect("the world uses only buffers that it has")
    }

    /// Returns the bytes of a span.
    ///
    /// # Errors
    /// The span is empty, outside its buffer, or of a released buffer.
    pub fn get(&self, span: Span) -> Result<&[u8], String> {
        let buffer = match span.buf {
            SCRATCH => Some(&self.scratch),
            BufId(number) => self.buffers.get(&number),
        };
        let buffer =
            buffer.ok_or_else(|| format!("{span:?}: the buffer was given back, or never existed"))?;
        let end = span.offset as usize + span.len as usize;
        let bytes = buffer.get(span.offset as usize..end).filter(|bytes| !bytes.is_empty());
        bytes.ok_or_else(|| format!("{span:?} is empty or outside its buffer of {} bytes", buffer.len()))
    }

    /// Returns the bytes of a span for writing.
    ///
    /// # Errors
    /// As [`Memory::get`].
    pub fn get_mut(&mut self, span: Span) -> Result<&mut [u8], String> {
        self.get(span)?;
        let buffer = match span.buf {
            SCRATCH => &mut self.scratch,
            BufId(number) => self.buffer(number),
        };
        Ok(&mut buffer[span.offset as usize..span.offset as usize + span.len as usize])
    }

    /// Copies a span to another.
    ///
    /// # Errors
    /// Different lengths, overlap, or a bad span.
    pub fn copy(&mut self, from: Span, to: Span) -> Result<(), String> {
        if from.len != to.len || overlap(from, to) {
            return Err(format!("copy of {from:?} to {to:?}: different lengths or overlap"));
        }
        let bytes = self.get(from)?.to_vec();
        self.get_mut(to)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Appends the bytes of spans to a vector.
    ///
    /// # Errors
    /// A bad span.
    pub fn gather(&self, spans: &[Span], to: &mut Vec<u8>) -> Result<(), String> {
        for span in spans {
            to.extend_from_slice(self.get(*span)?);
        }
        Ok(())
    }

    /// Distributes bytes over spans.
    ///
    /// # Errors
    /// A bad span, or another total length.
    pub fn scatter(&mut self, spans: &[Span], mut from: &[u8]) -> Result<(), String> {
        for span in spans {
            let bytes = self.get_mut(*span)?;
            let (now, later) = from.split_at_checked(bytes.len()).ok_or("spans are longer than the read")?;
            bytes.copy_from_slice(now);
            from = later;
        }
        if from.is_empty() { Ok(()) } else { Err("spans are shorter than the read".into()) }
    }
}

/// Returns true if two spans share a byte.
#[must_use]
pub fn overlap(a: Span, b: Span) -> bool {
    a.buf == b.buf && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_were_given_back_are_gone() {
        let mut memory = Memory::new(1);
        let buffer = memory.take(4096);
        let span = Span { buf: BufId(buffer), offset: 0, len: 4096 };
        assert!(memory.get(span).is_ok());
        assert!(memory.get(Span { offset: 1, ..span }).is_err());
        memory.release(buffer);
        assert!(memory.get(span).is_err());
        assert_ne!(memory.take(4096), buffer);
    }

    #[test]
    fn copies_do_not_overlap() {
        let mut memory = Memory::new(2);
        let span = |offset| Span { buf: SCRATCH, offset, len: 512 };
        memory.get_mut(span(0)).unwrap().fill(9);
        assert!(memory.copy(span(0), span(100)).is_err());
        assert!(memory.copy(span(0), span(512)).is_ok());
        assert_eq!(memory.get(span(512)).unwrap()[0], 9);
    }
}
