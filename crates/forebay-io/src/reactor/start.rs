//! Starts operations: routing by alignment, order between neighbours in one page, the next step.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::pages::Pages;
use super::{Reactor, ZERO_PAGE_BYTES};
use crate::buffer::{BUFFER_ALIGN, Span};
use crate::device::DeviceKind;
use crate::engine::{KernelStep, Lane, Syscall};
use crate::error::IoFailure;
use crate::slots::{IOV_MAX, OpKind, Slot, ZeroPhase};
use forebay_models::flash::FlashOp;

impl Reactor {
    /// Pins the spans and stores them in the slot. On an error nothing stays pinned.
    pub(super) fn fill_slot(&mut self, index: u32, offset: u64, spans: &[Span]) -> Result<(), IoFailure> {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        let kernel_use = slot.kind.kernel_use();
        slot.offset = offset;
        slot.len = 0;
        for span in spans {
            if memory.pool.pin(*span, kernel_use).is_none() {
                return Err(IoFailure::INVALID);
            }
            slot.spans.push(*span);
            slot.len += u64::from(span.len);
        }
        if slot.len > u64::from(u32::MAX) { Err(IoFailure::INVALID) } else { Ok(()) }
    }

    /// Starts a filled slot, or queues it behind the operations that it has to wait for.
    pub(super) fn start(&mut self, index: u32) {
        match self.memory.slots.get(index).kind {
            OpKind::Read { device }
            | OpKind::Write { device }
            | OpKind::Flush { device }
            | OpKind::Zero { device, .. }
            | OpKind::Discard { device } => {
                self.start_device(index, usize::from(device));
            }
            OpKind::Accept { .. } => self.push_step(index),
            OpKind::Recv { .. } | OpKind::Send { .. } => self.start_socket(index),
            OpKind::FuseReceive { .. } | OpKind::FuseReply { .. } => self.start_fuse(index),
            OpKind::FuseRing { .. } => self.start_fuse_ring(index),
            OpKind::UblkNext { .. } => self.start_ublk(index),
            OpKind::TakeEvent { event } | OpKind::Signal { event } => self.start_event(index, event),
            OpKind::Run => self.push_step(index),
        }
    }

    fn start_device(&mut self, index: u32, device: usize) {
        let entry = &self.devices[device];
        let slot = self.memory.slots.get(index);
        let Some(end) = slot.offset.checked_add(slot.len).filter(|&end| end <= i64::MAX as u64) else {
            return self.report(index, Err(IoFailure::OUT_OF_RANGE));
        };
        if slot.kind.modifies() && end > entry.device.size_bytes().max(entry.device.end_bytes()) {
            return self.report(index, Err(IoFailure::OUT_OF_RANGE));
        }
        if slot.len == 0 && !matches!(slot.kind, OpKind::Flush { .. }) {
            return self.finish(index, Ok(0));
        }
        self.start_model(index, device);
        if let Some(store) = self.devices[device].device.remote_store() {
            let store = Arc::clone(store);
            return self.start_remote(index, &*store);
        }
        self.route(index, device);
        self.note_pages(index, device);
        if self.memory.slots.get(index).kind.modifies() && self.has_page_conflict(index, device) {
            self.stats.page_conflicts += 1;
            self.devices[device].deferred.push_back(index);
            return;
        }
        self.push_step(index);
    }

    fn start_model(&mut self, index: u32, device: usize) {
        if !self.emulates {
            return;
        }
        let now_ns = self.now_ns();
        let Some(emulation) = &mut self.devices[device].emulation else { return };
        let slot = self.memory.slots.get_mut(index);
        let op = match slot.kind {
            OpKind::Read { .. } => FlashOp::Read,
            OpKind::Flush { .. } => FlashOp::Flush,
            OpKind::Zero { phase: ZeroPhase::Punch, .. } | OpKind::Discard { .. } => FlashOp::Trim,
            _ => FlashOp::Write,
        };
        slot.model_pending = true;
        emulation.submit(now_ns, index, op, slot.offset, slot.len);
    }

