//! Finds the layout of a cache without superblocks by its checkpoints.
//!
//! A checkpoint has all the information of a superblock, except the places of the checkpoints.
//! There are four slots of one length, from block 32 on. Two headers of one generation are the two
//! neighbouring copies of one checkpoint, so the distance between them is the length of a slot.
//!
//! A checkpoint may be a chain: this module follows increments as far as they are intact. The
//! newest generation counts. A base without an increment counts only for the length of a slot.
//!
//! A checkpoint is overwritten only when the next one is in effect. So two intact successive
//! generations prove that the newer one is the latest, if it is whole and no increment was written
//! behind it. Together with the log after it, it is the state of the cache. Otherwise a newer one
//! may have existed, and nothing is certain. The last increment of a chain is never certain to be
//! found.

use forebay_format::checkpoint::increment::BASE_MAGIC;
use forebay_format::checkpoint::{Checkpoint, MAGIC, SegmentState, slot_blocks_for};
use forebay_format::geometry::{CHECKPOINT_SLOTS, CHECKPOINT_START_BLOCK};
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Members};

use crate::Key;
use crate::chain::Found;
use crate::space::Space;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks read at once.
const STEP_BLOCKS: u64 = 256;
/// Longest whole checkpoint that is read: 4 GiB. One of a cache of 16 TiB has a third of it.
const IMAGE_BLOCKS_MAX: u64 = 1 << 20;

/// A reconstructed superblock.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) superblock: Superblock,
    /// Its checkpoint is certainly the latest.
    pub(crate) certain: bool,
}

/// Like [`rebuild`], for a cache that was encrypted with this key. The derived keys depend on the
/// identity of the cache, which checkpoints reveal only when decrypted: so this tries all
/// candidates, from remains of superblocks, headers of members, and the user.
pub(crate) fn rebuild_encrypted(space: &mut Space, key: &Key, known: Option<CacheUuid>) -> Option<Rebuilt> {
    let mut candidates: Vec<CacheUuid> = known.into_iter().collect();
    candidates.extend(space.headers().map(|header| header.uuid));
    candidates.extend((0..2).filter_map(|copy| torn_identity(space, copy)));
    candidates.into_iter().find_map(|uuid| {
        space.unlock_as(uuid, key);
        rebuild(space).filter(|rebuilt| rebuilt.superblock.uuid == uuid)
    })
}

/// Returns the identity in a partly damaged superblock.
fn torn_identity(space: &Space, copy: usize) -> Option<CacheUuid> {
    let mut block = vec![0; BLOCK_BYTES];
    space.read_first(Geometry::superblock_offset(copy), &mut block).ok()?;
    Superblock::identity_of_damaged(&block)
}

/// Finds checkpoints, and derives the superblock.
pub(crate) fn rebuild(space: &Space) -> Option<Rebuilt> {
    let mut found = images(space);
    let uuid = found.iter().max_by_key(|image| age(image))?.state().uuid;
    found.retain(|other| other.state().uuid == uuid);
    let slot_blocks = slot_blocks(&found, space)?;
    found.retain(|image| needed_blocks(image) <= slot_blocks);
    for image in &mut found {
        image.follow(slot_blocks, &|block, bytes| space.read_first(block * BLOCK, bytes));
    }
    // A base without increments is not a state.
    found.retain(|image| image.checkpoint().is_some());
    let newest = found.iter().max_by_key(|image| age(image))?;
    let state = newest.state();
    if state.segments.iter().any(|entry| entry.state == SegmentState::Twin) {
        return None; // Mirrored: half of it is on the other device.
    }
    let geometry = geometry(state, slot_blocks, space)?;
    let tags: Vec<u64> =
        space.headers().filter(|header| header.uuid == uuid).map(|header| header.tag).collect();
    let members = Members::new(&tags)?;
    // Data on missing or removed members is unknown without the superblock's list.
    let ends = geometry.segments_start_block + geometry.segment_blocks as u64 * state.segments.len() as u64;
    let complete = space.headers().last().is_none_or(|last| last.first_block + last.blocks >= ends);
    let certain = is_latest(newest, &found, slot_blocks, space) && complete && tags.is_empty();
    let superblock = Superblock {
        uuid,
        generation: 0,
        epoch: state.epoch,
        checkpoint_generation: state.generation,
        chain: newest.chain(),
        state: CacheState::Open,
        geometry: Geometry { device_blocks: geometry.device_blocks.max(ends), ..geometry },
        members,
        shard_index: 0,
        shard_count: 1,
        created_unix_s: 0,
        written_by: String::new(),
        mirror: None,
        encryption: space.encryption(),
    };
    Some(Rebuilt { superblock, certain })
}

