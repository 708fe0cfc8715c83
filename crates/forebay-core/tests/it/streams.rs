//! Long streams bypass the cache, except over dirty data.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};

/// Blocks of a request, and requests of the stream.
const BLOCKS: u64 = 8;
const REQUESTS: u64 = 40;

/// Bypass writes of a stream, and their blocks, after these blocks had become dirty.
fn past(dirty: &[u64]) -> (u64, u64) {
    let held = VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        skip_sequential_bytes: 64 << 10,
        ..VolumeSettings::default()
    };
    let mut rig = Rig::new((16, 64), 1 << 15, &[held], PoolSettings::default());
    rig.depth = 1;
    dirty.iter().for_each(|block| rig.write(0, *block));
    for at in 0..REQUESTS {
        rig.request(0, RequestKind::Write { fua: false }, 1000 + at * BLOCKS, BLOCKS, Treatment::Cache);
    }
    rig.rest(GATHERED_NS);
    let stats = rig.engine.stats();
    assert_eq!(stats.write_sequential_blocks, stats.write_bypass_blocks);
    (stats.sequential_bypassed_writes, stats.write_bypass_blocks)
}

#[test]
fn stream_over_dirty_blocks_is_cached() {
    let (all, blocks) = past(&[]);
    assert!(all > REQUESTS / 2, "{all} of {REQUESTS}");
    assert_eq!(blocks, all * BLOCKS);
    // Before and behind the last request.
    let last = 1000 + (REQUESTS - 1) * BLOCKS;
    assert_eq!(past(&[999, last + BLOCKS]), (all, blocks));
    // Its first block, and its last.
    assert_eq!(past(&[last]), (all - 1, blocks - BLOCKS));
    assert_eq!(past(&[last + BLOCKS - 1]), (all - 1, blocks - BLOCKS));
}
