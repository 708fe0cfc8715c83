//! The record of a failed cache. It lies outside of the cache's devices, and prevents the cache
//! from ever being opened again.
//!
//! One file for each such cache, `STATE_DIR/failed-caches/CACHE-UUID.json`, replaced as a whole and
//! durable with its directory before any write bypasses the cache (I51). It lists the dirty ranges
//! of that cache: they return errors until they are rewritten. It is also made for people: offsets
//! and lengths in bytes, times in seconds since 1970.
//!
//! Next to it lies `CACHE-UUID.safe`: ranges of it that have become safe since. Each update of the
//! record appends a line, so that a write need not wait for a file as long as the list. Safe ranges
//! stay safe, so lines of an older record remove no lost range. See `safe`.
//!
//! A record that cannot be read is an error of its own: a daemon that does not know the lost ranges
//! must not serve the volume.

use crate::error::RunError;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_core::Loss;
use forebay_format::checkpoint::{BackingRecord, Mode, VolumeEntry};
use forebay_format::{CacheUuid, VolumeId};
use forebay_offline::salvage::OnlyCopies;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

mod safe;

pub(crate) use safe::SafeRange;

/// Directory of the records in the state directory.
const FOLDER: &str = "failed-caches";
/// Format version of the file.
const VERSION: u32 = 1;
/// A record of more ranges is written without spaces and line ends.
const PRETTY_RANGES_MAX: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const UNSOUND: &str = "its content is not valid";

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LossRecord {
    /// Format version of the file.
    version: u32,
    /// Identity of the cache that must not be opened.
    pub cache_uuid: String,
    /// Its pool.
    pub pool: String,
    /// Its devices when it failed.
    pub(crate) devices: Vec<PathBuf>,
    /// Why it was given up.
    pub(crate) reason: String,
    /// Time of the failure, in seconds since 1970.
    pub(crate) failed_unix_s: u64,
    /// Time of this record, in seconds since 1970.
    pub(crate) recorded_unix_s: u64,
    /// Its volumes, including those without lost data.
    pub(crate) volumes: Vec<VolumeLoss>,
}

/// A volume of the cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeLoss {
    /// Name.
    pub(crate) name: String,
    /// Identity.
    pub(crate) uuid: String,
    /// Number in the volume table of the cache.
    pub(crate) number: u16,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// Lost ranges, or ranges that would be lost if the daemon ended now.
    pub(crate) lost: Vec<Range>,
}

/// A range of dirty data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Time of the oldest write in it, in seconds since 1970.
    pub written_unix_s: u64,
}

/// Content of the first device of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A cache.
    Cache(CacheUuid),
    /// Nothing, or nothing so far.
    Blank,
    /// It cannot be opened, or holds something else.
    Unusable,
}

/// How to open a pool, according to the records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As usual.
    Open,
    /// Its cache has failed: serve without it.
    WithoutCache(Box<LossRecord>),
    /// Another cache is in the place of a failed one, and data was lost.
    Refuse(Box<LossRecord>),
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

impl LossRecord {
    /// A record without its volumes.
    pub(crate) fn new(cache: CacheUuid, pool: &str, devices: Vec<PathBuf>, reason: &str) -> Self {
        let now = unix_s();
        Self {
            version: VERSION,
            cache_uuid: hex(&cache.0),
            pool: pool.into(),
            devices,
            reason: reason.into(),
            failed_unix_s: now,
            recorded_unix_s: now,
            volumes: Vec::new(),
        }
    }

    /// The record with the data currently at risk in the volumes of this table.
    pub fn with_risk(&self, table: &[VolumeEntry], risk: &[(VolumeId, Vec<Loss>)]) -> Self {
        let now = unix_s();
        let lost = |id: VolumeId| {
            let losses = risk.iter().find(|(volume, _)| *volume == id).map_or(&[][..], |(_, losses)| losses);
            losses.iter().map(|loss| Range::of(loss, now)).collect()
        };
        let volume = |entry: &VolumeEntry| VolumeLoss {
            name: entry.name.clone(),
            uuid: hex(&entry.uuid),
            number: entry.id.0,
            size_bytes: entry.size_bytes,
            lost: lost(entry.id),
        };
        Self { recorded_unix_s: now, volumes: table.iter().map(volume).collect(), ..self.clone() }
    }

