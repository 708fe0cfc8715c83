//! The operator's side of volumes that come, change their size and go, and of a pool that grows and
//! shrinks.
//!
//! The operator is certain only of reported results. After a crash it attaches the volumes without
//! a change in flight at once, or (as a daemon does) when the cache is open. For the others it
//! reads the volume table, and then both must hold: the change has happened as a whole or not at
//! all, and changes reported as done have happened.
//!
//! A backing store gets new contents when its volume number is reused, and so does the range that a
//! smaller volume gives up: old blocks that return show as wrong data. The range that a smaller
//! pool gives up is overwritten with junk.

use super::{ANSWER_LIMIT_NS, World};
use crate::content::Content;
use crate::device::SimDevice;
use crate::disks::{AttachState, CACHE, JoinedDevice, VolumeStatus};
use crate::ensure::ensure;
use crate::memory::JUNK;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::start::{attachment, backing_record, entry};
use forebay_core::{Attachment, DetachHow, LifecycleError, Notice, Status};
use forebay_format::checkpoint::VolumeEntry;
use forebay_format::member::MEMBERS_MAX;
use forebay_format::{BLOCK_BYTES, Members, VolumeId};

/// Overwrites sectors of a backing store with new contents, as a foreign writer would.
fn overwrite(
    device: &mut SimDevice,
    oracle: &mut Oracle,
    volume: usize,
    sectors: core::ops::Range<u64>,
    rng: &mut Rng,
) {
    for sector in sectors {
        let content = if rng.chance(1, 4) { Content::Zero } else { Content::Tag(rng.word() | 1) };
        let mut bytes = [0; 512];
        content.fill(&mut bytes);
        device.poke(sector * 512, &bytes);
        oracle.replace(volume, sector, content, false);
    }
}

impl World {
    /// Returns the operator's parameters for attaching a volume.
    #[must_use]
    pub fn attachment(&self, volume: usize, bytes: u64) -> Attachment {
        let attachment = attachment(&self.plan, &self.disks, volume, bytes);
        Attachment { on_change: self.policy, ..attachment }
    }

    /// Returns the volumes in service.
    #[must_use]
    pub fn attached(&self) -> Vec<usize> {
        let serves =
            |status: &VolumeStatus| matches!(status.state, AttachState::Attached | AttachState::Leaving(_));
        (0..self.disks.volumes.len()).filter(|volume| serves(&self.disks.volumes[*volume])).collect()
    }

    /// Returns the volumes in service that stay so.
    #[must_use]
    pub fn staying(&self) -> Vec<usize> {
        (0..self.disks.volumes.len())
            .filter(|volume| self.disks.volumes[*volume].state == AttachState::Attached)
            .collect()
    }

    /// Returns the length of a volume that clients may access now, in bytes.
    #[must_use]
    pub fn served_bytes(&self, volume: usize) -> u64 {
        self.disks.volumes[volume].served_bytes()
    }

    pub(crate) fn refused(&self, volume: usize, what: &str, error: LifecycleError) -> Result<(), String> {
        let status = &self.disks.volumes[volume];
        let fine = match error {
            LifecycleError::Fenced => self.fenced,
            LifecycleError::NotServing => self.stopping,
            LifecycleError::TooDirty { .. } | LifecycleError::Busy => true,
            LifecycleError::Lost { .. } => {
                self.errors[CACHE] > 0 || self.disks.damaged || self.oracle.relaxed
            }
            LifecycleError::Dirty { .. } => self.engine.dirty_blocks(VolumeId(volume as u16)) > 0,
            _ => false,
        };
        ensure!(fine, "{what} of volume {volume} ({status:?}) is refused: {error}");
        Ok(())
    }

    /// Changes a volume as the operator.
    ///
    /// # Errors
    /// Any violation.
    pub fn change_volume(&mut self, volume: usize) -> Result<(), String> {
        let status = self.disks.volumes[volume].clone();
        match status.state {
            AttachState::Gone => self.attach_new(volume),
            AttachState::Kept => self.attach_kept(volume),
            AttachState::Leaving(_) if self.rng.chance(1, 3) => self.cancel(volume),
            AttachState::Attached if status.resizing.is_none() => match self.rng.below(8) {
                0 => self.begin_detach(volume),
                1 if status.ending => self.cancel(volume),
                1 | 2 => self.detach(volume, DetachHow::Drained),
                3 | 4 => self.detach(volume, DetachHow::Keep),
                5 => self.detach(volume, DetachHow::Discard),
                _ => self.resize(volume),
            },
            _ => Ok(()),
        }?;
        self.pump()
    }