    /// Decides whether the whole operation can use direct I/O.
    fn route(&mut self, index: u32, device: usize) {
        let entry = &mut self.devices[device];
        let slot = self.memory.slots.get_mut(index);
        let Some((_, align)) = entry.direct else { return };
        let aligned = match slot.kind {
            OpKind::Flush { .. } => true,
            // A partial page is zeroed through the page cache, even if direct I/O would be
            // possible.
            OpKind::Zero { .. } | OpKind::Discard { .. } => {
                (slot.offset | slot.len).is_multiple_of(BUFFER_ALIGN as u64)
            }
            _ => {
                let memory = slot.spans.iter().fold(0, |acc, span| acc | span.offset | span.len);
                // Buffers start at multiples of BUFFER_ALIGN, so offsets within them determine the
                // alignment of addresses.
                let memory_fits = align.memory as usize > BUFFER_ALIGN || memory & (align.memory - 1) == 0;
                let lengths = slot.spans.iter().fold(slot.offset, |acc, span| acc | u64::from(span.len));
                memory_fits && lengths & u64::from(align.offset - 1) == 0
            }
        };
        if !aligned {
            self.mark_buffered(index, device);
        }
    }

    /// Makes the operation use the page cache from here on, and counts it.
    pub(super) fn mark_buffered(&mut self, index: u32, device: usize) {
        let slot = self.memory.slots.get_mut(index);
        if !slot.buffered && self.devices[device].direct.is_some() {
            slot.buffered = true;
            let transfers = !matches!(slot.kind, OpKind::Zero { .. } | OpKind::Discard { .. });
            self.stats.unaligned_transfers += u64::from(transfers);
            if slot.kind.modifies() {
                self.devices[device].buffered_writes += 1;
                if self.devices[device].buffered_writes == 1 {
                    self.note_all_pages(device);
                }
            }
        }
    }

    /// Records the pages of all other operations when the first buffered write begins. None is held
    /// back yet, so their order does not matter.
    fn note_all_pages(&mut self, device: usize) {
        let slots = &self.memory.slots;
        let unfinished = slots.live().filter(|&index| {
            let slot = slots.get(index);
            slot.kind.device() == Some(device as u16) && slot.kind.modifies() && slot.result.is_none()
        });
        for index in unfinished {
            if let Some(pages) = pages_of(slots.get(index)) {
                self.devices[device].pages.insert(index, pages);
            }
        }
    }

    /// Records the pages of a modifying operation that begins.
    fn note_pages(&mut self, index: u32, device: usize) {
        let (slot, entry) = (self.memory.slots.get(index), &mut self.devices[device]);
        if entry.buffered_writes > 0
            && slot.kind.modifies()
            && let Some(pages) = pages_of(slot)
        {
            entry.pages.insert(index, pages);
        }
    }

    /// Removes the pages of a modifying operation that is about to end.
    pub(super) fn forget_pages(&mut self, index: u32, device: usize) {
        let (slot, entry) = (self.memory.slots.get(index), &mut self.devices[device]);
        if entry.buffered_writes == 0 {
            return;
        }
        if let Some(pages) = pages_of(slot) {
            entry.pages.remove(index, pages);
        }
        entry.buffered_writes -= u32::from(slot.buffered);
        if entry.buffered_writes == 0 {
            entry.pages.clear();
        }
    }

    /// Returns whether a modifying operation that started (or waits) before this one touches the
    /// same page, with one of the two using the page cache. The page's writeback could then undo
    /// the other's direct write.
    pub(super) fn has_page_conflict(&self, index: u32, device: usize) -> bool {
        let entry = &self.devices[device];
        if entry.buffered_writes == 0 {
            return false;
        }
        let mine = self.memory.slots.get(index);
        let Some(pages) = pages_of(mine) else { return false };
        let my_arrival = entry.pages.arrival(index, pages).unwrap_or(u64::MAX);
        entry.pages.any(pages, |other, arrival| {
            let slot = self.memory.slots.get(other);
            // Operations that have not started wait, in order of arrival.
            other != index && (slot.buffered || mine.buffered) && (slot.started || arrival < my_arrival)
        })
    }

