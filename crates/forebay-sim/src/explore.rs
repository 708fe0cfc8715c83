//! Crash exploration: one seed after another, each with its crash points.
//!
//! Two styles. In **fork** style the main line runs without a crash; at crash points drawn at
//! random, devices and oracle are copied, the copy crashes, a new engine opens it, and everything
//! is read. Some copies crash again during the opening or later; some continue to work, drain, and
//! have their backing stores compared. In **in-line** style the main line itself crashes and
//! continues from the remains.
//!
//! Invariant: a fork never changes the main line, so a run with a smaller budget of crash points is
//! a prefix of a run with a larger one.

use crate::cipher::{nothing_shows, read_at_rest};
use crate::counters::Counters;
use crate::device::{Faults, SimDevice};
use crate::disks::{Snapshot, device_of};
use crate::ensure::ensure;
use crate::lost_extension::{is_segment_lost, lose_extension};
use crate::plan::{Plan, Style};
use crate::rng::{Digest, Rng};
use crate::start::first_state;
use crate::workload::{
    Advance, Record, Replayed, Workload, changed_after_crash, close_and_reopen, read_everything, serves,
    settle,
};
use crate::world::{Trap, World, check_images, elsewhere};
use forebay_core::{OnBackingChange, PlantedBug, fault};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry};
use std::rc::Rc;

/// Longest series of crashes.
const DEPTH_MAX: u32 = 3;

/// A replacement for the workload of a seed: recorded steps, and the crashes to try.
#[derive(Clone)]
pub struct Trial {
    /// The steps.
    pub script: Rc<Vec<Replayed>>,
    /// Crashes are taken once at most this many steps are left; `None`: never.
    pub crash_in_last: Option<usize>,
    /// Selects the crashes.
    pub salt: u64,
    /// After a crash: no second crash, no further requests; read, drain, compare.
    pub plain: bool,
}

/// The run of one seed.
pub struct Run {
    plan: Rc<Plan>,
    trial: Option<Trial>,
    /// The record of the main line's steps.
    pub record: Option<Record>,
    /// Crash points left to take.
    budget: u64,
    /// Crash points taken.
    pub crash_points: u64,
    /// Requests and events so far, without those of most forks.
    pub step: u64,
    /// Counters of all worlds.
    pub counters: Counters,
    /// Digest of all worlds.
    pub digest: Digest,
    verbose: bool,
    trail: String,
}

impl Run {
    /// Creates the run of a seed with a budget of crash points.
    #[must_use]
    pub fn new(seed: u64, bug: Option<PlantedBug>, budget: u64, verbose: bool) -> Self {
        Self::of(Plan::new(seed, bug), budget, verbose)
    }

    /// Creates the run of a trial.
    #[must_use]
    pub fn of_trial(plan: Plan, budget: u64, trial: Trial, verbose: bool) -> Self {
        Self { trial: Some(trial), ..Self::of(plan, budget, verbose) }
    }

    /// Creates the run of a plan.
    #[must_use]
    pub fn of(plan: Plan, budget: u64, verbose: bool) -> Self {
        Self {
            plan: Rc::new(plan),
            trial: None,
            record: None,
            budget,
            crash_points: 0,
            step: 0,
            counters: Counters::default(),
            digest: Digest::default(),
            verbose,
            trail: String::new(),
        }
    }

    /// Runs the seed.
    ///
    /// # Errors
    /// Describes the engine's violation.
    pub fn go(&mut self) -> Result<(), String> {
        if self.verbose {
            eprintln!("{:#?}", self.plan);
        }
        let result = match self.plan.style {
            Style::Fork => self.fork_style(),
            Style::InLine => self.in_line(),
        };
        result.map_err(|why| format!("{}{why}", self.trail))
    }

    fn full(&self) -> bool {
        self.crash_points >= self.budget
    }

    fn open(&mut self, snapshot: Snapshot, trap: Trap) -> World {
        let mut world = World::open(&self.plan, snapshot, OnBackingChange::Refuse);
        (world.trap, world.verbose, world.label) = (trap, self.verbose, self.crash_points);
        world
    }

    fn close(&mut self, world: &World) -> Result<(), String> {
        if !world.stopped {
            world.check_counters()?;
        }
        self.counters.add(&world.final_counters());
        self.digest.add(world.digest.0);
        Ok(())
    }

