//! The layout of a cache without superblocks, found by its checkpoints.
//!
//! A checkpoint has everything that a superblock says, except where the checkpoints lie. There are
//! four slots of one length, from block 32 on. Two headers of one generation are the two
//! neighbouring copies of one checkpoint, so the distance between them is the length of a slot.
//!
//! A checkpoint is overwritten only when the next one is in effect. So two intact successive
//! generations prove that the newer one is the latest. With everything logged after it, it is the
//! state of the cache. Otherwise a newer one may have existed, and nothing is certain.

use forebay_format::checkpoint::{Checkpoint, MAGIC, SegmentState, slot_blocks_for};
use forebay_format::geometry::{CHECKPOINT_SLOTS, CHECKPOINT_START_BLOCK};
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, Geometry, Members};

use crate::Key;
use crate::space::Space;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks read at once.
const STEP_BLOCKS: u64 = 256;
/// Bodies up to this size are read whole (a checkpoint of a cache of 16 TiB has a third of it).
const BODY_BYTES_MAX: u64 = 4 << 30;

/// A superblock as the cache must have had it.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) superblock: Superblock,
    /// The checkpoint that it names is certainly the latest.
    pub(crate) certain: bool,
}

/// As [`rebuild`], for a cache that was encrypted with this key. Its keys depend on its identity,
/// which checkpoints say only to whoever has them: so everything is tried that may be it: what is
/// left of superblocks, headers of members, and what the user knows.
pub(crate) fn rebuild_encrypted(space: &mut Space, key: &Key, known: Option<CacheUuid>) -> Option<Rebuilt> {
    let mut candidates: Vec<CacheUuid> = known.into_iter().collect();
    candidates.extend(space.headers().map(|header| header.uuid));
    candidates.extend((0..2).filter_map(|copy| torn_identity(space, copy)));
    candidates.into_iter().find_map(|uuid| {
        space.unlock_as(uuid, key);
        rebuild(space).filter(|rebuilt| rebuilt.superblock.uuid == uuid)
    })
}

/// The identity in a superblock that is not intact as a whole.
fn torn_identity(space: &Space, copy: usize) -> Option<CacheUuid> {
    let mut block = vec![0; BLOCK_BYTES];
    space.read_first(Geometry::superblock_offset(copy), &mut block).ok()?;
    Superblock::identity_of_damaged(&block)
}

/// Looks for checkpoints, and derives the superblock.
pub(crate) fn rebuild(space: &Space) -> Option<Rebuilt> {
    let mut found = checkpoints(space);
    let (_, newest) = found.iter().max_by_key(|(_, checkpoint)| checkpoint.generation)?;
    let newest = newest.clone();
    found.retain(|(_, other)| other.uuid == newest.uuid);
    if newest.segments.iter().any(|entry| entry.state == SegmentState::Twin) {
        return None; // Mirrored: half of it is elsewhere.
    }
    let slot_blocks = slot_blocks(&found, &newest, space)?;
    let certain = found.iter().any(|(_, other)| other.generation.checked_add(1) == Some(newest.generation));
    let meta = CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * slot_blocks;
    let unit = u64::from(newest.segment_blocks);
    let segments_start_block = meta.next_multiple_of(unit.clamp(1, 256));
    let geometry = Geometry {
        device_blocks: space.bytes() / BLOCK,
        segment_blocks: newest.segment_blocks,
        segment_count: u32::try_from(newest.segments.len()).ok()?,
        checkpoint_slot_blocks: u32::try_from(slot_blocks).ok()?,
        segments_start_block,
    };
    let tags: Vec<u64> =
        space.headers().filter(|header| header.uuid == newest.uuid).map(|header| header.tag).collect();
    let members = Members::new(&tags)?;
    // What lies on members that are not there, or were taken out, is not known without the
    // superblock's list.
    let ends = segments_start_block + unit * newest.segments.len() as u64;
    let complete = space.headers().last().is_none_or(|last| last.first_block + last.blocks >= ends);
    Some(Rebuilt {
        superblock: Superblock {
            uuid: newest.uuid,
            generation: 0,
            epoch: newest.epoch,
            checkpoint_generation: newest.generation,
            state: CacheState::Open,
            geometry: Geometry { device_blocks: geometry.device_blocks.max(ends), ..geometry },
            members,
            shard_index: 0,
            shard_count: 1,
            created_unix_s: 0,
            written_by: String::new(),
            mirror: None,
            encryption: space.encryption(),
        },
        certain: certain && complete && tags.is_empty(),
    })
}

