//! A device in memory, and a engine that answers on demand: the server without ublk.

use super::*;
use forebay_config::rules::{DefaultAction, Identity, RuleSet};
use forebay_core::Request;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const SIZE: u64 = 1 << 24;
const SLOT: u16 = 7;
const DEPTH: u16 = 4;

fn op(tag: u16) -> FrontendOp {
    FrontendOp::new(Protocol::Ublk, SLOT, tag.into())
}

/// The kernel's side of a device.
struct FakeKernel {
    pool: BufPool,
    descriptions: Vec<[u8; DESCRIPTOR_BYTES]>,
    /// Payloads of writes before they are copied, and of reads after.
    payloads: Vec<Vec<u8>>,
    /// Commands in the kernel, and their answers.
    commands: BTreeMap<u16, Option<i32>>,
    is_gone: bool,
}

impl FakeKernel {
    fn new(memory_bytes: usize) -> Self {
        let depth = usize::from(DEPTH);
        Self {
            pool: BufPool::new(memory_bytes),
            descriptions: vec![[0; DESCRIPTOR_BYTES]; depth],
            payloads: vec![Vec::new(); depth],
            commands: BTreeMap::new(),
            is_gone: false,
        }
    }

    /// A request of `tag`, in sectors.
    fn ask(&mut self, server: &mut UblkServer, tag: u16, flags: u32, (sector, sectors): (u64, u32)) {
        assert!(self.commands.remove(&tag).is_some(), "tag {tag} is with the server");
        let description = &mut self.descriptions[usize::from(tag)];
        description[0..4].copy_from_slice(&flags.to_ne_bytes());
        description[4..8].copy_from_slice(&sectors.to_ne_bytes());
        description[8..16].copy_from_slice(&sector.to_ne_bytes());
        server.completed(op(tag), Ok(0));
    }
}

impl Kernel for FakeKernel {
    fn next(&mut self, token: u64, tag: u16, answer: Option<i32>) {
        assert_eq!(token, op(tag).token());
        assert!(self.commands.insert(tag, answer).is_none(), "two commands of tag {tag}");
    }

    fn description(&self, tag: u16) -> Option<[u8; DESCRIPTOR_BYTES]> {
        self.descriptions.get(usize::from(tag)).copied()
    }

    fn copy_from(&mut self, tag: u16, span: Span) -> Result<(), IoFailure> {
        if self.is_gone {
            return Err(std::io::Error::from_raw_os_error(22).into());
        }
        self.pool.copy_in(span, &self.payloads[usize::from(tag)]);
        Ok(())
    }

    fn copy_to(&mut self, tag: u16, span: Span) -> Result<(), IoFailure> {
        if self.is_gone {
            return Err(std::io::Error::from_raw_os_error(22).into());
        }
        let mut bytes = vec![0; span.len as usize];
        self.pool.copy_out(span, &mut bytes);
        self.payloads[usize::from(tag)] = bytes;
        Ok(())
    }

    fn pool(&mut self) -> &mut BufPool {
        &mut self.pool
    }
}

/// A request to the engine: number, kind, offset, length, buffer, checksums.
type Given = (RequestId, forebay_core::RequestKind, u64, u64, Option<forebay_core::BufId>, Vec<u32>);

#[derive(Default)]
struct FakeEngine(VecDeque<Given>);

impl ClientEngine for FakeEngine {
    fn submit(&mut self, _: Nanos, r: Request<'_>) {
        assert_eq!(r.volume, VolumeId(3));
        self.0.push_back((r.id, r.kind, r.offset, r.len, r.buf, r.block_crcs.to_vec()));
    }

    fn block_status(&self, _: VolumeId, _: u64, _: u64, _: &mut dyn FnMut(u64, bool, bool) -> bool) {
        unreachable!("the protocol has no such request");
    }
}

fn client() -> Client {
    let rules = Arc::new(RuleSet::new(DefaultAction::Cache, SIZE));
    Client::new(rules, "ublk:db", Identity::unknown())
}

