//! What is wrong with a trace, and where.

use std::fmt;
use thiserror::Error;

/// Where in a file something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A line and a column of a text, both from 1 on.
    Line {
        /// Line.
        line: u64,
        /// Column, in bytes.
        column: u64,
    },
    /// A record of a binary file, from 0 on.
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

/// Why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is not what it should be.
    #[error("{place}: {what}")]
    Bad {
        /// Where.
        place: Place,
        /// What is wrong there.
        what: String,
    },
    /// All of the file makes no sense, or not in this format.
    #[error("{0}")]
    Useless(String),
}

impl TraceError {
    pub(crate) fn bad(place: Place, what: impl Into<String>) -> Self {
        Self::Bad { place, what: what.into() }
    }
}
