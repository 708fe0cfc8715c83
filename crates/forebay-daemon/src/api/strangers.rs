//! Connections of clients that have not been authenticated yet. If all places are taken, the oldest
//! of them is closed to make room: clients without a token do not lock out those with one.
//!
//! Invariants
//! - An authenticated client keeps its connection, however many others connect.
//! - Of strangers the newest stays: one that sends its token at once has enough time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Notify;

/// A connection, with the state of its authentication.
#[derive(Debug, Default)]
pub(super) struct Peer {
    is_known: AtomicBool,
    leave: Notify,
}

impl Peer {
    /// Notes that the client has presented a valid token.
    pub(super) fn is_known_now(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection must make room.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

/// Connections of one listener that began without authentication, oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<VecDeque<Weak<Peer>>>);

impl Strangers {
    /// Adds the connection of an unauthenticated client.
    pub(super) fn enter(&self) -> Arc<Peer> {
        let peer = Arc::new(Peer::default());
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|other| other.upgrade().is_some_and(|other| !other.is_known.load(Ordering::Relaxed)));
        queue.push_back(Arc::downgrade(&peer));
        peer
    }

    /// Makes the oldest stranger leave. Returns false if there is none.
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
    fn oldest_unauthenticated_client_is_closed() {
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
