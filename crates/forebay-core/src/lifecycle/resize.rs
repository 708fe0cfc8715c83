//! Changing the size of an attached volume.
//!
//! **Growing.** The new blocks are served once a checkpoint with the new size is in effect: before
//! that, a crash would lose writes to them. If the old end lies inside a block, a cached copy of
//! that block may extend beyond the volume (if the volume was larger once): a clean copy is
//! dropped, a dirty one is relocated with a mask of only the sectors inside the volume. From then
//! on until the new size is served the block is locked: a write that merges it with the backing
//! store's content would read up to the old end, and write up to the new one (I21).
//!
//! **Shrinking.** Requests beyond the new end are refused at once. When those in flight have ended,
//! the table gets the new size, and the blocks beyond it are dropped, dirty ones included. The
//! owner gets the notice only when a checkpoint without them is in effect, so a later growth does
//! not find them (I21).
//!
//! If the cache fails after the table got the new size, the owner's record of it replaces the
//! checkpoint: it uses this table.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Nanos, Notice, RequestKind};
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::locks::BlockRange;
use crate::context::requests::Req;
use crate::context::sectors::BLOCK;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::job::{Progress, Sweep, Waits};
use crate::map::segment::{BLOCK_LAST, BlockState, Key};
use crate::reclaim::relocate::Relocations;
use forebay_format::VolumeId;

/// Time until another attempt to relocate a block for which there was no room.
const RETRY_NS: Nanos = 1_000_000;

/// Time until another look at a block that must be destaged.
const DESTAGE_NS: Nanos = 10_000_000;

#[derive(Debug)]
enum ResizeStage {
    /// Growing: until no request changes the block at an odd old end, and it has no sectors beyond
    /// that.
    Trimming,
    /// Shrinking: until everything beyond the new end has ended.
    Quieting,
    Sweeping(Sweep),
    Checkpoint(u64),
}

/// A volume that is being resized.
#[derive(Debug)]
pub(crate) struct Resizing {
    bytes: u64,
    /// Start of the job: later requests already respect a smaller end.
    began_at: Nanos,
    stage: ResizeStage,
}

impl Context {
    /// The point of no return: the volume has its new size. The blocks beyond it stay locked until
    /// a checkpoint records the new size, and so does the block that the new end cuts: destage
    /// would write it only up to the new end, and if a crash restored the old size, the block would
    /// be marked clean with sectors that the backing store does not have.
    fn cut(&mut self, id: VolumeId, bytes: u64) {
        let volume = self.volume_mut(id);
        (volume.table_bytes, volume.size_bytes, volume.limit_bytes) = (bytes, bytes, bytes);
        // A copy of the block at the end that has no sectors inside the volume: there is nothing to
        // destage.
        let key = Key::new(id, bytes / BLOCK);
        let kept = if bytes.is_multiple_of(BLOCK) { 0xff } else { self.volume(id).block_mask(key.block()) };
        if self.map.lookup(key).is_some_and(|slot| self.map.mask(slot) & kept == 0) {
            self.map.remove(key);
        }
        self.map.end_shadows_outside(key, kept);
    }
}

/// Checks that a volume can have this size if its backing store has sectors of this size.
pub(super) fn check_size(bytes: u64, sector_bytes: u32) -> Result<(), LifecycleError> {
    let unit = u64::from(sector_bytes).max(512);
    if bytes > 0 && bytes.is_multiple_of(unit) && bytes / BLOCK < BLOCK_LAST {
        return Ok(());
    }
    Err(LifecycleError::Size { bytes, sector_bytes: unit, max_bytes: BLOCK_LAST * BLOCK - unit })
}

