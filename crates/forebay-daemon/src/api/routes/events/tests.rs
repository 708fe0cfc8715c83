//! Server-sent events over a real Unix socket, with a minimal HTTP client.

use super::*;
use forebay_admin::clock::ManualClock;
use forebay_admin::events::{AlarmKey, EventKind, HubLimits, NewEvent, Severity};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

const HEARTBEAT: Duration = Duration::from_millis(50);
/// 2023-11-14 22:13:20 UTC.
const START_UNIX_NS: u64 = 1_700_000_000_000_000_000;

/// A hub.
struct Stage {
    hub: Hub,
}

impl Stage {
    fn new(limits: HubLimits) -> Self {
        Self { hub: Hub::new(Arc::new(ManualClock::new(START_UNIX_NS)), limits) }
    }

    /// Publishes events with the messages `1`, `2` ... about volume `db`.
    fn publish(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.hub.publish(NewEvent::new(EventKind::DestageFailed, number.to_string()).volume("db"));
        }
    }
}

/// A server in a thread; ends when dropped.
struct Server {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(hub: &Hub, heartbeat: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("admin.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(&socket).unwrap()
        };
        let (stop, stopped) = oneshot::channel();
        let router = router(hub.clone(), heartbeat);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = axum::serve(listener, router) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { socket, stop: Some(stop), thread: Some(thread), _dir: dir }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Sends a request; returns the status and a reader after the head. HTTP/1.0, so that the body
/// comes without chunks.
fn request(socket: &Path, line: &str, header: &str) -> (u16, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "{line} HTTP/1.0\r\nHost: localhost\r\n{header}\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "no head: {head}");
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), reader)
}

/// Returns the lines of the next frame; `None` at the end.
fn frame(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            assert!(lines.is_empty(), "the stream ended inside a frame: {lines:?}");
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            line => lines.push(line.to_owned()),
        }
    }
}

/// Returns the next frame that is no heartbeat: its ID, its event, and the JSON of its data.
fn event(reader: &mut impl BufRead) -> (String, String, serde_json::Value) {
    let lines = std::iter::from_fn(|| frame(reader)).find(|lines| !lines[0].starts_with(':')).unwrap();
    let field = |name: &str| {
        let value = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default().to_owned()
    };
    (field("id"), field("event"), serde_json::from_str(&field("data")).unwrap_or_default())
}

fn id(seq: u64) -> String {
    EventId { run: START_UNIX_NS, seq }.to_string()
}

#[test]
fn client_resumes_by_last_event_id() {
    let stage = Stage::new(HubLimits::default());
    let server = Server::start(&stage.hub, HEARTBEAT);
    stage.publish([1]);
    let (status, mut stream) = request(&server.socket, "GET /v1/events", "");
    assert_eq!(status, 200);
    assert_eq!(frame(&mut stream), Some(vec![format!("id: {}", id(1))]), "where it begins");
    stage.publish([2]);
    let (last, kind, data) = event(&mut stream);
    assert_eq!((last.as_str(), kind.as_str()), (id(2).as_str(), "destage.failed"));
    assert_eq!((&data["message"], &data["id"], &data["volume"]), (&"2".into(), &id(2).into(), &"db".into()));
    drop(stream);
    stage.publish([3, 4]); // no reader

    let (_, mut stream) =
        request(&server.socket, "GET /v1/events?after=oldest", &format!("Last-Event-ID: {last}\r\n"));
    assert_eq!(event(&mut stream).0, last);
    assert_eq!(event(&mut stream).2["message"], "3");
    assert_eq!(event(&mut stream).2["message"], "4");
    let (_, mut stream) = request(&server.socket, &format!("GET /v1/events?after={}", id(3)), "");
    assert_eq!(event(&mut stream).0, id(3));
    assert_eq!(event(&mut stream).2["message"], "4");
}

#[test]
fn gaps_are_separate_events() {
    let stage = Stage::new(HubLimits { history_events_max: 2, ..HubLimits::default() });
    let server = Server::start(&stage.hub, HEARTBEAT);
    stage.publish(1..=5);
    let (_, mut stream) = request(&server.socket, "GET /v1/events", &format!("Last-Event-ID: {}\r\n", id(1)));
    event(&mut stream);
    let (last, kind, data) = event(&mut stream);
    assert_eq!((last, kind.as_str()), (id(3), "gap"));
    assert_eq!((&data["reason"], &data["lost_max"]), (&"too-old".into(), &2.into()));
    assert_eq!(event(&mut stream).2["message"], "4");

    let (_, mut stream) = request(&server.socket, "GET /v1/events?after=abc-9", "");
    assert_eq!(event(&mut stream).0, "abc-9", "as long as the client was not told, it is where it was");
    let (last, kind, data) = event(&mut stream);
    assert_eq!((last, kind.as_str(), &data["reason"]), (id(3), "gap", &"other-run".into()));
}

