//! Pools: creating, opening, growing, shrinking and closing them.

use super::locked::Place;
use super::records::Allowed;
use super::settings::{invalid, stored};
use super::start::check_rules;
use super::tell::reporter;
use super::{Service, Told, lock};
use crate::CacheSpec;
use crate::config::choices::{CacheAllocation, Mirror};
use crate::config::{ConfigFile, Edit, PoolConfig, PoolTunables, Scope, Settings, VolumeConfig, conflicts};
use crate::control::{
    ControlError, DeviceRequest, ErrorKind, GrowRequest, OpenHow, PoolInfo, PoolRequest, ReplaceRequest,
    ScrubRequest, ShrinkRequest,
};
use crate::encryption::Key;
use crate::events::{AlarmKey, Kind, NewEvent, Severity};
use crate::loss_record::{LossRecord, Seen, Verdict, judge};
use crate::open::{Making, PoolParts, check_new, erase_cache, open_caches, open_joining, seen};
use crate::pool::{PoolHandle, PoolStart, Promise};
use crate::register::{Consent, Permit};
use forebay_core::{EngineConfig, PoolSettings};
use forebay_export::size::ByteSize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How fast a cache is scrubbed if nobody says: far below what a flash device gives, and 1 TB takes four hours.
const SCRUB_BYTES_PER_S: u64 = 64 << 20;
const SCRUB_BYTES_PER_S_MIN: u64 = 64 << 10;

impl Service {
    /// Opens a configured pool (or makes it, where there is none), without volumes.
    pub(super) fn open_pool(
        &self,
        name: &str,
        config: &PoolConfig,
        allowed: Allowed,
    ) -> Result<(), ControlError> {
        let tunables = config.tunables();
        let state_dir = self.running().config.daemon.state_dir.clone();
        let without_cache = failed_before(&state_dir, name, config)?;
        let key = match &tunables.encryption_key_file {
            Some(source) if without_cache.is_none() => Some(Key::read(source)?),
            _ => None,
        };
        let permit = self.permit(name, &state_dir, allowed);
        let has_key = key.is_some();
        let making = Making { permit: Some(permit), ..making(&tunables, key.as_ref()) };
        let parts = match &without_cache {
            None => open_caches(&config.devices, making, &state_dir)?,
            Some(_) => PoolParts::none(),
        };
        if has_key && parts.cipher.is_none() {
            let what = format!("the cache of pool {name} cannot be encrypted");
            return Err(ControlError::new(ErrorKind::Invalid, what, "take encryption_key_file out"));
        }
        let engine = EngineConfig {
            scratch_blocks: (tunables.scratch_size.0 / 4096) as u32,
            pool: PoolSettings::from(&tunables),
            ..EngineConfig::default()
        };
        let start = PoolStart {
            name: name.into(),
            engine,
            connections_max: tunables.pool_connections_max,
            buffer_bytes: usize::try_from(tunables.buffer_memory.0).unwrap_or(usize::MAX),
            spin: tunables.spin,
            nice_boost: tunables.nice_boost,
            io: tunables.io.into(),
            guards: Arc::clone(&self.guards),
            keeper: Arc::clone(&self.keeper),
            state_dir: state_dir.clone(),
            without_cache,
        };
        let (joining, made) = (parts.joining.clone(), parts.made.clone());
        // What is degraded says so itself when it is open.
        self.hub.clear(&AlarmKey::pool(Kind::CacheDegraded, name));
        self.hub.clear(&AlarmKey::pool(Kind::DeviceEnded, name));
        let started = PoolHandle::start(start, parts, reporter(self.me.clone(), name.into()));
        let handle = started.inspect_err(|_| super::records::unmake(&made))?;
        let joined = || {
            // Before there is a volume: nothing was acknowledged yet.
            let entry = Self::enter(&handle, permit, &config.devices)?;
            for spec in &joining {
                Self::join(&handle, spec, permit)?.wait().ok_or_else(stopped)??;
            }
            Ok(entry)
        };
        let entry = joined().inspect_err(|_: &ControlError| {
            let _ = handle.stop(); // the pool's own trouble, if it has any, is not what the operator asked about
            super::records::unmake(&made);
        })?;
        {
            let mut running = self.running_mut();
            running.pools.insert(name.into(), Arc::new(handle));
            running.made.insert(name.into(), made);
            entry.map(|entry| running.entries.insert(name.into(), entry));
        }
        self.watch_rebuild(name);
        Ok(())
    }

