//! The register: what is known of each cache outside of its devices. So one that is missing is not
//! made anew, and an older copy of one is not taken for it.
//!
//! One file for each cache, `STATE_DIR/caches/CACHE-UUID.json`, replaced as a whole. It is durable
//! before the pool serves anything, after each attach and with each orderly stop; between these it
//! follows the cache every few seconds while something changes. What it says of how far the cache
//! has come is durable on the cache first: whatever crashes when, a good cache is never below its
//! record (I75).
//!
//! - A pool whose cache is recorded is not made anew, unless the operator says so: then the
//!   recorded one is *given up*, and refused should it come back.
//! - A cache below its record is an older copy, or its device lost what it had flushed: it is not
//!   opened.
//! - A cache that is not recorded here is opened: it may come from another host, or the state
//!   directory was lost.
//! - A pool that is taken out of the configuration is *leaving* from before that until its cache is
//!   removed from here. So whatever is killed when, the next start knows what was begun: what the
//!   configuration names stays, and all else of it is finished.
//! - Two copies of one cache are not in use at once: who has it open holds a lock on
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

/// Folder of the records in the state directory.
const FOLDER: &str = "caches";
/// Layout of the file.
const VERSION: u32 = 1;
/// A daemon that was killed holds its locks until the kernel is done with it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// A record is smaller.
const TRIAL_BYTES: usize = 4096;
const UNWRITABLE: &str = "without it a cache that is missing, or an older copy, could not be told at the next start: give the daemon the \
                          right to write there, make room, or choose another folder (state_dir of [daemon]; for forebay run: \
                          STATE_DIRECTORY)";

/// What a cache is to the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is that of its pool.
    Current,
    /// Its pool was removed; it may be opened again.
    Removed,
    /// Another one took its place: it must not be opened again.
    GivenUp,
}

/// What the file says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheRecord {
    /// Layout of the file.
    version: u32,
    /// Identity of the cache.
    pub cache_uuid: String,
    /// Its pool; none if only `forebay run` has had it.
    pub pool: Option<String>,
    /// Its devices when it was open last.
    pub devices: Vec<PathBuf>,
    /// What it is to the daemon.
    pub standing: Standing,
    /// Generation of its superblock that is known to be durable.
    pub generation: u64,
    /// By stream of its log: batches before this one are known to be durable.
    pub flushed: [u64; 3],
    /// It was not closed in an orderly way since.
    pub in_use: bool,
    /// Bytes that only the cache had, lost ones included.
    pub dirty_bytes: u64,
    /// When this was written, in seconds since 1970.
    pub recorded_unix_s: u64,
    /// Its pool is being taken out of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
}

/// What is done when the configuration does not name the pool of a cache any more.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Leaving {
    /// Devices that are erased then, and how much of each is the cache's, from its beginning.
    pub erase: Vec<(PathBuf, u64)>,
}

/// What a record has against a cache that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objection {
    /// Another one took its place.
    GivenUp,
    /// It holds less than is known to be durable on it (I75).
    Older,
}

impl CacheRecord {
    /// Why the cache with this superblock is not opened, the worst first.
    pub fn objections(&self, superblock: &Superblock) -> impl Iterator<Item = Objection> {
        let given_up = self.standing == Standing::GivenUp;
        let older = superblock.generation < self.generation;
        [(given_up, Objection::GivenUp), (older, Objection::Older)]
            .into_iter()
            .filter_map(|(applies, objection)| applies.then_some(objection))
    }

    /// It may hold what nothing else has.
    #[must_use]
    pub fn may_be_dirty(&self) -> bool {
        self.in_use || self.dirty_bytes > 0
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self, state_dir: &Path) -> PathBuf {
        path_of(state_dir, &self.cache_uuid)
    }

    fn store(&self, may_wait: &MayWait, state_dir: &Path) -> io::Result<()> {
        durable::replace_json(may_wait, state_dir, &self.path(state_dir), self)
    }

    /// It says already that this cache is in use, on the same devices, by the same pool: nothing
    /// may be acknowledged before it does.
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