    /// The volume table as far as it is known.
    pub fn entries(&self) -> Vec<VolumeEntry> {
        let entry = |volume: &VolumeLoss| VolumeEntry {
            id: VolumeId(volume.number),
            mode: Mode::Passthrough,
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            flush_epoch: 0,
            uuid: unhex(&volume.uuid).unwrap_or_default(),
            backing: BackingRecord::default(),
        };
        self.volumes.iter().map(entry).collect()
    }

    /// The lost ranges in the engine's form.
    pub(crate) fn losses(&self) -> Vec<(VolumeId, Loss)> {
        let now = unix_s();
        let of = |volume: &VolumeLoss| {
            let id = VolumeId(volume.number);
            volume.lost.iter().map(move |range| (id, range.loss(now))).collect::<Vec<_>>()
        };
        self.volumes.iter().flat_map(of).collect()
    }

    /// Bytes that are lost.
    pub fn lost_bytes(&self) -> u64 {
        self.volumes.iter().flat_map(|volume| &volume.lost).map(|range| range.bytes).sum()
    }

    /// Names of the volumes with lost data.
    pub fn losers(&self) -> Vec<&str> {
        let lossy = self.volumes.iter().filter(|volume| !volume.lost.is_empty());
        lossy.map(|volume| volume.name.as_str()).collect()
    }

    /// Path of the record.
    pub fn path(&self, state_dir: &Path) -> PathBuf {
        state_dir.join(FOLDER).join(format!("{}.json", self.cache_uuid))
    }

    /// Makes the record durable: a new file, its name, and the directory's own name.
    ///
    /// # Errors
    /// Any step fails; then the record is unchanged.
    pub fn store(&self, may_wait: &MayWait, state_dir: &Path) -> io::Result<()> {
        let path = self.path(state_dir);
        crate::durable::replace(may_wait, state_dir, &path, |out| {
            // A long one is not made for people: half as many bytes, and no copy in memory.
            let written = match self.ranges() {
                0..=PRETTY_RANGES_MAX => serde_json::to_writer_pretty(out, self),
                _ => serde_json::to_writer(out, self),
            };
            written.map_err(io::Error::other)
        })?;
        // The new record includes its content. If it stays, it does no harm.
        let _ = fs::remove_file(path.with_extension(safe::EXTENSION));
        Ok(())
    }

    /// Makes durable that ranges of the record in this file are safe now. Returns how many bytes
    /// were added to it since it was written.
    ///
    /// # Errors
    /// Any step fails; then the record is unchanged, or updated already.
    pub(crate) fn add_safe(_: &MayWait, record: &Path, ranges: &[SafeRange]) -> io::Result<u64> {
        safe::append(&record.with_extension(safe::EXTENSION), ranges)
    }

    /// Number of its ranges.
    pub(crate) fn ranges(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.lost.len() as u64).sum()
    }

    /// True if its volumes are those of this table.
    pub(crate) fn has_table(&self, table: &[VolumeEntry]) -> bool {
        let same = |volume: &VolumeLoss, entry: &VolumeEntry| {
            let known = (volume.number, volume.size_bytes, volume.name.as_str());
            known == (entry.id.0, entry.size_bytes, entry.name.as_str()) && volume.uuid == hex(&entry.uuid)
        };
        self.volumes.len() == table.len()
            && table.iter().all(|entry| self.volumes.iter().any(|volume| same(volume, entry)))
    }

    /// The record without the safe ranges.
    #[must_use]
    pub(crate) fn without(mut self, ranges: &[SafeRange]) -> Self {
        for volume in &mut self.volumes {
            volume.lost = safe::without(&volume.lost, ranges, volume.number);
        }
        self
    }

    /// All records.
    ///
    /// # Errors
    /// One of them, or the directory, cannot be read.
    pub fn all(_: &MayWait, state_dir: &Path) -> Result<Vec<Self>, RunError> {
        let folder = state_dir.join(FOLDER);
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            RunError::failed(
                MessageId::StateUnreadable,
                format!("cannot read {}, which records lost data of a failed cache: {why}", path.display()),
                "restore it from a backup; without it stale data would be served in place of lost data",
            )
        };
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| failed(&folder, &error))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(&folder, &error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = fs::read(&path).map_err(|error| failed(&path, &error))?;
            let record = Self::decode(&bytes).map_err(|why| failed(&path, &why))?;
            if record.path(state_dir) != path {
                return Err(failed(&path, &UNSOUND));
            }
            let beside = path.with_extension(safe::EXTENSION);
            let ranges = safe::read(&beside).map_err(|error| failed(&beside, &error))?;
            all.push(record.without(&ranges));
        }
        Ok(all)
    }

    /// Parses a record from the bytes of its file; the error is a message for the operator.
    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let sound = record.version == VERSION && record.volumes.iter().all(VolumeLoss::is_sound);
        if sound { Ok(record) } else { Err(UNSOUND.into()) }
    }
}

