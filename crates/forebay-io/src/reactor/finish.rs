//! Results of steps: starts the next step or ends the operation.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::{Checksums, Completion, Reactor};
use crate::buffer::Span;
use crate::device::DeviceKind;
use crate::engine::StepDone;
use crate::error::IoFailure;
use crate::slots::{OpKind, ZeroPhase};

/// Retries of a step that did nothing: this many without a pause ...
const AT_ONCE_MAX: u32 = 8;
/// ... and this many after a pause of `REST` each: one second in total.
const RESTS_MAX: u32 = 50;
const REST: Duration = Duration::from_millis(20);

impl Reactor {
    /// Handles all steps that the engine has returned.
    pub(super) fn settle_steps(&mut self) {
        let mut steps = std::mem::take(&mut self.steps_done);
        for step in steps.drain(..) {
            self.at_engine -= 1;
            self.settle_step(step);
        }
        self.steps_done = steps;
    }

    fn settle_step(&mut self, step: StepDone) {
        let Some(index) = self.memory.slots.find(step.key) else {
            debug_assert!(false, "a step of no operation came back");
            return;
        };
        let on_device = self.memory.slots.get(index).kind.device().is_some();
        // Interrupted, or (devices only) briefly short of kernel memory or of a kernel thread (this
        // program never cancels device steps): nothing was done, so retry.
        let is_short = [-libc::EAGAIN, -libc::ECANCELED].contains(&step.result);
        if step.result == -libc::EINTR || (on_device && is_short) {
            if !on_device {
                return self.push_step(index);
            }
            if self.try_again(index) {
                return;
            }
        }
        if on_device && step.result == -libc::EFAULT && self.goes_unregistered(index) {
            return self.push_step(index);
        }
        match self.memory.slots.get(index).kind {
            OpKind::Read { device } => self.settle_read(index, usize::from(device), step.result),
            OpKind::Write { device } => self.settle_write(index, usize::from(device), step.result),
            OpKind::Zero { device, phase } => {
                self.settle_zero(index, usize::from(device), phase, step.result)
            }
            OpKind::Discard { device } => self.settle_discard(index, usize::from(device), step.result),
            OpKind::Flush { device } => self.settle_flush(index, usize::from(device), step.result),
            OpKind::Accept { .. } => self.settle_accept(index, step.result),
            OpKind::Recv { .. } => self.finish(index, plain(step.result)),
            OpKind::Send { .. } => self.settle_send(index, step.result),
            OpKind::FuseReceive { fuse, watches } => {
                self.settle_fuse_receive(index, fuse, watches, step.result);
            }
            OpKind::FuseReply { .. } | OpKind::FuseRing { .. } | OpKind::UblkNext { .. } => {
                self.finish(index, plain(step.result));
            }
            OpKind::TakeEvent { event } => self.settle_event(index, event, step.result),
            OpKind::Run => self.finish(index, plain(step.result)),
            // A full counter is already signalled.
            OpKind::Signal { .. } if step.result == -libc::EAGAIN => self.finish(index, Ok(0)),
            OpKind::Signal { .. } => self.finish(index, plain(step.result).map(|_| 0)),
        }
    }

    /// Retries a step that did nothing: first at once, then after a pause. Returns false after so
    /// many retries that the result has to count as the device's answer: a file system in user
    /// space, or a broken driver, can return it forever.
    fn try_again(&mut self, index: u32) -> bool {
        let slot = self.memory.slots.get_mut(index);
        slot.in_vain += 1;
        if slot.in_vain <= AT_ONCE_MAX {
            self.push_step(index);
        } else if slot.in_vain <= AT_ONCE_MAX + RESTS_MAX {
            self.resting.push_back((Instant::now() + REST, index));
        } else {
            return false;
        }
        true
    }

    /// Handles a registration that was released before the kernel started the step. The step then
    /// had no effect, and works without registered memory.
    fn goes_unregistered(&mut self, index: u32) -> bool {
        let slot = self.memory.slots.get_mut(index);
        slot.unregistered |= slot.registered;
        let again = std::mem::take(&mut slot.registered);
        self.stats.registrations_missed += u64::from(again);
        again
    }

