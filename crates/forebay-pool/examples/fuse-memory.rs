//! A volume in memory, or a small control file system, behind the real FUSE server: what the tests
//! in `tests/fuse` mount and kill. What it serves is said by the environment variables in
//! `tests/fuse/names.rs`.
//!
//! It says `ready` (or why not), and unmounts when its standard input ends.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use forebay_core::{BufId, Request, RequestId, RequestKind};
use forebay_export::fuse::{ControlTree, Errno, Limits, NodeKind, Provider, Session, Tree, VolumeTree};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::fuse::{MountMethod, MountOptions, Place, mount, volume_place};
use forebay_io::{EnginePreference, Reactor, Span};
use forebay_pool::fuse_server::{
    BUFFER_BYTES_DEFAULT, Backend, FuseMemory, FuseOptions, FuseServer, RingMemory,
};
use forebay_pool::token::Token;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "../tests/fuse/names.rs"]
mod names;

use names::{DELAY_US, ENGINE, METHOD, PATH, POOL, RING, SIZE};

/// A request that ends later.
struct Later {
    due: Instant,
    id: RequestId,
    result: Result<(), Errno>,
}

/// What the server's requests are done on.
struct Memory {
    bytes: Vec<u8>,
    delay: Duration,
    /// Handed over in this turn of the loop.
    requests: Vec<(RequestId, RequestKind, u64, u64, Option<BufId>)>,
    later: Vec<Later>,
    flushes: u64,
}

impl Backend for Memory {
    fn submit(&mut self, request: Request<'_>) {
        let blocks = (request.offset % BLOCK_BYTES as u64 + request.len).div_ceil(BLOCK_BYTES as u64);
        let expected = if matches!(request.kind, RequestKind::Write { .. }) { blocks as usize } else { 0 };
        assert_eq!(request.block_crcs.len(), expected, "one checksum for each block of a write");
        self.requests.push((request.id, request.kind, request.offset, request.len, request.buf));
    }

    /// The control file `wait` never gets done by itself; `fail` fails; the others are done after
    /// the delay.
    fn store(&mut self, id: RequestId, _node: u64, text: Vec<u8>) {
        let (delay, result) = match text.trim_ascii() {
            b"wait" => (Duration::from_secs(3600), Ok(())),
            b"fail" => (Duration::ZERO, Err(Errno::Invalid)),
            _ => (self.delay, Ok(())),
        };
        self.later.push(Later { due: Instant::now() + delay, id, result });
    }

    fn interrupted(&mut self, id: RequestId) {
        for later in self.later.iter_mut().filter(|later| later.id == id) {
            (later.due, later.result) = (Instant::now(), Err(Errno::Interrupted));
        }
    }
}

impl Memory {
    /// Does what was handed over; it is answered after the delay.
    fn work(&mut self, reactor: &mut Reactor) {
        for (id, kind, offset, len, buf) in std::mem::take(&mut self.requests) {
            let range = offset as usize..(offset + len) as usize;
            let lead = (offset % BLOCK_BYTES as u64) as u32;
            let span = buf.map(|buf| Span::new(forebay_io::BufId(buf.0), lead, len as u32));
            match (kind, span) {
                (RequestKind::Read, Some(span)) => reactor.pool_mut().copy_in(span, &self.bytes[range]),
                (RequestKind::Write { .. }, Some(span)) => {
                    reactor.pool().copy_out(span, &mut self.bytes[range]);
                }
                (RequestKind::Flush, None) => self.flushes += 1,
                (RequestKind::WriteZeroes { .. }, None) => self.bytes[range].fill(0),
                other => panic!("unexpected request {other:?}"),
            }
            self.later.push(Later { due: Instant::now() + self.delay, id, result: Ok(()) });
        }
    }
}

/// The files of the control tree.
struct Files;

impl Provider for Files {
    fn find(&mut self, path: &str) -> Option<NodeKind> {
        match path {
            "volumes" | "volumes/db" => Some(NodeKind::Directory),
            "volumes/db/stats" => Some(NodeKind::File { permissions: 0o444 }),
            "volumes/db/flush" => Some(NodeKind::File { permissions: 0o200 }),
            _ => None,
        }
    }

    fn list(&mut self, path: &str) -> Vec<(String, NodeKind)> {
        let names: &[&str] = match path {
            "" => &["volumes"],
            "volumes" => &["db"],
            "volumes/db" => &["stats", "flush"],
            _ => &[],
        };
        let full = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        names.iter().filter_map(|name| Some((name.to_string(), self.find(&full(name))?))).collect()
    }

