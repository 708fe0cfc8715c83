//! A reader's end of the hub. Polled by asynchronous code, or blocking with a time limit; dropped,
//! it is gone.

use super::event::EventId;
use super::hub::Hub;
use super::reader::Delivery;
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// What came within the time given.
#[derive(Clone, PartialEq, Debug)]
pub enum Received {
    /// An event, or word that some are missing.
    Delivery(Delivery),
    /// Nothing came in time.
    TimedOut,
    /// The hub is closed, and everything before that was delivered.
    Closed,
}

/// Follows the events of a hub. A stream of [`Delivery`] that ends when the hub is closed.
#[derive(Debug)]
pub struct Subscription {
    hub: Hub,
    reader: u64,
}

impl Subscription {
    pub(super) fn new(hub: Hub, reader: u64) -> Self {
        Self { hub, reader }
    }

    /// The next delivery, waited for in this thread for at most `timeout`.
    pub fn receive(&mut self, timeout: Duration) -> Received {
        let until = Instant::now().checked_add(timeout);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match self.hub.poll(self.reader, &waker) {
                Poll::Ready(Some(delivery)) => return Received::Delivery(delivery),
                Poll::Ready(None) => return Received::Closed,
                Poll::Pending => {}
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => std::thread::park(), // a timeout beyond all time
                Some(Duration::ZERO) => return Received::TimedOut,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }

    /// Id to resume after: everything up to it was delivered, told as missing, or not wanted.
    #[must_use]
    pub fn position(&self) -> EventId {
        self.hub.position(self.reader)
    }
}

impl Stream for Subscription {
    type Item = Delivery;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.hub.poll(self.reader, context.waker())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.unsubscribe(self.reader);
    }
}

/// Wakes a thread that parks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
