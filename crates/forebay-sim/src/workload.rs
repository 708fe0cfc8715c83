//! The workload of clients and operators: random requests in the mixture of the plan.

use crate::content::Content;
use crate::counters::Counters;
use crate::device::SimDevice;
use crate::disks::{AttachState, Disks, Snapshot, VolumeStatus};
use crate::ensure::ensure;
use crate::plan::{Mix, OwnerPlan, Plan, endurance_budget, pool_settings, settings};
use crate::rng::{Rng, mix};
use crate::world::{ANSWER_LIMIT_NS, Trap, World};
use forebay_core::{
    Drain, EnduranceBudget, OnBackingChange, PoolSettings, RequestKind, Status, Suspicion, Treatment,
    VolumeSettings,
};
use forebay_format::VolumeId;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const BLOCK: u64 = 4096;
/// Longest request, except for those of [`crate::plan::Mix::huge_of`].
const LARGE_BYTES: u64 = 256 << 10;
/// Longest request of any front end of the product.
const HUGE_BYTES: u64 = 32 << 20;

/// The workload's next move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advance {
    /// It continues.
    More,
    /// All requests were answered, or the trap has stopped the world.
    Done,
}

/// A number of requests at a queue depth.
pub struct Workload {
    left: u32,
    depth: usize,
    next_at: u64,
    last_end: u64,
    restarts: bool,
    recorded: Option<Record>,
    replays: Option<Rc<Vec<Replayed>>>,
}

/// One step of a workload, with all drawn values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// No step: the drawn one was impossible.
    Nothing,
    /// A request.
    Ask {
        /// Volume.
        volume: usize,
        /// Kind of request.
        kind: RequestKind,
        /// First byte and length.
        range: (u64, u64),
        /// The treatment by the owner's rules.
        treatment: Treatment,
    },
    /// New settings of a volume, and of the pool.
    Configure {
        /// Volume.
        volume: usize,
        /// Its settings.
        settings: VolumeSettings,
        /// Those of the pool.
        pool: Option<PoolSettings>,
    },
    /// Begins or ends a drain.
    Drain {
        /// Volume.
        volume: usize,
        /// Mode of the drain.
        drain: Drain,
    },
    /// Releases all pins of a volume.
    Unpin(usize),
    /// Forgets the clean blocks of a volume.
    ForgetClean(usize),
    /// Makes no further step for this many nanoseconds.
    Pause(u64),
    /// A request that the engine must refuse.
    Invalid,
    /// An orderly stop and a start.
    Restart,
    /// Operator change of a volume, drawn from the generator.
    Lifecycle(usize),
    /// Operator resize of the pool.
    Pool,
    /// The operator begins a scrub, or cancels it.
    Scrub,
}

impl Step {
    /// Returns the number of the affected volume, to change it.
    pub(crate) fn volume_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Ask { volume, .. } | Self::Configure { volume, .. } | Self::Drain { volume, .. } => {
                Some(volume)
            }
            Self::Unpin(volume) | Self::ForgetClean(volume) | Self::Lifecycle(volume) => Some(volume),
            Self::Nothing | Self::Pause(_) | Self::Invalid | Self::Restart | Self::Pool | Self::Scrub => None,
        }
    }

    /// Returns the affected volume.
    #[must_use]
    pub fn volume(mut self) -> Option<usize> {
        self.volume_mut().copied()
    }
}

/// A recorded step, with the world's generator before and after it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The step.
    pub step: Step,
    pub(crate) before: Rng,
    pub(crate) after: Rng,
}

/// The record of a workload's steps. Shared, so that it survives a panic.
pub type Record = Rc<RefCell<Vec<Recorded>>>;

/// A step to replay or to skip.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The step.
    pub recorded: Recorded,
    /// The step is replayed.
    pub kept: bool,
}

fn is_write(kind: RequestKind) -> bool {
    !matches!(kind, RequestKind::Read | RequestKind::Prefetch | RequestKind::Flush)
}

/// The kind of the next step, drawn from the mix.
#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Flush,
    Zero,
    Prefetch,
    Mode,
    Tune,
    Drain,
    Sweep,
    Pause,
    Invalid,
    Restart,
    Lifecycle,
    Pool,
    Scrub,
}

