//! Wrong devices: an older copy, another cache, an unfinished format, metadata rotten in both
//! copies, a cache device that ignores flushes, a lost write.
//!
//! A seed runs a workload without other faults and keeps states of its devices from several
//! instants: after crashes and after orderly stops. From these it builds the wrong combinations and
//! opens them ([`Hostility`]). Each ends in an [`Outcome`]. [`Hostility::forbids`] defines which
//! outcomes are violations, and which are only counted because they are undetectable. A panic, a
//! broken rule of the owner, a write by a refused opening, and an opening that does not end are
//! always violations.
//!
//! Invariant: same seed, same outcomes.

mod mirrored;

use crate::at_rest::{batch_header, newest_checkpoint};
use crate::content::Content;
use crate::device::SimDevice;
use crate::disks::{CACHE, Moment, Snapshot};
use crate::ensure::ensure;
use crate::image::Image;
use crate::oracle::Oracle;
use crate::plan::{FaultPlan, Plan, Style};
use crate::rng::{Rng, mix};
use crate::start::{first_state, first_volumes, format_params, second_half};
use crate::violation::caught;
use crate::workload::{Advance, Workload, read_everything, settle};
use crate::world::World;
use forebay_core::{CacheMark, OnBackingChange, PlantedBug, Status, fault, format_cache};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The fault of the devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hostility {
    /// After a power cut the cache device has its state of an earlier crash.
    OlderAfterCrash,
    /// After an orderly stop, with nothing dirty, the cache device has its state of an earlier
    /// orderly stop.
    OlderAfterStop,
    /// After a power cut the second half of the cache, a separate device, has its state of an
    /// earlier crash, and neither its tag nor the record of the cache reveals it.
    OlderPart,
    /// The cache device belongs to another cache, with a volume of the same number.
    Swapped,
    /// Formatting a new device was interrupted.
    HalfFormatted,
    /// Formatting a device that held another cache was interrupted.
    HalfReformatted,
    /// Both superblocks, or both copies of the checkpoint, have rotted.
    RottenMetadata,
    /// The cache device acknowledged its last flushes and did nothing; then a power cut.
    LyingFlush,
    /// The cache device lost a write to a segment that had been in use before, and cannot read the
    /// segment's summary.
    LostWrite,
    /// After a power cut one member of a mirrored cache has its state of an earlier crash.
    OlderMember,
    /// The same, and the other member is missing.
    OlderMemberAlone,
    /// After a power cut both members have their states of an earlier crash.
    OlderMembers,
    /// The same, on a host without a record of the cache.
    OlderMembersUnrecorded,
    /// One member belongs to another mirrored cache.
    ForeignMember,
    /// The member that was failed out is found alone, and the notes of the members are lost.
    StaleMemberAlone,
    /// A member was failed out, both are found, and the notes of the members are lost.
    NotesLost,
}

/// The outcome of an opening.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The cache was not opened, or the volume was not attached.
    Refused,
    /// All promised data is there.
    Right,
    /// The promised data is gone with the missing cache device; the engine serves the content of
    /// the backing stores.
    Backing,
    /// The engine serves older data from the cache.
    Older,
}

impl Outcome {
    /// All outcomes, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Refused, "refused"),
        (Self::Right, "all there"),
        (Self::Backing, "as the backing store"),
        (Self::Older, "older contents"),
    ];
}

