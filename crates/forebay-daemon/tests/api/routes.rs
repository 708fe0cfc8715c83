//! Every route, with its effect and its refusals.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

/// Waits until an accepted job has ended; returns its state.
fn end_of(stage: &Stage, accepted: &client::Answer) -> String {
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let path = accepted.header("location");
    assert_eq!(path, format!("/v1/jobs/{}", accepted.json()["id"].as_str().unwrap()));
    let ended = stage.call("GET", &format!("{path}?wait=10s"), "");
    assert_eq!(ended.status, 200, "{ended:?}");
    ended.json()["state"].as_str().unwrap().to_owned()
}

#[test]
fn daemon_reload_statistics() {
    let stage = Stage::new();
    assert_eq!(stage.call("GET", "/v1/daemon", "").json()["volumes"], serde_json::json!(["db"]));
    assert!(stage.call("POST", "/v1/reload", "").json()["changed"].is_array());
    assert_eq!(stage.call("GET", "/v1/stats", "").json()["volumes"], 1);
    assert_eq!(stage.call("GET", "/v1/volumes/db/stats", "").json()["reads"], 4);
    let text = stage.call("GET", "/v1/volumes/db/stats?format=flashcache", "");
    assert_eq!(
        (text.body.as_str(), text.header("content-type")),
        ("reads=4 writes=0\n", "text/plain; charset=utf-8")
    );
    stage.call("GET", "/v1/volumes/db/stats?format=xml", "").problem(400, "invalid");
    stage.call("GET", "/v1/volumes/no/stats", "").problem(404, "not-found");
    let metrics = stage.call("GET", "/metrics", "");
    assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(metrics.body.ends_with("forebay_volumes 1\n"));
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n";
    let metrics = client::exchange(&mut client::connect(&stage.socket), request.as_bytes());
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    assert!(metrics.body.ends_with("# EOF\n"));
}

