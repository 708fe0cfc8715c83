//! Opening devices, and making a cache where there is none yet.
//!
//! A cache is made only in a file that did not exist, or on a device whose beginning holds nothing but zeroes: data
//! that somebody put there is never written over.

use crate::error::RunError;
use crate::settings::Plan;
use crate::{RunEvent, RunOptions};
use forebay_core::{Attachment, FormatParams};
use forebay_export::size::ByteSize;
use forebay_format::checkpoint::{BackingRecord, NAME_BYTES_MAX, SAMPLES_MAX, VolumeEntry};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, Geometry, VolumeId};
use forebay_io::{Device, DeviceError, DeviceIdentity, DeviceKind, DeviceOptions};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The volume of `forebay run`.
pub(crate) const VOLUME: VolumeId = VolumeId(0);

/// How long a device that is in use is waited for, and how often it is tried.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Bytes at the start of a device that must be zero for it to be taken as unused.
const BLANK_BYTES: usize = 256 << 10;

/// Devices, opened and checked.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) cache: Device,
    pub(crate) backing: Device,
    pub(crate) attachment: Attachment,
    pub(crate) created: bool,
}

pub(crate) fn open(
    options: &RunOptions,
    plan: &Plan,
    report: &mut dyn FnMut(RunEvent),
) -> Result<Parts, RunError> {
    let backing = open_backing(options)?;
    let cache_path = &options.cache.path;
    let existed = cache_path.exists();
    if existed && is_same(cache_path, options.backing.path()) {
        return Err(RunError::failed(
            format!("cache and backing store are the same: {}", cache_path.display()),
            "give the cache a file or device of its own",
        ));
    }
    let attachment = attachment(plan, &backing, report)?;
    if !existed {
        create_file(options, plan, report)?;
    }
    let cache = patiently(|| Device::open_cache(cache_path, DeviceOptions::default()))?;
    let found = look(&cache);
    let created = match found {
        Found::Cache(geometry) => {
            check_size(options, &cache, geometry)?;
            false
        }
        Found::Blank => {
            let made = format(options, plan, &cache, &attachment);
            if made.is_err() && !existed {
                // Ours, and of no use: do not leave it in the way of the next attempt.
                let _ = std::fs::remove_file(cache_path);
            }
            made?;
            true
        }
        Found::Foreign(why) => return Err(foreign(cache_path, &why)),
    };
    for note in cache.notes().iter().chain(backing.notes()) {
        report(RunEvent::Note(note.clone()));
    }
    Ok(Parts { cache, backing, attachment, created })
}

fn open_backing(options: &RunOptions) -> Result<Device, RunError> {
    let wanted = DeviceOptions { emulate: options.emulate, ..DeviceOptions::default() };
    patiently(|| Device::open_backing(options.backing.path(), wanted.clone()))
}

/// Opens a device. One that is in use is tried again for a while: when a daemon was killed, the kernel still finishes the
/// operations that it had in flight, and holds its locks until then.
fn patiently(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, RunError> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match open() {
            Err(DeviceError::InUse { .. }) if Instant::now() < patience => std::thread::sleep(LOCK_PAUSE),
            other => return other.map_err(device_error),
        }
    }
}

/// A device error says itself what to do.
fn device_error(error: DeviceError) -> RunError {
    RunError::failed(error, "")
}

fn is_same(a: &Path, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b || same_inode(&a, &b),
        _ => false,
    }
}

fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino(), a.rdev()) == (b.dev(), b.ino(), b.rdev()),
        _ => false,
    }
}

fn attachment(
    plan: &Plan,
    backing: &Device,
    report: &mut dyn FnMut(RunEvent),
) -> Result<Attachment, RunError> {
    let size_bytes = backing.size_bytes() / 512 * 512;
    if size_bytes == 0 {
        return Err(RunError::failed(
            format!("the backing store {} is empty", backing.path().display()),
            "give it a size first, for example with: truncate -s 10G FILE",
        ));
    }
    if size_bytes != backing.size_bytes() {
        let left = backing.size_bytes() - size_bytes;
        report(RunEvent::Note(format!(
            "the last {left} bytes of {} are not served: its size is not a multiple of 512",
            backing.path().display()
        )));
    }
    let identity = backing.identity().map_err(device_error)?;
    let sector = if identity.kind == DeviceKind::Block { backing.logical_block_bytes() } else { 512 };
    if !matches!(sector, 512 | 4096) {
        return Err(RunError::failed(
            format!("{} has sectors of {sector} bytes", backing.path().display()),
            "backing stores must have sectors of 512 or 4096 bytes",
        ));
    }
    Ok(Attachment {
        volume: VOLUME,
        settings: plan.volume,
        size_bytes,
        backing: record(&identity, Vec::new()),
        backing_sector_bytes: sector,
    })
}

/// What the cache notes of a backing store to recognise it again.
fn record(identity: &DeviceIdentity, samples: Vec<(u64, u32)>) -> BackingRecord {
    BackingRecord {
        kind: match identity.kind {
            DeviceKind::File => 1,
            DeviceKind::Block => 2,
            DeviceKind::Special => 3,
        },
        size_bytes: identity.size_bytes,
        unique: [fnv(0xcbf2_9ce4_8422_2325, &identity.unique), fnv(0x9ae1_6a3b_2f90_404f, &identity.unique)],
        stamp_ns: identity.mtime_ns,
        samples,
    }
}

