//! Opening the devices of a pool, and deciding whether to open a cache or to create one.
//!
//! Files: `create` (a new cache), `joining` (whether others can join it), `new_cache` (removing one
//! again), `parts` (the opened devices), `mirrored` (a cache on two devices), `backing` (backing
//! stores), `again` (an unplugged one), `likeness` (whether one is the one that a cache has
//! recorded).

pub(crate) mod again;
mod backing;
mod blank;
mod create;
mod joining;
mod likeness;
mod mirrored;
mod new_cache;
mod parts;

pub use backing::{Backing, BackingOptions, is_served, open_backing};
pub(crate) use backing::{final_record, sample_blocks};
pub use blank::{erase_cache, is_blank};
pub(crate) use blank::{give_back, give_up, says_of};
pub use create::Making;
pub use likeness::{Likeness, is_same_file, likeness};
pub(crate) use mirrored::open_mirrored;
pub use new_cache::NewCache;
pub use parts::PoolParts;

use crate::cache_device::{
    foreign, is_cache, is_cut_off, is_same, new_params, remove_made, same_device, waiting_for_lock,
};
use crate::error::RunError;
use crate::failed_mark;
use crate::loss_record::Seen;
use crate::may_wait::MayWait;
use crate::members::{MemberMap, mend_headers};
use crate::mirror_notes::Notes;
use crate::register::Permit;
use blank::forget;
use create::{create_file, format, geometry, mirrored_geometry};
use forebay_admin::MessageId;
use forebay_admin::size::ByteSize;
use forebay_config::CacheSpec;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry};
use forebay_io::{Device, DeviceOptions};
use forebay_offline::device::{BLANK_BYTES, Found, look};
use forebay_offline::members::{open_members, read_copies};
use forebay_offline::{Key, unlock};
use std::path::{Path, PathBuf};

/// Inspects the first device of a pool without changing it.
pub fn seen(_: &MayWait, spec: &CacheSpec) -> Seen {
    if !spec.path.exists() || is_cut_off(spec) {
        return if spec.size_bytes.is_some() && spec.path.parent().is_some_and(Path::is_dir) {
            Seen::Blank
        } else {
            Seen::Unusable
        };
    }
    let Ok(device) = waiting_for_lock(|| Device::open_cache(&spec.path, DeviceOptions::default())) else {
        return Seen::Unusable;
    };
    match look(&device) {
        Found::Cache(superblock) => Seen::Cache(superblock.uuid),
        // A device that is too short is the rest of the failed one, not an empty one in its place.
        Found::Blank | Found::Begun
            if device.size_bytes() < spec.size_bytes.unwrap_or(0).max(BLANK_BYTES as u64) =>
        {
            Seen::Unusable
        }
        Found::Blank | Found::Begun => Seen::Blank,
        Found::Foreign(_) => Seen::Unusable,
    }
}

/// Checks whether a cache device answers at all; returns the size of the file to create if it does
/// not exist.
pub fn bytes_to_make(_: &MayWait, spec: &CacheSpec) -> u64 {
    if !spec.path.exists() {
        return spec.size_bytes.unwrap_or(0);
    }
    let options = DeviceOptions { read_only: true, lock: false, ..DeviceOptions::default() };
    // Opening the pool reports its errors.
    let device = Device::open_cache(&spec.path, options);
    let _ = device.map(|device| device.read_at(0, &mut [0; BLOCK_BYTES]));
    0
}

/// Checks that the key of a pool is that of its cache, while another process has it open.
///
/// # Errors
/// It is not. A cache that cannot be inspected is no error here.
pub fn check_key(_: &MayWait, spec: &CacheSpec, key: Option<&Key>) -> Result<(), RunError> {
    let options = DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
    let Ok(device) = Device::open_cache(&spec.path, options) else { return Ok(()) };
    match look(&device) {
        Found::Cache(superblock) => Ok(unlock(&superblock, key, &spec.path.display()).map(drop)?),
        Found::Blank | Found::Begun | Found::Foreign(_) => Ok(()),
    }
}

