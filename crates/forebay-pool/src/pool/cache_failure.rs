//! Failure of the cache device: writing the record that the engine requests, and updating it.
//!
//! Making the record durable may take long, or hang, so a thread does it, and the pool waits for it
//! only for a limited time. Requests wait meanwhile. If it fails, they get errors, and the pool
//! retries: the state directory may have room later. An attempt that ends after its deadline still
//! counts: the data at risk only shrinks (I52), so the record only needs the ranges that became
//! safe since.
//!
//! A whole record visits every slot of the cache and may have a million ranges. So the walk over
//! the slots runs in pieces, between which the pool serves requests, and the thread that writes the
//! file merges the ranges. Writes wait for the update, so usually the pool only appends the ranges
//! that became safe ([`Pool::additions`]).

use super::{Pool, PoolEvent};
use crate::failed_mark;
use crate::loss_record::{LossRecord, Range, SafeRange, unix_s};
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use forebay_core::{AtRisk, RiskWalk};
use forebay_format::BLOCK_BYTES;
use forebay_format::checkpoint::VolumeEntry;
use forebay_io::DeviceInUse;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for writing a record, or a note.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// Slots visited in one turn of the loop for a whole record: less than a millisecond.
const WALK_SLOTS: u32 = 1 << 16;
/// Pause before another attempt.
const PAUSE: Duration = Duration::from_secs(10);
/// Bytes that may be appended to a record before it is rewritten; more for each of its ranges, so
/// that rewrites stay rare.
const ADDED_BYTES_MAX: u64 = 1 << 20;
const ADDED_BYTES_PER_RANGE: u64 = 100;
/// After the end of the rescue, a record of up to this many ranges is rewritten at each update:
/// people read it then.
const SHORT_RANGES: u64 = 4096;

/// Result of a write.
enum Written {
    /// This is the record now.
    Whole(Arc<LossRecord>),
    /// This many bytes are appended to the record.
    Added(u64),
}

/// The record of a pool's cache.
#[derive(Debug)]
pub(super) struct CacheFailure {
    state_dir: PathBuf,
    /// The whole record that was written last, or is being written.
    record: Option<Arc<LossRecord>>,
    /// The walk for the next whole record, with its ticket.
    walk: Option<(u64, RiskWalk)>,
    /// It is unknown whether `record` is on disk.
    is_doubtful: bool,
    /// Bytes appended to it.
    added_bytes: u64,
    /// It was written after the end of the rescue, for people.
    is_final: bool,
    /// The ticket of the record in progress, and its deadline.
    under_way: Option<(u64, Instant)>,
    again_at: Option<Instant>,
    /// The thread that writes the file; only one at a time, or an old record could replace a new
    /// one.
    writer: Option<JoinHandle<()>>,
}

impl CacheFailure {
    pub(super) fn new(state_dir: PathBuf, record: Option<LossRecord>) -> Self {
        Self {
            state_dir,
            record: record.map(Arc::new),
            walk: None,
            is_doubtful: false,
            added_bytes: 0,
            is_final: false,
            under_way: None,
            again_at: None,
            writer: None,
        }
    }

    /// Folder of records and notes.
    pub(super) fn state_dir(&self) -> &std::path::Path {
        &self.state_dir
    }

    /// The record that was written last.
    pub(super) fn record(&self) -> Option<&Arc<LossRecord>> {
        self.record.as_ref()
    }

    /// Path of the record.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.record.as_ref().map(|record| record.path(&self.state_dir))
    }
}

impl Pool {
    /// The engine requests a record, or an update of it.
    pub(super) fn record_loss(&mut self, ticket: u64) {
        self.cache_failure.under_way = Some((ticket, Instant::now() + TIMEOUT));
        // If the previous attempt has not ended, this one begins after it.
        if self.cache_failure.writer.is_none() && self.cache_failure.walk.is_none() {
            self.write_loss(ticket);
        }
    }

    fn write_loss(&mut self, ticket: u64) {
        let table = self.engine.volume_table();
        if let Some((path, ranges)) = self.additions(&table) {
            self.write_record(ticket, move |may_wait| {
                LossRecord::add_safe(may_wait, &path, &ranges).map(Written::Added)
            });
            return;
        }
        self.cache_failure.is_final = self.engine.is_rescue_over();
        self.cache_failure.walk = Some((ticket, RiskWalk::default()));
        self.walk_on();
    }

