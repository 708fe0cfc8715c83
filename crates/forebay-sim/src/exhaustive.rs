//! Bounded exhaustive exploration: every short sequence of operations, every instant of it, every
//! possible state after a crash.
//!
//! [`crate::explore`] draws; this enumerates. A sequence has up to [`LENGTH_MAX`] operations
//! ([`Op`]) on a volume of three blocks, which are named in the order of their first use (the
//! engine does not distinguish them). It runs in four [`Style`]s and from several [`Start`]s. Every
//! submission and completion of a write, flush or zero is a crash point. At each, if few writes are
//! undecided (in a volatile cache or in flight), all subsets of them survive in turn, else samples;
//! then each of them torn, with all others and with none; and the same for a kill of the daemon. In
//! one state of six one of two equal copies of the metadata is damaged as well. A new engine opens
//! the remains, and the oracle of [`crate::oracle`] judges them as everything is read and drained.
//! Sequences of up to two ([`ExhaustiveOptions::twice`]) operations have their recoveries crashed
//! once more in the same way.
//!
//! A state is judged once per sequence: states are the same if all devices have the same bytes (in
//! volatile caches too) and the same contents are legal. If the operations of a sequence wait for
//! each other, only the instants after the submission of its last operation are taken: those before
//! belong to the shorter sequence.
//!
//! Invariant: the same options give the same report, and the result of a sequence does not depend
//! on the others.

use crate::counters::Counters;
use crate::device::{SimDevice, WriteRemains};
use crate::disks::{Moment, Snapshot};
use crate::ensure::ensure;
use crate::explore::{backing_alone, crash_name, damage_one_copy};
use crate::plan::Plan;
use crate::rng::{Rng, mix};
use crate::start::first_state;
use crate::violation::{caught, planted_option};
use crate::workload::{close_and_reopen, read_everything, settle};
use crate::world::{ANSWER_LIMIT_NS, Trap, World, check_images};
use forebay_core::{
    DestageOrder, Drain, OnBackingChange, PlantedBug, RequestKind, Treatment, VolumeSettings, fault,
};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Longest sequence.
pub const LENGTH_MAX: usize = 4;
/// The sequence without an operation: crashes during the first opening of a new cache.
const OPEN: &str = "open";
/// Blocks of the volume.
const BLOCKS: u64 = 3;
const BLOCK: u64 = 4096;
/// With at most this many undecided writes, all subsets survive in turn; else as many as that would
/// be.
const SUBSETS_OF: usize = 6;
/// Time between operations of [`Style::Rested`], in nanoseconds: fills and clean marks are in the
/// log, and idle destage has not begun.
const REST_NS: u64 = 1_300_000_000;
/// Time after the last operation, in nanoseconds: idle destage has ended, and its marks are in the
/// log.
const AFTER_NS: u64 = 6_000_000_000;
const IDLE_NS: u64 = 3_000_000_000;

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Write of a block.
    Write(u64),
    /// Write of some sectors of a block.
    Part(u64),
    /// Write of a block with FUA.
    Fua(u64),
    /// Discard of a block, through the log in write-back.
    Trim(u64),
    /// Write of a block that a rule sends around the cache.
    Bypass(u64),
    /// Read of a block, with its fill.
    Read(u64),
    /// Write of all blocks by one request.
    Span,
    /// Zeroes over all blocks: they bypass the cache in every mode.
    Zero,
    /// FLUSH.
    Flush,
    /// Drain of all dirty data.
    Drain,
    /// A checkpoint.
    Checkpoint,
    /// Change of the volume's mode.
    Mode(Mode),
}

/// The timing of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// All at once.
    Together,
    /// Each when the one before it was answered.
    Answered,
    /// Each when the one before it was answered and has come to rest: fills and marks are in the
    /// log.
    Rested,
    /// Each when the dirty data of the one before it was destaged, and is marked clean in the log.
    Settled,
}

impl Style {
    const ALL: [(Self, &str); 4] = [
        (Self::Together, "together"),
        (Self::Answered, "answered"),
        (Self::Rested, "rested"),
        (Self::Settled, "settled"),
    ];
}

/// The initial mode of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// In write-back.
    Writeback,
    /// In write-back, with ordered destage.
    Ordered,
    /// In write-through.
    Writethrough,
}

impl Start {
    const ALL: [(Self, &str); 3] =
        [(Self::Writeback, "writeback"), (Self::Ordered, "ordered"), (Self::Writethrough, "writethrough")];

