//! Both copies of an extension of the append window are damaged after a crash. The segments say
//! themselves which of them it had added.
//!
//! One whose new use the crash has torn may tell of neither use (`Disks::untold`). If the
//! checkpoint has dirty blocks there the cache is rightly refused: nobody can know that they do not
//! count. Clean ones may be found damaged. No promise says more of such a cache.

use crate::at_rest::{batch_header, newest_checkpoint};
use crate::disks::{CACHE, Snapshot};
use crate::image::Image;
use crate::plan::Plan;
use crate::rng::Rng;
use forebay_core::{OpenError, Status};
use forebay_format::checkpoint::Checkpoint;
use forebay_format::extension::{Chosen, EXTENSION_BLOCKS};
use forebay_format::{BLOCK_BYTES, WindowExtension};

/// Damages both copies of one extension or of both, as the plan says how often.
pub(crate) fn lose_extension(plan: &Plan, snapshot: &mut Snapshot) {
    // Drawn apart, so that everything else stays what it is.
    let own = &mut Rng::new(snapshot.rng.clone().word() ^ 0x4558_5445_4e53);
    if plan.lost_extensions_of == 0 || !own.chance(1, plan.lost_extensions_of) {
        return;
    }
    let cache = &mut snapshot.disks.devices[CACHE];
    snapshot.disks.untold |= !all_can_tell(plan, cache.visible());
    let both = own.chance(1, 2);
    let one = own.pick(&EXTENSION_BLOCKS);
    for block in EXTENSION_BLOCKS.iter().filter(|slot| both || **slot == one).flatten() {
        let at = block * BLOCK_BYTES as u64 + own.below(BLOCK_BYTES as u64);
        if own.chance(1, 2) {
            cache.rot(at, own.below(8) as u8);
        } else {
            cache.spoil(at);
        }
    }
}

/// True if a start failed for what an added segment cannot tell.
pub(crate) fn is_segment_lost(status: Status) -> bool {
    matches!(status, Status::Failed(OpenError::SegmentLost { .. }))
}

fn all_can_tell(plan: &Plan, cache: &Image) -> bool {
    let Some(checkpoint) = newest_checkpoint(cache) else { return false };
    let blocks = EXTENSION_BLOCKS.map(|slot| slot.map(|block| read(cache, block * BLOCK_BYTES as u64)));
    let blocks = blocks.each_ref().map(|copies| copies.each_ref().map(|block| Some(&block[..])));
    match WindowExtension::choose(&checkpoint, blocks) {
        Chosen::Added(segments) => segments.iter().all(|number| can_tell(plan, cache, &checkpoint, *number)),
        // Of those that were lost at an earlier crash nobody knows any more which they are.
        Chosen::AtLeast(_) => false,
    }
}

/// A segment has begun its new use, or has all of what the checkpoint says of it.
fn can_tell(plan: &Plan, cache: &Image, checkpoint: &Checkpoint, number: u32) -> bool {
    let entry = &checkpoint.segments[number as usize];
    let head = read(cache, plan.geometry.segment_offset(number, 0));
    if entry.slots.live() == 0 || checkpoint.precedes(number, &head) {
        return true;
    }
    let mut at = 0;
    while at < entry.used_blocks {
        let header = batch_header(plan, cache, number, at);
        let Some(header) = header.filter(|header| header.sequence < checkpoint.next_sequence) else {
            return false;
        };
        at += 1 + u32::from(header.payload_blocks);
    }
    true
}

fn read(cache: &Image, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    cache.read(offset, &mut bytes);
    bytes
}
