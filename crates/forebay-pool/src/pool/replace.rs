//! Replacing a healthy device of the cache with another one, while the cache is in use.
//!
//! The pool copies ([`forebay_core::device_copy`]), at a limited rate, one chunk at a time. The
//! caller watches the copy, and names the new device in the configuration once it holds everything.
//! The copy ends in one of two ways: the new device takes the place of the old one, or everything
//! stays as it was. Either way the pool hands back the device that leaves, for erasure, once no
//! operation is in flight on it.
//!
//! A member of a mirrored cache is copied in the same way, and stays active throughout. If it is
//! failed out, the copy ends: the new device has its tag, and must not count either. If the other
//! member is failed out, the copy continues. No rebuild runs meanwhile.
//!
//! A write to both devices uses separate memory for the new one. So if the new device does not
//! answer, and does not count yet, the copy ends and clients continue: at once if the copy is
//! cancelled, otherwise after some seconds. An old device that does not answer blocks its own
//! operations as always, but not the end of the copy. The pool reports it ([`Pool::copy_waits`])
//! and copies nothing meanwhile: a chunk with a write in flight would be copied again and again,
//! which would wear out the new device.
//!
//! A failure of the new device ends the copy and has no other effect, until the configuration is
//! about to name it: from then on both devices must complete every write and flush, because the
//! next start may find either.

use super::handle::PromiseSender;
use super::{Pool, Promise};
use crate::engine_io::Copying;
use crate::token::Token;
use forebay_admin::{AdminError, MessageId};
use forebay_core::device_copy::{CopyStep, DeviceCopy};
use forebay_core::{LifecycleError, MirrorState};
use forebay_format::BLOCK_BYTES;
use forebay_io::{BufId, Device, DeviceId, IoFailure, Op, Span};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes of one chunk.
const CHUNK_BYTES: u64 = 1 << 20;
/// Rate limit of the copy, the same as for a rebuild: clients need the old device too.
const BYTES_PER_S: u64 = 256 << 20;
/// Time limit for operations of the new device while it does not count; after it, the copy ends.
/// The pool reports an old device that takes longer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Interval of attempts to close a device that is no longer used.
const LOOK: Duration = Duration::from_millis(5);
/// Interval of checks whether the new device answers.
const WATCH: Duration = Duration::from_secs(1);
const TOKEN: u64 = Token::Copy.encode();

/// The current step of the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Doing {
    #[default]
    Nothing,
    Reading {
        from: u64,
        len: u64,
    },
    Writing,
    Flushing,
}

/// The copy of a cache device onto another one.
#[derive(Debug, Default)]
pub(super) struct Replacing {
    doing: Doing,
    /// Start of the current step.
    doing_since: Option<Instant>,
    buffer: Option<BufId>,
    /// Earliest start of the next chunk.
    due: Option<Instant>,
    /// Why the copy has ended early.
    ended: Option<String>,
    /// Devices no longer used, with the callers that wait for them. Operations may be in flight on
    /// them, at least a flush of all devices.
    leaving: Vec<(DeviceId, Option<PromiseSender<Device>>)>,
}

/// Progress of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CopyProgress {
    /// Bytes left to copy.
    Left(u64),
    /// The new device has everything.
    Whole,
    /// The copy has ended early; the pool is as it was.
    Ended(String),
}

impl Pool {
    /// Bytes that a device needs to take the place of this cache device.
    pub fn bytes_of_device(&self, member: usize) -> u64 {
        let map = &self.io.cache().map;
        if map.is_mirrored() {
            return self.engine.geometry().member_bytes();
        }
        let all = self.engine.geometry().device_blocks * BLOCK_BYTES as u64;
        let end = if member + 1 < self.io.cache().ids.len() { map.start_of(member + 1) } else { all };
        map.base_of(member) + end.saturating_sub(map.start_of(member))
    }

    /// Size in bytes of the last cache device, used or not.
    pub fn last_device_bytes(&self) -> u64 {
        let last = self.io.cache().ids.last();
        last.and_then(|id| self.reactor.device(*id)).map_or(0, |device| device.size_bytes())
    }

    fn refuse_copy(&self, why: &dyn std::fmt::Display) -> AdminError {
        let what = format!("cannot replace a device of pool {}: {why}", self.name);
        AdminError::new(MessageId::PoolReplacement, what, "look at its state: forebay pool show")
    }

    /// True while a device of the cache is copied onto another one.
    pub(super) fn is_replacing(&self) -> bool {
        self.io.copying().is_some() || self.replacing.ended.is_some()
    }

