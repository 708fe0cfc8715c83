//! Write intents of a volume: regions of the backing store that bypass writes change, or have
//! changed (I10).
//!
//! They are kept as runs of regions in the same state: a discard can have a petabyte, which is
//! sixteen million regions.

use crate::api::Nanos;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

/// Write intents of a volume.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    /// By the first region of each run. They do not overlap.
    runs: BTreeMap<u64, Run>,
    /// Regions whose intent has ended, see [`Region::has_ended`]: every settling reads it.
    pub(crate) ended: u64,
    pub(crate) last_write: Nanos,
}

/// Successive regions in one state.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The region behind the last one.
    end: u64,
    region: Region,
}

impl Intents {
    /// Keeps the intents that have not ended until the next start, after a failed flush of the
    /// backing store, which might have dropped writes. Reads return the dropped data until a loss
    /// of power, and a block that is cached meanwhile would return it afterwards, until it is
    /// evicted.
    pub(crate) fn keep(&mut self, succeeded: u64) {
        for run in self.runs.values_mut() {
            run.region.stays |= !run.region.has_ended(succeeded);
        }
    }

    /// Returns true if some intents are kept.
    pub(crate) fn any_kept(&self) -> bool {
        self.runs.values().any(|run| run.region.stays)
    }

    /// Notes a flush of the backing store.
    pub(crate) fn flushed(&mut self, succeeded: u64) {
        self.ended = self.count_ended(succeeded);
    }

    pub(crate) fn count_ended(&self, succeeded: u64) -> u64 {
        let ended = self.runs.iter().filter(|(_, run)| run.region.has_ended(succeeded));
        ended.map(|(first, run)| run.end - first).sum()
    }

    /// Returns true if the intent of each of these regions is durable on the cache.
    pub(crate) fn are_durable(&self, regions: RangeInclusive<u64>) -> bool {
        let (mut at, until) = (*regions.start(), *regions.end() + 1);
        let before = self.runs.range(..=at).next_back();
        for (first, run) in before.into_iter().chain(self.runs.range(at + 1..until)) {
            if *first > at || run.end <= at || !run.region.durable {
                break;
            }
            at = run.end;
        }
        at >= until
    }

    /// Begins a bypass write in these regions. Returns true if the intent of each is durable
    /// already.
    pub(crate) fn enter(&mut self, regions: RangeInclusive<u64>, succeeded: u64) -> bool {
        let (from, until) = (*regions.start(), *regions.end() + 1);
        // The common case: a write within one region.
        if let Some(run) = self.runs.get_mut(&from).filter(|run| run.end == until) {
            if run.region.has_ended(succeeded) {
                self.ended -= until - from;
            }
            run.region.active += 1;
            return run.region.durable;
        }
        self.split(from);
        self.split(until);
        for gap in self.gaps(from..until) {
            let region = Region { covered_by: u64::MAX, ..Region::default() };
            self.runs.insert(gap.start, Run { end: gap.end, region });
        }
        let mut durable = true;
        for (first, run) in self.runs.range_mut(from..until) {
            if run.region.has_ended(succeeded) {
                self.ended -= run.end - first;
            }
            run.region.active += 1;
            durable &= run.region.durable;
        }
        durable
    }

