//! Scrubs: what the operator begins, and what must be true once one has ended.
//!
//! A scrub that went through everything, with nothing damaged since it began and nothing left as it was, has found all damage: no
//! damaged block shows up later, until the device does something wrong again. Of a mirrored cache both copies of everything are right
//! then: either member may be lost.

use crate::world::{CACHE, World, ensure};
use forebay_core::ScrubReport;
use forebay_format::BLOCK_BYTES;

/// What is known of scrubs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scrubs {
    /// Errors of the cache device when the one under way began.
    began: Option<u64>,
    /// The same of one that has found everything.
    sound_at: Option<u64>,
}

impl Scrubs {
    pub(crate) fn is_running(&self) -> bool {
        self.began.is_some()
    }
}

impl World {
    /// The operator begins a scrub, or ends it early.
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
            Ok(()) => self.scrubs.began = Some(self.errors[CACHE]),
            Err(error) => self.refused(0, "a scrub", error)?,
        }
        self.pump()
    }

    pub(crate) fn scrub_ended(&mut self, report: ScrubReport, complete: bool) -> Result<(), String> {
        let began = self.scrubs.began.take();
        ensure!(began.is_some(), "a scrub has ended, but none was begun");
        self.counters.scrubs += u64::from(complete);
        let settled = report.damaged_blocks == report.lost_blocks + report.repaired_blocks
            && report.unreadable_blocks == 0;
        let harmed = self.disks.mates.as_ref().is_some_and(|mates| mates.harmed);
        let fault = self.errors[CACHE] > 0 || self.disks.damaged || harmed;
        let sound = report.damaged_blocks + report.unreadable_blocks == 0;
        ensure!(fault || sound, "{report:?}, but nothing was damaged");
        self.scrubs.sound_at = began.filter(|errors| complete && settled && *errors == self.errors[CACHE]);
        if self.scrubs.sound_at.is_some() { self.check_copies() } else { Ok(()) }
    }

    /// Both members have what counts, as it should be.
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

    /// A damaged block has shown up.
    pub(crate) fn check_scrubbed(&self) -> Result<(), String> {
        let sound = !self.scrubs.is_running() && self.scrubs.sound_at == Some(self.errors[CACHE]);
        ensure!(!sound, "a block is damaged that a scrub should have found");
        Ok(())
    }
}
