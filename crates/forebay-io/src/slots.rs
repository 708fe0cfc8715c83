//! One slot per operation: the request, its progress, and the vectors that the kernel reads.
//!
//! Invariants:
//! - A live slot has at most one step at the engine. Its vectors and message header do not move
//!   (each slot is boxed) and are not touched until the step returns.
//! - A slot number is reused only after its operation was reported; the generation in the key
//!   distinguishes a late result from a new operation.
//! - Span and vector lists keep their memory from one operation to the next: a warm table does not
//!   allocate.

use crate::buffer::{BufPool, KernelUse, Span};
use crate::buffer_transform::BufferTransform;
use crate::engine::Job;
use crate::error::IoFailure;
use std::cell::UnsafeCell;

/// Vectors per system call (`UIO_MAXIOV`). Longer lists become several sequential steps.
pub(crate) const IOV_MAX: usize = 1024;

/// Type and target of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Read {
        device: u16,
    },
    Write {
        device: u16,
    },
    Flush {
        device: u16,
    },
    Zero {
        device: u16,
        phase: ZeroPhase,
    },
    Discard {
        device: u16,
    },
    Accept {
        listener: u32,
    },
    Recv {
        socket: u32,
    },
    Send {
        socket: u32,
    },
    // Watches for a request, or takes one.
    FuseReceive {
        fuse: u32,
        watches: bool,
    },
    FuseReply {
        fuse: u32,
    },
    // Answers this request of a ring entry, or registers the entry, and takes the next request.
    FuseRing {
        fuse: u32,
        queue: u16,
        answered: Option<u64>,
    },
    // Answers the last request of the tag, if there was one, and takes the next.
    UblkNext {
        ublk: u32,
        tag: u16,
        answer: Option<i32>,
    },
    TakeEvent {
        event: u32,
    },
    Signal {
        event: u32,
    },
    /// A thread runs a job.
    Run,
}

impl OpKind {
    /// How the kernel uses the operation's spans.
    pub(crate) fn kernel_use(self) -> KernelUse {
        match self {
            OpKind::Read { .. }
            | OpKind::Recv { .. }
            | OpKind::FuseReceive { .. }
            | OpKind::FuseRing { .. } => KernelUse::Writes,
            _ => KernelUse::Reads,
        }
    }

    pub(crate) fn device(self) -> Option<u16> {
        match self {
            OpKind::Read { device }
            | OpKind::Write { device }
            | OpKind::Flush { device }
            | OpKind::Zero { device, .. }
            | OpKind::Discard { device } => Some(device),
            _ => None,
        }
    }

    /// Returns whether it changes the contents of a device.
    pub(crate) fn modifies(self) -> bool {
        matches!(self, OpKind::Write { .. } | OpKind::Zero { .. } | OpKind::Discard { .. })
    }
}

/// Method of zeroing a range; each is tried when the device does not support the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroPhase {
    /// `fallocate(PUNCH_HOLE)`: zeroes and frees the space.
    Punch,
    /// `fallocate(ZERO_RANGE)`: zeroes, keeps the space.
    ZeroRange,
    /// Plain writes of zeroes.
    Write,
}

pub(crate) struct Slot {
    pub(crate) token: u64,
    pub(crate) kind: OpKind,
    pub(crate) generation: u32,
    pub(crate) live: bool,
    /// First byte on the device.
    pub(crate) offset: u64,
    /// Total bytes.
    pub(crate) len: u64,
    /// Bytes done.
    pub(crate) done: u64,
    pub(crate) spans: Vec<Span>,
    /// Position of the first byte not done: index into `spans`, and offset within that span.
    pub(crate) cursor: (usize, u32),
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
    /// Uses the page cache.
    pub(crate) buffered: bool,
    /// Was submitted to the engine at least once (is not waiting for a neighbour or for its turn on
    /// a socket).
    pub(crate) started: bool,
    /// The model has not finished it.
    pub(crate) model_pending: bool,
    /// Its last step used memory that a ring might have registered.
    pub(crate) registered: bool,
    /// Its steps must not use registered memory.
    pub(crate) unregistered: bool,
    /// Number of its latest steps that made no progress and can be retried.
    pub(crate) in_vain: u32,
    /// The computation over its bytes. An I/O thread owns it while the step is at the engine; a
    /// separate allocation, because the reactor reads the slot meanwhile.
    pub(crate) work: Box<UnsafeCell<BufferTransform>>,
    /// The job that a thread runs; the thread owns it while the step is at the engine.
    pub(crate) job: Box<UnsafeCell<Option<Job>>>,
    /// The result, held back while `model_pending`.
    pub(crate) result: Option<Result<u32, IoFailure>>,
}

