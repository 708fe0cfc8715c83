//! Metrics for Prometheus: statistics and states of pools and volumes, active alarms, and resources
//! of the process.
//!
//! Words (a state, a mode, a limit) are labels of a series with the value 1. Only the current one
//! is exported: the series of another one ends with the scrape in which it no longer holds.

use super::Service;
use super::telemetry::Telemetry;
use forebay_admin::events::Severity;
use forebay_admin::{AdminError, MetricsForm, VolumeState};
use forebay_core::Limit;
use forebay_format::BLOCK_BYTES;
use forebay_pool::meter::format::exposition::{self, Family, Labels};
use forebay_pool::meter::format::families;
use forebay_pool::meter::{Snapshot, resident_bytes};
use forebay_pool::{PoolSnapshot, VolumeSnapshot};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Service {
    pub(super) fn metrics_text(&self, form: MetricsForm) -> Result<String, AdminError> {
        let looked = self.pools.look_at_all(|pool| (pool.snapshot(), pool.statistics()));
        let (mut reports, mut states) = (Vec::new(), States::new());
        for (name, (snapshot, statistics)) in looked.answers {
            reports.extend(statistics.into_iter().map(Snapshot::report));
            states.take_pool(&name, &snapshot);
        }
        for pool in &looked.silent {
            states.pool_state.add(of_pool(pool, &[("state", "not-answering")]), 1_u64);
        }
        for volume in self.volumes_of_silent(&looked.silent) {
            states.untold(&volume.pool, &volume.name, VolumeState::Unknown);
        }
        self.add_what_is_not_served(&mut states);
        let mut all = vec![build()];
        all.extend(self.telemetry.process());
        all.extend(self.telemetry.alarms());
        let absent_lost = std::mem::take(&mut states.absent_lost);
        all.extend(states.into_families());
        let mut counted = families(&reports);
        for family in counted.iter_mut().filter(|family| family.is("forebay_lost_bytes")) {
            absent_lost.iter().for_each(|(labels, bytes)| family.add(labels.clone(), *bytes));
        }
        all.extend(counted);
        Ok(exposition::text(&all, form))
    }

    /// Adds configured pools and volumes that are not served.
    fn add_what_is_not_served(&self, states: &mut States) {
        let config = self.catalog.config();
        for (name, pool) in &config.pools {
            if !self.pools.contains(name) {
                states.pool_state.add(of_pool(name, &[("state", "closed")]), 1_u64);
            }
            let limit = f64::from(pool.tunables().dirty_limit_pct) / 100.0;
            states.dirty_limit.add(of_pool(name, &[]), limit);
        }
        for (name, volume) in &config.volumes {
            if !states.has(&volume.pool, name) {
                states.untold(&volume.pool, name, VolumeState::Absent);
            }
        }
    }
}

fn build() -> Family {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    Family::info("forebay_build", "Version of the daemon").with(version, 1_u64)
}

impl Telemetry {
    /// Returns the process metrics under the names of Prometheus' own libraries.
    fn process(&self) -> [Family; 5] {
        let none = Labels::new;
        let mut processor =
            Family::counter("process_cpu_seconds", "Processor time of the daemon, of user and system");
        let mut files = Family::gauge("process_open_fds", "Open file descriptors of the daemon");
        let mut most = Family::gauge("process_max_fds", "Maximum of open file descriptors of the daemon");
        if let Some(seconds) = processor_seconds() {
            processor.add(none(), seconds);
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            files.add(none(), entries.count() as u64);
        }
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            most.add(none(), limit);
        }
        let memory = Family::gauge("process_resident_memory_bytes", "Memory of the daemon");
        let start = Family::gauge("process_start_time_seconds", "Start of the daemon, in seconds since 1970");
        [
            processor,
            files,
            most,
            memory.with(none(), resident_bytes()),
            start.with(none(), self.started_unix_s() as f64),
        ]
    }

    /// Returns the number of alarms by severity, and each of them.
    fn alarms(&self) -> [Family; 2] {
        let alarms = self.hub().alarms();
        let mut number = Family::gauge("forebay_alarms", "Active alarms by severity");
        for severity in Severity::ALL {
            let active = alarms.iter().filter(|alarm| alarm.severity == severity).count() as u64;
            number.add(vec![("severity", severity.name().into())], active);
        }
        let help = "An active alarm: its condition, severity, and the pool or volume that it is about";
        let mut each = Family::gauge("forebay_alarm", help);
        for alarm in &alarms {
            let mut labels = vec![
                ("condition", alarm.key.condition.name().to_owned()),
                ("severity", alarm.severity.name().to_owned()),
            ];
            labels.extend(alarm.key.pool.iter().map(|pool| ("pool", pool.clone())));
            labels.extend(alarm.key.volume.iter().map(|volume| ("volume", volume.clone())));
            each.add(labels, 1_u64);
        }
        [number, each]
    }
}

