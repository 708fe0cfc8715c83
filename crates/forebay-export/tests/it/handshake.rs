//! Scripts of the handshake: each option in its valid and invalid forms, byte for byte where it
//! matters.

use crate::common::*;
use forebay_export::directory::ExportInfo;
use forebay_export::nbd::codec::*;
use forebay_export::nbd::{CloseReason, Contexts, Limits};
use forebay_nbd_client::{ClientError, HandshakeOptions, NbdClient, SessionError, list_exports};

/// A peer that has sent its greeting and taken the client's flags.
fn greeted(client_flags: u32) -> Peer {
    greeted_with(client_flags, Limits::default())
}

fn greeted_with(client_flags: u32, limits: Limits) -> Peer {
    let mut peer = Peer::with_limits(two_exports(), limits);
    let mut out = Vec::new();
    peer.feed(&[], &mut out);
    assert_eq!(out, greeting(3));
    out.clear();
    peer.feed(&client_flags.to_be_bytes(), &mut out);
    assert!(out.is_empty());
    peer
}

/// Sends one option; returns the kind and data of each reply.
fn ask(peer: &mut Peer, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut bytes = Vec::new();
    encode_option(&mut bytes, option, data);
    let mut out = Vec::new();
    peer.feed(&bytes, &mut out);
    replies(option, &out)
}

fn replies(option: u32, mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        let (head, rest) = out.split_at(OPTION_REPLY_HEADER_BYTES);
        let head = OptionReplyHeader::decode(head).unwrap();
        assert_eq!(head.option, option);
        let (data, rest) = rest.split_at(head.length as usize);
        replies.push((head.kind, data.to_vec()));
        out = rest;
    }
    replies
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

const ACK: (u32, Vec<u8>) = (rep::ACK, Vec::new());

#[test]
fn unknown_client_flags_close_connection() {
    assert_eq!(greeted(4).closed(), Some(CloseReason::BadClientFlags(4)));
    assert_eq!(greeted(1 << 31).closed(), Some(CloseReason::BadClientFlags(1 << 31)));
    for flags in 0..=3 {
        assert_eq!(greeted(flags).closed(), None);
    }
}

#[test]
fn export_name_in_all_its_forms() {
    for (flags, padding) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
        let mut peer = greeted(flags);
        let mut bytes = Vec::new();
        encode_option(&mut bytes, opt::EXPORT_NAME, b"iso");
        let mut out = Vec::new();
        peer.feed(&bytes, &mut out);
        let mut golden = 10_000_u64.to_be_bytes().to_vec();
        golden.extend_from_slice(&0x040f_u16.to_be_bytes()); // flags, read-only, flush, FUA, cache
        golden.resize(golden.len() + padding, 0);
        assert_eq!(out, golden);
        assert!(matches!(&peer.events[..], [Event::Established(export)] if export.name == "iso"));
    }
    for bad in [&b"nope"[..], b"\xff\xfe", b""] {
        let mut peer = greeted(3);
        assert_eq!(ask(&mut peer, opt::EXPORT_NAME, bad), []);
        assert_eq!(peer.closed(), Some(CloseReason::UnknownExport));
    }
}

#[test]
fn options_with_replies_need_fixed_newstyle() {
    let mut peer = greeted(2);
    assert_eq!(ask(&mut peer, opt::LIST, &[]), []);
    assert_eq!(peer.closed(), Some(CloseReason::OptionNeedsFixedNewstyle(opt::LIST)));
}

#[test]
fn abort_is_acknowledged_and_closes() {
    for data in [&[][..], b"whatever"] {
        let mut peer = greeted(3);
        assert_eq!(ask(&mut peer, opt::ABORT, data), [ACK]);
        assert_eq!(peer.closed(), Some(CloseReason::Aborted));
        assert!(peer.closed().unwrap().is_clean());
    }
}

#[test]
fn list_names_each_export() {
    let mut peer = greeted(3);
    let expected = [
        (rep::SERVER, b"\0\0\0\x02db".to_vec()),
        (rep::SERVER, b"\0\0\0\x03isoinstallation medium".to_vec()),
        ACK,
    ];
    assert_eq!(ask(&mut peer, opt::LIST, &[]), expected);
    assert_eq!(kinds(&ask(&mut peer, opt::LIST, b"x")), [rep::ERR_INVALID]);
    assert_eq!(ask(&mut peer, opt::LIST, &[]), expected, "an error changes nothing");
}

