//! The register: the daemon's record of each cache, kept outside of the cache devices. It prevents
//! a missing cache from being recreated, and an older copy from being taken for the cache.
//!
//! One file for each cache, `STATE_DIR/caches/CACHE-UUID.json`, replaced as a whole. It is durable
//! before the pool serves anything, after each attach and with each orderly stop; in between it
//! follows the cache every few seconds while something changes. The generation and the flushed
//! sequences that it records are durable on the cache first: whenever a crash occurs, an intact
//! cache is never below its record (I75).
//!
//! - A pool whose cache is recorded gets no new cache unless the operator orders it: then the
//!   recorded cache is *given up*, and refused if it reappears.
//! - A cache below its record is an older copy, or its device lost flushed data: it is not opened.
//! - A cache that is not recorded here is opened: it can come from another host, or the state
//!   directory was lost.
//! - A pool that is being removed from the configuration is *leaving*: recorded before the removal,
//!   until its cache is removed from the register. So after a crash at any instant the next start
//!   can tell that a removal was in progress: it keeps a pool that the configuration names, and
//!   completes the removal of any other.
//! - Two copies of one cache are never in use at once: the process that has it open holds a lock on
//!   `CACHE-UUID.lock`.

use crate::cache_device::is_same;
use crate::durable::{self, make_folder, private};
use crate::error::RunError;
use crate::loss_record::{LossRecord, hex, unix_s};
use crate::may_wait::MayWait;
use crate::shell_word::quoted;
use forebay_admin::events::EventKind;
use forebay_admin::{MessageId, Taking};
use forebay_config::CacheSpec;
use forebay_core::CacheMark;
use forebay_format::CacheUuid;
use forebay_format::superblock::Superblock;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Directory of the records in the state directory.
const FOLDER: &str = "caches";
/// Format version of the file.
const VERSION: u32 = 1;
/// A killed daemon holds its locks until the kernel has ended the process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Size of the trial file; records are smaller.
const TRIAL_BYTES: usize = 4096;
const UNWRITABLE: &str = "without it the next start could not detect a missing cache or an older copy: give \
    the daemon write access there, free space, or choose another folder (state_dir of [daemon]; for forebay \
    run: STATE_DIRECTORY)";

/// State of a cache as the daemon records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The current cache of its pool.
    Current,
    /// Its pool was removed; the cache may be opened again.
    Removed,
    /// Another cache replaced it: it must not be opened again.
    GivenUp,
}

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheRecord {
    /// Format version of the file.
    version: u32,
    /// Identity of the cache.
    pub cache_uuid: String,
    /// Its pool; `None` if only `forebay run` has used it.
    pub pool: Option<String>,
    /// Its devices when it was last open.
    pub devices: Vec<PathBuf>,
    /// Its state.
    pub standing: Standing,
    /// Generation of its superblock that is known to be durable.
    pub generation: u64,
    /// For each stream of the log: batches before this sequence are known to be durable.
    pub flushed: [u64; 3],
    /// It has not been closed in an orderly way since.
    pub in_use: bool,
    /// Dirty bytes, lost ones included.
    pub dirty_bytes: u64,
    /// Time of this record, in seconds since 1970.
    pub recorded_unix_s: u64,
    /// Its pool is being removed from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
}

/// Work to do once the configuration no longer names the pool of a cache.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Leaving {
    /// Devices to erase, and the number of bytes at the beginning of each that belong to the cache.
    pub erase: Vec<(PathBuf, u64)>,
}

/// Reason of a record against opening the cache that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objection {
    /// Another cache replaced it.
    GivenUp,
    /// It holds less than is known to be durable on it (I75).
    Older,
}

impl CacheRecord {
    /// Reasons not to open the cache with this superblock, the gravest first.
    pub fn objections(&self, superblock: &Superblock) -> impl Iterator<Item = Objection> {
        let given_up = self.standing == Standing::GivenUp;
        let older = superblock.generation < self.generation;
        [(given_up, Objection::GivenUp), (older, Objection::Older)]
            .into_iter()
            .filter_map(|(applies, objection)| applies.then_some(objection))
    }

