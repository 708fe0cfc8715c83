//! The right to wait for a device, a file system or a name.
//!
//! Invariants
//! - The thread of a pool makes no call that can block. Each function that can block takes a
//!   [`MayWait`].
//! - A [`MayWait`] is not `Send`, so no task that is sent to a pool's thread can bring one.
//!   Creating one on that thread panics.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::thread::JoinHandle;

thread_local! {
    static IS_OF_POOL: Cell<bool> = const { Cell::new(false) };
}

/// Proof that the calling thread may wait. It cannot leave this thread.
#[derive(Debug)]
pub struct MayWait(PhantomData<*const ()>);

impl MayWait {
    /// Creates the proof for the calling thread.
    ///
    /// # Panics
    /// It is the thread of a pool.
    #[must_use]
    pub fn here() -> Self {
        assert!(!IS_OF_POOL.get(), "the thread of a pool must not wait");
        Self(PhantomData)
    }

    /// Runs `work` on a thread of its own.
    ///
    /// # Errors
    /// No thread can be started; nothing was begun.
    pub fn spawn(
        name: impl Into<String>,
        work: impl FnOnce(&MayWait) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.into()).spawn(move || work(&Self::here()))
    }
}

/// Marks the calling thread as that of a pool.
pub(crate) fn forbid_waiting() {
    IS_OF_POOL.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_thread_may_not_wait_but_helpers_may() {
        let pool = std::thread::spawn(|| {
            forbid_waiting();
            MayWait::spawn("helper", |_| ()).unwrap().join().unwrap();
            let _ = MayWait::here();
        });
        assert!(pool.join().is_err());
        let _ = MayWait::here();
    }
}
