//! Executes the engine's actions on the reactor, and returns completions to the engine.
//!
//! This is translation only: buffers, headers and checksums. All decisions are the engine's, except
//! for memory: an operation that finds none waits here until there is some
//! ([`crate::engine_memory`]); metadata is transferred in pieces.

use crate::cipher::{CipherStage, Waiting};
use crate::engine_memory::{PIECE_BYTES, Part, Reserve};
use crate::members::MemberMap;
use crate::meter::TimedPath;
use crate::token::Token;
use crate::witness::Watch;
use forebay_core::device_copy::{CopyStep, DeviceCopy};
use forebay_core::{BufId, Device, DeviceFailure, Engine, IoAction, Nanos, OpId, SCRATCH, Span};
use forebay_format::VolumeId;
use forebay_io::{Completion, DeviceId, IoFailure, IoFailureKind, Op, Reactor};
use std::collections::VecDeque;
use std::time::Instant;

/// Resources of an engine operation until it completes.
#[derive(Debug, Default)]
struct Held {
    /// A buffer of its own.
    buffer: Option<forebay_io::BufId>,
    /// A part of the reserve.
    part: Option<Part>,
    /// The engine wants checksums.
    crc: bool,
    /// The metadata that it reads or writes, and the buffer of the piece in flight.
    meta: Option<(Meta, forebay_io::Span)>,
    /// Its class, bytes and time of submission, for the statistics.
    timed: Option<Timed>,
    /// Parts of a flush still in flight, beyond the first, and the failure of one that ended.
    others: usize,
    failure: Option<IoFailure>,
    /// A write encrypted in place goes to this device too, after it has been written to the first.
    second: Option<(DeviceId, u64, forebay_io::Span)>,
    /// It waits for the device that another one is copied onto; the end of the copy ends the wait.
    waits_for_second: bool,
    /// It changes the backing store of this volume.
    changes: Option<VolumeId>,
}

/// Metadata that is read or written in pieces.
#[derive(Debug)]
struct Meta {
    op: OpId,
    /// Where it is in the pool's space, and its length in bytes.
    offset: u64,
    len: usize,
    /// Bytes that have been read or written.
    done: usize,
    /// Content read so far; `None` for a write.
    read: Option<Vec<u8>>,
}

impl Meta {
    /// The next piece: where it is, and its length.
    fn piece(&self) -> (u64, usize) {
        (self.offset + self.done as u64, (self.len - self.done).min(PIECE_BYTES))
    }
}

/// An operation whose duration is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) device: Device,
    pub(crate) path: TimedPath,
    /// Its kind, in one word.
    pub(crate) operation: &'static str,
    pub(crate) bytes: u64,
    /// The device, and the first byte there; `None` if it spans several devices.
    pub(crate) at: Option<(DeviceId, u64)>,
    /// The member of a mirrored cache that it was submitted to.
    pub(crate) member: Option<u8>,
    /// Time of submission.
    pub(crate) began: Nanos,
}

/// The devices of the cache.
#[derive(Debug)]
pub(crate) struct CacheDevices {
    /// In the order of the members.
    pub(crate) ids: Vec<DeviceId>,
    /// Maps the pool's space to the members.
    pub(crate) map: MemberMap,
}

/// The copy of one of them onto another device, which will replace it.
#[derive(Debug)]
pub(crate) struct Copying {
    /// Its position among the devices of the cache.
    pub(crate) member: usize,
    /// The new device.
    pub(crate) device: DeviceId,
    pub(crate) copy: DeviceCopy,
    /// The first failure of the new device.
    pub(crate) failure: Option<IoFailure>,
    /// The copy has ended: nothing more goes to the new device.
    pub(crate) is_over: bool,
}

/// An operation of the engine on the new device of a copy.
#[derive(Debug)]
struct Second {
    /// The operation that waits for it.
    op: Option<OpId>,
    /// Its own copy of the written data, so that no operation has to wait for a device that does
    /// not answer and does not count yet.
    buffer: Option<forebay_io::BufId>,
    /// It uses the memory of the operation, which has to wait.
    is_bound: bool,
    began: Nanos,
}

/// How an operation of the engine affects a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    /// Nothing that the new device of a copy must repeat.
    Other,
    Write,
    /// Its memory holds the ciphertext only after its end.
    EncryptedWrite,
}

