//! One event: its kind, time, pool, volume and job. Immutable once published; all readers share it.
//!
//! All input is bounded: names and messages are cut, and details that are too large are left out.
//! So an event never takes more than [`EVENT_BYTES_MAX`], and the bounds of history and queues hold
//! in bytes.

use super::kind::{EventKind, Severity};
use crate::clock::saturating_ns;
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use thiserror::Error;

/// Longest message kept, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Longest name (pool, volume, job, collapse key) kept, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Largest details kept, in bytes of JSON text.
pub const DETAILS_BYTES_MAX: usize = 8 * 1024;
/// Memory of an event besides its texts: the structure, map nodes, allocator. An estimate, rounded
/// up.
const OVERHEAD_BYTES: usize = 512;
/// Most memory that one event takes, in bytes.
pub const EVENT_BYTES_MAX: usize =
    OVERHEAD_BYTES + MESSAGE_BYTES_MAX + 4 * NAME_BYTES_MAX + DETAILS_BYTES_MAX;

/// Run of the daemon and number of an event. Text form: `RUN-SEQ`, run in hexadecimal, for example
/// `18fa3c-42`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventId {
    /// The run of the daemon: its start in nanoseconds of Unix time.
    pub run: u64,
    /// Position among the events of the run, from 1 without gaps. 0 stands before the first.
    pub seq: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.run, self.seq)
    }
}

/// Why a text is not an [`EventId`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("\"{text}\" is not the id of an event; give one as it was received, such as 18fa3c-42")]
pub struct EventIdError {
    text: String,
}

impl FromStr for EventId {
    type Err = EventIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (run, seq) = text.split_once('-')?;
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !digits(run) || !digits(seq) {
                return None; // the parsers below would accept a sign
            }
            Some(Self { run: u64::from_str_radix(run, 16).ok()?, seq: seq.parse().ok()? })
        };
        parse().ok_or_else(|| EventIdError { text: text.chars().take(64).collect() })
    }
}

/// An event as it is published, before it has an id and a time.
#[derive(Clone, Debug)]
#[must_use = "an event is seen only once it is published"]
pub struct NewEvent {
    pub(super) kind: EventKind,
    pub(super) severity: Severity,
    pub(super) pool: Option<Arc<str>>,
    pub(super) volume: Option<Arc<str>>,
    pub(super) job: Option<Arc<str>>,
    pub(super) message: String,
    pub(super) details: Value,
    pub(super) collapse_key: Option<Arc<str>>,
    pub(super) time_to_live: Option<Duration>,
}

impl NewEvent {
    /// Creates an event with the usual severity of its kind. `message` is one sentence for people.
    pub fn new(kind: EventKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        cut(&mut message, MESSAGE_BYTES_MAX);
        Self {
            kind,
            severity: kind.severity(),
            pool: None,
            volume: None,
            job: None,
            message,
            details: Value::Null,
            collapse_key: None,
            time_to_live: None,
        }
    }

    /// Sets another severity.
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Sets the pool.
    pub fn pool(mut self, name: &str) -> Self {
        self.pool = Some(short(name));
        self
    }

    /// Sets the volume.
    pub fn volume(mut self, name: &str) -> Self {
        self.volume = Some(short(name));
        self
    }

    /// Sets the job.
    pub fn job(mut self, id: &str) -> Self {
        self.job = Some(short(id));
        self
    }

    /// Adds details for programs. Details above [`DETAILS_BYTES_MAX`] are left out, and the event
    /// reports that.
    pub fn details(mut self, details: Value) -> Self {
        let bytes = text_bytes(&details);
        self.details = if bytes <= DETAILS_BYTES_MAX { details } else { json!({ "left_out_bytes": bytes }) };
        self
    }

    /// A newer event with the same key replaces this one wherever this one still waits.
    pub fn collapse_key(mut self, key: &str) -> Self {
        self.collapse_key = Some(short(key));
        self
    }

    /// The event is not delivered once it is older than this.
    pub fn time_to_live(mut self, age: Duration) -> Self {
        self.time_to_live = Some(age);
        self
    }
}

/// A published event.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Its id.
    pub id: EventId,
    /// When it was published, in nanoseconds of Unix time.
    pub time_unix_ns: u64,
    /// Its kind.
    pub kind: EventKind,
    /// Its severity.
    pub severity: Severity,
    /// Its pool.
    pub pool: Option<Arc<str>>,
    /// Its volume.
    pub volume: Option<Arc<str>>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// One sentence for people.
    pub message: String,
    /// Details for programs; null if there are none.
    pub details: Value,
    /// A newer event with the same key replaces this one.
    pub collapse_key: Option<Arc<str>>,
    /// Monotonic time of publication.
    pub(super) published_ns: u64,
    /// Monotonic time at which it is no longer delivered.
    pub(super) expires_ns: u64,
    /// Estimate of its memory, at most [`EVENT_BYTES_MAX`].
    pub(super) bytes: usize,
}

