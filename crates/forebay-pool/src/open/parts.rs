//! The cache devices of a pool, opened and checked.

use super::new_cache::NewCache;
use crate::cache_device::device_error;
use crate::error::RunError;
use crate::may_wait::MayWait;
use crate::members::MemberMap;
use crate::mirror_notes::Notes;
use forebay_config::CacheSpec;
use forebay_core::{CacheMark, MirrorDevices};
use forebay_crypt::CacheCipher;
use forebay_io::{Device, DeviceModel};
use std::path::{Path, PathBuf};

/// The cache devices of a pool, opened and checked.
#[derive(Debug)]
pub struct PoolParts {
    /// In the order of the pool's space.
    pub(crate) devices: Vec<Device>,
    /// Maps the pool's space to the devices.
    pub(crate) map: MemberMap,
    /// Bytes of the pool's space.
    pub(crate) pool_bytes: u64,
    /// Configured devices that the cache does not use yet.
    pub joining: Vec<CacheSpec>,
    /// Cipher of everything behind the superblocks.
    pub cipher: Option<CacheCipher>,
    /// Set if the cache was just created.
    pub new_cache: Option<NewCache>,
    /// Files that were just created for it.
    pub made: Vec<PathBuf>,
    /// The mark that it is known to have reached.
    pub(crate) known: CacheMark,
    /// Set if the cache is mirrored.
    pub(crate) mirror: Option<MirrorDevices>,
    /// The notes of a mirrored cache.
    pub(crate) mirror_notes: Option<Notes>,
    /// An empty device that replaces the member of a mirrored cache that is out.
    pub(crate) fresh: Option<Device>,
    /// Messages for the operator.
    pub(crate) notes: Vec<String>,
}

impl PoolParts {
    /// Puts a model in front of each device, or none.
    ///
    /// # Errors
    /// A device has no model of its size.
    pub fn emulate(&mut self, model: Option<DeviceModel>) -> Result<(), RunError> {
        let mut devices = self.devices.iter_mut().chain(&mut self.fresh);
        devices.try_for_each(|device| device.emulate(model)).map_err(device_error)
    }

    /// Closes the devices. Removes a cache that was just created on them.
    ///
    /// # Errors
    /// As [`NewCache::unmake`].
    pub fn unmake(self, may_wait: &MayWait, state_dir: &Path) -> Result<(), RunError> {
        let Self { new_cache, devices, .. } = self;
        drop(devices);
        new_cache.map_or(Ok(()), |new| new.unmake(may_wait, state_dir))
    }

    /// No cache device: the pool's cache has failed.
    pub fn none() -> Self {
        Self {
            devices: Vec::new(),
            map: MemberMap::single(),
            pool_bytes: 0,
            joining: Vec::new(),
            cipher: None,
            new_cache: None,
            made: Vec::new(),
            known: CacheMark::default(),
            mirror: None,
            mirror_notes: None,
            fresh: None,
            notes: Vec::new(),
        }
    }
}
