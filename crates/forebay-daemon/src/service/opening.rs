//! Opens cache devices, which may hang: on threads, with a time limit.
//!
//! It first checks that each device answers, so that messages name the one that does not; then it
//! opens all of them. A device opened too late is closed again, and files created for it are
//! removed.

use super::errors::{no_answer, stopped};
use super::pool_query::ask;
use forebay_admin::{AdminError, MessageId, OpenHow, Taking};
use forebay_config::choices::{CacheAllocation, Mirror};
use forebay_config::{CacheSpec, PoolConfig};
use forebay_export::uri::NbdBacking;
use forebay_io::{Device, DeviceError, DeviceOptions};
use forebay_offline::Key;
use forebay_pool::cache_device::{device_error, remove_made};
use forebay_pool::encryption::read_key;
use forebay_pool::loss_record::{LossRecord, Seen, Verdict, judge};
use forebay_pool::open::{
    Making, PoolParts, bytes_to_make, check_new, is_served, open_caches, open_joining, seen,
};
use forebay_pool::register::{Consent, Permit, of_pool};
use forebay_pool::replaced;
use forebay_pool::time_limit::PathLimiter;
use forebay_pool::{MayWait, PoolHandle, RunError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for opening and checking cache devices.
const WITHIN: Duration = Duration::from_secs(20);
/// Name for the holder of a device if that is this process.
const OWN: &str = "this very process";
/// Reasons why a device cannot be opened, as text for the alarm.
pub(super) const HELD: &str = "the daemon retries until it is free";
pub(super) const UNOPENED: &str = "the daemon retries until it can be opened";
const UNSERVED: &str = "the daemon retries until the server can be reached";
/// A file to be created gets additional time to reserve its space, at this rate.
const MADE_BYTES_PER_S: u64 = 64 << 20;

/// The operator's permissions for opening a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Allowed {
    pub(super) consent: Consent,
    pub(super) taking: Taking,
}

impl Allowed {
    /// For a device that belonged to the pool until just now.
    pub(super) const OWN: Self =
        Self { consent: Consent::NewCache, taking: Taking { overwrite: true, fill: true } };

    /// For devices that the operator names for a cache; does not give up a recorded cache that may
    /// be dirty.
    pub(super) fn to_create(taking: Taking) -> Self {
        Self { consent: Consent::Create { new_cache: false }, taking }
    }

    /// Returns true if the operator has just named the devices for a cache.
    pub(super) fn is_creating(self) -> bool {
        matches!(self.consent, Consent::Create { .. })
    }
}

impl From<OpenHow> for Allowed {
    fn from(how: OpenHow) -> Self {
        let consent = if how.new_cache { Consent::NewCache } else { Consent::None };
        Self { consent, taking: how.taking() }
    }
}

/// Parameters for the thread that opens the cache of a pool.
pub(super) struct Opening {
    pub(super) name: String,
    pub(super) config: PoolConfig,
    pub(super) state_dir: PathBuf,
    pub(super) allowed: Allowed,
    /// The pool is recorded under its name: not that of `forebay run`.
    pub(super) is_named: bool,
}

/// The parts of a pool, and the record of its cache if that has failed. Dropping it takes back a
/// cache that was created for it.
pub(super) struct Opened {
    parts: Option<(PoolParts, Option<LossRecord>)>,
    state_dir: PathBuf,
}

impl Opened {
    pub(super) fn take(mut self) -> Option<(PoolParts, Option<LossRecord>)> {
        self.parts.take()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some((parts, _)) = self.parts.take() {
            // The next opening of these devices finds the remains of a failed cleanup.
            let _ = parts.unmake(&MayWait::here(), &self.state_dir);
        }
    }
}

/// A device that has not joined a pool, as far as is known.
pub(super) struct NotJoined {
    pub(super) error: AdminError,
    /// Certain that it has not: nothing depends on it.
    pub(super) is_certain: bool,
}

impl From<AdminError> for NotJoined {
    fn from(error: AdminError) -> Self {
        Self { error, is_certain: true }
    }
}

