//! One suite for both engines: no difference between io_uring and psync may be visible here.
//!
//! Where the kernel does not offer io_uring, tests that need it are skipped with a line on stdout.

use crate::common;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::common::{all_engines, pattern};
use forebay_io::{
    Device, DeviceModel, DeviceOptions, EngineKind, IoFailureKind, Limits, Op, SocketId, Span,
    create_cache_file, listen_tcp, listen_unix,
};

const MIB: usize = 1 << 20;

#[test]
fn unaligned_transfers_agree_with_a_model() {
    all_engines(|bench| {
        let size = MIB + 512;
        let (device, mut model) = bench.file_device(size, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(256 << 10).unwrap();
        let mut seed = 1u64;
        for round in 0..200u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = [1, 512, 4096][round as usize % 3];
            let offset = (seed >> 33) as usize % (size - 64 * 1024) / unit * unit;
            let len = (1 + (seed >> 20) as usize % 16) * unit;
            let memory = (seed >> 50) as u32 % 8 * 512 * u32::from(round % 2 == 0);
            let span = Span::new(buf, memory, len as u32);
            if round % 2 == 0 {
                let bytes = pattern(round, len);
                bench.reactor.pool_mut().copy_in(span, &bytes);
                assert_eq!(
                    bench.run(Op::Write { device, offset: offset as u64, spans: &[span] }),
                    Ok(len as u32)
                );
                model[offset..offset + len].copy_from_slice(&bytes);
            } else {
                bench.reactor.pool_mut().fill_zero(span);
                assert_eq!(
                    bench.run(Op::Read { device, offset: offset as u64, spans: &[span] }),
                    Ok(len as u32)
                );
                let mut got = vec![0; len];
                bench.reactor.pool().copy_out(span, &mut got);
                assert!(got == model[offset..offset + len], "round {round}");
            }
        }
        assert_eq!(bench.run(Op::Flush { device }), Ok(0));
        assert!(bench.file_contents() == model);
    });
}

#[test]
fn operations_beyond_the_ring_complete_once() {
    all_engines(|bench| {
        let count = 2000u64;
        let (device, _) = bench.file_device(8 * MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(8 * MIB).unwrap();
        bench.reactor.pool_mut().copy_in(Span::new(buf, 0, 8 << 20), &pattern(9, 8 * MIB));
        let span = |n: u64| Span::new(buf, n as u32 * 4096, 4096);
        for n in 0..count {
            bench.reactor.submit(n, Op::Write { device, offset: n * 4096, spans: &[span(n)] });
        }
        assert_eq!(bench.reactor.in_flight(), count as usize);
        bench.collect_each_once(count, Ok(4096));
        bench.reactor.pool_mut().fill_zero(Span::new(buf, 0, 8 << 20));
        for n in 0..count {
            bench.reactor.submit(n, Op::Read { device, offset: n * 4096, spans: &[span(n)] });
        }
        bench.collect_each_once(count, Ok(4096));
        let mut crcs = Vec::new();
        bench.reactor.pool().crc32c_blocks(Span::new(buf, 0, count as u32 * 4096), &mut crcs);
        let expected: Vec<u32> =
            pattern(9, 8 * MIB).chunks(4096).take(count as usize).map(crc32c::crc32c).collect();
        assert_eq!(crcs, expected);
    });
}

#[test]
fn excess_spans_form_one_operation() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(4 * MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
        let bytes = pattern(3, 2600 * 512);
        bench.reactor.pool_mut().copy_in(Span::new(buf, 0, bytes.len() as u32), &bytes);
        let spans: Vec<Span> = (0..2600).rev().map(|n| Span::new(buf, n * 512, 512)).collect();
        assert_eq!(bench.run(Op::Write { device, offset: 4096, spans: &spans }), Ok(2600 * 512));
        bench.reactor.pool_mut().fill_zero(Span::new(buf, 0, bytes.len() as u32));
        assert_eq!(bench.run(Op::Read { device, offset: 4096, spans: &spans }), Ok(2600 * 512));
        let mut got = vec![0; bytes.len()];
        bench.reactor.pool().copy_out(Span::new(buf, 0, bytes.len() as u32), &mut got);
        assert!(got == bytes);
        let first_on_disk = &bench.file_contents()[4096..4608];
        assert!(first_on_disk == &bytes[2599 * 512..], "the spans are in order");
    });
}

#[test]
fn checked_read_returns_block_checksums() {
    all_engines(|bench| {
        let size = 4 * MIB;
        let (device, model) = bench.file_device(size, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(8 * MIB).unwrap();
        // One block; many; odd lengths; more than one system call takes; some past the end
        // (zeroes).
        let many: Vec<u32> = (0..1500).map(|n| 512 + n % 3 * 512).collect();
        let cases: [(u64, &[u32]); 6] = [
            (0, &[4096]),
            (8192, &[4096, 16384, 8192]),
            (1000, &[4096 + 100, 0, 7]),
            (4096, &many),
            (size as u64 - 4000, &[4096, 8192]),
            (0, &[]),
        ];
        let expected = |offset: u64, lens: &[u32]| {
            let (mut at, mut crcs) = (offset as usize, Vec::new());
            for len in lens.iter().map(|len| *len as usize) {
                let bytes: Vec<u8> = (at..at + len).map(|at| model.get(at).copied().unwrap_or(0)).collect();
                crcs.extend(bytes.chunks(4096).map(crc32c::crc32c));
                at += len;
            }
            crcs
        };
        let rounds = 4;
        for round in 0..rounds {
            bench.reactor.pool_mut().bytes_mut(buf).fill(7);
            for (case, (offset, lens)) in cases.iter().enumerate() {
                let mut at = [0, 1, 2, 5, 3, 4][case] << 20;
                let span = |len: &u32| {
                    at += len;
                    Span::new(buf, at - len, *len)
                };
                let spans: Vec<Span> = lens.iter().map(span).collect();
                let token = (round * cases.len() + case) as u64;
                bench
                    .reactor
                    .submit(token, Op::CheckedRead { device, offset: *offset, spans: &spans, place: None });
            }
            bench.reactor.submit(1000, Op::Read { device, offset: 0, spans: &[Span::new(buf, 0, 512)] });
            let unknown = forebay_io::DeviceId(9);
            bench
                .reactor
                .submit(2000, Op::CheckedRead { device: unknown, offset: 0, spans: &[], place: None });
            let (mut done, mut left) = (Vec::new(), cases.len() + 2);
            while left > 0 {
                bench.reactor.wait(Some(std::time::Duration::from_secs(60)), &mut done).unwrap();
                for completion in done.drain(..) {
                    left -= 1;
                    let found = bench.reactor.checksums(&completion);
                    if completion.token >= 1000 {
                        assert!(found.is_empty(), "not asked for, or it failed");
                        continue;
                    }
                    let (offset, lens) = cases[completion.token as usize % cases.len()];
                    assert_eq!(completion.result, Ok(lens.iter().sum()));
                    assert_eq!(found, expected(offset, lens), "{completion:?}");
                }
            }
        }
    });
}

#[test]
fn a_loop_that_sleeps_keeps_its_steps() {
    for (busy_pct, gives) in [(90, false), (0, true)] {
        let limits = Limits { io_threads: 1, io_threads_busy_pct: busy_pct, ..Limits::default() };
        let Ok((mut reactor, _)) = forebay_io::Reactor::open(forebay_io::EnginePreference::Uring, limits)
        else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("device"), vec![1; MIB]).unwrap();
        let device = Device::open_backing(dir.path().join("device"), DeviceOptions::default()).unwrap();
        let device = reactor.add_device(device);
        let buf = reactor.pool_mut().alloc(4096).unwrap();
        let mut done = Vec::new();
        for n in 0..20 {
            // Idle for a while before each read, as a pool is between the requests of one client.
            reactor.wait(Some(std::time::Duration::from_millis(2)), &mut done).unwrap();
            reactor.submit(n, Op::Read { device, offset: 0, spans: &[Span::new(buf, 0, 4096)] });
            while done.len() <= n as usize {
                reactor.wait(None, &mut done).unwrap();
            }
        }
        let stats = reactor.stats();
        assert_eq!((stats.steps, stats.steps_given), (20, if gives { 20 } else { 0 }));
    }
}

