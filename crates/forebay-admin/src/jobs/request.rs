//! Requests for jobs, limits, and refusals.

use super::job::JobId;
use crate::{AdminError, MessageId};
use std::time::Duration;
use thiserror::Error;

/// Limits of the job table.
#[derive(Clone, Debug)]
pub struct JobsLimits {
    /// Most jobs that have not ended.
    pub active_max: usize,
    /// Most ended jobs that are kept.
    pub finished_max: usize,
    /// How long an ended job is kept.
    pub finished_age: Duration,
    /// Least time between two progress events of a job.
    pub progress_interval: Duration,
}

impl Default for JobsLimits {
    fn default() -> Self {
        Self {
            active_max: 256,
            finished_max: 1_000,
            finished_age: Duration::from_secs(24 * 3600),
            progress_interval: Duration::from_secs(1),
        }
    }
}

/// Why a job was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StartError {
    /// Another job conflicts.
    #[error(
        "{asked}: job {other} ({what}) is in the way; wait for it, or cancel it: forebay jobs {other} --cancel"
    )]
    Conflict {
        /// The request.
        asked: String,
        /// The conflicting job.
        other: JobId,
        /// Its work.
        what: String,
    },
    /// A job of a volume without a volume, or a job of a pool with one.
    #[error("{0}: this kind of job is of {1}")]
    WrongTarget(String, &'static str),
    /// The limit on jobs is reached.
    #[error("{0} jobs have not ended, which is the limit; wait for one, or cancel one")]
    TooMany(usize),
}

/// Why a query or a change of a job failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// No such job.
    #[error(
        "there is no job {id}; jobs that ended are remembered for {hours} hours, and the last {most} of them"
    )]
    Unknown {
        /// The requested id.
        id: JobId,
        /// How long ended jobs are kept.
        hours: u64,
        /// How many ended jobs are kept.
        most: usize,
    },
    /// It has already ended.
    #[error("job {id} cannot be cancelled: it has {state}")]
    Ended {
        /// Which job.
        id: JobId,
        /// Its final state.
        state: &'static str,
    },
    /// It is past the point of no return.
    #[error("job {id} can no longer be cancelled: it is past the point of no return, and about to complete")]
    TooLate {
        /// Which job.
        id: JobId,
    },
}

/// Effect of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// The job has ended.
    Already,
    /// The job ends once its changes are undone.
    Requested,
}

/// Selects jobs to list. The default selects all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobFilter {
    /// Only of this pool.
    pub pool: Option<String>,
    /// Only of this volume.
    pub volume: Option<String>,
    /// Only in the state of this name.
    pub state: Option<String>,
    /// Only of the kind of this name.
    pub kind: Option<String>,
}

impl StartError {
    /// Returns the id of the message, for scripts.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Conflict { .. } => MessageId::JobConflict,
            Self::WrongTarget(..) => MessageId::JobTarget,
            Self::TooMany(_) => MessageId::JobTooMany,
        }
    }
}

impl From<StartError> for AdminError {
    fn from(error: StartError) -> Self {
        Self::new(error.id(), error, "`forebay jobs` lists the jobs")
    }
}

impl From<RequestError> for AdminError {
    fn from(error: RequestError) -> Self {
        let id = match error {
            RequestError::Unknown { .. } => MessageId::JobUnknown,
            RequestError::Ended { .. } => MessageId::JobEnded,
            RequestError::TooLate { .. } => MessageId::JobTooLate,
        };
        Self::new(id, error, "`forebay jobs` lists the jobs")
    }
}
