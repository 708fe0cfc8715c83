//! The miss-ratio curve: misses of other cache sizes under the current policy.
//!
//! For each size there is a cache in miniature ([`Miniature`]) that sees a sample of the blocks,
//! chosen by hash: a miniature of a hundredth of the cache that sees a hundredth of the blocks
//! misses as the cache does (Waldspurger and others, "Cache Modeling and Optimization using
//! Miniature Simulations", USENIX ATC 2017). All miniatures have at most [`SLOTS_MAX`] slots, so a
//! larger cache has a smaller sample. A few very hot blocks make a sample too large or too small;
//! they are hits in any cache, so misses are divided by the number of reads expected at this
//! sampling rate (the adjustment of SHARDS, Waldspurger and others, FAST 2015).
//!
//! Memory: at most 1 MiB, and 3 KiB for each volume that was read. Time: a multiplication for each
//! block that is used, and the work of a miniature for one of the sample.
//!
//! The curve covers client requests since the start, or since the cache was resized, in steps of an
//! hour. A miniature that has not evicted yet misses only first reads: its point is an upper bound
//! of the misses of that size.

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
/// A sample is at most one block in so many, unless the miniature would have fewer slots than
/// [`SLOTS_ALWAYS`]: a larger sample of a small cache would cost more time than it is worth.
const SAMPLE_ONE_IN: u64 = 16;
const SLOTS_ALWAYS: u64 = 512;
/// The unit of sampling rates: all blocks.
const ALL: u64 = 1 << 32;
/// Blocks of a request that are modelled. Only a discard or zeroes that bypass the cache have more:
/// blocks beyond stay in the miniatures until they are evicted, and no call takes longer than some
/// tenths of a millisecond.
const MODELLED_MAX: u64 = 1 << 16;
/// Space in open segments that is not written yet, in segments: three are half full.
const OPEN_SEGMENTS: u64 = 2;
/// Hours for which counts are kept.
const HOURS: usize = 24;
const HOUR_NS: u64 = 3_600_000_000_000;

/// The miniature of one size.
#[derive(Debug)]
struct Scaled {
    /// The sample has the blocks whose hash is below this, of [`ALL`].
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

#[derive(Debug)]
pub(crate) struct Curve {
    /// Capacity in blocks for which the miniatures were built.
    capacity: u64,
    since: Nanos,
    /// The largest rate.
    limit: u64,
    sizes: Vec<Scaled>,
    /// By volume, the last hours.
    hours: Vec<Option<Box<[Hour; HOURS]>>>,
}

/// Returns the two halves of a block's hash: its position in the order of samples, and its
/// fingerprint in miniatures.
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

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let hours = self.hours.iter().flatten().count() * size_of::<[Hour; HOURS]>();
        self.sizes.iter().map(|size| size.miniature.bytes()).sum::<usize>() + hours
    }

    /// Notes that the number of a volume was freed. Its blocks are evicted in time.
    pub(crate) fn volume_gone(&mut self, id: VolumeId) {
        self.hours[usize::from(id.0)] = None;
    }

    /// Builds the miniatures for this capacity, unless they exist.
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

    /// Notes the use of a block. `counts`: as a read of this volume.
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

    /// Notes that destage has written back a block of the sample.
    fn cleaned(&mut self, (order, print): (u64, u32), by_level: bool) {
        for size in self.sizes.iter_mut().filter(|size| order < size.rate) {
            size.miniature.cleaned(print, by_level);
        }
    }

    /// Returns the misses of other cache sizes in the last `hours` full hours and the current one.
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
    /// Returns the dirty share of the pool, in thousandths, if destage of the volume depends on its
    /// dirty level.
    fn dirty_share(&self, volume: VolumeId) -> Option<u32> {
        let settings = &self.volumes.get(volume)?.settings;
        let (map, space) = (&self.map.volumes[usize::from(volume.0)], self.space().max(1));
        let low = space * u64::from(settings.dirty_low_pct) / 100;
        let is_above = map.dirty + map.destaged >= low;
        is_above.then(|| (self.map.unclean_blocks() * 1000 / space).min(1000) as u32)
    }

    /// Returns the share of slots that are written, in thousandths: all but those of empty or open
    /// segments.
    fn room_permille(&self) -> u32 {
        let segments = u64::from(self.segments_staying()).max(1);
        let sealed = segments.saturating_sub(u64::from(self.free.window_size) + OPEN_SEGMENTS);
        (sealed * 1000 / segments) as u32
    }

    fn rules(&self, volume: VolumeId) -> Rules {
        let settings = self.volumes.get(volume);
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
            returns_survive: !self.members.is_mirrored(),
            admission: settings.admission,
            restraint: self.restraint(),
            priority: settings.priority,
        }
    }

    /// Models the use of the blocks of a request that begins now.
    #[inline]
    pub(crate) fn model_use(&mut self, req: u32) {
        let request = self.reqs.get(req);
        let wanted = matches!(request.treatment, Treatment::Pin | Treatment::WriteThrough);
        let what = match request.kind {
            RequestKind::Flush => return,
            RequestKind::Read | RequestKind::Prefetch if !self.may_fill(req) => return,
            RequestKind::Read => Use::Read { wanted },
            RequestKind::Prefetch => Use::Read { wanted: true },
            _ if self.failure.runs_without_cache() => return,
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

    /// Models the destage of the block in a slot.
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
