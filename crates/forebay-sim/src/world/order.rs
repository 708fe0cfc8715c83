//! The judge of ordered destage: at any instant and after any power cut, the backing store alone
//! must be an image that a plain disk could have shown.
//!
//! A volume is judged, while it is certainly served, as long as the engine reports the guarantee to
//! be in force ([`forebay_core::Engine::is_ordered`]), and after a crash if the engine reported it
//! before: a crash must not lose the order. The cache device is not used. Runs with damaged bytes
//! of the cache device are judged until the engine reports that the order is broken.

use super::World;
use crate::disks::{AttachState, Snapshot};
use crate::ensure::ensure;
use forebay_core::{DestageOrder, Status};
use forebay_format::VolumeId;

/// At one crash point in this many, the images of the ordered volumes are judged.
const LOOK: u64 = 30;

impl World {
    /// Returns which volumes' backing stores alone are promised to be crash-consistent images now.
    pub(crate) fn ordered_now(&self) -> Vec<bool> {
        if matches!(self.engine.status(), Status::Opening | Status::Failed(_)) {
            // The policy for a changed backing store is not applied yet.
            return if self.changed { vec![false; self.ordered.len()] } else { self.ordered.clone() };
        }
        let here = |volume: usize| {
            !matches!(self.disks.volumes[volume].state, AttachState::Gone | AttachState::Coming { new: true })
        };
        // For a volume not attached yet, the policy for a changed backing store is not applied yet.
        let known = |id| !self.changed || self.engine.volume_settings(id).is_some();
        let kept = |id| known(id) && self.engine.is_ordered(id);
        let here = |volume: usize| here(volume) && self.unlearned != Some(volume);
        let ordered = |volume: usize| here(volume) && kept(VolumeId(volume as u16));
        (0..self.plan.volumes.len()).map(ordered).collect()
    }

    /// Cuts the power of copies of the backing stores of ordered volumes, and judges the remains.
    pub(crate) fn watch_order(&mut self) {
        if !self.plan.may_order() || self.disorder.is_some() || !self.order_rng.chance(1, LOOK) {
            return;
        }
        if self.order_rng.chance(1, 4) && self.engine.status() == Status::Ready {
            self.engine.check_invariants();
        }
        self.disorder = self.judge_order().err();
    }

    fn judge_order(&mut self) -> Result<(), String> {
        for (volume, ordered) in self.ordered_now().into_iter().enumerate() {
            if !ordered || self.oracle.relaxed {
                continue;
            }
            let left = self.disks.devices[1 + volume].power_cut(&mut self.order_rng);
            let judged = self.oracle.check_order(volume, self.served_bytes(volume), left.visible());
            judged.map_err(|why| format!("the backing store alone is out of order: {why}"))?;
        }
        Ok(())
    }

    /// Checks that an engine that has just opened continues the order of the one before it.
    pub(crate) fn check_order_kept(&mut self) -> Result<(), String> {
        if self.changed || self.disks.damaged || self.oracle.relaxed || self.errors[0] > 0 {
            return Ok(());
        }
        for (volume, before) in self.ordered.iter().enumerate() {
            if !matches!(self.disks.volumes[volume].state, AttachState::Attached | AttachState::Kept) {
                continue;
            }
            let wanted = self.disks.settings[volume].destage_order == DestageOrder::Ordered;
            let kept = !before || !wanted || self.engine.is_ordered(VolumeId(volume as u16));
            ensure!(
                kept,
                "volume {volume} was destaged in order, and is not after the start: {}",
                self.engine.describe()
            );
        }
        self.judge_order()
    }
}

/// Judges the backing stores after a crash, as if the cache device were lost and the power cut
/// (again).
///
/// # Errors
/// Names the sector that does not fit the others.
pub(crate) fn check_images(snapshot: &mut Snapshot) -> Result<(), String> {
    if snapshot.oracle.relaxed {
        return Ok(());
    }
    for (volume, ordered) in snapshot.ordered.iter().enumerate().filter(|(_, ordered)| **ordered) {
        debug_assert!(ordered);
        let left = snapshot.disks.devices[1 + volume].power_cut(&mut snapshot.rng);
        let bytes = snapshot.disks.volumes[volume].served_bytes();
        let judged = snapshot.oracle.check_order(volume, bytes, left.visible());
        judged.map_err(|why| format!("the backing store alone is out of order after the crash: {why}"))?;
    }
    Ok(())
}
