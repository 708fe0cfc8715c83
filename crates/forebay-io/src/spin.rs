//! Time to poll for completions before sleeping.
//!
//! Falling asleep and waking up takes longer than a flash device or a client on the same machine
//! takes to answer. So polling for a few microseconds shortens each turn of a busy loop. A loop
//! that waits longer gains nothing and must not burn a core. So the window is learned, as halt
//! polling does for virtual processors (Linux, `kvm/halt-polling`): it doubles when an event
//! arrives soon after its end, and closes when none arrives within the maximum.

use std::time::{Duration, Instant};

/// First window after a closed one.
const FIRST: Duration = Duration::from_micros(4);
/// Polling reads the clock continuously. Where that is a system call of some microseconds
/// (user-mode Linux, clocks without a vDSO), polling costs more than it gains.
const CLOCK_READING_MAX: Duration = Duration::from_micros(1);
/// Number of clock readings; the shortest is the cost of one, as others might have been
/// interrupted.
const CLOCK_READINGS: usize = 16;

/// The window, learned from how long waits take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    most: Duration,
    window: Duration,
}

impl Spin {
    /// Polls for `most` at most; never if that is zero, or if reading the clock is expensive on
    /// this machine.
    pub(crate) fn new(most: Duration) -> Spin {
        let most = if clock_reading() > CLOCK_READING_MAX { Duration::ZERO } else { most };
        Spin { most, window: Duration::ZERO }
    }

    /// Returns whether the window can ever open.
    pub(crate) fn is_allowed(self) -> bool {
        !self.most.is_zero()
    }

    /// How long to poll now.
    pub(crate) fn window(self) -> Duration {
        self.window
    }

    /// Records the length of a wait, polling and sleeping together.
    pub(crate) fn note(&mut self, waited: Duration) {
        if waited > self.most {
            self.window = Duration::ZERO;
        } else if waited > self.window {
            self.window = (self.window * 2).max(FIRST).min(self.most);
        }
    }
}

/// Measures the time that reading the clock takes.
fn clock_reading() -> Duration {
    let read = |_| {
        let began = Instant::now();
        began.elapsed()
    };
    (0..CLOCK_READINGS).map(read).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(20);

    fn after(waits_us: &[u64]) -> Duration {
        let mut spin = Spin { most: MOST, window: Duration::ZERO };
        waits_us.iter().for_each(|us| spin.note(Duration::from_micros(*us)));
        spin.window()
    }

    #[test]
    fn spin_window_follows_the_arrival_times() {
        assert_eq!(after(&[]), Duration::ZERO);
        assert_eq!(after(&[15]), FIRST);
        assert_eq!(after(&[15, 15, 15]), FIRST * 4);
        assert_eq!(after(&[15, 15, 15, 3, 3]), FIRST * 4, "what comes within the window leaves it as it is");
        assert_eq!(after(&[19, 19, 19, 19, 19]), MOST);
        assert_eq!(after(&[19, 19, 21]), Duration::ZERO, "an idle loop sleeps");
        assert!(!Spin::new(Duration::ZERO).is_allowed());
    }
}
