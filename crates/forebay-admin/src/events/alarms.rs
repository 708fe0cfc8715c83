//! Alarms: conditions that last. An event reports that something happened; an alarm reports that a
//! condition holds.
//!
//! Invariants
//! - There is one alarm for each condition of each volume or pool. It is raised once; repeats are
//!   counted on it. Only a rise of its severity raises it again; it then needs a new
//!   acknowledgement.
//! - An acknowledgement holds for all users, makes one event, and does not end the alarm: only the
//!   end of the condition does.
//! - An alarm of an earlier run of the daemon continues if its condition is seen again: it keeps
//!   the time when it was raised and its acknowledgement, and its event has `"continues": true`. It
//!   is not active before that. If its condition is not seen, it ends as any other alarm.
//! - Every change that readers can see makes exactly one event, in the same critical section (see
//!   `hub`).

use super::event::{NewEvent, parse_rfc3339, rfc3339};
use super::kind::{EventKind, Severity};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;
use utoipa::ToSchema;

/// A condition and its pool or volume.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AlarmKey {
    /// The condition, by the kind of event that reports it, such as [`EventKind::DestageFailed`].
    pub condition: EventKind,
    /// The pool that it concerns.
    pub pool: Option<String>,
    /// The volume that it concerns.
    pub volume: Option<String>,
}

impl AlarmKey {
    /// Creates the key of a volume's condition.
    #[must_use]
    pub fn volume(condition: EventKind, volume: &str) -> Self {
        Self { condition, pool: None, volume: Some(volume.into()) }
    }

    /// Creates the key of a pool's condition.
    #[must_use]
    pub fn pool(condition: EventKind, pool: &str) -> Self {
        Self { condition, pool: Some(pool.into()), volume: None }
    }

    fn event(&self, kind: EventKind, message: String) -> NewEvent {
        let mut event = NewEvent::new(kind, message);
        if let Some(pool) = &self.pool {
            event = event.pool(pool);
        }
        if let Some(volume) = &self.volume {
            event = event.volume(volume);
        }
        event
    }
}

impl fmt::Display for AlarmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.condition)?;
        match (&self.pool, &self.volume) {
            (_, Some(volume)) => write!(f, " of volume {volume}"),
            (Some(pool), None) => write!(f, " of pool {pool}"),
            (None, None) => Ok(()),
        }
    }
}

/// Acknowledgement of an alarm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acknowledgement {
    /// Its author: a user, a host, a tool.
    pub by: String,
    /// Its time, in nanoseconds of Unix time.
    pub time_unix_ns: u64,
}

/// An alarm whose condition has not ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Alarm {
    /// Number of this alarm in this run of the daemon. Text form: `a` and the number.
    pub id: u64,
    /// Its condition, and the pool or volume.
    pub key: AlarmKey,
    /// Its severity.
    pub severity: Severity,
    /// The newest message, one sentence.
    pub message: String,
    /// When it was first raised, in nanoseconds of Unix time.
    pub raised_unix_ns: u64,
    /// When the condition was last seen, in nanoseconds of Unix time.
    pub seen_unix_ns: u64,
    /// How often the condition was seen after the first time.
    pub repeats: u64,
    /// Its acknowledgement, if any.
    pub acknowledged: Option<Acknowledgement>,
}

impl Alarm {
    /// Reads an alarm from the details of an event of an earlier run; `None` if it is none, or of a
    /// condition that this version does not know. Its id is 0.
    fn from_json(alarm: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let time = |value: &Value| parse_rfc3339(value.as_str()?);
        let key = AlarmKey {
            condition: EventKind::from_name(alarm["condition"].as_str()?)?,
            pool: text(&alarm["pool"]),
            volume: text(&alarm["volume"]),
        };
        let by = &alarm["acknowledged"];
        let acknowledged = text(&by["by"]).zip(time(&by["time"]));
        Some(Self {
            id: 0,
            key,
            severity: Severity::from_name(alarm["severity"].as_str()?)?,
            message: text(&alarm["message"])?,
            raised_unix_ns: time(&alarm["raised"])?,
            seen_unix_ns: time(&alarm["seen"])?,
            repeats: alarm["repeats"].as_u64()?,
            acknowledged: acknowledged.map(|(by, time_unix_ns)| Acknowledgement { by, time_unix_ns }),
        })
    }