#[test]
fn a_loop_that_polls_is_not_busy() {
    let spin = Duration::from_millis(5);
    let limits = Limits { io_threads: 1, spin, ..Limits::default() };
    let Ok((mut reactor, _)) = forebay_io::Reactor::open(forebay_io::EnginePreference::Uring, limits) else {
        return;
    };
    // Several sockets, so that a turn has enough steps to hand some to an I/O thread.
    let (ours, mut theirs): (Vec<_>, Vec<_>) = (0..8).map(|_| UnixStream::pair().unwrap()).unzip();
    let mut add = |stream: UnixStream| reactor.add_socket(OwnedFd::from(stream)).unwrap();
    let sockets: Vec<SocketId> = ours.into_iter().map(&mut add).collect();
    let rounds = 200;
    let sender = std::thread::spawn(move || {
        for _ in 0..rounds {
            // Sooner than the loop stops polling.
            std::thread::sleep(Duration::from_millis(1));
            theirs.iter_mut().for_each(|stream| std::io::Write::write_all(stream, b"x").unwrap());
        }
    });
    let buf = reactor.pool_mut().alloc(sockets.len() * 4096).unwrap();
    let receive = |reactor: &mut forebay_io::Reactor, at: usize| {
        let span = Span::new(buf, at as u32 * 4096, 4096);
        reactor.submit(at as u64, Op::Recv { socket: sockets[at], span });
    };
    (0..sockets.len()).for_each(|at| receive(&mut reactor, at));
    let (mut done, mut left) = (Vec::new(), rounds * sockets.len() as u32);
    while left > 0 {
        reactor.wait(None, &mut done).unwrap();
        for completion in done.drain(..) {
            left -= completion.result.unwrap();
            receive(&mut reactor, completion.token as usize);
        }
    }
    sender.join().unwrap();
    assert_eq!(reactor.stats().steps_given, 0);
}

#[test]
fn jobs_run_once_on_another_thread() {
    all_engines(|bench| {
        let (sender, results) = std::sync::mpsc::channel();
        let own = std::thread::current().id();
        for n in 0..100u64 {
            let sender = sender.clone();
            bench.reactor.run(n, move || {
                let is_other = std::thread::current().id() != own;
                sender.send((n, is_other)).unwrap();
                assert!(n % 10 != 3, "a panic that the test wants");
            });
        }
        bench.collect_each_once(100, Ok(0));
        let mut seen: Vec<_> = results.try_iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).map(|n| (n, true)).collect::<Vec<_>>());
    });
}

/// Changes each byte depending on its place.
struct ByPlace;

impl forebay_io::PlaceCipher for ByPlace {
    fn encrypt(&self, place: u64, bytes: &mut [u8]) {
        bytes.iter_mut().zip(place..).for_each(|(byte, place)| *byte ^= ((place * 31) >> 3) as u8);
    }

    fn decrypt(&self, place: u64, bytes: &mut [u8]) {
        self.encrypt(place, bytes);
    }
}

/// Panics in the thread that encrypts.
struct Broken;

impl forebay_io::PlaceCipher for Broken {
    fn encrypt(&self, _place: u64, _bytes: &mut [u8]) {
        panic!("a panic that the test wants");
    }

    fn decrypt(&self, _place: u64, _bytes: &mut [u8]) {}
}

#[test]
fn panic_of_an_io_thread_is_an_error() {
    let limits = Limits { io_threads: 1, io_threads_busy_pct: 0, ..Limits::default() };
    let Ok((mut reactor, _)) = forebay_io::Reactor::open(forebay_io::EnginePreference::Uring, limits) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("device"), vec![1; MIB]).unwrap();
    let device = Device::open_backing(dir.path().join("device"), DeviceOptions::default()).unwrap();
    let device = reactor.add_device(device);
    reactor.set_cipher(std::sync::Arc::new(Broken));
    let buf = reactor.pool_mut().alloc(4096).unwrap();
    let spans = [Span::new(buf, 0, 4096)];
    reactor.submit(1, Op::EncryptedWrite { device, offset: 0, spans: &spans, place: 0 });
    let mut done = Vec::new();
    assert!(reactor.wait(None, &mut done).is_err() && done.is_empty());
}

/// Blocks the thread that encrypts, as a device that hangs on a step does, until the test sends on
/// `go_on`, or for a minute. Then reports whether the signal came, and the bytes to encrypt.
struct Hangs {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
    went_on: Sender<(bool, Vec<u8>)>,
}

impl forebay_io::PlaceCipher for Hangs {
    fn encrypt(&self, _place: u64, bytes: &mut [u8]) {
        self.begun.send(()).expect("the test waits for it");
        let is_told =
            self.go_on.lock().expect("one thread has it").recv_timeout(Duration::from_secs(60)).is_ok();
        self.went_on.send((is_told, bytes.to_vec())).expect("the test waits for it");
    }

    fn decrypt(&self, _place: u64, _bytes: &mut [u8]) {}
}

