//! Work of a pool that may block. Threads remove mounts, block devices and socket files, so that
//! the pool does not wait.

use crate::may_wait::MayWait;
use crate::time_limit::spawn_or_return;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit of a detach for the removal of its leftovers, and the interval of its checks.
const TIMEOUT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Interval of retries if no thread could be started.
const AGAIN: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce(&MayWait) + Send>;
type Answer = Box<dyn FnOnce() + Send>;

/// Threads that remove leftovers, and the callers that wait for them, with deadlines.
pub(crate) struct BackgroundTasks {
    thread_name: String,
    threads: Vec<JoinHandle<()>>,
    /// Work without a thread, and the time of the next attempt.
    kept: Vec<Work>,
    again_at: Option<Instant>,
    waiting: Vec<(Answer, Instant)>,
}

impl BackgroundTasks {
    pub(crate) fn new(pool_name: &str) -> Self {
        Self {
            thread_name: format!("task-{pool_name}"),
            threads: Vec::new(),
            kept: Vec::new(),
            again_at: None,
            waiting: Vec::new(),
        }
    }

    /// Adds a thread to wait for, which ends on its own.
    pub(crate) fn wait_for(&mut self, thread: Option<JoinHandle<()>>) {
        self.threads.extend(thread);
    }

    /// Starts a thread for work that only a detach and the end of the pool wait for.
    pub(crate) fn start(&mut self, work: impl FnOnce(&MayWait) + Send + 'static) {
        self.kept.push(Box::new(work));
        self.begin();
    }

    /// Starts as much of the kept work as threads can be started.
    fn begin(&mut self) {
        for work in std::mem::take(&mut self.kept) {
            match spawn_or_return(&self.thread_name, work, |work| work(&MayWait::here())) {
                Ok(thread) => self.threads.push(thread),
                Err(work) => self.kept.extend(work),
            }
        }
        self.again_at = (!self.kept.is_empty()).then(|| Instant::now() + AGAIN);
    }

    /// Calls `answer` once all leftovers are removed, or that takes too long.
    pub(crate) fn when_done(&mut self, answer: impl FnOnce() + Send + 'static) {
        self.waiting.push((Box::new(answer), Instant::now() + TIMEOUT));
        self.tend();
    }

    /// Returns true if no leftovers remain to be removed.
    pub(crate) fn are_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished) && self.kept.is_empty()
    }

    /// Answers callers whose leftovers are removed; returns how long the loop may sleep until the
    /// next check.
    pub(crate) fn tend(&mut self) -> Option<Duration> {
        self.threads.retain(|thread| !thread.is_finished());
        let (idle, now) = (self.threads.is_empty(), Instant::now());
        if self.again_at.is_some_and(|due| due <= now) {
            self.begin();
        }
        for (answer, _) in self.waiting.extract_if(.., |(_, due)| idle || *due <= now) {
            answer();
        }
        let again = self.again_at.map(|due| due.saturating_duration_since(now).max(LOOK));
        (!self.waiting.is_empty()).then_some(LOOK).or(again)
    }
}
