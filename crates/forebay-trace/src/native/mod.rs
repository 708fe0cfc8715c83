//! Forebay's own format of traces: `docs/use/traces.md` specifies the bytes.
//!
//! A header, then blocks of records with a checksum each, then a block without records, which marks
//! the trace as complete. A file without that last block was truncated: the records before the end
//! count. All numbers are little endian.
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

/// Maximum of records in a block.
pub const BLOCK_RECORDS_MAX: usize = 4096;