    /// Its pool is about to be taken out of the configuration, while nobody has the cache open.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn leave(&self, may_wait: &MayWait, state_dir: &Path, leaving: Leaving) -> Result<(), String> {
        self.change(may_wait, state_dir, Self { leaving: Some(leaving), ..self.clone() })
    }

    /// Its pool stays after all.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn stay(&self, may_wait: &MayWait, state_dir: &Path) -> Result<(), String> {
        self.change(may_wait, state_dir, Self { leaving: None, ..self.clone() })
    }

    /// Its pool was taken out of the configuration while nobody has it open: it may be opened
    /// again, by any pool, or, if it was erased, is forgotten.
    ///
    /// # Errors
    /// A sentence for people.
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

    /// What may be lost with it, in words.
    pub fn worth(&self) -> String {
        match (self.in_use, self.dirty_bytes) {
            (true, _) => {
                "it was in use when it was recorded last, and may hold data that nothing else has".into()
            }
            (false, 0) => "it held nothing that the backing stores do not have when it was closed".into(),
            (false, bytes) => format!("{bytes} bytes that only it has were in it when it was closed"),
        }
    }
}

fn path_of(state_dir: &Path, uuid: &str) -> PathBuf {
    state_dir.join(FOLDER).join(format!("{uuid}.json"))
}

/// The same path, or two that lead to the same place; what they lead to need not be there.
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
/// It cannot be read, or does not say what such a file says.
pub fn cache_record(state_dir: &Path, cache: CacheUuid) -> Result<Option<CacheRecord>, RunError> {
    read(&path_of(state_dir, &hex(&cache.0)))
}

