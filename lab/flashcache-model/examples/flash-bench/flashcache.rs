//! FlashCache's layout: the core of the FlashCache model in virtual time, with the same devices as
//! Forebay's engine.
//!
//! The model reports its writes to the flash: whole blocks where their set has room, and the
//! metadata block of each that becomes dirty or clean.

use crate::figures::layout::{DISK_NS, FLASH, FlashOp, Layout, Load, OPEN_MAX, Sizes};
use forebay_flashcache_model::api::{Action, BLOCK_BYTES, CommandKind, Device, OpId, Request};
use forebay_flashcache_model::config::Config;
use forebay_flashcache_model::{META_BYTES, Model};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The FlashCache model with its devices.
pub(crate) struct FlashCacheSets {
    model: Model,
    now: u64,
    /// Time of the next burst.
    next: u64,
    /// Time at which the flash is free: it transfers blocks one after the other.
    flash_free: u64,
    /// Operations in flight: their end, and their order of start.
    ends: BinaryHeap<Reverse<(u64, u64, u32)>>,
    started: u64,
    requests: u64,
    open: usize,
}

impl FlashCacheSets {
    /// Creates an empty cache with FlashCache's defaults.
    ///
    /// # Panics
    /// Panics if the cache has no room for a set.
    pub(crate) fn new(sizes: &Sizes) -> Self {
        let model = Model::new(Config::default(), sizes.cache_bytes).expect("room for a set");
        Self {
            model,
            now: 0,
            next: 0,
            flash_free: 0,
            ends: BinaryHeap::new(),
            started: 0,
            requests: 0,
            open: 0,
        }
    }

    fn submit(&mut self, kind: CommandKind, offset: u64, len: u64) {
        self.requests += 1;
        self.open += 1;
        let request = Request { id: self.requests, kind, offset, len, buffer: 0 };
        self.model.submit(self.now, request);
    }

    /// Performs the actions of the model.
    fn pump(&mut self, flash: &mut dyn FnMut(FlashOp)) {
        while let Some(action) = self.model.next_action() {
            match action {
                Action::Read { op, device: Device::Cache, span, .. } => self.on_flash(op, span.len.into()),
                Action::Write { op, device: Device::Cache, offset, span } => {
                    flash(FlashOp::Write { offset, len: span.len.into() });
                    self.on_flash(op, span.len.into());
                }
                Action::WriteMeta { op, offset, .. } => {
                    flash(FlashOp::Write { offset, len: META_BYTES as u64 });
                    self.on_flash(op, META_BYTES as u64);
                }
                Action::Flush { op, device: Device::Cache } => self.later(op, FLASH.flush_ns),
                Action::Read { op, device: Device::Disk, .. }
                | Action::Write { op, device: Device::Disk, .. }
                | Action::Flush { op, device: Device::Disk }
                | Action::Zero { op, .. } => self.later(op, DISK_NS),
                Action::Reply { result, .. } => {
                    assert!(result.is_ok(), "no device fails");
                    self.open -= 1;
                }
            }
        }
    }

    fn on_flash(&mut self, op: OpId, len: u64) {
        self.flash_free = self.flash_free.max(self.now) + len.div_ceil(BLOCK) * FLASH.block_ns;
        self.later(op, self.flash_free - self.now + FLASH.op_ns);
    }

    fn later(&mut self, op: OpId, after_ns: u64) {
        self.started += 1;
        self.ends.push(Reverse((self.now + after_ns, self.started, op.0)));
    }

    /// Lets the next event before `end` happen.
    fn step(&mut self, end: u64, flash: &mut dyn FnMut(FlashOp)) -> bool {
        let done = self.ends.peek().map(|Reverse((at, ..))| *at);
        let next = [done, self.model.deadline()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next < end) else { return false };
        self.now = self.now.max(next);
        while let Some(Reverse((at, _, op))) = self.ends.peek().copied() {
            if at > self.now {
                break;
            }
            self.ends.pop();
            self.model.complete(self.now, OpId(op), Ok(()));
            self.pump(flash);
        }
        self.model.tick(self.now);
        self.pump(flash);
        true
    }
}

impl Layout for FlashCacheSets {
    fn serve(&mut self, load: &mut Load, bursts: u64, flash: &mut dyn FnMut(FlashOp)) {
        for _ in 0..bursts {
            for ask in load.next_burst() {
                let kind = if ask.is_read { CommandKind::Read } else { CommandKind::Write { fua: false } };
                self.submit(kind, ask.block * BLOCK, u64::from(ask.blocks) * BLOCK);
            }
            self.pump(flash);
            self.next = self.next.max(self.now) + load.interval_ns();
            while self.step(self.next, flash) {}
            self.now = self.now.max(self.next);
            while self.open > OPEN_MAX {
                assert!(self.step(u64::MAX, flash), "requests are open, and nothing goes on");
            }
        }
    }

    fn past_cache_bytes(&self) -> u64 {
        self.model.counters().uncached_writes * BLOCK
    }
}
