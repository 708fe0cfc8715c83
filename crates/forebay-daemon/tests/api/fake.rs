//! A daemon without devices: keeps pools, volumes, tunables and rules in memory, with the real
//! jobs, events and rules. Complete and strict enough to test a client, or to run a fuzzer against
//! it.
//!
//! A job takes [`JOB_TAKES`]. Paths and URIs that contain `broken` fail as a broken device would; a
//! volume whose name begins with `slow` never ends its jobs by itself.

use forebay_admin::MessageId;
use forebay_admin::clock::SystemClock;
use forebay_admin::events::{EventKind, Hub, HubLimits, NewEvent};
use forebay_admin::jobs::{
    Abort, JobDriver, JobId, JobKind, JobSpec, Jobs, JobsLimits, Left, OnMiss, Report, WorkStatus,
};
use forebay_admin::size::ByteSize;
use forebay_admin::*;
use forebay_config::rules::{DefaultAction, Position, Rule, RuleId, RuleSet};
use forebay_daemon::api::Services;
use forebay_pool::meter::format::exposition::{self, Family, Labels};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Duration of a job.
pub const JOB_TAKES: Duration = Duration::from_millis(100);
const NAME_BYTES_MAX: usize = 64;
const THINGS_MAX: usize = 1000;

/// Key, default, whether it belongs to a pool, and accepted values.
const SETTINGS: &[(&str, &str, bool, &[&str])] = &[
    ("mode", "writeback", false, &["writeback", "writethrough", "writearound", "passthrough"]),
    ("destage_order", "elevator", false, &["elevator", "fifo", "lru", "ordered"]),
    ("priority", "normal", false, &["low", "normal", "high"]),
    ("reclaim_policy", "s3fifo", true, &["fifo", "lru", "s3fifo"]),
];

type Values = BTreeMap<String, String>;

struct Pool {
    info: PoolInfo,
    values: Values,
}

struct Volume {
    info: VolumeInfo,
    values: Values,
    rules: RuleSet,
}

#[derive(Default)]
struct State {
    pools: BTreeMap<String, Pool>,
    volumes: BTreeMap<String, Volume>,
}

/// The fake daemon.
pub struct Fake {
    state: Arc<Mutex<State>>,
    jobs: Jobs,
    events: Hub,
}

impl Fake {
    /// Returns a fake without pools. Its jobs make progress as long as it lives.
    pub fn new() -> Arc<Self> {
        let clock = Arc::new(SystemClock::new());
        let events = Hub::new(clock.clone(), HubLimits::default());
        let jobs = Jobs::new(events.clone(), clock, JobsLimits::default(), JobId(1));
        let fake = Arc::new(Self { state: Arc::default(), jobs, events });
        let (weak, state) = (Arc::downgrade(&fake), fake.state.clone());
        std::thread::spawn(move || work(&weak, &mut Worker { state, begun: HashMap::new() }));
        fake
    }

    /// Returns the interfaces for the API.
    pub fn services(self: &Arc<Self>) -> Services {
        Services { admin: self.clone(), jobs: self.jobs.clone(), events: self.events.clone() }
    }

