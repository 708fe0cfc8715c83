//! Reads an unencrypted cache device at rest: superblock, checkpoint, batches.

use crate::image::Image;
use crate::plan::Plan;
use forebay_format::batch::{BatchHeader, Entry};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry};

/// Returns the superblock in effect.
pub(crate) fn superblock_in(image: &Image) -> Option<Superblock> {
    let copies = [0, 1].map(|copy| {
        let mut bytes = vec![0; BLOCK_BYTES];
        image.read(Geometry::superblock_offset(copy), &mut bytes);
        Superblock::decode(&bytes)
    });
    Superblock::choose(copies).ok()
}

/// Returns the checkpoint that the superblock names, if a copy of it is intact.
pub(crate) fn newest_checkpoint(cache: &Image) -> Option<Checkpoint> {
    let superblock = superblock_in(cache)?;
    [0, 1].into_iter().find_map(|copy| {
        let (offset, len) = superblock.checkpoint_place(copy);
        let mut bytes = vec![0; len as usize];
        cache.read(offset, &mut bytes);
        superblock.read_checkpoint(&bytes).ok()
    })
}

/// Returns the header of a batch at this block of a segment, if it was written for this place.
pub(crate) fn batch_header(plan: &Plan, image: &Image, segment: u32, at: u32) -> Option<BatchHeader> {
    batch_at(plan, image, segment, at).map(|(header, _)| header)
}

/// The same, with its entries.
pub(crate) fn batch_at(
    plan: &Plan,
    image: &Image,
    segment: u32,
    at: u32,
) -> Option<(BatchHeader, Vec<Entry>)> {
    let (mut bytes, mut entries) = ([0; BLOCK_BYTES], Vec::new());
    image.read(plan.geometry.segment_offset(segment, at), &mut bytes);
    let header = BatchHeader::decode(&bytes, &mut entries).ok()?;
    header.check_place(plan.uuid, segment, at).ok()?;
    Some((header, entries))
}
