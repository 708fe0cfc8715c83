//! A server with a volatile cache and several sessions, which need not end with their connections.

use std::collections::{BTreeMap, BTreeSet};

use super::{BLOCK, BLOCKS, LATE_MS, Random};
use crate::common::{Event, Peer};
use forebay_export::directory::ExportInfo;
use forebay_export::nbd::NbdRequest;
use forebay_export::request::Operation;

/// Why the server does not run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    No,
    /// Its process has ended, until then.
    Crashed(u64),
    Paused(u64),
}

#[derive(Debug, Clone)]
struct Queued {
    request: NbdRequest,
    data: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    input: Vec<u8>,
    output: Vec<u8>,
    queue: Vec<Queued>,
    /// The last request whose reply is still in `output`.
    last: Option<Queued>,
    /// It is served by the swapped server.
    is_other: bool,
}

/// A request of an ended session, and when the server has run for long enough to apply it.
#[derive(Debug)]
struct Late {
    due_ms: u64,
    queued: Queued,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) stop: Stop,
    image: Vec<u8>,
    durable: Vec<u8>,
    /// Changes that no FLUSH covers.
    volatile: Vec<(u64, Vec<u8>)>,
    connections: BTreeMap<u64, Connection>,
    connecting: Vec<u64>,
    late: Vec<Late>,
    /// For how long it has run.
    run_ms: u64,
    last_ms: u64,
    /// Until then an export of another size is in its place.
    other_until: Option<u64>,
    /// Writes by number that were unanswered when their session ended.
    unanswered: BTreeSet<u64>,
}

impl Server {
    pub(super) fn new() -> Server {
        let bytes = vec![0; (BLOCK * BLOCKS) as usize];
        Server {
            stop: Stop::No,
            image: bytes.clone(),
            durable: bytes,
            volatile: Vec::new(),
            connections: BTreeMap::new(),
            connecting: Vec::new(),
            late: Vec::new(),
            run_ms: 0,
            last_ms: 0,
            other_until: None,
            unanswered: BTreeSet::new(),
        }
    }

    /// Requests of a client that has ended: they write zeroes.
    pub(super) fn leave_requests(&mut self, random: &mut Random) {
        for block in 0..BLOCKS {
            let request = forebay_export::request::ClientRequest {
                operation: Operation::Write { fua: false },
                offset_bytes: block * BLOCK,
                length_bytes: BLOCK,
            };
            let queued = Queued { request: NbdRequest { cookie: 0, request }, data: vec![0; BLOCK as usize] };
            self.late.push(Late { due_ms: random.below(LATE_MS), queued });
        }
    }

    pub(super) fn pause_until(&mut self, until: u64) {
        if self.stop == Stop::No {
            self.stop = Stop::Paused(until);
        }
    }

    /// Another export is served once the server runs again, until then.
    pub(super) fn swap_until(&mut self, until: u64) {
        self.other_until = Some(until);
    }

    pub(super) fn sessions(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    pub(super) fn connect(&mut self, session: u64) {
        self.connecting.push(session);
    }

    /// Sockets that are connected now, or refused.
    pub(super) fn connects(&mut self, _: u64, random: &mut Random) -> Vec<(u64, bool)> {
        let mut answers = Vec::new();
        for session in std::mem::take(&mut self.connecting) {
            match self.stop {
                _ if random.one_in(3) => self.connecting.push(session),
                Stop::Crashed(_) => answers.push((session, false)),
                // The kernel accepts connections for a paused process.
                Stop::No | Stop::Paused(_) => {
                    let is_other = self.other_until.is_some();
                    let size = BLOCK * (BLOCKS - u64::from(is_other));
                    let mut peer = Peer::new(vec![ExportInfo::new("vol", size)]);
                    peer.serve = false;
                    let mut output = Vec::new();
                    peer.feed(&[], &mut output);
                    let (input, queue, last) = (Vec::new(), Vec::new(), None);
                    let connection = Connection { peer, input, output, queue, last, is_other };
                    self.connections.insert(session, connection);
                    answers.push((session, true));
                }
            }
        }
        answers
    }

    pub(super) fn sent(&mut self, session: u64, bytes: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&session) {
            connection.input.extend_from_slice(bytes);
        }
    }

    pub(super) fn take_output(&mut self, session: u64, random: &mut Random) -> Vec<u8> {
        let Some(connection) = self.connections.get_mut(&session) else { return Vec::new() };
        let count = connection.output.len() as u64;
        let count = if random.one_in(3) { random.below(count + 1) } else { count };
        let bytes: Vec<u8> = connection.output.drain(..count as usize).collect();
        if connection.output.is_empty() {
            connection.last = None;
        }
        bytes
    }

