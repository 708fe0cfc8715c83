//! Events from the daemon (`text/event-stream`), across interruptions: after a break it reconnects
//! and resumes after the last known event.
//!
//! Invariants
//! - No event is omitted silently: the daemon's reports of gaps are passed on unchanged.
//! - A stream without data for longer than several heartbeats counts as broken.
//! - It reconnects after a pause that doubles from [`PAUSE_MIN`] to [`PAUSE_MAX`], until Ctrl-C.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Client;
use super::http::{self, Answer, Bytes, HttpRequest};
use crate::failure::Failure;

/// The daemon sends a heartbeat every 15 s; the stream is broken when three are missing.
const SILENCE_MAX: Duration = Duration::from_secs(45);
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Longest accepted line, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Events {
    client: Client,
    query: String,
    last_id: Option<String>,
    open: Option<Answer>,
    parser: Parser,
    ready: VecDeque<Frame>,
    pause: Duration,
    ever_open: bool,
}

/// Result of waiting for an event.
#[derive(Debug)]
pub(crate) enum Received {
    /// An event, or a gap: its name and content.
    Event(String, Value),
    /// The position of the stream: everything before was delivered, or not wanted.
    Place,
    /// The connection broke, for this reason; it will be retried.
    Broken(String),
    /// The connection was restored.
    Again,
    /// Ctrl-C was pressed, or the time limit expired.
    Nothing,
}

impl Events {
    pub(super) fn new(client: Client, query: String, after: Option<String>) -> Self {
        Self {
            client,
            query,
            last_id: after,
            open: None,
            parser: Parser::default(),
            ready: VecDeque::new(),
            pause: PAUSE_MIN,
            ever_open: false,
        }
    }

    /// Returns the ID of the last event or heartbeat, to resume after it.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Waits for the next item until `until` or Ctrl-C.
    ///
    /// # Errors
    /// The first connection fails, or the daemon refuses the request: a retry would not help.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Received, Failure> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                if let Some(received) = self.take(frame) {
                    return Ok(received);
                }
                continue;
            }
            if self.client.is_stopped() || Instant::now() >= until {
                return Ok(Received::Nothing);
            }
            let Some(answer) = &mut self.open else {
                if let Some(received) = self.connect()? {
                    return Ok(received);
                }
                continue;
            };
            let client = &self.client;
            let quiet = Instant::now() + SILENCE_MAX;
            match answer.read(until.min(quiet), &|| client.is_stopped()) {
                Ok(Bytes::Some(bytes)) => {
                    let limit = self.parser.feed(&bytes, &mut self.ready);
                    if !limit {
                        return Ok(self.broken("a line of the stream is too long"));
                    }
                }
                Ok(Bytes::Nothing) if Instant::now() >= quiet => {
                    return Ok(self.broken("it sends nothing, not even a heartbeat"));
                }
                Ok(Bytes::Nothing) => {}
                Ok(Bytes::End) => return Ok(self.broken("the daemon ended the stream")),
                Err(error) => return Ok(self.broken(&error.to_string())),
            }
        }
    }

    /// Returns the meaning of a frame; `None` if it has none.
    fn take(&mut self, frame: Frame) -> Option<Received> {
        self.pause = PAUSE_MIN;
        if let Some(id) = frame.id {
            self.last_id = Some(id);
        }
        if frame.data.is_empty() {
            return Some(Received::Place);
        }
        let value = serde_json::from_str(&frame.data).ok()?;
        Some(Received::Event(frame.event, value))
    }

    fn broken(&mut self, why: &str) -> Received {
        self.open = None;
        self.parser = Parser::default();
        Received::Broken(why.into())
    }

    fn connect(&mut self) -> Result<Option<Received>, Failure> {
        if self.ever_open {
            self.sleep();
        }
        let headers = self.last_id.iter().map(|id| ("Last-Event-ID", id.clone())).collect();
        let path = format!("/v1/events{}", self.query);
        let request = HttpRequest { method: "GET", path: &path, body: None, headers };
        let stop = || self.client.is_stopped();
        match http::ask(&self.client.socket, &request, super::LOOK_WITHIN, &stop) {
            Ok(answer) if answer.status == 200 => {
                self.open = Some(answer);
                let again = std::mem::replace(&mut self.ever_open, true);
                Ok(again.then_some(Received::Again))
            }
            // Too many readers, or a daemon that is stopping: an error only for the first
            // connection.
            Ok(answer) if self.ever_open && answer.status == 503 => Ok(None),
            Ok(answer) => {
                let status = answer.status;
                let text = answer.text(Instant::now() + super::LOOK_WITHIN, &stop).unwrap_or_default();
                Err(self.client.refused(status, &path, &text))
            }
            Err(_) if self.ever_open => Ok(None),
            Err(error) => Err(self.client.no_answer(error, "GET")),
        }
    }

    fn sleep(&mut self) {
        let until = Instant::now() + self.pause;
        while Instant::now() < until && !self.client.is_stopped() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// One frame of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Frame {
    id: Option<String>,
    event: String,
    data: String,
}

/// Parses bytes, in chunks of any size, into frames (the `event stream interpretation` of the HTML
/// standard).
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    after_return: bool,
    frame: Frame,
    any: bool,
}

impl Parser {
    /// Takes bytes; returns `false` if a line is longer than [`LINE_BYTES_MAX`].
    fn feed(&mut self, bytes: &[u8], out: &mut VecDeque<Frame>) -> bool {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    self.end_line(&String::from_utf8_lossy(&line), out);
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
            if self.line.len() + self.frame.data.len() > LINE_BYTES_MAX {
                return false;
            }
        }
        true
    }

    fn end_line(&mut self, line: &str, out: &mut VecDeque<Frame>) {
        if line.is_empty() {
            if std::mem::take(&mut self.any) {
                out.push_back(std::mem::take(&mut self.frame));
            }
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.frame.id = Some(value.into()),
            "event" => self.frame.event = value.into(),
            "data" if self.frame.data.is_empty() => self.frame.data = value.into(),
            "data" => self.frame.data += &format!("\n{value}"),
            _ => return, // a comment, or a field of a later version
        }
        self.any = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_independent_of_packets() {
        let text = "id: 1-0\n\nid: 1-1\nevent: job.completed\ndata: {\"a\":\ndata: 1}\n\n: heartbeat\r\nid: 1-2\r\n\r\n: x\n\nid: 1-3";
        let frame = |id: &str, event: &str, data: &str| Frame {
            id: Some(id.into()),
            event: event.into(),
            data: data.into(),
        };
        let expected =
            [frame("1-0", "", ""), frame("1-1", "job.completed", "{\"a\":\n1}"), frame("1-2", "", "")];
        for size in 1..text.len() {
            let (mut parser, mut out) = (Parser::default(), VecDeque::new());
            assert!(text.as_bytes().chunks(size).all(|part| parser.feed(part, &mut out)));
            assert_eq!(out, expected, "in parts of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let (mut parser, mut out) = (Parser::default(), VecDeque::new());
        let endless = vec![b'x'; 64 << 10];
        let mut fed = 0;
        while parser.feed(&endless, &mut out) {
            fed += endless.len();
            assert!(fed <= LINE_BYTES_MAX);
        }
    }
}