#[test]
fn info_replies_with_requested_fields() {
    let mut peer = greeted(3);
    let size = |size: u64, flags: u16| {
        let mut data = vec![0, 0];
        data.extend_from_slice(&size.to_be_bytes());
        data.extend_from_slice(&flags.to_be_bytes());
        (rep::INFO, data)
    };
    // flags, flush, FUA, trim, zeroes, multi-conn, cache
    assert_eq!(ask(&mut peer, opt::INFO, &go("db", &[])), [size(8 << 30, 0x056d), ACK]);
    assert_eq!(ask(&mut peer, opt::STRUCTURED_REPLY, &[]), [ACK]);
    let all = [info::BLOCK_SIZE, info::DESCRIPTION, info::NAME, 77, info::EXPORT, info::NAME];
    let expected = [
        size(10_000, 0x048f), // with DF
        (rep::INFO, b"\0\x01iso".to_vec()),
        (rep::INFO, b"\0\x02installation medium".to_vec()),
        (rep::INFO, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0].to_vec()),
        ACK,
    ];
    assert_eq!(ask(&mut peer, opt::INFO, &go("iso", &all)), expected);
    assert!(peer.events.is_empty(), "INFO does not start transmission");
    assert_eq!(ask(&mut peer, opt::GO, &go("iso", &all)), expected);
    assert!(matches!(&peer.events[..], [Event::Established(export)] if export.name == "iso"));
}

#[test]
fn bad_info_keeps_the_handshake_alive() {
    let mut peer = greeted(3);
    let good = go("db", &[info::NAME]);
    let mut long = good.clone();
    long.push(0);
    let mut not_text = good.clone();
    not_text[4] = 0xff;
    let huge_name = [&u32::MAX.to_be_bytes()[..], b"db"].concat();
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
    cases.extend([long, not_text, huge_name, go(&"n".repeat(4097), &[])]);
    for option in [opt::INFO, opt::GO] {
        for case in &cases[..] {
            let replies = ask(&mut peer, option, case);
            assert_eq!(kinds(&replies), [rep::ERR_INVALID], "{case:?}");
            assert!(!replies[0].1.is_empty(), "errors have words");
        }
        assert_eq!(kinds(&ask(&mut peer, option, &go("nope", &[]))), [rep::ERR_UNKNOWN]);
        assert_eq!(
            kinds(&ask(&mut peer, option, &go("", &[]))),
            [rep::ERR_UNKNOWN],
            "two exports, no default"
        );
        peer = greeted(3);
    }
}

#[test]
fn the_empty_name_finds_the_only_export() {
    let mut peer = Peer::new(vec![ExportInfo::new("only", 512)]);
    peer.feed(&hello("", true), &mut Vec::new());
    assert!(matches!(&peer.events[..], [Event::Established(export)] if export.name == "only"));
    // The contexts were set for the empty name, which is the same export.
    assert_eq!(peer.session.replier().contexts, Contexts { allocation: true, cache: true });
}

#[test]
fn structured_replies() {
    let mut peer = greeted(3);
    assert_eq!(kinds(&ask(&mut peer, opt::STRUCTURED_REPLY, b"x")), [rep::ERR_INVALID]);
    ask(&mut peer, opt::GO, &go("db", &[]));
    assert!(!peer.session.replier().structured);
    let mut peer = greeted(3);
    assert_eq!(ask(&mut peer, opt::STRUCTURED_REPLY, &[]), [ACK]);
    assert_eq!(ask(&mut peer, opt::STRUCTURED_REPLY, &[]), [ACK]);
    ask(&mut peer, opt::GO, &go("db", &[]));
    assert!(peer.session.replier().structured);
}