impl Resizing {
    /// True if blocks were dropped, and the smaller size is not durable yet.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.stage, ResizeStage::Sweeping(_) | ResizeStage::Checkpoint(_))
    }

    pub(super) fn begin(cx: &mut Context, id: VolumeId, bytes: u64) -> Result<Self, LifecycleError> {
        let state = cx.volume_mut(id);
        check_size(bytes, state.sector_bytes)?;
        state.limit_bytes = bytes.min(state.size_bytes);
        let stage = if bytes < state.size_bytes { ResizeStage::Quieting } else { ResizeStage::Trimming };
        Ok(Self { bytes, began_at: cx.now, stage })
    }

    pub(super) fn step(
        &mut self,
        cx: &mut Context,
        waits: &mut Waits,
        checkpoint: &Checkpoints,
        relocations: &mut Relocations,
        id: VolumeId,
    ) -> Progress {
        let early = matches!(self.stage, ResizeStage::Trimming | ResizeStage::Quieting);
        let fails = early || fault::planted(PlantedBug::FailAfterCut);
        if fails && cx.failure.is_fenced() || early && cx.stopping {
            let error =
                if cx.failure.is_fenced() { LifecycleError::Fenced } else { LifecycleError::NotServing };
            let volume = cx.volume_mut(id);
            volume.limit_bytes = volume.size_bytes;
            return cx.job_failed(Notice::ResizeFailed { volume: id, error });
        }
        match &mut self.stage {
            ResizeStage::Trimming => {
                if !trim_end(cx, waits, relocations, id) {
                    return Progress::Waits;
                }
                if fault::planted(PlantedBug::GrowUnlocked) {
                    waits.unlock(cx, id);
                }
                cx.volume_mut(id).table_bytes = self.bytes;
                if fault::planted(PlantedBug::ServeBeforeCheckpoint) {
                    cx.volume_mut(id).serve_size(self.bytes);
                }
                self.stage = ResizeStage::Checkpoint(cx.force_checkpoint());
            }
            ResizeStage::Quieting => {
                if !self.quiet_beyond(cx, waits, id) {
                    return Progress::Waits;
                }
                cx.cut(id, self.bytes);
                self.stage = ResizeStage::Sweeping(Sweep::new(self.bytes.div_ceil(BLOCK), false));
            }
            ResizeStage::Sweeping(sweep) => {
                let mut sweep = *sweep;
                let kept = fault::planted(PlantedBug::KeepBeyondShrink);
                if !kept && !sweep.step(cx, id) {
                    self.stage = ResizeStage::Sweeping(sweep);
                    return Progress::Waits;
                }
                self.stage = ResizeStage::Checkpoint(cx.force_checkpoint());
            }
            ResizeStage::Checkpoint(ticket) => {
                if !checkpoint.is_in_effect(*ticket) && !cx.failure.runs_without_cache() {
                    if cx.failure.refuses_changes() {
                        // The checkpoint may never complete, and nothing is destaged: requests that
                        // wait for the locks continue and fail.
                        waits.unlock(cx, id);
                    }
                    return Progress::Waits;
                }
                cx.volume_mut(id).serve_size(self.bytes);
                cx.wake_in(1); // Flush epochs have waited for this.
                cx.actions.notice(Notice::VolumeResized { volume: id, bytes: self.bytes });
                return Progress::Done;
            }
        }
        Progress::Goes
    }

    /// True once nothing is in flight beyond the new end, and nothing can start there: the locks
    /// are held.
    fn quiet_beyond(&self, cx: &mut Context, waits: &mut Waits, id: VolumeId) -> bool {
        let cut = Key::new(id, self.bytes / BLOCK);
        // An earlier read may cover all of the block that the new end cuts. It holds no lock. A
        // write does, or waits for it behind this job: waiting for that would be a deadlock.
        let reaches = |req: &Req| {
            let reads = matches!(req.kind, RequestKind::Read | RequestKind::Prefetch);
            let from_before = reads && req.started_at <= self.began_at;
            req.end() > self.bytes || from_before && (req.last_block + 1) * BLOCK > self.bytes
        };
        let busy = cx.reqs.iter().any(|req| req.volume == id && reaches(req));
        let range = BlockRange { first: cut, last: Key::new(id, BLOCK_LAST) };
        if busy || cx.fills.any_in(range) {
            return false;
        }
        // The block that the new end cuts belongs to it: no request may use its old length.
        waits.lock(cx, id, range)
    }
}

/// Makes sure that the cached copy of the block at an odd end has no sectors beyond that (older
/// versions of it are then destaged). Returns true once that is so, with the block locked.
fn trim_end(cx: &mut Context, waits: &mut Waits, relocations: &mut Relocations, id: VolumeId) -> bool {
    let size = cx.volume(id).size_bytes;
    if size.is_multiple_of(BLOCK) {
        return true;
    }
    let key = Key::new(id, size / BLOCK);
    let range = BlockRange { first: key, last: key };
    if !waits.lock(cx, id, range) {
        return false;
    }
    // A fill that was read when the volume was larger may still be in flight.
    cx.cancel_fills(range);
    let mask = cx.volume(id).block_mask(key.block());
    if cx.map.shadows_reach_beyond(key, mask) {
        // Shadows cannot be relocated. Sectors beyond the end are not destaged while the volume
        // ends here.
        waits.unlock(cx, id);
        cx.reclaim_wants_destage = true;
        cx.wake_in(DESTAGE_NS);
        return false;
    }
    let slot = cx.map.lookup(key).filter(|slot| cx.map.mask(*slot) & !mask != 0);
    let Some(slot) = slot.filter(|slot| !cx.map.is_lost(*slot)) else { return true };
    match cx.map.state(slot) {
        BlockState::Clean => {
            cx.map.remove(key);
            true
        }
        _ => {
            waits.unlock(cx, id);
            let fixed = cx.map.is_fixed(slot);
            if !relocations.relocate_masked(cx, slot, Some(mask)) {
                cx.reclaim_wants_destage = true;
                cx.wake_in(if fixed { DESTAGE_NS } else { RETRY_NS });
            }
            false
        }
    }
}