fn serve(memory_bytes: usize) -> (UblkServer, FakeKernel, FakeEngine) {
    let mut kernel = FakeKernel::new(memory_bytes);
    let spare = reserve(&mut kernel.pool).expect("memory for one request");
    let options = UblkOptions { volume: VolumeId(3), slot: SLOT, size_bytes: SIZE, depth: DEPTH };
    let mut server = UblkServer::new(options, spare, client());
    server.begin(&mut kernel);
    assert_eq!(kernel.commands.len(), usize::from(DEPTH), "the device can be started");
    assert!(kernel.commands.values().all(Option::is_none), "there was nothing to answer");
    (server, kernel, FakeEngine::default())
}

#[test]
fn a_write_lies_where_the_engine_wants_it() {
    let (mut server, mut kernel, mut engine) = serve(64 << 20);
    kernel.payloads[1] = (0..1024).map(|byte| byte as u8).collect();
    kernel.ask(&mut server, 1, 1 | 1 << 13, (9, 2));
    assert!(server.turn(&mut engine, &mut kernel, 0, Instant::now()));
    assert!(!server.turn(&mut engine, &mut kernel, 0, Instant::now()), "it is begun once");
    let (id, kind, offset, len, buf, crcs) = engine.0.pop_front().unwrap();
    assert_eq!((id, kind), (op(1).request_id(), forebay_core::RequestKind::Write { fua: true }));
    assert_eq!((offset, len, crcs.len()), (9 * 512, 1024, 1));
    let mut bytes = vec![0; 1024];
    kernel.pool.copy_out(Span::new(BufId(buf.unwrap().0), 512, 1024), &mut bytes);
    assert_eq!(bytes, kernel.payloads[1], "from where its block begins");
    assert!(!server.is_quiet());
    server.replied(&mut kernel, id, Ok(()));
    assert_eq!(kernel.commands[&1], Some(1024), "all bytes are done, and the next one is asked for");
    assert!(server.is_quiet());
}

#[test]
fn read_is_copied_before_its_answer() {
    let (mut server, mut kernel, mut engine) = serve(64 << 20);
    kernel.ask(&mut server, 2, 0, (1, 8));
    server.turn(&mut engine, &mut kernel, 0, Instant::now());
    let (id, _, offset, len, buf, crcs) = engine.0.pop_front().unwrap();
    assert_eq!((offset, len, crcs.len()), (512, 4096, 0));
    kernel.pool.copy_in(Span::new(BufId(buf.unwrap().0), 512, 4096), &[0xAB; 4096]);
    server.replied(&mut kernel, id, Ok(()));
    assert_eq!((kernel.commands[&2], &kernel.payloads[2][..]), (Some(4096), &[0xAB; 4096][..]));
    assert_eq!(kernel.pool.stats().used_buffers, 1, "but its own it has no memory");
}

#[test]
fn requests_without_payload_take_no_memory() {
    let (mut server, mut kernel, mut engine) = serve(64 << 20);
    kernel.ask(&mut server, 0, 2, (0, 0));
    kernel.ask(&mut server, 1, 3, (0, 1 << 15));
    kernel.ask(&mut server, 2, 5, (8, 8));
    kernel.ask(&mut server, 3, 0, (SIZE / 512, 1));
    server.turn(&mut engine, &mut kernel, 0, Instant::now());
    assert_eq!(kernel.commands[&3], Some(-5), "past the end, without the engine");
    assert_eq!(kernel.pool.stats().used_buffers, 1);
    let ids: Vec<RequestId> = engine.0.drain(..).map(|given| given.0).collect();
    assert_eq!(ids.len(), 3);
    server.replied(&mut kernel, ids[0], Ok(()));
    server.replied(&mut kernel, ids[1], Err(RequestError::Io));
    server.replied(&mut kernel, ids[2], Err(RequestError::Shutdown));
    server.replied(&mut kernel, ids[2], Ok(()));
    assert_eq!([0, 1, 2].map(|tag| kernel.commands[&tag]), [Some(0), Some(-5), Some(-5)]);
    server.set_size_bytes(SIZE + 4096);
    kernel.ask(&mut server, 3, 0, (SIZE / 512, 1));
    assert!(server.turn(&mut engine, &mut kernel, 0, Instant::now()), "it has grown");
}

