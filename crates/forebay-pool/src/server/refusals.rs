//! Refused clients, as reported to the operator: the newest, and the number of others. Reports are
//! at least `EVERY` apart, so that no client can fill a log.

use std::time::{Duration, Instant};

/// Minimum time between two reports.
const EVERY: Duration = Duration::from_secs(2);

/// A report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The client, and the reason.
    pub what: String,
    /// How many others there were since the last report, without details.
    pub(crate) others: u64,
}

/// Collects refusals until a report is due.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    newest: Option<Refused>,
    told_at: Option<Instant>,
}

impl Refusals {
    pub(super) fn note(&mut self, what: String) {
        let others = self.newest.take().map_or(0, |older| older.others + 1);
        self.newest = Some(Refused { what, others });
    }

    /// Time until a report is due; `None` if there is nothing to report.
    pub(super) fn due(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.newest.as_ref()?;
        let since = self.told_at.map_or(EVERY, |at| now().saturating_duration_since(at));
        Some(EVERY.saturating_sub(since))
    }

    /// Takes the report that is due now. The clock is read only if there can be one.
    pub(super) fn take(&mut self, now: impl Fn() -> Instant) -> Option<Refused> {
        if !self.due(&now)?.is_zero() {
            return None;
        }
        self.told_at = Some(now());
        self.newest.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refusals_give_few_messages() {
        let mut refusals = Refusals::default();
        let begin = Instant::now();
        assert_eq!((refusals.take(|| begin), refusals.due(|| begin)), (None, None));
        refusals.note("a".into());
        assert_eq!(refusals.due(|| begin), Some(Duration::ZERO));
        assert_eq!(refusals.take(|| begin), Some(Refused { what: "a".into(), others: 0 }));
        for knock in 0..1000 {
            refusals.note(knock.to_string());
            assert_eq!(refusals.take(|| begin + EVERY / 2), None);
        }
        assert_eq!(refusals.due(|| begin + EVERY / 2), Some(EVERY / 2), "the loop wakes for it");
        assert_eq!(refusals.take(|| begin + EVERY), Some(Refused { what: "999".into(), others: 999 }));
        assert_eq!(refusals.take(|| begin + EVERY * 9), None, "nothing is told twice");
    }
}
