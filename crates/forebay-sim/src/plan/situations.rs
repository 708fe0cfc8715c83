//! Situations that plans are led to: those that reveal a planted bug (`bugs.rs`), and those that
//! take rare paths.

use super::draw::geometry;
use super::types::{FaultPlan, MirrorPlan, Mix, OwnerPlan, Plan, Situation, Style};
use crate::device::{Death, Faults};
use crate::rng::Rng;
use forebay_core::{Admission, DestageOrder, EnduranceBudget, VolumeSettings};
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::Mode;

/// Situations for paths that are hardly ever taken otherwise ([`forebay_core::CoverageMark`]).
pub(super) const RARE: [Situation; 6] = [
    Plan::failing_writes_in_a_row,
    Plan::unreadable_cache,
    Plan::gaps_of_failing_store,
    Plan::restart_often,
    Plan::ordered_that_are_kept,
    Plan::pinned_beyond_cache,
];

/// Parts shared by several situations.
impl Plan {
    pub(super) fn as_drawn(&mut self, _: &mut Rng) {}

    /// Flush epochs whose lower 32 bits wrap around.
    pub(super) fn ordered_beyond_32_bits(&mut self, rng: &mut Rng) {
        self.ordered_and_dirty(rng);
        self.first_flush_epoch = (1 << 32) - rng.range(1, 6);
        self.mix.flush = self.mix.flush.max(15);
    }

    /// Writers at the dirty limit of a volume whose store takes no writes in a range, and then a
    /// stop.
    pub(super) fn barred_and_stopped(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.orders = vec![DestageOrder::Ordered];
        self.settings.destage_order = DestageOrder::Ordered;
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (0, 10);
        self.settings.idle_delay = 0;
        self.faults.backing.barred = Some((0, 64 << 10));
        (self.mix.restart, self.mix.write, self.mix.lifecycle, self.depth) = (4, 80, 0, 8);
        self.death = None;
    }

    pub(super) fn without_faults(&mut self, _: &mut Rng) {
        self.faults = FaultPlan::default();
    }

    pub(crate) fn only_writeback(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writeback], rng);
        self.mix.write += 30;
        self.faults = FaultPlan::default();
    }

    fn start_in(&mut self, modes: Vec<Mode>, rng: &mut Rng) {
        self.modes = modes;
        self.draw_modes(rng);
    }

    /// Draws the initial mode of each volume from those that occur.
    fn draw_modes(&mut self, rng: &mut Rng) {
        for volume in &mut self.volumes {
            volume.mode = rng.pick(&self.modes);
        }
    }

    fn set_geometry(&mut self, segments: u32) {
        self.geometry = geometry(16, segments);
        self.cache_bytes = self.geometry.device_blocks * BLOCK_BYTES as u64;
    }

    /// The smallest cache under the largest volumes, with a high load.
    fn squeeze(&mut self, rng: &mut Rng) {
        self.set_geometry(16);
        for volume in &mut self.volumes {
            (volume.bytes, volume.bytes_max) = (1 << 20, (1 << 20) + (128 << 10));
        }
        self.faults = FaultPlan::default();
        self.requests *= 2;
        self.sample = 10;
        self.mix.write += 40;
        self.mix.hot_pct = 30;
        self.start_in(vec![Mode::Writeback, Mode::Writethrough], rng);
    }

    /// Dirty blocks stay dirty until there are many.
    fn keep_dirty(&mut self) {
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
        (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
    }

    /// The cache device dies in the middle of the main line.
    pub(super) fn die(&mut self, rng: &mut Rng) {
        let at = rng.range(u64::from(self.requests) / 10, u64::from(self.requests) * 9 / 10);
        self.death = Some((at, rng.pick(&[Death::All, Death::Writes, Death::Writes, Death::FlushDrops])));
        self.faults.backing.flush_drops = false;
    }

    /// Orderly stops, and requests at once after the start.
    fn restart_often(&mut self, _: &mut Rng) {
        self.faults = FaultPlan::default();
        self.orders = vec![DestageOrder::Elevator];
        self.settings.destage_order = DestageOrder::Elevator;
        (self.mix.restart, self.mix.read) = (10, self.mix.read + 40);
    }
}

