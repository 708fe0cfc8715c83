//! Letting go of devices that may hang.
//!
//! A thread looks at a backing store that is let go, and closes devices. Either may wait for a
//! store that does not answer, and the pool's thread serves everybody else. A store that does not
//! answer in time gets no record: the cache compares blocks when it comes back.
//!
//! A stop waits as long as operations come back, or clients of a failed cache are being rescued. If
//! none has come back for [`STALL`], the pool is given up as it is: everything that was
//! acknowledged is in the cache, and the next start recovers as after a crash. Devices on which
//! nothing is under way are let go, so that this start need not wait for the end of this process.

use super::{Pool, PoolEvent};
use crate::error::RunError;
use crate::may_wait::MayWait;
use crate::open::{final_record, sample_blocks};
use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use forebay_format::checkpoint::BackingRecord;
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{DeviceId, DeviceInUse};
use std::time::{Duration, Instant};

/// So long is waited for what a backing store looks like.
const RECORD_WITHIN: Duration = Duration::from_secs(5);
/// An opening or a stop that waits for operations of devices is given up if none has come back for
/// so long.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// What is asked of backing stores, and what came of it.
#[derive(Debug, Default)]
pub(super) struct LettingGo {
    /// Volumes whose stores are being looked at, and until when that is waited for.
    looks: Vec<(VolumeId, Instant)>,
    /// For the end of a stop: what they look like.
    records: Vec<(VolumeId, BackingRecord)>,
    /// Nothing is in flight any more: the cache is closed once all stores were looked at.
    quiesced: bool,
    /// Since when the pool opens its cache or stops, or when an operation of a device came back the
    /// last time since.
    waits_since: Option<Instant>,
}

impl LettingGo {
    /// The pool waits for its devices, to open the cache or to stop, or does so no longer.
    pub(super) fn waits(&mut self, waits: bool) {
        self.waits_since = waits.then(Instant::now);
    }

    /// An operation of a device came back; true if the pool waits for that.
    pub(super) fn moves(&mut self) -> bool {
        let since = self.waits_since.as_mut();
        since.map(|since| *since = Instant::now()).is_some()
    }
}

impl Pool {
    /// Has a thread look at the backing store of a volume, now that nothing writes to it.
    fn look_at_store(&mut self, id: VolumeId) {
        let Some(device) = self.served(id).map(|served| served.device) else { return };
        let Some(size_bytes) = self.reactor.device(device).map(DeviceInUse::size_bytes) else { return };
        let engine = &self.engine;
        let is_clean = |block: &u64| {
            let mut clean = true;
            engine.block_status(id, *block, 1, &mut |_, _, dirty| {
                clean &= !dirty;
                true
            });
            clean
        };
        let blocks: Vec<u64> = sample_blocks(size_bytes).filter(is_clean).collect();
        self.letting_go.looks.push((id, Instant::now() + RECORD_WITHIN));
        let Some(store) = self.reactor.device(device).map(DeviceInUse::for_thread) else { return };
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let look = move |may_wait: &MayWait| {
            let record = store
                .and_then(|store| final_record(may_wait, &store, &blocks))
                .map_err(|error| error.to_string());
            // Nobody listens any more if the pool has ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.looked_at(id, record)));
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("look-{}", self.name), look) {
            // It comes as the answer of a thread does: whoever asks looks at other stores first.
            let why = format!("cannot start a thread: {error}");
            let _ = self.myself.send(Box::new(move |pool: &mut Self| pool.looked_at(id, Err(why)))); // we are here
            self.reactor.waker().wake();
        }
    }

    fn looked_at(&mut self, id: VolumeId, record: Result<BackingRecord, String>) {
        let Some(at) = self.letting_go.looks.iter().position(|(of, _)| *of == id) else { return }; // too late
        self.letting_go.looks.swap_remove(at);
        let record = record.map_err(|why| {
            let volume = self.name_of(id);
            let what = format!("cannot note the state of the backing store of {volume}: {why}");
            self.emit(PoolEvent::Note(MessageId::Event(EventKind::StateUnwritable), what));
        });
        if self.letting_go.quiesced {
            self.letting_go.records.extend(record.ok().map(|record| (id, record)));
            return self.close_cache();
        }
        let now = self.io.now();
        // Without a record the cache will compare blocks when the volume comes back. An error says
        // that the detach is over by now.
        let _ = self.engine.finish_detach(now, id, record.unwrap_or_default());
    }

