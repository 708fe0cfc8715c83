//! Why something was not done, for people and for scripts.

use crate::MessageId;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// What to do if there is no further thread.
const NO_THREAD: &str = "nothing was begun; the daemon is at a limit of its service (TasksMax=, LimitNPROC=, LimitAS=), its cgroup \
                             (pids.max), or the machine (threads-max): raise it, then try again";

/// Why something was not done. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, ToSchema)]
#[error("{what}")]
pub struct AdminError {
    /// What it is about, for scripts: an id of the table of messages.
    #[schema(value_type = String)]
    pub id: MessageId,
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
    /// An error with an id, which has the kind with it.
    #[must_use]
    pub fn new(id: MessageId, what: impl ToString, hint: impl ToString) -> Self {
        Self { id, kind: id.kind(), what: what.to_string(), hint: hint.to_string() }
    }

    /// The same error, of another kind than its id usually has.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// There is no thread for what was asked, so it was not begun.
    #[must_use]
    pub fn no_thread(error: &std::io::Error) -> Self {
        Self::new(MessageId::DaemonNoThread, format!("cannot start a thread: {error}"), NO_THREAD)
    }

    /// There is no such thing; `known` are the names that there are.
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
