//! One FUSE mount on the reactor, through `/dev/fuse` and, where the kernel has it, over io_uring
//! (`ring`).
//!
//! Path of a request through `/dev/fuse`: it is received into a header buffer and a payload buffer
//! of the pool. The protocol session parses it. Either it is answered at once, or it becomes a
//! request of the engine, and is answered when that has ended. Requests are answered in any order.
//!
//! - At least [`RECEIVES_MIN`] receives are posted, and more when requests arrive in bursts, up to
//!   [`RECEIVES_MAX`]: so a burst is taken in one turn of the loop.
//! - The payload of a write that begins at a block boundary already lies where the engine wants it:
//!   its buffer is handed over as it is. Others are copied, as are those beyond the limit of
//!   [`FuseOptions::buffer_bytes`] (each such buffer has room for the longest write, however short
//!   this one is).
//!
//! Memory: the kernel requires that each receive has room for the longest write. The mount owns the
//! memory for the minimum of receives, and one buffer for a request, from before it is created
//! until it is gone ([`FuseMemory`]). So requests are always received, and one at a time
//! progresses. All memory beyond that is allocated as for NBD connections, and leaves the engine
//! its part.
//!
//! Back-pressure: at most `REQUESTS_MAX` requests are in flight, and their memory comes from the
//! pool. A request that finds no memory stays in its receive, which is not posted again before; so
//! do all requests while an answer waits for memory. The kernel, in turn, limits asynchronous
//! requests, and makes their callers wait.

mod ring;

pub use ring::{RingMemory, RingPlan, Way};

use crate::client_request::{
    ClientEngine, FOR_ENGINE, FOR_REPLIES, FOR_REQUESTS, Submission, covered_bytes, payload, treatment,
};
use crate::token::{FrontendOp, Protocol};
use forebay_config::mount_memory::MOUNT_BYTES;
use forebay_config::rules::ClientCache;
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::fuse::wire::{WRITE_HEAD_BYTES, opcode};
use forebay_export::fuse::{
    Answer, Errno, FuseStep, PAYLOAD_BYTES_MAX, Session, VolumeRequest, VolumeTree, reply, request,
};
use forebay_export::request::Operation;
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufId, BufPool, FuseId, IoFailure, Op, Reactor, Span};
use ring::{Ring, entry_at, place};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Maximum of posted receives.
pub const RECEIVES_MAX: usize = 32;
/// Minimum of posted receives.
pub const RECEIVES_MIN: usize = 2;
/// After this number of turns in a row with few requests, the number of receives is halved.
const FEW_TURNS_MAX: u32 = 64;
/// Requests in flight.
const REQUESTS_MAX: usize = 512;
/// Distance of the receives' headers in their common buffer.
const HEAD_STRIDE: usize = 128;
/// Distance of the answers in their common buffer.
const ANSWER_STRIDE: usize = 32;
const BLOCK: u64 = BLOCK_BYTES as u64;

// Kinds of tokens, in the bits above the index.
const TOKEN_SHIFT: u32 = 28;
const TOKEN_RECEIVE: u32 = 0;
const TOKEN_ANSWER: u32 = 1;
const TOKEN_PLAIN: u32 = 2;
const TOKEN_RING: u32 = 3;

const _: () = assert!(Answer::BYTES_MAX <= ANSWER_STRIDE && WRITE_HEAD_BYTES <= HEAD_STRIDE);

/// The context of a mount, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct FuseOptions {
    /// The volume of its requests.
    pub volume: VolumeId,
    /// The slot of its operations and requests.
    pub slot: u16,
    /// Maximum of memory for receives and for payloads that stay where they were received; half of
    /// it for each.
    pub buffer_bytes: usize,
}

/// Room for the longest request, with any offset within its first block.
const SPARE_BYTES: usize = PAYLOAD_BYTES_MAX as usize + BLOCK_BYTES;

/// Memory that a mount owns during its life, in bytes (pages that were never used cost nothing).
pub const RESERVED_BYTES: usize = MOUNT_BYTES;

