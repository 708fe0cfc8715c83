//! The FUSE session with hand-made requests, and with bytes that no kernel would send.

use std::ffi::OsStr;

use forebay_export::fuse::wire::{self, falloc, fopen, init, opcode, open, setattr};
use forebay_export::fuse::{
    ControlTree, Errno, FuseStep, Limits, NodeKind, Provider, Session, Tree, VolumeTree,
};
use forebay_export::request::Operation;
use proptest::prelude::*;

const SIZE: u64 = (1 << 30) + 512;
const FILE: u64 = 2;

/// A request with its header; the unique number is 99.
fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in [(wire::IN_HEADER_BYTES + body.len()) as u32, opcode] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    for value in [99, node] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(body);
    bytes
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn long_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Steps over one request; the reply must be one whole message for it.
fn step<T: Tree>(session: &mut Session<T>, bytes: &[u8]) -> (FuseStep, Vec<u8>) {
    let mut out = Vec::new();
    let step = session.step(bytes, bytes.len(), &mut out).unwrap();
    if !out.is_empty() {
        assert_eq!(word_at(&out, 0) as usize, out.len());
        assert_eq!(long_at(&out, 8), 99);
    }
    (step, out)
}

/// Returns the error number of a reply.
fn error(answer: &[u8]) -> i32 {
    -(word_at(answer, 4) as i32)
}

fn refused<T: Tree>(session: &mut Session<T>, bytes: &[u8], errno: Errno) {
    let (step, answer) = step(session, bytes);
    assert_eq!((step, error(&answer), answer.len()), (FuseStep::Answered, errno as i32, 16));
}

fn begun<T: Tree>(tree: T, limits: Limits) -> Session<T> {
    let mut session = Session::new(tree, limits);
    let offer = words(&[7, 45, 128 << 10, u32::MAX]);
    assert_eq!(step(&mut session, &request(opcode::INIT, 0, &offer)).0, FuseStep::Answered);
    session
}

fn volume() -> Session<VolumeTree> {
    begun(VolumeTree::new(Some(OsStr::new("disk")), SIZE, (5, 6), 1), Limits::default())
}

fn opened<T: Tree>(session: &mut Session<T>, node: u64, flags: u32) -> u64 {
    let (_, answer) = step(session, &request(opcode::OPEN, node, &words(&[flags, 0])));
    assert_eq!(error(&answer), 0);
    assert_eq!(word_at(&answer, 24), fopen::DIRECT_IO | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES);
    long_at(&answer, 16)
}

fn transfer(handle: u64, offset: u64, length: u32, flags: u32) -> Vec<u8> {
    [longs(&[handle, offset]), words(&[length, 0]), longs(&[0]), words(&[flags, 0])].concat()
}

/// Returns a WRITE in the session's view: the part before the payload, and the whole length.
fn write(handle: u64, offset: u64, length: u32, flags: u32) -> (Vec<u8>, usize) {
    let mut bytes = request(opcode::WRITE, FILE, &transfer(handle, offset, length, flags));
    let all = bytes.len() + length as usize;
    bytes[..4].copy_from_slice(&(all as u32).to_le_bytes());
    (bytes, all)
}

#[test]
fn init_negotiates_common_features() {
    let mut session = Session::new(VolumeTree::new(None, SIZE, (0, 0), 1), Limits::default());
    refused(&mut session, &request(opcode::GETATTR, 1, &[0; 16]), Errno::Protocol);
    refused(&mut session, &request(opcode::INIT, 0, &words(&[7, 30, 0, 0])), Errno::Protocol);
    refused(&mut session, &request(opcode::INIT, 0, &words(&[6, 38, 0, 0])), Errno::Protocol);
    let (_, answer) = step(&mut session, &request(opcode::INIT, 0, &words(&[8, 0, 0, 0])));
    assert_eq!((word_at(&answer, 16), answer.len()), (7, 24), "asked to come again with version 7");
    assert_eq!(session.agreed(), None);
    let offer = words(&[7, 31, 4096, init::ASYNC_DIO | init::MAX_PAGES | 1 << 16]);
    let (_, answer) = step(&mut session, &request(opcode::INIT, 0, &offer));
    let expected = [
        words(&[80, 0, 99, 0, 7, 31, 4096, init::ASYNC_DIO | init::MAX_PAGES]),
        words(&[192 << 16 | 256, 1 << 20, 1, 256]), // background and congestion, longest write, granularity, pages
        vec![0; 32],
    ];
    assert_eq!(answer, expected.concat());
    assert_eq!(session.agreed().unwrap().minor, 31);
}

