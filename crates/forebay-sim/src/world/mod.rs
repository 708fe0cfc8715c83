//! A world: one engine, its devices and its clients, in virtual time.
//!
//! The world performs the engine's actions (`actions`), submits requests and judges the replies
//! (`client`). This file has time, crashes, start and stop. Any violation ends the run with a
//! message (an `Err(String)` all the way up).
//!
//! Invariants:
//! - one generator decides everything; time moves only in [`World::step`];
//! - after every submission and completion of something that changes a device there is a *crash
//!   point*: the [`Trap`] decides whether a [`Snapshot`], devices and oracle after a crash at that
//!   instant, is taken.

mod actions;
mod client;
mod copying;
mod late_starts;
mod lifecycle;
mod mirror;
mod order;
mod owner;
mod scrub;
mod stalls;
mod state;
mod truncation;

pub(crate) use copying::elsewhere;
pub(crate) use order::check_images;

use crate::counter_check::Books;
use crate::counters::Counters;
use crate::destage_check::DestageCheck;
use crate::device::{Faults, SimDevice};
use crate::disks::{CACHE, Disks, Moment, Record, Risk, Snapshot};
use crate::endurance_check::EnduranceCheck;
use crate::ensure::ensure;
use crate::memory::Memory;
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::rng::{Digest, Rng};
use crate::start::{backing_record, open_engine, open_without_cache, replace_cache};
use copying::Copies;
use forebay_core::{EnduranceBudget, Engine, OnBackingChange, PoolSettings, Status, VolumeSettings};
use forebay_format::{BLOCK_BYTES, VolumeId};
use state::{Flight, FlightKind, Note, Pending, Scrubs, Short, Stall, Task};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

/// Longest virtual time that a request, an opening, a drain or a shutdown may take.
pub const ANSWER_LIMIT_NS: u64 = 600_000_000_000;
/// After a request has waited this long, a range of a backing store that takes no writes does so
/// again.
const MEND_NS: u64 = 300_000_000_000;
/// Longest virtual time of a stop, with a slow device and with one that takes no writes.
const STOP_LIMIT_NS: u64 = 250_000_000_000;
/// Ticks in a row without an action or completion, after which the engine counts as stuck.
const TICKS_MAX: u64 = 10_000;
/// Beyond those, one more tick is allowed per this much virtual time, in nanoseconds.
const TICK_NS: u64 = 500_000;

/// The crash points that become snapshots.
#[derive(Clone, Copy, Debug)]
pub enum Trap {
    /// Never.
    Off,
    /// Every crash point becomes a [`Moment`], and the world continues.
    Record,
    /// One crash point in this many, and the world continues.
    Sample(u64),
    /// The crash point with this number, and the world ends.
    After(u64),
}