    /// Starts held-back writes whose neighbours have completed.
    pub(super) fn retry_deferred(&mut self, device: usize) {
        let mut position = 0;
        while let Some(&index) = self.devices[device].deferred.get(position) {
            if self.has_page_conflict(index, device) {
                position += 1;
            } else {
                self.devices[device].deferred.remove(position);
                self.push_step(index);
            }
        }
    }

    /// Returns whether the device has ended and the operation must fail. A write would extend a
    /// truncated file again, with zeroes in place of the lost data; zeroing behind the end succeeds
    /// without effect; and a flush has no meaning.
    fn is_beyond_help(&self, index: u32) -> bool {
        let kind = self.memory.slots.get(index).kind;
        let concerned = kind.modifies() || matches!(kind, OpKind::Flush { .. });
        let device = kind.device().filter(|_| concerned);
        device.is_some_and(|device| self.devices[usize::from(device)].device.ended().is_some())
    }

    /// Submits the slot's next step to the engine.
    pub(super) fn push_step(&mut self, index: u32) {
        if self.is_beyond_help(index) {
            return self.finish(index, Err(IoFailure::ENDED));
        }
        let request = match self.memory.slots.get(index).kind {
            OpKind::Read { device } | OpKind::Write { device } => {
                self.transfer_step(index, usize::from(device))
            }
            OpKind::Flush { device } => Syscall::Sync { fd: self.devices[usize::from(device)].buffered_fd },
            OpKind::Zero { device, phase } => self.zero_step(index, usize::from(device), phase),
            OpKind::Discard { device } => self.discard_step(index, usize::from(device)),
            OpKind::Accept { .. } | OpKind::Recv { .. } | OpKind::Send { .. } => {
                match self.socket_step(index) {
                    Ok(request) => request,
                    Err(failure) => return self.finish(index, Err(failure)),
                }
            }
            OpKind::FuseReceive { .. } | OpKind::FuseReply { .. } => match self.fuse_step(index) {
                Ok(request) => request,
                Err(failure) => return self.finish(index, Err(failure)),
            },
            OpKind::FuseRing { .. } => match self.fuse_ring_step(index) {
                Ok(request) => request,
                Err(failure) => return self.finish(index, Err(failure)),
            },
            OpKind::UblkNext { .. } => match self.ublk_step(index) {
                Ok(request) => request,
                Err(failure) => return self.finish(index, Err(failure)),
            },
            OpKind::Run => Syscall::Run { job: self.memory.slots.get(index).job.get() },
            OpKind::TakeEvent { event } | OpKind::Signal { event } => match self.event_step(index, event) {
                Ok(request) => request,
                Err(failure) => return self.finish(index, Err(failure)),
            },
        };
        self.memory.slots.get_mut(index).started = true;
        self.at_engine += 1;
        self.stats.steps += 1;
        let device = self.memory.slots.get(index).kind.device();
        let lane = device.map_or(Lane::Fast, |device| self.devices[usize::from(device)].lane);
        let key = self.memory.slots.key(index);
        self.engine.push(KernelStep { key, request, lane });
    }

    fn transfer_step(&mut self, index: u32, device: usize) -> Syscall {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        slot.fill_vectors(&memory.pool);
        let is_whole = slot.done == 0 && slot.spans.len() <= IOV_MAX;
        let work = slot.work.get_mut();
        let is_wanted = work.is_wanted();
        if slot.kind.modifies() && is_wanted && !work.is_done && !is_whole {
            // No other thread gets all of its bytes at once.
            memory.pool.work_pinned(&slot.spans, |parts| work.before_write(parts));
        }
        let fd = self.transfer_fd(index, device);
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        let (iov, count) = (slot.vectors.as_ptr(), slot.vectors.len() as u32);
        let offset = slot.offset + slot.done;
        let may_register = !slot.buffered && !slot.unregistered;
        let mapping =
            if may_register { memory.pool.mapping_of_pinned(&slot.spans[slot.cursor.0..]) } else { None };
        slot.registered = mapping.is_some();
        match slot.kind {
            OpKind::Read { .. } => {
                let work = Some(slot.work.get()).filter(|_| is_wanted && is_whole);
                Syscall::Read { fd, iov, count, offset, mapping, work }
            }
            _ => {
                let work = Some(slot.work.get()).filter(|_| is_wanted);
                Syscall::Write { fd, iov, count, offset, mapping, work }
            }
        }
    }