    /// True if it can hold dirty data.
    #[must_use]
    pub fn may_be_dirty(&self) -> bool {
        self.in_use || self.dirty_bytes > 0
    }

    /// Path of the record.
    #[must_use]
    pub fn path(&self, state_dir: &Path) -> PathBuf {
        path_of(state_dir, &self.cache_uuid)
    }

    fn store(&self, may_wait: &MayWait, state_dir: &Path) -> io::Result<()> {
        durable::replace_json(may_wait, state_dir, &self.path(state_dir), self)
    }

    /// True if the record already has this cache in use, on the same devices, by the same pool:
    /// nothing may be acknowledged before that.
    fn is_in_use_as(&self, wanted: &Self) -> bool {
        let current = self.standing == Standing::Current && self.in_use;
        current && self.pool == wanted.pool && self.devices == wanted.devices && self.leaving.is_none()
    }

    fn has_device(&self, path: &Path) -> bool {
        self.devices.iter().any(|device| is_same_place(device, path))
    }

    fn mark(&self) -> CacheMark {
        CacheMark { generation: self.generation, flushed: self.flushed }
    }

    /// Records that its pool is about to be removed from the configuration, while no process has
    /// the cache open.
    ///
    /// # Errors
    /// An error message for the operator.
    pub fn leave(&self, may_wait: &MayWait, state_dir: &Path, leaving: Leaving) -> Result<(), String> {
        self.change(may_wait, state_dir, Self { leaving: Some(leaving), ..self.clone() })
    }

    /// Records that its pool stays after all.
    ///
    /// # Errors
    /// An error message for the operator.
    pub fn stay(&self, may_wait: &MayWait, state_dir: &Path) -> Result<(), String> {
        self.change(may_wait, state_dir, Self { leaving: None, ..self.clone() })
    }

    /// Records that its pool was removed from the configuration while no process had the cache
    /// open: any pool may open it again. Removes the record if the cache was erased.
    ///
    /// # Errors
    /// An error message for the operator.
    pub fn remove(&self, may_wait: &MayWait, state_dir: &Path, erased: bool) -> Result<(), String> {
        if !erased {
            return self.change(may_wait, state_dir, self.removed());
        }
        let path = self.path(state_dir);
        durable::remove(may_wait, state_dir, &path)
            .and_then(|()| durable::remove(may_wait, state_dir, &path.with_extension("lock")))
            .map_err(|error| format!("cannot change {}: {error}", path.display()))
    }

    fn removed(&self) -> Self {
        Self { standing: Standing::Removed, pool: None, leaving: None, ..self.clone() }
    }

    fn change(&self, may_wait: &MayWait, state_dir: &Path, to: Self) -> Result<(), String> {
        let failed = |error| format!("cannot change {}: {error}", self.path(state_dir).display());
        to.store(may_wait, state_dir).map_err(failed)
    }

    /// Describes the data that is at risk with it.
    pub fn worth(&self) -> String {
        match (self.in_use, self.dirty_bytes) {
            (true, _) => "it was in use when last recorded, and may have dirty data".into(),
            (false, 0) => "it had no dirty data when it was closed".into(),
            (false, bytes) => format!("it had {bytes} bytes of dirty data when it was closed"),
        }
    }
}

fn path_of(state_dir: &Path, uuid: &str) -> PathBuf {
    state_dir.join(FOLDER).join(format!("{uuid}.json"))
}

/// True for the same path, or two paths that lead to the same place; the target need not exist.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        Some(folder.join(path.file_name()?))
    };
    a == b || is_same(a, b) || matches!((real(a), real(b)), (Some(a), Some(b)) if a == b)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The record of a cache; `None` if there is none.
///
/// # Errors
/// It cannot be read, or has invalid content.
pub fn cache_record(state_dir: &Path, cache: CacheUuid) -> Result<Option<CacheRecord>, RunError> {
    read(&path_of(state_dir, &hex(&cache.0)))
}

