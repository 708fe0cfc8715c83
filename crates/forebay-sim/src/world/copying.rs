//! Copies a cache device onto another one, which takes its place, as the daemon does: the decisions
//! are those of [`forebay_core::device_copy`], the operations are here.
//!
//! - A start after a crash opens the device that the configuration names. During the change of the
//!   configuration that may be either.
//! - A new device with a head must have all the rest (I80): one in two of those that a crash leaves
//!   is opened, as if the operator had put it into the configuration.
//! - A failure of the new device ends the copy, and has no other effect until that device counts.
//! - The new device holds an older state of the cache at first, or nothing.
//! - A replaced member may vanish before it is erased, and turn up on another host together with
//!   the other member. In either case no wrong data may be served there; and once the change has
//!   ended that host must leave the replaced member out ([`elsewhere`]).

use super::World;
use super::state::FlightKind;
use crate::at_rest::superblock_in;
use crate::device::{OpKind, SimDevice, WriteEnd};
use crate::disks::{CACHE, MemberNotes, Naming, Outdated, Snapshot, Spare, device_of};
use crate::ensure::ensure;
use crate::image::Image;
use crate::plan::CopyPlan;
use crate::rng::Rng;
use crate::start::second_part;
use forebay_core::device_copy::{CopyStep, DeviceCopy, HEAD_BYTES, is_left_behind, joint};
use forebay_core::{CacheMark, DeviceFailure, OpId, Status};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Operation numbers of copies start here; those of the engine are below.
const FIRST_ID: u32 = 1 << 31;

type Outcome = Result<(), DeviceFailure>;

/// The state of a copy.
#[derive(Clone, Debug)]
enum Phase {
    /// Idle until the due time.
    Pause,
    Reading {
        id: u32,
        from: u64,
        len: u64,
    },
    Writing {
        id: u32,
        number: u64,
    },
    Flushing {
        id: u32,
        covered: u64,
    },
    /// The change of the configuration takes until the due time.
    Naming,
}

/// A device that is being copied.
struct Copying {
    copy: DeviceCopy,
    phase: Phase,
    due: u64,
}

/// An operation of the engine on the new device.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Write { number: u64, from: u64, to: u64 },
    Flush { covered: u64 },
}

/// An operation that goes to both devices.
struct Second {
    op: u32,
    /// The copied device; once the new one has taken over, that is in its place.
    of: usize,
    operation: Operation,
    /// Its results on the old device, and on the new one.
    old: Option<Outcome>,
    new: Option<Outcome>,
}

/// A replaced device, while operations on it are in flight.
struct Retired {
    of: usize,
    device: SimDevice,
    ops: BTreeSet<u32>,
}

/// The state of all copies in one world.
pub(crate) struct Copies {
    rng: Rng,
    begun: usize,
    next_id: u32,
    current: Option<Copying>,
    seconds: BTreeMap<u32, Second>,
    /// The results of both devices count for operations that go to both.
    counts: bool,
    retired: Option<Retired>,
    /// The replaced device is back in its old place for a moment.
    pub(super) is_swapped: bool,
    /// Faults are over.
    is_quiet: bool,
}

impl Copies {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            begun: 0,
            next_id: FIRST_ID,
            current: None,
            seconds: BTreeMap::new(),
            counts: false,
            retired: None,
            is_swapped: false,
            is_quiet: false,
        }
    }

    /// Returns the time at which the copy continues by itself.
    pub(super) fn due(&self) -> Option<u64> {
        let copying = self.current.as_ref()?;
        matches!(copying.phase, Phase::Pause | Phase::Naming).then_some(copying.due)
    }

    /// Resets the state for a new engine.
    pub(super) fn forget(&mut self) {
        let begun = self.begun;
        *self = Self { begun, ..Self::new(Rng::new(self.rng.word())) };
    }

    pub(super) fn is_of_copy(op: u32) -> bool {
        op >= FIRST_ID
    }

    fn id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1) | FIRST_ID;
        self.next_id
    }
}

