//! One request of a trace.

use crate::error::{Place, TraceError};

/// Longest accepted read or write, in bytes: no device takes a longer one.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Limit of the end of a request, in bytes: 4 PiB, the end of the largest volume.
pub const END_BYTES_MAX: u64 = 1 << 52;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Makes acknowledged writes durable. It has no range.
    Flush,
    /// The data of the range is no longer needed.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
        }
    }

    /// Returns true if it changes the content of the volume.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

/// The path of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Outcome {
    /// The trace does not record it.
    #[default]
    Unknown,
    /// A read answered by the cache alone, or a write that went to the log.
    Hit,
    /// A read answered by the backing store alone.
    Miss,
    /// A read of which the cache had a part.
    Partly,
    /// The request bypassed the cache.
    Bypass,
    /// It failed.
    Error,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 6] =
        [Self::Unknown, Self::Hit, Self::Miss, Self::Partly, Self::Bypass, Self::Error];

    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Partly => "partly",
            Self::Bypass => "bypass",
            Self::Error => "error",
        }
    }
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Arrival time, in nanoseconds since the beginning of the trace. Records may be in another
    /// order than these times.
    pub at_ns: u64,
    /// The operation.
    pub operation: Operation,
    /// Whether it had to be durable before the reply.
    pub fua: bool,
    /// Offset, in bytes.
    pub offset: u64,
    /// Length, in bytes; 0 for a flush only.
    pub len: u64,
    /// Its path.
    pub outcome: Outcome,
    /// Time until the reply, in nanoseconds, if known.
    pub latency_ns: Option<u64>,
}

impl Record {
    /// Creates a request with unknown outcome and latency.
    #[must_use]
    pub fn new(at_ns: u64, operation: Operation, offset: u64, len: u64) -> Self {
        Self { at_ns, operation, fua: false, offset, len, outcome: Outcome::Unknown, latency_ns: None }
    }

    /// Returns the end of its range, in bytes. The record must have been checked.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Returns the record if a volume can take it.
    ///
    /// # Errors
    /// Returns an error if it is longer than any request, ends behind the largest volume, or has no
    /// bytes.
    pub(crate) fn checked(self, place: Place) -> Result<Self, TraceError> {
        let (name, offset, len) = (self.operation.name(), self.offset, self.len);
        if self.operation == Operation::Flush {
            return Ok(Self { offset: 0, len: 0, ..self });
        }
        if len == 0 {
            return Err(TraceError::bad(place, format!("a {name} of no bytes")));
        }
        if len > REQUEST_BYTES_MAX && matches!(self.operation, Operation::Read | Operation::Write) {
            return Err(TraceError::bad(
                place,
                format!("a {name} of {len} bytes: {REQUEST_BYTES_MAX} are the most of one request"),
            ));
        }
        if offset.checked_add(len).is_none_or(|end| end > END_BYTES_MAX) {
            return Err(TraceError::bad(
                place,
                format!("a {name} of {len} bytes from {offset} on: no volume goes beyond {END_BYTES_MAX}"),
            ));
        }
        Ok(self)
    }
}
