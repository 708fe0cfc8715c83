//! Sessions against the project's own server session, in memory.

use crate::common::{Peer, two_exports};
use forebay_export::nbd::Errno;
use forebay_export::nbd::codec::{cmd, cmd_flag, extent_flag, rep};
use forebay_nbd_client::session::{HandshakeOptions, Request, Session, SessionError, SessionEvent};

const REQUESTS: [(Request, &[u8]); 7] = [
    (Request { kind: cmd::WRITE, flags: cmd_flag::FUA, offset: 4096, length: 4 }, b"data"),
    (Request { kind: cmd::READ, flags: 0, offset: 4094, length: 8 }, b""),
    (Request { kind: cmd::WRITE_ZEROES, flags: cmd_flag::NO_HOLE, offset: 4097, length: 1 }, b""),
    (Request { kind: cmd::READ, flags: 0, offset: 4096, length: 4 }, b""),
    (Request { kind: cmd::READ, flags: 0, offset: 8 << 30, length: 4 }, b""),
    (Request { kind: cmd::BLOCK_STATUS, flags: 0, offset: 0, length: 8192 }, b""),
    (Request { kind: cmd::FLUSH, flags: 0, offset: 0, length: 0 }, b""),
];

/// Sends everything to the server and returns its bytes, without taking them.
fn exchange(session: &mut Session, peer: &mut Peer) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = session.output().len();
    peer.feed(session.output(), &mut bytes);
    session.sent(count);
    bytes
}

/// Passes bytes to a session, and returns its events.
fn receive(session: &mut Session, mut bytes: &[u8]) -> Vec<SessionEvent> {
    let mut seen = Vec::new();
    while !bytes.is_empty() {
        let taken = session.receive(bytes).unwrap();
        seen.extend(std::iter::from_fn(|| session.event()));
        bytes = &bytes[taken..];
    }
    seen
}

/// Runs the handshake and all requests, with the server's bytes cut by `pieces`.
fn run(mut pieces: impl FnMut(&[u8]) -> Vec<Vec<u8>>) -> Vec<SessionEvent> {
    let mut session = Session::new("db", &HandshakeOptions::default()).unwrap();
    let mut peer = Peer::new(two_exports());
    let mut bytes = Vec::new();
    peer.feed(&[], &mut bytes);
    let mut seen = Vec::new();
    while !bytes.is_empty() {
        for piece in pieces(&bytes) {
            seen.extend(receive(&mut session, &piece));
        }
        bytes = exchange(&mut session, &mut peer);
    }
    assert_eq!(seen, [SessionEvent::Established]);
    for (tag, (request, payload)) in REQUESTS.iter().enumerate() {
        session.send(tag as u64 + 100, *request);
        session.payload(payload);
    }
    let bytes = exchange(&mut session, &mut peer);
    for piece in pieces(&bytes) {
        seen.extend(receive(&mut session, &piece));
    }
    assert_eq!(session.in_flight(), 0);
    seen
}

#[test]
fn replies_do_not_depend_on_where_bytes_are_cut() {
    let whole = run(|bytes| vec![bytes.to_vec()]);
    let SessionEvent::Reply { tag: 101, result: Ok(()), data, .. } = &whole[2] else { panic!("{whole:?}") };
    assert_eq!(data, b"\0\0data\0\0");
    let SessionEvent::Reply { tag: 103, result: Ok(()), data, .. } = &whole[4] else { panic!("{whole:?}") };
    assert_eq!(data, b"d\0ta");
    let SessionEvent::Reply { tag: 104, result: Err(error), data, .. } = &whole[5] else {
        panic!("{whole:?}")
    };
    assert!(error.errno == Errno::Invalid || error.errno == Errno::NoSpace, "{error}");
    assert!(data.is_empty() && error.message.contains("ends past"), "{error}");
    let SessionEvent::Reply { tag: 105, status, .. } = &whole[6] else { panic!("{whole:?}") };
    assert_eq!(status[0].extents[0].flags, extent_flag::HOLE | extent_flag::ZERO);
    assert_eq!(run(|bytes| bytes.iter().map(|byte| vec![*byte]).collect()), whole);
    for cut in 0..400 {
        let at = |bytes: &[u8]| cut.min(bytes.len());
        assert_eq!(run(|bytes| vec![bytes[..at(bytes)].to_vec(), bytes[at(bytes)..].to_vec()]), whole);
    }
}

/// The bytes of a request, as in the protocol's document.
#[test]
fn requests_have_the_bytes_of_the_protocol() {
    let mut session = Session::new("db", &HandshakeOptions::default()).unwrap();
    for (request, _) in &REQUESTS[..2] {
        session.send(7, *request);
    }
    session.disconnect();
    let expected = [
        "25609513 0001 0001 0000000000000001 0000000000001000 00000004",
        "25609513 0000 0000 0000000000000002 0000000000000ffe 00000008",
        "25609513 0000 0002 0000000000000000 0000000000000000 00000000",
    ];
    let hex: String = session.output().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected.concat().replace(' ', ""));
}

#[test]
fn unknown_export_is_a_typed_refusal() {
    let mut session = Session::new("nope", &HandshakeOptions::default()).unwrap();
    let mut peer = Peer::new(two_exports());
    let mut bytes = Vec::new();
    peer.feed(&[], &mut bytes);
    let refused = loop {
        if let Err(error) = session.receive(&bytes) {
            break error;
        }
        bytes = exchange(&mut session, &mut peer);
    };
    assert!(matches!(refused, SessionError::Refused { kind: rep::ERR_UNKNOWN, .. }), "{refused}");
    session.receive(&[0; 100]).unwrap();
    assert_eq!(session.event(), None);
}
