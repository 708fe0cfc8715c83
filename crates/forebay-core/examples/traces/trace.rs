//! Block traces for examples, in every format that `forebay trace` reads, by the end of the file's
//! name; else records of 24 bytes (`bin`).
//!
//! Reads and writes count, as whole blocks, and times do not. `bench/tracing/records.py` reads
//! records of 24 bytes as well and has the same limits.

use super::exact::Access;
use forebay_core::REQUEST_BYTES_MAX;
use forebay_trace::{Format, Operation, Options, reader};
use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;

const BLOCK: u64 = 4096;
/// Blocks of the longest request.
const BLOCKS_MAX: u64 = REQUEST_BYTES_MAX / BLOCK;

/// A request of a trace.
pub(crate) struct Request {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
    pub(crate) writes: bool,
}

/// All of a trace.
pub(crate) struct Trace {
    pub(crate) requests: Vec<Request>,
    /// Different blocks.
    pub(crate) footprint: u64,
    /// Blocks of the smallest volume that has them all.
    pub(crate) end: u64,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no trace, or has a request that no volume takes.
    pub(crate) fn read(file: &str) -> Result<Self, String> {
        let from = File::open(file).map_err(|error| error.to_string())?;
        let format = Format::of_name(file).unwrap_or(Format::Bin);
        let source = reader(Box::new(BufReader::new(from)), Some(format), &Options::default());
        let mut source = source.map_err(|error| error.to_string())?;
        let mut requests = Vec::new();
        while let Some(record) = source.next_record().map_err(|error| error.to_string())? {
            let writes = record.operation == Operation::Write;
            if !writes && record.operation != Operation::Read {
                continue;
            }
            let (first, end) = (record.offset / BLOCK, record.end().div_ceil(BLOCK));
            let (at, blocks) = (requests.len(), end - first);
            if blocks > BLOCKS_MAX {
                return Err(format!(
                    "request {at}: {blocks} blocks from {first} on; a request has at most {BLOCKS_MAX} blocks"
                ));
            }
            requests.push(Request { first, blocks, writes });
        }
        if requests.is_empty() {
            return Err("there are no requests".into());
        }
        let mut trace = Self { requests, footprint: 0, end: 0 };
        trace.footprint = trace.accesses().map(|one| one.block).collect::<HashSet<_>>().len() as u64;
        trace.end = trace.accesses().map(|one| one.block + 1).max().unwrap_or(0);
        Ok(trace)
    }

    /// Its requests, block by block.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = Access> + '_ {
        self.requests.iter().flat_map(|one| {
            (one.first..one.first + one.blocks).map(|block| Access { block, writes: one.writes })
        })
    }
}
