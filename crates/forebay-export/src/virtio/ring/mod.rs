//! A split ring: available requests, chains of descriptors, used requests.
//!
//! Invariants
//! - A head is returned only if it is within the ring and not in flight. So at most as many
//!   requests are in flight as the ring has descriptors.
//! - Parsing a chain takes at most [`SIZE_MAX`] + [`SEGMENTS_MAX`] steps, however its descriptors
//!   are linked.
//! - Segments of a chain were guest memory when it was parsed; readable ones precede writable ones.
//! - A violation is an error, after which the ring is unusable until the driver resets it.

use super::inflight::{Inflight, InflightError};
use super::memory::{Gone, GuestMemory, Segment, is_there};
use std::sync::atomic::{Ordering, fence};
use thiserror::Error;
use vm_memory::{AtomicAccess, Bytes, GuestAddress};

/// Most descriptors of a ring.
pub const SIZE_MAX: u16 = 1024;
/// Most descriptors of a chain, an indirect table included.
pub const SEGMENTS_MAX: u16 = 1024;

const DESCRIPTOR_BYTES: u64 = 16;
/// Flags of a descriptor: another one follows, the device writes it, it refers to a table of
/// others.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the available ring: the driver wants no signals.
const NO_INTERRUPT: u16 = 1;
/// Both rings: flags, index, then the entries.
const AT_INDEX: u64 = 2;
const AT_ENTRIES: u64 = 4;
const AVAILABLE_BYTES: u64 = 2;
const USED_BYTES: u64 = 8;

/// Addresses of a ring in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of descriptors.
    pub size: u16,
    /// Address of the descriptors.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
}

/// Features negotiated with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// Signals and kicks are suppressed by position (`VIRTIO_F_EVENT_IDX`).
    pub event_idx: bool,
    /// A descriptor may refer to a table of others (`VIRTIO_F_INDIRECT_DESC`).
    pub indirect: bool,
}

/// Why a ring cannot be used, or no longer be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// The number of descriptors.
    #[error("a ring of {0} descriptors; a power of two up to {SIZE_MAX} is possible")]
    Size(u16),
    /// A part is not aligned, or not in guest memory.
    #[error("the {0} of the ring are not in guest memory, or not aligned")]
    Place(&'static str),
    /// More new requests than the ring has descriptors.
    #[error("{new} requests are new in a ring of {size} descriptors")]
    Available {
        /// The number, according to the driver.
        new: u16,
        /// Descriptors.
        size: u16,
    },
    /// A request that is not in the ring, or is already in flight.
    #[error("request {0} is outside of the ring, or was made available twice")]
    Head(u16),
    /// A chain.
    #[error("the descriptors of request {head} {why}")]
    Chain {
        /// Its first descriptor.
        head: u16,
        /// The problem.
        why: &'static str,
    },
    /// Guest memory.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Memory of the requests in flight.
    #[error(transparent)]
    Inflight(#[from] InflightError),
}

/// The memory of one request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Readable by the device.
    pub readable: Vec<Segment>,
    /// Writable by the device.
    pub writable: Vec<Segment>,
}

/// A ring that is served.
#[derive(Debug)]
pub struct Ring {
    layout: Layout,
    agreed: Agreed,
    next_available: u16,
    next_used: u16,
    /// The used index at the last check for a signal.
    signalled: u16,
    under_way: Vec<bool>,
    inflight: Option<Inflight>,
}

impl Ring {
    /// Starts to serve a ring; also returns the requests that an earlier process has left in
    /// flight, in the order in which it took them. `base` is the start position if there is no
    /// record of those.
    ///
    /// # Errors
    /// [`RingError`]
    pub fn start(
        memory: &GuestMemory,
        layout: Layout,
        agreed: Agreed,
        base: u16,
        inflight: Option<Inflight>,
    ) -> Result<(Self, Vec<u16>), RingError> {
        layout.check(memory)?;
        let mut ring = Self {
            layout,
            agreed,
            next_available: base,
            next_used: 0,
            signalled: 0,
            under_way: vec![false; usize::from(layout.size)],
            inflight,
        };
        ring.next_used = ring.load(memory, layout.used + AT_INDEX)?;
        ring.signalled = ring.next_used;
        let mut again = Vec::new();
        if let Some(inflight) = &mut ring.inflight {
            again = inflight.recover(ring.next_used)?;
            ring.next_available = ring.next_used.wrapping_add(again.len() as u16);
        }
        again.iter().for_each(|head| ring.under_way[usize::from(*head)] = true);
        ring.store(memory, layout.used, 0u16)?;
        Ok((ring, again))
    }

