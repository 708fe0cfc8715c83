//! Operations that the owner starts late: frequency and delay.

use super::types::{LateStartPlan, Needs, Plan};
use crate::rng::Rng;

impl LateStartPlan {
    /// Draws a plan. No delay is long enough for the engine to give a device up.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self { pct: rng.pick(&[2, 10, 30]), ns_max: rng.pick(&[200_000, 5_000_000, 50_000_000]) }
    }
}

impl Plan {
    /// Draws whether the owner cannot always start operations at once; `needs`: of the planted bug.
    pub(crate) fn draw_late_starts(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let drawn = LateStartPlan::draw(rng);
        // An operation of a mirrored cache belongs to one member: that has its own runs.
        let late = needs == Some(Needs::LateStarts);
        if late || needs.is_none() && self.mirror.is_none() && rng.chance(1, 6) {
            self.late_starts = Some(drawn);
        }
    }
}
