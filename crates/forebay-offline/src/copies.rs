//! Merges the two copies of a segment of a mirrored cache.
//!
//! A batch is whole if each of its blocks has an intact copy. One of the copies must have its
//! header, and its payload must match the checksums. Different batches at one place mean that one
//! device lost a write or was failed out. Then the later one counts, by epoch and then by sequence,
//! even if it is not whole. So superseded data cannot return, and the log is as long as both copies
//! together.

use forebay_format::batch::Entry;
use forebay_format::{BLOCK_BYTES, CacheUuid};

use crate::batch::{Batch, Bytes, batch_at, is_whole};

/// Merges two copies of a segment.
pub(crate) fn merged(mut here: Bytes, mut there: Bytes, uuid: CacheUuid, segment: u32) -> Bytes {
    fill_from(&mut here, &there);
    fill_from(&mut there, &here);
    let blocks = (here.bytes.len().min(there.bytes.len()) / BLOCK_BYTES) as u32;
    let mut at = 0;
    while at < blocks {
        let batch = |bytes: &Bytes| batch_at(bytes, uuid, segment, at).ok();
        let age = |batch: &Batch| (batch.header.epoch, batch.header.sequence);
        let (batch, is_there) = match (batch(&here), batch(&there)) {
            (None, None) => {
                at += 1;
                continue;
            }
            (Some(ours), Some(theirs)) if age(&theirs) > age(&ours) => (theirs, true),
            (Some(ours), _) => (ours, false),
            (None, Some(theirs)) => (theirs, true),
        };
        complete(&mut here, &there, &batch, is_there);
        at = batch.end();
    }
    here
}

/// Takes unreadable blocks from the other copy.
fn fill_from(bytes: &mut Bytes, other: &Bytes) {
    let lacks = std::mem::take(&mut bytes.unreadable);
    for index in lacks {
        if other.unreadable.contains(&index) || !bytes.take(other, index) {
            bytes.unreadable.push(index);
        }
    }
}

/// Completes a batch from both copies.
fn complete(here: &mut Bytes, there: &Bytes, batch: &Batch, is_there: bool) {
    if is_there {
        here.take(there, batch.start);
    }
    if let [Entry::Summary { .. }] = batch.entries[..] {
        // One checksum covers the whole payload: take it from one copy.
        if !is_whole(here, batch) && is_whole(there, batch) {
            for index in batch.start + 1..batch.end() {
                here.take(there, index);
            }
        }
        return;
    }
    for (index, entry) in batch.data() {
        let Entry::Data { crc32c, .. } = *entry else { continue };
        if !here.is_right(index, crc32c) && there.is_right(index, crc32c) {
            here.take(there, index);
        }
    }
}

impl Bytes {
    fn is_right(&self, index: u32, crc32c: u32) -> bool {
        self.block(index).is_some_and(|block| forebay_format::checksum(block) == crc32c)
    }

    /// Takes a block from the other copy; false if that does not have it.
    fn take(&mut self, other: &Self, index: u32) -> bool {
        let start = index as usize * BLOCK_BYTES;
        let to = self.bytes.get_mut(start..start + BLOCK_BYTES);
        let (Some(to), Some(from)) = (to, other.block(index)) else { return false };
        to.copy_from_slice(from);
        true
    }
}