impl Event {
    /// Gives a new event its id and times.
    pub(super) fn publish(new: NewEvent, id: EventId, time_unix_ns: u64, now_ns: u64, bytes: usize) -> Self {
        Self {
            id,
            time_unix_ns,
            kind: new.kind,
            severity: new.severity,
            pool: new.pool,
            volume: new.volume,
            job: new.job,
            message: new.message,
            details: new.details,
            collapse_key: new.collapse_key,
            published_ns: now_ns,
            expires_ns: new.time_to_live.map_or(u64::MAX, |age| now_ns.saturating_add(saturating_ns(age))),
            bytes,
        }
    }

    /// Returns the event in the form of the admin API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "time": rfc3339(self.time_unix_ns),
            "time_unix_ns": self.time_unix_ns,
            "kind": self.kind.name(),
            "severity": self.severity.name(),
            "pool": self.pool.as_deref(),
            "volume": self.volume.as_deref(),
            "job": self.job.as_deref(),
            "message": self.message,
            "details": self.details,
            "collapse_key": self.collapse_key.as_deref(),
        })
    }
}

/// Estimates the event's memory, in bytes. Not called under a lock: it walks the details.
pub(super) fn memory_bytes(new: &NewEvent) -> usize {
    let name = |name: &Option<Arc<str>>| name.as_ref().map_or(0, |name| name.len());
    OVERHEAD_BYTES
        + new.message.len()
        + [&new.pool, &new.volume, &new.job, &new.collapse_key].into_iter().map(name).sum::<usize>()
        + text_bytes(&new.details)
}

/// Formats nanoseconds of Unix time as RFC 3339, in UTC.
pub fn rfc3339(unix_ns: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(unix_ns)).to_string()
}

/// Estimates the length of a value as JSON text: an escaped character counts once. (Counting needs
/// no allocation.)
/// Reads a time in the form of [`rfc3339`], as nanoseconds of Unix time.
pub(super) fn parse_rfc3339(text: &str) -> Option<u64> {
    let since = crate::size::parse_time(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(_) => 20,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + text_bytes(item)).sum::<usize>(),
        Value::Object(map) => {
            2 + map.iter().map(|(key, item)| key.len() + 4 + text_bytes(item)).sum::<usize>()
        }
    }
}

fn short(name: &str) -> Arc<str> {
    name[..name.floor_char_boundary_at(NAME_BYTES_MAX)].into()
}

fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary_at(bytes_max));
}

/// The standard library's `floor_char_boundary`, which our oldest supported compiler lacks.
trait CharBoundary {
    fn floor_char_boundary_at(&self, index: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_at(&self, index: usize) -> usize {
        if index >= self.len() {
            return self.len();
        }
        (0..=index).rev().find(|index| self.is_char_boundary(*index)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_round_trips() {
        let id = EventId { run: 0x18fa_3c00_dead_beef, seq: 42 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in
            ["", "42", "-", "18fa-", "-3", "x-1", "+1-2", "1-+2", "1--2", "1-2-3", "1-99999999999999999999"]
        {
            assert!(wrong.parse::<EventId>().is_err(), "{wrong}");
        }
        assert!("é".repeat(100).parse::<EventId>().unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn oversized_text_is_cut_at_a_character() {
        let event = NewEvent::new(EventKind::BlockLost, "ä".repeat(MESSAGE_BYTES_MAX))
            .volume(&format!("x{}", "ä".repeat(NAME_BYTES_MAX)))
            .details(json!({ "list": vec![1; DETAILS_BYTES_MAX] }));
        assert_eq!(event.message.len(), MESSAGE_BYTES_MAX);
        assert_eq!(event.volume.as_ref().map(|name| name.len()), Some(NAME_BYTES_MAX - 1));
        assert!(event.details["left_out_bytes"].as_u64().unwrap() > DETAILS_BYTES_MAX as u64);
        assert!(memory_bytes(&event) <= EVENT_BYTES_MAX);
    }

    #[test]
    fn json_has_every_field() {
        let new =
            NewEvent::new(EventKind::DestageFailed, "no").volume("db").pool("p").job("j1").collapse_key("k");
        let id = EventId { run: 255, seq: 1 };
        let event = Event::publish(new, id, 1_700_000_000_000_000_001, 5, 600);
        assert_eq!(
            event.to_json(),
            json!({
                "id": "ff-1", "time": "2023-11-14T22:13:20.000000001Z", "time_unix_ns": 1_700_000_000_000_000_001u64,
                "kind": "destage.failed", "severity": "warning", "pool": "p", "volume": "db", "job": "j1",
                "message": "no", "details": null, "collapse_key": "k",
            })
        );
    }
}
