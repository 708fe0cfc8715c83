//! Converts tunables for the engine: to its units, and to 0 where the registry has off.

use super::endurance;
use super::tunables::{PoolTunables, VolumeTunables};
use forebay_core::{PoolSettings, VolumeSettings};
use std::time::Duration;

/// Converts to nanoseconds. Limits of the registry are far below overflow.
fn nanos(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl From<&VolumeTunables> for VolumeSettings {
    /// Converts all but the tunables of an attach (`on_backing_change`, `emulate`) and of rules
    /// (`default_action`).
    fn from(volume: &VolumeTunables) -> Self {
        Self {
            mode: volume.mode,
            destage_order: volume.destage_order,
            flush_period: nanos(volume.flush_period),
            idle_delay: nanos(volume.idle_delay),
            dirty_low_pct: volume.dirty_low_pct,
            dirty_high_pct: volume.dirty_high_pct,
            max_destage_iops: volume.max_destage_iops,
            max_destage_bytes_per_s: volume.max_destage_bandwidth.0,
            latency_target: nanos(volume.latency_target),
            destage_depth_max: volume.destage_depth_max,
            destage_gap_bytes: volume.destage_gap_kb.saturating_mul(1024),
            admission: volume.admission,
            skip_sequential_bytes: volume.skip_seq_thresh_kb.saturating_mul(1024),
            min_share_pct: volume.min_share_pct,
            max_share_pct: volume.max_share_pct,
            priority: volume.priority,
            zero_direct_min_bytes: volume.zero_direct_min.0,
        }
    }
}

impl From<&PoolTunables> for PoolSettings {
    /// Converts the live ones.
    fn from(pool: &PoolTunables) -> Self {
        Self {
            reclaim_policy: pool.reclaim_policy,
            survivors_max_pct: pool.survivors_max_pct,
            dirty_limit_pct: pool.dirty_limit_pct,
            batches_in_flight: pool.batches_in_flight,
            discard_freed: pool.discard_freed,
            // Years without a rating are a conflict, which the checks refuse.
            endurance_budget: endurance::budget(pool.endurance_budget, pool.endurance_rating)
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunables::Applies;
    use crate::value::ValueKind;
    use crate::{Scope, Settings, Tunable};

    #[test]
    fn registry_defaults_match_the_engine() {
        assert_eq!(VolumeSettings::from(&VolumeTunables::default()), VolumeSettings::default());
        assert_eq!(PoolSettings::from(&PoolTunables::default()), PoolSettings::default());
    }

    /// Returns a value that is not the default.
    fn other(tunable: &Tunable) -> String {
        let value = match tunable.kind {
            ValueKind::Choice(choices) => {
                choices.iter().map(|choice| choice.name).find(|name| *name != (tunable.default)().to_string())
            }
            ValueKind::Percent { .. } | ValueKind::Count { .. } => Some("33"),
            ValueKind::Size { .. } | ValueKind::Rate => Some("2MiB"),
            ValueKind::Duration { .. } => Some("3s"),
            ValueKind::Key => Some("/key"),
            ValueKind::Device => Some("hdd-7200"),
            ValueKind::Endurance { rating: true } => Some("600TB"),
            ValueKind::Endurance { rating: false } => Some("0.5DWPD"),
        };
        value.unwrap().to_owned()
    }

    #[test]
    fn every_live_tunable_arrives_in_the_engine() {
        for tunable in crate::tunables::all().filter(|tunable| tunable.applies == Applies::Live) {
            let mut settings = Settings::new(tunable.scope);
            settings.set(tunable.name, &other(tunable)).unwrap();
            let arrived = match tunable.scope {
                Scope::Pool => PoolSettings::from(&PoolTunables::new(&settings)) != PoolSettings::default(),
                Scope::Volume => {
                    VolumeSettings::from(&VolumeTunables::new(&settings)) != VolumeSettings::default()
                }
            };
            // Rules apply `default_action` before the engine; the rating of devices matters to it
            // only with a budget in years.
            let elsewhere = ["default_action", "endurance_rating"].contains(&tunable.name);
            assert_eq!(arrived, !elsewhere, "{}", tunable.name);
        }
    }
}
