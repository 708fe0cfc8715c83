//! Writing a trace.

use super::BLOCK_RECORDS_MAX;
use super::layout::{HEAD_BYTES, Head, Header, Packing, RECORD_BYTES_MAX};
use super::records::{Before, encode};
use crate::error::TraceError;
use crate::record::Record;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Write;

/// Produces the bytes of a trace, block by block; the caller decides where they go.
#[derive(Default)]
pub struct BlockWriter {
    raw: Vec<u8>,
    records: u32,
    before: Before,
    lost: u64,
}

impl BlockWriter {
    /// Returns the first bytes of the file.
    #[must_use]
    pub fn header(header: &Header) -> Vec<u8> {
        header.to_bytes()
    }

    /// Adds a record.
    pub fn push(&mut self, record: &Record) {
        encode(&mut self.raw, record, &mut self.before);
        self.records += 1;
    }

    /// Notes that this many records were lost at this point.
    pub fn lose(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Returns true if the block is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.records as usize >= BLOCK_RECORDS_MAX
    }

    /// Returns the maximum length of the block with one more record, in bytes.
    #[must_use]
    pub fn bytes_with_another(&self) -> usize {
        HEAD_BYTES + self.raw.len() + RECORD_BYTES_MAX
    }

    /// Ends the block. Returns its bytes, none if nothing was added.
    #[must_use]
    pub fn block(&mut self) -> Vec<u8> {
        if self.records == 0 { Vec::new() } else { self.close() }
    }

    /// Returns the last bytes of the file: the pending block, and the end mark.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        let mut bytes = self.block();
        bytes.extend(self.close());
        bytes
    }

    fn close(&mut self) -> Vec<u8> {
        let raw = std::mem::take(&mut self.raw);
        let packed = if raw.is_empty() {
            Vec::new()
        } else {
            compress_to_vec(raw.as_slice(), CompressionLevel::Fastest)
        };
        let (packing, body) = if !raw.is_empty() && packed.len() < raw.len() {
            (Packing::Zstd, packed)
        } else {
            (Packing::Stored, raw.clone())
        };
        let head = Head {
            packing,
            records: std::mem::take(&mut self.records),
            raw_bytes: raw.len() as u32,
            packed_bytes: body.len() as u32,
            lost: std::mem::take(&mut self.lost),
        };
        self.before = Before::default();
        let mut bytes = head.to_bytes(&body).to_vec();
        bytes.extend(body);
        bytes
    }
}

/// Writes a trace to a byte stream.
pub struct Writer<W> {
    to: W,
    blocks: BlockWriter,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn new(mut to: W, header: &Header) -> Result<Self, TraceError> {
        to.write_all(&BlockWriter::header(header))?;
        Ok(Self { to, blocks: BlockWriter::default() })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn push(&mut self, record: &Record) -> Result<(), TraceError> {
        self.blocks.push(record);
        if self.blocks.is_full() {
            self.to.write_all(&self.blocks.block())?;
        }
        Ok(())
    }

    /// Notes that this many records were lost at this point.
    pub fn lose(&mut self, records: u64) {
        self.blocks.lose(records);
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.to.write_all(&self.blocks.end())?;
        self.to.flush()?;
        Ok(self.to)
    }
}
