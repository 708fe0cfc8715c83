//! State of the requests in flight, beyond what the context keeps of each.

use crate::base::slab::Slab;
use crate::context::locks::BlockRange;
use crate::context::pages::Page;
use crate::context::sectors::BLOCK;
use crate::map::segment::Key;
use crate::request::admission::AdmissionMemory;
use crate::request::throttle::Throttle;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::INTENT_REGION_BLOCKS;

/// Destination of the merged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MergeFor {
    /// The client's buffer.
    Read,
    /// The write stream.
    Log,
    /// A bypass write; needs the whole block.
    Direct(u32),
}

#[derive(Debug)]
pub(super) struct Merge {
    pub(super) req: u32,
    pub(super) volume: VolumeId,
    pub(super) block: u64,
    /// Bytes of the block that the request covers.
    pub(super) part: (u32, u32),
    pub(super) purpose: MergeFor,
    /// `None` until pages are available.
    pub(super) pages: Option<(Page, Page)>,
    /// Slot whose content is needed, and its sectors.
    pub(super) cached: Option<(u32, u8)>,
    pub(super) backing: bool,
    pub(super) backing_tries: u32,
    pub(super) pending: u32,
    pub(super) failed: bool,
    /// The cached copy was damaged and has been dropped: start over.
    pub(super) again: bool,
    /// The cached copy is damaged and cannot be dropped yet: read the block from the backing store.
    pub(super) without_cached: bool,
    /// Valid sectors of the merged block.
    pub(super) mask: u8,
    /// Of a read: it was counted as a hit or miss.
    pub(super) counted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DirectStage {
    Intent,
    /// Until all clean marks in the log are durable.
    Settling,
    Merging,
    Writing,
    Flushing,
    Dropping,
    /// Until the drop marks are durable.
    Sealing,
    Copying,
}

#[derive(Debug)]
pub(super) struct Direct {
    pub(super) req: u32,
    pub(super) volume: VolumeId,
    pub(super) from: u64,
    pub(super) to: u64,
    /// A range to zero instead of data to write.
    pub(super) zero: bool,
    /// The bytes that are processed now: the whole range, but a large range to zero takes several
    /// steps.
    pub(super) step: (u64, u64),
    pub(super) stage: DirectStage,
    pub(super) pending: u32,
    pub(super) failed: bool,
    pub(super) locked: bool,
    pub(super) over_dirty: bool,
    /// Blocks that were merged to whole ones.
    pub(super) merged: Vec<(u64, Page)>,
    /// Slots of the appended clean copies.
    pub(super) copies: Vec<u32>,
}

impl Direct {
    pub(super) fn blocks(&self) -> BlockRange {
        self.blocks_of(self.from, self.to)
    }

    /// True if the part has written to the backing store, and has not waited for a flush since.
    pub(super) fn is_unflushed(&self) -> bool {
        match self.stage {
            DirectStage::Intent => false,
            DirectStage::Settling | DirectStage::Merging => self.step.0 > self.from,
            DirectStage::Writing | DirectStage::Flushing => true,
            DirectStage::Dropping | DirectStage::Sealing | DirectStage::Copying => false,
        }
    }

    /// Blocks of the current step.
    pub(super) fn step_blocks(&self) -> BlockRange {
        self.blocks_of(self.step.0, self.step.1)
    }

    fn blocks_of(&self, from: u64, to: u64) -> BlockRange {
        BlockRange {
            first: Key::new(self.volume, from / BLOCK),
            last: Key::new(self.volume, (to - 1) / BLOCK),
        }
    }

    pub(super) fn regions(&self) -> core::ops::RangeInclusive<u64> {
        let blocks = self.blocks();
        blocks.first.block() / INTENT_REGION_BLOCKS..=blocks.last.block() / INTENT_REGION_BLOCKS
    }
}

/// Requests in flight: a part of the engine.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(super) merges: Slab<Merge>,
    /// Merges that wait for pages.
    pub(super) merge_queue: VecDeque<u32>,
    pub(super) directs: Slab<Direct>,
    pub(super) throttle: Throttle,
    pub(super) admission: AdmissionMemory,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            merges: Slab::new(),
            merge_queue: VecDeque::new(),
            directs: Slab::new(),
            throttle: Throttle::new(),
            admission: AdmissionMemory::new(),
        }
    }
}