fn read(path: &Path) -> Result<Option<CacheRecord>, RunError> {
    let of = |why: &dyn std::fmt::Display, hint: &str| {
        RunError::failed(
            MessageId::StateUnreadable,
            format!("cannot read {}, which tells how far a cache has come: {why}", path.display()),
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
        // There is nothing wrong with what it says.
        other => other.map_err(|error| of(&error, "see that the daemon can read it, then try again"))?,
    };
    let record: CacheRecord = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    let named = path.file_stem().is_some_and(|name| name == record.cache_uuid.as_str());
    if record.version != VERSION || !named {
        return Err(failed(&"it does not say what such a file says"));
    }
    Ok(Some(record))
}

/// All records that can be read, and why others cannot.
fn all(state_dir: &Path) -> Result<(Vec<CacheRecord>, Vec<RunError>), RunError> {
    let folder = state_dir.join(FOLDER);
    let failed = |error: io::Error| {
        RunError::failed(
            MessageId::StateUnreadable,
            format!("cannot read {}, which tells which caches there are: {error}", folder.display()),
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

/// Records of the caches that a pool has, of those that can be read.
///
/// # Errors
/// The folder cannot be read.
pub fn of_pool(state_dir: &Path, pool: &str) -> Result<Vec<CacheRecord>, RunError> {
    let (records, _) = all(state_dir)?;
    let is_ours = |record: &CacheRecord| {
        record.standing == Standing::Current
            && record.leaving.is_none()
            && record.pool.as_deref() == Some(pool)
    };
    Ok(records.into_iter().filter(is_ours).collect())
}

/// Records of caches whose pool was being taken out of the configuration, of those that can be
/// read.
///
/// # Errors
/// The folder cannot be read.
pub fn leaving(state_dir: &Path) -> Result<Vec<CacheRecord>, RunError> {
    let (records, _) = all(state_dir)?;
    Ok(records.into_iter().filter(|record| record.leaving.is_some()).collect())
}

/// What an operator has said of giving up recorded caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consent {
    /// Nothing.
    #[default]
    None,
    /// A pool is created, or a device is added: recorded caches with nothing dirty give way.
    Create {
        /// All of them do.
        new_cache: bool,
    },
    /// `--new-cache`, or a cache is replaced: all give way.
    NewCache,
}

/// Who wants to open or make a cache, and what the operator allows.
#[derive(Clone, Copy, Debug)]
pub struct Permit<'a> {
    /// Where the register is.
    pub state_dir: &'a Path,
    /// Name of the pool; none for `forebay run`, which has one pool, with any cache.
    pub pool: Option<&'a str>,
    /// What was said of recorded caches.
    pub consent: Consent,
    /// What may be done to devices that are there.
    pub taking: Taking,
}

impl Permit<'_> {
    /// Whether a cache may be made, for there is none on these devices.
    ///
    /// # Errors
    /// The pool has one that is recorded, or nobody knows.
    pub(crate) fn make(&self, specs: &[CacheSpec]) -> Result<(), RunError> {
        let (records, mut errors) = all(self.state_dir)?;
        if let (Some(error), Consent::None) = (errors.pop(), self.consent) {
            return Err(error); // It may be of the cache that is missing.
        }
        let Some(known) = self.in_the_way(&records, None, specs).next() else { return Ok(()) };
        let there: Vec<String> = specs.iter().map(|spec| spec.path.display().to_string()).collect();
        let found =
            if specs.iter().any(|spec| spec.path.exists()) { "holds no cache" } else { "is not there" };
        Err(RunError::failed(
            MessageId::CacheVanished,
            format!("{} {found}, but {}", there.join(", "), self.recorded(known)),
            format!("bring it back (is its file system mounted?); {}", self.or_give_up("make a new one")),
        ))
    }

    /// Whether this is the cache that is recorded as that of the pool.
    pub(crate) fn is_own(&self, cache: CacheUuid) -> bool {
        let record = cache_record(self.state_dir, cache).ok().flatten();
        record.is_some_and(|record| {
            record.standing == Standing::Current && self.pool.is_some() && record.pool.as_deref() == self.pool
        })
    }

    /// Whether a device may be taken whatever follows the zeroes at its beginning.
    pub(crate) fn may_take_any(&self) -> bool {
        self.taking.overwrite
    }

    /// Whether a blank device may be taken: an operator asks for a cache on it just now. One that
    /// only the configuration names may be another one today, and its cache be elsewhere.
    pub(crate) fn may_take_blank(&self) -> bool {
        self.consent != Consent::None
    }

    /// Why a device that begins with zeroes is not taken.
    pub(crate) fn not_empty(&self, path: &Path) -> RunError {
        RunError::failed(
            MessageId::CacheZeroed,
            format!(
                "{} is there, but is no cache: it begins with zeroes, and something else may follow",
                path.display()
            ),
            format!("if nothing on it is needed: {}", self.again("--overwrite")),
        )
    }

    /// Whether this cache may be opened; gives how far it must have come.
    ///
    /// # Errors
    /// It is an older copy, was given up, or is not the one that the pool is recorded with.
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
                            "the cache {} on {path} was given up: another one took its place, and was written to since",
                            own.cache_uuid
                        ),
                        format!(
                            "to extract what only it has: forebay salvage {} --to FOLDER; to use it all the same, as it is: rm {}, then {}",
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
                format!("give the device of that one; {}", self.or_give_up("use what is there")),
            ));
        }
        Ok(own.map_or_else(CacheMark::default, |own| own.mark()))
    }

    /// Caches that failed, and of which nothing is lost (any more): their volumes went on without
    /// them, so another one may take their place. So it is when a daemon was killed while it
    /// replaced one, between the making of the new one and its record.
    fn spent(&self) -> Vec<String> {
        // One whose record cannot be read is no such cache; whoever opens a pool is told.
        let failed = LossRecord::all(&MayWait::here(), self.state_dir).unwrap_or_default();
        let spent = failed.into_iter().filter(|record| record.lost_bytes() == 0);
        spent.map(|record| record.cache_uuid).collect()
    }

    /// Recorded caches that are not `own`, and that the operator has not agreed to give up for it.
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

    /// Recorded caches whose place another one takes: of this pool, or, if `own` is not known to be
    /// elsewhere, on these devices.
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
            // The configuration names the pool of one that is leaving no more, or its start has
            // said that it stays.
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
                format!("or give up what only it has, and {what}: {}", self.again("--new-cache"))
            }
            (_, Some(pool)) => format!(
                "then: forebay pool open {pool}; or give up what only it has, and {what}: {}",
                self.again("--new-cache")
            ),
            (_, None) => format!("or give up what only it has, and {what}: {}", self.again("--new-cache")),
        }
    }

    pub(crate) fn again(&self, flag: &str) -> String {
        match (self.consent, self.pool) {
            (Consent::None, Some(pool)) => format!("forebay pool open {pool} {flag}"),
            (Consent::NewCache, Some(pool)) => format!("forebay pool open {pool} --new-cache {flag}"),
            _ => format!("the same command with {flag}"),
        }
    }

    /// Takes the place of the recorded caches that are in it, and records this one, durably. Before
    /// anything is acknowledged.
    ///
    /// # Errors
    /// It cannot be recorded, or somebody has a copy of the same cache open.
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
        // First: two that are current would be two histories of one pool.
        for other in self.others(&records, own.as_ref().or(Some(&fresh)), specs).filter(gives_way) {
            let given_up =
                CacheRecord { standing: Standing::GivenUp, recorded_unix_s: unix_s(), ..other.clone() };
            given_up.store(may_wait, self.state_dir).map_err(failed)?;
        }
        let record = match (record.store(may_wait, self.state_dir), own) {
            (Ok(()), _) => record,
            // As after a crash: it is behind, and says all that it must.
            (Err(_), Some(own)) if own.is_in_use_as(&record) => own,
            (Err(error), _) => return Err(failed(error)),
        };
        let last = Mutex::new(record.clone());
        let kept = Kept { record, ended: false, lock: Some(lock) };
        Ok(Entry { state_dir: self.state_dir.to_owned(), last, kept: Mutex::new(kept) })
    }
}