    /// Judges the engine's reply to the operator: true if it accepts the change, false if it
    /// refuses it with a reason.
    fn taken(&self, volume: usize, what: &str, result: Result<(), LifecycleError>) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(true),
            Err(error) => self.refused(volume, what, error).map(|()| false),
        }
    }

    fn begin_detach(&mut self, volume: usize) -> Result<(), String> {
        let result = self.engine.begin_detach(self.now, VolumeId(volume as u16));
        self.disks.volumes[volume].ending |= self.taken(volume, "drain to the end", result)?;
        Ok(())
    }

    fn cancel(&mut self, volume: usize) -> Result<(), String> {
        let result = self.engine.cancel_detach(self.now, VolumeId(volume as u16));
        // It was beyond the point of no return when the cache was fenced.
        let late = self.fenced && result == Err(LifecycleError::NotAttached);
        if !late && self.taken(volume, "cancelling", result)? {
            let status = &mut self.disks.volumes[volume];
            (status.state, status.ending) = (AttachState::Attached, false);
        }
        Ok(())
    }

    fn detach(&mut self, volume: usize, how: DetachHow) -> Result<(), String> {
        let result = self.engine.detach_volume(self.now, VolumeId(volume as u16), how);
        if self.taken(volume, "detaching", result)? {
            self.disks.volumes[volume].state = AttachState::Leaving(how);
        }
        Ok(())
    }

    fn attach_new(&mut self, volume: usize) -> Result<(), String> {
        let sectors = self.oracle.sectors(volume);
        overwrite(&mut self.disks.devices[1 + volume], &mut self.oracle, volume, 0..sectors, &mut self.rng);
        self.oracle.tainted.retain(|(other, _)| *other != volume);
        self.disks.volumes[volume].incarnation += 1;
        self.disks.volumes[volume].ending = false;
        self.attach(volume, true)
    }

    fn attach_kept(&mut self, volume: usize) -> Result<(), String> {
        self.disks.volumes[volume].ending = false;
        self.attach(volume, false)
    }

    fn attach(&mut self, volume: usize, new: bool) -> Result<(), String> {
        let before = self.disks.volumes[volume].state;
        let entry = entry(&self.plan, &self.disks.volumes[volume], volume);
        let attachment = self.attachment(volume, self.disks.volumes[volume].bytes);
        self.disks.volumes[volume].state = AttachState::Coming { new };
        let result = self.engine.attach_volume(self.now, entry, attachment);
        if !self.taken(volume, "attaching", result)? {
            self.disks.volumes[volume].state = before;
        }
        Ok(())
    }

    fn resize(&mut self, volume: usize) -> Result<(), String> {
        let unit = u64::from(self.plan.volumes[volume].sector_bytes);
        let most = self.disks.devices[1 + volume].bytes();
        let old = self.disks.volumes[volume].bytes;
        let new = match self.rng.below(4) {
            0 => most,
            // Cut inside a block, or grow from such an end.
            1 => old - unit.min(old - unit),
            _ => self.rng.range((128 << 10) / unit, most / unit) * unit,
        };
        if new > old {
            let range = old / 512..new / 512;
            overwrite(&mut self.disks.devices[1 + volume], &mut self.oracle, volume, range, &mut self.rng);
        }
        self.disks.volumes[volume].resizing = Some(new);
        let result = self.engine.resize_volume(self.now, VolumeId(volume as u16), new);
        if !self.taken(volume, "resizing", result)? {
            self.disks.volumes[volume].resizing = None;
        }
        Ok(())
    }

    /// Resizes the pool as the operator, or cancels that.
    ///
    /// # Errors
    /// Any violation.
    pub fn resize_pool(&mut self) -> Result<(), String> {
        if self.is_copying() {
            return Ok(());
        }
        if self.disks.cache_pending.is_some() {
            if self.rng.chance(1, 3) && self.engine.cancel_pool_resize(self.now).is_ok() {
                self.pump()?;
            }
            return Ok(());
        }
        let unit = self.plan.geometry.segment_bytes();
        let least = self.plan.geometry.segments_start_block * BLOCK_BYTES as u64 + 16 * unit;
        let most = self.disks.devices[CACHE].bytes();
        let bytes = least + self.rng.below((most - least) / unit + 1) * unit;
        let mut joined = self.disks.joined[0].clone();
        joined.retain(|device| device.start < bytes);
        // Separate generator, so that the other draws do not change.
        let own = &mut Rng::new(self.rng.clone().word() ^ 0x4a_4f49_4e45_4400);
        // A further device would change a budget for each device.
        let may_join = joined.len() + 1 < MEMBERS_MAX && !self.endurance_check.is_per_device;
        if bytes > self.disks.cache_bytes && may_join && own.chance(1, 2) {
            joined.push(JoinedDevice { start: self.disks.cache_bytes, tag: own.word() | 1 });
        }
        let tags: Vec<u64> = joined.iter().map(|device| device.tag).collect();
        let members = Members::new(&tags).ok_or("too many devices")?;
        (self.disks.cache_pending, self.disks.joined[1]) = (Some(bytes), joined);
        let result = self.engine.resize_pool(self.now, bytes, members);
        if !self.taken(0, "changing the pool", result)? {
            self.disks.cache_pending = None;
        }
        self.pump()
    }

    /// Gives the engine the record of the backing store of a volume that leaves.
    pub(crate) fn volume_quiet(&mut self, volume: VolumeId) -> Result<(), String> {
        let index = usize::from(volume.0);
        ensure!(
            self.disks.volumes[index].state == AttachState::Leaving(DetachHow::Keep),
            "{volume:?} is not leaving"
        );
        let busy = self.flights.values().any(|flight| flight.device == 1 + index);
        ensure!(!busy, "{volume:?} is called quiet with operations under way");
        if self.rng.chance(1, 8) {
            return self.cancel(index);
        }
        let mut record =
            backing_record(&self.plan, self.disks.volumes[index].bytes, self.disks.stamps[index], index);
        record.samples = self.samples(index);
        let taken = self.engine.finish_detach(self.now, volume, record);
        ensure!(taken.is_ok(), "the record of {volume:?} is refused: {taken:?}");
        Ok(())
    }

    /// Handles the engine's notice of the end of a change.
    pub(crate) fn life_notice(&mut self, notice: Notice) -> Result<(), String> {
        match notice {
            Notice::Attached { volume } => {
                self.books.note_moved();
                let place = &mut self.disks.volumes[usize::from(volume.0)].state;
                ensure!(matches!(place, AttachState::Coming { .. }), "{notice:?}, but it is {place:?}");
                *place = AttachState::Attached;
                // A FLUSH reports earlier losses of this volume to its clients, but none of another
                // volume with the same number.
                let lost = (self.engine.lost_bytes(volume) > 0).then(|| self.oracle.begin());
                (self.lost_at[usize::from(volume.0)], self.told_at[usize::from(volume.0)]) = (lost, None);
                self.flush_failed_at[usize::from(volume.0)] = None;
            }
            Notice::AttachFailed { volume, error } => {
                let index = usize::from(volume.0);
                self.judge_failure_of_life(index, &notice, error)?;
                let new = self.disks.volumes[index].state == AttachState::Coming { new: true };
                if error != LifecycleError::Fenced {
                    self.disks.volumes[index].state = if new { AttachState::Gone } else { AttachState::Kept };
                }
            }
            Notice::Detached { volume } => self.detached(usize::from(volume.0))?,
            Notice::DetachFailed { volume, error } => {
                let index = usize::from(volume.0);
                self.judge_failure_of_life(index, &notice, error)?;
                if error != LifecycleError::Fenced && error != LifecycleError::Cancelled {
                    self.disks.volumes[index].state = AttachState::Attached;
                }
            }
            Notice::VolumeResized { volume, bytes } => {
                let status = &self.disks.volumes[usize::from(volume.0)];
                ensure!(status.resizing == Some(bytes), "{notice:?}, but {status:?}");
                self.resized(usize::from(volume.0), bytes);
            }
            Notice::ResizeFailed { volume, error } => {
                self.judge_failure_of_life(usize::from(volume.0), &notice, error)?;
                self.disks.volumes[usize::from(volume.0)].resizing = None;
            }
            Notice::PoolResized { .. } => self.pool_resized()?,
            Notice::PoolResizeFailed { error } => {
                self.judge_failure_of_life(0, &notice, error)?;
                if error != LifecycleError::Fenced {
                    self.disks.cache_pending = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn judge_failure_of_life(
        &mut self,
        volume: usize,
        notice: &Notice,
        error: LifecycleError,
    ) -> Result<(), String> {
        let faults = self.errors[CACHE] > 0 || self.disks.damaged || self.oracle.relaxed;
        let fine = match error {
            LifecycleError::Cancelled | LifecycleError::TooDirty { .. } => true,
            LifecycleError::Fenced => self.fenced,
            LifecycleError::NotServing => self.stopping,
            LifecycleError::Lost { .. } => faults,
            LifecycleError::BackingUnreadable | LifecycleError::BackingFlush => self.errors[1 + volume] > 0,
            LifecycleError::BackingChanged { .. } => self.changed || self.oracle.relaxed,
            _ => false,
        };
        ensure!(fine, "{notice:?} without a cause");
        if error == LifecycleError::BackingFlush && self.plan.drops_past {
            self.oracle.dropped(volume);
        }
        Ok(())
    }

    fn detached(&mut self, volume: usize) -> Result<(), String> {
        self.books.note_moved();
        let AttachState::Leaving(how) = self.disks.volumes[volume].state else {
            return Err(format!("volume {volume} is detached, but nobody asked"));
        };
        let open = self.requests.values().any(|pending| pending.is_of(volume));
        ensure!(!open, "volume {volume} is detached with requests open");
        let busy = self.flights.values().any(|flight| flight.device == 1 + volume);
        ensure!(!busy, "volume {volume} is detached with operations under way");
        if how == DetachHow::Drained && !self.disks.damaged {
            let image = self.disks.devices[1 + volume].durable();
            self.oracle.check_image(
                volume,
                image,
                "backing store of a volume that was drained and detached",
            )?;
        }
        self.disks.volumes[volume].state =
            if how == DetachHow::Keep { AttachState::Kept } else { AttachState::Gone };
        Ok(())
    }

    /// Applies the confirmed size of a volume: the range beyond it belongs to another user now.
    pub(crate) fn resized(&mut self, volume: usize, bytes: u64) {
        let old = self.disks.volumes[volume].bytes;
        if bytes < old {
            let range = bytes / 512..old / 512;
            overwrite(&mut self.disks.devices[1 + volume], &mut self.oracle, volume, range, &mut self.rng);
        }
        self.disks.volumes[volume].bytes = bytes;
        self.disks.volumes[volume].resizing = None;
    }

    /// Takes the size that is in effect. The superblock lists the devices of just that size.
    fn pool_resized(&mut self) -> Result<(), String> {
        let bytes = self.engine.geometry().device_blocks * BLOCK_BYTES as u64;
        if self.disks.cache_pending == Some(bytes) && bytes != self.disks.cache_bytes {
            self.disks.joined[0] = std::mem::take(&mut self.disks.joined[1]);
        }
        let tags = self.disks.joined[0].iter().map(|device| device.tag);
        ensure!(
            tags.eq(self.engine.members().tags().iter().copied()),
            "the superblock lists the devices {:?}, and there are {:?}",
            self.engine.members(),
            self.disks.joined
        );
        let most = self.disks.devices[CACHE].bytes();
        self.disks.devices[CACHE].poke(bytes, &vec![JUNK; (most - bytes) as usize]);
        (self.disks.cache_bytes, self.disks.cache_pending) = (bytes, None);
        self.disks.joined[1].clear();
        Ok(())
    }

    /// After a start: finds out the results of the changes in flight, and attaches the volumes
    /// again.
    ///
    /// # Errors
    /// Any violation.
    pub(crate) fn resolve(&mut self) -> Result<(), String> {
        if self.without_cache {
            return self.attach_late();
        }
        if self.disks.cache_pending.is_some() {
            let now = self.engine.geometry().device_blocks * BLOCK_BYTES as u64;
            let known = now == self.disks.cache_bytes || Some(now) == self.disks.cache_pending;
            ensure!(known, "the pool has {now} bytes after a crash, which nobody asked for");
            self.pool_resized()?;
        }
        let table = self.engine.volume_table();
        for volume in 0..self.disks.volumes.len() {
            let found = table.iter().find(|entry| usize::from(entry.id.0) == volume);
            self.resolve_volume(volume, found)?;
        }
        self.wait_life()
    }

    /// Attaches the other volumes too: without a cache there is no table to read.
    fn attach_late(&mut self) -> Result<(), String> {
        for volume in 0..self.disks.volumes.len() {
            if self.disks.volumes[volume].state == AttachState::Attached && self.late[volume] {
                self.attach_kept(volume)?;
                self.pump()?;
                let place = self.disks.volumes[volume].state;
                ensure!(
                    place == AttachState::Attached || self.stopped,
                    "volume {volume} is not attached without a cache: {place:?}"
                );
            }
        }
        Ok(())
    }

    fn resolve_volume(&mut self, volume: usize, found: Option<&VolumeEntry>) -> Result<(), String> {
        let status = self.disks.volumes[volume].clone();
        let may_be_absent = matches!(
            status.state,
            AttachState::Gone
                | AttachState::Coming { new: true }
                | AttachState::Leaving(DetachHow::Drained | DetachHow::Discard)
        );
        ensure!(found.is_some() || may_be_absent, "volume {volume} ({status:?}) is not in the table");
        ensure!(found.is_none() || status.state != AttachState::Gone, "volume {volume} has come back");
        let Some(found) = found else {
            if status.state == AttachState::Leaving(DetachHow::Drained) && !self.disks.damaged {
                let image = self.disks.devices[1 + volume].visible();
                self.oracle.check_image(volume, image, "backing store after a crash in detaching")?;
            }
            self.disks.volumes[volume].state = AttachState::Gone;
            return Ok(());
        };
        if status.is_settled() && status.state == AttachState::Attached {
            if !self.late[volume] {
                return Ok(());
            }
            ensure!(
                found.size_bytes == status.bytes,
                "volume {volume} ({status:?}) is {found:?} in the table"
            );
        }
        if let Some(wanted) = status.resizing {
            let size = found.size_bytes;
            ensure!(size == status.bytes || size == wanted, "volume {volume} has {size} bytes: {status:?}");
            self.resized(volume, size);
        }
        if status.state == AttachState::Kept && self.rng.chance(1, 2) {
            return Ok(());
        }
        self.attach_kept(volume)?;
        self.pump()
    }

    /// Waits until no change is in progress.
    ///
    /// # Errors
    /// Any violation.
    pub fn wait_life(&mut self) -> Result<(), String> {
        let end = self.now + ANSWER_LIMIT_NS;
        while !self.stopped
            && !self.fenced
            && self.engine.status() == Status::Ready
            && (self.scrubs.is_running()
                || self.disks.cache_pending.is_some()
                || !self.disks.volumes.iter().all(VolumeStatus::is_settled))
        {
            ensure!(
                self.step(end)?,
                "a change does not end: {:?} {:?}, {}",
                self.disks.volumes,
                self.disks.cache_pending,
                self.engine.describe()
            );
        }
        Ok(())
    }

    /// Attaches the volumes kept in the cache, so that they can be judged.
    ///
    /// # Errors
    /// Any violation.
    pub fn attach_all_kept(&mut self) -> Result<(), String> {
        self.wait_life()?;
        for volume in 0..self.disks.volumes.len() {
            if self.disks.volumes[volume].state == AttachState::Kept && !self.stopped && !self.fenced {
                self.attach_kept(volume)?;
                self.pump()?;
            }
        }
        self.wait_life()
    }
}
