//! One block device (ublk) on the reactor.
//!
//! Path of a request: the kernel describes it, and reports its tag. The gate checks the
//! description. The request gets a buffer of the pool, and the payload of a write is copied into
//! it, to the place that the engine expects. When the engine has answered, the data of a read is
//! copied into the request, and the answer takes the next request of the tag.
//!
//! Memory: a tag without a request has none. A request that finds none waits, and is retried in
//! each turn. The device owns one buffer for the longest request, from before it is created until
//! it is gone ([`reserve`]), so one request at a time always progresses. All memory beyond that is
//! allocated as for NBD connections, and leaves the engine its part.
//!
//! A device ends in one of two ways. It is stopped: then the kernel waits for the requests in
//! flight, and each command returns without a request. Or it is *left* to another server
//! ([`UblkServer::leave`]): the kernel gives unanswered requests to that one again, so requests
//! that the engine refuses because it is being closed are not answered at all.

use crate::client_request::{
    ClientEngine, FOR_ENGINE, FOR_REPLIES, Submission, covered_bytes, payload, treatment,
};
use crate::token::{FrontendOp, Protocol};
use forebay_config::rules::Client;
use forebay_core::{Nanos, RequestError, RequestId};
use forebay_export::fuse::Errno;
use forebay_export::request::{Bounds, ClientRequest, Operation};
use forebay_export::ublk::{DESCRIPTOR_BYTES, PAYLOAD_BYTES_MAX, Step, done, failed, step};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufId, BufPool, IoFailure, Op, Reactor, Span, UblkId};

use std::time::Instant;

/// Room for the longest request, with any offset within its first block.
const SPARE_BYTES: usize = PAYLOAD_BYTES_MAX as usize + BLOCK_BYTES;

/// Interface of a server to the kernel.
pub trait Kernel {
    /// Answers the last request of a tag, if there was one, and takes the next;
    /// [`UblkServer::completed`] is called when there is one.
    fn next(&mut self, token: u64, tag: u16, answer: Option<i32>);

    /// The description of the request of a tag.
    fn description(&self, tag: u16) -> Option<[u8; DESCRIPTOR_BYTES]>;

    /// Copies the payload of a write into a span.
    ///
    /// # Errors
    /// The request is gone.
    fn copy_from(&mut self, tag: u16, span: Span) -> Result<(), IoFailure>;

    /// Copies a span into the memory of a read.
    ///
    /// # Errors
    /// The request is gone.
    fn copy_to(&mut self, tag: u16, span: Span) -> Result<(), IoFailure>;

    /// The buffers.
    fn pool(&mut self) -> &mut BufPool;
}

/// A device of a reactor.
pub struct OnReactor<'a> {
    /// The reactor.
    pub reactor: &'a mut Reactor,
    /// The device.
    pub ublk: UblkId,
}

impl Kernel for OnReactor<'_> {
    fn next(&mut self, token: u64, tag: u16, answer: Option<i32>) {
        self.reactor.submit(token, Op::UblkNext { ublk: self.ublk, tag, answer });
    }

    fn description(&self, tag: u16) -> Option<[u8; DESCRIPTOR_BYTES]> {
        self.reactor.ublk_request(self.ublk, tag)
    }

    fn copy_from(&mut self, tag: u16, span: Span) -> Result<(), IoFailure> {
        self.reactor.copy_from_ublk(self.ublk, tag, span)
    }

    fn copy_to(&mut self, tag: u16, span: Span) -> Result<(), IoFailure> {
        self.reactor.copy_to_ublk(self.ublk, tag, span)
    }

    fn pool(&mut self) -> &mut BufPool {
        self.reactor.pool_mut()
    }
}

/// The context of a device.
#[derive(Clone, Copy, Debug)]
pub struct UblkOptions {
    /// The volume of its requests.
    pub volume: VolumeId,
    /// The slot of its operations and requests; their numbers are the tags.
    pub slot: u16,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Tags.
    pub depth: u16,
}

/// Allocates the memory that a device owns: `None` if there is not enough now, without the engine's
/// part.
pub fn reserve(pool: &mut BufPool) -> Option<BufId> {
    pool.alloc_leaving(FOR_ENGINE, SPARE_BYTES)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// Not fetched yet, or ended.
    Off,
    /// A command is in the kernel.
    Waiting,
    /// A request has arrived, and is not begun.
    Arrived,
    /// The engine works on it.
    Working { request: ClientRequest, buffer: Option<BufId> },
    /// Its request is left to another server.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serving,
    /// Another server continues.
    Left,
    /// The engine is closed, and the device is being removed.
    Refusing,
}

