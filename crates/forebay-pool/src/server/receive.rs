//! Input of a connection: received bytes become steps of the session, and steps become requests.
//!
//! All requests of one receive are started together, so that they share a batch of the log. A
//! request that finds no memory stays in the session, and [`Server::wake_blocked`] tries again.

use super::{ARRIVING_VOLUMES, Arriving, BLOCK, LINGER_BYTES_MAX, Pace, Server};
use crate::client_request::ClientEngine;
use forebay_export::nbd::CloseReason;
use forebay_export::nbd::session::{Input, NbdRequest, NbdStep};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{BufPool, IoFailureKind, Reactor, Span};
use std::time::Instant;

impl Server {
    /// A connection has received bytes, or failed.
    pub(super) fn received(
        &mut self,
        reactor: &mut Reactor,
        index: u32,
        result: Result<u32, forebay_io::IoFailure>,
    ) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        connection.receiving = false;
        let cancelled = std::mem::take(&mut connection.cancelling);
        match result {
            // Cancelled for quiescing: no data was lost.
            Err(failure) if cancelled && failure.kind == IoFailureKind::Cancelled => {}
            Ok(0) | Err(_) => (connection.closing, connection.ignore_input) = (true, true),
            Ok(bytes) if connection.lingers_since.is_some() => {
                // A client that sends without end is cut off.
                connection.lingered_bytes += u64::from(bytes);
                connection.ignore_input |= connection.lingered_bytes > LINGER_BYTES_MAX;
            }
            Ok(bytes) if connection.tls.is_some() => self.decrypt(reactor, index, bytes),
            Ok(bytes) => match &mut connection.arriving {
                Some(arriving) => {
                    arriving.received += bytes;
                    connection.session.payload_received(bytes as usize);
                }
                None => {
                    connection.filled = bytes as usize;
                    connection.used = 0;
                }
            },
        }
        self.enqueue(index);
    }

    /// Parses received bytes and sends replies, for every connection that has either. Returns true
    /// if requests were given to the engine.
    pub fn turn(&mut self, engine: &mut impl ClientEngine, reactor: &mut Reactor, now: u64) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let mut started = false;
        self.turn_at = Instant::now();
        std::mem::swap(&mut self.queue, &mut self.taken);
        for at in 0..self.taken.len() {
            let index = self.taken[at];
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.queued = false;
                started |= self.parse(engine, reactor, index, now);
            }
            self.settle(reactor, index);
            self.count(index);
        }
        self.taken.clear();
        started
    }

    /// Memory was freed: lets connections that waited for it continue.
    pub fn wake_blocked(&mut self) {
        self.divide_memory();
        // Each time another connection is the first to get the freed memory.
        self.blocked_from += 1;
        let count = self.counters().waiting().len();
        for at in 0..count {
            self.enqueue(self.counters.waiting()[(self.blocked_from + at) % count]);
        }
    }

    /// Sets the amount of memory up to which a connection can still get more while others wait:
    /// else it would get back at once the memory that it frees, as it is the first to notice.
    /// Connections without memory go first; then those with less than most. Each connection without
    /// memory gets enough for one request, so all of them progress.
    fn divide_memory(&mut self) {
        let (held_bytes, mut users) = self.counters().held();
        let (mut waits, mut waits_with_nothing, mut first) = (false, false, None);
        for &index in self.counters.wanting() {
            let Some(Some(connection)) = self.connections.get(index as usize) else { continue };
            let has_nothing = connection.held_bytes == 0;
            if has_nothing {
                // Connections of volumes with many incoming payloads wait for those without.
                let coming = self.arriving_bytes_of(connection.volume);
                let place = (connection.crowded, coming, connection.wants_memory_since, index);
                first = Some(first.map_or(place, |first| place.min(first)));
            }
            // A crowded connection waits for memory of others of its volume.
            waits |= !connection.crowded;
            waits_with_nothing |= !connection.crowded && has_nothing;
            users += u64::from(!connection.crowded && has_nothing);
        }
        self.reserve_owner = first.map(|(_, _, _, index)| index);
        self.share_bytes = match (waits, waits_with_nothing) {
            (false, _) => u64::MAX,
            (true, true) => 0,
            (true, false) => held_bytes / users.max(1),
        };
    }

    /// Steps the session over the content of the receive buffer.
    pub(super) fn parse(
        &mut self,
        engine: &mut impl ClientEngine,
        reactor: &mut Reactor,
        index: u32,
        now: u64,
    ) -> bool {
        let mut started = false;
        loop {
            let connection = self.connections[index as usize].as_mut().expect("checked by the caller");
            let is_full = connection.is_full() && connection.arriving.is_none();
            if connection.closing || self.closing || is_full || connection.handshake.is_some() {
                return started;
            }
            connection.wants_memory = false;
            if let Some(arriving) = connection.arriving {
                if connection.session.payload_remaining() > 0 {
                    return started;
                }
                connection.arriving = None;
                let bytes = reactor.pool().capacity(arriving.buffer) as u64;
                let volume = connection.volume.expect("requests follow the handshake");
                self.arriving_bytes[usize::from(volume.0)] -= bytes;
                self.submit(engine, reactor, index, arriving.request, Some(arriving.buffer), now);
                started = true;
                continue;
            }
            if let Some(request) = connection.blocked.take() {
                if !self.start(engine, reactor, index, request, now) {
                    return started;
                }
                started = true;
                continue;
            }
            if self.quiescing && connection.may_quiesce() {
                return started;
            }
            match self.step(reactor, index) {
                NbdStep::NeedMore => return started,
                NbdStep::Output => {
                    self.scratch.clear();
                    let connection = self.connections[index as usize].as_mut().expect("it is stepped");
                    connection.session.take_output(&mut self.scratch);
                    let bytes = std::mem::take(&mut self.scratch);
                    self.queue_reply(reactor, index, &bytes, None);
                    self.scratch = bytes;
                }
                NbdStep::StartTls => {
                    self.begin_tls(reactor, index);
                    return started;
                }
                NbdStep::Established => self.established(reactor, index),
                NbdStep::Request(request) => {
                    if !self.start(engine, reactor, index, request, now) {
                        return started;
                    }
                    started = true;
                }
                NbdStep::WritePayload(request) => {
                    if !self.take_payload(reactor, index, request) {
                        return started;
                    }
                }
                NbdStep::Close(reason) => {
                    let connection = self.connections[index as usize].as_mut().expect("it is stepped");
                    connection.closing = true;
                    if !reason.is_clean() && !matches!(reason, CloseReason::Disconnected) {
                        self.refusals.note(format!("closed a connection of {}: {reason}", connection.peer));
                    }
                    return started;
                }
            }
        }
    }

    pub(super) fn step(&mut self, reactor: &Reactor, index: u32) -> NbdStep {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let bytes: &[u8] = match connection.buffer {
            Some(buffer) if connection.used < connection.filled => {
                &reactor.pool().bytes(buffer)[connection.used..connection.filled]
            }
            _ => &[],
        };
        let mut input = Input::new(bytes);
        let seen = self.directory.seen_by(connection.endpoint, &connection.peer);
        let step = connection.session.step(&mut input, &seen);
        if let Some(why) = seen.hidden.into_inner() {
            self.refusals.note(format!("{} {why}", connection.peer));
        }
        connection.used += input.used();
        step
    }

    /// Gives a write its buffer and the received part of its payload; false if there is no memory.
    pub(super) fn take_payload(&mut self, reactor: &mut Reactor, index: u32, request: NbdRequest) -> bool {
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let lead = (request.request.offset_bytes % BLOCK) as usize;
        let len = request.request.length_bytes as usize;
        let bytes = (lead + len).next_multiple_of(BLOCK_BYTES);
        let volume = connection.volume.expect("requests follow the handshake");
        // A complete payload need not wait.
        let is_there = connection.filled - connection.used >= connection.session.payload_remaining();
        if !is_there && !self.may_arrive(index, volume, BufPool::bytes_for(bytes) as u64) {
            let now = self.turn_at;
            let connection = self.connections[index as usize].as_mut().expect("it is stepped");
            connection.waits_for_memory(now, true);
            return false;
        }
        let Some(buffer) = self.memory_for(reactor, index, bytes) else { return false };
        let number = usize::from(volume.0);
        self.arriving_bytes.resize(self.arriving_bytes.len().max(number + 1), 0);
        self.arriving_bytes[number] += reactor.pool().capacity(buffer) as u64;
        let connection = self.connections[index as usize].as_mut().expect("it is stepped");
        let mut received = 0;
        if let Some(from) = connection.buffer {
            // Copies the payload from one pool buffer to another; the session only counts.
            let (used, filled) = (connection.used, connection.filled);
            let there = (filled - used).min(connection.session.payload_remaining());
            let piece = |buf, offset: usize| Span { buf, offset: offset as u32, len: there as u32 };
            if there > 0 {
                reactor.pool_mut().copy(piece(from, used), piece(buffer, lead));
                connection.session.payload_received(there);
                connection.used += there;
                received = there as u32;
            }
        }
        connection.arriving = Some(Arriving { request, buffer, received, pace: Pace::default() });
        true
    }

    /// Memory of incoming payloads of a volume.
    fn arriving_bytes_of(&self, volume: Option<VolumeId>) -> u64 {
        volume.and_then(|volume| self.arriving_bytes.get(usize::from(volume.0))).copied().unwrap_or(0)
    }

    /// True if a volume may have one more incoming payload. The connection that has waited longest
    /// may have one beyond the limit of its volume, and, if nothing is incoming for its volume,
    /// also beyond the limit of all volumes.
    fn may_arrive(&self, index: u32, volume: VolumeId, bytes: u64) -> bool {
        let coming = self.arriving_bytes_of(Some(volume));
        let first = self.reserve_owner == Some(index);
        let spare = if first { bytes } else { 0 };
        let all = self.arriving_bytes.iter().sum::<u64>() + bytes;
        coming + bytes <= self.arriving_bytes_max + spare
            && (all <= ARRIVING_VOLUMES * self.arriving_bytes_max || first && coming == 0)
    }
}
