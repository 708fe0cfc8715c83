//! The owner's part when the cache device fails: a record, outside of the cache, that the cache
//! must never be opened again.
//!
//! The record is a file that is replaced as a whole: after a crash it has its old or its new
//! content. Writing it takes time, and may fail: then the owner tries again later, or gives up. If
//! a start finds a record, it does not open the cache, regardless of its content: the volumes have
//! the content of their backing stores, and the ranges in the record answer with errors. If the
//! record lists nothing, the operator may have inserted a new cache.

use super::World;
use super::state::{Pending, Task};
use crate::device::Death;
use crate::disks::{AttachState, CACHE, Record, Risk};
use crate::ensure::ensure;
use crate::plan::{FaultPlan, OwnerPlan};
use forebay_core::{Loss, RiskWalk};
use forebay_format::{SECTOR_BYTES, VolumeId};
use std::collections::BTreeSet;

/// Time until another attempt to write a record.
const AGAIN_NS: u64 = 20_000_000_000;

/// Converts the engine's losses to sectors.
pub(crate) fn sectors_of(losses: &[(VolumeId, Vec<Loss>)]) -> Result<Risk, String> {
    let mut all = Risk::new();
    for (volume, losses) in losses {
        let mut end = 0;
        for loss in losses {
            let sound = loss.bytes > 0 && loss.offset.is_multiple_of(512) && loss.bytes.is_multiple_of(512);
            ensure!(sound && loss.offset >= end, "losses of {volume:?} are not in order: {losses:?}");
            end = loss.offset + loss.bytes;
            let sectors = loss.offset / SECTOR_BYTES as u64..end / SECTOR_BYTES as u64;
            all.extend(sectors.map(|sector| (usize::from(volume.0), sector)));
        }
    }
    Ok(all)
}

impl World {
    /// Begins to write or update the record for the engine.
    pub(crate) fn record_loss(&mut self, ticket: u64) -> Result<(), String> {
        ensure!(self.owner.is_none(), "a record is asked for while another one is made");
        let risk = sectors_of(&self.engine.at_risk())?;
        ensure!(risk.is_empty() || !self.plan.writes_past(), "nothing was dirty, and at risk are {risk:?}");
        if let Some(before) = &self.at_risk {
            let more: Vec<_> = risk.difference(before).take(3).collect();
            ensure!(more.is_empty(), "more is at risk than when the cache failed: {more:?}");
        }
        self.at_risk = Some(risk.clone());
        let ok = match self.plan.owner {
            OwnerPlan::Records => true,
            OwnerPlan::Later => self.engine.runs_without_cache() || self.refusals > 0,
            OwnerPlan::Never => false,
        };
        let delay = self.rng.pick(&[100_000, 3_000_000, 50_000_000, 3_000_000_000]);
        let table = self.engine.volume_table();
        let size = |volume: usize| {
            table.iter().find(|entry| usize::from(entry.id.0) == volume).map_or(0, |entry| entry.size_bytes)
        };
        let walk = self.begin_walk();
        let risk = match walk {
            Some(_) => Risk::new(),
            None => self.written_record(risk)?,
        };
        let record = Record { risk, sizes: (0..self.disks.volumes.len()).map(size).collect() };
        self.owner = Some(Task { due: self.now + delay, ticket: Some(ticket), ok, record, walk });
        Ok(())
    }

    /// Half of the records, drawn by time, are whole ones built by a walk in pieces: does the first
    /// piece.
    fn begin_walk(&self) -> Option<RiskWalk> {
        let draw = self.now / 1000;
        let segments = u64::from(self.engine.geometry().segment_count).max(1);
        let mut walk = RiskWalk::default();
        let unfinished = self.engine.walk_risk(&mut walk, (draw / 2 % segments) as u32).is_none();
        (draw.is_multiple_of(2) && unfinished).then_some(walk)
    }

    /// Does the last piece: it must find everything that is at risk now.
    fn end_walk(&mut self, mut task: Task, mut walk: RiskWalk) -> Result<(), String> {
        let found = self.engine.walk_risk(&mut walk, u32::MAX);
        let found = sectors_of(&found.ok_or("a walk over all that is left did not end")?.losses())?;
        let missing: Vec<_> =
            sectors_of(&self.engine.at_risk())?.difference(&found).take(3).copied().collect();
        ensure!(missing.is_empty(), "at risk, and not found by a walk in pieces: {missing:?}");
        (task.record.risk, task.due) = (found, self.now + 100_000);
        self.owner = Some(task);
        Ok(())
    }

