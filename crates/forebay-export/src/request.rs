//! The common request, and the one check that every request passes.
//!
//! Purpose
//! - All protocols translate their requests into [`ClientRequest`].
//! - [`validate`] decides whether a volume may receive it. No later code checks again.
//!
//! Invariants of a valid request
//! - `offset_bytes + length_bytes` does not overflow and is at most the size of the volume.
//! - `length_bytes` is above zero for every operation but [`Operation::Flush`], where both are
//!   zero.
//! - Operations with payload are at most [`Bounds::payload_bytes_max`] long; trims, zeroes, cache
//!   hints and status queries have none and may be as long as the protocol permits (4 GiB - 1 over
//!   NBD).
//! - No operation that changes data reaches a read-only volume.
//!
//! Any byte alignment is accepted: the volume rounds to sectors.

use thiserror::Error;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Return the bytes of the range.
    Read,
    /// Replace the bytes of the range; the payload comes with the request.
    Write {
        /// Reply only after the data is durable.
        fua: bool,
    },
    /// Make all writes acknowledged before this request durable.
    Flush,
    /// The content of the range is no longer needed.
    Trim {
        /// Reply only after the effect is durable.
        fua: bool,
    },
    /// The range reads as zeroes from now on.
    WriteZeroes {
        /// Reply only after the effect is durable.
        fua: bool,
        /// The range must stay allocated.
        no_hole: bool,
        /// Fail at once with "not supported" unless this is faster than writing zeroes.
        fast_only: bool,
    },
    /// The range will be read soon.
    Cache,
    /// Returns which parts of the range are holes, zeroes, cached, dirty.
    BlockStatus {
        /// Describe the first extent only.
        one_extent: bool,
    },
}

impl Operation {
    /// Returns whether this changes, or may change, the content of the volume.
    pub fn modifies(self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Trim { .. } | Operation::WriteZeroes { .. })
    }

    /// Returns whether the reply must wait until the effect is durable.
    pub fn fua(self) -> bool {
        match self {
            Operation::Write { fua } | Operation::Trim { fua } | Operation::WriteZeroes { fua, .. } => fua,
            Operation::Read | Operation::Flush | Operation::Cache | Operation::BlockStatus { .. } => false,
        }
    }

    /// Returns whether the request or its reply has payload.
    pub fn has_payload(self) -> bool {
        matches!(self, Operation::Read | Operation::Write { .. })
    }
}

/// One request to one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRequest {
    /// The operation.
    pub operation: Operation,
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Length of the range.
    pub length_bytes: u64,
}

impl ClientRequest {
    /// Returns the byte after the range. Does not overflow for a request that passed [`validate`].
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.length_bytes)
    }
}

/// Limits of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Size of the volume.
    pub size_bytes: u64,
    /// Changes are refused.
    pub read_only: bool,
    /// The longest read or write.
    pub payload_bytes_max: u32,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A change to a read-only volume.
    #[error("the export is read-only")]
    ReadOnly,
    /// The range ends beyond the end of the volume.
    #[error("range {offset_bytes}+{length_bytes} ends past the export's {size_bytes} bytes")]
    PastEnd {
        /// Start of the range.
        offset_bytes: u64,
        /// Length of the range.
        length_bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// The payload exceeds the limit.
    #[error("{length_bytes} bytes in one request; at most {max_bytes} are accepted")]
    TooLong {
        /// Length of the request.
        length_bytes: u64,
        /// The limit.
        max_bytes: u32,
    },
    /// A flush with a range; it always covers the whole volume.
    #[error("a flush takes neither offset nor length")]
    FlushWithRange,
    /// A status query with an empty range.
    #[error("a block status query needs a length above zero")]
    EmptyStatus,
}

/// How to serve a permitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Pass it to the volume.
    Serve,
    /// It has no effect: report success at once.
    Nothing,
}

