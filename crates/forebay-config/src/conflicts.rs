//! Settings that conflict. Pure functions over tunables: used for the file, for a live change, and
//! for `forebay run`.

use super::choices::Mirror;
use super::endurance;
use super::tunables::{PoolTunables, VolumeTunables};

/// Two or more settings that cannot hold together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// Settings of the volume that take part; the first is reported.
    pub keys: Vec<&'static str>,
    /// The problem.
    pub message: String,
    /// Suggested action.
    pub help: String,
}

fn conflict(keys: &[&'static str], message: String, help: &str) -> Conflict {
    Conflict { keys: keys.to_vec(), message, help: help.into() }
}

/// Returns the conflicts within a volume.
#[must_use]
pub fn of_volume(volume: &VolumeTunables) -> Vec<Conflict> {
    let mut found = Vec::new();
    let (low, high) = (volume.dirty_low_pct, volume.dirty_high_pct);
    if low > high {
        found.push(conflict(
            &["dirty_low_pct", "dirty_high_pct"],
            format!("dirty_low_pct ({low}) is above dirty_high_pct ({high})"),
            "lower the first or raise the second",
        ));
    }
    let (min, max) = (volume.min_share_pct, volume.max_share_pct);
    if min > max {
        found.push(conflict(
            &["min_share_pct", "max_share_pct"],
            format!("min_share_pct ({min}) is above max_share_pct ({max})"),
            "lower the first or raise the second",
        ));
    }
    found
}

/// Returns the conflicts between the settings of a pool and the number of its devices.
#[must_use]
pub fn of_pool(pool: &PoolTunables, devices: usize) -> Vec<Conflict> {
    let mut found = Vec::new();
    if endurance::budget(pool.endurance_budget, pool.endurance_rating).is_none() {
        found.push(conflict(
            &["endurance_budget", "endurance_rating"],
            "endurance_budget is a number of years, but the endurance of the devices is not known".into(),
            "set endurance_rating from their data sheet (`600TB`, `0.3DWPD/5y`), or give a size per day",
        ));
    }
    if pool.mirror == Mirror::Off {
        return found;
    }
    if devices != 2 {
        found.push(conflict(
            &["mirror"],
            format!("a mirrored cache lies on two devices, not on {devices}"),
            "give two of the same size, or leave `mirror` out",
        ));
    }
    if pool.encryption_key_file.is_some() {
        found.push(conflict(
            &["encryption_key_file", "mirror"],
            "a mirrored cache cannot be encrypted yet".into(),
            "leave one of them out; or encrypt below the cache, with dm-crypt on both devices",
        ));
    }
    found
}

/// Returns the conflicts between a volume and its pool.
#[must_use]
pub fn of_volume_in_pool(volume: &VolumeTunables, pool: &PoolTunables) -> Vec<Conflict> {
    let (high, limit) = (volume.dirty_high_pct, pool.dirty_limit_pct);
    if high <= limit {
        return Vec::new();
    }
    vec![conflict(
        &["dirty_high_pct"],
        format!("dirty_high_pct ({high}) is above dirty_limit_pct ({limit}) of the pool"),
        "lower the first, or raise dirty_limit_pct in the section of the pool",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, Settings};

    fn pool(settings: &[(&str, &str)]) -> PoolTunables {
        let mut all = Settings::new(Scope::Pool);
        for (key, value) in settings {
            all.set(key, value).unwrap();
        }
        crate::PoolConfig { devices: Vec::new(), settings: all }.tunables()
    }

    #[test]
    fn mirrored_cache_has_two_devices_no_key() {
        assert_eq!(of_pool(&pool(&[]), 5), []);
        assert_eq!(of_pool(&pool(&[("mirror", "on")]), 2), []);
        let one = of_pool(&pool(&[("mirror", "on")]), 1);
        assert!(one.len() == 1 && one[0].message.contains("two devices, not on 1"), "{one:?}");
        let years =
            |more: &[(&str, &str)]| of_pool(&pool(&[&[("endurance_budget", "7y")], more].concat()), 1);
        assert!(years(&[])[0].help.contains("endurance_rating"));
        assert_eq!(years(&[("endurance_rating", "600TB")]), []);
        let key = [("encryption_key_file", "/etc/key")];
        assert_eq!(of_pool(&pool(&key), 2), []);
        let both = of_pool(&pool(&[key[0], ("mirror", "on")]), 2);
        assert!(both.len() == 1 && both[0].keys == ["encryption_key_file", "mirror"], "{both:?}");
    }
}