/// The engine's side of the reactor.
#[derive(Debug)]
pub(crate) struct EngineIo {
    cache: CacheDevices,
    copying: Option<Copying>,
    /// By volume number.
    backings: Vec<Option<DeviceId>>,
    /// By volume number: counts the daemon's writes to the backing store.
    watches: Vec<Option<Watch>>,
    scratch: forebay_io::BufId,
    reserve: Reserve,
    /// Metadata with a piece that waits for memory, and writes that wait for memory for their
    /// header.
    meta_waiting: VecDeque<Meta>,
    headers_waiting: VecDeque<(OpId, (Device, u64, u64))>,
    /// The cache is encrypted.
    cipher: Option<CipherStage>,
    held: Vec<Held>,
    spans: Vec<forebay_io::Span>,
    crcs: Vec<u32>,
    origin: Instant,
    now: Nanos,
    /// Operations in flight on the new device of a copy, by number, and free numbers.
    seconds: Vec<Option<Second>>,
    free_seconds: Vec<u32>,
    /// Operations that have ended except on a new device that does not count.
    let_go: Vec<OpId>,
    /// Failures of the new device are failures for the engine.
    second_counts: bool,
    /// Writes and bytes to the new device that the engine does not know of yet.
    copied: (u64, u64),
    /// Operations in flight on each member of a mirrored cache.
    under_way: [u32; 2],
    /// Synchronous operations to complete before anything else, with their result.
    ready: Vec<(OpId, Result<Vec<u8>, DeviceFailure>)>,
}

impl EngineIo {
    pub(crate) fn new(cache: CacheDevices, scratch: forebay_io::BufId, reserve: Reserve) -> Self {
        Self {
            cache,
            copying: None,
            backings: Vec::new(),
            watches: Vec::new(),
            scratch,
            reserve,
            meta_waiting: VecDeque::new(),
            headers_waiting: VecDeque::new(),
            cipher: None,
            held: Vec::new(),
            spans: Vec::new(),
            crcs: Vec::new(),
            origin: Instant::now(),
            now: 0,
            seconds: Vec::new(),
            free_seconds: Vec::new(),
            let_go: Vec::new(),
            second_counts: false,
            copied: (0, 0),
            under_way: [0; 2],
            ready: Vec::new(),
        }
    }

    /// Encrypts all data on the cache devices; called before the first operation.
    pub(crate) fn set_cipher(&mut self, cipher: CipherStage) {
        self.cipher = Some(cipher);
    }

    /// Time on the engine's clock at its last reading.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Reads the clock: once for all work of one step of the loop, because a request costs little
    /// more than that.
    pub(crate) fn read_clock(&mut self) -> Nanos {
        self.now = self.origin.elapsed().as_nanos() as Nanos;
        self.now
    }

    /// Sets the backing store of a volume, from its attachment to its end.
    pub(crate) fn set_backing(&mut self, volume: VolumeId, device: Option<DeviceId>) {
        let index = usize::from(volume.0);
        if index >= self.backings.len() {
            self.backings.resize(index + 1, None);
        }
        self.backings[index] = device;
    }

    /// Counts writes to the backing store of a volume from now on, or stops counting; returns the
    /// previous counter.
    pub(crate) fn set_watch(&mut self, volume: VolumeId, watch: Option<Watch>) -> Option<Watch> {
        let index = usize::from(volume.0);
        if index >= self.watches.len() {
            self.watches.resize_with(index + 1, || None);
        }
        std::mem::replace(&mut self.watches[index], watch)
    }

    /// Volumes whose store records could not be written when last due.
    pub(crate) fn unrecorded(&self) -> impl Iterator<Item = VolumeId> {
        let behind = |watch: &Option<Watch>| watch.as_ref().is_some_and(Watch::is_behind);
        (0..).zip(&self.watches).filter(move |(_, watch)| behind(watch)).map(|(index, _)| VolumeId(index))
    }

    fn watch(&self, volume: VolumeId) -> Option<&Watch> {
        self.watches.get(usize::from(volume.0))?.as_ref()
    }

    /// The owner has resized the backing store of this volume, and the daemon has adopted the size:
    /// its timestamps changed as if the daemon had written to it.
    pub(crate) fn note_resized(&self, volume: VolumeId) {
        if let Some(watch) = self.watch(volume) {
            watch.begins(0, 0);
            watch.ended();
        }
    }

    /// An operation that changes bytes of a device is about to be submitted.
    fn change_begins(&mut self, op: OpId, device: Device, offset: u64, len: u64) {
        let Device::Backing(volume) = device else { return };
        let Some(watch) = self.watch(volume) else { return };
        watch.begins(offset, len);
        self.held(op).changes = Some(volume);
    }

    /// True while an operation that changes bytes of this volume's backing store is in flight.
    pub(crate) fn is_changing(&self, volume: VolumeId) -> bool {
        self.held.iter().any(|held| held.changes == Some(volume))
    }