    /// Returns the alarm in the form of the admin API, see [`AlarmInfo`].
    #[must_use]
    pub fn to_json(&self) -> Value {
        // Strings and numbers under names: this cannot fail.
        serde_json::to_value(AlarmInfo::from(self)).unwrap_or_default()
    }

    fn event(&self, kind: EventKind, message: String) -> NewEvent {
        self.key.event(kind, message).details(self.to_json())
    }
}

/// Acknowledgement of an alarm, in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct AcknowledgementInfo {
    /// Its author.
    by: String,
    /// Its time, in UTC.
    #[schema(format = DateTime)]
    time: String,
}

/// An alarm in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct AlarmInfo {
    /// Id, such as `a3`.
    id: String,
    /// The condition, by the kind of event that reports it.
    condition: &'static str,
    /// The pool that it concerns.
    pool: Option<String>,
    /// The volume that it concerns.
    volume: Option<String>,
    /// Its severity: `debug`, `info`, `warning`, `error`.
    severity: &'static str,
    /// The newest message, one sentence.
    message: String,
    /// When it was first raised, in UTC.
    #[schema(format = DateTime)]
    raised: String,
    /// When the condition was last seen, in UTC.
    #[schema(format = DateTime)]
    seen: String,
    /// How often the condition was seen after the first time.
    repeats: u64,
    /// Its acknowledgement, if any.
    acknowledged: Option<AcknowledgementInfo>,
}

impl From<&Alarm> for AlarmInfo {
    fn from(alarm: &Alarm) -> Self {
        let known =
            |by: &Acknowledgement| AcknowledgementInfo { by: by.by.clone(), time: rfc3339(by.time_unix_ns) };
        Self {
            id: format!("a{}", alarm.id),
            condition: alarm.key.condition.name(),
            pool: alarm.key.pool.clone(),
            volume: alarm.key.volume.clone(),
            severity: alarm.severity.name(),
            message: alarm.message.clone(),
            raised: rfc3339(alarm.raised_unix_ns),
            seen: rfc3339(alarm.seen_unix_ns),
            repeats: alarm.repeats,
            acknowledged: alarm.acknowledged.as_ref().map(known),
        }
    }
}

/// Why an alarm cannot be acknowledged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AlarmError {
    /// No active alarm has that id.
    #[error(
        "there is no active alarm \"{0}\": it may have been cleared; list the active ones with GET /v1/alarms"
    )]
    Unknown(String),
}

/// All active alarms.
#[derive(Debug)]
pub(super) struct Alarms {
    active: BTreeMap<AlarmKey, Alarm>,
    /// Alarms of earlier runs whose conditions this run has not seen.
    earlier: BTreeMap<AlarmKey, Alarm>,
    alarms_max: usize,
    last_id: u64,
}

impl Alarms {
    pub(super) fn new(alarms_max: usize) -> Self {
        Self { active: BTreeMap::new(), earlier: BTreeMap::new(), alarms_max, last_id: 0 }
    }