fn draw(mix: &Mix, rng: &mut Rng) -> Operation {
    let table = [
        (mix.read, Operation::Read),
        (mix.write, Operation::Write),
        (mix.flush, Operation::Flush),
        (mix.zero, Operation::Zero),
        (mix.prefetch, Operation::Prefetch),
        (mix.mode, Operation::Mode),
        (mix.tune, Operation::Tune),
        (mix.drain, Operation::Drain),
        (mix.sweep, Operation::Sweep),
        (mix.pause, Operation::Pause),
        (mix.invalid, Operation::Invalid),
        (mix.restart, Operation::Restart),
        (mix.lifecycle, Operation::Lifecycle),
        (mix.pool, Operation::Pool),
        (mix.scrub, Operation::Scrub),
    ];
    let total: u32 = table.iter().map(|(weight, _)| weight).sum();
    let mut at = rng.below(u64::from(total)) as u32;
    for (weight, operation) in table {
        if at < weight {
            return operation;
        }
        at -= weight;
    }
    Operation::Write
}

impl Workload {
    /// Creates a workload of `requests` requests. `restarts`: with orderly stops and starts among
    /// them.
    #[must_use]
    pub fn new(requests: u32, depth: usize, restarts: bool) -> Self {
        Self { left: requests, depth, next_at: 0, last_end: 0, restarts, recorded: None, replays: None }
    }

    /// Records the steps.
    #[must_use]
    pub fn recording(self, record: Record) -> Self {
        Self { recorded: Some(record), ..self }
    }

    /// Creates a workload that replays recorded steps.
    #[must_use]
    pub fn replaying(script: Rc<Vec<Replayed>>, depth: usize) -> Self {
        let left = script.len() as u32;
        Self { replays: Some(script), ..Self::new(left, depth, true) }
    }

    /// Returns the number of steps left to replay.
    #[must_use]
    pub fn kept_left(&self) -> usize {
        let script = self.replays.iter().flat_map(|script| script.iter());
        script.rev().take(self.left as usize).filter(|step| step.kept).count()
    }

    /// Makes one request, or lets one event happen.
    ///
    /// # Errors
    /// Any violation.
    pub fn advance(&mut self, world: &mut World) -> Result<Advance, String> {
        if world.stopped {
            return Ok(Advance::Done);
        }
        if self.left > 0 && world.in_flight() < self.depth && world.now >= self.next_at {
            self.left -= 1;
            self.act(world)?;
            return Ok(Advance::More);
        }
        if self.left == 0 && world.in_flight() == 0 {
            return Ok(Advance::Done);
        }
        let pausing = self.left > 0 && world.in_flight() < self.depth;
        world.step(if pausing { self.next_at } else { u64::MAX })?;
        Ok(Advance::More)
    }

    /// Runs the workload to its end.
    ///
    /// # Errors
    /// Any violation.
    pub fn run(&mut self, world: &mut World) -> Result<(), String> {
        while self.advance(world)? == Advance::More {}
        Ok(())
    }

    /// Makes the next step. On replay, sets the generator of the world to its recorded state, so
    /// that a step does the same whichever earlier steps were skipped.
    fn act(&mut self, world: &mut World) -> Result<(), String> {
        let Some(script) = self.replays.clone() else {
            let step = self.choose(world);
            if let Some(record) = &self.recorded {
                let (before, after) = (world.rng.clone(), world.rng.clone());
                record.borrow_mut().push(Recorded { step, before, after });
            }
            let result = self.perform(world, step);
            if let Some(record) = &self.recorded
                && let Some(last) = record.borrow_mut().last_mut()
            {
                last.after = world.rng.clone();
            }
            return result;
        };
        let at = script.len() - 1 - self.left as usize;
        let Replayed { recorded, kept } = &script[at];
        if !kept {
            world.rng = recorded.after.clone();
            return Ok(());
        }
        world.rng = recorded.before.clone();
        self.perform(world, recorded.step)
    }

