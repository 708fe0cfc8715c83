//! A whole cache as left by a crash of the simulated engine, edited, and then opened by the engine.
//!
//! Without corrected checksums the engine must not serve wrong data: every content that it returns
//! was once written there, or it refuses. With corrected checksums the device may return anything;
//! but nothing may panic, and the opening must end.
//!
//! Input: number of the image, flags (1: correct the checksums of edited blocks), then edits of six
//! bytes each: place (structure or any block; 2 bytes), offset in the block (2), value (1), kind of
//! edit (1).

use std::cell::RefCell;

use forebay_format::checkpoint::MAGIC;
use forebay_format::checkpoint::increment::{BASE_MAGIC, INCREMENT_MAGIC};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, checksum};
use forebay_sim::crashed::CrashedState;

use crate::Target;

/// See the head of this file.
pub const TARGET: Target = Target {
    name: "image",
    about: "recovery of a whole cache: metadata and log edited, judged by the simulator's oracle",
    run,
    seeds,
    words: &[],
    bytes_max: 2 + 6 * 24,
    short_run: 300,
};

/// Seeds of the simulator that provide the crashes.
const SEEDS: std::ops::Range<u64> = 100..103;

thread_local! {
    static IMAGES: RefCell<Vec<(CrashedState, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

fn run(input: &[u8]) {
    let [image, flags, edits @ ..] = input else { return };
    IMAGES.with_borrow_mut(|images| {
        if images.is_empty() {
            let left = SEEDS.filter_map(|seed| CrashedState::after_crashes(seed, true).ok()).flatten();
            images.extend(left.map(|left| {
                let cache = left.cache();
                (left, cache)
            }));
        }
        let (left, cache) = &images[usize::from(*image) % images.len()];
        let mut cache = cache.clone();
        let seal = flags & 1 == 1;
        for edit in edits.chunks_exact(6) {
            apply(&mut cache, edit, seal);
        }
        if let Err(what) = left.recover(&cache, !seal) {
            panic!("{what}");
        }
    });
}

/// Applies one edit. Places below 64 are blocks of metadata, others blocks of segments.
fn apply(cache: &mut [u8], edit: &[u8], seal: bool) {
    let place = usize::from(edit[0]) << 8 | usize::from(edit[1]);
    let Some(layout) = layout(cache) else { return };
    let blocks = cache.len() / BLOCK_BYTES;
    let slot = layout.checkpoint_slot_blocks as usize;
    let block = match place & 15 {
        0 => 0,
        1 => 16,
        n @ 2..=5 => 32 + (n - 2) * slot,
        n @ 6..=9 => 33 + (n - 6) * slot,
        n => layout.segments_start_block as usize + (place >> 4) * (n - 9),
    } % blocks;
    let at = (usize::from(edit[2]) << 8 | usize::from(edit[3])) % BLOCK_BYTES;
    let bytes = &mut cache[block * BLOCK_BYTES..][..BLOCK_BYTES];
    match edit[5] % 4 {
        0 => bytes[at] = edit[4],
        1 => bytes[at] ^= 1 << (edit[4] & 7),
        2 => bytes[at] = bytes[at].wrapping_add(edit[4]),
        _ => bytes[at / 8 * 8..at / 8 * 8 + 8].fill(edit[4]),
    }
    if seal {
        seal_block(cache, block);
    }
}

fn layout(cache: &[u8]) -> Option<Geometry> {
    let copies = [0, 1].map(|copy| {
        let at = Geometry::superblock_offset(copy) as usize;
        Superblock::decode(cache.get(at..at + BLOCK_BYTES).unwrap_or_default())
    });
    let geometry = Superblock::choose(copies).ok()?.geometry;
    geometry.validate(cache.len() as u64).ok().map(|()| geometry)
}

/// Corrects the checksum of a block by its magic number, and that of the body of a checkpoint, a
/// base or an increment.
fn seal_block(cache: &mut [u8], block: usize) {
    let from = block * BLOCK_BYTES;
    let has_body =
        |at: &usize| [MAGIC, BASE_MAGIC, INCREMENT_MAGIC].iter().any(|magic| cache[*at..].starts_with(magic));
    let header = [from, from.saturating_sub(BLOCK_BYTES)].into_iter().find(has_body);
    if let Some(at) = header {
        let stated = cache[at + 96..at + 104].iter().rev().fold(0, |n: u64, b| n << 8 | u64::from(*b));
        let end = (at + BLOCK_BYTES).saturating_add(stated as usize).min(cache.len());
        let crc = checksum(&cache[at + BLOCK_BYTES..end]);
        cache[at + 92..at + 96].copy_from_slice(&crc.to_le_bytes());
        return seal_part(&mut cache[at..at + BLOCK_BYTES], 4092);
    }
    let bytes = &mut cache[from..from + BLOCK_BYTES];
    match bytes {
        [b'F', b'O', b'R', b'E', ..] => seal_part(&mut bytes[..512], 508),
        [b'F', b'B', b'A', b'T', ..] => seal_part(bytes, 60),
        _ => {}
    }
}

fn seal_part(part: &mut [u8], at: usize) {
    part[at..at + 4].fill(0);
    let crc = checksum(part);
    part[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for image in 0..12 {
        for flags in 0..2 {
            for place in 0..16 {
                seeds.push(vec![image, flags, image * 16, place, image, 40 + place * 3, 1, image]);
            }
        }
    }
    seeds
}
