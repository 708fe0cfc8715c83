//! Formats of other tools. Each file says what its format keeps and where that is described.
//!
//! A reader gives what is there, in the order of the file, with times as the file has them (the
//! caller makes them begin at 0). A writer says of each record what of it the format has no place
//! for.

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

/// What a line is.
pub(crate) enum Parsed {
    /// A request, of this device.
    Request(Record, Option<String>),
    /// A request without bytes.
    Empty,
    /// A heading, a summary, an event that is no request.
    Other,
}

/// A format with a request in a line.
pub(crate) trait TextFormat: Send {
    /// Reads a line.
    fn parse(&mut self, line: Line<'_>) -> Result<Parsed, TraceError>;
}

/// Reads a text.
pub(crate) struct TextReader {
    pub(crate) lines: Lines,
    pub(crate) format: Box<dyn TextFormat>,
}

/// A format that records are written in.
pub(crate) trait RecordWriter {
    /// Writes a record; says what of it is kept.
    fn put(&mut self, to: &mut dyn Write, record: &Record) -> Result<Kept, TraceError>;

    /// Writes what comes last.
    fn finish(&mut self, to: &mut dyn Write) -> Result<(), TraceError> {
        let _ = to;
        Ok(())
    }
}

/// The device that is asked for, among those that a file may have.
#[derive(Default)]
pub(crate) struct OneDevice {
    only: Option<String>,
    seen: Option<String>,
    /// Requests of others.
    pub(crate) others: u64,
}

impl OneDevice {
    pub(crate) fn new(options: &Options) -> Self {
        Self { only: options.only.clone(), seen: None, others: 0 }
    }

    /// Whether a request of this device is wanted.
    ///
    /// # Errors
    /// The file has several, and none was asked for.
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
