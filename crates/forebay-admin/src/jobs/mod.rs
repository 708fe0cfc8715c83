//! Jobs: flushes, detaches, changes of mode and size, and other long work. They can be watched,
//! waited for and cancelled.
//!
//! [`Jobs`] keeps the jobs and decides which may run. Whoever does the work has two ways in:
//! - a control thread implements [`JobDriver`] and calls [`Jobs::step`] some ten times in a second,
//!   or
//! - a loop of its own calls [`Jobs::runnable`], [`Jobs::begin`], [`Jobs::report`],
//!   [`Jobs::finish`], [`Jobs::fail`] and asks [`Jobs::should_stop`]. `step` is written with
//!   nothing else.
//!
//! Files: `job` (what a job is), `progress` (how fast and how long), `conflict` (which jobs go
//! together), `request` (what can be asked), `table` (keeps them, without lock or thread),
//! `manager` (the table behind a lock, with waiting), `driver` (the side of the runner).

mod conflict;
mod driver;
mod job;
mod manager;
mod progress;
mod request;
mod table;

pub use driver::{Abort, JobDriver, Outlook};
pub use job::{Deadline, JobId, JobIdError, JobKind, JobSpec, JobState, JobView, OnMiss, Phase};
pub use manager::{Jobs, WaitError};
pub use progress::{Left, Report};
pub use request::{Cancelled, JobFilter, JobsLimits, RequestError, StartError};

#[cfg(test)]
mod tests;
