//! FUSE connections served over io_uring: an entry of a queue takes a request, and the command that
//! answers it takes the next one.
//!
//! An entry has memory for the heads of a request and its answer, and for their payload. It is
//! registered with the kernel once. The kernel copies into it and out of it on the thread that runs
//! the reactor: when a command is submitted, and when the reactor waits.
//!
//! Invariants:
//! - All commands of a connection come from one ring: that of the thread that runs the reactor.
//! - An entry's memory is pinned while a command of it is in the kernel.
//! - A command ends only by a request or by the end of the connection. So a connection that is
//!   closed with commands in the kernel is aborted, after submitted operations have been handed to
//!   the kernel.

use super::{FuseId, Reactor};
use crate::buffer::Span;
use crate::engine::Syscall;
use crate::error::IoFailure;
use crate::fuse::RingAccess;
use crate::fuse::ring::command;
use crate::slots::OpKind;

impl Reactor {
    /// Returns whether the engine supports FUSE connections over the ring.
    pub fn can_serve_fuse_ring(&self) -> bool {
        self.engine.has_fuse_commands()
    }

    /// Enables a connection for the ring too, for [`Op::FuseRing`](super::Op::FuseRing).
    pub fn open_fuse_ring(&mut self, id: FuseId, access: RingAccess) {
        if let Some(Some(fuse)) = self.fuses.get_mut(id.0 as usize) {
            fuse.ring = Some(access);
        }
    }

    pub(super) fn open_fuse_queue(&self, id: FuseId, queue: u16, spans: [Span; 2]) -> Result<u32, IoFailure> {
        let id = self.open_fuse(id)?;
        let ring = self.fuses.get(id as usize).and_then(Option::as_ref).and_then(|fuse| fuse.ring.as_ref());
        let has_queue = ring.is_some_and(|ring| queue < ring.queues);
        // An empty span would leave one vector, but the kernel expects two.
        if has_queue && spans.iter().all(|span| span.len > 0) { Ok(id) } else { Err(IoFailure::INVALID) }
    }

    /// Starts a filled slot.
    pub(super) fn start_fuse_ring(&mut self, index: u32) {
        let OpKind::FuseRing { fuse: id, .. } = self.memory.slots.get(index).kind else { return };
        if let Some(Some(fuse)) = self.fuses.get_mut(id as usize) {
            fuse.operations += 1;
            fuse.commands += 1;
        }
        self.push_step(index);
    }

    /// The command of an operation.
    pub(super) fn fuse_ring_step(&mut self, index: u32) -> Result<Syscall, IoFailure> {
        let memory = &mut *self.memory;
        let slot = memory.slots.get_mut(index);
        let OpKind::FuseRing { fuse, queue, answered } = slot.kind else { return Err(IoFailure::INVALID) };
        slot.fill_vectors(&memory.pool);
        let vectors = (slot.vectors.as_ptr(), slot.vectors.len() as u32);
        // The kernel knows the entry's memory from its registration.
        let (iov, count) = if answered.is_none() { vectors } else { (std::ptr::null(), 0) };
        let fd = self.fuse_fd(fuse)?;
        let (op, command) = command(queue, answered);
        Ok(Syscall::FuseCommand { fd, op, command, iov, count })
    }

    /// Accounts for a reported operation.
    pub(super) fn fuse_command_ended(&mut self, id: u32) {
        if let Some(Some(fuse)) = self.fuses.get_mut(id as usize) {
            fuse.commands -= 1;
        }
        self.fuse_op_ended(id);
    }

    /// Ends the commands of a connection that is closing. Submitted answers reach the kernel first.
    pub(super) fn end_fuse_commands(&mut self, id: u32) {
        let fuse = self.fuses.get(id as usize).and_then(Option::as_ref);
        if fuse.is_none_or(|fuse| fuse.commands == 0) {
            return;
        }
        // The next wait reports an engine that has failed.
        let _ = self.engine.hand_over();
        let fuse = self.fuses.get(id as usize).and_then(Option::as_ref);
        if let Some(ring) = fuse.and_then(|fuse| fuse.ring.as_ref()) {
            ring.abort.now();
        }
    }
}