/// The memory of its step stays as it is, also after the end of the loop.
#[test]
fn hanging_io_thread_does_not_block_loop() {
    let limits = Limits { io_threads: 1, io_threads_busy_pct: 0, ..Limits::default() };
    let Ok((mut reactor, _)) = forebay_io::Reactor::open(forebay_io::EnginePreference::Uring, limits) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("device"), vec![1; MIB]).unwrap();
    let device = Device::open_backing(dir.path().join("device"), DeviceOptions::default()).unwrap();
    let device = reactor.add_device(device);
    let ((begun, has_begun), (tell, go_on), (went_on, result)) = (channel(), channel(), channel());
    reactor.set_cipher(std::sync::Arc::new(Hangs { begun, go_on: Mutex::new(go_on), went_on }));
    let buf = reactor.pool_mut().alloc(2 * MIB).unwrap();
    let span = Span::new(buf, 0, MIB as u32);
    let bytes = pattern(7, MIB);
    reactor.pool_mut().copy_in(span, &bytes);
    reactor.submit(1, Op::EncryptedWrite { device, offset: 0, spans: &[span], place: 0 });
    let mut done = Vec::new();
    reactor.wait(Some(Duration::ZERO), &mut done).unwrap();
    has_begun.recv().unwrap();
    // Work that does not need the blocked thread continues.
    reactor.run(2, || ());
    while done.is_empty() {
        reactor.wait(None, &mut done).unwrap();
    }
    assert_eq!(done.iter().map(|completion| completion.token).collect::<Vec<_>>(), [2]);
    drop(reactor);
    assert!(result.try_recv().is_err(), "the end has waited for the thread");
    tell.send(()).unwrap();
    let (is_told, had) = result.recv().unwrap();
    assert!(is_told && had == bytes, "the memory of its step has changed");
}

#[test]
fn encrypted_data_is_clear_only_in_memory() {
    use forebay_io::PlaceCipher;
    all_engines(|bench| {
        bench.reactor.set_cipher(std::sync::Arc::new(ByPlace));
        let (device, mut model) = bench.file_device(4 * MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(8 * MIB).unwrap();
        // One block; odd lengths; more than one system call takes.
        let cases: [(u64, Vec<u32>); 3] =
            [(4096, vec![4096]), (100_000, vec![513, 0, 4096, 7]), (1 << 20, vec![512; 1500])];
        for round in 0..4u64 {
            for (offset, lens) in &cases {
                let (place, mut at) = (offset * 3 + round, 0);
                let span = |len: &u32| {
                    at += len;
                    Span::new(buf, at - len, *len)
                };
                let spans: Vec<Span> = lens.iter().map(span).collect();
                let (offset, len) = (*offset, at as usize);
                let clear = pattern(round + offset, len);
                bench.reactor.pool_mut().copy_in(Span::new(buf, 0, at), &clear);
                let write = Op::EncryptedWrite { device, offset, spans: &spans, place };
                assert_eq!(bench.run(write), Ok(at));
                let written = &mut model[offset as usize..][..len];
                written.copy_from_slice(&clear);
                ByPlace.encrypt(place, written);
                assert!(bench.file_contents() == model);
                let read = Op::CheckedRead { device, offset, spans: &spans, place: Some(place) };
                assert_eq!(bench.run(read), Ok(at));
                assert!(bench.reactor.pool().bytes(buf)[..len] == clear);
            }
        }
    });
}

/// A backing file of 64 KiB is truncated to 16 KiB, and later restored.
#[test]
fn truncated_device_fails_until_restored() {
    all_engines(|bench| {
        let size = 64 << 10;
        let (device, model) = bench.file_device(size, DeviceOptions::default());
        std::fs::File::options().write(true).open(bench.path()).unwrap().set_len(16 << 10).unwrap();
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        let ended = |result: Result<u32, forebay_io::IoFailure>| {
            let failure = result.expect_err("the device has ended");
            assert_eq!((failure.kind, failure.errno), (IoFailureKind::Ended, libc::ENXIO));
            assert!(failure.to_string().contains("shorter"), "{failure}");
        };
        for (offset, len) in [(32 << 10, 4096), (16 << 10, 512), (12 << 10, 8192), (0, 65536), (63 << 10, 1)]
        {
            ended(bench.run(Op::Read { device, offset, spans: &[Span::new(buf, 0, len)] }));
        }
        // Bytes that still exist can be read. Writes are refused: they would leave a hole in the
        // file that reads as zeroes.
        let spans = [Span::new(buf, 0, 4096)];
        assert_eq!(bench.run(Op::Read { device, offset: 8192, spans: &spans }), Ok(4096));
        for offset in [0, 32 << 10, 60 << 10] {
            ended(bench.run(Op::Write { device, offset, spans: &spans }));
            for may_unmap in [true, false] {
                ended(bench.run(Op::Zero { device, offset, len: 4096, may_unmap }));
            }
        }
        ended(bench.run(Op::Flush { device }));
        assert!(bench.reactor.device(device).unwrap().ended() == Some(16 << 10));
        assert_eq!(bench.file_contents().len(), 16 << 10);
        std::fs::write(bench.path(), &model).unwrap();
        let spans = [Span::new(buf, 0, size as u32)];
        assert_eq!(bench.run(Op::Read { device, offset: 0, spans: &spans }), Ok(size as u32));
        assert!(bench.reactor.pool().bytes(buf)[..size] == model);
        assert_eq!(
            bench.run(Op::Write { device, offset: 32 << 10, spans: &[Span::new(buf, 0, 4096)] }),
            Ok(4096)
        );
        assert_eq!(bench.run(Op::Flush { device }), Ok(0));
    });
}

/// A user that needs less of a device records a smaller end, and the device may then be truncated
/// to it. A user that needs more of a grown device records the new end.
#[test]
fn recorded_end_follows_the_device_users() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(64 << 10, DeviceOptions::default());
        let path = bench.path();
        let resize = |bytes| std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes);
        let buf = bench.reactor.pool_mut().alloc(8192).unwrap();
        let spans = [Span::new(buf, 0, 4096)];
        bench.reactor.set_device_end(device, 32 << 10);
        resize(32 << 10).unwrap();
        assert_eq!(bench.run(Op::Write { device, offset: 28 << 10, spans: &spans }), Ok(4096));
        assert_eq!(bench.run(Op::Flush { device }), Ok(0));
        resize(96 << 10).unwrap();
        let refreshed = |bench: &mut common::Bench| {
            let size = bench.reactor.device(device).unwrap().for_thread().unwrap().refresh_size().unwrap();
            bench.reactor.set_device_size(device, size);
            size
        };
        assert_eq!(refreshed(bench), 96 << 10);
        bench.reactor.set_device_end(device, 96 << 10);
        assert_eq!(bench.run(Op::Write { device, offset: 92 << 10, spans: &spans }), Ok(4096));
        // Refreshing the size of a truncated device does not move its recorded end.
        resize(16 << 10).unwrap();
        assert_eq!(refreshed(bench), 16 << 10);
        let failure = bench.run(Op::Read { device, offset: 92 << 10, spans: &spans }).unwrap_err();
        assert_eq!(failure.kind, IoFailureKind::Ended);
        let failure = bench.run(Op::Write { device, offset: 92 << 10, spans: &spans }).unwrap_err();
        assert_eq!(failure.kind, IoFailureKind::Ended);
    });
}

