//! The dashboard: its files, access to them, and responses to pages of other origins.

use super::*;
use client::{Answer, exchange};
use std::net::TcpStream;
use std::time::Duration;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn with_tcp() -> Stage {
    Stage::with(|options| {
        options.tcp = Some(tcp_options(options.socket.parent().unwrap(), TOKEN, 0o600));
    })
}

/// Sends a request with these additional headers.
fn call(mut stream: impl std::io::Read + std::io::Write, line: &str, headers: &str) -> Answer {
    let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let text = format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{headers}\r\n");
    exchange(&mut stream, text.as_bytes())
}

fn tcp(stage: &Stage) -> TcpStream {
    let stream = TcpStream::connect(stage.server.tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

#[test]
fn page_is_open_and_its_data_needs_a_token() {
    let stage = with_tcp();
    for place in ["/", "/ui"] {
        let answer = call(tcp(&stage), &format!("GET {place}"), "");
        assert_eq!((answer.status, answer.header("location")), (307, "/ui/"), "{answer:?}");
    }
    let page = call(tcp(&stage), "GET /ui/", "");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'self';"));
    assert_eq!(
        (page.header("x-content-type-options"), page.header("cache-control")),
        ("nosniff", "no-cache")
    );
    assert!(page.body.contains("<script type=\"module\" src=\"main.js\">"));
    let script = call(tcp(&stage), "GET /ui/main.js", "");
    assert_eq!((script.status, script.header("content-type")), (200, "text/javascript; charset=utf-8"));
    let head = call(tcp(&stage), "HEAD /ui/main.js", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.header("content-length"), script.body.len().to_string());
    for line in [
        "GET /v1/overview",
        "GET /ui/nothing",
        "GET /ui/%2e%2e/v1/daemon",
        "GET /ui/../v1/daemon",
        "POST /ui/",
    ] {
        call(tcp(&stage), line, "Content-Length: 0\r\n").problem(401, "denied");
    }
}

#[test]
fn cached_page_is_not_sent_again() {
    let stage = Stage::new();
    let first = call(client::connect(&stage.socket), "GET /ui/style.css", "");
    let tag = first.header("etag");
    assert_eq!(tag.len(), 18, "{first:?}");
    for tags in [tag.to_owned(), format!("\"x\", W/{tag}")] {
        let again =
            call(client::connect(&stage.socket), "GET /ui/style.css", &format!("If-None-Match: {tags}\r\n"));
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{tags}");
    }
    let other = call(client::connect(&stage.socket), "GET /ui/main.js", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(other.status, 200);
}

#[test]
fn other_pages_are_not_found() {
    let stage = Stage::new();
    for path in
        ["/ui/nothing", "/ui/..", "/ui/%2e%2e%2fCargo.toml", "/ui/%2Fetc%2Fpasswd", "/ui/README.md", "/ui//"]
    {
        let answer = call(client::connect(&stage.socket), &format!("GET {path}"), "");
        answer.problem(404, "not-found");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let answer = call(client::connect(&stage.socket), &format!("{method} /ui/"), "Content-Length: 0\r\n");
        answer.problem(405, "invalid");
        assert_eq!(answer.header("allow"), "GET,HEAD");
    }
}

#[test]
fn overview_has_all_state_and_permissions() {
    let stage = with_tcp();
    let overview = stage.call("GET", "/v1/overview", "").json();
    assert_eq!(overview["may_operate"], true);
    assert_eq!(overview["volumes"][0]["name"], "db");
    assert_eq!(overview["volume_rates"]["db"]["reads_per_s"], 4.0);
    assert_eq!(overview["alarms_total"], 0);
    let authorized = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(call(tcp(&stage), "GET /v1/overview", &authorized).json()["may_operate"], true);
}

#[test]
fn overview_lists_the_gravest_alarms_first() {
    use forebay_admin::events::{AlarmKey, EventKind, Severity};
    let stage = Stage::new();
    let events = stage.fake.services().events;
    for number in 0..500 {
        let severity = if number == 7 { Severity::Error } else { Severity::Warning };
        let key = AlarmKey::volume(EventKind::DestageFailed, &format!("v{number}"));
        events.raise(key, severity, "it fails");
    }
    let overview = stage.call("GET", "/v1/overview", "").json();
    assert_eq!(overview["alarms_total"], 500);
    let told = overview["alarms"].as_array().unwrap();
    let names: Vec<_> = told.iter().map(|alarm| alarm["volume"].as_str().unwrap()).collect();
    assert_eq!((told.len(), &names[..3]), (200, &["v7", "v499", "v498"][..]));
    assert_eq!(stage.call("GET", "/v1/alarms", "").json()["alarms"].as_array().unwrap().len(), 500);
}

#[test]
fn foreign_pages_and_names_are_refused() {
    let stage = with_tcp();
    let authorized = format!("Authorization: Bearer {TOKEN}\r\n");
    for header in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
    ] {
        for line in ["GET /v1/daemon", "POST /v1/reload", "GET /metrics"] {
            let headers = format!("{header}Content-Length: 0\r\n");
            call(client::connect(&stage.socket), line, &headers).problem(403, "denied");
            call(tcp(&stage), line, &format!("{headers}{authorized}")).problem(403, "denied");
        }
        assert_eq!(
            call(client::connect(&stage.socket), "GET /ui/", header).status,
            200,
            "a link may lead here"
        );
    }
    let own = "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 0\r\n";
    assert_eq!(call(client::connect(&stage.socket), "POST /v1/reload", own).status, 200);
    let named = "Host: evil.example\r\n";
    for line in ["GET /v1/daemon", "GET /ui/"] {
        for host in [named, "Host: evil\r\n"] {
            call(client::connect(&stage.socket), line, host).problem(403, "denied");
        }
    }
    assert_eq!(call(tcp(&stage), "GET /v1/daemon", &format!("{named}{authorized}")).status, 200);
}
