//! A server in memory around a [`Session`]: a sparse disk that serves every request at once. Used
//! directly, as the peer of a client, and behind sockets.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

pub mod client;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use forebay_export::directory::ExportInfo;
use forebay_export::nbd::codec::{self, RequestHeader, opt};
use forebay_export::nbd::{CloseReason, Errno, Extent, Input, Limits, NbdRequest, NbdStep, Session};
use forebay_export::request::{ClientRequest, Operation};

pub const PAGE: u64 = 4096;

/// Pages that were written; all others are holes. A page is dirty until the next flush.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    pages: BTreeMap<u64, (Box<[u8]>, bool)>,
    pub flushes: u64,
}

impl Disk {
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.pieces(offset, into.len() as u64, |page, at, range| {
            let to = &mut into[range];
            match self.pages.get(&page) {
                Some((bytes, _)) => to.copy_from_slice(&bytes[at..at + to.len()]),
                None => to.fill(0),
            }
        });
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut todo = Vec::new();
        self.pieces(offset, data.len() as u64, |page, at, range| todo.push((page, at, range)));
        for (page, at, range) in todo {
            let empty = || (vec![0; PAGE as usize].into_boxed_slice(), true);
            let (bytes, dirty) = self.pages.entry(page).or_insert_with(empty);
            bytes[at..at + range.len()].copy_from_slice(&data[range]);
            *dirty = true;
        }
    }

    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        if whole.start >= whole.end {
            return self.zero_bytes(offset, length);
        }
        let inside: Vec<u64> = self.pages.range(whole.clone()).map(|(page, _)| *page).collect();
        for page in inside {
            self.pages.remove(&page);
        }
        self.zero_bytes(offset, whole.start * PAGE - offset);
        self.zero_bytes(whole.end * PAGE, end - whole.end * PAGE);
    }

    fn zero_bytes(&mut self, offset: u64, length: u64) {
        let zeroes = vec![0; length as usize];
        let mut present = Vec::new();
        self.pieces(offset, length, |page, at, range| {
            if self.pages.contains_key(&page) {
                present.push((page * PAGE + at as u64, range.len()));
            }
        });
        for (at, count) in present {
            self.write(at, &zeroes[..count]);
        }
    }

    pub fn flush(&mut self) {
        self.flushes += 1;
        self.pages.values_mut().for_each(|(_, dirty)| *dirty = false);
    }

    pub fn extents(&self, offset: u64, length: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            let (next, extent) = match self.pages.get(&page) {
                Some((_, dirty)) => (page + 1, Extent { cached: true, dirty: *dirty, ..Extent::default() }),
                None => {
                    let next = self.pages.range(page..).next().map_or(u64::MAX / PAGE, |(page, _)| *page);
                    (next, Extent { hole: true, zero: true, ..Extent::default() })
                }
            };
            let next = (next * PAGE).min(end);
            extents.push(Extent { length_bytes: next - at, ..extent });
            at = next;
        }
        extents
    }

    fn pieces(&self, offset: u64, length: u64, mut with: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < length {
            let (page, at) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let count = (PAGE - at).min(length - done);
            with(page, at as usize, done as usize..(done + count) as usize);
            done += count;
        }
    }
}

/// An event of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Established(ExportInfo),
    Request(NbdRequest),
    Write(NbdRequest, Vec<u8>),
    StartTls,
    Close(CloseReason),
}

/// How a peer takes payload out of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    Copy,
    /// Like a receive straight into the destination.
    Direct,
}

#[derive(Debug)]
pub struct Peer {
    pub session: Session,
    pub exports: Vec<ExportInfo>,
    pub disk: Arc<Mutex<Disk>>,
    pub events: Vec<Event>,
    pub payload: Payload,
    /// Serve requests; otherwise only record them.
    pub serve: bool,
    write: Option<(NbdRequest, Vec<u8>)>,
    pub memory_bytes_max: usize,
}

impl Peer {
    pub fn new(exports: Vec<ExportInfo>) -> Peer {
        Peer::with_limits(exports, Limits::default())
    }

    pub fn with_limits(exports: Vec<ExportInfo>, limits: Limits) -> Peer {
        Peer {
            session: Session::new(limits),
            exports,
            disk: Arc::default(),
            events: Vec::new(),
            payload: Payload::Copy,
            serve: true,
            write: None,
            memory_bytes_max: 0,
        }
    }

