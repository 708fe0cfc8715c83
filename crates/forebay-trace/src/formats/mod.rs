//! Formats of other tools. Each file documents the data that its format keeps, and the source of
//! its specification.
//!
//! A reader returns records in the order of the file, with the times of the file (the caller makes
//! them begin at 0). A writer reports for each record the data that the format cannot hold.

pub(crate) mod alibaba;
pub(crate) mod binary;
pub(crate) mod blkparse;
pub(crate) mod csv;
pub(crate) mod iolog;
pub(crate) mod msr;

use crate::error::TraceError;
use crate::format::{Kept, Options};
use crate::lines::{Line, Lines};
use crate::record::Record;
use std::io::Write;

/// The meaning of a line.
pub(crate) enum Parsed {
    /// A request, of this device.
    Request(Record, Option<String>),
    /// A request without bytes.
    Empty,
    /// A heading, a summary, or an event other than a request.
    Other,
}

/// A text format with one request per line.
pub(crate) trait TextFormat: Send {
    /// Parses a line.
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError>;
}

/// Reads a text.
pub(crate) struct TextReader {
    pub(crate) lines: Lines,
    pub(crate) format: Box<dyn TextFormat>,
}

/// A writer of records in a format.
pub(crate) trait RecordWriter {
    /// Writes a record. Returns the parts kept.
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError>;

    /// Writes the end of the file.
    fn finish(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        let _ = to;
        Ok(())
    }
}

/// Selects one device of those in a file.
#[derive(Default)]
pub(crate) struct OneDevice {
    only: Option<String>,
    seen: Option<String>,
    /// Requests of other devices.
    pub(crate) others: u64,
}

impl OneDevice {
    pub(crate) fn new(options: &Options) -> Self {
        Self { only: options.only.clone(), seen: None, others: 0 }
    }

    /// Returns true if a request of this device is wanted.
    ///
    /// # Errors
    /// Returns an error if the file has several devices, and none was selected.
    pub(crate) fn wants(&mut self, device: &str, line: u64) -> Result<bool, TraceError> {
        if let Some(only) = &self.only {
            self.others += u64::from(only != device);
            return Ok(only == device);
        }
        let seen = self.seen.get_or_insert_with(|| device.to_owned());
        if seen == device {
            return Ok(true);
        }
        Err(TraceError::Useless(format!(
            "the trace is of several devices ({} and, in line {line}, {}): say which one is wanted with --only {}",
            seen.escape_debug(),
            device.escape_debug(),
            seen.escape_debug()
        )))
    }
}
