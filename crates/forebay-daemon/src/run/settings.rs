//! `forebay run --set key=value`: the registry of tunables, applied to one volume in a pool of its
//! own.
//!
//! There is no list here. Tunables with an option of `run`, or that need rules, are refused with a
//! hint to the right syntax.

use crate::RunOptions;
use forebay_admin::MessageId;
use forebay_config::conflicts;
use forebay_config::tunables::{self, Scope, Tunable};
use forebay_config::{PoolTunables, Settings, ValueError, VolumeTunables};
use forebay_pool::RunError;

/// One setting, for help texts and documents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingHelp {
    /// Name.
    pub key: &'static str,
    /// Accepted values.
    pub takes: String,
    /// Default.
    pub default: String,
    /// Effect.
    pub help: &'static str,
}

/// `drain` is a command for one run and no property of a volume, so the registry does not have it.
const DRAIN: &str = "drain";

/// Returns every setting that `--set` accepts.
#[must_use]
pub fn settings() -> Vec<SettingHelp> {
    let known = tunables::all().filter(|tunable| elsewhere(tunable).is_none());
    let help = |&Tunable { name, kind, default, help, .. }: &Tunable| SettingHelp {
        key: name,
        takes: kind.takes(),
        default: default().to_string(),
        help,
    };
    let mut list: Vec<SettingHelp> = known.map(help).collect();
    list.push(SettingHelp {
        key: DRAIN,
        takes: "on, off".into(),
        default: "off".into(),
        help: "write dirty data back as fast as the backing store allows",
    });
    list
}

/// Returns the syntax for a tunable that `run` does not take as a setting.
fn elsewhere(tunable: &Tunable) -> Option<String> {
    match tunable.name {
        "mode" | "emulate" | "emulate_cache" | "io" => {
            Some(format!("use its own option: --{}", tunable.name.replace('_', "-")))
        }
        "default_action" => Some("a volume of `forebay run` has no rules: use `forebay serve`".into()),
        _ => None,
    }
}

/// Checked settings of `forebay run`: those of its volume and of the pool that serves only this
/// volume.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) pool_settings: Settings,
    pub(crate) drain: bool,
}

pub(crate) fn plan(options: &RunOptions) -> Result<Plan, RunError> {
    if options.exports.is_empty() {
        return Err(RunError::usage(
            MessageId::ExportMissing,
            "no export: give at least one --export, such as nbd+unix:///db?socket=/run/db.sock".into(),
        ));
    }
    let mut given = Given::new();
    for (key, value) in &options.settings {
        given
            .set(key, value)
            .map_err(|why| RunError::usage(why.id, format!("--set {key}={value}: {why}")))?;
    }
    let usage = |error: ValueError| RunError::usage(error.id, error.to_string());
    given.volume.set("mode", options.mode.name()).map_err(usage)?;
    if let Some(model) = options.emulate {
        given.volume.set("emulate", &model.to_string()).map_err(usage)?;
    }
    if let Some(model) = options.emulate_cache {
        given.pool.set("emulate_cache", &model.to_string()).map_err(usage)?;
    }
    given.pool.set("io", options.io.name()).map_err(usage)?;
    given.raise_limit().map_err(usage)?;
    let (volume, pool) = (VolumeTunables::new(&given.volume), PoolTunables::new(&given.pool));
    let mut found = conflicts::of_pool(&pool, options.caches.len());
    found.extend(conflicts::of_volume(&volume));
    found.extend(conflicts::of_volume_in_pool(&volume, &pool));
    if let Some(conflict) = found.first() {
        return Err(RunError::usage(
            MessageId::SettingConflict,
            format!("{}: {}", conflict.message, conflict.help),
        ));
    }
    Ok(Plan { settings: given.volume, pool_settings: given.pool, drain: given.drain })
}

/// Settings on the command line.
struct Given {
    volume: Settings,
    pool: Settings,
    drain: bool,
}

impl Given {
    fn new() -> Self {
        Self { volume: Settings::new(Scope::Volume), pool: Settings::new(Scope::Pool), drain: false }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), ValueError> {
        if key == DRAIN {
            self.drain = match text {
                "on" => true,
                "off" => false,
                _ => return Err(ValueError::new("not one of on, off")),
            };
            return Ok(());
        }
        let scopes = [Scope::Pool, Scope::Volume];
        let Some(tunable) = scopes.into_iter().find_map(|scope| tunables::find(scope, key)) else {
            return Err(unknown(key));
        };
        if let Some(instead) = elsewhere(tunable) {
            return Err(ValueError::new(instead));
        }
        let settings = if tunable.scope == Scope::Pool { &mut self.pool } else { &mut self.volume };
        settings.set(key, text).map(|_| ())
    }

