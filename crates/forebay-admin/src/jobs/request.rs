//! Requests to the jobs, their bounds, and the refusals.

use super::job::JobId;
use crate::{AdminError, MessageId};
use std::time::Duration;
use thiserror::Error;

/// Bounds of the jobs.
#[derive(Clone, Debug)]
pub struct JobsLimits {
    /// Most jobs that have not ended.
    pub active_max: usize,
    /// Most jobs that ended and are remembered.
    pub finished_max: usize,
    /// How long a job that ended is remembered.
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

/// Why a job was not taken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StartError {
    /// Another job is in the way.
    #[error(
        "{asked}: job {other} ({what}) is in the way; wait for it, or cancel it: forebay jobs {other} --cancel"
    )]
    Conflict {
        /// What was asked for.
        asked: String,
        /// The job in the way.
        other: JobId,
        /// What that does.
        what: String,
    },
    /// A job of a volume without one, or one of a pool with one.
    #[error("{0}: this kind of job is of {1}")]
    WrongTarget(String, &'static str),
    /// There are as many as there may be.
    #[error("{0} jobs have not ended, which is the limit; wait for one, or cancel one")]
    TooMany(usize),
}

/// Why nothing can be told of a job, or done to it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// No such job.
    #[error(
        "there is no job {id}; jobs that ended are remembered for {hours} hours, and the last {most} of them"
    )]
    Unknown {
        /// The one asked for.
        id: JobId,
        /// How long jobs are remembered.
        hours: u64,
        /// How many are remembered.
        most: usize,
    },
    /// It ended before.
    #[error("job {id} cannot be cancelled: it has {state}")]
    Ended {
        /// Which job.
        id: JobId,
        /// How it ended.
        state: &'static str,
    },
    /// It is about to be done.
    #[error("job {id} cannot be cancelled any more: it is past the point of no return, and about to be done")]
    TooLate {
        /// Which job.
        id: JobId,
    },
}

/// What a cancellation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// The job has ended.
    Already,
    /// The job will end, once what it began is undone.
    Requested,
}

/// Which jobs to list. The default lists all.
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
    /// What it is about, for scripts.
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
