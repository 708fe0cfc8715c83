//! Work that may wait for somebody else's file system or device, even for ever. A thread of its own
//! does it, and is waited for only so long.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::may_wait::MayWait;

/// Does `work` on a thread of its own and gives its result; `None` if it takes longer. What it
/// comes to later is dropped there.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    name: &str,
    work: impl FnOnce(&MayWait) -> T + Send + 'static,
) -> Option<T> {
    let (done, wait) = mpsc::sync_channel(0);
    let work = move |may_wait: &MayWait| drop(done.send(work(may_wait)));
    // Without a thread nothing can be left behind, so nothing is begun.
    MayWait::spawn(name, work).ok()?;
    wait.recv_timeout(timeout).ok()
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
    /// As [`within`], for what waits for `place`. `None` also if an earlier thread still does.
    pub fn within<T: Send + 'static>(
        &self,
        place: &Path,
        timeout: Duration,
        work: impl FnOnce(&MayWait) -> T + Send + 'static,
    ) -> Option<T> {
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place.to_owned()) {
            let_go(work); // what it holds may have to wait as well
            return None;
        }
        let visit = Visit(self.clone(), place.to_owned());
        within(timeout, "open", move |may_wait| {
            let done = work(may_wait);
            drop(visit);
            done
        })
    }
}

/// Drops something on a thread of its own: closing a file may have to wait for who serves it.
pub(crate) fn let_go<T: Send + 'static>(what: T) {
    // If there is no thread it is dropped here.
    let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(what));
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
        assert_eq!(within(Duration::from_secs(60), "quick", |_| 7), Some(7));
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (told, tell) = mpsc::channel();
        let slow = move |_: &MayWait| {
            let _ = goes_on.recv();
            Notifier(told)
        };
        assert!(within(Duration::from_millis(20), "slow", slow).is_none());
        assert!(tell.try_recv().is_err());
        drop(go_on);
        tell.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_place_that_hangs_is_not_asked_again_and_holds_up_no_other() {
        let (places, short, long) = (Places::default(), Duration::from_millis(10), Duration::from_secs(30));
        let (go_on, hangs) = mpsc::channel::<()>();
        assert!(places.within(Path::new("/slow"), short, move |_| hangs.recv().is_ok()).is_none());
        let (told, tell) = mpsc::channel();
        let again = Notifier(told);
        assert!(places.within(Path::new("/slow"), long, move |_| drop(again)).is_none());
        tell.recv_timeout(long).expect("what was not begun is dropped");
        assert_eq!(places.within(Path::new("/good"), long, |_| 7), Some(7));
        drop(go_on);
        let until = std::time::Instant::now() + long;
        while places.within(Path::new("/slow"), long, |_| ()).is_none() {
            assert!(std::time::Instant::now() < until, "it can be asked again");
        }
    }
}
