//! Runs the engine over a trace in virtual time, and its writes through a model of a flash device.
//!
//! The device is only the cache device, and it is full: every page was written before. The engine
//! trims nothing.

use crate::rig::Rig;
use crate::trace::Trace;
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_models::flash::ftl::{Collection, Ftl, FtlConfig};

const BLOCK: u64 = 4096;

/// Proportions of the flash device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flash {
    /// Spare area in thousandths of the visible size.
    pub(crate) spare_permille: u32,
    /// Blocks of 4 KiB in an erase block.
    pub(crate) erase_blocks: u32,
}

impl Flash {
    /// Returns true if a device of this many blocks is possible.
    pub(crate) fn is_possible(self, blocks: u64) -> bool {
        self.config(blocks).blocks().is_some()
    }

    fn config(self, blocks: u64) -> FtlConfig {
        FtlConfig {
            logical_pages: blocks as u32,
            block_pages: self.erase_blocks,
            spare_permille: self.spare_permille,
            collection: Collection::Greedy,
        }
    }
}

/// The results of a run. All but reads are in blocks of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) read_hits: u64,
    pub(crate) read_misses: u64,
    /// Blocks written by clients.
    pub(crate) client: u64,
    /// Blocks read from the backing store and added to the cache.
    pub(crate) fills: u64,
    /// Blocks moved by reclaim.
    pub(crate) moves: u64,
    /// Blocks written to the device, with headers, summaries and checkpoints.
    pub(crate) device: u64,
    /// Blocks written to flash, including those moved by the device.
    pub(crate) flash: u64,
}

/// Plays a trace on a device of this many blocks.
pub(crate) fn play(
    pool: PoolSettings,
    settings: VolumeSettings,
    blocks: u64,
    trace: &Trace,
    flash: Flash,
) -> Run {
    let mut ftl = Ftl::full(flash.config(blocks));
    let mut rig = Rig::on_device(blocks * BLOCK, trace.end, &[settings], pool);
    let (full, opened) = (ftl.stats(), rig.engine.stats());
    rig.cache_writes = Some(Vec::new());
    for request in &trace.requests {
        let kind = if request.writes { RequestKind::Write { fua: false } } else { RequestKind::Read };
        rig.request(0, kind, request.first, request.blocks, Treatment::Cache);
        for (offset, len) in rig.cache_writes.replace(Vec::new()).unwrap_or_default() {
            let pages = offset / BLOCK..(offset + len).div_ceil(BLOCK);
            pages.for_each(|page| ftl.write(page as u32));
        }
    }
    let (stats, did) = (rig.engine.stats(), ftl.stats().since(&full));
    let device = (stats.cache_written_bytes - opened.cache_written_bytes) / BLOCK;
    assert!(did.host_pages >= device, "the device sees every write");
    Run {
        read_hits: stats.read_hit_blocks,
        read_misses: stats.read_miss_blocks,
        client: stats.written_bytes / BLOCK,
        fills: stats.filled_blocks,
        moves: stats.relocated_blocks,
        device: did.host_pages,
        flash: did.host_pages + did.moved_pages,
    }
}