impl Opening {
    pub(super) fn permit(&self) -> Permit<'_> {
        let pool = self.is_named.then_some(&*self.name);
        Permit {
            state_dir: &self.state_dir,
            pool,
            consent: self.allowed.consent,
            taking: self.allowed.taking,
        }
    }

    fn making<'a>(&'a self, key: Option<&'a Key>) -> Making<'a> {
        let tunables = self.config.tunables();
        Making {
            segment_blocks: tunables.segment_size.map(|size| (size.0 / 4096) as u32),
            preallocate: tunables.cache_allocation == CacheAllocation::Full,
            mirror: tunables.mirror == Mirror::On,
            key,
            permit: Some(self.permit()),
        }
    }

    fn key(&self) -> Result<Option<Key>, RunError> {
        self.config.tunables().encryption_key_file.as_ref().map(read_key).transpose()
    }

    fn open(&self, may_wait: &MayWait) -> Result<Opened, AdminError> {
        let without_cache = failed_before(self)?;
        if without_cache.is_some() {
            return Ok(self.opened(PoolParts::none(), without_cache));
        }
        let key = self.key()?;
        let mut parts =
            open_caches(may_wait, &self.config.devices, self.making(key.as_ref()), &self.state_dir)?;
        if key.is_some() && parts.cipher.is_none() {
            let what = format!("the cache of pool {} cannot be encrypted", self.name);
            return Err(AdminError::new(MessageId::CacheKeyUnused, what, "remove encryption_key_file"));
        }
        let emulated = parts.emulate(self.config.tunables().emulate_cache);
        // On a refusal, dropping it removes the new cache.
        let opened = self.opened(parts, None);
        Ok(emulated.map(|()| opened)?)
    }

    fn opened(&self, parts: PoolParts, without_cache: Option<LossRecord>) -> Opened {
        Opened { parts: Some((parts, without_cache)), state_dir: self.state_dir.clone() }
    }

    fn check_new(&self, may_wait: &MayWait) -> Result<(), AdminError> {
        let key = self.key()?;
        Ok(check_new(may_wait, &self.config.devices, self.making(key.as_ref()), &self.state_dir)?)
    }
}

/// Returns the record of a pool's cache if the cache has failed and must not be opened.
fn failed_before(opening: &Opening) -> Result<Option<LossRecord>, AdminError> {
    let Opening { name, config, state_dir, allowed, is_named } = opening;
    let records = LossRecord::all(&MayWait::here(), state_dir)?;
    if records.is_empty() || config.devices.is_empty() {
        return Ok(None);
    }
    // Each device of a mirrored cache identifies the cache; of an unmirrored one only the first.
    let mirrored = config.tunables().mirror == Mirror::On;
    let telling = if mirrored { &config.devices[..] } else { &config.devices[..1] };
    let found: Vec<_> =
        telling.iter().map(|spec| (spec.path.as_path(), seen(&MayWait::here(), spec))).collect();
    let current = if *is_named { of_pool(state_dir, name)? } else { Vec::new() };
    let is_current = |record: &&LossRecord| current.iter().any(|own| own.cache_uuid == record.cache_uuid);
    let recorded = records.iter().find(is_current).filter(|record| match allowed.consent {
        Consent::None => true,
        Consent::NewCache => record.lost_bytes() > 0, // only `pool replace --discard-lost` gives that up
        Consent::Create { .. } => false,
    });
    match judge(&records, name, &found, recorded) {
        Verdict::Open => Ok(None),
        Verdict::WithoutCache(record) => {
            if let [(path, Seen::Cache(cache))] = found[..] {
                // The device may accept the mark now although it did not when it failed.
                forebay_pool::failed_mark::mark_again(path.to_owned(), cache);
            }
            Ok(Some(*record))
        }
        Verdict::Refuse(record) => Err(AdminError::new(
            MessageId::PoolLostData,
            format!(
                "the cache of pool {name} failed and {} bytes of {} are lost, but another device is in its \
                 place: reads of the lost bytes would return old data without an error",
                record.lost_bytes(),
                record.losers().join(", ")
            ),
            format!(
                "restore the data that {} lists; then remove that file",
                record.path(state_dir).display()
            ),
        )),
    }
}

/// Opens devices on threads.
#[derive(Debug)]
pub(super) struct DeviceOpener {
    places: PathLimiter,
}

impl DeviceOpener {
    pub(super) fn new(places: PathLimiter) -> Self {
        Self { places }
    }

    /// Opens the cache of a pool, or creates it.
    pub(super) fn open_parts(&self, opening: Opening) -> Result<Opened, AdminError> {
        let devices = opening.config.devices.clone();
        self.with_devices(&devices, move |may_wait| opening.open(may_wait))?
    }

    /// Checks that a new cache can be created as configured, before the pool is closed for it.
    pub(super) fn check_new(&self, opening: Opening) -> Result<(), AdminError> {
        let devices = opening.config.devices.clone();
        self.with_devices(&devices, move |may_wait| opening.check_new(may_wait))?
    }

    /// Opens an unused device for an existing pool.
    pub(super) fn open_unused(&self, spec: &CacheSpec, opening: Opening) -> Result<Device, AdminError> {
        let wanted = spec.clone();
        let opened = self.with_devices(std::slice::from_ref(spec), move |may_wait| {
            let mut device = open_joining(may_wait, &wanted, opening.permit())?;
            let emulated = device.emulate(opening.config.tunables().emulate_cache);
            emulated.map_err(device_error).map(|()| device)
        })?;
        Ok(opened?)
    }

