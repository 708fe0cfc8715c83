//! STARTTLS in each mode: replies before TLS, state that survives it, and attacks from the network
//! path.

use crate::common::*;
use forebay_export::nbd::codec::*;
use forebay_export::nbd::{CloseReason, Limits, Session, Tls};

fn greeted(tls: Tls, flags: u32) -> Peer {
    greeted_with(tls, flags, Limits::default())
}

fn greeted_with(tls: Tls, flags: u32, limits: Limits) -> Peer {
    let mut peer = Peer::new(two_exports());
    peer.session = Session::with_tls(limits, tls);
    let mut out = Vec::new();
    peer.feed(&flags.to_be_bytes(), &mut out);
    assert_eq!(out, greeting(3));
    peer
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_option(&mut bytes, option, data);
    bytes
}

/// Sends bytes; returns the kinds of the replies.
fn send(peer: &mut Peer, bytes: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    peer.feed(bytes, &mut out);
    let mut rest = &out[..];
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(OPTION_REPLY_HEADER_BYTES);
        let head = OptionReplyHeader::decode(head).unwrap();
        kinds.push(head.kind);
        rest = &tail[head.length as usize..];
    }
    kinds
}

/// All options except STARTTLS, ABORT and EXPORT_NAME.
const OTHERS: [u32; 10] = [
    opt::LIST,
    opt::INFO,
    opt::GO,
    opt::STRUCTURED_REPLY,
    opt::LIST_META_CONTEXT,
    opt::SET_META_CONTEXT,
    opt::EXTENDED_HEADERS,
    0,
    4,
    u32::MAX,
];

#[test]
fn required_tls_refuses_other_options() {
    let mut peer = greeted(Tls::Required, 3);
    for other in OTHERS {
        for data in [vec![], go("db", &[]), go("no such export", &[]), vec![0; 30_000]] {
            assert_eq!(send(&mut peer, &option(other, &data)), [rep::ERR_TLS_REQD], "{other}");
        }
    }
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, b"x")), [rep::ERR_INVALID]);
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[])), [rep::ACK]);
    assert_eq!(peer.events, [Event::StartTls]);
}

#[test]
fn long_option_before_tls_is_refused() {
    let limits = Limits { option_bytes_max: 10, ..Limits::default() };
    let mut peer = greeted_with(Tls::Required, 3, limits);
    assert_eq!(send(&mut peer, &option(opt::LIST, &[0; 11])), [rep::ERR_TLS_REQD]);
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[0; 11])), [rep::ERR_TOO_BIG]);
}

#[test]
fn export_name_before_tls_closes() {
    for (flags, name) in [(3, "db"), (3, "nope"), (1, ""), (0, "db")] {
        let mut peer = greeted(Tls::Required, flags);
        assert_eq!(send(&mut peer, &option(opt::EXPORT_NAME, name.as_bytes())), [0u32; 0]);
        assert_eq!(peer.closed(), Some(CloseReason::TlsRequired));
    }
    let mut peer = greeted(Tls::Required, 3);
    assert_eq!(send(&mut peer, &option(opt::ABORT, &[])), [rep::ACK]);
    assert_eq!(peer.closed(), Some(CloseReason::Aborted));
}

#[test]
fn data_behind_starttls_is_never_accepted() {
    for behind in
        [option(opt::LIST, &[]), option(opt::GO, &go("db", &[])), vec![22], b"\x16\x03\x01".to_vec()]
    {
        let mut peer = greeted(Tls::Required, 3);
        let bytes = [option(opt::STARTTLS, &[]), behind].concat();
        assert_eq!(send(&mut peer, &bytes), [0u32; 0], "not even an acknowledgement");
        assert_eq!(peer.closed(), Some(CloseReason::DataBehindStartTls));
        peer.session.tls_established();
        assert_eq!(send(&mut peer, &option(opt::LIST, &[])), [0u32; 0], "and nothing brings it back");
    }
    // Bytes between the acknowledgement and the handshake are refused too.
    let mut peer = greeted(Tls::Required, 3);
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[])), [rep::ACK]);
    assert_eq!(send(&mut peer, &option(opt::LIST, &[])), [0u32; 0]);
    assert_eq!(peer.closed(), Some(CloseReason::DataBehindStartTls));
}

#[test]
fn tls_restarts_the_negotiation() {
    let mut peer = greeted(Tls::Required, 3);
    assert_eq!(send(&mut peer, &option(opt::STRUCTURED_REPLY, &[])), [rep::ERR_TLS_REQD]);
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[])), [rep::ACK]);
    peer.session.tls_established();
    let meta = meta("db", &["base:allocation"]);
    assert_eq!(
        send(&mut peer, &option(opt::SET_META_CONTEXT, &meta)),
        [rep::ERR_INVALID],
        "structured replies were not agreed on, whatever was said before TLS"
    );
    for other in OTHERS.into_iter().filter(|other| *other != opt::GO) {
        let kinds = send(&mut peer, &option(other, &[]));
        assert!(!kinds.contains(&rep::ERR_TLS_REQD), "{other}: the protocol forbids it now");
    }
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[])), [rep::ERR_INVALID], "a second time");
    assert_eq!(send(&mut peer, &option(opt::GO, &go("db", &[]))), [rep::INFO, rep::ACK]);
    assert!(matches!(peer.events.last(), Some(Event::Established(_))));
}

#[test]
fn starttls_is_refused_if_tls_is_off() {
    let mut peer = greeted(Tls::Off, 3);
    assert_eq!(send(&mut peer, &option(opt::STARTTLS, &[])), [rep::ERR_POLICY]);
    peer.session.tls_established();
    assert_eq!(send(&mut peer, &option(opt::GO, &go("db", &[]))), [rep::INFO, rep::ACK]);
}

#[test]
fn option_limit_covers_both_phases() {
    let mut peer = greeted_with(Tls::Required, 3, Limits { options_max: 3, ..Limits::default() });
    send(&mut peer, &option(opt::LIST, &[]));
    send(&mut peer, &option(opt::STARTTLS, &[]));
    peer.session.tls_established();
    assert_eq!(send(&mut peer, &option(99, &[])), [rep::ERR_UNSUP]);
    assert_eq!(send(&mut peer, &option(99, &[])), [0u32; 0]);
    assert_eq!(peer.closed(), Some(CloseReason::TooManyOptions));
}