    /// Returns the place among the cache's devices of the one that [`Pool::devices`] lists at `at`;
    /// of a mirrored cache it lists only open devices.
    fn place_of_listed(&self, at: usize) -> Option<usize> {
        let cache = self.io.cache();
        if !cache.map.is_mirrored() {
            return (at < cache.ids.len()).then_some(at);
        }
        let places = (0..2).filter_map(|member| cache.map.device_of(member));
        let is_open =
            |place: &usize| cache.ids.get(*place).is_some_and(|id| self.reactor.device(*id).is_some());
        places.filter(is_open).nth(at)
    }

    /// The cache is mirrored, and its device at this place is out.
    fn is_member_out(&self, place: usize) -> bool {
        let out = self.engine.mirror_state().and_then(|state| state.out);
        out.is_some_and(|out| self.io.cache().map.device_of(out) == Some(place))
    }

    /// Begins to copy one of the cache's devices, by its place in `Pool::devices`, onto `device`,
    /// which is empty.
    ///
    /// # Errors
    /// The pool is being changed already or has failed, a member of a mirrored cache is being
    /// rebuilt, the device to copy does not exist or has failed, the new device is too small, or
    /// memory is short.
    pub fn begin_copy(&mut self, at: usize, device: Device) -> Result<(), AdminError> {
        let used = self.bytes_of_device(at);
        let is_quiet = self.copy_is_quiet() && self.io.seconds_have_ended();
        if self.is_replacing() || self.resizing.is_some() || !is_quiet {
            return Err(self.refuse_copy(&LifecycleError::Busy));
        }
        let Some(member) = self.place_of_listed(at) else {
            return Err(self.refuse_copy(&"the pool has no such device"));
        };
        if matches!(self.engine.mirror_state(), Some(MirrorState { rebuild: Some(_), .. })) {
            return Err(self.refuse_copy(&"the other device is being filled"));
        }
        if self.is_member_out(member) {
            return Err(self.refuse_copy(&"that device has failed"));
        }
        if self.engine.is_fenced() || self.engine.runs_without_cache() {
            return Err(self.refuse_copy(&LifecycleError::Fenced));
        }
        if device.size_bytes() < used {
            return Err(self.refuse_copy(&"the new device is too small"));
        }
        let buffer = self.reactor.pool_mut().alloc(CHUNK_BYTES as usize);
        let Some(buffer) = buffer else { return Err(self.refuse_copy(&"no memory; try again")) };
        let id = self.reactor.add_device(device);
        self.reactor.prefer_device(id);
        self.reactor.set_device_end(id, used);
        let copy = DeviceCopy::new(used, CHUNK_BYTES);
        self.io.begin_copying(Copying { member, device: id, copy, failure: None, is_over: false });
        self.replacing.buffer = Some(buffer);
        self.replacing.due = None;
        Ok(())
    }

    /// Progress of the copy; `None` if there is none.
    pub fn copy_progress(&self) -> Option<CopyProgress> {
        if let Some(why) = &self.replacing.ended {
            return Some(CopyProgress::Ended(why.clone()));
        }
        let copying = self.io.copying()?;
        Some(match copying.failure {
            Some(failure) => CopyProgress::Ended(self.new_failed(copying.device, failure)),
            None if self.is_member_out(copying.member) => {
                CopyProgress::Ended("the device being copied has failed".into())
            }
            None if copying.copy.is_whole() => CopyProgress::Whole,
            None => CopyProgress::Left(copying.copy.left_bytes()),
        })
    }

    /// The configuration is about to name the new device: from now on a failure on it is a failure
    /// of the cache.
    ///
    /// # Errors
    /// The new device is incomplete or has failed, or the pool is stopping.
    pub fn copy_counts(&mut self) -> Result<(), AdminError> {
        let why = match self.copy_progress() {
            Some(CopyProgress::Whole) if !self.stopping => {
                self.io.copy_counts();
                return Ok(());
            }
            Some(CopyProgress::Ended(why)) => why,
            _ => "the new device is incomplete".into(),
        };
        Err(self.refuse_copy(&why))
    }

    /// The configuration names the new device: it takes the place of the old one. The promise
    /// returns the old one.
    ///
    /// # Errors
    /// An operation on the new device has failed meanwhile. Both devices have everything that was
    /// acknowledged.
    pub fn take_over(&mut self) -> Result<Promise<Device>, AdminError> {
        if let Some(CopyProgress::Ended(why)) = self.copy_progress() {
            return Err(self.refuse_copy(&why));
        }
        Ok(self.end_copy(true))
    }

    /// Gives up the copy: everything stays as it was. The promise returns the new device.
    pub fn give_copy_up(&mut self) -> Promise<Device> {
        self.end_copy(false)
    }