    /// Starts the steps whose pause has ended.
    pub(super) fn end_rests(&mut self) {
        while let Some(&(until, index)) = self.resting.front()
            && until <= Instant::now()
        {
            self.resting.pop_front();
            self.push_step(index);
        }
    }

    fn settle_read(&mut self, index: u32, device: usize, result: i32) {
        match plain(result) {
            Ok(0) if self.reads_inside(index, device) => self.finish(index, Err(IoFailure::ENDED)),
            Ok(0) => {
                self.stats.reads_past_end += 1;
                self.zero_rest(index);
                let len = self.memory.slots.get(index).len as u32;
                self.finish(index, Ok(len));
            }
            Ok(count) => self.advance(index, count),
            Err(failure) => self.retry_buffered_or_fail(index, device, failure),
        }
    }

    /// Returns whether the next byte of a read lies before the recorded end.
    fn reads_inside(&self, index: u32, device: usize) -> bool {
        let slot = self.memory.slots.get(index);
        slot.offset + slot.done < self.devices[device].device.end_bytes()
    }

    /// Checks the size after a flush: flushing a truncated file succeeds without the lost part.
    fn settle_flush(&mut self, index: u32, device: usize, result: i32) {
        let ended = self.devices[device].device.ended().map_or(Ok(0), |_| Err(IoFailure::ENDED));
        let result = plain(result).map_err(|failure| self.failure_on(device, failure));
        self.finish(index, result.and(ended));
    }

    /// Reports `ENDED` for a device that disappears while it is busy: its operations fail with
    /// other errors, and it then has no size.
    fn failure_on(&self, device: usize, failure: IoFailure) -> IoFailure {
        let vague = matches!(failure.errno, libc::EIO | libc::ENOSPC);
        if vague && self.devices[device].device.ended().is_some() { IoFailure::ENDED } else { failure }
    }

    fn settle_write(&mut self, index: u32, device: usize, result: i32) {
        match plain(result) {
            // A write of at least one byte that makes no progress would continue forever.
            Ok(0) => self.finish(index, Err(IoFailure::from_errno(libc::EIO))),
            Ok(count) => self.advance(index, count),
            Err(failure) => self.retry_buffered_or_fail(index, device, failure),
        }
    }

    /// Continues after `count` bytes, or ends.
    fn advance(&mut self, index: u32, count: u32) {
        let slot = self.memory.slots.get_mut(index);
        slot.advance(u64::from(count));
        if slot.done >= slot.len {
            let result = if slot.kind.modifies() && slot.spans.is_empty() { 0 } else { slot.len as u32 };
            self.finish(index, Ok(result));
        } else {
            self.stats.short_transfers += 1;
            self.push_step(index);
        }
    }

    /// Retries with buffered I/O if direct I/O refuses a request that satisfies its reported
    /// alignment.
    fn retry_buffered_or_fail(&mut self, index: u32, device: usize, failure: IoFailure) {
        let was_buffered = self.memory.slots.get(index).buffered;
        if failure.errno == libc::EINVAL && !was_buffered {
            self.mark_buffered(index, device);
            if self.memory.slots.get(index).buffered {
                return self.push_step(index);
            }
        }
        let failure = self.failure_on(device, failure);
        self.finish(index, Err(failure));
    }

    /// Fills the part that a read did not reach with zeroes.
    fn zero_rest(&mut self, index: u32) {
        let memory = &mut *self.memory;
        let slot = memory.slots.get(index);
        let mut skip = slot.cursor.1;
        for span in &slot.spans[slot.cursor.0..] {
            let rest = Span::new(span.buf, span.offset + skip, span.len - skip);
            skip = 0;
            let address = memory.pool.address_of_pinned(rest);
            // SAFETY: the span is pinned, hence inside live memory; its step has returned, so the
            // kernel has finished with it, and no slice to a buffer that the kernel writes exists.
            unsafe { std::ptr::write_bytes(address, 0, rest.len as usize) };
        }
    }

