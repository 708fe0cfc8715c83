//! FUSE connections of the reactor: many receives posted at once, replies in any order.
//!
//! A connection delivers one request per read, and a read that finds none would block. So the
//! descriptor is non-blocking, and receives that find no request are *parked*: the first of them
//! watches the descriptor, and when it becomes readable a *burst* of parked receives reads. A burst
//! is twice as large as the number of requests that the last one found: a single request costs one
//! extra read, and one system call takes a crowd of them.
//!
//! Invariants:
//! - At most one parked receive of a connection watches; all reads of a burst return before the
//!   next step.
//! - The code does not rely on an unsuccessful read returning at once: if io_uring keeps such a
//!   read until there is a request (it does for descriptors that support non-blocking I/O per
//!   request; `/dev/fuse` currently does not), receives continue in smaller bursts, and closing
//!   cancels the read.
//! - Each operation is reported once, also when the connection is closed under it; the descriptor
//!   is closed after the last report.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::connections::Fuse;
use super::{FuseId, Reactor};
use crate::engine::Syscall;
use crate::error::IoFailure;
use crate::slots::{OpKind, Slot};
use crate::sys;

/// Smallest burst, so that it can grow.
const BURST_MIN: usize = 2;

impl Reactor {
    /// Adds a FUSE connection (`/dev/fuse` after its mount). The reactor owns it and makes it
    /// non-blocking.
    ///
    /// # Errors
    /// When the descriptor's mode cannot be set.
    pub fn add_fuse(&mut self, fd: OwnedFd) -> Result<FuseId, IoFailure> {
        sys::set_nonblocking(fd.as_raw_fd(), true)?;
        let fuse = Fuse {
            fd,
            closing: false,
            operations: 0,
            parked: VecDeque::new(),
            watching: None,
            reading: Vec::new(),
            found: 0,
            drained: false,
            ring: None,
            commands: 0,
        };
        let id = self.fuses.iter().position(Option::is_none).unwrap_or_else(|| {
            self.fuses.push(None);
            self.fuses.len() - 1
        });
        self.fuses[id] = Some(fuse);
        Ok(FuseId(id as u32))
    }

    /// Closes a FUSE connection: receives end as cancelled, submitted replies are still sent, then
    /// the descriptor is closed. If the mount still exists, its users get `ENOTCONN` from then on.
    /// The number may be reused once every operation on it is reported.
    pub fn close_fuse(&mut self, id: FuseId) {
        let Some(Some(fuse)) = self.fuses.get_mut(id.0 as usize) else { return };
        if !std::mem::replace(&mut fuse.closing, true) {
            self.end_fuse_commands(id.0);
        }
        let Some(Some(fuse)) = self.fuses.get_mut(id.0 as usize) else { return };
        let parked = std::mem::take(&mut fuse.parked);
        for &index in fuse.watching.iter().chain(&fuse.reading) {
            self.engine.cancel(self.memory.slots.key(index));
        }
        for index in parked {
            self.finish(index, Err(IoFailure::CANCELLED));
        }
        self.forget_idle_fuse(id.0);
    }

    pub(super) fn close_all_fuses(&mut self) {
        for id in 0..self.fuses.len() as u32 {
            self.close_fuse(FuseId(id));
        }
    }

    pub(super) fn open_fuse(&self, id: FuseId) -> Result<u32, IoFailure> {
        match self.fuses.get(id.0 as usize) {
            Some(Some(fuse)) if !fuse.closing => Ok(id.0),
            _ => Err(IoFailure::CANCELLED),
        }
    }

    /// Starts a filled slot: a reply at once, a receive in its turn.
    pub(super) fn start_fuse(&mut self, index: u32) {
        let slot = self.memory.slots.get(index);
        let (kind, len) = (slot.kind, slot.len);
        let (OpKind::FuseReceive { fuse: id, .. } | OpKind::FuseReply { fuse: id }) = kind else { return };
        let Some(Some(fuse)) = self.fuses.get_mut(id as usize) else {
            return self.report(index, Err(IoFailure::CANCELLED));
        };
        fuse.operations += 1;
        if len == 0 {
            return self.finish(index, Err(IoFailure::INVALID));
        }
        if matches!(kind, OpKind::FuseReply { .. }) {
            return self.push_step(index);
        }
        fuse.parked.push_back(index);
        if fuse.reading.is_empty() && fuse.watching.is_none() {
            self.next_fuse_step(id);
        }
    }