#[test]
fn reads_past_the_end_are_zero_writes_fail() {
    all_engines(|bench| {
        let size = 10_000;
        let (device, model) = bench.file_device(size, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        for (offset, len) in
            [(8192, 4096), (9999, 1), (9990, 100), (0, 16384), (10_000, 512), (1 << 40, 4096)]
        {
            let halves = [Span::new(buf, 0, len / 2), Span::new(buf, 32768, len - len / 2)];
            bench.reactor.pool_mut().bytes_mut(buf).fill(0xEE);
            assert_eq!(bench.run(Op::Read { device, offset, spans: &halves }), Ok(len));
            let bytes = bench.reactor.pool().bytes(buf);
            let got: Vec<u8> =
                halves.iter().flat_map(|s| &bytes[s.offset as usize..][..s.len as usize]).copied().collect();
            let at = |i: usize| model.get(offset as usize + i).copied().unwrap_or(0);
            assert!(got.iter().enumerate().all(|(i, &byte)| byte == at(i)), "offset {offset} length {len}");
        }
        for (offset, len) in [(9_999, 2), (10_000, 1), (u64::MAX - 5, 4096), (0, 16384)] {
            let failure =
                bench.run(Op::Write { device, offset, spans: &[Span::new(buf, 0, len)] }).unwrap_err();
            assert_eq!(failure.kind, IoFailureKind::OutOfRange, "offset {offset}");
            let zero = Op::Zero { device, offset, len: len.into(), may_unmap: true };
            assert_eq!(bench.run(zero).unwrap_err().kind, IoFailureKind::OutOfRange);
        }
        assert_eq!(bench.run(Op::Write { device, offset: 9_990, spans: &[Span::new(buf, 0, 10)] }), Ok(10));
        assert_eq!(bench.file_contents().len(), size, "the size never changes");
    });
}

#[test]
fn zeroing_zeroes_exactly_the_range() {
    all_engines(|bench| {
        let size = 3 * MIB + 100;
        let (device, mut model) = bench.file_device(size, DeviceOptions::default());
        for (offset, len) in
            [(4096, 8192), (20_001, 5), (100_000, 70_000), (size - 50, 50), (MIB, MIB), (7, 0)]
        {
            for may_unmap in [false, true] {
                let op = Op::Zero { device, offset: offset as u64, len: len as u64, may_unmap };
                assert_eq!(bench.run(op), Ok(0));
                model[offset..offset + len].fill(0);
                assert!(bench.file_contents() == model, "{offset} {len} {may_unmap}");
            }
        }
    });
}

#[test]
fn discard_frees_space_and_keeps_the_size() {
    all_engines(|bench| {
        let size = 4 * MIB;
        let (device, model) = bench.file_device(size, DeviceOptions::default());
        assert_eq!(bench.run(Op::Flush { device }), Ok(0));
        let before = bench.file_sectors();
        let (offset, len) = (MIB as u64, 2 * MIB as u64);
        assert_eq!(bench.run(Op::Discard { device, offset, len }), Ok(0));
        assert_eq!(before - bench.file_sectors(), len / 512, "its space is given back");
        let found = bench.file_contents();
        assert!(found.len() == size && found[..MIB] == model[..MIB] && found[3 * MIB..] == model[3 * MIB..]);
        let beyond = Op::Discard { device, offset: size as u64 - 4096, len: 8192 };
        assert_eq!(bench.run(beyond).unwrap_err().kind, IoFailureKind::OutOfRange);
    });
}

#[test]
fn device_without_discards_reports_it() {
    all_engines(|bench| {
        let options = DeviceOptions { special_size_bytes: Some(MIB as u64), ..DeviceOptions::default() };
        let device = Device::open_cache("/dev/full", options).unwrap();
        let device = bench.reactor.add_device(device);
        let failure = bench.run(Op::Discard { device, offset: 0, len: 4096 }).unwrap_err();
        assert!(failure.is_unsupported(), "{failure}");
    });
}

#[test]
fn sector_writes_to_one_page_all_survive() {
    all_engines(|bench| {
        let size = 256 << 10;
        let (device, mut model) = bench.file_device(size, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(256 << 10).unwrap();
        for round in 0..20 {
            let fresh = pattern(round + 100, size);
            bench.reactor.pool_mut().copy_in(Span::new(buf, 0, size as u32), &fresh);
            // Pieces that tile every page, all in flight together: some allow direct I/O, some do
            // not.
            let lens = [1000u32, 24, 512, 1024, 1536, 4096, 8192, 511, 1, 3584];
            let (mut offset, mut token) = (0u32, 0u64);
            while (offset as usize) < size {
                let len = lens[(token as usize + round as usize) % lens.len()].min(size as u32 - offset);
                let spans = [Span::new(buf, offset, len)];
                bench.reactor.submit(token, Op::Write { device, offset: offset.into(), spans: &spans });
                (offset, token) = (offset + len, token + 1);
            }
            bench.collect(token as usize);
            model.copy_from_slice(&fresh);
            assert_eq!(bench.run(Op::Flush { device }), Ok(0));
            assert!(bench.file_contents() == model, "round {round}");
        }
        let options = DeviceOptions { lock: false, ..DeviceOptions::default() };
        if Device::open_backing(bench.path(), options).unwrap().direct_align_bytes().is_some() {
            let stats = bench.reactor.stats();
            assert!(stats.page_conflicts > 0 && stats.unaligned_transfers > 0, "{stats:?}");
        }
    });
}

#[test]
fn flush_works_while_writes_are_in_flight() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(4 * MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(MIB).unwrap();
        for n in 0..100u64 {
            let spans = [Span::new(buf, 0, 4096)];
            bench.reactor.submit(2 * n, Op::Write { device, offset: n * 4096, spans: &spans });
            bench.reactor.submit(2 * n + 1, Op::Flush { device });
        }
        let done = bench.collect(200);
        assert!(done.iter().all(|c| c.result == Ok(if c.token % 2 == 0 { 4096 } else { 0 })));
    });
}

#[test]
fn failures_of_devices_reach_the_caller() {
    all_engines(|bench| {
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        let spans = [Span::new(buf, 0, 4096)];
        let (read_only, _) = bench.file_device(MIB, DeviceOptions { read_only: true, ..Default::default() });
        let failure = bench.run(Op::Write { device: read_only, offset: 0, spans: &spans }).unwrap_err();
        assert_eq!((failure.kind, failure.errno), (IoFailureKind::NotPermitted, libc::EBADF));
        assert_eq!(bench.run(Op::Read { device: read_only, offset: 0, spans: &spans }), Ok(4096));

        let options = DeviceOptions { special_size_bytes: Some(1 << 30), lock: false, ..Default::default() };
        let full = bench.reactor.add_device(Device::open_backing("/dev/full", options).unwrap());
        let failure = bench.run(Op::Write { device: full, offset: 0, spans: &spans }).unwrap_err();
        assert_eq!((failure.kind, failure.errno), (IoFailureKind::NoSpace, libc::ENOSPC));
    });
}

