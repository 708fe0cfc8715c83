//! Checks the rate of destage: its limits, the pauses for them, dirty levels and ages.
//!
//! Judges only rules that hold in any world: a limit at every instant; the age of dirty data where
//! no device fails or stalls and no limit prevents `flush_period`. `workload::settle` checks that a
//! drain ends, [`crate::world::World::step`] that no writer is stuck.

use crate::ensure::ensure;
use crate::plan::{FaultPlan, Plan, Scale};
use forebay_core::{Engine, Limit, Status, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

/// Write-backs that may have been admitted before the device gets the first of them.
const IN_FLIGHT: u64 = 16;
/// Writes for one block with only some valid sectors.
const RUNS_MAX: u64 = 4;
/// Burst of the engine's limits: one second's worth divided by this.
const BURST_PART: u64 = 100;
/// Tolerance of `flush_period`: the period divided by this, plus a time in which the slowest of the
/// simulated backing stores writes all of the largest volume.
const PERIOD_PART: u64 = 8;
const PERIOD_SLACK_NS: u64 = 6_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Default)]
struct Debt {
    nano: u128,
    at: u64,
}

impl Debt {
    /// Adds `units` at `rate` per second and returns the debt, in units.
    fn take(&mut self, now: u64, rate: u64, units: u64) -> u64 {
        self.nano = self.nano.saturating_sub(u128::from(now - self.at) * u128::from(rate));
        self.nano += u128::from(units) * 1_000_000_000;
        self.at = now;
        (self.nano / 1_000_000_000) as u64
    }
}

#[derive(Clone, Copy, Default)]
struct Volume {
    writes: Debt,
    bytes: Debt,
    /// Above its limit (since it was lowered, or since a crash) the level may only fall. This is
    /// its last value.
    ceiling: Option<u64>,
    /// Blocks found lost so far. The level leaves them out, but not if the write-back that was in
    /// flight turns out to have saved one.
    lost: u64,
    /// Requests with lower numbers were submitted under other settings.
    grace: u64,
    period_since: u64,
    /// Time since which destage pauses for a limit of the operator, without a write.
    held_since: Option<u64>,
}

/// The judge of one world.
pub(crate) struct DestageCheck {
    volumes: Vec<Volume>,
    /// All writes to backing stores are destage, except for those of long streams.
    destage_only: bool,
    /// Nothing in this world slows destage down.
    smooth: bool,
    /// Blocks of the largest write so far.
    largest: u64,
}

impl DestageCheck {
    pub(crate) fn new(plan: &Plan) -> Self {
        let cached = plan.modes.iter().all(|mode| matches!(mode, Mode::Writeback | Mode::Writeonly));
        // Volumes that come and go take their dirty data with them, and a pool that grows changes
        // every limit.
        let steady = plan.mix.lifecycle == 0 && plan.mix.pool == 0;
        let small = plan.scale == Scale::Small;
        let whole = plan.mirror.is_none() && plan.death.is_none() && plan.outage.is_none();
        let slow = plan.cache_latency.slow_ppm + plan.backing_latency.slow_ppm;
        Self {
            volumes: vec![Volume::default(); plan.volumes.len()],
            destage_only: steady
                && cached
                && plan.late_starts.is_none()
                && plan.mix.zero == 0
                && plan.mix.rule_pct == 0,
            smooth: steady
                && small
                && slow == 0
                && whole
                && plan.truncations.is_empty()
                && plan.stalls.is_empty()
                && plan.late_starts.is_none()
                && plan.faults == FaultPlan::default(),
            largest: 0,
        }
    }

    /// Notes that the cache has failed: not every write to a backing store is destage now, and ages
    /// are not limited.
    pub(crate) fn without_cache(&mut self) {
        (self.destage_only, self.smooth) = (false, false);
    }

    /// Notes a submitted write.
    pub(crate) fn asked(&mut self, blocks: u64) {
        self.largest = self.largest.max(blocks);
    }

    /// Notes changed settings of a volume; requests below `next_request` were submitted before.
    pub(crate) fn configured(&mut self, volume: usize, now: u64, next_request: u64) {
        let state = &mut self.volumes[volume];
        let fresh = Debt { nano: 0, at: now };
        *state = Volume {
            writes: fresh,
            bytes: fresh,
            ceiling: None,
            grace: next_request,
            period_since: now,
            held_since: None,
            lost: state.lost,
        };
    }

