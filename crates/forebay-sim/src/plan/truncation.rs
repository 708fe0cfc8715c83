//! Truncated devices: which ones end in a run, at which time, and for how long.

use super::types::{Needs, Plan, TruncatedDevice, TruncationPlan};
use crate::rng::Rng;

/// A cache device that is back after at most this many nanoseconds must not be given up (I71: 6.35
/// s).
pub(crate) const BRIEF_NS: u64 = 6_000_000_000;

impl TruncationPlan {
    /// Draws the truncations of a run; `needs`: of the planted bug.
    pub(crate) fn draw(plan: &Plan, needs: Option<Needs>, rng: &mut Rng) -> Vec<Self> {
        let count = rng.range(1, 3);
        let mut all: Vec<Self> = (0..count).map(|_| Self::draw_one(plan, needs, rng)).collect();
        all.sort_by_key(|end| end.at);
        let must = needs == Some(Needs::UnpluggedBacking);
        for end in &mut all {
            let is_backing = matches!(end.what, TruncatedDevice::Backing(_));
            if must || needs.is_none() && is_backing && plan.may_unplug() && rng.chance(1, 2) {
                (end.unplugged, end.kept_pct) = (true, 0);
                // Mostly so short that no flush fails meanwhile.
                end.ns = rng.pick(&[0, 0, 1_000_000, end.ns]);
            }
        }
        all
    }

    /// Returns true if a member of a mirrored cache ends.
    pub(crate) fn is_of_member(&self) -> bool {
        matches!(self.what, TruncatedDevice::Member(_))
    }

    fn draw_one(plan: &Plan, needs: Option<Needs>, rng: &mut Rng) -> Self {
        let backing = TruncatedDevice::Backing(rng.below(plan.volumes.len() as u64) as usize);
        let sound = plan.death.is_none() && !plan.faults.damages();
        let what = match needs {
            Some(Needs::ShortBacking | Needs::UnpluggedBacking) => backing,
            Some(_) => TruncatedDevice::Cache,
            None if plan.mirror.is_some() && rng.chance(2, 3) => {
                TruncatedDevice::Member(rng.below(2) as usize)
            }
            None if plan.mirror.is_none() && sound && rng.chance(2, 3) => TruncatedDevice::Cache,
            None => backing,
        };
        let brief = rng.range(20_000_000, BRIEF_NS);
        let long = rng.range(10_000_000_000, 60_000_000_000);
        let lasts = needs.is_none() && plan.outage.is_none() && rng.chance(1, 2);
        // Often early: not every run reaches its end.
        let requests = u64::from(plan.requests);
        let (first, last) =
            if rng.chance(1, 2) { (1, requests / 10) } else { (requests / 10, requests * 9 / 10) };
        Self {
            at: rng.range(first, last.max(first + 1)),
            what,
            kept_pct: rng.pick(&[0, 0, 10, 50, 90]),
            unplugged: false,
            ns: if lasts { long } else { brief },
        }
    }
}