/// Opens the cache devices of a pool, or creates a cache on the first of them, which the others
/// will join.
///
/// # Errors
/// A device cannot be used; nothing on it was changed, and a file that was created for it is
/// removed.
pub fn open_caches(
    _: &MayWait,
    specs: &[CacheSpec],
    making: Making<'_>,
    state_dir: &Path,
) -> Result<PoolParts, RunError> {
    if making.mirror {
        return open_mirrored(specs, making, state_dir);
    }
    let Some((spec, others)) = specs.split_first() else {
        return Err(RunError::failed(
            MessageId::PoolNoDevice,
            "the pool has no device",
            "give it at least one",
        ));
    };
    let (path, existed) = (&spec.path, spec.path.exists() && !is_cut_off(spec));
    let mut notes = Vec::new();
    if !existed {
        making.check_make(specs)?;
        if let Some(bytes) = spec.size_bytes {
            joining::check_new(spec, others, &geometry(bytes, making)?, making)?;
        }
        create_file(spec, making, &mut notes)?;
    }
    let opened = open_or_make(specs, making, existed, notes);
    if opened.is_err() && !existed {
        // A useless file of ours must not obstruct the next attempt.
        remove_made(path);
    }
    opened
}

/// Opens the first device, which existed or was just created.
fn open_or_make(
    specs: &[CacheSpec],
    making: Making<'_>,
    existed: bool,
    mut notes: Vec<String>,
) -> Result<PoolParts, RunError> {
    let (spec, others) = (&specs[0], &specs[1..]);
    let path = &spec.path;
    let cache = waiting_for_lock(|| Device::open_cache(path, DeviceOptions::default()))?;
    notes.extend(cache.notes().iter().cloned());
    match look(&cache) {
        Found::Cache(superblock) => {
            failed_mark::check(&superblock, path)?;
            let known = making.check_open(&superblock, specs)?;
            let cipher = unlock(&superblock, making.key, &path.display())?;
            let parts = open_existing(spec, others, cache, &superblock, notes)?;
            joining::check(spec, &parts.joining, &superblock.geometry, &superblock.members, making)?;
            Ok(PoolParts { cipher, known, ..parts })
        }
        found @ (Found::Blank | Found::Begun) => {
            if existed {
                making.check_make(specs)?;
            }
            if matches!(found, Found::Blank) {
                making.check_empty(&cache)?;
            }
            let bytes = spec.size_bytes.unwrap_or(u64::MAX).min(cache.size_bytes());
            let geometry = geometry(bytes, making)?;
            if existed {
                joining::check_new(spec, others, &geometry, making)?;
            }
            make_on(specs, making, existed, (cache, geometry), notes)
        }
        Found::Foreign(why) => Err(foreign(&cache, &why)),
    }
}

/// Creates a cache on the first device.
fn make_on(
    specs: &[CacheSpec],
    making: Making<'_>,
    existed: bool,
    (cache, geometry): (Device, Geometry),
    notes: Vec<String>,
) -> Result<PoolParts, RunError> {
    let (params, others) = (new_params(geometry)?, &specs[1..]);
    let first = specs.iter().take(usize::from(!existed));
    let absent = first.chain(others.iter().filter(|spec| !spec.path.exists()));
    let files = absent.map(|spec| spec.path.clone()).collect();
    let new_cache = NewCache::new(params.uuid, specs, files);
    let cipher = match format(params, making, &cache) {
        Ok(cipher) => cipher,
        Err(error) => {
            // The operator gets the first error.
            let _ = forget(&MayWait::here(), &cache, cache.size_bytes());
            return Err(error);
        }
    };
    let (pool_bytes, joining, map) = (cache.size_bytes(), others.to_vec(), MemberMap::single());
    let made = new_cache.files().to_vec();
    let parts = PoolParts::none();
    let new_cache = Some(new_cache);
    Ok(PoolParts { devices: vec![cache], map, pool_bytes, joining, cipher, new_cache, made, notes, ..parts })
}

/// The first device holds a cache: the others are its members, and further configured devices will
/// join it.
fn open_existing(
    spec: &CacheSpec,
    others: &[CacheSpec],
    cache: Device,
    superblock: &Superblock,
    mut notes: Vec<String>,
) -> Result<PoolParts, RunError> {
    if superblock.mirror.is_some() {
        return Err(RunError::failed(
            MessageId::CacheHalfOfMirror,
            format!("{} is one of the two devices of a mirrored cache", spec.path.display()),
            "give both, and set mirror=on for the pool: forebay pool create NAME --mirror --device A --device B",
        ));
    }
    let members = superblock.members.tags().len().min(others.len());
    let mut devices = vec![cache];
    for other in &others[..members] {
        let device = waiting_for_lock(|| Device::open_cache(&other.path, DeviceOptions::default()))?;
        notes.extend(device.notes().iter().cloned());
        devices.push(device);
    }
    let headers = open_members(superblock, &devices[0], &devices[1..])?;
    notes.extend(mend_headers(&devices[1..], &headers));
    let map = MemberMap::new(&headers);
    // Of several devices each was checked to be long enough for its part.
    let pool_bytes = match devices.len() {
        1 => {
            check_size(spec, &devices[0], superblock.geometry, &mut notes)?;
            devices[0].size_bytes()
        }
        _ => superblock.geometry.device_blocks * BLOCK_BYTES as u64,
    };
    let joining = others[members..].to_vec();
    Ok(PoolParts { devices, map, pool_bytes, joining, notes, ..PoolParts::none() })
}

