//! `--set key=value`: what can be set, with its default, and the checked result.

use crate::RunOptions;
use crate::error::RunError;
use forebay_core::{DestageOrder, EngineConfig, OnBackingChange, VolumeSettings};
use forebay_export::size::{ByteSize, parse_duration};
use forebay_format::BLOCK_BYTES;
use std::time::Duration;

/// One setting, for help texts and documents.
#[derive(Clone, Copy, Debug)]
pub struct SettingHelp {
    /// Name.
    pub key: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// Default.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Every setting that `--set` knows.
pub const SETTINGS: [SettingHelp; 18] = [
    setting("dirty_low_pct", "0 to 100", "10", "destage begins above this share of the cache being dirty"),
    setting("dirty_high_pct", "1 to 90", "70", "writers are slowed to the speed of the disk at this share"),
    setting(
        "idle_delay",
        "duration",
        "5s",
        "a volume without requests for this long is written back completely",
    ),
    setting(
        "flush_period",
        "duration",
        "0",
        "nothing stays dirty for longer, written back evenly; 0: no limit",
    ),
    setting("latency_target", "duration", "20ms", "what clients may wait for the disk before destage yields"),
    setting("max_destage_iops", "count", "0", "most destage writes a second; 0: no limit"),
    setting("destage_order", "elevator, fifo, lru", "elevator", "which dirty block is written back first"),
    setting("destage_depth_max", "1 to 256", "16", "write-back operations in flight under pressure"),
    setting(
        "zero_direct_min",
        "size",
        "1MiB",
        "zeroes and discards from this size on go to the backing store at once",
    ),
    setting(
        "survivors_max_pct",
        "0 to 90",
        "50",
        "share of a reclaimed segment that may be kept because it was hit",
    ),
    setting("batches_in_flight", "1 to 64", "4", "log writes in flight per stream"),
    setting(
        "on_backing_change",
        "refuse, keep-dirty, discard-dirty",
        "refuse",
        "what to do if the backing store was changed while the cache was away",
    ),
    setting("segment_size", "64KiB to 16MiB, power of two", "by cache size", "only when a cache is made"),
    setting("cache_allocation", "full, sparse", "full", "reserve the space of a new cache file, or not"),
    setting("scratch_size", "size", "16MiB", "memory for destage, fills and merges"),
    setting("buffer_memory", "size", "512MiB", "memory for requests in flight, all clients together"),
    setting("spin", "duration", "0s", "poll this long for completions before sleeping"),
    setting("drain", "on, off", "off", "write dirty data back as fast as the backing store allows"),
];

const fn setting(
    key: &'static str,
    takes: &'static str,
    default: &'static str,
    help: &'static str,
) -> SettingHelp {
    SettingHelp { key, takes, default, help }
}

/// Settings, checked.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) engine: EngineConfig,
    pub(crate) volume: VolumeSettings,
    pub(crate) segment_blocks: Option<u32>,
    pub(crate) preallocate: bool,
    pub(crate) buffer_bytes: usize,
    pub(crate) spin: Duration,
    pub(crate) drain: bool,
}

pub(crate) fn plan(options: &RunOptions) -> Result<Plan, RunError> {
    if options.exports.is_empty() {
        return Err(RunError::Usage(
            "no export: give at least one --export, such as nbd+unix:///db?socket=/run/db.sock".into(),
        ));
    }
    let mut plan = Plan {
        engine: EngineConfig::default(),
        volume: VolumeSettings { mode: options.mode, ..VolumeSettings::default() },
        segment_blocks: None,
        preallocate: true,
        buffer_bytes: 512 << 20,
        spin: Duration::ZERO,
        drain: false,
    };
    for (key, value) in &options.settings {
        plan.set(key, value).map_err(|why| RunError::Usage(format!("--set {key}={value}: {why}")))?;
    }
    plan.volume.check().map_err(|error| RunError::Usage(error.to_string()))?;
    Ok(plan)
}

