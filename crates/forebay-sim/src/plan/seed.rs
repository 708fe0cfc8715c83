//! The plan of a seed: draws its parts one after the other.
//!
//! Invariant: each of the later parts has its own generator, so that a change of one does not
//! affect the others.

use super::bugs;
use super::draw::{
    backing_latency, cache_latency, endurance_budget, engine, faults, geometry, mirrored_geometry, modes,
    orders, requests, settings, volume,
};
use super::situations;
use super::types::{
    CipherPlan, DiscardPlan, FaultPlan, MirrorPlan, Mix, Needs, OwnerPlan, Plan, Scale, Situation, Style,
    TruncationPlan, VolumePlan,
};
use crate::device::{Death, Faults, Latency};
use crate::rng::{Rng, mix};
use forebay_core::{DestageOrder, EngineConfig, PlantedBug, VolumeSettings};
use forebay_format::checkpoint::Mode;
use forebay_format::{BLOCK_BYTES, CacheUuid};

impl Plan {
    /// Returns the plan for a seed. Each of its later parts has its own generator, so that a change
    /// of one does not affect the others.
    #[must_use]
    pub fn new(seed: u64, bug: Option<PlantedBug>) -> Self {
        let row = bug.map(bugs::row);
        let needs = row.map(|(needs, _)| needs);
        let own = |salt: u64| Rng::new(mix(seed) ^ salt);
        let rng = &mut own(0x504c_414e);
        let mut plan = Self::draw(seed, rng);
        plan.draw_failures(rng);
        plan.engine.zero_step_blocks = own(0x5354_4550).pick(&[1, 2, 7, 16384]);
        plan.engine.stretch_blocks = own(0x5354_5245).pick(&[1, 4, 16, 1024]);
        plan.engine.summaries_from_blocks = own(0x5355_4d4d).pick(&[0, 0, 0, 128]);
        plan.engine.checkpoint.log_bytes = own(0x4c4f47).pick(&[0, 0, 64 << 20]);
        plan.lead(row, rng);
        plan.draw_scale(needs, &mut own(0x53_4341_4c45));
        plan.draw_mirror(row, &mut own(0x4d49_5252_4f52));
        plan.draw_outage(needs, &mut own(0x4f55_5441_4745));
        plan.draw_truncations(needs, &mut own(0x454e_4453));
        plan.draw_late_starts(needs, &mut own(0x4255_5359));
        plan.draw_cipher(needs, &mut own(0x4349_5048_4552));
        plan.draw_chain(needs, &mut own(0x43_4841_494e));
        plan.draw_discards(needs, &mut own(0x5452_494d));
        plan.draw_lost_extensions(needs, &mut own(0x4558_5445_4e44));
        plan.draw_endurance(needs, &mut own(0x4255_4447_4554));
        plan.draw_copies(needs, &mut own(0x434f_5049_4553));
        if bug.is_none() {
            plan.draw_in_use(&mut own(0x4c49_4645));
        }
        if bug.is_none() && plan.mirror.is_none() && plan.faults.cache.flush_error > 0 {
            plan.faults.cache.flush_drops = own(0x4452_4f50_5045).chance(1, 2);
        }
        if bug.is_none() && plan.may_drop_past() && own(0x5041_5354).chance(1, 2) {
            plan.drop_past();
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
            stalls: Vec::new(),
            redraws: false,
            first_flush_epoch: 0,
            clock_restarts: false,
            record_lag_ns: 0,
            lost_extensions_of: 0,
            discards: DiscardPlan::default(),
            late_starts: None,
            mirror: None,
            copies: None,
            cipher: None,
            owner: rng.pick(&[OwnerPlan::Records, OwnerPlan::Records, OwnerPlan::Later, OwnerPlan::Never]),
            drops_past: false,
            requests: rng.range(60, 200) as u32 * if sample == 1 { 1 } else { sample as u32 / 2 + 1 },
            depth: rng.pick(&[1, 2, 4, 8, 8, 16, 16]),
            sample,
            mix: requests(rng),
        }
    }

