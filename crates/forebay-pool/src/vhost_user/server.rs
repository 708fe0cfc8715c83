//! The device of one export, on the pool's thread.
//!
//! Path of a request: it is taken from a ring, parsed, and begun piece by piece. Each piece gets a
//! buffer, which for a write holds the guest's data. When the last piece has ended the guest gets
//! the status, and one signal for all requests that ended in the same turn.
//!
//! Invariants
//! - No request is taken while one waits for memory, nor beyond [`REQUESTS_MAX`]: further ones wait
//!   in the ring, and its driver with them.
//! - A turn takes at most [`TURN_MAX`] requests, so a guest that submits without pause does not
//!   delay others.
//! - The content of a ring can break that ring, nothing else.
//! - After a frontend has gone nothing is written to its guest. Its rings are removed at once; the
//!   engine completes the requests in flight, and only then another frontend is accepted.

use super::control::who;
use super::memory::Mapped;
use super::requests::{PIECE_BUFFER_BYTES, Part, Pending, Piece, Table};
use super::ring::{Next, ServedRing};
use super::{Arrival, ControlRequest, Done, RINGS_MAX, Shared, Start};
use crate::client_request::{ClientEngine, FOR_REPLIES, Submission, covered_bytes, payload, treatment};
use crate::token::{FrontendOp, Protocol};
use forebay_config::rules::{Client, Identity, RuleSet};
use forebay_core::{RequestError, RequestId, Treatment};
use forebay_export::request::{ClientRequest, Operation};
use forebay_export::vhost_user::config_changed;
use forebay_export::virtio::GuestMemory;
use forebay_export::virtio::block::{BlockRequest, Status, Work};
use forebay_export::virtio::memory;
use forebay_export::virtio::ring::RingError;
use forebay_format::VolumeId;
use forebay_io::{BufId, BufPool, IoFailure, Reactor};
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// Requests of an export in flight.
const REQUESTS_MAX: usize = 1024;
/// Requests taken in a turn.
const TURN_MAX: usize = 128;
/// An export has at most this part of the memory for its requests (and one piece more).
const EXPORT_PART: usize = 4;

// Tokens: kind, number of the ring, position of the ring.
const TOKEN_SHIFT: u32 = 30;
const NUMBER_SHIFT: u32 = 8;
const NUMBER_MAX: u32 = 1 << (TOKEN_SHIFT - NUMBER_SHIFT);
const TOKEN_KICK: u32 = 0;
const TOKEN_CALL: u32 = 1;
const TOKEN_ERROR: u32 = 2;
const _: () = assert!(RINGS_MAX as u32 <= 1 << NUMBER_SHIFT);

/// Context of an export.
#[derive(Clone, Debug)]
pub(crate) struct VhostUserOptions {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Its rules.
    pub(crate) rules: Arc<RuleSet>,
    /// The export's name in rules.
    pub(crate) export: String,
    /// The slot of its operations and requests.
    pub(crate) slot: u16,
    /// All memory of the pool.
    pub(crate) buffer_bytes: usize,
}

/// The connected frontend.
struct Frontend {
    stream: UnixStream,
    who: String,
    channel: Option<UnixStream>,
    client: Client,
}

/// The device; see the module documentation.
pub(crate) struct VhostUserServer {
    options: VhostUserOptions,
    shared: Arc<Shared>,
    frontend: Option<Frontend>,
    memory: Mapped,
    rings: Vec<Option<ServedRing>>,
    /// Rings started so far.
    started: u32,
    requests: Table<Pending>,
    pieces: Table<Piece>,
    /// Requests that are not completely begun, in order.
    waiting: VecDeque<u32>,
    /// For a piece when the pool has no memory.
    spare: Option<BufId>,
    /// The spare buffer, in use or not.
    spare_id: BufId,
    held_bytes: usize,
    /// The ring where the next turn begins.
    first_ring: usize,
    /// Number of requests that this turn of the loop may still take.
    left: usize,
    /// Operations in flight on event counters.
    operations: usize,
    /// Answered when everything of the last frontend has ended.
    leaving: Option<Done<Mapped>>,
    crcs: Vec<u32>,
    notes: Vec<String>,
    is_closing: bool,
    /// Part of the guest's memory was taken away.
    is_lost: bool,
    /// Closing this ends the listening thread.
    stop: Option<UnixStream>,
}

