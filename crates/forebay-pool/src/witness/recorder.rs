//! Keeps the evidence about a store: the pool's side, which only counts, and the thread that looks
//! at the store and writes the record.

use super::{Clock, Facts, Record, judge, memory};
use crate::error::RunError;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_core::Suspicion;
use forebay_format::BLOCK_BYTES;
use forebay_io::{Device, DeviceOptions, SharedPage};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The store is looked at after this time without a write.
const QUIET: Duration = Duration::from_millis(100);
/// Minimum interval at which the record is written, and first blocks are read again; except when a
/// first block is written that the record still lists as known.
const RECORD_PAUSE: Duration = Duration::from_secs(10);

const RUNS: u8 = 0;
const ENDS: u8 = 1;
const FORGETS: u8 = 2;

/// Evidence about a store before it is attached, and the state needed to continue from there.
#[derive(Debug)]
pub struct Prepared {
    /// The suspicion of a change by others.
    pub(crate) suspicion: Suspicion,
    /// Its reason, as a message; empty if there is none.
    pub(crate) why: String,
    /// Identity of the volume.
    pub(crate) uuid: [u8; 16],
    page: SharedPage,
    page_path: Option<PathBuf>,
    record_path: PathBuf,
    store_path: PathBuf,
    facts: Facts,
    clock: Clock,
    run: u64,
    /// The store itself, if it has no path: a network store.
    remote: Option<Device>,
    /// Writes that are no multiple of it go through the page cache; `None`: all of them.
    direct_bytes: Option<u64>,
}

impl Prepared {
    /// Looks at the store of the volume with this identity, and at the earlier evidence. Can hang
    /// as long as the store does.
    ///
    /// # Errors
    /// The store cannot be read, or there is no memory.
    pub fn look(_: &MayWait, device: &Device, state_dir: &Path, uuid: [u8; 16]) -> Result<Self, RunError> {
        let failed = |error: &dyn std::fmt::Display| {
            RunError::failed(MessageId::BackingUnreadable, error.to_string(), "")
        };
        let facts = Facts::of(device).map_err(|error| failed(&error))?;
        let heads = Facts::heads_of(device).map_err(|error| failed(&error))?;
        let facts = Facts { heads, ..facts };
        let page_path = memory::path(state_dir, uuid);
        let page = page_path.as_deref().and_then(|path| SharedPage::open(path).ok());
        let page = page.or_else(SharedPage::private);
        let page = page.ok_or_else(|| failed(&"no memory to track the backing store"))?;
        let record_path = Record::path(state_dir, uuid);
        let clock = Clock::read();
        let known = memory::read(&page, &clock.boot_id);
        let record = Record::read(&record_path);
        let (suspicion, why) = judge(&facts, known.as_ref(), record.as_ref(), &clock);
        // The last process has had the answers to all its changes. Without its memory that is
        // unknown: the store may have been a volume of another cache, here or on another host.
        let is_settled = known.as_ref().is_some_and(|known| known.began == known.ended);
        let remote = device.remote_store();
        if let (Some(store), true) = (remote, is_settled) {
            store.trust_earlier();
        }
        let remote = remote.map(|_| device.for_thread()).transpose().map_err(|error| failed(&error))?;
        let run = crate::cache_device::random_uuid()?;
        Ok(Self {
            suspicion,
            why,
            uuid,
            page,
            page_path,
            record_path,
            store_path: device.path().into(),
            remote,
            facts,
            clock,
            run: u64::from_le_bytes(std::array::from_fn(|at| run[at])),
            direct_bytes: device.direct_align_bytes().map(u64::from),
        })
    }

