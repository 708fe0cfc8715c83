//! Why something was not done, for people and for scripts.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// Why something was not done. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, ToSchema)]
#[error("{what}")]
pub struct AdminError {
    /// Kind, for scripts.
    pub kind: ErrorKind,
    /// What was wrong, and where.
    pub what: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No pool, volume, job, rule or alarm of that name.
    NotFound,
    /// The request makes no sense whatever the state: unknown key, value out of range,
    /// contradiction.
    Invalid,
    /// Not in this state: the name is taken, the volume is being detached, the pool is in use.
    Conflict,
    /// A device, file or socket did not do what was asked.
    Failed,
    /// The daemon is stopping, or too busy to answer in time.
    Unavailable,
    /// Whoever asks may not.
    Denied,
}

impl AdminError {
    /// An error of a kind.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl ToString, hint: impl ToString) -> Self {
        Self { kind, what: what.to_string(), hint: hint.to_string() }
    }

    /// There is no such thing; `known` are the names that there are.
    #[must_use]
    pub fn not_found(what: &str, name: &str, known: &[&str]) -> Self {
        let known = if known.is_empty() {
            format!("there is no {what} yet")
        } else {
            format!("there are: {}", known.join(", "))
        };
        Self::new(ErrorKind::NotFound, format!("no {what} \"{name}\""), known)
    }
}