#[test]
fn idle_device_is_removed_and_number_reused() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        let spans = [Span::new(buf, 0, 4096)];
        bench.reactor.submit(1, Op::Write { device, offset: 0, spans: &spans });
        assert!(bench.reactor.remove_device(device).is_none(), "its write has not been reported");
        bench.collect(1);
        drop(bench.reactor.remove_device(device).expect("nothing is under way"));
        assert!(bench.reactor.remove_device(device).is_none());
        let failure = bench.run(Op::Read { device, offset: 0, spans: &spans }).unwrap_err();
        assert_eq!(failure.kind, IoFailureKind::Invalid);
        let again = Device::open_backing(bench.path(), DeviceOptions::default()).unwrap();
        let again = bench.reactor.add_device(again);
        assert_eq!(again, device);
        assert_eq!(bench.run(Op::Read { device: again, offset: 0, spans: &spans }), Ok(4096));
    });
}

#[test]
fn malformed_operations_fail_and_do_nothing() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        let beyond = [Span::new(buf, 0, 4096), Span::new(buf, 1, 4096)];
        let unknown = [Span::new(forebay_io::BufId(77), 0, 1)];
        for op in [
            Op::Read { device, offset: 0, spans: &beyond },
            Op::Write { device, offset: 0, spans: &unknown },
            Op::Flush { device: forebay_io::DeviceId(9) },
            Op::Read { device: forebay_io::DeviceId(9), offset: 0, spans: &[] },
        ] {
            assert_eq!(bench.run(op).unwrap_err().kind, IoFailureKind::Invalid, "{op:?}");
        }
        let gone = SocketId(5);
        assert_eq!(
            bench.run(Op::Send { socket: gone, spans: &[] }).unwrap_err().kind,
            IoFailureKind::Cancelled
        );
        assert_eq!(bench.run(Op::Read { device, offset: 0, spans: &[] }), Ok(0), "an empty read is a read");
        assert_eq!(bench.reactor.pool().stats().pins, 0);
        bench.reactor.pool_mut().free(buf);
        assert_eq!(bench.reactor.pool().stats().used_buffers, 0);
    });
}

#[test]
fn large_sends_stay_whole_and_in_order() {
    all_engines(|bench| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
        let bytes = pattern(5, 4 * MIB);
        bench.reactor.pool_mut().copy_in(Span::new(buf, 0, 4 << 20), &bytes);
        // Three sends at once, the first with more spans than one call takes.
        let many: Vec<Span> = (0..2048).map(|n| Span::new(buf, n * 1024, 1024)).collect();
        bench.reactor.submit(0, Op::Send { socket, spans: &many });
        bench.reactor.submit(1, Op::Send { socket, spans: &[Span::new(buf, 2 << 20, 1 << 20)] });
        bench.reactor.submit(2, Op::Send { socket, spans: &[Span::new(buf, 3 << 20, 1 << 20)] });
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 4 * MIB];
            let mut theirs = theirs;
            for piece in got.chunks_mut(100_000) {
                theirs.read_exact(piece).unwrap();
            }
            got
        });
        let done = bench.collect(3);
        assert_eq!(
            done.iter().map(|c| (c.token, c.result)).collect::<Vec<_>>(),
            [(0, Ok(2 << 20)), (1, Ok(1 << 20)), (2, Ok(1 << 20))]
        );
        assert!(reader.join().unwrap() == bytes);
    });
}

#[test]
fn connections_are_accepted_and_closed() {
    all_engines(|bench| {
        let path = bench.dir.path().join("sock");
        let listener = bench.reactor.add_listener(listen_unix(&path, 0o600).unwrap()).unwrap();
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.write_all(b"hello").unwrap();
            let mut reply = [0; 5];
            stream.read_exact(&mut reply).unwrap();
            reply
        });
        let socket = SocketId(bench.run(Op::Accept { listener }).unwrap());
        assert_eq!(bench.reactor.peer_cred(socket).unwrap().pid as u32, std::process::id());
        let mut received = 0;
        while received < 5 {
            let span = Span::new(buf, received, 5 - received);
            received += bench.run(Op::Recv { socket, span }).unwrap();
        }
        assert_eq!(
            bench.run(Op::Send { socket, spans: &[Span::new(buf, 0, 2), Span::new(buf, 2, 3)] }),
            Ok(5)
        );
        assert_eq!(&client.join().unwrap(), b"hello");
        assert_eq!(bench.run(Op::Recv { socket, span: Span::new(buf, 0, 100) }), Ok(0), "end of stream");
        let sent = bench.run(Op::Send { socket, spans: &[Span::new(buf, 0, 5)] });
        assert_eq!(sent.unwrap_err().kind, IoFailureKind::Disconnected);
        bench.reactor.close_socket(socket);
        let closed = bench.run(Op::Recv { socket, span: Span::new(buf, 0, 100) });
        assert_eq!(closed.unwrap_err().kind, IoFailureKind::Cancelled);
    });
}

#[test]
fn tcp_connections_work_too() {
    all_engines(|bench| {
        let (fd, address) = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = bench.reactor.add_listener(fd).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let mut reply = [0; 3];
            stream.read_exact(&mut reply).unwrap();
        });
        let socket = SocketId(bench.run(Op::Accept { listener }).unwrap());
        assert_eq!(bench.run(Op::Send { socket, spans: &[Span::new(buf, 0, 3)] }), Ok(3));
        client.join().unwrap();
    });
}

#[test]
fn close_cancels_receives_but_not_sends() {
    all_engines(|bench| {
        let path = bench.dir.path().join("sock");
        let listener = bench.reactor.add_listener(listen_unix(&path, 0o600).unwrap()).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(2 * MIB).unwrap();
        let out = bench.reactor.pool_mut().alloc(2 * MIB).unwrap();
        bench.reactor.submit(0, Op::Recv { socket, span: Span::new(buf, 0, 10) });
        bench.reactor.submit(1, Op::Recv { socket, span: Span::new(buf, 10, 10) });
        bench.reactor.submit(2, Op::Accept { listener });
        bench.reactor.submit(3, Op::Send { socket, spans: &[Span::new(out, 0, 2 << 20)] });
        let mut none = Vec::new();
        bench.reactor.wait(Some(Duration::from_millis(5)), &mut none).unwrap();
        assert_eq!(none, []);
        bench.reactor.close_socket(socket);
        bench.reactor.close_listener(listener);
        bench.reactor.pool_mut().free(buf);
        let done = bench.collect(3);
        assert!(done.iter().all(|c| c.token < 3 && c.result.unwrap_err().kind == IoFailureKind::Cancelled));
        assert!(!bench.reactor.pool().is_busy(out) || bench.reactor.in_flight() == 1);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.len()
        });
        assert_eq!(bench.collect(1)[0].result, Ok(2 << 20));
        assert_eq!(reader.join().unwrap(), 2 * MIB, "the descriptor is closed after the last send");
    });
}