impl World {
    pub(crate) fn is_copying(&self) -> bool {
        self.copies.current.is_some()
    }

    /// Stops or restores the plan's faults of new devices.
    pub(crate) fn quiet_copies(&mut self, is_quiet: bool) {
        self.copies.is_quiet = is_quiet;
    }

    /// Replaces a healthy device as the operator, if it is time.
    pub(crate) fn begin_copy(&mut self) {
        let Some(plan) = self.plan.copies.clone() else { return };
        let is_due = plan.starts.get(self.copies.begun).is_some_and(|at| self.counters.requests >= *at);
        let serves = self.engine.status() == Status::Ready && !self.stopping && !self.fenced;
        let is_quiet =
            self.copies.current.is_none() && self.copies.seconds.is_empty() && self.copies.retired.is_none();
        if !is_due || !serves || self.without_cache || !is_quiet || self.disks.cache_pending.is_some() {
            return;
        }
        let of = match self.engine.mirror_state() {
            None => CACHE,
            Some(state) => {
                let member = self.copies.rng.below(2) as usize;
                if state.rebuild.is_some() || state.out.map(usize::from) == Some(member) {
                    return;
                }
                device_of(&self.plan, member)
            }
        };
        let used =
            if self.plan.mirror.is_some() { self.disks.devices[of].bytes() } else { self.disks.cache_bytes };
        let rng = &mut self.copies.rng;
        // A device that is put back holds an older state of this cache behind its head.
        let old = &self.disks.devices[of];
        let mut device = SimDevice::new(old.bytes(), old.latency);
        device.misdirect_from = old.misdirect_from;
        if rng.chance(1, 2) {
            let mut bytes = vec![0; old.bytes() as usize];
            old.visible().read(0, &mut bytes);
            bytes[..HEAD_BYTES as usize].fill(0);
            device.preset(0, &bytes);
        }
        self.disks.spare = Some(Spare { of, device, naming: Naming::No, is_sound: true });
        let copy = DeviceCopy::new(used, plan.chunk_bytes);
        let due = self.now + rng.below(plan.pause_ns_max + 1);
        self.copies.current = Some(Copying { copy, phase: Phase::Pause, due });
        self.copies.begun += 1;
        self.copies.counts = false;
        self.counters.copies_begun += 1;
        self.digest.add_all(&[19, of as u64, used]);
    }

    /// Makes the next step of the copy.
    pub(super) fn copy_step(&mut self) -> Result<(), String> {
        let Some(copying) = &self.copies.current else { return Ok(()) };
        let is_naming = matches!(copying.phase, Phase::Naming);
        if !self.may_copy() || !is_naming && self.operator_cancels() {
            return self.give_copy_up();
        }
        if is_naming {
            return self.take_over();
        }
        let Some(Spare { of, .. }) = self.disks.spare else { return Err("a copy without a device".into()) };
        let ranges = self.written_ranges(of);
        let is_written = |from: u64, to: u64| ranges.iter().any(|(at, end)| *at < to && *end > from);
        let (id, plan) = (self.copies.id(), self.copy_plan());
        let Some(copying) = &mut self.copies.current else { return Ok(()) };
        let (phase, time) = match copying.copy.next(is_written) {
            Some(CopyStep::Copy { from, len }) => {
                let time = self.disks.devices[of].time(OpKind::Read, len, &mut self.copies.rng);
                (Phase::Reading { id, from, len }, time)
            }
            Some(CopyStep::Flush) => {
                self.set_faults(&plan);
                let Some(spare) = &self.disks.spare else { return Ok(()) };
                let covered = spare.device.submit_flush();
                (Phase::Flushing { id, covered }, spare.device.time(OpKind::Flush, 0, &mut self.copies.rng))
            }
            None => {
                // The copy is complete: begin to change the configuration.
                ensure!(copying.copy.is_whole(), "a copy does not go on");
                copying.copy.begin_to_count();
                (copying.phase, copying.due) =
                    (Phase::Naming, self.now + self.copies.rng.range(1, plan.naming_ns_max));
                self.copies.counts = true;
                self.disks.spare.iter_mut().for_each(|spare| spare.naming = Naming::UnderWay);
                self.crash_point();
                return Ok(());
            }
        };
        self.begin(phase, id, time);
        Ok(())
    }