    fn mode(self) -> Mode {
        if self == Self::Writethrough { Mode::Writethrough } else { Mode::Writeback }
    }
}

/// Creates an operation on a block.
type OnBlock = fn(u64) -> Op;

/// Operations on a block, with their names.
const ON_BLOCKS: [(OnBlock, &str); 6] = [
    (Op::Write, "write"),
    (Op::Part, "part"),
    (Op::Fua, "fua"),
    (Op::Trim, "trim"),
    (Op::Bypass, "bypass"),
    (Op::Read, "read"),
];
/// Operations on the whole volume, with their names.
const ON_ALL: [(Op, &str); 5] = [
    (Op::Span, "span"),
    (Op::Zero, "zero"),
    (Op::Flush, "flush"),
    (Op::Drain, "drain"),
    (Op::Checkpoint, "checkpoint"),
];
/// Modes in the order in which switches to them are tried.
const MODES: [Mode; 5] =
    [Mode::Writeback, Mode::Writeonly, Mode::Writethrough, Mode::Writearound, Mode::Passthrough];

impl Op {
    /// Returns all operations, with their names, when `used` blocks have names.
    fn all(used: u64) -> Vec<(Self, String)> {
        let blocks = 0..(used + 1).min(BLOCKS);
        let on_blocks =
            blocks.flat_map(|block| ON_BLOCKS.map(|(op, name)| (op(block), format!("{name}{block}"))));
        let on_all = ON_ALL.map(|(op, name)| (op, name.to_owned()));
        let modes = MODES.map(|mode| (Self::Mode(mode), format!("to-{}", mode.name())));
        on_blocks.chain(on_all).chain(modes).collect()
    }

    fn block(self) -> Option<u64> {
        match self {
            Self::Write(block)
            | Self::Part(block)
            | Self::Fua(block)
            | Self::Trim(block)
            | Self::Bypass(block)
            | Self::Read(block) => Some(block),
            _ => None,
        }
    }
}

/// One sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    start: Start,
    style: Style,
    ops: Vec<Op>,
}

impl Sequence {
    /// Returns its name, as `--only` takes it.
    #[must_use]
    pub fn name(&self) -> String {
        let start = Start::ALL.iter().find(|(start, _)| *start == self.start).map_or("", |(_, name)| name);
        let style = Style::ALL.iter().find(|(style, _)| *style == self.style).map_or("", |(_, name)| name);
        let all = Op::all(BLOCKS);
        let name = |op: &Op| all.iter().find(|(other, _)| other == op).map_or("", |(_, name)| name);
        let ops: Vec<&str> = self.ops.iter().map(name).collect();
        let ops = if ops.is_empty() { OPEN.to_owned() } else { ops.join("+") };
        format!("{start}.{style}.{ops}")
    }

    /// Returns the sequence with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '.');
        let (start, style, ops) = (parts.next()?, parts.next()?, parts.next()?);
        let start = Start::ALL.iter().find(|(_, other)| *other == start)?.0;
        let style = Style::ALL.iter().find(|(_, other)| *other == style)?.0;
        let all = Op::all(BLOCKS);
        let find = |name: &str| all.iter().find(|(_, other)| other == name).map(|(op, _)| *op);
        if ops == OPEN {
            return Some(Self { start, style, ops: Vec::new() });
        }
        let ops = ops.split('+').map(find).collect::<Option<Vec<Op>>>()?;
        (ops.len() <= LENGTH_MAX).then_some(Self { start, style, ops })
    }

    /// Returns all sequences of up to `length` operations, the shortest first.
    #[must_use]
    pub fn all(length: usize) -> Vec<Self> {
        let mut found = Vec::new();
        for (start, _) in Start::ALL {
            for (style, _) in Style::ALL {
                let mut last: Vec<Vec<Op>> = vec![Vec::new()];
                for count in 0..=length.min(LENGTH_MAX) {
                    if count > 0 {
                        last = last.iter().flat_map(|ops| longer(start, ops)).collect();
                    }
                    // One operation is the same in all styles.
                    let twice = count < 2 && style != Style::Answered;
                    let sequences = last.iter().filter(|_| !twice);
                    found.extend(sequences.map(|ops| Self { start, style, ops: ops.clone() }));
                }
            }
        }
        found.sort_by_key(|sequence| sequence.ops.len());
        found
    }

    fn plan(&self) -> Plan {
        let order = if self.start == Start::Ordered { DestageOrder::Ordered } else { DestageOrder::Elevator };
        let modes = core::iter::once(self.start.mode()).chain(self.ops.iter().filter_map(|op| match op {
            Op::Mode(mode) => Some(*mode),
            _ => None,
        }));
        let settings = VolumeSettings {
            mode: self.start.mode(),
            destage_order: order,
            idle_delay: IDLE_NS,
            dirty_low_pct: 60,
            dirty_high_pct: 80,
            zero_direct_min_bytes: BLOCKS * BLOCK,
            latency_target: 0,
            ..VolumeSettings::default()
        };
        Plan::tiny(BLOCKS * BLOCK, modes.collect(), settings)
    }
}