#[test]
fn sockets_are_released_without_lost_bytes() {
    all_engines(|bench| {
        let path = bench.dir.path().join("sock");
        let listener = bench.reactor.add_listener(listen_unix(&path, 0o600).unwrap()).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        bench.reactor.submit(0, Op::Recv { socket, span: Span::new(buf, 0, 10) });
        bench.reactor.submit(1, Op::Recv { socket, span: Span::new(buf, 10, 10) });
        bench.reactor.submit(2, Op::Accept { listener });
        assert!(bench.reactor.release_socket(socket).is_none(), "operations are under way");
        assert!(bench.reactor.release_listener(listener).is_none());
        bench.reactor.cancel_receives(socket);
        bench.reactor.cancel_accepts(listener);
        let ends = bench.collect(3);
        assert!(ends.iter().all(|end| end.result.is_err_and(|why| why.kind == IoFailureKind::Cancelled)));
        // The socket still works in this reactor.
        theirs.write_all(b"here").unwrap();
        assert_eq!(bench.run(Op::Recv { socket, span: Span::new(buf, 0, 10) }), Ok(4));
        theirs.write_all(b"there").unwrap();
        let fd = bench.reactor.release_socket(socket).unwrap();
        assert!(bench.reactor.release_socket(socket).is_none(), "it is gone");
        let gone = bench.run(Op::Recv { socket, span: Span::new(buf, 0, 10) });
        assert_eq!(gone.unwrap_err().kind, IoFailureKind::Cancelled);
        let again = bench.reactor.add_socket(fd).unwrap();
        assert_eq!(bench.run(Op::Recv { socket: again, span: Span::new(buf, 0, 10) }), Ok(5));
        assert_eq!(&bench.reactor.pool().bytes(buf)[..5], b"there");
        // A client that connects meanwhile waits for the next owner of the listener.
        let client = UnixStream::connect(&path).unwrap();
        let fd = bench.reactor.release_listener(listener).unwrap();
        assert!(forebay_io::is_listening(std::os::fd::AsFd::as_fd(&fd)));
        assert!(!forebay_io::is_listening(std::os::fd::AsFd::as_fd(&client)));
        let listener = bench.reactor.add_listener(fd).unwrap();
        bench.run(Op::Accept { listener }).unwrap();
    });
}

#[test]
fn abort_ends_a_send_that_is_not_read() {
    all_engines(|bench| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
        for token in 0..2 {
            bench.reactor.submit(token, Op::Send { socket, spans: &[Span::new(buf, 0, 4 << 20)] });
        }
        bench.reactor.wait(Some(Duration::from_millis(5)), &mut Vec::new()).unwrap();
        bench.reactor.abort_socket(socket);
        let done = bench.collect(2);
        assert!(done.iter().all(|c| c.result.unwrap_err().kind == IoFailureKind::Cancelled), "{done:?}");
        drop(theirs);
        assert_eq!(bench.reactor.pool().stats().pins, 0);
    });
}

#[test]
fn peer_close_ends_a_pending_receive() {
    all_engines(|bench| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
        bench.reactor.submit(7, Op::Recv { socket, span: Span::new(buf, 0, 4096) });
        bench.reactor.wait(Some(Duration::from_millis(2)), &mut Vec::new()).unwrap();
        assert!(bench.reactor.pool().is_busy(buf));
        drop(theirs);
        assert_eq!(bench.collect(1)[0].result, Ok(0));
    });
}

#[test]
fn idle_receives_do_not_block_device_io() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        let mut peers = Vec::new();
        for n in 0..200u32 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
            bench.reactor.submit(u64::from(n), Op::Recv { socket, span: Span::new(buf, n * 16, 16) });
            peers.push(theirs);
        }
        let spans = [Span::new(buf, 8192, 4096)];
        bench.reactor.submit(1000, Op::Read { device, offset: 0, spans: &spans });
        assert_eq!(bench.collect(1)[0].token, 1000);
        for peer in &mut peers {
            peer.write_all(b"x").unwrap();
        }
        assert!(bench.collect(200).iter().all(|c| c.result == Ok(1)));
    });
}

#[test]
fn another_thread_wakes_a_waiting_loop() {
    all_engines(|bench| {
        let waker = bench.reactor.waker();
        for round in 0..20 {
            let waker = waker.clone();
            let thread = std::thread::spawn(move || {
                if round % 2 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                waker.wake();
                waker.wake();
            });
            let waited = bench.reactor.wait(None, &mut Vec::new()).unwrap();
            assert!(waited.woken && waited.completions == 0);
            thread.join().unwrap();
            // The second wake might have been merged with the first.
            bench.reactor.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        }
        waker.wake();
        assert!(bench.reactor.wait(None, &mut Vec::new()).unwrap().woken, "a wake before the wait counts");
        assert!(!bench.reactor.wait(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap().woken);
    });
}

#[test]
fn timeout_is_kept_with_and_without_spin() {
    all_engines(|bench| {
        for spin in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(50)] {
            drop(bench.replace_reactor(Limits { spin, ..Limits::default() }));
            let start = Instant::now();
            let waited = bench.reactor.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(10), "{:?}", start.elapsed());
            assert_eq!((waited.completions, waited.woken), (0, false));
            let (device, _) = bench.file_device(MIB, DeviceOptions { lock: false, ..Default::default() });
            let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
            assert_eq!(
                bench.run(Op::Read { device, offset: 0, spans: &[Span::new(buf, 0, 4096)] }),
                Ok(4096)
            );
        }
    });
}

#[test]
fn emulated_disk_is_slow_and_correct() {
    all_engines(|bench| {
        let options = DeviceOptions { emulate: Some(DeviceModel::Hdd7200), ..Default::default() };
        let (device, model) = bench.file_device(64 * MIB, options);
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        let start = Instant::now();
        for n in 0..10u64 {
            let offset = (n * 37 % 61) * MIB as u64;
            let spans = [Span::new(buf, 0, 4096)];
            assert_eq!(bench.run(Op::Read { device, offset, spans: &spans }), Ok(4096));
            assert!(bench.reactor.pool().bytes(buf)[..4096] == model[offset as usize..][..4096]);
        }
        // Ten random reads take about 125 ms on the disk; chance never halves that.
        assert!(start.elapsed() > Duration::from_millis(60), "{:?}", start.elapsed());
        let start = Instant::now();
        for n in 0..16u64 {
            let spans = [Span::new(buf, n as u32 * 4096, 4096)];
            bench.reactor.submit(n, Op::Write { device, offset: n * 3 * MIB as u64, spans: &spans });
        }
        bench.reactor.submit(99, Op::Flush { device });
        let done = bench.collect(17);
        // The model orders the flush behind the earlier writes. The real operations below it are
        // not ordered: on a busy machine a write can be reported later.
        assert!(done.iter().any(|c| c.token == 99));
        assert!(start.elapsed() > Duration::from_millis(30), "{:?}", start.elapsed());
    });
}

