//! Mirrored caches: members that fail, come back stale, are missing at a start, and are replaced.
//!
//! As long as only one member has failed nothing may be lost, no request may end with an error, and
//! every start must succeed. Both may make errors, and both may rot, but never the same block. The
//! owner's note that a member does not count any more is a list of tags, durable as a whole or not
//! at all. Where both members are there, the owner sometimes hands over a noted one as well: the
//! superblocks say the same.
//!
//! Whichever member has a superblock and was not noted may be the only one that is found at a
//! start, at every crash point: it must open, and have everything that was promised.

use crate::device::{Death, Faults, SimDevice};
use crate::image::Image;
use crate::plan::{OwnerPlan, Plan};
use crate::rng::Rng;
use crate::world::{CACHE, Disks, World, ensure};
use forebay_core::{
    Engine, EngineConfig, LifecycleError, MirrorDevices, MirrorState, Notice, PlantedBug, Status, fault,
};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry};
use std::collections::{BTreeMap, BTreeSet};

/// What happens to the members in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorPlan {
    /// After so many requests this member fails, in this way; `None`: the owner only says that it
    /// is gone.
    pub failures: Vec<(u64, usize, Option<Death>)>,
    /// Rates of the faults of each member.
    pub faults: [Faults; 2],
    /// Members whose sectors rot or become unreadable.
    pub harms: [bool; 2],
    /// Sectors of those that rot, in parts per million of requests.
    pub rot: u32,
    /// Sectors of those that become unreadable, in parts per million of requests.
    pub spoil: u32,
    /// Writes to either member that fail while a cache is opened after a crash, in parts per
    /// million.
    pub opening_errors: u32,
    /// Of the requests made while a member is out, one in so many replaces it; 0: none does.
    pub replaces_of: u64,
    /// At one start in so many a member is missing; 0: never.
    pub misses_of: u64,
}

/// What survives a crash of what the owner and the operator know of the members.
#[derive(Clone, Debug, Default)]
pub struct MemberNotes {
    /// Tags that do not count any more.
    pub noted: BTreeSet<u64>,
    /// Tag of the device that is being filled, or was filled last.
    pub next_tag: u64,
    /// Failures of the plan that have happened.
    pub failed: usize,
    /// Something of a member was lost or has rotten.
    pub harmed: bool,
    /// Which blocks of members have rotten, and on which of them.
    pub rotten: BTreeMap<u64, usize>,
}

/// The owner notes that a member has failed.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) due: u64,
    ticket: u64,
    ok: bool,
    tag: u64,
}

impl MirrorPlan {
    /// Something that is drawn for a seed.
    pub(crate) fn draw(requests: u32, rng: &mut Rng) -> Self {
        let mut plan = Self {
            failures: Vec::new(),
            faults: [Faults::default(); 2],
            harms: [false; 2],
            rot: 0,
            spoil: 0,
            opening_errors: rng.pick(&[0, 0, 0, 3_000, 100_000, 300_000]),
            replaces_of: rng.pick(&[0, 2, 5, 20]),
            misses_of: rng.pick(&[0, 2, 4]),
        };
        let one = rng.below(2) as usize;
        match rng.below(8) {
            0 | 1 => {
                // One member that is not good, and the other one never fails.
                let rates = [0, 5_000, 30_000];
                (plan.misses_of, plan.opening_errors, plan.harms[one]) = (0, 0, true);
                (plan.rot, plan.spoil) = (rng.pick(&rates), rng.pick(&rates));
                plan.faults[one].read_error = rng.pick(&[0, 20_000, 200_000]);
                plan.faults[one].lost = rng.pick(&[0, 0, 3_000, 30_000]);
                if rng.chance(1, 3) {
                    // It fails in the end, while its bad copies are being looked at, and so does
                    // its successor.
                    plan.failures = Self::draw_failures(requests, rng);
                    plan.failures.iter_mut().for_each(|failure| failure.1 = one);
                }
            }
            2 => {
                // Two that rot, and do not fail.
                (plan.misses_of, plan.opening_errors, plan.harms) = (0, 0, [true; 2]);
                plan.rot = rng.pick(&[5_000, 30_000, 200_000]);
            }
            3 => plan.faults[one] = Self::errors(rng, 20_000),
            4 => plan.faults = [0; 2].map(|_| Self::errors(rng, 500)),
            _ => {
                plan.failures = Self::draw_failures(requests, rng);
                if rng.chance(1, 3) {
                    let write_error = rng.pick(&[1_000, 10_000, 50_000]);
                    plan.faults[one] = Faults { write_error, ..Faults::default() };
                }
            }
        }
        plan
    }

