//! Errors in traces, with their places.

use std::fmt;
use thiserror::Error;

/// A place in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A line and a column of a text, both counted from 1.
    Line {
        /// Line.
        line: u64,
        /// Column, in bytes.
        column: u64,
    },
    /// A record of a binary file, counted from 0.
    Record(u64),
    /// A byte of the file.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, column } => write!(f, "line {line}, column {column}"),
            Self::Record(number) => write!(f, "record {number}"),
            Self::Byte(at) => write!(f, "byte {at}"),
        }
    }
}

/// The reason why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The system reported an error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is malformed.
    #[error("{place}: {what}")]
    Bad {
        /// The place.
        place: Place,
        /// The reason.
        what: String,
    },
    /// The file as a whole is unusable, or not in this format.
    #[error("{0}")]
    Useless(String),
}

impl TraceError {
    pub(crate) fn bad(place: Place, what: impl Into<String>) -> Self {
        Self::Bad { place, what: what.into() }
    }
}