#[test]
fn ring_needs_agreement_of_both_sides() {
    let agreed = |offer: &[u32], ring_payload_bytes_max| {
        let limits = Limits { ring_payload_bytes_max, ..Limits::default() };
        let mut session = Session::new(VolumeTree::new(None, SIZE, (0, 0), 1), limits);
        let (_, answer) = step(&mut session, &request(opcode::INIT, 0, &words(offer)));
        let (agreed, longest) = (session.agreed().unwrap(), session.limits().payload_bytes_max);
        assert_eq!((agreed.write_bytes_max, word_at(&answer, 36)), (longest, longest));
        assert_eq!(word_at(&answer, 44) & 0xFFFF, longest / 4096, "pages of a request");
        assert_eq!(answer.len(), 80);
        (agreed.over_ring, longest, word_at(&answer, 28) & init::EXTENDED, word_at(&answer, 48))
    };
    let over_ring = [7, 45, 4096, init::EXTENDED | init::MAX_PAGES, init::OVER_IO_URING | 1];
    assert_eq!(agreed(&over_ring, 64 << 10), (true, 64 << 10, init::EXTENDED, init::OVER_IO_URING));
    assert_eq!(agreed(&over_ring, 2 << 20), (true, 1 << 20, init::EXTENDED, init::OVER_IO_URING));
    let not = (false, 1 << 20, 0, 0);
    assert_eq!(agreed(&over_ring, 0), not, "it was not asked for");
    assert_eq!(agreed(&[7, 45, 4096, init::EXTENDED, 1], 64 << 10), not, "the kernel has it switched off");
    let not_extended = [7, 45, 4096, 0, init::OVER_IO_URING];
    assert_eq!(agreed(&not_extended, 64 << 10), not, "those bits mean nothing then");
    assert_eq!(agreed(&[7, 31, 4096, u32::MAX], 64 << 10), not, "an old kernel has no more");
}

#[test]
fn the_tree_of_a_volume_is_one_file() {
    let mut session = volume();
    let (_, answer) = step(&mut session, &request(opcode::LOOKUP, 1, b"disk\0"));
    assert_eq!(answer.len(), 16 + 128);
    assert_eq!((long_at(&answer, 16), long_at(&answer, 16 + 40 + 8)), (FILE, SIZE));
    assert_eq!(word_at(&answer, 16 + 40 + 60), 0o100_600, "mode");
    refused(&mut session, &request(opcode::LOOKUP, 1, b"disc\0"), Errno::NotFound);
    refused(&mut session, &request(opcode::LOOKUP, FILE, b"disk\0"), Errno::NotADirectory);
    refused(&mut session, &request(opcode::GETATTR, 3, &[0; 16]), Errno::NotFound);
    refused(&mut session, &request(opcode::OPEN, 1, &words(&[0, 0])), Errno::IsADirectory);
    refused(&mut session, &request(opcode::OPENDIR, FILE, &words(&[0, 0])), Errno::NotADirectory);
    for bad in [&b"disk"[..], b"\0", b"a/b\0", &[b'x'; 300]] {
        refused(&mut session, &request(opcode::LOOKUP, 1, bad), Errno::Invalid);
    }
    for other in [3000, 9, 10, 35, 46, opcode::ACCESS] {
        refused(&mut session, &request(other, 1, &[0; 64]), Errno::NoSuchOperation);
    }
    refused(&mut session, &request(opcode::IOCTL, FILE, &[0; 32]), Errno::NotATerminal);
    assert_eq!(step(&mut session, &request(opcode::FORGET, FILE, &longs(&[1]))), (FuseStep::Silent, vec![]));
}