    /// Starts the evidence of an attached volume, before the first write to its store. Called on
    /// the pool's thread; never waits.
    pub(crate) fn begin(self, volume: &str) -> Watch {
        memory::begin(&self.page, &self.clock.boot_id, self.run, &self.facts);
        let shared = Arc::new(Shared {
            page: self.page,
            state: AtomicU8::new(RUNS),
            idles: false.into(),
            behind: false.into(),
        });
        let recorder = Recorder {
            shared: Arc::clone(&shared),
            volume: volume.into(),
            page_path: self.page_path,
            record_path: self.record_path,
            store_path: self.store_path,
            remote: self.remote,
            boot_id: self.clock.boot_id,
            run: self.run,
            seen_at: memory::counts(&shared.page).0,
            heads_at: memory::counts(&shared.page).0,
            facts: self.facts,
            recorded: None,
        };
        // Without it the judgement after a crash is less exact, and clean blocks are dropped then.
        let thread = MayWait::spawn("store", move |may_wait| recorder.run(may_wait));
        Watch {
            shared,
            recorder: thread.ok().map(|thread| thread.thread().clone()),
            direct_bytes: self.direct_bytes,
        }
    }
}

#[derive(Debug)]
struct Shared {
    page: SharedPage,
    state: AtomicU8,
    /// The recorder sleeps until it is woken.
    idles: AtomicBool,
    /// The record could not be written when last due.
    behind: AtomicBool,
}

/// The pool's side: counts its writes to a store. Dropped when the volume is detached.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    recorder: Option<Thread>,
    direct_bytes: Option<u64>,
}

impl Watch {
    /// An operation that changes these bytes of the store is about to begin.
    pub(crate) fn begins(&self, offset: u64, len: u64) {
        let block = BLOCK_BYTES as u64;
        let blocks = offset / block..offset.saturating_add(len).div_ceil(block);
        let direct = |unit| offset.is_multiple_of(unit) && len.is_multiple_of(unit);
        let cached = !self.direct_bytes.is_some_and(direct);
        memory::write_begins(&self.shared.page, blocks, cached, forebay_io::shared::unix_ns());
        fence(Ordering::SeqCst);
        // A recorder that is not idle looks by itself soon.
        if self.shared.idles.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The operation has ended, successfully or not.
    pub(crate) fn ended(&self) {
        memory::write_ended(&self.shared.page, forebay_io::shared::unix_ns());
    }

    /// True if the record could not be written when last due.
    pub(crate) fn is_behind(&self) -> bool {
        self.shared.behind.load(Ordering::Relaxed)
    }

    /// Removes the evidence, because the cache has forgotten the volume.
    pub(crate) fn forget(self) {
        self.shared.state.store(FORGETS, Ordering::Release);
    }

    fn wake(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.unpark();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.shared.state.compare_exchange(RUNS, ENDS, Ordering::AcqRel, Ordering::Acquire);
        self.wake();
    }
}

/// The thread's side.
struct Recorder {
    shared: Arc<Shared>,
    volume: String,
    page_path: Option<PathBuf>,
    record_path: PathBuf,
    store_path: PathBuf,
    remote: Option<Device>,
    boot_id: String,
    run: u64,
    facts: Facts,
    /// Numbers of writes when the store was seen, and when its first blocks were read.
    seen_at: u64,
    heads_at: u64,
    /// The last record, and when it was written.
    recorded: Option<(Record, Instant)>,
}

impl Recorder {
    fn run(mut self, may_wait: &MayWait) {
        // Writes of an earlier daemon are possibly not durable yet, and the record must not include
        // bytes that a loss of power reverts.
        let _ = self.open().map(|device| device.flush());
        let mut last = None;
        let mut not_before = Instant::now();
        while self.shared.state.load(Ordering::Acquire) == RUNS {
            let counts = memory::counts(&self.shared.page);
            let quiet = counts.0 == counts.1 && last == Some(counts);
            last = Some(counts);
            if Instant::now() >= not_before {
                let looked = !quiet || self.is_seen(counts.0) || self.look(counts.0);
                if !looked || !self.record(may_wait) {
                    not_before = Instant::now() + RECORD_PAUSE; // a store or a state directory that fails is retried after a pause
                }
            }
            match self.is_seen(counts.0) && self.is_recorded() {
                true => self.idle(counts.0),
                false => std::thread::park_timeout(QUIET),
            }
        }
        if self.shared.state.load(Ordering::Acquire) == FORGETS && memory::is_of(&self.shared.page, self.run)
        {
            let _ = std::fs::remove_file(&self.record_path);
            let _ = self.page_path.as_deref().map(std::fs::remove_file);
        }
    }