impl Hostility {
    /// All cases, with their names.
    pub const ALL: [(Self, &'static str); 16] = [
        (Self::OlderAfterCrash, "older copy after a crash"),
        (Self::OlderAfterStop, "older copy after an orderly stop"),
        (Self::OlderPart, "older second device, and nobody tells"),
        (Self::Swapped, "another cache"),
        (Self::HalfFormatted, "half-formatted, new device"),
        (Self::HalfReformatted, "half-formatted, old cache"),
        (Self::RottenMetadata, "metadata rotten in both copies"),
        (Self::LyingFlush, "flushes that did nothing"),
        (Self::LostWrite, "a lost write under a bad summary"),
        (Self::OlderMember, "one older member"),
        (Self::OlderMemberAlone, "an older member alone"),
        (Self::OlderMembers, "two older members"),
        (Self::OlderMembersUnrecorded, "two older members, and no record"),
        (Self::ForeignMember, "a member of another cache"),
        (Self::StaleMemberAlone, "failed-out member alone, no notes"),
        (Self::NotesLost, "failed-out member, no notes"),
    ];

    /// Returns true if this outcome breaks a promise. The owner's record reveals an older copy
    /// (I75). Ignored flushes show only through later writes or records, and an older second device
    /// only through its owner, which gives a replaced device another tag: there the outcomes are
    /// counted.
    #[must_use]
    pub fn forbids(self, outcome: Outcome) -> bool {
        let undetectable = matches!(self, Self::LyingFlush | Self::OlderPart | Self::OlderMembersUnrecorded);
        // A current copy is there, and the owner's record or the other superblock tells which one.
        let is_whole = matches!(self, Self::OlderMember | Self::NotesLost);
        outcome == Outcome::Older && !undetectable || is_whole && outcome != Outcome::Right
    }
}

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct HostileReport {
    /// Seeds run.
    pub seeds: u64,
    /// Number of times each outcome occurred.
    pub outcomes: BTreeMap<(Hostility, Outcome), u64>,
    /// Violations: seed and message.
    pub violations: Vec<(u64, String)>,
}

impl HostileReport {
    /// Returns how often this case ended with this outcome.
    #[must_use]
    pub fn count(&self, hostility: Hostility, outcome: Outcome) -> u64 {
        self.outcomes.get(&(hostility, outcome)).copied().unwrap_or(0)
    }
}

/// Runs this many seeds, optionally with a bug planted in the engine.
pub fn run_hostile(
    seed: u64,
    seeds: u64,
    bug: Option<PlantedBug>,
    progress: &mut dyn FnMut(u64),
) -> HostileReport {
    let _planting = fault::plant(bug);
    let mut report = HostileReport::default();
    for seed in (0..seeds).map(|count| seed.wrapping_add(count)) {
        let what = caught(|| one_seed(seed, &mut report));
        report.seeds += 1;
        report.violations.extend(what.map(|what| (seed, what)));
        progress(report.seeds);
    }
    report
}

/// Returns the plan of a seed: no other faults, no volumes that come and go.
pub(crate) fn plan_of(seed: u64) -> Plan {
    let mut plan = Plan::unmirrored(seed);
    plan.style = Style::Fork;
    (plan.faults, plan.outage, plan.truncations) = (FaultPlan::default(), None, Vec::new());
    (plan.mix.lifecycle, plan.mix.pool, plan.mix.restart, plan.mix.invalid) = (0, 0, 0, 0);
    (plan.mix.write, plan.mix.flush) = (plan.mix.write + 20, plan.mix.flush + 4);
    plan.requests = plan.requests.min(200);
    plan.record_lag_ns = 0; // A record that lags detects no copy of the last seconds.
    plan
}

/// States of one run.
pub(crate) struct States {
    /// Instants in use, in order.
    pub(crate) moments: Vec<Moment>,
    /// After orderly stops, with nothing dirty.
    stops: Vec<Moment>,
}

fn one_seed(seed: u64, report: &mut HostileReport) -> Result<(), String> {
    let (mirrored, cases) = mirrored::cases(seed, &mut Rng::new(mix(seed ^ 0x6d69_7272)))?;
    for (hostility, snapshot) in cases {
        judge(&mirrored, report, hostility, snapshot)?;
    }
    let plan = Rc::new(plan_of(seed));
    let states = run(&plan, false)?;
    let mut rng = Rng::new(mix(seed ^ 0x686f_7374));
    let mut judge = |hostility, snapshot| judge(&plan, report, hostility, snapshot);
    for _ in 0..4 {
        if let Some((old, new)) = two(&states.moments, &mut rng) {
            let old = crash(old, &mut rng).disks.devices[CACHE].clone();
            // A power cut: promised data was flushed, and the record covers it.
            judge(Hostility::OlderAfterCrash, with_cache(cut(new, &mut rng), old.clone()))?;
            // Separate generator, so that the other draws do not change.
            let own = &mut Rng::new(rng.clone().word() ^ 0x5041_5254);
            judge(Hostility::OlderPart, with_older_part(&plan, cut(new, own), &old))?;
        }
        if let Some(now) = pick(&states.moments, &mut rng) {
            let whole = crash(now, &mut rng);
            let mut snapshot = Snapshot { disks: whole.disks.clone(), oracle: whole.oracle.clone(), ..whole };
            rot(&mut snapshot.disks.devices[CACHE], &mut rng);
            judge(Hostility::RottenMetadata, snapshot)?;
            let mut snapshot = crash(now, &mut rng);
            let (old, rest) = reformat(&plan, snapshot.disks.devices[CACHE].clone(), &mut rng)?;
            snapshot.disks.devices[CACHE] = old;
            // A new cache holds nothing of the volume: formatting has dropped the dirty data of the
            // old one, as requested.
            if rest {
                judge(Hostility::HalfReformatted, snapshot)?;
            }
        }
    }
    if let Some((old, new)) = two(&states.stops, &mut rng) {
        let snapshot = new.after(new.disks.devices.clone(), false, Rng::new(rng.word()));
        judge(Hostility::OlderAfterStop, with_cache(snapshot, old.disks.devices[CACHE].clone()))?;
    }
    for all in [&states.moments, &states.stops] {
        let Some((old, new)) = two(all, &mut rng) else { continue };
        let mut snapshot = crash(new, &mut rng);
        let old = old.disks.devices[CACHE].visible();
        if lose_write(&plan, old, &mut snapshot.disks.devices[CACHE], &mut rng) {
            judge(Hostility::LostWrite, snapshot)?;
        }
    }
    let other = Plan { seed: !seed, uuid: CacheUuid([0xB; 16]), identity: 9, ..Plan::clone(&plan) };
    let others = run(&Rc::new(other), false)?;
    for all in [&states.moments, &states.stops] {
        for foreign in [pick(&others.moments, &mut rng), pick(&others.stops, &mut rng)].into_iter().flatten()
        {
            let Some(now) = pick(all, &mut rng) else { continue };
            let cache = crash(foreign, &mut rng).disks.devices[CACHE].clone();
            judge(Hostility::Swapped, with_cache(crash(now, &mut rng), cache))?;
        }
    }
    let first = first_state(&plan)?;
    let blank = SimDevice::new(plan.cache_bytes_max(), plan.cache_latency);
    let (half, _) = reformat(&plan, blank, &mut rng)?;
    judge(Hostility::HalfFormatted, with_cache(first, half))?;
    let lied = run(&plan, true)?;
    for moment in lied.moments.iter().rev().take(4) {
        let mut moment = moment.clone();
        let devices = &mut moment.disks.devices;
        devices[CACHE].ignores_flushes = false;
        judge(Hostility::LyingFlush, cut(&moment, &mut rng))?;
    }
    Ok(())
}

/// Opens the devices, and counts or refuses the outcome.
fn judge(
    plan: &Rc<Plan>,
    report: &mut HostileReport,
    hostility: Hostility,
    snapshot: Snapshot,
) -> Result<(), String> {
    let outcome = open(plan, snapshot).map_err(|why| format!("{hostility:?}: {why}"))?;
    *report.outcomes.entry((hostility, outcome.0)).or_insert(0) += 1;
    ensure!(!hostility.forbids(outcome.0), "{hostility:?}: {}", outcome.1);
    Ok(())
}

fn pick<'a>(all: &'a [Moment], rng: &mut Rng) -> Option<&'a Moment> {
    if all.is_empty() { None } else { all.get(rng.below(all.len() as u64) as usize) }
}