fn read(path: &Path) -> Result<Option<CacheRecord>, RunError> {
    let of = |why: &dyn std::fmt::Display, hint: &str| {
        RunError::failed(
            MessageId::StateUnreadable,
            format!("cannot read {}, which records the latest state of a cache: {why}", path.display()),
            hint,
        )
    };
    let failed = |why: &dyn std::fmt::Display| {
        of(
            why,
            "restore it from a backup; or, if you are sure that the device holds the latest state of this cache, remove the file",
        )
    };
    let bytes = match fs::read(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        // The content is not at fault.
        other => other.map_err(|error| of(&error, "give the daemon read access to it, then try again"))?,
    };
    let record: CacheRecord = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    let named = path.file_stem().is_some_and(|name| name == record.cache_uuid.as_str());
    if record.version != VERSION || !named {
        return Err(failed(&"its content is not valid"));
    }
    Ok(Some(record))
}

/// All readable records, and the errors of the others.
fn all(state_dir: &Path) -> Result<(Vec<CacheRecord>, Vec<RunError>), RunError> {
    let folder = state_dir.join(FOLDER);
    let failed = |error: io::Error| {
        RunError::failed(
            MessageId::StateUnreadable,
            format!("cannot read {}, which records all caches: {error}", folder.display()),
            UNWRITABLE,
        )
    };
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        other => other.map_err(failed)?,
    };
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            match read(&path) {
                Ok(record) => records.extend(record),
                Err(error) => errors.push(error),
            }
        }
    }
    Ok((records, errors))
}

/// Readable records of the caches that belong to a pool.
///
/// # Errors
/// The directory cannot be read.
pub fn of_pool(state_dir: &Path, pool: &str) -> Result<Vec<CacheRecord>, RunError> {
    let (records, _) = all(state_dir)?;
    let is_ours = |record: &CacheRecord| {
        record.standing == Standing::Current
            && record.leaving.is_none()
            && record.pool.as_deref() == Some(pool)
    };
    Ok(records.into_iter().filter(is_ours).collect())
}

/// Readable records of caches whose pool was being removed from the configuration.
///
/// # Errors
/// The directory cannot be read.
pub fn leaving(state_dir: &Path) -> Result<Vec<CacheRecord>, RunError> {
    let (records, _) = all(state_dir)?;
    Ok(records.into_iter().filter(|record| record.leaving.is_some()).collect())
}

/// The operator's consent to give up recorded caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consent {
    /// None.
    #[default]
    None,
    /// A pool is created, or a device is added: recorded caches without dirty data are given up.
    Create {
        /// All of them are.
        new_cache: bool,
    },
    /// `--new-cache`, or a cache is replaced: all are given up.
    NewCache,
}

/// The pool that opens or creates a cache, and the operator's permissions.
#[derive(Clone, Copy, Debug)]
pub struct Permit<'a> {
    /// The state directory with the register.
    pub state_dir: &'a Path,
    /// Name of the pool; `None` for `forebay run`, which has one pool, with any cache.
    pub pool: Option<&'a str>,
    /// Consent to give up recorded caches.
    pub consent: Consent,
    /// Permissions for existing devices.
    pub taking: Taking,
}

