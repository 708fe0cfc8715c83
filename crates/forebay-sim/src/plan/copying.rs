//! Copies of cache devices onto others while they are in use: times, speed, and faults of the new
//! devices.

use super::types::{CopyPlan, Needs, Plan, Scale};
use crate::device::Faults;
use crate::rng::Rng;

impl CopyPlan {
    /// Draws a plan for a seed.
    fn draw(requests: u32, rng: &mut Rng) -> Self {
        let requests = u64::from(requests);
        let mut at = rng.below(requests / 4 + 1);
        let mut starts = Vec::new();
        for _ in 0..rng.pick(&[1, 2, 3, 5]) {
            starts.push(at);
            at += rng.range(1, 5 + requests / 4);
        }
        let fails = rng.chance(1, 3);
        let mut rate = |rates: &[u32]| if fails { rng.pick(rates) } else { 0 };
        let faults = Faults {
            write_error: rate(&[0, 3_000, 30_000]),
            flush_error: rate(&[0, 30_000, 200_000]),
            ..Faults::default()
        };
        Self {
            starts,
            chunk_bytes: rng.pick(&[64 << 10, 256 << 10, 1 << 20]),
            pause_ns_max: rng.pick(&[0, 100_000, 2_000_000, 20_000_000]),
            naming_ns_max: rng.pick(&[100_000, 5_000_000, 300_000_000]),
            cancel_ppm: rng.pick(&[0, 0, 10_000, 100_000]),
            faults,
            begins_late: false,
        }
    }
}

impl Plan {
    /// Draws copies of the cache, if it is small; `needs`: of the planted bug.
    pub(crate) fn draw_copies(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let few = matches!(self.scale, Scale::Small | Scale::Wide);
        match needs {
            Some(Needs::Copies | Needs::FailingCopies | Needs::MirroredCopies) => {
                let mut copies = CopyPlan::draw(self.requests, rng);
                (copies.cancel_ppm, copies.faults) = (0, Faults::default());
                if needs == Some(Needs::FailingCopies) {
                    (copies.naming_ns_max, copies.begins_late) = (300_000_000, true);
                    copies.faults =
                        Faults { flush_error: 500_000, write_error: 100_000, ..Faults::default() };
                }
                self.copies = Some(copies);
            }
            None if few && rng.chance(1, 6) => self.copies = Some(CopyPlan::draw(self.requests, rng)),
            _ => {}
        }
    }
}