    /// The descriptor for the current vectors: the rest of a short transfer can be unaligned.
    fn transfer_fd(&mut self, index: u32, device: usize) -> RawFd {
        let entry = &self.devices[device];
        let slot = self.memory.slots.get(index);
        let Some((fd, align)) = entry.direct.filter(|_| !slot.buffered) else { return entry.buffered_fd };
        if slot.is_aligned(u64::from(align.memory - 1), u64::from(align.offset - 1)) {
            return fd;
        }
        self.mark_buffered(index, device);
        self.devices[device].buffered_fd
    }

    fn zero_step(&mut self, index: u32, device: usize, phase: ZeroPhase) -> Syscall {
        let entry = &self.devices[device];
        let phase = match phase {
            ZeroPhase::Punch if entry.lacks_punch => ZeroPhase::ZeroRange,
            phase => phase,
        };
        let phase = match phase {
            ZeroPhase::ZeroRange if entry.lacks_zero_range => ZeroPhase::Write,
            phase => phase,
        };
        let slot = self.memory.slots.get_mut(index);
        slot.kind = OpKind::Zero { device: device as u16, phase };
        let fd = entry.buffered_fd;
        let allocate = |mode| Syscall::Allocate {
            fd,
            mode: mode | libc::FALLOC_FL_KEEP_SIZE,
            offset: slot.offset,
            len: slot.len,
        };
        match phase {
            ZeroPhase::Punch => allocate(libc::FALLOC_FL_PUNCH_HOLE),
            ZeroPhase::ZeroRange => allocate(libc::FALLOC_FL_ZERO_RANGE),
            ZeroPhase::Write => self.zero_write_step(index, device),
        }
    }

    fn discard_step(&self, index: u32, device: usize) -> Syscall {
        let (entry, slot) = (&self.devices[device], self.memory.slots.get(index));
        let (fd, offset, len) = (entry.buffered_fd, slot.offset, slot.len);
        if entry.device.kind() == DeviceKind::Block {
            return Syscall::Discard { fd, offset, len };
        }
        Syscall::Allocate { fd, mode: libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len }
    }

    /// Writes up to 16 times the page of zeroes.
    fn zero_write_step(&mut self, index: u32, device: usize) -> Syscall {
        const VECTORS_MAX: u64 = 16;
        let zeroes = self.memory.zeroes.as_ptr();
        let slot = self.memory.slots.get_mut(index);
        let mut left = (slot.len - slot.done).min(VECTORS_MAX * ZERO_PAGE_BYTES as u64);
        self.stats.zeroes_written += u64::from(slot.done == 0);
        slot.vectors.clear();
        while left > 0 {
            let len = left.min(ZERO_PAGE_BYTES as u64);
            slot.vectors.push(libc::iovec { iov_base: zeroes.cast(), iov_len: len as usize });
            left -= len;
        }
        let fd = self.transfer_fd(index, device);
        let slot = self.memory.slots.get(index);
        let (iov, count) = (slot.vectors.as_ptr(), slot.vectors.len() as u32);
        Syscall::Write { fd, iov, count, offset: slot.offset + slot.done, mapping: None, work: None }
    }
}

