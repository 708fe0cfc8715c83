//! Caches and volumes of real size.
//!
//! The other runs have 16 to 40 small segments, so that caches are full and reclaim runs all the
//! time; but then the append window is always 4 segments, a list of victims has one entry, a batch
//! is never full, and summaries and most checkpoints are one block. The plans here reach these
//! cases. Devices are sparse ([`crate::image`]): unwritten ranges cost nothing, so the cost of a
//! run depends only on its writes.

use super::draw::geometry;
use super::types::{Needs, Plan, Scale, VolumePlan};
use crate::rng::Rng;
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::INTENT_REGION_BLOCKS;

/// Blocks in use on each side of the border of two intent regions, and at the end of a volume.
const BORDER_BLOCKS: u64 = 16;
/// Blocks in use at the start of a sparse volume.
const START_BLOCKS: u64 = 64;

impl VolumePlan {
    /// Returns true for a volume of several intent regions.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.bytes > INTENT_REGION_BLOCKS * BLOCK_BYTES as u64
    }

    /// Returns true if a sparse volume has no data at this block at the start: it is used at its
    /// start, at its end, and around the borders of its intent regions.
    #[must_use]
    pub fn is_blank(&self, block: u64) -> bool {
        let in_region = block % INTENT_REGION_BLOCKS;
        let at_border = !(BORDER_BLOCKS..INTENT_REGION_BLOCKS - BORDER_BLOCKS).contains(&in_region);
        let last = self.bytes / BLOCK_BYTES as u64;
        self.is_sparse() && block >= START_BLOCKS && !at_border && block + BORDER_BLOCKS < last
    }

    /// Draws a block in use; `blocks` is the present size of the volume.
    pub(crate) fn draw_block(&self, blocks: u64, rng: &mut Rng) -> u64 {
        if !self.is_sparse() {
            return rng.below(blocks);
        }
        let regions = blocks / INTENT_REGION_BLOCKS;
        match rng.below(regions + 2) {
            0 => rng.below(START_BLOCKS),
            border if border <= regions => {
                let first = border * INTENT_REGION_BLOCKS - BORDER_BLOCKS;
                (first + rng.below(2 * BORDER_BLOCKS)).min(blocks - 1)
            }
            _ => blocks - 1 - rng.below(BORDER_BLOCKS),
        }
    }
}

impl Plan {
    /// Draws the scale of the run; `needs`: of the planted bug.
    pub(crate) fn draw_scale(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let scale = rng.pick(&[Scale::Wide, Scale::Wide, Scale::Long, Scale::Real]);
        match needs {
            None if rng.chance(1, 12) => self.scale_up(scale, rng),
            Some(Needs::LongSegments) => {
                self.scale_up(Scale::Long, rng);
                (self.sample, self.mix.large_pct, self.depth) = (1000, 0, 1);
                self.volumes
                    .iter_mut()
                    .for_each(|volume| (volume.bytes, volume.bytes_max) = (4 << 20, 5 << 20));
            }
            _ => {}
        }
        if needs.is_none() && rng.chance(1, 12) || needs == Some(Needs::Regions) {
            self.spread(rng);
            if needs.is_some() {
                self.sample = 30;
            }
        }
    }

    fn scale_up(&mut self, scale: Scale, rng: &mut Rng) {
        self.scale = scale;
        self.geometry = match scale {
            Scale::Small => self.geometry,
            Scale::Wide => geometry(16, rng.pick(&[96, 160, 320, 640])),
            Scale::Long => geometry(1024, rng.pick(&[16, 20])),
            Scale::Real => geometry(1024, rng.pick(&[300, 400])),
        };
        self.cache_bytes = self.geometry.device_blocks * BLOCK_BYTES as u64;
        for volume in &mut self.volumes {
            volume.bytes *= 3;
            volume.bytes_max = volume.bytes + (128 << 10);
        }
        // Enough to go around the log, except for the largest, and no more crash points than in
        // other runs.
        (self.requests, self.sample) = (rng.range(800, 1600) as u32, rng.pick(&[40, 100]));
        self.mix.write = self.mix.write.max(50);
        if scale != Scale::Wide {
            // A batch is full if more data waits than fits.
            (self.mix.large_pct, self.depth, self.sample) = (60, 16, rng.pick(&[100, 200]));
            (self.mix.write, self.mix.pool) = (self.mix.write.max(80), 0);
            if rng.chance(1, 2) {
                self.only_writeback(rng);
                (self.settings.dirty_high_pct, self.engine.pool.dirty_limit_pct) = (90, 90);
                (self.settings.max_destage_iops, self.settings.max_destage_bytes_per_s) = (0, 0);
                (self.engine.pool.batches_in_flight, self.death) = (1, None);
            }
        }
    }

    /// Creates several volumes of several intent regions.
    fn spread(&mut self, rng: &mut Rng) {
        let region = INTENT_REGION_BLOCKS * BLOCK_BYTES as u64;
        let count = rng.range(4, 8) as usize;
        let first = self.volumes.clone();
        self.volumes = first.iter().copied().cycle().take(count).collect();
        for volume in &mut self.volumes {
            volume.bytes += region * rng.range(1, 4);
            volume.bytes_max = volume.bytes + (128 << 10);
            volume.mode = rng.pick(&self.modes);
        }
        // So that their backing stores are not given new contents at once.
        self.mix.lifecycle = 0;
    }
}