    pub fn closed(&self) -> Option<CloseReason> {
        match self.events.last() {
            Some(Event::Close(reason)) => Some(*reason),
            _ => None,
        }
    }

    /// Consumes all the bytes, or closes.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut input = Input::new(bytes);
        loop {
            let step = self.session.step(&mut input, &self.exports);
            self.memory_bytes_max = self.memory_bytes_max.max(self.session.memory_bytes());
            match step {
                NbdStep::NeedMore => {
                    assert!(input.is_empty(), "input left over");
                    return;
                }
                NbdStep::Output => {
                    assert!(!self.session.output().is_empty());
                    self.session.take_output(out);
                }
                NbdStep::StartTls => {
                    assert!(input.is_empty(), "plaintext left over");
                    return self.events.push(Event::StartTls);
                }
                NbdStep::Established => {
                    let export = self.session.export().cloned().expect("established without an export");
                    self.events.push(Event::Established(export));
                }
                NbdStep::Request(request) => {
                    self.events.push(Event::Request(request));
                    if self.serve {
                        self.serve(request, &[], out);
                    }
                }
                NbdStep::WritePayload(request) => {
                    if !self.take_write(request, &mut input, out) {
                        return;
                    }
                }
                NbdStep::Close(reason) => {
                    if self.closed().is_none() {
                        self.events.push(Event::Close(reason));
                    }
                    return;
                }
            }
        }
    }

    /// Returns true when the payload is complete.
    fn take_write(&mut self, request: NbdRequest, input: &mut Input<'_>, out: &mut Vec<u8>) -> bool {
        let length = request.request.length_bytes as usize;
        let (known, mut data) = self.write.take().unwrap_or_else(|| (request, Vec::new()));
        assert_eq!(known, request);
        let missing = self.session.payload_remaining();
        if missing > 0 {
            assert_eq!(missing, length - data.len());
            let before = data.len();
            if self.payload == Payload::Direct {
                let count = input.rest().len().min(missing);
                data.extend_from_slice(&input.rest()[..count]);
                *input = Input::new(&input.rest()[count..]);
                self.session.payload_received(count);
            } else {
                data.resize(length, 0);
                let count = self.session.take_payload(input, &mut data[before..]);
                data.truncate(before + count);
            }
        }
        if data.len() < length {
            assert!(input.is_empty());
            self.write = Some((request, data));
            return false;
        }
        self.finish_write(request, &data, out);
        true
    }

    fn finish_write(&mut self, request: NbdRequest, data: &[u8], out: &mut Vec<u8>) {
        self.events.push(Event::Write(request, data.to_vec()));
        if self.serve {
            self.serve(request, data, out);
        }
    }

    fn serve(&mut self, request: NbdRequest, data: &[u8], out: &mut Vec<u8>) {
        let mut disk = self.disk.lock().unwrap();
        let replier = self.session.replier();
        let NbdRequest { cookie, request } = request;
        let ClientRequest { operation, offset_bytes: offset, length_bytes: length } = request;
        match operation {
            Operation::Read => {
                let header = replier.read_header(cookie, offset, length as u32);
                out.extend_from_slice(header.as_bytes());
                let start = out.len();
                out.resize(start + length as usize, 0);
                disk.read(offset, &mut out[start..]);
                return;
            }
            Operation::Write { .. } => disk.write(offset, data),
            Operation::Flush => disk.flush(),
            Operation::Trim { .. } => disk.zero(offset, length),
            Operation::WriteZeroes { fast_only: true, .. } => {
                return replier.error(out, cookie, Errno::NotSupported, "slow today");
            }
            Operation::WriteZeroes { .. } => disk.zero(offset, length),
            Operation::Cache => {}
            Operation::BlockStatus { .. } => {
                return replier.block_status(out, cookie, &request, &disk.extents(offset, length));
            }
        }
        if operation.fua() {
            disk.flush();
        }
        replier.ok(out, cookie);
    }
}

/// The client's end of a peer: writes are served at once, and replies can be read.
#[derive(Debug)]
pub struct Pipe {
    pub peer: Peer,
    answers: Vec<u8>,
    read: usize,
    /// Most bytes per call, in both directions.
    pub chunk: usize,
}

