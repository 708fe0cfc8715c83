//! The memory contents of a virtual machine, and the messages of its monitor.

use std::sync::Arc;

use forebay_export::vhost_user::{BODY_BYTES_MAX, HEADER_BYTES, Header, Message};
use forebay_export::virtio::GuestMemory;
use forebay_export::virtio::block::{Device, Status, Work, feature};
use forebay_export::virtio::inflight::{Inflight, bytes_for};
use forebay_export::virtio::memory;
use forebay_export::virtio::ring::{Agreed, Layout, Ring, SEGMENTS_MAX};
use vm_memory::{Bytes, GuestAddress};

use crate::Target;

/// The first byte: 1 event index, 2 indirect descriptors, 4 in-flight memory, 8 no features. Then
/// the guest memory from its beginning, where the ring is; with in-flight memory, its bytes come
/// first.
pub const RING: Target = Target {
    name: "guest-ring",
    about: "guest memory with a ring of block requests in it, and memory of requests in flight",
    run: ring,
    seeds: ring_seeds,
    words: &["\x01\0", "\x02\0", "\x03\0", "\x04\0", "\u{7f}\u{7f}"],
    bytes_max: 4096,
    short_run: 30_000,
};

/// Messages, one after the other.
pub const MESSAGES: Target = Target {
    name: "vhost-user",
    about: "messages of a virtual machine monitor",
    run: messages,
    seeds: message_seeds,
    words: &[],
    bytes_max: 2 * BODY_BYTES_MAX,
    short_run: 30_000,
};

const SIZE: u16 = 16;
const LAYOUT: Layout = Layout { size: SIZE, descriptors: 0, available: 0x100, used: 0x140 };
const MEMORY_BYTES: usize = 0x1_0000;
const VOLUME_BYTES: u64 = (1 << 30) + 512;

fn of(bytes: &[u8], len: usize) -> GuestMemory {
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), len)]).expect("a small region");
    memory.write_slice(&bytes[..bytes.len().min(len)], GuestAddress(0)).expect("it has room");
    memory
}

fn ring(input: &[u8]) {
    let Some((how, mut bytes)) = input.split_first() else { return };
    let agreed = Agreed { event_idx: how & 1 != 0, indirect: how & 2 != 0 };
    let mut inflight = None;
    if how & 4 != 0 {
        let area_bytes = bytes_for(SIZE) as usize;
        let (area, rest) = bytes.split_at(bytes.len().min(area_bytes));
        bytes = rest;
        inflight = Inflight::open(Arc::new(of(area, area_bytes)), 0, SIZE, SIZE).ok();
    }
    let guest = of(bytes, MEMORY_BYTES);
    let features = if how & 8 == 0 { feature::ALL } else { feature::VERSION_1 };
    let Ok((mut ring, again)) = Ring::start(&guest, LAYOUT, agreed, 0, inflight) else { return };
    let mut under_way = [false; SIZE as usize];
    let mut heads: Vec<u16> = Vec::new();
    for head in again {
        assert!(!std::mem::replace(&mut under_way[usize::from(head)], true), "taken twice");
        heads.push(head);
    }
    // Twice the capacity of a ring: completed heads may appear again.
    for round in 0..2 * SIZE {
        match ring.take(&guest) {
            Ok(Some(head)) => {
                assert!(!std::mem::replace(&mut under_way[usize::from(head)], true), "it is under way");
                heads.push(head);
            }
            Ok(None) => drop(ring.want_kick(&guest)),
            Err(_) => return,
        }
        if round % 3 == 2
            && let Some(head) = heads.pop()
        {
            let Some(written) = served(&ring, &guest, head, features) else { return };
            under_way[usize::from(head)] = false;
            ring.complete(&guest, head, written).expect("the ring is in memory");
            ring.must_signal(&guest).expect("the ring is in memory");
        }
    }
}

