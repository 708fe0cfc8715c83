//! The model on a reactor: turns actions into operations, returns completions, and writes counters
//! to a file.

use crate::api::{Action, CommandKind, Device, Failed, Memory, Nanos, OpId, Request, SECOND, Span};
use crate::metadata::META_BYTES;
use crate::model::Model;
use crate::plug::{Plug, Transfer};
use crate::slab::Slab;
use forebay_io::{BufId, DeviceId, IoFailure, Op, Reactor};
use forebay_lab_host::{Answer, RequestError, RequestHandler, RequestId, RequestKind, token};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Interval between replacements of the file of counters.
const STATS_EVERY: Nanos = SECOND;

/// An operation of the reactor.
#[derive(Debug)]
enum UnderWay {
    Transfer(Transfer),
    /// A metadata block, and its bytes.
    Meta(OpId, BufId),
    Other(OpId),
}

/// The model, its devices, and the operations in flight on them.
#[derive(Debug)]
pub struct CacheVolume {
    model: Model,
    cache: DeviceId,
    disk: DeviceId,
    plug: Plug,
    under_way: Slab<UnderWay>,
    /// Blocks in transfer from the flash to the disk, by slot.
    copies: HashMap<u32, BufId>,
    /// Operations that could not begin.
    refused: Vec<OpId>,
    stats: Option<StatsFile>,
    stats_due: Nanos,
}

impl CacheVolume {
    /// Creates a model on two devices of a reactor, with a file for its counters.
    #[must_use]
    pub fn new(model: Model, cache: DeviceId, disk: DeviceId, stats: Option<StatsFile>) -> Self {
        Self {
            model,
            cache,
            disk,
            plug: Plug::default(),
            under_way: Slab::default(),
            copies: HashMap::new(),
            refused: Vec::new(),
            stats,
            stats_due: 0,
        }
    }

    /// Writes the file of counters for the last time and returns the model.
    #[must_use]
    pub fn end(mut self) -> Model {
        if let Some(stats) = self.stats.take() {
            stats.end(json(&self.model));
        }
        self.model
    }

    fn device(&self, device: Device) -> DeviceId {
        match device {
            Device::Cache => self.cache,
            Device::Disk => self.disk,
        }
    }

    fn perform(&mut self, reactor: &mut Reactor, action: Action, answers: &mut Vec<Answer>) {
        match action {
            Action::Reply { request, result } => {
                answers.push((RequestId(request), result.map_err(|Failed| RequestError::Io)));
            }
            Action::WriteMeta { op, meta_block, offset } => {
                self.write_meta(reactor, op, meta_block, offset);
            }
            Action::Zero { op, offset, len, may_unmap } => {
                let number = self.under_way.insert(UnderWay::Other(op));
                reactor.submit(token(number), Op::Zero { device: self.disk, offset, len, may_unmap });
            }
            Action::Flush { op, device } => {
                let (number, device) = (self.under_way.insert(UnderWay::Other(op)), self.device(device));
                reactor.submit(token(number), Op::Flush { device });
            }
            Action::Read { .. } | Action::Write { .. } => unreachable!("the plug has taken it"),
        }
    }

    fn write_meta(&mut self, reactor: &mut Reactor, op: OpId, meta_block: u32, offset: u64) {
        let Some(buffer) = reactor.pool_mut().alloc(META_BYTES) else {
            return self.refused.push(op);
        };
        let mut bytes = [0; META_BYTES];
        self.model.render_meta(meta_block, &mut bytes);
        let span = forebay_io::Span::new(buffer, 0, META_BYTES as u32);
        reactor.pool_mut().copy_in(span, &bytes);
        let number = self.under_way.insert(UnderWay::Meta(op, buffer));
        reactor.submit(token(number), Op::Write { device: self.cache, offset, spans: &[span] });
    }

    fn transfer(&mut self, reactor: &mut Reactor, mut transfer: Transfer) {
        let spans: Option<Vec<_>> =
            transfer.parts.iter().map(|(_, span)| self.span(reactor, *span)).collect();
        let Some(spans) = spans else {
            self.refused.extend(transfer.parts.iter().map(|(op, _)| *op));
            return self.forget_copies(reactor, &transfer);
        };
        let (device, offset, write) = (self.device(transfer.device), transfer.offset, transfer.write);
        transfer.parts.shrink_to_fit();
        let number = self.under_way.insert(UnderWay::Transfer(transfer));
        if write {
            reactor.submit(token(number), Op::Write { device, offset, spans: &spans });
        } else {
            reactor.submit(token(number), Op::Read { device, offset, spans: &spans });
        }
    }

    /// Returns the memory of a span; `None` if there is no memory for a copy.
    fn span(&mut self, reactor: &mut Reactor, span: Span) -> Option<forebay_io::Span> {
        let buffer = match span.memory {
            Memory::Request(buffer) => BufId(buffer),
            Memory::Copy(slot) => match self.copies.get(&slot) {
                Some(buffer) => *buffer,
                None => {
                    let buffer = reactor.pool_mut().alloc(span.len as usize)?;
                    self.copies.insert(slot, buffer);
                    buffer
                }
            },
        };
        Some(forebay_io::Span::new(buffer, span.offset, span.len))
    }

    fn forget_copies(&mut self, reactor: &mut Reactor, transfer: &Transfer) {
        for (_, span) in &transfer.parts {
            if let Memory::Copy(slot) = span.memory
                && let Some(buffer) = self.copies.remove(&slot)
            {
                reactor.pool_mut().free(buffer);
            }
        }
    }
}

