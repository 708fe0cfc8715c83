//! The jobs behind a lock: asked by the admin API, worked on by the runner, waited for by anybody.
//!
//! Lock order: jobs before events. A driver is called without the lock. Nothing here blocks but
//! [`Jobs::wait`].

use super::driver::{Abort, JobDriver, Outlook};
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

/// Why waiting for a job gave no end.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum WaitError {
    /// No such job.
    #[error(transparent)]
    Unknown(#[from] RequestError),
    /// It has not ended in time.
    #[error("job {} has not ended in time; it goes on", .0.id)]
    TimedOut(Box<JobView>),
}

/// All jobs of a daemon. Cheap to clone; all clones are the same.
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
    /// For threads that wait: a job ended.
    ended: Condvar,
    /// For tasks that wait: how many jobs ended.
    ended_count: watch::Sender<u64>,
}

impl Jobs {
    /// No jobs. Events go to `hub`. The first is `first`: 1, or what [`Jobs::next_id`] said when
    /// the state was kept.
    #[must_use]
    pub fn new(hub: Hub, clock: Arc<dyn Clock>, limits: JobsLimits, first: JobId) -> Self {
        let table = Mutex::new(Table::new(hub, clock, limits, first));
        let shared = Shared { table, ended: Condvar::new(), ended_count: watch::Sender::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// The number of the next job, to be kept with the state so that numbers are not given twice.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        self.lock().next_id()
    }

    /// Takes a job: it runs now, or after others, or rides on another (see [`JobView::follows`]).
    ///
    /// # Errors
    /// Another job is in the way; the target does not fit; there are too many.
    pub fn start(&self, spec: JobSpec) -> Result<JobId, StartError> {
        self.lock().start(spec)
    }

    /// Asks for the end of a job. Asking twice is the same as once. What rides on it goes on by
    /// itself.
    ///
    /// # Errors
    /// There is no such job; it completed or failed; it is past the point of no return.
    pub fn cancel(&self, id: JobId) -> Result<Cancelled, RequestError> {
        let cancelled = self.lock().cancel(id);
        self.wake_waiters();
        cancelled
    }

    /// How a job stands.
    ///
    /// # Errors
    /// There is no such job (any more).
    pub fn get(&self, id: JobId) -> Result<JobView, RequestError> {
        self.lock().look(id)
    }

    /// Jobs that `filter` wants, the oldest first.
    #[must_use]
    pub fn list(&self, filter: &JobFilter) -> Vec<JobView> {
        self.lock().list(filter)
    }

    /// Waits in this thread until a job has ended.
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
            // Without an end that the clock can express, look again every hour.
            let left = until
                .map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(WaitError::TimedOut(Box::new(view)));
            }
            let woken = self.shared.ended.wait_timeout(table, left);
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a job has ended, without a thread. Needs a runtime of tokio with time.
    ///
    /// # Errors
    /// There is no such job, or it has not ended in time.
    pub async fn ended(&self, id: JobId, timeout: Duration) -> Result<JobView, WaitError> {
        let mut ended = self.shared.ended_count.subscribe();
        let wait = async {
            loop {
                let view = self.get(id)?;
                // An error says that no job can end any more; the sender lives as long as `self`.
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

    /// Jobs that may begin now, the oldest first. Also looks after deadlines: to be called a few
    /// times in a second.
    #[must_use]
    pub fn runnable(&self) -> Vec<(JobId, JobSpec)> {
        let tasks = self.tasks().into_iter();
        tasks.filter(|(_, _, task)| *task == JobTask::Begin).map(|(id, spec, _)| (id, spec)).collect()
    }

    /// Notes that work on a job begins. False if it may not: it was cancelled meanwhile, or is not
    /// its turn.
    #[must_use]
    pub fn begin(&self, id: JobId) -> bool {
        self.lock().begin(id)
    }

    /// Takes word of how a running job is; of any other job it is ignored.
    pub fn report(&self, id: JobId, report: Report) {
        self.lock().report(id, report);
        self.wake_waiters(); // a deadline may have ended what rides on it
    }

    /// Whether work on a job is to end early: it was cancelled, or failed its deadline. Then undo,
    /// and call [`Jobs::stopped`], or [`Jobs::too_late`] if it will be done anyway.
    #[must_use]
    pub fn should_stop(&self, id: JobId) -> bool {
        self.lock().should_stop(id)
    }

    /// Notes that a job is done as asked.
    pub fn finish(&self, id: JobId) {
        self.end(id, JobState::Completed);
    }

    /// Notes that a job cannot be done: why, and what to do, for people.
    pub fn fail(&self, id: JobId, about: MessageId, reason: impl Into<String>) {
        self.end(id, JobState::Failed { id: about, reason: reason.into() });
    }

    /// Notes that a job that was to stop has stopped.
    pub fn stopped(&self, id: JobId) {
        self.lock().stopped(id);
        self.wake_waiters();
    }

    /// Notes that a job is past the point of no return.
    pub fn too_late(&self, id: JobId) {
        self.lock().too_late(id);
    }

    /// Does what is to be done now with `driver`: begins, looks, aborts.
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
                    Outlook::Working(report) => self.report(id, report),
                    Outlook::Done => self.finish(id),
                    Outlook::Failed(about, reason) => self.fail(id, about, reason),
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
        // A panic of another holder is its own failure; the table is whole between any two calls on
        // it.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
