//! The io_uring engine: one ring, one thread, one system call per turn of the loop.
//!
//! Invariants:
//! - At most `devices_max` device steps of each lane are in the kernel; the rest waits, in order.
//!   Steps on sockets, FUSE connections and ublk devices are not limited: they can wait for a peer
//!   forever, and must not block device steps. (If they ever overflow the completion queue, the
//!   kernel keeps the surplus: `NODROP` is required.) No lane waits for another one.
//! - The ring is created disabled, and the first `wait` enables it: the kernel then accepts
//!   submissions only from the thread that made that call (`SINGLE_ISSUER`), whichever thread
//!   created the reactor.
//! - Threads of the other engine run steps that some kernels' rings do not support (`BLKDISCARD`)
//!   and steps that are not system calls; they start when first needed.
//! - Entries reach the kernel in the order of `push`; so a cancel never hits a later user of its
//!   key.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{Probe, opcode, squeue};

use super::psync::Psync;
use super::registered::Registered;
use super::ring::{Queued, Ring};
use super::{Engine, EngineKind, KernelStep, Lane, StepDone, Syscall};
use crate::error::IoFailure;
use crate::sys;
use crate::waker::Waker;

/// Key of the poll that watches the waker.
const KEY_WAKE: u64 = 1 << 63;
/// Key of cancel requests; their own results are ignored.
const KEY_CANCEL: u64 = (1 << 63) | 1;
/// Key of the poll that watches the threads.
const KEY_BLOCKING: u64 = (1 << 63) | 2;
/// Added to the keys of device steps, which are counted per lane.
const KEY_DEVICE: u64 = 1 << 62;
const KEY_SLOW: u64 = 1 << 61;

/// Offset that stands for the behaviour of `readv`, for descriptors without a position.
const NO_OFFSET: u64 = u64::MAX;

/// Offset of `len` in `struct io_uring_sqe` (`include/uapi/linux/io_uring.h`).
const ENTRY_LENGTH_AT: usize = 24;

/// The lane of steps that are not on a device.
const SOCKETS: usize = 0;

fn lane_of(key: u64) -> usize {
    match key {
        key if key & KEY_WAKE != 0 || key & KEY_DEVICE == 0 => SOCKETS,
        key if key & KEY_SLOW == 0 => 1,
        _ => 2,
    }
}

pub(crate) struct Uring {
    ring: Ring,
    registered: Registered,
    /// The kernel supports transfers of many vectors in registered memory (Linux 6.15).
    registers_vectors: bool,
    /// Entries that do not fit yet: of sockets, of fast and of slow devices.
    backlog: [VecDeque<Queued>; 3],
    /// Number of each in the queue or the kernel. Sockets are not counted.
    under_way: [u32; 3],
    devices_max: u32,
    enabled: bool,
    /// The kernel sets a flag when it has deferred work to run.
    flags_work: bool,
    polled: Duration,
    /// See [`Limits`](crate::reactor::Limits).
    raised_by: u32,
    wake_armed: bool,
    /// Descriptors on which even submitting can block: the kernel queries the server of the file.
    served: Vec<RawFd>,
    blocking: Blocking,
}

/// Steps that threads run.
#[derive(Default)]
struct Blocking {
    threads: Option<Psync>,
    armed: bool,
    /// Steps for which no thread could be started, or that do not fit into the ring's entries.
    failed: Vec<StepDone>,
}