/// Returns all sequences that are one operation longer. A switch to the present mode does nothing.
fn longer(start: Start, ops: &[Op]) -> Vec<Vec<Op>> {
    let used = ops.iter().filter_map(|op| op.block()).map(|block| block + 1).max().unwrap_or(0);
    let mode = ops.iter().rev().find_map(|op| if let Op::Mode(mode) = op { Some(*mode) } else { None });
    let mode = mode.unwrap_or(start.mode());
    let all = Op::all(used).into_iter().map(|(op, _)| op).filter(|op| *op != Op::Mode(mode));
    all.map(|op| ops.iter().copied().chain([op]).collect()).collect()
}

/// The parts to run.
#[derive(Clone, Debug)]
pub struct ExhaustiveOptions {
    /// Longest sequence.
    pub length: usize,
    /// Of the sequences of more than one operation only one in this many, the first at this number.
    pub part: (usize, usize),
    /// Only this sequence.
    pub only: Option<Sequence>,
    /// Longest sequence whose recoveries are crashed as well.
    pub twice: usize,
    /// A bug to plant in the engine.
    pub bug: Option<PlantedBug>,
    /// Violations after which to stop.
    pub violations_max: usize,
    /// Prints every event to standard error.
    pub verbose: bool,
}

impl Default for ExhaustiveOptions {
    fn default() -> Self {
        Self { length: 3, part: (0, 1), only: None, twice: 2, bug: None, violations_max: 5, verbose: false }
    }
}

/// A sequence that ended with a violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExhaustiveViolation {
    /// The sequence.
    pub sequence: String,
    /// The violation.
    pub what: String,
    /// Command that reproduces it.
    pub replay_command: String,
}

/// The results.
#[derive(Clone, Debug, Default)]
pub struct ExhaustiveReport {
    /// Sequences run.
    pub sequences: u64,
    /// Instants at which crashes were tried, recoveries included.
    pub crash_points: u64,
    /// States after crashes.
    pub states: u64,
    /// Of those, states that differ in bytes or in their legal contents: each was opened and
    /// judged.
    pub judged: u64,
    /// Of those, states after a crash in a recovery.
    pub judged_twice: u64,
    /// The violations.
    pub violations: Vec<ExhaustiveViolation>,
    /// Counters of all worlds.
    pub counters: Counters,
}

/// The progress of a run: sequences done, sequences in all, states judged, violations.
pub type ExhaustiveProgress = (u64, u64, u64, usize);

/// Runs all sequences.
pub fn run_exhaustive(
    options: &ExhaustiveOptions,
    progress: &mut dyn FnMut(ExhaustiveProgress),
) -> ExhaustiveReport {
    let _planting = fault::plant(options.bug);
    let sequences = match &options.only {
        Some(only) => vec![only.clone()],
        None => chosen(options),
    };
    let mut report = ExhaustiveReport::default();
    let count = sequences.len() as u64;
    for sequence in sequences {
        let mut run = Run::new(&sequence, options);
        let what = caught(|| run.go());
        run.add_to(&mut report);
        report.violations.extend(what.map(|what| violation(&sequence, options.bug, what)));
        progress((report.sequences, count, report.judged, report.violations.len()));
        if report.violations.len() >= options.violations_max {
            break;
        }
    }
    report
}

fn chosen(options: &ExhaustiveOptions) -> Vec<Sequence> {
    let all = Sequence::all(options.length);
    let (first, step) = options.part;
    let mut number = 0;
    let mut taken = |sequence: &Sequence| {
        if sequence.ops.len() < 2 {
            return true;
        }
        number += 1;
        (number - 1) % step.max(1) == first
    };
    all.into_iter().filter(|sequence| taken(sequence)).collect()
}

