//! The side of whoever does the work of jobs.

use super::job::{JobId, JobSpec};
use super::progress::Report;
use crate::MessageId;

/// How a running job looks to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// Not done yet.
    Working(Report),
    /// Done as asked, durably.
    Done,
    /// It cannot be done: why, and what to do, for people. What it changed is undone as far as it
    /// can be.
    Failed(MessageId, String),
}

/// What became of the wish to end a job early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abort {
    /// It is ended, and things are as they were before it, but for the data that was destaged.
    Done,
    /// Being undone; ask again.
    Pending,
    /// Past the point of no return: it will be done as asked.
    TooLate,
}

/// Does the work of jobs. No method may block: they are called some ten times in a second, for each
/// job in turn.
pub trait JobDriver {
    /// Begins the work. Called once for each job; then `poll` or `abort` until it ended.
    ///
    /// # Errors
    /// It cannot begin: why, and what to do, for people. Nothing was changed.
    fn begin(&mut self, id: JobId, spec: &JobSpec) -> Result<(), (MessageId, String)>;

    /// Looks how it is.
    fn poll(&mut self, id: JobId, spec: &JobSpec) -> Outlook;

    /// Tries to end it early.
    fn abort(&mut self, id: JobId, spec: &JobSpec) -> Abort;
}
