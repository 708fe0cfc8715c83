//! Amounts written to the flash of pools, its wear and remaining life: collected by a dedicated
//! thread, reported with each pool, with an alarm if a disk gives reason for one.

use super::Service;
use super::telemetry::Telemetry;
use crate::wear::remaining::{Rate, left};
use crate::wear::smartctl::Smartctl;
use crate::wear::{Found, ask};
use forebay_admin::events::{AlarmKey, EventKind, Severity};
use forebay_admin::{EnduranceInfo, FlashInfo};
use forebay_config::endurance::{Endurance, rated_bytes};
use forebay_core::WrittenBytes;
use forebay_pool::{MayWait, PoolSnapshot};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::{Duration, Instant, SystemTime};

/// Interval at which the thread checks for work.
const LOOK: Duration = Duration::from_millis(500);
/// Time spans of reported rates: seconds, text, and name.
const SPANS: [(u64, &str, &str); 3] =
    [(3600, "last hour", "hour"), (86_400, "last day", "day"), (7 * 86_400, "last week", "week")];

impl Service {
    /// Monitors the wear of all pools until the service stops. While disks are queried, which may
    /// be slow, the service is not held.
    pub(super) fn follow_wear(me: &Weak<Self>) {
        let smartctl = Smartctl::of_system();
        while let Some(service) = me.upgrade() {
            if service.jobs.is_stopping() {
                return;
            }
            if service.telemetry.wear().history.is_due(SystemTime::now()) {
                service.note_written();
            }
            let due = service.telemetry.wear().is_due(Instant::now());
            let asked = due.then(|| service.devices_of_all());
            drop(service);
            if let Some(devices) = asked {
                let found = ask_all(&smartctl, devices);
                if let Some(service) = me.upgrade() {
                    service.take_wear(found);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Records the amounts written to the devices of open pools. A state directory that takes no
    /// writes has an alarm of its own.
    pub(super) fn note_written(&self) {
        let written = self.devices_of_all().into_values().flatten().collect();
        let state_dir = self.catalog.state_dir();
        // Queries do not wait for the file.
        let history = {
            let mut wear = self.telemetry.wear();
            wear.history.note(SystemTime::now(), &written);
            wear.history.clone()
        };
        let _ = history.save(&MayWait::here(), &state_dir);
    }

    /// Returns the devices of open pools, and the amount written to each.
    fn devices_of_all(&self) -> BTreeMap<String, Vec<(PathBuf, u64)>> {
        let names: Vec<String> = self.pools.names();
        let of = |name: String| {
            let snapshot = self.pool_snapshot(&name).ok()?;
            let paths = snapshot.devices.into_iter().map(|(path, _)| path);
            let written = snapshot.written.iter().map(WrittenBytes::total);
            Some((name, paths.zip(written).collect()))
        };
        names.into_iter().filter_map(of).collect()
    }

    /// Stores the answers of disks, and reports those that give reason for concern.
    pub(super) fn take_wear(&self, found: BTreeMap<String, BTreeMap<PathBuf, Found>>) {
        for (pool, devices) in &found {
            let mut concerns = Vec::new();
            for disk in devices.values().flat_map(|found| &found.wear) {
                let of_disk = disk.concerns();
                if !of_disk.is_empty() {
                    concerns.push(format!("{} ({}): {}", disk.disk, disk.model, of_disk.join(", ")));
                }
            }
            // The pool may have been removed meanwhile.
            if self.pools.contains(pool) {
                self.telemetry.raise_wear(pool, &concerns);
            }
        }
        self.telemetry.wear().answered(Instant::now(), found.into_values().flatten().collect());
    }
}

impl Telemetry {
    /// Raises the alarm of a pool with worn disks, or clears it.
    fn raise_wear(&self, pool: &str, concerns: &[String]) {
        let key = AlarmKey::pool(EventKind::CacheWear, pool);
        if concerns.is_empty() {
            self.hub().clear(&key);
            return;
        }
        let message = format!(
            "pool {pool}: {}; replace the device before it fails: forebay help flash-life",
            concerns.join("; ")
        );
        self.hub().raise(key, Severity::Warning, &message);
    }

    /// Returns the known state of a device's flash, for a pool whose devices have this rating.
    pub(super) fn flash_info(
        &self,
        rating: Option<Endurance>,
        (path, size_bytes): (&Path, u64),
        written: &WrittenBytes,
        since: Duration,
    ) -> FlashInfo {
        let mut wear = self.wear();
        wear.want();
        let Found { wear: disks, unknown } = wear.of(path).cloned().unwrap_or_default();
        let (now, total) = (SystemTime::now(), written.total());
        let mut bytes_a_day = BTreeMap::new();
        let mut longest = Rate { bytes: total, over: since, called: "time since the start" };
        for (seconds, called, name) in SPANS {
            let seen = wear.history.written_in(path, Duration::from_secs(seconds), (now, total));
            if let Some((bytes, over)) = seen {
                longest = Rate { bytes, over, called };
                bytes_a_day.insert(name.to_owned(), longest.a_day());
            }
        }
        drop(wear);
        // A rating in device writes applies to the whole device, of which the pool may have a part.
        let capacity = disks.iter().filter_map(|disk| disk.capacity_bytes).max();
        let rated = rating.and_then(|rating| rated_bytes(rating, capacity.unwrap_or(size_bytes)));
        let (life, life_days) = left(Some(longest), &disks, rated);
        FlashInfo {
            written_bytes: total,
            written_for_s: since.as_secs(),
            written_by_cause: written.by_cause().map(|(cause, bytes)| (cause.to_owned(), bytes)).into(),
            bytes_a_day,
            wear: disks,
            wear_unknown: unknown,
            life: Some(life),
            life_days,
        }
    }
}

/// Queries the disks of devices by pool. May be slow.
pub(super) fn ask_all(
    smartctl: &Smartctl,
    devices: BTreeMap<String, Vec<(PathBuf, u64)>>,
) -> BTreeMap<String, BTreeMap<PathBuf, Found>> {
    let of = |devices: Vec<(PathBuf, u64)>| {
        devices.into_iter().map(|(path, _)| (path.clone(), ask(smartctl, &path))).collect()
    };
    devices.into_iter().map(|(pool, devices)| (pool, of(devices))).collect()
}

/// Returns the state of a pool's endurance budget.
pub(super) fn endurance_info(snapshot: &PoolSnapshot) -> Option<EnduranceInfo> {
    let report = snapshot.endurance?;
    Some(EnduranceInfo {
        budget_bytes: report.budget_bytes,
        saved_bytes: report.saved_bytes,
        optional_bytes: report.optional_bytes,
        restraint: report.restraint.words().into(),
        missed_blocks: snapshot.endurance_missed_blocks,
        read_blocks: snapshot.read_hit_blocks + snapshot.read_miss_blocks,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;
    use forebay_admin::WearInfo;
    use std::sync::Arc;

    #[test]
    fn worn_disk_raises_an_alarm() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        let flash = || service.pool_info("a").unwrap().devices.remove(0).flash.unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // The test queries the disk of this machine, which may answer or not.
        while flash().wear.is_empty() && flash().wear_unknown.is_none() {
            assert!(Instant::now() < until, "nobody was asked");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(folder.path().join("state/wear.json").exists(), "what was written is noted");
        let seen = flash();
        assert_eq!(seen.written_by_cause.values().sum::<u64>(), seen.written_bytes);
        assert!(seen.written_bytes > 0 && seen.written_by_cause["checkpoints"] > 0, "{seen:?}");
        let alarmed =
            || service.hub.alarms().into_iter().find(|alarm| alarm.key.condition == EventKind::CacheWear);
        let answer = |used_pct: u64| {
            let disk = "/dev/nvme9n1".to_owned();
            let wear = vec![WearInfo { disk, used_pct: Some(used_pct), ..WearInfo::default() }];
            let found = Found { wear, unknown: None };
            let devices = BTreeMap::from([(folder.path().join("a.cache"), found.clone())]);
            let gone = BTreeMap::from([(folder.path().join("c.cache"), found)]);
            service.take_wear(BTreeMap::from([("a".into(), devices), ("gone".into(), gone)]));
        };
        answer(93);
        let alarm = alarmed().expect("it is nearly worn out");
        assert!(
            alarm.message.contains("/dev/nvme9n1") && alarm.message.contains("93 %"),
            "{}",
            alarm.message
        );
        assert_eq!(alarm.key, AlarmKey::pool(EventKind::CacheWear, "a"), "a pool that is gone has none");
        assert_eq!(flash().wear[0].used_pct, Some(93));
        answer(5);
        assert!(alarmed().is_none(), "another disk is there");
        assert!(service.stop().is_empty());
    }
}