    /// Checks a write of the engine to a backing store. `oldest` is the lowest number of the
    /// requests in flight.
    pub(crate) fn wrote(
        &mut self,
        volume: usize,
        now: u64,
        len: u64,
        settings: &VolumeSettings,
        oldest: Option<u64>,
    ) -> Result<(), String> {
        let state = &mut self.volumes[volume];
        state.held_since = None;
        // Requests of long streams bypass the cache, also those in flight that were submitted under
        // other settings.
        let streams = settings.skip_sequential_bytes > 0 || oldest.is_some_and(|oldest| oldest < state.grace);
        if !self.destage_only || streams {
            return Ok(());
        }
        let iops = u64::from(settings.max_destage_iops);
        if iops > 0 {
            let owed = state.writes.take(now, iops, 1);
            let allowed = iops / BURST_PART + IN_FLIGHT + RUNS_MAX;
            ensure!(owed <= allowed, "{owed} destage writes more than max_destage_iops = {iops} allows");
        }
        let rate = settings.max_destage_bytes_per_s;
        if rate > 0 {
            let owed = state.bytes.take(now, rate, len);
            let extent = (rate / 8).clamp(4096, 1 << 20);
            let allowed = rate / BURST_PART + (IN_FLIGHT + 1) * extent;
            ensure!(owed <= allowed, "{owed} bytes more than max_destage_bytes_per_s = {rate} allows");
        }
        Ok(())
    }

    /// Notes that a dirty block of a volume was found lost.
    pub(crate) fn note_lost(&mut self, volume: usize) {
        self.volumes[volume].lost += 1;
    }

    /// Checks levels and ages. `oldest` is the lowest number of the requests in flight.
    pub(crate) fn look(
        &mut self,
        engine: &Engine,
        settings: &[VolumeSettings],
        now: u64,
        oldest: Option<u64>,
    ) -> Result<(), String> {
        if engine.status() != Status::Ready {
            return Ok(());
        }
        if engine.mirror_state().is_some_and(|mirror| mirror.out.is_some() && !mirror.noted) {
            // All destage waits for the owner's note, which may take longer than any period: the
            // engine requests it again after a refusal.
            self.volumes.iter_mut().for_each(|volume| volume.period_since = now);
        }
        let capacity = engine.stats().capacity_blocks;
        for (index, settings) in settings.iter().enumerate() {
            let Some(report) = engine.destage_report(VolumeId(index as u16)) else { continue };
            if self.smooth {
                self.check_held(index, now, report.limited_by, settings)?;
            }
            if self.destage_only {
                self.check_level(index, report.unclean_blocks, capacity, settings, oldest)?;
            }
            let limited = settings.max_destage_iops > 0 || settings.max_destage_bytes_per_s > 0;
            if self.smooth && settings.flush_period > 0 && !limited {
                let age = report.oldest_dirty_age.min(now - self.volumes[index].period_since);
                let allowed = settings.flush_period + settings.flush_period / PERIOD_PART + PERIOD_SLACK_NS;
                ensure!(age <= allowed, "volume {index}: data dirty for {age} ns, {settings:?}, {report:?}");
            }
        }
        Ok(())
    }

    /// Checks that a limit pauses destage only for as long as the preceding writes are worth.
    fn check_held(
        &mut self,
        index: usize,
        now: u64,
        limited_by: Limit,
        settings: &VolumeSettings,
    ) -> Result<(), String> {
        let state = &mut self.volumes[index];
        // At most one write-back is owed, in addition to the burst.
        let owed = match limited_by {
            Limit::MaxIops => RUNS_MAX * SECOND_NS / u64::from(settings.max_destage_iops.max(1)),
            Limit::MaxBandwidth => {
                let rate = settings.max_destage_bytes_per_s.max(1);
                (rate / 8).clamp(4096, 1 << 20) * SECOND_NS / rate
            }
            _ => {
                state.held_since = None;
                return Ok(());
            }
        };
        let held = now - *state.held_since.get_or_insert(now);
        ensure!(
            held <= 2 * owed + SECOND_NS / 4,
            "volume {index}: destage rests for {held} ns because of {limited_by:?}, {settings:?}"
        );
        Ok(())
    }

    fn check_level(
        &mut self,
        index: usize,
        level: u64,
        capacity: u64,
        settings: &VolumeSettings,
        oldest: Option<u64>,
    ) -> Result<(), String> {
        let high = capacity * u64::from(settings.dirty_high_pct) / 100;
        let soft = high - (capacity / 10).min(high / 4);
        let bound = high.max(soft + self.largest);
        let state = &mut self.volumes[index];
        if oldest.is_some_and(|oldest| oldest < state.grace) {
            state.ceiling = None;
            return Ok(());
        }
        let ceiling = state.ceiling.unwrap_or(level).max(bound);
        ensure!(
            level <= ceiling + state.lost,
            "volume {index}: {level} blocks dirty, the limit is {high} ({settings:?})"
        );
        state.ceiling = Some(level);
        Ok(())
    }
}
