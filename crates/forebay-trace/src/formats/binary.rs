//! Records of 24 bytes, little endian, of two kinds.
//!
//! - `oracleGeneral` of libCacheSim: u32 seconds, u64 object, u32 size in bytes, i64 number of the
//!   next request of the object (counted from 0; -1: none). An object is a block, so a request of
//!   several blocks is several records. It does not distinguish reads from writes.
//! - `bin`: u64 nanoseconds, u64 first block of 4 KiB, u32 blocks, u32 write (0 or 1). A record of
//!   no blocks counts as one block.

use super::RecordWriter;
use super::csv::{blocks_of, kept_as_blocks};
use crate::error::{Place, TraceError};
use crate::format::{Kept, Options};
use crate::record::{Operation, Record};
use std::collections::HashMap;
use std::io::{BufRead, Read, Write};

const RECORD: usize = 24;
const BLOCK: u64 = 4096;

/// The kind of record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    OracleGeneral { id_bytes: u64 },
    Bin,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Reads either kind.
pub(crate) struct BinaryReader {
    from: Box<dyn BufRead>,
    kind: Kind,
    number: u64,
}

impl BinaryReader {
    pub(crate) fn new(from: Box<dyn BufRead>, kind: Kind) -> Self {
        Self { from, kind, number: 0 }
    }

    /// Returns the next record; `Some(None)` stands for one without bytes.
    pub(crate) fn next_record(&mut self) -> Result<Option<Option<Record>>, TraceError> {
        let place = Place::Record(self.number);
        let mut bytes = [0; RECORD];
        let mut have = 0;
        while have < RECORD {
            match self.from.read(&mut bytes[have..])? {
                0 if have == 0 => return Ok(None),
                0 => return Err(TraceError::bad(place, format!("{have} bytes are no record of {RECORD}"))),
                read => have += read,
            }
        }
        self.number += 1;
        let too_large = || TraceError::bad(place, "an address beyond every volume");
        let (at, operation, offset, len) = match self.kind {
            Kind::OracleGeneral { id_bytes } => {
                let offset = long(&bytes, 4).checked_mul(id_bytes).ok_or_else(too_large)?;
                (u64::from(word(&bytes, 0)) * 1_000_000_000, Operation::Read, offset, word(&bytes, 12).into())
            }
            Kind::Bin => {
                let operation = match word(&bytes, 20) {
                    0 => Operation::Read,
                    1 => Operation::Write,
                    other => {
                        let what = format!("{other} is neither a read (0) nor a write (1)");
                        return Err(TraceError::bad(place, what));
                    }
                };
                let offset = long(&bytes, 8).checked_mul(BLOCK).ok_or_else(too_large)?;
                (long(&bytes, 0), operation, offset, u64::from(word(&bytes, 16).max(1)) * BLOCK)
            }
        };
        if len == 0 {
            return Ok(Some(None));
        }
        Record::new(at, operation, offset, len).checked(place).map(|record| Some(Some(record)))
    }
}

pub(crate) struct BinWriter;

impl RecordWriter for BinWriter {
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        if !matches!(record.operation, Operation::Read | Operation::Write) {
            return Ok(Kept::nothing());
        }
        let blocks = blocks_of(record, BLOCK);
        to.write_all(&record.at_ns.to_le_bytes())?;
        to.write_all(&blocks.start.to_le_bytes())?;
        to.write_all(&((blocks.end - blocks.start) as u32).to_le_bytes())?;
        to.write_all(&u32::from(record.operation == Operation::Write).to_le_bytes())?;
        Ok(Kept {
            range: record.offset.is_multiple_of(BLOCK) && record.len.is_multiple_of(BLOCK),
            ..Kept::range()
        })
    }
}

/// Buffers all records until the end, because each names the next one of its object: 16 bytes of
/// memory for each requested block.
pub(crate) struct OracleWriter {
    id_bytes: u64,
    accesses: Vec<(u32, u64)>,
}

impl OracleWriter {
    pub(crate) fn new(options: &Options) -> Self {
        Self { id_bytes: options.id_bytes, accesses: Vec::new() }
    }
}

impl RecordWriter for OracleWriter {
    fn put(&mut self, _to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError> {
        if !matches!(record.operation, Operation::Read | Operation::Write) {
            return Ok(Kept::nothing());
        }
        let seconds = u32::try_from(record.at_ns / 1_000_000_000).unwrap_or(u32::MAX);
        self.accesses.extend(blocks_of(record, self.id_bytes).map(|block| (seconds, block)));
        let operation = record.operation == Operation::Read;
        Ok(Kept { operation, ..kept_as_blocks(record, self.id_bytes) })
    }

    fn finish(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        let mut next: Vec<i64> = vec![-1; self.accesses.len()];
        let mut later: HashMap<u64, i64> = HashMap::new();
        for (number, (_, block)) in self.accesses.iter().enumerate().rev() {
            next[number] = later.insert(*block, number as i64).unwrap_or(-1);
        }
        for ((seconds, block), next) in self.accesses.iter().zip(next) {
            to.write_all(&seconds.to_le_bytes())?;
            to.write_all(&block.to_le_bytes())?;
            to.write_all(&(self.id_bytes as u32).to_le_bytes())?;
            to.write_all(&next.to_le_bytes())?;
        }
        Ok(())
    }
}