    /// Raises the pool's limit to that of the volume unless it was given, because the pool serves
    /// only this volume.
    fn raise_limit(&mut self) -> Result<(), ValueError> {
        let high = VolumeTunables::new(&self.volume).dirty_high_pct;
        if self.pool.explicit("dirty_limit_pct").is_none()
            && PoolTunables::new(&self.pool).dirty_limit_pct < high
        {
            self.pool.set("dirty_limit_pct", &high.to_string())?;
        }
        Ok(())
    }
}

fn unknown(key: &str) -> ValueError {
    let pool = || tunables::hint(Scope::Pool, key, &[]);
    let near = tunables::hint(Scope::Volume, key, &[DRAIN]).or_else(pool);
    let near = near.map_or(String::new(), |near| format!("; {near}"));
    let known: Vec<&str> = settings().iter().map(|setting| setting.key).collect();
    ValueError::new(format!("no such setting{near}; known settings: {}", known.join(", ")))
        .about(MessageId::SettingUnknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::size::ByteSize;

    fn options(settings: &[(&str, &str)]) -> RunOptions {
        RunOptions {
            backing: "/tmp/b".parse().unwrap(),
            caches: vec![forebay_config::CacheSpec { path: "/tmp/c".into(), size_bytes: None }],
            exports: vec!["nbd+unix:///v?socket=/tmp/s".parse().unwrap()],
            mode: forebay_format::checkpoint::Mode::Writeback,
            emulate: None,
            emulate_cache: None,
            settings: settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            admin: None,
            io: forebay_io::EnginePreference::Auto,
            new_cache: false,
            taking: forebay_admin::Taking::default(),
        }
    }

    #[test]
    fn listed_settings_take_their_defaults() {
        let list = settings();
        for setting in &list {
            plan(&options(&[(setting.key, setting.default.as_str())])).unwrap();
        }
        for known in [
            "dirty_low_pct",
            "dirty_high_pct",
            "idle_delay",
            "destage_order",
            "destage_depth_max",
            "zero_direct_min",
            "survivors_max_pct",
            "batches_in_flight",
            "on_backing_change",
            "segment_size",
            "cache_allocation",
            "scratch_size",
            "buffer_memory",
            "spin",
            "drain",
        ] {
            assert!(list.iter().any(|setting| setting.key == known), "{known} was known before");
        }
    }

    #[test]
    fn settings_override_registry_defaults() {
        let volume = |plan: &Plan| forebay_core::VolumeSettings::from(&VolumeTunables::new(&plan.settings));
        let defaults = plan(&options(&[])).unwrap();
        assert_eq!(volume(&defaults), forebay_core::VolumeSettings::default());
        let set = plan(&options(&[("idle_delay", "off"), ("segment_size", "1MiB")])).unwrap();
        let pool = PoolTunables::new(&set.pool_settings);
        assert_eq!((volume(&set).idle_delay, pool.segment_size), (0, Some(ByteSize(1 << 20))));
        let set =
            plan(&options(&[("destage_order", "fifo"), ("drain", "on"), ("dirty_low_pct", "5")])).unwrap();
        assert_eq!((volume(&set).destage_order, set.drain), (forebay_core::DestageOrder::Fifo, true));
        assert_eq!(volume(&set).dirty_low_pct, 5);
    }

    #[test]
    fn pool_limit_follows_its_only_volume() {
        let set = plan(&options(&[("dirty_high_pct", "90")])).unwrap();
        assert_eq!(PoolTunables::new(&set.pool_settings).dirty_limit_pct, 90);
        let both = plan(&options(&[("dirty_high_pct", "90"), ("dirty_limit_pct", "80")]));
        let RunError::Usage { what: text, .. } = both.unwrap_err() else { panic!() };
        assert!(text.contains("dirty_limit_pct (80)"), "{text}");
    }

    #[test]
    fn wrong_setting_is_named_with_valid_values() {
        for (key, value, says) in [
            ("dirty_high_pct", "95", "1 to 90"),
            ("destage_order", "random", "elevator, fifo"),
            ("mode", "writethrough", "--mode"),
            ("default_action", "bypass", "rules"),
            ("dirty_hihg_pct", "1", "did you mean `dirty_high_pct`"),
            ("drain", "yes", "on, off"),
            ("segment_size", "3MiB", "power of two"),
        ] {
            let RunError::Usage { what: text, .. } = plan(&options(&[(key, value)])).unwrap_err() else {
                panic!()
            };
            assert!(text.contains(key) && text.contains(says), "{text}");
        }
        let RunError::Usage { what: text, .. } = plan(&options(&[("no_such", "1")])).unwrap_err() else {
            panic!()
        };
        assert!(text.contains("known settings: ") && text.contains("dirty_low_pct"), "{text}");
        let RunError::Usage { what: text, .. } = plan(&options(&[("dirty_low_pct", "80")])).unwrap_err()
        else {
            panic!()
        };
        assert!(text.contains("dirty_high_pct"), "{text}");
    }
}