/// The world. See the top of the file.
pub struct World {
    /// The plan of the run.
    pub plan: Rc<Plan>,
    /// Virtual time.
    pub now: u64,
    /// All randomness of this world except for the crash points.
    pub rng: Rng,
    trap_rng: Rng,
    /// Draws when, and after which power cut, the destage order is checked.
    order_rng: Rng,
    /// The state that survives a crash.
    pub disks: Disks,
    /// Time of the last record of the cache's progress since the engine was created.
    recorded_at: Option<u64>,
    /// The engine under test.
    pub engine: Engine,
    /// The judge.
    pub oracle: Oracle,
    memory: Memory,
    flights: BTreeMap<u32, Flight>,
    queue: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pushed: u64,
    requests: BTreeMap<u64, Pending>,
    next_request: u64,
    /// Errors that devices have reported to the engine, by device.
    errors: Vec<u64>,
    destage_check: DestageCheck,
    endurance_check: EnduranceCheck,
    ticks: u64,
    /// Time of the first of these ticks.
    ticks_since: u64,
    /// Hash of all events.
    pub digest: Digest,
    /// The crash points to take snapshots at.
    pub trap: Trap,
    /// Snapshots taken.
    pub snapshots: Vec<Snapshot>,
    /// Moments recorded.
    pub moments: Vec<Moment>,
    /// The trap has ended this world.
    pub stopped: bool,
    /// The cache device has failed.
    pub fenced: bool,
    /// The engine began without a cache.
    pub without_cache: bool,
    /// Until then no cached block is readable, see [`Plan::outage`].
    unreadable_until: Option<u64>,
    /// The device that is too short now, and the number of the plan's truncations done.
    short: Option<Short>,
    truncations_done: usize,
    /// The device that is slow now, and the number of the plan's stalls done.
    stall: Option<Stall>,
    stalls_done: usize,
    /// Backing stores that were reopened, and have not been flushed since.
    reopened: BTreeSet<usize>,
    /// The engine refuses changes because the owner could not make a record.
    refused: bool,
    refusals: u64,
    /// The owner's current task.
    owner: Option<Task>,
    /// The note about a failed member that the owner is writing.
    note: Option<Note>,
    /// The risk when the owner was last asked.
    at_risk: Option<Risk>,
    /// Sectors that an engine without a cache must answer with errors.
    pub(crate) risk: Risk,
    /// Sectors written since the cache was given up, and the step.
    healed: BTreeMap<(usize, u64), u64>,
    /// Sectors that a request was to change since the cache was fenced.
    touched: Risk,
    /// By volume: the step of the last loss, and of the last FLUSH that reported it.
    lost_at: Vec<Option<u64>>,
    told_at: Vec<Option<u64>>,
    /// By volume: the step of the last failed flush of its backing store.
    flush_failed_at: Vec<Option<u64>>,
    /// Offset and length of the last batch that could not be written to the cache device.
    unwritten: Option<(u64, u64)>,
    stopping: bool,
    quiesced: bool,
    closed: bool,
    /// Volumes whose backing store alone was promised to be a crash-consistent image when the
    /// engine was opened.
    pub ordered: Vec<bool>,
    /// Volumes that are attached only once the engine is open.
    pub late: Vec<bool>,
    /// The policy for volumes whose backing store has changed, at a start and at a later attach.
    pub policy: OnBackingChange,
    /// A violation found where it could not be reported.
    disorder: Option<String>,
    /// Clients send requests as soon as the engine serves, before it has performed its other
    /// actions.
    greets: bool,
    /// Writes of the rewrite at a start, since it began.
    rewrites: u64,
    /// A backing store was changed on purpose before this engine was opened.
    pub changed: bool,
    /// The changed volume, while the oracle does not know of the change.
    pub(crate) unlearned: Option<usize>,
    scrubs: Scrubs,
    copies: Copies,
    books: Books,
    /// Counters.
    pub counters: Counters,
    /// Prints every event to standard error.
    pub verbose: bool,
    /// Number of the crash that this world comes from, for the output.
    pub label: u64,
}

impl World {
    /// Creates a world with an engine that has begun to open the cache on these disks.
    #[must_use]
    pub fn open(plan: &Rc<Plan>, snapshot: Snapshot, policy: OnBackingChange) -> Self {
        let Snapshot { mut disks, oracle, now, mut rng, power, ordered } = snapshot;
        // Separate generator, so that other plans do not change.
        let own = &mut Rng::new(rng.clone().word() ^ 0x4c49_4645);
        let plan = &plan.at_start(own);
        let now = if power && plan.clock_restarts { own.pick(&[0, 1_000, 20_000_000_000]) } else { now };
        disks.volumes.iter_mut().for_each(|status| status.ending = false);
        let volumes = plan.volumes.len();
        let late = draw_late(plan, &mut rng);
        let trap_rng = Rng::new(rng.word());
        let order_rng = Rng::new(rng.word());
        // Not drawn from `rng`, so that plans without copies do not change.
        let copies = Copies::new(Rng::new(rng.clone().word() ^ 0x434f_5049_4553));
        let mut world = Self {
            plan: Rc::clone(plan),
            now,
            trap_rng,
            order_rng,
            engine: open_engine(plan, &disks, &late, policy, &mut rng, now),
            errors: vec![0; disks.devices.len()],
            rng,
            disks,
            oracle,
            memory: Memory::new(plan.engine.scratch_blocks),
            flights: BTreeMap::new(),
            queue: BinaryHeap::new(),
            pushed: 0,
            requests: BTreeMap::new(),
            next_request: 0,
            destage_check: DestageCheck::new(plan),
            endurance_check: EnduranceCheck::default(),
            ticks: 0,
            ticks_since: 0,
            digest: Digest::default(),
            trap: Trap::Off,
            snapshots: Vec::new(),
            moments: Vec::new(),
            stopped: false,
            fenced: false,
            without_cache: false,
            unreadable_until: None,
            short: None,
            recorded_at: None,
            truncations_done: 0,
            stall: None,
            stalls_done: 0,
            reopened: BTreeSet::new(),
            refused: false,
            refusals: 0,
            owner: None,
            note: None,
            at_risk: None,
            risk: Risk::new(),
            healed: BTreeMap::new(),
            touched: Risk::new(),
            lost_at: vec![None; volumes],
            told_at: vec![None; volumes],
            flush_failed_at: vec![None; volumes],
            unwritten: None,
            stopping: false,
            quiesced: false,
            closed: false,
            ordered,
            late,
            policy,
            disorder: None,
            scrubs: Scrubs::default(),
            copies,
            books: Books::default(),
            greets: false,
            rewrites: 0,
            changed: false,
            unlearned: None,
            counters: Counters::default(),
            verbose: false,
            label: 0,
        };
        world.counters.opens = 1;
        world.begin_endurance();
        world.begin_start();
        world
    }

