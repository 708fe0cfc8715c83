//! Requests that are malformed, too large, too slow or too many.

use super::*;
use client::{connect, exchange, request};
use forebay_daemon::api::BODY_BYTES_MAX;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

#[test]
fn every_error_is_a_problem_document() {
    let stage = Stage::new();
    stage.call("GET", "/v2", "").problem(404, "not-found");
    stage.call("GET", "/v1/volumes/%ff", "").problem(400, "invalid");
    let method = stage.call("PUT", "/v1/volumes", "{}");
    method.problem(405, "invalid");
    let mut allowed: Vec<_> = method.header("allow").split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);

    let broken = stage.call("POST", "/v1/volumes", "{\n  \"name\": }").problem(400, "invalid");
    assert!(broken.contains("line 2 column 11"), "{broken}");
    let missing = stage.call("POST", "/v1/volumes", r#"{"name": "x"}"#).problem(422, "invalid");
    assert!(missing.contains("backing") && missing.contains("line 1"), "{missing}");
    let deep = "[".repeat(100_000);
    stage.call("POST", "/v1/volumes", &deep).problem(422, "invalid");
    let plain = request("POST", "/v1/volumes", "{}").replace("application/json", "text/plain");
    exchange(&mut connect(&stage.socket), plain.as_bytes()).problem(415, "invalid");
    let none = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    exchange(&mut connect(&stage.socket), none.as_bytes()).problem(415, "invalid");
}

#[test]
fn large_bodies_and_headers_are_refused() {
    let stage = Stage::new();
    let large = " ".repeat(BODY_BYTES_MAX + 1);
    stage.call("POST", "/v1/volumes", &large).problem(413, "invalid");
    stage.call("POST", "/v1/reload", &large).problem(413, "invalid");
    let head = "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let chunk = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}");
    exchange(&mut connect(&stage.socket), chunked.as_bytes()).problem(413, "invalid");

    let header = format!("GET /v1/daemon HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20 << 10));
    assert_eq!(exchange(&mut connect(&stage.socket), header.as_bytes()).status, 431);
    let many = "GET /v1/daemon HTTP/1.1\r\nHost: localhost\r\n".to_owned() + &"X: x\r\n".repeat(100) + "\r\n";
    assert_eq!(exchange(&mut connect(&stage.socket), many.as_bytes()).status, 431);
    assert_eq!(exchange(&mut connect(&stage.socket), b"hello?\r\n\r\n").status, 400);
}

#[test]
fn excess_client_is_refused() {
    let stage = Stage::with(|options| options.limits.connections_max = 2);
    let (_silent, mut halting) = (connect(&stage.socket), connect(&stage.socket));
    halting.write_all(b"GET /v1/daemon HT").unwrap();
    let refused = stage.call("GET", "/v1/daemon", "");
    refused.problem(503, "unavailable");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("content-length"), refused.body.len().to_string());
}

#[test]
fn slow_clients_lose_their_connection() {
    let stage = Stage::with(|options| options.limits.headers_within = Duration::from_millis(300));
    let begun = Instant::now();
    let (mut silent, mut halting) = (connect(&stage.socket), connect(&stage.socket));
    halting.write_all(b"GET /v1/daemon HT").unwrap();
    silent.read_to_end(&mut Vec::new()).unwrap();
    let _ = halting.read_to_end(&mut Vec::new());
    assert!(begun.elapsed() < Duration::from_secs(10), "slow clients keep their connections");
    assert_eq!(stage.call("GET", "/v1/daemon", "").status, 200);
}

/// A client that keeps sending requests and never reads fills its socket, and its connection is
/// closed.
#[test]
fn client_that_does_not_read_is_closed() {
    let stage = Stage::with(|options| options.limits.write_timeout = Duration::from_millis(300));
    let mut stream = connect(&stage.socket);
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let ask = "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let closed = (0..1000).find_map(|_| stream.write_all(ask.as_bytes()).err());
    let kind = closed.unwrap().kind(); // depends on whether the server still had something to read
    assert!(matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{kind}");
}

#[test]
fn socket_has_its_mode_and_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    options.socket_permissions.mode = 0o600;
    let fake = fake::Fake::new();
    let server = serve(&options, fake.services()).unwrap();
    assert_eq!(std::fs::metadata(&options.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(serve(&options, fake.services()).is_err(), "a live socket was taken");
    drop(server);
    assert!(!options.socket.exists());
    drop(serve(&options, fake.services()).unwrap());
}
