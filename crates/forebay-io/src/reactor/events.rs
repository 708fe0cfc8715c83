//! Event counters of the reactor (`eventfd`), shared with another process: it signals work through
//! them, and receives signals that work is done.
//!
//! Invariants:
//! - Every counter is really an eventfd: other files are refused, because reading them could block.
//! - No operation blocks on the other process. Taking does not, whichever mode that process gives
//!   the descriptor (`RWF_NOWAIT`). A signal goes through the ring, or first checks that there is
//!   room (to block it, the other process would have to fill the counter and change its mode
//!   between two system calls). A full counter is already signalled.
//! - Each operation is reported once, also when the counter is closed under it; the descriptor is
//!   closed after the last report.

use std::os::fd::{AsRawFd, OwnedFd};

use super::connections::Event;
use super::{EventId, Reactor};
use crate::engine::Syscall;
use crate::error::IoFailure;
use crate::slots::OpKind;
use crate::sys;

/// An open descriptor, verified to be an event counter.
#[derive(Debug)]
pub struct EventCounter(OwnedFd);

impl EventCounter {
    /// Verifies that a descriptor is an event counter, and makes it non-blocking. Queries procfs,
    /// so call it on a thread that may block.
    ///
    /// # Errors
    /// It is something else, or its mode cannot be set.
    pub fn new(fd: OwnedFd) -> std::io::Result<EventCounter> {
        if !sys::is_eventfd(fd.as_raw_fd()) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no eventfd"));
        }
        sys::set_nonblocking(fd.as_raw_fd(), true)?;
        Ok(EventCounter(fd))
    }
}

impl Reactor {
    /// Adds an event counter.
    pub fn add_event(&mut self, counter: EventCounter) -> EventId {
        let event = Event { fd: counter.0, closing: false, operations: 0 };
        let id = self.events.iter().position(Option::is_none).unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[id] = Some(event);
        EventId(id as u32)
    }

    /// Closes an event counter: unfinished operations on it end as cancelled. The number may be
    /// reused once all are reported.
    pub fn close_event(&mut self, id: EventId) {
        let Some(Some(event)) = self.events.get_mut(id.0 as usize) else { return };
        event.closing = true;
        let slots = &self.memory.slots;
        let on_it = |index: &u32| {
            let kind = slots.get(*index).kind;
            kind == OpKind::TakeEvent { event: id.0 } || kind == OpKind::Signal { event: id.0 }
        };
        let keys: Vec<u64> = slots.live().filter(on_it).map(|index| slots.key(index)).collect();
        keys.into_iter().for_each(|key| self.engine.cancel(key));
        self.forget_idle_event(id.0);
    }

    pub(super) fn close_all_events(&mut self) {
        (0..self.events.len() as u32).for_each(|id| self.close_event(EventId(id)));
    }

    pub(super) fn open_event(&self, id: EventId) -> Result<u32, IoFailure> {
        match self.events.get(id.0 as usize) {
            Some(Some(event)) if !event.closing => Ok(id.0),
            _ => Err(IoFailure::CANCELLED),
        }
    }

    pub(super) fn start_event(&mut self, index: u32, id: u32) {
        if let Some(Some(event)) = self.events.get_mut(id as usize) {
            event.operations += 1;
        }
        self.push_step(index);
    }

    /// The system call of an operation on a counter.
    pub(super) fn event_step(&self, index: u32, id: u32) -> Result<Syscall, IoFailure> {
        let event = self.events.get(id as usize).and_then(Option::as_ref).filter(|event| !event.closing);
        let fd = event.ok_or(IoFailure::CANCELLED)?.fd.as_raw_fd();
        let takes = matches!(self.memory.slots.get(index).kind, OpKind::TakeEvent { .. });
        Ok(if takes { Syscall::Watch { fd } } else { Syscall::Raise { fd } })
    }

    /// Handles the result of a watch: the counter is above zero, unless another process has taken
    /// it.
    pub(super) fn settle_event(&mut self, index: u32, id: u32, result: i32) {
        if result < 0 {
            return self.finish(index, Err(IoFailure::from_errno(result.wrapping_neg())));
        }
        let event = self.events.get(id as usize).and_then(Option::as_ref);
        match event.map(|event| sys::eventfd_take(event.fd.as_raw_fd())) {
            Some(taken) if taken == -libc::EAGAIN => self.push_step(index),
            Some(taken) if taken < 0 => self.finish(index, Err(IoFailure::from_errno(-taken))),
            Some(_) => self.finish(index, Ok(0)),
            None => self.finish(index, Err(IoFailure::CANCELLED)),
        }
    }

    pub(super) fn event_op_ended(&mut self, id: u32) {
        if let Some(Some(event)) = self.events.get_mut(id as usize) {
            event.operations -= 1;
        }
        self.forget_idle_event(id);
    }

    fn forget_idle_event(&mut self, id: u32) {
        if let Some(entry) = self.events.get_mut(id as usize)
            && entry.as_ref().is_some_and(|event| event.closing && event.operations == 0)
        {
            *entry = None;
        }
    }
}