/// The log, the map and reads.
impl Plan {
    pub(super) fn destaged_at_once(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.settings.dirty_low_pct = 0;
        self.mix.drain += 3;
        self.mix.pause += 3;
    }

    pub(super) fn written_past(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writeback, Mode::Writethrough, Mode::Writearound], rng);
        self.mix.mode += 4;
        self.mix.read += 20;
        self.faults = FaultPlan::default();
    }

    /// Bypass writes, and failing flushes of backing stores, most of them the engine's own.
    pub(super) fn flushes_that_drop_writes_past(&mut self, rng: &mut Rng) {
        self.written_past(rng);
        (self.orders, self.settings.destage_order) = (vec![DestageOrder::Elevator], DestageOrder::Elevator);
        self.faults.backing.flush_error = 300_000;
        self.drop_past();
        (self.death, self.mix.pause, self.mix.flush) = (None, 20, 10);
    }

    /// Destage under failing flushes of backing stores, which drop half of its writes.
    pub(super) fn flushes_that_drop_destage(&mut self, rng: &mut Rng) {
        self.destaged_at_once(rng);
        (self.orders, self.settings.destage_order) = (vec![DestageOrder::Elevator], DestageOrder::Elevator);
        self.faults = FaultPlan::default();
        self.faults.backing.flush_error = 500_000;
        self.drop_past();
        // Flushes begin while writes are in flight, and a power cut follows soon after one.
        (self.backing_latency.write_ns, self.backing_latency.spread) = (4_000_000, 8);
        self.settings.destage_gap_bytes = 0;
        (self.death, self.sample, self.mix.pause) = (None, 40, 10);
    }

    /// Zeroes that bypass the cache and take a step for each block.
    pub(super) fn zeroed_in_steps(&mut self, rng: &mut Rng) {
        self.written_past(rng);
        self.engine.zero_step_blocks = 1;
        self.mix.zero += 8;
    }

    /// Requests that cross the border of two regions.
    pub(super) fn large_and_written_past(&mut self, rng: &mut Rng) {
        self.written_past(rng);
        (self.mix.large_pct, self.mix.hot_pct, self.mix.run_pct) = (40, 0, 0);
        self.death = None;
    }

    /// Zeroes that bypass the cache over blocks that are partly cached and partly evicted.
    pub(super) fn zeroed_in_stretches(&mut self, rng: &mut Rng) {
        self.zeroed_in_steps(rng);
        self.engine.stretch_blocks = 16;
    }

    pub(super) fn full_cache(&mut self, rng: &mut Rng) {
        self.squeeze(rng);
        self.depth = 16;
    }

    /// A segment that is open, and nearly full, at a checkpoint is soon empty: its few blocks are
    /// overwritten again and again, and checkpoints are rare.
    pub(super) fn refilled_segments(&mut self, rng: &mut Rng) {
        self.full_cache(rng);
        self.start_in(vec![Mode::Writeback], rng);
        self.mix = Mix { write: 90, flush: 2, hot_pct: 95, large_pct: 5, ..Mix::default() };
        self.engine.checkpoint.log_bytes = 64 << 20;
        (self.death, self.truncations) = (None, Vec::new());
        (self.style, self.sample) = (Style::Fork, 10);
    }

    /// Like [`Plan::refilled_segments`], with blocks that are clean soon: they leave the cache
    /// without a record.
    pub(super) fn refilled_clean_segments(&mut self, rng: &mut Rng) {
        self.refilled_segments(rng);
        (self.settings.dirty_low_pct, self.settings.idle_delay) = (0, 10_000_000);
        (self.mix.hot_pct, self.mix.pause) = (30, 4);
        (self.settings.max_destage_iops, self.settings.max_destage_bytes_per_s) = (0, 0);
        self.engine.pool.discard_freed = false;
    }

    pub(super) fn full_of_dirty(&mut self, rng: &mut Rng) {
        self.squeeze(rng);
        self.settings.dirty_low_pct = self.settings.dirty_high_pct.min(40);
    }

    /// The bug shows as a request that is not answered in ten minutes: slow devices, so that this
    /// does not take millions of moves.
    pub(super) fn full_of_pins(&mut self, rng: &mut Rng) {
        self.squeeze(rng);
        (self.mix.rule_pct, self.mix.sweep, self.mix.hot_pct) = (90, 0, 0);
        (self.cache_latency.read_ns, self.cache_latency.write_ns) = (2_000_000, 10_000_000);
    }

    /// Reads fill a cache that may write only little.
    pub(super) fn small_endurance(&mut self, rng: &mut Rng) {
        self.squeeze(rng);
        (self.mix.read, self.mix.tune, self.settings.admission) = (60, 0, Admission::Always);
        self.engine.pool.endurance_budget = EnduranceBudget::Bytes(rng.pick(&[1, 4_000_000_000]));
    }

    pub(super) fn batches_out_of_order(&mut self, rng: &mut Rng) {
        (self.depth, self.engine.pool.batches_in_flight) = (16, 4);
        self.cache_latency.spread = 20;
        self.only_writeback(rng);
    }

    pub(super) fn batches_in_flight(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.depth, self.engine.pool.batches_in_flight, self.death) = (16, 4, None);
    }

    pub(super) fn reads_beside_writes(&mut self, rng: &mut Rng) {
        (self.depth, self.sample) = (16, 50);
        self.mix = Mix { read: 40, write: 40, hot_pct: 70, run_pct: 10, ..self.mix };
        self.start_in(vec![Mode::Writeback, Mode::Writearound, Mode::Writethrough], rng);
        self.faults = FaultPlan::default();
    }

    pub(super) fn rot_that_is_read(&mut self, _: &mut Rng) {
        self.faults = FaultPlan { rot: 100_000, ..FaultPlan::default() };
        self.mix.read += 20;
        self.sample = 50;
    }

    pub(super) fn rot_and_crashes(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.faults = FaultPlan { rot: rng.pick(&[10_000, 50_000]), ..FaultPlan::default() };
        (self.mix.flush, self.death, self.sample) = (15, None, 100);
    }

    pub(super) fn rot_and_flushes(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.faults = FaultPlan { rot: 30_000, ..FaultPlan::default() };
        (self.mix.scrub, self.mix.flush, self.death) = (5, 15, None);
        self.keep_dirty();
    }

    pub(super) fn scrubbed_dirty(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.faults = FaultPlan { rot: 5_000, ..FaultPlan::default() };
        (self.mix.scrub, self.death) = (30, None);
        self.mix.read += 20;
        self.settings.dirty_low_pct = self.settings.dirty_high_pct.min(40);
    }

    pub(super) fn scrubbed_beside_writes(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.faults = FaultPlan { rot: 200_000, ..FaultPlan::default() };
        self.mix = Mix { write: 60, read: 40, hot_pct: 70, scrub: 40, ..self.mix };
        self.death = None;
    }

    pub(super) fn partial_blocks(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.mix.sector_pct, self.mix.byte_pct, self.mix.large_pct) = (40, 0, 2);
        (self.mix.read, self.death) = (self.mix.read + 30, None);
    }

    /// Blocks are destaged at once, marked clean, overwritten bypassing the cache, and hardly ever
    /// flushed.
    pub(super) fn unflushed_marks(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writeback, Mode::Writearound], rng);
        (self.settings.dirty_low_pct, self.settings.idle_delay) = (0, 10_000_000);
        (self.sample, self.requests) = (2, self.requests * 2);
        self.mix = Mix { mode: 12, flush: 0, zero: 0, fua_pct: 0, hot_pct: 80, pause: 6, ..self.mix };
        self.faults = FaultPlan::default();
    }

    /// Blocks written one by one are scattered, and destage writes all of them before one mark is
    /// logged.
    pub(super) fn many_marks(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.orders, self.depth) = (vec![DestageOrder::Elevator], 1);
        self.settings = VolumeSettings {
            dirty_low_pct: 0,
            idle_delay: 10_000_000,
            max_destage_iops: 0,
            max_destage_bytes_per_s: 0,
            destage_order: DestageOrder::Elevator,
            ..self.settings
        };
        self.mix = Mix { write: 95, pause: 1, sector_pct: 0, byte_pct: 0, ..Mix::default() };
        (self.death, self.backing_latency.write_ns) = (None, 50_000);
    }

    pub(super) fn discards(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.mix.zero, self.mix.write) = (self.mix.zero + 20, self.mix.write + 20);
    }

    pub(super) fn sequential_writes(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.settings.skip_sequential_bytes = 8 << 10;
        self.mix.run_pct = 60;
        self.mix.read += 30;
    }

    pub(super) fn small_share(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.settings.min_share_pct, self.settings.max_share_pct) = (0, 5);
    }
}