impl Permit<'_> {
    /// Checks that a cache may be created where these devices have none.
    ///
    /// # Errors
    /// The pool has a recorded cache, or a record cannot be read.
    pub(crate) fn make(&self, specs: &[CacheSpec]) -> Result<(), RunError> {
        let (records, mut errors) = all(self.state_dir)?;
        if let (Some(error), Consent::None) = (errors.pop(), self.consent) {
            return Err(error); // It can be the record of the missing cache.
        }
        let Some(known) = self.in_the_way(&records, None, specs).next() else { return Ok(()) };
        let there: Vec<String> = specs.iter().map(|spec| spec.path.display().to_string()).collect();
        let found = if specs.iter().any(|spec| spec.path.exists()) { "holds no cache" } else { "is missing" };
        Err(RunError::failed(
            MessageId::CacheVanished,
            format!("{} {found}, but {}", there.join(", "), self.recorded(known)),
            format!("bring it back (is its file system mounted?); {}", self.or_give_up("create a new one")),
        ))
    }

    /// True if this cache is recorded as the current one of the pool.
    pub(crate) fn is_own(&self, cache: CacheUuid) -> bool {
        let record = cache_record(self.state_dir, cache).ok().flatten();
        record.is_some_and(|record| {
            record.standing == Standing::Current && self.pool.is_some() && record.pool.as_deref() == self.pool
        })
    }

    /// True if a device may be taken with any data behind the zeroes at its beginning.
    pub(crate) fn may_take_any(&self) -> bool {
        self.taking.overwrite
    }

    /// True if a blank device may be taken: an operator has just ordered a cache on it. A device
    /// that only the configuration names can be a different device today, with the cache elsewhere.
    pub(crate) fn may_take_blank(&self) -> bool {
        self.consent != Consent::None
    }

    /// The error for a device that begins with zeroes and is not taken.
    pub(crate) fn not_empty(&self, path: &Path) -> RunError {
        RunError::failed(
            MessageId::CacheZeroed,
            format!("{} is not a cache: it begins with zeroes, and other data may follow", path.display()),
            format!("if nothing on it is needed: {}", self.again("--overwrite")),
        )
    }

    /// Checks that this cache may be opened; returns the mark that it must have reached.
    ///
    /// # Errors
    /// It is an older copy, was given up, or is not the recorded cache of the pool.
    pub(crate) fn open(&self, superblock: &Superblock, specs: &[CacheSpec]) -> Result<CacheMark, RunError> {
        let own = cache_record(self.state_dir, superblock.uuid)?;
        let path = specs.first().map_or_else(String::new, |spec| spec.path.display().to_string());
        if let Some(own) = &own {
            match own.objections(superblock).next() {
                None => {}
                Some(Objection::Older) => {
                    return Err(older(&path, superblock.generation, own, self.state_dir));
                }
                Some(Objection::GivenUp) => {
                    return Err(RunError::failed(
                        MessageId::CacheGivenUp,
                        format!(
                            "the cache {} on {path} was given up: another one replaced it, and has been \
                             written to since",
                            own.cache_uuid
                        ),
                        format!(
                            "to extract its dirty data: forebay salvage {} --to FOLDER; to use it \
                             nevertheless, as it is: rm {}, then {}",
                            quoted(&path),
                            quoted(own.path(self.state_dir)),
                            self.again("--new-cache")
                        ),
                    ));
                }
            }
        }
        let (records, _) = all(self.state_dir)?;
        let spent = self.spent();
        let unknown = unknown(superblock);
        let known = self.in_the_way(&records, own.as_ref().or(Some(&unknown)), specs);
        if let Some(known) = known.into_iter().find(|record| !spent.contains(&record.cache_uuid)) {
            return Err(RunError::failed(
                MessageId::CacheNotTheOne,
                format!("{path} holds the cache {}, but {}", hex(&superblock.uuid.0), self.recorded(known)),
                format!(
                    "give the device of the recorded one; {}",
                    self.or_give_up("use the cache that is there")
                ),
            ));
        }
        Ok(own.map_or_else(CacheMark::default, |own| own.mark()))
    }

    /// Failed caches without remaining lost data: their volumes went on without them, so another
    /// cache may replace them. A daemon that was killed while it replaced a cache, after it created
    /// the new one and before it recorded it, leaves this state.
    fn spent(&self) -> Vec<String> {
        // A cache whose record cannot be read is not included; opening a pool reports it.
        let failed = LossRecord::all(&MayWait::here(), self.state_dir).unwrap_or_default();
        let spent = failed.into_iter().filter(|record| record.lost_bytes() == 0);
        spent.map(|record| record.cache_uuid).collect()
    }

    /// Recorded caches other than `own` that the operator has not agreed to give up for it.
    fn in_the_way<'r>(
        &self,
        records: &'r [CacheRecord],
        own: Option<&CacheRecord>,
        specs: &[CacheSpec],
    ) -> impl Iterator<Item = &'r CacheRecord> {
        let consent = self.consent;
        let gives_way = move |record: &CacheRecord| match consent {
            Consent::None => false,
            Consent::Create { new_cache } => new_cache || !record.may_be_dirty(),
            Consent::NewCache => true,
        };
        self.others(records, own, specs)
            .filter(move |record| !gives_way(record))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Recorded caches that this one replaces: those of this pool, or, unless `own` is known to be
    /// elsewhere, those on these devices.
    fn others<'r>(
        &self,
        records: &'r [CacheRecord],
        own: Option<&CacheRecord>,
        specs: &[CacheSpec],
    ) -> impl Iterator<Item = &'r CacheRecord> {
        let known = own.filter(|own| own.standing == Standing::Current);
        let settled = known.is_some_and(|own| own.pool.as_deref() == self.pool);
        let place = |record: &CacheRecord| specs.iter().any(|spec| record.has_device(&absolute(&spec.path)));
        let named = |record: &CacheRecord| self.pool.is_some() && record.pool.as_deref() == self.pool;
        let found: Vec<_> = records
            .iter()
            // Leaving caches are excluded: the configuration no longer names the pool, else the
            // start has recorded that it stays.
            .filter(|record| record.standing == Standing::Current && record.leaving.is_none() && !settled)
            .filter(|record| own.is_none_or(|own| own.cache_uuid != record.cache_uuid))
            .filter(|record| named(record) || known.is_none() && place(record))
            .collect();
        found.into_iter()
    }

    fn recorded(&self, known: &CacheRecord) -> String {
        let devices: Vec<String> = known.devices.iter().map(|path| path.display().to_string()).collect();
        let of = known.pool.as_ref().map_or_else(String::new, |pool| format!(" of pool {pool}"));
        format!(
            "the cache {}{of} on {} is recorded in {}: {}",
            known.cache_uuid,
            devices.join(", "),
            known.path(self.state_dir).display(),
            known.worth()
        )
    }

    fn or_give_up(&self, what: &str) -> String {
        match (self.consent, self.pool) {
            (Consent::Create { .. }, _) => {
                format!("or give up its dirty data, and {what}: {}", self.again("--new-cache"))
            }
            (_, Some(pool)) => format!(
                "then: forebay pool open {pool}; or give up its dirty data, and {what}: {}",
                self.again("--new-cache")
            ),
            (_, None) => format!("or give up its dirty data, and {what}: {}", self.again("--new-cache")),
        }
    }

    pub(crate) fn again(&self, flag: &str) -> String {
        match (self.consent, self.pool) {
            (Consent::None, Some(pool)) => format!("forebay pool open {pool} {flag}"),
            (Consent::NewCache, Some(pool)) => format!("forebay pool open {pool} --new-cache {flag}"),
            _ => format!("the same command with {flag}"),
        }
    }

    /// Gives up the recorded caches that this one replaces, and records this one, durably. Called
    /// before anything is acknowledged.
    ///
    /// # Errors
    /// It cannot be recorded, or another process has a copy of the same cache open.
    pub fn enter(
        &self,
        may_wait: &MayWait,
        cache: CacheUuid,
        specs: &[CacheSpec],
        facts: &Facts,
    ) -> Result<Entry, RunError> {
        let lock = lock(self.state_dir, cache)?;
        let own = cache_record(self.state_dir, cache)?;
        let (records, _) = all(self.state_dir)?;
        let fresh = unknown_of(cache);
        let record = CacheRecord {
            pool: self.pool.map(str::to_owned).or_else(|| own.as_ref().and_then(|own| own.pool.clone())),
            standing: Standing::Current,
            leaving: None,
            in_use: true,
            ..own.clone().unwrap_or_else(|| fresh.clone())
        };
        let record = with(record, facts);
        let failed = |error: io::Error| {
            RunError::failed(
                MessageId::Event(EventKind::StateUnwritable),
                format!("cannot write {}: {error}", record.path(self.state_dir).display()),
                UNWRITABLE,
            )
        };
        let spent = if self.consent == Consent::None { self.spent() } else { Vec::new() };
        let gives_way =
            |other: &&CacheRecord| self.consent != Consent::None || spent.contains(&other.cache_uuid);
        // First: two current caches would be two histories of one pool.
        for other in self.others(&records, own.as_ref().or(Some(&fresh)), specs).filter(gives_way) {
            let given_up =
                CacheRecord { standing: Standing::GivenUp, recorded_unix_s: unix_s(), ..other.clone() };
            given_up.store(may_wait, self.state_dir).map_err(failed)?;
        }
        let record = match (record.store(may_wait, self.state_dir), own) {
            (Ok(()), _) => record,
            // As after a crash: the record is behind, and has all that it must have.
            (Err(_), Some(own)) if own.is_in_use_as(&record) => own,
            (Err(error), _) => return Err(failed(error)),
        };
        let last = Mutex::new(record.clone());
        let kept = Kept { record, ended: false, lock: Some(lock) };
        Ok(Entry { state_dir: self.state_dir.to_owned(), last, kept: Mutex::new(kept) })
    }
}