/// States of pools and volumes.
struct States {
    pool_state: Family,
    dirty_limit: Family,
    absent_dirty: Family,
    /// Further series of `forebay_lost_bytes`.
    absent_lost: Vec<(Labels, u64)>,
    volume_state: Family,
    backing_state: Family,
    device_trouble: Family,
    mode: Family,
    limit: Family,
    target: Family,
    throttled: Family,
    period: Family,
    dirty_high: Family,
    /// Pools and volumes with series.
    told: Vec<(String, String)>,
}

impl States {
    fn new() -> Self {
        Self {
            pool_state: Family::gauge(
                "forebay_pool_state",
                "State of the pool: open, degraded (a member of a mirrored cache is out), fenced, \
                 cache-failed, closed or not-answering",
            ),
            dirty_limit: Family::gauge(
                "forebay_dirty_limit_ratio",
                "Limit of the dirty data of all volumes, as a share of the pool's capacity",
            ),
            absent_dirty: Family::gauge(
                "forebay_absent_dirty_bytes",
                "Dirty data of a volume that is not attached",
            ),
            absent_lost: Vec::new(),
            volume_state: Family::gauge(
                "forebay_volume_state",
                "State of the volume: attaching, serving, draining, detaching, absent, or unknown if its \
                 pool does not answer",
            ),
            backing_state: Family::gauge(
                "forebay_backing_state",
                "State of the backing store: ok, short, unplugged, away, failing, or, if its path no longer leads \
                 to it, deleted, unlinked, renamed or unreachable",
            ),
            device_trouble: Family::gauge(
                "forebay_device_trouble",
                "Fault of a cache device: short, or, if its path no longer leads to it, deleted, unlinked, \
                 renamed or unreachable",
            ),
            mode: Family::gauge("forebay_volume_mode", "Mode of the volume"),
            limit: Family::gauge("forebay_destage_limit", "Limit of the speed of destage, as text"),
            target: Family::gauge(
                "forebay_destage_target_bytes_per_second",
                "Target rate of destage; absent if destage is as fast as the backing store allows",
            ),
            throttled: Family::gauge(
                "forebay_throttled_requests",
                "Writes that wait because of too much dirty data",
            ),
            period: Family::gauge(
                "forebay_flush_period_seconds",
                "The setting flush_period: the longest time that a block may stay dirty; absent if it is off",
            ),
            dirty_high: Family::gauge(
                "forebay_dirty_high_ratio",
                "The setting dirty_high_pct: the share of the pool's capacity at which writers are slowed",
            ),
            told: Vec::new(),
        }
    }

    fn take_pool(&mut self, pool: &str, snapshot: &PoolSnapshot) {
        let degraded = snapshot.mirror.as_ref().is_some_and(|mirror| mirror.state.out.is_some());
        let state = match (snapshot.cache_failed, snapshot.fenced, degraded) {
            (true, ..) => "cache-failed",
            (_, true, _) => "fenced",
            (_, _, true) => "degraded",
            _ => "open",
        };
        self.pool_state.add(of_pool(pool, &[("state", state)]), 1_u64);
        for ((path, _), trouble) in snapshot.devices.iter().zip(&snapshot.troubles) {
            if let Some(trouble) = trouble {
                let device = path.display().to_string();
                self.device_trouble.add(of_pool(pool, &[("device", &device), ("state", trouble)]), 1_u64);
            }
        }
        for volume in &snapshot.volumes {
            self.take_volume(pool, volume);
        }
        for volume in snapshot.absent.iter().filter(|volume| volume.is_ahead()) {
            self.untold(pool, &volume.name, VolumeState::Absent);
            let labels = of_volume(pool, &volume.name, &[]);
            if volume.lost.bytes > 0 {
                self.absent_lost.push((labels.clone(), volume.lost.bytes));
            }
            if volume.dirty_blocks > 0 {
                self.absent_dirty.add(labels, volume.dirty_blocks * BLOCK);
            }
        }
    }