    /// Returns true if data that a failed flush has dropped is visible, but not durable: the next
    /// engine does not know.
    fn has_dropped(&self) -> bool {
        let past = self.plan.drops_past && self.disks.devices.iter().any(SimDevice::has_ever_dropped);
        past || self.disks.devices.iter().any(SimDevice::has_dropped)
    }

    /// Returns the volumes whose clients no FLUSH will inform of a failed flush of the backing
    /// store: I82 ends with the engine.
    fn untold_drops(&self) -> Vec<usize> {
        let is_untold = |volume: &usize| self.flush_failed_at[*volume] > self.told_at[*volume];
        (0..self.flush_failed_at.len()).filter(|volume| self.plan.drops_past && is_untold(volume)).collect()
    }

    /// Starts another engine on the disks, after an orderly stop or a failure to open.
    pub fn reopen(&mut self, policy: OnBackingChange) {
        self.disks.volumes.iter_mut().for_each(|status| status.ending = false);
        if self.has_dropped() {
            // Dropped data is gone for the next daemon, however this one ended: as after a power
            // cut.
            let gone = self.crash();
            (self.disks, self.oracle) = (gone.disks, gone.oracle);
        }
        self.untold_drops().into_iter().for_each(|volume| self.oracle.dropped(volume));
        self.disorder = self.disorder.take().or(self.check_counters().err());
        self.books = Books::default();
        self.disks.spare = None;
        self.copies.forget();
        self.ordered = self.ordered_now();
        self.late = draw_late(&self.plan, &mut self.rng);
        self.policy = policy;
        self.counters.coverage.add_engine(&self.engine);
        self.disks.devices.iter_mut().for_each(SimDevice::revive);
        (self.short, self.stall) = (None, None);
        self.reopened.clear();
        (self.disks.known, self.recorded_at) = (self.engine.mark(), None);
        self.plan = self.plan.at_start(&mut Rng::new(self.rng.clone().word() ^ 0x4c49_4645));
        self.engine = open_engine(&self.plan, &self.disks, &self.late, policy, &mut self.rng, self.now);
        self.memory = Memory::new(self.plan.engine.scratch_blocks);
        self.destage_check = DestageCheck::new(&self.plan);
        self.begin_endurance();
        self.flights.clear();
        self.queue.clear();
        (self.fenced, self.stopping, self.quiesced, self.closed) = (false, false, false, false);
        (self.without_cache, self.refused, self.refusals) = (false, false, 0);
        (self.owner, self.note, self.at_risk) = (None, None, None);
        self.unwritten = None;
        self.scrubs = Scrubs::default();
        self.counters.opens += 1;
        self.begin_start();
    }

