//! The literal bytes of each structure. A change here is a change of the protocol.

use forebay_export::nbd::codec::*;
use forebay_export::nbd::reply::{Extent, Replier};
use forebay_export::nbd::{Contexts, Errno};
use forebay_export::request::{ClientRequest, Operation};

/// Returns bytes from hexadecimal digits and spaces.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

const STRUCTURED: Replier =
    Replier { structured: true, contexts: Contexts { allocation: true, cache: true } };
const SIMPLE: Replier = Replier { structured: false, contexts: Contexts { allocation: false, cache: false } };

#[test]
fn greeting_bytes() {
    let golden = hex("4e42444d41474943 49484156454f5054 0003");
    assert_eq!(greeting(3).to_vec(), golden);
    assert_eq!(decode_greeting(&golden), Some(3));
    assert_eq!(decode_greeting(&golden[..17]), None);
    // An oldstyle server's second word.
    assert_eq!(decode_greeting(&hex("4e42444d41474943 0000420281861253 0003")), None);
}

#[test]
fn option_bytes() {
    let golden = hex("49484156454f5054 00000007 00000003 616263");
    let mut out = Vec::new();
    encode_option(&mut out, opt::GO, b"abc");
    assert_eq!(out, golden);
    assert_eq!(OptionHeader::decode(&golden[..16]), Some(OptionHeader { option: 7, length: 3 }));
    assert_eq!(OptionHeader::decode(&golden), None, "left over bytes");
    assert_eq!(OptionHeader::decode(&golden[1..17]), None, "bad magic");
}

#[test]
fn option_reply_bytes() {
    let golden = hex("0003e889045565a9 00000007 80000006 00000002 6e6f");
    let mut out = Vec::new();
    encode_option_reply(&mut out, opt::GO, rep::ERR_UNKNOWN, b"no");
    assert_eq!(out, golden);
    let head = OptionReplyHeader { option: 7, kind: rep::ERR_UNKNOWN, length: 2 };
    assert_eq!(OptionReplyHeader::decode(&golden[..20]), Some(head));
    assert_eq!(OptionReplyHeader::decode(&golden[..19]), None);
}

#[test]
fn info_bytes() {
    let mut out = Vec::new();
    encode_info_export(&mut out, 0x0102_0304_0506_0708, 0x056d);
    assert_eq!(out, hex("0000 0102030405060708 056d"));
    out.clear();
    encode_info_text(&mut out, info::NAME, "db");
    assert_eq!(out, hex("0001 6462"));
    out.clear();
    encode_info_block_size(&mut out, 1, 4096, 32 << 20);
    assert_eq!(out, hex("0003 00000001 00001000 02000000"));
}

#[test]
fn request_bytes() {
    let golden = hex("25609513 0001 0001 1122334455667788 0000000100000200 00001000");
    let header = RequestHeader {
        flags: 1,
        kind: 1,
        cookie: 0x1122_3344_5566_7788,
        offset: 0x1_0000_0200,
        length: 4096,
    };
    assert_eq!(header.encode().to_vec(), golden);
    assert_eq!(RequestHeader::decode(&golden), Some(header));
    assert_eq!(RequestHeader::decode(&golden[..27]), None);
    assert_eq!(RequestHeader::decode(&hex(&"00".repeat(28))), None);
}

#[test]
fn simple_reply_bytes() {
    let golden = hex("67446698 00000016 00000000000000ff");
    assert_eq!(simple_reply(22, 255).to_vec(), golden);
    let reply = ReplyHead::Simple(SimpleReply { error: 22, cookie: 255 });
    assert_eq!(ReplyHead::decode(&golden), Some(reply));
    let mut out = Vec::new();
    SIMPLE.error(&mut out, 255, Errno::Invalid, "not sent");
    SIMPLE.ok(&mut out, 1);
    STRUCTURED.ok(&mut out, 2);
    let rest = hex("67446698 00000000 0000000000000001 67446698 00000000 0000000000000002");
    assert_eq!(out, [golden, rest].concat());
    assert_eq!(SIMPLE.read_header(9, 4096, 512).as_bytes(), hex("67446698 00000000 0000000000000009"));
}

