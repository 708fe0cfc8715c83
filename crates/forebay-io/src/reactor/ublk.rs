//! Block devices of the reactor: commands of the ring take and answer requests.
//!
//! For each tag of a device one command is in the kernel or one request is with the caller. The
//! command that answers a request takes the next one of its tag. Payloads are copied synchronously,
//! without the ring: the kernel copies between two resident pieces of memory, so the call does not
//! block, and costs less than the worker that the ring would use for this file.
//!
//! Invariants:
//! - All commands of a device come from the thread that runs the reactor: the kernel records the
//!   first thread that fetched a tag, and refuses others.
//! - A command refers to no memory of this process, so the ring can be dropped with commands in the
//!   kernel. The kernel then keeps the requests for another server.
//! - The file is closed once every command is reported.

use super::{Reactor, UblkId};
use crate::buffer::{KernelUse, Span};
use crate::engine::{EngineKind, Syscall};
use crate::error::IoFailure;
use crate::slots::OpKind;
use crate::sys;
use crate::ublk::wire::{next_request, payload_position};
use crate::ublk::{Channel, DESCRIPTOR_BYTES};

/// A device and its operations.
pub(super) struct Ublk {
    channel: Channel,
    closing: bool,
    /// Operations not yet reported.
    operations: usize,
}

/// Direction of a payload.
#[derive(Clone, Copy)]
enum Copy {
    FromRequest,
    ToRequest,
}

impl Reactor {
    /// Returns whether block devices can be served: that requires io_uring.
    pub fn can_serve_ublk(&self) -> bool {
        self.engine.kind() == EngineKind::Uring
    }

