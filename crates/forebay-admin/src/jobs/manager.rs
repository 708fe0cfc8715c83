//! The jobs behind a lock: the admin API makes requests, the runner does the work, and any thread
//! or task may wait.
//!
//! Lock order: jobs before events. The lock is never held while a driver is called. Nothing here
//! blocks but [`Jobs::wait`].

use super::driver::{Abort, JobDriver, WorkStatus};
use super::job::{JobId, JobSpec, JobState, JobView};
use super::progress::Report;
use super::request::{Cancelled, JobFilter, JobsLimits, RequestError, StartError};
use super::table::{JobTask, Table};
use crate::MessageId;
use crate::clock::Clock;
use crate::events::Hub;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;

/// Why a wait did not return an ended job.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum WaitError {
    /// No such job.
    #[error(transparent)]
    Unknown(#[from] RequestError),
    /// It did not end in time.
    #[error("job {} has not ended in time; it continues", .0.id)]
    TimedOut(Box<JobView>),
}

/// All jobs of a daemon. Cheap to clone; all clones share one table.
#[derive(Clone)]
pub struct Jobs {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").finish_non_exhaustive()
    }
}

struct Shared {
    table: Mutex<Table>,
    /// Wakes waiting threads when a job has ended.
    ended: Condvar,
    /// Wakes waiting tasks: the number of jobs that have ended.
    ended_count: watch::Sender<u64>,
}