    /// Draws the next step from the mix.
    fn choose(&mut self, world: &mut World) -> Step {
        let mix = world.plan.mix;
        let volume = world.rng.below(world.plan.volumes.len() as u64) as usize;
        let fua = world.rng.chance(mix.fua_pct, 100);
        let operation = draw(&mix, &mut world.rng);
        let absent = !world.attached().contains(&volume);
        if absent
            && !matches!(
                operation,
                Operation::Lifecycle
                    | Operation::Pool
                    | Operation::Scrub
                    | Operation::Restart
                    | Operation::Invalid
                    | Operation::Pause
            )
        {
            // The volume is detached: no requests. Attach it again soon enough to be of interest.
            return if world.rng.chance(1, 10) { Step::Lifecycle(volume) } else { Step::Nothing };
        }
        match operation {
            Operation::Read => {
                let range = self.range(world, volume);
                self.ask(world, volume, RequestKind::Read, range)
            }
            Operation::Write => {
                let range = self.range(world, volume);
                if !world.oracle.can_write(volume, range.0, range.1) {
                    return Step::Nothing;
                }
                self.ask(world, volume, RequestKind::Write { fua }, range)
            }
            Operation::Flush => self.ask(world, volume, RequestKind::Flush, (0, 0)),
            Operation::Zero => {
                let range = self.zero_range(world, volume);
                if !world.oracle.can_write(volume, range.0, range.1) {
                    return Step::Nothing;
                }
                let kind = match world.rng.below(3) {
                    0 => RequestKind::Discard { fua },
                    choice => RequestKind::WriteZeroes { fua, may_unmap: choice == 1 },
                };
                self.ask(world, volume, kind, range)
            }
            Operation::Prefetch => {
                let range = self.range(world, volume);
                self.ask(world, volume, RequestKind::Prefetch, range)
            }
            Operation::Mode => {
                let mode = world.rng.pick(&world.plan.modes);
                let settings = VolumeSettings { mode, ..world.disks.settings[volume] };
                Step::Configure { volume, settings, pool: None }
            }
            Operation::Tune => {
                let mode = world.disks.settings[volume].mode;
                let destage_order = world.rng.pick(&world.plan.orders);
                let mut settings = VolumeSettings { mode, destage_order, ..settings(&mut world.rng) };
                if world.plan.faults.backing.flush_drops {
                    settings.skip_sequential_bytes = 0;
                }
                let drawn = pool_settings(&mut world.rng);
                let discard_freed = world.plan.engine.pool.discard_freed && drawn.survivors_max_pct != 30;
                let endurance_budget = match world.plan.engine.pool.endurance_budget {
                    EnduranceBudget::Unlimited => EnduranceBudget::Unlimited,
                    _ => endurance_budget(drawn.batches_in_flight + drawn.dirty_limit_pct),
                };
                let pool = Some(PoolSettings { discard_freed, endurance_budget, ..drawn });
                Step::Configure { volume, settings, pool }
            }
            Operation::Drain => {
                let drain = world.rng.pick(&[Drain::Off, Drain::Off, Drain::Background, Drain::Full]);
                Step::Drain { volume, drain }
            }
            Operation::Sweep if world.rng.chance(1, 2) => Step::Unpin(volume),
            Operation::Sweep => Step::ForgetClean(volume),
            Operation::Pause => {
                Step::Pause(world.rng.pick(&[1_000_000, 50_000_000, 1_000_000_000, 10_000_000_000]))
            }
            Operation::Invalid => Step::Invalid,
            Operation::Restart if self.restarts => Step::Restart,
            Operation::Restart => Step::Nothing,
            Operation::Lifecycle => Step::Lifecycle(volume),
            Operation::Pool => Step::Pool,
            Operation::Scrub => Step::Scrub,
        }
    }

    fn ask(&self, world: &mut World, volume: usize, kind: RequestKind, range: (u64, u64)) -> Step {
        let treatment = world.treatment();
        Step::Ask { volume, kind, range, treatment }
    }

    fn perform(&mut self, world: &mut World, step: Step) -> Result<(), String> {
        match step {
            Step::Nothing => Ok(()),
            Step::Ask { volume, kind, range, treatment } => {
                // A recorded step may no longer be possible if earlier steps were skipped.
                let here = world.attached().contains(&volume)
                    && range.0 + range.1 <= world.served_bytes(volume)
                    && (!is_write(kind) || world.oracle.can_write(volume, range.0, range.1));
                if here { world.ask(volume, kind, range, treatment) } else { Ok(()) }
            }
            Step::Configure { volume, settings, pool } => {
                if let Some(pool) = pool {
                    world.configure_pool(pool)?;
                }
                if self.replays.is_some() && !world.attached().contains(&volume) {
                    return Ok(());
                }
                world.configure(volume, settings)
            }
            Step::Drain { volume, drain } => {
                world.engine.set_drain(world.now, VolumeId(volume as u16), drain);
                world.pump()
            }
            Step::Unpin(volume) => {
                world.engine.unpin_all(world.now, VolumeId(volume as u16));
                world.pump()
            }
            Step::ForgetClean(volume) => {
                world.engine.forget_clean(world.now, VolumeId(volume as u16));
                world.pump()
            }
            Step::Pause(time) => {
                self.next_at = world.now + time;
                Ok(())
            }
            Step::Invalid => world.invalid(),
            Step::Restart => restart(world),
            Step::Lifecycle(volume) => world.change_volume(volume),
            Step::Pool => world.resize_pool(),
            Step::Scrub => world.scrub(),
        }
    }