/// Starts, volumes that come and go, and devices.
impl Plan {
    pub(super) fn lifecycle(&mut self, rng: &mut Rng) {
        self.mix.lifecycle += 20;
        self.draw_modes(rng);
        self.faults = FaultPlan::default();
    }

    /// Small volumes with odd ends grow and shrink concurrently with bypass writes of bytes.
    pub(super) fn odd_ends(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writearound, Mode::Writethrough], rng);
        (self.mix.lifecycle, self.mix.write, self.mix.byte_pct) = (40, 60, 100);
        self.depth = 16;
        for volume in &mut self.volumes {
            (volume.bytes, volume.sector_bytes) = ((128 << 10) + 512, 512);
            volume.bytes_max = volume.bytes + 3 * BLOCK_BYTES as u64;
        }
        self.faults = FaultPlan::default();
    }

    pub(super) fn lifecycle_of_failing_cache(&mut self, rng: &mut Rng) {
        self.mix.lifecycle += 60;
        self.draw_modes(rng);
        self.faults = FaultPlan::default();
        self.die(rng);
    }

    pub(super) fn pool_resizes(&mut self, _: &mut Rng) {
        self.mix.pool += 10;
        self.mix.write += 40;
        self.faults = FaultPlan::default();
    }

    /// Dirty data is still there after a stop.
    pub(super) fn dirty_at_start(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.restart_often(rng);
        (self.settings.dirty_low_pct, self.settings.idle_delay) = (40, 0);
        self.settings.dirty_high_pct = self.settings.dirty_high_pct.max(50);
        self.death = None;
    }

    /// Flushes fail, the owner cannot record it, and the cache is opened again.
    pub(super) fn reopened_after_failing_flush(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.restart_often(rng);
        self.faults.cache = Faults { flush_error: 30_000, flush_drops: true, ..Faults::default() };
        (self.owner, self.death) = (OwnerPlan::Never, None);
        self.keep_dirty();
    }

    pub(super) fn forked_and_read(&mut self, _: &mut Rng) {
        (self.style, self.faults, self.death) = (Style::Fork, FaultPlan::default(), None);
        self.mix.read += 20;
    }

    pub(super) fn read_without_faults(&mut self, _: &mut Rng) {
        (self.faults, self.death, self.mix.read) = (FaultPlan::default(), None, 60);
    }

    pub(super) fn much_dirty(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.death = None;
        self.keep_dirty();
    }

    pub(super) fn failing_writes(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.faults.cache = Faults { write_error: 50_000, spares_metadata: true, ..Faults::default() };
        (self.mix.read, self.death) = (self.mix.read + 20, None);
    }
}

