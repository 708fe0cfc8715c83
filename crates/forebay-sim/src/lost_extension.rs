//! Crashes that damage both copies of a window extension. The segments themselves reveal which of
//! them it had added.
//!
//! A segment whose new use the crash has torn may reveal neither use (`Disks::untold`). If the
//! checkpoint has dirty blocks there the engine refuses the cache, rightly: it cannot know that
//! they do not count. Clean ones may be found damaged. There is no further promise for such a
//! cache.

use crate::at_rest::{batch_at, newest_checkpoint, superblock_in};
use crate::disks::{CACHE, Snapshot};
use crate::image::Image;
use crate::plan::Plan;
use crate::rng::Rng;
use forebay_core::{OpenError, Status};
use forebay_format::batch::Entry;
use forebay_format::checkpoint::{Checkpoint, SlotState};
use forebay_format::extension::{Chosen, EXTENSION_BLOCKS};
use forebay_format::{BLOCK_BYTES, WindowExtension};

/// Damages both copies of one extension or of both, at the rate of the plan.
pub(crate) fn lose_extension(plan: &Plan, snapshot: &mut Snapshot) {
    // Separate generator, so that the other draws do not change.
    let own = &mut Rng::new(snapshot.rng.clone().word() ^ 0x4558_5445_4e53);
    let loses = plan.lost_extensions_of > 0 && own.chance(1, plan.lost_extensions_of);
    snapshot.disks.extension_lost |= loses;
    let cache = &mut snapshot.disks.devices[CACHE];
    snapshot.disks.untold |= snapshot.disks.extension_lost && !all_can_tell(plan, cache.visible());
    if !loses {
        return;
    }
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

/// Returns true if a start failed because an added segment does not reveal its use.
pub(crate) fn is_segment_lost(status: Status) -> bool {
    matches!(status, Status::Failed(OpenError::SegmentLost { .. }))
}

fn all_can_tell(plan: &Plan, cache: &Image) -> bool {
    let Some((checkpoint, superblock)) = newest_checkpoint(cache).zip(superblock_in(cache)) else {
        return false;
    };
    // The pool may have grown.
    let plan = &Plan { geometry: superblock.geometry, ..plan.clone() };
    let blocks = EXTENSION_BLOCKS.map(|slot| slot.map(|block| read(cache, block * BLOCK_BYTES as u64)));
    let blocks = blocks.each_ref().map(|copies| copies.each_ref().map(|block| Some(&block[..])));
    match WindowExtension::choose(&checkpoint, blocks) {
        Chosen::Added(segments) => segments.iter().all(|number| can_tell(plan, cache, &checkpoint, *number)),
        // Segments lost at an earlier crash are no longer known.
        Chosen::AtLeast(_) => false,
    }
}

/// Returns true if a segment has begun its new use, or has everything in its checkpoint entry: the
/// headers, and the live blocks. A later batch of its new use may be there without the first one.
fn can_tell(plan: &Plan, cache: &Image, checkpoint: &Checkpoint, number: u32) -> bool {
    let entry = &checkpoint.segments[number as usize];
    let head = read(cache, plan.geometry.segment_offset(number, 0));
    if entry.slots.live() == 0 || checkpoint.precedes(number, &head) {
        return true;
    }
    let mut at = 0;
    while at < entry.used_blocks {
        let batch = batch_at(plan, cache, number, at);
        let Some((header, entries)) = batch.filter(|(header, _)| header.sequence < checkpoint.next_sequence)
        else {
            return false;
        };
        let is_there = |(index, crc32c): (u32, u32)| {
            let block = read(cache, plan.geometry.segment_offset(number, index));
            entry.slots.get(index) == SlotState::Void || forebay_format::checksum(&block) == crc32c
        };
        let data = entries.iter().filter_map(|entry| match entry {
            Entry::Data { crc32c, .. } => Some(*crc32c),
            _ => None,
        });
        if !(at + 1..).zip(data).all(is_there) {
            return false;
        }
        at += 1 + u32::from(header.payload_blocks);
    }
    true
}

fn read(cache: &Image, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    cache.read(offset, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimDevice;
    use forebay_format::batch::{BatchHeader, BatchKind};
    use forebay_format::checkpoint::{SegmentEntry, SegmentState, SlotStates};
    use forebay_format::{Slot, StreamKind, VolumeId};

    const SEGMENT: u32 = 2;

    /// Creates a device with a batch of two blocks at the start of the segment, behind a mark.
    fn old_use(plan: &Plan) -> SimDevice {
        let payload = [[1; BLOCK_BYTES], [2; BLOCK_BYTES]];
        let data = |block: usize| Entry::Data {
            volume: VolumeId(0),
            block: block as u64,
            crc32c: forebay_format::checksum(&payload[block]),
            sector_mask: 0xff,
            dirty: true,
            flush_epoch: 0,
        };
        let header = BatchHeader {
            kind: BatchKind::Records,
            stream: StreamKind::Write,
            uuid_tag: plan.uuid.tag(),
            epoch: 2,
            sequence: 40,
            stream_sequence: 3,
            flushed_stream_sequence: 0,
            segment: SEGMENT,
            block_in_segment: 0,
            payload_blocks: 2,
        };
        let mut head = vec![0; BLOCK_BYTES];
        header.encode(&[Entry::CleanMark { slot: Slot(1), count: 1 }, data(0), data(1)], &mut head);
        let mut device = SimDevice::new(plan.cache_bytes_max(), plan.cache_latency);
        let blocks = [&head[..], &payload[0][..], &payload[1][..]];
        for (at, block) in (0..).zip(blocks) {
            device.preset(plan.geometry.segment_offset(SEGMENT, at), block);
        }
        device
    }

    #[test]
    fn earlier_use_needs_each_block_that_counts() {
        let plan = Plan::new(1, None);
        let checkpoint = |second: SlotState| {
            let states = [SlotState::Void, SlotState::Clean, second];
            let packed =
                (0..).zip(states).fold(0, |bits, (index, state)| bits | (state as u8) << (index * 2));
            let entry = SegmentEntry {
                state: SegmentState::Sealed,
                used_blocks: 3,
                slots: SlotStates::from_packed(vec![packed]),
                ..SegmentEntry::default()
            };
            let segments =
                (0..4).map(|number| if number == SEGMENT { entry.clone() } else { SegmentEntry::default() });
            Checkpoint {
                uuid: plan.uuid,
                epoch: 2,
                next_sequence: 50,
                segments: segments.collect(),
                ..Checkpoint::default()
            }
        };
        let tells =
            |device: &SimDevice, second| can_tell(&plan, device.visible(), &checkpoint(second), SEGMENT);
        let mut device = old_use(&plan);
        assert!(tells(&device, SlotState::Clean));
        // A later batch of the new use, without the first one.
        device.preset(plan.geometry.segment_offset(SEGMENT, 2), &[9; BLOCK_BYTES]);
        assert!(!tells(&device, SlotState::Clean));
        assert!(tells(&device, SlotState::Void), "nothing of that block counts");
    }
}
