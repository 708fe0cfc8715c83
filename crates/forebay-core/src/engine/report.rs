//! Status, statistics and reports of the engine.

use crate::api::config::CacheMark;
use crate::api::curve::MissRatioCurve;
use crate::api::destage::DestageReport;
use crate::api::endurance::EnduranceReport;
use crate::api::settings::{PoolSettings, VolumeSettings};
use crate::api::stats::Stats;
use crate::api::written::WrittenBytes;
use crate::api::{Nanos, OpId};
use crate::context::Status;
use crate::context::counters::VolumeStats;
use crate::context::coverage::CoverageMarks;
use crate::engine::Engine;
use crate::map::UNSETTLED_STATUS_MAX;
use crate::map::segment::Key;
use alloc::string::String;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, VolumeEntry};
use forebay_format::{Geometry, Members, VolumeId};

impl Engine {
    /// Current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.cx.status.clone()
    }

    /// Slots and segments examined since the start by the scans that can be long: of a range of
    /// blocks, for a victim of reclaim and in it, for a checkpoint, of the data at risk. For tests:
    /// the number that one call examines stands for its duration.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.cx.map.looked_at.get()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.cx.stats;
        stats.cached_blocks = self.cx.map.cached_blocks();
        stats.capacity_blocks = self.cx.capacity_of(self.cx.segments_staying());
        let policy = self.cx.config.pool.reclaim_policy;
        stats.probation_limit_blocks = policy.probation_limit(&self.cx.ghosts, stats.capacity_blocks);
        stats.dirty_blocks = self.cx.map.volumes.iter().map(|volume| volume.dirty).sum();
        stats.lost_blocks = self.cx.map.lost.len() as u64 + self.cx.failure.lost_blocks();
        stats.lost_bytes = self.cx.loss_totals().iter().map(|total| total.bytes).sum();
        stats.free_segments = self.cx.free.free_segments() as u64;
        stats.segments = u64::from(self.cx.members.segments_counted(self.cx.map.segments.len() as u32));
        stats.pinned_blocks = self.cx.map.pinned_blocks();
        stats.index_memory_bytes = (self.cx.map.memory_bytes()
            + self.requests.memory_bytes()
            + self.cx.ghosts.bytes()
            + self.cx.curve.bytes()
            + self.cx.endurance.bytes()) as u64;
        stats.requests_in_flight = self.cx.reqs.len() as u64;
        stats
    }

    /// Blocks of a volume that the backing store does not hold durably, including older versions
    /// that ordered destage still has to write. Excludes lost blocks.
    #[must_use]
    pub fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        self.cx.map.dirty_blocks(volume)
    }

    /// Reports the cached blocks of a range: calls `f(blocks, cached, dirty)` for runs of blocks
    /// with equal status, in order, until it returns false.
    pub fn block_status(
        &self,
        volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        use crate::map::segment::BlockState;
        let worth = |slot: u32| match self.cx.map.state(slot) {
            BlockState::Void => (false, false),
            BlockState::Clean | BlockState::Destaged => (!self.cx.failure.runs_without_cache(), false),
            BlockState::Dirty => (true, true),
        };
        let end = first_block + blocks;
        // While the index is not ready, one scan of all slots is faster than many lookups.
        let mut scanned = Vec::new();
        if self.cx.map.is_unsettled() && blocks > UNSETTLED_STATUS_MAX {
            scanned.resize(blocks as usize, (false, false));
            let mut note =
                |slot| scanned[(self.cx.map.key(slot).block() - first_block) as usize] = worth(slot);
            self.cx.map.scan_for_each_in(volume, first_block, end - 1, &mut note);
        }
        let what = |block: u64| match scanned.get((block - first_block) as usize) {
            Some(status) => *status,
            None => self.cx.map.lookup(Key::new(volume, block)).map_or((false, false), worth),
        };
        let mut start = first_block;
        while start < end {
            let status = what(start);
            let mut next = start + 1;
            while next < end && what(next) == status {
                next += 1;
            }
            if !f(next - start, status.0, status.1) {
                return;
            }
            start = next;
        }
    }

    /// Returns true if the cache device has failed and takes no more writes, see
    /// [`Engine::runs_without_cache`].
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.cx.failure.is_fenced()
    }

    /// Settings of the pool.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        self.cx.config.pool
    }

    /// Size of an attached volume in bytes; may be less than that of its backing store, see
    /// `Attachment`.
    #[must_use]
    pub fn volume_size_bytes(&self, volume: VolumeId) -> Option<u64> {
        self.cx.volumes.get(volume).map(|volume| volume.limit_bytes)
    }

    /// Settings of an attached volume.
    #[must_use]
    pub fn volume_settings(&self, volume: VolumeId) -> Option<VolumeSettings> {
        self.cx.volumes.settings(volume)
    }

    /// The volume table as the next checkpoint will have it, including volumes that are not
    /// attached.
    #[must_use]
    pub fn volume_table(&self) -> Vec<VolumeEntry> {
        self.checkpoint.table_to_write(&self.cx)
    }

    /// Summary of the engine's work in progress, in one line: for the report of a stall.
    #[must_use]
    pub fn describe(&self) -> String {
        let streams: Vec<String> =
            self.cx.log.streams.iter().map(|stream| stream.describe(self.cx.batch_blocks())).collect();
        alloc::format!(
            "{} requests, {} operations, {}, {} extents, {} relocations, {} marks, reclaim {:?}, fenced {}, {} fills, jobs {:?}, checkpoint: {}; streams {streams:?}; unclean {}, levels {:?}",
            self.cx.reqs.len(),
            self.cx.ops.len(),
            self.requests.describe(),
            self.destager.extents_len(),
            self.cx.log.moves,
            self.cx.log.marks.len(),
            self.reclaim,
            self.cx.failure.is_fenced(),
            self.cx.fills.len(),
            self.lifecycle,
            self.checkpoint.describe(),
            self.cx.map.unclean_blocks(),
            self.cx.volumes.iter().map(|volume| self.cx.levels(volume.id).pool).next(),
        ) + &self.cx.volumes.iter().fold(String::new(), |text, volume| {
            let (report, levels) = (self.destage_report(volume.id), self.cx.levels(volume.id).volume);
            let order = self
                .cx
                .map
                .order(volume.id)
                .map(|order| (order.phase, order.current, order.active, order.claimed));
            alloc::format!("{text}; volume {}: order {order:?}, levels {levels:?}, {report:?}", volume.id.0)
        })
    }

    /// Checks all invariants that can be verified from the present state. Slow.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        self.cx.map.check();
        self.cx.members.check(&self.cx.map);
        self.cx.fills.check();
        if self.quiesced {
            assert!(self.cx.pages.all_free(), "no page is lost");
        }
    }

    /// Counters and gauges of a volume; `None` if it is not attached.
    #[must_use]
    pub fn volume_stats(&self, volume: VolumeId) -> Option<VolumeStats> {
        self.cx.volumes.is_attached(volume).then(|| {
            let map = &self.cx.map.volumes[usize::from(volume.0)];
            VolumeStats {
                cached_blocks: map.cached,
                dirty_blocks: map.dirty,
                lost_blocks: self.cx.lost_blocks(volume),
                lost_bytes: self.lost_bytes(volume),
                pinned_blocks: map.pinned,
                ..self.cx.counters.get(volume)
            }
        })
    }

    /// Coverage marks: rare paths taken since the engine was opened.
    #[must_use]
    pub fn coverage(&self) -> CoverageMarks {
        self.cx.coverage
    }

    /// State and limit of a volume's destage; `None` if it is not attached.
    #[must_use]
    pub fn destage_report(&self, volume: VolumeId) -> Option<DestageReport> {
        self.cx.destage_report(volume)
    }

    /// Dirty blocks of a volume by age: below 1 s, 10 s, 1 min, 5 min, 15 min, 1 h, and more.
    /// Precise to a quarter of a second or 3 %, never too low; blocks that were dirty when the
    /// cache was opened count from then.
    #[must_use]
    pub fn dirty_ages(&self, volume: VolumeId) -> [u64; 7] {
        let map = self.cx.map.volumes.get(usize::from(volume.0));
        map.map_or([0; 7], |map| map.ages.classes(self.cx.now))
    }

    /// Returns true if the block is pinned.
    #[must_use]
    pub fn is_pinned(&self, volume: VolumeId, block: u64) -> bool {
        self.cx.map.lookup(Key::new(volume, block)).is_some_and(|slot| self.cx.map.is_pinned(slot))
    }

    /// Returns true if the guarantee of [`DestageOrder::Ordered`](crate::DestageOrder::Ordered) is
    /// in force: even if the cache device is lost, the backing store alone is a crash-consistent,
    /// older image of the volume (except for blocks reported as lost). A kept volume retains its
    /// guarantee, see [`Notice::OrderYielded`](crate::Notice::OrderYielded).
    #[must_use]
    pub fn is_ordered(&self, volume: VolumeId) -> bool {
        self.cx.is_ordered(volume)
    }

    /// Older versions of blocks that ordered destage still has to write; included in
    /// [`Engine::dirty_blocks`].
    #[must_use]
    pub fn shadow_blocks(&self, volume: VolumeId) -> u64 {
        self.cx.map.volumes.get(usize::from(volume.0)).map_or(0, |volume| volume.waiting.shadows() as u64)
    }

    /// Volumes for which a failed flush may have dropped bypass writes, and neither a FLUSH nor a
    /// detach has failed because of it (I82).
    pub fn untold_drops(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.cx.volumes.iter().filter(|volume| volume.untold_drop).map(|volume| volume.id)
    }

    /// Returns true while a sweep of [`Engine::unpin_all`] or [`Engine::forget_clean`] is running
    /// for a volume.
    #[must_use]
    pub fn is_sweeping(&self, volume: VolumeId) -> bool {
        self.shares.is_sweeping(volume)
    }

    /// Pinned blocks of a volume.
    #[must_use]
    pub fn pinned_blocks(&self, volume: VolumeId) -> u64 {
        self.cx.map.volumes.get(usize::from(volume.0)).map_or(0, |volume| volume.pinned)
    }

    /// Identity of the cache.
    #[must_use]
    pub fn uuid(&self) -> forebay_format::CacheUuid {
        self.cx.superblock.uuid
    }

    /// Misses that caches of other sizes would have had, for a volume or for all: in this hour and
    /// the `hours` before it, at most 23.
    #[must_use]
    pub fn miss_ratio_curve(&self, volume: Option<VolumeId>, hours: u64) -> MissRatioCurve {
        self.cx.curve.report(volume, hours, self.cx.now)
    }

    /// State of the endurance budget; `None` if there is none.
    #[must_use]
    pub fn endurance(&self) -> Option<EnduranceReport> {
        self.cx.endurance_report()
    }

    /// Bytes that a write in flight writes to the cache device, by cause.
    #[must_use]
    pub fn written_by(&self, op: OpId) -> WrittenBytes {
        self.cx.ops.get(op.0).written()
    }

    /// Bytes written since the start to the device with this key ([`Engine::set_devices`]).
    #[must_use]
    pub fn written_to(&self, key: u64) -> Option<WrittenBytes> {
        self.cx.devices_written.of(key)
    }

    /// Counts bytes, and writes, that the owner has written to the device with this key: the target
    /// of a copy of a cache device ([`crate::device_copy`]). [`Engine::written_to`] includes them,
    /// also after the device has become one of the cache.
    pub fn note_copied(&mut self, now: Nanos, key: u64, writes: u64, bytes: u64) {
        self.cx.now = self.cx.now.max(now);
        self.cx.count_copied(key, writes, bytes);
    }

    /// Names the devices of the cache in their order: for each, a key of the owner's choice, not 0,
    /// and the byte offset at which it begins in the pool's space (0 in a mirrored cache). The
    /// counts of a device stay with its key.
    pub fn set_devices(&mut self, devices: &[(u64, u64)]) {
        self.cx.devices_written.set(devices);
    }

    /// Bytes allocated for [`Engine::miss_ratio_curve`]; included in [`Stats::index_memory_bytes`].
    #[must_use]
    pub fn curve_memory_bytes(&self) -> usize {
        self.cx.curve.bytes()
    }

    /// The cache's durable progress, for a record outside its device
    /// ([`EngineConfig::known`](crate::EngineConfig)).
    #[must_use]
    pub fn mark(&self) -> CacheMark {
        if self.checkpoint.super_generation() == 0 {
            return self.cx.config.known; // Not open yet.
        }
        let flushed = core::array::from_fn(|stream| self.cx.log.streams[stream].flushed_sequence);
        CacheMark { generation: self.checkpoint.super_generation(), flushed }
    }

    /// For tests: the state that the last checkpoint's snapshot describes, if snapshots are kept
    /// ([`crate::CheckpointConfig::keep_snapshot`]). Once the checkpoint is in effect, recovery
    /// must read this state.
    #[must_use]
    pub fn last_snapshot(&self) -> Option<&Checkpoint> {
        self.checkpoint.last_snapshot()
    }

    /// Current layout of the device.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.cx.map.geometry
    }

    /// Devices of the cache.
    #[must_use]
    pub fn members(&self) -> Members {
        self.cx.superblock.members
    }
}