/// Draws an earlier and a later moment.
fn two<'a>(all: &'a [Moment], rng: &mut Rng) -> Option<(&'a Moment, &'a Moment)> {
    if all.len() < 2 {
        return None;
    }
    let old = rng.below(all.len() as u64 - 1) as usize;
    let new = rng.range(old as u64 + 1, all.len() as u64 - 1) as usize;
    Some((&all[old], &all[new]))
}

pub(crate) fn crash(moment: &Moment, rng: &mut Rng) -> Snapshot {
    if rng.chance(1, 2) {
        return cut(moment, rng);
    }
    let devices = moment.disks.devices.iter().map(|device| device.kill(rng)).collect();
    moment.after(devices, false, Rng::new(rng.word()))
}

fn cut(moment: &Moment, rng: &mut Rng) -> Snapshot {
    let devices = moment.disks.devices.iter().map(|device| device.power_cut(rng)).collect();
    moment.after(devices, true, Rng::new(rng.word()))
}

fn with_cache(mut snapshot: Snapshot, cache: SimDevice) -> Snapshot {
    snapshot.disks.devices[CACHE] = cache;
    snapshot
}

/// Replaces the second half of the cache by an older state, on a host without a record of the
/// cache.
fn with_older_part(plan: &Plan, mut snapshot: Snapshot, old: &SimDevice) -> Snapshot {
    let (from, end) = (second_half(&plan.geometry), plan.cache_bytes);
    let mut bytes = vec![0; (end - from) as usize];
    old.visible().read(from, &mut bytes);
    snapshot.disks.devices[CACHE].preset(from, &bytes);
    snapshot.disks.known = CacheMark::default();
    snapshot
}