    /// Nothing else is the matter with the members.
    pub(crate) fn only_truncations(&mut self) {
        (self.failures, self.faults, self.harms) = (Vec::new(), [Faults::default(); 2], [false; 2]);
        (self.rot, self.spoil) = (0, 0);
    }

    /// Errors of a member by rate.
    fn errors(rng: &mut Rng, read_error: u32) -> Faults {
        Faults {
            write_error: rng.pick(&[0, 300, 3_000, 20_000]),
            flush_error: rng.pick(&[0, 0, 3_000, 30_000]),
            flush_drops: rng.chance(1, 2),
            read_error: rng.pick(&[0, read_error]),
            ..Faults::default()
        }
    }

    /// Members that fail for good, one after the other.
    fn draw_failures(requests: u32, rng: &mut Rng) -> Vec<(u64, usize, Option<Death>)> {
        let deaths = [Some(Death::All), Some(Death::Writes), Some(Death::FlushDrops), None];
        let requests = u64::from(requests);
        let mut at = rng.below(requests / 2);
        let mut failures = Vec::new();
        for _ in 0..rng.pick(&[1, 2, 3, 6]) {
            failures.push((at, rng.below(2) as usize, rng.pick(&deaths)));
            at += rng.range(5, 5 + requests / 4);
        }
        failures
    }
}

/// Index of the device of a member.
pub(crate) fn device_of(plan: &Plan, member: usize) -> usize {
    if member == 0 { CACHE } else { 1 + plan.volumes.len() }
}

/// The superblock that a device has.
fn superblock_on(device: &SimDevice) -> Option<Superblock> {
    superblock_in(device.visible())
}

fn superblock_in(image: &Image) -> Option<Superblock> {
    let copies = [0, 1].map(|copy| {
        let mut bytes = vec![0; BLOCK_BYTES];
        image.read(Geometry::superblock_offset(copy), &mut bytes);
        Superblock::decode(&bytes)
    });
    Superblock::choose(copies).ok()
}

/// Which members the owner hands over at a start. One may be missing for the time being.
pub(crate) fn find_members(plan: &Plan, disks: &mut Disks, rng: &mut Rng) -> MirrorDevices {
    let found = [0, 1].map(|member| superblock_on(&disks.devices[device_of(plan, member)]));
    let member_notes = disks.member_notes.clone().unwrap_or_default();
    let tag = |member: usize| found[member].as_ref()?.mirror.map(|mark| mark.tags[member]);
    let mut there = [0, 1].map(|member| tag(member).is_some_and(|tag| !member_notes.noted.contains(&tag)));
    let believed = there;
    let misses = plan.mirror.as_ref().map_or(0, |mirror| mirror.misses_of);
    let trusts = fault::planted(PlantedBug::TrustStaleMember);
    for member in [0, 1] {
        let other = 1 - member;
        let listed_out = found[other].as_ref().and_then(|found| found.mirror?.out) == Some(member as u8);
        let newer = |a: &Option<Superblock>, b: &Option<Superblock>| {
            a.as_ref().map(|found| found.generation) > b.as_ref().map(|found| found.generation)
        };
        let says_so = there[other] && listed_out && newer(&found[other], &found[member]);
        if !there[member] && tag(member).is_some() && (trusts || says_so && rng.chance(1, 2)) {
            there[member] = true;
        }
    }
    if misses > 0 && believed == [true, true] && rng.chance(1, misses) {
        there[rng.below(2) as usize] = false;
    }
    MirrorDevices { geometry: plan.geometry, there }
}

impl World {
    /// The device, and the byte there, of a byte of the cache.
    pub(crate) fn cache_at(&self, offset: u64) -> (usize, u64) {
        if self.plan.mirror.is_none() {
            return (CACHE, offset);
        }
        let (member, offset) = self.plan.geometry.mirror_place(offset);
        (device_of(&self.plan, member), offset)
    }

    /// True for the devices of the cache.
    pub(crate) fn is_cache(&self, device: usize) -> bool {
        device == CACHE || self.plan.mirror.is_some() && device == device_of(&self.plan, 1)
    }

    /// Nothing may be written to a member that is out, unless it is being filled.
    pub(crate) fn check_member_write(&self, device: usize) -> Result<(), String> {
        let Some(state) = self.engine.mirror_state().filter(|state| state.noted) else { return Ok(()) };
        let out = state.out.map(|member| device_of(&self.plan, usize::from(member)));
        ensure!(out != Some(device) || state.rebuild.is_some(), "a write to a member that is out");
        Ok(())
    }