/// Returns the sort key. A start may reuse the number of a checkpoint that the previous start did
/// not complete.
fn age(found: &Found) -> (u64, u64) {
    (found.state().epoch, found.state().generation)
}

/// Returns the minimum length of the slots of a cache with this number of segments.
fn needed_blocks(found: &Found) -> u64 {
    slot_blocks_for(found.state().segments.len() as u64, found.state().segment_blocks)
}

/// Returns the layout of a cache with this checkpoint.
fn geometry(newest: &Checkpoint, slot_blocks: u64, space: &Space) -> Option<Geometry> {
    let meta = CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * slot_blocks;
    Some(Geometry {
        device_blocks: space.bytes() / BLOCK,
        segment_blocks: newest.segment_blocks,
        segment_count: u32::try_from(newest.segments.len()).ok()?,
        checkpoint_slot_blocks: u32::try_from(slot_blocks).ok()?,
        segments_start_block: meta.next_multiple_of(u64::from(newest.segment_blocks).clamp(1, 256)),
    })
}

/// Returns true if there was certainly no newer checkpoint or increment.
fn is_latest(newest: &Found, found: &[Found], slot_blocks: u64, space: &Space) -> bool {
    let read = |block: u64, bytes: &mut [u8]| space.read_first(block * BLOCK, bytes);
    let slot = CHECKPOINT_START_BLOCK + newest.image % 2 * 2 * slot_blocks;
    newest.chain().is_none()
        && found.iter().any(|other| other.next_generation() == Some(newest.image))
        && [slot, slot + slot_blocks].iter().all(|slot| newest.ends_in(*slot, slot_blocks, &read))
}

/// Returns every intact whole checkpoint and base, up to the fourth.
fn images(space: &Space) -> Vec<Found> {
    let end = space.first().size_bytes() / BLOCK;
    let read = |block: u64, bytes: &mut [u8]| space.read_first(block * BLOCK, bytes);
    let mut found = Vec::new();
    let mut at = CHECKPOINT_START_BLOCK;
    let mut slots_end = end;
    while at < end.min(slots_end) && (found.len() as u64) < CHECKPOINT_SLOTS {
        let count = STEP_BLOCKS.min(end - at);
        let mut bytes = vec![0; (count * BLOCK) as usize];
        if read(at, &mut bytes).is_err() {
            bytes.fill(0);
        }
        for (block, header) in (at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if !header.starts_with(&MAGIC) && !header.starts_with(&BASE_MAGIC) {
                continue;
            }
            if let Some(image) = Found::at(block, end.min(block + IMAGE_BLOCKS_MAX), &read) {
                // No slot is longer than all possible segments need: that limits the search.
                let blocks = image.state().segment_blocks.max(1);
                let most = slot_blocks_for(u64::from(u32::MAX / blocks), blocks);
                slots_end = slots_end.min(CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * most);
                found.push(image);
            }
        }
        at += count;
    }
    found
}

/// Returns the length of a slot, from the places of two checkpoints; from the size of the device if
/// there is only one.
fn slot_blocks(found: &[Found], space: &Space) -> Option<u64> {
    let newest = found.iter().max_by_key(|image| age(image))?;
    // Every copy of a generation lies in one of its two slots.
    let fits = |len: &u64| {
        *len > 0
            && found.iter().all(|image| {
                let from = image.block - CHECKPOINT_START_BLOCK;
                from.is_multiple_of(*len) && from / len / 2 == image.image % 2
            })
    };
    let places: Vec<u64> = found.iter().map(|image| image.block).collect();
    let distances = places.windows(2).flat_map(|pair| (1..=3).map(|slots| (pair[1] - pair[0]) / slots));
    // The longest that fits: half of a length also fits if only first copies are left.
    let needed = needed_blocks(newest);
    let by_places = distances.filter(fits).filter(|len| *len >= needed).max();
    // One copy only: assume that the cache was created for its device, unless it has grown.
    let unit = newest.state().segment_blocks;
    let made = || Geometry::for_device(space.first().size_bytes(), Some(unit)).ok();
    by_places.or_else(|| made().map(|made| u64::from(made.checkpoint_slot_blocks)).filter(fits))
}
