//! Connections of clients that have not shown yet who they are. Where all places are taken, the
//! oldest of them makes room: clients without a token do not lock out those with one.
//!
//! Invariants
//! - A client that is known keeps its connection, however many come.
//! - Of strangers the newest stays: one that sends its token at once has all the time it needs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Notify;

/// A connection, as far as it is known whose it is.
#[derive(Debug, Default)]
pub(super) struct Peer {
    is_known: AtomicBool,
    leave: Notify,
}

impl Peer {
    /// The client has shown a token.
    pub(super) fn is_known_now(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection is to make room.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

/// Connections of one listener that began as those of strangers, oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<VecDeque<Weak<Peer>>>);

impl Strangers {
    /// A client whom nothing is known of has come.
    pub(super) fn enter(&self) -> Arc<Peer> {
        let peer = Arc::new(Peer::default());
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|other| other.upgrade().is_some_and(|other| !other.is_known.load(Ordering::Relaxed)));
        queue.push_back(Arc::downgrade(&peer));
        peer
    }

    /// Has the oldest stranger leave. False if there is none.
    pub(super) fn send_away_oldest(&self) -> bool {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = queue.pop_front() {
            if let Some(peer) = oldest.upgrade().filter(|peer| !peer.is_known.load(Ordering::Relaxed)) {
                peer.leave.notify_one();
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_stranger_leaves_and_who_is_known_stays() {
        let strangers = Strangers::default();
        let [known, gone, first, second] = std::array::from_fn(|_| strangers.enter());
        known.is_known_now();
        drop(gone);
        let leaves = |peer: &Peer| {
            let mut leaving = std::pin::pin!(peer.must_leave());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            leaving.as_mut().poll(&mut context).is_ready()
        };
        assert!(strangers.send_away_oldest());
        assert!(leaves(&first) && !leaves(&second) && !leaves(&known));
        assert!(strangers.send_away_oldest() && leaves(&second));
        assert!(!strangers.send_away_oldest(), "only known clients are left");
    }
}