    /// Every superblock that is written can be read. It may call a member one that counts for the
    /// first time only once the other member says so durably: else a start with the other one alone
    /// would go on without knowing of this one, and a start with this one alone would believe it.
    pub(crate) fn check_new_member(&self, device: usize, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let is_superblock = [0, 1].iter().any(|copy| Geometry::superblock_offset(*copy) == offset);
        if !is_superblock {
            return Ok(());
        }
        let new = Superblock::decode(bytes).map_err(|error| format!("a superblock is written: {error}"))?;
        let Some(mark) = new.mirror else { return Ok(()) };
        let (member, other) = (usize::from(mark.member), 1 - usize::from(mark.member));
        let durable = |member: usize| {
            superblock_in(self.disks.devices[device_of(&self.plan, member)].durable())?.mirror
        };
        let tag = mark.tags[member];
        let known = durable(member).is_some_and(|mark| mark.tags[member] == tag);
        let listed = durable(other).is_some_and(|mark| mark.out.is_none() && mark.tags[member] == tag);
        let new = device == device_of(&self.plan, member) && mark.out.is_none() && !known;
        ensure!(!new || listed, "a new member has a superblock before the other one knows it");
        Ok(())
    }

    /// The engine wants a member to be noted as failed.
    pub(crate) fn record_out(&mut self, ticket: u64, member: u8) -> Result<(), String> {
        ensure!(self.note.is_none(), "a note is asked for while another one is made");
        let member = usize::from(member);
        let Some(state) = self.engine.mirror_state() else {
            return Err("a note is asked for, but the cache is not mirrored".into());
        };
        let tag = state.tags[member];
        let noted =
            self.disks.member_notes.as_ref().is_some_and(|member_notes| member_notes.noted.contains(&tag));
        let ok = match self.plan.owner {
            // An owner that cannot note it at a start does not start: that is no loss.
            _ if noted || self.engine.status() == Status::Opening => true,
            OwnerPlan::Records => true,
            OwnerPlan::Later => self.refusals > 0,
            OwnerPlan::Never => false,
        };
        let delay = self.rng.pick(&[100_000, 3_000_000, 50_000_000, 3_000_000_000]);
        self.note = Some(Note { due: self.now + delay, ticket, ok, tag });
        Ok(())
    }

    /// The owner has noted it, or cannot.
    pub(crate) fn note_done(&mut self) -> Result<(), String> {
        let Some(note) = self.note.take() else { return Ok(()) };
        if note.ok {
            note.enter(&mut self.disks);
            self.crash_point();
        } else {
            self.refusals += 1;
        }
        self.engine.member_recorded(self.now, note.ticket, note.ok);
        self.pump()?;
        self.crash_point();
        Ok(())
    }

    /// A member fails if its time has come, and is replaced if the operator gets round to it.
    pub(crate) fn fail_and_replace_members(&mut self) -> Result<(), String> {
        let Some(mirror) = self.plan.mirror.clone() else { return Ok(()) };
        let serves = self.engine.status() == Status::Ready && !self.fenced && !self.stopping;
        let (Some(state), true) = (self.engine.mirror_state(), serves) else { return Ok(()) };
        self.harm_member(&mirror);
        if state.noted && self.rng.chance(1, 3) {
            self.engine.check_invariants();
        }
        let done = self.disks.member_notes.as_ref().map_or(0, |member_notes| member_notes.failed);
        if let Some((at, member, death)) = mirror.failures.get(done).copied()
            && self.note.is_none()
            && self.counters.requests >= at
            && self.may_lose(&state, member, death)
        {
            self.fail_member(member, death)?;
        }
        let replaces = mirror.replaces_of > 0 && self.rng.chance(1, mirror.replaces_of);
        if state.out.is_some() && state.noted && state.rebuild.is_none() && replaces {
            self.replace_member(usize::from(state.out.unwrap_or(0)))?;
        }
        Ok(())
    }

    /// A member may fail like this: what the last one that counts has can still be read.
    fn may_lose(&self, state: &MirrorState, member: usize, death: Option<Death>) -> bool {
        let readable = matches!(death, Some(Death::Writes | Death::FlushDrops));
        match state.out.map(usize::from) {
            // The engine may not know yet that the other one is dead.
            None => readable || !self.disks.devices[device_of(&self.plan, 1 - member)].is_dead(),
            Some(out) if out == member => state.rebuild.is_some(),
            Some(_) => readable,
        }
    }

    fn fail_member(&mut self, member: usize, death: Option<Death>) -> Result<(), String> {
        if let Some(member_notes) = &mut self.disks.member_notes {
            member_notes.failed += 1;
        }
        self.counters.faults += 1;
        self.errors[CACHE] += 1;
        if let Some(death) = death {
            self.disks.devices[device_of(&self.plan, member)].die(death, &mut self.rng);
        }
        if death.is_none() || death == Some(Death::All) && self.rng.chance(1, 4) {
            self.engine.member_gone(self.now, member as u8);
            self.pump()?;
        }
        Ok(())
    }