    /// Returns the position from which the next process continues.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Takes the next request, if there is one: returns its first descriptor.
    ///
    /// # Errors
    /// [`RingError`]
    pub fn take(&mut self, memory: &GuestMemory) -> Result<Option<u16>, RingError> {
        let Layout { size, available, .. } = self.layout;
        let index: u16 = self.load(memory, available + AT_INDEX)?;
        let new = index.wrapping_sub(self.next_available);
        if new == 0 {
            return Ok(None);
        }
        if new > size {
            return Err(RingError::Available { new, size });
        }
        let at = available + AT_ENTRIES + u64::from(self.next_available % size) * AVAILABLE_BYTES;
        let head: u16 = self.load(memory, at)?;
        if self.under_way.get(usize::from(head)) != Some(&false) {
            return Err(RingError::Head(head));
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.take(head)?;
        }
        self.under_way[usize::from(head)] = true;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Returns the memory of a request.
    ///
    /// # Errors
    /// [`RingError::Chain`]
    pub fn chain(&self, memory: &GuestMemory, head: u16) -> Result<Chain, RingError> {
        let broken = |why| RingError::Chain { head, why };
        let mut chain = Chain::default();
        let (mut table, mut size, mut index) = (self.layout.descriptors, self.layout.size, head);
        let (mut is_indirect, mut bytes) = (false, 0u32);
        let mut left = size;
        loop {
            if index >= size {
                return Err(broken("continue outside of their table"));
            }
            left = left.checked_sub(1).ok_or_else(|| broken("form a loop"))?;
            let Descriptor { segment, flags, next } = descriptor(memory, table, index)?;
            if flags & INDIRECT != 0 {
                if is_indirect || !self.agreed.indirect || flags & (NEXT | WRITE) != 0 {
                    return Err(broken("have a table where none is allowed"));
                }
                let entries = u64::from(segment.len) / DESCRIPTOR_BYTES;
                let fits = u64::from(segment.len).is_multiple_of(DESCRIPTOR_BYTES)
                    && (1..=u64::from(SEGMENTS_MAX)).contains(&entries)
                    && is_there(memory, segment.address, u64::from(segment.len));
                if !fits {
                    return Err(broken("have a table of an impossible size, or outside of guest memory"));
                }
                (table, size, index, is_indirect) = (segment.address, entries as u16, 0, true);
                left = size;
                continue;
            }
            bytes = bytes.checked_add(segment.len).ok_or_else(|| broken("have 4 GiB or more"))?;
            chain.add(memory, segment, flags & WRITE != 0).map_err(broken)?;
            if flags & NEXT == 0 {
                return Ok(chain);
            }
            index = next;
        }
    }

    /// Completes a request, of whose memory the device has written this many bytes.
    ///
    /// # Errors
    /// [`RingError::Gone`]
    pub fn complete(&mut self, memory: &GuestMemory, head: u16, written: u32) -> Result<(), RingError> {
        if let Some(inflight) = &self.inflight {
            inflight.using(head)?;
        }
        let Layout { size, used, .. } = self.layout;
        let at = used + AT_ENTRIES + u64::from(self.next_used % size) * USED_BYTES;
        self.store(memory, at, u32::from(head))?;
        self.store(memory, at + 4, written)?;
        self.next_used = self.next_used.wrapping_add(1);
        self.store(memory, used + AT_INDEX, self.next_used)?;
        self.under_way[usize::from(head)] = false;
        if let Some(inflight) = &self.inflight {
            inflight.used(head, self.next_used)?;
        }
        Ok(())
    }

    /// Returns whether the driver needs a signal for the completions since the last call.
    ///
    /// # Errors
    /// [`RingError::Gone`]
    pub fn must_signal(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        let Layout { size, available, .. } = self.layout;
        let (old, new) = (std::mem::replace(&mut self.signalled, self.next_used), self.next_used);
        if old == new {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        if !self.agreed.event_idx {
            return Ok(self.load::<u16>(memory, available)? & NO_INTERRUPT == 0);
        }
        let wanted: u16 = self.load(memory, available + AT_ENTRIES + u64::from(size) * AVAILABLE_BYTES)?;
        Ok(new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Asks the driver to kick for new requests; returns true if there are some already.
    ///
    /// # Errors
    /// [`RingError::Gone`]
    pub fn want_kick(&self, memory: &GuestMemory) -> Result<bool, RingError> {
        let Layout { size, available, used, .. } = self.layout;
        if self.agreed.event_idx {
            self.store(memory, used + AT_ENTRIES + u64::from(size) * USED_BYTES, self.next_available)?;
        }
        fence(Ordering::SeqCst);
        Ok(self.load::<u16>(memory, available + AT_INDEX)? != self.next_available)
    }

    fn load<T: AtomicAccess>(&self, memory: &GuestMemory, at: u64) -> Result<T, Gone> {
        memory.load(GuestAddress(at), Ordering::Acquire).map_err(|_| Gone)
    }

    fn store<T: AtomicAccess>(&self, memory: &GuestMemory, at: u64, value: T) -> Result<(), Gone> {
        memory.store(value, GuestAddress(at), Ordering::Release).map_err(|_| Gone)
    }
}

impl Layout {
    /// Checks that the ring can be served.
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::Place`]
    pub fn check(&self, memory: &GuestMemory) -> Result<(), RingError> {
        if !self.size.is_power_of_two() || self.size > SIZE_MAX {
            return Err(RingError::Size(self.size));
        }
        let size = u64::from(self.size);
        let parts = [
            ("descriptors", self.descriptors, 16, DESCRIPTOR_BYTES * size),
            // The last two bytes of each are the position of the other side.
            ("available entries", self.available, 2, AT_ENTRIES + AVAILABLE_BYTES * size + 2),
            ("used entries", self.used, 4, AT_ENTRIES + USED_BYTES * size + 2),
        ];
        let bad = |&&(_, at, align, bytes): &&(_, u64, u64, u64)| {
            !at.is_multiple_of(align) || !is_there(memory, at, bytes)
        };
        parts.iter().find(bad).map_or(Ok(()), |(what, ..)| Err(RingError::Place(what)))
    }
}

impl Chain {
    /// Adds a segment; ignores an empty one.
    fn add(&mut self, memory: &GuestMemory, segment: Segment, is_writable: bool) -> Result<(), &'static str> {
        if !is_there(memory, segment.address, u64::from(segment.len)) {
            return Err("are outside of guest memory");
        }
        if self.readable.len() + self.writable.len() >= usize::from(SEGMENTS_MAX) {
            return Err("are too many");
        }
        if is_writable {
            self.writable.extend((segment.len > 0).then_some(segment));
        } else if self.writable.is_empty() {
            self.readable.extend((segment.len > 0).then_some(segment));
        } else {
            return Err("are readable behind a writable one");
        }
        Ok(())
    }
}

struct Descriptor {
    segment: Segment,
    flags: u16,
    next: u16,
}

fn descriptor(memory: &GuestMemory, table: u64, index: u16) -> Result<Descriptor, Gone> {
    let at = GuestAddress(table + u64::from(index) * DESCRIPTOR_BYTES);
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] =
        memory.read_obj::<[u8; 16]>(at).map_err(|_| Gone)?;
    Ok(Descriptor {
        segment: Segment {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes([i, j, k, l]),
        },
        flags: u16::from_le_bytes([m, n]),
        next: u16::from_le_bytes([o, p]),
    })
}

#[cfg(test)]
mod tests;