    fn text(&mut self, _path: &str) -> Result<String, Errno> {
        Ok((0..10_000).map(|line| format!("line {line}\n")).collect())
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    setting(name).map(|text| text.parse().unwrap())
}

fn main() {
    let Some(path) = setting(PATH).map(PathBuf::from) else { panic!("{PATH} says where to mount") };
    // Nothing here takes descriptors or memory of the tests: it is a process of its own.
    match number(SIZE) {
        Some(size) => {
            let (place, name) = match volume_place(&path) {
                Ok(decided) => decided,
                Err(error) => return println!("refused: {error}"),
            };
            let tree = VolumeTree::new(name.as_deref(), size, (0, 0), 1_700_000_000);
            serve(&place, tree, size);
        }
        None => serve(&Place::Directory { target: path }, ControlTree::new(Files, (0, 0), 1_700_000_000), 0),
    }
}

fn serve<T: Tree>(place: &Place, tree: T, size: u64) {
    let engine = match setting(ENGINE).as_deref() {
        Some("psync") => EnginePreference::Psync,
        _ => EnginePreference::Auto,
    };
    let method =
        if setting(METHOD).as_deref() == Some("helper") { MountMethod::Helper } else { MountMethod::Auto };
    let (fd, mounted) = match mount(place, MountOptions { method, ..MountOptions::default() }) {
        Ok(connected) => connected,
        Err(error) => return println!("refused: {error}"),
    };
    let pool = number(POOL).unwrap_or(256 << 20) as usize;
    let limits = forebay_io::Limits { buffer_bytes_max: pool, ..forebay_io::Limits::default() };
    let (mut reactor, _) = Reactor::open(engine, limits).unwrap();
    let ring = match number(RING) {
        Some(bytes) => RingMemory::reserve(&mut reactor, mounted.ring_access(), bytes as usize),
        None => Err("nobody asked for it".into()),
    };
    let ring_payload_bytes_max = ring.as_ref().map_or(0, RingMemory::payload_bytes);
    let session = Session::new(tree, Limits { ring_payload_bytes_max, ..Limits::default() });
    let options =
        FuseOptions { volume: VolumeId(1), slot: 7, buffer_bytes: BUFFER_BYTES_DEFAULT.min(pool / 2) };
    let own = FuseMemory::reserve(reactor.pool_mut()).unwrap();
    let mut server = FuseServer::new(&mut reactor, fd, session, options, own, ring).unwrap();
    let mut memory = Memory {
        bytes: vec![0; size as usize],
        delay: Duration::from_micros(number(DELAY_US).unwrap_or(0)),
        requests: Vec::new(),
        later: Vec::new(),
        flushes: 0,
    };
    let stop = watch_input(&reactor);
    println!("ready");
    let mut mounted = Some(mounted);
    let mut completions = Vec::new();
    let (mut busiest, mut way) = (0, server.way());
    while !server.is_over() {
        server.turn(&mut memory, &mut reactor);
        memory.work(&mut reactor);
        way = server.way();
        busiest = busiest.max(server.requests());
        answer_due(&mut memory, &mut server, &mut reactor);
        let due = memory.later.iter().map(|later| later.due.saturating_duration_since(Instant::now())).min();
        reactor.wait(due, &mut completions).unwrap();
        for completion in completions.drain(..) {
            let Token::Frontend(op) = Token::decode(completion.token) else { unreachable!() };
            server.completed(&mut reactor, op, completion.result);
        }
        if stop.load(Ordering::Acquire)
            && let Some(mounted) = mounted.take()
        {
            mounted.unmount().unwrap();
            server.close(&mut reactor);
        }
    }
    server.end(&mut reactor);
    assert_eq!(reactor.pool().stats().used_bytes, 0, "all memory of the mount was given back");
    println!("busiest {busiest} flushes {} over {}: {way}", memory.flushes, way.name());
}

fn answer_due<T: Tree>(memory: &mut Memory, server: &mut FuseServer<T>, reactor: &mut Reactor) {
    let now = Instant::now();
    memory.later.retain(|later| {
        if later.due > now {
            return true;
        }
        server.stored(reactor, later.id, later.result);
        false
    });
}

/// Set when standard input has ended.
fn watch_input(reactor: &Reactor) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let (flag, waker) = (Arc::clone(&stop), reactor.waker());
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Release);
        waker.wake();
    });
    stop
}