/// The error for a cache that is below its record.
fn older(path: &str, generation: u64, own: &CacheRecord, state_dir: &Path) -> RunError {
    RunError::failed(
        MessageId::CacheOlderCopy,
        format!(
            "the cache on {path} is an older copy: its generation is {generation}, but {} is recorded",
            own.generation
        ),
        older_hint(path, &own.path(state_dir)),
    )
}

/// Hint for a cache that is below its record.
pub(crate) fn older_hint(path: &str, record: &Path) -> String {
    let (path, record) = (quoted(path), quoted(record));
    format!(
        "bring back its latest state; to extract the dirty data of this copy: forebay salvage {path} --to \
         FOLDER; if writes acknowledged since may be lost, use it as it is: rm {record}"
    )
}

/// Checks that a record can be written, with a trial file as durable as a record.
///
/// # Errors
/// It cannot.
pub fn check_writable(may_wait: &MayWait, state_dir: &Path) -> Result<(), RunError> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = state_dir.join(FOLDER).join("trial");
    let tried = durable::replace(may_wait, state_dir, &path, |out| out.write_all(&[b' '; TRIAL_BYTES]));
    let _ = fs::remove_file(&path);
    let _ = fs::remove_file(path.with_extension("new"));
    tried.map_err(|error| {
        let what = format!("cannot write {}: {error}", state_dir.join(FOLDER).display());
        RunError::failed(MessageId::Event(EventKind::StateUnwritable), what, UNWRITABLE)
    })
}

