//! Operations that the owner starts late: how often, and for how long.

use super::types::{LateStartPlan, Needs, Plan};
use crate::rng::Rng;

impl LateStartPlan {
    /// Draws one. Nothing waits for so long that an engine which waits for a device would give it
    /// up because of that.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self { pct: rng.pick(&[2, 10, 30]), ns_max: rng.pick(&[200_000, 5_000_000, 50_000_000]) }
    }
}

impl Plan {
    /// The owner may be one that cannot always start what it is asked for; `needs`: of the planted
    /// bug.
    pub(crate) fn draw_late_starts(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let drawn = LateStartPlan::draw(rng);
        // Of a mirrored cache an operation is one of a member: that is for its own runs.
        let late = needs == Some(Needs::LateStarts);
        if late || needs.is_none() && self.mirror.is_none() && rng.chance(1, 6) {
            self.late_starts = Some(drawn);
        }
    }
}
