//! Pools: create, open, grow, shrink and close.

use super::catalog::StoredConfig;
use super::deferred_places::Place;
use super::errors::{invalid, no_answer, not_in_file, stopped};
use super::event_bridge::reporter;
use super::opening::{Allowed, NotJoined, Opening};
use super::pool_query::ask;
use super::requests::{asked, bytes, device};
use super::{Service, ServiceEvent};
use forebay_admin::events::{AlarmKey, EventKind, NewEvent, Severity};
use forebay_admin::jobs::JobKind;
use forebay_admin::size::ByteSize;
use forebay_admin::{
    AdminError, GrowRequest, MessageId, OpenHow, PoolInfo, PoolRequest, ReplaceRequest, ScrubRequest,
    ShrinkRequest, Taking,
};
use forebay_config::CacheSpec;
use forebay_config::{Edit, PoolConfig, Scope, Settings, VolumeConfig, conflicts};
use forebay_core::{EngineConfig, PoolSettings};
use forebay_format::BLOCK_BYTES;
use forebay_format::member::DATA_START_BLOCK;
use forebay_pool::MayWait;
use forebay_pool::loss_record::LossRecord;
use forebay_pool::open::NewCache;
use forebay_pool::register::{Consent, Entry};
use forebay_pool::shell_word::quoted;
use forebay_pool::{PoolHandle, PoolSnapshot, PoolStart, Promise, Reach};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Default scrub rate: far below the throughput of a flash device; 1 TB takes four hours.
const SCRUB_BYTES_PER_S: u64 = 64 << 20;
const SCRUB_BYTES_PER_S_MIN: u64 = 64 << 10;
/// Time limit for erasing the devices of a new cache whose pool could not be opened.
const TAKE_BACK_WITHIN: Duration = Duration::from_secs(20);
/// Time limit for extending a cache file.
const LENGTHEN_WITHIN: Duration = Duration::from_secs(60);

impl Service {
    /// Opens a configured pool, or creates it if its cache does not exist, without volumes.
    pub(super) fn open_pool(
        &self,
        name: &str,
        config: &PoolConfig,
        allowed: Allowed,
    ) -> Result<(), AdminError> {
        self.settle_replaced(name, config)?;
        let opening = self.opening(name, config, allowed);
        let Some((parts, without_cache)) = self.devices.open_parts(opening)?.take() else {
            return Err(stopped());
        };
        let (joining, made) = (parts.joining.clone(), parts.made.clone());
        let new_cache = parts.new_cache.clone();
        // A degraded cache raises this alarm itself once it is open.
        self.hub.clear(&AlarmKey::pool(EventKind::CacheDegraded, name));
        self.hub.clear(&AlarmKey::pool(EventKind::DeviceEnded, name));
        self.hub.clear(&AlarmKey::pool(EventKind::DevicePathLost, name));
        let start = self.pool_start(name, config, without_cache);
        let started = PoolHandle::start(start, parts, reporter(Arc::downgrade(&self.telemetry), name.into()));
        let handle = started.inspect_err(|_| self.take_back(name, new_cache.as_ref()))?;
        let mut entry = None;
        let is_new = new_cache.is_some();
        let completed = self.complete(&handle, (name, config), (&joining, is_new), allowed, &mut entry);
        completed.inspect_err(|_| {
            let _ = handle.stop(); // the operator did not ask about the pool's own failure, if it has any
            self.take_back(name, new_cache.as_ref());
            if let Some(entry) = entry.take().filter(|_| !is_new && allowed.is_creating()) {
                // The cache existed before, and has no owner now. If removing the record fails, it
                // remains as the record of a pool that does not exist.
                let _ = entry.record().remove(&MayWait::here(), &self.catalog.state_dir(), false);
            }
        })?;
        self.pools.insert(name, handle, entry, made);
        if let Ok(handle) = self.handle(name) {
            self.leave_all_behind(name, &handle, config);
        }
        self.watch_rebuild(name);
        Ok(())
    }