impl Uring {
    /// Creates a ring with `entries` submission entries; the error is the reason for the failure.
    pub(crate) fn new(entries: u32, devices_max: u32) -> Result<Uring, String> {
        let devices_max = devices_max.clamp(1, 16384);
        let (ring, flags_work) =
            Ring::build(entries.clamp(2, 4096), devices_max * 2).map_err(|error| error.to_string())?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err("the kernel is older than Linux 5.11".into());
        }
        let registers_vectors = probe(&ring)?;
        let registered = Registered::new(&ring.submitter());
        Ok(Uring {
            ring,
            registered,
            registers_vectors,
            backlog: Default::default(),
            under_way: [0; 3],
            devices_max,
            enabled: false,
            flags_work,
            polled: Duration::ZERO,
            raised_by: 0,
            wake_armed: false,
            served: Vec::new(),
            blocking: Blocking::default(),
        })
    }

    fn push_entry(&mut self, entry: squeue::Entry) {
        self.queue(Queued::Short(entry));
    }

    fn queue(&mut self, entry: Queued) {
        let lane = lane_of(entry.user_data());
        if !self.backlog[lane].is_empty() || !self.try_push(&entry) {
            self.backlog[lane].push_back(entry);
        }
    }

    fn try_push(&mut self, entry: &Queued) -> bool {
        let lane = lane_of(entry.user_data());
        if lane != SOCKETS && self.under_way[lane] >= self.devices_max {
            return false;
        }
        // SAFETY: the memory that the entry points to lives until its completion (contract of the
        // engine).
        let pushed = unsafe { self.ring.push(entry) };
        self.under_way[lane] += u32::from(pushed && lane != SOCKETS);
        pushed
    }

    /// Moves waiting entries into the submission queue; submits full queues meanwhile.
    fn refill(&mut self) -> io::Result<()> {
        for lane in 0..self.backlog.len() {
            while let Some(entry) = self.backlog[lane].front().cloned() {
                if self.try_push(&entry) {
                    self.backlog[lane].pop_front();
                } else if self.ring.queue_state().is_full {
                    self.submit(0, None)?;
                    if self.ring.queue_state().is_full {
                        return Ok(());
                    }
                } else {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns whether entering the kernel now, without waiting, has any effect.
    fn has_kernel_work(&mut self) -> bool {
        let queue = self.ring.queue_state();
        !queue.is_empty || queue.task_work || queue.overflow || !self.flags_work
    }

    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
            // A kernel thread per ring runs steps that can block; the kernel starts it for the
            // first such step and keeps it. Starting it here ensures that it exists before the
            // thread limit is reached.
            let nothing = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
            self.push_entry(nothing.user_data(KEY_CANCEL));
        }
        Ok(())
    }

    fn arm_waker(&mut self, fd: RawFd) {
        if !self.wake_armed {
            self.wake_armed = true;
            self.push_entry(opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build().user_data(KEY_WAKE));
        }
    }

    /// Builds a FUSE command, if entries have room for it.
    fn fuse_command(
        &self,
        fd: RawFd,
        op: u32,
        command: [u8; 24],
        (iov, count): (*const libc::iovec, u32),
    ) -> Option<squeue::Entry128> {
        if !self.ring.has_long_entries() {
            return None;
        }
        let mut long = [0; 80];
        long[..command.len()].copy_from_slice(&command);
        let mut entry = opcode::UringCmd80::new(Fd(fd), op).cmd(long).addr(Some(iov as u64)).build();
        // SAFETY: an entry begins with the kernel's `struct io_uring_sqe`, plain bytes aligned to
        // 8; the length is 4 bytes of it at `ENTRY_LENGTH_AT`. The library cannot set it for a
        // command.
        unsafe { (&raw mut entry).cast::<u8>().add(ENTRY_LENGTH_AT).cast::<u32>().write(count) };
        Some(entry)
    }

    /// Passes a step to a thread.
    fn push_blocking(&mut self, step: KernelStep) {
        if self.blocking.threads.is_none() {
            match Psync::with(1, self.raised_by) {
                Ok(threads) => self.blocking.threads = Some(threads),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
                    self.blocking.failed.push(StepDone { key: step.key, result: -errno });
                }
            }
        }
        if let Some(threads) = &mut self.blocking.threads {
            threads.push(step);
        }
    }

    fn arm_blocking(&mut self) {
        if let Some(threads) = self.blocking.threads.as_ref().filter(|_| !self.blocking.armed) {
            let poll = opcode::PollAdd::new(Fd(threads.done_fd()), libc::POLLIN as u32).build();
            self.blocking.armed = true;
            self.push_entry(poll.user_data(KEY_BLOCKING));
        }
    }

    /// Busy-polls the completion queue and `has_more`; enters the kernel only when it has deferred
    /// work to run.
    fn poll_for(&mut self, time: Duration, has_more: impl Fn() -> bool) -> io::Result<()> {
        let began = Instant::now();
        let mut polled = Duration::ZERO;
        while self.ring.completion().is_empty() && !has_more() && polled < time {
            if self.ring.queue_state().task_work {
                self.submit(0, None)?;
            } else {
                std::hint::spin_loop();
            }
            polled = began.elapsed();
        }
        self.polled += polled;
        Ok(())
    }

    /// Sets by how much its threads have a higher niceness: no active client waits for their steps.
    pub(crate) fn raised_by(self, steps: u32) -> Uring {
        Uring { raised_by: steps, ..self }
    }

    /// Total time spent polling, successful or not.
    pub(crate) fn polled(&self) -> Duration {
        self.polled
    }

    /// Calls `io_uring_enter` once. Interruption, timeout and a busy kernel are not errors: the
    /// caller checks again.
    fn submit(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let result = match timeout {
            Some(timeout) => {
                let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&time))
            }
            None => submitter.submit_and_wait(want),
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self, waker: &Waker, done: &mut Vec<StepDone>) {
        for event in self.ring.completion() {
            match event.user_data() {
                KEY_WAKE => {
                    self.wake_armed = false;
                    if event.result() > 0 {
                        sys::eventfd_drain(waker.fd());
                    }
                }
                KEY_CANCEL => {}
                KEY_BLOCKING => {
                    self.blocking.armed = false;
                    if let Some(threads) = &self.blocking.threads {
                        threads.take_done(done);
                    }
                }
                key => {
                    let lane = lane_of(key);
                    self.under_way[lane] -= u32::from(lane != SOCKETS);
                    done.push(StepDone { key: key & !(KEY_DEVICE | KEY_SLOW), result: event.result() });
                }
            }
        }
    }

    /// Like `wait`, next to another source of results: stops polling and does not sleep once
    /// `has_more` returns true. The thread that makes it true raises the waker's counter if this
    /// might sleep.
    pub(crate) fn wait_beside(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
        has_more: impl Fn() -> bool,
    ) -> Result<(), IoFailure> {
        self.enable()?;
        self.arm_waker(waker.fd());
        self.arm_blocking();
        self.refill()?;
        done.append(&mut self.blocking.failed);
        let sleep = if done.is_empty() { sleep } else { Some(Duration::ZERO) };
        if !spin.is_zero() {
            self.submit(0, None)?;
            self.poll_for(spin, &has_more)?;
        }
        if self.ring.completion().is_empty() && sleep != Some(Duration::ZERO) && !has_more() {
            self.submit(1, sleep)?;
        } else if self.has_kernel_work() {
            self.submit(0, None)?;
        }
        self.reap(waker, done);
        Ok(())
    }
}

