//! A subscription as server-sent events (the `text/event-stream` format of the HTML standard).
//!
//! | item | lines |
//! | --- | --- |
//! | start | `id` alone: start of the stream, so that a client without frames can still resume |
//! | event | `id`, `event` (its kind), `data` (JSON) |
//! | gap | `event: gap`, `data`; with `id` unless resuming could still return the missing events |
//! | heartbeat | a comment and `id`: everything up to it was delivered or not wanted |
//!
//! The body is polled only when the socket takes more; meanwhile the bounded queue of the
//! subscription fills.

use axum::response::sse::Event as Frame;
use forebay_admin::events::{Delivery, EventId, GapReason, Subscription};
use futures_core::Stream;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Frames of one client.
pub(super) struct Frames {
    subscription: Subscription,
    heartbeat: Duration,
    silence: Pin<Box<Sleep>>,
    begun: bool,
}

impl Frames {
    /// Returns the frames of `subscription`, with a heartbeat after each such time without a frame.
    pub(super) fn new(subscription: Subscription, heartbeat: Duration) -> Self {
        Self { subscription, heartbeat, silence: Box::pin(sleep(heartbeat)), begun: false }
    }

    fn next_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        if !self.begun {
            self.begun = true;
            // Read the position before taking the first event: a resumed stream begins where the
            // client left.
            return Poll::Ready(Some(at(Frame::default(), self.subscription.position())));
        }
        match Pin::new(&mut self.subscription).poll_next(context) {
            Poll::Ready(Some(delivery)) => return Poll::Ready(Some(frame(&delivery))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        if self.silence.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Some(at(Frame::default().comment("heartbeat"), self.subscription.position())))
    }
}

impl Stream for Frames {
    type Item = Result<Frame, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = self.next_frame(context);
        if frame.is_ready() {
            let next = Instant::now() + self.heartbeat;
            self.silence.as_mut().reset(next);
        }
        frame.map(|frame| frame.map(Ok))
    }
}

fn frame(delivery: &Delivery) -> Frame {
    match delivery {
        Delivery::Event(event) => {
            at(Frame::default().event(event.kind.name()).data(event.to_json().to_string()), event.id)
        }
        Delivery::Gap(gap) => {
            let frame = Frame::default().event("gap").data(gap.to_json().to_string());
            if gap.reason == GapReason::TooSlow { frame } else { at(frame, gap.through) }
        }
    }
}

fn at(frame: Frame, id: EventId) -> Frame {
    frame.id(id.to_string())
}
