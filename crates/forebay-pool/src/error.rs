//! Why a daemon did not start or did not end well, in words for people: what, and what to do next.

use forebay_admin::{AdminError, ErrorKind};
use forebay_offline::Refusal;
use thiserror::Error;

/// Why a daemon did not start, or ended.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The options make no sense (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// Something did not work (exit code 1).
    #[error("{what}")]
    Failed {
        /// What was wrong, and where.
        what: String,
        /// What to do next; may be empty.
        hint: String,
    },
}

impl RunError {
    /// Something did not work, and what to do next.
    pub fn failed(what: impl ToString, hint: impl Into<String>) -> Self {
        Self::Failed { what: what.to_string(), hint: hint.into() }
    }
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        match refusal.is_usage {
            true => Self::Usage(refusal.what),
            false => Self::failed(refusal.what, refusal.hint),
        }
    }
}

impl From<RunError> for Refusal {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Usage(what) => Self::usage(what),
            RunError::Failed { what, hint } => Self::new(what).hint(hint),
        }
    }
}

impl From<RunError> for AdminError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Usage(what) => Self::new(ErrorKind::Invalid, what, ""),
            RunError::Failed { what, hint } => Self::new(ErrorKind::Failed, what, hint),
        }
    }
}

impl From<AdminError> for RunError {
    fn from(error: AdminError) -> Self {
        match error.kind {
            ErrorKind::Invalid if error.hint.is_empty() => Self::Usage(error.what),
            ErrorKind::Invalid => Self::Usage(format!("{}; {}", error.what, error.hint)),
            _ => Self::failed(error.what, error.hint),
        }
    }
}
