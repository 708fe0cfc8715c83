//! The window extension: the segments added to the append window since the checkpoint in effect.
//!
//! Determined as in the engine's start: from the newest extension, and where both copies of a slot
//! are damaged, from the first blocks of all segments.

use crate::batch::Bytes;
use crate::image::Image;
use crate::{Findings, Severity};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::extension::{Chosen, EXTENSION_BLOCKS};
use forebay_format::{BLOCK_BYTES, FormatError, WindowExtension};

/// Returns the four blocks, by slot and copy.
fn blocks(image: &Image) -> [[Bytes; 2]; 2] {
    EXTENSION_BLOCKS
        .map(|copies| copies.map(|block| image.read(block * BLOCK_BYTES as u64, BLOCK_BYTES as u64)))
}

/// Returns the checkpoint with its extended window. After an orderly stop, and in a mirrored cache,
/// that is the original one.
pub(crate) fn extended(image: &Image, mut checkpoint: Checkpoint) -> Result<Checkpoint, FormatError> {
    if !counts(image) {
        return Ok(checkpoint);
    }
    let blocks = blocks(image);
    let read = blocks.each_ref().map(|copies| copies.each_ref().map(|bytes| bytes.block(0)));
    let added = match WindowExtension::choose(&checkpoint, read) {
        Chosen::Added(segments) => segments,
        Chosen::AtLeast(mut found) => {
            let was_written = |number: &u32| {
                let head = image.segment_head(*number);
                head.block(0).is_some_and(|head| checkpoint.precedes(*number, head))
            };
            let unknown: Vec<u32> = checkpoint.addable().filter(|number| !found.contains(number)).collect();
            found.extend(unknown.into_iter().filter(was_written));
            found
        }
    };
    checkpoint.extend_window(&added)?;
    Ok(checkpoint)
}

/// Returns true if extensions count.
fn counts(image: &Image) -> bool {
    image.is_unclean() && image.mirror().is_none()
}

/// Adds findings about the copies.
pub(crate) fn judge(image: &Image, findings: &mut Findings) {
    if !counts(image) {
        return;
    }
    for (copies, blocks) in blocks(image).iter().zip(EXTENSION_BLOCKS) {
        let read = copies.each_ref().map(|bytes| bytes.block(0).map(WindowExtension::read));
        let is_damaged = |copy: &Option<Result<_, _>>| !matches!(copy, Some(Ok(_)));
        let instead = match read.iter().all(is_damaged) {
            true => "the segments themselves show which of them were added",
            false => "the other copy counts",
        };
        for (copy, block) in read.iter().zip(blocks).filter(|(copy, _)| is_damaged(copy)) {
            let what = match copy {
                Some(Err(error)) => format!("{error} (a power cut during an update looks like this)"),
                _ => "the device cannot read it".to_owned(),
            };
            findings.add(Severity::Damaged, format!("block {block}"), format!("{what}; {instead}"));
        }
    }
}