/// Path of the record of a cache.
pub(crate) fn record_path(state_dir: &Path, cache: CacheUuid) -> PathBuf {
    path_of(state_dir, &hex(&cache.0))
}

fn unknown(superblock: &Superblock) -> CacheRecord {
    unknown_of(superblock.uuid)
}

/// The record of a cache of which nothing is known.
fn unknown_of(cache: CacheUuid) -> CacheRecord {
    CacheRecord {
        version: VERSION,
        cache_uuid: hex(&cache.0),
        pool: None,
        devices: Vec::new(),
        standing: Standing::Removed,
        generation: 0,
        flushed: [0; 3],
        in_use: false,
        dirty_bytes: 0,
        recorded_unix_s: 0,
        leaving: None,
    }
}

fn with(record: CacheRecord, facts: &Facts) -> CacheRecord {
    CacheRecord {
        devices: facts.devices.iter().map(|path| absolute(path)).collect(),
        // It only rises: facts can arrive late.
        generation: record.generation.max(facts.mark.generation),
        flushed: std::array::from_fn(|stream| record.flushed[stream].max(facts.mark.flushed[stream])),
        dirty_bytes: facts.dirty_bytes,
        recorded_unix_s: unix_s(),
        ..record
    }
}

fn lock(state_dir: &Path, cache: CacheUuid) -> Result<File, RunError> {
    let path = path_of(state_dir, &hex(&cache.0)).with_extension("lock");
    let failed = |error: io::Error| {
        RunError::failed(
            MessageId::Event(EventKind::StateUnwritable),
            format!("cannot write {}: {error}", path.display()),
            UNWRITABLE,
        )
    };
    // An existing file need not be written: the state directory can be read-only at present.
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(&state_dir.join(FOLDER)).map_err(failed)?;
            private().truncate(false).open(&path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    let timeout = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < timeout => std::thread::sleep(LOCK_PAUSE),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(RunError::failed(
                    MessageId::CacheInUse,
                    format!("the cache {} is in use: {}", hex(&cache.0), holder(&file, &path)),
                    "end that process; if it is a forebay that uses another copy of this cache, give only \
                     one of the two: they cannot be used at the same time",
                ));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// The process that has locked a file, as far as `/proc/locks` shows it (proc(5)).
fn holder(file: &File, path: &Path) -> String {
    let inode = file.metadata().map_or(0, |metadata| metadata.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF"
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
        (place.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.to_owned())
    });
    let path = path.display();
    match pid {
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({}) has locked {path}", name.trim_end())
        }
        None => format!("another process has locked {path}"),
    }
}

