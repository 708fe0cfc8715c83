//! Opening devices, and making a cache where there is none yet.
//!
//! A cache is made only in a file that did not exist, or, if the operator says so, on a device whose beginning holds nothing but zeroes:
//! data that somebody put there is never written over. What is recorded of caches (`register`) is asked before one is made or opened.

use crate::CacheSpec;
use crate::encryption::{Key, unlock};
use crate::error::RunError;
use crate::failed_mark;
use crate::loss_record::Seen;
use crate::mates::Notes;
use crate::members::{MemberMap, mend_headers, open_members, read_copies};
use crate::register::Permit;
use forebay_core::{CacheMark, FormatParams, MirrorDevices};
use forebay_crypt::CacheCipher;
use forebay_export::size::ByteSize;
use forebay_export::uri::BackingUri;
use forebay_format::checkpoint::{BackingRecord, SAMPLES_MAX};
use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::superblock::{Superblock, being_made};
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, Geometry};
use forebay_io::{Device, DeviceError, DeviceIdentity, DeviceKind, DeviceOptions, DiskModel};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a device that is in use is waited for, and how often it is tried.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A new cache file leaves one part in so many of its file system free, or the operator is asked.
const LEAST_FREE: u64 = 10;

/// Bytes at the start of a device that must be zero for it to be taken as unused.
const BLANK_BYTES: usize = 256 << 10;

/// From the first block to here a device that is being made or filled is empty.
const UNUSED_UNTIL: usize = CHECKPOINT_START_BLOCK as usize * BLOCK_BYTES;

/// How to make a cache where there is none, and the key of one that there is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Making<'a> {
    /// Blocks of a segment; chosen by the size of the cache if `None`.
    pub(crate) segment_blocks: Option<u32>,
    /// Reserve the space of a new file.
    pub(crate) preallocate: bool,
    /// What only the cache has lies on both of its two devices.
    pub(crate) mirror: bool,
    /// The cache is encrypted with it.
    pub(crate) key: Option<&'a Key>,
    /// What is recorded of caches, and what the operator allows. Without it everything is allowed.
    pub(crate) permit: Option<Permit<'a>>,
}

impl Making<'_> {
    /// Whether a cache may be made on these devices, which have none.
    ///
    /// # Errors
    /// One is recorded.
    pub(crate) fn check_make(&self, specs: &[CacheSpec]) -> Result<(), RunError> {
        self.permit.map_or(Ok(()), |permit| permit.make(specs))
    }

    /// Whether a device that is there may be taken, although it is no cache.
    ///
    /// # Errors
    /// Nobody has said so.
    pub(crate) fn check_empty(&self, path: &Path) -> Result<(), RunError> {
        self.permit.map_or(Ok(()), |permit| permit.take_empty(path))
    }

    /// Whether a cache may be opened; how far it must have come.
    ///
    /// # Errors
    /// What is recorded is against it.
    pub(crate) fn check_open(&self, found: &Superblock, specs: &[CacheSpec]) -> Result<CacheMark, RunError> {
        self.permit.map_or_else(|| Ok(CacheMark::default()), |permit| permit.open(found, specs))
    }
}

/// The cache devices of a pool, opened and checked.
#[derive(Debug)]
pub(crate) struct PoolParts {
    /// In the order of the pool's space.
    pub(crate) devices: Vec<Device>,
    /// What lies on which.
    pub(crate) map: MemberMap,
    /// Bytes of the pool's space.
    pub(crate) pool_bytes: u64,
    /// Devices that are configured but that the cache does not lie on yet.
    pub(crate) joining: Vec<CacheSpec>,
    /// Everything behind the superblocks is encrypted.
    pub(crate) cipher: Option<CacheCipher>,
    /// It was made just now.
    pub(crate) created: bool,
    /// Files that were made for it just now.
    pub(crate) made: Vec<PathBuf>,
    /// How far it is known to have come.
    pub(crate) known: CacheMark,
    /// The cache is mirrored.
    pub(crate) mirror: Option<MirrorDevices>,
    /// The notes of a mirrored cache.
    pub(crate) mates: Option<Notes>,
    /// An empty device that takes the place of the member of a mirrored cache that is out.
    pub(crate) fresh: Option<Device>,
    /// What the operator should know.
    pub(crate) notes: Vec<String>,
}

