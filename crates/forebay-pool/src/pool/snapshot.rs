//! Snapshots of a pool and its volumes: current state, and rates.

use super::{AbsentVolume, CopyProgress, Lost, Pool, Served};
use crate::cache_device::is_same;
use crate::engine_io::Timed;
use crate::loss_record::LossRecord;
use crate::meter::{About, Counters, DirtyAge, History, MemberState, Rates, Snapshot, TimedPath, Window};
use forebay_admin::{FileInfo, VolumeState};
use forebay_core::{
    DestageReport, Device, EnduranceReport, Engine, MirrorState, MissRatioCurve, Nanos, VolumeSettings,
    VolumeStats, WrittenBytes,
};
use forebay_format::VolumeId;
use forebay_io::{DeviceId, ReactorStats};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Current state of a volume.
#[derive(Clone, Debug)]
pub struct VolumeSnapshot {
    /// Name.
    pub name: String,
    /// State in its lifecycle.
    pub state: VolumeState,
    /// URI of the backing store.
    pub backing: String,
    /// Fault of the backing store, in a word and in sentences.
    pub backing_trouble: Option<(&'static str, String)>,
    /// URIs under which clients find it.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Sector of the backing store, in bytes.
    pub sector_bytes: u32,
    /// Settings of the engine.
    pub settings: VolumeSettings,
    /// Counters of the engine.
    pub stats: VolumeStats,
    /// The engine's destage report.
    pub destage: Option<DestageReport>,
    /// It is destaged flush epoch by flush epoch.
    pub ordered: bool,
    /// Lost data of the volume.
    pub lost: Lost,
    /// Connections, and open handles of its files.
    pub connections: u64,
    /// How requests of its files reach the pool.
    pub files: Vec<FileInfo>,
}

/// Current state of a pool.
#[derive(Clone, Debug)]
pub struct PoolSnapshot {
    /// Cache devices with the bytes used of them.
    pub devices: Vec<(PathBuf, u64)>,
    /// Fault of each of them, in a word.
    pub troubles: Vec<Option<&'static str>>,
    /// Bytes written to each of them since the start, by cause.
    pub written: Vec<WrittenBytes>,
    /// The cache device being copied.
    pub copied: Option<CopiedDevice>,
    /// State of the endurance budget, if there is one.
    pub endurance: Option<EnduranceReport>,
    /// Blocks that reads missed after the budget had refused to fill them.
    pub endurance_missed_blocks: u64,
    /// Blocks that reads found in the cache.
    pub read_hit_blocks: u64,
    /// Blocks that reads did not find there.
    pub read_miss_blocks: u64,
    /// Time since the start.
    pub uptime: Duration,
    /// Blocks that the cache can hold.
    pub capacity_blocks: u64,
    /// Blocks in the cache.
    pub cached_blocks: u64,
    /// Dirty blocks.
    pub dirty_blocks: u64,
    /// Lost data of all volumes, including those that are not attached.
    pub lost: Lost,
    /// Largest size to which the pool can grow, in bytes.
    pub growable_to_bytes: u64,
    /// The cache takes no writes.
    pub fenced: bool,
    /// The cache failed, and the volumes are served without it.
    pub cache_failed: bool,
    /// State of a mirrored cache.
    pub mirror: Option<Mirrored>,
    /// The rescue has ended: the dirty data of the failed cache is on the backing stores, or lost.
    pub rescue_over: bool,
    /// The record of the failed cache.
    pub record: Option<Arc<LossRecord>>,
    /// Name of the I/O engine.
    pub io_engine: &'static str,
    /// Attached volumes.
    pub volumes: Vec<VolumeSnapshot>,
    /// Volumes of the cache's table that are not attached.
    pub absent: Vec<AbsentVolume>,
}

/// A cache device being copied onto another one.
#[derive(Clone, Debug)]
pub struct CopiedDevice {
    /// Path of the device.
    pub from: PathBuf,
    /// Path of the new device.
    pub to: PathBuf,
    /// Bytes left to copy.
    pub left_bytes: u64,
}

/// State of a mirrored cache.
#[derive(Clone, Debug)]
pub struct Mirrored {
    /// The engine's view.
    pub state: MirrorState,
    /// Paths of its devices that are open.
    pub paths: [Option<String>; 2],
}

impl Mirrored {
    /// Describes the state.
    pub fn text(&self) -> String {
        match (self.state.out, self.state.rebuild) {
            (None, _) => "whole".into(),
            (_, Some((done, all))) => format!("rebuilding {done} of {all} segments"),
            (Some(_), None) => "degraded".into(),
        }
    }

    /// Returns the state of a device.
    pub(crate) fn state_of(&self, member: usize) -> MemberState {
        match (self.state.out.map(usize::from) == Some(member), &self.paths[member]) {
            (false, _) => MemberState::Ok,
            (true, Some(_)) if self.state.rebuild.is_some() => MemberState::Filling,
            (true, Some(_)) => MemberState::Out,
            (true, None) => MemberState::Missing,
        }
    }