impl VhostUserServer {
    /// Creates a device without a frontend. `None` if there is no memory for it.
    pub(crate) fn new(
        pool: &mut BufPool,
        options: VhostUserOptions,
        shared: Arc<Shared>,
        stop: UnixStream,
    ) -> Option<Self> {
        let spare = pool.alloc_leaving(FOR_REPLIES, PIECE_BUFFER_BYTES)?;
        Some(Self {
            options,
            shared,
            frontend: None,
            memory: Mapped::none(),
            rings: std::iter::repeat_with(|| None).take(usize::from(RINGS_MAX)).collect(),
            started: 0,
            requests: Table::default(),
            pieces: Table::default(),
            waiting: VecDeque::new(),
            spare: Some(spare),
            spare_id: spare,
            held_bytes: 0,
            first_ring: 0,
            left: TURN_MAX,
            operations: 0,
            leaving: None,
            crcs: Vec::new(),
            notes: Vec::new(),
            is_closing: false,
            is_lost: false,
            stop: Some(stop),
        })
    }

    /// Describes the connected frontend.
    pub(crate) fn frontend(&self) -> Option<&str> {
        self.frontend.as_ref().map(|frontend| frontend.who.as_str())
    }

    /// Takes the notes for the operator.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// True if there can be work that no completion triggers.
    pub(crate) fn has_more(&self) -> bool {
        self.left == 0
    }