impl Engine for Uring {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn push(&mut self, step: KernelStep) {
        debug_assert_eq!(step.key & (KEY_WAKE | KEY_DEVICE | KEY_SLOW), 0);
        match step.request {
            Syscall::Discard { .. } => return self.push_blocking(step),
            // Jobs must not wait for a device that hangs in a discard.
            Syscall::Run { .. } => return self.push_blocking(KernelStep { lane: Lane::Slow, ..step }),
            _ => {}
        }
        step.prepare();
        if let Syscall::FuseCommand { fd, op, command, iov, count } = step.request {
            let Some(entry) = self.fuse_command(fd, op, command, (iov, count)) else {
                return self.blocking.failed.push(StepDone { key: step.key, result: -libc::EOPNOTSUPP });
            };
            return self.queue(Queued::Long(entry.user_data(step.key)));
        }
        let slow = if step.lane == Lane::Slow { KEY_SLOW } else { 0 };
        let key = if step.request.is_on_device() { step.key | KEY_DEVICE | slow } else { step.key };
        let registered = match step.request {
            Syscall::Read { mapping: Some(mapping), count, .. }
            | Syscall::Write { mapping: Some(mapping), count, .. }
                if count == 1 || self.registers_vectors =>
            {
                self.registered.index_of(&self.ring.submitter(), mapping)
            }
            _ => None,
        };
        let mut entry = entry_of(step.request, registered).user_data(key);
        if !self.served.is_empty() && step.request.device_fd().is_some_and(|fd| self.served.contains(&fd)) {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        self.push_entry(entry);
    }

