//! Failure of a device of a mirrored cache: writing the note that the engine requests, and
//! replacing the device.
//!
//! Making the note durable may take long, or hang, so a thread does it, and the pool waits for it
//! only for a limited time, because writes wait meanwhile. If it fails, the engine requests it
//! again a few times, and then gives up the whole cache. A late note is harmless: it records as
//! stale a device that has failed.
//!
//! A device that is out stays open until another one takes its place. The pool submits no more
//! operations to it, but earlier ones may still be in flight. Nothing writes to its successor
//! before they have ended.

use super::cache_failure::TIMEOUT;
use super::{Pool, PoolEvent};
use crate::may_wait::MayWait;
use crate::mirror_notes::Notes;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_core::{MirrorState, Status};
use forebay_io::Device;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// State of the pool's mirrored cache.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// The thread that writes the note of a failed device.
    noter: Option<JoinHandle<()>>,
    /// The ticket of the note in progress, and its deadline.
    under_way: Option<(u64, Instant)>,
    /// Earlier notes, in case the file is lost meanwhile.
    notes: Option<Notes>,
    /// An operator has cancelled the rebuild.
    cancelled: bool,
}

impl Mirror {
    pub(super) fn new(notes: Option<Notes>) -> Self {
        Self { notes, ..Self::default() }
    }
}

/// Progress of a rebuild.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebuilding {
    /// Bytes left to copy; 0: the copy is being made durable.
    Left(u64),
    /// Both devices are active.
    Whole,
    /// The rebuild has ended without that.
    Ended,
}

impl Pool {
    /// The engine requests a note that a device is stale.
    pub(super) fn record_out(&mut self, ticket: u64, member: u8) {
        let Some(state) = self.engine.mirror_state() else { return };
        let cache = self.engine.uuid();
        self.mirror.under_way = Some((ticket, Instant::now() + TIMEOUT));
        if self.mirror.noter.as_ref().is_some_and(|noter| !noter.is_finished()) {
            self.out_recorded(ticket, Err("the previous attempt has not ended".into()));
            return;
        }
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let state_dir = self.cache_failure.state_dir().to_owned();
        let notes = self.mirror.notes.get_or_insert_with(|| Notes::new(cache));
        notes.put(state.tags[usize::from(member)]);
        let notes = notes.clone();
        let work = move |may_wait: &MayWait| {
            let result = notes.keep(may_wait, &state_dir).map(drop);
            // The pool may have ended.
            let _ = tasks.send(Box::new(move |pool: &mut Self| {
                pool.mirror.noter = None; // The thread has nothing left to do.
                pool.out_recorded(ticket, result);
            }));
            waker.wake();
        };
        match MayWait::spawn(format!("note-{}", self.name), work) {
            Ok(noter) => self.mirror.noter = Some(noter),
            Err(error) => self.out_recorded(ticket, Err(format!("cannot start a thread: {error}"))),
        }
    }

    fn out_recorded(&mut self, ticket: u64, result: Result<(), String>) {
        if self.mirror.under_way.take_if(|(waiting, _)| *waiting == ticket).is_none() {
            return; // Too late; the engine requests it again.
        }
        if let Err(why) = &result {
            let note =
                format!("cannot record that a device of the mirrored cache failed: {why}; writes wait");
            self.emit(PoolEvent::Note(MessageId::Event(EventKind::StateUnwritable), note));
        }
        let now = self.io.now();
        self.engine.member_recorded(now, ticket, result.is_ok());
    }

