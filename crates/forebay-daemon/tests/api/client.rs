//! A small HTTP client over any stream: it sends exactly the given bytes.

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns a header.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it is a problem in the right form.
    pub fn problem(&self, status: u16, kind: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!((&problem["status"], &problem["kind"]), (&status.into(), &kind.into()), "{self:?}");
        assert_eq!(problem["detail"], problem["what"], "{self:?}");
        let id = problem["id"].as_str().unwrap_or_default();
        assert!(forebay_admin::MessageId::from_name(id).is_some(), "{self:?}");
        assert!(problem["title"].is_string() && problem["hint"].is_string(), "{self:?}");
        problem["what"].as_str().unwrap().to_owned()
    }
}

/// Sends `text` and reads until the peer closes.
pub fn exchange(stream: &mut (impl Read + Write), text: &[u8]) -> Answer {
    let _ = stream.write_all(text); // the peer may have responded and closed before it received all of it
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Returns the text of a request with or without a JSON body.
pub fn request(method: &str, path: &str, body: &str) -> String {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n{body}"
    )
}

pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends one request over a Unix socket.
pub fn call(socket: &Path, method: &str, path: &str, body: &str) -> Answer {
    exchange(&mut connect(socket), request(method, path, body).as_bytes())
}