fn violation(sequence: &Sequence, bug: Option<PlantedBug>, what: String) -> ExhaustiveViolation {
    let planted = planted_option(bug);
    let name = sequence.name();
    let replay_command = format!("forebay-sim --exhaustive --only {name}{planted}");
    ExhaustiveViolation { sequence: name, what, replay_command }
}

/// The run of one sequence.
struct Run<'a> {
    sequence: &'a Sequence,
    plan: Rc<Plan>,
    /// The initial devices: their pages do not count when states are compared.
    base: Vec<SimDevice>,
    seen: HashSet<u64>,
    report: ExhaustiveReport,
    verbose: bool,
    twice: bool,
    trail: String,
}

impl<'a> Run<'a> {
    fn new(sequence: &'a Sequence, options: &ExhaustiveOptions) -> Self {
        Self {
            sequence,
            plan: Rc::new(sequence.plan()),
            base: Vec::new(),
            seen: HashSet::new(),
            report: ExhaustiveReport::default(),
            verbose: options.verbose,
            twice: sequence.ops.len() <= options.twice,
            trail: String::new(),
        }
    }

    fn add_to(&self, total: &mut ExhaustiveReport) {
        total.sequences += 1;
        total.crash_points += self.report.crash_points;
        total.states += self.report.states;
        total.judged += self.report.judged;
        total.judged_twice += self.report.judged_twice;
        total.counters.add(&self.report.counters);
    }

    fn go(&mut self) -> Result<(), String> {
        let result = self.main_line();
        result.map_err(|why| format!("{}{why}", self.trail))
    }

    fn main_line(&mut self) -> Result<(), String> {
        let mut first = first_state(&self.plan)?;
        first.disks.devices.iter_mut().for_each(|device| device.early_of = 0);
        self.base = first.disks.devices.clone();
        let mut world = World::open(&self.plan, first, OnBackingChange::Refuse);
        world.verbose = self.verbose;
        let ops = &self.sequence.ops;
        if ops.is_empty() {
            world.trap = Trap::Record;
        }
        ensure!(world.wait_open()?, "a new cache does not open: {:?}", world.engine.status());
        for (index, op) in ops.iter().enumerate() {
            if index + 1 == ops.len() || self.sequence.style == Style::Together {
                world.trap = Trap::Record;
            }
            begin(&mut world, *op)?;
            match self.sequence.style {
                Style::Together => {}
                Style::Answered => end(&mut world, *op)?,
                Style::Rested => {
                    end(&mut world, *op)?;
                    rest(&mut world, REST_NS)?;
                }
                Style::Settled => {
                    end(&mut world, *op)?;
                    rest(&mut world, AFTER_NS)?;
                }
            }
        }
        for op in ops {
            end(&mut world, *op)?;
        }
        rest(&mut world, AFTER_NS)?;
        world.trap = Trap::Off;
        let depth = if self.twice { 2 } else { 1 };
        self.crash_all(std::mem::take(&mut world.moments), depth, Detail::Full)?;
        self.trail = "without a crash: ".into();
        settle(&mut world)?;
        close_and_reopen(&mut world)?;
        self.report.counters.add(&world.final_counters());
        Ok(())
    }

    /// Tries all crashes at these instants. Instants count as one if no event of a device and no
    /// promise lies between them.
    fn crash_all(&mut self, moments: Vec<Moment>, depth: u32, detail: Detail) -> Result<(), String> {
        let mut last = None;
        for moment in moments {
            self.report.crash_points += 1;
            let stamps = moment.disks.devices.iter().map(SimDevice::stamp);
            let promised = moment.ordered.iter().fold(moment.oracle.key(), |key, o| mix(key ^ u64::from(*o)));
            let stamp = Some(stamps.fold(promised, |key, stamp| mix(key ^ stamp)));
            if stamp != last {
                self.crash(&moment, promised, depth, detail)?;
            }
            last = stamp;
        }
        Ok(())
    }