    /// Draws offset and length: hot spots, runs, all sizes.
    fn range(&mut self, world: &mut World, volume: usize) -> (u64, u64) {
        let plan = Rc::clone(&world.plan);
        let mix = plan.mix;
        let bytes = world.served_bytes(volume);
        let rng = &mut world.rng;
        if mix.huge_of > 0 && plan.volumes[volume].is_sparse() && rng.chance(1, mix.huge_of) {
            let offset = rng.below(bytes / BLOCK) * BLOCK;
            let len = rng.range(LARGE_BYTES, HUGE_BYTES) / BLOCK * BLOCK;
            return (offset, len.min(bytes - offset));
        }
        let blocks = match rng.below(100) {
            dice if dice < mix.large_pct => rng.range(4, LARGE_BYTES / BLOCK),
            dice if dice < mix.large_pct + 20 => rng.range(2, 8),
            _ => 1,
        };
        let mut offset = if rng.chance(mix.hot_pct, 100) {
            rng.below(12) * BLOCK
        } else if rng.chance(mix.run_pct, 100) {
            self.last_end
        } else {
            plan.volumes[volume].draw_block(bytes / BLOCK, rng) * BLOCK
        };
        let mut len = blocks * BLOCK;
        let dice = rng.below(100);
        let unit = match dice {
            dice if dice < mix.byte_pct => 1,
            dice if dice < mix.byte_pct + mix.sector_pct => 512,
            _ => BLOCK,
        };
        if unit < BLOCK {
            offset += rng.below(BLOCK / unit) * unit;
            len = len.saturating_sub(rng.below(BLOCK / unit) * unit).max(unit);
        }
        let offset = offset.min(bytes - unit.min(512)) / unit * unit;
        let len = len.min(bytes - offset);
        self.last_end = offset + len;
        (offset, len)
    }

    /// Draws a range as `range` does, but large and small ones equally often.
    fn zero_range(&mut self, world: &mut World, volume: usize) -> (u64, u64) {
        let huge_of = world.plan.mix.huge_of;
        if huge_of > 0 && world.rng.chance(1, huge_of) {
            return (0, world.served_bytes(volume));
        }
        let (offset, len) = self.range(world, volume);
        if world.rng.chance(1, 2) {
            return (offset, len);
        }
        let longest = world.served_bytes(volume) - offset;
        let wish = world.plan.settings.zero_direct_min_bytes + len;
        (offset, wish.min(longest))
    }
}

/// Stops the engine in an orderly way and starts it again. Sometimes a backing store changes in
/// between; sometimes the owner cannot inspect one of them at the stop.
fn restart(world: &mut World) -> Result<(), String> {
    world.quiesce()?;
    if world.stopped {
        return Ok(());
    }
    ensure!(world.in_flight() == 0, "quiesced with requests open");
    let dirty: Vec<Vec<bool>> = (0..world.plan.volumes.len()).map(|volume| world.dirty_map(volume)).collect();
    let unseen = unseen_store(world);
    world.close_without(unseen)?;
    if world.stopped {
        return Ok(());
    }
    for volume in 0..world.plan.volumes.len() {
        world.disks.settings[volume].mode = world.rng.pick(&world.plan.modes);
    }
    // A change of an uninspected store is no more detectable than after a crash.
    let may_change = !world.fenced && world.disks.record.is_none() && unseen.is_none();
    let changed = if world.rng.chance(1, 4) && may_change { change_backing(world) } else { None };
    world.changed = changed.is_some();
    if let Some((volume, sectors)) = changed {
        // The oracle learns of the change only when the engine has opened: no crash until then.
        let trap = std::mem::replace(&mut world.trap, Trap::Off);
        open_changed(world, volume, sectors, &dirty[volume])?;
        world.trap = trap;
        return Ok(());
    }
    world.reopen(OnBackingChange::Refuse);
    let serves = world.wait_open()?;
    if serves || world.stopped {
        return Ok(());
    }
    ensure!(world.had_errors(), "the cache does not open: {:?}", world.engine.status());
    open_quietly(world, OnBackingChange::Refuse)
}