    /// Draws a cache device that dies, and flushes of backing stores that drop data they should
    /// have made durable.
    fn draw_failures(&mut self, rng: &mut Rng) {
        if rng.chance(1, 5) && !self.faults.damages() {
            self.die(rng);
        }
        // A client that bypasses the cache gets the error of the flush, and must write again;
        // destage must handle it itself.
        let destage_only = self.modes.iter().all(|mode| matches!(mode, Mode::Writeback | Mode::Writeonly));
        // Without the cache all writes bypass it.
        let sound = self.death.is_none() && self.faults.cache == Faults::default();
        self.faults.backing.flush_drops =
            sound && destage_only && self.mix.zero == 0 && self.mix.rule_pct == 0 && rng.chance(1, 2);
        // Writes of a volume that is being detached bypass the cache. The order of epochs would
        // include those that a failed flush has dropped, which a FLUSH of the client reports.
        let leaves_in_order = self.mix.lifecycle > 0 && self.orders.contains(&DestageOrder::Ordered);
        self.faults.backing.flush_drops &= !leaves_in_order;
        if self.faults.backing.flush_drops {
            self.settings.skip_sequential_bytes = 0;
        }
    }

    /// Returns true if a flush of a backing store may drop bypass writes of a healthy cache.
    fn may_drop_past(&self) -> bool {
        self.may_unplug() && self.faults.backing.flush_error > 0
    }

    /// Returns true if a backing store may lose bypass writes of a healthy cache. The order of
    /// epochs is not judged then: it would include writes whose loss the client does not know of.
    pub(super) fn may_unplug(&self) -> bool {
        let sound = self.death.is_none() && self.faults.cache == Faults::default() && self.outage.is_none();
        sound && !self.orders.contains(&DestageOrder::Ordered)
    }

    pub(super) fn drop_past(&mut self) {
        (self.drops_past, self.faults.backing.flush_drops) = (true, true);
        self.settings.skip_sequential_bytes = 0; // So that the oracle knows all bypass writes.
    }

    /// Leads the plan to the situation of a planted bug. Some seeds without a bug go to such a
    /// situation too: it must not reveal anything.
    fn lead(&mut self, row: Option<(Needs, Situation)>, rng: &mut Rng) {
        let aimed = rng.chance(1, 4);
        let aim = rng.pick(&bugs::situations_of_all());
        match row {
            // Applied later, with the members.
            Some((Needs::Mirror | Needs::MirroredCopies, _)) => {}
            Some((_, situation)) => situation(self, rng),
            None if aimed => aim(self, rng),
            None => {}
        }
        if row.is_none() && rng.chance(1, 6) {
            rng.pick(&situations::RARE)(self, rng);
        }
    }

    /// Draws chains of increments, which small caches do not have by themselves.
    fn draw_chain(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let checkpoint = &mut self.engine.checkpoint;
        checkpoint.keep_snapshot = true;
        if needs == Some(Needs::Chain) || needs.is_none() && rng.chance(2, 3) {
            (checkpoint.chain_from_blocks, checkpoint.piece_blocks) = (0, 1);
            checkpoint.piece_pause = rng.pick(&[0, 1_000_000, 20_000_000, 100_000_000]);
            checkpoint.chain_blocks_max = rng.pick(&[4, 8, 16, u64::MAX]);
            checkpoint.changes_max = rng.pick(&[30, 1000, 1000]);
        }
        if needs == Some(Needs::Chain) {
            // Chains that end often, and bases that take some checkpoints.
            (checkpoint.chain_blocks_max, checkpoint.piece_pause) =
                (12, rng.pick(&[20_000_000, 100_000_000]));
            checkpoint.changes_max = 1000;
            (self.requests, self.sample) = (rng.range(1000, 2000) as u32, 100);
            self.mix.write = self.mix.write.max(50);
        }
    }

    fn draw_discards(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let aimed = needs == Some(Needs::Discards);
        if !aimed && (needs.is_some() || rng.chance(1, 3)) {
            return;
        }
        self.engine.pool.discard_freed = true;
        if aimed {
            // Long enough for concurrent snapshots.
            self.discards.ns_max = rng.pick(&[0, 20_000_000]);
        } else {
            self.discards = DiscardPlan {
                refuses: rng.chance(1, 8),
                error_ppm: rng.pick(&[0, 0, 20_000, 200_000]),
                ns_max: rng.pick(&[0, 0, 1_000_000, 50_000_000, 3_000_000_000]),
            };
        }
    }

