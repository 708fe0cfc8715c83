//! The superblock and the geometry of an engine before a cache is opened.

use alloc::string::String;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{CacheUuid, Geometry};

pub(crate) fn blank_geometry() -> Geometry {
    Geometry {
        device_blocks: 0,
        segment_blocks: 1,
        segment_count: 0,
        checkpoint_slot_blocks: 0,
        segments_start_block: 0,
    }
}

pub(crate) fn blank_superblock() -> Superblock {
    Superblock {
        uuid: CacheUuid::default(),
        generation: 0,
        epoch: 0,
        checkpoint_generation: 0,
        chain: None,
        state: CacheState::Open,
        geometry: blank_geometry(),
        members: forebay_format::Members::default(),
        mirror: None,
        encryption: None,
        shard_index: 0,
        shard_count: 1,
        created_unix_s: 0,
        written_by: String::new(),
    }
}