/// Returns a volume whose backing store the owner cannot inspect, at one stop of four. Uses a
/// separate generator, so that the rest of the seed's run does not depend on it.
fn unseen_store(world: &World) -> Option<usize> {
    let mut rng = Rng::new(mix(world.now) ^ 0x554e_5345_454e);
    let found = rng.below(4 * world.plan.volumes.len() as u64) as usize;
    world.staying().contains(&found).then_some(found)
}

/// Opens the cache after a foreign write to sectors of a backing store.
fn open_changed(world: &mut World, volume: usize, sectors: Range<u64>, dirty: &[bool]) -> Result<(), String> {
    world.unlearned = Some(volume);
    world.reopen(OnBackingChange::Refuse);
    learn_of_change(world, volume, sectors, dirty)
}

/// Waits until the cache is open after a foreign write to sectors of a backing store, or opens it
/// with another policy.
fn learn_of_change(
    world: &mut World,
    volume: usize,
    sectors: Range<u64>,
    dirty: &[bool],
) -> Result<(), String> {
    let opens = world.wait_open()?;
    let serves = opens && world.disks.volumes[volume].state == AttachState::Attached;
    let stays_dirty = dirty.iter().any(|dirty| *dirty);
    let uncertain = world.disks.suspicions[volume] == Suspicion::Uncertain;
    let refused = !(serves && stays_dirty) || uncertain;
    ensure!(refused, "opened although the backing store changed under dirty data");
    ensure!(serves || stays_dirty || world.had_errors(), "does not open: {:?}", world.engine.status());
    // Where the owner is uncertain, each opening compares different blocks, and one that finds no
    // change keeps the dirty data.
    let keep = stays_dirty && (serves || uncertain || world.rng.chance(1, 2));
    take_over(world, volume, sectors, stays_dirty.then_some(keep), dirty);
    world.unlearned = None;
    if serves || world.stopped {
        return Ok(());
    }
    if opens {
        // The attach to the open cache was refused: the operator starts again with another policy.
        world.quiesce()?;
        world.close()?;
        world.disks.volumes[volume].state = AttachState::Attached;
    }
    open_quietly(world, if keep { OnBackingChange::KeepDirty } else { OnBackingChange::DiscardDirty })?;
    let status = &world.disks.volumes[volume];
    ensure!(
        status.state == AttachState::Attached || world.stopped || world.fenced,
        "not attached: {status:?}"
    );
    Ok(())
}

/// Opens the cache without device errors: it must succeed.
fn open_quietly(world: &mut World, policy: OnBackingChange) -> Result<(), String> {
    let faults: Vec<_> = world.disks.devices.iter().map(|device| device.faults).collect();
    world.stop_faults();
    world.wait_flights()?;
    world.reopen(policy);
    let serves = world.wait_open()?;
    ensure!(serves || world.stopped, "does not open with {policy:?}: {:?}", world.engine.status());
    for (device, faults) in world.disks.devices.iter_mut().zip(faults) {
        device.faults = faults;
    }
    Ok(())
}

/// Opens the state after a crash and a foreign write to a backing store, which the owner has
/// detected or is uncertain about. Reads everything and judges it. Other worlds are not affected.
///
/// # Errors
/// Any violation.
pub fn changed_after_crash(
    plan: &Rc<Plan>,
    mut snapshot: Snapshot,
    rng: &mut Rng,
) -> Result<Counters, String> {
    let volume = rng.below(plan.volumes.len() as u64) as usize;
    let here = snapshot.disks.volumes.iter().all(VolumeStatus::is_attached);
    // The set of writes that only one member has matters only at starts with this member.
    let varies = plan.mirror.as_ref().is_some_and(|mirror| mirror.misses_of > 0);
    if !here || varies || snapshot.disks.damaged || snapshot.oracle.relaxed || snapshot.disks.record.is_some()
    {
        return Ok(Counters::default());
    }
    snapshot.disks.devices.iter_mut().for_each(SimDevice::quiet);
    // The remains of a power cut are drawn at the opening: use the same for both.
    snapshot.rng = Rng::new(rng.word());
    let Some(dirty) = dirty_after_crash(plan, snapshot.clone(), volume)? else {
        return Ok(Counters::default());
    };
    let changed = write_by_others(&mut snapshot.disks, volume, rng);
    let found_out = plan.may_order() || rng.chance(2, 3);
    snapshot.disks.suspicions[volume] = if found_out { Suspicion::Changed } else { Suspicion::Uncertain };
    let mut world = World::open(plan, snapshot, OnBackingChange::Refuse);
    (world.changed, world.unlearned) = (true, Some(volume));
    learn_of_change(&mut world, volume, changed, &dirty)?;
    world.disks.suspicions[volume] = Suspicion::None;
    if serves(&world) && !world.fenced {
        read_everything(&mut world)?;
        settle(&mut world)?;
    }
    Ok(world.final_counters())
}

