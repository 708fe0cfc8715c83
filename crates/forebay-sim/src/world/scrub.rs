//! Scrubs: begins and cancels them as the operator, and checks the invariants after their end.
//!
//! A scrub of everything, without new damage since it began and without damage left unrepaired, has
//! found all damage: no damaged block shows up later, until the next fault of the device. In a
//! mirrored cache both copies of everything are good then: either member may be lost. The scrub has
//! checked everything that was there all the time.

use super::World;
use super::state::{Began, FlightKind};
use crate::disks::{CACHE, MemberNotes};
use crate::ensure::ensure;
use forebay_core::ScrubReport;
use forebay_format::BLOCK_BYTES;

impl World {
    /// Begins a scrub as the operator, or cancels it.
    ///
    /// # Errors
    /// Any violation.
    pub fn scrub(&mut self) -> Result<(), String> {
        if self.scrubs.is_running() {
            if self.rng.chance(1, 4) {
                self.engine.cancel_scrub(self.now);
            }
            return self.pump();
        }
        let bytes_per_s = self.rng.pick(&[4 << 20, 64 << 20, 4 << 30]);
        if self.counters.requests.is_multiple_of(4) {
            self.engine.check_dirty(self.now, bytes_per_s);
            return self.pump();
        }
        match self.engine.begin_scrub(self.now, bytes_per_s) {
            Ok(()) => self.scrubs.began = Some(self.scrub_begins()),
            Err(error) => self.refused(0, "a scrub", error)?,
        }
        self.pump()
    }

    fn scrub_begins(&self) -> Began {
        let stats = self.engine.stats();
        Began {
            errors: self.errors[CACHE],
            total_blocks: self.engine.scrub_progress().map_or(0, |report| report.total_blocks),
            cached_blocks: stats.cached_blocks,
            written_bytes: stats.cache_written_bytes,
            writes: self.flights.values().any(|flight| {
                !matches!(
                    flight.kind,
                    FlightKind::Read { .. }
                        | FlightKind::ReadMeta { .. }
                        | FlightKind::Discard { .. }
                        | FlightKind::RefusedDiscard
                        | FlightKind::Flush { .. }
                )
            }),
        }
    }

    /// Checks that a complete scrub has looked at everything that was there all the time: of the
    /// copies at its beginning only those may be missing that were replaced by newer data, or left
    /// the cache. (Older versions of ordered volumes leave it unseen.)
    fn check_looked_at(&self, began: Began, report: ScrubReport) -> Result<(), String> {
        let stats = self.engine.stats();
        let out = self.engine.mirror_state().is_some_and(|state| state.out.is_some());
        if began.writes
            || self.plan.may_order()
            || out
            || self.fenced
            || self.disks.damaged
            || self.errors[CACHE] > 0
        {
            return Ok(());
        }
        let written = (stats.cache_written_bytes - began.written_bytes) / BLOCK_BYTES as u64;
        let left = (began.cached_blocks + written).saturating_sub(stats.cached_blocks);
        let copies = 1 + u64::from(self.plan.mirror.is_some());
        ensure!(
            report.checked_blocks + copies * left >= began.total_blocks,
            "{report:?}, but at most {left} of {began:?} have left the cache"
        );
        Ok(())
    }

    pub(crate) fn scrub_ended(&mut self, report: ScrubReport, complete: bool) -> Result<(), String> {
        let began = self.scrubs.began.take();
        let Some(began) = began else { return Err("a scrub has ended, but none was begun".into()) };
        self.counters.scrubs += u64::from(complete);
        let settled = report.damaged_blocks == report.lost_blocks + report.repaired_blocks
            && report.unreadable_blocks == 0;
        let harmed = self.disks.member_notes.as_ref().is_some_and(MemberNotes::is_harmed);
        let fault = self.errors[CACHE] > 0 || self.disks.damaged || self.disks.untold || harmed;
        let sound = report.damaged_blocks + report.unreadable_blocks == 0;
        ensure!(fault || sound, "{report:?}, but nothing was damaged");
        if complete {
            self.check_looked_at(began, report)?;
        }
        self.scrubs.sound_at =
            Some(began.errors).filter(|errors| complete && settled && *errors == self.errors[CACHE]);
        if self.scrubs.sound_at.is_some() { self.check_copies() } else { Ok(()) }
    }

    /// Checks that both members hold good copies of all live blocks.
    fn check_copies(&self) -> Result<(), String> {
        let mut block = [0; BLOCK_BYTES];
        for (places, crc) in self.engine.pair_copies() {
            for (member, place) in places.into_iter().enumerate() {
                let (device, offset) = self.cache_at(place);
                self.disks.devices[device].visible().read(offset, &mut block);
                let right = forebay_format::checksum(&block) == crc;
                ensure!(right, "byte {offset} of member {member} is damaged, and a scrub has not found it");
            }
        }
        Ok(())
    }

    /// Checks that a damaged block that has shown up is not one that a scrub should have found.
    pub(crate) fn check_scrubbed(&self) -> Result<(), String> {
        let sound = !self.scrubs.is_running() && self.scrubs.sound_at == Some(self.errors[CACHE]);
        ensure!(!sound, "a block is damaged that a scrub should have found");
        Ok(())
    }
}