    fn begin(&mut self, phase: Phase, id: u32, time: u64) {
        if let Some(copying) = &mut self.copies.current {
            copying.phase = phase;
        }
        self.push(id, self.now + time);
    }

    fn push(&mut self, id: u32, due: u64) {
        self.pushed += 1;
        self.queue.push(Reverse((due, self.pushed, id)));
    }

    fn copy_plan(&self) -> CopyPlan {
        self.plan.copies.clone().unwrap_or_default()
    }

    fn set_faults(&mut self, plan: &CopyPlan) {
        let fails = !self.copies.is_quiet && (self.copies.counts || !plan.begins_late);
        let Some(spare) = &mut self.disks.spare else { return };
        spare.device.faults = if fails { plan.faults } else { Default::default() };
    }

    /// Returns the byte ranges of a device with writes in flight, on it or on the new one.
    fn written_ranges(&self, of: usize) -> Vec<(u64, u64)> {
        let first = self.flights.values().filter(|flight| flight.device == of);
        let first = first.filter_map(|flight| match &flight.kind {
            FlightKind::Write { offset, data, .. } => Some((*offset, *offset + data.len() as u64)),
            _ => None,
        });
        let second = self.copies.seconds.values().filter_map(|second| match second.operation {
            Operation::Write { from, to, .. } => Some((from, to)),
            Operation::Flush { .. } => None,
        });
        first.chain(second).collect()
    }

    /// Returns true if nothing has happened that ends the copy.
    fn may_copy(&self) -> bool {
        let Some(spare) = &self.disks.spare else { return false };
        let out = self.engine.mirror_state().and_then(|state| state.out);
        let is_out = out.is_some_and(|out| device_of(&self.plan, usize::from(out)) == spare.of);
        spare.is_sound && !is_out && !self.fenced && !self.without_cache
    }

    fn operator_cancels(&mut self) -> bool {
        let ppm = self.copy_plan().cancel_ppm;
        self.copies.rng.ppm(ppm)
    }

    /// Ends an operation of the copy, or of the engine on the new device.
    pub(super) fn copy_finished(&mut self, id: u32) -> Result<(), String> {
        if self.copies.seconds.contains_key(&id) {
            self.finish_second(id);
        } else {
            self.finish_chunk(id)?;
        }
        let acted = self.pump();
        self.crash_point();
        acted
    }

    fn finish_chunk(&mut self, id: u32) -> Result<(), String> {
        let plan = self.copy_plan();
        let next = self.now + self.copies.rng.below(plan.pause_ns_max + 1);
        let (Some(copying), Some(spare)) = (&mut self.copies.current, &mut self.disks.spare) else {
            return Ok(());
        };
        let good = match copying.phase {
            Phase::Reading { id: of, from, len } if of == id => {
                let mut bytes = vec![0; len as usize];
                let fails =
                    self.short.is_some_and(|short| short.device == spare.of && self.now < short.until)
                        || self.unreadable_until.is_some_and(|until| self.now < until);
                if fails || !self.disks.devices[spare.of].read(from, &mut bytes, &mut self.copies.rng) {
                    self.counters.faults += 1;
                    return self.give_copy_up();
                }
                return self.write_chunk(from, bytes);
            }
            Phase::Writing { id: of, number } if of == id => {
                let good = spare.device.complete_write(number) == WriteEnd::Good;
                if good {
                    copying.copy.chunk_written();
                }
                good
            }
            Phase::Flushing { id: of, covered } if of == id => {
                let good = spare.device.complete_flush(covered, &mut self.copies.rng);
                if good {
                    copying.copy.flushed();
                }
                good
            }
            _ => return Ok(()), // of a cancelled copy
        };
        (copying.phase, copying.due) = (Phase::Pause, next);
        if !good {
            self.counters.faults += 1;
            return self.give_copy_up();
        }
        Ok(())
    }