/// Returns which blocks of a volume are dirty after a crash, from a probe engine that cannot
/// destage them during the opening and whose state is thrown away. `None` if it does not open the
/// cache, or does not attach the volume at once.
fn dirty_after_crash(
    plan: &Rc<Plan>,
    mut snapshot: Snapshot,
    volume: usize,
) -> Result<Option<Vec<bool>>, String> {
    snapshot.disks.devices[1 + volume].faults.write_error = 1_000_000;
    let mut probe = World::open(plan, snapshot, OnBackingChange::Refuse);
    probe.changed = true; // no greeting
    probe.pump()?;
    let end = probe.now + ANSWER_LIMIT_NS;
    while probe.engine.status() == Status::Opening {
        if !probe.step(end)? {
            return Ok(None);
        }
    }
    let known = serves(&probe) && !probe.fenced && !probe.late[volume];
    Ok(known.then(|| probe.dirty_map(volume)))
}

/// Foreign write: writes some consecutive sectors of a backing store that is not in use.
fn write_by_others(disks: &mut Disks, volume: usize, rng: &mut Rng) -> Range<u64> {
    let sectors = disks.volumes[volume].bytes / 512;
    let first = rng.below(sectors);
    let end = first + rng.range(1, 64).min(sectors - first);
    overwrite(disks, volume, first..end, rng);
    // After a crash soon after a start the record of the volume may be that of the previous stop:
    // then the stamp reveals the change.
    disks.stamps[volume] += 1_000;
    first..end
}

/// Overwrites sectors of a backing store with new contents.
fn overwrite(disks: &mut Disks, volume: usize, sectors: Range<u64>, rng: &mut Rng) {
    for sector in sectors {
        let mut bytes = [0; 512];
        Content::Tag(rng.word() | 1).fill(&mut bytes);
        disks.devices[1 + volume].preset(sector * 512, &bytes);
    }
}

/// Foreign write to a backing store. It shows in the modification stamp, or at least in a sampled
/// block.
fn change_backing(world: &mut World) -> Option<(usize, Range<u64>)> {
    let volume = world.rng.below(world.plan.volumes.len() as u64) as usize;
    if !world.disks.volumes[volume].is_attached() {
        return None;
    }
    let sectors = world.disks.volumes[volume].bytes / 512;
    // The engine no longer compares blocks that a shrink cut off with the closing checkpoint, or a
    // partial last block.
    let compared = world.disks.sampled[volume].iter().copied().filter(|block| *block < sectors / 8);
    let sampled: Vec<u64> = compared.collect();
    let secretly = !sampled.is_empty() && world.rng.chance(1, 3);
    let first =
        if secretly { world.rng.pick(&sampled) * 8 + world.rng.below(8) } else { world.rng.below(sectors) };
    let count = world.rng.range(1, 64).min(sectors - first);
    overwrite(&mut world.disks, volume, first..first + count, &mut world.rng);
    world.disks.stamps[volume] += if secretly { 0 } else { 1_000 };
    Some((volume, first..first + count))
}

/// Updates the oracle after a change of a backing store: clean data is the present content of the
/// backing store; dirty data is kept (`Some(true)`) or given up (`Some(false)`).
fn take_over(world: &mut World, volume: usize, changed: Range<u64>, keep: Option<bool>, dirty: &[bool]) {
    let all = 0..world.oracle.sectors(volume);
    for sector in if keep == Some(false) { all } else { changed } {
        let mut bytes = [0; 512];
        let image = world.disks.devices[1 + volume].visible();
        if world.oracle.is_blank(volume, sector..sector + 1) && image.is_blank(sector * 512, 512) {
            continue;
        }
        image.read(sector * 512, &mut bytes);
        let or_old = keep == Some(true) && dirty[(sector / 8) as usize];
        world.oracle.replace(volume, sector, Content::of(&bytes), or_old);
    }
}

