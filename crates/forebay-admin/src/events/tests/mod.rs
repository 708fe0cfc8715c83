//! The hub as its users see it, on a clock that the tests control.

mod alarms;
mod delivery;
mod resume;
mod stress;

use super::*;
use crate::clock::ManualClock;
use std::sync::Arc;
use std::time::Duration;

/// 2023-11-14 22:13:20 UTC.
const START_UNIX_NS: u64 = 1_700_000_000_000_000_000;

/// A hub and the clock that it runs on.
struct Stage {
    clock: Arc<ManualClock>,
    hub: Hub,
}

impl Stage {
    fn new(limits: HubLimits) -> Self {
        let clock = Arc::new(ManualClock::new(START_UNIX_NS));
        Self { hub: Hub::new(clock.clone(), limits), clock }
    }

    /// Publishes events with the messages `1`, `2` ... about volume `db`.
    fn publish(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.hub.publish(NewEvent::new(EventKind::DestageFailed, number.to_string()).volume("db"));
        }
    }

    fn follow(&self, start: Start) -> Subscription {
        self.hub.subscribe(Filter::default(), start).unwrap()
    }

    fn after(&self, seq: u64) -> Start {
        Start::After(EventId { run: START_UNIX_NS, seq })
    }
}

/// Returns all pending deliveries of a reader: events by their message, gaps by reason and number.
fn pending(subscription: &mut Subscription) -> Vec<String> {
    let mut all = Vec::new();
    let mut last = 0;
    while let Received::Delivery(delivery) = subscription.receive(Duration::ZERO) {
        all.push(match delivery {
            Delivery::Event(event) => {
                assert!(event.id.seq > last, "ids must increase");
                last = event.id.seq;
                event.message.clone()
            }
            Delivery::Gap(gap) => format!("{}:{:?}", gap.reason.name(), gap.lost_max),
        });
    }
    all
}
