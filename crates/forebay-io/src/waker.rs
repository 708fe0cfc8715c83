//! Wakes the loop from other threads.
//!
//! Invariant: the flag is set before the counter is incremented, and cleared after the counter is
//! drained. So a wake can be merged with another one, but never lost.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

#[derive(Debug)]
struct Shared {
    counter: OwnedFd,
    pending: AtomicBool,
}

/// Makes [`crate::Reactor::wait`] return. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Waker {
    pub(crate) fn new() -> std::io::Result<Waker> {
        let counter = sys::eventfd()?;
        Ok(Waker { shared: Arc::new(Shared { counter, pending: AtomicBool::new(false) }) })
    }

    /// Wakes the loop. Wakes that arrive before the loop has noticed count as one.
    pub fn wake(&self) {
        if !self.shared.pending.swap(true, Ordering::AcqRel) {
            sys::eventfd_signal(&self.shared.counter);
        }
    }

    /// Makes the engine check for results; the loop returns only if there are some.
    pub(crate) fn ring(&self) {
        sys::eventfd_signal(&self.shared.counter);
    }

    /// The counter that the engine watches.
    pub(crate) fn fd(&self) -> RawFd {
        self.shared.counter.as_raw_fd()
    }

    /// Returns true once per wake (or merged wakes). Call only after the counter was drained, or
    /// without draining it.
    pub(crate) fn take(&self) -> bool {
        self.shared.pending.swap(false, Ordering::AcqRel)
    }
}