impl Pipe {
    pub fn new(mut peer: Peer, chunk: usize) -> Pipe {
        let mut answers = Vec::new();
        peer.feed(&[], &mut answers);
        Pipe { peer, answers, read: 0, chunk }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.answers.len() - self.read).min(self.chunk);
        into[..count].copy_from_slice(&self.answers[self.read..self.read + count]);
        self.read += count;
        if self.read == self.answers.len() {
            self.answers.clear();
            self.read = 0;
        }
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.chunk);
        self.peer.feed(&bytes[..count], &mut self.answers);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns one export of 8 GiB and one small read-only one.
pub fn two_exports() -> Vec<ExportInfo> {
    let mut small = ExportInfo::new("iso", 10_000);
    small.read_only = true;
    small.multi_conn = false;
    small.description = "installation medium".to_owned();
    vec![ExportInfo::new("db", 8 << 30), small]
}

/// Returns the client's flags and options up to transmission, with structured replies and both
/// contexts or not.
pub fn hello(name: &str, structured: bool) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    if structured {
        codec::encode_option(&mut bytes, opt::STRUCTURED_REPLY, &[]);
        codec::encode_option(
            &mut bytes,
            opt::SET_META_CONTEXT,
            &meta(name, &["base:allocation", "forebay:cache"]),
        );
    }
    codec::encode_option(&mut bytes, opt::GO, &go(name, &[]));
    bytes
}

/// Returns the data of INFO and GO.
pub fn go(name: &str, facts: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    codec::encode_counted(&mut data, name.as_bytes());
    data.extend_from_slice(&(facts.len() as u16).to_be_bytes());
    facts.iter().for_each(|fact| data.extend_from_slice(&fact.to_be_bytes()));
    data
}

/// Returns the data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    codec::encode_counted(&mut data, name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| codec::encode_counted(&mut data, query.as_bytes()));
    data
}

/// Returns a request without payload.
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { flags, kind, cookie, offset, length }.encode().to_vec()
}

/// Returns a peer in transmission, without its output so far.
pub fn established(name: &str, structured: bool, limits: Limits) -> Peer {
    let mut peer = Peer::with_limits(two_exports(), limits);
    peer.feed(&hello(name, structured), &mut Vec::new());
    assert!(matches!(peer.events[..], [Event::Established(_)]), "{:?}", peer.events);
    peer.events.clear();
    peer
}

/// Tight limits, for hostile peers.
pub const TIGHT: Limits =
    Limits { payload_bytes_max: 4096, option_bytes_max: 2048, options_max: 30, skip_bytes_max: 100_000 };

/// Most memory of a session with these limits: an option being collected (a vector may be twice as
/// long as its content) and the reply to one option.
const TIGHT_MEMORY_BYTES_MAX: usize = 2 * 2048 + 4096;

impl Peer {
    /// Checks that a session with [`TIGHT`] limits took no more memory than that, and that every
    /// accepted request is within bounds.
    pub fn check_tight(&self) {
        assert!(self.memory_bytes_max <= TIGHT_MEMORY_BYTES_MAX, "{} bytes held", self.memory_bytes_max);
        let mut size = 0;
        for event in &self.events {
            let request = match event {
                Event::Established(export) => {
                    size = export.size_bytes;
                    continue;
                }
                Event::StartTls | Event::Close(_) => continue,
                Event::Request(request) => request.request,
                Event::Write(request, data) => {
                    assert_eq!(data.len() as u64, request.request.length_bytes);
                    request.request
                }
            };
            assert!(request.offset_bytes + request.length_bytes <= size, "beyond the end");
            assert!(!request.operation.has_payload() || request.length_bytes <= 4096, "too long");
        }
    }
}

/// Returns the bytes of a client that reads, writes and disconnects.
pub fn conversation() -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    codec::encode_option(&mut bytes, opt::LIST, &[]);
    codec::encode_option(&mut bytes, opt::INFO, &go("iso", &[1, 2, 3]));
    bytes.extend_from_slice(&hello("db", true)[4..]);
    for at in 0..8_u64 {
        bytes.extend(request(codec::cmd::WRITE, 0, at, at * 4096, 100));
        bytes.extend([at as u8; 100]);
        bytes.extend(request((at % 8) as u16 & !1, 0, at, at * 512, 4096));
    }
    bytes.extend(request(codec::cmd::DISC, 0, 0, 0, 0));
    bytes
}