    fn end_copy(&mut self, takes_over: bool) -> Promise<Device> {
        let (done, promise) = Promise::pair();
        self.replacing.ended = None;
        let old = self.io.copying().and_then(|copying| self.io.cache().ids.get(copying.member).copied());
        self.note_copied();
        let Some(copying) = self.io.end_copying(takes_over) else { return promise };
        let leaves = if takes_over { old.unwrap_or(copying.device) } else { copying.device };
        self.close_when_idle(leaves, Some(done));
        self.free_copy_buffer();
        self.note_cache_ends();
        self.resized += 1; // an earlier `device_to_grow` is out of date
        promise
    }

    /// Reports to the engine the bytes written to the new device.
    fn note_copied(&mut self) {
        let (writes, bytes) = self.io.take_copied();
        let Some(id) = self.io.copying().map(|copying| copying.device).filter(|_| writes > 0) else { return };
        let Some(key) = self.key_of(id) else { return };
        let now = self.io.now();
        self.engine.note_copied(now, key, writes, bytes);
    }

    /// Paths of the old device and of the new one.
    pub fn copied_devices(&self) -> Option<[PathBuf; 2]> {
        let copying = self.io.copying()?;
        let old = *self.io.cache().ids.get(copying.member)?;
        let path = |id| self.reactor.device(id).map(|device| device.path().to_owned());
        Some([path(old)?, path(copying.device)?])
    }

    fn new_failed(&self, device: DeviceId, failure: IoFailure) -> String {
        format!("the new device {} failed: {failure}", self.path_of(device))
    }

    fn path_of(&self, device: DeviceId) -> String {
        let path = self.reactor.device(device).map(|device| device.path().display().to_string());
        path.unwrap_or_default()
    }

    /// Ends the copy early for this reason. The new device stays open for the caller that watches
    /// the copy.
    fn copy_fails(&mut self, why: String) {
        self.replacing.ended.get_or_insert(why);
        self.io.copying_mut().into_iter().for_each(|copying| copying.is_over = true);
        self.io.let_seconds_go();
    }

    /// True if the new device has not answered for too long, and does not count.
    fn new_hangs(&self, now: Instant) -> bool {
        let seconds = self.io.oldest_second().map(|since| self.io.now().saturating_sub(since));
        let second = seconds.is_some_and(|passed| passed > ANSWERS_WITHIN.as_nanos() as u64);
        let on_new = matches!(self.replacing.doing, Doing::Writing | Doing::Flushing);
        let step = self.replacing.doing_since.filter(|_| on_new);
        let step = step.is_some_and(|since| now.duration_since(since) > ANSWERS_WITHIN);
        !self.io.does_copy_count() && (second || step)
    }

    /// How long the old device has not answered, if that is too long.
    fn old_hangs(&self, now: Instant) -> Option<Duration> {
        let reads = matches!(self.replacing.doing, Doing::Reading { .. });
        let step = self.replacing.doing_since.filter(|_| reads).map(|since| now.duration_since(since));
        let oldest = self.io.oldest_on_copied();
        let oldest = oldest.map(|since| Duration::from_nanos(self.io.now().saturating_sub(since)));
        step.max(oldest).filter(|passed| *passed > ANSWERS_WITHIN)
    }

    /// Describes the old device's delay, if it holds up the copy.
    pub fn copy_waits(&self) -> Option<String> {
        let (passed, [old, _]) = (self.old_hangs(Instant::now())?, self.copied_devices()?);
        Some(format!("{}, which has not answered for {} s", old.display(), passed.as_secs()))
    }

    fn free_copy_buffer(&mut self) {
        if self.replacing.doing == Doing::Nothing
            && let Some(buffer) = self.replacing.buffer.take()
        {
            self.reactor.pool_mut().free(buffer);
        }
    }

    /// No step of a copy is in flight.
    pub(super) fn copy_is_quiet(&self) -> bool {
        self.replacing.doing == Doing::Nothing
    }

    /// Operations are in flight on a device that no longer belongs to the pool, or never did.
    pub(super) fn copy_hangs(&self) -> bool {
        !self.copy_is_quiet() || !self.io.seconds_have_ended()
    }

    /// A device is no longer used: once no operation is in flight on it, the pool hands it over
    /// (`done`) or closes it.
    pub(super) fn close_when_idle(&mut self, id: DeviceId, done: Option<PromiseSender<Device>>) {
        self.replacing.leaving.push((id, done));
    }