    /// Returns true if the device to replace is healthy: both devices are, or it is the active one,
    /// with this path.
    pub fn is_sound(&self, path: Option<&str>) -> bool {
        let is_there = |member: usize| {
            let other = self.paths[member].as_deref();
            path.zip(other).is_some_and(|(a, b)| a == b || is_same(Path::new(a), Path::new(b)))
        };
        self.state.out.is_none_or(|out| is_there(1 - usize::from(out)))
    }

    /// Returns the state of the device with this path, in a word.
    pub fn state_of_path(&self, path: &str) -> &'static str {
        let member = self.paths.iter().position(|there| there.as_deref() == Some(path));
        member.map_or("", |member| self.state_of(member).name())
    }
}

impl Pool {
    fn copied_device(&self) -> Option<CopiedDevice> {
        let left_bytes = match self.copy_progress()? {
            CopyProgress::Left(left) => left,
            CopyProgress::Whole => 0,
            CopyProgress::Ended(_) => return None,
        };
        let [from, to] = self.copied_devices()?;
        Some(CopiedDevice { from, to, left_bytes })
    }

    /// Current state of the pool and its volumes.
    pub fn snapshot(&self) -> PoolSnapshot {
        let stats = self.engine.stats();
        PoolSnapshot {
            written: self.devices().iter().map(|(path, _)| self.written_to(path)).collect(),
            troubles: self.devices().iter().map(|(path, _)| self.trouble_at(path)).collect(),
            devices: self.devices(),
            copied: self.copied_device(),
            endurance: self.engine.endurance(),
            endurance_missed_blocks: stats.endurance_missed_blocks,
            read_hit_blocks: stats.read_hit_blocks,
            read_miss_blocks: stats.read_miss_blocks,
            uptime: self.started.elapsed(),
            capacity_blocks: stats.capacity_blocks,
            cached_blocks: stats.cached_blocks,
            dirty_blocks: stats.dirty_blocks,
            lost: self.lost_in_all(),
            growable_to_bytes: self.growable_to_bytes(),
            fenced: self.engine.is_fenced(),
            cache_failed: self.engine.runs_without_cache(),
            mirror: self.mirrored(),
            rescue_over: self.engine.is_rescue_over(),
            record: self.cache_failure.record().cloned(),
            io_engine: self.io_engine(),
            volumes: (0..self.volumes.len())
                .filter_map(|at| self.volume_snapshot(VolumeId(at as u16)))
                .collect(),
            absent: self.absent(),
        }
    }