    /// Adds a device to a pool. Calls `begin` once nothing but a failing device can prevent that.
    /// On a failure, removes a file that was created for it.
    pub(super) fn join(
        &self,
        handle: &PoolHandle,
        spec: &CacheSpec,
        opening: Opening,
        begin: impl FnOnce() -> Result<(), AdminError>,
    ) -> Result<(), NotJoined> {
        let path = spec.path.clone();
        let is_there = self.places.within(&spec.path, WITHIN, move |_| path.exists());
        let is_there = is_there.map_err(|undone| undone.or(|| no_answer(&spec.path, WITHIN)))?;
        let (name, state_dir) = (opening.name.clone(), opening.state_dir.clone());
        let joined = self.open_unused(spec, opening).map_err(NotJoined::from).and_then(|device| {
            let bytes = device.size_bytes();
            ask(handle, move |pool| pool.may_join(bytes))??;
            begin()?;
            self.join_device((&name, &state_dir), handle, spec, device)
        });
        joined.inspect_err(|not| {
            if !is_there && not.is_certain {
                unmake(std::slice::from_ref(&spec.path));
            }
        })
    }

    pub(super) fn join_device(
        &self,
        (name, state_dir): (&str, &Path),
        handle: &PoolHandle,
        spec: &CacheSpec,
        device: Device,
    ) -> Result<(), NotJoined> {
        replaced::forget(&MayWait::here(), state_dir, name, &spec.path).map_err(AdminError::from)?;
        let random = forebay_pool::cache_device::random_uuid().map_err(AdminError::from)?;
        let tag = random.iter().fold(0, |tag: u64, byte| tag << 4 ^ u64::from(*byte)) | 1;
        let bytes = device.size_bytes();
        let (header, _) = ask(handle, move |pool| pool.header_to_join(tag, bytes))??;
        let written = self.with_devices(std::slice::from_ref(spec), move |may_wait| {
            forebay_pool::members::write_header(may_wait, &device, &header).map(|()| device)
        })?;
        let device = written.map_err(|error| AdminError::from(device_error(error)))?;
        // A pool that does not answer may nevertheless have it in its superblock.
        let unknown = |error| NotJoined { error, is_certain: false };
        let promise = ask(handle, move |pool| pool.add_member(device, &header)).map_err(unknown)?;
        Ok(promise.wait().ok_or_else(|| unknown(stopped()))??)
    }

    /// Runs `work`, which opens these devices, on a thread.
    pub(super) fn with_devices<T: Send + 'static>(
        &self,
        devices: &[CacheSpec],
        work: impl FnOnce(&MayWait) -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        let mut timeout = WITHIN;
        for spec in devices {
            let asked = spec.clone();
            let to_make =
                self.places.within(&spec.path, WITHIN, move |may_wait| bytes_to_make(may_wait, &asked));
            let to_make = to_make.map_err(|undone| undone.or(|| no_answer(&spec.path, WITHIN)))?;
            timeout += Duration::from_secs(to_make / MADE_BYTES_PER_S);
        }
        let Some(first) = devices.first() else { return Ok(work(&MayWait::here())) };
        let done = self.places.within(&first.path, timeout, work);
        done.map_err(|undone| undone.or(|| no_answer(&first.path, timeout)))
    }

    /// Returns why a device cannot be opened. A hanging device is not free either.
    pub(super) fn why_not_opened(&self, path: &Path) -> Option<&'static str> {
        match self.try_open(path) {
            Some(Err(DeviceError::InUse { .. })) | None => Some(HELD),
            Some(Err(DeviceError::Open { .. } | DeviceError::WriteProtected { .. })) => Some(UNOPENED),
            Some(_) => None,
        }
    }

    /// Returns which file or device is at a path; `None` if there is none, or that takes too long.
    pub(super) fn file_at(&self, path: &Path) -> Option<FileAt> {
        let wanted = path.to_owned();
        let look = move |_: &MayWait| {
            let file = std::fs::metadata(wanted).ok()?;
            Some(FileAt { file_system: file.dev(), inode: file.ino(), device: file.rdev() })
        };
        self.places.within(path, WITHIN, look).ok().flatten()
    }

    /// Returns the reason why the server of a network store cannot be reached now, as text for the
    /// alarm.
    pub(super) fn why_not_served(&self, address: &Path, export: &NbdBacking) -> Option<&'static str> {
        let export = export.clone();
        let served = self.places.within(address, WITHIN, move |may_wait| is_served(may_wait, &export));
        (!served.unwrap_or(false)).then_some(UNSERVED)
    }

    /// Returns true if another process holds a device.
    pub(super) fn is_anothers(&self, path: &Path) -> bool {
        matches!(self.try_open(path), Some(Err(DeviceError::InUse { holder, .. })) if holder != OWN)
    }

    /// Opens a device briefly; returns `None` if that takes too long, or there is no thread for it.
    fn try_open(&self, path: &Path) -> Option<Result<Device, DeviceError>> {
        let wanted = path.to_owned();
        let look = move |_: &MayWait| {
            Device::open_cache(&wanted, DeviceOptions { direct: false, ..DeviceOptions::default() })
        };
        self.places.within(path, WITHIN, look).ok()
    }
}

/// A file or device, to be recognised at its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileAt {
    file_system: u64,
    inode: u64,
    device: u64,
}

/// Removes cache files that were just created, and are empty.
pub(super) fn unmake(made: &[PathBuf]) {
    made.iter().for_each(|path| remove_made(path));
}
