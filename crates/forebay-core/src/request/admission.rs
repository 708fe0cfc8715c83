//! Admission: which misses enter the cache, sequential bypass, and pins.
//!
//! **Admission** concerns clean copies: read fills, and the copies that write-through makes. Writes
//! in a write-back mode always enter. With `SecondAccess` a block enters if it was recently missed
//! or evicted; a write-through copy also if it replaces one. With `Treatment::Pin`,
//! `Treatment::WriteThrough` (for its copy) and a prefetch, a block enters at its first access. An
//! endurance budget makes `Always` require a second access, or admits nothing
//! (`context::endurance`).
//!
//! **Sequential bypass.** A request of a stream that has passed the threshold (`sequential`) is
//! treated as `Treatment::Bypass`: reads hit the cache where it has the data and do not fill it,
//! writes go to the backing store at once. FlashCache and bcache do the same in write-back mode
//! too, since disks handle long streams well. A write over dirty blocks stays on the normal path: a
//! bypass write would have to wait for a flush of the backing store and a drop mark. So does a
//! write to an ordered volume while it has unclean blocks: a bypass write would have to wait for
//! those.
//!
//! **Pins** are a flag of a slot: they move with the block when reclaim relocates it and end with
//! its content (I26). At most half of the pool is pinned; beyond that, or above the volume's
//! maximum share, a pin counts as a hit. A restart forgets them; the next access under the rule
//! pins again.

use crate::api::endurance::Restraint;
use crate::api::settings::{Admission, Treatment};
use crate::api::{Request, RequestKind};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::sectors::BLOCK;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::recent::Recent;
use crate::map::segment::{BlockState, Key};
use crate::reclaim::FILL_RESERVE;
use crate::request::sequential::SequentialDetector;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::{StreamKind, VolumeId};

/// State of admission. Lost with the process: it affects only hit rates, never correctness.
#[derive(Debug)]
pub(crate) struct AdmissionMemory {
    /// Blocks that were recently missed and not admitted.
    missed: Option<Recent>,
    /// Streams of reads and of writes, by volume; allocated once a volume has a threshold.
    sequential: Vec<Option<Box<[SequentialDetector; 2]>>>,
}

impl AdmissionMemory {
    pub(crate) fn new() -> Self {
        let mut sequential = Vec::new();
        sequential.resize_with(VOLUMES_MAX as usize, || None);
        Self { missed: None, sequential }
    }

    /// Bytes allocated for recent misses and streams.
    pub(crate) fn bytes(&self) -> usize {
        let sequential = self.sequential.iter().flatten().count() * size_of::<[SequentialDetector; 2]>();
        self.missed.as_ref().map_or(0, Recent::bytes) + sequential
    }

    /// A volume was detached.
    pub(crate) fn forget_volume(&mut self, id: VolumeId) {
        self.sequential[usize::from(id.0)] = None;
    }
}

impl CacheMap {
    /// True if a bypass write would have to wait until earlier flush epochs are destaged.
    fn waits_for_order(&self, volume: VolumeId) -> bool {
        let map = &self.volumes[usize::from(volume.0)];
        map.waiting.order.is_some() && map.dirty + map.destaged > 0
    }

    /// True if a block of the range is dirty or destaged.
    fn is_over_dirty(&self, request: &Request<'_>) -> bool {
        let (first, last) = (request.offset / BLOCK, (request.offset + request.len - 1) / BLOCK);
        (first..=last).any(|block| {
            let slot = self.lookup(Key::new(request.volume, block));
            slot.is_some_and(|slot| self.state(slot) != BlockState::Clean)
        })
    }
}

impl Context {
    /// Pins a live slot, or treats it as hit if enough is pinned.
    pub(crate) fn pin_block(&mut self, slot: u32) {
        let volume = self.map.key(slot).volume();
        let room = self.map.pinned_blocks() * 2 < self.data_capacity() && !self.is_above_maximum(volume);
        if room || fault::planted(PlantedBug::KeepWithoutBound) {
            self.map.set_pinned(slot);
        } else {
            self.map.set_hit(slot);
        }
    }

    /// A slot has become live for this request: pins it if the request asks for that.
    pub(crate) fn pin_for(&mut self, treatment: Treatment, slot: u32) {
        if treatment == Treatment::Pin {
            self.pin_block(slot);
        }
    }

    /// A block enters the cache. True if it was evicted recently and has proved its use.
    #[inline]
    pub(crate) fn returns_to_cache(&mut self, key: Key) -> bool {
        let capacity = self.space();
        self.config.pool.reclaim_policy.returns(&mut self.ghosts, key, capacity)
    }

