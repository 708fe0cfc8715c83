//! Requests received and not yet answered, and the writers among them that wait for a job.
//!
//! Invariants
//! - A waiting writer holds no thread: one thread serves all of them.
//! - Each request is answered once: the event that removes it from the table (end of the job,
//!   interrupt, stop) answers it.
//! - At most [`WAITING_MAX`] wait, and [`super::server::THREADS`] more when several arrive at once.

use forebay_export::fuse::Answer;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of writers that wait for jobs.
pub(super) const WAITING_MAX: usize = 1024;

/// A writer that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) job: String,
    /// The file that was written.
    pub(super) path: String,
    pub(super) answer: Answer,
}

#[derive(Debug)]
enum Stage {
    /// A thread is handling it; its user may have interrupted it.
    Working {
        interrupted: bool,
    },
    Waiting(Wait),
}

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u64, Stage>,
    waiting: usize,
    stopping: bool,
}

/// Reason why a writer cannot wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoWait {
    /// It was interrupted meanwhile.
    Interrupted,
    /// The file system is being unmounted.
    Stopping,
}

/// State of a request when its interrupt arrived.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum InterruptOutcome {
    /// A writer that waited; removed from the table, and must be answered.
    Waiting(Wait),
    /// A request that a thread is handling: it will not wait.
    Working,
    /// A request that is unknown or was answered.
    Nothing,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    table: Mutex<Table>,
    /// Signals a new waiter, or the stop.
    changed: Condvar,
}

impl PendingRequests {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a thread begins to handle a request.
    pub(super) fn begin(&self, unique: u64) {
        self.lock().requests.insert(unique, Stage::Working { interrupted: false });
    }

    /// Notes the answer of a request that a thread handled. A waiting one stays.
    pub(super) fn end(&self, unique: u64) {
        let mut table = self.lock();
        if let Some(Stage::Working { .. }) = table.requests.get(&unique) {
            table.requests.remove(&unique);
        }
    }

    /// Returns true if there is room for one more waiter.
    pub(super) fn may_wait(&self) -> bool {
        self.lock().waiting < WAITING_MAX
    }

    /// Makes a request in progress wait, without a thread.
    pub(super) fn wait(&self, wait: Wait) -> Result<(), NoWait> {
        let mut table = self.lock();
        let unique = wait.answer.unique;
        match table.requests.get(&unique) {
            _ if table.stopping => return Err(NoWait::Stopping),
            Some(Stage::Working { interrupted: true }) => return Err(NoWait::Interrupted),
            _ => {}
        }
        table.requests.insert(unique, Stage::Waiting(wait));
        table.waiting += 1;
        self.changed.notify_all();
        Ok(())
    }

    /// Handles the interrupt of a request.
    pub(super) fn interrupt(&self, unique: u64) -> InterruptOutcome {
        let mut table = self.lock();
        match table.requests.get_mut(&unique) {
            None => return InterruptOutcome::Nothing,
            Some(Stage::Working { interrupted }) => {
                *interrupted = true;
                return InterruptOutcome::Working;
            }
            Some(Stage::Waiting(_)) => {}
        }
        let mut taken = table.take(|other, _| other == unique);
        taken.pop().map_or(InterruptOutcome::Nothing, InterruptOutcome::Waiting)
    }

    /// Blocks until a request waits; returns the jobs waited for, or `None` when it is time to
    /// stop.
    pub(super) fn jobs(&self) -> Option<Vec<String>> {
        let table = self.lock();
        let idle = |table: &mut Table| table.waiting == 0 && !table.stopping;
        let table = self.changed.wait_while(table, idle).unwrap_or_else(PoisonError::into_inner);
        let waiting = table.requests.values().filter_map(|stage| match stage {
            Stage::Waiting(wait) => Some(wait.job.as_str()),
            Stage::Working { .. } => None,
        });
        let jobs: BTreeSet<&str> = waiting.collect();
        (!table.stopping).then(|| jobs.into_iter().map(str::to_owned).collect())
    }

    /// Blocks for `time`, or until it is time to stop.
    pub(super) fn pause(&self, time: Duration) {
        let running = |table: &mut Table| !table.stopping;
        let _ = self.changed.wait_timeout_while(self.lock(), time, running);
    }

    /// Removes and returns the waiters of a job; the caller must answer them.
    pub(super) fn take(&self, job: &str) -> Vec<Wait> {
        self.lock().take(|_, wait| wait.job == job)
    }

    /// Ends all waiting; the caller must answer the returned waiters.
    pub(super) fn stop(&self) -> Vec<Wait> {
        let mut table = self.lock();
        table.stopping = true;
        self.changed.notify_all();
        table.take(|_, _| true)
    }
}

impl Table {
    fn take(&mut self, which: impl Fn(u64, &Wait) -> bool) -> Vec<Wait> {
        let chosen =
            |unique: &u64, stage: &mut Stage| matches!(stage, Stage::Waiting(wait) if which(*unique, wait));
        let taken = self.requests.extract_if(chosen);
        let taken: Vec<Wait> = taken
            .filter_map(|(_, stage)| match stage {
                Stage::Waiting(wait) => Some(wait),
                Stage::Working { .. } => None,
            })
            .collect();
        self.waiting -= taken.len();
        taken
    }
}
