//! Block traces as files: the requests of clients to a volume, with their times.
//!
//! The modules, in the order of their imports: `error` (errors in a file, with their places),
//! `record` (one request), `native` (Forebay's own format), `unpack` (files packed with zstd),
//! `lines` (text), `formats` (the formats of other tools), `format` (all of them by name).
//!
//! None of them has payload. No code here opens a file or reads a clock.
#![forbid(unsafe_code)]

mod error;
mod format;
mod formats;
mod lines;
pub mod native;
mod record;
mod unpack;

pub use error::{Place, TraceError};
pub use format::{Format, Loss, NewTrace, Options, Reading, Sink, Source, Tally, reader, writer};
pub use record::{END_BYTES_MAX, Operation, Outcome, REQUEST_BYTES_MAX, Record};
