//! A mount with requests over io_uring: entries, each with memory for one request.
//!
//! The kernel has a queue for each processor, and a request goes to the queue of the processor of
//! its caller. A queue has [`RingPlan::depth`] entries. An entry takes a request into its memory
//! and keeps it until the answer, and the command that answers takes the next one. So each request
//! has memory from the start: it never waits for any, and only data that begins inside a block is
//! copied.
//!
//! Requests before the ring is ready, and all FORGET and INTERRUPT, arrive outside of the ring: the
//! receives stay.
//!
//! Invariants
//! - An entry is in the kernel, or its request is in this server: a request is answered only once,
//!   because the answer gives the entry away.
//! - An entry returns to the kernel only when no operation on its memory is in flight.
//! - While the mount is being closed, earlier requests are answered. Later ones are not begun, and
//!   get an error with the end of the connection.

use super::{Buffer, FuseServer, REQUESTS_MAX, Source, TOKEN_RING, Turn};
use crate::client_request::ClientEngine;
use forebay_admin::size::ByteSize;
use forebay_export::fuse::ring::{ANSWER_PAYLOAD_AT, HEAD_BYTES, request};
use forebay_export::fuse::wire::{OUT_HEADER_BYTES, opcode};
use forebay_export::fuse::{Errno, FuseStep, PAYLOAD_BYTES_MAX, VolumeRequest, reply, request::Header};
use forebay_export::request::Operation;
use forebay_format::BLOCK_BYTES;
use forebay_io::fuse::RingAccess;
use forebay_io::{BufId, BufPool, EngineKind, IoFailure, Op, Reactor, Span};
use std::fmt;

/// Maximum entries of a queue: more requests of one processor wait in the kernel.
const DEPTH_MAX: usize = 32;
/// With fewer entries, shorter payloads perform better.
const DEPTH_GOOD: usize = 16;
/// With fewer entries the ring is not worthwhile.
const DEPTH_MIN: usize = 4;
/// Lengths of payloads: the first that leaves enough entries, or the last.
const PAYLOADS: [usize; 3] = [PAYLOAD_BYTES_MAX as usize, 256 << 10, 64 << 10];
/// Distance of the heads in their common buffer.
const HEAD_STRIDE: usize = 320;
/// Room for a payload with any offset within its first block.
const SPARE: usize = BLOCK_BYTES;

const _: () = assert!(HEAD_BYTES <= HEAD_STRIDE);

/// Number of entries, and their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlan {
    /// Queues, one for each processor that the kernel has room for.
    pub queues: u16,
    /// Entries of each: the maximum of requests of one processor in flight.
    pub depth: u16,
    /// The longest read or write that is one request.
    pub payload_bytes: u32,
}

impl RingPlan {
    /// The best plan within this amount of memory; `None` if it is too small.
    pub fn within(bytes: usize, queues: u16) -> Option<Self> {
        let depth = |payload: usize| {
            let entry = payload + SPARE + HEAD_STRIDE;
            (bytes / entry / usize::from(queues.max(1))).min(DEPTH_MAX)
        };
        let [long @ .., short] = PAYLOADS;
        let payload = long.into_iter().find(|payload| depth(*payload) >= DEPTH_GOOD).unwrap_or(short);
        let depth = u16::try_from(depth(payload)).ok().filter(|depth| usize::from(*depth) >= DEPTH_MIN)?;
        Some(Self { queues, depth, payload_bytes: payload as u32 })
    }

    /// The minimum of memory for this number of queues.
    fn least_bytes(queues: u16) -> usize {
        usize::from(queues) * DEPTH_MIN * (PAYLOADS[PAYLOADS.len() - 1] + SPARE + HEAD_STRIDE)
    }

    fn entries(&self) -> usize {
        usize::from(self.queues) * usize::from(self.depth)
    }
}

/// The transport of a mount's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over io_uring.
    Ring(RingPlan),
    /// Through `/dev/fuse`, and the reason why not over io_uring.
    Device(String),
}

