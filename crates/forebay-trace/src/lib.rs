//! Block traces as files: what clients asked of a volume, and when.
//!
//! The modules, in the order of their imports: `error` (what is wrong with a file, and where),
//! `record` (one request), `native` (Forebay's own format), `unpack` (files packed with zstd),
//! `lines` (text), `foreign` (the formats of other tools), `format` (all of them by name).
//!
//! No payload is in any of them. Nothing here opens a file or knows a clock.
#![forbid(unsafe_code)]

mod error;
mod foreign;
mod format;
mod lines;
pub mod native;
mod record;
mod unpack;

pub use error::{Place, TraceError};
pub use format::{Format, Loss, NewTrace, Options, Reading, Sink, Source, Tally, reader, writer};
pub use record::{END_BYTES_MAX, Operation, Outcome, REQUEST_BYTES_MAX, Record};