    pub(super) fn create(&self, request: PoolRequest) -> Result<PoolInfo, ControlError> {
        let mut file = self.changing()?;
        let name = request.name.clone();
        crate::config::model::check_name(&name).map_err(|problem| invalid(problem, ""))?;
        if self.running().config.pools.contains_key(&name) && self.handle(&name).is_ok() {
            return Err(ControlError::new(
                ErrorKind::Conflict,
                format!("there is a pool {name} already"),
                "",
            ));
        }
        if request.devices.is_empty() {
            return Err(invalid(
                format!("pool {name} has no device"),
                "give at least one: --device PATH[:SIZE]",
            ));
        }
        let devices = request.devices.iter().map(device).collect::<Result<Vec<_>, _>>()?;
        let mut settings = Settings::new(Scope::Pool);
        for (key, value) in &request.settings {
            settings.set(key, value).map_err(|error| invalid(format!("{key}: {error}"), ""))?;
        }
        let config = PoolConfig { devices: devices.clone(), settings };
        if let Some(conflict) = conflicts::of_pool(&config.tunables(), devices.len()).into_iter().next() {
            return Err(invalid(conflict.message, conflict.help));
        }
        if let Some(file) = file.as_mut() {
            let settings =
                config.settings.iter().map(|(key, value)| (key.to_owned(), value.to_string())).collect();
            let edit = Edit::AddPool { name: name.clone(), devices, settings };
            file.edit(&[edit], &check_rules).map_err(|error| stored(&error))?;
        }
        let allowed = Allowed { consent: Consent::Create, force: request.force };
        let opened = self.open_pool(&name, &config, allowed);
        if let (Err(_), Some(file)) = (&opened, file.as_mut()) {
            // It was written a moment ago; the error of opening is what matters.
            let _ = file.edit(&[Edit::RemovePool { name: name.clone() }], &check_rules);
        }
        opened?;
        self.running_mut().config.pools.insert(name.clone(), config);
        drop(file);
        self.look_for_absent(&name);
        self.hub.publish(NewEvent::new(Kind::PoolCreated, format!("pool {name} is there")).pool(&name));
        self.pool_info(&name)
    }

    /// Opens a configured pool that is not open, and attaches its volumes.
    pub(super) fn reopen(&self, name: &str, how: OpenHow) -> Result<PoolInfo, ControlError> {
        let _changing = self.changing()?;
        self.look_for_ended_pools();
        let (config, volumes) = self.with_volumes(name)?;
        if self.running().pools.contains_key(name) {
            return Err(ControlError::new(ErrorKind::Conflict, format!("pool {name} is open"), ""));
        }
        self.open_pool(name, &config, how.into())?;
        self.hub.clear(&AlarmKey::pool(Kind::PoolFailed, name));
        let mut first = None;
        for (name, volume) in &volumes {
            match self.attach_configured(name, volume) {
                Ok(()) => {
                    self.hub.clear(&AlarmKey::volume(Kind::VolumeFailed, name));
                    let message = format!("{name} is attached");
                    self.hub.publish(NewEvent::new(Kind::VolumeAttached, message).volume(name));
                }
                Err(error) => {
                    let error = self.try_again_if_locked(Place::Volume(name.clone()), error);
                    self.hub.raise(AlarmKey::volume(Kind::VolumeFailed, name), Severity::Error, &error.what);
                    first = first.or(Some(error));
                }
            }
        }
        self.look_for_absent(name);
        match first {
            None => self.pool_info(name),
            Some(error) => Err(error),
        }
    }

