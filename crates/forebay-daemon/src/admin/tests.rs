//! The admin API through its socket, with a source that makes its numbers up.

use super::*;
use crate::meter::format::object;
use crate::meter::{About, Counters, History, Meter};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct Fake {
    ended: AtomicBool,
}

impl Source for Fake {
    fn snapshot(&self) -> Option<Snapshot> {
        let (now, mut meter) = (1_500_000_000, Meter::new(0));
        meter.record(crate::meter::Path::Flush, 1_000_000, 0, now);
        let mut counters = Counters { reads: 4, read_time_ns: 10_000, ..Counters::default() };
        (counters.read_hit_blocks, counters.read_miss_blocks) = (3, 1);
        (counters.dirty_blocks, counters.capacity_blocks) = (5, 50);
        (!self.ended.load(Ordering::Relaxed)).then(|| Snapshot {
            about: About {
                volume: "db \"1\"".into(),
                mode: "writeback",
                uptime_ns: now,
                connections: 2,
                ..About::default()
            },
            counters,
            rates: History::new(0).rates(now, &counters),
            latency: meter.capture(now),
            dirty_age: None,
        })
    }
}

fn get(socket: &Path, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn statistics_come_as_json_with_what_follows_from_them() {
    let object = object(&Fake::default().snapshot().unwrap().report());
    assert_eq!(object["volume"], "db \"1\"");
    assert_eq!(object["reads"], 4);
    assert_eq!(object["read_hit_ratio"], 0.75);
    assert_eq!(object["read_latency_mean_us"], 2.5);
    assert_eq!(object["dirty_ratio"], 0.1);
    assert!(object["write_latency_mean_us"].is_null(), "a mean of nothing is nothing");
}

#[test]
fn the_socket_answers_all_paths_and_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin.sock");
    let source = Arc::new(Fake::default());
    let server = serve(&socket, source.clone()).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);

    let (status, body) = get(&socket, "/v1/stats");
    assert_eq!(status, 200);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap()["mode"], "writeback");

    let (status, body) = get(&socket, "/v1/stats/flashcache");
    assert_eq!(status, 200);
    assert!(body.starts_with("reads=4 ") && body.contains(" read_hit_percent=75 "), "{body}");

    let (status, body) = get(&socket, "/metrics");
    assert_eq!(status, 200);
    assert!(body.contains("forebay_reads_total{volume=\"db \\\"1\\\"\"} 4\n"), "{body}");
    assert!(body.contains("# TYPE forebay_dirty_blocks gauge\n"), "{body}");
    assert!(body.contains("forebay_uptime_seconds{volume=\"db \\\"1\\\"\"} 1.5\n"), "{body}");
    assert!(body.contains("le=\"0.001\""), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");

    let (status, body) = get(&socket, "/v1/openapi.json");
    assert_eq!(status, 200);
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    let documented = document["components"]["schemas"]["Stats"]["properties"].as_object().unwrap();
    let answered = object(&source.snapshot().unwrap().report());
    assert!(documented.keys().eq(answered.keys()), "the document does not describe what is answered");

    assert_eq!(get(&socket, "/v2").0, 404);
    assert!(matches!(serve(&socket, source.clone()), Err(AdminError::Socket(_))), "a live socket was taken");
    source.ended.store(true, Ordering::Relaxed);
    assert_eq!(get(&socket, "/v1/stats").0, 503);

    let _silent = UnixStream::connect(&socket).unwrap(); // does not hold up the stop
    drop(server);
    assert!(!socket.exists());
    serve(&socket, source).unwrap();
}