#[test]
fn emulated_card_is_slow_and_correct() {
    all_engines(|bench| {
        // A hundredth of the chips: a page takes 340 us to write and 140 us to read.
        let card = DeviceModel::CardD { scale: 100 };
        let options = DeviceOptions { emulate: Some(card), ..Default::default() };
        let (device, mut model) = bench.file_device(64 * MIB, options);
        let buf = bench.reactor.pool_mut().alloc(64 << 10).unwrap();
        bench.reactor.pool_mut().bytes_mut(buf).fill(0xC5);
        let offset = 5 * MIB as u64;
        let start = Instant::now();
        let spans = [Span::new(buf, 0, 64 << 10)];
        assert_eq!(bench.run(Op::Write { device, offset, spans: &spans }), Ok(64 << 10));
        assert!(start.elapsed() > Duration::from_millis(5), "{:?}", start.elapsed());
        model[offset as usize..][..64 << 10].fill(0xC5);
        let start = Instant::now();
        for n in 0..16 {
            let offset = offset + n * 4096 - 8 * 4096;
            let spans = [Span::new(buf, n as u32 * 4096, 4096)];
            bench.reactor.submit(n, Op::Read { device, offset, spans: &spans });
        }
        bench.reactor.submit(99, Op::Flush { device });
        let done = bench.collect(17);
        // The model orders the flush behind the earlier reads. The real operations below it are not
        // ordered: on a busy machine a read can be reported later.
        assert!(done.iter().any(|c| c.token == 99));
        assert!(start.elapsed() > Duration::from_millis(2), "{:?}", start.elapsed());
        let expected = &model[offset as usize - 8 * 4096..][..64 << 10];
        assert!(bench.reactor.pool().bytes(buf) == expected);
        // Zeroed space is unmapped, and the zeroes are not written to the card.
        let (len, may_unmap) = (8 << 20, true);
        bench.reactor.submit(1, Op::Zero { device, offset: 0, len, may_unmap });
        let spans = [Span::new(buf, 0, 64 << 10)];
        bench.collect(1);
        assert_eq!(bench.run(Op::Read { device, offset, spans: &spans }), Ok(64 << 10));
        assert!(bench.reactor.pool().bytes(buf).iter().all(|byte| *byte == 0));
        let notes = bench.reactor.emulation_notes();
        assert!(notes.len() == 1 && notes[0].contains(" as card-d:100: 16 pages written"), "{notes:?}");
    });
}

#[test]
fn a_warm_reactor_takes_no_more_memory() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(4 * MIB, DeviceOptions::default());
        let mut after_first = None;
        for _ in 0..50 {
            let bufs: Vec<_> = (0..32).map(|_| bench.reactor.pool_mut().alloc(16 << 10).unwrap()).collect();
            for (n, &buf) in bufs.iter().enumerate() {
                let spans = [Span::new(buf, 0, 16 << 10)];
                bench.reactor.submit(n as u64, Op::Write { device, offset: n as u64 * 16384, spans: &spans });
                // Freed in flight: the buffer returns to the pool when the write completes.
                bench.reactor.pool_mut().free(buf);
            }
            bench.collect(32);
            let stats = bench.reactor.pool().stats();
            assert_eq!((stats.used_bytes, stats.used_buffers, stats.pins), (0, 0, 0));
            assert_eq!(*after_first.get_or_insert(stats.allocated_bytes), stats.allocated_bytes);
        }
    });
}

/// Under memory pressure, between two turns, memory returns to the system and its buffer number in
/// the ring is reused for other memory.
#[test]
fn reused_registration_has_the_new_memory() {
    all_engines(|bench| {
        for seed in 0..4 {
            let limits = Limits { buffer_bytes_max: 7 * MIB, ..Limits::default() };
            drop(bench.replace_reactor(limits));
            let (device, mut model) = bench.file_device(8 * MIB, DeviceOptions::default());
            let small = bench.reactor.pool_mut().alloc(4096).unwrap();
            bench.reactor.pool_mut().bytes_mut(small).copy_from_slice(&pattern(seed, 4096));
            let spans = [Span::new(small, 0, 4096)];
            assert_eq!(bench.run(Op::Write { device, offset: 4096 * seed, spans: &spans }), Ok(4096));
            assert_eq!(bench.run(Op::Read { device, offset: 4096 * seed, spans: &spans }), Ok(4096));
            assert_eq!(bench.reactor.pool().bytes(small)[..4096], pattern(seed, 4096));
            bench.reactor.pool_mut().free(small);
            let all = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
            assert_eq!(all, small, "the test tests nothing: the number is not used again");
            assert_eq!(bench.reactor.pool().stats().allocated_bytes, 4 * MIB, "the other is gone");
            bench.reactor.pool_mut().bytes_mut(all).copy_from_slice(&pattern(seed + 10, 4 * MIB));
            let spans = [Span::new(all, 0, 4096), Span::new(all, 8192, 4096)];
            assert_eq!(bench.run(Op::Write { device, offset: 65536, spans: &spans }), Ok(8192));
            let at = 4096 * seed as usize;
            model[at..at + 4096].copy_from_slice(&pattern(seed, 4096));
            let fresh = pattern(seed + 10, 4 * MIB);
            model[65536..69_632].copy_from_slice(&fresh[..4096]);
            model[69_632..73_728].copy_from_slice(&fresh[8192..12_288]);
            assert!(bench.file_contents() == model);
            assert_eq!(
                bench.run(Op::Read { device, offset: 0, spans: &[Span::new(all, 0, 4096 * 1024)] }),
                Ok(4096 * 1024)
            );
            assert!(bench.reactor.pool().bytes(all) == &model[..4 * MIB]);
        }
    });
}

/// Registered memory becomes scarce while operations that would use the registration are queued.
#[test]
fn unregistered_memory_is_still_transferred() {
    all_engines(|bench| {
        let limits = Limits { buffer_bytes_max: 7 * MIB, ..Limits::default() };
        drop(bench.replace_reactor(limits));
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let [a, b] = [1, 2].map(|seed| {
            let buf = bench.reactor.pool_mut().alloc(4096).unwrap();
            bench.reactor.pool_mut().bytes_mut(buf).copy_from_slice(&pattern(seed, 4096));
            Span::new(buf, 0, 4096)
        });
        assert_eq!(bench.run(Op::Write { device, offset: 0, spans: &[a, b] }), Ok(8192));
        assert_eq!(bench.reactor.pool().stats().allocated_bytes, 4 * MIB, "it may be registered");
        // A buffer of the chunk that is in use before and after.
        let reused = bench.reactor.pool_mut().alloc(4096).unwrap();
        let c = Span::new(reused, 0, 4096);
        bench.reactor.submit(0, Op::Write { device, offset: 65536, spans: &[b, a] });
        bench.reactor.submit(1, Op::Read { device, offset: 40_960, spans: &[c] });
        let large = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
        bench.collect(2);
        let model = bench.file_contents();
        assert_eq!(model[65536..69_632], pattern(2, 4096));
        assert_eq!(model[69_632..73_728], pattern(1, 4096));
        assert_eq!(bench.reactor.pool().bytes(reused)[..], model[40_960..45_056]);
        // Zero where no memory may be registered.
        let missed = bench.reactor.stats().registrations_missed;
        assert!(missed == 0 || missed == 2 && bench.reactor.engine() == EngineKind::Uring, "{missed}");
        // The chunk is registered again, with other pages, and all buffers have theirs.
        bench.reactor.pool_mut().free(large);
        let held: Vec<_> = std::iter::from_fn(|| bench.reactor.pool_mut().alloc(MIB)).collect();
        held.iter().for_each(|buf| bench.reactor.pool_mut().free(*buf));
        for (turn, span) in [a, b, c].into_iter().enumerate() {
            bench.reactor.pool_mut().copy_in(span, &pattern(turn as u64, 4096));
        }
        let offset = 131_072;
        assert_eq!(bench.run(Op::Write { device, offset, spans: &[a, b, c] }), Ok(12_288));
        let at = offset as usize;
        for turn in 0..3 {
            let here = at + 4096 * turn;
            assert_eq!(bench.file_contents()[here..here + 4096], pattern(turn as u64, 4096), "{turn}");
        }
        assert_eq!(bench.reactor.stats().registrations_missed, missed);
    });
}

