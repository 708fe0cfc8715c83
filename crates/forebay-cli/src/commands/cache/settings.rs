//! Settings given to `forebay cache`. They are checked before anything is changed: the daemon would
//! refuse them only after the disk was unmounted.

use std::collections::BTreeMap;

use forebay_admin::{MessageId, SettingInfo};
use forebay_config::tunables::{find, hint};
use forebay_config::{PoolTunables, Scope, Settings, VolumeTunables, conflicts};

use crate::client::{self, Client};
use crate::failure::Failure;
use crate::screen::harmless;

/// Values as given, by the names of their settings.
pub(super) type Texts = BTreeMap<String, String>;

/// Splits settings into those of the pool, and those of the volume, each with a valid value.
///
/// # Errors
/// There is no such setting, or it does not take the value.
pub(super) fn split(settings: &[(String, String)]) -> Result<(Texts, Texts), Failure> {
    let (mut of_pool, mut of_volume) = (Texts::new(), Texts::new());
    for (key, value) in settings {
        let (scope, of) = match (find(Scope::Volume, key), find(Scope::Pool, key)) {
            (Some(_), _) => (Scope::Volume, &mut of_volume),
            (None, Some(_)) => (Scope::Pool, &mut of_pool),
            (None, None) => {
                let failure = Failure::usage(
                    MessageId::SettingUnknown,
                    format!("there is no setting \"{}\"", harmless(key)),
                );
                let meant = hint(Scope::Volume, key, &[]).or_else(|| hint(Scope::Pool, key, &[]));
                return Err(failure.hint(meant.unwrap_or_else(|| "forebay help settings lists them".into())));
            }
        };
        read(scope, &Texts::from([(key.clone(), value.clone())]))?;
        of.insert(key.clone(), value.clone());
    }
    Ok((of_pool, of_volume))
}

/// # Errors
/// The settings conflict with each other, or with those of the pool. `devices`: number of devices
/// of a new pool.
pub(super) fn check(pool: &Settings, of_volume: &Texts, devices: Option<usize>) -> Result<(), Failure> {
    let (pool, volume) = (PoolTunables::new(pool), VolumeTunables::new(&read(Scope::Volume, of_volume)?));
    let mut found = devices.map_or_else(Vec::new, |devices| conflicts::of_pool(&pool, devices));
    found.extend(conflicts::of_volume(&volume));
    found.extend(conflicts::of_volume_in_pool(&volume, &pool));
    match found.into_iter().next() {
        None => Ok(()),
        Some(conflict) => {
            Err(Failure::usage(MessageId::SettingConflict, conflict.message).hint(conflict.help))
        }
    }
}

/// Returns the settings of a pool of a running daemon.
///
/// # Errors
/// The daemon does not answer.
pub(super) fn of_running_pool(client: &Client, pool: &str) -> Result<Settings, Failure> {
    let answer = client.get(&format!("/v1/pools/{pool}/settings"))?;
    let all: BTreeMap<String, SettingInfo> = client::read(&answer)?;
    let set = all.into_iter().filter(|(_, setting)| setting.value != setting.default);
    read(Scope::Pool, &set.map(|(key, setting)| (key, setting.value)).collect())
}

/// # Errors
/// As [`split`].
pub(super) fn read(scope: Scope, texts: &Texts) -> Result<Settings, Failure> {
    let mut settings = Settings::new(scope);
    for (key, value) in texts {
        settings
            .set(key, value)
            .map_err(|error| Failure::usage(error.id, format!("{}: {error}", harmless(key))))?;
    }
    Ok(settings)
}
