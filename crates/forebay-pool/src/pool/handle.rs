//! Handle through which other threads reach a pool.

use super::{Pool, PoolEvent, PoolStart};
use crate::error::RunError;
use crate::may_wait::MayWait;
use crate::open::PoolParts;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_io::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time limit for the pool's thread to begin a task.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Further time for a task that has begun by then. A task takes at most a turn, unless a system
/// call hangs.
const STUCK: Duration = Duration::from_secs(30);
/// Interval of progress checks during the stop of a pool.
const PROGRESS_LOOK: Duration = Duration::from_secs(1);
/// Interval of checks whether a thread has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Something to do on the pool's thread.
pub(super) type PoolTask = Box<dyn FnOnce(&mut Pool) + Send>;

/// The pool does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PoolGone {
    /// It has ended.
    #[error("the pool has stopped")]
    Stopped,
    /// It is busy.
    #[error("the pool did not answer within {} s; nothing was done", TIMEOUT.as_secs())]
    Late,
    /// It missed a deadline before, and is not asked until it is back.
    #[error("the pool does not answer")]
    Silent,
    /// It has begun the task, but not ended it in time.
    #[error("the pool did not complete the request within {} s; it may still be done", STUCK.as_secs())]
    Stuck,
}

/// Taken once: by the pool, which begins the task, or by the caller, which abandons it. So a task
/// reported as failed never runs later.
#[derive(Clone, Debug, Default)]
struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Returns true if the other side has not taken it.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// Resolves a promise, once.
#[derive(Clone, Debug)]
pub struct PromiseSender<T> {
    answer: mpsc::SyncSender<T>,
    claim: Claim,
}

impl<T> PromiseSender<T> {
    /// Sends the answer.
    ///
    /// # Errors
    /// The caller no longer waits, and has reported that the task was not done.
    pub fn try_send(&self, answer: T) -> Result<(), T> {
        if !self.claim.take() {
            return Err(answer);
        }
        self.answer.try_send(answer).map_err(|error| match error {
            mpsc::TrySendError::Full(answer) | mpsc::TrySendError::Disconnected(answer) => answer,
        })
    }
}

/// An answer that comes later. The caller may abandon only a task that has not begun.
#[must_use = "the task is done all the same"]
#[derive(Debug)]
pub struct Promise<T> {
    answer: mpsc::Receiver<T>,
    claim: Claim,
}

impl<T> Promise<T> {
    /// Returns both ends.
    pub fn pair() -> (PromiseSender<T>, Self) {
        let (keep, receiver) = mpsc::sync_channel(1);
        let claim = Claim::default();
        (PromiseSender { answer: keep, claim: claim.clone() }, Self { answer: receiver, claim })
    }

    /// Waits up to `timeout` for the answer: `None` if it has not come, `Some(None)` if the pool
    /// has ended without one.
    pub fn try_wait(&self, timeout: Duration) -> Option<Option<T>> {
        match self.answer.recv_timeout(timeout) {
            Ok(answer) => Some(Some(answer)),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(None),
        }
    }

    /// Like [`Promise::try_wait`], but gives up if the answer has not come, and the sender learns
    /// that.
    pub fn wait_or_give_up(self, timeout: Duration) -> Option<Option<T>> {
        match self.try_wait(timeout) {
            Some(answer) => Some(answer),
            None if self.claim.take() => None,
            None => Some(self.wait()), // the answer is being sent
        }
    }

    /// Waits for the answer; `None` if the pool has ended without one.
    pub fn wait(self) -> Option<T> {
        self.answer.recv().ok()
    }
}

/// A running pool. Dropping it does not stop the pool; [`PoolHandle::stop`] does.
pub struct PoolHandle {
    tasks: Mutex<mpsc::Sender<PoolTask>>,
    waker: Waker,
    thread: Mutex<Option<Thread>>,
    /// The thread has ended, or is about to.
    has_ended: Arc<AtomicBool>,
    /// [`PoolHandle::stop`] was called.
    is_stopped: AtomicBool,
    silence: Mutex<Option<Silence>>,
    /// Grows as long as a stop progresses.
    progress: Arc<AtomicU64>,
}

/// Set when the pool has missed the deadline of a look.
struct Silence {
    since: Instant,
    /// Resolves when the pool's thread is back at work.
    ping: Promise<()>,
}

/// A pending answer. See [`PoolHandle::begin_look`].
#[derive(Debug)]
pub struct Look<T> {
    begun: Instant,
    promise: Promise<T>,
}

/// The thread of a pool, and its result.
struct Thread {
    handle: JoinHandle<()>,
    /// Sent when the pool has released everything. The kernel may keep the thread after that, for
    /// operations that hang.
    ended: mpsc::Receiver<Result<(), RunError>>,
}

