//! Tunables: queries and changes.

use super::Service;
use super::catalog::Catalog;
use super::errors::invalid;
use super::pool_query::ask;
use super::telemetry::{ServiceEvent, Telemetry};
use forebay_admin::events::{EventKind, NewEvent};
use forebay_admin::jobs::{JobKind, JobSpec};
use forebay_admin::{AdminError, Leaving, MessageId, SettingInfo, SettingsDone, SettingsRequest, Target};
use forebay_config::tunables::Applies;
use forebay_config::{Config, Edit, PoolTunables, Scope, Settings, VolumeTunables, conflicts, tunables};
use forebay_core::{PoolSettings, VolumeSettings};
use forebay_format::checkpoint::Mode;
use forebay_pool::shell_word::quoted;
use std::collections::BTreeMap;

/// Key, old value, new value.
pub(super) type Changed = Vec<(String, String, String)>;

impl Service {
    pub(super) fn configured(&self, config: &Config, target: Target<'_>) -> Result<Settings, AdminError> {
        let (id, what, name, found, known): (_, _, _, _, Vec<&str>) = match target {
            Target::Pool(name) => {
                let known = config.pools.keys().map(String::as_str).collect();
                (
                    MessageId::PoolUnknown,
                    "pool",
                    name,
                    config.pools.get(name).map(|pool| &pool.settings),
                    known,
                )
            }
            Target::Volume(name) => {
                let known = config.volumes.keys().map(String::as_str).collect();
                (
                    MessageId::VolumeUnknown,
                    "volume",
                    name,
                    config.volumes.get(name).map(|volume| &volume.settings),
                    known,
                )
            }
        };
        found.cloned().ok_or_else(|| {
            let kept = matches!(target, Target::Volume(_)).then(|| self.kept_apart(name)).flatten();
            kept.unwrap_or_else(|| AdminError::not_found(id, what, name, &known))
        })
    }

    pub(super) fn settings_of(
        &self,
        target: Target<'_>,
    ) -> Result<BTreeMap<String, SettingInfo>, AdminError> {
        let settings = self.configured(&self.catalog.config(), target)?;
        let info = |(tunable, value): (&tunables::Tunable, forebay_config::Value)| {
            let info = SettingInfo {
                value: value.to_string(),
                default: (tunable.default)().to_string(),
                takes: tunable.kind.takes(),
                live: tunable.applies == Applies::Live,
                help: tunable.help.into(),
            };
            (tunable.name.to_owned(), info)
        };
        Ok(settings.effective().map(info).collect())
    }

    /// Changes tunables: all of them or none.
    pub(super) fn change_settings(
        &self,
        target: Target<'_>,
        request: SettingsRequest,
    ) -> Result<SettingsDone, AdminError> {
        let mut file = self.changing()?;
        if let Target::Volume(name) = target {
            self.holds.check_free(name)?;
        }
        let old = self.configured(&self.catalog.config(), target)?;
        let at_rest = match target {
            Target::Volume(name) => !self.is_attached(name)?,
            Target::Pool(_) => false,
        };
        let (new, changed) = with_changes(&old, &request.set, at_rest)?;
        self.catalog.check_conflicts(target, &new)?;
        let (mut before, mut stale) = (old, Vec::new());
        if !request.temporary
            && let Some(config) = file.newest()?
        {
            // The file does not have changes that last until the next start.
            before = self.configured(&config, target).unwrap_or(before);
            stale = not_as_wanted(&before, &new, &request.set);
        }
        file.commit(&edits(target, &new, &stale), &edits(target, &before, &stale), || {
            self.apply_settings(target, &new)
        })?;
        self.catalog.note_settings(target, new);
        drop(file);
        self.telemetry.announce(target, &changed);
        let written = only_written(stale, &changed);
        self.telemetry.tell_written(&whose(target), &written);
        let job = match target {
            Target::Volume(name)
                if !at_rest && request.set.contains_key("mode") && request.leaving == Leaving::Drain =>
            {
                self.drain_after_change(name, &changed)?
            }
            _ => None,
        };
        Ok(SettingsDone { changed, written, job })
    }

    /// Applies settings to the running pool or volume.
    pub(super) fn apply_settings(&self, target: Target<'_>, new: &Settings) -> Result<(), AdminError> {
        match target {
            Target::Pool(name) => {
                let settings = PoolSettings::from(&PoolTunables::new(new));
                ask(&*self.handle(name)?, move |pool| pool.configure_pool(settings))?
            }
            // It takes effect when the volume is attached.
            Target::Volume(name) if !self.is_attached(name)? => Ok(()),
            Target::Volume(name) => {
                let tunables = VolumeTunables::new(new);
                let settings = VolumeSettings::from(&tunables);
                let (_, handle) = self.pool_of(name)?;
                let volume = name.to_owned();
                ask(&handle, move |pool| pool.configure(&volume, settings))??;
                if let Some(rules) = self.attached_volumes.rules(name) {
                    rules.set_default_action(tunables.default_action);
                }
                Ok(())
            }
        }
    }

