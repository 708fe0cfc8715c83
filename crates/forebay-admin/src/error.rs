//! Errors of requests, for people and for scripts.

use crate::MessageId;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// Hint for a failure to start a thread.
const NO_THREAD: &str = "nothing was started; the daemon is at a limit of its service (TasksMax=, \
                             LimitNPROC=, LimitAS=), its cgroup (pids.max), or the machine (threads-max): \
                             raise it, then try again";

/// Why a request failed. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, ToSchema)]
#[error("{what}")]
pub struct AdminError {
    /// Id in the table of messages, for scripts.
    #[schema(value_type = String)]
    pub id: MessageId,
    /// Kind, for scripts.
    pub kind: ErrorKind,
    /// The problem, and its place.
    pub what: String,
    /// Suggested action; may be empty.
    pub hint: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No pool, volume, job, rule or alarm of that name.
    NotFound,
    /// The request is wrong in any state: unknown key, value out of range, contradiction.
    Invalid,
    /// Refused in this state: the name is taken, the volume is being detached, the pool is in use.
    Conflict,
    /// A device, file or socket failed.
    Failed,
    /// The daemon is stopping, or too busy to answer in time.
    Unavailable,
    /// The caller lacks permission.
    Denied,
}

impl AdminError {
    /// Creates an error with this id, and the kind of the id.
    #[must_use]
    pub fn new(id: MessageId, what: impl ToString, hint: impl ToString) -> Self {
        Self { id, kind: id.kind(), what: what.to_string(), hint: hint.to_string() }
    }

    /// Changes the kind from the usual one of its id.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// Creates the error for a failed start of a thread: the work was not begun.
    #[must_use]
    pub fn no_thread(error: &std::io::Error) -> Self {
        Self::new(MessageId::DaemonNoThread, format!("cannot start a thread: {error}"), NO_THREAD)
    }

    /// Creates the error for a name that does not exist; `known` lists the names that do.
    #[must_use]
    pub fn not_found(id: MessageId, what: &str, name: &str, known: &[&str]) -> Self {
        let known = if known.is_empty() {
            format!("there is no {what} yet")
        } else {
            format!("there are: {}", known.join(", "))
        };
        Self::new(id, format!("no {what} \"{name}\""), known).of_kind(ErrorKind::NotFound)
    }
}