fn pages_of(slot: &Slot) -> Option<Pages> {
    Pages::of(slot.offset, slot.len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceOptions};
    use crate::random::Rng;
    use crate::reactor::{EnginePreference, Limits, Op};
    use std::time::Duration;

    /// Like `has_page_conflict`, but scans every operation.
    fn conflicts_by_scan(reactor: &Reactor, index: u32, device: usize) -> bool {
        let (slots, entry) = (&reactor.memory.slots, &reactor.devices[device]);
        let mine = slots.get(index);
        let pages = |slot: &Slot| (slot.offset / 4096, (slot.offset + slot.len - 1) / 4096);
        let shares = |other: &Slot| pages(mine).0 <= pages(other).1 && pages(other).0 <= pages(mine).1;
        let waits_before_me =
            |other: u32| entry.deferred.iter().take_while(|&&i| i != index).any(|&i| i == other);
        slots.live().filter(|&other| other != index).any(|other_index| {
            let other = slots.get(other_index);
            other.kind.device() == Some(device as u16)
                && other.kind.modifies()
                && (other.buffered || mine.buffered)
                && shares(other)
                && other.result.is_none()
                && (other.started || waits_before_me(other_index))
        })
    }

    #[test]
    fn page_lookup_agrees_with_a_full_scan() {
        let (mut random, mut conflicts, mut direct_only) = (Rng(11), 0, 0);
        let dir = tempfile::tempdir().unwrap();
        let (mut reactor, _) = Reactor::open(EnginePreference::Psync, Limits::default()).unwrap();
        let devices = ["a", "b"].map(|name| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            reactor.add_device(Device::open_backing(&path, DeviceOptions::default()).unwrap())
        });
        if reactor.devices[0].direct.is_none() {
            println!("skipped: no direct I/O in {}", dir.path().display());
            return;
        }
        let buf = reactor.pool_mut().alloc(64 << 10).unwrap();
        let mut done = Vec::new();
        let mut made = 0;
        for token in 0..100_000 {
            // The time at which operations complete depends on the machine.
            let held_back = reactor.stats().page_conflicts;
            if token >= 6000 && held_back > 50 && conflicts > 50 && direct_only > 50 {
                break;
            }
            made += 1;
            let device = devices[random.below(2) as usize];
            // Mostly whole pages, so that at times there is no buffered write.
            let unit = if random.below(8) == 0 { 512 + random.below(3) } else { 4096 };
            let offset = random.below(40) * unit;
            let len = (1 + random.below(4)) * unit;
            let spans = [Span::new(buf, 0, len as u32)];
            reactor.submit(
                token,
                match random.below(20) {
                    0 => Op::Zero { device, offset, len: len * 16, may_unmap: token % 2 == 0 },
                    1 => Op::Flush { device },
                    2 => Op::Read { device, offset, spans: &spans },
                    _ => Op::Write { device, offset, spans: &spans },
                },
            );
            let modifying = |reactor: &Reactor| -> Vec<(u32, usize)> {
                let slots = &reactor.memory.slots;
                let of = |index| Some((index, slots.get(index).kind.device().map(usize::from)?));
                slots.live().filter(|&index| slots.get(index).kind.modifies()).filter_map(of).collect()
            };
            for (index, device) in modifying(&reactor) {
                let slot = reactor.memory.slots.get(index);
                if slot.token == token {
                    assert_eq!(slot.started, !conflicts_by_scan(&reactor, index, device), "{token}");
                }
            }
            if random.below(3) == 0 || reactor.in_flight() > 40 {
                reactor.wait(Some(Duration::from_micros(random.below(300))), &mut done).unwrap();
            }
            for (index, device) in modifying(&reactor) {
                // Operations that have started are not checked again.
                if !reactor.memory.slots.get(index).started {
                    assert!(conflicts_by_scan(&reactor, index, device), "{index} is held back for nothing");
                    assert!(reactor.has_page_conflict(index, device), "{index} would start too early");
                    conflicts += 1;
                }
            }
            direct_only += u32::from(reactor.devices.iter().all(|entry| entry.buffered_writes == 0));
        }
        while reactor.in_flight() > 0 {
            reactor.wait(None, &mut done).unwrap();
        }
        let held_back = reactor.stats().page_conflicts;
        assert!(
            held_back > 50 && conflicts > 50 && direct_only > 50,
            "{held_back} {conflicts} {direct_only}"
        );
        let failed = done.iter().find(|completion| completion.result.is_err());
        assert_eq!((done.len(), failed), (made, None));
    }
}