/// One device; see the module documentation.
#[derive(Debug)]
pub struct UblkServer {
    options: UblkOptions,
    /// Asks the rules.
    client: Client,
    tags: Vec<Tag>,
    /// Requests that are not begun, in order of arrival.
    arrived: Vec<u16>,
    arrived_before: Vec<u16>,
    /// Requests that the engine works on.
    working: usize,
    /// Commands in the kernel.
    waiting: usize,
    /// For a request when the pool has no memory; `None` while it is used.
    spare: Option<BufId>,
    spare_id: BufId,
    crcs: Vec<u32>,
    mode: Mode,
    ended: Option<IoFailure>,
}

impl UblkServer {
    /// Serves a device with this memory of its own ([`reserve`]).
    pub fn new(options: UblkOptions, spare: BufId, client: Client) -> Self {
        Self {
            options,
            client,
            tags: vec![Tag::Off; usize::from(options.depth)],
            arrived: Vec::new(),
            arrived_before: Vec::new(),
            working: 0,
            waiting: 0,
            spare: Some(spare),
            spare_id: spare,
            crcs: Vec::new(),
            mode: Mode::Serving,
            ended: None,
        }
    }

    /// Fetches a request of each tag: the device can be started then.
    pub fn begin(&mut self, kernel: &mut dyn Kernel) {
        for tag in 0..self.options.depth {
            self.next(kernel, tag, None);
        }
    }