    /// If there is a record, the engine just created must not open the cache: replaces it by one
    /// without a cache.
    fn begin_start(&mut self) {
        self.risk.clear();
        self.healed.clear();
        self.touched.clear();
        self.lost_at.fill(None);
        self.told_at.fill(None);
        self.flush_failed_at.fill(None);
        if self.disks.record.is_none() {
            return;
        }
        self.settle_volumes();
        let replaced = replace_cache(&self.plan, &mut self.disks, &mut self.rng);
        self.disorder = self.disorder.take().or(replaced.err());
        self.ordered.fill(false);
        let Some(Record { risk, .. }) = self.disks.record.clone() else {
            self.engine =
                open_engine(&self.plan, &self.disks, &self.late, self.policy, &mut self.rng, self.now);
            return;
        };
        self.engine = open_without_cache(&self.plan, &self.disks, &risk, &self.late, self.now);
        let block = |(volume, sector): &(usize, u64)| (*volume, sector / 8);
        self.oracle.tainted.extend(risk.iter().map(block));
        (self.fenced, self.without_cache) = (true, true);
        self.at_risk = Some(risk.clone());
        self.risk = risk;
        self.destage_check.without_cache();
    }

    /// Compares the observations of this engine with its counters.
    ///
    /// # Errors
    /// Names the difference.
    pub(crate) fn check_counters(&self) -> Result<(), String> {
        let open: Vec<_> = self.requests.values().map(Pending::asked).collect();
        let volumes = (!self.late.contains(&true)).then_some(self.plan.volumes.len());
        let is_held = |kind: &FlightKind| matches!(kind, FlightKind::Held(_) | FlightKind::Refused);
        let held = self.flights.values().any(|flight| is_held(&flight.kind));
        self.books.check(&self.engine, &open, volumes, held)
    }

    /// Starts an engine's endurance accounts with the budget of the plan.
    fn begin_endurance(&mut self) {
        self.endurance_check = EnduranceCheck::default();
        self.set_endurance(self.plan.engine.pool.endurance_budget);
    }

    fn set_endurance(&mut self, budget: EnduranceBudget) {
        let joined = self.disks.joined.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let devices = if self.plan.mirror.is_some() { 2 } else { 1 + joined };
        let in_flight = u64::from(self.plan.engine.scratch_blocks) * 4096;
        self.endurance_check.set(budget, devices, self.now, in_flight);
    }

    /// Returns true if a device has reported an error to the engine.
    pub(crate) fn had_errors(&self) -> bool {
        self.errors.iter().any(|errors| *errors > 0)
    }

    /// Stops the faults of all devices.
    pub(crate) fn stop_faults(&mut self) {
        self.disks.devices.iter_mut().for_each(|device| device.faults = Faults::default());
        self.quiet_copies(true);
    }