    fn write_chunk(&mut self, from: u64, bytes: Vec<u8>) -> Result<(), String> {
        let (id, len) = (self.copies.id(), bytes.len() as u64);
        let Some((number, time)) = self.write_to_spare(from, Rc::new(bytes)) else { return Ok(()) };
        self.digest.add_all(&[20, from, len]);
        self.begin(Phase::Writing { id, number }, id, time);
        Ok(())
    }

    /// Submits a write to the new device. Returns its number there, and its duration.
    fn write_to_spare(&mut self, offset: u64, bytes: Rc<Vec<u8>>) -> Option<(u64, u64)> {
        self.set_faults(&self.copy_plan());
        let key = self.books.note_copied(bytes.len() as u64);
        self.engine.note_copied(self.now, key, 1, bytes.len() as u64);
        let (spare, rng) = (self.disks.spare.as_mut()?, &mut self.copies.rng);
        let time = spare.device.time(OpKind::Write, bytes.len() as u64, rng);
        Some((spare.device.submit_write(offset, bytes, rng), time))
    }

    // --- operations of the engine that go to both devices

    /// Duplicates a submitted write to the new device, if the copy needs it.
    pub(super) fn write_second(&mut self, op: OpId, device: usize, offset: u64, bytes: &Rc<Vec<u8>>) {
        let Some(spare) = self.disks.spare.as_ref().filter(|spare| spare.of == device) else { return };
        let (is_sound, len) = (spare.is_sound, bytes.len() as u64);
        let Some(copying) = &mut self.copies.current else { return };
        if !copying.copy.write_begins(offset, len) || !is_sound && !self.copies.counts {
            return;
        }
        let Some((number, time)) = self.write_to_spare(offset, Rc::clone(bytes)) else { return };
        self.begin_second(op, device, Operation::Write { number, from: offset, to: offset + len }, time);
    }

    /// Duplicates a flush.
    pub(super) fn flush_second(&mut self, op: OpId, device: usize) {
        let goes = self.copies.current.as_ref().is_some_and(|copying| copying.copy.flushes_both());
        let plan = self.copy_plan();
        let Some(spare) = self.disks.spare.as_ref().filter(|spare| goes && spare.of == device) else {
            return;
        };
        let covered = spare.device.submit_flush();
        let time = spare.device.time(OpKind::Flush, 0, &mut self.copies.rng);
        self.set_faults(&plan);
        self.begin_second(op, device, Operation::Flush { covered }, time);
    }

    fn begin_second(&mut self, op: OpId, of: usize, operation: Operation, time: u64) {
        let id = self.copies.id();
        self.copies.seconds.insert(id, Second { op: op.0, of, operation, old: None, new: None });
        self.push(id, self.now + time);
    }

    fn finish_second(&mut self, id: u32) {
        let Some(second) = self.copies.seconds.get_mut(&id) else { return };
        let of = second.of;
        let device = match &mut self.disks.spare {
            Some(spare) => &mut spare.device,
            None => &mut self.disks.devices[of],
        };
        let good = match second.operation {
            Operation::Write { number, .. } => device.complete_write(number) == WriteEnd::Good,
            Operation::Flush { covered } => device.complete_flush(covered, &mut self.copies.rng),
        };
        second.new = Some(if good { Ok(()) } else { Err(DeviceFailure::Failed) });
        if !good {
            self.disks.spare.iter_mut().for_each(|spare| spare.is_sound = false);
            self.counters.faults += 1;
            if self.copies.counts {
                self.fault(of, 0, 0);
            }
        }
        self.complete_if_both(id);
    }

