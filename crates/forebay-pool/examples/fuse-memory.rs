//! A volume in memory behind the real FUSE server, which the tests in `tests/fuse` mount and kill.
//! The environment variables in `tests/fuse/names.rs` configure it.
//!
//! It prints `ready` (or why not), and unmounts when its standard input ends.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use forebay_config::rules::{ClientCache, DefaultAction, RuleSet};
use forebay_core::{BufId, Nanos, Request, RequestId, RequestKind};
use forebay_export::fuse::{Limits, Session, VolumeTree};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::fuse::{MountMethod, MountOptions, MountTarget, mount, volume_place};
use forebay_io::{EnginePreference, Reactor, Span};
use forebay_pool::client_request::ClientEngine;
use forebay_pool::fuse_server::{BUFFER_BYTES_DEFAULT, FuseMemory, FuseOptions, FuseServer, RingMemory};
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

impl ClientEngine for Memory {
    fn submit(&mut self, _: Nanos, request: Request<'_>) {
        let blocks = (request.offset % BLOCK_BYTES as u64 + request.len).div_ceil(BLOCK_BYTES as u64);
        let expected = if matches!(request.kind, RequestKind::Write { .. }) { blocks as usize } else { 0 };
        assert_eq!(request.block_crcs.len(), expected, "one checksum for each block of a write");
        self.requests.push((request.id, request.kind, request.offset, request.len, request.buf));
    }

    fn block_status(&self, _: VolumeId, _: u64, _: u64, _: &mut dyn FnMut(u64, bool, bool) -> bool) {
        unreachable!("FUSE has no such request");
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
            self.later.push(Later { due: Instant::now() + self.delay, id });
        }
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
    let Some(size) = number(SIZE) else { panic!("{SIZE} is the size of the volume") };
    let (place, name) = match volume_place(&path) {
        Ok(decided) => decided,
        Err(error) => return println!("refused: {error}"),
    };
    serve(&place, VolumeTree::new(name.as_deref(), size, (0, 0), 1_700_000_000), size);
}

fn serve(place: &MountTarget, tree: VolumeTree, size: u64) {
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
    let clients = ClientCache::new(Arc::new(RuleSet::new(DefaultAction::Cache, size)), "fuse:memory");
    let own = FuseMemory::reserve(reactor.pool_mut()).unwrap();
    let mut server = FuseServer::new(&mut reactor, fd, session, options, own, ring, clients).unwrap();
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
        server.turn(&mut memory, &mut reactor, 0, Instant::now());
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

fn answer_due(memory: &mut Memory, server: &mut FuseServer, reactor: &mut Reactor) {
    let now = Instant::now();
    memory.later.retain(|later| {
        if later.due > now {
            return true;
        }
        server.replied(reactor, later.id, Ok(()));
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