/// Opens a device that will join a pool: a new file, an empty device, or one of the pool's own that
/// its cache does not use.
///
/// # Errors
/// It is not empty, or cannot be used; nothing on it was changed, and a file that was created for
/// it is removed.
pub fn open_joining(_: &MayWait, spec: &CacheSpec, permit: Permit<'_>) -> Result<Device, RunError> {
    let making = Making { preallocate: true, permit: Some(permit), ..Making::default() };
    // A killed join can leave another header in each of its two places.
    let is_own =
        |device: &Device| read_copies(device).iter().flatten().any(|header| permit.is_own(header.uuid));
    open_unused(spec, making, &is_own)
}

/// Checks that a new cache can be created on these devices, all of them held open at once, while an
/// older cache is still in use: before anything is given up for it. Missing files are created.
///
/// # Errors
/// It cannot; nothing on the devices was changed, and created files are removed.
pub fn check_new(
    _: &MayWait,
    specs: &[CacheSpec],
    making: Making<'_>,
    state_dir: &Path,
) -> Result<(), RunError> {
    let mut made = Vec::new();
    let result = hold_new(specs, making, &mut made);
    let result = result.and_then(|()| if making.mirror { Notes::are_possible(state_dir) } else { Ok(()) });
    if result.is_err() {
        for path in made {
            remove_made(&path);
        }
    }
    result
}

fn hold_new(specs: &[CacheSpec], making: Making<'_>, made: &mut Vec<PathBuf>) -> Result<(), RunError> {
    let (mut held, mut bytes) = (Vec::<Device>::new(), u64::MAX);
    for spec in specs {
        if let Some(other) = held.iter().find(|other| is_same(other.path(), &spec.path)) {
            return Err(same_device(other.path(), &spec.path));
        }
        let existed = spec.path.exists();
        let device = open_unused(spec, making, &|_| false)?;
        if !existed {
            made.push(spec.path.clone());
        }
        bytes = bytes.min(spec.size_bytes.unwrap_or(u64::MAX)).min(device.size_bytes());
        held.push(device);
    }
    match making.mirror {
        true => mirrored_geometry(bytes, making),
        false => geometry(bytes, making),
    }
    .map(drop)
}

/// Opens an empty device, or creates a file.
fn open_unused(
    spec: &CacheSpec,
    making: Making<'_>,
    is_left_over: &dyn Fn(&Device) -> bool,
) -> Result<Device, RunError> {
    if !spec.path.exists() || is_cut_off(spec) {
        create_file(spec, making, &mut Vec::new())?;
    }
    let device = waiting_for_lock(|| Device::open_cache(&spec.path, DeviceOptions::default()))?;
    match look(&device) {
        Found::Blank => making.check_empty(&device).map(|()| device),
        Found::Begun => Ok(device),
        Found::Cache(_) => Err(is_cache(&spec.path, "a cache already")),
        // Left by a killed grow or shrink: the cache does not use it, or it would be in use.
        Found::Foreign(_) if is_left_over(&device) => Ok(device),
        Found::Foreign(why) => Err(foreign(&device, &why)),
    }
}

/// Checks that a cache is complete. A size other than the configured one is no reason to refuse it:
/// a grow or a shrink was possibly killed before the configuration had the new one.
fn check_size(
    spec: &CacheSpec,
    cache: &Device,
    geometry: Geometry,
    notes: &mut Vec<String>,
) -> Result<(), RunError> {
    geometry.validate(cache.size_bytes()).map_err(|error| {
        RunError::failed(
            crate::message::of_cut(&error),
            format!("cannot use the cache {}: {error}", cache.path().display()),
            "nothing was changed; it can be used again once its full length is restored",
        )
    })?;
    let wanted = spec.size_bytes.filter(|wanted| *wanted != cache.size_bytes());
    if let Some(wanted) = wanted.filter(|_| cache.path().metadata().is_ok_and(|meta| meta.is_file())) {
        notes.push(format!(
            "the cache {} has {}, not {} as given: it is complete, and used as it is",
            cache.path().display(),
            ByteSize(cache.size_bytes()),
            ByteSize(wanted)
        ));
    }
    Ok(())
}