/// Ordered volumes.
impl Plan {
    /// Many flush epochs with the same few blocks, and slow permanent destage.
    pub(super) fn ordered(&mut self, rng: &mut Rng) {
        if self.modes.iter().all(|mode| !matches!(mode, Mode::Writeback | Mode::Writeonly)) {
            self.start_in(vec![Mode::Writeback], rng);
        }
        self.orders = vec![DestageOrder::Ordered];
        self.settings.destage_order = DestageOrder::Ordered;
        (self.settings.dirty_low_pct, self.settings.idle_delay) = (0, 10_000_000);
        self.mix = Mix { write: 50, flush: 15, hot_pct: 50, tune: 0, drain: 2, ..self.mix };
        self.sample = 10;
        self.faults = FaultPlan::default();
    }

    pub(super) fn ordered_and_dirty(&mut self, rng: &mut Rng) {
        self.ordered(rng);
        self.settings.dirty_low_pct = 10;
    }

    pub(super) fn ordered_and_written_past(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writeback, Mode::Writearound], rng);
        self.ordered(rng);
        (self.mix.mode, self.mix.rule_pct) = (4, 20);
        self.settings.dirty_low_pct = 40;
        self.settings.dirty_high_pct = self.settings.dirty_high_pct.max(50);
    }

    pub(super) fn ordered_by_fua(&mut self, rng: &mut Rng) {
        self.ordered(rng);
        self.mix = Mix { flush: 0, fua_pct: 30, ..self.mix };
    }

    /// The next epoch is destaged before the checkpoint of the shrink takes effect.
    pub(super) fn ordered_that_shrink(&mut self, rng: &mut Rng) {
        self.ordered(rng);
        (self.mix.lifecycle, self.mix.hot_pct, self.mix.drain, self.mix.pool) = (30, 0, 15, 0);
        (self.mix.restart, self.mix.scrub) = (0, 0);
        self.settings.dirty_low_pct = 10;
        (self.cache_latency.write_ns, self.cache_latency.flush_ns) = (1_000_000, 4_000_000);
        (self.backing_latency.write_ns, self.backing_latency.flush_ns) = (20_000, 20_000);
        (self.backing_latency.slow_ppm, self.death) = (0, None);
        self.sample = 3;
    }
}

