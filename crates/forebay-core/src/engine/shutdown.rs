//! Checkpoints on demand, and the orderly stop.

use crate::api::{Nanos, OwnerAction};
use crate::context::Status;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;

impl Engine {
    /// Refuses new requests and lets those in flight complete; [`OwnerAction::Quiesced`] follows.
    pub fn begin_shutdown(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.stopping = true;
    }

    pub(super) fn step_shutdown(&mut self) {
        if !self.cx.stopping || self.quiesced || !self.cx.status.is_ready() {
            return;
        }
        let busy = self.cx.reqs.len() > 0
            || self.cx.ops.len() > 0
            || self.destager.extents_len() > 0
            || self.cx.log.moves > 0
            || !self.checkpoint.is_idle()
            || self.cx.is_mirror_busy()
            || self.cx.is_rescue_busy();
        if busy {
            return;
        }
        if self.cx.flush_backings_for_shutdown() {
            return;
        }
        self.quiesced = true;
        self.cx.actions.push_owner(OwnerAction::Quiesced);
    }

    /// Completes the jobs that waited for the final checkpoint, and closes the engine.
    pub(super) fn close(&mut self) {
        self.step_lifecycle();
        self.step_pool();
        self.cx.actions.push_owner(OwnerAction::Closed);
    }

    /// Takes a checkpoint as soon as possible;
    /// [`Notice::Checkpointed`](crate::Notice::Checkpointed) reports when it is in effect.
    pub fn take_checkpoint(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.want_checkpoint();
    }

    /// Takes the final checkpoint, after [`OwnerAction::Quiesced`], with the present state of the
    /// backing stores; [`OwnerAction::Closed`] follows.
    ///
    /// # Panics
    /// If the engine is not quiesced: a bug of the owner.
    pub fn finish_shutdown(&mut self, now: Nanos, backings: &[(VolumeId, BackingRecord)]) {
        self.begin(now);
        assert!(self.quiesced, "finish_shutdown follows Quiesced");
        // The record from the attach of a volume does not describe its store now: without a new
        // one, the checkpoint records as little of the store as after a crash.
        let forgets = !fault::planted(PlantedBug::KeepOldNotes);
        for volume in self.cx.volumes.iter_mut().filter(|_| forgets) {
            volume.backing.stamp_ns = None;
            volume.backing.samples.clear();
        }
        for (volume, backing) in backings {
            if let Some(volume) = self.cx.volumes.get_mut(*volume) {
                volume.backing = backing.clone();
                if volume.may_lack_writes() {
                    volume.backing.samples.clear();
                }
            }
        }
        self.cx.status = Status::Stopping;
        self.checkpoint.begin_final(&mut self.cx);
        self.step_checkpoint();
    }
}