    /// Bit rot and unreadable sectors of one member.
    fn harm_member(&mut self, mirror: &MirrorPlan) {
        let geometry = self.plan.geometry;
        let start = geometry.segments_start_block * BLOCK_BYTES as u64;
        for member in (0..2).filter(|member| mirror.harms[*member]) {
            for (rate, spoils) in [(mirror.rot, false), (mirror.spoil, true)] {
                if rate == 0 || !self.rng.ppm(rate) {
                    continue;
                }
                let at = start + self.rng.below(geometry.member_bytes() - start);
                let (bit, device) = (self.rng.below(8) as u8, device_of(&self.plan, member));
                let rotten = self.disks.member_notes.as_mut().map(|member_notes| &mut member_notes.rotten);
                let first = rotten.map(|rotten| *rotten.entry(at / BLOCK_BYTES as u64).or_insert(member));
                match spoils {
                    // The other member has the only good copy of this block.
                    _ if first != Some(member) => continue,
                    true => self.disks.devices[device].spoil(at),
                    false => self.disks.devices[device].rot(at, bit),
                }
                self.note_harm();
            }
        }
    }

    pub(crate) fn note_harm(&mut self) {
        self.errors[CACHE] += 1;
        if let Some(member_notes) = &mut self.disks.member_notes {
            member_notes.harmed = true;
        }
    }

    /// The operator puts an empty device in place of a member that is out.
    fn replace_member(&mut self, member: usize) -> Result<(), String> {
        let device = device_of(&self.plan, member);
        if self.flights.values().any(|flight| flight.device == device) {
            let tag = self.disks.member_notes.as_ref().map_or(0, |member_notes| member_notes.next_tag + 1);
            let begun = self.engine.begin_rebuild(self.now, tag);
            ensure!(begun == Err(LifecycleError::Busy), "a member is replaced while it is in use: {begun:?}");
            return Ok(());
        }
        let faults = self.disks.devices[device].faults;
        self.disks.devices[device] = blank_member(&self.plan);
        self.disks.devices[device].faults = faults;
        let Some(member_notes) = &mut self.disks.member_notes else { return Ok(()) };
        member_notes.next_tag += 1;
        let tag = member_notes.next_tag;
        for used in self.engine.mirror_state().map_or([0; 2], |state| state.tags) {
            let begun = self.engine.begin_rebuild(self.now, used);
            ensure!(begun.is_err(), "a tag is used twice");
        }
        let begun = self.engine.begin_rebuild(self.now, tag);
        ensure!(begun.is_ok() || self.stopping, "a member is not replaced: {begun:?}");
        self.pump()
    }

    /// The engine tells how the members stand.
    pub(crate) fn member_notice(&mut self, notice: Notice) -> Result<(), String> {
        ensure!(self.disks.member_notes.is_some(), "{notice:?} without members");
        match notice {
            Notice::MemberOut { .. } => self.counters.members_out += 1,
            Notice::MirrorWhole => self.counters.rebuilds += 1,
            _ => {}
        }
        Ok(())
    }
}

impl Note {
    /// The note is durable.
    pub(crate) fn enter(&self, disks: &mut Disks) {
        if let Some(member_notes) = &mut disks.member_notes {
            member_notes.noted.insert(self.tag);
        }
    }

    /// A crash now may find it.
    pub(crate) fn may_be_durable(&self) -> bool {
        self.ok
    }
}

/// An empty device.
pub(crate) fn blank_member(plan: &Plan) -> SimDevice {
    let mut device = SimDevice::new(plan.geometry.member_bytes(), plan.cache_latency);
    device.misdirect_from = plan.geometry.segments_start_block * BLOCK_BYTES as u64;
    device
}

/// New, formatted members.
pub(crate) fn format_members(
    plan: &Plan,
    params: &forebay_core::FormatParams,
) -> Result<[SimDevice; 2], String> {
    let mut members = [blank_member(plan), blank_member(plan)];
    let writes =
        forebay_core::format_mirrored(params, [1, 2]).map_err(|why| format!("format_mirrored: {why}"))?;
    for (offset, bytes) in writes {
        let (member, offset) = plan.geometry.mirror_place(offset);
        members[member].preset(offset, &bytes);
    }
    Ok(members)
}

/// An engine that begins to open the members that are there.
pub(crate) fn open_members(
    plan: &Plan,
    disks: &mut Disks,
    attachments: Vec<forebay_core::Attachment>,
    rng: &mut Rng,
    now: u64,
) -> Engine {
    let devices = find_members(plan, disks, rng);
    let config = EngineConfig { known: disks.known, ..plan.engine.clone() };
    Engine::open_mirrored(config, devices, attachments, now)
}

#[cfg(test)]
mod tests;
