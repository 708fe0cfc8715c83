//! Work that may wait for somebody else's file system or device, even for ever. A thread of its own
//! does it, and is waited for only so long.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_admin::AdminError;
use thiserror::Error;

use crate::may_wait::MayWait;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum Undone {
    /// It takes longer, or an earlier attempt at the same place does. It may still be done.
    #[error("it does not answer")]
    Late,
    /// There is no thread for it. It was not begun.
    #[error("cannot start a thread: {0}")]
    NoThread(#[from] io::Error),
}

impl Undone {
    /// The error for who has asked: `late` if it takes too long.
    pub fn or(self, late: impl FnOnce() -> AdminError) -> AdminError {
        match self {
            Self::Late => late(),
            Self::NoThread(error) => AdminError::no_thread(&error),
        }
    }
}

/// Does `work` on a thread of its own and gives its result. What it comes to later is dropped
/// there.
///
/// # Errors
/// It takes longer. Or there is no thread: nothing could be left behind then, so nothing is begun.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    name: &str,
    work: impl FnOnce(&MayWait) -> T + Send + 'static,
) -> Result<T, Undone> {
    let_go_again();
    let (done, wait) = mpsc::sync_channel(0);
    let work = move |may_wait: &MayWait| drop(done.send(work(may_wait)));
    MayWait::spawn(name, work)?;
    wait.recv_timeout(timeout).map_err(|_| Undone::Late)
}

/// Places that threads wait for. As long as one hangs the same place is not asked again: so there
/// is one thread for each.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<Mutex<BTreeSet<PathBuf>>>);

/// A thread is at a place until this is dropped.
struct Visit(Places, PathBuf);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Places {
    /// As [`within`], for what waits for `place`.
    ///
    /// # Errors
    /// As there. It is late also if an earlier thread still waits.
    pub fn within<T: Send + 'static>(
        &self,
        place: &Path,
        timeout: Duration,
        work: impl FnOnce(&MayWait) -> T + Send + 'static,
    ) -> Result<T, Undone> {
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place.to_owned()) {
            let_go(work); // what it holds may have to wait as well
            return Err(Undone::Late);
        }
        let visit = Visit(self.clone(), place.to_owned());
        within(timeout, "open", move |may_wait| {
            let done = work(may_wait);
            drop(visit);
            done
        })
    }
}

/// What could not be let go, as there was no thread for it.
static KEPT: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// Drops something on a thread of its own: closing a file may have to wait for who serves it. As
/// long as there is no thread it is kept, until the next of these calls.
pub(crate) fn let_go<T: Send + 'static>(what: T) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(what));
    let_go_again();
}

/// Drops what was kept.
fn let_go_again() {
    let all = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    if all.is_empty() {
        return;
    }
    if let Err(all) = spawn_or_return("close", all, drop) {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).extend(all.into_iter().flatten());
    }
}

/// Has a thread use something, which comes back if there is none.
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
    fn what_takes_too_long_is_left_and_what_comes_of_it_is_dropped() {
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
    fn a_place_that_hangs_is_not_asked_again_and_holds_up_no_other() {
        let (places, short, long) = (Places::default(), Duration::from_millis(10), Duration::from_secs(30));
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