    fn trouble_at(&self, path: &Path) -> Option<&'static str> {
        let is_it = |id: &&DeviceId| self.reactor.device(**id).is_some_and(|device| device.path() == path);
        self.io.cache().ids.iter().find(is_it).and_then(|id| self.cache_trouble(*id))
    }

    fn growable_to_bytes(&self) -> u64 {
        let geometry = self.engine.geometry();
        let segments = if self.engine.mirror_state().is_some() {
            geometry.segment_count
        } else {
            geometry.segments_max()
        };
        self.bytes_of_segments(segments)
    }

    /// Returns the bytes of the cache devices of a pool of this many segments.
    pub(super) fn bytes_of_segments(&self, segments: u32) -> u64 {
        let geometry = self.engine.geometry();
        geometry.segments_start_block * 4096 + u64::from(segments) * geometry.segment_bytes()
    }

    fn mirrored(&self) -> Option<Mirrored> {
        let state = self.engine.mirror_state().filter(|_| !self.engine.runs_without_cache())?;
        Some(Mirrored { state, paths: [0, 1].map(|member| self.member_path(member)) })
    }

    fn io_engine(&self) -> &'static str {
        match self.reactor.engine() {
            forebay_io::EngineKind::Uring => "io_uring",
            forebay_io::EngineKind::Psync => "psync",
        }
    }

    fn volume_snapshot(&self, id: VolumeId) -> Option<VolumeSnapshot> {
        let served = self.served(id)?;
        Some(VolumeSnapshot {
            name: served.spec.name.clone(),
            state: served.shown_state(),
            backing: served.spec.backing.to_string(),
            backing_trouble: self.store_trouble(id),
            exports: served.exported.iter().map(|(_, export)| export.clone()).collect(),
            size_bytes: self.engine.volume_size_bytes(id).unwrap_or(0),
            sector_bytes: served.sector_bytes,
            settings: served.spec.settings,
            stats: self.engine.volume_stats(id).unwrap_or_default(),
            destage: self.engine.destage_report(id),
            ordered: self.engine.is_ordered(id),
            lost: self.lost_of(id),
            connections: self.frontends.user_count(id),
            files: self.frontends.files_of(id),
        })
    }

    /// Statistics of all volumes; those of the pool itself come first, under an empty name.
    pub fn statistics(&mut self) -> Vec<Snapshot> {
        let now = self.io.now();
        let mut all = vec![self.pool_statistics(now)];
        for at in 0..self.volumes.len() {
            all.extend(self.volume_statistics(VolumeId(at as u16), now));
        }
        all
    }

    /// Returns the rates of each volume over the last ten seconds; those of the pool itself come
    /// first, under an empty name. Without latencies by path, so it is cheap.
    pub fn rates(&mut self) -> Vec<(String, Counters, Rates)> {
        let now = self.io.now();
        let last = |history: &mut History, counters: &Counters| {
            history.rates(now, counters)[Window::TenSeconds as usize]
        };
        let counters = self.pool_counters();
        let mut all = vec![(String::new(), counters, last(&mut self.history, &counters))];
        for (at, served) in self.volumes.iter_mut().enumerate() {
            let (Some(served), Some(stats)) = (served, self.engine.volume_stats(VolumeId(at as u16))) else {
                continue;
            };
            let counters = Counters::of_volume(&stats, &self.engine.stats());
            all.push((served.spec.name.clone(), counters, last(&mut served.history, &counters)));
        }
        all
    }

    /// Time since the pool was opened.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the miss ratio that caches of other sizes would have had, for a volume or the whole
    /// pool, in this hour and the `hours` before it; and the time since counting began.
    pub fn miss_ratio_curve(&self, volume: Option<VolumeId>, hours: u64) -> (MissRatioCurve, Duration) {
        let curve = self.engine.miss_ratio_curve(volume, hours);
        let seen = Duration::from_nanos(self.io.now().saturating_sub(curve.since));
        (curve, seen)
    }

    fn pool_counters(&self) -> Counters {
        pool_counters(&self.engine, &self.volumes, self.reactor.stats())
    }

    fn pool_statistics(&mut self, now: Nanos) -> Snapshot {
        let counters = self.pool_counters();
        Snapshot {
            about: About {
                pool: self.name.clone(),
                uptime_ns: self.started.elapsed().as_nanos() as u64,
                connections: u64::from(self.frontends.nbd.connections()),
                io_engine: self.io_engine(),
                rss_bytes: crate::meter::resident_bytes(),
                members: self.mirrored().map(|mirror| [0, 1].map(|member| mirror.state_of(member))),
                devices_written: self
                    .devices()
                    .iter()
                    .map(|(path, _)| (path.display().to_string(), self.written_to(path)))
                    .collect(),
                ..About::default()
            },
            counters,
            rates: self.history.rates(now, &counters),
            latency: self.meter.capture(now),
            dirty_age: None,
        }
    }

    fn volume_statistics(&mut self, id: VolumeId, now: Nanos) -> Option<Snapshot> {
        let stats = self.engine.volume_stats(id)?;
        let counters = Counters::of_volume(&stats, &self.engine.stats()).with_io(self.reactor.stats());
        let ages = self.engine.dirty_ages(id);
        let oldest = self.engine.destage_report(id).map(|report| report.oldest_dirty_age);
        let about = About {
            pool: self.name.clone(),
            volume: self.served(id)?.spec.name.clone(),
            mode: self.served(id)?.spec.settings.mode.name(),
            size_bytes: self.engine.volume_size_bytes(id).unwrap_or(0),
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            connections: self.frontends.user_count(id),
            io_engine: self.io_engine(),
            rss_bytes: crate::meter::resident_bytes(),
            limited_by: self.engine.destage_report(id).map(|report| report.limited_by.words()),
            members: None,
            devices_written: Vec::new(),
        };
        let served = self.served_mut(id)?;
        Some(Snapshot {
            about,
            counters,
            rates: served.history.rates(now, &counters),
            latency: served.meter.capture(now),
            dirty_age: Some(DirtyAge::of_classes(ages, oldest.filter(|age| *age > 0))),
        })
    }

    /// Keeps samples for the rates; called when the loop wakes, before any counting.
    pub(super) fn keep_history(&mut self) {
        let now = self.io.now();
        let (engine, io) = (&self.engine, self.reactor.stats());
        self.history.turn(now, || pool_counters(engine, &self.volumes, io));
        for (at, served) in self.volumes.iter_mut().enumerate() {
            let Some(served) = served else { continue };
            let id = VolumeId(at as u16);
            served.history.turn(now, || {
                let stats = engine.volume_stats(id).unwrap_or_default();
                Counters::of_volume(&stats, &engine.stats()).with_io(io)
            });
        }
    }

    pub(super) fn time_request(
        &mut self,
        id: VolumeId,
        path: forebay_core::RequestOutcome,
        took: Nanos,
        bytes: u64,
    ) {
        let now = self.io.now();
        if let (Some(path), Some(served)) = (TimedPath::of_request(path), self.served_mut(id)) {
            served.meter.record(path, took, bytes, now);
        }
    }

    pub(super) fn time_operation(&mut self, timed: Timed) {
        let Timed { device, path, bytes, began, .. } = timed;
        let now = self.io.now();
        let meter = match device {
            Device::Cache => Some(&mut self.meter),
            Device::Backing(id) => self.served_mut(id).map(|served| &mut served.meter),
        };
        if let Some(meter) = meter {
            meter.record(path, now - began, bytes, now);
        }
    }
}

fn pool_counters(engine: &Engine, volumes: &[Option<Served>], io: ReactorStats) -> Counters {
    let attached = (0..volumes.len()).map(|at| VolumeId(at as u16));
    let volumes = attached.filter_map(|id| engine.volume_stats(id));
    Counters::of_pool(&engine.stats(), volumes).with_io(io)
}