    /// Returns the ranges of `within` that have no intent.
    fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), within.start);
        for (first, run) in self.runs.range(within.clone()) {
            if at < *first {
                gaps.push(at..*first);
            }
            at = run.end;
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// Returns the states of the regions with an intent, once for each run of regions in the same
    /// state.
    pub(crate) fn states_mut(&mut self, regions: RangeInclusive<u64>) -> impl Iterator<Item = &mut Region> {
        let (from, until) = (*regions.start(), *regions.end() + 1);
        if self.runs.get(&from).is_none_or(|run| run.end != until) {
            self.split(from);
            self.split(until);
        }
        self.runs.range_mut(from..until).map(|(_, run)| &mut run.region)
    }

    /// Forgets the intents that have ended.
    pub(crate) fn forget_ended(&mut self, succeeded: u64) {
        self.ended = 0;
        for (first, run) in core::mem::take(&mut self.runs) {
            if run.region.has_ended(succeeded) {
                continue;
            }
            match self.runs.last_entry() {
                Some(mut last) if last.get().end == first && last.get().region == run.region => {
                    last.get_mut().end = run.end;
                }
                _ => drop(self.runs.insert(first, run)),
            }
        }
    }

    /// Returns the regions with an intent, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|(first, run)| *first..run.end)
    }

    /// Splits the run that extends across the beginning of this region.
    fn split(&mut self, at: u64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let behind = *run;
            run.end = at;
            self.runs.insert(at, behind);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Region {
    pub(crate) durable: bool,
    /// Bypass writes in flight.
    pub(crate) active: u32,
    /// The backing flush that covers those that have ended.
    pub(crate) covered_by: u64,
    /// See [`Intents::keep`].
    pub(crate) stays: bool,
}

impl Region {
    /// Returns true if no write is in flight, and the backing store was flushed since: a checkpoint
    /// can omit the intent.
    pub(crate) fn has_ended(&self, succeeded: u64) -> bool {
        !self.stays && self.active == 0 && self.covered_by <= succeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, region by region.
    #[derive(Default)]
    struct Model(BTreeMap<u64, Region>);

    impl Model {
        fn enter(&mut self, regions: RangeInclusive<u64>) -> bool {
            let mut durable = true;
            for number in regions {
                let new = Region { covered_by: u64::MAX, ..Region::default() };
                let region = self.0.entry(number).or_insert(new);
                region.active += 1;
                durable &= region.durable;
            }
            durable
        }

        fn are_durable(&self, mut regions: RangeInclusive<u64>) -> bool {
            regions.all(|number| self.0.get(&number).is_some_and(|region| region.durable))
        }
    }

    #[test]
    fn runs_agree_with_single_regions() {
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for _ in 0..200 {
            let (mut intents, mut model) = (Intents::default(), Model::default());
            let (mut open, mut succeeded) = (Vec::<RangeInclusive<u64>>::new(), 0);
            for step in 0..200_u64 {
                let from = below(24);
                let regions = from..=from + below(8);
                match below(if step > 100 { 7 } else { 6 }) {
                    0 | 1 => {
                        let durable = intents.enter(regions.clone(), succeeded);
                        assert_eq!(durable, model.enter(regions.clone()));
                        open.push(regions.clone());
                    }
                    2 if !open.is_empty() => {
                        let regions = open[below(open.len() as u64) as usize].clone();
                        intents.states_mut(regions.clone()).for_each(|region| region.durable = true);
                        model.0.range_mut(regions).for_each(|(_, region)| region.durable = true);
                    }
                    3 if !open.is_empty() => {
                        let regions = open.swap_remove(below(open.len() as u64) as usize);
                        let end = |region: &mut Region| {
                            region.active -= 1;
                            region.covered_by = step;
                        };
                        intents.states_mut(regions.clone()).for_each(end);
                        model.0.range_mut(regions).for_each(|(_, region)| end(region));
                    }
                    4 => {
                        succeeded = step;
                        intents.flushed(succeeded);
                    }
                    5 => {
                        intents.forget_ended(succeeded);
                        model.0.retain(|_, region| !region.has_ended(succeeded));
                    }
                    6 => {
                        intents.keep(succeeded);
                        model.0.values_mut().for_each(|region| region.stays |= !region.has_ended(succeeded));
                    }
                    _ => {}
                }
                let ended = model.0.values().filter(|region| region.has_ended(succeeded)).count() as u64;
                assert_eq!((intents.ended, intents.count_ended(succeeded)), (ended, ended));
                assert!(intents.ranges().flatten().eq(model.0.keys().copied()));
                for (first, run) in &intents.runs {
                    assert!((*first..run.end).all(|number| model.0[&number] == run.region));
                }
                assert_eq!(intents.are_durable(regions.clone()), model.are_durable(regions));
            }
        }
    }

    #[test]
    fn whole_petabyte_needs_one_intent_run() {
        let mut intents = Intents::default();
        let all = 0..=(1 << 24) - 1;
        assert!(!intents.enter(all.clone(), 0));
        intents.states_mut(all.clone()).for_each(|region| region.durable = true);
        assert!(intents.are_durable(all.clone()) && intents.enter(7..=8, 0));
        let end = |region: &mut Region| {
            region.active -= 1;
            region.covered_by = 1;
        };
        intents.states_mut(7..=8).for_each(end);
        assert_eq!(intents.runs.len(), 3);
        intents.states_mut(all).for_each(end);
        intents.forget_ended(0);
        assert!(intents.ranges().eq(core::iter::once(0..1 << 24)));
        intents.flushed(1);
        assert_eq!(intents.ended, 1 << 24);
        intents.forget_ended(1);
        assert_eq!((intents.ended, intents.runs.len()), (0, 0));
    }
}
