//! The extension of the append window: which segments were added since the checkpoint in effect.
//!
//! Found out as the engine does at a start: from the newest extension, and where both copies of a
//! slot are damaged from the first blocks of all segments.

use crate::image::Image;
use forebay_format::batch::BatchHeader;
use forebay_format::checkpoint::{Checkpoint, SegmentState};
use forebay_format::extension::{Chosen, EXTENSION_BLOCKS};
use forebay_format::{BLOCK_BYTES, FormatError, WindowExtension};

/// The checkpoint with the window that it has by now. After an orderly stop, and in a mirrored
/// cache, that is the one it was written with.
pub(crate) fn extended(image: &Image, mut checkpoint: Checkpoint) -> Result<Checkpoint, FormatError> {
    if !image.is_unclean() || image.mirror().is_some() {
        return Ok(checkpoint);
    }
    let blocks = EXTENSION_BLOCKS
        .map(|copies| copies.map(|block| image.read(block * BLOCK_BYTES as u64, BLOCK_BYTES as u64)));
    let read = blocks.each_ref().map(|copies| copies.each_ref().map(|bytes| bytes.block(0)));
    let added = match WindowExtension::choose(&checkpoint, read) {
        Chosen::Added(segments) => segments,
        Chosen::AtLeast(segments) => search(image, &checkpoint, segments),
    };
    checkpoint.extend_window(&added)?;
    Ok(checkpoint)
}

/// Adds to `found` the segments that were written since the checkpoint.
fn search(image: &Image, checkpoint: &Checkpoint, mut found: Vec<u32>) -> Vec<u32> {
    for (number, entry) in (0..).zip(&checkpoint.segments) {
        let known = entry.state == SegmentState::Open
            || checkpoint.window.contains(&number)
            || found.contains(&number);
        if known {
            continue;
        }
        let head = image.segment_head(number);
        let header = head.block(0).and_then(|block| BatchHeader::decode(block, &mut Vec::new()).ok());
        let is_new = header.is_some_and(|header| {
            header.check_place(image.superblock.uuid, number, 0).is_ok()
                && header.epoch == image.superblock.epoch
                && header.sequence >= checkpoint.next_sequence
        });
        if is_new {
            found.push(number);
        }
    }
    found
}