    /// The engine wants to know what the backing store looks like now that nothing writes to it.
    pub(super) fn volume_quiet(&mut self, id: VolumeId) {
        match self.served(id).and_then(|served| served.saving.clone()) {
            Some(saving) => self.save(id, saving),
            None => self.look_at_store(id),
        }
    }

    /// Nothing is in flight any more: notes what the backing stores look like, and closes the
    /// cache.
    pub(super) fn quiesced(&mut self) {
        self.letting_go.quiesced = true;
        for note in self.reactor.emulation_notes() {
            self.emit(PoolEvent::Note(MessageId::PoolNote, note));
        }
        for number in 0..self.volumes.len() {
            let id = VolumeId(number as u16);
            if !self.letting_go.looks.iter().any(|(of, _)| *of == id) {
                self.look_at_store(id);
            }
        }
        self.close_cache();
    }

    fn close_cache(&mut self) {
        if self.letting_go.looks.is_empty() {
            let now = self.io.now();
            let records = std::mem::take(&mut self.letting_go.records);
            self.engine.finish_shutdown(now, &records);
        }
    }

    /// Gives up waiting for stores that do not answer; returns how long the loop may sleep because
    /// of that.
    pub(super) fn look_after_stores(&mut self) -> Option<Duration> {
        let now = Instant::now();
        while let Some((id, _)) = self.letting_go.looks.iter().find(|(_, due)| *due <= now) {
            let why = format!("it does not answer within {} s", RECORD_WITHIN.as_secs());
            self.looked_at(*id, Err(why));
        }
        let looks = self.letting_go.looks.iter().map(|(_, due)| *due);
        let stall = self.letting_go.waits_since.map(|since| since + STALL);
        let due = looks.chain(stall).min()?;
        Some(due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// True if a stop has waited long enough for devices that hang.
    pub(super) fn is_stuck(&self) -> bool {
        self.letting_go.waits_since.is_some_and(|since| since.elapsed() >= STALL)
    }

    /// Ends the pool though operations are under way.
    pub(super) fn give_up(mut self) -> RunError {
        let (gone, dirty_bytes) = (self.gone(), self.engine.stats().dirty_blocks * BLOCK_BYTES as u64);
        let stores = self.volumes.iter().flatten();
        let stores =
            stores.map(|served| (format!("{} of {}", served.spec.backing, served.spec.name), served.device));
        let cache = self.io.cache().ids.iter().filter_map(|id| {
            let path = self.reactor.device(*id)?.path();
            Some((path.display().to_string(), *id))
        });
        let devices: Vec<(String, DeviceId)> = stores.chain(cache).collect();
        let mut hang = Vec::new();
        for (name, id) in devices {
            match self.reactor.remove_device(id) {
                Some(device) => crate::time_limit::let_go(device),
                None => hang.push(name),
            }
        }
        let devices = if hang.is_empty() { "a device".to_owned() } else { hang.join(", ") };
        let event = PoolEvent::GivenUp { devices, within: STALL, dirty_bytes, gone };
        let error = RunError::failed(
            MessageId::PoolNotClosed,
            format!("pool {}: {event}", self.name),
            "once the device answers, or is gone, start the daemon again",
        );
        self.emit(event);
        self.leave_reactor();
        error
    }

    /// Memory and descriptors that the kernel still uses are let go when it is done with them, or
    /// with the process.
    pub(super) fn leave_reactor(self) {
        let Self { reactor, .. } = self;
        crate::time_limit::let_go(reactor);
    }

    /// The cache devices, for messages.
    pub(super) fn cache_paths(&self) -> String {
        let devices = self.devices().into_iter().map(|(path, _)| path.display().to_string());
        devices.collect::<Vec<_>>().join(", ")
    }

    /// The cache cannot be opened, as its devices do not answer.
    pub(super) fn opening_hangs(&self) -> RunError {
        RunError::failed(
            MessageId::CacheNotAnswering,
            format!(
                "cannot open the cache: {} has not answered for {} s",
                self.cache_paths(),
                STALL.as_secs()
            ),
            "see that the device works, or that who serves it runs; then try again",
        )
    }
}