#[test]
fn meta_contexts_are_listed() {
    let mut peer = greeted(3);
    let list = opt::LIST_META_CONTEXT;
    assert_eq!(kinds(&ask(&mut peer, list, &meta("db", &[]))), [rep::ERR_INVALID], "not before structured");
    ask(&mut peer, opt::STRUCTURED_REPLY, &[]);
    let base = || (rep::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec());
    let cache = || (rep::META_CONTEXT, b"\0\0\0\0forebay:cache".to_vec());
    for (queries, expected) in [
        (&[][..], vec![base(), cache(), ACK]),
        (&["base:"], vec![base(), ACK]),
        (&["forebay:"], vec![cache(), ACK]),
        (&["base:allocation", "forebay:cache"], vec![base(), cache(), ACK]),
        (&["base:allocation"; 9], vec![base(), ACK]),
        (&["base:nope", "qemu:", "", ":", "base", "base:alloc"], vec![ACK]),
    ] {
        assert_eq!(ask(&mut peer, list, &meta("db", queries)), expected, "{queries:?}");
    }
    assert_eq!(kinds(&ask(&mut peer, list, &meta("nope", &[]))), [rep::ERR_UNKNOWN]);
}

#[test]
fn meta_contexts_are_set() {
    let contexts = |sets: &[(&str, &[&str])], name: &str| {
        let mut peer = greeted(3);
        ask(&mut peer, opt::STRUCTURED_REPLY, &[]);
        for (name, queries) in sets {
            ask(&mut peer, opt::SET_META_CONTEXT, &meta(name, queries));
        }
        ask(&mut peer, opt::GO, &go(name, &[]));
        peer.session.replier().contexts
    };
    let (base, cache) = ("base:allocation", "forebay:cache");
    let none = Contexts::default();
    let both = Contexts { allocation: true, cache: true };
    assert_eq!(contexts(&[], "db"), none);
    assert_eq!(contexts(&[("db", &[base, cache])], "db"), both);
    assert_eq!(contexts(&[("db", &[base])], "db"), Contexts { allocation: true, cache: false });
    assert_eq!(contexts(&[("db", &["base:", "forebay:", "x:y"])], "db"), none, "namespaces do not set");
    assert_eq!(
        contexts(&[("db", &[base]), ("db", &[cache])], "db"),
        Contexts { allocation: false, cache: true }
    );
    assert_eq!(contexts(&[("iso", &[base])], "db"), none, "set for another export");
    assert_eq!(contexts(&[("db", &[base]), ("nope", &[base])], "db"), none, "a failed set leaves nothing");
    let mut peer = greeted(3);
    ask(&mut peer, opt::STRUCTURED_REPLY, &[]);
    let replies = ask(&mut peer, opt::SET_META_CONTEXT, &meta("db", &[cache, base]));
    let base = (rep::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec());
    let cache = (rep::META_CONTEXT, b"\0\0\0\x02forebay:cache".to_vec());
    assert_eq!(replies, [base, cache, ACK]);
}

#[test]
fn bad_meta_context_queries_are_refused() {
    let mut peer = greeted(3);
    ask(&mut peer, opt::STRUCTURED_REPLY, &[]);
    let good = meta("db", &["base:allocation"]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
    cases.push([&good[..], b"x"].concat());
    cases.push(meta("db", &[&"q".repeat(4097)]));
    cases.push(meta(&"n".repeat(4097), &[]));
    let mut many = meta("db", &[]);
    many[6..].fill(0xff);
    cases.push(many);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        for case in &cases {
            assert_eq!(kinds(&ask(&mut peer, option, case)), [rep::ERR_INVALID], "{case:?}");
        }
    }
}

#[test]
fn unsupported_options_are_refused() {
    let mut peer = greeted(3);
    for data in [&b""[..], b"data"] {
        assert_eq!(kinds(&ask(&mut peer, opt::STARTTLS, data)), [rep::ERR_POLICY]);
    }
    for option in [opt::EXTENDED_HEADERS, 0, 4, 12, u32::MAX] {
        assert_eq!(kinds(&ask(&mut peer, option, &[])), [rep::ERR_UNSUP], "{option}");
        assert_eq!(kinds(&ask(&mut peer, option, b"data")), [rep::ERR_UNSUP], "{option}");
    }
    assert_eq!(kinds(&ask(&mut peer, opt::GO, &go("db", &[]))), [rep::INFO, rep::ACK]);
}