/// A cache that is below its record.
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

/// What to do with a cache that has less than its record says.
pub(crate) fn older_hint(path: &str, record: &Path) -> String {
    let (path, record) = (quoted(path), quoted(record));
    format!(
        "bring the latest state of it back; to extract what this one has: forebay salvage {path} --to FOLDER; if what was acknowledged since \
         may be lost, use it as it is: rm {record}"
    )
}

/// Whether a record can be written: a trial, durable as a record is.
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

/// Where the record of a cache is.
pub(crate) fn record_path(state_dir: &Path, cache: CacheUuid) -> PathBuf {
    path_of(state_dir, &hex(&cache.0))
}

fn unknown(superblock: &Superblock) -> CacheRecord {
    unknown_of(superblock.uuid)
}

/// A record of a cache of which nothing is known.
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
        // It only rises: facts may come late.
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
    // One that is there need not be written: the state directory may be read-only just now.
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
                    "end that program; if it is a forebay that has another device with a copy of this cache, give one of the two: they cannot \
                     be used at once",
                ));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Which process has locked a file, as far as the kernel tells: `/proc/locks` (proc(5)).
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

/// How a cache is just now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What it holds durably.
    pub(crate) mark: CacheMark,
    /// Bytes that only it has; with those that it cannot give back, of which it must not be
    /// forgotten that they are lost.
    pub(crate) dirty_bytes: u64,
    /// Its devices.
    pub(crate) devices: Vec<PathBuf>,
}

/// The record of a cache that is open.
#[derive(Debug)]
pub struct Entry {
    state_dir: PathBuf,
    /// What `record` returns. `kept` is locked as long as the file system does not answer.
    last: Mutex<CacheRecord>,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    record: CacheRecord,
    /// It was closed: nothing that comes late counts.
    ended: bool,
    /// Nobody else has a copy of the cache open.
    lock: Option<File>,
}

impl Entry {
    /// What was recorded last.
    pub fn record(&self) -> CacheRecord {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, kept: &mut Kept, record: CacheRecord) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&record);
        kept.record = record;
    }

    /// Records how the cache is now, durably, if that has changed.
    ///
    /// # Errors
    /// A sentence for people; the record is what it was.
    pub fn raise(&self, may_wait: &MayWait, facts: &Facts) -> Result<(), String> {
        self.change(may_wait, false, |record| with(record, facts))
    }

    /// As [`Entry::raise`], and the cache is closed.
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

    /// Its pool is about to be taken out of the configuration, or stays after all (`None`).
    ///
    /// # Errors
    /// A sentence for people; the record is what it was.
    pub fn set_leaving(&self, may_wait: &MayWait, leaving: Option<Leaving>) -> Result<(), String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let new = CacheRecord { leaving, ..kept.record.clone() };
        new.change(may_wait, &self.state_dir, new.clone())?;
        self.note(&mut kept, new);
        Ok(())
    }

    /// Its pool was removed, after it was closed: see [`CacheRecord::remove`].
    ///
    /// # Errors
    /// A sentence for people.
    pub fn remove(&self, may_wait: &MayWait, erased: bool) -> Result<(), String> {
        self.record().remove(may_wait, &self.state_dir, erased)
    }
}
