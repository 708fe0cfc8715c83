//! Opens cache devices, which may hang: on threads, with a time limit.
//!
//! It first checks that each device answers, so that messages name the one that does not; then it
//! opens all of them. A device opened too late is closed again, and files created for it are
//! removed.

use super::errors::{no_answer, stopped};
use super::pool_query::ask;
use super::records::{Allowed, unmake};
use super::{Service, pools};
use forebay_admin::{AdminError, MessageId};
use forebay_config::CacheSpec;
use forebay_config::PoolConfig;
use forebay_config::choices::{CacheAllocation, Mirror};
use forebay_io::Device;
use forebay_offline::Key;
use forebay_pool::MayWait;
use forebay_pool::PoolHandle;
use forebay_pool::RunError;
use forebay_pool::cache_device::device_error;
use forebay_pool::encryption::read_key;
use forebay_pool::loss_record::LossRecord;
use forebay_pool::open::{Making, PoolParts, bytes_to_make, check_new, open_caches, open_joining};
use forebay_pool::register::Permit;
use forebay_pool::replaced;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for opening and checking cache devices.
const WITHIN: Duration = Duration::from_secs(20);
/// A file to be created gets additional time to reserve its space, at this rate.
const MADE_BYTES_PER_S: u64 = 64 << 20;

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
        let without_cache = pools::failed_before(self)?;
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

impl Service {
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

    /// Adds a device to a pool. On a failure, removes a file that was created for it.
    pub(super) fn join(
        &self,
        handle: &PoolHandle,
        spec: &CacheSpec,
        opening: Opening,
    ) -> Result<(), NotJoined> {
        let path = spec.path.clone();
        let is_there = self.places.within(&spec.path, WITHIN, move |_| path.exists());
        let is_there = is_there.map_err(|undone| undone.or(|| no_answer(&spec.path, WITHIN)))?;
        let name = opening.name.clone();
        let device = self.open_unused(spec, opening)?;
        self.join_device(&name, handle, spec, device).inspect_err(|not| {
            if !is_there && not.is_certain {
                unmake(std::slice::from_ref(&spec.path));
            }
        })
    }

    pub(super) fn join_device(
        &self,
        name: &str,
        handle: &PoolHandle,
        spec: &CacheSpec,
        device: Device,
    ) -> Result<(), NotJoined> {
        let state_dir = self.catalog.state_dir();
        replaced::forget(&MayWait::here(), &state_dir, name, &spec.path).map_err(AdminError::from)?;
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
}