    /// Sleeps until the next write.
    fn idle(&self, began: u64) {
        self.shared.idles.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let ends = self.shared.state.load(Ordering::Acquire) != RUNS;
        if !ends && memory::counts(&self.shared.page).0 == began {
            std::thread::park();
        }
        self.shared.idles.store(false, Ordering::SeqCst);
    }

    fn open(&self) -> Option<Device> {
        if let Some(device) = &self.remote {
            return device.for_thread().ok();
        }
        let options =
            DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
        Device::open_backing(&self.store_path, options).ok()
    }

    fn heads_written(&self) -> Vec<usize> {
        memory::heads_written_since(&self.shared.page, self.heads_at)
    }

    fn record_is_fresh(&self) -> bool {
        self.recorded.as_ref().is_some_and(|(_, at)| at.elapsed() < RECORD_PAUSE)
    }

    /// True if the store was looked at after the last write, except for parts that are due later.
    fn is_seen(&self, began: u64) -> bool {
        began == self.seen_at && (self.heads_written().is_empty() || self.record_is_fresh())
    }

    /// True if nothing is left to do until the next write.
    fn is_recorded(&self) -> bool {
        let same = |there: &Record| there.facts == self.facts && there.written_heads.is_empty();
        self.recorded.as_ref().is_some_and(|(there, _)| same(there)) && self.heads_written().is_empty()
    }

    /// Looks at the store while no write is in flight, after `began` writes. False if that fails.
    fn look(&mut self, began: u64) -> bool {
        let Some(device) = self.open() else { return false };
        let Ok(facts) = Facts::of(&device) else { return false };
        let mut heads = (self.facts.heads.clone(), self.heads_at);
        if !self.heads_written().is_empty() && !self.record_is_fresh() {
            let read = device.flush().and_then(|()| Facts::heads_of(&device));
            let Ok(read) = read else { return false };
            heads = (read, began);
        }
        // If the path leads to another file now, the evidence belongs to the one in use. A disk
        // that was unplugged and plugged in again is another device: there is no evidence about it
        // until it is taken.
        let other = (&facts.unique, facts.generation) != (&self.facts.unique, self.facts.generation);
        let facts = Facts { heads: heads.0, ..facts };
        let still = memory::counts(&self.shared.page).0 == began;
        if !other && still && memory::see(&self.shared.page, self.run, &facts, began, heads.1) {
            (self.facts, self.seen_at, self.heads_at) = (facts, began, heads.1);
        }
        !other
    }

    /// Updates the record if due; false if it cannot be written.
    fn record(&mut self, may_wait: &MayWait) -> bool {
        let record = Record {
            version: super::VERSION,
            volume: self.volume.clone(),
            boot_id: self.boot_id.clone(),
            noted_unix_ns: forebay_io::shared::unix_ns(),
            facts: self.facts.clone(),
            written_heads: self.heads_written(),
        };
        let due = match &self.recorded {
            None => true,
            Some((there, _))
                if there.facts == record.facts && there.written_heads == record.written_heads =>
            {
                false
            }
            // A first block was written that the record still lists as known.
            Some((there, _)) => {
                !self.record_is_fresh()
                    || record.written_heads.iter().any(|block| !there.written_heads.contains(block))
            }
        };
        if !due || !memory::is_of(&self.shared.page, self.run) {
            return true;
        }
        let stored = record.store(may_wait, &self.record_path).is_ok();
        self.shared.behind.store(!stored, Ordering::Relaxed);
        if stored {
            self.recorded = Some((record, Instant::now()));
        }
        stored
    }
}
