//! How other threads reach a pool.

use super::{Pool, PoolEvent, PoolStart};
use crate::error::RunError;
use crate::open::PoolParts;
use forebay_io::Waker;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long an asker waits for the pool's thread.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether a thread has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Something to do on the pool's thread.
pub(super) type Task = Box<dyn FnOnce(&mut Pool) + Send>;

/// The pool does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum PoolGone {
    /// It has ended.
    #[error("the pool has stopped")]
    Stopped,
    /// It is busy.
    #[error("the pool did not answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// An answer that comes later, when the engine is done.
#[derive(Debug)]
pub(crate) struct Promise<T>(mpsc::Receiver<T>);

impl<T> Promise<T> {
    pub(crate) fn pair() -> (mpsc::SyncSender<T>, Self) {
        let (keep, receiver) = mpsc::sync_channel(1);
        (keep, Self(receiver))
    }

    /// Waits for the answer so long: `None` if it has not come, `Some(None)` if the pool has ended without one.
    pub(crate) fn try_wait(&self, patience: Duration) -> Option<Option<T>> {
        match self.0.recv_timeout(patience) {
            Ok(answer) => Some(Some(answer)),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(None),
        }
    }

    /// Waits for the answer; `None` if the pool has ended without one.
    pub(crate) fn wait(self) -> Option<T> {
        self.0.recv().ok()
    }
}

/// A running pool. Dropping it does not stop the pool; [`PoolHandle::stop`] does.
pub(crate) struct PoolHandle {
    tasks: Mutex<mpsc::Sender<Task>>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<Result<(), RunError>>>>,
}

impl std::fmt::Debug for PoolHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolHandle").finish_non_exhaustive()
    }
}

impl PoolHandle {
    /// Starts a thread that opens the pool and serves it. Returns when recovery is done.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub(crate) fn start(
        start: PoolStart,
        parts: PoolParts,
        report: Box<dyn FnMut(PoolEvent) + Send>,
    ) -> Result<Self, RunError> {
        let (asking, tasks) = mpsc::channel();
        let myself = asking.clone();
        let (opened, result) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("pool-{}", start.name))
            .spawn(move || match Pool::open(start, parts, (myself, tasks), || report) {
                Ok(pool) => {
                    let _ = opened.send(Ok(pool.reactor.waker()));
                    pool.serve()
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                    Ok(())
                }
            })
            .map_err(|error| RunError::failed(format!("cannot start a thread: {error}"), ""))?;
        let ended = || RunError::failed("the pool's thread ended while it was opened", "");
        let waker = result.recv().map_err(|_| ended())??;
        Ok(Self { tasks: Mutex::new(asking), waker, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `what` on the pool's thread and returns its result.
    ///
    /// # Errors
    /// The pool has stopped, or does not answer in time.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<T, PoolGone> {
        self.begin(what)?.recv_timeout(PATIENCE).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => PoolGone::Late,
            mpsc::RecvTimeoutError::Disconnected => PoolGone::Stopped,
        })
    }

    /// As [`PoolHandle::ask`], however long it takes: for what must not be done without anybody who takes the result.
    ///
    /// # Errors
    /// The pool has stopped.
    pub(crate) fn ask_and_wait<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<T, PoolGone> {
        self.begin(what)?.recv().map_err(|_| PoolGone::Stopped)
    }

    fn begin<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<mpsc::Receiver<T>, PoolGone> {
        let (answer, answered) = mpsc::sync_channel(1);
        let task: Task = Box::new(move |pool| {
            let _ = answer.try_send(what(pool));
        });
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(task)
            .map_err(|_| PoolGone::Stopped)?;
        self.waker.wake();
        Ok(answered)
    }

    /// Stops the pool in an orderly way and waits for it; again and again is fine.
    ///
    /// # Errors
    /// What ended the pool, if that was not an orderly stop.
    pub(crate) fn stop(&self) -> Result<(), RunError> {
        let _ = self.ask(Pool::stop); // an error says that it has ended already
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(RunError::failed("the pool's thread panicked", "")))
    }

    /// Waits for the end of a pool that was told to stop; true if it came in time.
    pub(crate) fn ends_by(&self, until: Instant) -> bool {
        while !self.has_ended() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// True once the pool's thread has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}
