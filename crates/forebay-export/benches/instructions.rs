//! Work of the NBD session per request, as scenarios that `bench/instructions` runs under
//! callgrind.
//!
//! ```text
//! instructions --list     names of all scenarios, with the meaning of one operation
//! instructions NAME       runs one; prints how many operations were counted
//! ```
//!
//! The counted work is that of the session on received bytes, and the encoding of the reply: no
//! socket, and no payload except that of writes, which is taken in place.

#[path = "../tests/it/common/mod.rs"]
mod common;

use common::Peer;
use forebay_export::nbd::codec::cmd;
use forebay_export::nbd::{Input, Limits, NbdStep};
use forebay_export::request::Operation;
use std::process::ExitCode;

/// Number of counted operations.
const OPERATIONS: u64 = 20_000;
const BLOCK: usize = 4096;

/// A scenario: its name, the meaning of one operation, the command, and whether replies are
/// structured.
struct Scenario(&'static str, &'static str, u16, bool);

const SCENARIOS: &[Scenario] = &[
    Scenario("nbd-read", "decode a 4 KiB read, encode its reply header", cmd::READ, true),
    Scenario("nbd-read-simple", "the same, simple replies", cmd::READ, false),
    Scenario("nbd-write", "decode a 4 KiB write, payload in place, encode the reply", cmd::WRITE, true),
    Scenario("nbd-flush", "decode a FLUSH, encode the reply", cmd::FLUSH, true),
];

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    if word == "--list" {
        SCENARIOS.iter().for_each(|Scenario(name, what, ..)| println!("{name}\t{what}"));
        return ExitCode::SUCCESS;
    }
    let Some(Scenario(_, _, kind, structured)) = SCENARIOS.iter().find(|Scenario(name, ..)| *name == word)
    else {
        eprintln!("usage: instructions --list | NAME (bench/instructions runs this, and counts)");
        return ExitCode::from(2);
    };
    let mut peer = common::established("db", *structured, Limits::default());
    let requests = encode(*kind);
    let mut out = Vec::with_capacity(OPERATIONS as usize * 64);
    let answered = counted_by_callgrind(|| serve(&mut peer, &requests, &mut out));
    assert_eq!(answered, OPERATIONS, "every request was answered");
    println!("{{\"operations\": {OPERATIONS}}}");
    ExitCode::SUCCESS
}

/// Callgrind counts the work of this function only; `bench/instructions` finds it by its name.
#[inline(never)]
fn counted_by_callgrind<T>(work: impl FnOnce() -> T) -> T {
    // Work after the call keeps it from becoming a jump, which would end the count too early.
    std::hint::black_box(work())
}

/// Returns all requests in a client's encoding.
fn encode(kind: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..OPERATIONS {
        let (offset, length) =
            if kind == cmd::FLUSH { (0, 0) } else { (cookie * BLOCK as u64, BLOCK as u32) };
        bytes.extend_from_slice(&common::request(kind, 0, cookie, offset, length));
        if kind == cmd::WRITE {
            bytes.resize(bytes.len() + BLOCK, 0);
        }
    }
    bytes
}

/// Takes all requests out of the bytes and encodes a reply to each; returns their number.
fn serve(peer: &mut Peer, bytes: &[u8], out: &mut Vec<u8>) -> u64 {
    let mut input = Input::new(bytes);
    let replier = peer.session.replier();
    let mut answered = 0;
    loop {
        let request = match peer.session.step(&mut input, &peer.exports) {
            NbdStep::Request(request) => request,
            NbdStep::WritePayload(request) => {
                input = Input::new(&input.rest()[BLOCK..]);
                peer.session.payload_received(BLOCK);
                request
            }
            _ => return answered,
        };
        let asked = request.request;
        if asked.operation == Operation::Read {
            let header = replier.read_header(request.cookie, asked.offset_bytes, asked.length_bytes as u32);
            out.extend_from_slice(header.as_bytes());
        } else {
            replier.ok(out, request.cookie);
        }
        answered += 1;
    }
}