#[test]
fn transfers_stay_within_the_volume() {
    let mut session = volume();
    let handle = opened(&mut session, FILE, 2);
    let (FuseStep::Volume(read), answer) =
        step(&mut session, &request(opcode::READ, FILE, &transfer(handle, SIZE - 700, 4096, 0)))
    else {
        panic!("a read of the volume")
    };
    assert!(answer.is_empty());
    assert_eq!(read.request.operation, Operation::Read);
    assert_eq!((read.request.offset_bytes, read.request.length_bytes), (SIZE - 700, 700));
    let mut header = Vec::new();
    read.answer.ok(&mut header);
    assert_eq!(header, words(&[16 + 700, 0, 99, 0]), "the data follows");
    let (ended, answer) = step(&mut session, &request(opcode::READ, FILE, &transfer(handle, SIZE, 4096, 0)));
    assert_eq!((ended, answer.len()), (FuseStep::Answered, 16), "the end of the file");

    for (flags, fua) in [(open::WRITE_ONLY, false), (open::DSYNC, true), (0o4_010_000, true)] {
        let (head, all) = write(handle, 513, 1000, flags);
        let FuseStep::Volume(written) = session.step(&head, all, &mut Vec::new()).unwrap() else {
            panic!("a write")
        };
        assert_eq!(written.request.operation, Operation::Write { fua });
        let mut answer = Vec::new();
        written.answer.ok(&mut answer);
        assert_eq!(answer, words(&[24, 0, 99, 0, 1000, 0]));
    }
    let mut out = Vec::new();
    let (head, all) = write(handle, SIZE, 1, 0);
    assert_eq!(session.step(&head, all, &mut out).unwrap(), FuseStep::Answered);
    assert_eq!(error(&out), Errno::NoSpace as i32);
    let mut wrong = write(handle, 0, 1000, 0).0;
    let all = wrong.len() + 999;
    wrong[..4].copy_from_slice(&(all as u32).to_le_bytes());
    out.clear();
    assert_eq!(session.step(&wrong, all, &mut out).unwrap(), FuseStep::Answered);
    assert_eq!(error(&out), Errno::Invalid as i32, "less payload than it says");

    let reader = opened(&mut session, FILE, open::READ_ONLY);
    let (head, all) = write(reader, 0, 512, 0);
    out.clear();
    session.step(&head, all, &mut out).unwrap();
    assert_eq!(error(&out), Errno::ReadOnly as i32, "the gate does not rely on the kernel");
    refused(&mut session, &request(opcode::READ, FILE, &transfer(77, 0, 1, 0)), Errno::BadHandle);
    refused(&mut session, &request(opcode::READ, FILE, &transfer(handle, 0, 2 << 20, 0)), Errno::Invalid);
    let (flushed, _) = step(&mut session, &request(opcode::FSYNC, FILE, &longs(&[handle, 0])));
    let FuseStep::Volume(flush) = flushed else { panic!("a flush") };
    assert_eq!((flush.request.operation, flush.request.length_bytes), (Operation::Flush, 0));
}

#[test]
fn holes_and_ranges_of_zeroes_are_zeroes() {
    let mut session = volume();
    let handle = opened(&mut session, FILE, 2);
    let mut allocate = |offset: u64, length: u64, mode: u32| {
        let body = [longs(&[handle, offset, length]), words(&[mode, 0])].concat();
        step(&mut session, &request(opcode::FALLOCATE, FILE, &body))
    };
    for (mode, no_hole) in [(falloc::PUNCH_HOLE | falloc::KEEP_SIZE, false), (falloc::ZERO_RANGE, true)] {
        let (FuseStep::Volume(zeroes), _) = allocate(700, 1 << 29, mode) else { panic!("zeroes") };
        let operation = Operation::WriteZeroes { fua: false, no_hole, fast_only: false };
        assert_eq!((zeroes.request.operation, zeroes.request.length_bytes), (operation, 1 << 29));
    }
    let (FuseStep::Volume(clipped), _) = allocate(SIZE - 5, u64::MAX, 3) else { panic!("zeroes") };
    assert_eq!(clipped.request.length_bytes, 5);
    for (offset, length, mode, errno) in [
        (0, SIZE, 0, 0),                     // the whole range exists
        (0, SIZE, falloc::KEEP_SIZE, 0),     // the same
        (SIZE + 9, 9, 3, 0),                 // a hole beyond the end
        (1, SIZE, 0, Errno::NoSpace as i32), // would grow
        (0, SIZE + 1, falloc::ZERO_RANGE, Errno::NoSpace as i32),
        (0, 4096, 8, Errno::NotSupported as i32), // collapse
    ] {
        let (done, answer) = allocate(offset, length, mode);
        assert_eq!((done, error(&answer)), (FuseStep::Answered, errno), "{offset}+{length}, mode {mode}");
    }
}