/// FNV-1a, 64 bits: the identity is a text of any length, the record has room for two numbers.
fn fnv(basis: u64, text: &str) -> u64 {
    text.bytes().fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What the backing store looks like now that nothing writes to it any more: for an orderly stop.
pub(crate) fn final_record(backing: &Device) -> Result<BackingRecord, DeviceError> {
    let blocks = backing.size_bytes() / BLOCK_BYTES as u64;
    let mut samples = Vec::new();
    let mut bytes = vec![0; BLOCK_BYTES];
    // The first blocks, where file systems keep what changes with every mount, and some spread over the rest.
    let wanted = (0..SAMPLES_MAX as u64)
        .map(|index| if index < 4 { index } else { blocks / SAMPLES_MAX as u64 * index + index * 7 % 13 });
    for block in wanted.filter(|block| *block < blocks) {
        backing.read_at(block * BLOCK_BYTES as u64, &mut bytes)?;
        samples.push((block, forebay_format::checksum(&bytes)));
    }
    Ok(record(&backing.identity()?, samples))
}

// --- the cache device

enum Found {
    Cache(Geometry),
    Blank,
    Foreign(String),
}

/// What is on a cache device. Damage behind the superblocks is for the engine to find.
fn look(cache: &Device) -> Found {
    let mut start = vec![0; BLANK_BYTES.min(cache.size_bytes() as usize)];
    if let Err(error) = cache.read_at(0, &mut start) {
        return Found::Foreign(error.to_string());
    }
    let copies = [0, 1].map(|copy| {
        let offset = Geometry::superblock_offset(copy) as usize;
        let missing = FormatError::Magic { structure: "superblock" };
        start.get(offset..offset + BLOCK_BYTES).map_or(Err(missing), Superblock::decode)
    });
    match Superblock::choose(copies) {
        Ok(superblock) => Found::Cache(superblock.geometry),
        Err(FormatError::Magic { .. }) if start.iter().all(|byte| *byte == 0) => Found::Blank,
        Err(error) => Found::Foreign(error.to_string()),
    }
}

fn foreign(path: &Path, why: &str) -> RunError {
    RunError::failed(
        format!("{} cannot be used as a cache: {why}", path.display()),
        format!(
            "if nothing on it is needed, erase it and try again: rm {0}, or for a device: wipefs -a {0} && \
             dd if=/dev/zero of={0} bs=256K count=1",
            path.display()
        ),
    )
}

fn create_file(options: &RunOptions, plan: &Plan, report: &mut dyn FnMut(RunEvent)) -> Result<(), RunError> {
    let path = &options.cache.path;
    let Some(size) = options.cache.size_bytes else {
        return Err(RunError::failed(
            format!("there is no cache file {}", path.display()),
            format!("to make one, give its size: --cache {}:10GiB", path.display()),
        ));
    };
    geometry(size, plan)?;
    match forebay_io::create_cache_file(path, size, plan.preallocate) {
        Err(DeviceError::CannotPreallocate { .. }) => {
            report(RunEvent::Note(format!(
                "the file system of {} cannot reserve space: the cache file is sparse",
                path.display()
            )));
            forebay_io::create_cache_file(path, size, false).map_err(device_error)
        }
        other => other.map_err(device_error),
    }
}

fn geometry(device_bytes: u64, plan: &Plan) -> Result<Geometry, RunError> {
    Geometry::for_device(device_bytes, plan.segment_blocks)
        .map_err(|error| RunError::failed(error, "give the cache more space, or smaller segments"))
}

fn check_size(options: &RunOptions, cache: &Device, geometry: Geometry) -> Result<(), RunError> {
    geometry.validate(cache.size_bytes()).map_err(|error| {
        RunError::failed(
            format!("cannot use the cache {}: {error}", cache.path().display()),
            "nothing was changed; with its full length restored it can be used again",
        )
    })?;
    let Some(wanted) = options.cache.size_bytes else { return Ok(()) };
    if cache.size_bytes() == wanted || cache.path().metadata().is_ok_and(|meta| !meta.is_file()) {
        return Ok(());
    }
    Err(RunError::failed(
        format!(
            "the cache {} has {}, not {} as given",
            cache.path().display(),
            ByteSize(cache.size_bytes()),
            ByteSize(wanted)
        ),
        "leave the size out to use the cache as it is; if it was cut short, restore its full length",
    ))
}

fn format(
    options: &RunOptions,
    plan: &Plan,
    cache: &Device,
    attachment: &Attachment,
) -> Result<(), RunError> {
    let bytes = options.cache.size_bytes.unwrap_or(u64::MAX).min(cache.size_bytes());
    let mut name = crate::export_name(&options.exports[0]).to_string();
    while name.len() > NAME_BYTES_MAX {
        name.pop();
    }
    let volume = VolumeEntry {
        id: VOLUME,
        mode: options.mode,
        name,
        size_bytes: attachment.size_bytes,
        uuid: random_uuid()?,
        flush_epoch: 0,
        backing: BackingRecord { stamp_ns: None, ..attachment.backing.clone() },
    };
    let params = FormatParams {
        geometry: geometry(bytes, plan)?,
        uuid: CacheUuid(random_uuid()?),
        volumes: vec![volume],
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        written_by: concat!("forebay ", env!("CARGO_PKG_VERSION")).into(),
    };
    let writes = forebay_core::format_cache(&params)
        .map_err(|error| RunError::failed(error, "choose another layout"))?;
    for (offset, bytes) in writes {
        cache.write_at(offset, &bytes).and_then(|()| cache.flush()).map_err(device_error)?;
    }
    Ok(())
}

fn random_uuid() -> Result<[u8; 16], RunError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| RunError::failed(format!("no random numbers from the kernel: {error}"), ""))?;
    // Version 4, variant 1 (RFC 9562).
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}