#[test]
fn long_options_are_skipped_and_refused() {
    let limits = Limits { option_bytes_max: 100, skip_bytes_max: 1000, ..Limits::default() };
    for option in [opt::LIST, opt::GO, opt::SET_META_CONTEXT, 99] {
        let mut peer = greeted_with(3, limits);
        assert_eq!(kinds(&ask(&mut peer, option, &[0; 101])), [rep::ERR_TOO_BIG]);
        assert_eq!(kinds(&ask(&mut peer, option, &[0; 1000])), [rep::ERR_TOO_BIG]);
        assert!(!kinds(&ask(&mut peer, option, &[0; 100])).contains(&rep::ERR_TOO_BIG));
        assert_eq!(ask(&mut peer, option, &[0; 1001]), []);
        assert_eq!(peer.closed(), Some(CloseReason::OptionTooLong(1001)));
        assert!(peer.memory_bytes_max < 1000, "{}", peer.memory_bytes_max);
    }
    let mut peer = greeted_with(3, limits);
    ask(&mut peer, opt::EXPORT_NAME, &[b'x'; 101]);
    assert_eq!(peer.closed(), Some(CloseReason::OptionTooLong(101)));
}

#[test]
fn number_of_options_is_limited() {
    let mut peer = greeted_with(3, Limits { options_max: 3, ..Limits::default() });
    for _ in 0..3 {
        assert_eq!(kinds(&ask(&mut peer, 99, &[])), [rep::ERR_UNSUP]);
    }
    assert_eq!(ask(&mut peer, 99, &[]), []);
    assert_eq!(peer.closed(), Some(CloseReason::TooManyOptions));
}

#[test]
fn bad_magic_closes() {
    let mut peer = greeted(3);
    peer.feed(&[0; 16], &mut Vec::new());
    assert_eq!(peer.closed(), Some(CloseReason::BadOptionMagic));
    // The session stays closed, and consumes no input.
    let mut out = Vec::new();
    peer.feed(&hello("db", true), &mut out);
    assert!(out.is_empty());
    assert_eq!(peer.events.len(), 1);
}

#[test]
fn client_succeeds_with_each_handshake() {
    for structured in [false, true] {
        for export_name in [false, true] {
            let options = HandshakeOptions { structured, export_name, ..HandshakeOptions::default() };
            let client =
                NbdClient::handshake(Pipe::new(Peer::new(two_exports()), 7), "iso", &options).unwrap();
            let info = client.info();
            assert_eq!(info.size_bytes, 10_000);
            assert_eq!(info.structured, structured);
            assert_eq!(info.contexts.len(), if structured { 2 } else { 0 });
            assert!(info.has(transmission_flag::READ_ONLY));
            assert!(!info.has(transmission_flag::CAN_MULTI_CONN));
            assert_eq!(info.has(transmission_flag::SEND_DF), structured);
            assert_eq!(info.block_sizes, (!export_name).then_some((1, 4096, 32 << 20)));
            assert_eq!(info.description, if export_name { "" } else { "installation medium" });
        }
    }
    let error =
        NbdClient::handshake(Pipe::new(Peer::new(two_exports()), 99), "nope", &HandshakeOptions::default());
    let error = error.unwrap_err();
    let refused = |error: &ClientError| {
        matches!(error, ClientError::Session(SessionError::Refused { kind: rep::ERR_UNKNOWN, .. }))
    };
    assert!(refused(&error));
    assert!(error.to_string().contains("there is no export named \"nope\""), "{error}");
    let listed = list_exports(Pipe::new(Peer::new(two_exports()), 5)).unwrap();
    assert_eq!(listed[1], ("iso".to_owned(), "installation medium".to_owned()));
    assert_eq!(listed.len(), 2);
}

#[test]
fn a_long_answer_leaves_no_memory_behind() {
    let exports = (0..1000).map(|number| ExportInfo::new(format!("export-{number}"), 512)).collect();
    let mut peer = Peer::new(exports);
    let mut out = Vec::new();
    peer.feed(&3_u32.to_be_bytes(), &mut out);
    let replies = ask(&mut peer, opt::LIST, &[]);
    assert_eq!(replies.len(), 1001);
    assert!(peer.memory_bytes_max > 30_000);
    assert!(peer.session.memory_bytes() <= 4096, "{} bytes kept", peer.session.memory_bytes());
}