#[test]
fn volume_size_is_fixed_but_owner_is_not() {
    let mut session = volume();
    let change = |valid: u32, size: u64, mode: u32, uid: u32| {
        let mut body = [words(&[valid, 0]), longs(&[0, size])].concat();
        body.extend_from_slice(&[0; 8 + 24 + 12]);
        body.extend(words(&[mode, 0, uid, 0, 0]));
        request(opcode::SETATTR, FILE, &body)
    };
    for (valid, size) in [(setattr::SIZE, 5), (setattr::SIZE | setattr::FH, 0), (setattr::SIZE, SIZE + 1)] {
        refused(&mut session, &change(valid, size, 0, 0), Errno::NotPermitted);
    }
    for (valid, size) in [(setattr::SIZE, 0), (setattr::SIZE | setattr::FH, SIZE), (1 << 5, 0)] {
        let (_, answer) = step(&mut session, &change(valid, size, 0, 0));
        assert_eq!(
            (error(&answer), long_at(&answer, 16 + 16 + 8)),
            (0, SIZE),
            "the answer has the true size"
        );
    }
    let (_, answer) = step(&mut session, &change(setattr::MODE | setattr::UID, 0, 0o100_644, 42));
    assert_eq!(word_at(&answer, 16 + 16 + 60), 0o100_644);
    assert_eq!((word_at(&answer, 16 + 16 + 68), word_at(&answer, 16 + 16 + 72)), (42, 6));
}

#[test]
fn open_files_are_bounded() {
    let limits = Limits { handles_max: 3, ..Limits::default() };
    let mut session = begun(VolumeTree::new(None, SIZE, (0, 0), 1), limits);
    let handles: Vec<u64> = (0..3).map(|_| opened(&mut session, 1, 0)).collect();
    refused(&mut session, &request(opcode::OPEN, 1, &words(&[0, 0])), Errno::TooManyOpen);
    let release = request(opcode::RELEASE, 1, &[longs(&[handles[1]]), vec![0; 16]].concat());
    assert_eq!(error(&step(&mut session, &release).1), 0);
    refused(&mut session, &release, Errno::BadHandle);
    assert_eq!(opened(&mut session, 1, 0), handles[1]);
}

/// `count` files in the root, and their texts.
struct Numbered(usize);

impl Provider for Numbered {
    fn find(&mut self, path: &str) -> Option<NodeKind> {
        let number: usize = path.strip_prefix("file-")?.parse().ok()?;
        (number < self.0).then_some(NodeKind::File { permissions: 0o644 })
    }

    fn list(&mut self, _path: &str) -> Vec<(String, NodeKind)> {
        (0..self.0).map(|number| (format!("file-{number}"), NodeKind::File { permissions: 0o644 })).collect()
    }

    fn text(&mut self, path: &str) -> Result<String, Errno> {
        if path == "file-3" { Err(Errno::Io) } else { Ok(format!("this is {path}\n")) }
    }
}

fn control(files: usize) -> Session<ControlTree<Numbered>> {
    begun(ControlTree::new(Numbered(files), (0, 0), 1), Limits::default())
}

#[test]
fn a_listing_in_small_pieces_is_complete() {
    for piece in [40, 100, 4096] {
        let mut session = control(50);
        let (_, answer) = step(&mut session, &request(opcode::OPENDIR, 1, &words(&[0, 0])));
        let handle = long_at(&answer, 16);
        let (mut names, mut position) = (Vec::new(), 0);
        loop {
            let body = transfer(handle, position, piece, 0);
            let (_, answer) = step(&mut session, &request(opcode::READDIR, 1, &body));
            assert!(answer.len() <= 16 + piece as usize);
            let mut at = 16;
            if answer.len() == at {
                break;
            }
            while at < answer.len() {
                position = long_at(&answer, at + 8);
                let length = word_at(&answer, at + 16) as usize;
                names.push(String::from_utf8(answer[at + 24..at + 24 + length].to_vec()).unwrap());
                at += (24 + length).next_multiple_of(8);
            }
        }
        let expected = [".".to_owned(), "..".to_owned()].into_iter();
        let expected: Vec<String> = expected.chain((0..50).map(|n| format!("file-{n}"))).collect();
        assert_eq!(names, expected, "in pieces of {piece}");
    }
}