    /// Returns the parameters to start a pool with.
    fn pool_start(&self, name: &str, config: &PoolConfig, without_cache: Option<LossRecord>) -> PoolStart {
        let tunables = config.tunables();
        let engine = EngineConfig {
            scratch_blocks: (tunables.scratch_size.0 / 4096) as u32,
            pool: PoolSettings::from(&tunables),
            ..EngineConfig::default()
        };
        PoolStart {
            name: name.into(),
            engine,
            connections_max: tunables.pool_connections_max,
            buffer_bytes: usize::try_from(tunables.buffer_memory.0).unwrap_or(usize::MAX),
            spin: tunables.spin,
            nice_boost: tunables.nice_boost,
            io: tunables.io,
            io_threads: tunables.io_threads,
            io_threads_busy_pct: tunables.io_threads_busy_pct,
            guards: Arc::clone(&self.guards),
            listener_store: Arc::clone(&self.listener_store),
            state_dir: self.catalog.state_dir(),
            without_cache,
            reach: match (self.catalog.path().is_some(), self.has_api) {
                (true, _) => Reach::File,
                (false, true) => Reach::Api,
                (false, false) => Reach::Nothing,
            },
        }
    }

    /// Records the cache of a pool that was just opened, and joins the configured devices that the
    /// cache does not span yet. This happens before there is a volume, so no write was acknowledged
    /// yet. A new cache is recorded once it has all devices: until then it can be taken back.
    fn complete(
        &self,
        handle: &PoolHandle,
        (name, config): (&str, &PoolConfig),
        (joining, is_new): (&[CacheSpec], bool),
        allowed: Allowed,
        entry: &mut Option<Arc<Entry>>,
    ) -> Result<(), AdminError> {
        let state_dir = self.catalog.state_dir();
        let enter = || Self::enter(handle, self.permit(name, &state_dir, allowed), &config.devices);
        if !is_new {
            *entry = enter()?;
        }
        for spec in joining {
            match self.devices.join(handle, spec, self.opening(name, config, allowed), || Ok(())) {
                // The content of the cache is complete without this device, which may come from a
                // grow or shrink that was killed. But the creation of a pool must succeed with all
                // devices or fail as a whole.
                Err(NotJoined { error, .. })
                    if self.catalog.path().is_some() && allowed.consent == Consent::None =>
                {
                    let (path, why, hint) = (spec.path.display(), error.what, error.hint);
                    self.telemetry.emit(ServiceEvent::Problem(MessageId::PoolDeviceUnknown, format!(
                        "pool {name} is opened without {path}, which is not part of its cache yet: {why}; \
                         {hint}; then: forebay pool grow {name} --device {path}"
                    )));
                    break;
                }
                other => other.map_err(|not| not.error)?,
            }
        }
        if is_new {
            *entry = enter()?;
        }
        Ok(())
    }

    /// Erases the cache that was created for a pool that cannot be opened.
    fn take_back(&self, name: &str, new_cache: Option<&NewCache>) {
        let Some(new) = new_cache.cloned() else { return };
        let (state_dir, first) = (self.catalog.state_dir(), new.first().to_owned());
        let taken =
            self.places.within(&first, TAKE_BACK_WITHIN, move |may_wait| new.unmake(may_wait, &state_dir));
        let late = || no_answer(&first, TAKE_BACK_WITHIN);
        let taken = taken.map_err(|undone| undone.or(late)).and_then(|taken| Ok(taken?));
        if let Err(error) = taken {
            self.telemetry.emit(ServiceEvent::Problem(
                MessageId::PoolNotErased,
                format!("pool {name} cannot be opened, and its new cache is not erased: {}", error.what),
            ));
        }
    }