impl PoolParts {
    /// No cache device: the pool's cache has failed.
    pub(crate) fn none() -> Self {
        Self {
            devices: Vec::new(),
            map: MemberMap::single(),
            pool_bytes: 0,
            joining: Vec::new(),
            cipher: None,
            created: false,
            made: Vec::new(),
            known: CacheMark::default(),
            mirror: None,
            mates: None,
            fresh: None,
            notes: Vec::new(),
        }
    }
}

/// What is on the first device of a pool, without changing it.
pub(crate) fn seen(spec: &CacheSpec) -> Seen {
    if !spec.path.exists() {
        return if spec.size_bytes.is_some() && spec.path.parent().is_some_and(Path::is_dir) {
            Seen::Blank
        } else {
            Seen::Unusable
        };
    }
    let Ok(device) = patiently(|| Device::open_cache(&spec.path, DeviceOptions::default())) else {
        return Seen::Unusable;
    };
    match look(&device) {
        Found::Cache(superblock) => Seen::Cache(superblock.uuid),
        // A device that has ended is what is left of the one that failed, not an empty one in its place.
        Found::Blank | Found::Begun
            if device.size_bytes() < spec.size_bytes.unwrap_or(0).max(BLANK_BYTES as u64) =>
        {
            Seen::Unusable
        }
        Found::Blank | Found::Begun => Seen::Blank,
        Found::Foreign(_) => Seen::Unusable,
    }
}

/// Asks a cache device whether it answers, in whatever way; gives the bytes of the file that is to be made if nothing is there.
pub(crate) fn bytes_to_make(spec: &CacheSpec) -> u64 {
    if !spec.path.exists() {
        return spec.size_bytes.unwrap_or(0);
    }
    let options = DeviceOptions { read_only: true, lock: false, ..DeviceOptions::default() };
    // What is wrong with it is said by who opens it.
    let device = Device::open_cache(&spec.path, options);
    let _ = device.map(|device| device.read_at(0, &mut [0; BLOCK_BYTES]));
    0
}

/// Whether the key of a pool is that of its cache, while somebody else has it open.
///
/// # Errors
/// It is not. A cache that cannot be looked at is no error here.
pub(crate) fn check_key(spec: &CacheSpec, key: Option<&Key>) -> Result<(), RunError> {
    let options = DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
    let Ok(device) = Device::open_cache(&spec.path, options) else { return Ok(()) };
    match look(&device) {
        Found::Cache(superblock) => unlock(&superblock, key, &spec.path.display()).map(drop),
        Found::Blank | Found::Begun | Found::Foreign(_) => Ok(()),
    }
}

/// Makes a device that no pool uses forget that it was a cache.
///
/// # Errors
/// It cannot be opened or written.
pub(crate) fn erase_cache(path: &Path) -> Result<(), RunError> {
    let device = patiently(|| Device::open_cache(path, DeviceOptions::default()))?;
    for copy in [0, 1] {
        device.write_at(Geometry::superblock_offset(copy), &[0; BLOCK_BYTES]).map_err(device_error)?;
    }
    device.flush().map_err(device_error)
}

/// Opens the cache devices of a pool, or makes a cache on the first of them, which the others are to join.
///
/// # Errors
/// A device cannot be used; nothing on it was changed, and a file that was made for it is gone again.
pub(crate) fn open_caches(
    specs: &[CacheSpec],
    making: Making<'_>,
    state_dir: &Path,
) -> Result<PoolParts, RunError> {
    if making.mirror {
        return crate::mates::open_mirrored(specs, making, state_dir);
    }
    let Some((spec, others)) = specs.split_first() else {
        return Err(RunError::failed("the pool has no device", "give it at least one"));
    };
    let mut notes = Vec::new();
    let path = &spec.path;
    let existed = path.exists() && !is_cut_off(spec);
    if !existed {
        making.check_make(specs)?;
        create_file(spec, making, &mut notes)?;
    }
    let cache = patiently(|| Device::open_cache(path, DeviceOptions::default()))?;
    notes.extend(cache.notes().iter().cloned());
    match look(&cache) {
        Found::Cache(superblock) => {
            failed_mark::check(&superblock, path)?;
            let known = making.check_open(&superblock, specs)?;
            let cipher = unlock(&superblock, making.key, &path.display())?;
            let parts = open_existing(spec, others, cache, &superblock, notes)?;
            Ok(PoolParts { cipher, known, ..parts })
        }
        found @ (Found::Blank | Found::Begun) => {
            if existed {
                making.check_make(specs)?;
            }
            if matches!(found, Found::Blank) {
                making.check_empty(path)?;
            }
            let made = format(spec, making, &cache);
            if made.is_err() && !existed {
                // Ours, and of no use: do not leave it in the way of the next attempt.
                let _ = std::fs::remove_file(path);
            }
            let cipher = made?;
            let (pool_bytes, joining) = (cache.size_bytes(), others.to_vec());
            let map = MemberMap::single();
            let parts = PoolParts::none();
            Ok(PoolParts {
                devices: vec![cache],
                map,
                pool_bytes,
                joining,
                cipher,
                created: true,
                made: if existed { Vec::new() } else { vec![path.clone()] },
                notes,
                ..parts
            })
        }
        Found::Foreign(why) => Err(foreign(path, &why)),
    }
}