impl Jobs {
    /// Creates an empty table that sends events to `hub`. The first job gets the number `first`: 1,
    /// or the value of [`Jobs::next_id`] in the saved state.
    #[must_use]
    pub fn new(hub: Hub, clock: Arc<dyn Clock>, limits: JobsLimits, first: JobId) -> Self {
        let table = Mutex::new(Table::new(hub, clock, limits, first));
        let shared = Shared { table, ended: Condvar::new(), ended_count: watch::Sender::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the number of the next job. The caller saves it with the state so that no number is
    /// reused.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        self.lock().next_id()
    }

    /// Accepts a job: it runs now, after others, or rides on another (see [`JobView::follows`]).
    ///
    /// Another job conflicts; the target does not fit the kind; there are too many jobs.
    pub fn start(&self, spec: JobSpec) -> Result<JobId, StartError> {
        self.lock().start(spec)
    }

    /// Requests the end of a job; idempotent. Jobs that ride on it are queued on their own.
    ///
    /// There is no such job; it completed or failed; it is past the point of no return.
    pub fn cancel(&self, id: JobId) -> Result<Cancelled, RequestError> {
        let cancelled = self.lock().cancel(id);
        self.wake_waiters();
        cancelled
    }

    /// Returns the state of a job.
    ///
    /// There is no such job, or it has been forgotten.
    pub fn get(&self, id: JobId) -> Result<JobView, RequestError> {
        self.lock().look(id)
    }

    /// Returns the jobs that match `filter`, oldest first.
    #[must_use]
    pub fn list(&self, filter: &JobFilter) -> Vec<JobView> {
        self.lock().list(filter)
    }

    /// Blocks this thread until a job has ended.
    ///
    /// # Errors
    /// There is no such job, or it has not ended in time.
    pub fn wait(&self, id: JobId, timeout: Duration) -> Result<JobView, WaitError> {
        let until = Instant::now().checked_add(timeout);
        let mut table = self.lock();
        loop {
            let view = table.look(id)?;
            if view.state.is_final() {
                return Ok(view);
            }
            // If the clock cannot express the end, check again every hour.
            let left = until
                .map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(WaitError::TimedOut(Box::new(view)));
            }
            let woken = self.shared.ended.wait_timeout(table, left);
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a job has ended, without blocking a thread. Needs a tokio runtime with time.
    ///
    /// # Errors
    /// There is no such job, or it has not ended in time.
    pub async fn ended(&self, id: JobId, timeout: Duration) -> Result<JobView, WaitError> {
        let mut ended = self.shared.ended_count.subscribe();
        let wait = async {
            loop {
                let view = self.get(id)?;
                // `changed` fails only if no job can end; the sender lives as long as `self`.
                if view.state.is_final() || ended.changed().await.is_err() {
                    return Ok(view);
                }
            }
        };
        match tokio::time::timeout(timeout, wait).await {
            Ok(view) => view,
            Err(_) => Err(WaitError::TimedOut(Box::new(self.get(id)?))),
        }
    }

    /// Returns jobs that may begin now, oldest first. Also checks deadlines, so the runner calls it
    /// a few times per second.
    #[must_use]
    pub fn runnable(&self) -> Vec<(JobId, JobSpec)> {
        let tasks = self.tasks().into_iter();
        tasks.filter(|(_, _, task)| *task == JobTask::Begin).map(|(id, spec, _)| (id, spec)).collect()
    }

    /// Records that work on a job begins. Returns false if it may not: it was cancelled meanwhile,
    /// or is not its turn.
    #[must_use]
    pub fn begin(&self, id: JobId) -> bool {
        self.lock().begin(id)
    }

    /// Records the report of a running job; ignores reports of other jobs.
    pub fn report(&self, id: JobId, report: Report) {
        self.lock().report(id, report);
        self.wake_waiters(); // a deadline may have ended jobs that ride on it
    }

    /// Returns whether the runner must end a job early: it was cancelled, or failed its deadline.
    /// The runner then undoes it and calls [`Jobs::stopped`], or [`Jobs::too_late`] if it will be
    /// done anyway.
    #[must_use]
    pub fn should_stop(&self, id: JobId) -> bool {
        self.lock().should_stop(id)
    }

    /// Records that a job is done as requested.
    pub fn finish(&self, id: JobId) {
        self.end(id, JobState::Completed);
    }

    /// Records that a job cannot be done, with the reason and the suggested action, in words.
    pub fn fail(&self, id: JobId, about: MessageId, reason: impl Into<String>) {
        self.end(id, JobState::Failed { id: about, reason: reason.into() });
    }

    /// Records that a job has stopped as requested.
    pub fn stopped(&self, id: JobId) {
        self.lock().stopped(id);
        self.wake_waiters();
    }

    /// Records that a job is past the point of no return.
    pub fn too_late(&self, id: JobId) {
        self.lock().too_late(id);
    }

    /// Begins, polls and aborts the jobs that are due, with `driver`.
    pub fn step(&self, driver: &mut dyn JobDriver) {
        for (id, spec, task) in self.tasks() {
            match task {
                JobTask::Begin if self.begin(id) => {
                    if let Err((about, reason)) = driver.begin(id, &spec) {
                        self.fail(id, about, reason);
                    }
                }
                JobTask::Begin => {}
                JobTask::Poll => match driver.poll(id, &spec) {
                    WorkStatus::Working(report) => self.report(id, report),
                    WorkStatus::Done => self.finish(id),
                    WorkStatus::Failed(about, reason) => self.fail(id, about, reason),
                },
                JobTask::Abort => match driver.abort(id, &spec) {
                    Abort::Done => self.stopped(id),
                    Abort::Pending => self.lock().undoing(id),
                    Abort::TooLate => self.too_late(id),
                },
            }
        }
    }

    fn tasks(&self) -> Vec<(JobId, JobSpec, JobTask)> {
        let tasks = self.lock().tasks();
        self.wake_waiters(); // deadlines may have ended some
        tasks
    }

    fn end(&self, id: JobId, state: JobState) {
        self.lock().end(id, state);
        self.wake_waiters();
    }

    /// Wakes waiters if jobs ended since the last call.
    fn wake_waiters(&self) {
        let ended = self.lock().ended_count();
        if self
            .shared
            .ended_count
            .send_if_modified(|count| ended > std::mem::replace(count, ended.max(*count)))
        {
            self.shared.ended.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic of another holder is that holder's failure; the table is consistent between any
        // two calls on it.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
