//! Merging of the two copies of a pair.
//!
//! A batch is merged block by block: its header comes from either copy, its payload from the one
//! with the right checksum. So it is whole as long as each of its blocks has one good copy.
//!
//! If the copies have different batches at one place, the newer one is valid, whole or not: a
//! member with an older one has lost a write. After a checkpoint the log ends there if the newer
//! one is not whole: the overwritten one does not return. After a crash, another epoch reuses the
//! sequences of uncommitted batches; so epochs are compared first.

use crate::recovery::scan::{After, Bytes, Found, Place, batch_at, is_whole};
use alloc::vec::Vec;
use forebay_format::batch::Entry;
use forebay_format::{BLOCK_BYTES, StreamKind};

/// A copy of a segment, and which of its blocks were unreadable.
type Copy<'a> = (&'a mut [u8], &'a mut [bool]);

/// Merges two copies of one segment: afterwards the first has every batch that is whole in both
/// together. Returns the parts of the batches after a checkpoint that a copy lacks: which copy,
/// first block, end.
pub(super) fn overlay(
    (a, a_bad): Copy<'_>,
    (b, b_bad): Copy<'_>,
    place: Place,
    used: u32,
    after: After,
) -> Vec<(u32, u32, u32)> {
    let own = [(a.to_vec(), a_bad.to_vec()), (b.to_vec(), b_bad.to_vec())];
    // A block that is unreadable in one copy may be readable in the other.
    for index in 0..a_bad.len().min(b_bad.len()) {
        if a_bad[index] && !b_bad[index] {
            take_block(a, b, index);
            a_bad[index] = false;
        } else if b_bad[index] && !a_bad[index] {
            take_block(b, a, index);
            b_bad[index] = false;
        }
    }
    let mut lacks = Vec::new();
    let mut at = 0;
    while at < a_bad.len() as u32 {
        let new = at >= used;
        let find = |all: &[u8], bad: &[bool]| {
            batch_at(Bytes { all, bad }, place, at).filter(|found| !new || after.holds(found))
        };
        let age = |found: &Found| (found.header.epoch, found.header.sequence);
        let (found, from_there) = match (find(a, a_bad), find(b, b_bad)) {
            (None, None) if new => break,
            (None, None) => {
                at += 1;
                continue;
            }
            (Some(here), Some(there)) if age(&there) > age(&here) => (there, true),
            (Some(here), _) => (here, false),
            (None, Some(there)) => (there, true),
        };
        // Fills are on one member: their segment is not a pair, and the same place of the other
        // half belongs to another segment.
        let is_single = new && found.header.stream == StreamKind::Fill;
        if !is_single {
            complete((&mut *a, &mut *a_bad), (&*b, &*b_bad), &found, from_there);
        }
        if new && !is_whole(Bytes { all: a, bad: a_bad }, &found) {
            break;
        }
        if new && !is_single {
            for (copy, (bytes, bad)) in (0..).zip(&own) {
                lacks.extend(
                    lacking((a, a_bad), (bytes, bad), at..found.end()).map(|(at, end)| (copy, at, end)),
                );
            }
        }
        at = found.end();
    }
    lacks
}

/// Completes a batch from two copies of it: its header comes from either copy, its payload from the
/// one with the right checksum.
fn complete((a, a_bad): Copy<'_>, (b, b_bad): (&[u8], &[bool]), found: &Found, from_there: bool) {
    let (start, end) = (found.start as usize, found.end() as usize);
    let mut take = |index: usize| {
        take_block(a, b, index);
        a_bad[index] = b_bad[index];
    };
    if from_there {
        take(start);
    }
    if let [Entry::Summary { .. }] = found.entries[..] {
        let bytes = Bytes { all: b, bad: b_bad };
        if from_there || is_whole(bytes, found) {
            (start + 1..end).for_each(take);
        }
        return;
    }
    for (index, entry) in found.data() {
        let Entry::Data { crc32c, .. } = entry else { continue };
        let index = index as usize;
        let right = |all: &[u8], bad: &[bool]| {
            let bytes = Bytes { all, bad };
            bytes.block(index as u32).is_some_and(|block| forebay_format::checksum(block) == crc32c)
        };
        if right(b, b_bad) && !right(a, a_bad) {
            take_block(a, b, index);
            a_bad[index] = false;
        }
    }
}

fn take_block(to: &mut [u8], from: &[u8], index: usize) {
    let range = index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES;
    to[range.clone()].copy_from_slice(&from[range]);
}