/// Records that the thread of a pool ends, also by a panic.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
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
    /// As `Pool::open`.
    pub fn start(
        start: PoolStart,
        parts: PoolParts,
        mut report: Box<dyn FnMut(PoolEvent) + Send>,
    ) -> Result<Self, RunError> {
        if let Err(why) = crate::loss_record::is_possible(&MayWait::here(), &start.state_dir) {
            report(PoolEvent::Note(MessageId::Event(EventKind::StateUnwritable), why));
        }
        let (asking, tasks) = mpsc::channel();
        let myself = asking.clone();
        let (opened, result) = mpsc::sync_channel(1);
        let (ends, ended) = mpsc::sync_channel(1);
        let progress = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&progress);
        let has_ended = Arc::<AtomicBool>::default();
        let end = End(Arc::clone(&has_ended));
        let handle = std::thread::Builder::new()
            .name(format!("pool-{}", start.name))
            .spawn(move || {
                let _end = end;
                crate::may_wait::forbid_waiting();
                match Pool::open(start, parts, (myself, tasks, counted), report) {
                    Ok(pool) => {
                        let _ = opened.send(Ok(pool.reactor.waker()));
                        let _ = ends.try_send(pool.serve()); // there is room, and the receiver may be gone
                    }
                    Err(error) => {
                        let _ = opened.send(Err(error));
                    }
                }
            })
            .map_err(|error| RunError::from(AdminError::no_thread(&error)))?;
        let died = || {
            RunError::failed(
                MessageId::PoolThread,
                "the pool's thread ended while the pool was being opened",
                "",
            )
        };
        let waker = result.recv().map_err(|_| died())??;
        let thread = Mutex::new(Some(Thread { handle, ended }));
        let (is_stopped, silence) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { tasks: Mutex::new(asking), waker, thread, has_ended, is_stopped, silence, progress })
    }

    /// Runs `what` on the pool's thread and returns its result.
    ///
    /// # Errors
    /// The pool has stopped, or does not answer in time.
    pub fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<T, PoolGone> {
        let promise = self.begin(what)?;
        let answer = match promise.try_wait(TIMEOUT) {
            None if promise.claim.take() => return Err(PoolGone::Late),
            None => promise.try_wait(STUCK).ok_or(PoolGone::Stuck)?,
            Some(answer) => answer,
        };
        answer.ok_or(PoolGone::Stopped)
    }

    /// Asks for information without waiting, so that several pools can be asked at once. A pool
    /// that missed a deadline is not asked until it is back.
    ///
    /// # Errors
    /// The pool has stopped, or is silent.
    pub fn begin_look<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<Look<T>, PoolGone> {
        match self.silence() {
            Some(_) => Err(PoolGone::Silent),
            None => Ok(Look { begun: Instant::now(), promise: self.begin(what)? }),
        }
    }

    /// Waits for the answer until `until`.
    ///
    /// # Errors
    /// The pool has stopped, or has not answered.
    pub fn end_look<T>(&self, look: Look<T>, until: Instant) -> Result<T, PoolGone> {
        match look.promise.try_wait(until.saturating_duration_since(Instant::now())) {
            Some(answer) => answer.ok_or(PoolGone::Stopped),
            None => {
                look.promise.claim.take(); // a task that has not begun is dropped
                let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
                if silence.is_none() {
                    *silence = Some(Silence { since: look.begun, ping: self.begin(|_| ())? });
                }
                Err(PoolGone::Silent)
            }
        }
    }

    /// Returns how long the pool has not answered, if it missed a deadline and is not back.
    pub fn silence(&self) -> Option<Duration> {
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        let Silence { since, ping } = silence.as_ref()?;
        if ping.try_wait(Duration::ZERO).is_none() {
            return Some(since.elapsed());
        }
        *silence = None;
        None
    }

    /// Runs `what` on the pool's thread later, without waiting for it.
    pub fn order(&self, what: impl FnOnce(&mut Pool) + Send + 'static) {
        let _ = self.begin(what); // a pool that has ended needs no orders
    }

    /// Like [`PoolHandle::ask`] without a time limit: for tasks that must not run without a
    /// receiver of the result.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn ask_and_wait<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<T, PoolGone> {
        self.begin(what)?.wait().ok_or(PoolGone::Stopped)
    }

    fn begin<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<Promise<T>, PoolGone> {
        let (sender, promise) = Promise::pair();
        let task: PoolTask = Box::new(move |pool| {
            if sender.claim.take() {
                let _ = sender.answer.try_send(what(pool)); // the caller may be gone
            }
        });
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(task)
            .map_err(|_| PoolGone::Stopped)?;
        self.waker.wake();
        Ok(promise)
    }

    /// Stops the pool in an orderly way and waits for its end; repeated calls are fine.
    ///
    /// # Errors
    /// The error that ended the pool, if the stop was not orderly.
    pub fn stop(&self) -> Result<(), RunError> {
        self.is_stopped.store(true, Ordering::Release);
        self.order(Pool::stop);
        // Held until the end, so that concurrent calls wait as well.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Thread { handle, ended }) = thread.take() else { return Ok(()) };
        match ended.recv() {
            // Its operations have ended, so it ends as well.
            Ok(Ok(())) => handle
                .join()
                .map_err(|_| RunError::failed(MessageId::PoolThread, "the pool's thread panicked", "")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(RunError::failed(MessageId::PoolThread, "the pool's thread panicked", "")),
        }
    }

    /// Waits for the end of a pool that is stopping; returns true if it came in time.
    pub fn ends_by(&self, until: Instant) -> bool {
        while !self.has_ended() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Like [`PoolHandle::ends_by`]; whenever the stop has progressed meanwhile, calls `goes_on`
    /// and extends the deadline to `within` from then.
    pub fn ends_or_goes_on(&self, mut until: Instant, within: Duration, goes_on: &mut dyn FnMut()) -> bool {
        let mut seen = self.progress.load(Ordering::Relaxed);
        if seen > 0 {
            until = until.max(Instant::now() + within); // it progressed while the caller waited for others
        }
        while !self.ends_by(until.min(Instant::now() + PROGRESS_LOOK)) {
            let now = self.progress.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, now) != now {
                goes_on();
                until = until.max(Instant::now() + within);
            }
            if Instant::now() >= until {
                return false;
            }
        }
        true
    }

    /// Returns true once the pool's thread has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns true once it has ended without a call of [`PoolHandle::stop`].
    pub fn has_ended_by_itself(&self) -> bool {
        self.has_ended() && !self.is_stopped.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_keeper_learns_that_wait_ended() {
        let (keep, promise) = Promise::pair();
        assert!(promise.wait_or_give_up(Duration::from_millis(1)).is_none());
        assert_eq!(keep.try_send(7), Err(7));
    }
}
