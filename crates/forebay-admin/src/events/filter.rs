//! The filter of a reader of events.

use super::event::Event;
use super::kind::{EventKind, Severity};
use serde_json::Value;
use thiserror::Error;

/// Most kinds that one filter may name.
pub const FILTER_KINDS_MAX: usize = 16;

/// Selects events that meet all conditions. The default selects all but [`Severity::Debug`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    kinds: Vec<String>,
    volume: Option<String>,
    pool: Option<String>,
    job: Option<String>,
    severity_min: Severity,
}

/// Why a filter is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FilterError {
    /// No kind has that prefix.
    #[error("no kind of event is called \"{0}\" or begins with it; there are {known}", known = groups())]
    UnknownKind(String),
    /// Too many kinds.
    #[error("more than {FILTER_KINDS_MAX} kinds are named; name groups such as \"job\", or none for all")]
    TooManyKinds,
    /// No such severity.
    #[error("there is no severity \"{0}\"; there are debug, info, warning and error")]
    UnknownSeverity(String),
}

impl Default for Filter {
    fn default() -> Self {
        Self { kinds: Vec::new(), volume: None, pool: None, job: None, severity_min: Severity::Info }
    }
}

impl Filter {
    /// Also selects kinds of this name or group: `job` and `job.` select all of `job.*`. Without
    /// any kind, all pass.
    ///
    /// No kind matches, or the filter has too many kinds.
    pub fn kind(mut self, prefix: &str) -> Result<Self, FilterError> {
        let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
        if !EventKind::ALL.iter().any(|kind| begins(kind.name(), prefix)) {
            return Err(FilterError::UnknownKind(prefix.chars().take(64).collect()));
        }
        if self.kinds.len() == FILTER_KINDS_MAX {
            return Err(FilterError::TooManyKinds);
        }
        self.kinds.push(prefix.into());
        Ok(self)
    }

    /// Selects only events about this volume.
    #[must_use]
    pub fn volume(mut self, name: &str) -> Self {
        self.volume = Some(name.into());
        self
    }

    /// Selects only events about this pool.
    #[must_use]
    pub fn pool(mut self, name: &str) -> Self {
        self.pool = Some(name.into());
        self
    }

    /// Selects only events about this job.
    #[must_use]
    pub fn job(mut self, id: &str) -> Self {
        self.job = Some(id.into());
        self
    }

    /// Selects only events of at least this severity.
    #[must_use]
    pub fn severity_min(mut self, severity: Severity) -> Self {
        self.severity_min = severity;
        self
    }

    /// Adds one condition by its name in the admin API and on the command line. Returns `None` if
    /// there is no condition of that name.
    pub fn condition(self, name: &str, value: &str) -> Option<Result<Self, FilterError>> {
        Some(match name {
            "kind" => value.split(',').try_fold(self, Self::kind),
            "volume" => Ok(self.volume(value)),
            "pool" => Ok(self.pool(value)),
            "job" => Ok(self.job(value)),
            "severity" => Severity::from_name(value)
                .map(|severity| self.severity_min(severity))
                .ok_or_else(|| FilterError::UnknownSeverity(value.chars().take(64).collect())),
            _ => return None,
        })
    }

    /// Returns whether the filter selects `event`.
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        let about = [event.volume.as_deref(), event.pool.as_deref(), event.job.as_deref()];
        self.wants_such(event.severity, event.kind.name(), about)
    }

    /// Like `wants`, for an event in the form of [`Event::to_json`], perhaps of another version.
    #[must_use]
    pub fn wants_json(&self, event: &Value) -> bool {
        let text = |name: &str| event[name].as_str();
        let severity = text("severity").and_then(Severity::from_name);
        let about = ["volume", "pool", "job"].map(text);
        severity.zip(text("kind")).is_some_and(|(severity, kind)| self.wants_such(severity, kind, about))
    }

    fn wants_such(&self, severity: Severity, kind: &str, [volume, pool, job]: [Option<&str>; 3]) -> bool {
        let same = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        severity >= self.severity_min
            && (self.kinds.is_empty() || self.kinds.iter().any(|prefix| begins(kind, prefix)))
            && same(&self.volume, volume)
            && same(&self.pool, pool)
            && same(&self.job, job)
    }
}

/// Returns whether `name` is `prefix` or in the group `prefix`.
fn begins(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the groups of kinds, for messages.
fn groups() -> String {
    let mut groups: Vec<&str> = Vec::new();
    for group in EventKind::ALL.iter().filter_map(|kind| kind.name().split('.').next()) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::event::{EventId, NewEvent};
    use super::*;

    fn event(kind: EventKind) -> Event {
        let new = NewEvent::new(kind, "x").volume("db").pool("fast").job("j1");
        Event::publish(new, EventId { run: 1, seq: 1 }, 0, 0, 0)
    }

    fn filter(conditions: &[(&str, &str)]) -> Filter {
        conditions
            .iter()
            .fold(Filter::default(), |filter, (name, value)| filter.condition(name, value).unwrap().unwrap())
    }

    #[test]
    fn conditions_combine_and_kinds_alternate() {
        let progress = event(EventKind::JobProgress);
        assert!(Filter::default().wants(&progress));
        assert!(filter(&[("kind", "alarm,job"), ("volume", "db")]).wants(&progress));
        assert!(filter(&[("kind", "job.progress"), ("pool", "fast"), ("job", "j1")]).wants(&progress));
        assert!(!filter(&[("kind", "job"), ("volume", "other")]).wants(&progress));
        assert!(!filter(&[("kind", "alarm")]).wants(&progress));
        assert!(!filter(&[("job", "j2")]).wants(&progress));
        assert!(!filter(&[("pool", "slow")]).wants(&progress));
    }

    #[test]
    fn debug_events_are_delivered_on_request() {
        let connected = event(EventKind::ClientConnected);
        assert!(!Filter::default().wants(&connected));
        assert!(filter(&[("severity", "debug")]).wants(&connected));
        assert!(!filter(&[("severity", "error")]).wants(&event(EventKind::DestageFailed)));
    }

    #[test]
    fn impossible_filter_names_the_choices() {
        for wrong in ["", "jo", "job.x", "job.progress.x"] {
            let error = Filter::default().kind(wrong).unwrap_err();
            assert!(
                error.to_string().contains("volume, pool, job, alarm, device, store, export, destage"),
                "{error}"
            );
        }
        assert!(Filter::default().condition("severity", "loud").unwrap().is_err());
        assert!(Filter::default().condition("colour", "red").is_none());
        let many = vec!["job"; FILTER_KINDS_MAX + 1].join(",");
        assert_eq!(Filter::default().condition("kind", &many).unwrap(), Err(FilterError::TooManyKinds));
    }
}