/// The first device is a cache: the others are its members, and what is configured beyond them is to join it.
fn open_existing(
    spec: &CacheSpec,
    others: &[CacheSpec],
    cache: Device,
    superblock: &Superblock,
    mut notes: Vec<String>,
) -> Result<PoolParts, RunError> {
    if superblock.mirror.is_some() {
        return Err(RunError::failed(
            format!("{} is one of the two devices of a mirrored cache", spec.path.display()),
            "give both, and set mirror=on for the pool: forebay pool create NAME --mirror --device A --device B",
        ));
    }
    let members = superblock.members.tags().len().min(others.len());
    let mut devices = vec![cache];
    for other in &others[..members] {
        let device = patiently(|| Device::open_cache(&other.path, DeviceOptions::default()))?;
        notes.extend(device.notes().iter().cloned());
        devices.push(device);
    }
    let headers = open_members(superblock, &devices[0], &devices[1..])?;
    notes.extend(mend_headers(&devices[1..], &headers));
    let map = MemberMap::new(&headers);
    // Of several devices each was found to be long enough for its part.
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

/// Opens a device that is to join a pool: a new file, a device that holds nothing, or one of the pool's own that its cache does not lie on.
///
/// # Errors
/// It holds something, or cannot be used; nothing on it was changed, and a file that was made for it is gone again.
pub(crate) fn open_joining(spec: &CacheSpec, permit: Permit<'_>) -> Result<Device, RunError> {
    let making = Making { preallocate: true, permit: Some(permit), ..Making::default() };
    // A join that was killed may have left another header in each of its two places.
    let is_own =
        |device: &Device| read_copies(device).iter().flatten().any(|header| permit.is_own(header.uuid));
    open_unused(spec, making, &is_own)
}

/// Checks that a new cache can be made on these devices, all of them held open at once, while an older cache is still in use: before anything
/// is given up for it. Files that are not there are made.
///
/// # Errors
/// It cannot; nothing on the devices was changed, and files that were made are gone again.
pub(crate) fn check_new(specs: &[CacheSpec], making: Making<'_>, state_dir: &Path) -> Result<(), RunError> {
    let mut made = Vec::new();
    let result = hold_new(specs, making, &mut made);
    let result = result.and_then(|()| if making.mirror { Notes::are_possible(state_dir) } else { Ok(()) });
    if result.is_err() {
        for path in made {
            let _ = std::fs::remove_file(path);
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

/// Opens a device that holds nothing, or makes a file.
fn open_unused(
    spec: &CacheSpec,
    making: Making<'_>,
    is_left_over: &dyn Fn(&Device) -> bool,
) -> Result<Device, RunError> {
    if !spec.path.exists() || is_cut_off(spec) {
        create_file(spec, making, &mut Vec::new())?;
    }
    let device = patiently(|| Device::open_cache(&spec.path, DeviceOptions::default()))?;
    match look(&device) {
        Found::Blank => making.check_empty(&spec.path).map(|()| device),
        Found::Begun => Ok(device),
        Found::Cache(_) => Err(foreign(&spec.path, "it is a cache already")),
        // Half of a grow, or of a shrink, that was killed: the cache does not lie on it, or it would be in use.
        Found::Foreign(_) if is_left_over(&device) => Ok(device),
        Found::Foreign(why) => Err(foreign(&spec.path, &why)),
    }
}

/// A backing store, opened and looked at.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) device: Device,
    /// Bytes that can be served.
    pub(crate) size_bytes: u64,
    /// Smallest unit that it writes.
    pub(crate) sector_bytes: u32,
    /// What identifies it.
    pub(crate) record: BackingRecord,
    /// What the operator should know.
    pub(crate) notes: Vec<String>,
}

/// Opens a backing store.
///
/// # Errors
/// It is not there, in use, empty, or has sectors of a size that is not supported.
pub(crate) fn open_backing(uri: &BackingUri, emulate: Option<DiskModel>) -> Result<Backing, RunError> {
    let wanted = DeviceOptions { emulate, ..DeviceOptions::default() };
    let device = patiently(|| Device::open_backing(uri.path(), wanted.clone()))?;
    let size_bytes = device.size_bytes() / 512 * 512;
    if size_bytes == 0 {
        return Err(RunError::failed(
            format!("the backing store {} is empty", device.path().display()),
            "give it a size first, for example with: truncate -s 10G FILE",
        ));
    }
    let mut notes = device.notes().to_vec();
    if size_bytes != device.size_bytes() {
        let left = device.size_bytes() - size_bytes;
        notes.push(format!(
            "the last {left} bytes of {} are not served: its size is not a multiple of 512",
            device.path().display()
        ));
    }
    let identity = device.identity().map_err(device_error)?;
    let sector_bytes = if identity.kind == DeviceKind::Block { device.logical_block_bytes() } else { 512 };
    if !matches!(sector_bytes, 512 | 4096) {
        return Err(RunError::failed(
            format!("{} has sectors of {sector_bytes} bytes", device.path().display()),
            "backing stores must have sectors of 512 or 4096 bytes",
        ));
    }
    let record = record(&identity, Vec::new());
    Ok(Backing { device, size_bytes, sector_bytes, record, notes })
}

/// True if both paths lead to the same file or device.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b || same_inode(&a, &b),
        _ => false,
    }
}

/// Opens a device. One that is in use is tried again for a while: when a daemon was killed, the kernel still finishes the
/// operations that it had in flight, and holds its locks until then.
pub(crate) fn wait_for(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, DeviceError> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match open() {
            Err(DeviceError::InUse { .. }) if Instant::now() < patience => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
}

fn patiently(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, RunError> {
    wait_for(open).map_err(device_error)
}

/// A device error says itself what to do.
pub(crate) fn device_error(error: DeviceError) -> RunError {
    RunError::failed(error, "")
}

fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino(), a.rdev()) == (b.dev(), b.ino(), b.rdev()),
        _ => false,
    }
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

/// Blocks that speak for a backing store: the first ones, where file systems keep what changes with every mount, and some spread
/// over the rest.
pub(crate) fn sample_blocks(size_bytes: u64) -> impl Iterator<Item = u64> {
    let blocks = size_bytes / BLOCK_BYTES as u64;
    let wanted = (0..SAMPLES_MAX as u64).map(move |index| {
        if index < 4 { index } else { blocks / SAMPLES_MAX as u64 * index + index * 7 % 13 }
    });
    wanted.filter(move |block| *block < blocks)
}

/// What the backing store looks like now that nothing writes to it any more: for an orderly stop. `blocks` are those of
/// [`sample_blocks`] that hold what the cache believes: only those speak for it.
pub(crate) fn final_record(backing: &Device, blocks: &[u64]) -> Result<BackingRecord, DeviceError> {
    let mut samples = Vec::new();
    let mut bytes = vec![0; BLOCK_BYTES];
    for block in blocks {
        backing.read_at(block * BLOCK_BYTES as u64, &mut bytes)?;
        samples.push((*block, forebay_format::checksum(&bytes)));
    }
    Ok(record(&backing.identity()?, samples))
}

// --- the cache device

pub(crate) enum Found {
    Cache(Box<Superblock>),
    /// Its beginning is zero.
    Blank,
    /// A cache was being made on it, or it was being filled as one of a mirrored cache: nothing on it counts.
    Begun,
    Foreign(String),
}

/// What is on a cache device. Damage behind the superblocks is for the engine to find.
pub(crate) fn look(cache: &Device) -> Found {
    let mut start = vec![0; BLANK_BYTES.min(cache.size_bytes() as usize)];
    if let Err(error) = cache.read_at(0, &mut start) {
        return Found::Foreign(error.to_string());
    }
    let copies = [0, 1].map(|copy| {
        let offset = Geometry::superblock_offset(copy) as usize;
        let missing = FormatError::Magic { structure: "superblock" };
        start.get(offset..offset + BLOCK_BYTES).map_or(Err(missing), Superblock::decode)
    });
    // Between the two superblocks there is nothing, unless somebody else has put it there.
    let is_zero = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    let begun = start.starts_with(&being_made()) && is_zero(start.get(BLOCK_BYTES..UNUSED_UNTIL));
    match Superblock::choose(copies) {
        Err(FormatError::Magic { .. }) if begun => Found::Begun,
        Ok(superblock) => Found::Cache(Box::new(superblock)),
        Err(FormatError::Magic { .. }) if start.iter().all(|byte| *byte == 0) => Found::Blank,
        Err(error) => Found::Foreign(error.to_string()),
    }
}

pub(crate) fn foreign(path: &Path, why: &str) -> RunError {
    RunError::failed(
        format!("{} cannot be used as a cache: {why}", path.display()),
        format!(
            "if nothing on it is needed, erase it and try again: rm {0}, or for a device: wipefs -a {0} && \
             dd if=/dev/zero of={0} bs=256K count=1",
            path.display()
        ),
    )
}

/// A file that was being made when its daemon was killed, and has not got its size yet. There is nothing in it.
pub(crate) fn is_cut_off(spec: &CacheSpec) -> bool {
    let (Ok(file), Some(size)) = (std::fs::symlink_metadata(&spec.path), spec.size_bytes) else {
        return false;
    };
    let begun = || {
        let mut start = Vec::new();
        let read = std::fs::File::open(&spec.path).and_then(|mut file| file.read_to_end(&mut start));
        read.is_ok() && being_made().starts_with(&start)
    };
    file.is_file() && file.len() < size && file.len() <= BLOCK_BYTES as u64 && begun()
}

/// Says on an empty device that it is going to be a cache: whoever finds it after a crash need not be asked for it again.
///
/// # Errors
/// It cannot be written.
pub(crate) fn begin_on(device: &Device) -> Result<(), RunError> {
    let begun = device.write_at(Geometry::superblock_offset(0), &being_made());
    begun.and_then(|()| device.flush()).map_err(device_error)
}

/// Makes a cache file.
///
/// # Errors
/// It has no size, or cannot be made.
pub(crate) fn create_file(
    spec: &CacheSpec,
    making: Making<'_>,
    notes: &mut Vec<String>,
) -> Result<(), RunError> {
    let path = &spec.path;
    let Some(size) = spec.size_bytes else {
        return Err(RunError::failed(
            format!("there is no cache file {}", path.display()),
            format!("to make one, give its size: {}:10GiB", path.display()),
        ));
    };
    geometry(size, making)?;
    notes.push(check_room(path, size, making)?);
    if is_cut_off(spec) {
        std::fs::remove_file(path)
            .map_err(|error| RunError::failed(format!("cannot remove {}: {error}", path.display()), ""))?;
    }
    match forebay_io::create_cache_file(path, size, making.preallocate, &being_made()) {
        Err(DeviceError::CannotPreallocate { .. }) => {
            notes.push(format!(
                "the file system of {} cannot reserve space: the cache file is sparse",
                path.display()
            ));
            forebay_io::create_cache_file(path, size, false, &being_made()).map_err(device_error)
        }
        other => other.map_err(device_error),
    }
}

/// Whether a file of this size leaves room on its file system; says what was understood.
///
/// # Errors
/// The file system would be nearly full, and nobody has allowed that.
fn check_room(path: &Path, size_bytes: u64, making: Making<'_>) -> Result<String, RunError> {
    let gib = |bytes: u64| match bytes >> 30 {
        0 => format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64),
        _ => format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64),
    };
    let mut what =
        format!("the cache file {} is to have {size_bytes} bytes ({})", path.display(), gib(size_bytes));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Who cannot be asked says so when the file is made.
    let Ok(there) = rustix::fs::statvfs(folder) else { return Ok(what) };
    let (all, free) =
        (there.f_blocks.saturating_mul(there.f_frsize), there.f_bavail.saturating_mul(there.f_frsize));
    what += &format!("; of {} on its file system {} are free", gib(all), gib(free));
    if free.saturating_sub(size_bytes) >= all / LEAST_FREE {
        return Ok(what);
    }
    if !making.preallocate {
        return Ok(what + ": it is sparse, and fails when the file system is full");
    }
    match making.permit {
        Some(permit) if !permit.force => Err(RunError::failed(
            format!("{what}: less than a tenth of the file system would be left"),
            format!("give a smaller size, or allow it: {}", permit.again("--force")),
        )),
        _ => Ok(what + ": it will be nearly full"),
    }
}

