//! The right to wait for a device, a file system or a name.
//!
//! Invariants
//! - The thread of a pool makes no call that may block. Each function that may block takes a
//!   [`MayWait`].
//! - A [`MayWait`] is not `Send`, so no task that is sent to a pool's thread can bring one. Making
//!   one on that thread panics.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::thread::JoinHandle;

thread_local! {
    static IS_OF_POOL: Cell<bool> = const { Cell::new(false) };
}

/// Says that the calling thread may wait. It cannot leave this thread.
#[derive(Debug)]
pub struct MayWait(PhantomData<*const ()>);

impl MayWait {
    /// For the calling thread.
    ///
    /// # Panics
    /// It is the thread of a pool.
    #[must_use]
    pub fn here() -> Self {
        assert!(!IS_OF_POOL.get(), "the thread of a pool must not wait");
        Self(PhantomData)
    }

    /// Does `work` on a thread of its own.
    ///
    /// # Errors
    /// There is no thread; nothing was begun.
    pub fn spawn(
        name: impl Into<String>,
        work: impl FnOnce(&MayWait) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.into()).spawn(move || work(&Self::here()))
    }
}

/// The calling thread is that of a pool from now on.
pub(crate) fn forbid_waiting() {
    IS_OF_POOL.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_of_a_pool_has_no_right_to_wait_and_its_helpers_have() {
        let pool = std::thread::spawn(|| {
            forbid_waiting();
            MayWait::spawn("helper", |_| ()).unwrap().join().unwrap();
            let _ = MayWait::here();
        });
        assert!(pool.join().is_err());
        let _ = MayWait::here();
    }
}