    fn take_volume(&mut self, pool: &str, volume: &VolumeSnapshot) {
        let labels = |more: &[(&'static str, &str)]| of_volume(pool, &volume.name, more);
        self.told.push((pool.into(), volume.name.clone()));
        self.volume_state.add(labels(&[("state", volume.state.name())]), 1_u64);
        let backing = volume.backing_trouble.as_ref().map_or("ok", |(state, _)| state);
        self.backing_state.add(labels(&[("state", backing)]), 1_u64);
        self.mode.add(labels(&[("mode", volume.settings.mode.name())]), 1_u64);
        self.dirty_high.add(labels(&[]), f64::from(volume.settings.dirty_high_pct) / 100.0);
        if volume.settings.flush_period > 0 {
            self.period.add(labels(&[]), volume.settings.flush_period as f64 / 1e9);
        }
        let limit = volume.destage.map_or(Limit::Stopped, |report| report.limited_by);
        self.limit.add(labels(&[("limit", limit.words())]), 1_u64);
        self.throttled.add(labels(&[]), volume.destage.map_or(0, |report| report.throttled_requests));
        if let Some(target) = volume.destage.and_then(|report| report.target_blocks_per_s) {
            self.target.add(labels(&[]), target.saturating_mul(BLOCK));
        }
    }

    fn has(&self, pool: &str, volume: &str) -> bool {
        self.told.iter().any(|told| told.0 == pool && told.1 == volume)
    }

    /// Adds a volume of which only the state is known.
    fn untold(&mut self, pool: &str, volume: &str, state: VolumeState) {
        self.told.push((pool.into(), volume.into()));
        self.volume_state.add(of_volume(pool, volume, &[("state", state.name())]), 1_u64);
    }

    fn into_families(self) -> [Family; 12] {
        [
            self.pool_state,
            self.dirty_limit,
            self.absent_dirty,
            self.volume_state,
            self.backing_state,
            self.device_trouble,
            self.mode,
            self.limit,
            self.target,
            self.throttled,
            self.period,
            self.dirty_high,
        ]
    }
}

fn of_pool(pool: &str, more: &[(&'static str, &str)]) -> Labels {
    let pool = ("pool", pool);
    [pool].iter().chain(more).map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn of_volume(pool: &str, volume: &str, more: &[(&'static str, &str)]) -> Labels {
    let all = [("pool", pool), ("volume", volume)];
    all.iter().chain(more).map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// Returns the processor time of this process: fields 14 and 15 of proc_pid_stat(5), after the
/// name, which may contain blanks.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    Some((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wear::Wear;
    use forebay_admin::clock::SystemClock;
    use forebay_admin::events::{Hub, HubLimits};
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    /// Words of pages that begin like a metric: the file system type that udev shows, variables of
    /// the Ansible role, and names of packages.
    const OTHER_WORDS: [&str; 6] = [
        "forebay_",
        "forebay_cache",
        "forebay_apt_uri",
        "forebay_apt_key",
        "forebay_config",
        "forebay_VERSION_ARCH",
    ];
    const MONITORING: &str = "packaging/monitoring";

    /// Every metric that the daemon has, with or without samples.
    fn registered() -> Vec<Family> {
        let hub = Hub::new(Arc::new(SystemClock::new()), HubLimits::default());
        let telemetry = Telemetry::new(hub, Box::new(drop), Wear::default());
        let mut all = vec![build()];
        all.extend(telemetry.process());
        all.extend(telemetry.alarms());
        all.extend(States::new().into_families());
        all.extend(families(&[]));
        all
    }

    /// Returns the files in a folder of the repository that name metrics.
    fn texts(folder: &str) -> Vec<(PathBuf, String)> {
        let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
        let files = std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path());
        let is_page =
            |path: &PathBuf| folder == MONITORING || path.extension().is_some_and(|end| end == "md");
        let files = files.filter(is_page);
        files.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
    }

    /// Names in a text that begin with `prefix`, in characters of metrics.
    fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let is_part = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
        let words = text.split(move |character| !is_part(character)).map(|word| word.trim_end_matches(':'));
        words.filter(move |word| word.starts_with(prefix))
    }

    #[test]
    fn every_metric_keeps_the_conventions() {
        let all = registered();
        assert!(all.len() > 100, "{}", all.len());
        let wrong: Vec<_> = all.iter().filter_map(Family::unconventional).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let series: Vec<_> = all.iter().flat_map(Family::series).collect();
        let different: BTreeSet<_> = series.iter().collect();
        assert_eq!(different.len(), series.len(), "two metrics of one name");
    }

    #[test]
    fn every_metric_named_elsewhere_exists() {
        let mut known: BTreeSet<String> = registered().iter().flat_map(Family::series).collect();
        // `forebay stats --textfile` adds it.
        known.insert("forebay_up".into());
        known.extend(OTHER_WORDS.map(str::to_owned));
        let monitoring = texts(MONITORING);
        let of_records = |text: &str| {
            let records = text.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
            records.map(str::to_owned).collect::<Vec<_>>()
        };
        let records: BTreeSet<String> = monitoring.iter().flat_map(|(_, text)| of_records(text)).collect();
        assert!(!records.is_empty());
        for (path, text) in &monitoring {
            let named: Vec<_> = names(text, "forebay:").filter(|name| !records.contains(*name)).collect();
            assert!(named.is_empty(), "{}: there is no rule for {named:?}", path.display());
            assert!(names(text, "forebay_").count() > 5, "{}", path.display());
        }
        let pages = ["docs/operate", "docs/use"].into_iter().flat_map(texts);
        for (path, text) in monitoring.into_iter().chain(pages) {
            let named: Vec<_> = names(&text, "forebay_").filter(|name| !known.contains(*name)).collect();
            assert!(named.is_empty(), "{}: there are no metrics {named:?}", path.display());
        }
    }

    #[test]
    fn processor_time_is_read() {
        let before = processor_seconds().unwrap();
        let mut sum = 0_u64;
        while processor_seconds().unwrap() <= before {
            sum = (0..100_000).fold(sum, |sum, at| std::hint::black_box(sum.wrapping_add(at)));
        }
    }
}
