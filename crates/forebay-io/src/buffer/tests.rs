//! Tests of the pool.

use super::*;
use crate::random::Rng;
use std::collections::BTreeMap;

#[test]
fn reserved_buffer_is_lent_once_at_a_time() {
    let mut pool = BufPool::new(8 << 20);
    assert!(!pool.put_by(32 << 20) && pool.borrow().is_none(), "there is no room for it");
    assert!(pool.put_by((4 << 20) - 5));
    assert!(!pool.put_by(4096), "there is one");
    assert_eq!(pool.stats().used_bytes, 4 << 20, "nobody else gets it");
    let all: Vec<BufId> = std::iter::from_fn(|| pool.alloc(1 << 20)).collect();
    assert_eq!(all.len(), 4);
    for _ in 0..3 {
        let lent = pool.borrow().unwrap();
        assert!(pool.capacity(lent) == 4 << 20 && pool.borrow().is_none());
        let span = Span::new(lent, 0, 4096);
        pool.pin(span, KernelUse::Reads).unwrap();
        pool.free(lent);
        assert!(pool.borrow().is_none(), "the kernel still reads it");
        pool.unpin(lent, KernelUse::Reads);
    }
    all.into_iter().for_each(|buffer| pool.free(buffer));
    assert_eq!(pool.stats().used_bytes, 4 << 20);
    assert!(pool.alloc(8 << 20).is_none() && pool.borrow().is_some(), "room is made of others only");
}

#[test]
fn buffer_has_at_most_about_twice_its_size() {
    let mut pool = BufPool::new(64 << 20);
    for len in (1..=32 << 20).step_by(5003).chain(CLASS_SIZES).chain([(1 << 20) + 1, 32 << 20]) {
        let buffer = pool.alloc(len).unwrap();
        let bytes = pool.capacity(buffer);
        assert!(bytes >= len && bytes < 2 * len.max(BUFFER_ALIGN) + 2 * BUFFER_ALIGN, "{bytes} for {len}");
        assert_eq!((bytes, pool.stats().used_bytes), (BufPool::bytes_for(len), bytes));
        pool.free(buffer);
    }
    assert_eq!(BufPool::bytes_for(34 << 20), 34 << 20, "above all classes");
}

