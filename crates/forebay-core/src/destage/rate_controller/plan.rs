//! Plans a volume's destage: applies the rules of `rate_controller` in their order.

use super::{
    ACTIVE_NS, DEPTH_YIELDING, EXTENT_BLOCKS_EVEN, EXTENT_BLOCKS_YIELDING, LEVEL_NS, PERIOD_MIN_NS,
    REVIEW_NS, least_share, milli_rate,
};
use crate::api::Nanos;
use crate::api::destage::{Drain, Limit};
use crate::api::settings::Priority;
use crate::context::Context;
use crate::context::dirty_limits::{Level, Levels};
use crate::context::sectors::BLOCK;
use crate::context::volume::Volume;
use crate::destage::rate_controller::{DestagePlan, EXTENT_BLOCKS_MAX};
use crate::fault::{self, PlantedBug};
use forebay_format::VolumeId;

impl Volume {
    /// Dirty blocks below which the level requires no destage.
    fn low_level(&self, levels: &Levels) -> u64 {
        levels.capacity * u64::from(self.settings.dirty_low_pct) / 100
    }

    /// Rate that keeps the dirty level, in thousandths of blocks per second.
    fn level_rate(&self, level: Level, low: u64) -> u64 {
        let above = level.dirty.saturating_sub(low);
        if above == 0 {
            return 0;
        }
        let incoming = u128::from(self.destage.rate.incoming.milli_per_s());
        let keeping = incoming * 2 * u128::from(above) / u128::from(level.soft.saturating_sub(low).max(1));
        let keeping = u64::try_from(keeping).unwrap_or(u64::MAX);
        keeping.saturating_add(milli_rate(above, LEVEL_NS)).max(1000)
    }
}

impl Context {
    /// Rate that keeps `flush_period`, in thousandths of blocks per second: `u64::MAX` if it has
    /// nearly expired, `None` without one.
    fn age_rate(&self, id: VolumeId) -> Option<u64> {
        let volume = self.volume(id);
        let period = volume.settings.flush_period;
        if period == 0 || fault::planted(PlantedBug::IgnoreFlushPeriod) {
            return None;
        }
        let usable = period.max(PERIOD_MIN_NS) / 16 * 15;
        let map = &self.map.volumes[usize::from(id.0)];
        let age = map.ages.oldest().map_or(0, |time| time.age(self.now));
        let age = age.min(self.now - volume.destage.rate.period_since);
        let left = usable.saturating_sub(age);
        if left < usable / 16 {
            return Some(u64::MAX);
        }
        Some(milli_rate(map.waiting.len(), left))
    }

    /// Plans at a rate that age, level and foreground determine.
    fn paced_plan(&self, id: VolumeId, level: Level, low: u64, share: u64) -> DestagePlan {
        let volume = self.volume(id);
        let (settings, control) = (&volume.settings, &volume.destage.rate);
        let most = settings.destage_depth_max.max(1);
        let firm = self.age_rate(id).unwrap_or(0);
        let idle = volume.idle_at().is_some_and(|at| self.now >= at);
        let (mut wish, mut depth, mut why) = if control.drain == Drain::Background {
            (u64::MAX, most, Limit::BackingStore)
        } else if idle {
            (u64::MAX, (most / 2).max(1), Limit::BackingStore)
        } else {
            (volume.level_rate(level, low), most, Limit::DirtyLevel)
        };
        let mut extent_blocks = EXTENT_BLOCKS_MAX;
        let recently = self.now < control.foreground.last_at + ACTIVE_NS && control.foreground.mean > 0;
        if settings.latency_target > 0 && (volume.misses_in_flight > 0 || recently) {
            depth = ((share * DEPTH_YIELDING / 1000) as u32).clamp(1, most);
            extent_blocks = EXTENT_BLOCKS_YIELDING;
            if wish > control.foreground.allowed {
                (wish, why) = (control.foreground.allowed, Limit::ForegroundLatency);
            }
        }
        if firm >= wish && firm > 0 {
            (wish, depth, why, extent_blocks) = (firm, most, Limit::AgeDeadline, EXTENT_BLOCKS_MAX);
        }
        if wish == 0 {
            return DestagePlan::shut(if settings.idle_delay > 0 {
                Limit::IdleDelay
            } else {
                Limit::DirtyLevel
            });
        }
        if wish == u64::MAX {
            return DestagePlan {
                rate: None,
                depth,
                extent_blocks,
                extent_dirty: extent_blocks,
                why,
                pressed: false,
            };
        }
        // At most a second's worth in one operation, or destage would run in bursts.
        let even = (wish / 1000).clamp(EXTENT_BLOCKS_EVEN, u64::from(extent_blocks)) as u32;
        DestagePlan { rate: Some(wish), depth, extent_blocks, extent_dirty: even, why, pressed: false }
    }