    fn draw_endurance(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        if needs.is_none() && rng.chance(1, 4) {
            self.engine.pool.endurance_budget = endurance_budget(rng.below(6) as u32);
        }
    }

    /// Draws lost extensions. Mirrored caches have no extensions, and the simulator cannot read
    /// encrypted ones.
    fn draw_lost_extensions(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let small = self.mirror.is_none() && self.cipher.is_none() && self.scale == Scale::Small;
        match needs {
            Some(Needs::LostExtensions) => self.lost_extensions_of = 1,
            None if small && rng.chance(1, 6) => {
                self.lost_extensions_of = rng.pick(&[1, 2, 4]);
                match rng.below(4) {
                    0 => self.refilled_segments(rng),
                    1 => self.refilled_clean_segments(rng),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn draw_mirror(&mut self, row: Option<(Needs, Situation)>, rng: &mut Rng) {
        match row {
            Some((Needs::Mirror | Needs::MirroredCopies, situation)) => {
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
        let wanted = matches!(needs, Some(Needs::ShortBacking | Needs::ShortCache | Needs::UnpluggedBacking));
        if !wanted && (needs.is_some() || !rng.chance(1, 5)) {
            return;
        }
        self.truncations = TruncationPlan::draw(self, needs, rng);
        if self.truncations.iter().any(|end| end.unplugged) {
            self.drop_past();
        }
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

    /// Draws an outage: the cache device answers no read for some seconds. It has no other fault,
    /// so no block may be lost.
    fn fail_over(&mut self, rng: &mut Rng) {
        let sound = !self.faults.damages() && self.faults.cache.read_error == 0;
        // An unreadable member is failed out, and then no copy is left of blocks that the other one
        // lost silently.
        let true_members = self.mirror.as_ref().is_none_or(|mirror| mirror.harms == [false; 2]);
        if sound && true_members && self.death.is_none() {
            let at = rng.range(u64::from(self.requests) / 10, u64::from(self.requests) * 9 / 10);
            self.outage = Some((at, rng.range(20_000_000, 5_000_000_000)));
        }
    }

    /// Returns the plan for a seed whose cache is small and not mirrored: the next such plan from
    /// this seed on. It has no encryption or copies either, so that its device is readable.
    #[must_use]
    pub fn unmirrored(mut seed: u64) -> Self {
        loop {
            let plan = Self::new(seed, None);
            let small = plan.scale == Scale::Small && !plan.volumes.iter().any(VolumePlan::is_sparse);
            if plan.mirror.is_none() && small {
                return Self { cipher: None, copies: None, ..plan };
            }
            seed = mix(seed);
        }
    }

    /// Makes the cache a mirrored one, and draws the failures of its members.
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
        // So that crashes also occur where members are replaced, not only at the beginning.
        self.sample = self.sample.max(rng.pick(&[3, 10, 30]));
        MirrorPlan::draw(self.requests, rng)
    }

    /// Returns this plan with a mirrored cache whose members have these failures, and nothing else.
    #[must_use]
    pub(crate) fn with_members(mut self, failures: Vec<(u64, usize, Option<Death>)>) -> Self {
        let rng = &mut Rng::new(mix(self.seed));
        let _ = self.mirror(rng);
        self.owner = OwnerPlan::Records;
        self.mirror = Some(MirrorPlan { failures, ..MirrorPlan::default() });
        (self.faults, self.late_starts) = (FaultPlan::default(), None);
        self
    }

    /// Returns a plan without randomness: one volume on the smallest cache, devices with constant
    /// times, no faults.
    #[must_use]
    pub fn tiny(bytes: u64, modes: Vec<Mode>, settings: VolumeSettings) -> Self {
        let geometry = geometry(16, 16);
        let latency = |read_ns, write_ns, flush_ns| Latency {
            read_ns,
            write_ns,
            flush_ns,
            block_ns: 1_000,
            ..Latency::default()
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
            stalls: Vec::new(),
            redraws: false,
            first_flush_epoch: 0,
            clock_restarts: false,
            record_lag_ns: 0,
            lost_extensions_of: 0,
            discards: DiscardPlan::default(),
            late_starts: None,
            mirror: None,
            copies: None,
            cipher: None,
            owner: OwnerPlan::Records,
            drops_past: false,
            requests: 0,
            depth: 1,
            sample: 1,
            mix: Mix::default(),
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
