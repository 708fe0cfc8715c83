//! Writing the settings of a pool onto its closed cache: the last step of an export before the
//! change of the configuration.

use crate::cache_device::{device_error, waiting_for_lock};
use crate::error::RunError;
use crate::loss_record::unix_s;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_format::settings_copy::{SETTINGS_BLOCKS, SETTINGS_MAC_BYTES, SETTINGS_TEXT_MAX};
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, CacheUuid, SettingsCopy};
use forebay_io::{Device, DeviceOptions};
use forebay_offline::Key;
use forebay_offline::device::{Found, look};
use forebay_offline::key::unlock;
use std::path::PathBuf;

/// Checks that a text fits, before anything is stopped for it.
///
/// # Errors
/// It does not fit.
pub fn check_length(text: &str) -> Result<(), RunError> {
    let len = text.len();
    if len <= SETTINGS_TEXT_MAX {
        return Ok(());
    }
    Err(RunError::failed(
        MessageId::PoolSettingsTooLong,
        format!(
            "the settings of the pool and its volumes take {len} bytes, but the cache has room for \
             {SETTINGS_TEXT_MAX}"
        ),
        "nothing was stopped; rules usually take most of it: remove some, and add them again on the other \
         host (`forebay rules`), or move without an export: stop the daemon, and `forebay pool create` there",
    ))
}

/// Writes the settings onto the first device of a closed cache, or onto each current device of a
/// mirrored one, signed with the key of an encrypted one.
///
/// # Errors
/// The cache was not closed in an orderly way, the key is not its key, or a device cannot be
/// written.
pub fn write(
    _: &MayWait,
    cache: CacheUuid,
    devices: &[PathBuf],
    text: &str,
    key: Option<&Key>,
) -> Result<(), RunError> {
    check_length(text)?;
    let mut found: Vec<(Device, Superblock)> = Vec::new();
    let mut failed = None;
    for path in devices {
        match waiting_for_lock(|| Device::open_cache(path, DeviceOptions::default())) {
            // Further devices of a cache have no superblock.
            Ok(device) => match look(&device) {
                Found::Cache(superblock) if superblock.uuid == cache => found.push((device, *superblock)),
                _ => {}
            },
            // A device of a mirrored cache that is out can be missing.
            Err(error) => failed = Some(error),
        }
    }
    let newest = found.iter().map(|(_, superblock)| superblock.generation).max();
    found.retain(|(_, superblock)| Some(superblock.generation) == newest);
    let Some((_, superblock)) = found.first() else {
        return Err(failed.unwrap_or_else(|| {
            RunError::failed(MessageId::CacheNotACache, "no device has the superblock of the cache", "")
        }));
    };
    if superblock.state != CacheState::Clean {
        let what = "the cache was not closed in an orderly way: a device did not answer, or failed";
        return Err(RunError::failed(MessageId::CacheNotClean, what, "see the log of the daemon"));
    }
    unlock(superblock, key, &shown(devices))?;
    let mut copy = SettingsCopy {
        uuid: cache,
        generation: superblock.generation,
        exported_unix_s: unix_s(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        written_by: concat!("forebay ", env!("CARGO_PKG_VERSION")).into(),
        mac: [0; SETTINGS_MAC_BYTES],
        text: text.into(),
    };
    if let Some(key) = key {
        key.sign(&mut copy);
    }
    let bytes = copy.encode();
    for (device, _) in &found {
        for block in SETTINGS_BLOCKS {
            let written = device.write_at(block * BLOCK_BYTES as u64, &bytes);
            written.and_then(|()| device.flush()).map_err(device_error)?;
        }
    }
    Ok(())
}

fn shown(devices: &[PathBuf]) -> String {
    devices.iter().map(|device| device.display().to_string()).collect::<Vec<_>>().join(", ")
}