/// Destage: rate, limits, orders, gaps.
impl Plan {
    fn paced(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.mix.zero, self.mix.rule_pct, self.mix.tune, self.mix.restart) = (0, 0, 0, 0);
        (self.mix.lifecycle, self.mix.pool) = (0, 0);
        self.orders = vec![DestageOrder::Elevator, DestageOrder::Fifo, DestageOrder::Lru];
        self.settings.destage_order = rng.pick(&self.orders);
        self.settings =
            VolumeSettings { idle_delay: 0, dirty_low_pct: 40, dirty_high_pct: 80, ..self.settings };
        (self.settings.max_destage_iops, self.settings.max_destage_bytes_per_s) = (0, 0);
        self.settings.skip_sequential_bytes = 0; // Or not all writes of backing stores are destage.
    }

    pub(super) fn flush_period(&mut self, rng: &mut Rng) {
        self.paced(rng);
        self.settings.flush_period = rng.pick(&[8_000_000_000, 20_000_000_000]);
        (self.mix.pause, self.backing_latency.slow_ppm, self.cache_latency.slow_ppm) = (20, 0, 0);
    }

    pub(super) fn limited_destage(&mut self, rng: &mut Rng) {
        self.paced(rng);
        self.settings.max_destage_iops = rng.pick(&[50, 200]);
    }

    /// Scattered blocks are destaged without a limit until the operator sets one.
    pub(super) fn limit_that_begins(&mut self, rng: &mut Rng) {
        self.paced(rng);
        (self.settings.dirty_low_pct, self.settings.destage_gap_bytes) = (0, 0);
        (self.settings.idle_delay, self.settings.latency_target) = (10_000_000, 0);
        (self.mix.tune, self.mix.pause, self.mix.large_pct, self.mix.run_pct) = (2, 5, 0, 0);
        (self.backing_latency.slow_ppm, self.cache_latency.slow_ppm) = (0, 0);
        (self.sample, self.requests, self.death) = (10, 600, None);
    }

    pub(super) fn limit_below_load(&mut self, rng: &mut Rng) {
        self.paced(rng);
        (self.settings.max_destage_iops, self.settings.destage_depth_max) = (50, 1);
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (0, 10);
        self.mix.pause = 0;
    }

    pub(super) fn dirty_limit(&mut self, rng: &mut Rng) {
        self.paced(rng);
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (0, 10);
        (self.engine.pool.dirty_limit_pct, self.mix.pause) = (60, 0);
        (self.backing_latency.write_ns, self.mix.hot_pct) = (4_000_000, 0);
    }

    pub(super) fn changing_order(&mut self, rng: &mut Rng) {
        self.paced(rng);
        self.mix.tune += 10;
    }

    /// Scattered dirty blocks on a backing store where a seek costs more than writing the gap.
    fn scatter(&mut self, rng: &mut Rng) {
        self.settings = VolumeSettings {
            dirty_low_pct: 0,
            idle_delay: 10_000_000,
            destage_gap_bytes: 1 << 20,
            latency_target: 0,
            ..self.settings
        };
        (self.backing_latency.read_ns, self.backing_latency.write_ns) = (1_000_000, 4_000_000);
        (self.mix.large_pct, self.mix.run_pct, self.mix.hot_pct) = (5, 0, 0);
        self.mix.pause += 3;
        self.depth = rng.pick(&[8, 16]);
        self.faults = FaultPlan::default();
    }

    /// Destage of scattered blocks, with bypass writes between them.
    pub(super) fn gaps_written_past(&mut self, rng: &mut Rng) {
        self.start_in(vec![Mode::Writeback, Mode::Writearound], rng);
        self.scatter(rng);
        (self.mix.rule_pct, self.mix.mode) = (50, 2);
    }

    pub(super) fn gaps_of_dirty(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.scatter(rng);
        self.mix.flush /= 4;
    }

    pub(super) fn gaps_of_sectors(&mut self, rng: &mut Rng) {
        self.only_writeback(rng);
        self.scatter(rng);
        (self.mix.sector_pct, self.mix.drain) = (40, 4);
    }

    /// Gaps on a backing store that often fails reads.
    fn gaps_of_failing_store(&mut self, rng: &mut Rng) {
        self.gaps_of_dirty(rng);
        self.faults.backing.read_error = 300_000;
    }
}

