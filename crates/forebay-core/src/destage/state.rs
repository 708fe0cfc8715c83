//! The state that destage keeps of a volume.

use crate::api::Nanos;
use crate::destage::cost::Cost;
use crate::destage::rate_controller::RateController;
use alloc::vec::Vec;

/// What was written is made durable after this time at the latest, if nothing else calls for a
/// flush.
pub(super) const FLUSH_DELAY_NS: Nanos = 1_000_000_000;

/// Where the walk by age of a volume is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DestageWalk {
    /// Age (sequence of the first batch) and number of the segment, and the next slot in it.
    pub(super) segment: (u64, u32),
    pub(super) slot: u32,
    /// In this pass blocks that were read are taken too (lru).
    pub(super) takes_hits: bool,
}

/// Destage of one volume.
#[derive(Debug, Default)]
pub(crate) struct Destage {
    /// Where the elevator is.
    pub(crate) cursor: u64,
    /// Where the walk by age is.
    pub(crate) walk: DestageWalk,
    /// How fast it goes.
    pub(crate) rate: RateController,
    /// What the backing store takes for an operation.
    pub(crate) cost: Cost,
    /// Extents started.
    pub(crate) started: u64,
    /// Until then gaps are not filled: one could not be read.
    pub(crate) fill_pause_until: Nanos,
    /// Extents being read or written.
    pub(super) in_flight: u32,
    /// Pages that they hold.
    pub(super) pages_held: u32,
    /// Extents on the backing store that no flush covers.
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

    /// When blocks that were written must be made durable, if nothing happens before.
    pub(crate) fn flush_deadline(&self) -> Option<Nanos> {
        let due = self.written_since.saturating_add(FLUSH_DELAY_NS).max(self.rate.backoff_until());
        (!self.written.is_empty()).then_some(due)
    }
    /// Extents are being written, or wait for a flush.
    pub(crate) fn is_under_way(&self) -> bool {
        self.in_flight > 0 || !self.written.is_empty() || !self.flushing.is_empty()
    }
}