/// Serves a request; `None` if its chain is invalid.
fn served(ring: &Ring, guest: &GuestMemory, head: u16, features: u64) -> Option<u32> {
    let device = Device { size_bytes: VOLUME_BYTES, block_bytes: 512, rings: 1, id: Device::id_of("vol") };
    let chain = ring.chain(guest, head).ok()?;
    assert!(chain.readable.len() + chain.writable.len() <= usize::from(SEGMENTS_MAX));
    let is_there =
        |segment: &memory::Segment| memory::is_there(guest, segment.address, u64::from(segment.len));
    assert!(chain.readable.iter().chain(&chain.writable).all(is_there), "outside of memory");
    let request = device.parse(guest, chain, features).ok()?;
    match &request.work {
        Work::Transfer { request, data } => {
            assert!(request.length_bytes > 0 && request.end_bytes() <= VOLUME_BYTES, "beyond the end");
            assert_eq!(memory::total(data), request.length_bytes, "other data than the range has");
            memory::write(guest, data, 0, &[7; 1]).expect("a range has data");
        }
        Work::Plain(requests) => {
            assert!(!requests.is_empty());
            assert!(requests.iter().all(|request| request.end_bytes() <= VOLUME_BYTES), "beyond the end");
        }
        Work::Answered(..) => {}
    }
    Some(request.answer(guest, Status::Ok).expect("the status is in memory"))
}

fn messages(mut input: &[u8]) {
    while let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::decode(header) else { return };
        let (body, rest) = rest.split_at(rest.len().min(header.body_bytes));
        for descriptors in 0..3 {
            let _ = Message::decode(&header, body, descriptors); // it must not panic
        }
        input = rest;
    }
}

/// Returns a ring with three requests: a read, a write from a table, and a flush.
fn ring_seeds() -> Vec<Vec<u8>> {
    let mut memory = vec![0u8; 0x800];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let chains = [
        (0, descriptor(0x300, 16, 1, 1)),
        (1, descriptor(0x1000, 512, 3, 2)),
        (2, descriptor(0x400, 1, 2, 0)),
        (3, descriptor(0x500, 48, 4, 0)),
        (4, descriptor(0x340, 16, 1, 5)),
        (5, descriptor(0x401, 1, 2, 0)),
    ];
    for (index, bytes) in chains {
        put(index * 16, &bytes);
    }
    put(0x500, &descriptor(0x320, 16, 1, 1));
    put(0x510, &descriptor(0x2000, 1024, 1, 2));
    put(0x520, &descriptor(0x402, 1, 2, 0));
    put(0x102, &[3, 0, 0, 0, 3, 0, 4, 0]);
    put(0x320, &[1, 0, 0, 0, 0, 0, 0, 0, 8]);
    put(0x340, &[4]);
    let mut seeds = Vec::new();
    for how in 0..16u8 {
        let area = if how & 4 == 0 { Vec::new() } else { vec![0; bytes_for(SIZE) as usize] };
        for kind in [0u8, 8, 11, 13] {
            let mut memory = memory.clone();
            memory[0x300] = kind;
            seeds.push([&[how][..], &area, &memory].concat());
        }
    }
    seeds
}

fn message_seeds() -> Vec<Vec<u8>> {
    let sizes = [
        (1, 0),
        (2, 8),
        (5, 8 + 32),
        (8, 8),
        (9, 40),
        (10, 8),
        (11, 8),
        (12, 8),
        (18, 8),
        (21, 0),
        (24, 12 + 60),
        (31, 24),
        (32, 20),
        (37, 40),
        (38, 40),
    ];
    let message = |request: u32, bytes: u32| {
        let mut message = [request, 1, bytes].map(u32::to_le_bytes).concat();
        message.resize(HEADER_BYTES + bytes as usize, 1);
        message
    };
    let all = sizes.map(|(request, bytes)| message(request, bytes));
    all.iter().cloned().chain([all.concat()]).collect()
}