impl Way {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ring(_) => "io_uring",
            Self::Device(_) => "/dev/fuse",
        }
    }
}

/// Without the name: numbers, or how to enable the ring.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(RingPlan { queues, depth, payload_bytes }) => {
                let (all, longest) =
                    (u32::from(*queues) * u32::from(*depth), ByteSize((*payload_bytes).into()));
                write!(
                    f,
                    "queues: {queues}, requests at once: {all}, {depth} from each processor, {longest} the longest"
                )
            }
            Self::Device(why) => write!(f, "not over io_uring: {why}"),
        }
    }
}

/// The memory of a ring, and the access to it.
#[derive(Debug)]
pub struct RingMemory {
    plan: RingPlan,
    heads: BufId,
    buffers: Vec<BufId>,
    access: RingAccess,
}

impl RingMemory {
    /// Takes at most this number of bytes of the reactor's memory for the ring of a mount.
    ///
    /// # Errors
    /// There is no ring for it: the reason and the remedy, as a message.
    pub fn reserve(
        reactor: &mut Reactor,
        access: Result<RingAccess, String>,
        bytes_max: usize,
    ) -> Result<Self, String> {
        if reactor.engine() == EngineKind::Psync {
            return Err("the pool does its I/O with threads (psync): with io = \"uring\" of the pool (forebay run: --io \
                        uring) a start reports why io_uring is unavailable"
                .into());
        }
        if !reactor.can_serve_fuse_ring() {
            return Err(
                "the kernel's io_uring has no entries of the required size: Linux 6.14 is needed".into()
            );
        }
        let access = access?;
        let none = || {
            let (queues, least) = (access.queues, ByteSize(RingPlan::least_bytes(access.queues) as u64));
            let there = ByteSize(bytes_max as u64);
            format!(
                "there is no memory for it: {queues} processors need at least {least}, and other requests \
                 and mounts leave only {there}: raise buffer_memory of the pool and start the daemon again"
            )
        };
        let plan = RingPlan::within(bytes_max, access.queues).ok_or_else(none)?;
        let pool = reactor.pool_mut();
        let heads = pool.alloc(plan.entries() * HEAD_STRIDE);
        let buffer = || pool.alloc(plan.payload_bytes as usize + SPARE);
        let buffers: Vec<BufId> =
            std::iter::repeat_with(buffer).take(plan.entries()).map_while(|id| id).collect();
        match heads {
            Some(heads) if buffers.len() == plan.entries() => Ok(Self { plan, heads, buffers, access }),
            _ => {
                heads.into_iter().chain(buffers).for_each(|buffer| pool.free(buffer));
                Err(none())
            }
        }
    }

    /// The longest payload of an entry.
    pub fn payload_bytes(&self) -> u32 {
        self.plan.payload_bytes
    }

    /// Frees the memory.
    pub fn give_back(self, pool: &mut BufPool) {
        self.buffers.into_iter().chain([self.heads]).for_each(|buffer| pool.free(buffer));
    }
}

#[derive(Debug)]
enum State {
    /// Not registered with the kernel yet.
    New,
    AtKernel,
    Arrived,
    /// Arrived while the mount was being closed.
    Late,
    /// In the engine.
    Working,
    /// Answered by this header and body, or by this data; but an operation still uses its memory.
    Held(Vec<u8>, Option<Span>),
    /// Gone from the kernel.
    Spent,
}

#[derive(Debug)]
struct Entry {
    buffer: BufId,
    state: State,
    /// The number that the answer has to name.
    number: u64,
}

#[derive(Debug)]
pub(super) struct Ring {
    plan: RingPlan,
    heads: BufId,
    entries: Vec<Entry>,
    /// Entries with work for the next turn.
    due: Vec<u16>,
    /// Entries in the kernel.
    at_kernel: usize,
    /// Entries with an unanswered request.
    under_way: usize,
    is_registered: bool,
    /// The kernel's error for an entry that it refused.
    refused: Option<IoFailure>,
}