    /// Tries all crashes at an instant. `promised` is a hash of the oracle's knowledge.
    fn crash(&mut self, moment: &Moment, promised: u64, depth: u32, detail: Detail) -> Result<(), String> {
        for power in [true, false] {
            let devices = &moment.disks.devices;
            let sizes: Vec<Vec<usize>> = devices.iter().map(|device| device.undecided(power)).collect();
            let all: Vec<usize> = sizes.iter().flatten().copied().collect();
            let mut known: Vec<HashMap<Vec<WriteRemains>, u64>> = vec![HashMap::new(); devices.len()];
            for fates in fates(&all, detail) {
                self.report.states += 1;
                let mut rest = &fates[..];
                let mut split = Vec::new();
                let mut key = mix(promised ^ u64::from(power));
                for (index, device) in devices.iter().enumerate() {
                    let own;
                    (own, rest) = rest.split_at(sizes[index].len());
                    split.push(own);
                    let part = known[index].get(own).copied().unwrap_or_else(|| {
                        let crashed = device.crash_to(power, own.iter().copied());
                        let base = &self.base[index];
                        let key = mix(crashed.visible().key(base.visible()));
                        mix(key ^ crashed.durable().key(base.durable()))
                    });
                    known[index].insert(own.to_vec(), part);
                    key = mix(key ^ part);
                }
                if self.seen.insert(key) {
                    let left = devices.iter().zip(split);
                    let left = left.map(|(device, own)| device.crash_to(power, own.iter().copied()));
                    let snapshot = moment.after(left.collect(), power, Rng::new(key));
                    self.judge(snapshot, depth, &fates)?;
                }
            }
        }
        Ok(())
    }

    /// Opens the state after a crash, and judges it.
    fn judge(&mut self, mut snapshot: Snapshot, depth: u32, fates: &[WriteRemains]) -> Result<(), String> {
        self.report.judged += 1;
        let before = self.trail.clone();
        let (name, now) = (crash_name(&snapshot), snapshot.now);
        self.trail += &format!("{name} at {now} ns, of the writes undecided {fates:?}: ");
        backing_alone(&self.plan, &snapshot)?;
        check_images(&mut snapshot)?;
        let damaged_of = if self.sequence.ops.is_empty() { 1 } else { 6 };
        if snapshot.rng.chance(1, damaged_of) {
            damage_one_copy(&self.plan, &mut snapshot);
            self.trail += "one copy of the metadata damaged: ";
        }
        let mut world = World::open(&self.plan, snapshot, OnBackingChange::Refuse);
        (world.verbose, world.label) = (self.verbose, self.report.judged);
        world.trap = if depth > 1 { Trap::Record } else { Trap::Off };
        ensure!(world.wait_open()?, "does not open: {:?}", world.engine.status());
        world.trap = Trap::Off;
        let moments = std::mem::take(&mut world.moments);
        read_everything(&mut world)?;
        settle(&mut world)?;
        self.report.counters.add(&world.final_counters());
        drop(world);
        let judged = self.report.judged;
        let detail = if self.sequence.ops.len() <= 1 { Detail::Torn } else { Detail::Single };
        self.crash_all(moments, depth - 1, detail)?;
        self.report.judged_twice += self.report.judged - judged;
        self.trail = before;
        Ok(())
    }
}

/// The number of possible states after a crash to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detail {
    /// All subsets, or samples; then each write torn, with all others and with no others.
    Full,
    /// As `Full`, but a torn write only with all others.
    Torn,
    /// All, none, each alone, all but each; none torn.
    Single,
}

/// Returns the combinations of remains of these undecided writes.
fn fates(sectors: &[usize], detail: Detail) -> Vec<Vec<WriteRemains>> {
    let count = sectors.len();
    let pick = |keep: &dyn Fn(usize) -> bool| -> Vec<WriteRemains> {
        (0..count).map(|index| if keep(index) { WriteRemains::All } else { WriteRemains::Nothing }).collect()
    };
    let mut all = Vec::new();
    if count <= SUBSETS_OF && detail != Detail::Single {
        all.extend((0..1_u32 << count).map(|mask| pick(&|index| mask >> index & 1 == 1)));
    } else {
        all.extend([pick(&|_| true), pick(&|_| false)]);
        for one in 0..count {
            all.extend([
                pick(&|index| index == one),
                pick(&|index| index != one),
                pick(&|index| index < one),
            ]);
        }
        let mut rng = Rng::new(count as u64);
        while all.len() < 1 << SUBSETS_OF && detail != Detail::Single {
            let mask = rng.word();
            all.push(pick(&|index| mask >> (index % 64) & 1 == 1));
        }
    }
    for (index, sectors) in sectors.iter().enumerate().filter(|(_, sectors)| **sectors > 1) {
        if detail == Detail::Single {
            break;
        }
        let head = if *sectors > 8 { 8 } else { sectors / 2 };
        for torn in [WriteRemains::Head(head), WriteRemains::Tail(head), WriteRemains::Comb] {
            for others in [true, false].into_iter().filter(|others| *others || detail == Detail::Full) {
                let mut fate = pick(&|_| others);
                fate[index] = torn;
                all.push(fate);
            }
        }
    }
    all
}