/// Failures of the cache device.
impl Plan {
    /// A cache full of dirty data dies, and clients continue.
    fn outlive(&mut self, death: Death, rng: &mut Rng) {
        self.only_writeback(rng);
        self.die(rng);
        self.death = self.death.map(|(at, _)| (at, death));
        self.owner = OwnerPlan::Records;
        self.keep_dirty();
        self.mix = Mix { write: 60, hot_pct: 50, drain: 0, lifecycle: 0, pool: 0, restart: 0, ..self.mix };
        self.sample = 3;
    }

    pub(super) fn failing_cache(&mut self, rng: &mut Rng) {
        self.outlive(Death::Writes, rng);
    }

    pub(super) fn failing_cache_and_flushes(&mut self, rng: &mut Rng) {
        self.outlive(Death::Writes, rng);
        self.mix.flush = 15;
    }

    pub(super) fn lost_cache(&mut self, rng: &mut Rng) {
        self.outlive(Death::All, rng);
    }

    pub(super) fn failing_flushes_unrecorded(&mut self, rng: &mut Rng) {
        self.outlive(Death::FlushDrops, rng);
        (self.mix.flush, self.depth, self.owner) = (30, 16, OwnerPlan::Never);
    }

    pub(super) fn batches_beside_failing_flush(&mut self, rng: &mut Rng) {
        self.outlive(Death::FlushDrops, rng);
        (self.mix.flush, self.depth, self.engine.pool.batches_in_flight) = (15, 16, 4);
        (self.cache_latency.spread, self.cache_latency.write_ns) = (20, 200_000);
    }

    /// A dying cache device: batches fail in one segment after the other.
    fn failing_writes_in_a_row(&mut self, rng: &mut Rng) {
        let write_error = rng.pick(&[100_000, 400_000, 700_000]);
        self.faults = FaultPlan::default();
        self.faults.cache = Faults { write_error, spares_metadata: rng.chance(2, 3), ..Faults::default() };
    }

    fn unreadable_cache(&mut self, rng: &mut Rng) {
        self.faults.cache.read_error = rng.pick(&[50_000, 200_000]);
    }

    /// Ordered volumes that are kept and not attached, and hold space that others need.
    fn ordered_that_are_kept(&mut self, rng: &mut Rng) {
        self.set_geometry(32);
        self.ordered(rng);
        while self.volumes.len() < 3 {
            self.volumes.push(self.volumes[0]);
        }
        (self.mix.lifecycle, self.mix.pool, self.mix.hot_pct) = (10, 10, 10);
        self.sample = 100;
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 70);
        self.settings.idle_delay = 0;
    }

    /// Pins and minimum shares exceed the size of the cache.
    fn pinned_beyond_cache(&mut self, rng: &mut Rng) {
        self.squeeze(rng);
        (self.mix.rule_pct, self.mix.sweep, self.mix.hot_pct) = (90, 0, 0);
        (self.settings.min_share_pct, self.settings.max_share_pct) = (90, 100);
        self.engine.pool.survivors_max_pct = 90;
    }
}