const _: () = assert!(
    RESERVED_BYTES
        == RECEIVES_MIN * PAYLOAD_BYTES_MAX as usize
            + SPARE_BYTES
            + RECEIVES_MAX * HEAD_STRIDE
            + REQUESTS_MAX * ANSWER_STRIDE
);

/// The memory that a mount owns.
#[derive(Debug)]
pub struct FuseMemory {
    heads: BufId,
    answers: BufId,
    receives: [BufId; RECEIVES_MIN],
    spare: BufId,
}

impl FuseMemory {
    /// Allocates it from the pool: [`RESERVED_BYTES`]. `None` if there is not enough now, without
    /// the engine's part.
    pub fn reserve(pool: &mut BufPool) -> Option<Self> {
        let payload = PAYLOAD_BYTES_MAX as usize;
        let lengths =
            [RECEIVES_MAX * HEAD_STRIDE, REQUESTS_MAX * ANSWER_STRIDE, payload, payload, SPARE_BYTES];
        let taken = lengths.map(|len| pool.alloc_leaving(FOR_ENGINE, len));
        if let [Some(heads), Some(answers), Some(first), Some(second), Some(spare)] = taken {
            return Some(Self { heads, answers, receives: [first, second], spare });
        }
        taken.into_iter().flatten().for_each(|buffer| pool.free(buffer));
        None
    }

    /// Frees the memory.
    pub fn give_back(self, pool: &mut BufPool) {
        let [first, second] = self.receives;
        [self.heads, self.answers, first, second, self.spare]
            .into_iter()
            .for_each(|buffer| pool.free(buffer));
    }
}

/// A good [`FuseOptions::buffer_bytes`] if memory permits.
pub const BUFFER_BYTES_DEFAULT: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
enum ReceiveState {
    Idle,
    Posted,
    /// A request of this length has arrived.
    Arrived(u32),
    /// Its request waits for memory.
    Blocked(VolumeRequest),
}

#[derive(Debug)]
struct Receive {
    data: Option<BufId>,
    state: ReceiveState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In the engine.
    Working,
    Answering,
    /// The answer could not be sent; a failure is sent instead.
    Failing,
}

#[derive(Debug)]
struct Pending {
    answer: Answer,
    phase: Phase,
    /// Where the data of a read lies.
    data: Option<Span>,
    buffer: Option<Buffer>,
}

/// A request's buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    id: BufId,
    from: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Pool,
    /// Its receive, which got another buffer.
    Receive,
    /// The mount's own memory.
    Spare,
    /// Its entry of the ring, which keeps it.
    Entry,
}

/// The engine in one turn of the loop.
struct Turn<'a, E> {
    engine: &'a mut E,
    now: Nanos,
    /// The same time, for rules.
    at: Instant,
}

/// One mount; see the module documentation.
#[derive(Debug)]
pub struct FuseServer {
    fuse: FuseId,
    session: Session<VolumeTree>,
    /// Ask the rules.
    clients: ClientCache,
    options: FuseOptions,
    heads: BufId,
    answers: BufId,
    receives: Vec<Receive>,
    /// Wanted number of posted receives.
    wanted: usize,
    /// Turns in a row that needed few of them.
    few_turns: u32,
    /// For a request when the pool has no memory.
    spare: Option<BufId>,
    pending: Vec<Option<Pending>>,
    free_pending: Vec<u32>,
    adopted: usize,
    adopted_max: usize,
    /// Answers without data that are being sent, and those that wait for memory.
    plain: Vec<Option<Buffer>>,
    unsent: VecDeque<Vec<u8>>,
    crcs: Vec<u32>,
    scratch: Vec<u8>,
    out: Vec<u8>,
    ring: Option<Ring>,
    why_no_ring: String,
    closing: bool,
    ended: Option<IoFailure>,
}