/// The record of a failed cache, for offline tools: all other data on that cache is older than its
/// backing stores (I52). `None` if the state directory has no record of it.
///
/// # Errors
/// A record cannot be read.
pub fn only_copies(state_dir: &Path, cache: CacheUuid) -> Result<Option<OnlyCopies>, RunError> {
    let record = LossRecord::all(&MayWait::here(), state_dir)?
        .into_iter()
        .find(|record| record.cache_uuid == hex(&cache.0));
    Ok(record.map(|record| only_copies_of(&record, record.path(state_dir))))
}

fn only_copies_of(record: &LossRecord, path: PathBuf) -> OnlyCopies {
    let ranges = |volume: &VolumeLoss| {
        (volume.number, volume.lost.iter().map(|range| (range.offset_bytes, range.bytes)).collect())
    };
    let volumes = record.volumes.iter().map(ranges).collect();
    OnlyCopies { record: path, failed_unix_s: record.failed_unix_s, volumes }
}

/// Parses bytes as a record, as a start does, and as a file of safe ranges, for fuzzing; true if
/// they are a record.
#[doc(hidden)]
#[must_use]
pub fn reads_as_loss_record(bytes: &[u8]) -> bool {
    let ranges = safe::decode(bytes);
    let Ok(record) = LossRecord::decode(bytes) else { return false };
    assert!(record.clone().without(&ranges).lost_bytes() <= record.lost_bytes());
    let _ = (record.losses(), record.entries(), record.lost_bytes(), record.losers());
    let again = serde_json::to_vec(&record).map(|bytes| LossRecord::decode(&bytes));
    assert!(matches!(again, Ok(Ok(again)) if again == record), "a record does not survive being written");
    true
}

impl VolumeLoss {
    fn is_sound(&self) -> bool {
        let whole = |range: &Range| {
            let end = range.offset_bytes.checked_add(range.bytes);
            range.offset_bytes.is_multiple_of(512)
                && range.bytes.is_multiple_of(512)
                && range.bytes > 0
                && end.is_some_and(|end| end <= 1 << 52)
        };
        unhex(&self.uuid).is_some()
            && u32::from(self.number) < forebay_format::geometry::VOLUMES_MAX
            && self.lost.iter().all(whole)
    }
}

impl Range {
    pub(crate) fn of(loss: &Loss, now_unix_s: u64) -> Self {
        let written_unix_s = now_unix_s.saturating_sub(loss.age / SECOND_NS);
        Self { offset_bytes: loss.offset, bytes: loss.bytes, written_unix_s }
    }

    fn loss(&self, now_unix_s: u64) -> Loss {
        let age = now_unix_s.saturating_sub(self.written_unix_s).saturating_mul(SECOND_NS);
        Loss { offset: self.offset_bytes, bytes: self.bytes, age }
    }
}

/// Checks that a record could be written, before it is needed. Creates nothing: most caches never
/// fail.
///
/// # Errors
/// A message for the operator, if the directory, or the existing part of its path, is not writable.
pub(crate) fn is_possible(_: &MayWait, state_dir: &Path) -> Result<(), String> {
    let folder = state_dir.join(FOLDER);
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(state_dir);
    rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        format!(
            "a failure of the cache device could not be recorded in {} ({}: {error}), and writes would be \
             refused then: give the daemon write access there, or set state_dir",
            folder.display(),
            there.display()
        )
    })
}