/// Mirrored caches. Their members have no faults except those of the situation.
impl Plan {
    /// Sets up the common part of these situations.
    pub(super) fn calm_mirror(&mut self, mirror: MirrorPlan, rng: &mut Rng) {
        self.only_writeback(rng);
        self.owner = OwnerPlan::Records;
        self.keep_dirty();
        self.mix = Mix { write: 60, flush: 10, drain: 0, lifecycle: 0, restart: 0, ..self.mix };
        let MirrorPlan { replaces_of, misses_of, .. } = mirror;
        self.mirror = Some(MirrorPlan { replaces_of, misses_of, ..MirrorPlan::default() });
    }

    fn members(&mut self) -> &mut MirrorPlan {
        self.mirror.get_or_insert_default()
    }

    /// Draws a failure of a member at some time.
    fn draw_failure(&self, death: Death, rng: &mut Rng) -> (u64, usize, Option<Death>) {
        (rng.below(u64::from(self.requests) * 3 / 4), rng.below(2) as usize, Some(death))
    }

    pub(super) fn missing_member(&mut self, _: &mut Rng) {
        (self.members().misses_of, self.members().replaces_of) = (2, 0);
    }

    /// Two crashes in a row: one that leaves the members different, and one that only one of them
    /// survives.
    pub(super) fn missing_member_twice(&mut self, rng: &mut Rng) {
        self.missing_member(rng);
        (self.style, self.cache_latency.spread) = (Style::InLine, 20);
    }

    pub(super) fn missing_after_failure(&mut self, rng: &mut Rng) {
        self.members().failures = vec![self.draw_failure(Death::Writes, rng)];
        self.missing_member(rng);
    }

    pub(super) fn spoilt_member(&mut self, rng: &mut Rng) {
        let members = self.members();
        (members.spoil, members.misses_of) = (100_000, 0);
        members.harms[rng.below(2) as usize] = true;
    }

    pub(super) fn scrubbed_mirror(&mut self, rng: &mut Rng) {
        (self.mix.scrub, self.mix.restart) = (30, 0);
        let members = self.members();
        (members.rot, members.misses_of) = (5_000, 0);
        members.harms[rng.below(2) as usize] = true;
    }

    pub(super) fn scrubbed_member_that_fails(&mut self, rng: &mut Rng) {
        (self.mix.scrub, self.mix.restart) = (30, 0);
        let (member, members) = (rng.below(2) as usize, self.members());
        (members.rot, members.misses_of, members.replaces_of) = (500_000, 0, 2);
        members.harms[member] = true;
        members.failures = (1..20).map(|nth| (nth * 20, member, Some(Death::Writes))).collect();
    }

    pub(super) fn replaced_member(&mut self, rng: &mut Rng) {
        let (at, member, death) = self.draw_failure(Death::All, rng);
        (self.members().failures, self.members().replaces_of) = (vec![(at / 2, member, death)], 2);
    }

    /// The other member fails after the first one was replaced.
    pub(super) fn other_member_fails(&mut self, rng: &mut Rng) {
        let (at, member, death) = self.draw_failure(Death::All, rng);
        self.members().failures = vec![(at, member, death), (at + 60, 1 - member, death)];
        self.members().replaces_of = 3;
    }

    pub(super) fn members_that_miss_writes(&mut self, rng: &mut Rng) {
        let write_error = rng.pick(&[10_000, 30_000]);
        let members = self.members();
        members.faults = [Faults { write_error, ..Faults::default() }; 2];
        (members.misses_of, members.replaces_of) = (2, 3);
    }

    pub(super) fn opening_errors(&mut self, _: &mut Rng) {
        (self.style, self.cache_latency.spread) = (Style::InLine, 20);
        let members = self.members();
        (members.opening_errors, members.misses_of, members.replaces_of) = (500_000, 0, 1);
    }

    /// Copies of written-through data, on a slow backing store.
    pub(super) fn fills_of_failing_members(&mut self, rng: &mut Rng) {
        (self.style, self.depth, self.mix.rule_pct) = (Style::InLine, 16, 50);
        self.backing_latency.write_ns = 4_000_000;
        self.settings.admission = Admission::Always;
        let (at, members) = (rng.below(30), self.members());
        members.failures = (0..40).map(|nth| (at, nth % 2, Some(Death::All))).collect();
        (members.misses_of, members.replaces_of) = (0, 10);
    }
}