    pub(super) fn create(&self, request: PoolRequest) -> Result<PoolInfo, AdminError> {
        let mut file = self.changing()?;
        let name = request.name.clone();
        forebay_config::model::check_name(&name)
            .map_err(|problem| invalid(MessageId::NameSyntax, problem, ""))?;
        if self.catalog.has_pool(&name) && self.handle(&name).is_ok() {
            return Err(AdminError::new(MessageId::PoolExists, format!("pool {name} already exists"), ""));
        }
        if request.devices.is_empty() {
            return Err(invalid(
                MessageId::PoolNoDevice,
                format!("pool {name} has no device"),
                "give at least one: --device PATH[:SIZE]",
            ));
        }
        let devices = request.devices.iter().map(device).collect::<Result<Vec<_>, _>>()?;
        let mut settings = Settings::new(Scope::Pool);
        for (key, value) in &request.settings {
            settings.set(key, value).map_err(|error| invalid(error.id, format!("{key}: {error}"), ""))?;
        }
        let config = PoolConfig { devices: devices.clone(), settings };
        if let Some(conflict) = conflicts::of_pool(&config.tunables(), devices.len()).into_iter().next() {
            return Err(invalid(MessageId::SettingConflict, conflict.message, conflict.help));
        }
        let settings =
            config.settings.iter().map(|(key, value)| (key.to_owned(), value.to_string())).collect();
        let add = Edit::AddPool { name: name.clone(), devices, settings };
        let consent = Consent::Create { new_cache: request.new_cache };
        let allowed = Allowed { consent, taking: request.taking() };
        file.commit(&[add], &[Edit::RemovePool { name: name.clone() }], || {
            self.open_pool(&name, &config, allowed)
        })?;
        self.catalog.put_pool(&name, config);
        drop(file);
        self.look_for_absent(&name);
        self.hub.publish(NewEvent::new(EventKind::PoolCreated, format!("pool {name} is ready")).pool(&name));
        self.pool_info(&name)
    }

    /// Opens a configured pool that is not open, and attaches its volumes.
    pub(super) fn reopen(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        let file = self.changing()?;
        self.look_for_ended_pools();
        if !self.pools.contains(name)
            && let Some(new) = file.newest()?
        {
            self.catalog.take_sections(name, &new);
        }
        self.open_with_volumes(name, how)
    }

    /// As [`Self::reopen`], for a caller that holds [`Service::changing`].
    pub(super) fn open_with_volumes(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        let (config, volumes) = self.catalog.with_volumes(name)?;
        if self.pools.contains(name) {
            return Err(AdminError::new(MessageId::PoolOpen, format!("pool {name} is open"), ""));
        }
        self.holds.check_pool_free(name)?;
        self.open_pool(name, &config, how.into())?;
        self.hub.clear(&AlarmKey::pool(EventKind::PoolFailed, name));
        let failed = self.attach_all(&volumes);
        self.look_for_absent(name);
        match failed.into_iter().next() {
            None => self.pool_info(name),
            Some((_, error)) => Err(error),
        }
    }

    /// Attaches configured volumes; returns those that could not be attached, which have an alarm.
    pub(super) fn attach_all(&self, volumes: &[(String, VolumeConfig)]) -> Vec<(String, AdminError)> {
        let mut failed = Vec::new();
        for (name, volume) in volumes {
            match self.attach_configured(name, volume) {
                Ok(()) => {
                    self.hub.clear(&AlarmKey::volume(EventKind::VolumeFailed, name));
                    let message = format!("{name} is attached");
                    self.hub.publish(NewEvent::new(EventKind::VolumeAttached, message).volume(name));
                }
                Err(error) => {
                    let error = self.try_again_if_locked(Place::Volume(name.clone()), error);
                    let key = AlarmKey::volume(EventKind::VolumeFailed, name);
                    self.hub.raise(key, Severity::Error, &error.what);
                    failed.push((name.clone(), error));
                }
            }
        }
        failed
    }

    // --- size