#[test]
fn control_file_is_read_as_of_its_opening() {
    let mut session = control(9);
    let (_, answer) = step(&mut session, &request(opcode::LOOKUP, 1, b"file-7\0"));
    let node = long_at(&answer, 16);
    let handle = opened(&mut session, node, 2);
    let (_, answer) = step(&mut session, &request(opcode::READ, node, &transfer(handle, 5, 4, 0)));
    assert_eq!(&answer[16..], b"is f");
    let (_, answer) = step(&mut session, &request(opcode::READ, node, &transfer(handle, u64::MAX, 9, 0)));
    assert_eq!(answer.len(), 16);
    let (head, all) = write(handle, 0, 11, 0);
    let FuseStep::Store { length_bytes: 11, answer, .. } = session.step(&head, all, &mut Vec::new()).unwrap()
    else {
        panic!("a text")
    };
    let mut out = Vec::new();
    answer.failed(&mut out, Errno::Interrupted);
    assert_eq!(out, words(&[16, -4i32 as u32, 99, 0]));
    let (head, all) = write(handle, 0, (64 << 10) + 1, 0);
    out.clear();
    session.step(&head, all, &mut out).unwrap();
    assert_eq!(error(&out), Errno::TooLarge as i32);
    let (_, answer) = step(&mut session, &request(opcode::LOOKUP, 1, b"file-3\0"));
    refused(&mut session, &request(opcode::OPEN, long_at(&answer, 16), &words(&[0, 0])), Errno::Io);
    let interrupt = request(opcode::INTERRUPT, 0, &longs(&[4]));
    assert_eq!(step(&mut session, &interrupt).0, FuseStep::Interrupt { request: 4, unique: 99 });
}

#[test]
fn forgotten_node_numbers_are_not_reused() {
    let mut session = control(9);
    let look = request(opcode::LOOKUP, 1, b"file-1\0");
    let first = long_at(&step(&mut session, &look).1, 16);
    assert_eq!(long_at(&step(&mut session, &look).1, 16), first);
    let (step_, answer) = step(&mut session, &request(opcode::FORGET, first, &longs(&[1])));
    assert_eq!((step_, answer.len()), (FuseStep::Silent, 0));
    assert_eq!(session.tree().path(first), Some("file-1"));
    let batch = [words(&[2, 0]), longs(&[first, 1, 777, u64::MAX])].concat();
    step(&mut session, &request(opcode::BATCH_FORGET, 0, &batch));
    assert_eq!(session.tree().path(first), None);
    refused(&mut session, &request(opcode::GETATTR, first, &[0; 16]), Errno::NotFound);
    assert!(long_at(&step(&mut session, &look).1, 16) > first);
    step(&mut session, &request(opcode::FORGET, 1, &longs(&[u64::MAX])));
    assert_eq!(session.tree().path(1), Some(""), "the root stays");
}

#[test]
fn files_can_have_a_node_for_each_lookup() {
    let tree = ControlTree::new(Numbered(9), (0, 0), 1).with_own_nodes();
    let mut session = begun(tree, Limits::default());
    let look = request(opcode::LOOKUP, 1, b"file-1\0");
    let mut found = || long_at(&step(&mut session, &look).1, 16);
    let (first, second) = (found(), found());
    assert_ne!(first, second);
    for (node, kept) in [(first, second), (second, 1)] {
        step(&mut session, &request(opcode::FORGET, node, &longs(&[1])));
        assert_eq!(session.tree().path(node), None);
        assert!(session.tree().path(kept).is_some());
    }
}

#[test]
fn prepared_tree_needs_only_what_is_asked() {
    use forebay_export::fuse::{Found, Need, Prepared, prepared};
    let mut session = begun(ControlTree::new(Prepared::new(), (0, 0), 1), Limits::default());
    let file = NodeKind::File { permissions: 0o644 };
    let mut answer = |bytes: &[u8], need: Need, found: Found| {
        assert_eq!(prepared::need(&mut session, bytes, bytes.len()), need);
        let mut out = Vec::new();
        prepared::step(&mut session, found, bytes, bytes.len(), &mut out).unwrap();
        out
    };
    let look = request(opcode::LOOKUP, 1, b"x\0");
    let missing = answer(&look, Need::NodeKind("x".into()), Found::NodeKind(None));
    assert_eq!(error(&missing), Errno::NotFound as i32);
    let node = long_at(&answer(&look, Need::NodeKind("x".into()), Found::NodeKind(Some(file))), 16);
    let open = |flags: u32| request(opcode::OPEN, node, &words(&[flags, 0]));
    answer(&open(1), Need::NodeKind("x".into()), Found::NodeKind(Some(file)));
    let opened = answer(&open(0), Need::Text("x".into()), Found::Text(Some(file), "hello".into()));
    let read = request(opcode::READ, node, &transfer(long_at(&opened, 16), 1, 9, 0));
    assert_eq!(&answer(&read, Need::Nothing, Found::Nothing)[16..], b"ello");
    let list = request(opcode::OPENDIR, 1, &words(&[0, 0]));
    answer(&list, Need::Listing(String::new()), Found::Listing(vec![("x".into(), file)]));
    let gone = answer(&request(opcode::GETATTR, 77, &[0; 16]), Need::Nothing, Found::Nothing);
    assert_eq!(error(&gone), Errno::NotFound as i32);
}

