//! The plan of a run: devices, volumes, settings, workload and faults that follow from a seed.
//!
//! Everything about a run follows from the seed (and the planted bug, if there is one, which pulls
//! the plan towards the situations in which it shows). Swarm testing: every run has its own
//! mixture, in which many things do not happen at all, so that what does happen happens often.

mod bugs;
mod draw;
mod situations;

pub(crate) use bugs::Needs;
pub(crate) use draw::{pool_settings, settings};

use crate::cipher::CipherPlan;
use crate::device::{Death, Faults, Latency};
use crate::late_starts::LateStartPlan;
use crate::mirror::MirrorPlan;
use crate::rng::{Rng, mix};
use crate::scale::Scale;
use crate::truncation::TruncationPlan;
use bugs::Situation;
use draw::{backing_latency, cache_latency, engine, faults, modes, orders, requests, volume};
use forebay_core::{DestageOrder, EngineConfig, PlantedBug, VolumeSettings};
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

/// What the owner does when the engine asks it to record that the cache failed.
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
    pub lifecycle: u32,
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
    /// After so many requests of a main line no cached block can be read, for so many nanoseconds:
    /// a path that fails over.
    pub outage: Option<(u64, u64)>,
    /// Devices that end for a while, in this order.
    pub truncations: Vec<TruncationPlan>,
    /// The owner cannot start some operations at once.
    pub late_starts: Option<LateStartPlan>,
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

    /// The plan for a seed. Each of its later parts has numbers of its own, so that the others stay
    /// what they are when one of them changes.
    #[must_use]
    pub fn new(seed: u64, bug: Option<PlantedBug>) -> Self {
        let row = bug.map(bugs::row);
        let needs = row.map(|(needs, _)| needs);
        let own = |salt: u64| Rng::new(mix(seed) ^ salt);
        let rng = &mut own(0x504c_414e);
        let mut plan = Self::draw(seed, rng);
        plan.draw_failures(rng);
        plan.lead(row, rng);
        plan.draw_scale(needs, &mut own(0x53_4341_4c45));
        plan.draw_mirror(row, &mut own(0x4d49_5252_4f52));
        plan.draw_outage(needs, &mut own(0x4f55_5441_4745));
        plan.draw_truncations(needs, &mut own(0x454e_4453));
        plan.draw_late_starts(needs, &mut own(0x4255_5359));
        plan.draw_cipher(needs, &mut own(0x4349_5048_4552));
        if bug.is_none() && plan.mirror.is_none() && plan.faults.cache.flush_error > 0 {
            plan.faults.cache.flush_drops = own(0x4452_4f50_5045).chance(1, 2);
        }
        plan
    }

    fn draw(seed: u64, rng: &mut Rng) -> Self {
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
        Self {
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
            truncations: Vec::new(),
            late_starts: None,
            mirror: None,
            cipher: None,
            owner: rng.pick(&[OwnerPlan::Records, OwnerPlan::Records, OwnerPlan::Later, OwnerPlan::Never]),
            requests: rng.range(60, 200) as u32 * if sample == 1 { 1 } else { sample as u32 / 2 + 1 },
            depth: rng.pick(&[1, 2, 4, 8, 8, 16, 16]),
            sample,
            mix: requests(rng),
        }
    }

    /// A cache device that dies, and flushes of backing stores that drop what they should have made
    /// durable.
    fn draw_failures(&mut self, rng: &mut Rng) {
        if rng.chance(1, 5) && !self.faults.damages() {
            self.die(rng);
        }
        // Whoever writes past the cache is told that the flush failed, and must write again;
        // destage must know itself.
        let destage_only = self.modes.iter().all(|mode| matches!(mode, Mode::Writeback | Mode::Writeonly));
        // Without the cache everything is written past it.
        let sound = self.death.is_none() && self.faults.cache == Faults::default();
        self.faults.backing.flush_drops =
            sound && destage_only && self.mix.zero == 0 && self.mix.rule_pct == 0 && rng.chance(1, 2);
        if self.faults.backing.flush_drops {
            self.settings.skip_sequential_bytes = 0;
        }
    }

    /// Leads the plan to the situation of a planted bug. Without a bug some seeds still go where
    /// one would show: what is looked for must not be there.
    fn lead(&mut self, row: Option<(Needs, Situation)>, rng: &mut Rng) {
        let aimed = rng.chance(1, 4);
        let aim = rng.pick(&bugs::situations_of_all());
        match row {
            // Its situation is made with the members.
            Some((Needs::Mirror, _)) => {}
            Some((_, situation)) => situation(self, rng),
            None if aimed => aim(self, rng),
            None => {}
        }
        if row.is_none() && rng.chance(1, 6) {
            rng.pick(&situations::RARE)(self, rng);
        }
    }

    fn draw_mirror(&mut self, row: Option<(Needs, Situation)>, rng: &mut Rng) {
        match row {
            Some((Needs::Mirror, situation)) => {
                let mirror = self.mirror(rng);
                self.calm_mirror(mirror, rng);
                situation(self, rng);
            }
            None if rng.chance(1, 5) => self.mirror = Some(self.mirror(rng)),
            _ => {}
        }
    }

    fn draw_outage(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        if needs == Some(Needs::Outage) || needs.is_none() && rng.chance(1, 8) {
            self.fail_over(rng);
        }
    }

    fn draw_truncations(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let wanted = matches!(needs, Some(Needs::ShortBacking | Needs::ShortCache));
        if !wanted && (needs.is_some() || !rng.chance(1, 5)) {
            return;
        }
        self.truncations = TruncationPlan::draw(self, needs, rng);
        let of_member = self.truncations.iter().any(TruncationPlan::is_of_member);
        if let Some(mirror) = self.mirror.as_mut().filter(|_| of_member) {
            // The other member must not fail while one has ended.
            mirror.only_truncations();
        }
    }

    fn draw_cipher(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let encrypted = needs == Some(Needs::Cipher) || needs.is_none() && rng.chance(1, 5);
        if encrypted && self.mirror.is_none() {
            self.cipher = Some(CipherPlan::draw(self.seed, self.uuid));
        }
    }

    /// The cache device answers no read for some seconds. Nothing else is wrong with it, so no
    /// block may be lost.
    fn fail_over(&mut self, rng: &mut Rng) {
        let sound = !self.faults.damages() && self.faults.cache.read_error == 0;
        // A member that cannot be read is put out, and then nobody has what the other one lost
        // silently.
        let true_members = self.mirror.as_ref().is_none_or(|mirror| mirror.harms == [false; 2]);
        if sound && true_members && self.death.is_none() {
            let at = rng.range(u64::from(self.requests) / 10, u64::from(self.requests) * 9 / 10);
            self.outage = Some((at, rng.range(20_000_000, 5_000_000_000)));
        }
    }

    /// The plan for a seed whose cache is small and not mirrored: the next one from this seed on.
    /// It is not encrypted either, so that its device can be looked at.
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

    /// Makes the cache a mirrored one, and draws what happens to its members.
    fn mirror(&mut self, rng: &mut Rng) -> MirrorPlan {
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
        MirrorPlan::draw(self.requests, rng)
    }

    /// A plan without chance: one volume on the smallest cache, devices that take the same time for
    /// the same, no faults.
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
            truncations: Vec::new(),
            late_starts: None,
            mirror: None,
            cipher: None,
            owner: OwnerPlan::Records,
            requests: 0,
            depth: 1,
            sample: 1,
            mix: Mix::default(),
        }
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
