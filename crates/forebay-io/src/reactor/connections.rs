//! Sockets, listeners, FUSE connections and event counters as stored by a reactor.

use super::interface::SocketId;
use crate::error::IoFailure;
use crate::fuse::RingAccess;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Closing state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Closed by the caller: submitted sends continue, new operations are refused.
    Closing,
    /// Aborted: no operation continues.
    Aborted,
}

pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) phase: Phase,
    /// The first of each is at the engine.
    pub(super) sends: VecDeque<u32>,
    pub(super) receives: VecDeque<u32>,
}

#[derive(Default)]
pub(super) struct SocketTable {
    entries: Vec<(u16, Option<Socket>)>,
    free: VecDeque<u16>,
}

/// A listening socket with the accepts on it.
pub(super) struct Listener {
    pub(super) fd: OwnedFd,
    pub(super) accepts: Vec<u32>,
    pub(super) closing: bool,
}

/// A connection and its operations.
pub(super) struct Fuse {
    pub(super) fd: OwnedFd,
    pub(super) closing: bool,
    /// Operations not yet reported.
    pub(super) operations: usize,
    /// Receives that wait for the next burst, in order.
    pub(super) parked: VecDeque<u32>,
    /// The receive that watches the descriptor.
    pub(super) watching: Option<u32>,
    /// Reads of the burst that have not returned.
    pub(super) reading: Vec<u32>,
    /// Number of requests found by the burst.
    pub(super) found: usize,
    /// A read of the burst found no request.
    pub(super) drained: bool,
    /// Set if it may be served over the ring too.
    pub(super) ring: Option<RingAccess>,
    /// Commands of the ring not yet reported; they count as operations.
    pub(super) commands: usize,
}

/// An event counter, and its number of unreported operations.
pub(super) struct Event {
    pub(super) fd: OwnedFd,
    pub(super) closing: bool,
    pub(super) operations: usize,
}

impl SocketTable {
    pub(super) fn insert(&mut self, socket: Socket) -> Option<SocketId> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.entries.len()).ok()?;
                self.entries.push((0, None));
                index
            }
        };
        let (generation, entry) = &mut self.entries[usize::from(index)];
        *generation = generation.wrapping_add(1);
        *entry = Some(socket);
        Some(SocketId(u32::from(*generation) << 16 | u32::from(index)))
    }

    pub(super) fn get(&self, id: u32) -> Option<&Socket> {
        let (generation, entry) = self.entries.get(id as usize & 0xFFFF)?;
        entry.as_ref().filter(|_| u32::from(*generation) == id >> 16)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Socket> {
        let (generation, entry) = self.entries.get_mut(id as usize & 0xFFFF)?;
        entry.as_mut().filter(|_| u32::from(*generation) == id >> 16)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Socket> {
        self.free.push_back(id as u16);
        self.entries[id as usize & 0xFFFF].1.take()
    }

    /// Returns the socket's number if the socket accepts operations.
    pub(super) fn open(&self, id: SocketId) -> Result<u32, IoFailure> {
        match self.get(id.0) {
            Some(socket) if socket.phase == Phase::Open => Ok(id.0),
            _ => Err(IoFailure::CANCELLED),
        }
    }

    pub(super) fn ids(&self) -> Vec<SocketId> {
        let ids = self.entries.iter().enumerate().filter(|(_, (_, entry))| entry.is_some());
        ids.map(|(index, (generation, _))| SocketId(u32::from(*generation) << 16 | index as u32)).collect()
    }
}
