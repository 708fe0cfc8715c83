//! A compliant driver, and others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::super::inflight::bytes_for;
use super::*;
use std::sync::Arc;

const SIZE: u16 = 8;
const LAYOUT: Layout = Layout { size: SIZE, descriptors: 0x1000, available: 0x2000, used: 0x3000 };
const MEMORY_BYTES: u64 = 0x10000;
const AGREED: Agreed = Agreed { event_idx: false, indirect: true };

/// The driver's side of a ring.
struct Driver {
    memory: GuestMemory,
    available: u16,
}

impl Driver {
    fn new() -> Self {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY_BYTES as usize)]).unwrap();
        Self { memory, available: 0 }
    }

    fn describe(&self, table: u64, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let at = table + u64::from(index) * 16;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(len, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    fn offer(&mut self, head: u16) {
        let at = LAYOUT.available + 4 + u64::from(self.available % SIZE) * 2;
        self.memory.write_obj(head, GuestAddress(at)).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.write_obj(self.available, GuestAddress(LAYOUT.available + 2)).unwrap();
    }

    fn ring(&self, agreed: Agreed) -> Ring {
        Ring::start(&self.memory, LAYOUT, agreed, self.available, None).unwrap().0
    }

    fn number<T: vm_memory::ByteValued>(&self, at: u64) -> T {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
}

#[test]
fn requests_are_completed_in_any_order() {
    let mut driver = Driver::new();
    let mut ring = driver.ring(AGREED);
    for round in 0..20_000u32 {
        for head in [3, 1, 6] {
            driver.offer(head);
        }
        let taken: Vec<u16> = std::iter::from_fn(|| ring.take(&driver.memory).unwrap()).collect();
        assert_eq!(taken, [3, 1, 6]);
        for (number, head) in [6u16, 3, 1].into_iter().enumerate() {
            ring.complete(&driver.memory, head, round).unwrap();
            let position = (round * 3 + number as u32) as u16;
            let at = LAYOUT.used + 4 + u64::from(position % SIZE) * 8;
            assert_eq!((driver.number::<u32>(at), driver.number::<u32>(at + 4)), (u32::from(head), round));
            assert_eq!(driver.number::<u16>(LAYOUT.used + 2), position.wrapping_add(1));
        }
    }
}

#[test]
fn chain_has_readable_and_writable_segments() {
    let driver = Driver::new();
    let ring = driver.ring(AGREED);
    driver.describe(LAYOUT.descriptors, 5, (0x4000, 16, NEXT, 2));
    driver.describe(LAYOUT.descriptors, 2, (0, 0, NEXT, 7));
    driver.describe(LAYOUT.descriptors, 7, (0x5000, 512, NEXT | WRITE, 0));
    driver.describe(LAYOUT.descriptors, 0, (0x6000, 1, WRITE, 99));
    let segment = |address, len| Segment { address, len };
    let expected = Chain {
        readable: vec![segment(0x4000, 16)],
        writable: vec![segment(0x5000, 512), segment(0x6000, 1)],
    };
    assert_eq!(ring.chain(&driver.memory, 5), Ok(expected.clone()));
    // The same with a table.
    driver.describe(LAYOUT.descriptors, 1, (0x7000, 48, INDIRECT, 0));
    driver.describe(0x7000, 0, (0x4000, 16, NEXT, 2));
    driver.describe(0x7000, 2, (0x5000, 512, NEXT | WRITE, 1));
    driver.describe(0x7000, 1, (0x6000, 1, WRITE, 0));
    assert_eq!(ring.chain(&driver.memory, 1), Ok(expected));
}

#[test]
fn hostile_chains_are_refused_with_a_reason() {
    let table = (0x7000u64, 32u32, INDIRECT, 0u16);
    type Row = (&'static str, (u64, u32, u16, u16), (u64, u32, u16, u16), &'static str);
    let rows: [Row; 15] = [
        ("itself", (0x4000, 1, NEXT, 0), (0, 0, 0, 0), "form a loop"),
        ("to and fro", (0x4000, 1, NEXT, 1), (0x4000, 1, NEXT, 0), "form a loop"),
        ("to nowhere", (0x4000, 1, NEXT, SIZE), (0, 0, 0, 0), "outside of their table"),
        ("behind the end", (MEMORY_BYTES, 1, 0, 0), (0, 0, 0, 0), "outside of guest memory"),
        ("over the end", (MEMORY_BYTES - 1, 2, 0, 0), (0, 0, 0, 0), "outside of guest memory"),
        ("around the end", (u64::MAX, 2, 0, 0), (0, 0, 0, 0), "outside of guest memory"),
        ("nothing at all, nowhere", (u64::MAX, 0, NEXT, 0), (0, 0, 0, 0), "form a loop"),
        ("4 GiB", (0x4000, u32::MAX, NEXT, 1), (0x4000, 1, 0, 0), "outside of guest memory"),
        ("wrong order", (0x4000, 1, NEXT | WRITE, 1), (0x4000, 1, 0, 0), "readable behind a writable one"),
        ("odd table", (0x7000, 17, INDIRECT, 0), (0, 0, 0, 0), "impossible size"),
        ("empty table", (0x7000, 0, INDIRECT, 0), (0, 0, 0, 0), "impossible size"),
        ("long table", (0, 16 * 1025, INDIRECT, 0), (0, 0, 0, 0), "impossible size"),
        ("table outside", (MEMORY_BYTES, 16, INDIRECT, 0), (0, 0, 0, 0), "impossible size"),
        ("table and more", (0x7000, 16, INDIRECT | NEXT, 1), (0, 0, 0, 0), "where none is allowed"),
        ("table that is written", (0x7000, 16, INDIRECT | WRITE, 1), (0, 0, 0, 0), "where none is allowed"),
    ];
    for (name, first, second, says) in rows {
        let driver = Driver::new();
        driver.describe(LAYOUT.descriptors, 0, first);
        driver.describe(LAYOUT.descriptors, 1, second);
        let error = driver.ring(AGREED).chain(&driver.memory, 0).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    let nested = [(0x7000, 16, INDIRECT, 0), (0x4000, 1, NEXT, 1)];
    for (inner, says) in nested.into_iter().zip(["where none is allowed", "form a loop"]) {
        let driver = Driver::new();
        driver.describe(LAYOUT.descriptors, 0, table);
        driver.describe(0x7000, 0, inner);
        driver.describe(0x7000, 1, (0x4000, 1, NEXT, 0));
        let error = driver.ring(AGREED).chain(&driver.memory, 0).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let driver = Driver::new();
    driver.describe(LAYOUT.descriptors, 0, table);
    let none = Agreed { indirect: false, ..AGREED };
    let error = driver.ring(none).chain(&driver.memory, 0).unwrap_err().to_string();
    assert!(error.contains("where none is allowed"), "{error}");
}

#[test]
fn hostile_positions_and_heads_are_refused() {
    let mut driver = Driver::new();
    let mut ring = driver.ring(AGREED);
    for head in [SIZE, u16::MAX] {
        driver.offer(head);
        assert_eq!(ring.take(&driver.memory), Err(RingError::Head(head)));
        driver = Driver::new();
    }
    driver.offer(4);
    driver.offer(4);
    assert_eq!(ring.take(&driver.memory), Ok(Some(4)));
    assert_eq!(ring.take(&driver.memory), Err(RingError::Head(4)), "it is under way");
    ring.complete(&driver.memory, 4, 0).unwrap();
    assert_eq!(ring.take(&driver.memory), Ok(Some(4)));
    driver.memory.write_obj(2 + SIZE + 1, GuestAddress(LAYOUT.available + 2)).unwrap();
    assert_eq!(ring.take(&driver.memory), Err(RingError::Available { new: SIZE + 1, size: SIZE }));
}

#[test]
fn ring_must_be_aligned_in_guest_memory() {
    let memory = Driver::new().memory;
    assert_eq!(LAYOUT.check(&memory), Ok(()));
    for size in [0, 3, 2048, u16::MAX] {
        assert_eq!(Layout { size, ..LAYOUT }.check(&memory), Err(RingError::Size(size)));
    }
    for (layout, what) in [
        (Layout { descriptors: 0x1008, ..LAYOUT }, "descriptors"),
        (Layout { descriptors: MEMORY_BYTES - 112, ..LAYOUT }, "descriptors"),
        (Layout { available: 0x2001, ..LAYOUT }, "available entries"),
        (Layout { available: MEMORY_BYTES - 20, ..LAYOUT }, "available entries"),
        (Layout { used: 0x3002, ..LAYOUT }, "used entries"),
        (Layout { used: MEMORY_BYTES - 68, ..LAYOUT }, "used entries"),
        (Layout { used: u64::MAX - 3, ..LAYOUT }, "used entries"),
    ] {
        assert_eq!(layout.check(&memory), Err(RingError::Place(what)));
    }
}

#[test]
fn driver_is_signalled_only_on_request() {
    let mut driver = Driver::new();
    let mut ring = driver.ring(AGREED);
    (0..4).for_each(|head| driver.offer(head));
    let memory = &driver.memory;
    while ring.take(memory).unwrap().is_some() {}
    assert_eq!(ring.must_signal(memory), Ok(false), "nothing was completed");
    ring.complete(memory, 0, 0).unwrap();
    assert_eq!((ring.must_signal(memory), ring.must_signal(memory)), (Ok(true), Ok(false)));
    memory.write_obj(NO_INTERRUPT, GuestAddress(LAYOUT.available)).unwrap();
    ring.complete(memory, 1, 0).unwrap();
    assert_eq!(ring.must_signal(memory), Ok(false));

    let mut driver = Driver::new();
    let mut ring = driver.ring(Agreed { event_idx: true, ..AGREED });
    (0..4).for_each(|head| driver.offer(head));
    let memory = &driver.memory;
    assert_eq!(ring.want_kick(memory), Ok(true), "four are there");
    while ring.take(memory).unwrap().is_some() {}
    assert_eq!(ring.want_kick(memory), Ok(false));
    assert_eq!(driver.number::<u16>(LAYOUT.used + 4 + 8 * u64::from(SIZE)), 4, "kick for the fifth");
    memory.write_obj(1u16, GuestAddress(LAYOUT.available + 4 + 2 * u64::from(SIZE))).unwrap();
    ring.complete(memory, 0, 0).unwrap();
    assert_eq!(ring.must_signal(memory), Ok(false), "it waits for the second");
    ring.complete(memory, 1, 0).unwrap();
    ring.complete(memory, 2, 0).unwrap();
    assert_eq!(ring.must_signal(memory), Ok(true));
}

#[test]
fn successor_takes_open_requests_again() {
    let mut driver = Driver::new();
    let area = Arc::new(GuestMemory::from_ranges(&[(GuestAddress(0), bytes_for(SIZE) as usize)]).unwrap());
    let start = |driver: &Driver| {
        let inflight = Inflight::open(Arc::clone(&area), 0, SIZE, SIZE).unwrap();
        Ring::start(&driver.memory, LAYOUT, AGREED, 77, Some(inflight)).unwrap()
    };
    let (mut first, again) = start(&driver);
    assert!(again.is_empty());
    [2, 0, 5, 3].into_iter().for_each(|head| driver.offer(head));
    for _ in 0..3 {
        first.take(&driver.memory).unwrap();
    }
    first.complete(&driver.memory, 0, 1).unwrap();
    let (mut second, again) = start(&driver);
    assert_eq!(again, [2, 5]);
    assert_eq!(second.take(&driver.memory), Ok(Some(3)), "and goes on behind them");
    for head in [5, 3, 2] {
        second.complete(&driver.memory, head, 1).unwrap();
    }
    let (third, again) = start(&driver);
    assert_eq!((again.len(), third.next_available()), (0, 4));
}