    /// Ensures that there are a pool `fast` and a volume `db`.
    pub fn furnish(&self) -> Result<(), AdminError> {
        let settings = BTreeMap::new();
        if self.pool("fast").is_err() {
            let device = DeviceRequest { path: "/dev/fast".into(), size: Some("1GiB".into()) };
            self.create_pool(PoolRequest {
                name: "fast".into(),
                devices: vec![device],
                settings: settings.clone(),
                overwrite: false,
                fill: false,
                new_cache: false,
            })?;
        }
        if self.volume("db").is_err() {
            let (pool, backing, exports) = (Some("fast".into()), "file:/srv/db".into(), Vec::new());
            self.attach_volume(VolumeRequest { name: "db".into(), pool, backing, exports, settings })?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, spec: JobSpec) -> Result<JobInfo, AdminError> {
        let id = self.jobs.start(spec)?;
        Ok(JobInfo::from(&self.jobs.get(id)?))
    }

    fn tell(&self, kind: EventKind, volume: &str) {
        self.events.publish(NewEvent::new(kind, format!("{volume}: {kind}")).volume(volume));
    }
}

fn work(fake: &Weak<Fake>, worker: &mut Worker) {
    while let Some(fake) = fake.upgrade() {
        fake.jobs.step(worker);
        drop(fake);
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Worker {
    state: Arc<Mutex<State>>,
    begun: HashMap<JobId, Instant>,
}

impl JobDriver for Worker {
    fn begin(&mut self, id: JobId, _: &JobSpec) -> Result<(), (MessageId, String)> {
        self.begun.insert(id, Instant::now());
        Ok(())
    }

    fn poll(&mut self, id: JobId, spec: &JobSpec) -> WorkStatus {
        let takes = if spec.volume.as_deref().is_some_and(|name| name.starts_with("slow")) {
            Duration::MAX
        } else {
            JOB_TAKES
        };
        let begun = *self.begun.entry(id).or_insert_with(Instant::now);
        if begun.elapsed() < takes {
            return WorkStatus::Working(Report::draining(Left::OfStart(4096)));
        }
        self.begun.remove(&id);
        finish(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner), spec)
    }

    fn abort(&mut self, id: JobId, _: &JobSpec) -> Abort {
        self.begun.remove(&id);
        Abort::Done
    }
}

fn finish(state: &mut State, spec: &JobSpec) -> WorkStatus {
    let volume = spec.volume.clone().unwrap_or_default();
    match spec.kind {
        JobKind::Detach(_) => drop(state.volumes.remove(&volume)),
        JobKind::Remove { .. } if state.volumes.values().any(|volume| volume.info.pool == spec.pool) => {
            return WorkStatus::Failed(MessageId::PoolInUse, "it is in use again".into());
        }
        JobKind::Remove { .. } => drop(state.pools.remove(&spec.pool)),
        JobKind::Export { .. } => {
            state.volumes.retain(|_, volume| volume.info.pool != spec.pool);
            drop(state.pools.remove(&spec.pool));
        }
        JobKind::Resize(size) => {
            state.volumes.entry(volume).and_modify(|volume| volume.info.size_bytes = size);
        }
        JobKind::Shrink(size) => {
            state.pools.entry(spec.pool.clone()).and_modify(|pool| pool.info.capacity_bytes = size);
        }
        JobKind::Flush
        | JobKind::ModeChange(_)
        | JobKind::GiveUp(_)
        | JobKind::Replace
        | JobKind::Scrub(_)
        | JobKind::Rebuild
        | JobKind::Record(_) => {}
    }
    WorkStatus::Done
}

fn invalid(what: impl ToString) -> AdminError {
    AdminError::new(MessageId::SettingValue, what, "see the documentation")
}

fn conflict(what: impl ToString) -> AdminError {
    AdminError::new(MessageId::VolumeExists, what, "wait, or use another name")
}

fn size(text: &str) -> Result<u64, AdminError> {
    let bytes = text.parse::<ByteSize>().map_err(invalid)?.bytes();
    if bytes == 0 || bytes > 1 << 50 { Err(invalid("a size is 1 byte to 1 PiB")) } else { Ok(bytes) }
}

fn path(path: &str) -> Result<(), AdminError> {
    match path {
        broken if broken.contains("broken") => {
            Err(AdminError::new(MessageId::DeviceIo, format!("{broken}: input/output error"), "replace it"))
        }
        absolute if absolute.starts_with('/') && !absolute.contains('\0') => Ok(()),
        other => Err(invalid(format!("{other:?} is not an absolute path"))),
    }
}

fn name(name: &str, taken: bool, count: usize) -> Result<(), AdminError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) || name.starts_with('.') {
        return Err(invalid(format!("{name:?} is no name: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -")));
    }
    if taken || count >= THINGS_MAX { Err(conflict(format!("the name {name} is taken"))) } else { Ok(()) }
}

fn device(request: &DeviceRequest) -> Result<DeviceInfo, AdminError> {
    path(&request.path)?;
    let size_bytes = request.size.as_deref().map_or(Ok(1 << 30), size)?;
    Ok(DeviceInfo { path: request.path.clone(), size_bytes, state: String::new(), copied: None, flash: None })
}