impl Ring {
    /// Separates the memory from the access to the ring.
    pub(super) fn new(memory: RingMemory) -> (Self, RingAccess) {
        let RingMemory { plan, heads, buffers, access } = memory;
        let entry = |buffer| Entry { buffer, state: State::New, number: 0 };
        let entries = buffers.into_iter().map(entry).collect();
        let due = Vec::new();
        let ring = Self {
            plan,
            heads,
            entries,
            due,
            at_kernel: 0,
            under_way: 0,
            is_registered: false,
            refused: None,
        };
        (ring, access)
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * (self.plan.payload_bytes as usize + SPARE + HEAD_STRIDE)
    }

    /// True if every request was answered, except those that arrived too late.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way == 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.at_kernel == 0
    }

    /// Requests in the engine.
    pub(super) fn requests(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.state, State::Working)).count()
    }

    pub(super) fn give_back(self, pool: &mut BufPool) {
        let buffers = self.entries.into_iter().map(|entry| entry.buffer);
        buffers.chain([self.heads]).for_each(|buffer| pool.free(buffer));
    }

    fn head(&self, index: usize, at: usize, len: usize) -> Span {
        Span::new(self.heads, (index * HEAD_STRIDE + at) as u32, len as u32)
    }

    fn payload(&self, index: usize, len: usize) -> Span {
        Span::new(self.entries[index].buffer, 0, len as u32)
    }
}

impl FuseServer {
    /// The transport of this server's requests.
    pub fn way(&self) -> Way {
        match &self.ring {
            Some(ring) if ring.is_registered && ring.refused.is_none() => Way::Ring(ring.plan),
            Some(Ring { refused: Some(why), .. }) => {
                Way::Device(format!("the kernel refused it ({why}): attach the volume again to retry"))
            }
            Some(_) => Way::Device("the kernel has not begun yet".into()),
            None => Way::Device(self.why_no_ring.clone()),
        }
    }