    /// An operation has ended, or was never submitted.
    fn change_ends(&mut self, op: OpId) {
        let changed = self.held(op).changes.take();
        if let Some(watch) = changed.and_then(|volume| self.watch(volume)) {
            watch.ended();
        }
    }

    /// The backing store of a volume. The engine names attached volumes only.
    fn backing(&self, volume: VolumeId) -> Result<DeviceId, DeviceFailure> {
        self.backings.get(usize::from(volume.0)).copied().flatten().ok_or(DeviceFailure::Failed)
    }

    pub(crate) fn cache(&self) -> &CacheDevices {
        &self.cache
    }

    pub(crate) fn cache_mut(&mut self) -> &mut CacheDevices {
        &mut self.cache
    }

    /// The device with these bytes, and their offset there.
    fn place(&self, device: Device, offset: u64, len: u64) -> Result<(DeviceId, u64), DeviceFailure> {
        match device {
            Device::Cache => {
                let (member, offset) = self.cache.map.place(offset, len).ok_or(DeviceFailure::Failed)?;
                Ok((*self.cache.ids.get(member).ok_or(DeviceFailure::Failed)?, offset))
            }
            Device::Backing(volume) => Ok((self.backing(volume)?, offset)),
        }
    }

    /// Submits a read or write of bytes on one device, which all engine operations use.
    fn submit(
        &mut self,
        reactor: &mut Reactor,
        op: OpId,
        (device, offset, len): (Device, u64, u64),
        access: Access,
        op_of: impl FnOnce(DeviceId, u64, &[forebay_io::Span]) -> Op<'_>,
    ) {
        let member = if device == Device::Cache { self.cache.map.mirror_member(offset) } else { None };
        match self.place(device, offset, len) {
            Ok((device, offset)) => {
                self.begins_on(op, member);
                self.lies_at(op, device, offset);
                let second = self.second_of(device, offset, len, access);
                reactor.submit(self.token(op), op_of(device, offset, &self.spans));
                let Some(device) = second else { return };
                self.held(op).others = 1;
                self.held(op).waits_for_second = true;
                match (access, self.spans.first()) {
                    (Access::EncryptedWrite, Some(span)) => {
                        self.held(op).second = Some((device, offset, *span));
                    }
                    _ => self.begin_second_write(reactor, op, device, offset),
                }
            }
            Err(failure) => {
                self.release(reactor, op);
                if let Some(cipher) = &mut self.cipher {
                    cipher.give_back(op);
                }
                self.ready.push((op, Err(failure)));
            }
        }
    }

    /// Flushes a device; a flush of the cache flushes all its members, and ends when they all have
    /// ended.
    fn flush(&mut self, reactor: &mut Reactor, op: OpId, device: Device) {
        let token = self.token(op);
        match device {
            Device::Cache => {
                self.held(op).others = self.cache.ids.len() - 1;
                if let [only] = self.cache.ids[..] {
                    self.lies_at(op, only, 0);
                }
                for device in &self.cache.ids {
                    reactor.submit(token, Op::Flush { device: *device });
                }
                let copied = self.copying.as_ref().map(|copying| copying.member);
                self.flush_second(reactor, op, copied);
            }
            Device::Backing(volume) => match self.backing(volume) {
                Ok(device) => {
                    self.lies_at(op, device, 0);
                    reactor.submit(token, Op::Flush { device });
                }
                Err(failure) => self.ready.push((op, Err(failure))),
            },
        }
    }

    /// Flushes the new device of a copy together with the old one at this position.
    fn flush_second(&mut self, reactor: &mut Reactor, op: OpId, at: Option<usize>) {
        let copying = self.copying.as_ref().filter(|copying| Some(copying.member) == at);
        let goes =
            |copying: &&Copying| copying.copy.flushes_both() && (!copying.is_over || self.second_counts);
        let Some(copying) = copying.filter(goes) else { return };
        let device = copying.device;
        self.held(op).others += 1;
        self.held(op).waits_for_second = true;
        let token = self.begin_second(op, None, false);
        reactor.submit(token, Op::Flush { device });
    }

    fn flush_member(&mut self, reactor: &mut Reactor, op: OpId, member: u8) {
        let at = self.cache.map.device_of(member);
        let device = at.and_then(|at| self.cache.ids.get(at)).copied();
        match device {
            Some(device) => {
                self.begins_on(op, Some(member));
                self.lies_at(op, device, 0);
                reactor.submit(self.token(op), Op::Flush { device });
                self.flush_second(reactor, op, at);
            }
            None => self.ready.push((op, Err(DeviceFailure::Failed))),
        }
    }

