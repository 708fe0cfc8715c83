//! Mirrored caches: the failures of their members in a run.

use super::types::MirrorPlan;
use crate::device::{Death, Faults};
use crate::rng::Rng;

impl MirrorPlan {
    /// Draws a plan for a seed.
    pub(crate) fn draw(requests: u32, rng: &mut Rng) -> Self {
        let mut plan = Self {
            opening_errors: rng.pick(&[0, 0, 0, 3_000, 100_000, 300_000]),
            replaces_of: rng.pick(&[0, 2, 5, 20]),
            misses_of: rng.pick(&[0, 2, 4]),
            ..Self::default()
        };
        let one = rng.below(2) as usize;
        match rng.below(8) {
            0 | 1 => {
                // One bad member; the other one never fails.
                let rates = [0, 5_000, 30_000];
                (plan.misses_of, plan.opening_errors, plan.harms[one]) = (0, 0, true);
                (plan.rot, plan.spoil) = (rng.pick(&rates), rng.pick(&rates));
                plan.faults[one].read_error = rng.pick(&[0, 20_000, 200_000]);
                plan.faults[one].lost = rng.pick(&[0, 0, 3_000, 30_000]);
                if rng.chance(1, 3) {
                    // In the end it fails while its bad copies are being checked, and so does its
                    // successor.
                    plan.failures = Self::draw_failures(requests, rng);
                    plan.failures.iter_mut().for_each(|failure| failure.1 = one);
                }
            }
            2 => {
                // Two members that rot, and do not fail.
                (plan.misses_of, plan.opening_errors, plan.harms) = (0, 0, [true; 2]);
                plan.rot = rng.pick(&[5_000, 30_000, 200_000]);
            }
            3 => plan.faults[one] = Self::errors(rng, 20_000),
            4 => plan.faults = [0; 2].map(|_| Self::errors(rng, 500)),
            _ => {
                plan.failures = Self::draw_failures(requests, rng);
                if rng.chance(1, 3) {
                    let write_error = rng.pick(&[1_000, 10_000, 50_000]);
                    plan.faults[one] = Faults { write_error, ..Faults::default() };
                }
            }
        }
        plan
    }

    /// Removes all faults of the members except truncations.
    pub(crate) fn only_truncations(&mut self) {
        (self.failures, self.faults, self.harms) = (Vec::new(), [Faults::default(); 2], [false; 2]);
        (self.rot, self.spoil) = (0, 0);
    }

    /// Draws error rates of a member.
    fn errors(rng: &mut Rng, read_error: u32) -> Faults {
        Faults {
            write_error: rng.pick(&[0, 300, 3_000, 20_000]),
            flush_error: rng.pick(&[0, 0, 3_000, 30_000]),
            flush_drops: rng.chance(1, 2),
            read_error: rng.pick(&[0, read_error]),
            ..Faults::default()
        }
    }

    /// Draws members that fail for good, one after the other.
    fn draw_failures(requests: u32, rng: &mut Rng) -> Vec<(u64, usize, Option<Death>)> {
        let deaths = [Some(Death::All), Some(Death::Writes), Some(Death::FlushDrops), None];
        let requests = u64::from(requests);
        let mut at = rng.below(requests / 2);
        let mut failures = Vec::new();
        for _ in 0..rng.pick(&[1, 2, 3, 6]) {
            failures.push((at, rng.below(2) as usize, rng.pick(&deaths)));
            at += rng.range(5, 5 + requests / 4);
        }
        failures
    }
}
