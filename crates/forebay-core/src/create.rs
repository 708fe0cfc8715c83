//! Making a device an empty cache.

use crate::checkpoint::window_size;
use crate::config::FormatParams;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, NAME_BYTES_MAX, SegmentEntry};
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry};

/// Writes that make a device an empty cache: `(offset, bytes)`, to be done in this order, with a device flush after each.
///
/// The superblocks are wiped first and written last, so a device is never half a cache: a crash in between leaves one
/// that is not recognised.
///
/// # Errors
/// [`FormatError::Geometry`] if the geometry or the volumes cannot be described.
pub fn format_cache(params: &FormatParams) -> Result<Vec<(u64, Vec<u8>)>, FormatError> {
    let geometry = params.geometry;
    geometry.validate(geometry.device_blocks * BLOCK_BYTES as u64)?;
    let fail = |why: &str| Err(FormatError::Geometry(why.to_string()));
    if params.volumes.len() > VOLUMES_MAX as usize {
        return fail("too many volumes");
    }
    for (index, volume) in params.volumes.iter().enumerate() {
        if u32::from(volume.id.0) >= VOLUMES_MAX || volume.name.len() > NAME_BYTES_MAX {
            return fail("a volume's number or name is out of range");
        }
        if params.volumes[..index].iter().any(|other| other.id == volume.id) {
            return fail("two volumes have the same number");
        }
    }
    let checkpoint = Checkpoint {
        uuid: params.uuid,
        generation: 1,
        epoch: 1,
        next_sequence: 1,
        next_stream_sequence: [1; 3],
        segment_blocks: geometry.segment_blocks,
        volumes: params.volumes.clone(),
        segments: vec![SegmentEntry::default(); geometry.segment_count as usize],
        window: (0..window_size(&geometry)).collect(),
        intents: Vec::new(),
    };
    let superblock = Superblock {
        uuid: params.uuid,
        generation: 1,
        epoch: 1,
        checkpoint_generation: 1,
        state: CacheState::Clean,
        geometry,
        members: params.members,
        shard_index: 0,
        shard_count: 1,
        created_unix_s: params.created_unix_s,
        written_by: params.written_by.clone(),
    };
    let blank = vec![0; BLOCK_BYTES];
    let (checkpoint, superblock) = (checkpoint.encode(), superblock.encode());
    Ok(vec![
        (Geometry::superblock_offset(0), blank.clone()),
        (Geometry::superblock_offset(1), blank),
        (geometry.checkpoint_offset(1, 0), checkpoint.clone()),
        (geometry.checkpoint_offset(1, 1), checkpoint),
        (Geometry::superblock_offset(1), superblock.clone()),
        (Geometry::superblock_offset(0), superblock),
    ])
}
