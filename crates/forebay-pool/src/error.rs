//! Why a daemon did not start or did not end well, in words for people: what, and what to do next.

use forebay_admin::{AdminError, ErrorKind, MessageId};
use forebay_offline::Refusal;
use thiserror::Error;

/// Why a daemon did not start, or ended.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The options make no sense (exit code 2).
    #[error("{what}")]
    Usage {
        /// What it is about, for scripts.
        id: MessageId,
        /// What was wrong.
        what: String,
    },
    /// Something did not work (exit code 1).
    #[error("{what}")]
    Failed {
        /// What it is about, for scripts.
        id: MessageId,
        /// What was wrong, and where.
        what: String,
        /// What to do next; may be empty.
        hint: String,
    },
}

impl RunError {
    /// Something did not work, and what to do next.
    pub fn failed(id: MessageId, what: impl ToString, hint: impl Into<String>) -> Self {
        Self::Failed { id, what: what.to_string(), hint: hint.into() }
    }

    /// The options make no sense.
    #[must_use]
    pub fn usage(id: MessageId, what: String) -> Self {
        Self::Usage { id, what }
    }

    /// What it is about, for scripts.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Usage { id, .. } | Self::Failed { id, .. } => *id,
        }
    }
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        match refusal.is_usage {
            true => Self::usage(refusal.id, refusal.what),
            false => Self::failed(refusal.id, refusal.what, refusal.hint),
        }
    }
}

impl From<RunError> for Refusal {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Usage { id, what } => Self::usage(id, what),
            RunError::Failed { id, what, hint } => Self::new(id, what).hint(hint),
        }
    }
}

impl From<RunError> for AdminError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Usage { id, what } => Self::new(id, what, "").of_kind(ErrorKind::Invalid),
            // Why something is not possible just now is no fault of a device.
            RunError::Failed { id, what, hint } if id.kind() == ErrorKind::Unavailable => {
                Self::new(id, what, hint)
            }
            RunError::Failed { id, what, hint } => Self::new(id, what, hint).of_kind(ErrorKind::Failed),
        }
    }
}

impl From<AdminError> for RunError {
    fn from(error: AdminError) -> Self {
        match error.kind {
            ErrorKind::Invalid if error.hint.is_empty() => Self::usage(error.id, error.what),
            ErrorKind::Invalid => Self::usage(error.id, format!("{}; {}", error.what, error.hint)),
            _ => Self::failed(error.id, error.what, error.hint),
        }
    }
}
