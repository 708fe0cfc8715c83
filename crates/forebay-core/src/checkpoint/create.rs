//! Formats a device as an empty cache.

use crate::api::config::FormatParams;
use crate::checkpoint::window_size;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, NAME_BYTES_MAX, SegmentEntry};
use forebay_format::extension::EXTENSION_BLOCKS;
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::superblock::{CacheState, Superblock, being_made};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry, MirrorMark};

/// Returns the writes that format a device as an empty cache: `(offset, bytes)`. The caller
/// performs them in this order, with a device flush after each.
///
/// They wipe the superblocks first and write them last, so a device is never half a cache: after a
/// crash in between it is not recognised as a cache.
///
/// # Errors
/// [`FormatError::Geometry`] if the geometry or the volumes cannot be described.
pub fn format_cache(params: &FormatParams) -> Result<Vec<(u64, Vec<u8>)>, FormatError> {
    format(params, None)
}

/// As [`format_cache`], for a cache mirrored over two devices ([`Geometry::mirrored`]) with these
/// tags: offsets are in the pool's space, and each flush is of both devices.
///
/// # Errors
/// As [`format_cache`].
pub fn format_mirrored(params: &FormatParams, tags: [u64; 2]) -> Result<Vec<(u64, Vec<u8>)>, FormatError> {
    params.geometry.validate_mirrored()?;
    format(params, Some(tags))
}

fn format(params: &FormatParams, tags: Option<[u64; 2]>) -> Result<Vec<(u64, Vec<u8>)>, FormatError> {
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
    let counted = if tags.is_some() { geometry.columns() } else { geometry.segment_count };
    let checkpoint = Checkpoint {
        uuid: params.uuid,
        generation: 1,
        epoch: 1,
        next_sequence: 1,
        next_stream_sequence: [1; 3],
        segment_blocks: geometry.segment_blocks,
        volumes: params.volumes.clone(),
        segments: vec![SegmentEntry::default(); geometry.segment_count as usize],
        window: (0..window_size(counted, tags.is_some())).collect(),
        intents: Vec::new(),
    };
    let checkpoint = checkpoint.encode();
    let members = if tags.is_some() { 2 } else { 1 };
    let mut writes = Vec::new();
    for copy in 0..2 {
        for member in 0..members {
            let offset = geometry.mirror_meta(member, Geometry::superblock_offset(copy));
            writes.push((offset, if copy == 0 { being_made() } else { vec![0; BLOCK_BYTES] }));
        }
    }
    for (member, block) in (0..members)
        .flat_map(|member| EXTENSION_BLOCKS.as_flattened().iter().map(move |block| (member, block)))
    {
        let offset = geometry.mirror_meta(member, block * BLOCK_BYTES as u64);
        writes.push((offset, vec![0; BLOCK_BYTES]));
    }
    for (member, copy) in (0..members).flat_map(|member| [(member, 0), (member, 1)]) {
        let offset = geometry.mirror_meta(member, geometry.checkpoint_offset(1, copy));
        writes.push((offset, checkpoint.clone()));
    }
    for (copy, member) in [1, 0].into_iter().flat_map(|copy| (0..members).map(move |member| (copy, member))) {
        let mirror = tags.map(|tags| MirrorMark { member: member as u8, out: None, tags });
        let offset = geometry.mirror_meta(member, Geometry::superblock_offset(copy));
        writes.push((offset, superblock(params, mirror).encode()));
    }
    Ok(writes)
}

fn superblock(params: &FormatParams, mirror: Option<MirrorMark>) -> Superblock {
    Superblock {
        uuid: params.uuid,
        generation: 1,
        epoch: 1,
        checkpoint_generation: 1,
        chain: None,
        state: CacheState::Clean,
        geometry: params.geometry,
        members: params.members,
        mirror,
        encryption: params.encryption,
        shard_index: 0,
        shard_count: 1,
        created_unix_s: params.created_unix_s,
        written_by: params.written_by.clone(),
    }
}