    /// Counts the submission of an operation on a member of a mirrored cache.
    fn begins_on(&mut self, op: OpId, member: Option<u8>) {
        let Some(member) = member else { return };
        if let Some(timed) = &mut self.held(op).timed {
            timed.member = Some(member);
            self.under_way[usize::from(member)] += 1;
        }
    }

    fn lies_at(&mut self, op: OpId, device: DeviceId, offset: u64) {
        if let Some(timed) = &mut self.held(op).timed {
            timed.at = Some((device, offset));
        }
    }

    /// True if no operation is in flight on this member of a mirrored cache.
    pub(crate) fn member_is_idle(&self, member: u8) -> bool {
        self.under_way[usize::from(member)] == 0
    }

    pub(crate) fn span(&self, span: Span) -> forebay_io::Span {
        let buf = if span.buf == SCRATCH { self.scratch } else { to_io(span.buf) };
        forebay_io::Span { buf, offset: span.offset, len: span.len }
    }

    fn held(&mut self, op: OpId) -> &mut Held {
        let index = op.0 as usize;
        if index >= self.held.len() {
            self.held.resize_with(index + 1, Held::default);
        }
        &mut self.held[index]
    }

    fn take_spans(&mut self, engine: &Engine, op: OpId) {
        self.spans.clear();
        for span in engine.spans(op) {
            let span = self.span(*span);
            self.spans.push(span);
        }
    }

    /// Starts an operation of the engine, or performs it at once if no device is needed.
    pub(crate) fn perform(&mut self, engine: &mut Engine, reactor: &mut Reactor, action: IoAction) {
        match action {
            IoAction::Read { op, device, offset, len, crc } => {
                self.time(
                    op,
                    device,
                    of_device(device, TimedPath::CacheRead, TimedPath::BackingRead),
                    "read",
                    len.into(),
                );
                self.take_spans(engine, op);
                self.held(op).crc = crc;
                let is_encrypted = self.cipher.is_some() && device == Device::Cache;
                let place = is_encrypted.then_some(offset);
                let range = (device, offset, len.into());
                self.submit(reactor, op, range, Access::Other, |device, offset, spans| {
                    match crc || is_encrypted {
                        true => Op::CheckedRead { device, offset, spans, place },
                        false => Op::Read { device, offset, spans },
                    }
                });
            }
            IoAction::Write { op, device, offset, len } => {
                self.time(
                    op,
                    device,
                    of_device(device, TimedPath::CacheWrite, TimedPath::BackingWrite),
                    "write",
                    len.into(),
                );
                self.change_begins(op, device, offset, len.into());
                self.write(engine, reactor, op, (device, offset, len.into()));
            }
            IoAction::ReadMeta { op, offset, len } => {
                self.time(op, Device::Cache, TimedPath::CacheRead, "read", len.into());
                let len = len as usize;
                let read = Some(Vec::with_capacity(len));
                self.start_meta(engine, reactor, Meta { op, offset, len, done: 0, read });
            }
            IoAction::WriteMeta { op, offset } => {
                let len = engine.meta(op).len();
                self.time(op, Device::Cache, TimedPath::CacheWrite, "write", len as u64);
                self.start_meta(engine, reactor, Meta { op, offset, len, done: 0, read: None });
            }
            IoAction::Flush { op, device } => {
                self.time(
                    op,
                    device,
                    of_device(device, TimedPath::CacheFlush, TimedPath::BackingFlush),
                    "flush",
                    0,
                );
                self.flush(reactor, op, device);
            }
            IoAction::FlushMember { op, member } => {
                self.time(op, Device::Cache, TimedPath::CacheFlush, "flush", 0);
                self.flush_member(reactor, op, member);
            }
            IoAction::Zero { op, volume, offset, len, may_unmap } => {
                self.time(op, Device::Backing(volume), TimedPath::BackingWrite, "zero", len);
                self.change_begins(op, Device::Backing(volume), offset, len);
                let Ok(device) = self.backing(volume) else {
                    self.ready.push((op, Err(DeviceFailure::Failed)));
                    return;
                };
                self.lies_at(op, device, offset);
                reactor.submit(self.token(op), Op::Zero { device, offset, len, may_unmap });
            }
            IoAction::DiscardSegment { op, offset, len } => {
                self.time(op, Device::Cache, TimedPath::CacheDiscard, "discard", len);
                let range = (Device::Cache, offset, len);
                // Discarded blocks are never read, on either device.
                self.submit(reactor, op, range, Access::Other, |device, offset, _| Op::Discard {
                    device,
                    offset,
                    len,
                });
            }
            IoAction::Copy { from, to } => reactor.pool_mut().copy(self.span(from), self.span(to)),
            IoAction::FillZero { span } => reactor.pool_mut().fill_zero(self.span(span)),
            IoAction::Crc { op, span } => {
                self.crcs.clear();
                reactor.pool().crc32c_blocks(self.span(span), &mut self.crcs);
                engine.complete(self.now(), op, Ok(()), &self.crcs);
            }
        }
    }

