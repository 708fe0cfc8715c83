//! Pools, volumes and statistics in the form of the API.

use super::errors::not_attached;
use super::pool_query::{ask, look_at};
use super::wear::endurance_info;
use super::{Service, ServiceEvent};
use forebay_admin::jobs::{JobKind, JobView};
use forebay_admin::{
    AdminError, CopyInfo, DeviceInfo, LossInfo, PoolInfo, RatesInfo, RatesOfAll, VolumeInfo, WarningInfo,
};
use forebay_config::{VolumeConfig, Warning, warnings};
use forebay_format::BLOCK_BYTES;
use forebay_pool::loss_record::Range;
use forebay_pool::meter::{Rates, Report, Snapshot, format};
use forebay_pool::{Mirrored, PoolSnapshot, VolumeSnapshot};
use serde_json::{Map, Value, json};
use std::path::Path;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Service {
    /// Returns the state in one line, without asking a pool, which may not answer.
    pub(crate) fn status_line(&self) -> String {
        let (open, pools, volumes) = {
            let config = self.catalog.config();
            (self.pools.names().len(), config.pools.len(), config.volumes.len())
        };
        let things = match pools {
            0 => "no pool is configured".to_owned(),
            pools => format!("pools: {open} of {pools} open; volumes: {volumes}"),
        };
        let alarms = self.hub.alarms();
        match alarms.iter().rev().max_by_key(|alarm| alarm.severity) {
            Some(worst) => format!("{things}; alarms: {}, {}", alarms.len(), worst.message),
            None => things,
        }
    }

    pub(super) fn pool_snapshot(&self, name: &str) -> Result<PoolSnapshot, AdminError> {
        ask(&*self.handle(name)?, |pool| pool.snapshot())
    }

    pub(super) fn pool_info(&self, name: &str) -> Result<PoolInfo, AdminError> {
        Ok(self.pool_info_of(name, &self.pool_snapshot(name)?))
    }

    /// Returns the information from a pool's snapshot.
    pub(super) fn pool_info_of(&self, name: &str, snapshot: &PoolSnapshot) -> PoolInfo {
        let rating = self.catalog.endurance_rating(name);
        let state_dir = self.catalog.state_dir();
        let entry = self.pools.entry(name);
        let recorded = entry.map(|entry| super::unopened_pools::recorded_info(&entry.record(), &state_dir));
        PoolInfo {
            name: name.into(),
            devices: snapshot
                .devices
                .iter()
                .zip(&snapshot.written)
                .zip(&snapshot.troubles)
                .map(|(((path, bytes), written), trouble)| {
                    let path = path.display().to_string();
                    let member = snapshot.mirror.as_ref().map_or("", |mirror| mirror.state_of_path(&path));
                    // Problems of a member that is out are ignored.
                    let state = if member == "out" { member } else { trouble.unwrap_or(member) };
                    let part = (Path::new(&path), *bytes);
                    let flash = Some(self.telemetry.flash_info(rating, part, written, snapshot.uptime));
                    let copied = snapshot.copied.as_ref().filter(|copy| copy.from == Path::new(&path));
                    let copied = copied.map(|copy| CopyInfo {
                        to: copy.to.display().to_string(),
                        left_bytes: copy.left_bytes,
                    });
                    DeviceInfo { path, size_bytes: *bytes, state: state.into(), copied, flash }
                })
                .collect(),
            capacity_bytes: snapshot.capacity_blocks * BLOCK,
            cached_bytes: snapshot.cached_blocks * BLOCK,
            dirty_bytes: snapshot.dirty_blocks * BLOCK,
            growable_to_bytes: snapshot.growable_to_bytes,
            fenced: snapshot.fenced,
            cache_failed: snapshot.cache_failed,
            mirror: snapshot.mirror.as_ref().map_or_else(String::new, Mirrored::text),
            lost_bytes: snapshot.lost.bytes,
            lost_ranges: snapshot.lost.ranges,
            io_engine: snapshot.io_engine.into(),
            volumes: snapshot.volumes.iter().map(|volume| volume.name.clone()).collect(),
            job: self.jobs.of_pool(name),
            endurance: endurance_info(snapshot),
            absent: snapshot
                .absent
                .iter()
                .map(|volume| (volume.name.clone(), volume.dirty_blocks * BLOCK))
                .collect(),
            not_open: false,
            not_answering: false,
            why: None,
            recorded,
        }
    }

    pub(super) fn volume_infos(&self) -> Vec<VolumeInfo> {
        let jobs = self.jobs.open();
        let looked = self.pools.look_at_all(|pool| (pool.snapshot(), pool.absent(), pool.names()));
        let mut all = self.volumes_of_silent(&looked.silent);
        for (pool, (snapshot, absent, served)) in looked.answers {
            let infos = snapshot.volumes.into_iter().map(|volume| info(&pool, volume, &jobs));
            all.extend(infos.map(|info| VolumeInfo { warnings: self.warnings_of(&info.name), ..info }));
            all.extend(self.absent_of(&pool, absent, &served));
        }
        all.extend(self.volumes_of_closed_pools());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub(super) fn volume_info(&self, name: &str) -> Result<VolumeInfo, AdminError> {
        if let Some(info) = self.volumes_of_closed_pools().into_iter().find(|info| info.name == name) {
            return Ok(info);
        }
        let (pool, handle) = self.pool_with(name)?;
        let snapshot = look_at(&handle, |pool| pool.snapshot())?;
        if let Some(volume) = snapshot.volumes.into_iter().find(|volume| volume.name == name) {
            let info = info(&pool, volume, &self.jobs.open());
            return Ok(VolumeInfo { warnings: self.warnings_of(name), ..info });
        }
        let absent = self.absent_info(name)?;
        let job = job_at_work(&self.jobs.open(), name);
        absent.map(|info| VolumeInfo { job, ..info }).ok_or_else(|| not_attached(name))
    }

    /// As [`warning_infos`], for a volume by its name.
    fn warnings_of(&self, name: &str) -> Vec<WarningInfo> {
        let config = self.catalog.config();
        config.volumes.get(name).map_or_else(Vec::new, |volume| warning_infos(name, volume))
    }

    /// Logs the same warnings for a volume that does not come from a checked file.
    pub(super) fn warn_of(&self, name: &str) {
        let config = self.catalog.volume(name);
        for warning in config.into_iter().flat_map(|config| warnings::of_volume(name, &config)) {
            let what = format!("volume {name}: {}; {}", warning.message, warning.help);
            self.telemetry.emit(ServiceEvent::Problem(warning.id, what));
        }
    }

    pub(super) fn losses_of(&self, name: &str) -> Result<Vec<LossInfo>, AdminError> {
        // Also for a volume that is not attached and has lost blocks.
        let (_, handle) = self.pool_with(name)?;
        let volume = name.to_owned();
        let losses = look_at(&handle, move |pool| pool.losses_of(&volume))?;
        let info = |range: Range| LossInfo {
            offset_bytes: range.offset_bytes,
            bytes: range.bytes,
            written_unix_s: range.written_unix_s,
        };
        losses.map(|losses| losses.into_iter().map(info).collect()).ok_or_else(|| not_attached(name))
    }

    // --- statistics

    fn report(&self, volume: &str) -> Result<Report, AdminError> {
        let (_, handle) = self.pool_of(volume)?;
        let all = look_at(&handle, |pool| pool.statistics())?;
        let found = all.into_iter().find(|snapshot| snapshot.about.volume == volume);
        found.map(Snapshot::report).ok_or_else(|| not_attached(volume))
    }

    pub(super) fn statistics(&self, volume: Option<&str>) -> Result<Value, AdminError> {
        if let Some(volume) = volume {
            return Ok(Value::Object(format::object(&self.report(volume)?)));
        }
        let (mut pools, mut volumes) = (Map::new(), Map::new());
        let looked = self.pools.look_at_all(|pool| pool.statistics());
        // Each pool's own statistics come first.
        for snapshot in looked.answers.into_iter().flat_map(|(_, all)| all) {
            let (pool, volume) = (snapshot.about.pool.clone(), snapshot.about.volume.clone());
            let value = Value::Object(format::object(&snapshot.report()));
            if volume.is_empty() {
                pools.insert(pool, value)
            } else {
                volumes.insert(volume, value)
            };
        }
        Ok(json!({ "pools": pools, "volumes": volumes, "not_answering": looked.silent }))
    }

    pub(super) fn rates_of_all(&self) -> RatesOfAll {
        let looked = self.pools.look_at_all(|pool| (pool.rates(), pool.uptime()));
        let mut all = RatesOfAll::default();
        for (pool, (rates, uptime)) in looked.answers {
            let dirty_limit_pct =
                self.catalog.config().pools.get(&pool).map(|pool| pool.tunables().dirty_limit_pct);
            for (volume, counters, last) in rates {
                let info = rates_info(&last, uptime.as_secs());
                if !volume.is_empty() {
                    all.volumes.insert(volume, info);
                    continue;
                }
                let flash_written_bytes_per_s = last.per_second(last.counted.cache_written_bytes);
                let flash_written_bytes = Some(counters.cache_written_bytes);
                let info =
                    RatesInfo { flash_written_bytes_per_s, flash_written_bytes, dirty_limit_pct, ..info };
                all.pools.insert(pool.clone(), info);
            }
        }
        all
    }

    pub(super) fn flashcache_text(&self, volume: &str) -> Result<String, AdminError> {
        Ok(format::flashcache::text(&self.report(volume)?.counters))
    }
}

fn rates_info(last: &Rates, uptime_s: u64) -> RatesInfo {
    let counted = &last.counted;
    let per_s = |count: u64| last.per_second(count);
    let mean_us = |ns: u64, of: u64| (of > 0).then(|| ns as f64 / of as f64 / 1e3);
    let looked_for = counted.read_hit_blocks + counted.read_miss_blocks;
    RatesInfo {
        uptime_s,
        reads_per_s: per_s(counted.reads),
        writes_per_s: per_s(counted.writes),
        read_bytes_per_s: per_s(counted.read_bytes),
        written_bytes_per_s: per_s(counted.written_bytes),
        read_hit_blocks_per_s: per_s(counted.read_hit_blocks),
        read_miss_blocks_per_s: per_s(counted.read_miss_blocks),
        read_hit_ratio: (looked_for > 0).then(|| counted.read_hit_blocks as f64 / looked_for as f64),
        read_latency_mean_us: mean_us(counted.read_time_ns, counted.reads),
        write_latency_mean_us: mean_us(counted.write_time_ns, counted.writes),
        dirtied_bytes_per_s: per_s(counted.dirtied_blocks * BLOCK),
        destaged_bytes_per_s: per_s(counted.destaged_blocks * BLOCK),
        throttled_writes_per_s: per_s(counted.throttled_writes),
        ..RatesInfo::default()
    }
}

/// Returns valid settings of a volume that are probably mistakes.
pub(super) fn warning_infos(name: &str, volume: &VolumeConfig) -> Vec<WarningInfo> {
    let info = |Warning { id, message, help, .. }| WarningInfo {
        id: id.name().into(),
        what: message,
        hint: help.into(),
    };
    warnings::of_volume(name, volume).into_iter().map(info).collect()
}

/// Returns the job that changes a volume or destages it. A recording does neither: waiting for this
/// job, or cancelling it, is unrelated to it.
fn job_at_work(jobs: &[JobView], volume: &str) -> Option<String> {
    let of = |job: &&JobView| job.spec.volume.as_deref() == Some(volume);
    let job = jobs.iter().find(|job| of(job) && !matches!(job.spec.kind, JobKind::Record(_)));
    job.map(|job| job.id.to_string())
}

fn info(pool: &str, volume: VolumeSnapshot, jobs: &[JobView]) -> VolumeInfo {
    let job = job_at_work(jobs, &volume.name);
    let (backing_state, backing_why) = match volume.backing_trouble {
        Some((state, why)) => (state, Some(why)),
        None => ("ok", None),
    };
    // Its blocks are not counted yet.
    let is_known = volume.state != forebay_admin::VolumeState::Attaching;
    VolumeInfo {
        pool: pool.into(),
        state: volume.state,
        backing: volume.backing,
        backing_state: backing_state.into(),
        backing_why,
        exports: volume.exports,
        size_bytes: volume.size_bytes,
        sector_bytes: volume.sector_bytes,
        mode: volume.settings.mode.name().into(),
        cached_bytes: is_known.then_some(volume.stats.cached_blocks * BLOCK),
        dirty_bytes: is_known.then_some(volume.stats.dirty_blocks * BLOCK),
        oldest_dirty_age_ns: volume.destage.map_or(0, |report| report.oldest_dirty_age),
        destage_limited_by: volume.destage.map_or_else(String::new, |report| report.limited_by.to_string()),
        ordered: volume.ordered,
        connections: volume.connections,
        job,
        lost_bytes: volume.lost.bytes,
        lost_ranges: volume.lost.ranges,
        why: None,
        files: volume.files,
        warnings: Vec::new(),
        name: volume.name,
    }
}