/// Begins an operation.
fn begin(world: &mut World, op: Op) -> Result<(), String> {
    let all = (0, BLOCKS * BLOCK);
    let write = RequestKind::Write { fua: false };
    let (kind, range, treatment) = match op {
        Op::Write(block) => (write, (block * BLOCK, BLOCK), Treatment::Cache),
        Op::Part(block) => (write, (block * BLOCK + 1024, 1536), Treatment::Cache),
        Op::Fua(block) => (RequestKind::Write { fua: true }, (block * BLOCK, BLOCK), Treatment::Cache),
        Op::Trim(block) => (RequestKind::Discard { fua: false }, (block * BLOCK, BLOCK), Treatment::Cache),
        Op::Bypass(block) => (write, (block * BLOCK, BLOCK), Treatment::Bypass),
        Op::Read(block) => (RequestKind::Read, (block * BLOCK, BLOCK), Treatment::Cache),
        Op::Span => (write, all, Treatment::Cache),
        Op::Zero => (RequestKind::WriteZeroes { fua: false, may_unmap: true }, all, Treatment::Cache),
        Op::Flush => (RequestKind::Flush, (0, 0), Treatment::Cache),
        Op::Drain => {
            world.engine.set_drain(world.now, VolumeId(0), Drain::Full);
            return world.pump();
        }
        Op::Checkpoint => {
            world.engine.take_checkpoint(world.now);
            return world.pump();
        }
        Op::Mode(mode) => {
            return world.configure(0, VolumeSettings { mode, ..world.disks.settings[0] });
        }
    };
    let writes = !matches!(kind, RequestKind::Read | RequestKind::Flush);
    while writes && !world.oracle.can_write(0, range.0, range.1) {
        // The oracle judges no partial write of a sector concurrently with another write of it.
        ensure!(world.step(u64::MAX)?, "nothing happens");
    }
    world.ask(0, kind, range, treatment)
}

/// Waits until an operation has ended.
fn end(world: &mut World, op: Op) -> Result<(), String> {
    world.wait_requests()?;
    if op == Op::Drain {
        let limit = world.now + ANSWER_LIMIT_NS;
        while world.engine.dirty_blocks(VolumeId(0)) > 0 {
            ensure!(world.step(limit)?, "a drain does not end: {}", world.stall());
        }
        world.engine.set_drain(world.now, VolumeId(0), Drain::Off);
        world.pump()?;
    }
    if op == Op::Checkpoint {
        let limit = world.now + 100_000_000;
        while world.step(limit)? {}
    }
    Ok(())
}

fn rest(world: &mut World, time: u64) -> Result<(), String> {
    let limit = world.now + time;
    while world.step(limit)? {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_are_unique() {
        let all = Sequence::all(2);
        let names: HashSet<String> = all.iter().map(Sequence::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|sequence| Sequence::named(&sequence.name()).as_ref() == Some(sequence)));
        assert_eq!(Sequence::named("writeback.rested.nothing"), None);
    }

    #[test]
    fn blocks_are_numbered_by_first_use() {
        let all = Sequence::all(3);
        let blocks =
            |sequence: &Sequence| sequence.ops.iter().filter_map(|op| op.block()).collect::<Vec<u64>>();
        assert!(all.iter().all(|sequence| blocks(sequence).iter().max().is_none_or(|max| *max < BLOCKS)));
        assert!(!all.iter().any(|sequence| blocks(sequence).first() == Some(&1)));
        assert!(all.iter().any(|sequence| blocks(sequence) == [0, 1, 2]));
    }

    #[test]
    fn few_writes_survive_in_every_subset() {
        let found = fates(&[1, 1, 1], Detail::Full);
        assert_eq!(found.len(), 8);
        let torn = fates(&[16], Detail::Full);
        assert!(torn.contains(&vec![WriteRemains::Head(8)]) && torn.contains(&vec![WriteRemains::Nothing]));
        assert_eq!(fates(&[1; 10], Detail::Full).len(), 1 << SUBSETS_OF);
    }
}
