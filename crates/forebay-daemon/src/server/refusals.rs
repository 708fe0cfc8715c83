//! What the operator is told of clients that were turned away: the newest, and how many more there were, a few times a
//! minute at most, so that nobody can fill a log by knocking.

use std::time::{Duration, Instant};

/// Time between two reports.
const EVERY: Duration = Duration::from_secs(2);

/// What is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// Who, and why.
    pub(crate) what: String,
    /// How many others there were since the last report, about which nothing is told.
    pub(crate) others: u64,
}

/// Gathers refusals until one may be told.
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

    /// What is to be told now, if anything.
    pub(super) fn take(&mut self, now: Instant) -> Option<Refused> {
        self.newest.as_ref()?;
        if self.told_at.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            return None;
        }
        self.told_at = Some(now);
        self.newest.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refusals_are_few_words() {
        let mut refusals = Refusals::default();
        let begin = Instant::now();
        assert_eq!(refusals.take(begin), None);
        refusals.note("a".into());
        assert_eq!(refusals.take(begin), Some(Refused { what: "a".into(), others: 0 }));
        for knock in 0..1000 {
            refusals.note(knock.to_string());
            assert_eq!(refusals.take(begin + EVERY / 2), None);
        }
        assert_eq!(refusals.take(begin + EVERY), Some(Refused { what: "999".into(), others: 999 }));
        assert_eq!(refusals.take(begin + EVERY * 9), None, "nothing is told twice");
    }
}