    pub(super) fn grow(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, AdminError> {
        // Held until the file is updated: a successor that does not know of a device could not open
        // the pool.
        let mut file = self.changing()?;
        self.grow_now(name, request, &mut file)
    }

    /// As [`Self::grow`], for a caller that holds [`Service::changing`].
    fn grow_now(
        &self,
        name: &str,
        request: GrowRequest,
        file: &mut StoredConfig,
    ) -> Result<PoolInfo, AdminError> {
        self.holds.check_devices_free(name)?;
        let handle = self.handle(name)?;
        if self.pool_snapshot(name)?.cache_failed {
            let what = format!("the cache of pool {name} has failed");
            return Err(AdminError::new(
                MessageId::Event(EventKind::CacheFailed),
                what,
                format!("replace it: forebay pool replace {name} --device PATH[:SIZE]"),
            ));
        }
        self.check_unmirrored(name)?;
        let taking = request.taking();
        match (request.device, request.size) {
            (Some(wanted), None) => self.grow_onto(name, &handle, &device(&wanted)?, taking, file)?,
            (None, Some(size)) => {
                let bytes = if size == "max" { None } else { Some(bytes(&size)?) };
                let grown = self.lengthen(&handle, name, bytes)?.wait().ok_or_else(stopped)?;
                match grown {
                    Err(error)
                        if error.id == MessageId::PoolSize && self.lacks_length(file, name, bytes)? => {}
                    grown => grown?,
                }
            }
            _ => return Err(invalid(MessageId::PoolDeviceChoice, "give either a device or a size", "")),
        }
        let info = self.pool_info(name)?;
        let message = format!("pool {name} has {} now", ByteSize(info.capacity_bytes));
        self.write_devices(name, file).map_err(|error| not_in_file(&message, error))?;
        self.hub.publish(NewEvent::new(EventKind::PoolGrown, message).pool(name));
        Ok(info)
    }

    /// Adds a device to a pool. The file lists it before it joins: a cache on more devices than the
    /// file configures could not be opened.
    fn grow_onto(
        &self,
        name: &str,
        handle: &PoolHandle,
        spec: &CacheSpec,
        taking: Taking,
        file: &mut StoredConfig,
    ) -> Result<(), AdminError> {
        let (config, _) = self.catalog.with_volumes(name)?;
        // Listed by a grow that was killed, or by an operator who edited the file and requested a
        // reload: the entry stays as it is.
        let quoted = format!("\"{}\"", spec.path.display());
        let is_listed = file.text().contains(&quoted);
        let list = |devices: Vec<CacheSpec>| match is_listed {
            true => Vec::new(),
            false => vec![Edit::SetDevices { pool: name.into(), devices }],
        };
        let opening = self.opening(name, &config, Allowed::to_create(taking));
        let mut is_written = false;
        let joined = self.devices.join(handle, spec, opening, || {
            file.write(&list(config.devices.iter().cloned().chain([spec.clone()]).collect()))?;
            is_written = true;
            Ok(())
        });
        joined.map_err(|not| match not.is_certain && is_written {
            true => file.revert(&list(config.devices.clone()), not.error),
            false => not.error,
        })
    }

    /// Extends the last device of a pool if requested, and lets the pool use the new space.
    pub(super) fn lengthen(
        &self,
        handle: &PoolHandle,
        name: &str,
        bytes: Option<u64>,
    ) -> Result<Promise<Result<(), AdminError>>, AdminError> {
        let mut growing = ask(handle, |pool| pool.device_to_grow())??;
        let (place, resized) = (growing.device.path().to_owned(), growing.resized);
        let longer =
            self.places.within(&place, LENGTHEN_WITHIN, move |may_wait| growing.lengthen(may_wait, bytes));
        let (wanted, there) =
            longer.map_err(|undone| undone.or(|| no_answer(&place, LENGTHEN_WITHIN)))?.map_err(|error| {
                AdminError::new(MessageId::PoolResizeFailed, format!("cannot grow pool {name}: {error}"), "")
            })?;
        ask(handle, move |pool| pool.grow_last(wanted, there, resized))
    }

    /// Returns the job that shrinks a pool as requested.
    pub(super) fn shrink_wanted(&self, name: &str, request: &ShrinkRequest) -> Result<JobKind, AdminError> {
        self.check_unmirrored(name)?;
        let snapshot = self.pool_snapshot(name)?;
        if let (Some(device), None) = (&request.device, &request.size)
            && snapshot.devices.len() > 1
            && let Some(kind) = self.give_up_device(name, device)?
        {
            return Ok(kind);
        }
        self.bytes_after_shrink(&snapshot, name, request).map(JobKind::Shrink)
    }

    /// Returns the total length of the cache devices after the last one was shortened or removed.
    fn bytes_after_shrink(
        &self,
        snapshot: &PoolSnapshot,
        name: &str,
        request: &ShrinkRequest,
    ) -> Result<u64, AdminError> {
        let all: u64 = snapshot.devices.iter().map(|(_, bytes)| bytes).sum();
        let Some((path, last)) = snapshot.devices.last() else {
            return Err(invalid(MessageId::PoolNoDevice, "the pool has no device", ""));
        };
        match (&request.device, &request.size) {
            (Some(_), None) if snapshot.devices.len() > 1 => Ok(all - last),
            (Some(device), None) => Err(invalid(
                MessageId::PoolSize,
                format!("{device} cannot be removed from pool {name}"),
                "the pool has one device; to remove the pool: forebay pool remove",
            )),
            (None, Some(size)) => {
                let wanted = bytes(size)?;
                let header = header_bytes(snapshot.devices.len() - 1);
                if wanted == last + header && self.file_lacks_length(name, wanted)? {
                    return Ok(all);
                }
                if wanted >= last + header {
                    let what =
                        format!("pool {name} uses only {} of {}", ByteSize(last + header), path.display());
                    return Err(invalid(
                        MessageId::PoolSize,
                        what,
                        format!("to make it larger: forebay pool grow {name} --size SIZE"),
                    ));
                }
                if header > 0 && wanted <= header {
                    let what = format!("{} of {} cannot hold data", ByteSize(wanted), path.display());
                    let give_up =
                        format!("to remove it: forebay pool shrink {name} --device {}", quoted(path));
                    return Err(invalid(MessageId::PoolSize, what, give_up));
                }
                Ok(all - last + wanted - header)
            }
            _ => Err(invalid(MessageId::PoolDeviceChoice, "give either a device or a size", "")),
        }
    }

    /// Returns the scrub rate of a pool, in bytes per second.
    pub(super) fn scrub_rate(&self, name: &str, request: &ScrubRequest) -> Result<u64, AdminError> {
        self.handle(name)?;
        let rate = request.rate.as_deref().map_or(Ok(SCRUB_BYTES_PER_S), bytes)?;
        if rate >= SCRUB_BYTES_PER_S_MIN {
            return Ok(rate);
        }
        let least = ByteSize(SCRUB_BYTES_PER_S_MIN);
        Err(invalid(
            MessageId::PoolScrubRate,
            format!("a scrub at {} a second would not end", ByteSize(rate)),
            format!("at least {least}"),
        ))
    }

    /// Writes the changed devices of a pool into the configuration file.
    pub(super) fn note_devices(&self, name: &str) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        self.write_devices(name, &mut file)
    }