    /// Memory of the ring, in bytes.
    pub fn ring_bytes(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::bytes)
    }

    /// Registers the entries once the kernel has agreed and has received the answer. If it has not
    /// agreed, frees their memory.
    pub(super) fn begin_ring(&mut self, reactor: &mut Reactor) {
        let Some(ring) = self.ring.take_if(|ring| !ring.is_registered) else { return };
        let ends = self.closing || self.ended.is_some();
        let agreed = self.session.agreed().filter(|_| !ends);
        let answered = self.unsent.is_empty() && self.plain.iter().all(Option::is_none);
        match agreed {
            Some(agreed) if !agreed.over_ring => {
                self.why_no_ring = "the kernel did not offer it when the mount was created: see \
                                    /sys/module/fuse/parameters/enable_uring, then attach the volume again"
                    .into();
                ring.give_back(reactor.pool_mut());
            }
            Some(_) if answered => {
                let entries = ring.entries();
                self.ring = Some(Ring { is_registered: true, ..ring });
                (0..entries).for_each(|index| self.give_to_kernel(reactor, index, None));
            }
            _ => self.ring = Some(ring),
        }
    }

    /// Registers an entry, or answers its request; either takes the next one.
    fn give_to_kernel(&mut self, reactor: &mut Reactor, index: usize, answered: Option<u64>) {
        let token = self.token(TOKEN_RING, index);
        let Some(ring) = &mut self.ring else { return };
        ring.entries[index].state = State::AtKernel;
        ring.at_kernel += 1;
        let queue = (index / usize::from(ring.plan.depth)) as u16;
        let (head, payload) =
            (ring.head(index, 0, HEAD_BYTES), ring.payload(index, ring.plan.payload_bytes as usize));
        reactor.submit(token, Op::FuseRing { fuse: self.fuse, queue, answered, head, payload });
    }

    /// The kernel has returned an entry.
    pub(super) fn taken(&mut self, index: usize, result: Result<u32, IoFailure>) {
        let closing = self.closing || self.ended.is_some();
        let Some(ring) = &mut self.ring else { return };
        let Some(entry) = ring.entries.get_mut(index) else { return };
        ring.at_kernel -= 1;
        entry.state = match result {
            Ok(_) if closing => State::Late,
            Ok(_) => {
                ring.due.push(index as u16);
                ring.under_way += 1;
                State::Arrived
            }
            Err(failure) => {
                // A receive reports the end of the connection.
                let ends = [libc_errno::NOT_CONNECTED, libc_errno::ABORTED, Errno::NoDevice as i32];
                if !closing && !ends.contains(&failure.errno) {
                    ring.refused.get_or_insert(failure);
                    if entry.number != 0 {
                        // Requests to this queue would wait forever.
                        self.ended.get_or_insert(failure);
                    }
                }
                State::Spent
            }
        };
    }

    /// Processes the due entries. True if the engine was given something.
    pub(super) fn turn_ring(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &mut Reactor,
    ) -> bool {
        self.begin_ring(reactor);
        let Some(ring) = &mut self.ring else { return false };
        if ring.due.is_empty() {
            return false;
        }
        let mut due = std::mem::take(&mut ring.due);
        let mut started = false;
        for index in due.drain(..).map(usize::from) {
            let Some(ring) = &mut self.ring else { break };
            match std::mem::replace(&mut ring.entries[index].state, State::Working) {
                State::Arrived => started |= self.take_up(turn, reactor, index),
                State::Held(answer, data) => {
                    self.out = answer;
                    self.commit(reactor, index, data);
                }
                other => ring.entries[index].state = other,
            }
        }
        // Entries that are still held are due again, in a list of their own.
        if let Some(ring) = &mut self.ring
            && ring.due.is_empty()
        {
            ring.due = due;
        }
        if self.ended.is_some() {
            reactor.close_fuse(self.fuse);
        }
        started
    }

    /// Parses the request of an entry. True if the engine was given something.
    fn take_up(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &mut Reactor,
        index: usize,
    ) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let mut head = [0; HEAD_BYTES];
        reactor.pool().copy_out(ring.head(index, 0, HEAD_BYTES), &mut head);
        self.scratch.clear();
        let taken = match request(&head, ring.plan.payload_bytes as usize, &mut self.scratch) {
            Ok(taken) => taken,
            Err(_) => return self.broken(index), // The kernel does not do this.
        };
        ring.entries[index].number = taken.number;
        let unique = match Header::decode(&self.scratch, taken.length_bytes) {
            Ok(header) if header.opcode == opcode::WRITE => header.unique,
            Ok(header) => {
                append(&mut self.scratch, reactor, ring.payload(index, taken.payload_bytes));
                header.unique
            }
            Err(_) => return self.broken(index),
        };
        self.out.clear();
        match self.session.step(&self.scratch, taken.length_bytes, &mut self.out) {
            Err(_) => return self.broken(index),
            Ok(FuseStep::Volume(what)) => {
                self.start_in_place(turn, reactor, index, what);
                return true;
            }
            Ok(FuseStep::Store { .. }) => unreachable!("a volume's tree has no control files"),
            // The kernel sends no request without an answer over the ring, but the entry goes on.
            Ok(FuseStep::Answered | FuseStep::Silent | FuseStep::Destroyed | FuseStep::Interrupt { .. }) => {}
        }
        if self.out.is_empty() {
            reply::done(&mut self.out, unique);
        }
        self.commit(reactor, index, None);
        false
    }

    /// The request is invalid: without a number it cannot be answered.
    fn broken(&mut self, index: usize) -> bool {
        let broken = std::io::Error::from(std::io::ErrorKind::InvalidData);
        self.ended.get_or_insert(broken.into());
        if let Some(ring) = &mut self.ring {
            ring.entries[index].state = State::Spent;
            ring.under_way -= 1;
        }
        false
    }

    /// Hands a request to the engine with the entry's own memory.
    fn start_in_place(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &mut Reactor,
        index: usize,
        what: VolumeRequest,
    ) {
        let Some(ring) = &self.ring else { return };
        let (operation, len) = (what.request.operation, what.request.length_bytes as u32);
        let lead = (what.request.offset_bytes % BLOCK_BYTES as u64) as u32;
        let id = ring.entries[index].buffer;
        if matches!(operation, Operation::Write { .. }) && lead > 0 {
            reactor.pool_mut().copy(Span::new(id, 0, len), Span::new(id, lead, len));
        }
        let buffer = operation.has_payload().then_some(Buffer { id, from: Source::Entry });
        self.hand_over(turn, reactor, what, buffer, Some(index));
    }

    /// Answers the request of an entry from `out`, header and body, or header and data.
    pub(super) fn commit(&mut self, reactor: &mut Reactor, index: usize, data: Option<Span>) {
        let Some(ring) = &mut self.ring else { return };
        if reactor.pool().is_busy(ring.entries[index].buffer) {
            ring.entries[index].state = State::Held(std::mem::take(&mut self.out), data);
            return ring.due.push(index as u16);
        }
        let (header, body) = self.out.split_at(OUT_HEADER_BYTES.min(self.out.len()));
        let payload_bytes = data.map_or(body.len(), |data| data.len as usize);
        let pool = reactor.pool_mut();
        pool.copy_in(ring.head(index, 0, header.len()), header);
        let length = ring.head(index, ANSWER_PAYLOAD_AT, size_of::<u32>());
        pool.copy_in(length, &(payload_bytes as u32).to_le_bytes());
        match data {
            Some(data) if data.offset > 0 => pool.copy(data, ring.payload(index, payload_bytes)),
            Some(_) => {}
            None => pool.copy_in(ring.payload(index, payload_bytes), body),
        }
        ring.under_way -= 1;
        let number = ring.entries[index].number;
        self.give_to_kernel(reactor, index, Some(number));
        if self.closing && self.is_quiet() {
            reactor.close_fuse(self.fuse);
        }
    }
}