    /// Records that a condition holds; returns the event for readers, unless it is only a repeat.
    pub(super) fn raise(
        &mut self,
        key: AlarmKey,
        severity: Severity,
        message: String,
        time_unix_ns: u64,
    ) -> Option<NewEvent> {
        if let Some(alarm) = self.active.get_mut(&key) {
            alarm.repeats += 1;
            alarm.seen_unix_ns = time_unix_ns;
            alarm.message = message;
            if severity <= alarm.severity {
                return None;
            }
            alarm.severity = severity;
            alarm.acknowledged = None; // the acknowledgement was for the lesser severity
            return Some(alarm.event(EventKind::AlarmRaised, alarm.message.clone()).severity(severity));
        }
        if self.active.len() >= self.alarms_max {
            // Not tracked, hence without an id. Still reported: an unreported alarm is worse than
            // one reported twice.
            let details =
                json!({ "condition": key.condition.name(), "not_tracked": "too many active alarms" });
            return Some(key.event(EventKind::AlarmRaised, message).severity(severity).details(details));
        }
        self.last_id += 1;
        let mut alarm = Alarm {
            id: self.last_id,
            key: key.clone(),
            severity,
            message,
            raised_unix_ns: time_unix_ns,
            seen_unix_ns: time_unix_ns,
            repeats: 0,
            acknowledged: None,
        };
        // A condition that got worse is raised as a new one.
        let earlier = self.earlier.remove(&key).filter(|earlier| severity <= earlier.severity);
        let continues = earlier.is_some();
        if let Some(earlier) = earlier {
            alarm.severity = earlier.severity;
            alarm.raised_unix_ns = earlier.raised_unix_ns;
            alarm.repeats = earlier.repeats + 1;
            alarm.acknowledged = earlier.acknowledged;
        }
        let mut details = alarm.to_json();
        if continues {
            details["continues"] = true.into();
        }
        let event = key.event(EventKind::AlarmRaised, alarm.message.clone()).severity(alarm.severity);
        self.active.insert(key, alarm);
        Some(event.details(details))
    }

    /// Records that a condition ended; returns the event, if there was an alarm in this run or an
    /// earlier one.
    pub(super) fn clear(&mut self, key: &AlarmKey) -> Option<NewEvent> {
        let alarm = self.active.remove(key).or_else(|| self.earlier.remove(key))?;
        Some(alarm.event(EventKind::AlarmCleared, format!("{key}: the condition ended")))
    }

    /// Takes the alarms that were active when earlier runs ended, from their events, oldest first.
    pub(super) fn restore(&mut self, events: &[Value]) {
        for event in events {
            let Some(mut alarm) = Alarm::from_json(&event["details"]) else { continue };
            if event["kind"] == EventKind::AlarmCleared.name() {
                self.earlier.remove(&alarm.key);
            } else if self.earlier.len() < self.alarms_max && !self.active.contains_key(&alarm.key) {
                self.last_id += 1;
                alarm.id = self.last_id;
                self.earlier.insert(alarm.key.clone(), alarm);
            }
        }
    }

    /// Ends the alarms of earlier runs whose conditions this run has not seen; returns the events.
    pub(super) fn end_earlier(&mut self) -> Vec<NewEvent> {
        let ended = std::mem::take(&mut self.earlier);
        let event = |alarm: &Alarm| {
            let message = format!("{}: the condition was not seen since the daemon started", alarm.key);
            alarm.event(EventKind::AlarmCleared, message)
        };
        ended.values().map(event).collect()
    }

    /// Acknowledges an alarm; returns it, and the event if it was not acknowledged before.
    pub(super) fn acknowledge(
        &mut self,
        id: &str,
        by: &str,
        time_unix_ns: u64,
    ) -> Result<(Alarm, Option<NewEvent>), AlarmError> {
        let unknown = || AlarmError::Unknown(id.chars().take(64).collect());
        let number: u64 = id.strip_prefix('a').and_then(|number| number.parse().ok()).ok_or_else(unknown)?;
        let alarm = self.active.values_mut().find(|alarm| alarm.id == number).ok_or_else(unknown)?;
        if alarm.acknowledged.is_some() {
            return Ok((alarm.clone(), None));
        }
        let by: String = by.chars().take(64).collect();
        let message = format!("{}: acknowledged by {by}", alarm.key);
        alarm.acknowledged = Some(Acknowledgement { by, time_unix_ns });
        Ok((alarm.clone(), Some(alarm.event(EventKind::AlarmAcknowledged, message))))
    }

    /// Returns all active alarms, oldest first.
    pub(super) fn list(&self) -> Vec<Alarm> {
        let mut alarms: Vec<_> = self.active.values().cloned().collect();
        alarms.sort_by_key(|alarm| alarm.id);
        alarms
    }
}