// SAFETY: the raw pointers in the vectors and the message only mean something to the kernel.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Slot {
        Slot {
            token: 0,
            kind: OpKind::Flush { device: 0 },
            generation: 0,
            live: false,
            offset: 0,
            len: 0,
            done: 0,
            spans: Vec::new(),
            cursor: (0, 0),
            vectors: Vec::new(),
            // SAFETY: msghdr is a plain struct for which all zeroes is a value.
            message: unsafe { std::mem::zeroed() },
            buffered: false,
            started: false,
            model_pending: false,
            registered: false,
            unregistered: false,
            in_vain: 0,
            work: Box::default(),
            job: Box::default(),
            result: None,
        }
    }

    /// Moves the cursor over `count` transferred bytes.
    pub(crate) fn advance(&mut self, count: u64) {
        self.done += count;
        self.in_vain = 0;
        let mut left = count;
        while left > 0 {
            let Some(span) = self.spans.get(self.cursor.0) else { break };
            let here = u64::from(span.len - self.cursor.1);
            if left < here {
                self.cursor.1 += left as u32;
                break;
            }
            left -= here;
            self.cursor = (self.cursor.0 + 1, 0);
        }
    }

    /// Builds the vectors of the next step from the cursor on: at most `IOV_MAX`, without empty
    /// ones.
    pub(crate) fn fill_vectors(&mut self, pool: &BufPool) {
        self.vectors.clear();
        let mut skip = self.cursor.1;
        for span in &self.spans[self.cursor.0..] {
            let rest = Span::new(span.buf, span.offset + skip, span.len - skip);
            skip = 0;
            if rest.len == 0 {
                continue;
            }
            if self.vectors.len() == IOV_MAX {
                break;
            }
            let iov_base = pool.address_of_pinned(rest).cast();
            self.vectors.push(libc::iovec { iov_base, iov_len: rest.len as usize });
        }
    }

    /// Returns whether the next step's addresses, lengths and offset satisfy the alignment of
    /// direct I/O.
    pub(crate) fn is_aligned(&self, memory_mask: u64, offset_mask: u64) -> bool {
        let (mut addresses, mut lengths) = (0, self.offset + self.done);
        for vector in &self.vectors {
            addresses |= vector.iov_base as u64;
            lengths |= vector.iov_len as u64;
        }
        addresses & memory_mask == 0 && lengths & offset_mask == 0
    }
}

/// All slots.
#[derive(Default)]
pub(crate) struct Slots {
    // Boxed: the kernel holds addresses of a slot's message header while the table grows.
    #[allow(clippy::vec_box, reason = "slots must not move while the kernel knows their address")]
    slots: Vec<Box<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes a free or new slot for an operation.
    pub(crate) fn take(&mut self, token: u64, kind: OpKind) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Box::new(Slot::new()));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        debug_assert!(!slot.live && slot.spans.is_empty());
        slot.token = token;
        slot.kind = kind;
        slot.generation = slot.generation.wrapping_add(1) & 0x1FFF_FFFF;
        slot.live = true;
        (slot.offset, slot.len, slot.done, slot.cursor) = (0, 0, 0, (0, 0));
        (slot.buffered, slot.started, slot.model_pending, slot.result) = (false, false, false, None);
        (slot.registered, slot.unregistered, slot.in_vain) = (false, false, 0);
        slot.work.get_mut().clear();
        index
    }

    /// Returns a slot whose operation is reported and whose spans are unpinned.
    pub(crate) fn give_back(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.live);
        slot.live = false;
        slot.spans.clear();
        self.free.push(index);
    }

    pub(crate) fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// The key under which the engine reports the slot's step. The three top bits are always clear.
    pub(crate) fn key(&self, index: u32) -> u64 {
        (u64::from(self.slots[index as usize].generation) << 32) | u64::from(index)
    }

    /// The slot of a key, if it still has the operation that the key was made for.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        let index = key as u32;
        let slot = self.slots.get(index as usize)?;
        (slot.live && u64::from(slot.generation) == key >> 32).then_some(index)
    }

    /// Numbers of all live slots.
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.live).map(|(index, _)| index as u32)
    }

    /// Operations not yet reported.
    pub(crate) fn live_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