fn geometry(device_bytes: u64, making: Making<'_>) -> Result<Geometry, RunError> {
    Geometry::for_device(device_bytes, making.segment_blocks)
        .map_err(|error| RunError::failed(error, "give the cache more space, or smaller segments"))
}

/// How a mirrored cache is divided on two devices of so many bytes each.
///
/// # Errors
/// They are too small.
pub(crate) fn mirrored_geometry(bytes: u64, making: Making<'_>) -> Result<Geometry, RunError> {
    Geometry::mirrored(bytes, making.segment_blocks).map_err(|error| {
        RunError::failed(error, "give larger devices, or make segment_size of the pool smaller")
    })
}

/// The two devices of a mirrored cache are one.
pub(crate) fn same_device(a: &Path, b: &Path) -> RunError {
    RunError::failed(
        format!("{} and {} are the same device", a.display(), b.display()),
        "a mirrored cache needs two that do not fail together",
    )
}

/// Checks that a cache is whole. Another size than was given is no reason to refuse it: a grow or a shrink may have been killed before the
/// configuration had the new one.
fn check_size(
    spec: &CacheSpec,
    cache: &Device,
    geometry: Geometry,
    notes: &mut Vec<String>,
) -> Result<(), RunError> {
    geometry.validate(cache.size_bytes()).map_err(|error| {
        RunError::failed(
            format!("cannot use the cache {}: {error}", cache.path().display()),
            "nothing was changed; with its full length restored it can be used again",
        )
    })?;
    let wanted = spec.size_bytes.filter(|wanted| *wanted != cache.size_bytes());
    if let Some(wanted) = wanted.filter(|_| cache.path().metadata().is_ok_and(|meta| meta.is_file())) {
        notes.push(format!(
            "the cache {} has {}, not {} as given: it is whole, and used as it is",
            cache.path().display(),
            ByteSize(cache.size_bytes()),
            ByteSize(wanted)
        ));
    }
    Ok(())
}