    fn write_devices(&self, name: &str, file: &mut StoredConfig) -> Result<(), AdminError> {
        self.raise_record(name);
        let devices = self.devices_now(name)?;
        self.catalog.set_devices(name, devices.clone());
        file.write(&[Edit::SetDevices { pool: name.into(), devices }])
    }

    fn devices_now(&self, name: &str) -> Result<Vec<CacheSpec>, AdminError> {
        let spec = |(path, used): (PathBuf, u64)| {
            let size_bytes = Some(length_of_file(&path).unwrap_or(used));
            CacheSpec { path, size_bytes }
        };
        Ok(parts(&self.pool_snapshot(name)?).into_iter().map(spec).collect())
    }

    /// Returns true if the last device has this length (`None`: all available space) and the file
    /// has another one: an earlier command could not write the file, and repeating the command
    /// does.
    fn lacks_length(&self, file: &StoredConfig, name: &str, bytes: Option<u64>) -> Result<bool, AdminError> {
        let Some(written) = file.newest()? else { return Ok(false) };
        let now = self.devices_now(name)?;
        let Some(pool) = written.pools.get(name) else { return Ok(false) };
        let lengths =
            now.last().map(|last| last.size_bytes).zip(pool.devices.last().map(|last| last.size_bytes));
        Ok(lengths.is_some_and(|(now, written)| now != written && (bytes.is_none() || bytes == now)))
    }

    /// As [`Self::lacks_length`], for a caller that does not hold [`Service::changing`].
    fn file_lacks_length(&self, name: &str, bytes: u64) -> Result<bool, AdminError> {
        self.lacks_length(&*self.changing()?, name, Some(bytes))
    }

