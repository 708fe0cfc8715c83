//! Alarms: raised once, acknowledged for all users, cleared by the end of the condition.

use super::*;

fn kinds(subscription: &mut Subscription) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    while let Received::Delivery(Delivery::Event(event)) = subscription.receive(Duration::ZERO) {
        kinds.push(event.kind);
    }
    kinds
}

#[test]
fn repeated_condition_raises_one_alarm() {
    let stage = Stage::new(HubLimits::default());
    let mut reader = stage.follow(Start::Now);
    let key = AlarmKey::volume(EventKind::DestageFailed, "db");
    for _ in 0..3 {
        stage.hub.raise(key.clone(), Severity::Warning, "the disk refuses writes");
        stage.clock.advance(Duration::from_secs(1));
    }
    stage.hub.raise(AlarmKey::volume(EventKind::DestageFailed, "web"), Severity::Warning, "so does this");
    assert_eq!(kinds(&mut reader), [EventKind::AlarmRaised; 2]);
    let alarms = stage.hub.alarms();
    assert_eq!((alarms.len(), alarms[0].repeats, alarms[1].repeats), (2, 2, 0));
    assert_eq!(alarms[0].seen_unix_ns - alarms[0].raised_unix_ns, 2_000_000_000);

    assert!(stage.hub.clear(&key));
    assert!(!stage.hub.clear(&key), "there is nothing to clear twice");
    assert_eq!(kinds(&mut reader), [EventKind::AlarmCleared]);
    assert_eq!(stage.hub.alarms().len(), 1);
}

#[test]
fn acknowledgement_is_shared_by_all_readers() {
    let stage = Stage::new(HubLimits::default());
    let (mut desk, mut phone) = (stage.follow(Start::Now), stage.follow(Start::Now));
    stage.hub.raise(
        AlarmKey::pool(EventKind::CacheFenced, "fast"),
        Severity::Error,
        "the device failed a flush",
    );
    let id = format!("a{}", stage.hub.alarms()[0].id);
    let first = stage.hub.acknowledge(&id, "eva").unwrap();
    stage.clock.advance(Duration::from_secs(1));
    assert_eq!(stage.hub.acknowledge(&id, "adam").unwrap(), first, "who was first, and when, stays");
    let expected = [EventKind::AlarmRaised, EventKind::AlarmAcknowledged];
    assert_eq!(kinds(&mut desk), expected);
    assert_eq!(kinds(&mut phone), expected);
    assert_eq!(stage.hub.alarms()[0].acknowledged.as_ref().unwrap().by, "eva");
    assert_eq!(stage.hub.alarms().len(), 1, "the condition is still there");
}

#[test]
fn worse_alarm_needs_a_new_acknowledgement() {
    let stage = Stage::new(HubLimits::default());
    let mut reader = stage.follow(Start::Now);
    let key = AlarmKey::volume(EventKind::DestageFailed, "db");
    stage.hub.raise(key.clone(), Severity::Warning, "some writes fail");
    stage.hub.acknowledge("a1", "eva").unwrap();
    stage.hub.raise(key.clone(), Severity::Error, "all writes fail");
    stage.hub.raise(key, Severity::Warning, "some writes fail");
    assert_eq!(
        kinds(&mut reader),
        [EventKind::AlarmRaised, EventKind::AlarmAcknowledged, EventKind::AlarmRaised]
    );
    let alarm = &stage.hub.alarms()[0];
    assert_eq!((alarm.severity, alarm.repeats, &alarm.acknowledged), (Severity::Error, 2, &None));
}

#[test]
fn unknown_alarms_are_refused_with_a_way_on() {
    let stage = Stage::new(HubLimits::default());
    for wrong in ["", "a", "a1", "1", "a-1", "alarm"] {
        let error = stage.hub.acknowledge(wrong, "eva").unwrap_err();
        assert!(error.to_string().contains("/v1/alarms"), "{error}");
    }
}

#[test]
fn excess_alarms_are_still_reported() {
    let stage = Stage::new(HubLimits { alarms_max: 2, ..HubLimits::default() });
    let mut reader = stage.follow(Start::Now);
    for volume in ["a", "b", "c"] {
        stage.hub.raise(AlarmKey::volume(EventKind::DestageFailed, volume), Severity::Warning, "x");
    }
    assert_eq!(stage.hub.alarms().len(), 2);
    assert_eq!(kinds(&mut reader).len(), 3);
}

/// Events of another run, as the files of events have them.
fn stored(subscription: &mut Subscription) -> Vec<serde_json::Value> {
    let mut events = Vec::new();
    while let Received::Delivery(Delivery::Event(event)) = subscription.receive(Duration::ZERO) {
        events.push(event.to_json());
    }
    events
}

#[test]
fn alarm_continues_in_the_next_run() {
    let before = Stage::new(HubLimits::default());
    let mut files = before.follow(Start::Now);
    let (holds, worse, ends, ended) = (
        AlarmKey::volume(EventKind::DestageFailed, "db"),
        AlarmKey::volume(EventKind::DestageFailed, "web"),
        AlarmKey::pool(EventKind::CacheFenced, "fast"),
        AlarmKey::pool(EventKind::CacheFenced, "slow"),
    );
    for key in [&holds, &worse, &ends, &ended] {
        before.hub.raise(key.clone(), Severity::Warning, "the disk refuses writes");
    }
    ["a1", "a2"].iter().for_each(|id| drop(before.hub.acknowledge(id, "eva").unwrap()));
    before.hub.clear(&ended);

    let stage = Stage::new(HubLimits::default());
    stage.clock.advance(Duration::from_secs(60));
    stage.hub.restore_alarms(&stored(&mut files));
    let mut reader = stage.follow(Start::Now);
    assert!(stage.hub.alarms().is_empty(), "no condition was seen in this run");
    stage.hub.raise(holds.clone(), Severity::Warning, "it still does");
    stage.hub.raise(worse, Severity::Error, "it is gone");
    let alarms = stage.hub.alarms();
    assert_eq!(alarms[0].acknowledged, before.hub.alarms()[0].acknowledged);
    assert_eq!(alarms[0].raised_unix_ns, before.hub.alarms()[0].raised_unix_ns);
    assert_eq!((alarms[0].repeats, alarms[0].message.as_str()), (1, "it still does"));
    assert_eq!((alarms[1].repeats, &alarms[1].acknowledged), (0, &None));
    stage.hub.end_earlier_alarms();
    stage.hub.end_earlier_alarms();
    let events = stored(&mut reader);
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event["kind"].as_str().unwrap(), event["details"]["continues"] == true))
        .collect();
    assert_eq!(seen, [("alarm.raised", true), ("alarm.raised", false), ("alarm.cleared", false)]);
    assert_eq!(events[2]["pool"], "fast");
    assert!(!stage.hub.clear(&ends), "it has ended");
}

#[test]
fn earlier_alarm_whose_condition_ended_is_cleared() {
    let before = Stage::new(HubLimits::default());
    let mut files = before.follow(Start::Now);
    let key = AlarmKey::volume(EventKind::DestageFailed, "db");
    before.hub.raise(key.clone(), Severity::Warning, "the disk refuses writes");
    let stage = Stage::new(HubLimits::default());
    stage.hub.restore_alarms(&stored(&mut files));
    stage.hub.restore_alarms(&[serde_json::json!({ "kind": "alarm.raised", "details": { "condition": 7 } })]);
    let mut reader = stage.follow(Start::Now);
    assert!(stage.hub.clear(&key));
    assert_eq!(kinds(&mut reader), [EventKind::AlarmCleared]);
}
