//! Errors of a daemon that did not start or did not end well, as messages for the operator: the
//! problem, and what to do next.

use forebay_admin::{AdminError, ErrorKind, MessageId};
use forebay_offline::Refusal;
use thiserror::Error;

/// Reason why a daemon did not start, or ended.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The options are invalid (exit code 2).
    #[error("{what}")]
    Usage {
        /// Message id, for scripts.
        id: MessageId,
        /// The problem.
        what: String,
    },
    /// An operation failed (exit code 1).
    #[error("{what}")]
    Failed {
        /// Message id, for scripts.
        id: MessageId,
        /// The problem, and where.
        what: String,
        /// The next step for the operator; can be empty.
        hint: String,
    },
}

impl RunError {
    /// An operation failed; the hint names the next step.
    pub fn failed(id: MessageId, what: impl ToString, hint: impl Into<String>) -> Self {
        Self::Failed { id, what: what.to_string(), hint: hint.into() }
    }

    /// The options are invalid.
    #[must_use]
    pub fn usage(id: MessageId, what: String) -> Self {
        Self::Usage { id, what }
    }

    /// The message id, for scripts.
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
            // A temporary condition is no fault of a device.
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
