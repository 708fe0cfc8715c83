//! Conditions of a machine in use: slow devices, ranges that take no writes, another build or
//! configuration at the next start, a clock that restarts.

use super::draw::pool_settings;
use super::types::{Plan, Scale, StallPlan, VolumePlan};
use crate::device::Death;
use crate::disks::device_of;
use crate::rng::Rng;
use forebay_core::{CheckpointConfig, EngineConfig, PoolSettings};
use std::rc::Rc;

impl Plan {
    /// Draws all of these, for a plan without a planted bug.
    pub(super) fn draw_in_use(&mut self, rng: &mut Rng) {
        (self.redraws, self.clock_restarts) = (rng.chance(1, 3), rng.chance(1, 3));
        if let Some((_, death @ Death::All)) = &mut self.death
            && rng.chance(1, 2)
        {
            *death = Death::Second;
        }
        if rng.chance(1, 6) {
            self.stalls = (0..rng.range(1, 3)).map(|_| self.draw_stall(rng)).collect();
            self.stalls.sort_by_key(|stall| stall.at);
        }
        if rng.chance(1, 8) && !self.volumes.iter().any(VolumePlan::is_sparse) {
            let unit = 4096;
            let from = rng.below((256 << 10) / unit) * unit + rng.pick(&[0, 0, 512, 1024]);
            let part = (from, from + rng.pick(&[512, 4096, 16 << 10, 64 << 10]));
            self.faults.backing.barred = Some(if rng.chance(1, 6) { (0, u64::MAX) } else { part });
        }
        if self.may_order() && rng.chance(1, 3) {
            self.first_flush_epoch = (1 << 32) - rng.range(1, 20);
        }
        if rng.chance(1, 16) && self.scale == Scale::Small && self.copies.is_none() {
            self.draw_many_volumes(rng);
        }
        if self.volumes.iter().any(VolumePlan::is_sparse) && rng.chance(1, 4) {
            // Every crash point reads all that was written: few of both.
            (self.mix.huge_of, self.sample) = (rng.pick(&[100, 400]), self.sample.max(100));
        }
        // The daemon's record follows every 5 s.
        self.record_lag_ns = rng.pick(&[0, 0, 5_000_000_000]);
    }

    /// Draws many small volumes that come and go.
    fn draw_many_volumes(&mut self, rng: &mut Rng) {
        if self.volumes.iter().any(VolumePlan::is_sparse) || !self.truncations.is_empty() {
            return;
        }
        let first = self.volumes[0];
        self.volumes = vec![first; rng.range(6, 40) as usize];
        for volume in &mut self.volumes {
            let unit = u64::from(first.sector_bytes);
            let bytes = rng.range((128 << 10) / unit, (192 << 10) / unit) * unit;
            (volume.bytes, volume.bytes_max) = (bytes, bytes + (128 << 10));
            volume.mode = rng.pick(&self.modes);
        }
        self.mix.lifecycle = self.mix.lifecycle.max(rng.pick(&[0, 2, 8]));
    }

    /// Draws a stall. The longest stands for a path that fails over, or a disk that repairs itself.
    fn draw_stall(&self, rng: &mut Rng) -> StallPlan {
        let device = match rng.below(3) {
            0 => device_of(self, 0),
            1 if self.mirror.is_some() => device_of(self, 1),
            _ => 1 + rng.below(self.volumes.len() as u64) as usize,
        };
        StallPlan {
            at: rng.below(u64::from(self.requests)),
            device,
            spares_reads: rng.chance(1, 2),
            ns: rng.range(10_000_000_000, 120_000_000_000),
        }
    }

    /// Returns the plan of the next start.
    pub(crate) fn at_start(self: &Rc<Self>, rng: &mut Rng) -> Rc<Self> {
        if !self.redraws {
            return Rc::clone(self);
        }
        let last = &self.engine;
        let drawn = pool_settings(rng);
        let engine = EngineConfig {
            scratch_blocks: rng.pick(&[64, 128, 256, 1024]),
            pool: PoolSettings {
                discard_freed: last.pool.discard_freed,
                endurance_budget: last.pool.endurance_budget,
                ..drawn
            },
            checkpoint: CheckpointConfig {
                piece_blocks: rng.pick(&[1, 1, 64]),
                piece_pause: rng.pick(&[0, 1_000_000, 20_000_000]),
                chain_from_blocks: rng.pick(&[0, 0, 64]),
                chain_blocks_max: rng.pick(&[4, 16, u64::MAX]),
                changes_max: rng.pick(&[30, 1000]),
                log_bytes: rng.pick(&[0, 64 << 20]),
                ..last.checkpoint
            },
            zero_step_blocks: rng.pick(&[1, 7, 16384]),
            stretch_blocks: rng.pick(&[1, 16, 1024]),
            summaries_from_blocks: rng.pick(&[0, 128]),
            known: last.known,
        };
        Rc::new(Self { engine, ..(**self).clone() })
    }
}