    /// Sets the new size of the volume.
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        self.options.size_bytes = size_bytes;
    }

    /// Leaves the device to another server: nothing more is begun. Requests in the engine are
    /// still answered, unless it is being closed.
    pub fn leave(&mut self) {
        self.mode = Mode::Left;
        for tag in self.arrived.drain(..) {
            self.tags[usize::from(tag)] = Tag::Left;
        }
    }

    /// Continues with this server after all, including the requests left to another one.
    pub fn resume(&mut self, volume: VolumeId, size_bytes: u64, client: Client) {
        self.client = client;
        (self.mode, self.options.volume, self.options.size_bytes) = (Mode::Serving, volume, size_bytes);
        for tag in 0..self.options.depth {
            let state = &mut self.tags[usize::from(tag)];
            if *state == Tag::Left {
                *state = Tag::Arrived;
                self.arrived.push(tag);
            }
        }
    }

    /// No other server will continue: fails the requests left, and later ones.
    pub fn refuse(&mut self, kernel: &mut dyn Kernel) {
        self.mode = Mode::Refusing;
        for tag in 0..self.options.depth {
            if self.tags[usize::from(tag)] == Tag::Left {
                self.next(kernel, tag, Some(failed(Errno::Io)));
            }
        }
    }

    /// True if the engine has no request of it.
    pub fn is_quiet(&self) -> bool {
        self.working == 0 && self.arrived.is_empty()
    }

    /// True if the device is gone: nothing of it is in the kernel or in the engine.
    pub fn is_over(&self) -> bool {
        self.working == 0 && self.waiting == 0 && self.arrived.is_empty() && self.mode != Mode::Left
    }

    /// Why the first command returned without a request.
    pub fn ended(&self) -> Option<IoFailure> {
        self.ended
    }

    /// Frees its memory.
    ///
    /// # Panics
    /// The device is not over.
    pub fn end(self, pool: &mut BufPool) {
        assert!(self.is_over(), "the engine may still use its memory");
        self.spare.into_iter().for_each(|spare| pool.free(spare));
    }

    fn next(&mut self, kernel: &mut dyn Kernel, tag: u16, answer: Option<i32>) {
        self.tags[usize::from(tag)] = Tag::Waiting;
        self.waiting += 1;
        kernel.next(self.op(tag).token(), tag, answer);
    }

    fn op(&self, tag: u16) -> FrontendOp {
        FrontendOp::new(Protocol::Ublk, self.options.slot, tag.into())
    }

    /// A command has returned, with a request or because the device is gone.
    pub fn completed(&mut self, op: FrontendOp, result: Result<u32, IoFailure>) {
        let tag = op.number as u16;
        let Some(state) = self.tags.get_mut(usize::from(tag)).filter(|state| **state == Tag::Waiting) else {
            return;
        };
        self.waiting -= 1;
        *state = match result {
            Err(failure) => {
                self.ended.get_or_insert(failure);
                Tag::Off
            }
            Ok(_) if self.mode == Mode::Left => Tag::Left,
            Ok(_) => {
                self.arrived.push(tag);
                Tag::Arrived
            }
        };
    }

    /// Begins requests that have arrived. True if the engine was given something.
    pub fn turn(
        &mut self,
        engine: &mut impl ClientEngine,
        kernel: &mut dyn Kernel,
        now: Nanos,
        at: Instant,
    ) -> bool {
        if self.arrived.is_empty() {
            return false;
        }
        let mut started = false;
        let mut arrived = std::mem::replace(&mut self.arrived, std::mem::take(&mut self.arrived_before));
        for tag in arrived.drain(..) {
            started |= self.begin_request(engine, kernel, tag, now, at);
        }
        self.arrived_before = arrived;
        started
    }

    /// True if the engine was given the request. One without memory waits.
    fn begin_request(
        &mut self,
        engine: &mut impl ClientEngine,
        kernel: &mut dyn Kernel,
        tag: u16,
        now: Nanos,
        at: Instant,
    ) -> bool {
        if self.mode == Mode::Refusing {
            self.next(kernel, tag, Some(failed(Errno::Io)));
            return false;
        }
        let Some(description) = kernel.description(tag) else { return false };
        let bounds = Bounds {
            size_bytes: self.options.size_bytes,
            read_only: false,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        };
        let request = match step(&description, &bounds) {
            Step::Serve(request) => request,
            Step::Answer(answer) => {
                self.next(kernel, tag, Some(answer));
                return false;
            }
        };
        let mut buffer = None;
        if request.operation.has_payload() {
            buffer = self.take(kernel.pool(), covered_bytes(&request)); // at most a block more than the longest payload
            if buffer.is_none() {
                self.arrived.push(tag);
                return false;
            }
        }
        if let (Operation::Write { .. }, Some(buffer)) = (request.operation, buffer)
            && kernel.copy_from(tag, payload(buffer, &request)).is_err()
        {
            self.let_go(kernel.pool(), Some(buffer));
            self.next(kernel, tag, Some(failed(Errno::Io)));
            return false;
        }
        self.tags[usize::from(tag)] = Tag::Working { request, buffer };
        self.working += 1;
        let client = &mut self.client;
        let treatment =
            treatment(&request, |direction, offset, len| client.decide(direction, offset, len, at));
        let (op, volume) = (self.op(tag), self.options.volume);
        let submission = Submission { op, volume, request: &request, buffer, treatment };
        submission.submit(engine, now, kernel.pool(), &mut self.crcs);
        true
    }

    /// The engine has answered a request.
    pub fn replied(&mut self, kernel: &mut dyn Kernel, id: RequestId, result: Result<(), RequestError>) {
        let tag = FrontendOp::of_request(id).number as u16;
        let Some(&Tag::Working { request, buffer }) = self.tags.get(usize::from(tag)) else { return };
        self.working -= 1;
        let mut answer = match result {
            Ok(()) => Some(done(&request)),
            Err(RequestError::Shutdown) if self.mode == Mode::Left => None,
            Err(RequestError::Invalid) => Some(failed(Errno::Invalid)),
            Err(RequestError::Io | RequestError::Shutdown) => Some(failed(Errno::Io)),
        };
        if let (Operation::Read, Some(buffer), Ok(())) = (request.operation, buffer, result)
            && kernel.copy_to(tag, payload(buffer, &request)).is_err()
        {
            answer = Some(failed(Errno::Io));
        }
        self.let_go(kernel.pool(), buffer);
        match answer {
            Some(answer) => self.next(kernel, tag, Some(answer)),
            None => self.tags[usize::from(tag)] = Tag::Left,
        }
    }

    /// Memory for a request: from the pool, else the device's own.
    fn take(&mut self, pool: &mut BufPool, bytes: usize) -> Option<BufId> {
        pool.alloc_leaving(FOR_REPLIES, bytes).or_else(|| self.spare.take())
    }

    fn let_go(&mut self, pool: &mut BufPool, buffer: Option<BufId>) {
        match buffer {
            Some(buffer) if buffer == self.spare_id => self.spare = Some(buffer),
            Some(buffer) => pool.free(buffer),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