    fn time(&mut self, op: OpId, device: Device, path: TimedPath, operation: &'static str, bytes: u64) {
        let began = self.now();
        self.held(op).timed = Some(Timed { device, path, operation, bytes, at: None, member: None, began });
    }

    fn token(&self, op: OpId) -> u64 {
        Token::Engine(op).encode()
    }

    // --- copy of a device onto another one

    /// Begins an operation on the new device; returns its token.
    fn begin_second(&mut self, op: OpId, buffer: Option<forebay_io::BufId>, is_bound: bool) -> u64 {
        let second = Some(Second { op: Some(op), buffer, is_bound, began: self.now });
        let number = match self.free_seconds.pop() {
            Some(number) => {
                self.seconds[number as usize] = second;
                number
            }
            None => {
                self.seconds.push(second);
                self.seconds.len() as u32 - 1
            }
        };
        Token::SecondDevice(number).encode()
    }

    /// Writes `spans` to the new device, from memory of its own if there is some.
    fn begin_second_write(&mut self, reactor: &mut Reactor, op: OpId, device: DeviceId, offset: u64) {
        let len: u32 = self.spans.iter().map(|span| span.len).sum();
        self.count_copied(len.into());
        let Some(buffer) = reactor.pool_mut().alloc_leaving(4, len as usize) else {
            let token = self.begin_second(op, None, true);
            reactor.submit(token, Op::Write { device, offset, spans: &self.spans });
            return;
        };
        let mut at = 0;
        for span in &self.spans {
            reactor.pool_mut().copy(*span, forebay_io::Span::new(buffer, at, span.len));
            at += span.len;
        }
        let token = self.begin_second(op, Some(buffer), false);
        let spans = &[forebay_io::Span::new(buffer, 0, len)];
        reactor.submit(token, Op::Write { device, offset, spans });
    }

    /// Start of the oldest operation in flight on the new device.
    pub(crate) fn oldest_second(&self) -> Option<Nanos> {
        self.seconds.iter().flatten().filter(|second| second.op.is_some()).map(|second| second.began).min()
    }

    /// Start of the oldest operation in flight on the device that is copied. Operations that wait
    /// only for the new one do not count.
    pub(crate) fn oldest_on_copied(&self) -> Option<Nanos> {
        let copied = self.cache.ids.get(self.copying.as_ref()?.member).copied();
        let is_there = |held: &&Held| !held.waits_for_second || held.others > 0;
        let timed = self.held.iter().filter(is_there).filter_map(|held| held.timed);
        let on_it = timed.filter(|timed| timed.at.is_some_and(|(device, _)| Some(device) == copied));
        on_it.map(|timed| timed.began).min()
    }

    /// Ends all waits for the new device, except where it uses the memory of the operation.
    pub(crate) fn let_seconds_go(&mut self) {
        for (number, held) in (0..).zip(&mut self.held) {
            if !held.waits_for_second {
                continue;
            }
            let under_way = self.seconds.iter_mut().flatten().find(|second| second.op == Some(OpId(number)));
            match under_way {
                Some(second) if second.is_bound => continue,
                Some(second) => {
                    second.op = None;
                    match held.others {
                        0 => self.let_go.push(OpId(number)),
                        _ => held.others -= 1,
                    }
                }
                // It has not been written to the old device yet.
                None => (held.second, held.others) = (None, 0),
            }
            held.waits_for_second = false;
        }
    }

    /// Completes the operations whose wait ended; returns their data and failures.
    pub(crate) fn complete_let_go(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
    ) -> Vec<(Timed, Option<IoFailure>)> {
        let ops = std::mem::take(&mut self.let_go);
        ops.into_iter().filter_map(|op| self.ended(engine, reactor, op, None)).collect()
    }

