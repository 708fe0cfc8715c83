//! Many threads publish and follow concurrently: no event is lost unreported, memory stays bounded,
//! and no thread hangs.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const PUBLISHERS: u64 = 4;
const EACH: u64 = 5_000;

/// Follows to the end; returns the number of received events, and the number reported as lost.
fn follow(mut subscription: Subscription, slow: bool) -> (u64, u64) {
    let (mut events, mut lost, mut last) = (0, 0, 0);
    loop {
        match subscription.receive(Duration::from_secs(60)) {
            Received::Delivery(Delivery::Event(event)) => {
                assert!(event.id.seq > last, "ids must increase");
                last = event.id.seq;
                events += 1;
            }
            Received::Delivery(Delivery::Gap(gap)) => {
                assert!(gap.after.seq >= last && gap.through.seq > gap.after.seq);
                lost += gap.lost_max.unwrap();
            }
            Received::TimedOut => panic!("nothing came for a minute"),
            Received::Closed => return (events, lost),
        }
        if slow && events % 100 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn events_are_delivered_or_reported_lost() {
    let limits = HubLimits { queue_events_max: 64, history_events_max: 500, ..HubLimits::default() };
    let stage = Stage::new(limits.clone());
    let hub = &stage.hub;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..6)
            .map(|number| {
                let start = if number % 2 == 0 { Start::Now } else { Start::Oldest };
                let subscription = hub.subscribe(Filter::default(), start).unwrap();
                scope.spawn(move || follow(subscription, number >= 4))
            })
            .collect();
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let stats = hub.stats();
                assert!(stats.history_events <= limits.history_events_max);
                assert!(stats.queued <= 8 * limits.queue_events_max);
                let half = hub.subscribe(Filter::default(), stage.after(stats.published / 2));
                assert!(!matches!(half, Err(SubscribeError::TooManyReaders(_))));
            }
        });
        let publishers: Vec<_> = (0..PUBLISHERS).map(|_| scope.spawn(|| stage.publish(0..EACH))).collect();
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        hub.close();
        for reader in readers {
            let (events, lost) = reader.join().unwrap();
            assert_eq!(events + lost, PUBLISHERS * EACH);
            assert!(events > 0);
        }
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap();
    });
}