    // --- size

    pub(super) fn grow(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, ControlError> {
        // Held until the file knows: a successor that does not know of a device could not open the pool.
        let mut file = self.changing()?;
        let handle = self.handle(name)?;
        if self.pool_snapshot(name)?.cache_failed {
            let what = format!("the cache of pool {name} has failed");
            return Err(ControlError::new(
                ErrorKind::Conflict,
                what,
                "give it another: forebay pool replace",
            ));
        }
        self.check_unmirrored(name)?;
        let promise = match (request.device, request.size) {
            (Some(wanted), None) => {
                let state_dir = self.running().config.daemon.state_dir.clone();
                let allowed = Allowed { consent: Consent::Create, force: request.force };
                Self::join(&handle, &device(&wanted)?, self.permit(name, &state_dir, allowed))?
            }
            (None, Some(size)) => {
                let bytes = if size == "max" { None } else { Some(bytes(&size)?) };
                Self::ask(&handle, move |pool| pool.grow_last(bytes))?
            }
            _ => return Err(invalid("give either a device or a size", "")),
        };
        promise.wait().ok_or_else(stopped)??;
        self.write_devices(name, file.as_mut())?;
        drop(file);
        let info = self.pool_info(name)?;
        let message = format!("pool {name} has {} now", ByteSize(info.capacity_bytes));
        self.hub.publish(NewEvent::new(Kind::PoolGrown, message).pool(name));
        Ok(info)
    }

    /// Has a pool take a further device.
    fn join(
        handle: &PoolHandle,
        spec: &CacheSpec,
        permit: Permit<'_>,
    ) -> Result<Promise<Result<(), ControlError>>, ControlError> {
        let opened = open_joining(spec, permit)?;
        let random = crate::open::random_uuid()?;
        let tag = random.iter().fold(0, |tag: u64, byte| tag << 4 ^ u64::from(*byte)) | 1;
        Self::ask(handle, move |pool| pool.add_member(opened, tag))
    }

    /// The length of the cache devices together after a shrink.
    pub(super) fn bytes_after_shrink(
        &self,
        name: &str,
        request: &ShrinkRequest,
    ) -> Result<u64, ControlError> {
        self.check_unmirrored(name)?;
        let snapshot = self.pool_snapshot(name)?;
        let all: u64 = snapshot.devices.iter().map(|(_, bytes)| bytes).sum();
        let Some((path, last)) = snapshot.devices.last() else {
            return Err(invalid("the pool has no device", ""));
        };
        match (&request.device, &request.size) {
            (Some(device), None) if Path::new(device) == path && snapshot.devices.len() > 1 => Ok(all - last),
            (Some(device), None) => Err(invalid(
                format!("{device} cannot be taken out of pool {name}"),
                if snapshot.devices.len() > 1 {
                    format!("only the last one can: {}", path.display())
                } else {
                    "it is the only one; to give up the pool: forebay pool remove".to_owned()
                },
            )),
            (None, Some(size)) => {
                let wanted = bytes(size)?;
                if wanted < *last {
                    return Ok(all - last + wanted);
                }
                Err(invalid(
                    format!("{} has {} already", path.display(), ByteSize(*last)),
                    "to make it larger: pool grow",
                ))
            }
            _ => Err(invalid("give either a device or a size", "")),
        }
    }

    /// How fast a pool is to be scrubbed, in bytes a second.
    pub(super) fn scrub_rate(&self, name: &str, request: &ScrubRequest) -> Result<u64, ControlError> {
        self.handle(name)?;
        let rate = request.rate.as_deref().map_or(Ok(SCRUB_BYTES_PER_S), bytes)?;
        if rate >= SCRUB_BYTES_PER_S_MIN {
            return Ok(rate);
        }
        let least = ByteSize(SCRUB_BYTES_PER_S_MIN);
        Err(invalid(
            format!("a scrub at {} a second would not end", ByteSize(rate)),
            format!("at least {least}"),
        ))
    }

    /// The devices of a pool are others now: the file is told.
    pub(super) fn note_devices(&self, name: &str) -> Result<(), ControlError> {
        let mut file = self.changing()?;
        self.write_devices(name, file.as_mut())
    }

    fn write_devices(&self, name: &str, file: Option<&mut ConfigFile>) -> Result<(), ControlError> {
        self.raise_record(name);
        let snapshot = self.pool_snapshot(name)?;
        let spec = |(path, bytes): &(PathBuf, u64)| CacheSpec {
            path: path.clone(),
            size_bytes: Some(length_of_file(path).unwrap_or(*bytes)),
        };
        let devices: Vec<CacheSpec> = snapshot.devices.iter().map(spec).collect();
        if let Some(pool) = self.running_mut().config.pools.get_mut(name) {
            pool.devices.clone_from(&devices);
        }
        let Some(file) = file else { return Ok(()) };
        let edit = Edit::SetDevices { pool: name.into(), devices };
        file.edit(&[edit], &check_rules).map(drop).map_err(|error| stored(&error))
    }

    /// What a reload found: further devices, fewer, or other sizes.
    pub(super) fn change_devices(
        &self,
        name: &str,
        (added, removed, resized): (&[CacheSpec], &[CacheSpec], &[CacheSpec]),
    ) -> Result<(), ControlError> {
        for spec in added {
            self.grow(name, GrowRequest { device: Some(asked(spec)), ..GrowRequest::default() })?;
        }
        for spec in resized {
            let size = spec.size_bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
            self.grow(name, GrowRequest { size: Some(size), ..GrowRequest::default() })?;
        }
        for spec in removed {
            let request = ShrinkRequest { device: Some(spec.path.display().to_string()), size: None };
            crate::control::Control::shrink_pool(self, name, request)?;
        }
        Ok(())
    }

    // --- a cache that failed

    /// Gives a pool whose cache has failed a new one: the pool is closed, and opened with it.
    pub(super) fn replace(&self, name: &str, request: &ReplaceRequest) -> Result<PoolInfo, ControlError> {
        let mut file = self.changing()?;
        let devices = [Some(&request.device), request.other.as_ref()].into_iter().flatten();
        let devices = devices.map(device).collect::<Result<Vec<_>, _>>()?;
        if let Some(mirror) = self.pool_snapshot(name)?.mirror {
            return self.replace_member(name, &devices, &mirror, request.force, file.as_mut());
        }
        let record = self.check_replaceable(name, request.discard_lost)?;
        self.check_devices_wanted(name, devices.len())?;
        let (old, volumes) = self.with_volumes(name)?;
        let config = PoolConfig { devices: devices.clone(), ..old.clone() };
        self.check_new(name, &config, request.force)?;
        let handle = self.handle(name)?;
        let edit = |devices| Edit::SetDevices { pool: name.into(), devices };
        if let Some(file) = file.as_mut() {
            file.edit(&[edit(devices)], &check_rules).map_err(|error| stored(&error))?;
        }
        // Nothing was given up until here.
        let ended = handle.stop().map_err(ControlError::from);
        let ended = ended.and_then(|()| if request.discard_lost { self.give_up(&record) } else { Ok(()) });
        if let Err(error) = ended {
            if let Some(file) = file.as_mut() {
                // It was written a moment ago; the error of the change is what matters.
                let _ = file.edit(&[edit(old.devices)], &check_rules);
            }
            return Err(error);
        }
        {
            let mut running = self.running_mut();
            running.pools.remove(name);
            running.config.pools.insert(name.into(), config.clone());
        }
        let allowed = Allowed { consent: Consent::NewCache, force: request.force };
        self.open_pool(name, &config, allowed)?;
        for (name, volume) in &volumes {
            self.attach_configured(name, volume)?;
        }
        drop(file);
        self.hub.clear(&AlarmKey::pool(Kind::CacheFailed, name));
        self.hub.clear(&AlarmKey::pool(Kind::CacheDegraded, name));
        self.hub.publish(NewEvent::new(Kind::PoolCreated, format!("pool {name} has a new cache")).pool(name));
        self.pool_info(name)
    }

    /// How a pool is configured, and its volumes.
    fn with_volumes(&self, name: &str) -> Result<(PoolConfig, Vec<(String, VolumeConfig)>), ControlError> {
        let running = self.running();
        let known: Vec<&str> = running.config.pools.keys().map(String::as_str).collect();
        let config = running.config.pools.get(name).cloned();
        let config = config.ok_or_else(|| ControlError::not_found("pool", name, &known))?;
        let ours = running.config.volumes.iter().filter(|(_, volume)| volume.pool == name);
        Ok((config, ours.map(|(name, volume)| (name.clone(), volume.clone())).collect()))
    }

    /// Checks that a new cache can be made as configured, before the pool is closed for it.
    fn check_new(&self, name: &str, config: &PoolConfig, force: bool) -> Result<(), ControlError> {
        let tunables = config.tunables();
        let key = tunables.encryption_key_file.as_ref().map(Key::read).transpose()?;
        let state_dir = self.running().config.daemon.state_dir.clone();
        let permit = self.permit(name, &state_dir, Allowed { consent: Consent::Create, force });
        let making = Making { permit: Some(permit), ..making(&tunables, key.as_ref()) };
        Ok(check_new(&config.devices, making, &state_dir)?)
    }

    /// What is lost counts as given up.
    fn give_up(&self, record: &LossRecord) -> Result<(), ControlError> {
        let state_dir = self.running().config.daemon.state_dir.clone();
        let given_up = record.with_risk(&record.entries(), &[]);
        given_up.store(&state_dir).map_err(|error| {
            ControlError::new(ErrorKind::Failed, format!("cannot change the record: {error}"), "")
        })
    }

    fn check_replaceable(&self, name: &str, discard_lost: bool) -> Result<LossRecord, ControlError> {
        let snapshot = self.pool_snapshot(name)?;
        let refuse = |what: String, hint: &str| Err(ControlError::new(ErrorKind::Conflict, what, hint));
        let Some(record) = snapshot.record.filter(|_| snapshot.cache_failed) else {
            return refuse(
                format!("the cache of pool {name} has not failed"),
                "to move it to another device: pool grow --device, then pool shrink --device",
            );
        };
        if !snapshot.rescue_over {
            let left = snapshot.dirty_blocks * 4096;
            return refuse(
                format!("{left} bytes that only the failed cache of pool {name} has are being written back"),
                "wait until they are; `forebay pool show` tells",
            );
        }
        let lost = snapshot.lost.bytes;
        if lost > 0 && !discard_lost {
            return refuse(
                format!(
                    "{lost} bytes of pool {name} are lost, and with a new cache older data would stand in their place"
                ),
                "write them again (`forebay volume show` lists them), or give them up: --discard-lost",
            );
        }
        Ok(Arc::unwrap_or_clone(record))
    }

    // --- closing

    pub(super) fn check_removable(&self, name: &str) -> Result<(), ControlError> {
        self.handle(name)?;
        let (running, attaching) = (self.running(), lock(&self.attaching));
        let used: Vec<&str> = running
            .config
            .volumes
            .iter()
            .chain(attaching.iter())
            .filter(|(_, volume)| volume.pool == name)
            .map(|(name, _)| name.as_str())
            .collect();
        if used.is_empty() {
            drop(running);
            return self.check_nothing_absent(name);
        }
        Err(ControlError::new(
            ErrorKind::Conflict,
            format!("pool {name} is in use by {}", used.join(", ")),
            "detach its volumes first: forebay volume detach NAME",
        ))
    }

    /// Stops a pool and forgets it.
    pub(super) fn close_pool(&self, name: &str, erase: bool) -> Result<(), ControlError> {
        let mut file = self.changing()?;
        self.check_removable(name)?;
        let snapshot = self.pool_snapshot(name)?;
        let handle = self.handle(name)?;
        handle.stop()?;
        let entry = {
            let mut running = self.running_mut();
            running.pools.remove(name);
            running.config.pools.remove(name);
            running.entries.remove(name)
        };
        if erase {
            for (path, _) in &snapshot.devices {
                erase_cache(path)?;
            }
        }
        if let Some(Err(why)) = entry.map(|entry| entry.remove(erase)) {
            self.tell(Told::Problem(format!(
                "pool {name} is removed, but its cache is still recorded: {why}"
            )));
        }
        let Some(file) = file.as_mut() else { return Ok(()) };
        file.edit(&[Edit::RemovePool { name: name.into() }], &check_rules)
            .map(drop)
            .map_err(|error| stored(&error))
    }
}

/// The record of a pool's cache, if that has failed and must not be opened.
fn failed_before(
    state_dir: &Path,
    name: &str,
    config: &PoolConfig,
) -> Result<Option<LossRecord>, ControlError> {
    let records = LossRecord::all(state_dir)?;
    if records.is_empty() || config.devices.is_empty() {
        return Ok(None);
    }
    // Of a mirrored cache each device can say which cache it is; of another one only the first.
    let mirrored = config.tunables().mirror == Mirror::On;
    let telling = if mirrored { &config.devices[..] } else { &config.devices[..1] };
    let found: Vec<_> = telling.iter().map(|spec| (spec.path.as_path(), seen(spec))).collect();
    match judge(&records, name, &found) {
        Verdict::Open => Ok(None),
        Verdict::WithoutCache(record) => {
            if let [(path, Seen::Cache(cache))] = found[..] {
                // It may take now what it did not take when it failed.
                crate::failed_mark::mark_again(path.to_owned(), cache);
            }
            Ok(Some(*record))
        }
        Verdict::Refuse(record) => Err(ControlError::new(
            ErrorKind::Conflict,
            format!(
                "the cache of pool {name} failed and {} bytes of {} are lost, but another device stands in its place: what is \
                 lost would look like good, old data",
                record.lost_bytes(),
                record.losers().join(", ")
            ),
            format!("restore what {} lists; then remove that file", record.path(state_dir).display()),
        )),
    }
}

/// The length of a cache file: what it is given with is compared with that at the next start, not with what the pool uses of it.
fn length_of_file(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
}

/// How the cache of a pool is made.
fn making<'a>(tunables: &PoolTunables, key: Option<&'a Key>) -> Making<'a> {
    Making {
        segment_blocks: tunables.segment_size.map(|size| (size.0 / 4096) as u32),
        preallocate: tunables.cache_allocation == CacheAllocation::Full,
        mirror: tunables.mirror == Mirror::On,
        key,
        permit: None,
    }
}

fn stopped() -> ControlError {
    ControlError::new(ErrorKind::Unavailable, "the pool stopped meanwhile", "")
}

fn bytes(size: &str) -> Result<u64, ControlError> {
    let parsed: Result<ByteSize, _> = size.parse();
    parsed.map(|size| size.0).map_err(|error| invalid(format!("{size}: {error}"), "such as 20GiB"))
}

fn device(request: &DeviceRequest) -> Result<CacheSpec, ControlError> {
    let size_bytes = request.size.as_deref().map(bytes).transpose()?;
    if request.path.is_empty() {
        return Err(invalid("a device has no path", ""));
    }
    Ok(CacheSpec { path: request.path.clone().into(), size_bytes })
}

fn asked(spec: &CacheSpec) -> DeviceRequest {
    DeviceRequest {
        path: spec.path.display().to_string(),
        size: spec.size_bytes.map(|bytes| bytes.to_string()),
    }
}
