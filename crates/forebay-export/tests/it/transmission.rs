//! Requests: which ones the session passes on, and which ones it replies to at once, and how.

use crate::common::*;
use forebay_export::nbd::codec::*;
use forebay_export::nbd::{CloseReason, Errno, Input, Limits, NbdRequest, NbdStep};
use forebay_export::request::{ClientRequest, Operation};

/// Sends bytes; returns the replies and the requests passed on.
fn send(peer: &mut Peer, bytes: &[u8]) -> (Vec<u8>, Vec<Event>) {
    let mut out = Vec::new();
    peer.feed(bytes, &mut out);
    (out, std::mem::take(&mut peer.events))
}

/// Returns the error of a single reply; zero for success.
fn errno(answer: &[u8]) -> u32 {
    match ReplyHead::decode(answer).expect("an answer") {
        ReplyHead::Simple(reply) => {
            assert_eq!(answer.len(), SIMPLE_REPLY_BYTES);
            reply.error
        }
        ReplyHead::Chunk(head) => {
            assert_eq!(answer.len(), CHUNK_HEADER_BYTES + head.length as usize);
            assert_eq!(head.flags, chunk::FLAG_DONE);
            if head.kind & chunk::ERROR_BIT == 0 {
                return 0;
            }
            u32::from_be_bytes(answer[20..24].try_into().unwrap())
        }
    }
}

/// Checks a refused request: no event, this error, and the connection continues.
fn refused(peer: &mut Peer, bytes: &[u8], expected: Errno) {
    let (answer, events) = send(peer, bytes);
    assert_eq!(events, [], "{bytes:?}");
    assert_eq!(errno(&answer), expected.code(), "{bytes:?}");
    let (answer, events) = send(peer, &request(cmd::FLUSH, 0, 1, 0, 0));
    assert_eq!((errno(&answer), events.len()), (0, 1), "the connection goes on");
}

fn write(flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = request(cmd::WRITE, flags, 7, offset, data.len() as u32);
    bytes.extend_from_slice(data);
    bytes
}

fn let_through(peer: &mut Peer, kind: u16, flags: u16, offset: u64, length: u32) -> Operation {
    let (_, events) = send(peer, &request(kind, flags, 42, offset, length));
    let [Event::Request(NbdRequest { cookie: 42, request })] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((request.offset_bytes, request.length_bytes), (offset, u64::from(length)));
    request.operation
}

#[test]
fn each_command_becomes_its_operation() {
    let mut peer = established("db", true, Limits::default());
    let p = &mut peer;
    assert_eq!(let_through(p, cmd::READ, 0, 1, 3), Operation::Read);
    assert_eq!(let_through(p, cmd::READ, cmd_flag::DF, 1, 32 << 20), Operation::Read);
    assert_eq!(let_through(p, cmd::READ, cmd_flag::FUA, 1, 3), Operation::Read);
    assert_eq!(let_through(p, cmd::FLUSH, cmd_flag::FUA, 0, 0), Operation::Flush);
    assert_eq!(let_through(p, cmd::TRIM, 0, 5, 9), Operation::Trim { fua: false });
    assert_eq!(let_through(p, cmd::TRIM, cmd_flag::FUA, 5, 9), Operation::Trim { fua: true });
    assert_eq!(let_through(p, cmd::CACHE, 0, 5, u32::MAX), Operation::Cache);
    let flags = cmd_flag::FUA | cmd_flag::NO_HOLE;
    let zeroes = Operation::WriteZeroes { fua: true, no_hole: true, fast_only: false };
    assert_eq!(let_through(p, cmd::WRITE_ZEROES, flags, 5, 9), zeroes);
    let status = |one_extent| Operation::BlockStatus { one_extent };
    assert_eq!(let_through(p, cmd::BLOCK_STATUS, 0, 5, 9), status(false));
    assert_eq!(let_through(p, cmd::BLOCK_STATUS, cmd_flag::REQ_ONE, 5, 9), status(true));
    for fua in [false, true] {
        let (answer, events) = send(p, &write(u16::from(fua), 3, b"abc"));
        assert_eq!(errno(&answer), 0);
        let operation = Operation::Write { fua };
        let request =
            NbdRequest { cookie: 7, request: ClientRequest { operation, offset_bytes: 3, length_bytes: 3 } };
        assert_eq!(events, [Event::Write(request, b"abc".to_vec())]);
    }
}

