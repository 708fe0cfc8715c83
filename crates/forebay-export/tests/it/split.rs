//! The session's result does not depend on how the bytes of a connection are split.

use crate::common::*;
use forebay_export::nbd::codec::*;
use forebay_export::nbd::{Input, Limits, NbdRequest, NbdStep, Session};
use proptest::prelude::*;

/// A connection with all kinds of input: valid and invalid options, skipped ones, all commands,
/// refused writes.
fn everything() -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for (option, data) in [
        (opt::LIST, vec![]),
        (opt::STARTTLS, vec![]),
        (opt::INFO, go("nope", &[])),
        (opt::INFO, go("iso", &[1, 2, 3])),
        (opt::LIST, vec![5; 300]),
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::LIST_META_CONTEXT, meta("db", &[])),
        (opt::SET_META_CONTEXT, meta("db", &["base:allocation", "forebay:cache"])),
        (opt::GO, go("db", &[info::BLOCK_SIZE])),
    ] {
        encode_option(&mut bytes, option, &data);
    }
    let write = |flags, offset, data: &[u8]| {
        [request(cmd::WRITE, flags, offset, offset, data.len() as u32), data.to_vec()].concat()
    };
    bytes.extend(
        [
            write(0, 4096, b"hello"),
            request(cmd::READ, 0, 1, 4095, 7),
            write(cmd_flag::FUA, 10_000, &[3; 150]),
            write(0, 1 << 60, &[4; 100]), // beyond the end
            write(0, 0, &[5; 600]),       // too long
            request(cmd::FLUSH, 0, 2, 0, 0),
            request(cmd::TRIM, 0, 3, 0, u32::MAX),
            write(1 << 9, 0, b"bad flag"),
            write(0, 77, b""),
            request(cmd::BLOCK_STATUS, 0, 4, 0, u32::MAX),
            request(cmd::WRITE_ZEROES, 2, 5, 3, 9),
            request(cmd::CACHE, 0, 6, 3, 9),
            request(99, 0, 7, 3, 9),
            request(cmd::DISC, 0, 0, 0, 0),
            b"ignored".to_vec(),
        ]
        .concat(),
    );
    bytes
}

const LIMITS: Limits =
    Limits { payload_bytes_max: 500, option_bytes_max: 200, options_max: 20, skip_bytes_max: 1000 };

/// The next action of a runner that is short of buffers.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// Nothing: step again later, with the same bytes.
    Wait,
    /// Take at most this many bytes of payload out of the input.
    Take(usize),
    /// Receive at most this many bytes of payload straight into their destination.
    Receive(usize),
}

/// Runs a session under these moods, over windows of the input of at most `window` bytes.
fn run_moody(bytes: &[u8], window: usize, moods: &[Mood]) -> (Vec<Event>, Vec<u8>) {
    let exports = two_exports();
    let mut session = Session::new(LIMITS);
    let (mut events, mut out) = (Vec::new(), Vec::new());
    let mut moods = moods.iter().copied().cycle();
    let mut write: Option<(NbdRequest, Vec<u8>)> = None;
    let mut at = 0;
    loop {
        let mut input = Input::new(&bytes[at..bytes.len().min(at + window)]);
        let step = session.step(&mut input, &exports);
        at += input.used();
        match step {
            NbdStep::NeedMore => assert!(at < bytes.len(), "the conversation ends with Close"),
            NbdStep::Output => session.take_output(&mut out),
            NbdStep::Established => events.extend(session.export().cloned().map(Event::Established)),
            NbdStep::Request(request) => events.push(Event::Request(request)),
            NbdStep::StartTls => unreachable!("this session has no TLS"),
            NbdStep::Close(reason) => {
                events.push(Event::Close(reason));
                return (events, out);
            }
            NbdStep::WritePayload(request) => {
                let (_, data) = write.get_or_insert_with(|| (request, Vec::new()));
                let mut input = Input::new(&bytes[at..bytes.len().min(at + window)]);
                match moods.next().unwrap_or(Mood::Wait) {
                    Mood::Wait => {}
                    Mood::Take(most) => {
                        let mut part = vec![0; most];
                        let count = session.take_payload(&mut input, &mut part);
                        assert_eq!(count, input.used());
                        data.extend_from_slice(&part[..count]);
                        at += count;
                    }
                    Mood::Receive(most) => {
                        let count = most.min(session.payload_remaining()).min(bytes.len() - at);
                        data.extend_from_slice(&bytes[at..at + count]);
                        session.payload_received(count);
                        at += count;
                    }
                }
                if session.payload_remaining() == 0 {
                    events.extend(write.take().map(|(request, data)| Event::Write(request, data)));
                }
            }
        }
    }
}

/// Feeds the pieces between the cuts; returns all events and all output.
fn run(bytes: &[u8], cuts: &[usize], payload: Payload) -> (Vec<Event>, Vec<u8>) {
    run_serving(bytes, cuts, payload, true)
}

fn run_serving(bytes: &[u8], cuts: &[usize], payload: Payload, serve: bool) -> (Vec<Event>, Vec<u8>) {
    let mut peer = Peer::with_limits(two_exports(), LIMITS);
    peer.payload = payload;
    peer.serve = serve;
    let mut out = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([bytes.len()]) {
        peer.feed(&bytes[from..to], &mut out);
        from = to;
    }
    assert!(peer.memory_bytes_max < 1500, "{}", peer.memory_bytes_max);
    (peer.events, out)
}

#[test]
fn cut_once_at_every_byte() {
    let bytes = everything();
    let whole = run(&bytes, &[], Payload::Copy);
    assert_eq!(whole.0.len(), 10, "{:?}", whole.0);
    for payload in [Payload::Copy, Payload::Direct] {
        for cut in 0..=bytes.len() {
            assert_eq!(run(&bytes, &[cut], payload), whole, "cut at {cut}");
        }
        let all: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(run(&bytes, &all, payload), whole, "byte by byte");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn cuts_anywhere_change_nothing(
        mut cuts in prop::collection::vec(0..everything().len(), 0..20),
        payload in prop::sample::select(vec![Payload::Copy, Payload::Direct]),
    ) {
        cuts.sort_unstable();
        let bytes = everything();
        prop_assert_eq!(run(&bytes, &cuts, payload), run(&bytes, &[], Payload::Copy));
    }

    #[test]
    fn a_runner_may_stall_anywhere(
        window in prop_oneof![1..40_usize, 40..3000_usize],
        mut moods in prop::collection::vec(
            prop_oneof![
                Just(Mood::Wait),
                (0..200_usize).prop_map(Mood::Take),
                (0..200_usize).prop_map(Mood::Receive),
            ],
            0..30,
        ),
    ) {
        moods.push(Mood::Take(1)); // otherwise it would never end
        let bytes = everything();
        prop_assert_eq!(run_moody(&bytes, window, &moods), run_serving(&bytes, &[], Payload::Copy, false));
    }
}
