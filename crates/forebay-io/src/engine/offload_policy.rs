//! The share of a loop's steps that is given to I/O threads.
//!
//! A loop that sleeps has time for its own steps, and they cost least where they begin. So threads
//! only get steps of a loop that is almost always busy, and as many as bring the loop just below
//! that load: the share grows by one eighth each time the loop is found busy, and shrinks by one
//! eighth each time it is not. The load is the processor time of the loop's thread, minus the time
//! that it polled, divided by the elapsed time: more threads that compete for processors do not
//! help a thread that waits for one.
//!
//! Invariant: the share is 0 to [`WHOLE`], and returns to 0 for a loop that has been idle.

use std::time::{Duration, Instant};

/// The share that gives all steps away.
pub(crate) const WHOLE: u32 = 8;
/// Interval of load measurements: long compared to a turn, short compared to what people notice.
const EVERY: Duration = Duration::from_millis(1);
/// Hysteresis in percent: the loop takes steps back at this much below the load threshold. One step
/// of the share changes the load by less.
const SLACK_PCT: u64 = 15;

/// The share, and the state that it is learned from.
#[derive(Debug)]
pub(crate) struct OffloadPolicy {
    /// Load threshold in percent above which threads get steps; 0: always.
    busy_pct: u64,
    eighths: u32,
    /// Steps not given away because of rounding, in eighths.
    owed: u32,
    /// Time of the last measurement, and the loop's processor time then.
    seen: Option<(Instant, Duration)>,
}

impl OffloadPolicy {
    pub(crate) fn new(busy_pct: u32) -> OffloadPolicy {
        let eighths = if busy_pct == 0 { WHOLE } else { 0 };
        OffloadPolicy { busy_pct: busy_pct.into(), eighths, owed: 0, seen: None }
    }

    /// Returns whether no steps are given away at present.
    pub(crate) fn is_none(&self) -> bool {
        self.eighths == 0
    }

    /// Measures the load if it is due; `cpu` reads the loop's processor time.
    pub(crate) fn look(&mut self, now: Instant, cpu: impl FnOnce() -> Duration) {
        if self.busy_pct == 0 || self.seen.is_some_and(|(at, _)| now < at + EVERY) {
            return;
        }
        let cpu = cpu();
        if let Some((at, before)) = self.seen.replace((now, cpu)) {
            self.learn(now - at, cpu.saturating_sub(before));
        }
    }

    fn learn(&mut self, passed: Duration, busy: Duration) {
        let load_pct = busy.as_micros() as u64 * 100 / (passed.as_micros() as u64).max(1);
        if load_pct >= self.busy_pct {
            self.eighths = (self.eighths + 1).min(WHOLE);
        } else if load_pct + SLACK_PCT < self.busy_pct {
            let steps = (passed.as_micros() / EVERY.as_micros()).min(u128::from(WHOLE)) as u32;
            self.eighths = self.eighths.saturating_sub(steps);
        }
    }

    /// Returns how many of these steps to give away.
    pub(crate) fn of(&mut self, steps: usize) -> usize {
        let eighths = steps * self.eighths as usize + self.owed as usize;
        self.owed = (eighths % WHOLE as usize) as u32;
        (eighths / WHOLE as usize).min(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The share after this many measurements, a millisecond apart, of a loop whose load depends on
    /// the share as in `load`.
    fn settles(busy_pct: u32, looks: u32, load: impl Fn(u32) -> f64) -> OffloadPolicy {
        let mut share = OffloadPolicy::new(busy_pct);
        for _ in 0..looks {
            let busy = MS.mul_f64(load(share.eighths));
            share.learn(MS, busy);
        }
        share
    }

    #[test]
    fn loop_gives_away_only_excess_work() {
        assert!(settles(90, 100, |_| 0.5).is_none(), "it has the time");
        assert_eq!(settles(90, 3, |_| 1.0).eighths, 3, "step by step");
        assert_eq!(settles(90, 100, |_| 1.0).eighths, WHOLE, "never more than all");
        // Work for 1.3 loops; three quarters of it can be given away.
        let load = |eighths: u32| (1.3 * (1.0 - 0.75 * f64::from(eighths) / 8.0)).min(1.0);
        let found = settles(90, 100, load).eighths;
        assert!((0.75..0.95).contains(&load(found)), "{found} eighths: {}", load(found));
        assert_eq!(settles(0, 0, |_| 0.0).eighths, WHOLE, "if threads are for any loop");
    }

    #[test]
    fn idle_loop_takes_back_all_work() {
        let mut share = settles(90, 100, |_| 1.0);
        share.learn(100 * MS, MS);
        assert!(share.is_none());
    }

    #[test]
    fn load_is_sampled_once_a_millisecond() {
        let (mut share, began) = (OffloadPolicy::new(90), Instant::now());
        let mut looked = 0;
        for at_us in (0..10_000).step_by(100) {
            let at = Duration::from_micros(at_us);
            share.look(began + at, || {
                looked += 1;
                at
            });
        }
        assert_eq!((looked, share.eighths), (10, 8), "nine times busy, and never more than all");
    }

    #[test]
    fn parts_of_a_step_are_not_forgotten() {
        let mut share = settles(90, 3, |_| 1.0);
        let given: usize = (0..80).map(|_| share.of(1)).sum();
        assert_eq!(given, 80 * 3 / 8);
        assert_eq!(share.of(16), 6);
        share.eighths = WHOLE;
        assert_eq!(share.of(5), 5);
    }
}