    /// The stream for a fill: directly to the survivors if the block was recently evicted and there
    /// is room (the last segments of the window belong to reclaim).
    pub(crate) fn stream_of_fill(&mut self, key: Key) -> StreamKind {
        let returns = self.returns_to_cache(key);
        let survivors = &self.log.streams[StreamKind::Survivor.index()];
        let room = self.free.window.len() > FILL_RESERVE
            || self.free.window.len() == FILL_RESERVE && survivors.room(self.batch_blocks()) > 1;
        if returns && room && !self.members.is_mirrored() {
            self.stats.readmitted_blocks += 1;
            StreamKind::Survivor
        } else {
            StreamKind::Fill
        }
    }
}

impl AdmissionMemory {
    /// Treatment of a request: as its rule says, unless it belongs to a long stream.
    pub(crate) fn treat(&mut self, cx: &mut Context, request: &Request<'_>) -> Treatment {
        if request.treatment != Treatment::Cache || !self.is_of_long_stream(cx, request) {
            return request.treatment;
        }
        match request.kind {
            RequestKind::Read => {
                cx.stats.sequential_bypassed_reads += 1;
                cx.counters.of(request.volume).sequential_bypassed_reads += 1;
            }
            _ if cx.map.is_over_dirty(request) || cx.map.waits_for_order(request.volume) => {
                return request.treatment;
            }
            _ => {
                cx.stats.sequential_bypassed_writes += 1;
                cx.counters.of(request.volume).sequential_bypassed_writes += 1;
            }
        }
        Treatment::Bypass
    }

    fn is_of_long_stream(&mut self, cx: &Context, request: &Request<'_>) -> bool {
        let direction = match request.kind {
            RequestKind::Read => 0,
            RequestKind::Write { .. } => 1,
            _ => return false,
        };
        let threshold = cx.volume(request.volume).settings.skip_sequential_bytes;
        let sequential = &mut self.sequential[usize::from(request.volume.0)];
        if threshold == 0 {
            *sequential = None;
            return false;
        }
        let sequential = sequential
            .get_or_insert_with(|| Box::new([SequentialDetector::new(), SequentialDetector::new()]));
        sequential[direction].note(request.offset, request.len, threshold)
    }

    /// True if a clean copy of this block may enter on behalf of this request.
    pub(crate) fn admits(&mut self, cx: &mut Context, req: u32, key: Key) -> bool {
        let request = cx.reqs.get(req);
        let wanted = matches!(request.treatment, Treatment::Pin | Treatment::WriteThrough)
            || request.kind == RequestKind::Prefetch;
        if cx.is_far_above_maximum(key.volume()) {
            return false;
        }
        let (admission, restraint) = (cx.volume(key.volume()).settings.admission, cx.restraint());
        match admission {
            _ if wanted && restraint != Restraint::All => return true,
            Admission::Always if restraint == Restraint::None => return true,
            Admission::Never if !wanted => return false,
            _ => {}
        }
        let known = cx.ghosts.knows(key);
        let (capacity, remembered) = (cx.space(), cx.ghosts.remembered(key));
        let missed = Recent::sized(&mut self.missed, capacity);
        let known = missed.take(remembered) || known;
        let admitted = known && restraint != Restraint::All;
        if !admitted {
            missed.note(remembered);
        }
        if !admitted && (wanted || admission == Admission::Always || known) {
            cx.coverage.add(CoverageMark::UnfilledForEndurance);
            cx.stats.endurance_unfilled_blocks += 1;
            cx.leave_out(key);
        }
        admitted
    }

    /// Returns the result of [`AdmissionMemory::admits`] without changing anything.
    pub(crate) fn would_admit(&self, cx: &Context, req: u32, key: Key) -> bool {
        let request = cx.reqs.get(req);
        let wanted = matches!(request.treatment, Treatment::Pin | Treatment::WriteThrough)
            || request.kind == RequestKind::Prefetch;
        if cx.is_far_above_maximum(key.volume()) {
            return false;
        }
        let known = || {
            let missed = |recent: &Recent| recent.contains(cx.ghosts.remembered(key));
            cx.ghosts.knows(key) || self.missed.as_ref().is_some_and(missed)
        };
        match (cx.volume(key.volume()).settings.admission, cx.restraint()) {
            (_, Restraint::All) => false,
            _ if wanted => true,
            (Admission::Never, _) => false,
            (Admission::SecondAccess, _) | (Admission::Always, Restraint::Some) => known(),
            (Admission::Always, Restraint::None) => true,
        }
    }

    /// A bypass write is about to replace a clean copy: the new copy enters at its first access.
    pub(crate) fn note_replaced(&mut self, cx: &Context, key: Key) {
        if cx.volume(key.volume()).settings.admission == Admission::SecondAccess {
            let (capacity, key) = (cx.space(), cx.ghosts.remembered(key));
            Recent::sized(&mut self.missed, capacity).note(key);
        }
    }
}
