//! A fake daemon: two pools, two volumes, flushes that end when the test decides.

use forebay_admin::MessageId;
use forebay_admin::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) jobs: Vec<JobInfo>,
    pub(crate) rules: Vec<(u64, String)>,
    /// Requests for the statistics of "slow" block until this is unset.
    pub(crate) stuck: bool,
    /// Number of blocked requests.
    pub(crate) stuck_now: usize,
}

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

impl Fake {
    /// Changes the state and notifies all waiters.
    pub(crate) fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    pub(crate) fn end_job(&self, id: &str, state: &str, error: Option<&str>) {
        self.change(|all| {
            let job = all.jobs.iter_mut().find(|job| job.id == id).unwrap();
            job.state = state.into();
            job.error = error.map(str::to_owned);
        });
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&self, what: &str, ready: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let timeout = Duration::from_secs(20);
        let (state, late) = self.changed.wait_timeout_while(state, timeout, |state| !ready(state)).unwrap();
        drop(state); // a panic must not poison it
        assert!(!late.timed_out(), "in vain: {what}");
    }
}

fn unused<T>() -> Result<T, AdminError> {
    Err(AdminError::new(MessageId::DaemonSystem, "not in this test", ""))
}

impl Admin for Fake {
    fn daemon(&self) -> DaemonInfo {
        DaemonInfo {
            version: "1.2.3".into(),
            pid: 42,
            started_unix_s: 1_700_000_000,
            config: None,
            resident_bytes: 1 << 20,
            pools: vec!["fast".into()],
            volumes: vec!["db".into(), "slow".into()],
            metrics: None,
            upgrade: None,
        }
    }
    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError> {
        unused()
    }
    fn pool(&self, name: &str) -> Result<PoolInfo, AdminError> {
        Ok(PoolInfo {
            name: name.into(),
            devices: vec![DeviceInfo {
                path: "/dev/nvme\n0".into(),
                size_bytes: 4096,
                state: String::new(),
                copied: None,
                flash: None,
            }],
            capacity_bytes: 1000,
            cached_bytes: 900,
            dirty_bytes: 7,
            growable_to_bytes: 2000,
            fenced: false,
            cache_failed: false,
            mirror: "degraded".into(),
            lost_bytes: 0,
            lost_ranges: 0,
            io_engine: "psync".into(),
            job: None,
            endurance: None,
            volumes: vec!["db".into(), "slow".into()],
            absent: BTreeMap::from([("old".into(), 5)]),
            not_open: false,
            not_answering: false,
            why: None,
            recorded: None,
        })
    }
    fn create_pool(&self, _: PoolRequest) -> Result<PoolInfo, AdminError> {
        unused()
    }
    fn grow_pool(&self, _: &str, _: GrowRequest) -> Result<PoolInfo, AdminError> {
        unused()
    }
    fn shrink_pool(&self, _: &str, _: ShrinkRequest) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn scrub_pool(&self, _: &str, _: ScrubRequest) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn record_volume(&self, _: &str, _: RecordRequest, _: TraceSender) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn replace_cache(&self, _: &str, _: ReplaceRequest) -> Result<PoolInfo, AdminError> {
        unused()
    }
    fn remove_pool(&self, _: &str, _: bool, _: bool) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn export_pool(&self, _: &str, _: ExportRequest) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn import_pool(&self, _: ImportRequest) -> Result<ImportInfo, AdminError> {
        unused()
    }
    fn volumes(&self) -> Result<Vec<VolumeInfo>, AdminError> {
        unused()
    }
    fn volume(&self, name: &str) -> Result<VolumeInfo, AdminError> {
        Ok(VolumeInfo {
            name: name.into(),
            pool: "fast".into(),
            state: VolumeState::Serving,
            backing: "file:/srv/db".into(),
            backing_state: "ok".into(),
            backing_why: None,
            exports: vec!["nbd://localhost/db".into(), "fuse:/mnt/db/disk".into()],
            size_bytes: 1 << 30,
            sector_bytes: 512,
            mode: "writeback".into(),
            cached_bytes: Some(900),
            dirty_bytes: Some(4096),
            oldest_dirty_age_ns: 1_500_000_000,
            destage_limited_by: "nothing".into(),
            ordered: true,
            connections: 1,
            job: None,
            lost_bytes: 0,
            lost_ranges: 0,
            why: None,
            files: Vec::new(),
            warnings: Vec::new(),
        })
    }
    fn advise(&self, _: Target<'_>, _: u64) -> Result<AdviceInfo, AdminError> {
        unused()
    }
    fn losses(&self, _: &str) -> Result<Vec<LossInfo>, AdminError> {
        unused()
    }
    fn attach_volume(&self, _: VolumeRequest) -> Result<VolumeInfo, AdminError> {
        unused()
    }
    fn detach_volume(&self, _: &str, _: DetachRequest) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn resize_volume(&self, _: &str, _: &str, _: bool) -> Result<JobInfo, AdminError> {
        unused()
    }
    fn settings(&self, _: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, AdminError> {
        let state = self.state.lock().unwrap();
        let value = |key: &str| state.settings.get(key).cloned().unwrap_or_else(|| "20".into());
        let info = |key: &str, live| SettingInfo {
            value: value(key),
            default: "20".into(),
            takes: "1 to 100".into(),
            live,
            help: String::new(),
        };
        let keys = [("dirty_high_pct", true), ("segment_size", false)];
        Ok(keys.map(|(key, live)| (key.to_owned(), info(key, live))).into())
    }
    fn set(&self, _: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        assert!(!request.temporary);
        let (key, value) = request.set.into_iter().next().unwrap();
        let value = value.unwrap();
        if !value.parse::<u32>().is_ok_and(|value| (1..=100).contains(&value)) {
            let what = format!("{key} = {value} is out of range");
            return Err(AdminError::new(MessageId::SettingValue, what, "1 to 100"));
        }
        self.change(|state| drop(state.settings.insert(key, value)));
        Ok(SettingsDone { changed: Vec::new(), written: Vec::new(), job: None })
    }
    fn flush_volume(&self, name: &str, _: Option<Duration>) -> Result<JobInfo, AdminError> {
        let mut made = None;
        self.change(|state| {
            let job = JobInfo {
                id: format!("j{}", state.jobs.len() + 1),
                kind: "flush".into(),
                pool: "fast".into(),
                volume: Some(name.into()),
                state: "running".into(),
                error_id: None,
                phase: "writing back".into(),
                bytes_total: Some(100),
                bytes_left: Some(58),
                percent: Some(42.0),
                rate_bytes_per_s: Some(10),
                eta_s: Some(5.8),
                elapsed_s: 4.2,
                deadline_at_risk: false,
                limited_by: Some("disk".into()),
                parameters: serde_json::Value::Null,
                follows: None,
                deadline_s: None,
                stopping: false,
                requested: "2026-01-01T00:00:00Z".into(),
                finished: None,
                errors: 0,
                error: None,
            };
            state.jobs.push(job.clone());
            made = Some(job);
        });
        Ok(made.unwrap())
    }
    fn jobs(&self) -> Vec<JobInfo> {
        self.state.lock().unwrap().jobs.clone()
    }
    fn job(&self, id: &str) -> Result<JobInfo, AdminError> {
        let found = self.jobs().into_iter().find(|job| job.id == id);
        found.ok_or_else(|| AdminError::not_found(MessageId::JobUnknown, "job", id, &[]))
    }
    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError> {
        let runs = |state: &mut State| state.jobs.iter().any(|job| job.id == id && job.state == "running");
        drop(self.changed.wait_timeout_while(self.state.lock().unwrap(), timeout, runs).unwrap());
        self.job(id)
    }
    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError> {
        self.job(id)?;
        self.end_job(id, "cancelled", None);
        self.job(id)
    }
    fn rules(&self, _: &str) -> Result<Value, AdminError> {
        let state = self.state.lock().unwrap();
        let rules = state.rules.iter();
        let rules: Vec<Value> =
            rules.map(|(id, rule)| json!({"id": id, "rule": rule, "requests": 3, "bytes": 4096})).collect();
        Ok(json!({"default": "cache", "rules": rules}))
    }
    fn add_rule(&self, _: &str, request: RuleRequest) -> Result<Value, AdminError> {
        if !request.rule.starts_with("bypass") {
            return Err(AdminError::new(MessageId::RuleSyntax, "no such action", "cache or bypass"));
        }
        self.change(|state| {
            let at = request.position.unwrap_or(state.rules.len());
            let id = state.rules.len() as u64 + 1;
            state.rules.insert(at, (id, request.rule.clone()));
        });
        Ok(json!({"id": 1, "warnings": []}))
    }
    fn delete_rule(&self, _: &str, id: &str) -> Result<(), AdminError> {
        let before = self.state.lock().unwrap().rules.len();
        self.change(|state| state.rules.retain(|(there, _)| there.to_string() != id));
        let gone = self.state.lock().unwrap().rules.len() < before;
        if gone { Ok(()) } else { Err(AdminError::not_found(MessageId::RuleUnknown, "rule", id, &[])) }
    }
    fn stats(&self, volume: Option<&str>) -> Result<Value, AdminError> {
        if volume == Some("slow") {
            self.change(|state| state.stuck_now += 1);
            let state = self.state.lock().unwrap();
            let mut state = self.changed.wait_while(state, |state| state.stuck).unwrap();
            state.stuck_now -= 1;
        }
        Ok(json!({"reads": 7, "writes": null, "latency": {"hit": {"p50_us": 1.5}}}))
    }
    fn rates(&self) -> Result<RatesOfAll, AdminError> {
        unused()
    }
    fn flashcache(&self, _: &str) -> Result<String, AdminError> {
        Ok("reads=7 writes=8 \nread_hits=6\ndisk_read_errors=0 disk_write_errors=1\n".into())
    }
    fn metrics(&self, _: MetricsForm) -> Result<String, AdminError> {
        Ok("# EOF\n".into())
    }
    fn reload(&self) -> Result<ReloadDone, AdminError> {
        unused()
    }
}