    /// Starts the drain job when a volume has left write-back. A repeated command starts it too if
    /// dirty blocks remain.
    fn drain_after_change(&self, name: &str, changed: &Changed) -> Result<Option<String>, AdminError> {
        let info = self.volume_info(name)?;
        let is_new = changed.iter().any(|(key, ..)| key == "mode");
        let mode =
            Mode::from_name(&info.mode).filter(|mode| !matches!(mode, Mode::Writeback | Mode::Writeonly));
        let Some(mode) = mode.filter(|_| is_new || info.dirty_bytes.is_none_or(|dirty| dirty > 0)) else {
            return Ok(None);
        };
        let (pool, _) = self.pool_of(name)?;
        let job = self.jobs.begin(JobSpec::volume(JobKind::ModeChange(mode), &pool, name));
        let job = job.map_err(|error| AdminError {
            what: format!(
                "the mode of {name} is {} now, but its dirty data is not being drained: {}",
                mode.name(),
                error.what
            ),
            hint: format!("try again later, or: forebay flush {}", quoted(name)),
            ..error
        })?;
        Ok(Some(job.id))
    }
}

impl Catalog {
    /// Checks that the settings are consistent, within the volume and with the rest of the
    /// configuration.
    fn check_conflicts(&self, target: Target<'_>, new: &Settings) -> Result<(), AdminError> {
        let mut config = self.config().clone();
        let found = match target {
            Target::Volume(name) => {
                let Some(volume) = config.volumes.get_mut(name) else { return Ok(()) };
                volume.settings = new.clone();
                let tunables = volume.tunables();
                let pool = config.pools.get(&config.volumes[name].pool).map(|pool| pool.tunables());
                let mut found = conflicts::of_volume(&tunables);
                found
                    .extend(pool.into_iter().flat_map(|pool| conflicts::of_volume_in_pool(&tunables, &pool)));
                found
            }
            Target::Pool(name) => {
                let pool = PoolTunables::new(new);
                let members = config.volumes.values().filter(|volume| volume.pool == name);
                members.flat_map(|volume| conflicts::of_volume_in_pool(&volume.tunables(), &pool)).collect()
            }
        };
        match found.into_iter().next() {
            None => Ok(()),
            Some(conflict) => Err(invalid(MessageId::SettingConflict, conflict.message, conflict.help)),
        }
    }
}

impl Telemetry {
    /// Reports values that were already in effect and are now in the file.
    pub(super) fn tell_written(&self, whose: &str, written: &[String]) {
        for key in written {
            let what = format!("{key} of {whose} is unchanged, and now also in the configuration file");
            self.emit(ServiceEvent::Note(MessageId::ConfigReloaded, what));
        }
    }

    fn announce(&self, target: Target<'_>, changed: &Changed) {
        let about = match target {
            Target::Pool(_) => MessageId::ConfigReloaded,
            Target::Volume(_) => MessageId::Event(EventKind::VolumeSettingChanged),
        };
        for (key, from, to) in changed {
            let message = format!("{key} of {} is {to} now, not {from}", whose(target));
            self.emit(ServiceEvent::Note(about, message.clone()));
            let event = match target {
                Target::Pool(pool) => NewEvent::new(EventKind::VolumeSettingChanged, message).pool(pool),
                Target::Volume(volume) => {
                    let kind = if key == "mode" {
                        EventKind::VolumeModeChanged
                    } else {
                        EventKind::VolumeSettingChanged
                    };
                    NewEvent::new(kind, message).volume(volume)
                }
            };
            let details = serde_json::json!({ "key": key, "from": from, "to": to });
            self.hub().publish(event.details(details));
        }
    }
}

/// Returns the settings with the changes made, and the differences. If a volume is not attached,
/// the tunables read at attach can be changed too.
fn with_changes(
    old: &Settings,
    wanted: &BTreeMap<String, Option<String>>,
    at_rest: bool,
) -> Result<(Settings, Changed), AdminError> {
    let mut new = old.clone();
    let mut changed = Vec::new();
    if wanted.is_empty() {
        return Err(invalid(MessageId::SettingMissing, "no setting is given", "give KEY=VALUE"));
    }
    for (key, value) in wanted {
        let before = old.value(key);
        let set = match value {
            Some(value) => new.set(key, value),
            None => new.unset(key),
        };
        let tunable = set.map_err(|error| invalid(error.id, format!("{key}: {error}"), ""))?;
        let (before, after) = (before.or_else(|| old.value(tunable.name)), new.value(tunable.name));
        if before == after {
            continue;
        }
        // `on_backing_change` is only evaluated at the next attach.
        let later = tunable.applies == Applies::AtAttach && (at_rest || tunable.name == "on_backing_change");
        if tunable.applies != Applies::Live && !later {
            return Err(invalid(
                MessageId::SettingFixed,
                format!("{} cannot be changed while it runs", tunable.name),
                format!("it is read {}", tunable.applies.words()),
            ));
        }
        let text =
            |value: Option<forebay_config::Value>| value.map_or_else(String::new, |value| value.to_string());
        changed.push((tunable.name.to_owned(), text(before), text(after)));
    }
    Ok((new, changed))
}

