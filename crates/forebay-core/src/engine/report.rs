use crate::context::counters::VolumeStats;
use crate::context::coverage::CoverageMarks;
use crate::engine::Engine;
use forebay_format::VolumeId;

impl Engine {
    /// Counters and gauges of a volume; `None` if it is not attached.
    #[must_use]
    pub fn volume_stats(&self, volume: VolumeId) -> Option<VolumeStats> {
        self.cx.is_attached(volume).then(|| {
            let map = &self.cx.map.volumes[usize::from(volume.0)];
            VolumeStats {
                cached_blocks: map.cached,
                dirty_blocks: map.dirty,
                lost_blocks: self.cx.lost_blocks(volume),
                lost_bytes: self.lost_bytes(volume),
                pinned_blocks: map.pinned,
                ..self.cx.counters.get(volume)
            }
        })
    }
}

impl Engine {
    /// Rare paths taken since the engine was opened.
    #[must_use]
    pub fn coverage(&self) -> CoverageMarks {
        self.cx.coverage
    }
}