impl RequestHandler for CacheVolume {
    fn submit(&mut self, now: Nanos, request: forebay_lab_host::Request<'_>) {
        let kind = match request.kind {
            // A prefetch reads the block; its bytes are not used.
            RequestKind::Read | RequestKind::Prefetch => CommandKind::Read,
            RequestKind::Write { fua } => CommandKind::Write { fua },
            RequestKind::Flush => CommandKind::Flush,
            RequestKind::Discard { fua } => CommandKind::Zero { fua, may_unmap: true },
            RequestKind::WriteZeroes { fua, may_unmap } => CommandKind::Zero { fua, may_unmap },
        };
        let buffer = request.buf.map_or(u32::MAX, |buffer| buffer.0);
        let (id, offset, len) = (request.id.0, request.offset, request.len);
        self.model.submit(now, Request { id, kind, offset, len, buffer });
    }

    fn block_status(&self, first_block: u64, blocks: u64, f: &mut dyn FnMut(u64, bool, bool) -> bool) {
        let (mut at, end) = (first_block, first_block + blocks);
        while at < end {
            let state = self.model.state_of(at);
            let run = (at..end).take_while(|block| self.model.state_of(*block) == state).count() as u64;
            if !f(run, state.0, state.1) {
                return;
            }
            at += run;
        }
    }

    fn act(&mut self, now: Nanos, reactor: &mut Reactor, answers: &mut Vec<Answer>) -> bool {
        let mut any = false;
        loop {
            while let Some(action) = self.model.next_action() {
                any = true;
                if let Some(action) = self.plug.push(action) {
                    self.perform(reactor, action, answers);
                }
            }
            for transfer in self.plug.unplug() {
                self.transfer(reactor, transfer);
            }
            if self.refused.is_empty() {
                return any;
            }
            for op in std::mem::take(&mut self.refused) {
                self.model.complete(now, op, Err(Failed));
            }
        }
    }

    fn completed(&mut self, now: Nanos, reactor: &mut Reactor, number: u32, result: Result<u32, IoFailure>) {
        let result = result.map(drop).map_err(|_| Failed);
        match self.under_way.remove(number) {
            UnderWay::Other(op) => self.model.complete(now, op, result),
            UnderWay::Meta(op, buffer) => {
                reactor.pool_mut().free(buffer);
                self.model.complete(now, op, result);
            }
            UnderWay::Transfer(transfer) => {
                if transfer.write || result.is_err() {
                    self.forget_copies(reactor, &transfer);
                }
                for (op, _) in transfer.parts {
                    self.model.complete(now, op, result);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        let stats = self.stats.as_ref().map(|_| self.stats_due);
        self.model.deadline().into_iter().chain(stats).min()
    }

    fn tick(&mut self, now: Nanos) {
        self.model.tick(now);
        if let Some(stats) = &self.stats
            && now >= self.stats_due
        {
            stats.replace(json(&self.model));
            self.stats_due = now + STATS_EVERY;
        }
    }

    fn poke(&mut self, now: Nanos) {
        self.model.sync(now);
    }

    fn stop(&mut self, now: Nanos) {
        self.model.stop(now);
    }

    fn is_stopped(&self) -> bool {
        self.model.stopped().is_some()
    }
}

/// Returns the settings, the state and the counters of a model as a JSON object.
#[must_use]
pub fn json(model: &Model) -> String {
    let (config, layout) = (model.config(), model.layout());
    let mut text = format!(
        "{{\n  \"cache\": \"FlashCache model\",\n  \"mode\": \"{}\",\n  \"reclaim\": \"{}\",\n  \"flush\": \"{}\"",
        config.mode.name(),
        config.reclaim.name(),
        config.flush.name()
    );
    let numbers = [
        ("assoc", u64::from(config.assoc)),
        ("sets", u64::from(layout.sets)),
        ("dirty_thresh_pct", u64::from(config.dirty_thresh_pct)),
        ("max_clean_ios_set", u64::from(config.max_clean_ios_set)),
        ("max_clean_ios_total", u64::from(config.max_clean_ios_total)),
        ("fallow_delay", config.fallow_delay / SECOND),
        ("fallow_clean_speed", u64::from(config.fallow_clean_speed)),
        ("total_blocks", u64::from(layout.slots())),
        ("cached_blocks", u64::from(model.cached_blocks())),
        ("dirty_blocks", u64::from(model.dirty_blocks())),
    ];
    for (name, value) in numbers.into_iter().chain(model.counters().list()) {
        let _ = write!(text, ",\n  \"{name}\": {value}"); // a `String` accepts everything
    }
    text + "\n}\n"
}

/// A file that a separate thread replaces repeatedly: a busy file system must not delay requests.
#[derive(Debug)]
pub struct StatsFile {
    sender: mpsc::SyncSender<String>,
    thread: JoinHandle<()>,
}

impl StatsFile {
    /// # Errors
    /// Returns an error if the file cannot be written, or the thread cannot be started.
    pub fn new(path: PathBuf) -> std::io::Result<Self> {
        replace(&path, "{}\n")?;
        let (sender, receiver) = mpsc::sync_channel::<String>(1);
        let write = move || {
            for text in receiver {
                if let Err(error) = replace(&path, &text) {
                    eprintln!("flashcache-model: cannot write {}: {error}", path.display());
                }
            }
        };
        let thread = std::thread::Builder::new().name("stats".into()).spawn(write)?;
        Ok(Self { sender, thread })
    }

    /// Replaces the contents, unless older ones still wait to be written.
    fn replace(&self, text: String) {
        let _ = self.sender.try_send(text);
    }

    fn end(self, text: String) {
        let _ = self.sender.send(text);
        drop(self.sender);
        let _ = self.thread.join();
    }
}

/// Replaces the file atomically: a reader finds the old or the new contents.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
}
