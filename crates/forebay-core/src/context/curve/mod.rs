//! The miss-ratio curve: what caches of other sizes would miss, with the policy that runs.
//!
//! For each size there is a cache in miniature ([`Miniature`]) that sees a sample of the blocks,
//! chosen by hash: a miniature of a hundredth of the cache that sees a hundredth of the blocks
//! misses as the cache does (Waldspurger and others, "Cache Modeling and Optimization using
//! Miniature Simulations", USENIX ATC 2017). All miniatures have at most [`SLOTS_MAX`] slots, so a
//! larger cache has a smaller sample. A few blocks that are used very often make a sample too large
//! or too small; they are hits in any cache, so misses are divided by the reads that a sample of
//! this rate should have (the adjustment of SHARDS, Waldspurger and others, FAST 2015).
//!
//! Memory: at most 1 MiB, and 3 KiB for each volume that was read. Time: a multiplication for each
//! block that is used, and what a miniature does for one of the sample.
//!
//! The curve is of what clients did since the start, or since the cache changed its size, an hour
//! at a time. What a miniature has not evicted from yet misses only what is read for the first
//! time: its point is an upper bound of what that size would miss.

mod miniature;

use crate::api::curve::{CURVE_EIGHTHS, CURVE_POINTS, CurvePoint, MissRatioCurve};
use crate::api::settings::Treatment;
use crate::api::{Nanos, RequestKind};
use crate::context::Context;
use crate::map::index::hash;
use crate::map::segment::Key;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;
use miniature::{Miniature, Rules, Use};

/// Slots of the largest miniature.
const SLOTS_MAX: u64 = 3072;
/// A sample is one block in so many at most, unless the miniature has fewer slots than
/// [`SLOTS_ALWAYS`] then: of a small cache a larger sample would cost more time than it is worth.
const SAMPLE_ONE_IN: u64 = 16;
const SLOTS_ALWAYS: u64 = 512;
/// All blocks, as rates are counted.
const ALL: u64 = 1 << 32;
/// Blocks of a request that are modelled. Only a discard or zeroes past the cache have more: what
/// lies behind stays in miniatures until its turn comes, and no call takes longer than some tenths
/// of a millisecond.
const MODELLED_MAX: u64 = 1 << 16;
/// What streams have open and have not written yet, in segments: three are half full.
const OPEN_SEGMENTS: u64 = 2;
/// Counts are kept of so many hours.
const HOURS: usize = 24;
const HOUR_NS: u64 = 3_600_000_000_000;

/// The cache in miniature, of one size.
#[derive(Debug)]
struct Scaled {
    /// Blocks whose hash is below are in the sample, of [`ALL`].
    rate: u64,
    miniature: Miniature,
}

/// Counts of a volume in one hour.
#[derive(Clone, Copy, Debug, Default)]
struct Hour {
    number: u64,
    reads: u64,
    /// Reads of the sample of each size, and those that missed.
    sampled: [(u32, u32); CURVE_POINTS],
}

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Curve {
    /// Blocks that the cache can hold; the miniatures were made for it.
    capacity: u64,
    since: Nanos,
    /// The largest rate.
    limit: u64,
    sizes: Vec<Scaled>,
    /// By volume, the last hours.
    hours: Vec<Option<Box<[Hour; HOURS]>>>,
}

/// Where a block is in the order of samples, and how miniatures know it: two halves of a hash.
#[inline]
fn sample(key: Key) -> (u64, u32) {
    let mixed = hash(key);
    (mixed >> 32, mixed as u32)
}

impl Curve {
    pub(crate) fn new() -> Self {
        let mut hours = Vec::new();
        hours.resize_with(VOLUMES_MAX as usize, || None);
        Self { capacity: 0, since: 0, limit: 0, sizes: Vec::new(), hours }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let hours = self.hours.iter().flatten().count() * size_of::<[Hour; HOURS]>();
        self.sizes.iter().map(|size| size.miniature.bytes()).sum::<usize>() + hours
    }