    /// Does a piece of the walk for a whole record; the record is written at its end. Returns true
    /// if the walk continues.
    fn walk_on(&mut self) -> bool {
        let Some((ticket, mut walk)) = self.cache_failure.walk.take() else { return false };
        let segments = WALK_SLOTS / self.engine.geometry().segment_blocks.max(1);
        match self.engine.walk_risk(&mut walk, segments.max(1)) {
            None => self.cache_failure.walk = Some((ticket, walk)),
            Some(risk) => self.write_whole(ticket, risk),
        }
        self.cache_failure.walk.is_some()
    }

    fn write_whole(&mut self, ticket: u64, risk: AtRisk) {
        let (uuid, table) = (self.engine.uuid(), self.engine.volume_table());
        let devices: Vec<PathBuf> = self.devices().into_iter().map(|(path, _)| path).collect();
        let name = &self.name;
        let new = || Arc::new(LossRecord::new(uuid, name, devices, "the cache device failed"));
        let base = Arc::clone(self.cache_failure.record.get_or_insert_with(new));
        let state_dir = self.cache_failure.state_dir.clone();
        self.cache_failure.is_doubtful = true;
        self.write_record(ticket, move |may_wait| {
            let record = base.with_risk(&table, &risk.losses());
            record.store(may_wait, &state_dir)?;
            Ok(Written::Whole(Arc::new(record)))
        });
    }

    /// Returns the ranges to append to the record, and its path; `None` if a whole record is
    /// better, or needed.
    fn additions(&self, table: &[VolumeEntry]) -> Option<(PathBuf, Vec<SafeRange>)> {
        let failure = &self.cache_failure;
        let record = failure.record.as_ref().filter(|_| !failure.is_doubtful)?;
        let long = failure.added_bytes > ADDED_BYTES_MAX + ADDED_BYTES_PER_RANGE * record.ranges();
        let ended = self.engine.is_rescue_over() && (!failure.is_final || record.ranges() <= SHORT_RANGES);
        if long || ended || !record.has_table(table) {
            return None;
        }
        let safe = self.engine.made_safe()?;
        let ranges = safe.iter().flat_map(|(volume, parts)| {
            parts.iter().map(|part| SafeRange {
                volume: volume.0,
                offset_bytes: part.offset,
                bytes: part.bytes,
            })
        });
        Some((record.path(&failure.state_dir), ranges.collect()))
    }