    /// Applies the changes that a reload found: added, removed or resized devices.
    pub(super) fn change_devices(
        &self,
        name: &str,
        (added, removed, resized): (&[CacheSpec], &[CacheSpec], &[CacheSpec]),
        file: &mut StoredConfig,
    ) -> Result<(), AdminError> {
        // Add devices first: the data of a removed device moves to the others.
        let mut done = Vec::new();
        let mut step = |so: String, result: Result<(), AdminError>| match result {
            Ok(()) => {
                done.push(so);
                Ok(())
            }
            Err(error) if done.is_empty() => Err(error),
            Err(error) => {
                Err(AdminError { what: format!("{}, but {}", done.join(", "), error.what), ..error })
            }
        };
        for spec in added {
            let request = GrowRequest { device: Some(asked(spec)), ..GrowRequest::default() };
            let grown = self.grow_now(name, request, file).map(drop);
            step(format!("pool {name} has {} now", spec.path.display()), grown)?;
        }
        for spec in removed {
            let request = ShrinkRequest { device: Some(spec.path.display().to_string()), size: None };
            let shrinks = forebay_admin::Admin::shrink_pool(self, name, request).map(drop);
            step(format!("{} is being removed from pool {name}", spec.path.display()), shrinks)?;
        }
        for spec in resized {
            let size = spec.size_bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
            let request = GrowRequest { size: Some(size), ..GrowRequest::default() };
            let grown = self.grow_now(name, request, file).map(drop);
            step(format!("pool {name} is larger"), grown)?;
        }
        Ok(())
    }

    // --- a cache that failed

    /// Gives a pool whose cache has failed a new one: closes the pool, and opens it with the new
    /// cache.
    pub(super) fn replace(&self, name: &str, request: &ReplaceRequest) -> Result<PoolInfo, AdminError> {
        let mut file = self.changing()?;
        self.holds.check_devices_free(name)?;
        let devices = [Some(&request.device), request.other.as_ref()].into_iter().flatten();
        let devices = devices.map(device).collect::<Result<Vec<_>, _>>()?;
        let mirror = self.pool_snapshot(name)?.mirror;
        if let Some(mirror) = mirror.filter(|mirror| !mirror.is_sound(request.old.as_deref())) {
            return self.replace_member(name, &devices, &mirror, request.taking(), &mut file);
        }
        if !self.pool_snapshot(name)?.cache_failed {
            let _hold = self.holds.devices(name)?;
            drop(file); // a job changes it once the new device has all data
            return match request.other {
                None => self.replace_sound(name, request),
                Some(_) => Err(invalid(
                    MessageId::PoolDeviceCount,
                    "a healthy device is replaced by one new device",
                    "give one --device",
                )),
            };
        }
        self.holds.check_pool_free(name)?;
        let record = self.check_replaceable(name, request.discard_lost)?;
        // The pool is reopened by paths.
        ask(&*self.handle(name)?, |pool| pool.check_paths("replace the cache of"))??;
        self.check_devices_wanted(name, devices.len())?;
        self.check_recordable()?;
        let (old, volumes) = self.catalog.with_volumes(name)?;
        let config = PoolConfig { devices: devices.clone(), ..old.clone() };
        let allowed = Allowed::to_create(request.taking());
        self.devices.check_new(self.opening(name, &config, allowed))?;
        let handle = self.handle(name)?;
        let names: Vec<String> = volumes.iter().map(|(volume, _)| volume.clone()).collect();
        let identities =
            ask(&handle, move |pool| names.iter().map(|name| pool.uuid_of(name)).collect::<Vec<_>>())?;
        let edit = |devices| [Edit::SetDevices { pool: name.into(), devices }];
        // Until here no data was given up. If the daemon ends between here and the completion of
        // the new cache, the next start serves without the failed cache (`failed_before`), and then
        // opens the new one, because all lost data of the failed cache was given up already.
        let mut stopped = false;
        let ended = file.commit(&edit(devices), &edit(old.devices), || {
            stopped = true;
            handle.stop()?;
            self.give_up(&record)
        });
        if stopped {
            self.pools.remove(name);
        }
        ended.map_err(|error| self.closed_in_vain(name, error))?;
        self.catalog.put_pool(name, config.clone());
        let allowed = Allowed { consent: Consent::NewCache, taking: request.taking() };
        self.open_pool(name, &config, allowed).map_err(|error| self.closed_in_vain(name, error))?;
        self.hub.clear(&AlarmKey::pool(EventKind::CacheFailed, name));
        self.hub.clear(&AlarmKey::pool(EventKind::CacheDegraded, name));
        let known =
            volumes.iter().zip(identities).filter_map(|((name, _), known)| Some((name.clone(), known?)));
        self.attached_volumes.keep_identities(known);
        // A volume that cannot be attached does not prevent others from being attached.
        let failed = self.attach_all(&volumes);
        drop(file);
        let message = format!("pool {name} has a new cache");
        self.hub.publish(NewEvent::new(EventKind::PoolCreated, message.clone()).pool(name));
        match failed.into_iter().next() {
            None => self.pool_info(name),
            Some((_, error)) => Err(AdminError { what: format!("{message}, but: {}", error.what), ..error }),
        }
    }