#[test]
fn a_message_that_is_no_request_is_an_error() {
    let mut session = volume();
    for length in 0..40 {
        assert!(session.step(&vec![0; length], length, &mut Vec::new()).is_err());
    }
    let good = request(opcode::GETATTR, 1, &[0; 16]);
    assert!(session.step(&good, good.len() + 1, &mut Vec::new()).is_err());
    let mut huge = request(opcode::BATCH_FORGET, 0, &words(&[u32::MAX, 0]));
    assert_eq!(step(&mut session, &huge), (FuseStep::Silent, vec![]), "more nodes than there are bytes");
    huge[4] = opcode::SETATTR as u8;
    refused(&mut session, &huge, Errno::Invalid);
}

/// Opcodes that exist, and one in five that does not.
fn some_opcode() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..52, 1 => any::<u32>()]
}

/// On any bytes, the session returns at most one whole message, for the right request, and hands
/// out only ranges inside the volume.
fn survives<T: Tree>(session: &mut Session<T>, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut out = Vec::new();
    let Ok(step) = session.step(bytes, bytes.len(), &mut out) else {
        prop_assert!(out.is_empty());
        return Ok(());
    };
    let answered = matches!(step, FuseStep::Answered | FuseStep::Destroyed);
    prop_assert_eq!(!out.is_empty(), answered);
    if answered {
        prop_assert_eq!(word_at(&out, 0) as usize, out.len());
        prop_assert_eq!(long_at(&out, 8), long_at(bytes, 8));
    }
    if let FuseStep::Volume(what) = step {
        let end = what.request.offset_bytes.checked_add(what.request.length_bytes);
        prop_assert!(end.is_some_and(|end| end <= SIZE));
        if what.request.operation.has_payload() {
            prop_assert!(what.request.length_bytes <= 1 << 20);
            let payload = bytes.len().saturating_sub(wire::WRITE_HEAD_BYTES) as u64;
            prop_assert!(what.request.operation == Operation::Read || what.request.length_bytes <= payload);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_panic(messages in prop::collection::vec(
        (some_opcode(), 0u64..5, prop::collection::vec(any::<u8>(), 0..200), any::<u64>()), 1..20,
    )) {
        let (mut volume, mut control) = (volume(), control(4));
        for node in 1..3 {
            step(&mut volume, &request(opcode::OPEN, node, &words(&[2, 0])));
            step(&mut volume, &request(opcode::OPENDIR, node, &words(&[2, 0])));
        }
        step(&mut control, &request(opcode::LOOKUP, 1, b"file-2\0"));
        step(&mut control, &request(opcode::OPEN, 2, &words(&[2, 0])));
        for (opcode, node, mut body, number) in messages {
            // Small handles and sizes, so that many requests pass the first check.
            if number % 2 == 0 && body.len() >= 24 {
                body[..8].copy_from_slice(&(number >> 8 & 3).to_le_bytes());
                body[18..20].fill(0);
            }
            let mut bytes = request(opcode, node, &body);
            if opcode == opcode::WRITE && body.len() >= 40 {
                let size = (body.len() - 40) as u32;
                bytes[40 + 16..40 + 20].copy_from_slice(&size.to_le_bytes());
            }
            bytes[8..16].copy_from_slice(&number.to_le_bytes());
            survives(&mut volume, &bytes)?;
            survives(&mut control, &bytes)?;
        }
    }

    #[test]
    fn no_cut_or_raw_message_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        survives(&mut volume(), &bytes)?;
        let mut fitting = bytes;
        if fitting.len() >= 4 {
            let length = fitting.len() as u32;
            fitting[..4].copy_from_slice(&length.to_le_bytes());
        }
        survives(&mut volume(), &fitting)?;
    }
}
