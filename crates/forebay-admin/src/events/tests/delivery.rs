//! Live readers: order, the bounded queue, collapse keys, time to live, filters, the end.

use super::*;

fn progress(job: &str, message: &str) -> NewEvent {
    NewEvent::new(EventKind::JobProgress, message).job(job).collapse_key(&format!("job/{job}"))
}

#[test]
fn readers_get_all_events_in_order() {
    let stage = Stage::new(HubLimits::default());
    stage.publish([0]); // before any reader follows
    let (mut one, mut two) = (stage.follow(Start::Now), stage.follow(Start::Now));
    stage.publish([1, 2]);
    stage.clock.advance(Duration::from_secs(1));
    stage.publish([3]);
    assert_eq!(pending(&mut one), ["1", "2", "3"]);
    let Received::Delivery(Delivery::Event(event)) = two.receive(Duration::ZERO) else { panic!("no event") };
    assert_eq!((event.id, event.time_unix_ns), (EventId { run: START_UNIX_NS, seq: 2 }, START_UNIX_NS));
    assert_eq!(pending(&mut two), ["2", "3"]);
    assert_eq!(two.receive(Duration::from_millis(1)), Received::TimedOut);
}

#[test]
fn slow_reader_loses_oldest_events() {
    let stage = Stage::new(HubLimits { queue_events_max: 3, ..HubLimits::default() });
    let mut slow = stage.follow(Start::Now);
    stage.publish(1..=3);
    assert_eq!(stage.hub.stats().dropped, 0);
    stage.publish(4..=8);
    assert_eq!((stage.hub.stats().queued, stage.hub.stats().dropped), (3, 5));
    let Received::Delivery(Delivery::Gap(gap)) = slow.receive(Duration::ZERO) else { panic!("no gap") };
    assert_eq!((gap.reason, gap.lost_max), (GapReason::TooSlow, Some(5)));
    assert_eq!((gap.after.seq, gap.through.seq), (0, 5));
    stage.publish([9]); // more is lost while it reads: another gap, before the remaining events
    assert_eq!(pending(&mut slow), ["too-slow:Some(1)", "7", "8", "9"]);
    stage.publish([10]);
    assert_eq!(pending(&mut slow), ["10"], "told once");
}

#[test]
fn a_queue_is_bounded_in_bytes_as_well() {
    let stage = Stage::new(HubLimits { queue_bytes_max: 4 * EVENT_BYTES_MAX, ..HubLimits::default() });
    let mut slow = stage.follow(Start::Now);
    let details = serde_json::json!("x".repeat(DETAILS_BYTES_MAX - 2));
    for _ in 0..10 {
        stage.hub.publish(NewEvent::new(EventKind::BlockLost, "large").details(details.clone()));
    }
    assert_eq!(pending(&mut slow), ["too-slow:Some(6)", "large", "large", "large", "large"]);
}

#[test]
fn newer_progress_replaces_older() {
    let stage = Stage::new(HubLimits { queue_events_max: 3, ..HubLimits::default() });
    let mut reader = stage.follow(Start::Now);
    stage.publish([1]);
    for percent in 0..100 {
        stage.hub.publish(progress("j1", &format!("j1 {percent} %")));
        stage.hub.publish(progress("j2", &format!("j2 {percent} %")));
    }
    assert_eq!(pending(&mut reader), ["1", "j1 99 %", "j2 99 %"]);
    assert_eq!(stage.hub.stats().history_events, 3, "the history keeps the newest as well");
    stage.hub.publish(progress("j1", "j1 100 %"));
    assert_eq!(pending(&mut reader), ["j1 100 %"], "what was delivered is not replaced");
}

#[test]
fn expired_event_is_not_delivered() {
    let stage = Stage::new(HubLimits::default());
    let mut reader = stage.follow(Start::Now);
    let short = |text| NewEvent::new(EventKind::JobProgress, text).time_to_live(Duration::from_secs(10));
    stage.hub.publish(short("old"));
    stage.publish([1]);
    stage.clock.advance(Duration::from_secs(5));
    stage.hub.publish(short("young"));
    stage.clock.advance(Duration::from_secs(5));
    assert_eq!(pending(&mut reader), ["1", "young"]);
    assert_eq!(pending(&mut stage.follow(Start::Oldest)), ["1", "young"], "nor from the history");
}

#[test]
fn a_filter_keeps_the_rest_out_of_the_queue() {
    let stage = Stage::new(HubLimits { queue_events_max: 2, ..HubLimits::default() });
    let filter = Filter::default().kind("job").unwrap();
    let mut jobs = stage.hub.subscribe(filter, Start::Now).unwrap();
    stage.publish(1..=50);
    stage.hub.publish(progress("j1", "half"));
    assert_eq!(pending(&mut jobs), ["half"]);
    assert_eq!(jobs.position().seq, 51, "what is not wanted needs not be seen again");
}

#[test]
fn readers_are_bounded_until_dropped() {
    let stage = Stage::new(HubLimits { readers_max: 2, ..HubLimits::default() });
    let one = stage.follow(Start::Now);
    let _two = stage.follow(Start::Now);
    let refused = stage.hub.subscribe(Filter::default(), Start::Now).unwrap_err();
    assert_eq!(refused, SubscribeError::TooManyReaders(2));
    drop(one);
    stage.follow(Start::Now);
}

#[test]
fn closed_hub_delivers_waiting_events() {
    let stage = Stage::new(HubLimits::default());
    let mut reader = stage.follow(Start::Now);
    stage.publish([1]);
    stage.hub.close();
    assert_eq!(pending(&mut reader), ["1"]);
    assert_eq!(reader.receive(Duration::from_secs(60)), Received::Closed);
    let refused = stage.hub.subscribe(Filter::default(), Start::Now).unwrap_err();
    assert_eq!(refused, SubscribeError::Closed);
    stage.publish([2]); // harmless
}

#[test]
fn waiting_reader_wakes_for_event_and_end() {
    let stage = Stage::new(HubLimits::default());
    let mut reader = stage.follow(Start::Now);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            (reader.receive(Duration::from_secs(60)), reader.receive(Duration::from_secs(60)))
        });
        stage.publish([1]);
        std::thread::sleep(Duration::from_millis(20)); // lets it wait again; it must end either way
        stage.hub.close();
        let (first, second) = waiting.join().unwrap();
        assert!(matches!(first, Received::Delivery(Delivery::Event(_))), "{first:?}");
        assert_eq!(second, Received::Closed);
    });
}