/// Runs a workload, stops in an orderly way, continues, and stops again. `ignores_flushes`: from a
/// random instant on the cache device ignores flushes.
fn run(plan: &Rc<Plan>, ignores_flushes: bool) -> Result<States, String> {
    run_with(plan, ignores_flushes, false)
}

/// Like [`run`]; with `history` the oracle keeps every version.
pub(crate) fn run_with(plan: &Rc<Plan>, ignores_flushes: bool, history: bool) -> Result<States, String> {
    let mut states = States { moments: Vec::new(), stops: Vec::new() };
    let mut first = first_state(plan)?;
    if history {
        first.oracle = as_they_are(plan, &first.disks.devices, true);
    }
    let mut world = World::open(plan, first, OnBackingChange::Refuse);
    ensure!(world.wait_open()?, "a new cache does not open: {:?}", world.engine.status());
    for round in 0..if ignores_flushes { 1 } else { 3 } {
        let mut workload = Workload::new(plan.requests / 2, plan.depth, false);
        let lies_from = world.rng.below(u64::from(plan.requests));
        let mut steps = 0;
        loop {
            steps += 1;
            world.disks.devices[CACHE].ignores_flushes |= ignores_flushes && steps > lies_from;
            world.fail_and_replace_members()?;
            let advance = workload.advance(&mut world)?;
            if world.rng.chance(1, 40) && (!ignores_flushes || world.disks.devices[CACHE].ignores_flushes) {
                states.moments.push(world.moment());
            }
            if advance == Advance::Done {
                break;
            }
        }
        if ignores_flushes {
            break;
        }
        settle(&mut world)?;
        world.quiesce()?;
        // Writes to a backing store show in its modification stamp.
        world.disks.stamps.iter_mut().for_each(|stamp| *stamp += 1_000 * (round + 1));
        world.close()?;
        states.stops.push(world.moment());
        world.reopen(OnBackingChange::Refuse);
        ensure!(world.wait_open()?, "does not open: {:?}", world.engine.status());
    }
    Ok(states)
}

/// Damages both superblocks, or both copies of the checkpoint that they name.
fn rot(cache: &mut SimDevice, rng: &mut Rng) {
    let mut places = [0, 1].map(|copy| (Geometry::superblock_offset(copy), 512));
    if rng.chance(1, 2) {
        let superblocks = [0, 1].map(|copy| {
            let mut bytes = [0; BLOCK_BYTES];
            cache.visible().read(Geometry::superblock_offset(copy), &mut bytes);
            Superblock::decode(&bytes).ok()
        });
        if let Some(newest) = superblocks.into_iter().flatten().max_by_key(|found| found.generation) {
            places = [0, 1].map(|copy| (newest.checkpoint_place(copy).0, 2048));
        }
    }
    for (offset, len) in places {
        for _ in 0..rng.range(1, 4) {
            cache.rot(offset + rng.below(len), rng.below(8) as u8);
        }
    }
}

