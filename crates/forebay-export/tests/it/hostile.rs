//! Hostile peers: garbage and damaged conversations, for the session and for the client. None may
//! cause a panic, a hang, or memory beyond the limits.

use std::io::{self, Read, Write};

use crate::common::client::Requests;
use crate::common::*;
use forebay_export::nbd::CloseReason;
use forebay_export::nbd::codec::*;
use forebay_nbd_client::{ClientError, HandshakeOptions, NbdClient, list_exports};
use proptest::prelude::*;

/// Feeds bytes in pieces of any size. Every accepted request must be within bounds.
fn survive(bytes: &[u8], piece: usize, payload: Payload) -> Peer {
    let mut peer = Peer::with_limits(two_exports(), TIGHT);
    peer.payload = payload;
    peer.serve = false;
    let mut out = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        peer.feed(piece, &mut out);
    }
    peer.check_tight();
    peer
}

/// One kind of damage to a conversation.
#[derive(Debug, Clone)]
enum Damage {
    Set(usize, u8),
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    Word(usize, u32),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..3000_usize;
    let extreme = prop::sample::select(vec![0, 1, 27, 28, 0x7fff_ffff, 0x8000_0000, u32::MAX - 27, u32::MAX]);
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (at.clone(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        at.clone().prop_map(Damage::Cut),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at.clone(), 1..64_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        (at.clone(), 1..200_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
        (at, extreme).prop_map(|(at, word)| Damage::Word(at, word)),
    ]
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        match damage {
            Damage::Set(at, byte) => bytes[at % length] = *byte,
            Damage::Flip(at, bit) => bytes[at % length] ^= 1 << bit,
            Damage::Cut(at) => bytes.truncate(at % length),
            Damage::Insert(at, extra) => {
                bytes.splice(at % length..at % length, extra.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = at % length;
                bytes.drain(at..(at + count).min(length));
            }
            Damage::Repeat(at, count) => {
                let at = at % length;
                let part = bytes[at..(at + count).min(length)].to_vec();
                bytes.splice(at..at, part);
            }
            Damage::Word(at, word) => {
                let at = at % length;
                let end = (at + 4).min(length);
                bytes[at..end].copy_from_slice(&word.to_be_bytes()[..end - at]);
            }
        }
    }
    bytes
}

fn payload() -> impl Strategy<Value = Payload> {
    prop::sample::select(vec![Payload::Copy, Payload::Direct])
}

/// A server that sends these bytes, and ignores its input.
#[derive(Debug)]
struct Liar(io::Cursor<Vec<u8>>);

impl Read for Liar {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Liar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe that records the server's bytes.
#[derive(Debug)]
struct Recorder(Pipe, Vec<u8>);

impl Read for Recorder {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(into)?;
        self.1.extend_from_slice(&into[..count]);
        Ok(count)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The client's half of a conversation. Stops at the first error of the connection, as it must.
fn converse<S: Read + Write>(stream: S, options: &HandshakeOptions) -> Result<S, ClientError> {
    let mut client = NbdClient::handshake(stream, "db", options)?;
    let mut data = Vec::new();
    for cookie in 0..4_u64 {
        client.send_write(cookie * 8, cookie * 512, &[3; 600], false)?;
        client.send_read(cookie * 8 + 1, cookie * 512, 1000)?;
        client.send_read(cookie * 8 + 2, 9 << 30, 1000)?; // refused
        client.send_block_status(cookie * 8 + 3, 0, 1 << 30, false)?;
        client.send_flush(cookie * 8 + 4)?;
    }
    while client.in_flight() > 0 {
        let reply = client.recv_reply(&mut data)?;
        assert!(data.is_empty() || (data.len() == 1000 && reply.cookie % 8 <= 2));
    }
    client.disconnect()
}

fn server_said(options: &HandshakeOptions) -> Vec<u8> {
    let recorder = Recorder(Pipe::new(Peer::new(two_exports()), usize::MAX), Vec::new());
    converse(recorder, options).unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_session_survives_garbage(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        start in 0..4_usize,
        piece in 1..600_usize,
        payload in payload(),
    ) {
        // Garbage from the first byte, after the flags, after a magic number, in transmission.
        let mut whole = match start {
            0 => vec![],
            1 => 3_u32.to_be_bytes().to_vec(),
            2 => [&3_u32.to_be_bytes()[..], &MAGIC_OPTION.to_be_bytes()].concat(),
            _ => [hello("db", true), MAGIC_REQUEST.to_be_bytes().to_vec()].concat(),
        };
        whole.extend(bytes);
        survive(&whole, piece, payload);
    }

    #[test]
    fn session_survives_a_damaged_conversation(
        damages in prop::collection::vec(damage(), 1..6),
        piece in 1..3000_usize,
        payload in payload(),
    ) {
        survive(&damaged(conversation(), &damages), piece, payload);
    }

    #[test]
    fn a_client_survives_a_damaged_server(
        damages in prop::collection::vec(damage(), 1..6),
        structured: bool,
        export_name: bool,
    ) {
        let options = HandshakeOptions { structured, export_name, ..HandshakeOptions::default() };
        let lies = damaged(server_said(&options), &damages);
        let _ = list_exports(Liar(io::Cursor::new(lies.clone())));
        let _ = converse(Liar(io::Cursor::new(lies)), &options);
    }

    #[test]
    fn a_client_survives_garbage(bytes in prop::collection::vec(any::<u8>(), 0..300), greeted: bool) {
        let mut whole = if greeted { greeting(3).to_vec() } else { vec![] };
        whole.extend(bytes);
        prop_assert!(converse(Liar(io::Cursor::new(whole)), &HandshakeOptions::default()).is_err());
    }
}

/// The same damage on every run and machine: each byte of a conversation set to each of a few
/// values, each 32-bit word to each of a few more, the conversation cut at every byte.
#[test]
fn session_survives_damage_at_each_byte() {
    let good = conversation();
    let whole = survive(&good, usize::MAX, Payload::Copy);
    assert_eq!(whole.closed(), Some(CloseReason::Disconnected));
    for at in 0..good.len() {
        survive(&good[..at], usize::MAX, Payload::Copy);
        for byte in [0, 1, 0x7f, 0x80, 0xff, good[at] ^ 1] {
            survive(&damaged(good.clone(), &[Damage::Set(at, byte)]), usize::MAX, Payload::Copy);
        }
        for word in [0, 1, 28, 2049, 100_001, 0x7fff_ffff, u32::MAX] {
            survive(&damaged(good.clone(), &[Damage::Word(at, word)]), 100, Payload::Direct);
        }
    }
    let options = HandshakeOptions::default();
    let said = server_said(&options);
    for at in 0..said.len() {
        for word in [0, 1, 16, 0x7fff_ffff, u32::MAX] {
            let lies = damaged(said.clone(), &[Damage::Word(at, word)]);
            let _ = converse(Liar(io::Cursor::new(lies)), &options);
        }
    }
}

/// Named hostile conversations, each with its required end.
#[test]
fn session_survives_hostile_clients() {
    let flags = 3_u32.to_be_bytes().to_vec();
    let option = |option: u32, length: u32| {
        [&MAGIC_OPTION.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    let mut flood = flags.clone();
    (0..1000).for_each(|_| encode_option(&mut flood, opt::LIST, &[]));
    let mut contexts = hello("db", true);
    contexts.truncate(20); // flags and STRUCTURED_REPLY
    encode_option(&mut contexts, opt::SET_META_CONTEXT, &meta("db", &["base:allocation"; 100]));
    let in_transmission = |bytes: Vec<u8>| [hello("db", false), bytes].concat();
    for (name, bytes, end) in [
        ("a flood of options", flood, Some(CloseReason::TooManyOptions)),
        (
            "an option of 4 GiB",
            [flags.clone(), option(9, u32::MAX)].concat(),
            Some(CloseReason::OptionTooLong(u32::MAX)),
        ),
        (
            "a name of 4 GiB",
            [flags.clone(), option(1, u32::MAX)].concat(),
            Some(CloseReason::OptionTooLong(u32::MAX)),
        ),
        ("an old client", [0, 0, 0, 0, 0x25, 0x60, 0x95, 0x13].repeat(4), Some(CloseReason::BadOptionMagic)),
        (
            "HTTP",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            Some(CloseReason::BadClientFlags(0x4745_5420)),
        ),
        ("one context a hundred times", contexts, None),
        ("a silent client", vec![], None),
        ("a client that stops in a header", hello("db", true)[..9].to_vec(), None),
        (
            "a write of 4 GiB",
            in_transmission(request(cmd::WRITE, 0, 1, 0, u32::MAX)),
            Some(CloseReason::PayloadTooLong(u32::MAX)),
        ),
        (
            "an option in transmission",
            in_transmission(hello("db", true)[4..].to_vec()),
            Some(CloseReason::BadRequestMagic),
        ),
        ("a read of everything", in_transmission(request(cmd::READ, 0, 1, 0, u32::MAX)), None),
        (
            "extended headers without asking",
            in_transmission([&0x21e4_1c71_u32.to_be_bytes()[..], &[0; 28]].concat()),
            Some(CloseReason::BadRequestMagic),
        ),
    ] {
        for piece in [1, 7, usize::MAX] {
            assert_eq!(survive(&bytes, piece, Payload::Copy).closed(), end, "{name}");
        }
    }
}

/// Named false replies of a server to a read of 100 bytes at 1000 (cookie 1) and a status query
/// (cookie 2), with the client's error.
#[test]
fn client_survives_lying_servers() {
    let chunk = |flags: u16, kind: u16, cookie: u64, payload: &[u8]| {
        let head = ChunkHeader { flags, kind, cookie, length: payload.len() as u32 };
        [&head.encode()[..], payload].concat()
    };
    let data = |flags: u16, offset: u64, count: usize| {
        chunk(flags, chunk::OFFSET_DATA, 1, &[&offset.to_be_bytes()[..], &vec![7; count]].concat())
    };
    let hole = |flags: u16, offset: u64, count: u32| {
        let payload = [&offset.to_be_bytes()[..], &count.to_be_bytes()].concat();
        chunk(flags, chunk::OFFSET_HOLE, 1, &payload)
    };
    let done = |cookie| chunk(1, chunk::NONE, cookie, &[]);
    let huge = |kind| ChunkHeader { flags: 1, kind, cookie: 2, length: u32::MAX }.encode().to_vec();
    let status = |count: usize| chunk(0, chunk::BLOCK_STATUS, 2, &vec![0; 4 + 8 * count]);
    let cases: Vec<(&str, Vec<u8>, Result<usize, &str>)> = vec![
        ("the truth", data(1, 1000, 100), Ok(100)),
        ("in pieces, backwards", [data(0, 1050, 50), hole(0, 1010, 40), data(1, 1000, 10)].concat(), Ok(100)),
        ("too little", data(1, 1000, 99), Err("without all of its data")),
        ("nothing", done(1), Err("without all of its data")),
        ("too much", data(1, 1000, 101), Err("outside the range")),
        ("one piece twice", [data(0, 1000, 60), data(1, 1000, 60)].concat(), Err("outside the range")),
        ("before the range", data(1, 999, 100), Err("outside the range")),
        ("behind the range", hole(1, 1001, 100), Err("outside the range")),
        ("a hole of 4 GiB", hole(1, u64::MAX, u32::MAX), Err("outside the range")),
        ("an empty piece", data(1, 1000, 0), Err("does not fit")),
        ("a simple reply", simple_reply(0, 1).to_vec(), Err("simple reply with data")),
        ("an unknown cookie", done(3), Err("not in flight")),
        ("an unknown simple cookie", simple_reply(5, 3).to_vec(), Err("not in flight")),
        ("data for a status query", chunk(1, chunk::OFFSET_DATA, 2, &[0; 20]), Err("does not fit")),
        ("status for a read", chunk(1, chunk::BLOCK_STATUS, 1, &[0; 12]), Err("does not fit")),
        ("a status of 4 GiB", huge(chunk::BLOCK_STATUS), Err("impossible length")),
        ("a status of no extents", status(0), Err("impossible length")),
        (
            "three contexts of two",
            [status(1), status(1), status(1)].concat(),
            Err("more block status chunks"),
        ),
        ("an error of 4 GiB", huge(chunk::ERROR), Err("does not fit")),
        ("an error too short", chunk(1, chunk::ERROR, 1, &[0, 0, 0, 5, 0, 9]), Err("garbled error")),
        ("an unknown chunk", chunk(1, 99, 1, &[0; 9]), Err("does not fit")),
        ("nothing that is not the end", chunk(0, chunk::NONE, 1, &[]), Err("does not fit")),
        ("neither kind of reply", vec![9; 20], Err("neither a simple nor")),
    ];
    let greeted = {
        let mut peer = Peer::new(two_exports());
        let mut out = Vec::new();
        peer.feed(&hello("db", true), &mut out);
        out
    };
    for (name, lie, expected) in cases {
        let server = Liar(io::Cursor::new([greeted.clone(), lie].concat()));
        let mut client = NbdClient::handshake(server, "db", &HandshakeOptions::default()).unwrap();
        client.send_read(1, 1000, 100).unwrap();
        client.send_block_status(2, 0, 4096, false).unwrap();
        let mut data = Vec::new();
        match (client.recv_reply(&mut data), expected) {
            (Ok(reply), Ok(length)) => assert_eq!((reply.result, data.len()), (Ok(()), length), "{name}"),
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{name}: {error}");
                let again = client.recv_reply(&mut data);
                assert!(matches!(again, Err(ClientError::Misuse(_))), "{name}: the connection goes on");
            }
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
}