    /// The number of a volume has become free. Its blocks give way by themselves.
    pub(crate) fn volume_gone(&mut self, id: VolumeId) {
        self.hours[usize::from(id.0)] = None;
    }

    /// Makes the miniatures, unless they are of this capacity.
    fn fit(&mut self, capacity: u64, now: Nanos) {
        if self.capacity == capacity {
            return;
        }
        self.capacity = capacity;
        self.since = now;
        self.hours.iter_mut().for_each(|hours| *hours = None);
        let scaled = |eighths: &u64| {
            let blocks = (capacity * eighths / 8).max(1);
            let slots = (blocks / SAMPLE_ONE_IN).clamp(SLOTS_ALWAYS, SLOTS_MAX).min(blocks);
            Scaled { rate: ALL * slots / blocks, miniature: Miniature::new(slots as u32) }
        };
        self.sizes = CURVE_EIGHTHS.iter().map(scaled).collect();
        self.limit = self.sizes.iter().map(|size| size.rate).max().unwrap_or(0);
    }

    fn hour(&mut self, volume: VolumeId, now: Nanos) -> &mut Hour {
        let number = now / HOUR_NS;
        let hours =
            self.hours[usize::from(volume.0)].get_or_insert_with(|| Box::new([Hour::default(); HOURS]));
        let hour = &mut hours[number as usize % HOURS];
        if hour.number != number {
            *hour = Hour { number, ..Hour::default() };
        }
        hour
    }

    /// A block is used. `counts`: as a read of this volume.
    fn note(&mut self, now: Nanos, block: (u64, u32), rules: &Rules, what: Use, counts: Option<VolumeId>) {
        let (order, print) = block;
        let mut missed = [None; CURVE_POINTS];
        for (size, missed) in self.sizes.iter_mut().zip(&mut missed).filter(|(size, _)| order < size.rate) {
            *missed = Some(!size.miniature.access(rules, print, what));
        }
        if let Some(volume) = counts {
            for ((reads, misses), missed) in self.hour(volume, now).sampled.iter_mut().zip(missed) {
                *reads = reads.saturating_add(u32::from(missed.is_some()));
                *misses = misses.saturating_add(u32::from(missed == Some(true)));
            }
        }
    }

    /// A block of the sample has been written back.
    fn cleaned(&mut self, (order, print): (u64, u32), by_level: bool) {
        for size in self.sizes.iter_mut().filter(|size| order < size.rate) {
            size.miniature.cleaned(print, by_level);
        }
    }

    /// What caches of other sizes would have missed in the last `hours` full hours and this one.
    pub(crate) fn report(&self, volume: Option<VolumeId>, hours: u64, now: Nanos) -> MissRatioCurve {
        let first = (now / HOUR_NS).saturating_sub(hours.min(HOURS as u64 - 1));
        let asked = |(id, _): &(usize, _)| volume.is_none_or(|volume| usize::from(volume.0) == *id);
        let volumes = self.hours.iter().enumerate().filter(asked).filter_map(|(_, hours)| hours.as_ref());
        let of_time = volumes.flat_map(|hours| hours.iter()).filter(|hour| hour.number >= first);
        let mut curve = MissRatioCurve {
            since: self.since.max(first * HOUR_NS),
            read_blocks: 0,
            points: Vec::with_capacity(CURVE_POINTS),
        };
        let mut sampled = [(0_u64, 0_u64); CURVE_POINTS];
        for hour in of_time {
            curve.read_blocks += hour.reads;
            for (all, of_hour) in sampled.iter_mut().zip(&hour.sampled) {
                *all = (all.0 + u64::from(of_hour.0), all.1 + u64::from(of_hour.1));
            }
        }
        for ((size, eighths), (reads, misses)) in self.sizes.iter().zip(CURVE_EIGHTHS).zip(sampled) {
            curve.points.push(CurvePoint {
                eighths,
                sampled_blocks: reads,
                sampled_miss_blocks: misses,
                expected_sample_blocks: (u128::from(curve.read_blocks) * u128::from(size.rate)
                    / u128::from(ALL)) as u64,
                is_upper_bound: !size.miniature.has_evicted,
            });
        }
        curve
    }
}

