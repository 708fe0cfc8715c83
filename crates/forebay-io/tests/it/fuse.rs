//! FUSE operations of the reactor, on a socket that preserves message boundaries as `/dev/fuse`
//! does. (The daemon's tests use the real kernel.)

#[allow(dead_code, reason = "other suites use the rest")]
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::common::{Bench, all_engines, pattern};
use forebay_io::{BufId, EngineKind, FuseId, IoFailureKind, Limits, Op, Span};

const HEADER: u32 = 80;
const DATA: u32 = 4096;

fn connect(bench: &mut Bench) -> (FuseId, UnixDatagram, BufId) {
    let (ours, kernel) = UnixDatagram::pair().unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let fuse = bench.reactor.add_fuse(OwnedFd::from(ours)).unwrap();
    let memory = bench.reactor.pool_mut().alloc(1 << 20).unwrap();
    (fuse, kernel, memory)
}

/// Header and data of the receive with this number.
fn spans(memory: BufId, number: u64) -> (Span, Span) {
    let start = number as u32 * 2 * DATA;
    (Span::new(memory, start, HEADER), Span::new(memory, start + DATA, DATA))
}

fn receive(bench: &mut Bench, fuse: FuseId, memory: BufId, number: u64) {
    let (header, data) = spans(memory, number);
    bench.reactor.submit(number, Op::FuseReceive { fuse, header, data });
}

#[test]
fn messages_arrive_once_split_at_the_header() {
    all_engines(|bench| {
        let (fuse, kernel, memory) = connect(bench);
        for number in 0..32 {
            receive(bench, fuse, memory, number);
        }
        assert!(bench.reactor.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap().completions == 0);
        // Bursts and single messages, shorter than a header and as long as the whole buffer.
        let mut seen = Vec::new();
        for (round, crowd) in [1usize, 1, 6, 2, 9, 1, 10].into_iter().enumerate() {
            let messages: Vec<Vec<u8>> = (0..crowd)
                .map(|n| pattern((round * 100 + n) as u64, [40, 80, 81, 4176][(round + n) % 4]))
                .collect();
            for message in &messages {
                assert_eq!(kernel.send(message).unwrap(), message.len());
            }
            let mut got = Vec::new();
            for completion in bench.collect(crowd) {
                let mut bytes = vec![0; completion.result.unwrap() as usize];
                let (header, data) = spans(memory, completion.token);
                let cut = bytes.len().min(HEADER as usize);
                let (first, rest) = bytes.split_at_mut(cut);
                bench.reactor.pool().copy_out(Span { len: cut as u32, ..header }, first);
                bench.reactor.pool().copy_out(Span { len: rest.len() as u32, ..data }, rest);
                got.push(bytes);
                receive(bench, fuse, memory, completion.token);
            }
            got.sort();
            let mut sent = messages;
            sent.sort();
            assert!(got == sent, "round {round}");
            seen.extend(got);
        }
        assert_eq!((seen.len(), bench.reactor.in_flight()), (30, 32));
    });
}

#[test]
fn an_answer_is_one_message() {
    all_engines(|bench| {
        let (fuse, kernel, memory) = connect(bench);
        let bytes = pattern(3, 8192);
        bench.reactor.pool_mut().copy_in(Span::new(memory, 0, 8192), &bytes);
        for number in 0..5u32 {
            let spans = [Span::new(memory, number, 16), Span::new(memory, 4096, 1000 + number)];
            bench.reactor.submit(u64::from(number), Op::FuseReply { fuse, spans: &spans });
        }
        for completion in bench.collect(5) {
            assert_eq!(completion.result, Ok(1016 + completion.token as u32));
        }
        let mut got = vec![0; 9000];
        let mut lengths = Vec::new();
        for _ in 0..5 {
            let length = kernel.recv(&mut got).unwrap();
            let number = length - 1016;
            assert!(got[..16] == bytes[number..number + 16] && got[16..length] == bytes[4096..5096 + number]);
            lengths.push(length);
        }
        lengths.sort_unstable();
        assert_eq!(lengths, [1016, 1017, 1018, 1019, 1020]);
    });
}

#[test]
fn close_ends_receives_and_sends_replies() {
    all_engines(|bench| {
        let (fuse, kernel, memory) = connect(bench);
        for number in 0..20 {
            receive(bench, fuse, memory, number);
        }
        bench.reactor.wait(Some(Duration::from_millis(20)), &mut Vec::new()).unwrap();
        let spans = [Span::new(memory, 0, 16)];
        bench.reactor.submit(99, Op::FuseReply { fuse, spans: &spans });
        bench.reactor.close_fuse(fuse);
        let mut done = bench.collect(21);
        done.sort_by_key(|completion| completion.token);
        assert_eq!(done.pop().unwrap().result, Ok(16));
        for completion in done {
            assert_eq!(completion.result.unwrap_err().kind, IoFailureKind::Cancelled);
        }
        assert_eq!(kernel.recv(&mut [0; 99]).unwrap(), 16);
        assert!(kernel.send(b"nobody is there").is_err(), "the descriptor is closed");
        receive(bench, fuse, memory, 1);
        assert_eq!(bench.collect(1)[0].result.unwrap_err().kind, IoFailureKind::Cancelled);
    });
}

#[test]
fn unmounted_connection_fails_at_once() {
    all_engines(|bench| {
        let Ok(device) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
            return println!("skipped: /dev/fuse cannot be opened");
        };
        let fuse = bench.reactor.add_fuse(device.into()).unwrap();
        let memory = bench.reactor.pool_mut().alloc(1 << 20).unwrap();
        receive(bench, fuse, memory, 7);
        assert_eq!(bench.collect(1)[0].result.unwrap_err().kind, IoFailureKind::NotPermitted);
    });
}

/// The tests of the pool cover the ring on a real connection.
#[test]
fn entries_without_a_ring_are_refused() {
    all_engines(|bench| {
        let (fuse, _kernel, memory) = connect(bench);
        let (head, payload) = (Span::new(memory, 0, 288), Span::new(memory, 4096, 8192));
        for (number, fuse) in [(1, fuse), (2, FuseId(77))] {
            for answered in [None, Some(9)] {
                bench.reactor.submit(number, Op::FuseRing { fuse, queue: 0, answered, head, payload });
                let failure = bench.collect(1)[0].result.unwrap_err().kind;
                let expected = [IoFailureKind::Invalid, IoFailureKind::Cancelled][number as usize - 1];
                assert_eq!(failure, expected);
            }
        }
        assert_eq!(bench.reactor.pool().stats().pins, 0);
        let is_uring = bench.reactor.engine() == EngineKind::Uring;
        assert!(is_uring || !bench.reactor.can_serve_fuse_ring(), "threads cannot give commands");
    });
}

#[test]
fn dropped_reactor_ends_waiting_receives() {
    all_engines(|bench| {
        let (fuse, kernel, memory) = connect(bench);
        for number in 0..9 {
            receive(bench, fuse, memory, number);
        }
        bench.reactor.wait(Some(Duration::from_millis(20)), &mut Vec::new()).unwrap();
        drop(bench.replace_reactor(Limits::default()));
        assert!(kernel.send(b"gone").is_err());
    });
}
