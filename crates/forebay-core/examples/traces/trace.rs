//! Block traces: files of records of 24 bytes, little endian: u64 nanoseconds, u64 first block of
//! 4 KiB, u32 blocks, u32 write (0 or 1).
//!
//! Times are not used. A record of no blocks counts as one block. `bench/tracing/records.py` reads
//! the same files and has the same limits.

use super::exact::Access;
use forebay_core::REQUEST_BYTES_MAX;
use std::collections::HashSet;

const BLOCK: u64 = 4096;
const RECORD: usize = 24;
/// Blocks of the longest request.
const BLOCKS_MAX: u64 = REQUEST_BYTES_MAX / BLOCK;
/// Blocks of the largest volume.
const END_MAX: u64 = 1 << 40;

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
    /// If it cannot be read, is no sequence of records, or has a request that no volume takes.
    pub(crate) fn read(file: &str) -> Result<Self, String> {
        let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
        if bytes.is_empty() || bytes.len() % RECORD != 0 {
            return Err(format!("{} bytes are no records of {RECORD} bytes", bytes.len()));
        }
        let requests: Vec<Request> = bytes.chunks_exact(RECORD).map(request).collect();
        for (at, one) in requests.iter().enumerate() {
            if one.blocks > BLOCKS_MAX || one.first >= END_MAX - one.blocks {
                let (first, blocks) = (one.first, one.blocks);
                return Err(format!(
                    "record {at}: {blocks} blocks from {first} on; a request has at most {BLOCKS_MAX} blocks, \
                     and ends below block {END_MAX}"
                ));
            }
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

fn request(record: &[u8]) -> Request {
    let word = |at: usize, len: usize| {
        record[at..at + len].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
    };
    Request { first: word(8, 8), blocks: word(16, 4).max(1), writes: word(20, 4) != 0 }
}