    fn has_fuse_commands(&self) -> bool {
        self.ring.has_long_entries()
    }

    /// The reactor only ever cancels steps that wait for a peer.
    fn cancel(&mut self, key: u64) {
        self.push_entry(opcode::AsyncCancel::new(key).build().user_data(KEY_CANCEL));
    }

    fn wait(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
    ) -> Result<(), IoFailure> {
        self.wait_beside(spin, sleep, waker, done, || false)
    }

    fn hand_over(&mut self) -> Result<(), IoFailure> {
        self.enable()?;
        self.refill()?;
        if !self.ring.queue_state().is_empty {
            self.submit(0, None)?;
        }
        Ok(())
    }

    /// Lets another kernel thread start operations on this descriptor, so that this thread never
    /// blocks.
    fn set_served(&mut self, fd: RawFd, is_served: bool) {
        self.served.retain(|other| *other != fd);
        if is_served {
            self.served.push(fd);
        }
    }

    fn forget_buffer(&mut self, chunk: u32, generation: u64) {
        self.registered.forget(&self.ring.submitter(), chunk, generation);
    }
}

/// Returns whether the kernel has the optional operations, or an error that names a missing one.
fn probe(ring: &Ring) -> Result<bool, String> {
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|e| format!("its operations cannot be listed: {e}"))?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::Accept::CODE,
        opcode::Recv::CODE,
        opcode::SendMsg::CODE,
        opcode::AsyncCancel::CODE,
        opcode::PollAdd::CODE,
    ];
    match needed.iter().find(|&&code| !probe.is_supported(code)) {
        Some(code) => Err(format!("the kernel lacks operation {code}")),
        None => {
            let vectored = [opcode::ReadvFixed::CODE, opcode::WritevFixed::CODE];
            Ok(vectored.iter().all(|&code| probe.is_supported(code)))
        }
    }
}

/// The entry of a request; `registered` is the number of the registered memory that contains all
/// its vectors.
fn entry_of(request: Syscall, registered: Option<u16>) -> squeue::Entry {
    match request {
        Syscall::Read { fd, iov, count: 1, offset, .. } => {
            // SAFETY: the vector lives in a slot while the operation does.
            let only = unsafe { *iov };
            let (memory, len) = (only.iov_base.cast(), vector_len(only));
            match registered {
                Some(index) => opcode::ReadFixed::new(Fd(fd), memory, len, index).offset(offset).build(),
                None => opcode::Read::new(Fd(fd), memory, len).offset(offset).build(),
            }
        }
        Syscall::Write { fd, iov, count: 1, offset, .. } => {
            // SAFETY: the vector lives in a slot while the operation does.
            let only = unsafe { *iov };
            let (memory, len) = (only.iov_base.cast(), vector_len(only));
            match registered {
                Some(index) => opcode::WriteFixed::new(Fd(fd), memory, len, index).offset(offset).build(),
                None => opcode::Write::new(Fd(fd), memory, len).offset(offset).build(),
            }
        }
        Syscall::Read { fd, iov, count, offset, .. } => match registered {
            Some(index) => opcode::ReadvFixed::new(Fd(fd), iov, count, index).offset(offset).build(),
            None => opcode::Readv::new(Fd(fd), iov, count).offset(offset).build(),
        },
        Syscall::Write { fd, iov, count, offset, .. } => match registered {
            Some(index) => opcode::WritevFixed::new(Fd(fd), iov, count, index).offset(offset).build(),
            None => opcode::Writev::new(Fd(fd), iov, count).offset(offset).build(),
        },
        Syscall::Sync { fd } => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
        Syscall::Allocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(Fd(fd), len).offset(offset).mode(mode).build()
        }
        Syscall::Discard { .. } | Syscall::Run { .. } => unreachable!("threads do it"),
        Syscall::FuseCommand { .. } => unreachable!("it needs a long entry"),
        Syscall::Accept { fd } => opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        Syscall::Recv { fd, memory, len } => opcode::Recv::new(Fd(fd), memory, len).build(),
        Syscall::TakeMessage { fd, iov, count } => {
            opcode::Readv::new(Fd(fd), iov, count).offset(NO_OFFSET).build()
        }
        Syscall::PutMessage { fd, iov, count } => {
            opcode::Writev::new(Fd(fd), iov, count).offset(NO_OFFSET).build()
        }
        Syscall::Raise { fd } => {
            let len = size_of_val(&super::ONE) as u32;
            opcode::Write::new(Fd(fd), (&raw const super::ONE).cast(), len).offset(NO_OFFSET).build()
        }
        Syscall::Watch { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(),
        Syscall::Command { fd, op, command } => opcode::UringCmd16::new(Fd(fd), op).cmd(command).build(),
        Syscall::Send { fd, message } => {
            opcode::SendMsg::new(Fd(fd), message).flags(libc::MSG_NOSIGNAL as u32).build()
        }
    }
}

