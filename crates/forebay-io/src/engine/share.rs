//! How much of what a loop hands to the kernel is given to I/O threads.
//!
//! A loop that sleeps has the time for its own steps, and they cost least where they begin. So
//! threads get something only of a loop that is busy nearly always, and as much of it as brings the
//! loop just below that: a step more each time that it was found to be busy, a step less each time
//! that it was not. The load is the processor time of the loop's thread, but for what it
//! polled away, over the time that passed: a thread that waits for a processor does not get one
//! sooner by having others wait beside it.
//!
//! Invariant: the share is 0 to [`WHOLE`], and for a loop that has been idle it is 0 again.

use std::time::{Duration, Instant};

/// All of it.
pub(crate) const WHOLE: u32 = 8;
/// How often the load is looked at: long beside a turn, short beside what people notice.
const EVERY: Duration = Duration::from_millis(1);
/// So far below the load that threads are for, percent, the loop takes back what it gave: less than
/// one step of the share changes.
const SLACK_PCT: u64 = 15;

/// The share, and what it was learned from.
#[derive(Debug)]
pub(crate) struct Share {
    /// Threads are for a loop that is busy for so many percent of the time; 0: for any.
    busy_pct: u64,
    eighths: u32,
    /// Steps that were given less than they should have been, in eighths.
    owed: u32,
    /// When the load was looked at last, and the loop's processor time then.
    seen: Option<(Instant, Duration)>,
}

impl Share {
    pub(crate) fn new(busy_pct: u32) -> Share {
        let eighths = if busy_pct == 0 { WHOLE } else { 0 };
        Share { busy_pct: busy_pct.into(), eighths, owed: 0, seen: None }
    }

    /// Is anything given away now?
    pub(crate) fn is_none(&self) -> bool {
        self.eighths == 0
    }

    /// Looks at the load, if it is time to; `cpu` reads the loop's processor time.
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

    /// How many of so many steps are given away.
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

    /// The share after so many looks, a millisecond apart, at a loop that is as busy as `load`
    /// says of a share.
    fn settles(busy_pct: u32, looks: u32, load: impl Fn(u32) -> f64) -> Share {
        let mut share = Share::new(busy_pct);
        for _ in 0..looks {
            let busy = MS.mul_f64(load(share.eighths));
            share.learn(MS, busy);
        }
        share
    }

    #[test]
    fn a_loop_gives_away_what_it_has_no_time_for_and_no_more() {
        assert!(settles(90, 100, |_| 0.5).is_none(), "it has the time");
        assert_eq!(settles(90, 3, |_| 1.0).eighths, 3, "step by step");
        assert_eq!(settles(90, 100, |_| 1.0).eighths, WHOLE, "never more than all");
        // Work for 1.3 loops, of which three quarters can be given away.
        let load = |eighths: u32| (1.3 * (1.0 - 0.75 * f64::from(eighths) / 8.0)).min(1.0);
        let found = settles(90, 100, load).eighths;
        assert!((0.75..0.95).contains(&load(found)), "{found} eighths: {}", load(found));
        assert_eq!(settles(0, 0, |_| 0.0).eighths, WHOLE, "if threads are for any loop");
    }

    #[test]
    fn an_idle_loop_takes_everything_back_at_once() {
        let mut share = settles(90, 100, |_| 1.0);
        share.learn(100 * MS, MS);
        assert!(share.is_none());
    }

    #[test]
    fn the_load_is_looked_at_once_a_millisecond() {
        let (mut share, began) = (Share::new(90), Instant::now());
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