/// Returns all values with these changes.
fn changed(
    values: &Values,
    of_pool: bool,
    set: &BTreeMap<String, Option<String>>,
) -> Result<Values, AdminError> {
    let mut values = values.clone();
    for (key, value) in set {
        let known = SETTINGS.iter().find(|(name, _, pool, _)| name == key && *pool == of_pool);
        let (_, default, _, takes) = known.ok_or_else(|| invalid(format!("there is no tunable {key:?}")))?;
        let value = value.as_deref().unwrap_or(default);
        if !takes.contains(&value) {
            return Err(invalid(format!("{key} takes one of {}, not {value:?}", takes.join(", "))));
        }
        values.insert(key.clone(), value.into());
    }
    Ok(values)
}

fn given(settings: Values) -> BTreeMap<String, Option<String>> {
    settings.into_iter().map(|(key, value)| (key, Some(value))).collect()
}

impl State {
    fn pool(&mut self, name: &str) -> Result<&mut Pool, AdminError> {
        let known: Vec<&str> = self.pools.keys().map(String::as_str).collect();
        let error = AdminError::not_found(MessageId::PoolUnknown, "pool", name, &known);
        self.pools.get_mut(name).ok_or(error)
    }

    fn volume(&mut self, name: &str) -> Result<&mut Volume, AdminError> {
        let known: Vec<&str> = self.volumes.keys().map(String::as_str).collect();
        let error = AdminError::not_found(MessageId::VolumeUnknown, "volume", name, &known);
        self.volumes.get_mut(name).ok_or(error)
    }

    fn values(&mut self, target: Target<'_>) -> Result<(&mut Values, bool), AdminError> {
        match target {
            Target::Pool(name) => self.pool(name).map(|pool| (&mut pool.values, true)),
            Target::Volume(name) => self.volume(name).map(|volume| (&mut volume.values, false)),
        }
    }

    fn pool_info(&self, pool: &Pool) -> PoolInfo {
        let volumes = self.volumes.values().filter(|volume| volume.info.pool == pool.info.name);
        PoolInfo { volumes: volumes.map(|volume| volume.info.name.clone()).collect(), ..pool.info.clone() }
    }
}