    /// Enforces the deadline of a note; returns how long the loop may sleep until then.
    pub(super) fn look_after_note(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if let Some((ticket, _)) = self.mirror.under_way.filter(|(_, due)| *due <= now) {
            self.out_recorded(ticket, Err(format!("it took longer than {} s", TIMEOUT.as_secs())));
            return Some(Duration::from_millis(1)); // The next turn handles the consequences.
        }
        let due = self.mirror.under_way.map(|(_, due)| due);
        due.map(|due| due.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// A device reports that it is gone; `member`: which one, if the cache is mirrored.
    pub fn device_gone(&mut self, member: Option<u8>) {
        let now = self.io.now();
        match member {
            Some(member) => self.engine.member_gone(now, member),
            None => self.engine.cache_gone(now),
        }
    }

    /// Writes wait until the failure is noted, or cannot be noted.
    pub(super) fn member_failed(&mut self, member: u8) {
        let which = self
            .member_path(member)
            .map_or("a device of the mirrored cache".into(), |path| format!("the cache device {path}"));
        let folder = Notes::folder(self.cache_failure.state_dir());
        let what = "failed, is missing or is stale; writes wait until that is recorded in";
        self.emit(PoolEvent::Note(
            MessageId::Event(EventKind::StateUnwritable),
            format!("{which} {what} {}", folder.display()),
        ));
    }

    pub(super) fn member_out(&mut self, member: u8) {
        if self.engine.status() == Status::Opening {
            return; // Reported when the cache is open.
        }
        let path = self.member_path(member).unwrap_or_default();
        self.degraded(format!("the cache device {path} failed"));
    }

    /// At a start: one of the two devices is missing, stale or failed.
    pub(super) fn say_if_degraded(&mut self) {
        let Some(out) = self.engine.mirror_state().and_then(|state| state.out) else { return };
        let what = match self.member_path(out) {
            Some(path) => format!("the cache device {path} failed, or is stale"),
            None => "a device of the mirrored cache is missing, or was failed out before".into(),
        };
        self.degraded(what);
    }

    pub(super) fn rebuild_failed(&mut self) {
        if self.stopping {
            self.emit(PoolEvent::Note(
                MessageId::PoolNote,
                "the next start fills the new cache device from the beginning".into(),
            ));
            return;
        }
        let cancelled = std::mem::take(&mut self.mirror.cancelled);
        let what = match cancelled {
            true => "filling the new cache device was cancelled",
            false => "the new cache device failed before it was filled",
        };
        self.degraded(what.into());
    }

    fn degraded(&mut self, what: String) {
        let way = self.way_to_another_cache();
        self.emit(PoolEvent::Degraded { what, way });
    }

    /// Path of a device of a mirrored cache, if it is open.
    pub(super) fn member_path(&self, member: u8) -> Option<String> {
        let cache = self.io.cache();
        let id = cache.map.device_of(member).and_then(|at| cache.ids.get(at)).copied();
        id.and_then(|id| self.reactor.device(id)).map(|device| device.path().display().to_string())
    }

    // --- another device

    fn refuse_replacement(&self, why: &dyn std::fmt::Display, hint: &str) -> AdminError {
        let what = format!("cannot replace a device of pool {}: {why}", self.name);
        AdminError::new(MessageId::PoolReplacement, what, hint)
    }

    /// Returns the member that another device may replace.
    fn replaceable(&self) -> Result<u8, AdminError> {
        match self.engine.mirror_state() {
            _ if self.is_replacing() => Err(self.refuse_replacement(
                &"the other one is being copied",
                "wait for it, or cancel it: forebay jobs",
            )),
            Some(MirrorState { out: Some(member), noted: true, rebuild: None, .. }) => Ok(member),
            Some(MirrorState { rebuild: Some(_), .. }) => {
                Err(self
                    .refuse_replacement(&"one is being filled", "wait for it, or cancel it: forebay jobs"))
            }
            Some(MirrorState { out: Some(_), .. }) => {
                Err(self.refuse_replacement(&"the failure of one is being recorded", "try again"))
            }
            _ => {
                Err(self.refuse_replacement(&"both devices work", "only one that has failed can be replaced"))
            }
        }
    }

    /// Closes the device that is out, so that it, or another one in its place, can be opened.
    ///
    /// # Errors
    /// No device is out, a rebuild or a copy is running, or operations on the old device have not
    /// ended.
    pub fn let_go_of_member(&mut self) -> Result<(), AdminError> {
        let member = self.replaceable()?;
        let cache = self.io.cache();
        let Some(id) = cache.map.device_of(member).and_then(|at| cache.ids.get(at)).copied() else {
            return Ok(());
        };
        let device = if self.io.member_is_idle(member) { self.reactor.remove_device(id) } else { None };
        let idle = device.is_some();
        crate::time_limit::drop_in_background(device);
        if !idle {
            return Err(AdminError::new(
                MessageId::CacheNotAnswering,
                format!(
                    "operations on the failed device of pool {} have not ended: it neither answers nor \
                     returns errors",
                    self.name
                ),
                "try again when the kernel has aborted them, or remove the device",
            ));
        }
        self.io.cache_mut().map.set_device(member, None);
        Ok(())
    }

    /// Puts an empty device in the place of the one that is out, which was closed, and begins the
    /// rebuild.
    ///
    /// # Errors
    /// No device is out, or a rebuild is running.
    pub fn replace_member(&mut self, device: Device, tag: u64) -> Result<(), AdminError> {
        let member = self.replaceable()?;
        let path = device.path().display().to_string();
        let id = self.reactor.add_device(device);
        self.reactor.prefer_device(id);
        let cache = self.io.cache_mut();
        cache.ids.push(id);
        cache.map.set_device(member, Some(cache.ids.len() - 1));
        let now = self.io.now();
        if let Err(error) = self.engine.begin_rebuild(now, tag) {
            let cache = self.io.cache_mut();
            cache.ids.pop();
            cache.map.set_device(member, None);
            crate::time_limit::drop_in_background(self.reactor.remove_device(id));
            return Err(self.refuse_replacement(&error, "look at its state: forebay pool show"));
        }
        self.mirror.cancelled = false;
        self.note_cache_ends();
        self.emit(PoolEvent::Note(
            MessageId::PoolNote,
            format!("the new cache device {path} is being filled"),
        ));
        Ok(())
    }

    /// At a start: an empty device replaces one that is out, so a rebuild was interrupted, or is
    /// wanted.
    pub(super) fn take_fresh(&mut self, fresh: Option<Device>) {
        let Some(device) = fresh else { return };
        let taken = crate::cache_device::new_tag().map_err(AdminError::from);
        let taken = taken.and_then(|tag| self.replace_member(device, tag));
        if let Err(error) = taken {
            self.emit(PoolEvent::Note(error.id, error.what));
        }
    }

    /// Progress of the rebuild.
    pub fn rebuild_progress(&self) -> Rebuilding {
        match self.engine.mirror_state().filter(|_| !self.engine.is_fenced()) {
            Some(MirrorState { out: None, .. }) => Rebuilding::Whole,
            Some(MirrorState { rebuild: Some((done, all)), .. }) => {
                Rebuilding::Left(u64::from(all - done) * self.engine.geometry().segment_bytes())
            }
            _ => Rebuilding::Ended,
        }
    }

    /// Ends a rebuild early: the new device stays out, and the cache continues with the other one.
    pub fn cancel_rebuild(&mut self) {
        if let Some(MirrorState { out: Some(member), rebuild: Some(_), .. }) = self.engine.mirror_state() {
            self.mirror.cancelled = true;
            let now = self.io.now();
            self.engine.member_gone(now, member);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(in crate::pool) mod tests {
    use crate::error::RunError;
    use crate::open::Making;
    use crate::open::open_mirrored;
    use crate::pool::{Pool, PoolEvent, PoolHandle, PoolStart};
    use forebay_config::CacheSpec;
    use forebay_core::EngineConfig;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    /// Time limit for expected events.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Starts a mirrored pool of two small devices in a folder; also returns its reports.
    pub(in crate::pool) fn start(folder: &Path) -> (Result<PoolHandle, RunError>, mpsc::Receiver<String>) {
        let spec = |name: &str| CacheSpec { path: folder.join(name), size_bytes: Some(8 << 20) };
        let state_dir = folder.join("state");
        let making =
            Making { segment_blocks: Some(16), preallocate: false, mirror: true, key: None, permit: None };
        let parts = open_mirrored(&[spec("a"), spec("b")], making, &state_dir).unwrap();
        let start = PoolStart {
            name: "p".into(),
            engine: EngineConfig::default(),
            buffer_bytes: 192 << 20,
            connections_max: 4,
            spin: Duration::ZERO,
            nice_boost: 0,
            io: forebay_io::EnginePreference::default(),
            io_threads: Some(1),
            io_threads_busy_pct: 0,
            guards: Arc::default(),
            listener_store: Arc::default(),
            state_dir,
            without_cache: None,
            reach: crate::pool::Reach::File,
        };
        let (tell, told) = mpsc::channel();
        let report = move |event: PoolEvent| drop(tell.send(event.to_string()));
        (PoolHandle::start(start, parts, Box::new(report)), told)
    }

    pub(in crate::pool) fn waits_for(told: &mpsc::Receiver<String>, what: &str) {
        let until = Instant::now() + TIMEOUT;
        let left = || until.saturating_duration_since(Instant::now());
        while !told.recv_timeout(left()).unwrap_or_else(|_| panic!("never told: {what}")).contains(what) {}
    }

    /// Replaces the new file with a pipe without a reader: opening it for writing blocks forever.
    fn never_noted(folder: &Path) -> PathBuf {
        let notes = std::fs::read_dir(folder.join("state/mirrors")).unwrap().next().unwrap().unwrap();
        let pipe = notes.path().with_extension("new");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        pipe
    }

    #[test]
    fn overdue_note_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, told) = start(folder.path());
        let pool = pool.unwrap();
        let pipe = never_noted(folder.path());
        pool.ask(|pool| pool.device_gone(Some(1))).unwrap();
        waits_for(&told, "writes wait until that is recorded in");
        let due = pool.ask(|pool| pool.mirror.under_way.take()).unwrap().unwrap();
        assert!(due.1 <= Instant::now() + super::TIMEOUT);
        // The deadline has passed.
        pool.ask(move |pool| pool.mirror.under_way = Some((due.0, Instant::now()))).unwrap();
        waits_for(
            &told,
            "cannot record that a device of the mirrored cache failed: it took longer than 20 s",
        );
        let state = pool.ask(|pool| pool.engine.mirror_state().unwrap()).unwrap();
        assert!(state.out == Some(1) && !state.noted);
        pool.ask(move |pool| pool.out_recorded(due.0, Ok(()))).unwrap();
        assert!(!pool.ask(|pool| pool.engine.mirror_state().unwrap().noted).unwrap());
        // The first attempt ends, and removes the pipe, which cannot be made durable. The next one,
        // which a stop does not wait for long, succeeds.
        drop(std::fs::File::open(&pipe).unwrap());
        let hangs = |pool: &mut Pool| pool.mirror.noter.as_ref().is_some_and(|noter| !noter.is_finished());
        while pool.ask(hangs).unwrap() {
            std::thread::yield_now();
        }
        pool.stop().unwrap();
        waits_for(&told, "is now on one device only");
    }

    /// Takes as long as the deadline of a note.
    #[test]
    fn cache_without_note_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        start(folder.path()).0.unwrap().stop().unwrap();
        let pipe = never_noted(folder.path());
        std::fs::remove_file(folder.path().join("b")).unwrap();
        let (opened, told) = start(folder.path());
        assert!(opened.is_err());
        waits_for(&told, "it took longer than 20 s");
        drop(std::fs::File::open(&pipe).unwrap());
    }
}
