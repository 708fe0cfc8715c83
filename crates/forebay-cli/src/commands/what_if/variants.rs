//! The variants to simulate: every cache size with every combination of values.
//!
//! Settings are those of the registry (`forebay set`). A setting with no effect on the model is
//! accepted with a note.

use crate::message;
use forebay_admin::MessageId;
use std::str::FromStr;

use forebay_admin::size::ByteSize;
use forebay_config::rules::DefaultAction;
use forebay_config::tunables::{self, Applies, Scope, Tunable};
use forebay_config::{PoolTunables, Settings, VolumeTunables, conflicts};
use forebay_whatif::{DiskKind, FlashTimes, MadeTrace, Pace, Plan, PlanError};

use crate::failure::Failure;
use crate::screen::harmless;

/// Maximum number of variants.
const VARIANTS_MAX: usize = 64;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Size of a cache device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum CacheSize {
    /// Bytes.
    Bytes(u64),
    /// Percent of the blocks that the trace touches.
    Share(f64),
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(share) = text.strip_suffix('%') else {
            return text
                .parse::<ByteSize>()
                .map(|size| Self::Bytes(size.0))
                .map_err(|error| error.to_string());
        };
        let share = share.trim().parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1e4);
        share.map(Self::Share).ok_or_else(|| "a share is a number of percent, like 10%".into())
    }
}

/// A setting and the values to compare.
#[derive(Debug)]
pub(super) struct Choice {
    tunable: &'static Tunable,
    /// As given: it determines how values are parsed.
    key: String,
    values: Vec<String>,
}

/// Parameters that all variants share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) volume_bytes: u64,
    pub(super) flash: FlashTimes,
    pub(super) disk: DiskKind,
    pub(super) path_ns: u64,
    pub(super) processor_ns: u64,
    pub(super) pace: Pace,
    pub(super) depth: usize,
}

/// One variant.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) plan: Plan,
    /// The given settings, with their values.
    pub(super) settings: Vec<(&'static str, String)>,
    /// The values that differ between the variants.
    pub(super) differs: String,
}

impl Variant {
    /// Returns advice for this error.
    pub(super) fn hint(&self, error: &PlanError) -> &'static str {
        match error {
            PlanError::Cache { .. } => "choose a larger --cache, or another segment_size",
            PlanError::Volume { .. } => "leave --volume-size out, or make it larger",
            PlanError::Stuck { .. } => "try another --depth",
        }
    }
}

/// Settings with an effect on the model that cannot be changed while a pool is open.
const AT_START: [&str; 2] = ["scratch_size", "segment_size"];

/// Parses `KEY=VALUE,VALUE`.
pub(super) fn choices(settings: &[String]) -> Result<Vec<Choice>, Failure> {
    let mut choices: Vec<Choice> = Vec::new();
    for text in settings {
        let (key, values) = crate::commands::settings::pair(text).map_err(|what| {
            Failure::usage(MessageId::SettingSyntax, what).hint("for example --set reclaim_policy=lru,s3fifo")
        })?;
        let Some(tunable) =
            [Scope::Pool, Scope::Volume].into_iter().find_map(|scope| tunables::find(scope, &key))
        else {
            return Err(unknown(&key));
        };
        if tunable.name == "emulate" {
            return Err(Failure::usage(MessageId::WhatIfVariants, "emulate has another option here")
                .hint("--disk hdd-7200"));
        }
        if tunable.applies != Applies::Live && !AT_START.contains(&tunable.name) {
            let what = format!("{} has no effect on the model", tunable.name);
            message::note(MessageId::CliNote, &what);
        }
        if choices.iter().any(|choice| choice.tunable.name == tunable.name) {
            let hint = "values to compare are given at once: KEY=VALUE,VALUE";
            return Err(Failure::usage(MessageId::SettingTwice, format!("{key}: is set twice")).hint(hint));
        }
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        choices.push(Choice { tunable, key, values });
    }
    Ok(choices)
}

fn unknown(key: &str) -> Failure {
    let hint = tunables::hint(Scope::Volume, key, &[]).or_else(|| tunables::hint(Scope::Pool, key, &[]));
    let hint = hint.unwrap_or_else(|| "forebay help settings has all of them".into());
    Failure::usage(MessageId::SettingUnknown, format!("there is no setting \"{}\"", harmless(key))).hint(hint)
}

/// Returns all combinations.
pub(super) fn all(
    caches: &[CacheSize],
    choices: &[Choice],
    common: &Common,
    trace: &MadeTrace,
) -> Result<Vec<Variant>, Failure> {
    let combinations = choices.iter().map(|choice| choice.values.len());
    let number = combinations.fold(caches.len(), usize::saturating_mul);
    if number > VARIANTS_MAX {
        return Err(Failure::usage(
            MessageId::WhatIfVariants,
            format!("{number} combinations; {VARIANTS_MAX} are the most"),
        )
        .hint("give fewer sizes or values"));
    }
    let footprint = if caches.iter().any(|size| matches!(size, CacheSize::Share(_))) {
        trace.footprint_bytes()
    } else {
        0
    };
    let mut variants = Vec::with_capacity(number);
    for size in caches {
        let cache_bytes = match size {
            CacheSize::Bytes(bytes) => *bytes,
            CacheSize::Share(share) => (footprint as f64 * share / 100.0) as u64,
        };
        for combination in 0..number / caches.len() {
            variants.push(variant(cache_bytes / BLOCK * BLOCK, choices, combination, common)?);
        }
    }
    Ok(variants)
}

