//! Work that may wait for another party's file system or device, even forever. It runs on a thread
//! of its own, and the caller waits only for a limited time.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_admin::AdminError;
use thiserror::Error;

use crate::may_wait::MayWait;

/// Reason why there is no result.
#[derive(Debug, Error)]
pub enum Undone {
    /// It takes longer, or an earlier attempt at the same place does. It can still complete later.
    #[error("it does not answer")]
    Late,
    /// There is no thread for it. It was not begun.
    #[error("cannot start a thread: {0}")]
    NoThread(#[from] io::Error),
}

impl Undone {
    /// The error for the caller: `late` if it takes too long.
    pub fn or(self, late: impl FnOnce() -> AdminError) -> AdminError {
        match self {
            Self::Late => late(),
            Self::NoThread(error) => AdminError::no_thread(&error),
        }
    }
}

/// Runs `work` on a thread of its own and returns its result. A late result is dropped there.
///
/// # Errors
/// It takes longer. Or there is no thread: then nothing is begun.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    name: &str,
    work: impl FnOnce(&MayWait) -> T + Send + 'static,
) -> Result<T, Undone> {
    drop_kept();
    let (done, wait) = mpsc::sync_channel(0);
    let work = move |may_wait: &MayWait| drop(done.send(work(may_wait)));
    MayWait::spawn(name, work)?;
    wait.recv_timeout(timeout).map_err(|_| Undone::Late)
}

/// Paths that threads wait for. While a thread hangs at a path no other is started for it: so there
/// is at most one thread for each path.
#[derive(Clone, Debug, Default)]
pub struct PathLimiter(Arc<Mutex<BTreeSet<PathBuf>>>);

/// A thread is at a path until this is dropped.
struct PathGuard(PathLimiter, PathBuf);

impl Drop for PathGuard {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl PathLimiter {
    /// As [`within`], for work that waits for `place`.
    ///
    /// # Errors
    /// As there. It is late also while an earlier thread still waits.
    pub fn within<T: Send + 'static>(
        &self,
        place: &Path,
        timeout: Duration,
        work: impl FnOnce(&MayWait) -> T + Send + 'static,
    ) -> Result<T, Undone> {
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place.to_owned()) {
            drop_in_background(work); // dropping its content can also block
            return Err(Undone::Late);
        }
        let guard = PathGuard(self.clone(), place.to_owned());
        within(timeout, "open", move |may_wait| {
            let done = work(may_wait);
            drop(guard);
            done
        })
    }
}

/// Values that could not be dropped for want of a thread.
static KEPT: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// Drops a value on a thread of its own, because closing a file can wait for its server. If there
/// is no thread, keeps it until the next of these calls.
pub(crate) fn drop_in_background<T: Send + 'static>(what: T) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(what));
    drop_kept();
}

/// Drops the kept values.
fn drop_kept() {
    let all = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    if all.is_empty() {
        return;
    }
    if let Err(all) = spawn_or_return("close", all, drop) {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).extend(all.into_iter().flatten());
    }
}

/// Runs a function on a value in a thread of its own; returns the value if there is no thread.
pub(crate) fn spawn_or_return<T: Send + 'static>(
    name: &str,
    what: T,
    work: impl FnOnce(T) + Send + 'static,
) -> Result<JoinHandle<()>, Option<T>> {
    let kept = Arc::new(Mutex::new(Some(what)));
    let take = |kept: &Mutex<Option<T>>| kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    let taken = Arc::clone(&kept);
    let run = move || take(&taken).map_or((), work);
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|_| take(&kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Notifier(mpsc::Sender<()>);

    impl Drop for Notifier {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn late_result_is_dropped() {
        assert_eq!(within(Duration::from_secs(60), "quick", |_| 7).ok(), Some(7));
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (told, tell) = mpsc::channel();
        let slow = move |_: &MayWait| {
            let _ = goes_on.recv();
            Notifier(told)
        };
        assert!(within(Duration::from_millis(20), "slow", slow).is_err());
        assert!(tell.try_recv().is_err());
        drop(go_on);
        tell.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn hanging_place_is_not_asked_again() {
        let (places, short, long) =
            (PathLimiter::default(), Duration::from_millis(10), Duration::from_secs(30));
        let (go_on, hangs) = mpsc::channel::<()>();
        assert!(places.within(Path::new("/slow"), short, move |_| hangs.recv().is_ok()).is_err());
        let (told, tell) = mpsc::channel();
        let again = Notifier(told);
        assert!(places.within(Path::new("/slow"), long, move |_| drop(again)).is_err());
        tell.recv_timeout(long).expect("what was not begun is dropped");
        assert_eq!(places.within(Path::new("/good"), long, |_| 7).ok(), Some(7));
        drop(go_on);
        let until = std::time::Instant::now() + long;
        while places.within(Path::new("/slow"), long, |_| ()).is_err() {
            assert!(std::time::Instant::now() < until, "it can be asked again");
        }
    }
}