    /// The system call of a FUSE operation.
    pub(super) fn fuse_step(&mut self, index: u32) -> Result<Syscall, IoFailure> {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        slot.fill_vectors(&memory.pool);
        let (iov, count) = vectors(slot);
        match slot.kind {
            OpKind::FuseReceive { fuse, watches: true } => Ok(Syscall::Watch { fd: self.fuse_fd(fuse)? }),
            OpKind::FuseReceive { fuse, watches: false } => {
                Ok(Syscall::TakeMessage { fd: self.fuse_fd(fuse)?, iov, count })
            }
            OpKind::FuseReply { fuse } => Ok(Syscall::PutMessage { fd: self.fuse_fd(fuse)?, iov, count }),
            _ => Err(IoFailure::INVALID),
        }
    }

    pub(super) fn fuse_fd(&self, id: u32) -> Result<RawFd, IoFailure> {
        let fuse = self.fuses.get(id as usize).and_then(Option::as_ref).ok_or(IoFailure::CANCELLED)?;
        Ok(fuse.fd.as_raw_fd())
    }

    /// Handles the result of a receive's step.
    pub(super) fn settle_fuse_receive(&mut self, index: u32, id: u32, watched: bool, result: i32) {
        let Some(Some(fuse)) = self.fuses.get_mut(id as usize) else {
            return self.finish(index, Err(IoFailure::CANCELLED));
        };
        if watched {
            fuse.watching = None;
            self.set_watches(index, false);
            return match u32::try_from(result) {
                // After a request and after the end of the connection alike, the read finds the
                // cause.
                Ok(_) => self.park_first(index, id),
                Err(_) => self.finish(index, Err(IoFailure::from_errno(result.wrapping_neg()))),
            };
        }
        fuse.reading.retain(|&read| read != index);
        if result == -libc::EAGAIN && !fuse.closing {
            fuse.drained = true;
            fuse.parked.push_back(index);
        } else {
            fuse.found += usize::from(result >= 0);
            let failure = if result == -libc::EAGAIN { libc::ECANCELED } else { result.wrapping_neg() };
            self.finish(index, u32::try_from(result).map_err(|_| IoFailure::from_errno(failure)));
        }
        if let Some(Some(fuse)) = self.fuses.get(id as usize)
            && fuse.reading.is_empty()
            && fuse.watching.is_none()
        {
            self.next_fuse_step(id);
        }
    }

    /// Puts the watching receive first in the next burst.
    fn park_first(&mut self, index: u32, id: u32) {
        let Some(Some(fuse)) = self.fuses.get_mut(id as usize) else { return };
        if fuse.closing {
            return self.finish(index, Err(IoFailure::CANCELLED));
        }
        fuse.drained = false;
        fuse.parked.push_front(index);
        self.next_fuse_step(id);
    }

    /// If no step is at the engine: watches if the last burst found the connection empty, otherwise
    /// reads a burst.
    fn next_fuse_step(&mut self, id: u32) {
        let Some(Some(fuse)) = self.fuses.get_mut(id as usize) else { return };
        if fuse.drained {
            if let Some(index) = fuse.parked.pop_front() {
                fuse.watching = Some(index);
                self.set_watches(index, true);
                self.push_step(index);
            }
            return;
        }
        let burst = (2 * fuse.found).max(BURST_MIN).min(fuse.parked.len());
        fuse.found = 0;
        fuse.reading.extend(fuse.parked.drain(..burst));
        for position in 0..burst {
            let read = self.fuses.get(id as usize).and_then(Option::as_ref);
            let Some(&index) = read.and_then(|fuse| fuse.reading.get(position)) else { return };
            self.push_step(index);
        }
    }

    fn set_watches(&mut self, index: u32, on: bool) {
        if let OpKind::FuseReceive { watches, .. } = &mut self.memory.slots.get_mut(index).kind {
            *watches = on;
        }
    }

    /// Accounts for a reported operation.
    pub(super) fn fuse_op_ended(&mut self, id: u32) {
        if let Some(Some(fuse)) = self.fuses.get_mut(id as usize) {
            fuse.operations -= 1;
        }
        self.forget_idle_fuse(id);
    }

    fn forget_idle_fuse(&mut self, id: u32) {
        if let Some(entry) = self.fuses.get_mut(id as usize)
            && entry.as_ref().is_some_and(|fuse| fuse.closing && fuse.operations == 0)
        {
            *entry = None;
        }
    }
}

fn vectors(slot: &Slot) -> (*const libc::iovec, u32) {
    (slot.vectors.as_ptr(), slot.vectors.len() as u32)
}
