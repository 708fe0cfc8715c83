//! What a seed stands for: devices, volumes, settings, workload and faults.
//!
//! Everything about a run follows from the seed (and the planted bug, if there is one, which pulls the plan towards the
//! situations in which it shows). Swarm testing: every run has its own mixture, in which many things do not happen at
//! all, so that what does happen happens often.

use crate::busy::{BusyPlan, is_of_busy};
use crate::cipher::{CipherPlan, is_of_cipher};
use crate::device::{Death, Faults, Latency};
use crate::ends::{EndPlan, is_of_ends};
use crate::mates::{MirrorPlan, is_of_mirror};
use crate::rng::{Rng, mix};
use crate::scale::Scale;
use forebay_core::{
    Admission, DestageOrder, EngineConfig, PlantedBug, PoolSettings, Priority, ReclaimPolicy, VolumeSettings,
};
use forebay_format::checkpoint::Mode;
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry};

/// How crashes come about in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// The main line never crashes; crashed copies of its devices are explored on the side.
    Fork,
    /// The main line itself crashes, again and again.
    InLine,
}

/// Which kinds of faults a run has besides crashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// Rates for the cache device.
    pub cache: Faults,
    /// Rates for the backing stores.
    pub backing: Faults,
    /// Sectors of the cache device that rot, in parts per million of requests.
    pub rot: u32,
    /// Sectors of the cache device that become unreadable, in parts per million of requests.
    pub spoil: u32,
}

impl FaultPlan {
    /// True if the cache device may lose or change bytes that it has acknowledged.
    #[must_use]
    pub fn damages(&self) -> bool {
        self.rot > 0 || self.spoil > 0 || self.cache.lost > 0 || self.cache.misdirected > 0
    }
}

/// What the owner does when the engine asks it to put a failed cache aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerPlan {
    /// It makes the record.
    Records,
    /// It cannot at first, and tries again.
    Later,
    /// It never can.
    Never,
}

/// Relative frequencies of requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Writes.
    pub write: u32,
    /// Flushes.
    pub flush: u32,
    /// Discards and zeroes.
    pub zero: u32,
    /// Prefetches.
    pub prefetch: u32,
    /// Changes of mode.
    pub mode: u32,
    /// Changes of other settings, of volumes and of the pool.
    pub tune: u32,
    /// Drains begun or ended.
    pub drain: u32,
    /// Walks that an operator asks for: pins released, clean blocks forgotten.
    pub sweep: u32,
    /// Pauses long enough for idle destage.
    pub pause: u32,
    /// Requests that must be refused.
    pub invalid: u32,
    /// Orderly stops and starts.
    pub restart: u32,
    /// Volumes attached, detached and resized.
    pub life: u32,
    /// The pool grown or shrunk.
    pub pool: u32,
    /// Scrubs begun and ended.
    pub scrub: u32,
    /// Percentage of writes and zeroes with FUA.
    pub fua_pct: u64,
    /// Percentage of requests that are not whole blocks but whole sectors.
    pub sector_pct: u64,
    /// Percentage of requests that are not even whole sectors.
    pub byte_pct: u64,
    /// Percentage of requests that a rule treats in a way of its own.
    pub rule_pct: u64,
    /// Percentage of requests of many blocks.
    pub large_pct: u64,
    /// Percentage of requests that go to a few hot blocks.
    pub hot_pct: u64,
    /// Percentage of requests that continue where the last one ended.
    pub run_pct: u64,
}

/// One volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumePlan {
    /// Size at the start.
    pub bytes: u64,
    /// Size of the backing store: as far as it can grow.
    pub bytes_max: u64,
    /// Smallest unit that the backing store writes.
    pub sector_bytes: u32,
    /// Mode at the start.
    pub mode: Mode,
}

/// The whole plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Crashes beside the main line or in it.
    pub style: Style,
    /// What is of real size.
    pub scale: Scale,
    /// Layout of the cache device.
    pub geometry: Geometry,
    /// Size of the cache device.
    pub cache_bytes: u64,
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Identity of the machine that the backing stores are on.
    pub identity: u64,
    /// Volumes.
    pub volumes: Vec<VolumePlan>,
    /// Modes that occur.
    pub modes: Vec<Mode>,
    /// Orders of destage that occur.
    pub orders: Vec<DestageOrder>,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// Settings of the volumes at the start, apart from the mode.
    pub settings: VolumeSettings,
    /// Times of the cache device.
    pub cache_latency: Latency,
    /// Times of the backing stores.
    pub backing_latency: Latency,
    /// Faults.
    pub faults: FaultPlan,
    /// After so many requests of a main line the cache device dies, and how.
    pub death: Option<(u64, Death)>,
    /// After so many requests of a main line no cached block can be read, for so many nanoseconds: a path that fails over.
    pub outage: Option<(u64, u64)>,
    /// Devices that end for a while, in this order.
    pub ends: Vec<EndPlan>,
    /// The owner cannot start some operations at once.
    pub busy: Option<BusyPlan>,
    /// The cache is mirrored over two devices, and this happens to them.
    pub mirror: Option<MirrorPlan>,
    /// The cache is encrypted.
    pub cipher: Option<CipherPlan>,
    /// What the owner does then, and whenever the cache is fenced.
    pub owner: OwnerPlan,
    /// Requests of the main line.
    pub requests: u32,
    /// Requests in flight.
    pub depth: usize,
    /// Crash points taken of so many that pass by, one in ...
    pub sample: u64,
    /// Frequencies.
    pub mix: Mix,
}