#[test]
fn heartbeats_carry_the_position() {
    let stage = Stage::new(HubLimits::default());
    let server = Server::start(&stage.hub, HEARTBEAT);
    let (_, mut stream) = request(&server.socket, "GET /v1/events?kind=alarm", "");
    frame(&mut stream);
    stage.publish([1, 2]); // filtered out
    let position = format!("id: {}", id(2));
    let heartbeat =
        std::iter::from_fn(|| frame(&mut stream)).take(100).find(|lines| lines.contains(&position));
    assert_eq!(heartbeat, Some(vec![": heartbeat".to_owned(), position]));
}

#[test]
fn slow_reader_delays_no_other_client() {
    let stage = Stage::new(HubLimits { queue_events_max: 8, ..HubLimits::default() });
    let server = Server::start(&stage.hub, HEARTBEAT);
    let (_, mut stream) = request(&server.socket, "GET /v1/events", "");
    frame(&mut stream);
    // More than sockets and buffers take: at the end the queue stays full although the server has
    // had time to send.
    let details = serde_json::json!("x".repeat(8_000));
    let stays_full = || {
        (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(5));
            stage.hub.stats().queued == 8
        })
    };
    for _ in 0..10_000 {
        (0..8).for_each(|_| {
            _ = stage.hub.publish(NewEvent::new(EventKind::BlockLost, "large").details(details.clone()))
        });
        if stage.hub.stats().dropped > 0 && stays_full() {
            break;
        }
    }
    assert_eq!(stage.hub.stats().queued, 8);
    stage.publish([77]);
    let (last, gap) = std::iter::from_fn(|| Some(event(&mut stream)))
        // The start of the stream, or the event before.
        .scan(id(0), |before, (id, kind, data)| Some((std::mem::replace(before, id), kind, data)))
        .find_map(|(before, kind, data)| (kind == "gap").then_some((before, data)))
        .unwrap();
    assert_eq!((&gap["reason"], gap["after"].as_str()), (&"too-slow".into(), Some(last.as_str())));
    assert!(std::iter::from_fn(|| Some(event(&mut stream))).any(|(_, _, data)| data["message"] == "77"));
}

#[test]
fn streams_end_with_the_daemon() {
    let stage = Stage::new(HubLimits::default());
    let server = Server::start(&stage.hub, Duration::from_secs(3600));
    let (_, mut stream) = request(&server.socket, "GET /v1/events", "");
    frame(&mut stream);
    stage.hub.close();
    assert_eq!(frame(&mut stream), None);
    assert_eq!(request(&server.socket, "GET /v1/events", "").0, 503);
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    let stage = Stage::new(HubLimits::default());
    let server = Server::start(&stage.hub, HEARTBEAT);
    for (query, expected) in [
        ("kind=nonsense", "no kind of event"),
        ("severity=loud", "warning"),
        ("colour=red", "colour"),
        ("after=12", "oldest"),
    ] {
        let (status, mut body) = request(&server.socket, &format!("GET /v1/events?{query}"), "");
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        assert_eq!(status, 400, "{query}");
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(problem["what"].as_str().unwrap().contains(expected), "{text}");
    }
    let (status, _) = request(&server.socket, "GET /v1/events", "Last-Event-ID: x y\r\n");
    assert_eq!(status, 400);
}

#[test]
fn alarms_are_listed_and_acknowledged() {
    let stage = Stage::new(HubLimits::default());
    let server = Server::start(&stage.hub, HEARTBEAT);
    stage.hub.raise(AlarmKey::volume(EventKind::DestageFailed, "db"), Severity::Warning, "the disk is full");
    let ask = |line: &str| {
        let (status, mut body) = request(&server.socket, line, "");
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        (status, serde_json::from_str::<serde_json::Value>(&text).unwrap())
    };
    assert_eq!(ask("POST /v1/alarms/a1/acknowledge").0, 400, "by whom?");
    assert_eq!(ask("POST /v1/alarms/a7/acknowledge?by=eva").0, 404);
    assert_eq!(ask("POST /v1/alarms/a1/acknowledge?by=eva").0, 200);
    let (status, list) = ask("GET /v1/alarms");
    assert_eq!((status, &list["alarms"][0]["acknowledged"]["by"]), (200, &"eva".into()));
    assert_eq!(list["alarms"][0]["condition"], "destage.failed");
}