    /// The device that must repeat a write to another one. `Device::Backing` stores are never
    /// copied, and their devices have other numbers.
    fn second_of(&mut self, device: DeviceId, offset: u64, len: u64, access: Access) -> Option<DeviceId> {
        let copying = self.copying.as_mut()?;
        let is_old = self.cache.ids.get(copying.member) == Some(&device);
        if access == Access::Other || !is_old || copying.is_over && !self.second_counts {
            return None;
        }
        copying.copy.write_begins(offset, len).then_some(copying.device)
    }

    pub(crate) fn copying(&self) -> Option<&Copying> {
        self.copying.as_ref()
    }

    pub(crate) fn copying_mut(&mut self) -> Option<&mut Copying> {
        self.copying.as_mut()
    }

    /// Begins to copy a device.
    pub(crate) fn begin_copying(&mut self, copying: Copying) {
        self.second_counts = false;
        self.copying = Some(copying);
    }

    /// Takes the numbers of writes and bytes to the new device since the last call.
    pub(crate) fn take_copied(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.copied)
    }

    /// Counts a write to the new device.
    pub(crate) fn count_copied(&mut self, bytes: u64) {
        self.copied = (self.copied.0 + 1, self.copied.1 + bytes);
    }

    /// From now on failures of the new device are failures for the engine.
    pub(crate) fn copy_counts(&mut self) {
        self.second_counts = true;
    }

    pub(crate) fn does_copy_count(&self) -> bool {
        self.second_counts
    }

    /// Ends the copy. If the new device takes over, its operations in flight still count.
    pub(crate) fn end_copying(&mut self, takes_over: bool) -> Option<Copying> {
        let copying = self.copying.take()?;
        self.second_counts = takes_over;
        if takes_over {
            self.cache.ids[copying.member] = copying.device;
            return Some(copying);
        }
        // Its number can belong to another device before data encrypted in place has been written
        // to the old one.
        self.let_seconds_go();
        Some(copying)
    }

    /// True if no operation is in flight on a new device, which the engine does not know.
    pub(crate) fn seconds_have_ended(&self) -> bool {
        self.seconds.iter().all(Option::is_none)
    }

    /// Begins the next step of the copy.
    pub(crate) fn next_copy_step(&mut self) -> Option<CopyStep> {
        let Self { copying: Some(copying), cache, held, .. } = self else { return None };
        let old = cache.ids.get(copying.member).copied();
        let is_written = |from: u64, to: u64| {
            held.iter().filter_map(|held| held.timed).any(|timed| {
                let is_there = |(id, offset)| Some(id) == old && offset < to && offset + timed.bytes > from;
                timed.operation == "write" && timed.at.is_some_and(is_there)
            })
        };
        copying.copy.next(is_written)
    }

    /// An operation on the new device of a copy has ended. The engine ignores its failure until
    /// that device counts.
    pub(crate) fn second_completed(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
        number: u32,
        mut completion: Completion,
    ) -> Option<(Timed, Option<IoFailure>)> {
        let Second { op, buffer, .. } = self.seconds.get_mut(number as usize)?.take()?;
        self.free_seconds.push(number);
        if let Some(buffer) = buffer {
            reactor.pool_mut().free(buffer);
        }
        let op = op?; // else no operation waits for it
        self.held(op).waits_for_second = false;
        if let Err(failure) = completion.result {
            self.copying.as_mut().into_iter().for_each(|copying| {
                copying.failure.get_or_insert(failure);
            });
            if !self.second_counts {
                completion.result = Ok(0);
            }
        }
        self.complete(engine, reactor, op, &completion)
    }

    /// Data encrypted in place has been written: repeats the write on the new device; false if the
    /// write failed.
    fn write_second(&mut self, reactor: &mut Reactor, op: OpId, written: Result<u32, IoFailure>) -> bool {
        let Some((device, offset, span)) = self.held(op).second.take() else { return true };
        let failure = written.err();
        if let Some(copying) = self.copying.as_mut().filter(|copying| copying.device == device) {
            copying.failure = copying.failure.or(failure);
        }
        if failure.is_some() {
            self.held(op).waits_for_second = false;
            return false;
        }
        self.spans.clear();
        self.spans.push(span);
        self.begin_second_write(reactor, op, device, offset);
        true
    }

    fn write(&mut self, engine: &mut Engine, reactor: &mut Reactor, op: OpId, range: (Device, u64, u64)) {
        self.take_spans(engine, op);
        if range.0 == Device::Cache && self.cipher.is_some() {
            self.write_encrypted(engine, reactor, Waiting { op, offset: range.1, len: range.2 });
            return;
        }
        if let Some(header) = engine.header(op) {
            let Some((part, span)) = self.reserve.header() else {
                self.headers_waiting.push_back((op, range));
                return;
            };
            reactor.pool_mut().copy_in(span, header);
            self.held(op).part = Some(part);
            self.spans.insert(0, span);
        }
        self.submit(reactor, op, range, Access::Write, |device, offset, spans| Op::Write {
            device,
            offset,
            spans,
        });
    }

    /// Writes an encrypted copy of the spans and of the header, as soon as there is memory for it.
    fn write_encrypted(&mut self, engine: &Engine, reactor: &mut Reactor, write: Waiting) {
        let Some(cipher) = &mut self.cipher else { return };
        let header = engine.header(write.op).unwrap_or_default();
        let Some((copy, ours)) = cipher.batch(reactor.pool_mut(), write, header, &self.spans) else { return };
        self.held(write.op).buffer = ours.then_some(copy.buf);
        self.spans.clear();
        self.spans.push(copy);
        let (range, place) = ((Device::Cache, write.offset, write.len), write.offset);
        self.submit(reactor, write.op, range, Access::EncryptedWrite, |device, offset, spans| {
            Op::EncryptedWrite { device, offset, spans, place }
        });
    }

    /// An operation has ended: retries writes that wait for memory.
    fn write_waiting(&mut self, engine: &Engine, reactor: &mut Reactor, ended: OpId) {
        while let Some(write) = self.cipher.as_mut().and_then(|cipher| cipher.next(ended)) {
            self.take_spans(engine, write.op);
            self.write_encrypted(engine, reactor, write);
        }
    }

    /// Begins to read or write metadata. A short piece starts at once if there is free memory.
    fn start_meta(&mut self, engine: &Engine, reactor: &mut Reactor, meta: Meta) {
        let own = if meta.len <= PIECE_BYTES { reactor.pool_mut().alloc(meta.len) } else { None };
        let Some(buffer) = own else {
            self.meta_waiting.push_back(meta);
            self.start_waiting_meta(engine, reactor);
            return;
        };
        let span = forebay_io::Span::new(buffer, 0, meta.len as u32);
        self.held(meta.op).buffer = Some(buffer);
        self.submit_piece(engine, reactor, meta, span);
    }

    /// Starts pieces of metadata as long as there is memory for them, in turn.
    fn start_waiting_meta(&mut self, engine: &Engine, reactor: &mut Reactor) {
        while let Some(len) = self.meta_waiting.front().map(|meta| meta.piece().1)
            && let Some((part, span)) = self.reserve.piece(len)
            && let Some(meta) = self.meta_waiting.pop_front()
        {
            self.held(meta.op).part = Some(part);
            self.submit_piece(engine, reactor, meta, span);
        }
    }

    fn submit_piece(&mut self, engine: &Engine, reactor: &mut Reactor, meta: Meta, span: forebay_io::Span) {
        let (op, reads, done) = (meta.op, meta.read.is_some(), meta.done);
        let (offset, len) = meta.piece();
        if !reads {
            reactor.pool_mut().copy_in(span, &engine.meta(op)[done..done + len]);
            if let Some(cipher) = &self.cipher {
                cipher.encrypt(reactor.pool_mut(), span, offset);
            }
        }
        self.held(op).meta = Some((meta, span));
        self.spans.clear();
        self.spans.push(span);
        let access = if reads { Access::Other } else { Access::Write };
        self.submit(reactor, op, (Device::Cache, offset, len as u64), access, |device, offset, spans| {
            if reads { Op::Read { device, offset, spans } } else { Op::Write { device, offset, spans } }
        });
    }

    /// A piece of metadata has ended. `None` if others follow; else the content, if it was a read.
    fn piece_ended(
        &mut self,
        reactor: &mut Reactor,
        (mut meta, span): (Meta, forebay_io::Span),
        ok: bool,
    ) -> Option<Option<Vec<u8>>> {
        if let Some(bytes) = &mut meta.read {
            let start = bytes.len();
            bytes.resize(start + span.len as usize, 0);
            reactor.pool().copy_out(span, &mut bytes[start..]);
            if let (Some(cipher), true) = (&self.cipher, ok) {
                cipher.decrypt_bytes(meta.offset + start as u64, &mut bytes[start..]);
            }
        }
        meta.done += span.len as usize;
        self.release(reactor, meta.op);
        if ok && meta.done < meta.len {
            self.meta_waiting.push_back(meta);
            return None;
        }
        Some(meta.read)
    }

    fn release(&mut self, reactor: &mut Reactor, op: OpId) {
        let held = self.held(op);
        let (buffer, part) = (held.buffer.take(), held.part.take());
        if let Some(buffer) = buffer {
            reactor.pool_mut().free(buffer);
        }
        if let Some(part) = part {
            self.reserve.give_back(part);
        }
    }

    /// An operation has ended: retries operations that wait for memory.
    fn start_waiting(&mut self, engine: &mut Engine, reactor: &mut Reactor, ended: OpId) {
        self.write_waiting(engine, reactor, ended);
        self.start_waiting_meta(engine, reactor);
        // Those that find none again are last in the queue.
        for _ in 0..self.headers_waiting.len() {
            if let Some((op, range)) = self.headers_waiting.pop_front() {
                self.write(engine, reactor, op, range);
            }
        }
    }

    /// Completes operations that were never submitted; true if there were any.
    pub(crate) fn complete_ready(&mut self, engine: &mut Engine) -> bool {
        let ready = std::mem::take(&mut self.ready);
        for (op, result) in &ready {
            let now = self.now();
            self.change_ends(*op);
            let reads = self.held(*op).meta.take().is_some_and(|(meta, _)| meta.read.is_some());
            (self.held(*op).crc, self.held(*op).timed) = (false, None);
            match result {
                Err(failure) if !reads => engine.complete(now, *op, Err(*failure), &[]),
                result => engine.complete_meta(now, *op, result.as_deref().map_err(|failure| *failure)),
            }
        }
        !ready.is_empty()
    }

    /// Completes a submitted operation; returns its data and its failure.
    pub(crate) fn complete(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
        op: OpId,
        completion: &Completion,
    ) -> Option<(Timed, Option<IoFailure>)> {
        let held = self.held(op);
        held.failure = held.failure.or(completion.result.err());
        if held.others > 0 {
            held.others -= 1;
            if self.write_second(reactor, op, completion.result) {
                return None;
            }
        }
        self.ended(engine, reactor, op, Some(completion))
    }

    /// All parts of an operation have ended.
    fn ended(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
        op: OpId,
        completion: Option<&Completion>,
    ) -> Option<(Timed, Option<IoFailure>)> {
        let held = self.held(op);
        let failure = held.failure.take();
        let ok = failure.is_none();
        let (timed, meta) = (held.timed.take(), held.meta.take());
        if failure.is_some_and(is_unanswered) {
            // It may still take effect: for the next process it has not ended.
            self.held(op).changes = None;
        }
        self.change_ends(op);
        if let Some(member) = timed.and_then(|timed| timed.member) {
            self.under_way[usize::from(member)] -= 1;
        }
        let result = failure.map_or(Ok(()), |failure| Err(failure_of(failure)));
        if let Some(meta) = meta {
            let ended = self.piece_ended(reactor, meta, ok);
            if ended.is_none() {
                self.held(op).timed = timed;
            }
            self.start_waiting(engine, reactor, op);
            match ended? {
                Some(bytes) => engine.complete_meta(self.now(), op, result.map(|()| &bytes[..])),
                None => engine.complete(self.now(), op, result, &[]),
            }
            return timed.map(|timed| (timed, failure));
        }
        self.crcs.clear();
        if let (true, Some(completion)) = (std::mem::take(&mut self.held(op).crc), completion) {
            self.crcs.extend_from_slice(reactor.checksums(completion));
        }
        self.release(reactor, op);
        self.start_waiting(engine, reactor, op);
        engine.complete(self.now(), op, result, &self.crcs);
        // Missing support for discards is no failure; the engine reports it once.
        let is_answer = |timed: &Timed, failure: IoFailure| {
            timed.path == TimedPath::CacheDiscard && failure.is_unsupported()
        };
        timed.map(|timed| (timed, failure.filter(|failure| !is_answer(&timed, *failure))))
    }
}

/// A network store gave the operation up without an answer of its server.
fn is_unanswered(failure: IoFailure) -> bool {
    failure.kind == IoFailureKind::Cancelled || failure == IoFailure::UNANSWERED
}

/// The failure that the engine gets.
fn failure_of(failure: IoFailure) -> DeviceFailure {
    match failure.kind {
        IoFailureKind::Ended => DeviceFailure::Ended,
        _ if failure.is_unsupported() => DeviceFailure::Unsupported,
        _ => DeviceFailure::Failed,
    }
}

fn of_device(device: Device, cache: TimedPath, backing: TimedPath) -> TimedPath {
    match device {
        Device::Cache => cache,
        Device::Backing(_) => backing,
    }
}

/// The reactor's id of a client buffer of the engine: both use the pool's numbers.
pub fn to_io(buf: BufId) -> forebay_io::BufId {
    forebay_io::BufId(buf.0)
}