    fn settle_zero(&mut self, index: u32, device: usize, phase: ZeroPhase, result: i32) {
        if phase == ZeroPhase::Write {
            return self.settle_write(index, device, result);
        }
        let entry = &mut self.devices[device];
        match result {
            0 => self.finish(index, Ok(0)),
            // EINVAL and ENODEV: block devices refuse ranges finer than their blocks, old kernels
            // the mode.
            error if [libc::EOPNOTSUPP, libc::EINVAL, libc::ENODEV].contains(&-error) => {
                let supported = error == -libc::EINVAL;
                let next = match phase {
                    ZeroPhase::Punch => {
                        entry.lacks_punch |= !supported;
                        ZeroPhase::ZeroRange
                    }
                    _ => {
                        entry.lacks_zero_range |= !supported;
                        ZeroPhase::Write
                    }
                };
                self.memory.slots.get_mut(index).kind = OpKind::Zero { device: device as u16, phase: next };
                self.push_step(index);
            }
            error => self.finish(index, Err(IoFailure::from_errno(-error))),
        }
    }

    fn settle_discard(&mut self, index: u32, device: usize, result: i32) {
        // The kernel does not support it on this device, or `fallocate` on a file of another type.
        let of_file = self.devices[device].device.kind() != DeviceKind::Block;
        let unknown = [libc::ENOTTY, libc::ENOSYS].contains(&-result) || of_file && -result == libc::ENODEV;
        let result = if unknown { -libc::EOPNOTSUPP } else { result };
        let result = plain(result).map(|_| 0).map_err(|failure| self.failure_on(device, failure));
        self.finish(index, result);
    }

    fn settle_accept(&mut self, index: u32, result: i32) {
        let accepted = plain(result).and_then(|fd| {
            // SAFETY: accept created this descriptor for us, and it has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
            if self.is_accept_wanted(index) { self.add_socket(fd) } else { Err(IoFailure::CANCELLED) }
        });
        self.finish(index, accepted.map(|socket| socket.0));
    }

    fn settle_send(&mut self, index: u32, result: i32) {
        match plain(result) {
            Ok(0) => self.finish(index, Err(IoFailure::from_errno(libc::EPIPE))),
            Ok(count) => {
                let slot = self.memory.slots.get_mut(index);
                slot.advance(u64::from(count));
                if slot.done < slot.len && !self.is_aborted(index) {
                    self.push_step(index);
                } else {
                    let slot = self.memory.slots.get(index);
                    let whole = slot.done >= slot.len;
                    let result = if whole { Ok(slot.len as u32) } else { Err(IoFailure::CANCELLED) };
                    self.finish(index, result);
                }
            }
            Err(failure) => self.finish(index, Err(failure)),
        }
    }

    /// Ends the real work of an operation: reports it, unless a model holds it back.
    pub(super) fn finish(&mut self, index: u32, result: Result<u32, IoFailure>) {
        let slot = self.memory.slots.get_mut(index);
        slot.result = Some(result);
        let (kind, model_pending) = (slot.kind, slot.model_pending);
        if let Some(device) = kind.device().filter(|_| kind.modifies()) {
            self.forget_pages(index, usize::from(device));
        }
        if !model_pending {
            self.report(index, result);
        }
        match kind {
            OpKind::Write { device } | OpKind::Zero { device, .. } | OpKind::Discard { device } => {
                if !self.devices[usize::from(device)].deferred.is_empty() {
                    self.retry_deferred(usize::from(device));
                }
            }
            OpKind::Recv { socket } | OpKind::Send { socket } => self.socket_op_ended(socket, index),
            OpKind::Accept { listener } => self.accept_ended(listener, index),
            OpKind::FuseReceive { fuse, .. } | OpKind::FuseReply { fuse } => self.fuse_op_ended(fuse),
            OpKind::FuseRing { fuse, .. } => self.fuse_command_ended(fuse),
            OpKind::UblkNext { ublk, .. } => self.ublk_op_ended(ublk),
            OpKind::TakeEvent { event } | OpKind::Signal { event } => self.event_op_ended(event),
            OpKind::Read { .. } | OpKind::Flush { .. } | OpKind::Run => {}
        }
    }