/// Returns the combination of this number.
fn variant(
    cache_bytes: u64,
    choices: &[Choice],
    mut number: usize,
    common: &Common,
) -> Result<Variant, Failure> {
    let (mut pool, mut volume) = (Settings::new(Scope::Pool), Settings::new(Scope::Volume));
    let (mut given, mut differs) = (Vec::new(), Vec::new());
    for choice in choices {
        let value = &choice.values[number % choice.values.len()];
        number /= choice.values.len();
        let settings = if choice.tunable.scope == Scope::Pool { &mut pool } else { &mut volume };
        if value.is_empty() { settings.unset(&choice.key) } else { settings.set(&choice.key, value) }
            .map_err(|error| Failure::usage(error.id, format!("--set {}={value}: {error}", choice.key)))?;
        given.push((choice.tunable.name, value.clone()));
        if choice.values.len() > 1 {
            differs.push(format!("{}={value}", choice.tunable.name));
        }
    }
    let (pool, volume) = (PoolTunables::new(&pool), VolumeTunables::new(&volume));
    let mut found = conflicts::of_pool(&pool, 1);
    found.extend(conflicts::of_volume(&volume));
    found.extend(conflicts::of_volume_in_pool(&volume, &pool));
    if let Some(conflict) = found.into_iter().next() {
        return Err(Failure::usage(MessageId::SettingConflict, conflict.message).hint(conflict.help));
    }
    let plan = Plan {
        cache_bytes,
        volume_bytes: common.volume_bytes,
        pool: (&pool).into(),
        volume: (&volume).into(),
        scratch_blocks: (pool.scratch_size.0 / BLOCK) as u32,
        segment_blocks: pool.segment_size.map(|size| (size.0 / BLOCK) as u32),
        bypass: volume.default_action == DefaultAction::Bypass,
        flash: common.flash,
        disk: common.disk,
        path_ns: common.path_ns,
        processor_ns: common.processor_ns,
        pace: common.pace,
        depth: common.depth,
    };
    Ok(Variant { plan, settings: given, differs: differs.join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common {
            volume_bytes: 1 << 30,
            flash: FlashTimes::default(),
            disk: DiskKind::Hdd7200,
            path_ns: 0,
            processor_ns: 0,
            pace: Pace::AsFast,
            depth: 1,
        }
    }

    fn tried(caches: &[&str], settings: &[&str]) -> Result<Vec<Variant>, Failure> {
        let caches: Vec<CacheSize> = caches.iter().map(|size| size.parse().unwrap()).collect();
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        all(&caches, &choices(&settings)?, &common(), &MadeTrace::default())
    }

    #[test]
    fn variants_combine_sizes_and_settings() {
        let variants = tried(
            &["1GiB", "2GiB"],
            &["reclaim_policy=lru,fifo", "dirty_low_pct=5", "mode=writeback,writethrough"],
        )
        .unwrap();
        let differs: Vec<&str> = variants.iter().map(|variant| variant.differs.as_str()).collect();
        assert_eq!(differs[..2], ["reclaim_policy=lru mode=writeback", "reclaim_policy=fifo mode=writeback"]);
        assert_eq!((differs.len(), variants[4].plan.cache_bytes), (8, 2 << 30));
        assert!(variants.iter().all(|variant| variant.plan.volume.dirty_low_pct == 5));
        assert_eq!(variants[2].settings[2], ("mode", "writethrough".to_owned()));
    }

    #[test]
    fn every_tunable_is_taken_with_its_default() {
        for tunable in tunables::all().filter(|tunable| tunable.name != "emulate") {
            tried(&["1GiB"], &[&format!("{}={}", tunable.name, (tunable.default)())]).unwrap();
        }
    }

    #[test]
    fn invalid_variants_are_refused_with_a_hint() {
        let refused = |settings: &[&str]| format!("{:?}", tried(&["1GiB"], settings).unwrap_err());
        assert!(refused(&["reclaim_polcy=lru"]).contains("did you mean `reclaim_policy`"));
        assert!(refused(&["reclaim_policy=mru"]).contains("fifo, lru, s3fifo"));
        assert!(refused(&["dirty_low_pct=80"]).contains("dirty_high_pct"));
        assert!(refused(&["dirty_low_pct"]).contains("KEY=VALUE"));
        assert!(refused(&["dirty_low_pct=1", "dirty_low_pct=2"]).contains("set twice"));
        assert!(refused(&["emulate=hdd-7200"]).contains("--disk"));
        let many: Vec<String> = (1..=65).map(|pct| pct.to_string()).collect();
        assert!(refused(&[&format!("dirty_low_pct={}", many.join(","))]).contains("65 combinations"));
    }

    #[test]
    fn a_size_is_bytes_or_a_share() {
        assert_eq!("10%".parse(), Ok(CacheSize::Share(10.0)));
        assert_eq!("4KiB".parse(), Ok(CacheSize::Bytes(4096)));
        assert!("x%".parse::<CacheSize>().is_err() && "0%".parse::<CacheSize>().is_err());
    }
}