fn format(spec: &CacheSpec, making: Making<'_>, cache: &Device) -> Result<Option<CacheCipher>, RunError> {
    let bytes = spec.size_bytes.unwrap_or(u64::MAX).min(cache.size_bytes());
    let params = new_params(geometry(bytes, making)?)?;
    let (cipher, encryption) = making.key.map(|key| key.of_cache(params.uuid)).unzip();
    let params = FormatParams { encryption, ..params };
    let writes = forebay_core::format_cache(&params)
        .map_err(|error| RunError::failed(error, "choose another layout"))?;
    for (offset, mut bytes) in writes {
        if let Some(cipher) = &cipher {
            cipher.seal(offset, &mut bytes);
        }
        cache.write_at(offset, &bytes).and_then(|()| cache.flush()).map_err(device_error)?;
    }
    Ok(cipher)
}

/// A new cache without volumes.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn new_params(geometry: Geometry) -> Result<FormatParams, RunError> {
    Ok(FormatParams {
        geometry,
        uuid: CacheUuid(random_uuid()?),
        encryption: None,
        volumes: Vec::new(),
        members: forebay_format::Members::default(),
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        written_by: concat!("forebay ", env!("CARGO_PKG_VERSION")).into(),
    })
}

pub(crate) fn random_uuid() -> Result<[u8; 16], RunError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| RunError::failed(format!("no random numbers from the kernel: {error}"), ""))?;
    // Version 4, variant 1 (RFC 9562).
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}