    /// True if every request is answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.requests.len() == 0 && !self.rings.iter().flatten().any(ServedRing::must_tell)
    }

    /// True if nothing is left in flight: it can be freed.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_none() && self.frontend.is_none() && self.requests.len() == 0 && self.operations == 0
    }

    /// Stops taking requests. Requests in flight are answered, the others are left to the next
    /// server of the volume; then the frontend is disconnected.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        for number in std::mem::take(&mut self.waiting) {
            if let Some(request) = self.requests.get_mut(number) {
                request.is_left = true;
            }
        }
        self.drop_idle();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Drops requests that will not be answered and have no piece in flight.
    fn drop_idle(&mut self) {
        let idle = |request: &Pending| request.under_way == 0 && (request.is_left || self.frontend.is_none());
        for number in self.requests.numbers(idle) {
            let Some(request) = self.requests.take(number) else { continue };
            if let Some(ring) = self.rings[usize::from(request.ring)].as_mut() {
                ring.under_way -= usize::from(ring.number == request.number);
            }
        }
    }

    /// Frees the memory of a server that is over.
    pub(crate) fn end(self, pool: &mut BufPool) {
        pool.free(self.spare_id);
    }

    /// Changes the size of the volume.
    pub(crate) fn set_size_bytes(&mut self, size_bytes: u64) {
        self.shared.set_size_bytes(size_bytes);
        let frontend = self.frontend.as_ref();
        let Some(channel) = frontend.and_then(|frontend| frontend.channel.as_ref()) else { return };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(error) = send(channel, &config_changed(), flags) {
            self.notes.push(format!("cannot report the new size to a guest: {error}"));
        }
    }

    // --- control requests

    /// Executes a request of the listening thread.
    pub(crate) fn execute(&mut self, reactor: &mut Reactor, request: ControlRequest) {
        match request {
            ControlRequest::Came(arrival) => self.came(arrival),
            ControlRequest::TurnedAway(what) => self.notes.push(what),
            ControlRequest::Memory(memory, done) => {
                let _ = done.try_send(std::mem::replace(&mut self.memory, memory)); // it has room
            }
            ControlRequest::Start(start, done) => {
                let result = self.start(reactor, *start);
                let _ = done.try_send(result);
            }
            ControlRequest::Enable(at, is_enabled, done) => {
                if let Some(ring) = self.ring_mut(at) {
                    ring.is_enabled = is_enabled;
                }
                let _ = done.try_send(());
            }
            ControlRequest::SetCall(at, call, done) => {
                if let Some(ring) = self.ring_mut(at) {
                    ring.set_call(reactor, call);
                }
                let _ = done.try_send(());
            }
            ControlRequest::Stop(at, done) => match self.ring_mut(at) {
                Some(ring) => {
                    ring.stopping = Some(done);
                    self.end_stopping(reactor, at);
                }
                None => drop(done),
            },
            ControlRequest::Channel(channel) => {
                if let Some(frontend) = &mut self.frontend {
                    frontend.channel = Some(channel);
                }
            }
            ControlRequest::Went(why, done) => self.went(reactor, why, done),
        }
    }

    fn came(&mut self, Arrival { stream, cred }: Arrival) {
        let rules = Arc::clone(&self.options.rules);
        let identity = Identity::of_peer(rules.proc(), cred);
        let client = Client::new(rules, self.options.export.as_str(), identity);
        self.frontend = Some(Frontend { stream, who: who(&cred), channel: None, client });
    }

    fn went(&mut self, reactor: &mut Reactor, why: Option<String>, done: Done<Mapped>) {
        // A disconnect by this side has been reported with its reason already.
        let why = why.filter(|_| !self.is_lost && !self.is_closing);
        if let (Some(frontend), Some(why)) = (self.frontend.take(), why) {
            self.notes.push(format!("{} is disconnected: {why}", frontend.who));
        }
        for ring in self.rings.iter_mut().filter_map(Option::take) {
            ring.close(reactor);
        }
        self.waiting.clear();
        self.requests.iter_mut().for_each(|request| request.has_failed = true);
        self.drop_idle();
        self.is_lost = false;
        self.leaving = Some(done);
        self.let_leave();
    }

    /// Answers the waiting thread once everything of the last frontend has ended.
    fn let_leave(&mut self) {
        if self.requests.len() == 0
            && let Some(done) = self.leaving.take()
        {
            let _ = done.try_send(std::mem::replace(&mut self.memory, Mapped::none())); // it has room
        }
    }

    fn ring_mut(&mut self, at: u16) -> Option<&mut ServedRing> {
        self.rings.get_mut(usize::from(at))?.as_mut()
    }

    fn start(&mut self, reactor: &mut Reactor, start: Start) -> Result<(), String> {
        let at = usize::from(start.ring);
        self.started = (self.started + 1) % NUMBER_MAX;
        let ring = ServedRing::start(reactor, &self.memory.memory, start, self.started);
        self.rings[at] = Some(ring.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Frees a ring that is being stopped, once all its requests are answered.
    fn end_stopping(&mut self, reactor: &mut Reactor, at: u16) {
        let slot = &mut self.rings[usize::from(at)];
        if let Some(mut ring) = slot.take_if(|ring| ring.stopping.is_some() && ring.is_done()) {
            let _ = ring.stopping.take().map(|done| done.try_send(ring.base()));
            ring.close(reactor);
        }
    }

    fn token(&self, what: u32, number: u32, at: usize) -> u64 {
        let number = what << TOKEN_SHIFT | number << NUMBER_SHIFT | at as u32;
        FrontendOp::new(Protocol::VhostUser, self.options.slot, number).token()
    }

    /// An operation on an event counter has completed.
    pub(crate) fn completed(&mut self, op: FrontendOp, result: Result<u32, IoFailure>) {
        self.operations -= 1;
        let token = op.number;
        let (at, number) = (token & ((1 << NUMBER_SHIFT) - 1), token >> NUMBER_SHIFT & (NUMBER_MAX - 1));
        let Some(ring) = self.ring_mut(at as u16).filter(|ring| ring.number == number) else { return };
        match token >> TOKEN_SHIFT {
            // A counter that fails is not read again: that would loop forever.
            TOKEN_KICK if result.is_ok() => (ring.is_watched, ring.is_new) = (false, true),
            TOKEN_CALL => ring.is_signalling = false,
            _ => {}
        }
    }

    // --- work

    /// Continues waiting requests, and takes new ones; true if the engine was given something.
    pub(crate) fn turn(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        (now, at): (u64, Instant),
    ) -> bool {
        let mut started = self.begin_waiting(engine, reactor, now);
        let device = self.shared.device();
        let rings = self.rings.len();
        for step in 0..rings {
            let index = (self.first_ring + step) % rings;
            while self.may_take() {
                let Some(ring) = self.rings[index].as_mut().filter(|ring| ring.is_served()) else { break };
                let number = ring.number;
                match ring.next(&self.memory.memory, &device) {
                    Next::Request(head, request) => {
                        self.left -= 1;
                        started |=
                            self.take((index as u16, number), head, request, engine, reactor, (now, at));
                    }
                    Next::Nothing => break,
                    Next::Broken(why) => self.broken(reactor, index, &why),
                }
            }
            self.watch(reactor, index);
        }
        started
    }

    /// The loop begins another turn.
    pub(crate) fn renew(&mut self) {
        self.left = TURN_MAX;
        self.first_ring = (self.first_ring + 1) % self.rings.len();
    }

    fn may_take(&self) -> bool {
        self.left > 0
            && self.waiting.is_empty()
            && self.requests.len() < REQUESTS_MAX
            && !self.is_closing
            && !self.is_lost
    }

    fn watch(&mut self, reactor: &mut Reactor, index: usize) {
        let Some(ring) = self.rings[index].as_ref().filter(|ring| !ring.is_watched) else { return };
        let token = self.token(TOKEN_KICK, ring.number, index);
        self.operations += 1;
        if let Some(ring) = &mut self.rings[index] {
            ring.watch(reactor, token);
        }
    }

    fn broken(&mut self, reactor: &mut Reactor, index: usize, why: &str) {
        let Some(ring) = &self.rings[index] else { return };
        let token = self.token(TOKEN_ERROR, ring.number, index);
        if let Some(ring) = &mut self.rings[index] {
            self.operations += usize::from(ring.break_off(reactor, token));
        }
        // Lost memory is reported elsewhere.
        if !self.memory.is_lost() {
            let who = self.frontend().unwrap_or("a guest");
            self.notes.push(format!("ring {index} of {who} is no longer served: {why}"));
        }
        self.end_stopping(reactor, index as u16);
    }

    /// Takes a request; true if the engine was given something.
    fn take(
        &mut self,
        ring: (u16, u32),
        head: u16,
        request: BlockRequest,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        (now, at): (u64, Instant),
    ) -> bool {
        let treatment = self.treatment(&request, at);
        let number = self.requests.add(Pending::new(ring, head, request, treatment));
        self.waiting.push_back(number);
        self.begin_waiting(engine, reactor, now)
    }

    fn treatment(&mut self, request: &BlockRequest, at: Instant) -> Treatment {
        let Work::Transfer { request, .. } = &request.work else { return Treatment::Cache };
        let Some(frontend) = &mut self.frontend else { return Treatment::Cache };
        treatment(request, |direction, offset, len| frontend.client.decide(direction, offset, len, at))
    }

    /// Begins waiting requests, as far as there is memory; true if the engine was given something.
    fn begin_waiting(&mut self, engine: &mut impl ClientEngine, reactor: &mut Reactor, now: u64) -> bool {
        let mut started = false;
        while let Some(number) = self.waiting.front().copied() {
            let part = self.requests.get_mut(number).and_then(|request| request.next());
            let Some(part) = part else {
                self.waiting.pop_front();
                self.finish_if_ended(reactor, number);
                continue;
            };
            if !self.begin(engine, reactor, number, part, now) {
                break;
            }
            started = true;
        }
        started
    }

    /// Gives a part to the engine; false if there is no memory for it.
    fn begin(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        number: u32,
        part: Part,
        now: u64,
    ) -> bool {
        let operation = part.request.operation;
        let mut buffer = None;
        if operation.has_payload() {
            buffer = self.buffer(reactor.pool_mut(), covered_bytes(&part.request));
            if buffer.is_none() {
                return false;
            }
        }
        let Some(request) = self.requests.get_mut(number) else { return true };
        request.began(&part);
        let treatment = request.treatment;
        if let (Operation::Write { .. }, Some(buffer), Work::Transfer { data, .. }) =
            (operation, buffer, &request.request.work)
        {
            let bytes = &mut reactor.pool_mut().bytes_mut(buffer)[payload_range(buffer, &part.request)];
            if memory::read(&self.memory.memory, data, part.data_at, bytes).is_err() {
                request.has_failed = true;
                request.under_way -= 1;
                self.let_go(reactor.pool_mut(), buffer);
                return true;
            }
        }
        let number = self.pieces.add(Piece { pending: number, part, buffer });
        let op = FrontendOp::new(Protocol::VhostUser, self.options.slot, number);
        let volume = self.options.volume;
        let submission = Submission { op, volume, request: &part.request, buffer, treatment };
        submission.submit(engine, now, reactor.pool(), &mut self.crcs);
        true
    }

    /// A buffer: from the pool, within the limit of this export, else its own.
    fn buffer(&mut self, pool: &mut BufPool, bytes: usize) -> Option<BufId> {
        if self.held_bytes < self.options.buffer_bytes / EXPORT_PART
            && let Some(buffer) = pool.alloc_leaving(FOR_REPLIES, bytes)
        {
            self.held_bytes += pool.capacity(buffer);
            return Some(buffer);
        }
        // The kernel can still be using it for its previous user.
        self.spare.take_if(|spare| !pool.is_busy(*spare))
    }

    fn let_go(&mut self, pool: &mut BufPool, buffer: BufId) {
        if buffer == self.spare_id {
            self.spare = Some(buffer);
        } else {
            self.held_bytes -= pool.capacity(buffer);
            pool.free(buffer);
        }
    }

    /// The engine has answered a request.
    pub(crate) fn replied(&mut self, reactor: &mut Reactor, id: RequestId, result: Result<(), RequestError>) {
        let Some(Piece { pending: number, part, buffer }) =
            self.pieces.take(FrontendOp::of_request(id).number)
        else {
            return;
        };
        if let Some(request) = self.requests.get_mut(number) {
            request.under_way -= 1;
            // The end of a volume is no failure that a guest should see.
            request.is_left |= result == Err(RequestError::Shutdown);
            request.has_failed |= result.is_err();
            let is_wanted = !request.has_failed && part.request.operation == Operation::Read;
            if let (true, Some(buffer), Work::Transfer { data, .. }) =
                (is_wanted, buffer, &request.request.work)
            {
                let bytes = &reactor.pool().bytes(buffer)[payload_range(buffer, &part.request)];
                request.has_failed |= memory::write(&self.memory.memory, data, part.data_at, bytes).is_err();
            }
        }
        if let Some(buffer) = buffer {
            self.let_go(reactor.pool_mut(), buffer);
        }
        self.finish_if_ended(reactor, number);
    }

    /// Answers a request with no piece in flight or left to begin.
    fn finish_if_ended(&mut self, reactor: &mut Reactor, number: u32) {
        let Some(status) = self.requests.get_mut(number).and_then(|request| request.status()) else { return };
        if self.waiting.contains(&number) {
            return; // it failed before all of it was begun, and is answered at its turn
        }
        let Some(pending) = self.requests.take(number) else { return };
        let memory = Arc::clone(&self.memory.memory);
        let ring = self.rings[usize::from(pending.ring)].as_mut();
        if let Some(ring) = ring.filter(|ring| ring.number == pending.number) {
            ring.under_way -= 1;
            let is_stopping = ring.stopping.is_some();
            let told = match pending.is_left {
                true => Ok(()),
                false => tell(ring, &memory, &pending, status),
            };
            if let Err(error) = told {
                self.broken(reactor, usize::from(pending.ring), &error.to_string());
            }
            if is_stopping {
                // Its last signal is sent before.
                self.signal(reactor, usize::from(pending.ring));
                self.end_stopping(reactor, pending.ring);
            }
        }
        drop(memory);
        self.let_leave();
    }

    /// Signals ended requests, and disconnects a frontend that has to go.
    pub(crate) fn signal_all(&mut self, reactor: &mut Reactor) {
        (0..self.rings.len()).for_each(|index| self.signal(reactor, index));
        self.disconnect_if_lost();
        self.disconnect_if_closing();
    }

    fn signal(&mut self, reactor: &mut Reactor, index: usize) {
        let Some(ring) = &self.rings[index] else { return };
        let token = self.token(TOKEN_CALL, ring.number, index);
        let memory = Arc::clone(&self.memory.memory);
        let Some(ring) = &mut self.rings[index] else { return };
        match ring.signal(reactor, &memory, token) {
            Ok(sent) => self.operations += usize::from(sent),
            Err(error) => self.broken(reactor, index, &error.to_string()),
        }
    }

    /// Disconnects a frontend that has taken its guest's memory away.
    fn disconnect_if_lost(&mut self) {
        let Some(frontend) = self.frontend.as_ref().filter(|_| !self.is_lost) else { return };
        if self.memory.is_lost() || self.rings.iter().flatten().any(ServedRing::is_lost) {
            self.notes
                .push(format!("{} is disconnected: it has truncated the memory of its guest", frontend.who));
            let _ = frontend.stream.shutdown(Shutdown::Both); // it can be gone already
            self.is_lost = true;
        }
    }

    fn disconnect_if_closing(&mut self) {
        if !(self.is_closing && self.is_quiet()) || self.stop.take().is_none() {
            return;
        }
        if let Some(frontend) = &self.frontend {
            let _ = frontend.stream.shutdown(Shutdown::Both); // it can be gone already
        }
    }
}

/// Where the payload of a request lies in the bytes of its buffer.
fn payload_range(buffer: BufId, request: &ClientRequest) -> Range<usize> {
    let span = payload(buffer, request);
    span.offset as usize..(span.offset + span.len) as usize
}

/// Returns a request to its driver.
fn tell(
    ring: &mut ServedRing,
    memory: &GuestMemory,
    pending: &Pending,
    status: Status,
) -> Result<(), RingError> {
    let written = pending.request.answer(memory, status)?;
    ring.complete(memory, pending.head, written)
}
