//! One request of a trace.

use crate::error::{Place, TraceError};

/// Longest read or write that is believed, in bytes: no device takes a longer one.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// No request ends behind this byte: 4 PiB, the end of the largest volume.
pub const END_BYTES_MAX: u64 = 1 << 52;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable what was acknowledged. It has no range.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// The word for it.
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

    /// It changes what the volume holds.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

/// Which way a request went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Outcome {
    /// The trace does not say.
    #[default]
    Unknown,
    /// A read that the cache answered alone, or a write that the log took.
    Hit,
    /// A read that the backing store answered alone.
    Miss,
    /// A read of which the cache had a part.
    Partly,
    /// Past the cache.
    Bypass,
    /// It failed.
    Error,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Unknown, Self::Hit, Self::Miss, Self::Partly, Self::Bypass, Self::Error];

    /// The word for it.
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
    /// When it came, in nanoseconds since the beginning of the trace. Records may be in another
    /// order than these times.
    pub at_ns: u64,
    /// What it asked for.
    pub operation: Operation,
    /// It was to be durable before its answer.
    pub fua: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush only.
    pub len: u64,
    /// Which way it went.
    pub outcome: Outcome,
    /// Time until its answer, in nanoseconds, if that is known.
    pub latency_ns: Option<u64>,
}

impl Record {
    /// A request of which nothing else is known.
    #[must_use]
    pub fn new(at_ns: u64, operation: Operation, offset: u64, len: u64) -> Self {
        Self { at_ns, operation, fua: false, offset, len, outcome: Outcome::Unknown, latency_ns: None }
    }

    /// First byte behind it; of a record that was checked.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The same, if a volume can take it.
    ///
    /// # Errors
    /// It is longer than any request, ends behind the largest volume, or has no bytes.
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