/// Runs of known blocks of a batch that a copy lacks.
fn lacking<'a>(
    (all, unknown): (&'a [u8], &'a [bool]),
    (own, bad): (&'a [u8], &'a [bool]),
    range: core::ops::Range<u32>,
) -> impl Iterator<Item = (u32, u32)> {
    let lacks = move |index: u32| {
        let (at, index) = (index as usize * BLOCK_BYTES, index as usize);
        !unknown[index] && (bad[index] || all[at..at + BLOCK_BYTES] != own[at..at + BLOCK_BYTES])
    };
    let mut at = range.start;
    core::iter::from_fn(move || {
        let start = (at..range.end).find(|index| lacks(*index))?;
        let end = (start..range.end).find(|index| !lacks(*index)).unwrap_or(range.end);
        at = end;
        Some((start, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::batch::{BatchHeader, BatchKind};
    use forebay_format::{CacheUuid, VolumeId};

    const UUID: CacheUuid = CacheUuid([7; 16]);
    const PLACE: Place = Place { uuid: UUID, segment: 3, since: 0 };
    const AFTER: After = After { epoch: 5, sequence: 100 };
    const BLOCKS: usize = 8;

    /// An empty copy of a segment.
    fn blank() -> (Vec<u8>, Vec<bool>) {
        (alloc::vec![0; BLOCKS * BLOCK_BYTES], alloc::vec![false; BLOCKS])
    }

    /// Writes a batch of two blocks filled with `fill` at `start`.
    fn put(bytes: &mut [u8], start: usize, numbers: (u64, u64), fill: u8) {
        put_to(StreamKind::Write, bytes, start, numbers, fill);
    }

    fn put_to(stream: StreamKind, bytes: &mut [u8], start: usize, (epoch, sequence): (u64, u64), fill: u8) {
        let payload = [fill; BLOCK_BYTES];
        let entry = |block| Entry::Data {
            volume: VolumeId(0),
            block,
            crc32c: forebay_format::checksum(&payload),
            sector_mask: 0xff,
            dirty: stream != StreamKind::Fill,
            flush_epoch: 0,
        };
        let header = BatchHeader {
            kind: BatchKind::Records,
            stream,
            uuid_tag: UUID.tag(),
            epoch,
            sequence,
            stream_sequence: sequence,
            flushed_stream_sequence: 0,
            segment: PLACE.segment,
            block_in_segment: start as u32,
            payload_blocks: 2,
        };
        let at = start * BLOCK_BYTES;
        header.encode(&[entry(1), entry(2)], &mut bytes[at..at + BLOCK_BYTES]);
        bytes[at + BLOCK_BYTES..at + 3 * BLOCK_BYTES].fill(fill);
    }

    fn damage(bytes: &mut [u8], block: usize) {
        bytes[block * BLOCK_BYTES + 9] ^= 4;
    }

    fn together(
        a: &mut (Vec<u8>, Vec<bool>),
        b: &mut (Vec<u8>, Vec<bool>),
        used: u32,
    ) -> Vec<(u32, u32, u32)> {
        overlay((&mut a.0, &mut a.1), (&mut b.0, &mut b.1), PLACE, used, AFTER)
    }

    #[test]
    fn one_copy_of_each_block_completes_a_batch() {
        let (mut a, mut b) = (blank(), blank());
        put(&mut a.0, 0, (5, 100), 1);
        put(&mut b.0, 0, (5, 100), 1);
        put(&mut b.0, 3, (5, 101), 2);
        let right = b.0.clone();
        damage(&mut a.0, 0);
        damage(&mut b.0, 1);
        b.1[2] = true;
        b.0[2 * BLOCK_BYTES..3 * BLOCK_BYTES].fill(0);
        let lacks = together(&mut a, &mut b, 0);
        assert!(a.0 == right && !a.1.contains(&true));
        assert_eq!(lacks, [(0, 0, 1), (1, 1, 3), (0, 3, 6)]);
    }

    #[test]
    fn torn_fill_ignores_the_other_segment() {
        let (mut a, mut b) = (blank(), blank());
        put_to(StreamKind::Fill, &mut a.0, 0, (5, 100), 1);
        b.0[2 * BLOCK_BYTES..3 * BLOCK_BYTES].fill(1); // The same bytes, by chance.
        damage(&mut a.0, 2);
        let torn = a.0.clone();
        assert_eq!(together(&mut a, &mut b, 0), []);
        assert!(a.0 == torn, "its own half has not got the block");
    }

    #[test]
    fn the_newer_batch_counts_whole_or_not() {
        let (mut a, mut b) = (blank(), blank());
        put(&mut a.0, 0, (5, 100), 1);
        put(&mut b.0, 0, (5, 104), 2);
        let newer = b.0.clone();
        let (mut c, mut d) = (a.clone(), b.clone());
        together(&mut a, &mut b, 0);
        assert!(a.0 == newer, "a lost write is not undone");
        damage(&mut d.0, 1);
        assert_eq!(together(&mut c, &mut d, 0), [], "the log ends there");
        let found = batch_at(Bytes { all: &c.0, bad: &c.1 }, PLACE, 0).expect("a header is there");
        assert_eq!(found.header.sequence, 104, "and the older batch does not come back");
    }

    #[test]
    fn later_start_wins_before_the_checkpoint() {
        // A crash left the batch of sequence 108; the next start assigned the number 103 at the
        // same place.
        let (mut a, mut b) = (blank(), blank());
        put(&mut a.0, 0, (4, 108), 1);
        put(&mut b.0, 0, (5, 103), 2);
        let newer = b.0.clone();
        assert_eq!(
            together(&mut a, &mut b, 3),
            [],
            "what a checkpoint accounts for is repaired when it is read"
        );
        assert!(a.0 == newer);
    }
}