impl FuseServer {
    /// Serves the connection `fd` of a mount; over the ring, if there is one and the kernel agrees.
    ///
    /// # Errors
    /// [`IoFailure`] if the descriptor cannot be used; the memory was freed then.
    ///
    /// # Panics
    /// If the session has longer payloads than [`PAYLOAD_BYTES_MAX`].
    pub fn new(
        reactor: &mut Reactor,
        fd: OwnedFd,
        session: Session<VolumeTree>,
        options: FuseOptions,
        memory: FuseMemory,
        ring: Result<RingMemory, String>,
        clients: ClientCache,
    ) -> Result<Self, IoFailure> {
        let payload_bytes = session.limits().payload_bytes_max;
        assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "a receive has room for {PAYLOAD_BYTES_MAX} bytes");
        let fuse = match reactor.add_fuse(fd) {
            Ok(fuse) => fuse,
            Err(failure) => {
                memory.give_back(reactor.pool_mut());
                ring.into_iter().for_each(|ring| ring.give_back(reactor.pool_mut()));
                return Err(failure);
            }
        };
        let (ring, why_no_ring) = match ring.map(Ring::new) {
            Ok((ring, access)) => {
                reactor.open_fuse_ring(fuse, access);
                (Some(ring), String::new())
            }
            Err(why) => (None, why),
        };
        let places = REQUESTS_MAX + ring.as_ref().map_or(0, Ring::entries);
        let buffers = options.buffer_bytes / payload_bytes.max(1) as usize;
        let receives = (buffers / 2).clamp(RECEIVES_MIN, RECEIVES_MAX);
        let data = memory.receives.map(Some).into_iter().chain(std::iter::repeat(None));
        let receive = |data| Receive { data, state: ReceiveState::Idle };
        Ok(Self {
            fuse,
            session,
            clients,
            options,
            heads: memory.heads,
            answers: memory.answers,
            receives: data.map(receive).take(receives).collect(),
            wanted: RECEIVES_MIN,
            few_turns: 0,
            spare: Some(memory.spare),
            pending: std::iter::repeat_with(|| None).take(places).collect(),
            free_pending: (0..REQUESTS_MAX as u32).rev().collect(),
            adopted: 0,
            adopted_max: buffers.saturating_sub(receives),
            plain: Vec::new(),
            unsent: VecDeque::new(),
            crcs: Vec::new(),
            scratch: Vec::new(),
            out: Vec::new(),
            ring,
            why_no_ring,
            closing: false,
            ended: None,
        })
    }

    /// Sets the new size of the volume.
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        self.session.tree().set_size_bytes(size_bytes);
    }

    /// Number of open handles of the volume's file.
    pub fn open_files(&self) -> u64 {
        self.session.open_volumes()
    }

    /// The reason why the connection is over, if it is: `ENODEV` after an unmount.
    pub fn ended(&self) -> Option<IoFailure> {
        self.ended
    }

    /// Requests that are not answered yet.
    pub fn requests(&self) -> usize {
        REQUESTS_MAX - self.free_pending.len() + self.ring.as_ref().map_or(0, Ring::requests)
    }

    /// Stops taking requests; those in flight are still answered. Unmount first, then close.
    pub fn close(&mut self, reactor: &mut Reactor) {
        self.closing = true;
        if self.is_quiet() {
            reactor.close_fuse(self.fuse);
        }
    }

    /// True if the reactor has nothing of it in flight: it can be freed.
    pub fn is_over(&self) -> bool {
        let posted = |receive: &Receive| matches!(receive.state, ReceiveState::Posted);
        let ends = self.closing || self.ended.is_some();
        let ring_ends = self.ring.as_ref().is_none_or(Ring::is_over);
        ends && self.is_quiet() && ring_ends && !self.receives.iter().any(posted)
    }

    /// Frees all memory of a server that is over.
    ///
    /// # Panics
    /// If it is not over.
    pub fn end(mut self, reactor: &mut Reactor) {
        assert!(self.is_over(), "the kernel may still write to its memory");
        reactor.close_fuse(self.fuse);
        let received = self.receives.iter_mut().filter_map(|receive| receive.data.take());
        let own = [self.heads, self.answers].into_iter().chain(self.spare.take());
        received.chain(own).for_each(|buffer| reactor.pool_mut().free(buffer));
        self.ring.into_iter().for_each(|ring| ring.give_back(reactor.pool_mut()));
    }

    /// True if every request was answered.
    pub fn is_quiet(&self) -> bool {
        let waits = |receive: &Receive| !matches!(receive.state, ReceiveState::Idle | ReceiveState::Posted);
        self.requests() == 0
            && self.ring.as_ref().is_none_or(Ring::is_quiet)
            && self.unsent.is_empty()
            && self.plain.iter().all(Option::is_none)
            && !self.receives.iter().any(waits)
    }

    // --- completions

    /// An operation has completed.
    pub fn completed(&mut self, reactor: &mut Reactor, op: FrontendOp, result: Result<u32, IoFailure>) {
        let index = (op.number & ((1 << TOKEN_SHIFT) - 1)) as usize;
        match op.number >> TOKEN_SHIFT {
            TOKEN_RECEIVE => self.received(reactor, index, result),
            TOKEN_ANSWER => self.answered(reactor, index, result),
            TOKEN_RING => {
                self.taken(index, result);
                if self.ended.is_some() {
                    reactor.close_fuse(self.fuse);
                }
            }
            _ => {
                if let Some(buffer) = self.plain.get_mut(index).and_then(Option::take) {
                    self.let_go(reactor, buffer);
                }
            }
        }
        if self.closing && self.is_quiet() {
            reactor.close_fuse(self.fuse);
        }
    }

    fn received(&mut self, reactor: &mut Reactor, index: usize, result: Result<u32, IoFailure>) {
        let Some(receive) = self.receives.get_mut(index) else { return };
        receive.state = match result {
            Ok(bytes) => ReceiveState::Arrived(bytes),
            Err(failure) => {
                // Withdrawn, interrupted, or too large (which the kernel has answered itself): take
                // the next one.
                let goes_on = [Errno::NotFound, Errno::Interrupted, Errno::TryAgain, Errno::Io];
                if !goes_on.iter().any(|errno| *errno as i32 == failure.errno) {
                    self.ended.get_or_insert(failure);
                }
                ReceiveState::Idle
            }
        };
        if self.ended.is_some() {
            reactor.close_fuse(self.fuse); // Ends the other receives.
        }
    }

    /// The engine has answered a request.
    pub fn replied(&mut self, reactor: &mut Reactor, id: RequestId, result: Result<(), RequestError>) {
        let index = FrontendOp::of_request(id).number;
        let Some(Some(pending)) = self.pending.get_mut(index as usize) else { return };
        let data = pending.data.filter(|_| result.is_ok());
        pending.phase = Phase::Answering;
        self.out.clear();
        match result {
            Ok(()) => pending.answer.ok(&mut self.out),
            Err(error) => pending.answer.failed(&mut self.out, errno(error)),
        }
        if let Some(entry) = entry_at(index as usize) {
            self.pending[index as usize] = None;
            return self.commit(reactor, entry, data);
        }
        self.send_answer(reactor, index, data);
    }

    /// Sends the content of `out`, and the data after it.
    fn send_answer(&mut self, reactor: &mut Reactor, index: u32, data: Option<Span>) {
        let span = Span::new(self.answers, index * ANSWER_STRIDE as u32, self.out.len() as u32);
        reactor.pool_mut().copy_in(span, &self.out);
        let token = self.token(TOKEN_ANSWER, index as usize);
        match data {
            Some(data) => reactor.submit(token, Op::FuseReply { fuse: self.fuse, spans: &[span, data] }),
            None => reactor.submit(token, Op::FuseReply { fuse: self.fuse, spans: &[span] }),
        }
    }

    fn answered(&mut self, reactor: &mut Reactor, index: usize, result: Result<u32, IoFailure>) {
        let Some(Some(pending)) = self.pending.get_mut(index) else { return };
        // ENOENT: the caller was killed. ENODEV: unmounted. After any other error the caller still
        // waits: send at least a failure.
        let unheard = result
            .is_err_and(|failure| ![Errno::NotFound as i32, Errno::NoDevice as i32].contains(&failure.errno));
        if unheard && pending.phase == Phase::Answering && self.ended.is_none() {
            pending.phase = Phase::Failing;
            self.out.clear();
            pending.answer.failed(&mut self.out, Errno::Io);
            return self.send_answer(reactor, index as u32, None);
        }
        self.forget(reactor, index);
    }

    fn forget(&mut self, reactor: &mut Reactor, index: usize) {
        let Some(pending) = self.pending[index].take() else { return };
        self.free_pending.push(index as u32);
        if let Some(buffer) = pending.buffer {
            self.adopted -= usize::from(buffer.from == Source::Receive);
            self.let_go(reactor, buffer);
        }
    }

    fn let_go(&mut self, reactor: &mut Reactor, buffer: Buffer) {
        match buffer.from {
            Source::Spare => self.spare = Some(buffer.id),
            Source::Pool | Source::Receive => reactor.pool_mut().free(buffer.id),
            Source::Entry => {}
        }
    }

    /// Memory for a request or an answer: from the pool, else the mount's own.
    fn take(&mut self, reactor: &mut Reactor, part: usize, bytes: usize) -> Option<Buffer> {
        if let Some(id) = reactor.pool_mut().alloc_leaving(part, bytes) {
            return Some(Buffer { id, from: Source::Pool });
        }
        let id = self.spare.take_if(|spare| reactor.pool().capacity(*spare) >= bytes)?;
        Some(Buffer { id, from: Source::Spare })
    }

    // --- work

    /// Handles received requests and receives again. True if the engine was given something.
    pub fn turn(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        now: Nanos,
        at: Instant,
    ) -> bool {
        let mut turn = Turn { engine, now, at };
        self.send_unsent(reactor);
        self.learn();
        let mut started = self.turn_ring(&mut turn, reactor);
        for index in 0..self.receives.len() {
            match self.receives[index].state {
                ReceiveState::Arrived(bytes) if self.unsent.is_empty() => {
                    self.receives[index].state = ReceiveState::Idle;
                    started |= self.step(&mut turn, reactor, index, bytes as usize);
                }
                ReceiveState::Blocked(what) => {
                    self.receives[index].state = ReceiveState::Idle;
                    started |= self.start(&mut turn, reactor, index, what);
                }
                _ => {}
            }
        }
        self.post_receives(reactor);
        started
    }

    /// Adapts the number of receives: a burst that fills all of them doubles it, and a long time
    /// with few requests reduces it.
    fn learn(&mut self) {
        let arrived = |receive: &Receive| matches!(receive.state, ReceiveState::Arrived(_));
        let arrived = self.receives.iter().filter(|receive| arrived(receive)).count();
        if arrived == 0 {
            return;
        }
        self.few_turns = if arrived * 4 <= self.wanted { self.few_turns + 1 } else { 0 };
        if arrived >= self.wanted {
            self.wanted = (2 * self.wanted).min(self.receives.len());
        } else if self.few_turns >= FEW_TURNS_MAX {
            (self.wanted, self.few_turns) = ((self.wanted / 2).max(RECEIVES_MIN), 0);
        }
    }

    fn post_receives(&mut self, reactor: &mut Reactor) {
        if self.closing || self.ended.is_some() || !self.unsent.is_empty() {
            return;
        }
        let idle = |receive: &Receive| matches!(receive.state, ReceiveState::Idle);
        let mut free =
            self.free_pending.len().saturating_sub(self.receives.iter().filter(|r| !idle(r)).count());
        let data_bytes = self.session.limits().payload_bytes_max;
        let mut ready = self.receives.iter().filter(|receive| receive.data.is_some()).count();
        for index in 0..self.receives.len() {
            let receive = &mut self.receives[index];
            if !idle(receive) {
                continue;
            }
            if ready > self.wanted
                && let Some(data) = receive.data.take()
            {
                reactor.pool_mut().free(data);
                ready -= 1;
                continue;
            }
            if receive.data.is_none() && ready < self.wanted {
                receive.data = reactor.pool_mut().alloc_leaving(FOR_REQUESTS, data_bytes as usize);
                ready += usize::from(receive.data.is_some());
            }
            let Some(data) = receive.data.filter(|_| free > 0) else { continue };
            receive.state = ReceiveState::Posted;
            free -= 1;
            let header = Span::new(self.heads, (index * HEAD_STRIDE) as u32, WRITE_HEAD_BYTES as u32);
            let data = Span::new(data, 0, data_bytes);
            let token = self.token(TOKEN_RECEIVE, index);
            reactor.submit(token, Op::FuseReceive { fuse: self.fuse, header, data });
        }
    }

    fn token(&self, kind: u32, index: usize) -> u64 {
        FrontendOp::new(Protocol::Fuse, self.options.slot, kind << TOKEN_SHIFT | index as u32).token()
    }

    /// Parses the request in a receive. True if the engine was given something.
    fn step(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &mut Reactor,
        index: usize,
        bytes: usize,
    ) -> bool {
        let head_bytes = bytes.min(WRITE_HEAD_BYTES);
        self.scratch.resize(head_bytes, 0);
        let head = Span::new(self.heads, (index * HEAD_STRIDE) as u32, head_bytes as u32);
        reactor.pool().copy_out(head, &mut self.scratch);
        let has_payload =
            request::Header::decode(&self.scratch, bytes).is_ok_and(|header| header.opcode == opcode::WRITE);
        if !has_payload {
            self.copy_payload(reactor, index, bytes - head_bytes);
        }
        self.out.clear();
        match self.session.step(&self.scratch, bytes, &mut self.out) {
            Err(_) => {
                // The kernel does not do this; without a number there is nothing to answer.
                let broken = std::io::Error::from(std::io::ErrorKind::InvalidData);
                self.ended.get_or_insert(broken.into());
                false
            }
            Ok(FuseStep::Answered) => {
                let answer = std::mem::take(&mut self.out);
                self.send_plain(reactor, answer);
                false
            }
            Ok(FuseStep::Silent | FuseStep::Destroyed) => false,
            Ok(FuseStep::Volume(what)) => self.start(turn, reactor, index, what),
            Ok(FuseStep::Store { .. }) => unreachable!("a volume's tree has no control files"),
            Ok(FuseStep::Interrupt { request, unique }) => {
                self.interrupt(reactor, request, unique);
                false
            }
        }
    }

    /// Appends the first bytes of a receive's payload buffer to `scratch`.
    fn copy_payload(&mut self, reactor: &Reactor, index: usize, bytes: usize) {
        let Some(data) = self.receives[index].data.filter(|_| bytes > 0) else { return };
        let start = self.scratch.len();
        self.scratch.resize(start + bytes, 0);
        reactor.pool().copy_out(Span::new(data, 0, bytes as u32), &mut self.scratch[start..]);
    }

    /// Requests of the volume end soon enough on their own.
    fn interrupt(&mut self, reactor: &mut Reactor, request: u64, unique: u64) {
        let of_request = |pending: &Option<Pending>| {
            pending.as_ref().is_some_and(|pending| pending.answer.unique == request)
        };
        if !self.pending.iter().any(of_request) {
            // It can be in a receive that is processed later in this turn. (If it has ended, the
            // kernel does not ask again.)
            let mut answer = Vec::new();
            reply::failed(&mut answer, unique, Errno::TryAgain);
            self.send_plain(reactor, answer);
        }
    }

    /// Notes a request for the engine. There is always room: an entry has a place of its own, and
    /// a receive is posted only with a place in reserve.
    fn begin(
        &mut self,
        answer: Answer,
        buffer: Option<Buffer>,
        data: Option<Span>,
        entry: Option<usize>,
    ) -> FrontendOp {
        let index = entry.map(place).or_else(|| self.free_pending.pop());
        let index = index.expect("every receive that is not idle has a place in reserve");
        self.adopted += usize::from(buffer.is_some_and(|buffer| buffer.from == Source::Receive));
        let phase = Phase::Working;
        self.pending[index as usize] = Some(Pending { answer, phase, data, buffer });
        FrontendOp::new(Protocol::Fuse, self.options.slot, index)
    }

    /// Gives a request its buffer and hands it over; without memory it stays in the receive. True
    /// if it was handed over.
    fn start(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &mut Reactor,
        index: usize,
        what: VolumeRequest,
    ) -> bool {
        let request = what.request;
        let lead = (request.offset_bytes % BLOCK) as u32;
        let adopts = matches!(request.operation, Operation::Write { .. })
            && lead == 0
            && self.adopted < self.adopted_max;
        let mut buffer = if adopts { self.adopt(reactor, index) } else { None };
        if buffer.is_none() && request.operation.has_payload() {
            let len = request.length_bytes as u32; // at most the longest negotiated payload
            buffer = self.take(reactor, FOR_REPLIES, covered_bytes(&request));
            let Some(buffer) = buffer else {
                self.receives[index].state = ReceiveState::Blocked(what);
                return false;
            };
            if let (Operation::Write { .. }, Some(data)) = (request.operation, self.receives[index].data) {
                reactor.pool_mut().copy(Span::new(data, 0, len), Span::new(buffer.id, lead, len));
            }
        }
        self.hand_over(turn, reactor, what, buffer, None);
        true
    }

    /// Takes the buffer of a receive for its request, if there is another buffer for the receive.
    fn adopt(&mut self, reactor: &mut Reactor, index: usize) -> Option<Buffer> {
        let bytes = self.session.limits().payload_bytes_max as usize;
        let other = reactor.pool_mut().alloc_leaving(FOR_REPLIES, bytes)?;
        let id = self.receives[index].data.replace(other)?;
        Some(Buffer { id, from: Source::Receive })
    }

    fn hand_over(
        &mut self,
        turn: &mut Turn<'_, impl ClientEngine>,
        reactor: &Reactor,
        what: VolumeRequest,
        buffer: Option<Buffer>,
        entry: Option<usize>,
    ) {
        let VolumeRequest { request, caller, answer, .. } = what;
        let buf = buffer.map(|buffer| buffer.id);
        let data = buf.filter(|_| request.operation == Operation::Read).map(|buf| payload(buf, &request));
        let (clients, pid_uid) = (&mut self.clients, (caller.pid, caller.uid));
        let treatment = treatment(&request, |direction, offset, len| {
            clients.decide(pid_uid, direction, offset, len, turn.at)
        });
        let op = self.begin(answer, buffer, data, entry);
        let volume = self.options.volume;
        let submission = Submission { op, volume, request: &request, buffer: buf, treatment };
        submission.submit(turn.engine, turn.now, reactor.pool(), &mut self.crcs);
    }

    // --- answers without data

    fn send_plain(&mut self, reactor: &mut Reactor, answer: Vec<u8>) {
        let Some(buffer) = self.take(reactor, FOR_ENGINE, answer.len()) else {
            return self.unsent.push_back(answer);
        };
        let span = Span::new(buffer.id, 0, answer.len() as u32);
        reactor.pool_mut().copy_in(span, &answer);
        let index = self.plain.iter().position(Option::is_none).unwrap_or_else(|| {
            self.plain.push(None);
            self.plain.len() - 1
        });
        self.plain[index] = Some(buffer);
        let token = self.token(TOKEN_PLAIN, index);
        reactor.submit(token, Op::FuseReply { fuse: self.fuse, spans: &[span] });
        self.out = answer; // reuse its memory
    }

    fn send_unsent(&mut self, reactor: &mut Reactor) {
        for _ in 0..self.unsent.len() {
            if let Some(answer) = self.unsent.pop_front() {
                self.send_plain(reactor, answer);
            }
        }
    }
}

fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::Io,
        RequestError::Invalid => Errno::Invalid,
        RequestError::Shutdown => Errno::Shutdown,
    }
}