    /// Returns the content of the record once written: a whole one, or mostly the last one without
    /// the sectors that became safe since.
    fn written_record(&mut self, risk: Risk) -> Result<Risk, String> {
        let Some(last) = self.disks.record.as_ref().filter(|_| self.engine.runs_without_cache()) else {
            return Ok(risk);
        };
        let Some(safe) = self.engine.made_safe().filter(|_| self.rng.chance(3, 4)) else { return Ok(risk) };
        let safe = sectors_of(&safe)?;
        let left: Risk = last.risk.difference(&safe).copied().collect();
        let missing: Vec<_> = risk.difference(&left).take(3).collect();
        ensure!(missing.is_empty(), "at risk, and called safe: {missing:?}");
        let table = self.engine.volume_table();
        let listed = |volume: usize| table.iter().any(|entry| usize::from(entry.id.0) == volume);
        let more: Vec<_> = left.difference(&risk).filter(|(volume, _)| listed(*volume)).take(3).collect();
        ensure!(more.is_empty(), "safe, and not called so: {more:?}");
        Ok(left)
    }

    /// Ends the owner's task.
    pub(crate) fn owner_done(&mut self) -> Result<(), String> {
        let Some(mut task) = self.owner.take() else { return Ok(()) };
        if let Some(walk) = task.walk.take() {
            return self.end_walk(task, walk);
        }
        let Some(ticket) = task.ticket else {
            self.engine.record_again(self.now);
            return self.pump();
        };
        if task.ok {
            self.disks.record = Some(task.record);
            self.crash_point();
        } else {
            self.refusals += 1;
            if self.plan.owner == OwnerPlan::Later {
                let due = self.now + AGAIN_NS;
                let record = Record::default();
                self.owner = Some(Task { due, ticket: None, ok: false, record, walk: None });
            }
        }
        self.engine.loss_recorded(self.now, ticket, task.ok);
        self.refused = self.engine.is_fenced() && !self.engine.runs_without_cache();
        self.pump()?;
        self.crash_point();
        Ok(())
    }

    /// Waits until it is settled whether the engine continues without its cache.
    ///
    /// # Errors
    /// Any violation.
    pub fn wait_owner(&mut self) -> Result<(), String> {
        while (self.owner.is_some() || self.note.is_some()) && !self.stopped {
            self.step(u64::MAX)?;
        }
        Ok(())
    }

    /// Fails the cache device, for a while or for good, if its time has come.
    pub(crate) fn fail_cache(&mut self) -> Result<(), String> {
        if let Some((at, ns)) = self.plan.outage
            && self.counters.requests >= at
        {
            self.unreadable_until.get_or_insert(self.now + ns);
        }
        let Some((at, death)) = self.plan.death else { return Ok(()) };
        if self.counters.requests < at || self.disks.devices[CACHE].is_dead() || self.without_cache {
            return Ok(());
        }
        self.disks.devices[CACHE].die(death, &mut self.rng);
        self.counters.faults += 1;
        self.errors[CACHE] += 1;
        if self.rng.chance(1, 4) {
            self.engine.cache_gone(self.now);
            self.pump()?;
        }
        Ok(())
    }

    /// Checks that the rescue saved all readable data: only data on a device that is gone is lost.
    /// Damage and read errors are judged elsewhere.
    pub(crate) fn rescue_ended(&mut self) -> Result<(), String> {
        self.counters.rescues += 1;
        let Some((_, death)) = self.plan.death else { return Ok(()) };
        let blurred =
            self.plan.faults != FaultPlan { backing: self.plan.faults.backing, ..FaultPlan::default() };
        if blurred || self.without_cache || self.disks.damaged || self.oracle.relaxed || self.has_dropped() {
            return Ok(());
        }
        let device = &self.disks.devices[CACHE];
        let from = match death {
            Death::All => return Ok(()),
            // A device that is the target of a copy has no second part.
            Death::Second => device.second_at.min(device.bytes()),
            Death::Writes | Death::FlushDrops => device.bytes(),
        };
        let gone: BTreeSet<_> = self.disks.log.hit(from, device.bytes() - from).collect();
        let lost = sectors_of(&self.engine.losses())?;
        let block = |(volume, sector): &(usize, u64)| (*volume, sector / 8);
        let in_vain: Vec<_> = lost.iter().filter(|sector| !gone.contains(&block(sector))).take(3).collect();
        ensure!(in_vain.is_empty(), "lost in a rescue, though they can be read: {in_vain:?}");
        Ok(())
    }

