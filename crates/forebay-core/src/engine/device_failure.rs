//! Calls for failed cache devices: data at risk or lost, and the members of a mirrored cache.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Loss, LossTotal, Nanos};
use crate::engine::Engine;
use crate::failure::{AtRisk, RiskWalk};
use crate::mirror::MirrorState;
use alloc::vec::Vec;
use forebay_format::VolumeId;

impl Engine {
    /// Fences the cache because the owner has noticed that its device is gone, without waiting for
    /// errors.
    pub fn cache_gone(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.cache_gone();
    }

    /// Requests the record again after the owner failed to write it.
    pub fn record_again(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.failure.record_again(&mut self.cx.actions);
    }

    /// Answers [`OwnerAction::RecordLoss`](crate::OwnerAction::RecordLoss): the record is durable,
    /// or could not be written.
    pub fn loss_recorded(&mut self, now: Nanos, ticket: u64, ok: bool) {
        self.begin(now);
        self.cx.loss_recorded(ticket, ok);
    }

    /// Returns true if the cache device failed and the engine serves its volumes without it.
    #[must_use]
    pub fn runs_without_cache(&self) -> bool {
        self.cx.failure.runs_without_cache()
    }

    /// Returns true if the rescue has ended: every dirty block of an attached volume is safe or
    /// lost.
    #[must_use]
    pub fn is_rescue_over(&self) -> bool {
        self.cx.is_rescue_over()
    }

    /// Data at risk of each volume, by address: dirty and lost blocks. The record must list it. It
    /// never grows while the engine is fenced. Scans all slots.
    #[must_use]
    pub fn at_risk(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        self.cx.at_risk()
    }

    /// Continues a walk over the data at risk by at most `segments_max` segments; returns the data
    /// once all have been visited. Blocks that become safe meanwhile may be listed nevertheless
    /// ([`Engine::made_safe`] has them); blocks that become lost are always listed.
    pub fn walk_risk(&self, walk: &mut RiskWalk, segments_max: u32) -> Option<AtRisk> {
        self.cx.walk_risk(walk, segments_max)
    }

    /// The part of [`Engine::at_risk`] that became safe since the last record, by address:
    /// subtracted from that record it gives the one that is requested now. Safe data stays safe, so
    /// subtracting it twice changes nothing. `None`: there was too much to remember, and a complete
    /// record is needed.
    #[must_use]
    pub fn made_safe(&self) -> Option<Vec<(VolumeId, Vec<Loss>)>> {
        self.cx.failure.made_safe()
    }

    /// Lost ranges of each volume, by address: reads of them fail until they are overwritten. Lost
    /// with a failed cache device, or because the only copy of a dirty block was damaged.
    #[must_use]
    pub fn losses(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        self.cx.losses()
    }

    /// Lost bytes and ranges of each volume that has any.
    #[must_use]
    pub fn loss_totals(&self) -> Vec<LossTotal> {
        self.cx.loss_totals()
    }

    /// Returns true if no volume has lost data.
    #[must_use]
    pub fn has_lost_nothing(&self) -> bool {
        self.cx.has_lost_nothing()
    }

    /// Returns true if a volume has losses, and no FLUSH has failed since. An engine that is opened
    /// later does not know that (I54): if it serves the same clients, the owner must report the
    /// loss in another way.
    #[must_use]
    pub fn is_loss_unreported(&self, volume: VolumeId) -> bool {
        self.cx.volumes.is_loss_unreported(volume)
    }

    /// Lost bytes of a volume.
    #[must_use]
    pub fn lost_bytes(&self, volume: VolumeId) -> u64 {
        self.cx.lost_bytes(volume)
    }

    /// Answers [`OwnerAction::RecordOut`](crate::OwnerAction::RecordOut): the record is durable, or
    /// could not be written.
    pub fn member_recorded(&mut self, now: Nanos, ticket: u64, ok: bool) {
        self.begin(now);
        self.cx.member_recorded(ticket, ok);
    }

    /// Fails a member out because the owner has noticed that it is gone, without waiting for an
    /// error; fences the cache if the other member is out already.
    pub fn member_gone(&mut self, now: Nanos, member: u8) {
        self.begin(now);
        self.cx.member_gone(member);
    }

    /// State of the members; `None` if the cache is not mirrored.
    #[must_use]
    pub fn mirror_state(&self) -> Option<MirrorState> {
        self.cx.members.state(&self.cx.superblock)
    }

    /// Begins to rebuild the member that is out on an empty device. The owner has installed the
    /// device in place of the old one and generated a new `tag`.
    /// [`Notice::MirrorWhole`](crate::Notice::MirrorWhole) or
    /// [`Notice::RebuildFailed`](crate::Notice::RebuildFailed) follows.
    ///
    /// # Errors
    /// No member is out; the tag is not new; or ([`LifecycleError::Busy`]: retry soon) another
    /// change, or an operation of the old device, is in progress.
    pub fn begin_rebuild(&mut self, now: Nanos, tag: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.cx.begin_rebuild(tag)
    }
}