/// Reads every sector of every volume and judges it.
///
/// # Errors
/// Any violation.
pub fn read_everything(world: &mut World) -> Result<(), String> {
    // With losses, use small pieces: intact sectors next to lost ones must be readable.
    let piece = if world.risk.is_empty() { world.rng.pick(&[16, 64, 256]) * BLOCK } else { BLOCK / 2 };
    for volume in world.staying() {
        let bytes = world.served_bytes(volume);
        for offset in (0..bytes).step_by(piece as usize) {
            while world.in_flight() >= 4 && !world.stopped {
                world.step(u64::MAX)?;
            }
            if world.stopped {
                return Ok(());
            }
            let sectors = offset / 512..(offset + piece).min(bytes) / 512;
            // Of unwritten ranges a sample is enough.
            if world.oracle.is_blank(volume, sectors) && !world.rng.chance(1, 256) {
                continue;
            }
            world.read(volume, offset, piece.min(bytes - offset))?;
        }
    }
    world.wait_requests()
}

/// Stops all faults, drains, flushes, reads everything and compares the backing stores.
///
/// # Errors
/// Any violation.
pub fn settle(world: &mut World) -> Result<(), String> {
    for device in &mut world.disks.devices {
        device.quiet();
    }
    world.quiet_copies(true);
    world.restore_device()?;
    world.wait_flights()?;
    world.wait_requests()?;
    world.wait_owner()?;
    if world.fenced && !world.engine.runs_without_cache() || world.stopped {
        return read_everything(world);
    }
    world.attach_all_kept()?;
    if world.fenced && !world.engine.runs_without_cache() || world.stopped {
        return read_everything(world);
    }
    let volumes = world.staying();
    let drain = world.rng.pick(&[Drain::Background, Drain::Full]);
    for volume in volumes.clone() {
        world.engine.set_drain(world.now, VolumeId(volume as u16), drain);
        world.pump()?;
    }
    let end = world.now + ANSWER_LIMIT_NS;
    let lossy = !world.oracle.tainted.is_empty();
    while !world.stopped
        && volumes.iter().any(|volume| world.engine.dirty_blocks(VolumeId(*volume as u16)) > 0)
    {
        if !world.step(end)? {
            // The cache has failed meanwhile, and the owner does not record it: nothing drains.
            if world.fenced && !world.engine.runs_without_cache() && world.plan.owner != OwnerPlan::Records {
                return read_everything(world);
            }
            ensure!(lossy && !world.engine.runs_without_cache(), "draining does not end: {}", world.stall());
            break;
        }
    }
    for volume in volumes.clone() {
        if !world.stopped {
            world.flush(volume)?;
        }
    }
    world.wait_requests()?;
    read_everything(world)?;
    if world.stopped || world.fenced && !world.engine.runs_without_cache() {
        return Ok(());
    }
    for volume in volumes.clone() {
        let image = world.disks.devices[1 + volume].durable();
        world.oracle.check_image(volume, image, "backing store after drain and flush")?;
    }
    for volume in volumes {
        world.engine.set_drain(world.now, VolumeId(volume as u16), Drain::Off);
        world.pump()?;
    }
    Ok(())
}

/// Stops in an orderly way, cuts the power, starts again and reads everything.
///
/// # Errors
/// Any violation.
pub fn close_and_reopen(world: &mut World) -> Result<(), String> {
    world.quiesce()?;
    if !world.stopped {
        world.close()?;
    }
    if world.stopped {
        return Ok(());
    }
    for device in &mut world.disks.devices {
        *device = device.power_cut(&mut world.rng);
    }
    world.changed = false;
    world.reopen(OnBackingChange::Refuse);
    let serves = world.wait_open()?;
    ensure!(serves || world.stopped, "does not open after an orderly stop: {:?}", world.engine.status());
    if world.stopped { Ok(()) } else { read_everything(world) }
}

/// Returns true if the engine serves requests.
#[must_use]
pub fn serves(world: &World) -> bool {
    world.engine.status() == Status::Ready
}