#[test]
fn pools_are_created_and_removed() {
    let stage = Stage::new();
    let made =
        stage.call("POST", "/v1/pools", r#"{"name": "p", "devices": [{"path": "/dev/a", "size": "1GiB"}]}"#);
    assert_eq!((made.status, made.header("location")), (201, "/v1/pools/p"));
    assert_eq!(stage.call("GET", "/v1/pools", "").json().as_array().unwrap().len(), 2);
    assert_eq!(stage.call("GET", "/v1/pools/p", "").json(), made.json());
    let grown = stage.call("POST", "/v1/pools/p/grow", r#"{"size": "2GiB"}"#);
    assert_eq!(grown.json()["capacity_bytes"], 2_u64 << 30);
    assert_eq!(end_of(&stage, &stage.call("POST", "/v1/pools/p/shrink", r#"{"size": "1GiB"}"#)), "completed");
    assert_eq!(stage.call("GET", "/v1/pools/p", "").json()["capacity_bytes"], 1_u64 << 30);
    assert_eq!(end_of(&stage, &stage.call("DELETE", "/v1/pools/p?erase=true", "")), "completed");
    stage.call("GET", "/v1/pools/p", "").problem(404, "not-found");
    let import = |how: &str| stage.call("POST", "/v1/import", &format!(r#"{{"devices": ["/dev/a"]{how}}}"#));
    assert_eq!(import(r#", "dry_run": true"#).json()["dry_run"], true);
    stage.call("GET", "/v1/pools/came", "").problem(404, "not-found");
    assert_eq!(import("").json()["pool"], "came");
    import("").problem(409, "conflict");
    assert_eq!(
        end_of(&stage, &stage.call("POST", "/v1/pools/came/export", r#"{"drain": true}"#)),
        "completed"
    );
    stage.call("GET", "/v1/pools/came", "").problem(404, "not-found");

    stage.call("POST", "/v1/pools", r#"{"name": "a b", "devices": []}"#).problem(422, "invalid");
    let again = r#"{"name": "fast", "devices": [{"path": "/dev/a"}]}"#;
    stage.call("POST", "/v1/pools", again).problem(409, "conflict");
    let broken = r#"{"name": "q", "devices": [{"path": "/dev/broken"}]}"#;
    stage.call("POST", "/v1/pools", broken).problem(502, "failed");
    stage.call("POST", "/v1/pools/fast/grow", "{}").problem(422, "invalid");
    stage.call("POST", "/v1/pools/fast/shrink", "{}").problem(422, "invalid");
    stage.call("POST", "/v1/pools/no/grow", r#"{"size": "max"}"#).problem(404, "not-found");
    stage.call("DELETE", "/v1/pools/fast", "").problem(409, "conflict");
    stage.call("DELETE", "/v1/pools/fast?erase=perhaps", "").problem(400, "invalid");
}

#[test]
fn volumes_are_attached_and_detached() {
    let stage = Stage::new();
    let made = stage.call("POST", "/v1/volumes", r#"{"name": "v.1", "backing": "file:/srv/v"}"#);
    assert_eq!((made.status, made.header("location")), (201, "/v1/volumes/v.1"));
    assert_eq!(stage.call("GET", "/v1/volumes", "").json().as_array().unwrap().len(), 2);
    assert_eq!(stage.call("GET", "/v1/volumes/v.1", "").json()["pool"], "fast");
    assert_eq!(
        end_of(&stage, &stage.call("POST", "/v1/volumes/v.1/resize", r#"{"size": "20GiB"}"#)),
        "completed"
    );
    assert_eq!(stage.call("GET", "/v1/volumes/v.1", "").json()["size_bytes"], 20_u64 << 30);
    assert_eq!(end_of(&stage, &stage.call("POST", "/v1/volumes/v.1/flush?deadline=1min", "")), "completed");
    assert_eq!(end_of(&stage, &stage.call("DELETE", "/v1/volumes/v.1?how=keep", "")), "completed");
    stage.call("GET", "/v1/volumes/v.1", "").problem(404, "not-found");

    stage.call("POST", "/v1/volumes", r#"{"name": "db", "backing": "file:/x"}"#).problem(409, "conflict");
    stage.call("POST", "/v1/volumes", r#"{"name": "x", "backing": "nbd:x"}"#).problem(422, "invalid");
    stage
        .call("POST", "/v1/volumes", r#"{"name": "x", "pool": "no", "backing": "file:/x"}"#)
        .problem(404, "not-found");
    stage.call("POST", "/v1/volumes/db/resize", r#"{"size": "lots"}"#).problem(422, "invalid");
    stage.call("POST", "/v1/volumes/db/flush?deadline=5", "").problem(422, "invalid");
    stage.call("POST", "/v1/volumes/no/flush", "").problem(404, "not-found");
    stage.call("DELETE", "/v1/volumes/db?how=now", "").problem(400, "invalid");
    stage.call("DELETE", "/v1/volumes/db?who=me", "").problem(400, "invalid");
}

#[test]
fn tunables_are_shown_and_changed() {
    let stage = Stage::new();
    let path = "/v1/volumes/db/settings";
    assert_eq!(stage.call("GET", path, "").json()["mode"]["value"], "writeback");
    let done = stage.call("PATCH", path, r#"{"set": {"mode": "writethrough"}}"#);
    assert_eq!((done.status, done.json()["changed"][0][2].as_str()), (200, Some("writethrough")));
    assert_eq!(stage.call("GET", path, "").json()["mode"]["value"], "writethrough");
    let drained = stage.call("PATCH", path, r#"{"set": {"mode": null}, "leaving": "drain"}"#);
    assert_eq!(drained.status, 202);
    assert_eq!(drained.header("location"), format!("/v1/jobs/{}", drained.json()["job"].as_str().unwrap()));
    let pool = "/v1/pools/fast/settings";
    assert_eq!(stage.call("PATCH", pool, r#"{"set": {"reclaim_policy": "lru"}}"#).status, 200);
    assert_eq!(stage.call("GET", pool, "").json()["reclaim_policy"]["value"], "lru");

    stage.call("PATCH", path, r#"{"set": {"mood": "good"}}"#).problem(422, "invalid");
    stage.call("PATCH", path, r#"{"set": {}, "sudo": true}"#).problem(422, "invalid");
    stage.call("PATCH", pool, r#"{"set": {"mode": null}}"#).problem(422, "invalid");
    stage.call("GET", "/v1/volumes/no/settings", "").problem(404, "not-found");
    stage.call("GET", "/v1/pools/no/settings", "").problem(404, "not-found");
}

#[test]
fn rules_are_listed_added_and_deleted() {
    let stage = Stage::new();
    let path = "/v1/volumes/db/rules";
    let added = stage.call("POST", path, r#"{"rule": "bypass exe=rsync direction=read", "position": 0}"#);
    assert_eq!(added.status, 201, "{added:?}");
    assert_eq!(added.header("location"), format!("{path}/{}", added.json()["id"]));
    assert_eq!(stage.call("GET", path, "").json().as_array().unwrap().len(), 1);
    let deleted = stage.call("DELETE", added.header("location"), "");
    assert_eq!((deleted.status, deleted.body.as_str()), (204, ""));
    stage.call("DELETE", added.header("location"), "").problem(404, "not-found");
    let wrong = stage.call("POST", path, r#"{"rule": "bypas exe=rsync"}"#).problem(422, "invalid");
    assert!(wrong.contains("bypas"), "{wrong}");
    stage.call("GET", "/v1/volumes/no/rules", "").problem(404, "not-found");
}

#[test]
fn jobs_are_listed_waited_for_and_cancelled() {
    let stage = Stage::new();
    stage.call("POST", "/v1/volumes", r#"{"name": "slow", "backing": "file:/srv/slow"}"#);
    let job = stage.call("POST", "/v1/volumes/slow/flush", "");
    let path = job.header("location");
    let begun = Instant::now();
    let waited = stage.call("GET", &format!("{path}?wait=300ms"), "");
    assert_eq!((waited.status, waited.json()["state"].as_str()), (202, Some("running")));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        stage.call("GET", "/v1/jobs?state=running&volume=slow", "").json().as_array().unwrap().len(),
        1
    );
    assert_eq!(stage.call("GET", "/v1/jobs?volume=other", "").json().as_array().unwrap().len(), 0);
    assert_eq!(end_of(&stage, &stage.call("DELETE", path, "")), "cancelled");

    stage.call("GET", "/v1/jobs/j999", "").problem(404, "not-found");
    stage.call("GET", "/v1/jobs/j999?wait=1s", "").problem(404, "not-found");
    stage.call("GET", "/v1/jobs/x?wait=1s", "").problem(404, "not-found");
    stage.call("GET", "/v1/jobs?color=red", "").problem(400, "invalid");
    stage.call("GET", &format!("{path}?wait=1year"), "").problem(422, "invalid");
    stage.call("DELETE", "/v1/jobs/j999", "").problem(404, "not-found");
    let done = stage.call("POST", "/v1/volumes/db/flush", "");
    assert_eq!(end_of(&stage, &done), "completed");
    stage.call("DELETE", done.header("location"), "").problem(409, "conflict");
}

/// More clients wait than there are threads, and queries are still answered.
#[test]
fn waiting_for_jobs_takes_no_threads() {
    let stage = Stage::new();
    stage.call("POST", "/v1/volumes", r#"{"name": "slow", "backing": "file:/srv/slow"}"#);
    let path = format!("{}?wait=10min", stage.call("POST", "/v1/volumes/slow/flush", "").header("location"));
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = client::connect(&stage.socket);
            stream.write_all(client::request("GET", &path, "").as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(stage.call("GET", "/v1/daemon", "").status, 200);
    drop(stage); // a stop does not wait for them either
    drop(waiting);
}

#[test]
fn events_stream_and_alarms_acknowledge() {
    use forebay_admin::events::{AlarmKey, EventKind, Severity};
    let stage = Stage::new();
    let services = stage.fake.services();
    services.events.raise(AlarmKey::volume(EventKind::DestageFailed, "db"), Severity::Warning, "no space");
    let alarms = stage.call("GET", "/v1/alarms", "").json();
    let path = format!("/v1/alarms/{}/acknowledge", alarms["alarms"][0]["id"].as_str().unwrap());
    stage.call("POST", &path, "").problem(400, "invalid");
    stage.call("POST", &format!("{path}?by="), "").problem(400, "invalid");
    stage.call("POST", "/v1/alarms/a99/acknowledge?by=eva", "").problem(404, "not-found");
    assert_eq!(stage.call("POST", &format!("{path}?by=eva"), "").json()["acknowledged"]["by"], "eva");

    stage.call("GET", "/v1/events?colour=red", "").problem(400, "invalid");
    stage.call("GET", "/v1/events?after=yesterday", "").problem(400, "invalid");
    let mut stream = client::connect(&stage.socket);
    stream.write_all(client::request("GET", "/v1/events?after=oldest&kind=alarm", "").as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "content-type: text/event-stream"));
    assert!(lines.any(|line| line == "event: alarm.raised"));
    assert!(lines.any(|line| line == "event: alarm.acknowledged"));
}