    /// Ends an operation on the device that the engine knows. If it goes to another one as well,
    /// the engine gets its completion when both have ended.
    pub(super) fn complete(&mut self, op: u32, result: Outcome) {
        match self.copies.seconds.iter_mut().find(|(_, second)| second.op == op) {
            Some((id, second)) => {
                second.old = Some(result);
                let id = *id;
                self.complete_if_both(id);
            }
            None => self.engine.complete(self.now, OpId(op), result, &[]),
        }
    }

    fn complete_if_both(&mut self, id: u32) {
        let Some(Second { op, old: Some(old), new: Some(new), .. }) = self.copies.seconds.get(&id) else {
            return;
        };
        let (op, result) = (*op, joint(*old, *new, self.copies.counts));
        self.copies.seconds.remove(&id);
        self.engine.complete(self.now, OpId(op), result, &[]);
    }

    // --- the end

    /// Returns the new device after a crash if a start opens it in place of the old one. An
    /// operator who names it before the copy has ended gets it only with a complete cache that a
    /// power cut cannot take away: else a start refuses the device, and the operator names the old
    /// one again.
    pub(super) fn named_after_crash(&self, spare: &Spare, power: bool, rng: &mut Rng) -> Option<SimDevice> {
        let device = if power { spare.device.power_cut(rng) } else { spare.device.kill(rng) };
        let has_head = self.copies.current.as_ref().is_some_and(|copying| copying.copy.has_head());
        let is_named = match spare.naming {
            Naming::UnderWay => rng.chance(1, 2),
            Naming::No => {
                let head = |image: &Image| {
                    let mut bytes = vec![0; HEAD_BYTES as usize];
                    image.read(0, &mut bytes);
                    bytes
                };
                let is_cache = has_head && superblock_in(device.durable()).is_some();
                let is_whole = head(spare.device.visible()) == head(device.visible());
                spare.is_sound && is_cache && is_whole && rng.chance(1, 2)
            }
        };
        is_named.then_some(device)
    }

    /// Puts the new device, which the configuration now names, in the place of the old one.
    fn take_over(&mut self) -> Result<(), String> {
        let Some(Spare { of, device, .. }) = self.disks.spare.take() else { return Ok(()) };
        self.copies.current = None;
        let faults = self.disks.devices[of].faults;
        let retired = std::mem::replace(&mut self.disks.devices[of], device);
        self.disks.devices[of].faults = faults;
        self.note_outdated(of, &retired);
        let is_begun = |kind: &FlightKind| !matches!(kind, FlightKind::Held(_));
        let on_it = self.flights.iter().filter(|(_, flight)| flight.device == of && is_begun(&flight.kind));
        let ops: BTreeSet<u32> = on_it.map(|(op, _)| *op).collect();
        if !ops.is_empty() {
            self.copies.retired = Some(Retired { of, device: retired, ops });
        }
        let parts = if self.plan.mirror.is_none() { vec![0, 1] } else { vec![usize::from(of != CACHE)] };
        let held = self.flights.values().any(|flight| matches!(flight.kind, FlightKind::Held(_)));
        let [first, second] = self.books.note_taken_over(&parts, held);
        self.engine.set_devices(&[(first, 0), (second, second_part(&self.plan))]);
        self.counters.copies_ended += 1;
        self.digest.add_all(&[21, of as u64]);
        self.leave_behind();
        self.crash_point();
        self.pump()
    }

    /// Notes that a replaced member vanishes, with its content and its operations in flight.
    fn note_outdated(&mut self, of: usize, retired: &SimDevice) {
        if self.plan.mirror.is_none() {
            return;
        }
        let device = retired.kill(&mut Rng::new(self.copies.rng.clone().word() ^ 0x0056_414e));
        let generation = self.engine.mark().generation;
        self.disks.outdated = Some(Outdated { of, device, generation, has_ended: false });
    }