    /// Continues the copy when it is due, and hands over devices no longer used; returns how long
    /// the loop may sleep until the next check.
    pub(super) fn look_after_copy(&mut self) -> Option<Duration> {
        let mut waiting = None;
        for (id, done) in std::mem::take(&mut self.replacing.leaving) {
            match self.reactor.remove_device(id) {
                Some(device) => match done {
                    Some(done) => done.try_send(device).unwrap_or_else(crate::time_limit::drop_in_background),
                    None => crate::time_limit::drop_in_background(device),
                },
                None => {
                    self.replacing.leaving.push((id, done));
                    waiting = Some(LOOK);
                }
            }
        }
        self.note_copied();
        let Some(copying) = self.io.copying() else { return waiting };
        let is_out = self.is_member_out(copying.member);
        let device = copying.device;
        if self.replacing.ended.is_none() {
            if self.new_hangs(Instant::now()) {
                let path = self.path_of(device);
                let seconds = ANSWERS_WITHIN.as_secs();
                self.copy_fails(format!("the new device {path} has not answered for {seconds} s"));
            } else if self.stopping && !self.io.does_copy_count() {
                self.copy_fails("the daemon was stopped; start it again and repeat".into());
            }
            waiting = Some(waiting.unwrap_or(WATCH).min(WATCH));
        }
        let Some(copying) = self.io.copying() else { return waiting };
        if self.replacing.ended.is_some() || self.replacing.doing != Doing::Nothing {
            return waiting;
        }
        if let Some(failure) = copying.failure.filter(|_| !self.io.does_copy_count()) {
            let why = self.new_failed(copying.device, failure);
            self.copy_fails(why);
        } else if is_out {
            self.copy_fails("the device being copied has failed".into());
        } else if self.engine.is_fenced() || self.engine.runs_without_cache() {
            self.copy_fails("the cache has failed".into());
        } else if !copying.copy.is_whole() && self.old_hangs(Instant::now()).is_none() {
            let now = Instant::now();
            match self.replacing.due.and_then(|due| due.checked_duration_since(now)) {
                Some(left) if !left.is_zero() => {
                    return Some(waiting.map_or(left, |look: Duration| look.min(left)));
                }
                _ => self.begin_copy_step(now),
            }
        }
        waiting
    }

    fn begin_copy_step(&mut self, now: Instant) {
        let (Some(step), Some(copying)) = (self.io.next_copy_step(), self.io.copying()) else { return };
        let (old, new) = (self.io.cache().ids[copying.member], copying.device);
        match step {
            CopyStep::Copy { from, len } => {
                let Some(span) = self.copy_span(len) else { return };
                let since = self.replacing.due.unwrap_or(now).max(now);
                self.replacing.due = Some(since + Duration::from_nanos(len * 1_000_000_000 / BYTES_PER_S));
                self.does(Doing::Reading { from, len });
                self.reactor.submit(TOKEN, Op::Read { device: old, offset: from, spans: &[span] });
            }
            CopyStep::Flush => {
                self.does(Doing::Flushing);
                self.reactor.submit(TOKEN, Op::Flush { device: new });
            }
        }
    }

    fn does(&mut self, doing: Doing) {
        (self.replacing.doing, self.replacing.doing_since) = (doing, Some(Instant::now()));
    }

    fn copy_span(&self, len: u64) -> Option<Span> {
        self.replacing.buffer.map(|buffer| Span::new(buffer, 0, len as u32))
    }

    /// A step of the copy has ended.
    pub(super) fn copy_completed(&mut self, result: Result<u32, IoFailure>) {
        let doing = std::mem::take(&mut self.replacing.doing);
        let Some(copying) = self.io.copying_mut().filter(|_| self.replacing.ended.is_none()) else {
            return self.free_copy_buffer();
        };
        let new = copying.device;
        match (doing, result) {
            (Doing::Reading { from, .. }, Err(failure)) => {
                let path = self.copied_devices().map(|[old, _]| old.display().to_string());
                self.copy_fails(format!(
                    "{} cannot be read at byte {from}: {failure}; its dirty data stays there. `forebay pool \
                     scrub` reports the damage; when every volume is drained (`forebay volume detach`) the \
                     pool can be recreated",
                    path.unwrap_or_default()
                ));
            }
            (_, Err(failure)) => {
                let why = self.new_failed(new, failure);
                self.copy_fails(why);
            }
            (Doing::Reading { from, len }, Ok(_)) => {
                let Some(span) = self.copy_span(len) else { return };
                self.does(Doing::Writing);
                self.io.count_copied(len);
                self.reactor.submit(TOKEN, Op::Write { device: new, offset: from, spans: &[span] });
            }
            (Doing::Writing, Ok(_)) => copying.copy.chunk_written(),
            (Doing::Flushing, Ok(_)) => copying.copy.flushed(),
            (Doing::Nothing, Ok(_)) => {}
        }
    }
}