#[test]
fn read_chunk_bytes() {
    let golden = hex("668e33ef 0001 0001 0000000000000009 00000208 0000000000001000");
    assert_eq!(STRUCTURED.read_header(9, 4096, 512).as_bytes(), golden);
    let head = ChunkHeader { flags: 1, kind: chunk::OFFSET_DATA, cookie: 9, length: 0x208 };
    assert_eq!(ReplyHead::decode(&golden), Some(ReplyHead::Chunk(head)));
    let empty = hex("668e33ef 0001 0000 0000000000000009 00000000");
    assert_eq!(STRUCTURED.read_header(9, 4096, 0).as_bytes(), empty);
}

#[test]
fn error_chunk_bytes() {
    let mut out = Vec::new();
    STRUCTURED.error(&mut out, 9, Errno::NoSpace, "full");
    assert_eq!(out, hex("668e33ef 0001 8001 0000000000000009 0000000a 0000001c 0004 66756c6c"));
    out.clear();
    STRUCTURED.error(&mut out, 9, Errno::Io, &"é".repeat(5000));
    assert_eq!(out.len(), 20 + 6 + 4096, "messages are cut at 4096 bytes");
    out.clear();
    STRUCTURED.error(&mut out, 9, Errno::Io, &format!("x{}", "é".repeat(5000)));
    assert_eq!(out.len(), 20 + 6 + 4095, "and never inside a character");
}

fn status(one_extent: bool, length_bytes: u64, extents: &[Extent], replier: Replier) -> Vec<u8> {
    let operation = Operation::BlockStatus { one_extent };
    let mut out = Vec::new();
    replier.block_status(&mut out, 9, &ClientRequest { operation, offset_bytes: 0, length_bytes }, extents);
    out
}

#[test]
fn block_status_bytes() {
    let data = Extent { length_bytes: 0x1000, ..Extent::default() };
    let extents = [
        Extent { cached: true, ..data },
        Extent { cached: true, dirty: true, ..data },
        Extent { hole: true, zero: true, length_bytes: 1 << 40, ..data },
    ];
    let golden = hex("668e33ef 0000 0005 0000000000000009 00000014 00000001
             00002000 00000000  00001000 00000003
         668e33ef 0001 0005 0000000000000009 0000001c 00000002
             00001000 00000001  00001000 00000003  00001000 00000000");
    assert_eq!(status(false, 0x3000, &extents, STRUCTURED), golden);
    let one = hex("668e33ef 0000 0005 0000000000000009 0000000c 00000001  00002000 00000000
         668e33ef 0001 0005 0000000000000009 0000000c 00000002  00001000 00000001");
    assert_eq!(status(true, 0x3000, &extents, STRUCTURED), one);
}

#[test]
fn block_status_survives_odd_extents() {
    let only_base = Replier { structured: true, contexts: Contexts { allocation: true, cache: false } };
    let none = hex("668e33ef 0001 0005 0000000000000009 0000000c 00000001 ffffffff 00000000");
    assert_eq!(status(false, u64::from(u32::MAX), &[], only_base), none);
    let zero = Extent { length_bytes: 0, hole: true, ..Extent::default() };
    assert_eq!(status(false, u64::from(u32::MAX), &[zero; 3], only_base), none);
    let huge = Extent { length_bytes: u64::MAX, ..Extent::default() };
    assert_eq!(status(false, u64::from(u32::MAX), &[huge, huge, zero], only_base), none);
    let refused = status(false, 512, &[huge], SIMPLE);
    assert_eq!(refused, hex("67446698 00000016 0000000000000009"));
    // The maximum number of extents, and no more.
    let striped: Vec<Extent> =
        (0..40_000).map(|at| Extent { length_bytes: 1, hole: at % 2 == 0, ..Extent::default() }).collect();
    let bytes = status(false, 1 << 30, &striped, only_base);
    assert_eq!(bytes.len(), 20 + 4 + 8 * (1 << 15));
    assert!(bytes[24..].chunks(8).all(|run| run[..4] == [0, 0, 0, 1]), "what does not fit is left out");
    let one = hex("668e33ef 0001 0005 0000000000000009 0000000c 00000001 00000001 00000001");
    assert_eq!(status(true, 1 << 30, &striped, only_base), one);
}

#[test]
fn every_error_has_its_number() {
    let numbers: Vec<u32> = Errno::ALL.iter().map(|errno| errno.code()).collect();
    assert_eq!(numbers, [1, 5, 12, 22, 28, 75, 95, 108]);
    assert!(Errno::ALL.iter().all(|errno| Errno::from_code(errno.code()) == *errno));
    assert_eq!(Errno::from_code(2), Errno::Invalid);
}