/// Length of a vector; spans are at most `u32::MAX` bytes long.
fn vector_len(vector: libc::iovec) -> u32 {
    u32::try_from(vector.iov_len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufPool, KernelUse, Span};

    #[test]
    fn old_kernel_gets_no_fixed_vectors() {
        let Ok(mut ring) = Uring::new(8, 1) else { return println!("skipped: there is no io_uring") };
        let mut pool = BufPool::new(64 << 20);
        let span = Span::new(pool.alloc(8192).unwrap(), 0, 4096);
        let address = pool.pin(span, KernelUse::Reads).unwrap();
        let mapping = pool.mapping_of_pinned(&[span]);
        assert!(mapping.is_some());
        let vectors = [libc::iovec { iov_base: address.cast(), iov_len: 4096 }; 2];
        // The limit of steps in flight is reached: pushed steps wait, and the test can inspect
        // them.
        ring.under_way = [0, 1, 1];
        for (knows, count) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
            ring.registers_vectors = knows;
            let request =
                Syscall::Write { fd: 0, iov: vectors.as_ptr(), count, offset: 0, mapping, work: None };
            ring.push(KernelStep { key: 7, request, lane: Lane::Fast });
        }
        let pushed: Vec<u8> = ring.backlog[1].drain(..).map(|entry| entry.opcode()).collect();
        let (one, many) = (opcode::WriteFixed::CODE, opcode::WritevFixed::CODE);
        if pushed[0] == opcode::Write::CODE {
            return println!("skipped: nothing may be registered");
        }
        assert_eq!(pushed, [one, many, one, opcode::Writev::CODE]);
    }

    #[test]
    fn registered_transfers_use_fixed_opcodes() {
        let vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4096 }; 2];
        let kind = |writes, count, registered| {
            let (fd, iov, offset, mapping) = (0, vectors.as_ptr(), 0, None);
            let request = if writes {
                Syscall::Write { fd, iov, count, offset, mapping, work: None }
            } else {
                Syscall::Read { fd, iov, count, offset, mapping, work: None }
            };
            entry_of(request, registered).get_opcode() as u8
        };
        assert_eq!(
            [kind(false, 1, None), kind(false, 1, Some(3))],
            [opcode::Read::CODE, opcode::ReadFixed::CODE]
        );
        assert_eq!(
            [kind(true, 1, None), kind(true, 1, Some(3))],
            [opcode::Write::CODE, opcode::WriteFixed::CODE]
        );
        assert_eq!(
            [kind(false, 2, None), kind(false, 2, Some(3))],
            [opcode::Readv::CODE, opcode::ReadvFixed::CODE]
        );
        assert_eq!(
            [kind(true, 2, None), kind(true, 2, Some(3))],
            [opcode::Writev::CODE, opcode::WritevFixed::CODE]
        );
    }
}
