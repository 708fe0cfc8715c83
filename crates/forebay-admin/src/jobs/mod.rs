//! Jobs: flushes, detaches, changes of mode and size, and other long work. Clients can watch, await
//! and cancel them.
//!
//! [`Jobs`] keeps the jobs and decides which may run. The runner has two ways to do the work:
//! - a control thread implements [`JobDriver`] and calls [`Jobs::step`] some ten times per second,
//!   or
//! - its own loop calls [`Jobs::runnable`], [`Jobs::begin`], [`Jobs::report`], [`Jobs::finish`],
//!   [`Jobs::fail`] and [`Jobs::should_stop`]. `step` uses only these.
//!
//! Files: `job` (types of a job), `progress` (rate and time left), `conflict` (which jobs may run
//! concurrently), `request` (requests and refusals), `table` (all jobs, without lock or thread),
//! `manager` (the table behind a lock, with waiting), `driver` (the runner's interface).

mod conflict;
mod driver;
mod job;
mod manager;
mod progress;
mod request;
mod table;

pub use driver::{Abort, JobDriver, WorkStatus};
pub use job::{Deadline, JobId, JobIdError, JobKind, JobSpec, JobState, JobView, OnMiss, Phase};
pub use manager::{Jobs, WaitError};
pub use progress::{Left, Report};
pub use request::{Cancelled, JobFilter, JobsLimits, RequestError, StartError};

#[cfg(test)]
mod tests;