    /// The client's side of a connection is closed. Requests that were sent may take effect later.
    pub(super) fn cut(&mut self, session: u64, random: &mut Random) {
        self.connecting.retain(|other| *other != session);
        let Some(mut connection) = self.connections.remove(&session) else { return };
        connection.take_input();
        if connection.is_other {
            return;
        }
        for queued in connection.queue.into_iter().chain(connection.last) {
            self.unanswered.extend(number(&queued.data));
            if !queued.request.request.operation.modifies() {
                continue;
            }
            for _ in 0..random.below(3) {
                let due_ms = self.run_ms + random.below(LATE_MS);
                self.late.push(Late { due_ms, queued: queued.clone() });
            }
        }
    }

    /// The process ends: what was not flushed may be lost. Returns the sessions.
    pub(super) fn crash(&mut self, until: u64, random: &mut Random) -> Vec<u64> {
        self.stop = Stop::Crashed(until);
        self.late.clear();
        self.image.clone_from(&self.durable);
        for (offset, data) in std::mem::take(&mut self.volatile) {
            if random.one_in(2) {
                write(&mut self.image, offset, &data);
            }
        }
        self.durable.clone_from(&self.image);
        std::mem::take(&mut self.connections).into_keys().collect()
    }

    pub(super) fn step(&mut self, now_ms: u64, random: &mut Random) -> Result<(), String> {
        let passed = now_ms - std::mem::replace(&mut self.last_ms, now_ms);
        match self.stop {
            Stop::Crashed(until) | Stop::Paused(until) if until > now_ms => return Ok(()),
            _ => self.stop = Stop::No,
        }
        if self.other_until.is_some_and(|until| until <= now_ms) {
            self.other_until = None;
            let others: Vec<u64> =
                self.connections.iter().filter(|(_, other)| other.is_other).map(|(id, _)| *id).collect();
            for id in others {
                // As if the administrator had restarted it: its connections stay silent.
                self.connections.get_mut(&id).into_iter().for_each(|connection| connection.output.clear());
            }
        }
        self.run_ms += passed;
        for late in std::mem::take(&mut self.late) {
            if late.due_ms <= self.run_ms {
                self.apply(&late.queued);
            } else {
                self.late.push(late);
            }
        }
        for session in self.sessions() {
            self.serve(session, random)?;
        }
        Ok(())
    }

    fn serve(&mut self, session: u64, random: &mut Random) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&session) else { return Ok(()) };
        connection.take_input();
        if let (true, Some(queued)) = (connection.is_other, connection.queue.first()) {
            return Err(format!("a request was sent to another export: {:?}", queued.request));
        }
        let count = random.below(connection.queue.len() as u64 + 2);
        for _ in 0..count {
            let Some(connection) = self.connections.get_mut(&session) else { break };
            if connection.queue.is_empty() {
                break;
            }
            let at = random.below(connection.queue.len() as u64) as usize;
            let queued = connection.queue.swap_remove(at);
            self.apply(&queued);
            let replier = self.connections[&session].peer.session.replier();
            let Some(connection) = self.connections.get_mut(&session) else { break };
            let NbdRequest { cookie, request } = queued.request;
            if request.operation == Operation::Read {
                let header = replier.read_header(cookie, request.offset_bytes, request.length_bytes as u32);
                connection.output.extend_from_slice(header.as_bytes());
                let (start, end) = (request.offset_bytes as usize, request.end_bytes() as usize);
                connection.output.extend_from_slice(&self.image[start..end]);
            } else {
                replier.ok(&mut connection.output, cookie);
            }
            connection.last = Some(queued);
        }
        Ok(())
    }

    fn apply(&mut self, queued: &Queued) {
        let request = queued.request.request;
        let data = match request.operation {
            Operation::Write { .. } => queued.data.clone(),
            Operation::WriteZeroes { .. } => vec![0; request.length_bytes as usize],
            Operation::Flush => {
                self.durable.clone_from(&self.image);
                return self.volatile.clear();
            }
            _ => return,
        };
        write(&mut self.image, request.offset_bytes, &data);
        self.volatile.push((request.offset_bytes, data));
    }

    /// This write was unanswered when its session ended.
    pub(super) fn is_repeated(&self, number: u64) -> bool {
        self.unanswered.contains(&number)
    }

    pub(super) fn image(&self, block: u64) -> &[u8] {
        &self.image[(block * BLOCK) as usize..][..BLOCK as usize]
    }

    pub(super) fn durable(&self, block: u64) -> &[u8] {
        &self.durable[(block * BLOCK) as usize..][..BLOCK as usize]
    }
}

impl Connection {
    /// Queues the requests among the bytes that came.
    fn take_input(&mut self) {
        let input = std::mem::take(&mut self.input);
        self.peer.feed(&input, &mut self.output);
        for event in self.peer.events.drain(..) {
            match event {
                Event::Request(request) => self.queue.push(Queued { request, data: Vec::new() }),
                Event::Write(request, data) => self.queue.push(Queued { request, data }),
                _ => {}
            }
        }
    }
}

/// The number of a write.
fn number(data: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*data.first_chunk()?))
}

fn write(image: &mut [u8], offset: u64, data: &[u8]) {
    image[offset as usize..][..data.len()].copy_from_slice(data);
}