    /// Returns the parameters that a thread needs to open the cache of a pool.
    pub(super) fn opening(&self, name: &str, config: &PoolConfig, allowed: Allowed) -> Opening {
        let state_dir = self.catalog.state_dir();
        // The pool of `forebay run` has the same name for every cache.
        let is_named = self.catalog.path().is_some();
        Opening { name: name.into(), config: config.clone(), state_dir, allowed, is_named }
    }

    /// Records lost data as given up.
    fn give_up(&self, record: &LossRecord) -> Result<(), AdminError> {
        let state_dir = self.catalog.state_dir();
        let all = LossRecord::all(&MayWait::here(), &state_dir)?;
        if all.iter().any(|there| there.cache_uuid == record.cache_uuid && there.lost_bytes() == 0) {
            return Ok(());
        }
        let given_up = record.with_risk(&record.entries(), &[]);
        given_up.store(&MayWait::here(), &state_dir).map_err(|error| {
            AdminError::new(
                MessageId::Event(EventKind::StateUnwritable),
                format!("cannot change the record: {error}"),
                "",
            )
        })
    }

    fn check_replaceable(&self, name: &str, discard_lost: bool) -> Result<LossRecord, AdminError> {
        let snapshot = self.pool_snapshot(name)?;
        let refuse = |id, what: String, hint: &str| Err(AdminError::new(id, what, hint));
        let Some(record) = snapshot.record.filter(|_| snapshot.cache_failed) else {
            return refuse(
                MessageId::PoolRescuePending,
                format!("the dirty data of the failed cache of pool {name} is not recorded yet"),
                "wait until the alarm cache.fenced clears, then try again",
            );
        };
        if !snapshot.rescue_over {
            let left = snapshot.dirty_blocks * 4096;
            return refuse(
                MessageId::PoolRescuePending,
                format!("{left} dirty bytes of the failed cache of pool {name} are being written back"),
                "wait until that is done; see `forebay pool show`",
            );
        }
        let lost = snapshot.lost.bytes;
        if lost > 0 && !discard_lost {
            return refuse(
                MessageId::PoolLostData,
                format!(
                    "{lost} bytes of pool {name} are lost, and with a new cache reads would return older \
                     data instead"
                ),
                "write them again (`forebay volume show` lists them), or give them up: --discard-lost",
            );
        }
        Ok(Arc::unwrap_or_clone(record))
    }

    // --- closing