impl Context {
    /// Destage of a volume goes by its dirty level, and so much of the pool is dirty, in
    /// thousandths.
    fn dirty_share(&self, volume: VolumeId) -> Option<u32> {
        let settings = &self.volumes.get(usize::from(volume.0))?.as_ref()?.settings;
        let (map, space) = (&self.map.volumes[usize::from(volume.0)], self.space().max(1));
        let low = space * u64::from(settings.dirty_low_pct) / 100;
        let is_above = map.dirty + map.destaged >= low;
        is_above.then(|| (self.map.unclean_blocks() * 1000 / space).min(1000) as u32)
    }

    /// Slots that are written, in thousandths: all but those of segments that are empty or open.
    fn room_permille(&self) -> u32 {
        let segments = u64::from(self.segments_staying()).max(1);
        let sealed = segments.saturating_sub(u64::from(self.free.window_size) + OPEN_SEGMENTS);
        (sealed * 1000 / segments) as u32
    }

    fn rules(&self, volume: VolumeId) -> Rules {
        let settings = self.volumes.get(usize::from(volume.0)).and_then(|volume| volume.as_ref());
        let settings = settings.map(|volume| volume.settings).unwrap_or_default();
        let dirty_share = self.dirty_share(volume);
        let limit_pct = self.config.pool.dirty_limit_pct.min(settings.dirty_high_pct);
        Rules {
            policy: self.config.pool.reclaim_policy,
            survivors_max_pct: self.survivors_max_pct(),
            room_permille: self.room_permille(),
            headers_permille: self.devices_written.headers_permille().min(1000),
            by_level: dirty_share.is_some(),
            dirty_max_permille: dirty_share.unwrap_or(limit_pct * 10),
            returns_survive: self.mirror.is_none(),
            admission: settings.admission,
            restraint: self.restraint(),
            priority: settings.priority,
        }
    }

    /// A client uses the blocks of a request that begins now.
    #[inline]
    pub(crate) fn model_use(&mut self, req: u32) {
        let request = self.reqs.get(req);
        let wanted = matches!(request.treatment, Treatment::Pin | Treatment::WriteThrough);
        let what = match request.kind {
            RequestKind::Flush => return,
            RequestKind::Read | RequestKind::Prefetch if !self.may_fill(req) => return,
            RequestKind::Read => Use::Read { wanted },
            RequestKind::Prefetch => Use::Read { wanted: true },
            _ if self.runs_without_cache() => return,
            RequestKind::Write { .. } if request.write_back => Use::WriteBack,
            RequestKind::Write { .. } if request.copies => Use::WriteThrough { wanted },
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. }
                if request.write_back && !self.zeroes_go_direct(req) =>
            {
                Use::WriteBack
            }
            _ => Use::WritePast,
        };
        let (volume, counts) = (request.volume, request.kind == RequestKind::Read);
        let (first, last) = (request.first_block, request.last_block);
        self.curve.fit(self.space(), self.now);
        if counts {
            self.curve.hour(volume, self.now).reads += last - first + 1;
        }
        let mut rules = None;
        let first_key = self.ghosts.remembered(Key::new(volume, first)).0;
        for key in first_key..=first_key + (last - first).min(MODELLED_MAX - 1) {
            let (order, print) = sample(Key(key));
            if order < self.curve.limit {
                let rules = *rules.get_or_insert_with(|| self.rules(volume));
                self.curve.note(self.now, (order, print), &rules, what, counts.then_some(volume));
            }
        }
    }

    /// The block in a slot has been written back.
    #[inline]
    pub(crate) fn model_cleaned(&mut self, slot: u32) {
        let key = self.map.key(slot);
        let sampled = sample(self.ghosts.remembered(key));
        if sampled.0 < self.curve.limit {
            let by_level = self.dirty_share(key.volume()).is_some();
            self.curve.cleaned(sampled, by_level);
        }
    }
}