    /// Returns the counters, including the current engine's.
    #[must_use]
    pub fn final_counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.coverage.add_engine(&self.engine);
        counters
    }

    /// Runs until the engine serves or has given up. Returns true if it serves.
    ///
    /// # Errors
    /// Any violation.
    pub fn wait_open(&mut self) -> Result<bool, String> {
        self.greets = self.rng.chance(1, 3) && !self.changed && self.unlearned.is_none();
        self.rewrites = 0;
        let writes = self.disks.devices[CACHE].writes();
        self.pump()?;
        let end = self.now + ANSWER_LIMIT_NS;
        while self.engine.status() == Status::Opening && !self.stopped {
            ensure!(self.step(end)?, "opening does not end");
        }
        if self.stopped {
            return Ok(false);
        }
        if let Status::Failed(_) = self.engine.status() {
            // With a mirrored cache the opening may have written the blocks that one member lacked,
            // and the rewrite.
            let untouched = self.disks.devices[CACHE].writes() <= writes + self.rewrites
                || self.errors[CACHE] > 0
                || self.plan.mirror.is_some();
            ensure!(untouched, "a failed opening wrote to the cache device");
            return Ok(false);
        }
        self.resolve()?;
        self.check_order_kept()?;
        Ok(!self.stopped)
    }

    /// Waits until the operations in flight now have ended: those of an opening that failed, and
    /// those that a fault will still hit.
    ///
    /// # Errors
    /// Any violation.
    pub(crate) fn wait_flights(&mut self) -> Result<(), String> {
        let last = self.queue.iter().map(|Reverse((time, ..))| *time).max().unwrap_or(0);
        let is_due = |queue: &BinaryHeap<Reverse<(u64, u64, u32)>>| {
            queue.peek().is_some_and(|Reverse((time, ..))| *time <= last)
        };
        while is_due(&self.queue) && !self.stopped {
            self.step(last)?;
        }
        Ok(())
    }

    /// Changes settings of a volume as the operator.
    ///
    /// # Errors
    /// Any violation; also settings that the engine refuses.
    pub fn configure(&mut self, volume: usize, settings: VolumeSettings) -> Result<(), String> {
        self.disks.settings[volume] = settings;
        self.destage_check.configured(volume, self.now, self.next_request);
        let result = self.engine.configure_volume(self.now, VolumeId(volume as u16), settings);
        ensure!(result.is_ok(), "{settings:?} is refused: {result:?}");
        self.pump()
    }

    /// Changes settings of the pool as the operator.
    ///
    /// # Errors
    /// Any violation; also settings that the engine refuses.
    pub fn configure_pool(&mut self, settings: PoolSettings) -> Result<(), String> {
        let result = self.engine.configure_pool(self.now, settings);
        ensure!(result.is_ok(), "{settings:?} is refused: {result:?}");
        self.set_endurance(settings.endurance_budget);
        self.pump()
    }

    /// Performs all actions that the engine has ready.
    ///
    /// # Errors
    /// Any violation.
    pub fn pump(&mut self) -> Result<(), String> {
        while !self.stopped {
            let Some(action) = self.engine.next_action() else { break };
            if self.verbose {
                self.say(&format!("{action:?}"));
            }
            self.ticks = 0;
            self.perform(action)?;
            if self.greets && self.engine.status() == Status::Ready {
                self.greets = false;
                self.greet()?;
            }
        }
        self.record_mark();
        let oldest = self.requests.first_key_value().map(|(id, _)| *id);
        self.destage_check.look(&self.engine, &self.disks.settings, self.now, oldest)
    }

    /// Records the progress of the cache as the daemon does, if the record may lag: when the cache
    /// is open, and then from time to time.
    fn record_mark(&mut self) {
        let lag = self.plan.record_lag_ns;
        let is_due = self.recorded_at.is_none_or(|at| self.now >= at + lag);
        if lag > 0 && is_due && self.engine.status() == Status::Ready {
            (self.disks.known, self.recorded_at) = (self.engine.mark(), Some(self.now));
        }
    }

    /// Reads some blocks of the volumes that were attached at the opening.
    fn greet(&mut self) -> Result<(), String> {
        for volume in self.staying() {
            let blocks = self.served_bytes(volume) / BLOCK_BYTES as u64;
            let here = self.disks.volumes[volume].is_attached() && !self.late[volume];
            for _ in 0..if here { self.rng.below(4) } else { 0 } {
                let block = self.rng.below(blocks);
                self.read(volume, block * BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
            }
        }
        Ok(())
    }

    /// Lets the next event happen that is due at or before `limit`. Returns false if there is none,
    /// and advances the time to `limit`.
    ///
    /// # Errors
    /// Any violation.
    pub fn step(&mut self, limit: u64) -> Result<bool, String> {
        let done = self.queue.peek().map(|Reverse((time, ..))| *time);
        let deadline = self.engine.next_deadline();
        let owner = self.owner.as_ref().map(|task| task.due);
        let note = self.note.as_ref().map(|note| note.due);
        let copy = self.copies.due();
        let next = done.into_iter().chain(deadline).chain(owner).chain(note).chain(copy).min();
        let Some(next) = next.filter(|next| *next <= limit) else {
            ensure!(self.requests.is_empty() || limit != u64::MAX, "{}", self.stall());
            if limit != u64::MAX {
                self.advance(limit);
            }
            return Ok(false);
        };
        self.advance(next);
        if done.is_some_and(|done| done <= next) {
            let Some(Reverse((_, _, op))) = self.queue.pop() else { return Ok(false) };
            self.ticks = 0;
            self.finish(op)?;
        } else if owner.is_some_and(|due| due <= next) {
            self.ticks = 0;
            self.owner_done()?;
        } else if note.is_some_and(|due| due <= next) {
            self.ticks = 0;
            self.note_done()?;
        } else if copy.is_some_and(|due| due <= next) {
            self.copy_step()?;
        } else {
            if self.ticks == 0 {
                self.ticks_since = self.now;
            }
            self.ticks += 1;
            // While a device is slow an engine may tick every millisecond.
            let fair = TICKS_MAX + (self.now - self.ticks_since) / TICK_NS;
            ensure!(
                self.ticks < fair,
                "tick is wanted again and again and nothing happens; {}",
                self.stall()
            );
            self.engine.tick(self.now);
            self.pump()?;
        }
        self.plug_in()?;
        if let Some(why) = self.disorder.take() {
            return Err(why);
        }
        if let Some((id, request)) = self.requests.first_key_value() {
            let age = self.now - request.submitted_at;
            if age > MEND_NS {
                // Writers wait while a store takes no writes: lift the fault.
                self.disks.devices.iter_mut().for_each(|device| device.faults.barred = None);
            }
            ensure!(age < ANSWER_LIMIT_NS, "request {id} {request:?} is open for {age} ns");
        }
        Ok(true)
    }

    fn say(&self, what: &str) {
        eprintln!("[{}] {:>14} {what}", self.label, self.now);
    }

    fn advance(&mut self, to: u64) {
        if to > self.now {
            self.counters.virtual_ns += to - self.now;
            self.now = to;
        }
    }

    pub(crate) fn stall(&self) -> String {
        let first = self.requests.iter().next();
        let engine = self.engine.describe();
        format!("stall with {} operations under way; open request: {first:?}; {engine}", self.flights.len())
    }

    /// A crash may occur here.
    fn crash_point(&mut self) {
        if self.copies.is_swapped {
            return; // It is one once the devices are in their places.
        }
        self.counters.crash_points_seen += 1;
        self.watch_order();
        match &mut self.trap {
            Trap::Off => {}
            Trap::Record => {
                let moment = self.moment();
                self.moments.push(moment);
            }
            Trap::Sample(of) => {
                if self.trap_rng.chance(1, *of) {
                    let snapshot = self.crash();
                    self.snapshots.push(snapshot);
                }
            }
            Trap::After(left) => {
                *left = left.saturating_sub(1);
                if *left == 0 && !self.stopped {
                    self.stopped = true;
                    let snapshot = self.crash();
                    self.snapshots.push(snapshot);
                }
            }
        }
    }

    /// Draws other crashes from here on.
    pub fn reseed_crashes(&mut self, salt: u64) {
        self.trap_rng = Rng::new(salt);
    }

    /// Returns the state after a crash now: a power cut or a kill, drawn at random.
    pub fn crash(&mut self) -> Snapshot {
        let mut rng = Rng::new(self.trap_rng.word());
        let power = rng.chance(2, 3);
        // Data dropped by a failed flush is gone for the next daemon.
        let power = power || self.has_dropped();
        let mut crashed =
            |device: &SimDevice| if power { device.power_cut(&mut rng) } else { device.kill(&mut rng) };
        let mut devices: Vec<SimDevice> = self.disks.devices.iter().map(&mut crashed).collect();
        let mut moment = self.moment();
        self.untold_drops().into_iter().for_each(|volume| moment.oracle.dropped(volume));
        if let Some(spare) = moment.disks.spare.take()
            && let Some(named) =
                self.named_after_crash(&spare, power, &mut Rng::new(rng.clone().word() ^ 0x0053_5041_5245))
        {
            devices[spare.of] = named;
        }
        if let Some(record) = self.owner.as_ref().and_then(Task::record)
            && rng.chance(1, 2)
        {
            moment.disks.record = Some(record.clone());
        }
        if let Some(note) = self.note.as_ref().filter(|note| note.may_be_durable())
            && rng.chance(1, 2)
        {
            note.enter(&mut moment.disks);
        }
        moment.after(devices, power, rng)
    }

    /// Returns this instant.
    #[must_use]
    pub fn moment(&self) -> Moment {
        let oracle = self.oracle.clone();
        let mut disks = self.disks.clone();
        if self.plan.record_lag_ns == 0 {
            disks.known = self.engine.mark();
        }
        Moment { disks, oracle, now: self.now, ordered: self.ordered_now() }
    }

    /// Begins an orderly stop and waits until it can be finished.
    ///
    /// # Errors
    /// Any violation.
    pub fn quiesce(&mut self) -> Result<(), String> {
        self.stopping = true;
        self.end_copy()?;
        self.engine.begin_shutdown(self.now);
        self.pump()?;
        self.wait_for("quiescing", STOP_LIMIT_NS, |world| world.quiesced)
    }

    /// Finishes an orderly stop.
    ///
    /// # Errors
    /// Any violation.
    pub fn close(&mut self) -> Result<(), String> {
        self.close_without(None)
    }

    /// Finishes an orderly stop at which the owner cannot inspect one backing store. Its stamp
    /// differs from the one at the attach: the engine has written to it.
    ///
    /// # Errors
    /// Any violation.
    pub fn close_without(&mut self, unseen: Option<usize>) -> Result<(), String> {
        let attached: Vec<usize> = self.staying();
        if let Some(volume) = unseen {
            self.disks.stamps[volume] += 1_000;
            self.disks.sampled[volume].clear();
        }
        let backings: Vec<_> = attached
            .into_iter()
            .filter(|volume| Some(*volume) != unseen)
            .map(|volume| {
                let bytes = self.disks.volumes[volume].bytes;
                let mut record = backing_record(&self.plan, bytes, self.disks.stamps[volume], volume);
                record.samples = self.samples(volume);
                // Do not note samples of a store that could not be flushed: after a power cut its
                // content may differ. A later successful flush need not help: writes in flight at a
                // failed flush stay uncertain (I84).
                let failed = self.disks.flush_failed[1 + volume] || self.flush_failed_at[volume].is_some();
                let flushed = !self.is_short(1 + volume) && !failed;
                let blocks = record.samples.iter().map(|(block, _)| *block);
                self.disks.sampled[volume] = blocks.filter(|_| flushed).collect();
                (VolumeId(volume as u16), record)
            })
            .collect();
        self.engine.finish_shutdown(self.now, &backings);
        self.pump()?;
        self.wait_for("closing", STOP_LIMIT_NS, |world| world.closed)
    }

    fn wait_for(&mut self, what: &str, limit_ns: u64, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end = self.now + limit_ns;
        while !done(self) && !self.stopped {
            ensure!(self.step(end)?, "{what} does not end: {}", self.engine.describe());
        }
        Ok(())
    }

    /// Returns which blocks of a volume are dirty according to the engine.
    #[must_use]
    pub fn dirty_map(&self, volume: usize) -> Vec<bool> {
        let blocks = self.oracle.sectors(volume).div_ceil(8);
        let mut map = Vec::new();
        self.engine.block_status(VolumeId(volume as u16), 0, blocks, &mut |len, _, dirty| {
            map.extend(std::iter::repeat_n(dirty, len as usize));
            true
        });
        map
    }

    fn samples(&mut self, volume: usize) -> Vec<(u64, u32)> {
        let blocks = self.disks.volumes[volume].bytes / BLOCK_BYTES as u64;
        let count = self.rng.below(17).min(blocks);
        let mut bytes = [0; BLOCK_BYTES];
        // Dirty blocks are not sampled: after a failed flush their content on the backing store is
        // unknown.
        let dirty = self.dirty_map(volume);
        let mut blocks: Vec<u64> = (0..count).map(|_| self.rng.below(blocks)).collect();
        blocks.retain(|block| !dirty[*block as usize]);
        blocks.sort_unstable();
        blocks.dedup();
        let image = self.disks.devices[1 + volume].visible();
        let sample = |block: u64| {
            image.read(block * BLOCK_BYTES as u64, &mut bytes);
            (block, crc32c::crc32c(&bytes))
        };
        blocks.into_iter().map(sample).collect()
    }
}

/// Draws which volumes are attached only once the engine is open.
fn draw_late(plan: &Plan, rng: &mut Rng) -> Vec<bool> {
    let pct = rng.pick(&[0, 50, 100]);
    (0..plan.volumes.len()).map(|_| rng.chance(pct, 100)).collect()
}