    pub(super) fn check_removable(&self, name: &str, erase: bool, force: bool) -> Result<(), AdminError> {
        if self.is_closed(name) {
            if erase {
                let what = format!("pool {name} is not open: its devices cannot be wiped");
                let hint = format!("open it first: forebay pool open {name}; or omit --erase");
                return Err(AdminError::new(MessageId::PoolNotOpen, what, hint));
            }
            return if force { Ok(()) } else { self.check_closed_removable(name) };
        }
        self.handle(name)?;
        let mut used = self.catalog.volumes_of(name);
        let held = self.holds.of_pool(name).into_iter().filter(|held| !used.contains(held));
        used.extend(held.collect::<Vec<_>>());
        if used.is_empty() {
            return self.check_nothing_absent(name);
        }
        let first = match self.pool_snapshot(name)?.cache_failed {
            true => format!(
                "its cache has failed, so replace it first: forebay pool replace {name} --device \
                 PATH[:SIZE]; then detach its volumes: "
            ),
            false => "detach its volumes first: ".into(),
        };
        Err(AdminError::new(
            MessageId::PoolInUse,
            format!("pool {name} is in use by {}", used.join(", ")),
            format!("{first}forebay volume detach {}", used[0]),
        ))
    }

    /// Stops a pool and removes it from the configuration.
    pub(super) fn close_pool(&self, name: &str, erase: bool, force: bool) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        self.close_now(name, erase, force, &mut file)
    }

    /// As [`Self::close_pool`], for a caller that holds [`Service::changing`].
    pub(super) fn close_now(
        &self,
        name: &str,
        erase: bool,
        force: bool,
        file: &mut StoredConfig,
    ) -> Result<(), AdminError> {
        self.check_removable(name, erase, force)?;
        self.holds.check_devices_free(name)?;
        if self.is_closed(name) {
            return self.forget_closed(name, Some(file));
        }
        let wanted = erase;
        let erase = if erase { parts(&self.pool_snapshot(name)?) } else { Vec::new() };
        let handle = self.handle(name)?;
        let entry = self.pools.entry(name);
        // If the daemon ends after this, the next start finishes the removal if the file no longer
        // has the pool.
        self.begin_leaving(entry.as_deref(), &erase)?;
        let stopped = handle.stop();
        self.pools.remove(name);
        let closed = stopped
            .map_err(AdminError::from)
            .and_then(|()| file.remove([Edit::RemovePool { name: name.into() }]));
        if let Err(error) = closed {
            // If this write fails, the next start decides from the file.
            let _ = entry.map(|entry| entry.set_leaving(&MayWait::here(), None));
            return Err(self.closed_in_vain(name, error));
        }
        self.catalog.remove_pool(name);
        self.pools.remove_entry(name);
        self.telemetry.clear_alarms_of(name, &[]);
        match entry {
            Some(entry) => self.finish_leaving(name, &entry.record()),
            None if wanted => Err(AdminError::new(
                MessageId::PoolNotErased,
                format!(
                    "pool {name} is removed, but its devices are not erased: its cache has failed and was not open"
                ),
                "their content is useless: --overwrite lets another pool use one, blkdiscard or wipefs --all \
                 empties it",
            )),
            None => Ok(()),
        }
    }

    /// Handles a failed removal or cache replacement. If the pool is no longer open, reports that.
    fn closed_in_vain(&self, name: &str, error: AdminError) -> AdminError {
        if !self.is_closed(name) {
            return error;
        }
        self.hub.raise(AlarmKey::pool(EventKind::PoolFailed, name), Severity::Error, &error.what);
        let hint = if error.hint.is_empty() { String::new() } else { format!("{}; ", error.hint) };
        AdminError { hint: format!("{hint}the pool is closed now: forebay pool open {name}"), ..error }
    }
}

/// Returns the devices of a pool, and the size of the cache's part of each, from its beginning.
pub(super) fn parts(pool: &PoolSnapshot) -> Vec<(PathBuf, u64)> {
    let header = |at: usize| if pool.mirror.is_some() { 0 } else { header_bytes(at) };
    let devices = pool.devices.iter().enumerate();
    devices.map(|(at, (path, bytes))| (path.clone(), bytes + header(at))).collect()
}

/// Bytes of a member of an unmirrored cache before its part of the pool's space.
fn header_bytes(member: usize) -> u64 {
    if member == 0 { 0 } else { DATA_START_BLOCK * BLOCK_BYTES as u64 }
}

/// Returns the length of a cache file: the next start compares the configured size with it, not
/// with the part that the pool uses.
pub(super) fn length_of_file(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
}