    /// Adds a device. The reactor owns its channel. Call it on the thread that runs the reactor.
    ///
    /// # Errors
    /// The engine is not io_uring; the error contains the channel.
    pub fn add_ublk(&mut self, channel: Channel) -> Result<UblkId, Channel> {
        if !self.can_serve_ublk() {
            return Err(channel);
        }
        sys::serve_memory();
        let id = self.ublks.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ublks.push(None);
            self.ublks.len() - 1
        });
        self.ublks[id] = Some(Ublk { channel, closing: false, operations: 0 });
        Ok(UblkId(id as u32))
    }

    /// Closes the file of a device once every operation on it is reported, as after a stop of the
    /// device. Until then its number is not reused.
    pub fn close_ublk(&mut self, id: UblkId) {
        if let Some(Some(ublk)) = self.ublks.get_mut(id.0 as usize) {
            ublk.closing = true;
        }
        self.forget_idle_ublk(id.0);
    }

    /// The description of the request that is with the caller; `None` without a device or tag.
    pub fn ublk_request(&self, id: UblkId, tag: u16) -> Option<[u8; DESCRIPTOR_BYTES]> {
        self.ublks.get(id.0 as usize)?.as_ref()?.channel.descriptor(tag)
    }

    /// Copies the payload of a write into a span. Does not block.
    ///
    /// # Errors
    /// The request no longer exists, or the span is outside its buffer.
    pub fn copy_from_ublk(&mut self, id: UblkId, tag: u16, span: Span) -> Result<(), IoFailure> {
        self.copy_payload(id, tag, span, Copy::FromRequest)
    }

    /// Copies a span into the memory of a read. Does not block.
    ///
    /// # Errors
    /// As [`Reactor::copy_from_ublk`].
    pub fn copy_to_ublk(&mut self, id: UblkId, tag: u16, span: Span) -> Result<(), IoFailure> {
        self.copy_payload(id, tag, span, Copy::ToRequest)
    }

    fn copy_payload(&mut self, id: UblkId, tag: u16, span: Span, way: Copy) -> Result<(), IoFailure> {
        let ublk = self.ublks.get(id.0 as usize).and_then(Option::as_ref).ok_or(IoFailure::INVALID)?;
        let fd = ublk.channel.fd();
        let kernel = match way {
            Copy::FromRequest => KernelUse::Writes,
            Copy::ToRequest => KernelUse::Reads,
        };
        let pool = &mut self.memory.pool;
        let memory = pool.pin(span, kernel).ok_or(IoFailure::INVALID)?;
        let mut done = 0;
        let result = loop {
            if done == span.len as usize {
                break Ok(());
            }
            let position = payload_position(tag, done as u64) as libc::off_t;
            let left = span.len as usize - done;
            // SAFETY: the span is pinned, so it is inside live memory, and `done` is below its
            // length. No slice to it exists while it is pinned for writing.
            let copied = unsafe {
                match way {
                    Copy::FromRequest => libc::pread(fd, memory.add(done).cast(), left, position),
                    Copy::ToRequest => libc::pwrite(fd, memory.add(done).cast(), left, position),
                }
            };
            match usize::try_from(copied) {
                Ok(0) => break Err(IoFailure::from_errno(libc::EIO)),
                Ok(copied) => done += copied,
                Err(_) => {
                    let error = std::io::Error::last_os_error();
                    if error.raw_os_error() != Some(libc::EINTR) {
                        break Err(error.into());
                    }
                }
            }
        };
        pool.unpin(span.buf, kernel);
        result
    }

    pub(super) fn open_ublk(&self, id: UblkId, tag: u16) -> Result<u32, IoFailure> {
        match self.ublks.get(id.0 as usize) {
            Some(Some(ublk)) if tag >= ublk.channel.depth() => Err(IoFailure::INVALID),
            Some(Some(ublk)) if !ublk.closing => Ok(id.0),
            _ => Err(IoFailure::CANCELLED),
        }
    }

    /// Starts a filled slot.
    pub(super) fn start_ublk(&mut self, index: u32) {
        let OpKind::UblkNext { ublk, .. } = self.memory.slots.get(index).kind else { return };
        if let Some(Some(ublk)) = self.ublks.get_mut(ublk as usize) {
            ublk.operations += 1;
        }
        self.push_step(index);
    }

    /// The command of an operation.
    pub(super) fn ublk_step(&self, index: u32) -> Result<Syscall, IoFailure> {
        let OpKind::UblkNext { ublk, tag, answer } = self.memory.slots.get(index).kind else {
            return Err(IoFailure::INVALID);
        };
        let ublk = self.ublks.get(ublk as usize).and_then(Option::as_ref).ok_or(IoFailure::CANCELLED)?;
        let (op, command) = next_request(tag, answer);
        Ok(Syscall::Command { fd: ublk.channel.fd(), op, command })
    }

    /// Commands that stay in the kernel until a request comes.
    pub(super) fn ublk_commands(&self) -> usize {
        self.ublks.iter().flatten().map(|ublk| ublk.operations).sum()
    }

    /// Accounts for a reported operation.
    pub(super) fn ublk_op_ended(&mut self, id: u32) {
        if let Some(Some(ublk)) = self.ublks.get_mut(id as usize) {
            ublk.operations -= 1;
        }
        self.forget_idle_ublk(id);
    }

    fn forget_idle_ublk(&mut self, id: u32) {
        if let Some(entry) = self.ublks.get_mut(id as usize)
            && entry.as_ref().is_some_and(|ublk| ublk.closing && ublk.operations == 0)
        {
            *entry = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reactor::{EnginePreference, Limits, Op, UblkId};
    use crate::{Reactor, Span};

    #[test]
    fn request_of_an_unknown_device_is_refused() {
        let (mut reactor, _) = Reactor::open(EnginePreference::Psync, Limits::default()).unwrap();
        assert!(!reactor.can_serve_ublk(), "threads cannot give commands of the ring");
        let buf = reactor.pool_mut().alloc(4096).unwrap();
        reactor.submit(1, Op::UblkNext { ublk: UblkId(0), tag: 0, answer: None });
        let mut done = Vec::new();
        reactor.wait(None, &mut done).unwrap();
        assert!(done.iter().all(|completion| completion.token == 1 && completion.result.is_err()));
        assert_eq!(done.len(), 1);
        assert_eq!(reactor.ublk_request(UblkId(0), 0), None);
        assert!(reactor.copy_from_ublk(UblkId(0), 0, Span::new(buf, 0, 512)).is_err());
    }
}