    /// Has a thread write a file.
    fn write_record(
        &mut self,
        ticket: u64,
        write: impl FnOnce(&MayWait) -> std::io::Result<Written> + Send + 'static,
    ) {
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move |may_wait: &MayWait| {
            let result = write(may_wait).map_err(|error| error.to_string());
            // The pool may have ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| {
                pool.writer_ended(ticket, result);
            }));
            waker.wake();
        };
        match MayWait::spawn(format!("record-{}", self.name), work) {
            Ok(writer) => self.cache_failure.writer = Some(writer),
            Err(error) => self.loss_recorded(ticket, Err(format!("cannot start a thread: {error}"))),
        }
    }

    /// The attempt for this ticket has ended, perhaps after its deadline.
    fn writer_ended(&mut self, ticket: u64, result: Result<Written, String>) {
        self.cache_failure.writer = None; // The thread has nothing left to do.
        let result = result.map(|written| {
            self.cache_failure.is_doubtful = false;
            match written {
                Written::Whole(record) => {
                    (self.cache_failure.record, self.cache_failure.added_bytes) = (Some(record), 0)
                }
                Written::Added(bytes) => self.cache_failure.added_bytes = bytes,
            }
        });
        match self.cache_failure.under_way {
            Some((waiting, _)) if waiting == ticket => self.loss_recorded(ticket, result),
            Some((waiting, _)) => self.write_loss(waiting),
            None if result.is_ok() => self.cache_failure.again_at = Some(Instant::now()),
            None => {}
        }
    }

    fn loss_recorded(&mut self, ticket: u64, result: Result<(), String>) {
        if self.cache_failure.under_way.is_none_or(|(waiting, _)| waiting != ticket) {
            return; // The engine has requested another one.
        }
        self.cache_failure.under_way = None;
        if let Err(why) = &result {
            let path = self.cache_failure.path().unwrap_or_default();
            if self.engine.runs_without_cache() {
                let what = "until it is, FLUSHes of volumes that had dirty data, and writes to ranges in the \
                            record, fail";
                self.emit(PoolEvent::Note(
                    MessageId::Event(EventKind::StateUnwritable),
                    format!("{} is not up to date: {why}; {what}", path.display()),
                ));
            } else {
                self.emit(PoolEvent::RecordFailed { path, why: why.clone() });
            }
            self.cache_failure.again_at = Some(Instant::now() + PAUSE);
        }
        let now = self.io.now();
        self.engine.loss_recorded(now, ticket, result.is_ok());
    }

    /// The pool starts without its cache.
    pub(super) fn opened_without_cache(&mut self) {
        let Some(record) = &self.cache_failure.record else { return };
        let event = PoolEvent::OpenedWithoutCache {
            devices: self.device_names(),
            way: self.way_to_another_cache(),
            failed_unix_s: record.failed_unix_s,
            lost_bytes: record.lost_bytes(),
            volumes: record.losers().into_iter().map(str::to_owned).collect(),
            record: self.cache_failure.path().unwrap_or_default(),
        };
        self.emit(event);
    }

    /// Enforces the deadline, and retries when that is due; returns how long the loop may sleep
    /// until the next check.
    pub(super) fn look_after_record(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if let Some((ticket, _)) = self.cache_failure.under_way.filter(|(_, due)| *due <= now) {
            self.loss_recorded(ticket, Err(format!("it took longer than {} s", TIMEOUT.as_secs())));
            return Some(Duration::from_millis(1)); // The next turn handles the consequences.
        }
        if self.cache_failure.again_at.take_if(|due| *due <= now).is_some() {
            let now = self.io.now();
            self.engine.record_again(now);
        }
        if self.walk_on() {
            return Some(Duration::ZERO);
        }
        let due =
            self.cache_failure.under_way.map(|(_, due)| due).into_iter().chain(self.cache_failure.again_at);
        due.min().map(|due| due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// The engine continues without the cache.
    pub(super) fn cache_failed(&mut self) {
        let dirty_bytes = self.engine.stats().dirty_blocks * BLOCK_BYTES as u64;
        let (devices, record) = (self.device_names(), self.cache_failure.path().unwrap_or_default());
        self.emit(PoolEvent::CacheFailed { devices, dirty_bytes, record });
        self.mark_failed(false);
    }

    /// Starts a thread that marks the superblocks of the cache as failed. `tells`: reports if that
    /// is impossible.
    fn mark_failed(&self, tells: bool) {
        let cache = self.io.cache();
        let at = match self.engine.mirror_state() {
            None => Some(0),
            // Only an active member, while the other one is recorded as out.
            Some(state) => state.out.filter(|_| state.noted).and_then(|out| cache.map.device_of(1 - out)),
        };
        let device = at.and_then(|at| self.reactor.device(*cache.ids.get(at)?)).map(DeviceInUse::for_thread);
        let Some(device) = device else { return };
        let (tasks, waker, uuid) = (self.myself.clone(), self.reactor.waker(), self.engine.uuid());
        let work = move |may_wait: &MayWait| {
            let why = match device.and_then(|device| failed_mark::mark(may_wait, &device, uuid)) {
                Ok(false) if tells => "its superblocks cannot be read".to_owned(),
                Err(error) if tells => error.to_string(),
                _ => return,
            };
            let what = format!(
                "the failed cache cannot be marked on its device: only its record prevents it from being \
                 opened ({why})"
            );
            // The pool may have ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| {
                pool.emit(PoolEvent::Note(MessageId::CacheUnmarked, what))
            }));
            waker.wake();
        };
        // A failure here is harmless: the record exists.
        let _ = MayWait::spawn(format!("mark-{}", self.name), work);
    }

    pub(super) fn rescue_ended(&mut self) {
        let losses = self.engine.losses();
        let lost_bytes = losses.iter().flat_map(|(_, losses)| losses).map(|loss| loss.bytes).sum();
        let volumes = losses.iter().map(|(id, _)| self.name_of(*id)).collect();
        let (devices, record) = (self.device_names(), self.cache_failure.path().unwrap_or_default());
        let way = self.way_to_another_cache();
        self.emit(PoolEvent::RescueEnded { devices, way, lost_bytes, volumes, record });
        self.mark_failed(true);
    }

    fn device_names(&self) -> String {
        let recorded = self.cache_failure.record.iter().flat_map(|record| record.devices.clone());
        let names: Vec<String> = recorded.map(|path| path.display().to_string()).collect();
        names.join(", ")
    }

    /// Returns the lost ranges of a volume, attached or not; `None` if the cache does not know it.
    pub fn losses_of(&self, name: &str) -> Option<Vec<Range>> {
        let id = self.find(name).or_else(|| self.entry_of(name).map(|entry| entry.id))?;
        let losses = self.engine.losses();
        let of = losses.iter().find(|(volume, _)| *volume == id);
        let now = unix_s();
        Some(of.map_or_else(Vec::new, |(_, losses)| losses.iter().map(|loss| Range::of(loss, now)).collect()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::Written;
    use crate::pool::mirror::tests::{start, waits_for};
    use forebay_format::superblock::{CacheState, Superblock};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn a_record_that_comes_late_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, told) = start(folder.path());
        let pool = pool.unwrap();
        pool.ask(|pool| pool.device_gone(Some(1))).unwrap();
        waits_for(&told, "is now on one device only");
        // A pipe without a reader replaces the new file: opening it for writing blocks forever.
        let records = folder.path().join("state/failed-caches");
        std::fs::create_dir_all(&records).unwrap();
        let uuid = pool.ask(|pool| crate::loss_record::hex(&pool.engine.uuid().0)).unwrap();
        let pipe = records.join(format!("{uuid}.new"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        pool.ask(|pool| pool.device_gone(Some(0))).unwrap();
        let asked = Instant::now();
        let ticket = loop {
            if let Some((ticket, _)) = pool.ask(|pool| pool.cache_failure.under_way).unwrap() {
                break ticket;
            }
            assert!(asked.elapsed() < Duration::from_secs(60), "no record is asked for");
        };
        // The deadline has passed.
        pool.ask(move |pool| pool.cache_failure.under_way = Some((ticket, Instant::now()))).unwrap();
        waits_for(&told, "it took longer than 20 s");
        assert!(!pool.ask(|pool| pool.engine.runs_without_cache()).unwrap());
        // The attempt succeeds after all. Only ranges that became safe since are appended then.
        let ended = Instant::now();
        pool.ask(move |pool| {
            let table = pool.engine.volume_table();
            let record = pool.cache_failure.record.as_ref().unwrap().with_risk(&table, &[]);
            pool.writer_ended(ticket, Ok(Written::Whole(Arc::new(record))));
        })
        .unwrap();
        while !pool.ask(|pool| pool.engine.runs_without_cache()).unwrap() {
            assert!(ended.elapsed() < Duration::from_secs(60), "the record does not count");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(records.join(format!("{uuid}.safe")).exists());
        drop(std::fs::File::open(&pipe).unwrap());
        pool.stop().unwrap();
    }

    #[test]
    fn checkpoint_needs_no_shared_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, told) = start(folder.path());
        let pool = pool.unwrap();
        let taken = pool.ask(|pool| {
            let sizes = forebay_io::buffer::CLASS_SIZES.iter().rev();
            let memory = pool.reactor.pool_mut();
            sizes.map(|size| std::iter::from_fn(|| memory.alloc(*size)).count()).sum::<usize>()
        });
        assert!(taken.unwrap() > 0);
        pool.stop().unwrap();
        let failed = told.try_iter().find(|event| event.contains("failed"));
        assert_eq!(failed, None);
        let bytes = std::fs::read(folder.path().join("a")).unwrap();
        assert_eq!(Superblock::decode(&bytes[..4096]).unwrap().state, CacheState::Clean);
    }
}
