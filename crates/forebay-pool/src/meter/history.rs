//! Counters of the last seconds and minutes.
//!
//! A sample is the state of the counters when a second began. It needs no wake-up of a thread:
//! counters change only in turns of the loop, and [`History::turn`] is called when the loop wakes,
//! before anything is counted. So it sees the counters as they were at every second that began
//! since the previous turn. One sample stands for all these seconds, and has the number of the
//! first.
//!
//! Memory: 11 samples a second apart and 31 ten seconds apart, some 20 KiB.

use super::window::{TEN, TENS, per_second, second_of};
use super::{Counters, Window};
use forebay_core::Nanos;

/// Counters from the second (or ten seconds) of this number on, until the next sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    number: u64,
    counters: Counters,
}

/// Samples of the counters of one volume.
#[derive(Clone, Debug)]
pub struct History {
    started: Nanos,
    /// Numbers of the last second and the last ten seconds that samples cover.
    second: u64,
    ten: u64,
    seconds: Ring,
    tens: Ring,
}

/// The last samples, and the position of the next one.
#[derive(Clone, Debug)]
struct Ring {
    samples: Vec<Sample>,
    next: usize,
    samples_max: usize,
}

impl Ring {
    fn new(samples_max: u64) -> Self {
        let samples_max = samples_max as usize;
        Self { samples: Vec::with_capacity(samples_max), next: 0, samples_max }
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() < self.samples_max {
            self.samples.push(sample);
        } else {
            self.samples[self.next] = sample;
        }
        self.next = (self.next + 1) % self.samples_max;
    }

    /// The counters when second (or ten) `number` began; `None` if that was before the first
    /// sample.
    fn at(&self, number: u64) -> Option<&Counters> {
        let before = self.samples.iter().filter(|sample| sample.number <= number);
        before.max_by_key(|sample| sample.number).map(|sample| &sample.counters)
    }
}

/// Counts in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Time that the window covers.
    pub span_ns: Nanos,
    /// Counters: increase in the window. Gauges: the current values.
    pub counted: Counters,
}

impl Rates {
    /// A number of this window as a rate; `None` if the window covers no time yet.
    pub fn per_second(&self, count: u64) -> Option<f64> {
        per_second(count, self.span_ns)
    }
}

impl History {
    /// Starts at `now`, when the counters are zero.
    pub fn new(now: Nanos) -> Self {
        let (second, ten) = (second_of(now), second_of(now) / TEN);
        Self { started: now, second, ten, seconds: Ring::new(TEN + 1), tens: Ring::new(TENS + 1) }
    }

    /// Memory used, in bytes. It does not change.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let samples = self.seconds.samples.capacity() + self.tens.samples.capacity();
        size_of::<Self>() + samples * size_of::<Sample>()
    }

    /// The loop has slept, and nothing has been counted since: takes a sample if a second has begun
    /// since the last one.
    #[inline]
    pub fn turn(&mut self, now: Nanos, counters: impl FnOnce() -> Counters) {
        if second_of(now) > self.second {
            self.sample(second_of(now), counters());
        }
    }

    #[cold]
    fn sample(&mut self, second: u64, counters: Counters) {
        self.seconds.push(Sample { number: self.second + 1, counters });
        self.second = second;
        if second / TEN > self.ten {
            self.tens.push(Sample { number: self.ten + 1, counters });
            self.ten = second / TEN;
        }
    }

    /// The rates of each of [`Window::ALL`]; `counters` are the current ones.
    pub fn rates(&mut self, now: Nanos, counters: &Counters) -> [Rates; 4] {
        self.turn(now, || *counters);
        Window::ALL.map(|window| {
            let range = window.seconds(now);
            let zero = Counters::default();
            let (from, to) = match window {
                Window::Total => (None, Some(counters)),
                Window::FiveMinutes => (self.tens.at(range.start / TEN), self.seconds.at(range.end)),
                _ => (self.seconds.at(range.start), self.seconds.at(range.end)),
            };
            let counted = Counters::between(from.unwrap_or(&zero), to.unwrap_or(&zero), counters);
            Rates { span_ns: window.span_ns(self.started, now), counted }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::SECOND_NS;
    use super::*;

    /// Counts a read every 100 ms until `until`, in turns of the loop.
    fn run(history: &mut History, counters: &mut Counters, from: Nanos, until: Nanos) {
        for now in (from..until).step_by(100_000_000) {
            history.turn(now, || *counters);
            counters.reads += 1;
            counters.dirty_blocks = counters.reads / 2;
        }
    }

    fn reads(history: &mut History, counters: &Counters, now: Nanos) -> [u64; 4] {
        history.rates(now, counters).map(|rates| rates.counted.reads)
    }

    #[test]
    fn steady_load_has_one_rate_in_all_windows() {
        let (mut history, mut counters) = (History::new(0), Counters::default());
        let now = 1000 * SECOND_NS + 50_000_000;
        run(&mut history, &mut counters, 0, now);
        let rates = history.rates(now, &counters);
        for rates in rates {
            let rate = rates.per_second(rates.counted.reads).unwrap();
            assert!((9.9..10.1).contains(&rate), "{rate} in {} ns", rates.span_ns);
            assert_eq!(rates.counted.dirty_blocks, counters.dirty_blocks, "a gauge has no rate");
        }
        assert_eq!(rates.map(|rates| rates.counted.reads), [10, 100, 3000, 10_001]);
    }

    #[test]
    fn ended_load_leaves_each_window_in_turn() {
        let (mut history, mut counters) = (History::new(0), Counters::default());
        run(&mut history, &mut counters, 0, 20 * SECOND_NS);
        assert_eq!(reads(&mut history, &counters, 20 * SECOND_NS), [10, 100, 200, 200]);
        assert_eq!(reads(&mut history, &counters, 25 * SECOND_NS), [0, 50, 200, 200]);
        assert_eq!(reads(&mut history, &counters, 30 * SECOND_NS), [0, 0, 200, 200]);
        assert_eq!(reads(&mut history, &counters, 310 * SECOND_NS), [0, 0, 100, 200]);
        assert_eq!(reads(&mut history, &counters, 10_000 * SECOND_NS), [0, 0, 0, 200]);
        // It continues: the gap does not show up as a burst, nor the other way round.
        run(&mut history, &mut counters, 10_003 * SECOND_NS, 10_005 * SECOND_NS);
        assert_eq!(reads(&mut history, &counters, 10_005 * SECOND_NS), [10, 20, 20, 220]);
    }

    #[test]
    fn a_young_daemon_has_short_windows() {
        let start = 7 * SECOND_NS / 2;
        let (mut history, mut counters) = (History::new(start), Counters::default());
        run(&mut history, &mut counters, start, start + SECOND_NS / 4);
        let rates = history.rates(start + SECOND_NS / 4, &counters);
        assert_eq!(rates.map(|rates| rates.counted.reads), [0, 0, 0, 3]);
        assert_eq!(rates[0].per_second(0), None);
        run(&mut history, &mut counters, start + SECOND_NS / 4, start + 2 * SECOND_NS);
        let rates = history.rates(start + 2 * SECOND_NS, &counters);
        assert_eq!(rates[1].span_ns, 3 * SECOND_NS / 2);
        assert_eq!(rates[1].counted.reads, 15 + 1, "of 3.5 to 5 s, and the turn that was counted twice");
    }
}
