//! What may have to wait for somebody else's file system, and for ever: a thread of its own does it, and is waited for only so long.

use std::sync::mpsc;
use std::time::Duration;

/// Does `work` on a thread of its own and gives its result; `None` if it takes longer. What it comes to later is dropped there.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, wait) = mpsc::sync_channel(0);
    let work = move || drop(done.send(work()));
    // Without a thread nothing can be left behind, so nothing is begun.
    std::thread::Builder::new().name(name.into()).spawn(work).ok()?;
    wait.recv_timeout(patience).ok()
}

/// Drops something on a thread of its own: closing a file may have to wait for who serves it.
pub(crate) fn let_go<T: Send + 'static>(what: T) {
    // If there is no thread it is dropped here.
    let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(mpsc::Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn what_takes_too_long_is_left_and_what_comes_of_it_is_dropped() {
        assert_eq!(within(Duration::from_secs(60), "quick", || 7), Some(7));
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (told, tell) = mpsc::channel();
        let slow = move || {
            let _ = goes_on.recv();
            Told(told)
        };
        assert!(within(Duration::from_millis(20), "slow", slow).is_none());
        assert!(tell.try_recv().is_err());
        drop(go_on);
        tell.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