impl Plan {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (engine, volume) = (&mut self.engine, &mut self.volume);
        match key {
            "dirty_low_pct" => volume.dirty_low_pct = number(value, 0, 100)?,
            "dirty_high_pct" => volume.dirty_high_pct = number(value, 1, 90)?,
            "idle_delay" => volume.idle_delay = nanos(value)?,
            "flush_period" => volume.flush_period = nanos(value)?,
            "latency_target" => volume.latency_target = nanos(value)?,
            "max_destage_iops" => volume.max_destage_iops = number(value, 0, u32::MAX)?,
            "destage_order" => {
                volume.destage_order = choice(
                    value,
                    &[
                        ("elevator", DestageOrder::Elevator),
                        ("fifo", DestageOrder::Fifo),
                        ("lru", DestageOrder::Lru),
                    ],
                )?;
            }
            "destage_depth_max" => volume.destage_depth_max = number(value, 1, 256)?,
            "zero_direct_min" => volume.zero_direct_min_bytes = size(value, 4096, 1 << 40)?,
            "survivors_max_pct" => engine.pool.survivors_max_pct = number(value, 0, 90)?,
            "batches_in_flight" => engine.pool.batches_in_flight = number(value, 1, 64)?,
            "on_backing_change" => {
                engine.on_backing_change = choice(
                    value,
                    &[
                        ("refuse", OnBackingChange::Refuse),
                        ("keep-dirty", OnBackingChange::KeepDirty),
                        ("discard-dirty", OnBackingChange::DiscardDirty),
                    ],
                )?;
            }
            "segment_size" => {
                let bytes = size(value, 64 << 10, 16 << 20)?;
                if !bytes.is_power_of_two() {
                    return Err("not a power of two".into());
                }
                self.segment_blocks = Some((bytes / BLOCK_BYTES as u64) as u32);
            }
            "cache_allocation" => self.preallocate = choice(value, &[("full", true), ("sparse", false)])?,
            "scratch_size" => {
                engine.scratch_blocks = (size(value, 1 << 20, 32 << 20)? / BLOCK_BYTES as u64) as u32;
            }
            "buffer_memory" => self.buffer_bytes = size(value, 96 << 20, 1 << 40)? as usize,
            "spin" => self.spin = duration(value)?.min(Duration::from_millis(10)),
            "drain" => self.drain = choice(value, &[("on", true), ("off", false)])?,
            _ => {
                let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
                return Err(format!("no such setting; there are: {}", known.join(", ")));
            }
        }
        Ok(())
    }
}

fn number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let parsed: u32 = value.parse().map_err(|_| format!("not a number from {least} to {most}"))?;
    if (least..=most).contains(&parsed) { Ok(parsed) } else { Err(format!("not from {least} to {most}")) }
}

fn size(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let parsed: ByteSize = value.parse().map_err(|error| format!("{error}"))?;
    if (least..=most).contains(&parsed.0) {
        Ok(parsed.0)
    } else {
        Err(format!("not from {} to {}", ByteSize(least), ByteSize(most)))
    }
}

fn duration(value: &str) -> Result<Duration, String> {
    parse_duration(value).map_err(|error| format!("{error}"))
}

/// A duration as the engine takes it: more than 292 years is no different.
fn nanos(value: &str) -> Result<u64, String> {
    Ok(duration(value)?.as_nanos().min(u128::from(u64::MAX / 4)) as u64)
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice);
    found.ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("not one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(settings: &[(&str, &str)]) -> RunOptions {
        RunOptions {
            backing: "/tmp/b".parse().unwrap(),
            cache: crate::CacheSpec { path: "/tmp/c".into(), size_bytes: None },
            exports: vec!["nbd+unix:///v?socket=/tmp/s".parse().unwrap()],
            mode: forebay_format::checkpoint::Mode::Writeback,
            emulate: None,
            settings: settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            admin: None,
            io: forebay_io::EnginePreference::Auto,
        }
    }

    #[test]
    fn every_listed_setting_is_known_and_takes_its_default() {
        for setting in SETTINGS.iter().filter(|setting| setting.default != "by cache size") {
            plan(&options(&[(setting.key, setting.default)])).unwrap();
        }
        plan(&options(&[("segment_size", "1MiB")])).unwrap();
    }

    #[test]
    fn a_wrong_setting_names_itself_and_what_is_right() {
        for (key, value, says) in [
            ("dirty_high_pct", "95", "not from 1 to 90"),
            ("destage_order", "random", "elevator, fifo"),
            ("no_such", "1", "there are: dirty_low_pct"),
            ("segment_size", "3MiB", "power of two"),
        ] {
            let RunError::Usage(text) = plan(&options(&[(key, value)])).unwrap_err() else { panic!() };
            assert!(text.contains(key) && text.contains(says), "{text}");
        }
        let RunError::Usage(text) = plan(&options(&[("dirty_low_pct", "80")])).unwrap_err() else { panic!() };
        assert!(text.contains("dirty_high_pct"), "{text}");
    }
}