/// The place of an entry's request among the requests in flight.
pub(super) fn place(entry: usize) -> u32 {
    (REQUESTS_MAX + entry) as u32
}

/// The entry of such a place.
pub(super) fn entry_at(place: usize) -> Option<usize> {
    place.checked_sub(REQUESTS_MAX)
}

fn append(bytes: &mut Vec<u8>, reactor: &Reactor, span: Span) {
    let start = bytes.len();
    bytes.resize(start + span.len as usize, 0);
    reactor.pool().copy_out(span, &mut bytes[start..]);
}

/// Error numbers that are never sent as answers.
mod libc_errno {
    pub(super) const ABORTED: i32 = 103;
    pub(super) const NOT_CONNECTED: i32 = 107;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_trades_payload_length_for_entries() {
        let plan = |bytes: usize, queues| {
            RingPlan::within(bytes, queues).map(|plan| (plan.depth, plan.payload_bytes >> 10))
        };
        assert_eq!(plan(64 << 20, 2), Some((31, 1024)));
        assert_eq!(plan(1 << 30, 2), Some((32, 1024)), "more would help nobody");
        assert_eq!(plan(64 << 20, 8), Some((31, 256)));
        assert_eq!(plan(64 << 20, 64), Some((14, 64)));
        assert_eq!(plan(64 << 20, 256), None);
        assert_eq!(plan(0, 1), None);
        for queues in [1, 2, 7, 64, 512] {
            let least = RingPlan::least_bytes(queues);
            assert_eq!(RingPlan::within(least, queues).unwrap().depth as usize, DEPTH_MIN);
            assert_eq!(RingPlan::within(least - 1, queues), None);
        }
    }
}