impl Plan {
    /// The longest cache device that occurs: twice the segments.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        if self.mirror.is_some() {
            return self.cache_bytes;
        }
        self.cache_bytes + u64::from(self.geometry.segment_count) * self.geometry.segment_bytes()
    }

    /// The plan for a seed.
    #[must_use]
    pub fn new(seed: u64, bug: Option<PlantedBug>) -> Self {
        let mut rng = Rng::new(mix(seed) ^ 0x504c_414e);
        let rng = &mut rng;
        let segment_blocks = rng.pick(&[16, 16, 16, 32, 32, 64]);
        let geometry = geometry(segment_blocks, rng.pick(&[16, 18, 20, 24, 24, 32, 40]));
        let modes = modes(rng);
        let orders = orders(rng);
        let volumes = (0..rng.pick(&[1, 1, 1, 2, 3])).map(|_| volume(&modes, rng)).collect();
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&rng.word().to_le_bytes());
        uuid[8..].copy_from_slice(&rng.word().to_le_bytes());
        let style = if rng.chance(1, 4) { Style::InLine } else { Style::Fork };
        let sample = rng.pick(&[1, 3, 5, 10]);
        let mut plan = Self {
            seed,
            style,
            scale: Scale::Small,
            geometry,
            cache_bytes: geometry.device_blocks * BLOCK_BYTES as u64,
            uuid: CacheUuid(uuid),
            identity: 7,
            volumes,
            modes,
            engine: engine(rng),
            settings: VolumeSettings { destage_order: rng.pick(&orders), ..settings(rng) },
            orders,
            cache_latency: cache_latency(rng),
            backing_latency: backing_latency(rng),
            faults: faults(rng),
            death: None,
            outage: None,
            ends: Vec::new(),
            busy: None,
            mirror: None,
            cipher: None,
            owner: rng.pick(&[OwnerPlan::Records, OwnerPlan::Records, OwnerPlan::Later, OwnerPlan::Never]),
            requests: rng.range(60, 200) as u32 * if sample == 1 { 1 } else { sample as u32 / 2 + 1 },
            depth: rng.pick(&[1, 2, 4, 8, 8, 16, 16]),
            sample,
            mix: requests(rng),
        };
        if rng.chance(1, 5) && !plan.faults.damages() {
            plan.die(rng);
        }
        // Whoever writes past the cache is told that the flush failed, and must write again; destage must know itself.
        let destage_only = plan.modes.iter().all(|mode| matches!(mode, Mode::Writeback | Mode::Writeonly));
        // Without the cache everything is written past it.
        let sound = plan.death.is_none() && plan.faults.cache == Faults::default();
        plan.faults.backing.flush_drops =
            sound && destage_only && plan.mix.zero == 0 && plan.mix.rule_pct == 0 && rng.chance(1, 2);
        if plan.faults.backing.flush_drops {
            plan.settings.skip_sequential_bytes = 0;
        }
        // Without a bug some seeds still go where one would show: what is looked for must not be there.
        let aimed = rng.chance(1, 4);
        let plain: Vec<PlantedBug> = PlantedBug::ALL
            .iter()
            .map(|(bug, _)| *bug)
            .filter(|bug| !is_of_mirror(*bug) && !is_of_cipher(*bug) && !is_of_busy(*bug))
            .filter(|bug| !matches!(bug, PlantedBug::DawdleWithMarks | PlantedBug::PassForEachVictim))
            .collect();
        let aim = rng.pick(&plain);
        if let Some(aim) = bug.or(aimed.then_some(aim)) {
            plan.direct(aim, rng);
        }
        if bug.is_none() && rng.chance(1, 6) {
            plan.go_astray(rng);
        }
        // Drawn apart, so that the other runs stay what they are.
        plan.draw_scale(bug, &mut Rng::new(mix(seed) ^ 0x53_4341_4c45));
        let own = &mut Rng::new(mix(seed) ^ 0x4d49_5252_4f52);
        if bug.is_some_and(is_of_mirror) || bug.is_none() && own.chance(1, 5) {
            plan.mirror(bug, own);
        }
        let own = &mut Rng::new(mix(seed) ^ 0x4f55_5441_4745);
        if bug == Some(PlantedBug::GiveUpAtOnce) || bug.is_none() && own.chance(1, 8) {
            plan.fail_over(own);
        }
        let own = &mut Rng::new(mix(seed) ^ 0x454e_4453);
        let ends = bug.is_some_and(is_of_ends) || bug.is_none() && own.chance(1, 5);
        plan.ends = if ends { EndPlan::draw(&plan, bug, own) } else { Vec::new() };
        if let Some(mirror) = plan.mirror.as_mut().filter(|_| plan.ends.iter().any(EndPlan::is_of_member)) {
            // The other member must not fail while one has ended.
            mirror.only_ends();
        }
        plan.be_busy(bug, &mut Rng::new(mix(seed) ^ 0x4255_5359));
        let own = &mut Rng::new(mix(seed) ^ 0x4349_5048_4552);
        let encrypted = bug.is_some_and(is_of_cipher) || bug.is_none() && own.chance(1, 5);
        if encrypted && plan.mirror.is_none() {
            plan.cipher = Some(CipherPlan::draw(seed, plan.uuid));
        }
        let own = &mut Rng::new(mix(seed) ^ 0x4452_4f50_5045);
        if bug.is_none() && plan.mirror.is_none() && plan.faults.cache.flush_error > 0 {
            plan.faults.cache.flush_drops = own.chance(1, 2);
        }
        plan
    }

    /// The cache device answers no read for some seconds. Nothing else is wrong with it, so no block may be lost.
    fn fail_over(&mut self, rng: &mut Rng) {
        let sound = !self.faults.damages() && self.faults.cache.read_error == 0;
        // A member that cannot be read is put out, and then nobody has what the other one lost silently.
        let true_members = self.mirror.as_ref().is_none_or(|mirror| mirror.harms == [false; 2]);
        if sound && true_members && self.death.is_none() {
            let at = rng.range(u64::from(self.requests) / 10, u64::from(self.requests) * 9 / 10);
            self.outage = Some((at, rng.range(20_000_000, 5_000_000_000)));
        }
    }

    /// The plan for a seed whose cache is small and not mirrored: the next one from this seed on. It is not encrypted either, so that its
    /// device can be looked at.
    #[must_use]
    pub fn unmirrored(mut seed: u64) -> Self {
        loop {
            let plan = Self::new(seed, None);
            let small = plan.scale == Scale::Small && !plan.volumes.iter().any(VolumePlan::is_sparse);
            if plan.mirror.is_none() && small {
                return Self { cipher: None, ..plan };
            }
            seed = mix(seed);
        }
    }

    /// Makes the cache a mirrored one.
    fn mirror(&mut self, bug: Option<PlantedBug>, rng: &mut Rng) {
        let columns = rng.pick(&[16, 16, 20, 24, 32]);
        let columns = if self.scale == Scale::Wide { 10 * columns } else { columns };
        self.geometry = mirrored_geometry(self.geometry.segment_blocks, columns);
        self.cache_bytes = self.geometry.device_blocks * BLOCK_BYTES as u64;
        self.faults = FaultPlan { backing: self.faults.backing, ..FaultPlan::default() };
        (self.death, self.mix.pool) = (None, 0);
        self.owner =
            rng.pick(&[OwnerPlan::Records, OwnerPlan::Records, OwnerPlan::Records, OwnerPlan::Later]);
        if rng.chance(1, 20) {
            self.owner = OwnerPlan::Never;
        }
        // So that crashes are where members are replaced, too, and not only at the beginning.
        self.sample = self.sample.max(rng.pick(&[3, 10, 30]));
        let mut mirror = MirrorPlan::draw(self.requests, rng);
        if let Some(bug) = bug {
            self.only_writeback(rng);
            self.owner = OwnerPlan::Records;
            (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
            (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
            self.mix = Mix { write: 60, flush: 10, drain: 0, life: 0, restart: 0, ..self.mix };
            mirror.direct(bug, self.requests, rng);
            self.lead_mirror(bug);
        }
        self.mirror = Some(mirror);
    }

    /// Where the other things that a bug of mirrored caches needs are.
    fn lead_mirror(&mut self, bug: PlantedBug) {
        match bug {
            // It takes two crashes in a row: one that the members survive differently, and one that only one of them survives.
            PlantedBug::LeaveUnmended | PlantedBug::MendInVain => {
                (self.style, self.cache_latency.spread) = (Style::InLine, 20);
            }
            PlantedBug::ScrubOneCopy | PlantedBug::JudgeFailedCopy => {
                (self.mix.scrub, self.mix.restart) = (30, 0);
            }
            PlantedBug::KeepLostFill => {
                // Copies of what is written through, on a slow backing store.
                (self.style, self.depth, self.mix.rule_pct) = (Style::InLine, 16, 50);
                self.backing_latency.write_ns = 4_000_000;
                self.settings.admission = Admission::Always;
            }
            _ => {}
        }
    }

    /// Leads the plan to paths that are hardly ever taken otherwise ([`forebay_core::CoverageMark`]).
    fn go_astray(&mut self, rng: &mut Rng) {
        match rng.below(6) {
            0 => {
                // A cache device that is about to die: batches fail in one segment after the other.
                let write_error = rng.pick(&[100_000, 400_000, 700_000]);
                self.faults = FaultPlan::default();
                self.faults.cache =
                    Faults { write_error, spares_metadata: rng.chance(2, 3), ..Faults::default() };
            }
            1 => {
                let read_error = rng.pick(&[50_000, 200_000]);
                self.faults.cache.read_error = read_error;
            }
            2 => {
                // Gaps between dirty blocks on a backing store that can hardly be read.
                self.only_writeback(rng);
                self.scatter(rng);
                self.mix.flush /= 4;
                self.faults.backing.read_error = 300_000;
            }
            3 => self.restart_often(),
            4 => {
                // Ordered volumes that are kept and not attached, in the way of others that need room.
                self.geometry = geometry(16, 32);
                self.cache_bytes = self.geometry.device_blocks * BLOCK_BYTES as u64;
                self.ordered(rng);
                while self.volumes.len() < 3 {
                    self.volumes.push(self.volumes[0]);
                }
                (self.mix.life, self.mix.pool, self.mix.hot_pct) = (10, 10, 10);
                self.sample = 100;
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 70);
                self.settings.idle_delay = 0;
            }
            _ => {
                // More is pinned, and belongs to smallest shares, than the cache has.
                self.squeeze();
                self.start_in(rng);
                (self.mix.rule_pct, self.mix.sweep, self.mix.hot_pct) = (90, 0, 0);
                (self.settings.min_share_pct, self.settings.max_share_pct) = (90, 100);
                self.engine.pool.survivors_max_pct = 90;
            }
        }
    }

    /// Orderly stops, and requests at once after the start.
    fn restart_often(&mut self) {
        self.faults = FaultPlan::default();
        self.orders = vec![DestageOrder::Elevator];
        self.settings.destage_order = DestageOrder::Elevator;
        (self.mix.restart, self.mix.read) = (10, self.mix.read + 40);
    }

    /// A plan without chance: one volume on the smallest cache, devices that take the same time for the same, no faults.
    #[must_use]
    pub fn tiny(bytes: u64, modes: Vec<Mode>, settings: VolumeSettings) -> Self {
        let geometry = geometry(16, 16);
        let latency = |read_ns, write_ns, flush_ns| Latency {
            read_ns,
            write_ns,
            flush_ns,
            block_ns: 1_000,
            spread: 0,
            slow_ppm: 0,
            slow_ns: 0,
        };
        Self {
            seed: 0,
            style: Style::Fork,
            scale: Scale::Small,
            geometry,
            cache_bytes: geometry.device_blocks * BLOCK_BYTES as u64,
            uuid: CacheUuid([7; 16]),
            identity: 7,
            volumes: vec![VolumePlan { bytes, bytes_max: bytes, sector_bytes: 512, mode: settings.mode }],
            modes,
            orders: vec![settings.destage_order],
            engine: EngineConfig { scratch_blocks: 64, ..EngineConfig::default() },
            settings,
            cache_latency: latency(50_000, 20_000, 100_000),
            backing_latency: latency(1_000_000, 1_000_000, 4_000_000),
            faults: FaultPlan::default(),
            death: None,
            outage: None,
            ends: Vec::new(),
            busy: None,
            mirror: None,
            cipher: None,
            owner: OwnerPlan::Records,
            requests: 0,
            depth: 1,
            sample: 1,
            mix: Mix::default(),
        }
    }

    /// Leads the plan to where a bug shows. The simulator finds most of them without, only later.
    fn direct(&mut self, bug: PlantedBug, rng: &mut Rng) {
        match bug {
            PlantedBug::SkipChecksum => {
                self.faults = FaultPlan { rot: 100_000, ..FaultPlan::default() };
                self.mix.read += 20;
                self.sample = 50;
            }
            PlantedBug::ForgetInvalidation | PlantedBug::SkipIntent => {
                self.modes = vec![Mode::Writeback, Mode::Writethrough, Mode::Writearound];
                self.start_in(rng);
                self.mix.mode += 4;
                self.mix.read += 20;
                self.faults = FaultPlan::default();
            }
            PlantedBug::TrustUnflushedMarks => {
                // Destaged at once, marked clean, written past the cache, and hardly ever flushed.
                self.modes = vec![Mode::Writeback, Mode::Writearound];
                self.start_in(rng);
                (self.settings.dirty_low_pct, self.settings.idle_delay) = (0, 10_000_000);
                (self.sample, self.requests) = (2, self.requests * 2);
                self.mix = Mix { mode: 12, flush: 0, zero: 0, fua_pct: 0, hot_pct: 80, pause: 6, ..self.mix };
                self.faults = FaultPlan::default();
            }
            PlantedBug::MixFlushEpochs | PlantedBug::EpochBeforeMarks | PlantedBug::CoalesceEpochs => {
                self.ordered(rng);
            }
            PlantedBug::ForgetEpochs => {
                self.ordered(rng);
                self.settings.dirty_low_pct = 10;
            }
            PlantedBug::ForgetOrderAtAttach => self.ordered(rng),
            PlantedBug::AdvanceInShrink => {
                self.ordered(rng);
                (self.mix.life, self.mix.hot_pct, self.mix.drain, self.mix.pool) = (30, 0, 15, 0);
                (self.mix.restart, self.mix.scrub) = (0, 0);
                self.settings.dirty_low_pct = 10;
                // The next epoch is written back before the checkpoint is there.
                (self.cache_latency.write_ns, self.cache_latency.flush_ns) = (1_000_000, 4_000_000);
                (self.backing_latency.write_ns, self.backing_latency.flush_ns) = (20_000, 20_000);
                (self.backing_latency.slow_ppm, self.death) = (0, None);
                self.sample = 3;
            }
            PlantedBug::OvertakeEpochs => {
                self.modes = vec![Mode::Writeback, Mode::Writearound];
                self.start_in(rng);
                self.ordered(rng);
                (self.mix.mode, self.mix.rule_pct) = (4, 20);
                self.settings.dirty_low_pct = 40;
                self.settings.dirty_high_pct = self.settings.dirty_high_pct.max(50);
            }
            PlantedBug::FuaKeepsEpoch => {
                self.ordered(rng);
                self.mix = Mix { flush: 0, fua_pct: 30, ..self.mix };
            }
            PlantedBug::KeepOvertakenFill => {
                (self.depth, self.sample) = (16, 50);
                self.mix = Mix { read: 40, write: 40, hot_pct: 70, run_pct: 10, ..self.mix };
                self.modes = vec![Mode::Writeback, Mode::Writearound, Mode::Writethrough];
                self.start_in(rng);
                self.faults = FaultPlan::default();
            }
            PlantedBug::RelocateWithoutLock | PlantedBug::ReuseSegmentEarly => {
                self.squeeze();
                self.depth = 16;
                self.start_in(rng);
            }
            PlantedBug::AcknowledgeOutOfOrder => {
                (self.depth, self.engine.pool.batches_in_flight) = (16, 4);
                self.cache_latency.spread = 20;
                self.only_writeback(rng);
            }
            PlantedBug::CleanBeforeBackingFlush | PlantedBug::DestageBeforeDurable => {
                self.only_writeback(rng);
                self.settings.dirty_low_pct = 0;
                self.mix.drain += 3;
                self.mix.pause += 3;
            }
            PlantedBug::SkipDeviceFlush | PlantedBug::AcceptTornHeader | PlantedBug::IgnoreSequence => {
                self.only_writeback(rng)
            }
            // It takes a flush as long as all that is written beside it: `tests/pacing.rs`.
            PlantedBug::ChaseMarks => {}
            // It takes a load that does not end: `tests/liveness.rs`.
            PlantedBug::DawdleWithMarks => {}
            // Nothing is wrong but the time that it takes: `tests/work.rs` of the core.
            PlantedBug::PassForEachVictim => {}
            PlantedBug::IgnoreFlushPeriod
            | PlantedBug::StarveLimiter
            | PlantedBug::ChargeUnlimited
            | PlantedBug::ExceedLimits
            | PlantedBug::ThrottleBeyondLimit
            | PlantedBug::ForgetOnOrderChange => self.pace(bug, rng),
            PlantedBug::ReuseVolumeEarly
            | PlantedBug::KeepBeyondShrink
            | PlantedBug::ForgetDirtyAtDetach
            | PlantedBug::ServeBeforeCheckpoint => {
                self.mix.life += 20;
                self.start_in(rng);
                self.faults = FaultPlan::default();
            }
            PlantedBug::ScrubOverlooksDirty => {
                self.only_writeback(rng);
                self.faults = FaultPlan { rot: 5_000, ..FaultPlan::default() };
                (self.mix.scrub, self.death) = (30, None);
                self.mix.read += 20;
                self.settings.dirty_low_pct = self.settings.dirty_high_pct.min(40);
            }
            PlantedBug::FlushOverLoss => {
                self.only_writeback(rng);
                self.faults = FaultPlan { rot: 30_000, ..FaultPlan::default() };
                (self.mix.scrub, self.mix.flush, self.death) = (5, 15, None);
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
                (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
            }
            PlantedBug::ServeInvalidSectors | PlantedBug::HealDirty => {
                self.only_writeback(rng);
                (self.faults, self.death) = (FaultPlan::default(), None);
                (self.mix.sector_pct, self.mix.byte_pct, self.mix.large_pct) = (40, 0, 2);
                self.mix.read += 30;
            }
            PlantedBug::TweakOfFailedWrite => {
                self.only_writeback(rng);
                self.faults = FaultPlan::default();
                self.faults.cache =
                    Faults { write_error: 50_000, spares_metadata: true, ..Faults::default() };
                self.mix.read += 20;
                self.death = None;
            }
            PlantedBug::ScrubJudgesVoid => {
                self.only_writeback(rng);
                self.faults = FaultPlan { rot: 200_000, ..FaultPlan::default() };
                self.mix = Mix { write: 60, read: 40, hot_pct: 70, scrub: 40, ..self.mix };
                self.death = None;
            }
            PlantedBug::FailAfterCut => {
                self.mix.life += 60;
                self.start_in(rng);
                self.faults = FaultPlan::default();
                self.die(rng);
            }
            PlantedBug::AppendToRetired => {
                self.mix.pool += 10;
                self.mix.write += 40;
                self.faults = FaultPlan::default();
            }
            PlantedBug::FillGapsUnlocked => {
                // Destage of scattered blocks, and writes past the cache between them.
                self.modes = vec![Mode::Writeback, Mode::Writearound];
                self.start_in(rng);
                self.scatter(rng);
                (self.mix.rule_pct, self.mix.mode) = (50, 2);
            }
            PlantedBug::FillGapsFromDirty => {
                self.only_writeback(rng);
                self.scatter(rng);
                self.mix.flush /= 4;
            }
            PlantedBug::FillGapsFromPartial => {
                self.only_writeback(rng);
                self.scatter(rng);
                (self.mix.sector_pct, self.mix.drain) = (40, 4);
            }
            PlantedBug::PassBeforeRecord
            | PlantedBug::FlushBeforeRescue
            | PlantedBug::FlushBeforeRecord
            | PlantedBug::ReadLostFromBacking
            | PlantedBug::RescueSuperseded
            | PlantedBug::CountAfterFence
            | PlantedBug::AcknowledgeUnrecorded
            | PlantedBug::TrustFlushAfterFailure => self.outlive(bug, rng),
            PlantedBug::CountHalfBatches
            | PlantedBug::FlushOneMember
            | PlantedBug::CountBeforeNote
            | PlantedBug::TrustStaleMember
            | PlantedBug::ReadOneCopy
            | PlantedBug::LeaveUnmended
            | PlantedBug::ForgetInRebuild
            | PlantedBug::CountAnywhere
            | PlantedBug::ListAtOnce
            | PlantedBug::OutInItsOwnWords
            | PlantedBug::MendInVain
            | PlantedBug::KeepLostFill
            | PlantedBug::ScrubOneCopy
            | PlantedBug::JudgeFailedCopy
            | PlantedBug::WriteMetaInClear
            // Shown by `hostile`.
            | PlantedBug::BelieveEarlierUse
            | PlantedBug::BelieveOlderCopy => {}
            PlantedBug::EndIsZeroes => {
                (self.faults, self.death, self.mix.read) = (FaultPlan::default(), None, 60);
            }
            PlantedBug::GiveUpAtOnce | PlantedBug::FailAtEnd => {
                self.only_writeback(rng);
                (self.faults, self.death) = (FaultPlan::default(), None);
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
                (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
            }
            PlantedBug::KeepDiscard => {
                self.only_writeback(rng);
                (self.mix.zero, self.mix.write) = (self.mix.zero + 20, self.mix.write + 20);
            }
            PlantedBug::TrustAfterCrash => {
                (self.style, self.faults, self.death) = (Style::Fork, FaultPlan::default(), None);
                self.mix.read += 20;
            }
            PlantedBug::DropSecondSuperblock => self.faults = FaultPlan::default(),
            PlantedBug::ShareHeader => {
                self.only_writeback(rng);
                (self.depth, self.engine.pool.batches_in_flight) = (16, 4);
                (self.faults, self.death) = (FaultPlan::default(), None);
            }
            PlantedBug::OverfillHeader => {
                // Blocks written one by one lie apart, and all of them are written back before one mark is logged.
                self.only_writeback(rng);
                (self.orders, self.depth) = (vec![DestageOrder::Elevator], 1);
                self.settings = VolumeSettings {
                    dirty_low_pct: 0,
                    idle_delay: 10_000_000,
                    max_destage_iops: 0,
                    max_destage_bytes_per_s: 0,
                    destage_order: DestageOrder::Elevator,
                    ..self.settings
                };
                self.mix = Mix { write: 95, pause: 1, sector_pct: 0, byte_pct: 0, ..Mix::default() };
                (self.death, self.backing_latency.write_ns) = (None, 50_000);
            }
            PlantedBug::IntentOfOneRegion => {
                self.modes = vec![Mode::Writeback, Mode::Writethrough, Mode::Writearound];
                self.start_in(rng);
                (self.mix.mode, self.mix.read) = (self.mix.mode + 4, self.mix.read + 20);
                // Requests that cross the border of two regions.
                (self.mix.large_pct, self.mix.hot_pct, self.mix.run_pct) = (40, 0, 0);
                (self.faults, self.death) = (FaultPlan::default(), None);
            }
            PlantedBug::TrustWhatIsRead => {
                // Flushes fail, nobody can record it, and the cache is opened again.
                self.only_writeback(rng);
                self.restart_often();
                self.faults.cache = Faults { flush_error: 30_000, flush_drops: true, ..Faults::default() };
                (self.owner, self.death) = (OwnerPlan::Never, None);
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
                (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
            }
            PlantedBug::OverlookListed => {
                self.only_writeback(rng);
                self.restart_often();
                // Dirty data that is still there after the stop.
                (self.settings.dirty_low_pct, self.settings.idle_delay) = (40, 0);
                self.settings.dirty_high_pct = self.settings.dirty_high_pct.max(50);
                self.death = None;
            }
            PlantedBug::ForgetDirtySurvivor => {
                self.squeeze();
                self.start_in(rng);
                self.settings.dirty_low_pct = self.settings.dirty_high_pct.min(40);
            }
            PlantedBug::SequentialLeavesCopy => {
                self.only_writeback(rng);
                self.faults.backing.flush_drops = false;
                self.settings.skip_sequential_bytes = 8 << 10;
                self.mix.run_pct = 60;
                self.mix.read += 30;
            }
            PlantedBug::TrimDirty => {
                self.only_writeback(rng);
                (self.settings.min_share_pct, self.settings.max_share_pct) = (0, 5);
            }
            PlantedBug::KeepWithoutBound => {
                self.squeeze();
                self.start_in(rng);
                (self.mix.rule_pct, self.mix.sweep, self.mix.hot_pct) = (90, 0, 0);
                // It shows by a request that is not answered in ten minutes: they should not be made of millions of moves.
                (self.cache_latency.read_ns, self.cache_latency.write_ns) = (2_000_000, 10_000_000);
            }
        }
    }

    /// The cache device dies in the middle of the main line.
    fn die(&mut self, rng: &mut Rng) {
        let at = rng.range(u64::from(self.requests) / 10, u64::from(self.requests) * 9 / 10);
        self.death = Some((at, rng.pick(&[Death::All, Death::Writes, Death::Writes, Death::FlushDrops])));
        self.faults.backing.flush_drops = false;
    }

    /// A cache full of dirty data dies, and clients go on.
    fn outlive(&mut self, bug: PlantedBug, rng: &mut Rng) {
        self.only_writeback(rng);
        self.die(rng);
        self.owner = OwnerPlan::Records;
        (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (40, 80);
        (self.settings.idle_delay, self.settings.flush_period) = (0, 0);
        self.mix = Mix { write: 60, hot_pct: 50, drain: 0, life: 0, pool: 0, restart: 0, ..self.mix };
        self.sample = 3;
        let kind = match bug {
            PlantedBug::ReadLostFromBacking => Death::All,
            PlantedBug::TrustFlushAfterFailure | PlantedBug::CountAfterFence => Death::FlushDrops,
            _ => Death::Writes,
        };
        match bug {
            PlantedBug::FlushBeforeRescue | PlantedBug::FlushBeforeRecord => self.mix.flush = 15,
            PlantedBug::TrustFlushAfterFailure => {
                (self.mix.flush, self.depth, self.owner) = (30, 16, OwnerPlan::Never);
            }
            PlantedBug::CountAfterFence => {
                // Batches under way while a flush fails.
                (self.mix.flush, self.depth, self.engine.pool.batches_in_flight) = (15, 16, 4);
                (self.cache_latency.spread, self.cache_latency.write_ns) = (20, 200_000);
            }
            _ => {}
        }
        self.death = self.death.map(|(at, _)| (at, kind));
    }

    /// Scattered dirty blocks on a backing store where getting there costs more than passing over.
    fn scatter(&mut self, rng: &mut Rng) {
        self.settings = VolumeSettings {
            dirty_low_pct: 0,
            idle_delay: 10_000_000,
            destage_gap_bytes: 1 << 20,
            latency_target: 0,
            ..self.settings
        };
        (self.backing_latency.read_ns, self.backing_latency.write_ns) = (1_000_000, 4_000_000);
        (self.mix.large_pct, self.mix.run_pct, self.mix.hot_pct) = (5, 0, 0);
        self.mix.pause += 3;
        self.depth = rng.pick(&[8, 16]);
        self.faults = FaultPlan::default();
    }

    /// Where destage is paced, limited, or asked to change its order.
    fn pace(&mut self, bug: PlantedBug, rng: &mut Rng) {
        self.only_writeback(rng);
        (self.mix.zero, self.mix.rule_pct, self.mix.tune, self.mix.restart) = (0, 0, 0, 0);
        (self.mix.life, self.mix.pool) = (0, 0);
        self.orders = vec![DestageOrder::Elevator, DestageOrder::Fifo, DestageOrder::Lru];
        self.settings.destage_order = rng.pick(&self.orders);
        self.settings =
            VolumeSettings { idle_delay: 0, dirty_low_pct: 40, dirty_high_pct: 80, ..self.settings };
        (self.settings.max_destage_iops, self.settings.max_destage_bytes_per_s) = (0, 0);
        self.settings.skip_sequential_bytes = 0; // Or not all writes of backing stores are destage.
        match bug {
            PlantedBug::IgnoreFlushPeriod => {
                self.settings.flush_period = rng.pick(&[8_000_000_000, 20_000_000_000]);
                (self.mix.pause, self.backing_latency.slow_ppm, self.cache_latency.slow_ppm) = (20, 0, 0);
            }
            PlantedBug::StarveLimiter => self.settings.max_destage_iops = rng.pick(&[50, 200]),
            PlantedBug::ChargeUnlimited => {
                // Scattered blocks are destaged without a limit, until the operator sets one.
                (self.settings.dirty_low_pct, self.settings.destage_gap_bytes) = (0, 0);
                (self.settings.idle_delay, self.settings.latency_target) = (10_000_000, 0);
                (self.mix.tune, self.mix.pause, self.mix.large_pct, self.mix.run_pct) = (2, 5, 0, 0);
                (self.backing_latency.slow_ppm, self.cache_latency.slow_ppm) = (0, 0);
                (self.sample, self.requests, self.death) = (10, 600, None);
            }
            PlantedBug::ExceedLimits => {
                (self.settings.max_destage_iops, self.settings.destage_depth_max) = (50, 1);
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (0, 10);
                self.mix.pause = 0;
            }
            PlantedBug::ThrottleBeyondLimit => {
                (self.settings.dirty_low_pct, self.settings.dirty_high_pct) = (0, 10);
                (self.engine.pool.dirty_limit_pct, self.mix.pause) = (60, 0);
                (self.backing_latency.write_ns, self.mix.hot_pct) = (4_000_000, 0);
            }
            _ => self.mix.tune += 10,
        }
    }

    /// Many flush epochs with the same few blocks, destaged slowly all the time.
    fn ordered(&mut self, rng: &mut Rng) {
        if self.modes.iter().all(|mode| !matches!(mode, Mode::Writeback | Mode::Writeonly)) {
            self.modes = vec![Mode::Writeback];
            self.start_in(rng);
        }
        self.orders = vec![DestageOrder::Ordered];
        self.settings.destage_order = DestageOrder::Ordered;
        (self.settings.dirty_low_pct, self.settings.idle_delay) = (0, 10_000_000);
        self.mix = Mix { write: 50, flush: 15, hot_pct: 50, tune: 0, drain: 2, ..self.mix };
        self.sample = 10;
        self.faults = FaultPlan::default();
    }

    pub(crate) fn only_writeback(&mut self, rng: &mut Rng) {
        self.modes = vec![Mode::Writeback];
        self.start_in(rng);
        self.mix.write += 30;
        self.faults = FaultPlan::default();
    }

    fn start_in(&mut self, rng: &mut Rng) {
        for volume in &mut self.volumes {
            volume.mode = rng.pick(&self.modes);
        }
    }

    /// The smallest cache under the largest volumes, and much to do.
    fn squeeze(&mut self) {
        self.geometry = geometry(16, 16);
        self.cache_bytes = self.geometry.device_blocks * BLOCK_BYTES as u64;
        for volume in &mut self.volumes {
            (volume.bytes, volume.bytes_max) = (1 << 20, (1 << 20) + (128 << 10));
        }
        self.modes = vec![Mode::Writeback, Mode::Writethrough];
        self.faults = FaultPlan::default();
        self.requests *= 2;
        self.sample = 10;
        self.mix.write += 40;
        self.mix.hot_pct = 30;
    }

    /// True if volumes may be destaged in order.
    #[must_use]
    pub fn may_order(&self) -> bool {
        self.orders.contains(&DestageOrder::Ordered)
    }

    /// True if no mode of this run keeps acknowledged data in the cache only.
    #[must_use]
    pub fn writes_past(&self) -> bool {
        let past = [Mode::Writethrough, Mode::Writearound, Mode::Passthrough];
        self.modes.iter().all(|mode| past.contains(mode))
    }
}

pub(crate) fn geometry(segment_blocks: u32, segments: u32) -> Geometry {
    let mut blocks = u64::from(segment_blocks) * u64::from(segments);
    loop {
        match Geometry::for_device(blocks * BLOCK_BYTES as u64, Some(segment_blocks)) {
            Ok(geometry) if geometry.segment_count >= segments => return geometry,
            Ok(_) | Err(_) => blocks += u64::from(segment_blocks),
        }
    }
}

fn mirrored_geometry(segment_blocks: u32, columns: u32) -> Geometry {
    let mut blocks = u64::from(segment_blocks) * u64::from(columns);
    loop {
        match Geometry::mirrored(blocks * BLOCK_BYTES as u64, Some(segment_blocks)) {
            Ok(geometry) if geometry.columns() >= columns => return geometry,
            Ok(_) | Err(_) => blocks += u64::from(segment_blocks),
        }
    }
}

fn modes(rng: &mut Rng) -> Vec<Mode> {
    match rng.below(6) {
        0 | 1 => vec![Mode::Writeback],
        2 => vec![Mode::Writeback, Mode::Writeonly],
        3 => vec![Mode::Writethrough, Mode::Writearound, Mode::Passthrough],
        4 => vec![Mode::Writeback, Mode::Writethrough, Mode::Writearound],
        _ => Mode::ALL.to_vec(),
    }
}

fn orders(rng: &mut Rng) -> Vec<DestageOrder> {
    use DestageOrder::{Elevator, Fifo, Lru, Ordered};
    match rng.below(5) {
        0 => vec![Elevator],
        1 => vec![Elevator, Fifo, Lru],
        2 | 3 => vec![Ordered],
        _ => vec![Elevator, Fifo, Ordered, Ordered],
    }
}

fn volume(modes: &[Mode], rng: &mut Rng) -> VolumePlan {
    let sector_bytes = rng.pick(&[512, 512, 4096]);
    let unit = u64::from(sector_bytes);
    let bytes = rng.range((256 << 10) / unit, (1 << 20) / unit) * unit;
    VolumePlan { bytes, bytes_max: bytes + (128 << 10), sector_bytes, mode: rng.pick(modes) }
}

fn engine(rng: &mut Rng) -> EngineConfig {
    EngineConfig {
        scratch_blocks: rng.pick(&[64, 128, 256]),
        pool: pool_settings(rng),
        ..EngineConfig::default()
    }
}

/// Settings of a pool as they occur in a run.
pub(crate) fn pool_settings(rng: &mut Rng) -> PoolSettings {
    PoolSettings {
        batches_in_flight: rng.range(1, 4) as u32,
        survivors_max_pct: rng.pick(&[0, 30, 50, 90]),
        reclaim_policy: rng.pick(&[ReclaimPolicy::Fifo, ReclaimPolicy::Lru, ReclaimPolicy::S3Fifo]),
        dirty_limit_pct: rng.pick(&[10, 40, 60, 90]),
    }
}

/// Settings of a volume as they occur in a run.
pub(crate) fn settings(rng: &mut Rng) -> VolumeSettings {
    let dirty_low_pct = rng.pick(&[0, 10, 10, 40]);
    let (min_share_pct, max_share_pct) =
        rng.pick(&[(0, 100), (0, 100), (0, 100), (0, 5), (0, 20), (30, 100), (10, 40), (90, 100)]);
    VolumeSettings {
        dirty_low_pct,
        dirty_high_pct: dirty_low_pct + rng.pick(&[10, 30, 50]),
        idle_delay: rng.pick(&[0, 10_000_000, 200_000_000, 5_000_000_000]),
        destage_depth_max: rng.pick(&[1, 4, 16]),
        destage_gap_bytes: rng.pick(&[0, 8 << 10, 64 << 10, 1 << 20]),
        flush_period: rng.pick(&[0, 0, 1_000_000_000, 8_000_000_000, 60_000_000_000]),
        max_destage_iops: rng.pick(&[0, 0, 0, 50, 500]),
        max_destage_bytes_per_s: rng.pick(&[0, 0, 0, 1 << 20, 16 << 20]),
        latency_target: rng.pick(&[0, 1_000_000, 20_000_000]),
        zero_direct_min_bytes: rng.pick(&[16 << 10, 64 << 10, 1 << 20]),
        admission: rng.pick(&[
            Admission::Always,
            Admission::Always,
            Admission::SecondAccess,
            Admission::Never,
        ]),
        skip_sequential_bytes: rng.pick(&[0, 0, 4 << 10, 32 << 10, 128 << 10]),
        min_share_pct,
        max_share_pct,
        priority: rng.pick(&[Priority::Low, Priority::Normal, Priority::Normal, Priority::High]),
        ..VolumeSettings::default()
    }
}

fn cache_latency(rng: &mut Rng) -> Latency {
    Latency {
        read_ns: 50_000,
        write_ns: 20_000,
        flush_ns: rng.pick(&[50_000, 500_000]),
        block_ns: 1_000,
        spread: rng.pick(&[0, 1, 4, 20]),
        slow_ppm: rng.pick(&[0, 0, 2_000, 20_000]),
        slow_ns: 20_000_000,
    }
}

fn backing_latency(rng: &mut Rng) -> Latency {
    Latency {
        read_ns: rng.pick(&[50_000, 1_000_000, 4_000_000]),
        write_ns: rng.pick(&[50_000, 1_000_000, 4_000_000]),
        flush_ns: rng.pick(&[100_000, 8_000_000]),
        block_ns: 25_000,
        spread: rng.pick(&[0, 1, 4]),
        slow_ppm: rng.pick(&[0, 0, 2_000, 20_000]),
        slow_ns: 500_000_000,
    }
}

fn transient(rng: &mut Rng) -> Faults {
    let rates = [0, 0, 1_000, 10_000, 50_000];
    Faults {
        read_error: rng.pick(&rates),
        write_error: rng.pick(&rates),
        flush_error: rng.pick(&rates),
        flush_drops: false,
        lost: 0,
        misdirected: 0,
        spares_metadata: false,
    }
}

fn faults(rng: &mut Rng) -> FaultPlan {
    let mut plan = FaultPlan::default();
    let style = rng.below(10);
    if style >= 6 {
        if rng.chance(1, 2) {
            plan.cache = transient(rng);
        }
        if rng.chance(2, 3) {
            plan.backing = transient(rng);
        }
    }
    if style == 5 || style == 9 {
        let rates = [0, 0, 5_000, 30_000];
        (plan.rot, plan.spoil) = (rng.pick(&rates), rng.pick(&rates));
        (plan.cache.lost, plan.cache.misdirected) = (rng.pick(&rates), rng.pick(&rates));
    }
    plan
}

fn requests(rng: &mut Rng) -> Mix {
    Mix {
        read: rng.pick(&[10, 30, 60]),
        write: rng.pick(&[20, 50, 80]),
        flush: rng.pick(&[0, 2, 6, 15]),
        zero: rng.pick(&[0, 0, 3, 12]),
        prefetch: rng.pick(&[0, 0, 2, 8]),
        mode: rng.pick(&[0, 1, 4]),
        tune: rng.pick(&[0, 0, 1, 4]),
        drain: rng.pick(&[0, 0, 1, 3]),
        sweep: rng.pick(&[0, 0, 0, 1, 3]),
        pause: rng.pick(&[0, 0, 1, 3]),
        invalid: rng.pick(&[0, 0, 1]),
        restart: rng.pick(&[0, 0, 1]),
        life: rng.pick(&[0, 0, 1, 4]),
        pool: rng.pick(&[0, 0, 0, 1, 3]),
        scrub: rng.pick(&[0, 0, 1, 5]),
        fua_pct: rng.pick(&[0, 0, 5, 30]),
        sector_pct: rng.pick(&[0, 10, 40]),
        byte_pct: rng.pick(&[0, 0, 10, 30]),
        rule_pct: rng.pick(&[0, 0, 0, 5, 30]),
        large_pct: rng.pick(&[0, 2, 10, 30]),
        hot_pct: rng.pick(&[0, 20, 50, 80]),
        run_pct: rng.pick(&[0, 10, 40]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_follow_from_the_seed_and_fit() {
        for seed in 0..200 {
            let plan = Plan::new(seed, None);
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new(seed, None)));
            plan.geometry.validate(plan.cache_bytes).unwrap();
            for volume in &plan.volumes {
                assert_eq!(volume.bytes % u64::from(volume.sector_bytes), 0);
                assert!(
                    plan.modes.contains(&volume.mode),
                    "seed {seed}: {:?} of {:?}",
                    volume.mode,
                    plan.modes
                );
            }
        }
    }
}