    /// Takes checkpoints until no start accepts the replaced member. A start continues this.
    pub(super) fn leave_behind(&mut self) {
        let now = self.engine.mark().generation;
        let serves = self.engine.status() == Status::Ready && !self.stopping && !self.fenced;
        let Some(outdated) = self.disks.outdated.as_mut().filter(|outdated| !outdated.has_ended) else {
            return;
        };
        outdated.has_ended = is_left_behind(outdated.generation, now);
        if !outdated.has_ended && serves && !self.without_cache {
            self.engine.take_checkpoint(self.now);
        }
    }

    /// Cancels the copy: nothing changes. Completes operations that wait only for the new device.
    pub(super) fn give_copy_up(&mut self) -> Result<(), String> {
        let Some(_) = self.copies.current.take() else { return Ok(()) };
        // If the configuration names the new device, it is changed back first.
        self.disks.spare = None;
        self.books.note_given_up();
        self.copies.counts = false;
        for (_, second) in std::mem::take(&mut self.copies.seconds) {
            if let Some(old) = second.old {
                self.engine.complete(self.now, OpId(second.op), old, &[]);
            }
        }
        self.digest.add(22);
        self.crash_point();
        self.pump()
    }

    /// Ends the copy before the engine stops: completes a change of the configuration that has
    /// begun, else cancels.
    pub(crate) fn end_copy(&mut self) -> Result<(), String> {
        match self.copies.current.as_ref().map(|copying| &copying.phase) {
            Some(Phase::Naming) if self.may_copy() => self.take_over(),
            _ => self.give_copy_up(),
        }
    }

    /// If the device of an operation was replaced meanwhile, puts it back in its old place until
    /// [`Self::swap_back`], so that the operation ends there.
    pub(super) fn swap_retired(&mut self, op: u32) {
        let Some(retired) = &mut self.copies.retired else { return };
        if !retired.ops.remove(&op) {
            return;
        }
        std::mem::swap(&mut self.disks.devices[retired.of], &mut retired.device);
        self.copies.is_swapped = true;
    }

    pub(super) fn swap_back(&mut self) {
        let Some(retired) = self.copies.retired.as_mut().filter(|_| self.copies.is_swapped) else { return };
        std::mem::swap(&mut self.disks.devices[retired.of], &mut retired.device);
        self.copies.is_swapped = false;
        if retired.ops.is_empty() {
            self.copies.retired = None;
        }
    }
}

/// Returns the state after a crash on a host without a record of the cache, with the replaced
/// member that vanished before it was erased in its place. `None` if there is none, or it is
/// undetectable: the other member was failed out meanwhile, or is not intact. The good copies of
/// its lost or rotten blocks are on the new device, which this host lacks.
pub(crate) fn elsewhere(mut snapshot: Snapshot) -> Option<(Snapshot, usize, bool)> {
    let Outdated { of, device, has_ended, .. } = snapshot.disks.outdated.take()?;
    let is_sure = !snapshot.disks.damaged && !snapshot.oracle.relaxed && snapshot.disks.record.is_none();
    let (member, other) = if of == CACHE { (0, 1) } else { (1, 0) };
    let is_whole = |notes: &MemberNotes| is_sure && notes.noted.is_empty() && !notes.harmed[other];
    let notes = snapshot.disks.member_notes.as_mut().filter(|notes| is_whole(notes))?;
    // Copies on it are bad where blocks were written since: not a false alarm.
    notes.harmed[member] = true;
    // That host would refuse one of them alone, as it cannot know whether it counts.
    (snapshot.disks.known, snapshot.disks.is_elsewhere) = (CacheMark::default(), true);
    snapshot.disks.devices[of] = device;
    snapshot.disks.devices.iter_mut().for_each(SimDevice::quiet);
    Some((snapshot, of, has_ended))
}
