//! Per-volume state of destage.

use crate::api::Nanos;
use crate::destage::cost::Cost;
use crate::destage::rate_controller::RateController;
use alloc::vec::Vec;

/// Longest time from the first unflushed destage write to the flush of the backing store.
pub(super) const FLUSH_DELAY_NS: Nanos = 1_000_000_000;

/// Position of a volume's walk by age.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DestageWalk {
    /// Age (sequence of the first batch) and number of the segment, and the next slot in it.
    pub(super) segment: (u64, u32),
    pub(super) slot: u32,
    /// This pass takes blocks that were read, too (lru).
    pub(super) takes_hits: bool,
}

/// Destage of one volume.
#[derive(Debug, Default)]
pub(crate) struct Destage {
    /// Position of the elevator.
    pub(crate) cursor: u64,
    /// Position of the walk by age.
    pub(crate) walk: DestageWalk,
    /// Rate and concurrency.
    pub(crate) rate: RateController,
    /// Cost of an operation on the backing store.
    pub(crate) cost: Cost,
    /// Extents started.
    pub(crate) started: u64,
    /// Until then destage fills no gaps: one could not be read.
    pub(crate) fill_pause_until: Nanos,
    /// Extents being read or written.
    pub(super) in_flight: u32,
    /// Pages that they hold.
    pub(super) pages_held: u32,
    /// Extents written to the backing store that no flush covers.
    pub(crate) written: Vec<u32>,
    pub(super) written_blocks: u64,
    /// When the first of them was written.
    pub(super) written_since: Nanos,
    /// Extents that the running flush covers.
    pub(crate) flushing: Vec<u32>,
}

impl Destage {
    /// Extents being read or written.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// When destage must flush the backing store, if it has not done so before.
    pub(crate) fn flush_deadline(&self) -> Option<Nanos> {
        let due = self.written_since.saturating_add(FLUSH_DELAY_NS).max(self.rate.backoff_until());
        (!self.written.is_empty()).then_some(due)
    }
    /// Returns true if extents are in flight, or wait for a flush.
    pub(crate) fn is_under_way(&self) -> bool {
        self.in_flight > 0 || !self.written.is_empty() || !self.flushing.is_empty()
    }
}
