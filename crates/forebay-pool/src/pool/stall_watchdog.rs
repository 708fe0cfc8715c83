//! Closing devices that may hang.
//!
//! A thread reads the state of a backing store that the pool gives up, and closes devices. Either
//! may block on a store that does not answer, while the pool's thread serves other clients. A store
//! that does not answer in time gets no record: the cache compares blocks when it comes back.
//!
//! A stop waits as long as operations complete, or a failed cache is being rescued. If none has
//! completed for [`STALL`], the pool is given up in its current state: everything that was
//! acknowledged is in the cache, and the next start recovers as after a crash. Devices without
//! operations in flight are closed, so that this start need not wait for the end of this process.

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

/// Time limit for reading the state of a backing store.
const RECORD_WITHIN: Duration = Duration::from_secs(5);
/// An opening or a stop that waits for device operations is given up if none has completed for this
/// long.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// Reads of backing stores, and their results.
#[derive(Debug, Default)]
pub(super) struct StallWatchdog {
    /// Volumes whose stores a thread is reading, with the deadlines.
    looks: Vec<(VolumeId, Instant)>,
    /// For the end of a stop: the states of the stores.
    records: Vec<(VolumeId, BackingRecord)>,
    /// No request is in flight: the cache is closed once all stores have been read.
    quiesced: bool,
    /// Start of the current opening or stop, or completion of the last device operation since.
    waits_since: Option<Instant>,
}

impl StallWatchdog {
    /// The pool begins to wait for its devices, to open the cache or to stop, or no longer waits.
    pub(super) fn waits(&mut self, waits: bool) {
        self.waits_since = waits.then(Instant::now);
    }

    /// A device operation has completed; returns true if the pool waits for that.
    pub(super) fn moves(&mut self) -> bool {
        let since = self.waits_since.as_mut();
        since.map(|since| *since = Instant::now()).is_some()
    }
}

impl Pool {
    /// Starts a thread that reads the state of a volume's backing store, which has no writers now.
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
        self.stall_watchdog.looks.push((id, Instant::now() + RECORD_WITHIN));
        let Some(store) = self.reactor.device(device).map(DeviceInUse::for_thread) else { return };
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let look = move |may_wait: &MayWait| {
            let record = store
                .and_then(|store| final_record(may_wait, &store, &blocks))
                .map_err(|error| error.to_string());
            // The pool may have ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.looked_at(id, record)));
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("look-{}", self.name), look) {
            // Sent as a thread's answer would be: the caller visits other stores first.
            let why = format!("cannot start a thread: {error}");
            let _ = self.myself.send(Box::new(move |pool: &mut Self| pool.looked_at(id, Err(why)))); // it is running
            self.reactor.waker().wake();
        }
    }

    fn looked_at(&mut self, id: VolumeId, record: Result<BackingRecord, String>) {
        let Some(at) = self.stall_watchdog.looks.iter().position(|(of, _)| *of == id) else { return }; // too late
        self.stall_watchdog.looks.swap_remove(at);
        let record = record.map_err(|why| {
            let volume = self.name_of(id);
            let what = format!("cannot record the state of the backing store of {volume}: {why}");
            self.emit(PoolEvent::Note(MessageId::Event(EventKind::StateUnwritable), what));
        });
        if self.stall_watchdog.quiesced {
            self.stall_watchdog.records.extend(record.ok().map(|record| (id, record)));
            return self.close_cache();
        }
        let now = self.io.now();
        // Without a record the cache compares blocks when the volume comes back. An error means
        // that the detach has ended by now.
        let _ = self.engine.finish_detach(now, id, record.unwrap_or_default());
    }

    /// The engine asks for the state of the backing store, which has no writers now.
    pub(super) fn volume_quiet(&mut self, id: VolumeId) {
        match self.served(id).and_then(|served| served.saving.clone()) {
            Some(saving) => self.save(id, saving),
            None => self.look_at_store(id),
        }
    }

    /// No request is in flight: records the states of the backing stores, and closes the cache.
    pub(super) fn quiesced(&mut self) {
        self.stall_watchdog.quiesced = true;
        for note in self.reactor.emulation_notes() {
            self.emit(PoolEvent::Note(MessageId::PoolNote, note));
        }
        for number in 0..self.volumes.len() {
            let id = VolumeId(number as u16);
            if !self.stall_watchdog.looks.iter().any(|(of, _)| *of == id) {
                self.look_at_store(id);
            }
        }
        self.close_cache();
    }

    fn close_cache(&mut self) {
        if self.stall_watchdog.looks.is_empty() {
            let now = self.io.now();
            let records = std::mem::take(&mut self.stall_watchdog.records);
            self.engine.finish_shutdown(now, &records);
        }
    }

    /// Enforces the deadlines of stores that do not answer; returns how long the loop may sleep
    /// until the next one.
    pub(super) fn look_after_stores(&mut self) -> Option<Duration> {
        let now = Instant::now();
        while let Some((id, _)) = self.stall_watchdog.looks.iter().find(|(_, due)| *due <= now) {
            let why = format!("it does not answer within {} s", RECORD_WITHIN.as_secs());
            self.looked_at(*id, Err(why));
        }
        let looks = self.stall_watchdog.looks.iter().map(|(_, due)| *due);
        let stall = self.stall_watchdog.waits_since.map(|since| since + STALL);
        let due = looks.chain(stall).min()?;
        Some(due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// Returns true if an opening or a stop has waited long enough for devices that hang.
    pub(super) fn is_stuck(&self) -> bool {
        self.stall_watchdog.waits_since.is_some_and(|since| since.elapsed() >= STALL)
    }

    /// Ends the pool although operations are in flight.
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
                Some(device) => crate::time_limit::drop_in_background(device),
                None => hang.push(name),
            }
        }
        let devices = if hang.is_empty() { "a device".to_owned() } else { hang.join(", ") };
        let event = PoolEvent::GivenUp { devices, within: STALL, dirty_bytes, gone };
        let error = RunError::failed(
            MessageId::PoolNotClosed,
            format!("pool {}: {event}", self.name),
            "once the device answers, or is removed, start the daemon again",
        );
        self.emit(event);
        self.leave_reactor();
        error
    }

    /// Releases the reactor. Memory and descriptors that the kernel still uses are released when it
    /// is done with them, or at the end of the process.
    pub(super) fn leave_reactor(self) {
        let Self { reactor, .. } = self;
        crate::time_limit::drop_in_background(reactor);
    }

    /// Paths of the cache devices, for messages.
    pub(super) fn cache_paths(&self) -> String {
        let devices = self.devices().into_iter().map(|(path, _)| path.display().to_string());
        devices.collect::<Vec<_>>().join(", ")
    }

    /// Error for a cache that cannot be opened because its devices do not answer.
    pub(super) fn opening_hangs(&self) -> RunError {
        RunError::failed(
            MessageId::CacheNotAnswering,
            format!(
                "cannot open the cache: {} has not answered for {} s",
                self.cache_paths(),
                STALL.as_secs()
            ),
            "check the device, or the server that provides it; then try again",
        )
    }
}