impl Admin for Fake {
    fn daemon(&self) -> DaemonInfo {
        let state = self.lock();
        DaemonInfo {
            version: "0.0.0-fake".into(),
            pid: std::process::id(),
            started_unix_s: 1,
            config: None,
            resident_bytes: 1 << 20,
            pools: state.pools.keys().cloned().collect(),
            volumes: state.volumes.keys().cloned().collect(),
            metrics: None,
            upgrade: None,
        }
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError> {
        let state = self.lock();
        Ok(state.pools.values().map(|pool| state.pool_info(pool)).collect())
    }

    fn pool(&self, name: &str) -> Result<PoolInfo, AdminError> {
        let mut state = self.lock();
        state.pool(name)?;
        Ok(state.pool_info(&state.pools[name]))
    }

    fn create_pool(&self, request: PoolRequest) -> Result<PoolInfo, AdminError> {
        let mut state = self.lock();
        name(&request.name, state.pools.contains_key(&request.name), state.pools.len())?;
        let devices: Vec<_> = request.devices.iter().map(device).collect::<Result<_, _>>()?;
        if devices.is_empty() || devices.len() > 16 {
            return Err(invalid("a pool has 1 to 16 devices"));
        }
        let values = changed(&Values::new(), true, &given(request.settings))?;
        let info = PoolInfo {
            name: request.name.clone(),
            capacity_bytes: devices.iter().map(|device| device.size_bytes).sum(),
            devices,
            cached_bytes: 0,
            dirty_bytes: 0,
            growable_to_bytes: 1 << 50,
            fenced: false,
            cache_failed: false,
            mirror: String::new(),
            lost_bytes: 0,
            lost_ranges: 0,
            io_engine: "psync".into(),
            endurance: None,
            job: None,
            volumes: Vec::new(),
            absent: BTreeMap::new(),
            not_open: false,
            not_answering: false,
            why: None,
            recorded: None,
        };
        state.pools.insert(request.name, Pool { info: info.clone(), values });
        Ok(info)
    }

    fn grow_pool(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, AdminError> {
        let mut state = self.lock();
        let info = &mut state.pool(name)?.info;
        match (request.device, request.size) {
            (Some(further), None) if info.devices.len() < 16 => {
                let further = device(&further)?;
                info.capacity_bytes += further.size_bytes;
                info.devices.push(further);
            }
            (Some(_), None) => return Err(conflict("a pool has at most 16 devices")),
            (None, Some(text)) if text == "max" => info.capacity_bytes = info.growable_to_bytes,
            (None, Some(text)) => info.capacity_bytes = size(&text)?.max(info.capacity_bytes),
            _ => return Err(invalid("give either a device or a size")),
        }
        let pool = &state.pools[name];
        Ok(state.pool_info(pool))
    }

    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, AdminError> {
        let capacity = self.pool(name)?.capacity_bytes;
        let to = match (request.device, request.size) {
            (Some(device), None) => path(&device).map(|()| capacity)?,
            (None, Some(text)) => size(&text)?,
            _ => return Err(invalid("give either a device or a size")),
        };
        self.start(JobSpec::pool(JobKind::Shrink(to), name))
    }

    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, AdminError> {
        self.pool(name)?;
        let rate = request.rate.map_or(Ok(1 << 26), |text| size(&text))?;
        self.start(JobSpec::pool(JobKind::Scrub(rate), name))
    }

    fn record_volume(
        &self,
        name: &str,
        request: RecordRequest,
        to: TraceSender,
    ) -> Result<JobInfo, AdminError> {
        let pool = self.volume(name)?.pool;
        if request.for_s == 0 {
            return Err(invalid("for_s is at least 1"));
        }
        let _ = to.try_send(b"a trace".to_vec());
        self.start(JobSpec::volume(JobKind::Record(request.for_s), &pool, name))
    }

    fn replace_cache(&self, name: &str, request: ReplaceRequest) -> Result<PoolInfo, AdminError> {
        device(&request.device)?;
        self.pool(name)?;
        Err(conflict(format!("the cache of pool {name} has not failed")))
    }

    fn remove_pool(&self, name: &str, erase: bool, _: bool) -> Result<JobInfo, AdminError> {
        if let Some(volume) = self.pool(name)?.volumes.first() {
            return Err(conflict(format!("pool {name} has the volume {volume}")));
        }
        self.start(JobSpec::pool(JobKind::Remove { erase }, name))
    }

    fn export_pool(&self, name: &str, request: ExportRequest) -> Result<JobInfo, AdminError> {
        self.pool(name)?;
        self.start(JobSpec::pool(JobKind::Export { drain: request.drain }, name).force(request.force))
    }

    fn import_pool(&self, request: ImportRequest) -> Result<ImportInfo, AdminError> {
        if request.devices.is_empty() {
            return Err(invalid("no device is given"));
        }
        request.devices.iter().try_for_each(|device| path(device))?;
        let pool = request.pool.unwrap_or_else(|| "came".into());
        if !request.dry_run {
            let device = |path: &String| DeviceRequest { path: path.clone(), size: None };
            let devices = request.devices.iter().map(device).collect();
            let name = pool.clone();
            let settings = BTreeMap::new();
            let request =
                PoolRequest { name, devices, settings, overwrite: false, fill: false, new_cache: false };
            self.create_pool(request)?;
        }
        Ok(ImportInfo {
            absent: Vec::new(),
            pool,
            cache: "00000000-0000-0000-0000-000000000000".into(),
            exported_by: "elsewhere".into(),
            exported_unix_s: 1_700_000_000,
            devices: request.devices,
            key_file: request.key_file,
            signed: false,
            volumes: Vec::new(),
            unconfirmed: Vec::new(),
            dry_run: request.dry_run,
        })
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>, AdminError> {
        Ok(self.lock().volumes.values().map(|volume| volume.info.clone()).collect())
    }

    fn volume(&self, name: &str) -> Result<VolumeInfo, AdminError> {
        self.lock().volume(name).map(|volume| volume.info.clone())
    }

    fn losses(&self, name: &str) -> Result<Vec<LossInfo>, AdminError> {
        self.lock()
            .volume(name)
            .map(|_| vec![LossInfo { offset_bytes: 4096, bytes: 512, written_unix_s: 1_700_000_000 }])
    }

    fn advise(&self, target: Target<'_>, hours: u64) -> Result<AdviceInfo, AdminError> {
        let (pool, volume) = match target {
            Target::Pool(name) => {
                self.lock().pool(name)?;
                (name.to_owned(), String::new())
            }
            Target::Volume(name) => (self.lock().volume(name)?.info.pool.clone(), name.to_owned()),
        };
        let size = AdviceSize {
            times: 2.0,
            capacity_bytes: 2 << 30,
            hit_pct: 97.5,
            is_lower_bound: true,
            sampled_bytes: 1 << 20,
            read_mean_us: None,
        };
        Ok(AdviceInfo {
            pool,
            volume,
            seen_s: hours.min(23) * 3600,
            read_bytes: 1 << 30,
            capacity_bytes: 1 << 30,
            read_hit_mean_us: Some(80.5),
            read_miss_mean_us: None,
            sizes: vec![size],
            verdict: "A larger cache would not answer more reads.".into(),
            error_points: Some(0.5),
            ask_again_s: None,
        })
    }

    fn attach_volume(&self, request: VolumeRequest) -> Result<VolumeInfo, AdminError> {
        let mut state = self.lock();
        name(&request.name, state.volumes.contains_key(&request.name), state.volumes.len())?;
        let pool = match (request.pool, state.pools.len()) {
            (Some(pool), _) => pool,
            (None, 1) => state.pools.keys().next().cloned().unwrap_or_default(),
            (None, _) => return Err(invalid("say which pool is to cache it")),
        };
        state.pool(&pool)?;
        let file = request.backing.strip_prefix("file:");
        path(file.ok_or_else(|| invalid("backing: this daemon knows file: only"))?)?;
        let values = changed(&Values::new(), false, &given(request.settings))?;
        let info = VolumeInfo {
            name: request.name.clone(),
            pool,
            state: VolumeState::Serving,
            backing: request.backing,
            backing_state: "ok".into(),
            backing_why: None,
            exports: request.exports,
            size_bytes: 10 << 30,
            sector_bytes: 512,
            mode: values.get("mode").cloned().unwrap_or_else(|| "writeback".into()),
            cached_bytes: Some(0),
            dirty_bytes: Some(8192),
            oldest_dirty_age_ns: 0,
            destage_limited_by: String::new(),
            ordered: false,
            connections: 0,
            job: None,
            lost_bytes: 0,
            lost_ranges: 0,
            why: None,
            files: Vec::new(),
            warnings: Vec::new(),
        };
        let rules = RuleSet::new(DefaultAction::Cache, info.size_bytes);
        state.volumes.insert(request.name.clone(), Volume { info: info.clone(), values, rules });
        drop(state);
        self.tell(EventKind::VolumeAttached, &request.name);
        Ok(info)
    }

    fn detach_volume(&self, name: &str, request: DetachRequest) -> Result<JobInfo, AdminError> {
        let pool = self.volume(name)?.pool;
        self.start(JobSpec::volume(JobKind::Detach(request.how), &pool, name).save_to(request.save_to))
    }

    fn resize_volume(&self, name: &str, to: &str, _force: bool) -> Result<JobInfo, AdminError> {
        let pool = self.volume(name)?.pool;
        let to = if to == "max" { 10 << 30 } else { size(to)? };
        self.start(JobSpec::volume(JobKind::Resize(to), &pool, name))
    }

    fn settings(&self, target: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, AdminError> {
        let mut state = self.lock();
        let (values, of_pool) = state.values(target)?;
        let rows = SETTINGS.iter().filter(|(_, _, pool, _)| *pool == of_pool);
        let infos = rows.map(|(key, default, _, takes)| {
            let value = values.get(*key).cloned().unwrap_or_else(|| (*default).into());
            let (default, takes) = ((*default).into(), takes.join(", "));
            ((*key).into(), SettingInfo { value, default, takes, live: true, help: "a tunable".into() })
        });
        Ok(infos.collect())
    }

    fn set(&self, target: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        let before = self.settings(target)?;
        let mut state = self.lock();
        let (values, of_pool) = state.values(target)?;
        *values = changed(values, of_pool, &request.set)?;
        let (drains, values) =
            (request.leaving == Leaving::Drain && request.set.contains_key("mode"), values.clone());
        drop(state);
        let changes =
            request.set.keys().map(|key| (key.clone(), before[key].value.clone(), values[key].clone()));
        let job = match target {
            Target::Volume(name) if drains => Some(self.flush_volume(name, None)?.id),
            _ => None,
        };
        Ok(SettingsDone { changed: changes.collect(), written: Vec::new(), job })
    }

    fn flush_volume(&self, name: &str, deadline: Option<Duration>) -> Result<JobInfo, AdminError> {
        let mut spec = JobSpec::volume(JobKind::Flush, &self.volume(name)?.pool, name);
        if let Some(within) = deadline {
            spec = spec.deadline(within, OnMiss::Fail);
        }
        self.start(spec)
    }

    fn jobs(&self) -> Vec<JobInfo> {
        self.jobs.list(&Default::default()).iter().map(JobInfo::from).collect()
    }

    fn job(&self, id: &str) -> Result<JobInfo, AdminError> {
        Ok(JobInfo::from(&self.jobs.get(job_id(id)?)?))
    }

    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError> {
        let _ = self.jobs.wait(job_id(id)?, timeout);
        self.job(id)
    }

    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError> {
        self.jobs.cancel(job_id(id)?)?;
        self.job(id)
    }

    fn rules(&self, volume: &str) -> Result<serde_json::Value, AdminError> {
        Ok(serde_json::json!(self.lock().volume(volume)?.rules.list(Instant::now())))
    }

    fn add_rule(&self, volume: &str, request: RuleRequest) -> Result<serde_json::Value, AdminError> {
        let mut state = self.lock();
        let rules = &state.volume(volume)?.rules;
        let position = request.position.map_or(Position::Last, Position::At);
        Ok(serde_json::json!(rules.add(request.rule.parse::<Rule>()?, position, Instant::now())?))
    }

    fn delete_rule(&self, volume: &str, id: &str) -> Result<(), AdminError> {
        let mut state = self.lock();
        let rules = &state.volume(volume)?.rules;
        rules.remove(id.parse::<RuleId>()?, Instant::now())?;
        Ok(())
    }

    fn stats(&self, volume: Option<&str>) -> Result<serde_json::Value, AdminError> {
        let mut state = self.lock();
        match volume {
            Some(name) => state.volume(name).map(|_| serde_json::json!({ "volume": name, "reads": 4 })),
            None => Ok(serde_json::json!({ "volumes": state.volumes.len() })),
        }
    }

    fn rates(&self) -> Result<RatesOfAll, AdminError> {
        let rates = RatesInfo { reads_per_s: Some(4.0), ..RatesInfo::default() };
        let names = self.lock().volumes.keys().cloned().collect::<Vec<_>>();
        Ok(RatesOfAll {
            volumes: names.into_iter().map(|name| (name, rates.clone())).collect(),
            ..RatesOfAll::default()
        })
    }

    fn flashcache(&self, volume: &str) -> Result<String, AdminError> {
        self.lock().volume(volume).map(|_| "reads=4 writes=0\n".into())
    }

    fn metrics(&self, form: MetricsForm) -> Result<String, AdminError> {
        let family = Family::gauge("forebay_volumes", "Volumes").with(Labels::new(), 1_u64);
        Ok(exposition::text(&[family], form))
    }

    fn reload(&self) -> Result<ReloadDone, AdminError> {
        Ok(ReloadDone::default())
    }
}

fn job_id(id: &str) -> Result<JobId, AdminError> {
    id.parse().map_err(|error| AdminError::new(MessageId::JobUnknown, error, "list the jobs"))
}