/// Every intact checkpoint with the block of its header, up to the fourth.
fn checkpoints(space: &Space) -> Vec<(u64, Checkpoint)> {
    let end = space.first().size_bytes() / BLOCK;
    let mut found = Vec::new();
    let mut at = CHECKPOINT_START_BLOCK;
    let mut slots_end = end;
    while at < end.min(slots_end) && (found.len() as u64) < CHECKPOINT_SLOTS {
        let count = STEP_BLOCKS.min(end - at);
        let mut bytes = vec![0; (count * BLOCK) as usize];
        if space.read_first(at * BLOCK, &mut bytes).is_err() {
            bytes.fill(0);
        }
        for (block, header) in (at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if !header.starts_with(&MAGIC) {
                continue;
            }
            if let Some(checkpoint) = checkpoint_at(space, block, header) {
                // No slot is longer than all segments can need, so it is known where to stop.
                let blocks = checkpoint.segment_blocks.max(1);
                let most = slot_blocks_for(u64::from(u32::MAX / blocks), blocks);
                slots_end = slots_end.min(CHECKPOINT_START_BLOCK + CHECKPOINT_SLOTS * most);
                found.push((block, checkpoint));
            }
        }
        at += count;
    }
    found
}

/// The checkpoint whose header stands at a block.
fn checkpoint_at(space: &Space, block: u64, header: &[u8]) -> Option<Checkpoint> {
    // Given the header alone the decoder says how much there is to read.
    let bytes = match Checkpoint::decode(header) {
        Err(FormatError::TooShort { needed, .. }) => needed as u64,
        _ => return None,
    };
    if bytes > BODY_BYTES_MAX.min(space.first().size_bytes()) {
        return None;
    }
    // Whole blocks: what is encrypted is read so.
    let mut bytes = vec![0; (bytes as usize).next_multiple_of(BLOCK_BYTES)];
    space.read_first(block * BLOCK, &mut bytes).ok()?;
    Checkpoint::decode(&bytes).ok()
}

/// Length of a slot, from the places of two checkpoints; from the size of the device if there is
/// only one.
fn slot_blocks(found: &[(u64, Checkpoint)], newest: &Checkpoint, space: &Space) -> Option<u64> {
    // Every copy of a generation lies in one of its two slots.
    let fits = |len: &u64| {
        *len > 0
            && found.iter().all(|(at, checkpoint)| {
                let from = at - CHECKPOINT_START_BLOCK;
                from.is_multiple_of(*len) && from / len / 2 == checkpoint.generation % 2
            })
    };
    let places: Vec<u64> = found.iter().map(|(at, _)| *at).collect();
    let distances = places.windows(2).flat_map(|pair| (1..=3).map(|slots| (pair[1] - pair[0]) / slots));
    // The longest that fits: half of a length fits as well if only first copies are left.
    let needed = slot_blocks_for(newest.segments.len() as u64, newest.segment_blocks);
    let by_places = distances.filter(fits).filter(|len| *len >= needed).max();
    // One copy alone: the cache was made for its device, unless it has grown.
    let made = || Geometry::for_device(space.first().size_bytes(), Some(newest.segment_blocks)).ok();
    by_places.or_else(|| made().map(|made| u64::from(made.checkpoint_slot_blocks)).filter(fits))
}