    fn fork_style(&mut self) -> Result<(), String> {
        let plan = Rc::clone(&self.plan);
        let mut world = self.open(first_state(&plan)?, Trap::Sample(plan.sample));
        self.trail = "main line: ".into();
        ensure!(world.wait_open()?, "a new cache does not open: {:?}", world.engine.status());
        let mut workload = self.workload();
        if let Some(trial) = &self.trial {
            world.reseed_crashes(trial.salt);
        }
        set_faults(&mut world);
        loop {
            self.step += 1;
            if let Some(trial) = &self.trial {
                let now = trial.crash_in_last.is_some_and(|last| workload.kept_left() <= last);
                world.trap = if now { Trap::Sample(1) } else { Trap::Off };
            }
            inject(&mut world)?;
            let advance = workload.advance(&mut world)?;
            for snapshot in std::mem::take(&mut world.snapshots) {
                if !self.full() {
                    let trail = std::mem::take(&mut self.trail);
                    self.explore(snapshot, 1)?;
                    self.trail = trail;
                }
            }
            if advance == Advance::Done || self.full() {
                break;
            }
        }
        world.trap = Trap::Off;
        if !self.full() {
            finish(&mut world)?;
        }
        self.close(&world)?;
        Ok(())
    }

    /// Returns the workload of the main line.
    fn workload(&self) -> Workload {
        if let Some(trial) = &self.trial {
            return Workload::replaying(Rc::clone(&trial.script), self.plan.depth);
        }
        let plan = &self.plan;
        let workload = Workload::new(plan.requests, plan.depth, !plan.faults.damages());
        match &self.record {
            Some(record) => workload.recording(Rc::clone(record)),
            None => workload,
        }
    }

    fn in_line(&mut self) -> Result<(), String> {
        let mut snapshot = first_state(&self.plan)?;
        for round in 0..40 {
            let trap = Trap::After(snapshot.rng.pick(&[3, 10, 40, 150, 600]));
            let mut rng = Rng::new(snapshot.rng.word());
            self.trail = format!("in line, round {round} (after a {}): ", crash_name(&snapshot));
            let world = self.open(snapshot, if round == 0 { Trap::Off } else { trap });
            let next = self.round(world, round, trap, &mut rng)?;
            let Some(next) = next else { break };
            self.crash_points += 1;
            snapshot = next;
            if self.full() {
                break;
            }
        }
        Ok(())
    }

    /// Runs one engine of an in-line run. Returns the state after its crash, or `None` at the end.
    fn round(
        &mut self,
        mut world: World,
        round: u32,
        trap: Trap,
        rng: &mut Rng,
    ) -> Result<Option<Snapshot>, String> {
        let (plan, relaxed) = (Rc::clone(&self.plan), world.oracle.relaxed);
        if open_with_errors(&mut world)? {
            world.trap = trap;
            set_faults(&mut world);
            if round > 0 {
                world.stop_faults();
                read_everything(&mut world)?;
                set_faults(&mut world);
            }
            self.work(&mut world, Workload::new(plan.requests, plan.depth, !plan.faults.damages()))?;
        } else if !world.stopped {
            ensure!(relaxed || world.had_errors(), "does not open: {:?}", world.engine.status());
        }
        nothing_shows(&self.plan, &world.disks.devices[0])?;
        self.close(&world)?;
        let next = world.snapshots.pop();
        if world.stopped || !serves(&world) || !rng.chance(3, 4) {
            return Ok(next);
        }
        Ok(Some(world.crash()))
    }