/// Current facts about a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its durable state.
    pub(crate) mark: CacheMark,
    /// Dirty bytes, lost ones included: the record must keep that they are lost.
    pub(crate) dirty_bytes: u64,
    /// Its devices.
    pub(crate) devices: Vec<PathBuf>,
}

/// The record of an open cache.
#[derive(Debug)]
pub struct Entry {
    state_dir: PathBuf,
    /// The value that `record` returns. `kept` stays locked while the file system does not answer.
    last: Mutex<CacheRecord>,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    record: CacheRecord,
    /// The cache was closed: late facts are ignored.
    ended: bool,
    /// Keeps other processes from opening a copy of the cache.
    lock: Option<File>,
}

impl Entry {
    /// The last record.
    pub fn record(&self) -> CacheRecord {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, kept: &mut Kept, record: CacheRecord) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&record);
        kept.record = record;
    }

    /// Records the current facts of the cache, durably, if they have changed.
    ///
    /// # Errors
    /// An error message for the operator; the record is unchanged.
    pub fn raise(&self, may_wait: &MayWait, facts: &Facts) -> Result<(), String> {
        self.change(may_wait, false, |record| with(record, facts))
    }

    /// As [`Entry::raise`], and records that the cache is closed.
    ///
    /// # Errors
    /// As [`Entry::raise`].
    pub(crate) fn end(&self, may_wait: &MayWait, facts: &Facts) -> Result<(), String> {
        self.change(may_wait, true, |record| CacheRecord { in_use: false, ..with(record, facts) })
    }

    fn change(
        &self,
        may_wait: &MayWait,
        ends: bool,
        change: impl FnOnce(CacheRecord) -> CacheRecord,
    ) -> Result<(), String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.ended {
            return Ok(());
        }
        let new = change(kept.record.clone());
        let same = CacheRecord { recorded_unix_s: kept.record.recorded_unix_s, ..new.clone() } == kept.record;
        let stored = if same { Ok(()) } else { new.store(may_wait, &self.state_dir) };
        kept.ended = ends;
        if ends {
            kept.lock = None;
        }
        stored.map_err(|error| format!("cannot write {}: {error}", new.path(&self.state_dir).display()))?;
        self.note(&mut kept, new);
        Ok(())
    }

    /// Records that its pool is about to be removed from the configuration, or stays after all
    /// (`None`).
    ///
    /// # Errors
    /// An error message for the operator; the record is unchanged.
    pub fn set_leaving(&self, may_wait: &MayWait, leaving: Option<Leaving>) -> Result<(), String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let new = CacheRecord { leaving, ..kept.record.clone() };
        new.change(may_wait, &self.state_dir, new.clone())?;
        self.note(&mut kept, new);
        Ok(())
    }

    /// Records that its pool was removed, after the cache was closed: see [`CacheRecord::remove`].
    ///
    /// # Errors
    /// An error message for the operator.
    pub fn remove(&self, may_wait: &MayWait, erased: bool) -> Result<(), String> {
        self.record().remove(may_wait, &self.state_dir, erased)
    }
}
