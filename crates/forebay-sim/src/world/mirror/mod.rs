//! Mirrored caches: members that fail, come back stale, are missing at a start, and are replaced.
//!
//! While only one member has failed nothing may be lost, no request may end with an error, and
//! every start must succeed. Both may report errors, and both may rot, but never the same block.
//! The owner's note of members that no longer count is a list of tags, durable as a whole or not at
//! all. With both members present, the owner sometimes hands over a noted one as well: the
//! superblocks record the same.
//!
//! Any member that has a superblock and was not noted may be the only one found at a start, at
//! every crash point: it must open, and have all promised data.

use super::World;
use super::state::Note;
use crate::at_rest::superblock_in;
use crate::device::Death;
use crate::disks::{CACHE, device_of};
use crate::ensure::ensure;
use crate::plan::{MirrorPlan, OwnerPlan};
use crate::start::blank_member;
use forebay_core::{LifecycleError, MirrorState, Notice, Status};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry};

impl World {
    /// Returns the device that holds a byte of the cache, and the offset there.
    pub(crate) fn cache_at(&self, offset: u64) -> (usize, u64) {
        if self.plan.mirror.is_none() {
            return (CACHE, offset);
        }
        let (member, offset) = self.plan.geometry.mirror_place(offset);
        (device_of(&self.plan, member), offset)
    }

    /// Returns true for the devices of the cache.
    pub(crate) fn is_cache(&self, device: usize) -> bool {
        device == CACHE || self.plan.mirror.is_some() && device == device_of(&self.plan, 1)
    }

    /// Checks that a write does not go to a member that is out, unless it is being rebuilt.
    pub(crate) fn check_member_write(&self, device: usize) -> Result<(), String> {
        let Some(state) = self.engine.mirror_state().filter(|state| state.noted) else { return Ok(()) };
        let out = state.out.map(|member| device_of(&self.plan, usize::from(member)));
        ensure!(out != Some(device) || state.rebuild.is_some(), "a write to a member that is out");
        Ok(())
    }

    /// Checks that every written superblock is readable. It may declare a member as counting for
    /// the first time only once the other member's superblock durably does: else a start with only
    /// the other one would continue without this one, and a start with only this one would trust
    /// it.
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

    /// Begins the note of a failed member for the engine.
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
            // An owner that cannot write the note at a start does not start: nothing is lost.
            _ if noted || self.engine.status() == Status::Opening => true,
            OwnerPlan::Records => true,
            OwnerPlan::Later => self.refusals > 0,
            OwnerPlan::Never => false,
        };
        let delay = self.rng.pick(&[100_000, 3_000_000, 50_000_000, 3_000_000_000]);
        self.note = Some(Note { due: self.now + delay, ticket, ok, tag });
        Ok(())
    }

    /// Ends the owner's note, with success or not.
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

    /// Fails a member if its time has come, and replaces it when the operator is drawn to do so.
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
        if state.out.is_some() && state.noted && state.rebuild.is_none() && replaces && !self.is_copying() {
            self.replace_member(usize::from(state.out.unwrap_or(0)))?;
        }
        Ok(())
    }

    /// Returns true if a member may fail this way: the data of the last member that counts stays
    /// readable.
    fn may_lose(&self, state: &MirrorState, member: usize, death: Option<Death>) -> bool {
        let readable = matches!(death, Some(Death::Writes | Death::FlushDrops));
        match state.out.map(usize::from) {
            // The engine may not yet know that the other one is dead.
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

    /// Rots bits or spoils sectors of one member.
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
                self.note_harm(member);
            }
        }
    }

    pub(crate) fn note_harm(&mut self, member: usize) {
        self.errors[CACHE] += 1;
        if let Some(member_notes) = &mut self.disks.member_notes {
            member_notes.harmed[member] = true;
        }
    }

    /// Replaces a member that is out by an empty device, as the operator.
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

    /// Counts the engine's notices about members.
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

#[cfg(test)]
mod tests;