    /// Returns when to plan for a volume again without an event, given the limit that stopped it.
    pub(crate) fn wake_for(&self, id: VolumeId, limit: Limit) -> Option<Nanos> {
        let volume = self.volume(id);
        match limit {
            Limit::RetryAfterFailure => Some(volume.destage.rate.backoff_until),
            Limit::IdleDelay => volume.idle_at(),
            Limit::ForegroundLatency => Some(self.now + REVIEW_NS),
            _ => None,
        }
    }

    /// Pages that destage of a volume may hold: divided by priority among the volumes with blocks
    /// to write.
    pub(crate) fn page_quota(&self, id: VolumeId, all: u32) -> u32 {
        let weight = |priority| match priority {
            Priority::Low => 1,
            Priority::Normal => 2,
            Priority::High => 4,
        };
        let busy = self.volumes.iter().filter(|volume| {
            volume.id == id || volume.destage.in_flight() > 0 || volume.destage.rate.limit == Limit::Scratch
        });
        let total: u32 = busy.map(|volume| weight(volume.settings.priority)).sum();
        (all * weight(self.volume(id).settings.priority) / total.max(1)).max(1)
    }

    /// Plans a volume's destage at present.
    pub(crate) fn destage_plan(&mut self, id: VolumeId) -> DestagePlan {
        let now = self.now;
        let dirty = self.map.volumes[usize::from(id.0)].dirty;
        let starved = fault::planted(PlantedBug::StarveLimiter);
        let levels = self.levels(id);
        let low = self.volume(id).low_level(&levels);
        let share = least_share(&levels, low);
        let volume = self.volume_mut(id);
        let control = &mut volume.destage.rate;
        if !starved {
            control.settle(now, dirty, share, &volume.settings);
        }
        if control.is_backing_off(now) {
            return DestagePlan::shut(Limit::RetryAfterFailure);
        }
        let probing = control.failures > 0;
        if self.map.volumes[usize::from(id.0)].waiting.len() == 0 {
            return DestagePlan::shut(Limit::NothingToDo);
        }
        let settings = &self.volume(id).settings;
        let (depth, bytes_per_s) = (settings.destage_depth_max.max(1), settings.max_destage_bytes_per_s);
        let failed = self.failure.runs_without_cache();
        if !failed && (self.failure.is_fenced() || self.is_winding_down()) {
            return DestagePlan::shut(Limit::Stopped);
        }
        let rescue = failed.then(|| DestagePlan::full(depth, Limit::BackingStore));
        let mut plan = rescue
            .or_else(|| self.pressed_plan(id, &levels))
            .unwrap_or_else(|| self.paced_plan(id, levels.volume, low, share));
        if probing {
            plan.depth = plan.depth.min(1);
        }
        if bytes_per_s > 0 {
            // An eighth of a second at most, or destage would run in bursts.
            let most = (bytes_per_s / 8 / BLOCK).max(1);
            plan.extent_blocks = plan.extent_blocks.min(most.min(u64::from(EXTENT_BLOCKS_MAX)) as u32);
        }
        plan
    }

    /// Plans at full speed, if something requires it.
    fn pressed_plan(&self, id: VolumeId, levels: &Levels) -> Option<DestagePlan> {
        let volume = self.volume(id);
        let depth = volume.settings.destage_depth_max.max(1);
        let awaited = (volume.writers_wait > 0) || self.writes_wait_for_order(id);
        let crowded = awaited || !levels.are_free();
        let drains = volume.destage.rate.drain == Drain::Full || volume.drains_to_leave;
        if drains || self.reclaim_wants_destage || crowded {
            return Some(DestagePlan::full(depth, Limit::BackingStore));
        }
        let late = self.age_rate(id).is_some_and(|rate| rate == u64::MAX);
        late.then(|| DestagePlan::full(depth, Limit::AgeDeadline))
    }
}
