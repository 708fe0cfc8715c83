//! A reader's handle of the hub: polled by asynchronous code, or blocking with a timeout. Dropping
//! it unsubscribes.

use super::event::EventId;
use super::hub::Hub;
use super::reader::Delivery;
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Result of a receive with a timeout.
#[derive(Clone, PartialEq, Debug)]
pub enum Received {
    /// An event, or the report of a gap.
    Delivery(Delivery),
    /// No delivery came in time.
    TimedOut,
    /// The hub is closed, and all earlier events were delivered.
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

    /// Blocks this thread until the next delivery, for at most `timeout`.
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
                None => std::thread::park(), // the end exceeds the clock's range
                Some(Duration::ZERO) => return Received::TimedOut,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }

    /// Returns the id to resume after: everything up to it was delivered, reported as missing, or
    /// filtered out.
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

/// Unparks a thread when woken.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
