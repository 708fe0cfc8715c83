//! Requests of clients: submitting them to the engine, and handling its replies.

use super::{Pending, Server};
use crate::client_request::{ClientEngine, FOR_REPLIES, Submission, covered_bytes, payload};
use crate::token::{FrontendOp, Protocol};
use forebay_core::{RequestError, RequestId};
use forebay_export::nbd::Errno;
use forebay_export::nbd::session::NbdRequest;
use forebay_export::request::Operation;
use forebay_io::{BufId, Reactor};

impl Server {
    /// The engine has answered a request.
    pub fn replied(&mut self, reactor: &mut Reactor, id: RequestId, result: Result<(), RequestError>) {
        let number = FrontendOp::of_request(id).number;
        let pending = self.pending[number as usize].take().expect("the engine answers each request once");
        self.free_pending.push(number);
        let Pending { connection: index, request: NbdRequest { cookie, request }, buffer, replier } = pending;
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        connection.requests -= 1;
        self.scratch.clear();
        let mut data = None;
        match result {
            Ok(()) if request.operation == Operation::Read => {
                let header = replier.read_header(cookie, request.offset_bytes, request.length_bytes as u32);
                self.scratch.extend_from_slice(header.as_bytes());
                data = buffer.map(|buffer| payload(buffer, &request));
            }
            Ok(()) => replier.ok(&mut self.scratch, cookie),
            Err(error) => replier.error(&mut self.scratch, cookie, errno(error), &error.to_string()),
        }
        if let (Some(buffer), None) = (buffer, data) {
            connection.held_bytes -= reactor.pool().capacity(buffer) as u64;
            reactor.pool_mut().free(buffer);
        }
        let bytes = std::mem::take(&mut self.scratch);
        self.queue_reply(reactor, index, &bytes, data);
        self.scratch = bytes;
    }

    /// Starts a request without payload; false if it has to wait for memory.
    pub(super) fn start(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
        now: u64,
    ) -> bool {
        let NbdRequest { cookie, request: what } = request;
        if let Operation::BlockStatus { .. } = what.operation {
            self.block_status(engine, reactor, index, request);
            return true;
        }
        if !matches!(what.operation, Operation::Read | Operation::Cache) {
            self.submit(engine, reactor, index, request, None, now);
            return true;
        }
        let len = what.length_bytes.min(forebay_core::REQUEST_BYTES_MAX);
        let request = NbdRequest {
            cookie,
            request: forebay_export::request::ClientRequest { length_bytes: len, ..what },
        };
        let buffer = self.memory_for(reactor, index, covered_bytes(&request.request));
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let Some(buffer) = buffer else {
            connection.blocked = Some(request);
            return false;
        };
        self.submit(engine, reactor, index, request, Some(buffer), now);
        true
    }

    /// Allocates memory for a request of a connection: from the pool, within the connection's
    /// share, or the memory set aside if it is its turn. `None`: it waits.
    pub(super) fn memory_for(&mut self, reactor: &mut Reactor, index: u32, bytes: usize) -> Option<BufId> {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let pool = reactor.pool_mut();
        let gets = connection.held_bytes <= self.share_bytes;
        let mut buffer = gets.then(|| pool.alloc_leaving(FOR_REPLIES, bytes)).flatten();
        if buffer.is_none()
            && connection.held_bytes == 0
            && self.reserve_owner.is_none_or(|first| first == index)
        {
            buffer = pool.borrow();
        }
        match buffer {
            Some(buffer) => {
                connection.held_bytes += pool.capacity(buffer) as u64;
                connection.wants_memory_since = None;
                self.reserve_owner.take_if(|first| *first == index);
            }
            None => connection.waits_for_memory(self.turn_at, false),
        }
        buffer
    }

    /// Keeps a request until it is answered; returns its number.
    pub(super) fn pend(&mut self, pending: Pending) -> u32 {
        let id = self.free_pending.pop().unwrap_or_else(|| {
            self.pending.push(None);
            (self.pending.len() - 1) as u32
        });
        self.pending[id as usize] = Some(pending);
        id
    }

    /// Hands a request to the engine.
    pub(super) fn submit(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        index: u32,
        request: NbdRequest,
        buffer: Option<BufId>,
        now: u64,
    ) {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        connection.requests += 1;
        let volume = connection.volume.expect("requests follow the handshake");
        let what = request.request;
        let treatment = connection.treatment(&what, self.turn_at);
        let pending = Pending { connection: index, request, buffer, replier: connection.session.replier() };
        let op = FrontendOp::new(Protocol::Nbd, 0, self.pend(pending));
        let submission = Submission { op, volume, request: &what, buffer, treatment };
        submission.submit(engine, now, reactor.pool(), &mut self.crcs);
    }
}

fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::Io,
        RequestError::Invalid => Errno::Invalid,
        RequestError::Shutdown => Errno::Shutdown,
    }
}