fn whose(target: Target<'_>) -> String {
    match target {
        Target::Pool(pool) => format!("pool {pool}"),
        Target::Volume(volume) => volume.to_owned(),
    }
}

/// Returns the tunables whose entry in the file differs from the wanted value: another value, or a
/// value where the default is wanted.
fn not_as_wanted(file: &Settings, new: &Settings, wanted: &BTreeMap<String, Option<String>>) -> Vec<String> {
    let names = wanted.keys().filter_map(|key| tunables::find(file.scope(), key));
    let differs = |name: &&str| match new.explicit(name) {
        Some(value) => file.value(name) != Some(value),
        None => file.explicit(name).is_some(),
    };
    names.map(|tunable| tunable.name).filter(differs).map(str::to_owned).collect()
}

/// Returns the tunables that were written into the file without a change of the value in effect.
pub(super) fn only_written(stale: Vec<String>, changed: &Changed) -> Vec<String> {
    stale.into_iter().filter(|name| !changed.iter().any(|(key, ..)| key == name)).collect()
}

/// Returns the edits of the file that set these tunables to the values in `settings`.
fn edits(target: Target<'_>, settings: &Settings, names: &[String]) -> Vec<Edit> {
    let (scope, name) = match target {
        Target::Pool(name) => (Scope::Pool, name.to_owned()),
        Target::Volume(name) => (Scope::Volume, name.to_owned()),
    };
    let edit = |key: &String| match settings.explicit(key) {
        Some(value) => Edit::Set { scope, name: name.clone(), key: key.clone(), value: value.to_string() },
        None => Edit::Unset { scope, name: name.clone(), key: key.clone() },
    };
    names.iter().map(edit).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;
    use forebay_admin::Admin;
    use std::path::Path;

    /// Sets a value, or the default, temporarily or permanently; returns the numbers of changed and
    /// written tunables.
    fn set(service: &Service, target: Target<'_>, word: &str, temporary: bool) -> (usize, Vec<String>) {
        let (key, value) = word.split_once('=').unwrap();
        let set =
            BTreeMap::from([(key.to_owned(), Some(value.to_owned()).filter(|value| !value.is_empty()))]);
        let done = Admin::set(service, target, SettingsRequest { set, temporary, ..Default::default() });
        let done = done.unwrap();
        (done.changed.len(), done.written)
    }

    fn line(folder: &Path, key: &str) -> Option<String> {
        let text = std::fs::read_to_string(folder.join("forebay.toml")).unwrap();
        text.lines().find(|line| line.starts_with(key)).map(str::to_owned)
    }

    #[test]
    fn temporary_value_can_be_made_permanent() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), std::sync::Arc::default(), "auto");
        for (target, key, value) in
            [(Target::Volume("a"), "dirty_high_pct", "30"), (Target::Pool("a"), "survivors_max_pct", "30")]
        {
            let to = format!("{key}={value}");
            let (default, written) = (format!("{key}="), vec![key.to_owned()]);
            assert_eq!(set(&service, target, &to, false), (1, Vec::new()));
            assert_eq!(set(&service, target, &default, true), (1, Vec::new()));
            assert_eq!(line(folder.path(), key), Some(format!("{key} = {value}")));
            assert_eq!(set(&service, target, &default, false), (0, written.clone()));
            assert_eq!(line(folder.path(), key), None, "the old line is still there");
            assert_eq!(set(&service, target, &default, false), (0, Vec::new()), "twice");

            assert_eq!(set(&service, target, &to, true), (1, Vec::new()));
            assert_eq!(line(folder.path(), key), None);
            assert_eq!(set(&service, target, &to, false), (0, written));
            assert_eq!(line(folder.path(), key), Some(format!("{key} = {value}")));
        }
        assert!(service.stop().is_empty());
    }

    #[test]
    fn temporary_value_stays_out_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), std::sync::Arc::default(), "auto");
        let volume = Target::Volume("a");
        set(&service, volume, "dirty_high_pct=30", true);
        set(&service, volume, "idle_delay=off", false);
        assert_eq!(line(folder.path(), "dirty_high_pct"), None);
        // A refused value leaves the file as it is.
        let before = std::fs::read_to_string(folder.path().join("forebay.toml")).unwrap();
        let set = BTreeMap::from([
            ("dirty_high_pct".to_owned(), None),
            ("idle_delay".to_owned(), Some("never".to_owned())),
        ]);
        let request = SettingsRequest { set, ..Default::default() };
        Admin::set(&*service, volume, request).unwrap_err();
        assert_eq!(std::fs::read_to_string(folder.path().join("forebay.toml")).unwrap(), before);
        assert!(service.stop().is_empty());
    }
}