#[test]
fn trims_and_zeroes_of_almost_4_gib_succeed() {
    let mut peer = established("db", false, Limits::default());
    peer.disk.lock().unwrap().write(4 << 30, b"behind");
    for kind in [cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE] {
        for length in [1 << 31, u32::MAX] {
            let_through(&mut peer, kind, 0, 4096, length);
        }
    }
    let mut behind = [0; 6];
    peer.disk.lock().unwrap().read(4 << 30, &mut behind);
    assert_eq!(&behind, b"\0\0\0\0\0\0");
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    for structured in [false, true] {
        let mut peer = established("db", structured, Limits::default());
        for kind in [8, 9, 255, u16::MAX] {
            refused(&mut peer, &request(kind, 0, 9, 0, 512), Errno::Invalid);
        }
        for flag in 5..16 {
            refused(&mut peer, &request(cmd::READ, 1 << flag, 9, 0, 512), Errno::Invalid);
            refused(&mut peer, &write(1 << flag, 0, b"payload must be skipped"), Errno::Invalid);
        }
        for (kind, flag) in [
            (cmd::READ, cmd_flag::NO_HOLE),
            (cmd::TRIM, cmd_flag::NO_HOLE),
            (cmd::TRIM, cmd_flag::DF),
            (cmd::FLUSH, cmd_flag::REQ_ONE),
            (cmd::CACHE, cmd_flag::FAST_ZERO),
            (cmd::WRITE_ZEROES, cmd_flag::DF),
            (cmd::BLOCK_STATUS, cmd_flag::DF),
        ] {
            refused(&mut peer, &request(kind, flag, 9, 0, 512), Errno::Invalid);
        }
    }
    let mut peer = established("db", false, Limits::default());
    refused(&mut peer, &request(cmd::READ, cmd_flag::DF, 9, 0, 512), Errno::Invalid);
    refused(&mut peer, &request(cmd::BLOCK_STATUS, 0, 9, 0, 512), Errno::Invalid);
}

#[test]
fn fast_zero_is_refused_unless_offered() {
    let mut peer = established("db", true, Limits::default());
    refused(&mut peer, &request(cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 9, 0, 512), Errno::NotSupported);
    let mut exports = two_exports();
    exports[0].fast_zero = true;
    let mut peer = Peer::new(exports);
    let mut out = Vec::new();
    peer.feed(&hello("db", false), &mut out);
    let flags = u16::from_be_bytes(out[out.len() - 22..out.len() - 20].try_into().unwrap());
    assert_ne!(flags & transmission_flag::SEND_FAST_ZERO, 0);
    peer.events.clear();
    let operation = let_through(&mut peer, cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 512);
    assert_eq!(operation, Operation::WriteZeroes { fua: false, no_hole: false, fast_only: true });
}

#[test]
fn requests_past_the_end() {
    for structured in [false, true] {
        let mut peer = established("db", structured, Limits::default());
        for (offset, length) in [(8 << 30, 1), ((8 << 30) - 1, 2), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            let small = length.min(100);
            refused(&mut peer, &request(cmd::READ, 0, 9, offset, length), Errno::Invalid);
            refused(&mut peer, &request(cmd::TRIM, 0, 9, offset, length), Errno::Invalid);
            refused(&mut peer, &request(cmd::CACHE, 0, 9, offset, length), Errno::Invalid);
            refused(&mut peer, &request(cmd::BLOCK_STATUS, 0, 9, offset, length), Errno::Invalid);
            refused(&mut peer, &request(cmd::WRITE_ZEROES, 0, 9, offset, length), Errno::NoSpace);
            refused(&mut peer, &write(0, offset, &vec![1; small as usize]), Errno::NoSpace);
        }
    }
}

#[test]
fn read_only_export_permits_no_changes() {
    let mut peer = established("iso", true, Limits::default());
    refused(&mut peer, &write(0, 0, b"abc"), Errno::NotPermitted);
    refused(&mut peer, &write(0, 1 << 60, b"abc"), Errno::NotPermitted);
    refused(&mut peer, &request(cmd::TRIM, 0, 9, 0, 512), Errno::NotPermitted);
    refused(&mut peer, &request(cmd::WRITE_ZEROES, 0, 9, 0, 512), Errno::NotPermitted);
    assert_eq!(let_through(&mut peer, cmd::READ, 0, 0, 512), Operation::Read);
}

#[test]
fn zero_lengths_are_answered_at_once() {
    for structured in [false, true] {
        let mut peer = established("db", structured, Limits::default());
        for kind in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE] {
            for offset in [0, 8 << 30] {
                let (answer, events) = send(&mut peer, &request(kind, 0, 9, offset, 0));
                assert_eq!((errno(&answer), events.len()), (0, 0));
            }
        }
        refused(&mut peer, &request(cmd::READ, 0, 9, (8 << 30) + 1, 0), Errno::Invalid);
        refused(&mut peer, &request(cmd::WRITE, 0, 9, (8 << 30) + 1, 0), Errno::NoSpace);
        refused(&mut peer, &request(cmd::BLOCK_STATUS, 0, 9, 0, 0), Errno::Invalid);
        refused(&mut peer, &request(cmd::FLUSH, 0, 9, 0, 512), Errno::Invalid);
    }
}

