//! Calls about cache devices that have failed: what is at risk or lost, and the members of a
//! mirrored cache.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Loss, LossTotal, Nanos};
use crate::engine::Engine;
use crate::failure::{AtRisk, RiskWalk};
use crate::mirror::MirrorState;
use alloc::vec::Vec;
use forebay_format::VolumeId;

impl Engine {
    /// The owner knows that the cache device is gone: it need not be found out one error after the
    /// other.
    pub fn cache_gone(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.cache_gone();
    }

    /// Asks for the record once more, after the owner could not make it.
    pub fn record_again(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.record_again();
    }

    /// Answers [`Action::RecordLoss`](crate::Action::RecordLoss): the record is durable, or could
    /// not be made so.
    pub fn loss_recorded(&mut self, now: Nanos, ticket: u64, ok: bool) {
        self.begin(now);
        self.cx.loss_recorded(ticket, ok);
    }

    /// The cache device failed, and the engine serves its volumes without it.
    #[must_use]
    pub fn runs_without_cache(&self) -> bool {
        self.cx.runs_without_cache()
    }

    /// True if nothing can be rescued any more: every dirty block of an attached volume is safe or
    /// lost.
    #[must_use]
    pub fn is_rescue_over(&self) -> bool {
        self.cx.is_rescue_over()
    }

    /// What only the cache has, or had, of each volume: dirty blocks and lost ones, by address.
    /// This is what the record must list. It becomes less while the engine is fenced, never more.
    /// Looks at all slots.
    #[must_use]
    pub fn at_risk(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        self.cx.at_risk()
    }

    /// Goes on with a walk over what is at risk, by so many segments at most; gives what it is when
    /// all have been looked at. What comes to be safe meanwhile may be listed all the same
    /// ([`Engine::made_safe`] has it), what comes to be lost is.
    pub fn walk_risk(&self, walk: &mut RiskWalk, segments_max: u32) -> Option<AtRisk> {
        self.cx.walk_risk(walk, segments_max)
    }

    /// What of [`Engine::at_risk`] came to be safe since the last record that was made, by address:
    /// taken away from that one it gives the record that is asked for now. What is safe stays so,
    /// so taking it away twice changes nothing. `None`: it was too much to be remembered, and a
    /// whole record is needed.
    #[must_use]
    pub fn made_safe(&self) -> Option<Vec<(VolumeId, Vec<Loss>)>> {
        self.cx.made_safe()
    }

    /// What is lost of each volume, by address: it answers with errors until it is written again.
    /// Lost with a cache device that failed, or because the only copy of a dirty block was damaged.
    #[must_use]
    pub fn losses(&self) -> Vec<(VolumeId, Vec<Loss>)> {
        self.cx.losses()
    }

    /// What is lost of each volume that has lost something: bytes, and the ranges that they are in.
    #[must_use]
    pub fn loss_totals(&self) -> Vec<LossTotal> {
        self.cx.loss_totals()
    }

    /// Nothing is lost, of any volume.
    #[must_use]
    pub fn has_lost_nothing(&self) -> bool {
        self.cx.has_lost_nothing()
    }

    /// Something of a volume was lost, and no FLUSH has been answered with an error since. An
    /// engine that is opened later does not know that (I54): whoever goes on with this volume's
    /// clients there must tell them in another way.
    #[must_use]
    pub fn is_loss_unreported(&self, volume: VolumeId) -> bool {
        self.cx.is_loss_unreported(volume)
    }

    /// Bytes of a volume that are lost.
    #[must_use]
    pub fn lost_bytes(&self, volume: VolumeId) -> u64 {
        self.cx.lost_bytes(volume)
    }

    /// Answers [`Action::RecordOut`](crate::Action::RecordOut): the note is durable, or could not
    /// be made so.
    pub fn member_recorded(&mut self, now: Nanos, ticket: u64, ok: bool) {
        self.begin(now);
        self.cx.member_recorded(ticket, ok);
    }

    /// The owner knows that a member is gone: it need not be found out by an error.
    pub fn member_gone(&mut self, now: Nanos, member: u8) {
        self.begin(now);
        self.cx.member_gone(member);
    }

    /// How the members stand; `None` if the cache is not mirrored.
    #[must_use]
    pub fn mirror_state(&self) -> Option<MirrorState> {
        self.cx.mirror_state()
    }

    /// An empty device takes the place of the member that is out: fills it. Its owner has put it
    /// where the old one was, and has drawn a new `tag`.
    /// [`Notice::MirrorWhole`](crate::Notice::MirrorWhole) or
    /// [`Notice::RebuildFailed`](crate::Notice::RebuildFailed) follows.
    ///
    /// # Errors
    /// No member is out; the tag is not a new one; or ([`LifecycleError::Busy`]: try again soon)
    /// something else, or an operation of the old device, is under way.
    pub fn begin_rebuild(&mut self, now: Nanos, tag: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.cx.begin_rebuild(tag)
    }
}
