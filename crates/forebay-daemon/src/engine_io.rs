//! Carrying out the engine's actions on the reactor, and handing completions back.
//!
//! Only translation: buffers, headers and checksums. Whatever needs a decision is the engine's.

use crate::meter::{Meter, Path};
use crate::setup::VOLUME;
use forebay_core::{Action, BufId, Device, DeviceFailure, Engine, Nanos, OpId, SCRATCH, Span};
use forebay_format::BLOCK_BYTES;
use forebay_io::{DeviceId, Op, Reactor};
use std::time::Instant;

/// Longest piece of memory taken for metadata at once.
const META_PIECE_BYTES: usize = 4 << 20;

/// What an operation of the engine holds until it completes.
#[derive(Debug, Default)]
struct Held {
    /// Header or metadata buffers.
    buffers: Vec<forebay_io::BufId>,
    /// Checksums are wanted.
    crc: bool,
    /// Bytes of metadata to hand over.
    meta_bytes: Option<usize>,
    /// What it counts as, its bytes, and when it was submitted.
    timed: Option<(Path, u64, Nanos)>,
}

/// The engine's side of the reactor.
#[derive(Debug)]
pub(crate) struct EngineIo {
    cache: DeviceId,
    backing: DeviceId,
    scratch: forebay_io::BufId,
    held: Vec<Held>,
    spans: Vec<forebay_io::Span>,
    crcs: Vec<u32>,
    origin: Instant,
    token_base: u64,
    /// Synchronous operations to complete before anything else, with their result.
    ready: Vec<(OpId, Result<Vec<u8>, DeviceFailure>)>,
}

impl EngineIo {
    pub(crate) fn new(
        cache: DeviceId,
        backing: DeviceId,
        scratch: forebay_io::BufId,
        token_base: u64,
    ) -> Self {
        Self {
            cache,
            backing,
            scratch,
            held: Vec::new(),
            spans: Vec::new(),
            crcs: Vec::new(),
            origin: Instant::now(),
            token_base,
            ready: Vec::new(),
        }
    }

    /// Time as the engine counts it.
    pub(crate) fn now(&self) -> Nanos {
        self.origin.elapsed().as_nanos() as Nanos
    }