#[test]
fn payload_over_the_limit() {
    let limits = Limits { payload_bytes_max: 1000, skip_bytes_max: 5000, ..Limits::default() };
    let mut peer = established("db", true, limits);
    refused(&mut peer, &request(cmd::READ, 0, 9, 0, 1001), Errno::Invalid);
    refused(&mut peer, &request(cmd::READ, cmd_flag::DF, 9, 0, 1001), Errno::Overflow);
    refused(&mut peer, &write(0, 0, &[7; 1001]), Errno::Invalid);
    refused(&mut peer, &write(0, 0, &[7; 5000]), Errno::Invalid);
    let (_, events) = send(&mut peer, &write(0, 0, &[7; 1000]));
    assert!(matches!(events[..], [Event::Write(..)]));
    assert!(peer.memory_bytes_max < 1000);
    let (answer, events) = send(&mut peer, &request(cmd::WRITE, 0, 9, 0, 5001));
    assert!(answer.is_empty());
    assert_eq!(events, [Event::Close(CloseReason::PayloadTooLong(5001))]);
}

#[test]
fn refused_write_is_answered_after_payload() {
    let mut peer = established("iso", true, Limits::default());
    let bytes = write(0, 0, &[9; 100]);
    for at in 0..bytes.len() {
        let (answer, _) = send(&mut peer, &bytes[at..=at]);
        assert_eq!(answer.is_empty(), at + 1 < bytes.len());
    }
}

#[test]
fn disconnect_and_bad_magic() {
    let mut peer = established("db", true, Limits::default());
    let bytes = [request(cmd::READ, 0, 1, 0, 1), request(cmd::DISC, 0, 0, 0, 0), vec![1, 2, 3]].concat();
    let (_, events) = send(&mut peer, &bytes);
    assert!(matches!(events[..], [Event::Request(_), Event::Close(CloseReason::Disconnected)]));
    let mut peer = established("db", true, Limits::default());
    let mut bytes = request(cmd::READ, 0, 1, 0, 1);
    bytes[0] ^= 1;
    let (answer, events) = send(&mut peer, &bytes);
    assert!(answer.is_empty());
    assert_eq!(events, [Event::Close(CloseReason::BadRequestMagic)]);
    assert!(!CloseReason::BadRequestMagic.is_clean());
}

#[test]
fn new_size_applies_to_the_next_request() {
    let mut peer = established("db", false, Limits::default());
    refused(&mut peer, &request(cmd::READ, 0, 9, 8 << 30, 512), Errno::Invalid);
    peer.session.set_size_bytes((8 << 30) + 512);
    let_through(&mut peer, cmd::READ, 0, 8 << 30, 512);
    peer.session.set_size_bytes(512);
    refused(&mut peer, &request(cmd::READ, 0, 9, 512, 1), Errno::Invalid);
}

#[test]
fn session_without_a_buffer_can_pause() {
    let mut peer = established("db", true, Limits::default());
    let exports = two_exports();
    let bytes = [write(0, 0, b"abcdefgh"), request(cmd::FLUSH, 0, 8, 0, 0)].concat();
    let session = &mut peer.session;
    let mut input = Input::new(&bytes[..30]);
    let first = session.step(&mut input, &exports);
    assert!(matches!(first, NbdStep::WritePayload(_)));
    assert_eq!(session.payload_remaining(), 8);
    // No buffer: further steps change nothing, with the same input, none, or other input.
    for _ in 0..3 {
        assert_eq!(session.step(&mut input, &exports), first);
        assert_eq!(session.step(&mut Input::new(&[]), &exports), first);
        assert_eq!(input.used(), 28);
    }
    // A buffer, in two halves.
    let mut buffer = [0; 8];
    assert_eq!(session.take_payload(&mut input, &mut buffer[..1]), 1);
    assert_eq!(session.take_payload(&mut input, &mut buffer[1..]), 1);
    assert!(input.is_empty());
    assert_eq!(session.take_payload(&mut input, &mut buffer[2..]), 0);
    assert_eq!(session.payload_remaining(), 6);
    // Some bytes are received straight into the buffer, the rest with the next receive.
    buffer[2..5].copy_from_slice(&bytes[30..33]);
    session.payload_received(3);
    let mut input = Input::new(&bytes[33..]);
    assert_eq!(session.step(&mut input, &exports), first);
    assert_eq!(session.take_payload(&mut input, &mut buffer[5..]), 3);
    assert_eq!(&buffer, b"abcdefgh");
    assert_eq!(session.payload_remaining(), 0);
    let NbdStep::Request(flush) = session.step(&mut input, &exports) else { panic!() };
    assert_eq!((flush.cookie, flush.request.operation), (8, Operation::Flush));
    assert_eq!(session.step(&mut input, &exports), NbdStep::NeedMore);
}

#[test]
fn output_is_taken_before_the_next_step() {
    let mut peer = established("db", false, Limits::default());
    let exports = two_exports();
    let bytes = [request(99, 0, 1, 0, 0), request(99, 0, 2, 0, 0)].concat();
    let mut input = Input::new(&bytes);
    for cookie in [1, 2] {
        for _ in 0..3 {
            assert_eq!(peer.session.step(&mut input, &exports), NbdStep::Output);
            assert_eq!(input.used(), 28 * cookie as usize);
        }
        let mut out = Vec::new();
        peer.session.take_output(&mut out);
        assert_eq!(out, simple_reply(22, cookie));
    }
    assert_eq!(peer.session.step(&mut input, &exports), NbdStep::NeedMore);
}
