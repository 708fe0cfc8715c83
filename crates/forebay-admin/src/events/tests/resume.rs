//! Readers that resume: history, its bounds, and the reported gaps.

use super::*;

#[test]
fn reader_resumes_after_its_last_event() {
    let stage = Stage::new(HubLimits { queue_events_max: 2, ..HubLimits::default() });
    stage.publish(1..=10);
    let mut back = stage.follow(stage.after(4));
    stage.publish([11]); // while it catches up: read from the history, so the queue limit does not matter
    assert_eq!(pending(&mut back), ["5", "6", "7", "8", "9", "10", "11"]);
    stage.publish([12]);
    assert_eq!(pending(&mut back), ["12"]);
    assert_eq!(pending(&mut stage.follow(stage.after(12))), [""; 0]);
    assert_eq!(pending(&mut stage.follow(Start::Oldest)).len(), 12);
}

#[test]
fn long_history_is_filtered_in_parts() {
    let stage = Stage::new(HubLimits::default());
    for number in 0..2_000 {
        let kind = if number % 500 == 499 { EventKind::BlockLost } else { EventKind::DestageFailed };
        stage.hub.publish(NewEvent::new(kind, number.to_string()));
    }
    let filter = Filter::default().kind("block").unwrap();
    let mut reader = stage.hub.subscribe(filter, stage.after(1)).unwrap();
    assert_eq!(pending(&mut reader), ["499", "999", "1499", "1999"]);
    assert_eq!(reader.position().seq, 2_000);
}

#[test]
fn truncated_history_gives_a_gap() {
    let stage = Stage::new(HubLimits { history_events_max: 3, ..HubLimits::default() });
    stage.publish(1..=10);
    assert_eq!(stage.hub.stats().history_events, 3);
    let mut old = stage.follow(stage.after(2));
    let Received::Delivery(Delivery::Gap(gap)) = old.receive(Duration::ZERO) else { panic!("no gap") };
    assert_eq!((gap.reason, gap.lost_max), (GapReason::TooOld, Some(5)));
    assert_eq!((gap.after.seq, gap.through.seq), (2, 7));
    assert_eq!(pending(&mut old), ["8", "9", "10"]);
    assert_eq!(pending(&mut stage.follow(stage.after(7))), ["8", "9", "10"], "nothing is missing after 7");
    assert_eq!(pending(&mut stage.follow(Start::Oldest)), ["8", "9", "10"]);
}

#[test]
fn history_that_moves_on_gives_a_gap() {
    let stage = Stage::new(HubLimits { history_events_max: 3, ..HubLimits::default() });
    stage.publish(1..=3);
    let mut reader = stage.follow(Start::Oldest);
    assert!(matches!(reader.receive(Duration::ZERO), Received::Delivery(Delivery::Event(_))));
    stage.publish(4..=6);
    assert_eq!(pending(&mut reader), ["too-old:Some(2)", "4", "5", "6"]);
}

#[test]
fn the_history_is_bounded_in_bytes() {
    let stage = Stage::new(HubLimits { history_bytes_max: 100_000, ..HubLimits::default() });
    let details = serde_json::json!("x".repeat(5_000));
    for _ in 0..100 {
        stage.hub.publish(NewEvent::new(EventKind::BlockLost, "large").details(details.clone()));
        assert!(stage.hub.stats().history_bytes <= 100_000);
    }
    assert!(stage.hub.stats().history_events >= 17);
    stage.publish(0..300); // many small ones for few large ones
    assert!(stage.hub.stats().history_bytes <= 100_000);
}

#[test]
fn after_24_hours_an_event_is_gone() {
    let stage = Stage::new(HubLimits::default());
    stage.publish(1..=100);
    stage.clock.advance(Duration::from_secs(24 * 3600 - 1));
    stage.publish([101]);
    assert_eq!(pending(&mut stage.follow(Start::Oldest)).len(), 101);
    stage.clock.advance(Duration::from_secs(1));
    // The age limit applies without a further publication.
    let got = pending(&mut stage.follow(stage.after(0)));
    let (gaps, events): (Vec<_>, Vec<_>) = got.into_iter().partition(|text| text.starts_with("too-old"));
    assert_eq!(events.last().map(String::as_str), Some("101"));
    assert!(!gaps.is_empty());
    (0..10).for_each(|_| assert!(!pending(&mut stage.follow(Start::Oldest)).is_empty()));
    assert_eq!(pending(&mut stage.follow(Start::Oldest)), ["101"]);
    assert_eq!(stage.hub.stats().history_events, 1);
}

#[test]
fn an_id_of_another_run_is_recognised() {
    let stage = Stage::new(HubLimits::default());
    stage.publish(1..=2);
    let other = EventId { run: START_UNIX_NS - 1, seq: 1 };
    let mut reader = stage.follow(Start::After(other));
    assert_eq!(reader.position(), other, "until it was told");
    let Received::Delivery(Delivery::Gap(gap)) = reader.receive(Duration::ZERO) else { panic!("no gap") };
    assert_eq!((gap.reason, gap.lost_max, gap.after), (GapReason::OtherRun, None, other));
    assert_eq!(gap.through, EventId { run: START_UNIX_NS, seq: 0 });
    assert_eq!(reader.position(), gap.through);
    assert_eq!(pending(&mut reader), ["1", "2"], "all that this run has");
}

#[test]
fn an_id_that_was_never_given_is_recognised() {
    let stage = Stage::new(HubLimits::default());
    stage.publish([1]);
    assert_eq!(pending(&mut stage.follow(stage.after(2))), ["unknown-id:None", "1"]);
    assert_eq!(pending(&mut stage.follow(stage.after(u64::MAX))), ["unknown-id:None", "1"]);
}