/// Judges a pool by the records, and by the content of its identifiable devices. `recorded` is the
/// failed cache that the register has as the pool's: no other one has replaced it yet, whichever
/// devices are configured. This is the state during a replacement, until the new cache is complete.
pub fn judge(
    records: &[LossRecord],
    pool: &str,
    devices: &[(&Path, Seen)],
    recorded: Option<&LossRecord>,
) -> Verdict {
    let caches = devices.iter().filter_map(|(_, seen)| match seen {
        Seen::Cache(uuid) => Some(hex(&uuid.0)),
        Seen::Blank | Seen::Unusable => None,
    });
    let caches: Vec<String> = caches.collect();
    let record_of = |uuid: &String| records.iter().find(|record| record.cache_uuid == *uuid);
    if let Some(record) = caches.iter().find_map(record_of) {
        return Verdict::WithoutCache(Box::new(record.clone()));
    }
    match recorded {
        Some(record) if caches.is_empty() => return Verdict::WithoutCache(Box::new(record.clone())),
        Some(record) if record.lost_bytes() > 0 => return Verdict::Refuse(Box::new(record.clone())),
        _ => {}
    }
    let mut verdict = Verdict::Open;
    for (path, seen) in devices {
        let here =
            |record: &&LossRecord| record.pool == pool && record.devices.iter().any(|device| device == path);
        // The latest failure at this path decides.
        let last = records.iter().filter(here).max_by_key(|record| record.failed_unix_s);
        match (seen, last) {
            // The other device identifies the cache.
            (Seen::Unusable, Some(_)) if !caches.is_empty() => {}
            (Seen::Unusable, Some(record)) => return Verdict::WithoutCache(Box::new(record.clone())),
            (_, Some(record)) if record.lost_bytes() > 0 => {
                verdict = Verdict::Refuse(Box::new(record.clone()))
            }
            _ => {}
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uuid: u8, lost: Vec<Range>) -> LossRecord {
        let mut record =
            LossRecord::new(CacheUuid([uuid; 16]), "fast", vec!["/dev/flash".into()], "it is gone");
        let volume =
            VolumeLoss { name: "db".into(), uuid: hex(&[7; 16]), number: 3, size_bytes: 1 << 20, lost };
        record.volumes.push(volume);
        record
    }

    fn range() -> Range {
        Range { offset_bytes: 8192, bytes: 512, written_unix_s: unix_s() - 60 }
    }

    #[test]
    fn record_round_trips_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("deep/state");
        assert_eq!(LossRecord::all(&MayWait::here(), &state).unwrap(), []);
        let first = record(1, vec![range()]);
        first.store(&MayWait::here(), &state).unwrap();
        let less = LossRecord { volumes: Vec::new(), ..first.clone() };
        record(2, Vec::new()).store(&MayWait::here(), &state).unwrap();
        assert_eq!(LossRecord::all(&MayWait::here(), &state).unwrap().len(), 2);
        less.store(&MayWait::here(), &state).unwrap();
        assert!(LossRecord::all(&MayWait::here(), &state).unwrap().contains(&less));
        assert!(!LossRecord::all(&MayWait::here(), &state).unwrap().contains(&first));
        assert_eq!(LossRecord::all(&MayWait::here(), &state).unwrap().len(), 2);
    }

    #[test]
    fn malformed_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        record(1, Vec::new()).store(&MayWait::here(), folder.path()).unwrap();
        let path = record(1, Vec::new()).path(folder.path());
        for wrong in ["", "{}", "{\"version\": 1"] {
            fs::write(&path, wrong).unwrap();
            assert!(LossRecord::all(&MayWait::here(), folder.path()).is_err(), "{wrong:?}");
        }
        let odd = record(1, vec![Range { offset_bytes: 100, ..range() }]);
        fs::write(&path, serde_json::to_vec(&odd).unwrap()).unwrap();
        assert!(
            LossRecord::all(&MayWait::here(), folder.path()).is_err(),
            "a range that is not made of sectors"
        );
        let other = record(9, Vec::new());
        fs::write(&path, serde_json::to_vec(&other).unwrap()).unwrap();
        assert!(
            LossRecord::all(&MayWait::here(), folder.path()).is_err(),
            "a file under another cache's name"
        );
    }

    #[test]
    fn safe_ranges_are_removed_from_a_record() {
        let folder = tempfile::tempdir().unwrap();
        let whole = record(1, vec![range(), Range { offset_bytes: 65536, bytes: 4096, written_unix_s: 5 }]);
        whole.store(&MayWait::here(), folder.path()).unwrap();
        let safe = |offset_bytes, bytes| SafeRange { volume: 3, offset_bytes, bytes };
        let path = whole.path(folder.path());
        let first = LossRecord::add_safe(&MayWait::here(), &path, &[safe(8192, 512)]).unwrap();
        assert!(LossRecord::add_safe(&MayWait::here(), &path, &[safe(65536, 1024)]).unwrap() > first);
        let left = LossRecord::all(&MayWait::here(), folder.path()).unwrap().remove(0);
        assert_eq!(left.volumes[0].lost, [Range { offset_bytes: 66560, bytes: 3072, written_unix_s: 5 }]);
        // A complete record replaces both files.
        whole.store(&MayWait::here(), folder.path()).unwrap();
        assert_eq!(LossRecord::all(&MayWait::here(), folder.path()).unwrap(), std::slice::from_ref(&whole));
        assert!(whole.has_table(&whole.entries()));
        let mut other = whole.entries();
        other[0].size_bytes += 4096;
        assert!(!whole.has_table(&other) && !whole.has_table(&[]));
    }

    #[test]
    fn unwritable_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "in the way").unwrap();
        assert!(record(1, Vec::new()).store(&MayWait::here(), &file).is_err());
    }

    #[test]
    fn recorded_cache_is_not_opened_in_any_pool() {
        let flash = Path::new("/dev/flash");
        let records = || vec![record(1, vec![range()]), record(2, Vec::new())];
        let seen = |uuid| Seen::Cache(CacheUuid([uuid; 16]));
        let elsewhere = Path::new("/x");
        let judge = |records: &[LossRecord], pool, path, seen| judge(records, pool, &[(path, seen)], None);
        assert!(matches!(judge(&records(), "other", elsewhere, seen(1)), Verdict::WithoutCache(_)));
        assert!(matches!(judge(&records(), "fast", flash, seen(2)), Verdict::WithoutCache(_)));
        assert_eq!(judge(&records(), "other", elsewhere, seen(3)), Verdict::Open);
        let gone = judge(&[record(1, vec![range()])], "fast", flash, Seen::Unusable);
        assert!(matches!(gone, Verdict::WithoutCache(_)), "its device is gone");
        let other = judge(&[record(1, vec![range()])], "fast", flash, Seen::Blank);
        assert!(matches!(other, Verdict::Refuse(_)), "lost data must not come back as old data");
        assert_eq!(judge(&[record(1, Vec::new())], "fast", flash, Seen::Blank), Verdict::Open);
        assert_eq!(judge(&[], "fast", flash, Seen::Unusable), Verdict::Open);
    }

    #[test]
    fn failed_cache_stays_until_one_is_whole() {
        let fresh = Path::new("/dev/fresh");
        let judge = |lost: Vec<Range>, seen| {
            let records = [record(1, lost)];
            judge(&records, "fast", &[(fresh, seen)], Some(&records[0]))
        };
        for seen in [Seen::Blank, Seen::Unusable] {
            for lost in [vec![range()], Vec::new()] {
                assert!(matches!(judge(lost, seen), Verdict::WithoutCache(_)), "{seen:?}");
            }
        }
        let whole = Seen::Cache(CacheUuid([9; 16]));
        assert_eq!(judge(Vec::new(), whole), Verdict::Open, "it takes the place of one that has nothing");
        assert!(matches!(judge(vec![range()], whole), Verdict::Refuse(_)), "what is lost is not given up");
    }

    #[test]
    fn either_mirror_device_identifies_cache() {
        let (flash, other) = (Path::new("/dev/flash"), Path::new("/dev/other"));
        let both = |a, b| judge(&[record(1, vec![range()])], "fast", &[(flash, a), (other, b)], None);
        let seen = |uuid| Seen::Cache(CacheUuid([uuid; 16]));
        assert!(matches!(both(Seen::Unusable, seen(1)), Verdict::WithoutCache(_)));
        assert!(matches!(both(Seen::Unusable, Seen::Unusable), Verdict::WithoutCache(_)));
        assert!(matches!(both(Seen::Blank, Seen::Blank), Verdict::Refuse(_)));
        // One device of a newer cache has failed: an old record does not make the pool give up the
        // dirty data of the other one.
        assert_eq!(both(Seen::Unusable, seen(2)), Verdict::Open);
    }

    #[test]
    fn losses_keep_their_place_and_their_age() {
        let one = record(1, vec![range()]);
        let losses = one.losses();
        assert_eq!((losses[0].0, losses[0].1.offset, losses[0].1.bytes), (VolumeId(3), 8192, 512));
        assert!((60..62).contains(&(losses[0].1.age / SECOND_NS)));
        let risk = [(VolumeId(3), vec![losses[0].1])];
        let again = one.with_risk(&one.entries(), &risk);
        assert_eq!(again.volumes[0].lost, one.volumes[0].lost);
        assert_eq!((again.lost_bytes(), again.losers()), (512, vec!["db"]));
    }

    #[test]
    fn unwritable_state_dir_is_found_in_advance() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(is_possible(&MayWait::here(), &folder.path().join("not/yet/there")), Ok(()));
        assert!(!folder.path().join("not").exists(), "looking makes nothing");
        let in_the_way = folder.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        let why = is_possible(&MayWait::here(), &in_the_way.join("state")).unwrap_err();
        assert!(why.contains("set state_dir") && why.contains("file"), "{why}");
    }
}