#[test]
fn memory_is_reused_and_the_limit_holds() {
    let mut pool = BufPool::new(64 << 10);
    let a = pool.alloc(5000).unwrap();
    assert_eq!(pool.capacity(a), 8 << 10);
    assert_eq!(pool.bytes(a).as_ptr() as usize % BUFFER_ALIGN, 0);
    pool.free(a);
    assert_eq!(pool.alloc(4097), Some(a), "the warm buffer comes back");
    pool.free(a);
    let big = pool.alloc(64 << 10).unwrap();
    assert_eq!(pool.stats().allocated_bytes, 64 << 10, "the idle small buffer made room");
    assert_eq!(pool.alloc(1), None, "the limit is reached");
    pool.free(big);
    assert_eq!(pool.alloc((33 << 20) + 1), None, "larger than any class");
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
fn patient_requests_leave_buffers_to_others() {
    let mut pool = BufPool::new(1 << 20);
    let held: Vec<BufId> = std::iter::from_fn(|| pool.alloc_leaving(8, 60_000)).collect();
    assert_eq!(held.len(), 14, "seven eighths");
    assert!(pool.alloc_leaving(8, 1).is_none() && pool.alloc_leaving(16, 60_000).is_some());
    assert!(pool.alloc_leaving(16, 1).is_none() && pool.alloc(1).is_some());
    held.into_iter().for_each(|id| pool.free(id));
    assert!(pool.alloc_leaving(8, 60_000).is_some(), "what was given back can be had again");
    assert_eq!(pool.alloc_leaving(8, 1 << 20), None, "never the whole of it");
}

#[test]
fn freed_buffer_is_not_reused_while_pinned() {
    let mut pool = BufPool::new(1 << 20);
    let a = pool.alloc(4096).unwrap();
    let span = Span::new(a, 0, 512);
    assert!(pool.pin(span, KernelUse::Writes).is_some());
    pool.free(a);
    let b = pool.alloc(4096).unwrap();
    assert_ne!(a, b);
    assert_eq!(pool.pin(span, KernelUse::Writes), None, "a freed buffer takes no new operation");
    pool.unpin(a, KernelUse::Writes);
    assert_eq!(pool.alloc(4096), Some(a));
}

#[test]
fn spans_are_checked_and_copied() {
    let mut pool = BufPool::new(1 << 20);
    let a = pool.alloc(16 << 10).unwrap();
    pool.copy_in(Span::new(a, 100, 3), b"abc");
    pool.copy(Span::new(a, 100, 3), Span::new(a, 101, 3));
    let mut out = [0; 4];
    pool.copy_out(Span::new(a, 100, 4), &mut out);
    assert_eq!(&out, b"aabc");
    pool.fill_zero(Span::new(a, 0, 16 << 10));
    let mut crcs = Vec::new();
    pool.crc32c_blocks(Span::new(a, 0, 4096 + 512), &mut crcs);
    assert_eq!(crcs, [crc32c::crc32c(&[0; 4096]), crc32c::crc32c(&[0; 512])]);
    assert_eq!(pool.pin(Span::new(a, 1, 16 << 10), KernelUse::Reads), None);
    assert_eq!(pool.pin(Span::new(a, u32::MAX, u32::MAX), KernelUse::Reads), None);
}

#[test]
#[should_panic(expected = "being filled by the kernel")]
fn bytes_of_a_filling_buffer_are_refused() {
    let mut pool = BufPool::new(1 << 20);
    let a = pool.alloc(4096).unwrap();
    pool.pin(Span::new(a, 0, 8), KernelUse::Writes);
    pool.bytes(a);
}

/// A buffer of the test: its number, size and contents.
type Filled = (BufId, usize, u8);

fn fill(pool: &mut BufPool, id: BufId, value: u8) -> Filled {
    let len = pool.capacity(id);
    for page in (0..len).step_by(BUFFER_ALIGN) {
        pool.copy_in(Span::new(id, page as u32, 2), &[value, page as u8]);
    }
    (id, len, value)
}

fn is_intact(pool: &BufPool, (id, len, value): Filled) -> bool {
    let mut there = [0; 2];
    (0..len).step_by(BUFFER_ALIGN).all(|page| {
        pool.copy_out(Span::new(id, page as u32, 2), &mut there);
        there == [value, page as u8]
    })
}

#[test]
fn allocation_succeeds_up_to_the_limit() {
    let limit = 40 << 20;
    let (mut random, mut pool) = (Rng(3), BufPool::new(limit));
    assert!(pool.put_by(3 << 20));
    let mut held: Vec<Filled> = Vec::new();
    // Registered generations, by chunk.
    let mut registered = BTreeMap::new();
    let (mut refused, mut granted, mut forgotten, mut mapped) = (0, 0, 0, 0);
    for turn in 0..8000 {
        let rank = random.below(if turn / 1000 % 2 == 0 { 4 } else { CLASS_SIZES.len() as u64 }) as usize;
        let size = CLASS_SIZES[rank];
        // Mostly full, so that memory is scarce.
        if random.below(10) < 6 {
            let fits = pool.stats().used_bytes + size <= limit;
            let buffer = pool.alloc(size);
            assert_eq!(buffer.is_some(), fits, "{size} bytes beside {:?}", pool.stats());
            granted += u32::from(fits);
            refused += u32::from(!fits);
            held.extend(buffer.map(|id| fill(&mut pool, id, turn as u8)));
        } else if !held.is_empty() {
            let (id, len, value) = held.swap_remove(random.below(held.len() as u64) as usize);
            let span = Span::new(id, 0, 1);
            pool.pin(span, KernelUse::Reads).unwrap();
            if let Some(mapping) = pool.mapping_of_pinned(&[span]) {
                let offset = pool.address_of_pinned(span) as usize - mapping.address as usize;
                assert!(offset + len <= mapping.len);
                registered.insert(mapping.chunk, mapping.generation);
                mapped += 1;
            }
            pool.unpin(id, KernelUse::Reads);
            assert!(is_intact(&pool, (id, len, value)));
            pool.free(id);
        }
        for (chunk, generation) in pool.take_unmapped() {
            if registered.get(&chunk) == Some(&generation) {
                registered.remove(&chunk);
                forgotten += 1;
            }
        }
        if turn % 300 == 0 {
            // Clients disconnect, and others connect.
            for (id, ..) in held.drain(..held.len() / 4 * 3) {
                pool.free(id);
            }
        }
        let stats = pool.stats();
        assert!(stats.allocated_bytes <= limit && stats.used_bytes <= stats.allocated_bytes);
        assert!(registered.len() * arena::CHUNK_BYTES <= limit, "{registered:?}");
    }
    let counts = (refused, granted, forgotten, mapped);
    assert!(refused > 400 && granted > 2000 && forgotten > 20 && mapped > 500, "{counts:?}");
    assert!(held.iter().all(|filled| is_intact(&pool, *filled)));
    held.into_iter().for_each(|(id, ..)| pool.free(id));
    let lent = pool.borrow().unwrap();
    pool.free(lent);
    assert!(pool.alloc(32 << 20).is_some(), "all the rest is one piece again");
}

#[test]
fn small_buffers_do_not_block_a_large_one() {
    let limit = 64 << 20;
    let mut pool = BufPool::new(limit);
    let all: Vec<BufId> = std::iter::from_fn(|| pool.alloc(64 << 10)).collect();
    assert_eq!(all.len(), limit >> 16);
    // Registered, so that no piece of it can be released at once.
    let spans: Vec<Span> = all.iter().map(|id| Span::new(*id, 0, 1)).collect();
    for span in &spans {
        pool.pin(*span, KernelUse::Writes).unwrap();
        pool.mapping_of_pinned(&[*span]);
    }
    // One buffer of each MiB stays, in use by the kernel.
    for (number, id) in all.iter().enumerate() {
        if number % 16 != 5 {
            pool.unpin(*id, KernelUse::Writes);
            pool.free(*id);
        }
    }
    assert!(pool.alloc(32 << 20).is_some());
    assert!(pool.stats().allocated_bytes <= limit);
    assert!(pool.alloc(16 << 20).is_some() && pool.alloc(8 << 20).is_some());
    assert_eq!(pool.alloc(8 << 20), None, "they count");
}

#[test]
fn registered_memory_counts_as_one_mapping() {
    let mut pool = BufPool::new(32 << 20);
    let ids: Vec<BufId> = (0..100).map(|_| pool.alloc(4096).unwrap()).collect();
    let spans: Vec<Span> = ids.iter().map(|id| Span::new(*id, 0, 4096)).collect();
    spans.iter().for_each(|span| assert!(pool.pin(*span, KernelUse::Reads).is_some()));
    assert_eq!(pool.stats().allocated_bytes, 100 * 4096, "nothing is registered yet");
    let mapping = pool.mapping_of_pinned(&spans).unwrap();
    assert_eq!(pool.stats().allocated_bytes, arena::CHUNK_BYTES);
    let large = pool.alloc(arena::CHUNK_BYTES).unwrap();
    let other = Span::new(large, 0, 1);
    pool.pin(other, KernelUse::Reads).unwrap();
    assert!(pool.mapping_of_pinned(&[spans[0], other]).is_none(), "in two chunks");
    assert_ne!(pool.mapping_of_pinned(&[other]).unwrap().chunk, mapping.chunk);
    // Pinning the whole chunk would leave less than an eighth of the limit.
    let small = BufPool::new(4 << 20);
    let mut small = small;
    let span = Span::new(small.alloc(4096).unwrap(), 0, 1);
    small.pin(span, KernelUse::Reads).unwrap();
    assert!(small.mapping_of_pinned(&[span]).is_none());
}

#[test]
fn free_memory_is_unmapped_only_on_demand() {
    let mut pool = BufPool::new(8 << 20);
    let ids: Vec<BufId> = (0..3).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    let span = Span::new(ids[1], 0, 1 << 20);
    pool.change(span, |bytes| bytes.fill(9));
    pool.pin(span, KernelUse::Reads).unwrap();
    let first = pool.mapping_of_pinned(&[span]).unwrap();
    pool.free(ids[0]);
    pool.free(ids[2]);
    assert_eq!(pool.stats().allocated_bytes, 4 << 20);
    assert!(pool.alloc(4 << 20).is_some() && pool.take_unmapped().is_empty(), "there is room");
    assert!(pool.alloc(2 << 20).is_some(), "in the chunk");
    assert!(pool.take_unmapped().is_empty());
    assert!(pool.alloc(1 << 20).is_some());
    assert_eq!(pool.stats().used_bytes, 8 << 20);
    pool.unpin(ids[1], KernelUse::Reads);
    assert!(pool.bytes(ids[1]).iter().all(|byte| *byte == 9));

    let mut pool = BufPool::new(7 << 20);
    let id = pool.alloc(4096).unwrap();
    let span = Span::new(id, 0, 4096);
    pool.pin(span, KernelUse::Reads).unwrap();
    let first = (first.chunk, pool.mapping_of_pinned(&[span]).unwrap().generation);
    let large = pool.alloc(4 << 20).unwrap();
    assert_eq!(pool.take_unmapped(), [first], "the rest of the chunk made room");
    assert_eq!(pool.stats().allocated_bytes, (4 << 20) + 4096);
    assert!(pool.mapping_of_pinned(&[span]).is_none(), "there is no memory to pin all of it");
    pool.free(large);
    let other = pool.alloc(5 << 20);
    assert_eq!(other, None);
    assert!(pool.alloc(2 << 20).is_some());
    let again = pool.mapping_of_pinned(&[span]);
    assert!(again.is_none_or(|mapping| mapping.generation > first.1));
}

#[test]
fn locked_memory_is_unmapped_too() {
    let mut pool = BufPool::new(7 << 20);
    let ids: Vec<BufId> = (0..2).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    let span = Span::new(ids[1], 0, 1 << 20);
    pool.change(span, |bytes| bytes.fill(9));
    let kept = Span::new(ids[0], 0, 4096);
    pool.change(kept, |bytes| bytes.fill(7));
    pool.pin(kept, KernelUse::Reads).unwrap();
    let chunk = pool.mapping_of_pinned(&[kept]).unwrap();
    // SAFETY: the chunk is mapped, and locking changes no memory.
    if unsafe { libc::mlock(chunk.address.cast(), chunk.len) } != 0 {
        println!("skipped: memory may not be locked");
        return;
    }
    pool.free(ids[1]);
    let large = pool.alloc(4 << 20).unwrap();
    pool.free(large);
    let others: Vec<BufId> = (0..3).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    let fresh = |id: &&BufId| pool.bytes(**id).iter().all(|byte| *byte == 0);
    assert_eq!(others.iter().filter(fresh).count(), 3, "all pages are new");
    assert!(pool.bytes(ids[0])[..4096].iter().all(|byte| *byte == 7));
}