    /// Queues the completion and frees the slot.
    pub(super) fn report(&mut self, index: u32, result: Result<u32, IoFailure>) {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        let first = self.ready_checksums.len();
        let work = slot.work.get_mut();
        if matches!(slot.kind, OpKind::Read { .. }) && work.is_wanted() && result.is_ok() {
            if !work.is_done {
                // No other thread had all of its bytes at once.
                memory.pool.work_pinned(&slot.spans, |parts| work.after_read(parts));
            }
            self.ready_checksums.append(&mut work.checksums);
        }
        let checksums = Checksums { first: first as u32, count: (self.ready_checksums.len() - first) as u32 };
        let kernel_use = slot.kind.kernel_use();
        for span in &slot.spans {
            memory.pool.unpin(span.buf, kernel_use);
        }
        self.ready.push(Completion { token: slot.token, result, checksums });
        memory.slots.give_back(index);
    }

    /// Collects the operations that the models have finished by now.
    pub(super) fn advance_models(&mut self) {
        if !self.emulates {
            return;
        }
        let now_ns = self.now_ns();
        let mut done = std::mem::take(&mut self.model_done);
        for emulation in self.devices.iter_mut().filter_map(|entry| entry.emulation.as_mut()) {
            emulation.advance(now_ns, &mut done);
        }
        for index in done.drain(..) {
            let slot = self.memory.slots.get_mut(index);
            debug_assert!(slot.live && slot.model_pending);
            slot.model_pending = false;
            if let Some(result) = slot.result {
                self.report(index, result);
            }
        }
        self.model_done = done;
    }

    /// Cancels socket operations and waits until no step is at the engine; returns false on
    /// timeout.
    pub(super) fn quiesce(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.abort_all();
        self.close_all_fuses();
        self.close_all_events();
        // Commands of block devices use no memory, and end with the engine.
        while self.at_engine > self.ublk_commands() {
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.engine.wait(Duration::ZERO, Some(left), &self.waker, &mut self.steps_done);
            if waited.is_err() || left.is_zero() {
                return false;
            }
            self.settle_steps();
        }
        true
    }
}

/// A system call's result: a count or a failure.
fn plain(result: i32) -> Result<u32, IoFailure> {
    u32::try_from(result).map_err(|_| IoFailure::from_errno(result.wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceOptions};
    use crate::error::IoFailureKind;
    use crate::reactor::{EnginePreference, Limits, Op};

    const BYTES: u32 = 4096;

    /// Reads from a device whose first answers are replaced by these, and all later ones by the
    /// last of them if `for_ever`.
    fn read_with(answers: &[i32], for_ever: bool) -> (Result<u32, IoFailure>, usize, Duration) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, [7; BYTES as usize]).unwrap();
        let (mut reactor, _) = Reactor::open(EnginePreference::Psync, Limits::default()).unwrap();
        let device = reactor.add_device(Device::open_backing(&path, DeviceOptions::default()).unwrap());
        let buf = reactor.pool_mut().alloc(BYTES as usize).unwrap();
        let began = Instant::now();
        reactor.submit(1, Op::Read { device, offset: 0, spans: &[Span::new(buf, 0, BYTES)] });
        let mut steps = 0;
        loop {
            reactor.end_rests();
            let soon = Some(Duration::from_millis(5));
            reactor.engine.wait(Duration::ZERO, soon, &reactor.waker, &mut reactor.steps_done).unwrap();
            for step in &mut reactor.steps_done {
                let lie = answers.get(steps).or(answers.last().filter(|_| for_ever));
                step.result = lie.map_or(step.result, |errno| -errno);
                steps += 1;
            }
            reactor.settle_steps();
            if let Some(done) = reactor.ready.pop() {
                return (done.result, steps, began.elapsed());
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{steps} steps, and no end");
        }
    }

    #[test]
    fn endless_retries_of_a_device_end_in_error() {
        for errno in [libc::EAGAIN, libc::ECANCELED, libc::EINTR] {
            let (result, steps, took) = read_with(&[errno], true);
            assert_eq!(result, Err(IoFailure::from_errno(errno)));
            assert_eq!(steps as u32, AT_ONCE_MAX + RESTS_MAX + 1);
            assert!(took >= REST * RESTS_MAX, "{took:?}: short of memory for a moment must be outlasted");
        }
        assert_eq!(IoFailure::from_errno(libc::EAGAIN).kind, IoFailureKind::Exhausted);
    }

    #[test]
    fn short_retries_of_a_device_succeed() {
        let (result, steps, _) = read_with(&[libc::EAGAIN; 20], false);
        assert_eq!((result, steps), (Ok(BYTES), 21));
    }
}
