//! A rule in effect: the rule, the processes that it was bound to when it was added, and its
//! counters.
//!
//! The thread that serves requests writes the counters, and admin threads read them. Each is exact
//! by itself; a reader may see an update of one before that of another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::check::Bound;
use super::rule::{Rule, RuleId};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: RuleId,
    pub(super) rule: Rule,
    pub(super) bound: Bound,
    pub(super) added_at: Instant,
    pub(super) expires_at: Option<Instant>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    /// Milliseconds between the addition of the rule and its last match, plus one; 0 for never.
    last_match_ms: AtomicU64,
}

impl Entry {
    pub(super) fn new(id: RuleId, rule: Rule, bound: Bound, now: Instant) -> Self {
        let expires_at = rule.expires.and_then(|expires| now.checked_add(expires));
        Self { id, rule, bound, added_at: now, expires_at, counters: Counters::default() }
    }

    /// Counts a request that this rule decided.
    pub(super) fn count(&self, bytes: u64, now: Instant) {
        let ms = now.saturating_duration_since(self.added_at).as_millis();
        let ms = u64::try_from(ms).unwrap_or(u64::MAX).saturating_add(1);
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.last_match_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the rule with its counters at `now`.
    pub(super) fn report(&self, now: Instant) -> RuleReport {
        let since_match = |ms: u64| {
            let at = self.added_at + Duration::from_millis(ms);
            u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX)
        };
        let last = self.counters.last_match_ms.load(Ordering::Relaxed).checked_sub(1);
        let left = self.expires_at.map(|at| at.saturating_duration_since(now).as_millis());
        RuleReport {
            id: self.id,
            rule: self.rule.clone(),
            requests: self.counters.requests.load(Ordering::Relaxed),
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            last_match_ago_ms: last.map(since_match),
            expires_in_ms: left.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
        }
    }
}

/// A rule of a volume and its counters.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RuleReport {
    /// Its number.
    pub id: RuleId,
    /// The rule.
    pub rule: Rule,
    /// Requests that it decided.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time since the last of them, in milliseconds.
    pub last_match_ago_ms: Option<u64>,
    /// Time until it expires, in milliseconds.
    pub expires_in_ms: Option<u64>,
}
