//! Write intents of a volume: where the backing store is, or was, written past the cache (I10).

use crate::api::Nanos;
use alloc::collections::BTreeMap;

/// Write intents of a volume, by region.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    pub(crate) regions: BTreeMap<u64, Region>,
    /// Regions whose intent has ended, see [`Region::has_ended`]: every settling asks for it.
    pub(crate) ended: usize,
    pub(crate) last_write: Nanos,
}

impl Intents {
    /// The backing store has been flushed.
    pub(crate) fn flushed(&mut self, succeeded: u64) {
        self.ended = self.count_ended(succeeded);
    }

    pub(crate) fn count_ended(&self, succeeded: u64) -> usize {
        self.regions.values().filter(|region| region.has_ended(succeeded)).count()
    }

    /// The intent of each of these regions is durable on the cache.
    pub(crate) fn are_durable(&self, mut regions: core::ops::RangeInclusive<u64>) -> bool {
        regions.all(|number| self.regions.get(&number).is_some_and(|region| region.durable))
    }

    /// A direct write begins in a region.
    pub(crate) fn enter(&mut self, number: u64, succeeded: u64) -> &mut Region {
        let region = self
            .regions
            .entry(number)
            .or_insert_with(|| Region { covered_by: u64::MAX, ..Region::default() });
        self.ended -= usize::from(region.has_ended(succeeded));
        region.active += 1;
        region
    }
}

#[derive(Debug, Default)]
pub(crate) struct Region {
    pub(crate) durable: bool,
    /// Direct writes under way.
    pub(crate) active: u32,
    /// The backing flush that covers those that ended.
    pub(crate) covered_by: u64,
}

impl Region {
    /// Nothing is under way, and the backing store was flushed since: a checkpoint can leave the
    /// intent out.
    pub(crate) fn has_ended(&self, succeeded: u64) -> bool {
        self.active == 0 && self.covered_by <= succeeded
    }
}