#[test]
fn requests_without_memory_run_one_by_one() {
    let (mut server, mut kernel, mut engine) = serve(4 << 20);
    let held: Vec<BufId> = std::iter::from_fn(|| kernel.pool.alloc(1 << 20)).collect();
    for tag in 0..DEPTH {
        kernel.ask(&mut server, tag, 0, (u64::from(tag) * 2048, 2048));
    }
    for round in 0..DEPTH {
        server.turn(&mut engine, &mut kernel, 0, Instant::now());
        assert_eq!(engine.0.len(), 1, "round {round}");
        let (id, ..) = engine.0.pop_front().unwrap();
        server.replied(&mut kernel, id, Ok(()));
    }
    assert_eq!(kernel.commands.len(), usize::from(DEPTH));
    held.into_iter().for_each(|buffer| kernel.pool.free(buffer));
}

#[test]
fn stopped_device_waits_for_all_commands() {
    let (mut server, mut kernel, mut engine) = serve(64 << 20);
    kernel.ask(&mut server, 0, 0, (0, 8));
    server.turn(&mut engine, &mut kernel, 0, Instant::now());
    let gone = || Err(std::io::Error::from_raw_os_error(19).into());
    for tag in 1..DEPTH {
        kernel.commands.remove(&tag);
        server.completed(op(tag), gone());
    }
    assert!(!server.is_over(), "the engine works on a request");
    kernel.is_gone = true;
    let (id, ..) = engine.0.pop_front().unwrap();
    server.replied(&mut kernel, id, Ok(()));
    assert_eq!(kernel.commands[&0], Some(-5), "its memory is gone");
    assert!(!server.is_over(), "a command is in the kernel");
    server.completed(op(0), gone());
    server.completed(op(0), gone()); // the kernel never reports this twice; it has no effect
    assert_eq!(server.ended().map(|failure| failure.errno), Some(19));
    server.end(&mut kernel.pool);
    assert_eq!(kernel.pool.stats().used_bytes, 0);
}

#[test]
fn requests_left_to_a_successor_stay_open() {
    let (mut server, mut kernel, mut engine) = serve(64 << 20);
    for tag in [0, 1] {
        kernel.ask(&mut server, tag, 0, (0, 8));
    }
    server.turn(&mut engine, &mut kernel, 0, Instant::now());
    kernel.ask(&mut server, 2, 0, (0, 8));
    server.leave();
    let ids: Vec<RequestId> = engine.0.drain(..).map(|given| given.0).collect();
    server.replied(&mut kernel, ids[0], Ok(()));
    server.replied(&mut kernel, ids[1], Err(RequestError::Shutdown));
    assert_eq!(kernel.commands.get(&0), Some(&Some(4096)), "what was done is said");
    assert_eq!(kernel.commands.get(&1), None, "what was not done is no failure");
    kernel.payloads[3] = vec![0xCD; 4096];
    kernel.ask(&mut server, 3, 1, (0, 8));
    assert!(!server.turn(&mut engine, &mut kernel, 0, Instant::now()), "nothing more is begun");
    assert_eq!((kernel.commands.get(&2), kernel.commands.get(&3)), (None, None));
    assert!(server.is_quiet() && !server.is_over());
    // The same server continues, and leaves them again.
    server.resume(VolumeId(3), SIZE, client());
    assert!(server.turn(&mut engine, &mut kernel, 0, Instant::now()));
    let again: Vec<RequestId> = engine.0.drain(..).map(|given| given.0).collect();
    assert_eq!(again, [1, 2, 3].map(|tag| op(tag).request_id()), "all that was left is begun");
    server.leave();
    again.into_iter().for_each(|id| server.replied(&mut kernel, id, Err(RequestError::Shutdown)));
    // No server takes the device over after all.
    server.refuse(&mut kernel);
    assert_eq!([1, 2, 3].map(|tag| kernel.commands[&tag]), [Some(-5); 3]);
    kernel.ask(&mut server, 0, 0, (0, 8));
    assert!(!server.turn(&mut engine, &mut kernel, 0, Instant::now()));
    assert_eq!(kernel.commands[&0], Some(-5));
    for tag in 0..DEPTH {
        server.completed(op(tag), Err(std::io::Error::from_raw_os_error(19).into()));
    }
    assert!(server.is_over());
}