/// Restores the bytes of a segment's earlier use in place of a batch that the checkpoint accounts
/// for, and damages the segment's summary. Returns false if no place on the device was used twice.
fn lose_write(plan: &Plan, old: &Image, cache: &mut SimDevice, rng: &mut Rng) -> bool {
    let Some(checkpoint) = newest_checkpoint(cache.visible()) else { return false };
    let mut places = Vec::new();
    for (number, entry) in (0..).zip(&checkpoint.segments) {
        if !entry.state.has_slots() || entry.summary_block == 0 || entry.slots.live() == 0 {
            continue;
        }
        let mut at = 0;
        while at < entry.used_blocks {
            let header = |image: &Image| batch_header(plan, image, number, at);
            let Some(now) = header(cache.visible()) else { break };
            let end = at + 1 + u32::from(now.payload_blocks);
            // A window extension may have reused the segment since: the loss of the last batches of
            // a log is undetectable.
            let accounted = now.sequence < checkpoint.next_sequence;
            if accounted && header(old).is_some_and(|then| then.sequence < now.sequence) {
                places.push((number, at, end, entry.summary_block));
            }
            at = end;
        }
    }
    if places.is_empty() {
        return false;
    }
    let (number, from, end, summary) = rng.pick(&places);
    let mut bytes = vec![0; (end - from) as usize * BLOCK_BYTES];
    old.read(plan.geometry.segment_offset(number, from), &mut bytes);
    cache.preset(plan.geometry.segment_offset(number, from), &bytes);
    cache.rot(plan.geometry.segment_offset(number, summary) + rng.below(64), rng.below(8) as u8);
    true
}

/// Formats a device up to a random write, which is torn. Returns false if the torn write is the
/// first one.
fn reformat(plan: &Plan, mut cache: SimDevice, rng: &mut Rng) -> Result<(SimDevice, bool), String> {
    let params = format_params(plan, &first_volumes(plan));
    let params = forebay_core::FormatParams { uuid: CacheUuid([0xC; 16]), ..params };
    let writes = format_cache(&params).map_err(|why| format!("format_cache: {why}"))?;
    let last = rng.below(writes.len() as u64) as usize;
    for (at, (offset, bytes)) in writes.iter().enumerate().take(last + 1) {
        let sectors = (bytes.len() / 512) as u64;
        let end = if at == last { rng.below(sectors) as usize } else { sectors as usize };
        if end > 0 {
            cache.preset(*offset, &bytes[..end * 512]);
        }
    }
    Ok((cache, last > 0))
}

/// Opens the cache and returns the outcome.
fn open(plan: &Rc<Plan>, snapshot: Snapshot) -> Result<(Outcome, String), String> {
    let disks = snapshot.disks.clone();
    let (now, rng, ordered) = (snapshot.now, snapshot.rng.clone(), snapshot.ordered.clone());
    let first = serve(plan, snapshot)?;
    if first.0 != Outcome::Older {
        return Ok(first);
    }
    // Promised data is missing. If the engine serves the content of the backing stores, the cache
    // caused nothing wrong.
    let oracle = as_they_are(plan, &disks.devices, false);
    let ordered = vec![false; ordered.len()];
    let (outcome, _) = serve(plan, Snapshot { disks, oracle, now, rng, power: true, ordered })?;
    Ok(if outcome == Outcome::Right { (Outcome::Backing, String::new()) } else { first })
}

fn serve(plan: &Rc<Plan>, snapshot: Snapshot) -> Result<(Outcome, String), String> {
    let mut world = World::open(plan, snapshot, OnBackingChange::Refuse);
    // The engine may report any finding about these devices.
    (world.changed, world.disks.damaged) = (true, true);
    world.ordered.fill(false);
    let served = match world.wait_open() {
        Err(what) if what.contains("versions:") => return Ok((Outcome::Older, what)),
        other => other?,
    };
    if !served || world.staying().len() < plan.volumes.len() {
        ensure!(!matches!(world.engine.status(), Status::Opening), "opening does not end");
        return Ok((Outcome::Refused, format!("{:?}", world.engine.status())));
    }
    match read_everything(&mut world).and_then(|()| settle(&mut world)) {
        Ok(()) => Ok((Outcome::Right, String::new())),
        Err(what) if what.contains("versions:") => Ok((Outcome::Older, what)),
        // The engine has found lost blocks and fails reads of them.
        Err(what) if what.contains("an I/O error without a cause") => Ok((Outcome::Refused, what)),
        Err(what) => Err(what),
    }
}

/// Returns an oracle for the present content of the backing stores; with `history` it keeps every
/// version.
fn as_they_are(plan: &Plan, devices: &[SimDevice], history: bool) -> Oracle {
    let sectors: Vec<u64> = plan.volumes.iter().map(|volume| volume.bytes_max / 512).collect();
    Oracle::new(&sectors, history, plan.may_order(), |volume, sector| {
        let mut bytes = [0; 512];
        devices[1 + volume].visible().read(sector * 512, &mut bytes);
        Some(Content::of(&bytes))
    })
}