/// Checks a request: returns whether to serve it or that it has no effect, or why it is refused.
pub fn validate(request: &ClientRequest, bounds: &Bounds) -> Result<Admission, Refusal> {
    let ClientRequest { operation, offset_bytes, length_bytes } = *request;
    if bounds.read_only && operation.modifies() {
        return Err(Refusal::ReadOnly);
    }
    if operation == Operation::Flush {
        let ranged = offset_bytes != 0 || length_bytes != 0;
        return if ranged { Err(Refusal::FlushWithRange) } else { Ok(Admission::Serve) };
    }
    let end = offset_bytes.checked_add(length_bytes);
    if end.is_none_or(|end| end > bounds.size_bytes) {
        return Err(Refusal::PastEnd { offset_bytes, length_bytes, size_bytes: bounds.size_bytes });
    }
    if operation.has_payload() && length_bytes > u64::from(bounds.payload_bytes_max) {
        return Err(Refusal::TooLong { length_bytes, max_bytes: bounds.payload_bytes_max });
    }
    if length_bytes == 0 {
        return match operation {
            Operation::BlockStatus { .. } => Err(Refusal::EmptyStatus),
            _ => Ok(Admission::Nothing),
        };
    }
    Ok(Admission::Serve)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { size_bytes: 1 << 40, read_only: false, payload_bytes_max: 32 << 20 };
    const READ_ONLY: Bounds = Bounds { read_only: true, ..BOUNDS };
    const ZERO: Operation = Operation::WriteZeroes { fua: false, no_hole: false, fast_only: false };

    fn judge(operation: Operation, offset_bytes: u64, length_bytes: u64) -> Result<Admission, Refusal> {
        validate(&ClientRequest { operation, offset_bytes, length_bytes }, &BOUNDS)
    }

    #[test]
    fn last_byte_is_inside_and_the_next_is_not() {
        assert_eq!(judge(Operation::Read, (1 << 40) - 1, 1), Ok(Admission::Serve));
        assert!(matches!(judge(Operation::Read, (1 << 40) - 1, 2), Err(Refusal::PastEnd { .. })));
        assert!(matches!(judge(Operation::Read, u64::MAX, 2), Err(Refusal::PastEnd { .. })));
        assert!(matches!(judge(Operation::Read, u64::MAX, 0), Err(Refusal::PastEnd { .. })));
    }

    #[test]
    fn only_payload_is_limited_in_length() {
        let long = u64::from(u32::MAX);
        assert!(matches!(judge(Operation::Read, 0, (32 << 20) + 1), Err(Refusal::TooLong { .. })));
        assert!(matches!(
            judge(Operation::Write { fua: false }, 0, (32 << 20) + 1),
            Err(Refusal::TooLong { .. })
        ));
        assert_eq!(judge(Operation::Read, 0, 32 << 20), Ok(Admission::Serve));
        assert_eq!(judge(Operation::Trim { fua: true }, 0, long), Ok(Admission::Serve));
        assert_eq!(judge(ZERO, 1, long), Ok(Admission::Serve));
        assert_eq!(judge(Operation::Cache, 0, long), Ok(Admission::Serve));
        assert_eq!(judge(Operation::BlockStatus { one_extent: false }, 0, long), Ok(Admission::Serve));
    }

    #[test]
    fn zero_lengths_touch_nothing() {
        for operation in [Operation::Read, Operation::Write { fua: true }, ZERO, Operation::Cache] {
            assert_eq!(judge(operation, 1 << 40, 0), Ok(Admission::Nothing));
        }
        assert_eq!(judge(Operation::BlockStatus { one_extent: true }, 0, 0), Err(Refusal::EmptyStatus));
    }

    #[test]
    fn a_flush_has_no_range() {
        assert_eq!(judge(Operation::Flush, 0, 0), Ok(Admission::Serve));
        assert_eq!(judge(Operation::Flush, 0, 1), Err(Refusal::FlushWithRange));
        assert_eq!(judge(Operation::Flush, 1, 0), Err(Refusal::FlushWithRange));
    }

    #[test]
    fn a_read_only_volume_refuses_changes_first() {
        let changes = [Operation::Write { fua: false }, Operation::Trim { fua: false }, ZERO];
        for operation in changes {
            let request = ClientRequest { operation, offset_bytes: u64::MAX, length_bytes: 9 };
            assert_eq!(validate(&request, &READ_ONLY), Err(Refusal::ReadOnly));
        }
        let read = ClientRequest { operation: Operation::Read, offset_bytes: 0, length_bytes: 1 };
        assert_eq!(validate(&read, &READ_ONLY), Ok(Admission::Serve));
    }
}