    fn device(&self, device: Device) -> DeviceId {
        match device {
            Device::Cache => self.cache,
            Device::Backing(volume) => {
                debug_assert!(volume == VOLUME);
                self.backing
            }
        }
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

    /// Starts an action of the engine. Replies, notices and the like are not its business: they come back.
    pub(crate) fn perform(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
        action: Action,
    ) -> Option<Action> {
        match action {
            Action::Read { op, device, offset, len, crc } => {
                self.time(op, of_device(device, Path::CacheRead, Path::BackingRead), len.into());
                self.take_spans(engine, op);
                self.held(op).crc = crc;
                let device = self.device(device);
                reactor.submit(self.token(op), Op::Read { device, offset, spans: &self.spans });
            }
            Action::Write { op, device, offset, len } => {
                self.time(op, of_device(device, Path::CacheWrite, Path::BackingWrite), len.into());
                self.write(engine, reactor, op, device, offset);
            }
            Action::ReadMeta { op, offset, len } => {
                self.time(op, Path::CacheRead, len.into());
                self.read_meta(reactor, op, offset, len as usize);
            }
            Action::WriteMeta { op, offset } => {
                self.time(op, Path::CacheWrite, engine.meta(op).len() as u64);
                self.write_meta(engine, reactor, op, offset);
            }
            Action::Flush { op, device } => {
                self.time(op, of_device(device, Path::CacheFlush, Path::BackingFlush), 0);
                let device = self.device(device);
                reactor.submit(self.token(op), Op::Flush { device });
            }
            Action::Zero { op, volume, offset, len, may_unmap } => {
                self.time(op, Path::BackingWrite, len);
                let device = self.device(Device::Backing(volume));
                reactor.submit(self.token(op), Op::Zero { device, offset, len, may_unmap });
            }
            Action::Copy { from, to } => reactor.pool_mut().copy(self.span(from), self.span(to)),
            Action::FillZero { span } => reactor.pool_mut().fill_zero(self.span(span)),
            Action::Crc { op, span } => {
                self.crcs.clear();
                reactor.pool().crc32c_blocks(self.span(span), &mut self.crcs);
                engine.complete(self.now(), op, Ok(()), &self.crcs);
            }
            other => return Some(other),
        }
        None
    }

    fn time(&mut self, op: OpId, path: Path, bytes: u64) {
        let now = self.now();
        self.held(op).timed = Some((path, bytes, now));
    }

    fn token(&self, op: OpId) -> u64 {
        self.token_base | u64::from(op.0)
    }

    fn write(&mut self, engine: &mut Engine, reactor: &mut Reactor, op: OpId, device: Device, offset: u64) {
        self.take_spans(engine, op);
        if let Some(header) = engine.header(op) {
            let Some(buffer) = reactor.pool_mut().alloc(BLOCK_BYTES) else {
                self.ready.push((op, Err(DeviceFailure)));
                return;
            };
            let span = forebay_io::Span { buf: buffer, offset: 0, len: BLOCK_BYTES as u32 };
            reactor.pool_mut().copy_in(span, header);
            self.held(op).buffers.push(buffer);
            self.spans.insert(0, span);
        }
        let device = self.device(device);
        reactor.submit(self.token(op), Op::Write { device, offset, spans: &self.spans });
    }

    fn read_meta(&mut self, reactor: &mut Reactor, op: OpId, offset: u64, len: usize) {
        let Some(spans) = self.meta_buffers(reactor, op, len) else {
            self.ready.push((op, Err(DeviceFailure)));
            return;
        };
        self.held(op).meta_bytes = Some(len);
        reactor.submit(self.token(op), Op::Read { device: self.cache, offset, spans: &spans });
    }

    fn write_meta(&mut self, engine: &mut Engine, reactor: &mut Reactor, op: OpId, offset: u64) {
        let bytes = engine.meta(op);
        let Some(spans) = self.meta_buffers(reactor, op, bytes.len()) else {
            self.ready.push((op, Err(DeviceFailure)));
            return;
        };
        let mut left = bytes;
        for span in &spans {
            let (piece, rest) = left.split_at(span.len as usize);
            reactor.pool_mut().copy_in(*span, piece);
            left = rest;
        }
        reactor.submit(self.token(op), Op::Write { device: self.cache, offset, spans: &spans });
    }

    /// Memory for `len` bytes of metadata, in pieces.
    fn meta_buffers(&mut self, reactor: &mut Reactor, op: OpId, len: usize) -> Option<Vec<forebay_io::Span>> {
        let mut spans = Vec::new();
        let mut left = len;
        while left > 0 {
            let piece = left.min(META_PIECE_BYTES);
            let Some(buf) = reactor.pool_mut().alloc(piece) else {
                self.release(reactor, op);
                return None;
            };
            self.held(op).buffers.push(buf);
            spans.push(forebay_io::Span { buf, offset: 0, len: piece as u32 });
            left -= piece;
        }
        Some(spans)
    }

    fn release(&mut self, reactor: &mut Reactor, op: OpId) {
        for buffer in std::mem::take(&mut self.held(op).buffers) {
            reactor.pool_mut().free(buffer);
        }
    }

    /// Hands the completions of operations that were never submitted to the engine; true if there were any.
    pub(crate) fn complete_ready(&mut self, engine: &mut Engine) -> bool {
        let ready = std::mem::take(&mut self.ready);
        for (op, result) in &ready {
            let now = self.now();
            let meta = self.held(*op).meta_bytes.take().is_some();
            self.held(*op).crc = false;
            self.held(*op).timed = None;
            match result {
                Err(failure) if !meta => engine.complete(now, *op, Err(*failure), &[]),
                result => engine.complete_meta(now, *op, result.as_deref().map_err(|failure| *failure)),
            }
        }
        !ready.is_empty()
    }

    /// Hands the completion of a submitted operation to the engine.
    pub(crate) fn complete(
        &mut self,
        engine: &mut Engine,
        reactor: &mut Reactor,
        meter: &mut Meter,
        op: OpId,
        ok: bool,
    ) {
        if let Some((path, bytes, began)) = self.held(op).timed.take() {
            let now = self.now();
            meter.record(path, now - began, bytes, now);
        }
        let crc = std::mem::take(&mut self.held(op).crc);
        let meta = self.held(op).meta_bytes.take();
        self.crcs.clear();
        if crc && ok {
            for at in 0..engine.spans(op).len() {
                let span = self.span(engine.spans(op)[at]);
                reactor.pool().crc32c_blocks(span, &mut self.crcs);
            }
        }
        let result = if ok { Ok(()) } else { Err(DeviceFailure) };
        let now = self.now();
        if let Some(len) = meta {
            let mut bytes = Vec::with_capacity(len);
            if ok {
                for buffer in &self.held[op.0 as usize].buffers {
                    let piece = (len - bytes.len()).min(META_PIECE_BYTES);
                    bytes.extend_from_slice(&reactor.pool().bytes(*buffer)[..piece]);
                }
            }
            self.release(reactor, op);
            engine.complete_meta(now, op, result.map(|()| &bytes[..]));
            return;
        }
        self.release(reactor, op);
        engine.complete(now, op, result, &self.crcs);
    }
}

fn of_device(device: Device, cache: Path, backing: Path) -> Path {
    match device {
        Device::Cache => cache,
        Device::Backing(_) => backing,
    }
}

/// A client buffer of the engine as the reactor knows it: both use the pool's numbers.
pub(crate) fn to_io(buf: BufId) -> forebay_io::BufId {
    forebay_io::BufId(buf.0)
}
