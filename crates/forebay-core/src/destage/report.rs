//! A volume's destage report.

use crate::api::RequestKind;
use crate::api::destage::{DestageReport, Limit};
use crate::context::Context;
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

    /// Returns state and limit of a volume's destage; `None` if it is not attached.
    pub(crate) fn destage_report(&self, volume: VolumeId) -> Option<DestageReport> {
        let state = self.volumes.get(volume)?;
        let (map, control) = (&self.map.volumes[usize::from(volume.0)], &state.destage.rate);
        let (incoming, outgoing) = control.rates(self.now);
        let waits_for_store = state.destage.in_flight() > 0 || state.flusher.is_running();
        Some(DestageReport {
            rate_blocks_per_s: outgoing,
            target_blocks_per_s: control.target(),
            incoming_blocks_per_s: incoming,
            limited_by: match control.limit() {
                // All that was dirty is on its way, and counts once the store has flushed it.
                Limit::NothingToDo if waits_for_store => Limit::BackingStore,
                limit => limit,
            },
            oldest_dirty_age: map.ages.oldest().map_or(0, |time| time.age(self.now)),
            in_flight: state.destage.in_flight(),
            dirty_blocks: map.dirty,
            write_back_requests: self.write_back_requests(volume),
            unclean_blocks: map.dirty + map.destaged,
            destage_writes: control.writes(),
            foreground_mean: control.foreground().0,
            foreground_p95: control.foreground().1,
            retry_in: control.backoff_until().saturating_sub(self.now),
            throttled_requests: state.writers_wait as u64,
        })
    }
}
