//! The interface of the control thread that does the work of jobs.

use super::job::{JobId, JobSpec};
use super::progress::Report;
use crate::MessageId;

/// State of a running job, as the driver reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkStatus {
    /// Not done yet.
    Working(Report),
    /// Done as requested, durably.
    Done,
    /// The work cannot be done: the reason and the suggested action, in words. Its changes are
    /// undone as far as possible.
    Failed(MessageId, String),
}

/// Result of an attempt to end a job early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abort {
    /// It has ended. Its changes are undone, except that destaged data stays destaged.
    Done,
    /// The undo is in progress; call again.
    Pending,
    /// Past the point of no return: the job will be done as requested.
    TooLate,
}

/// Does the work of jobs. No method may block: the caller polls each job in turn some ten times per
/// second.
pub trait JobDriver {
    /// Begins the work. Called once for each job; then `poll` or `abort` follow until it has ended.
    ///
    /// The job cannot begin: the reason and the suggested action, in words. Nothing was changed.
    fn begin(&mut self, id: JobId, spec: &JobSpec) -> Result<(), (MessageId, String)>;

    /// Returns the job's state.
    fn poll(&mut self, id: JobId, spec: &JobSpec) -> WorkStatus;

    /// Tries to end the job early.
    fn abort(&mut self, id: JobId, spec: &JobSpec) -> Abort;
}
