//! What an operator can ask of destage, and what it tells: drains, rates, ages, and why it is not
//! faster.

use crate::api::destage::{DestageReport, Drain};
use crate::api::{Nanos, RequestKind};
use crate::context::Context;
use crate::engine::Engine;
use forebay_format::VolumeId;

impl Context {
    fn write_back_requests(&self, volume: VolumeId) -> u64 {
        let writes = |kind: RequestKind| {
            matches!(
                kind,
                RequestKind::Write { .. } | RequestKind::WriteZeroes { .. } | RequestKind::Discard { .. }
            )
        };
        self.reqs.iter().filter(|req| req.volume == volume && req.write_back && writes(req.kind)).count()
            as u64
    }
}

impl Engine {
    /// Starts or ends a drain, see [`Drain`]. It does not end by itself: what becomes dirty later
    /// is drained as well.
    pub fn set_drain(&mut self, now: Nanos, volume: VolumeId, drain: Drain) {
        self.begin(now);
        if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(volume.0)) {
            volume.destage.rate.drain = drain;
        }
    }

    /// How destage of a volume is going, and what limits it. `None` if it is not attached.
    #[must_use]
    pub fn destage_report(&self, volume: VolumeId) -> Option<DestageReport> {
        let state = self.cx.volumes.get(usize::from(volume.0))?.as_ref()?;
        let (map, control) = (&self.cx.map.volumes[usize::from(volume.0)], &state.destage.rate);
        let (incoming, outgoing) = control.rates(self.cx.now);
        Some(DestageReport {
            rate_blocks_per_s: outgoing,
            target_blocks_per_s: control.target(),
            incoming_blocks_per_s: incoming,
            limited_by: control.limit(),
            oldest_dirty_age: map.births.oldest().map_or(0, |born| born.age(self.cx.now)),
            in_flight: state.destage.in_flight(),
            dirty_blocks: map.dirty,
            write_back_requests: self.cx.write_back_requests(volume),
            unclean_blocks: map.dirty + map.destaged,
            destage_writes: control.writes(),
            foreground_mean: control.foreground().0,
            foreground_p95: control.foreground().1,
            retry_in: control.backoff_until().saturating_sub(self.cx.now),
            throttled_requests: self.throttle.waiting_of(volume) as u64,
        })
    }

    /// Dirty blocks of a volume by the time since their present bytes were written: below 1 s, 10
    /// s, 1 min, 5 min, 15 min, 1 h, and more. Precise to a quarter of a second or 3 %, never too
    /// young; counted from the opening of the cache for what was dirty then.
    #[must_use]
    pub fn dirty_ages(&self, volume: VolumeId) -> [u64; 7] {
        let map = self.cx.map.volumes.get(usize::from(volume.0));
        map.map_or([0; 7], |map| map.births.classes(self.cx.now))
    }
}
