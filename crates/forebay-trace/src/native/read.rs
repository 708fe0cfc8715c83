//! Reading a trace.
//!
//! Lengths in the file are not trusted for allocations: they are checked against their limits
//! first.

use super::layout::NAME_BYTES_MAX;
use super::layout::{BLOCK_BYTES_MAX, HEAD_BYTES, HEADER_BYTES, Head, Header, MAGIC, Packing, VERSION};
use super::records::decode;
use crate::error::{Place, TraceError};
use crate::record::Record;
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// The ending of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Complete, as the writer intended.
    Whole,
    /// In the middle: the file was truncated, or its writer was killed. This many bytes at its end
    /// belong to an incomplete block.
    Cut {
        /// Unused bytes.
        bytes: u64,
    },
}

/// Reads a trace record by record.
pub struct Reader<R> {
    from: R,
    header: Header,
    at: u64,
    block: std::vec::IntoIter<Record>,
    lost: u64,
    ending: Option<Ending>,
}

/// Reads up to this many bytes, as far as available.
fn read_up_to(from: &mut impl Read, len: usize) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::with_capacity(len);
    from.by_ref().take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a trace of this version.
    pub fn new(mut from: R) -> Result<Self, TraceError> {
        let header = read_header(&mut from)?;
        let at = (HEADER_BYTES + header.volume.len() + 4) as u64;
        Ok(Self { from, header, at, block: Vec::new().into_iter(), lost: 0, ending: None })
    }

    /// Returns the header of the trace.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the number of records lost during the recording, up to the present position.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the ending, once reached.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the next record.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or a block of it is damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if let Some(record) = self.block.next() {
                return Ok(Some(record));
            }
            if self.ending.is_some() {
                return Ok(None);
            }
            self.read_block()?;
        }
    }

    fn read_block(&mut self) -> Result<(), TraceError> {
        let bad = |at: u64, what: String| TraceError::bad(Place::Byte(at), what);
        let head = read_up_to(&mut self.from, HEAD_BYTES)?;
        let Ok(bytes) = <&[u8; HEAD_BYTES]>::try_from(head.as_slice()) else {
            self.ending = Some(Ending::Cut { bytes: head.len() as u64 });
            return Ok(());
        };
        let (head, crc) = Head::from_bytes(bytes).map_err(|what| bad(self.at, what))?;
        let body = read_up_to(&mut self.from, head.packed_bytes as usize)?;
        if body.len() < head.packed_bytes as usize {
            self.ending = Some(Ending::Cut { bytes: (HEAD_BYTES + body.len()) as u64 });
            return Ok(());
        }
        if crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), &body) != crc {
            return Err(bad(self.at, "a block is damaged: its checksum is another one".into()));
        }
        let raw = match head.packing {
            Packing::Stored => body,
            Packing::Zstd => unpacked(&body).map_err(|what| bad(self.at, what))?,
        };
        if raw.len() != head.raw_bytes as usize {
            return Err(bad(self.at, "a block has another length than it says".into()));
        }
        let mut records = Vec::with_capacity(head.records as usize);
        decode(&raw, head.records, self.at, &mut records)?;
        self.at += (HEAD_BYTES + head.packed_bytes as usize) as u64;
        self.lost = self.lost.saturating_add(head.lost);
        if head.records == 0 {
            self.ending = Some(Ending::Whole);
            if !read_up_to(&mut self.from, 1)?.is_empty() {
                return Err(bad(self.at, "something follows the end of the trace".into()));
            }
        }
        self.block = records.into_iter();
        Ok(())
    }
}

fn read_header(from: &mut impl Read) -> Result<Header, TraceError> {
    let start = read_up_to(from, HEADER_BYTES)?;
    if start.len() < HEADER_BYTES || start[..8] != MAGIC {
        return Err(TraceError::Useless("this is no trace in Forebay's format".into()));
    }
    let word = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if word(8) != VERSION {
        let what = format!("the trace has version {}, and this program reads version {VERSION}", word(8));
        return Err(TraceError::Useless(what));
    }
    let name_bytes = word(12) as usize;
    let damaged = || TraceError::bad(Place::Byte(0), "the header is damaged");
    if name_bytes > NAME_BYTES_MAX {
        return Err(damaged());
    }
    let rest = read_up_to(from, name_bytes + 4)?;
    let Some((name, crc)) = rest.split_last_chunk::<4>().filter(|(name, _)| name.len() == name_bytes) else {
        return Err(TraceError::Useless("the trace ends in its header".into()));
    };
    if crc32c::crc32c_append(crc32c::crc32c(&start), name) != u32::from_le_bytes(*crc) {
        return Err(damaged());
    }
    let volume = String::from_utf8(name.to_vec()).map_err(|_| damaged())?;
    Ok(Header { started_unix_ns: long(16), volume_bytes: long(24), volume })
}

/// Unpacks a block, limited to the size of the largest one.
fn unpacked(packed: &[u8]) -> Result<Vec<u8>, String> {
    let garbled = |error: &dyn std::fmt::Display| format!("a block cannot be unpacked: {error}");
    let decoder = StreamingDecoder::new(packed).map_err(|error| garbled(&error))?;
    let mut raw = Vec::new();
    decoder.take(BLOCK_BYTES_MAX as u64 + 1).read_to_end(&mut raw).map_err(|error| garbled(&error))?;
    Ok(raw)
}