    /// Checks a FLUSH that was submitted at step `begun` and succeeded: every loss before it has
    /// been reported by a FLUSH. While the cache has failed, the data that it covers must be
    /// readable after a crash too, except for earlier promises: that data was durable on the failed
    /// cache.
    pub(crate) fn check_flush(&self, volume: usize, begun: u64) -> Result<(), String> {
        let untold = self.lost_at[volume]
            .filter(|at| *at < begun && self.told_at[volume].is_none_or(|told| told < *at));
        ensure!(untold.is_none(), "a FLUSH succeeded, and none has told that something was lost");
        if !self.engine.runs_without_cache() {
            return Ok(());
        }
        let lost = sectors_of(&self.engine.losses())?;
        let listed = self.disks.record.iter().flat_map(|record| &record.risk);
        for (_, sector) in listed.filter(|(of, _)| *of == volume) {
            let healed = self.healed.get(&(volume, *sector)).is_some_and(|at| *at < begun);
            let gone = lost.contains(&(volume, *sector)) && !healed;
            // With a write in flight or since, the sector may be gone from one list and not yet
            // from the other.
            let touched = self.touched.contains(&(volume, *sector)) && !healed;
            // The same holds for a write that was submitted before the cache failed, and is
            // repeated.
            let touched = touched || self.is_changing(volume, *sector);
            ensure!(
                gone || touched || self.oracle.is_promised(volume, *sector),
                "a FLUSH succeeded, but after a crash the record would call sector {sector} of volume {volume} lost"
            );
        }
        Ok(())
    }

    /// Returns true if a request that changes this sector is unanswered.
    fn is_changing(&self, volume: usize, sector: u64) -> bool {
        let covers = |pending: &Pending| {
            let all = pending.offset / 512..(pending.offset + pending.len).div_ceil(512);
            pending.volume == volume && pending.ticket.is_some() && all.contains(&sector)
        };
        self.requests.values().any(covers)
    }

    /// Notes a request that changes these bytes.
    pub(crate) fn note_touched(&mut self, volume: usize, offset: u64, len: u64) {
        if self.engine.is_fenced() {
            self.touched.extend((offset / 512..(offset + len).div_ceil(512)).map(|sector| (volume, sector)));
        }
    }

    /// Notes an acknowledged write: its whole sectors are no longer lost.
    pub(crate) fn note_healed(&mut self, volume: usize, offset: u64, len: u64) -> Result<(), String> {
        if !self.engine.runs_without_cache() {
            return Ok(());
        }
        let step = self.oracle.step();
        for sector in offset.div_ceil(512)..(offset + len) / 512 {
            self.healed.insert((volume, sector), step);
            let listed =
                self.disks.record.as_ref().is_some_and(|record| record.risk.contains(&(volume, sector)));
            ensure!(
                !listed,
                "a write was acknowledged, but after a crash the record would call sector {sector} of volume {volume} lost"
            );
        }
        Ok(())
    }

    /// Settles the volumes as the operator once their cache is gone: volumes with a change in
    /// progress are given up, or have the size in the record.
    pub(super) fn settle_volumes(&mut self) {
        self.disks.cache_pending = None;
        for volume in 0..self.disks.volumes.len() {
            let status = self.disks.volumes[volume].clone();
            self.disks.volumes[volume].ending = false;
            if let (Some(wanted), Some(record)) = (status.resizing, &self.disks.record) {
                let size = record.sizes[volume];
                if size != status.bytes && size != wanted {
                    self.disorder =
                        Some(format!("volume {volume} has {size} bytes in the record: {status:?}"));
                }
                self.resized(volume, size);
            }
            if status.state != AttachState::Attached {
                self.disks.volumes[volume].state = AttachState::Gone;
                if let Some(record) = &mut self.disks.record {
                    record.risk.retain(|(of, _)| *of != volume);
                }
            }
        }
    }
}
