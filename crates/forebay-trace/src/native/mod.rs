//! Forebay's own format of traces: `docs/use/traces.md` has the bytes.
//!
//! A header, then blocks of records with a checksum each, then a block without records, which says
//! that the trace is whole. A file without that last block was cut off: what is before the cut
//! counts. All numbers are little endian.
//!
//! Files: `layout` (header and heads of blocks), `records` (records as bytes), `write`, `read`.

mod layout;
mod read;
mod records;
mod write;

#[cfg(test)]
mod tests;

pub use layout::{EXTENSION, Header, MAGIC, NAME_BYTES_MAX, VERSION};
pub use read::{Ending, Reader};
pub use write::{BlockWriter, Writer};

/// Most records of a block.
pub const BLOCK_RECORDS_MAX: usize = 4096;
