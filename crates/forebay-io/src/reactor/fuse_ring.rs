//! FUSE connections served over io_uring: an entry of a queue takes a request, and the command that
//! answers it takes the next one.
//!
//! An entry has memory for the heads of a request and its answer, and for their payload. The kernel
//! is told of it once and copies into it and out of it, on the thread that runs the reactor: when a
//! command is handed over, and when the reactor waits.
//!
//! Invariants:
//! - All commands of a connection come from one ring: that of the thread that runs the reactor.
//! - An entry's memory is pinned while a command of it is in the kernel.
//! - No command ends but by a request or by the end of the connection. So a connection that is
//!   closed with commands in the kernel is aborted, after what was submitted has been handed over.

use super::{FuseId, Reactor};
use crate::buffer::Span;
use crate::engine::Syscall;
use crate::error::IoFailure;
use crate::fuse::RingAccess;
use crate::fuse::ring::command;
use crate::slots::OpKind;

impl Reactor {
    /// Whether FUSE connections can be served over the ring, as far as the engine is concerned.
    pub fn can_serve_fuse_ring(&self) -> bool {
        self.engine.has_fuse_commands()
    }

    /// Lets a connection be served over the ring too, for [`Op::FuseRing`](super::Op::FuseRing).
    pub fn open_fuse_ring(&mut self, id: FuseId, access: RingAccess) {
        if let Some(Some(fuse)) = self.fuses.get_mut(id.0 as usize) {
            fuse.ring = Some(access);
        }
    }

    pub(super) fn open_fuse_queue(&self, id: FuseId, queue: u16, spans: [Span; 2]) -> Result<u32, IoFailure> {
        let id = self.open_fuse(id)?;
        let ring = self.fuses.get(id as usize).and_then(Option::as_ref).and_then(|fuse| fuse.ring.as_ref());
        let has_queue = ring.is_some_and(|ring| queue < ring.queues);
        // An empty span would leave one vector, and the kernel is told of two.
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
        // Where an entry's memory is the kernel knows from its registration.
        let (iov, count) = if answered.is_none() { vectors } else { (std::ptr::null(), 0) };
        let fd = self.fuse_fd(fuse)?;
        let (op, command) = command(queue, answered);
        Ok(Syscall::FuseCommand { fd, op, command, iov, count })
    }

    /// An operation was reported.
    pub(super) fn fuse_command_ended(&mut self, id: u32) {
        if let Some(Some(fuse)) = self.fuses.get_mut(id as usize) {
            fuse.commands -= 1;
        }
        self.fuse_op_ended(id);
    }

    /// Ends the commands of a connection that is being closed. Answers that were submitted reach
    /// the kernel before.
    pub(super) fn end_fuse_commands(&mut self, id: u32) {
        let fuse = self.fuses.get(id as usize).and_then(Option::as_ref);
        if fuse.is_none_or(|fuse| fuse.commands == 0) {
            return;
        }
        // An engine that can do no more is reported by the next wait.
        let _ = self.engine.hand_over();
        let fuse = self.fuses.get(id as usize).and_then(Option::as_ref);
        if let Some(ring) = fuse.and_then(|fuse| fuse.ring.as_ref()) {
            ring.abort.now();
        }
    }
}