/// Between two turns pages return to the system and others are mapped at the same address: the
/// existing registration refers to the old ones.
#[test]
fn exchanged_memory_is_registered_again() {
    all_engines(|bench| {
        let limits = Limits { buffer_bytes_max: 7 * MIB, ..Limits::default() };
        drop(bench.replace_reactor(limits));
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let pool = bench.reactor.pool_mut();
        let (kept, gone) = (pool.alloc(4096).unwrap(), pool.alloc(4096).unwrap());
        let old = Span::new(gone, 0, 4096);
        pool.copy_in(old, &pattern(1, 4096));
        let spans = [Span::new(kept, 0, 4096), old];
        assert_eq!(bench.run(Op::Write { device, offset: 0, spans: &spans }), Ok(8192));
        let pool = bench.reactor.pool_mut();
        let address = pool.bytes(gone).as_ptr();
        pool.free(gone);
        let large = pool.alloc(4 * MIB).unwrap();
        pool.free(large);
        let other = [pool.alloc(2 * MIB).unwrap(), pool.alloc(MIB).unwrap()];
        assert_eq!(pool.stats().allocated_bytes, 3 * MIB + 4096, "there is memory to pin again");
        let new = pool.alloc(4096).unwrap();
        assert_eq!(pool.bytes(new).as_ptr(), address, "the test tests nothing");
        let new = Span::new(new, 0, 4096);
        pool.copy_in(new, &pattern(2, 4096));
        assert_eq!(bench.run(Op::Write { device, offset: 4096, spans: &[new] }), Ok(4096));
        assert_eq!(bench.reactor.pool().stats().allocated_bytes, 4 * MIB, "it is registered");
        assert!(bench.file_contents()[4096..8192] == pattern(2, 4096));
        assert_eq!(bench.reactor.stats().registrations_missed, 0);
        other.into_iter().for_each(|buf| bench.reactor.pool_mut().free(buf));
    });
}

/// With little memory, buffers of all sizes are allocated and freed, and transfers use one or many
/// of them.
#[test]
fn transfers_survive_changing_registrations() {
    all_engines(|bench| {
        let limits = Limits { buffer_bytes_max: 24 * MIB, ..Limits::default() };
        drop(bench.replace_reactor(limits));
        let (device, mut model) = bench.file_device(8 * MIB, DeviceOptions::default());
        let mut random = 12345u64;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut held: Vec<Span> = Vec::new();
        for turn in 0..1200 {
            let len = 4096 << below(if turn / 100 % 2 == 0 { 3 } else { 9 });
            match bench.reactor.pool_mut().alloc(len) {
                Some(buf) => held.push(Span::new(buf, 0, len as u32)),
                None => {
                    for span in held.drain(..held.len() / 3 * 2) {
                        bench.reactor.pool_mut().free(span.buf);
                    }
                    continue;
                }
            }
            // The last few, so that they are mostly neighbours.
            let spans = &held[held.len().saturating_sub(1 + below(5) as usize)..];
            let bytes: usize = spans.iter().map(|span| span.len as usize).sum();
            let offset = below(((8 * MIB - bytes) / 4096) as u64 + 1) * 4096;
            let there = offset as usize..offset as usize + bytes;
            if below(2) == 0 {
                let fresh = pattern(turn, bytes);
                let mut from = 0;
                for span in spans {
                    let to = from + span.len as usize;
                    bench.reactor.pool_mut().copy_in(*span, &fresh[from..to]);
                    from = to;
                }
                model[there].copy_from_slice(&fresh);
                assert_eq!(bench.run(Op::Write { device, offset, spans }), Ok(bytes as u32));
            } else {
                assert_eq!(bench.run(Op::Read { device, offset, spans }), Ok(bytes as u32));
                let mut read = Vec::new();
                for span in spans {
                    read.extend_from_slice(&bench.reactor.pool().bytes(span.buf)[..span.len as usize]);
                }
                assert!(read == model[there], "turn {turn}");
            }
        }
        assert!(bench.file_contents() == model);
    });
}

#[test]
fn reactor_with_operations_in_flight_drops() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(4 * MIB, DeviceOptions::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = bench.reactor.add_socket(OwnedFd::from(ours)).unwrap();
        let buf = bench.reactor.pool_mut().alloc(4 * MIB).unwrap();
        bench.reactor.submit(0, Op::Recv { socket, span: Span::new(buf, 0, 10) });
        for n in 0..64u64 {
            let spans = [Span::new(buf, 65536, 65536)];
            bench.reactor.submit(1 + n, Op::Write { device, offset: n * 65536, spans: &spans });
        }
        bench.reactor.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        bench.replace_reactor(Limits::default());
        let mut theirs = theirs;
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "the socket is closed");
    });
}

#[test]
fn reactor_can_move_to_another_thread() {
    all_engines(|bench| {
        let (device, _) = bench.file_device(MIB, DeviceOptions::default());
        let limits = Limits::default();
        let mut reactor = bench.replace_reactor(limits);
        let path = bench.path();
        std::thread::spawn(move || {
            let options = DeviceOptions { lock: false, ..Default::default() };
            let again = reactor.add_device(Device::open_cache(path, options).unwrap());
            let buf = reactor.pool_mut().alloc(4096).unwrap();
            reactor.submit(1, Op::Read { device: again, offset: 0, spans: &[Span::new(buf, 0, 4096)] });
            let mut out = Vec::new();
            reactor.wait(None, &mut out).unwrap();
            assert_eq!(out[0].result, Ok(4096));
        })
        .join()
        .unwrap();
        let _ = device;
    });
}

#[test]
fn cache_files_are_made_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    create_cache_file(&path, 5 << 20, true, &[]).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5 << 20);
    let again = create_cache_file(&path, 1, false, &[]).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    let huge = dir.path().join("huge");
    let error = create_cache_file(&huge, 1 << 55, true, &[]).unwrap_err();
    assert!(error.to_string().contains("no space"), "{error}");
    assert!(!huge.exists(), "no half file is left");
}