    /// Opens the state after a crash, and judges it.
    fn explore(&mut self, mut snapshot: Snapshot, depth: u32) -> Result<(), String> {
        self.crash_points += 1;
        self.trail = format!("{}crash {} at {} ns ({}): ", self.trail, self.crash_points, snapshot.now, {
            crash_name(&snapshot)
        });
        backing_alone(&self.plan, &snapshot)?;
        nothing_shows(&self.plan, &snapshot.disks.devices[0])?;
        check_images(&mut snapshot)?;
        if snapshot.rng.chance(1, 6) {
            damage_one_copy(&self.plan, &mut snapshot);
        }
        lose_extension(&self.plan, &mut snapshot);
        let plain = self.is_plain();
        // Separate generator, so that the other draws do not change.
        let own = &mut Rng::new(snapshot.rng.clone().word() ^ 0x4f54_4845_5253);
        let aimed = fault::planted(PlantedBug::TrustAfterCrash);
        if own.chance(1, if aimed { 2 } else { 10 }) {
            self.counters.add(&changed_after_crash(&self.plan, snapshot.clone(), own)?);
        }
        let elsewhere = opened_elsewhere(&self.plan, &snapshot);
        self.counters.add(&elsewhere.map_err(|why| format!("elsewhere: {why}"))?);
        let deeper = depth < DEPTH_MAX && snapshot.rng.chance(1, 5) && !plain;
        let trap = if deeper { Trap::After(snapshot.rng.range(1, 8)) } else { Trap::Off };
        let plan = if plain { 0 } else { snapshot.rng.below(12) };
        let mut world = self.open(snapshot, trap);
        world.stop_faults();
        let serves = open_with_errors(&mut world)?;
        let refused = world.disks.untold && is_segment_lost(world.engine.status());
        if !world.stopped {
            ensure!(serves || refused || world.oracle.relaxed, "does not open: {:?}", world.engine.status());
        }
        if serves {
            world.trap = Trap::Off;
            read_everything(&mut world)?;
            self.afterlife(&mut world, plan, depth)?;
        }
        self.close(&world)?;
        for next in std::mem::take(&mut world.snapshots) {
            if !self.full() {
                self.explore(next, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Runs a workload with faults, to the next crash or its end.
    fn work(&mut self, world: &mut World, mut workload: Workload) -> Result<(), String> {
        loop {
            self.step += 1;
            inject(world)?;
            if workload.advance(world)? == Advance::Done {
                break;
            }
        }
        if world.stopped { Ok(()) } else { finish(world) }
    }

    /// Returns true if after a crash the run only reads, drains and compares.
    fn is_plain(&self) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.plain)
    }

    /// Continues a fork after it was read: mostly not at all, because most violations have shown by
    /// then.
    fn afterlife(&mut self, world: &mut World, plan: u64, depth: u32) -> Result<(), String> {
        match plan {
            0 | 1 => settle(world),
            2 => {
                let requests = world.rng.range(5, 60) as u32;
                Workload::new(requests, 8, false).run(world)?;
                settle(world)?;
                close_and_reopen(world)
            }
            3 if depth < DEPTH_MAX => {
                world.trap = Trap::After(world.rng.range(1, 60));
                let requests = world.rng.range(5, 40) as u32;
                Workload::new(requests, 8, false).run(world)
            }
            4 => {
                settle(world)?;
                close_and_reopen(world)
            }
            5 if !self.is_plain() => {
                // The faults of the main line continue, and a crash may occur among them.
                if depth < DEPTH_MAX && world.rng.chance(1, 2) {
                    world.trap = Trap::After(world.rng.range(1, 60));
                }
                set_faults(world);
                let requests = world.rng.range(5, 60) as u32;
                self.work(world, Workload::new(requests, 8, !self.plan.faults.damages()))
            }
            _ => Ok(()),
        }
    }
}

/// Destroys one of two equal copies of the metadata, which must never matter. The other copy is
/// safe from loss in the volatile cache of the device: a power cut may come before the engine has
/// rewritten the destroyed copy, and no cache outlives the loss of both.
pub(crate) fn damage_one_copy(plan: &Plan, snapshot: &mut Snapshot) {
    let geometry = plan.geometry;
    let cache = &mut snapshot.disks.devices[0];
    let mut bytes = vec![0; geometry.checkpoint_slot_blocks as usize * BLOCK_BYTES];
    let mut read = |cache: &SimDevice, offset: u64, len: usize| {
        read_at_rest(plan, cache.visible(), offset, &mut bytes[..len]);
        bytes[..len].to_vec()
    };
    let superblocks = [0, 1].map(|copy| {
        let bytes = read(cache, Geometry::superblock_offset(copy), BLOCK_BYTES);
        Superblock::decode(&bytes).ok()
    });
    let [Some(a), Some(b)] = superblocks else { return };
    if a.generation != b.generation {
        return;
    }
    let copy = snapshot.rng.below(2);
    if snapshot.rng.chance(1, 2) {
        if !cache.is_durable(Geometry::superblock_offset(1 - copy as usize), BLOCK_BYTES) {
            return;
        }
        cache.rot(Geometry::superblock_offset(copy as usize) + snapshot.rng.below(512), 3);
        return;
    }
    let (offset, len) = a.checkpoint_place(1 - copy);
    let other = read(cache, offset, len as usize);
    if a.read_checkpoint(&other).is_ok() && cache.is_durable(offset, len as usize) {
        // A header, or some block of the increments, which follow two blocks in a small cache.
        let block = match a.chain {
            Some(chain) if snapshot.rng.chance(1, 2) => 2 + snapshot.rng.below(chain.blocks.into()),
            _ => 0,
        };
        let at = block * BLOCK_BYTES as u64 + snapshot.rng.below(4096);
        cache.rot(a.checkpoint_place(copy).0 + at, 5);
    }
}

/// If no mode keeps dirty data, the backing stores alone must hold all data acknowledged (kill) or
/// flushed (power cut): the cache device may be lost as well.
pub(crate) fn backing_alone(plan: &Plan, snapshot: &Snapshot) -> Result<(), String> {
    if !plan.writes_past() || snapshot.disks.damaged {
        return Ok(());
    }
    for volume in 0..plan.volumes.len() {
        // A volume that comes or goes is judged once its presence is known.
        if !snapshot.disks.volumes[volume].is_attached() {
            continue;
        }
        let image = snapshot.disks.devices[1 + volume].visible();
        snapshot.oracle.check_image(volume, image, "the backing store alone, after losing the cache")?;
    }
    Ok(())
}

/// Opens the state after a crash on another host, with a replaced member in the place of the new
/// one: no wrong data may be served, and once the change has ended that member must be left out.
fn opened_elsewhere(plan: &Rc<Plan>, snapshot: &Snapshot) -> Result<Counters, String> {
    let Some((snapshot, of, has_ended)) = elsewhere(snapshot.clone()) else { return Ok(Counters::default()) };
    let mut world = World::open(plan, snapshot, OnBackingChange::Refuse);
    ensure!(world.wait_open()?, "does not open: {:?}", world.engine.status());
    let out = world.engine.mirror_state().and_then(|state| state.out);
    let is_out = out.is_some_and(|out| device_of(plan, usize::from(out)) == of);
    world.counters.opened_elsewhere += 1;
    world.counters.believed_elsewhere += u64::from(!is_out);
    read_everything(&mut world)?;
    settle(&mut world)?;
    ensure!(is_out || !has_ended, "a device is believed that was replaced");
    Ok(world.final_counters())
}

pub(crate) fn crash_name(snapshot: &Snapshot) -> &'static str {
    if snapshot.power { "power cut" } else { "kill" }
}

/// Waits until a cache is open whose members may report errors meanwhile. An opening that failed
/// because of them must succeed without them.
fn open_with_errors(world: &mut World) -> Result<bool, String> {
    let plan = Rc::clone(&world.plan);
    let rate = plan.mirror.as_ref().map_or(0, |mirror| mirror.opening_errors);
    if rate == 0 || world.label == 0 {
        return world.wait_open();
    }
    // Half of the cases only where members are repaired.
    let spares_metadata = world.rng.chance(1, 2);
    for member in 0..2 {
        world.disks.devices[device_of(&plan, member)].faults =
            Faults { write_error: rate, spares_metadata, ..Faults::default() };
    }
    let serves = world.wait_open()?;
    world.stop_faults();
    if serves || world.stopped {
        return Ok(serves);
    }
    world.wait_flights()?;
    world.reopen(OnBackingChange::Refuse);
    let serves = world.wait_open()?;
    ensure!(serves || world.stopped, "does not open without errors: {:?}", world.engine.status());
    Ok(serves)
}

/// Starts the faults, once the cache is open, so that the opening is judged by itself.
fn set_faults(world: &mut World) {
    let plan = Rc::clone(&world.plan);
    world.quiet_copies(false);
    for (index, device) in world.disks.devices.iter_mut().enumerate() {
        let backing = (1..=plan.volumes.len()).contains(&index);
        device.faults = if backing { plan.faults.backing } else { plan.faults.cache };
    }
    for member in 0..2 {
        if let Some(mirror) = &plan.mirror {
            world.disks.devices[device_of(&plan, member)].faults = mirror.faults[member];
        }
    }
}

/// Injects bit rot and unreadable sectors into the cache device, and the other planned faults.
fn inject(world: &mut World) -> Result<(), String> {
    world.shorten_device();
    world.stall_device();
    world.fail_cache()?;
    world.fail_and_replace_members()?;
    world.begin_copy();
    let faults = world.plan.faults;
    let geometry = world.plan.geometry;
    let start = geometry.segments_start_block * BLOCK_BYTES as u64;
    let bytes = geometry.segment_bytes() * u64::from(geometry.segment_count);
    if faults.rot > 0 && world.rng.ppm(faults.rot) {
        let at = start + world.rng.below(bytes);
        world.disks.devices[0].rot(at, world.rng.below(8) as u8);
        world.damage(at, 1);
    }
    if faults.spoil > 0 && world.rng.ppm(faults.spoil) {
        let at = start + world.rng.below(bytes);
        world.disks.devices[0].spoil(at);
        world.damage(at, 1);
    }
    Ok(())
}

/// Ends a main line: everything must come to rest with the right content.
fn finish(world: &mut World) -> Result<(), String> {
    settle(world)?;
    let gave_up = world.fenced && !world.engine.runs_without_cache();
    if world.plan.faults.damages() || gave_up || world.stopped || !serves(world) {
        return Ok(());
    }
    close_and_reopen(world)
}
