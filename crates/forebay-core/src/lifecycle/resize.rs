//! Changing the size of a volume that is being served.
//!
//! **Growing.** The new blocks are served once a checkpoint with the new size is in effect: before
//! that a crash would forget what was written there. If the old end lies inside a block, a cached
//! copy of that block may hold more than the volume had (if it was larger once): a clean copy is
//! dropped, a dirty one is moved with a mask of only those sectors that belong to the volume. From
//! then on until the new size is served the block is locked: a write that merges it with what the
//! backing store has would read as far as the old end, and write as far as the new one (I21).
//!
//! **Shrinking.** Requests beyond the new end are refused at once; when those under way have ended
//! the table has the new size, and the blocks beyond it are swept away, dirty ones with them. Only
//! when a checkpoint is in effect that does not know them is the owner told; so a later growth
//! finds nothing of them (I21).
//!
//! If the cache fails once the table has the new size, the record that the owner makes of it takes
//! the place of the checkpoint: its table is this one.

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

/// Time until another attempt to move a block for which there was no room.
const RETRY_NS: Nanos = 1_000_000;

/// Time until another look at a block that must be written back.
const DESTAGE_NS: Nanos = 10_000_000;

#[derive(Debug)]
enum ResizeStage {
    /// Growing: until nobody changes the block at an odd old end, and it holds nothing beyond it.
    Trimming,
    /// Shrinking: until everything beyond the new end has ended.
    Quieting,
    Sweeping(Sweep),
    Checkpoint(u64),
}

/// A volume that changes its size.
#[derive(Debug)]
pub(crate) struct Resizing {
    bytes: u64,
    /// When it began: requests since then know of a smaller end.
    began_at: Nanos,
    stage: ResizeStage,
}

impl Context {
    fn serve_size(&mut self, id: VolumeId, bytes: u64) {
        let volume = self.volume_mut(id);
        (volume.size_bytes, volume.limit_bytes) = (bytes, bytes);
    }

    /// The point of no return: the volume has its new size. What lies beyond stays locked until a
    /// checkpoint says so, and so does the block that the new end cuts: if it were written back
    /// now, only as far as the new end, and a crash brought the old size back, it would be called
    /// clean with sectors that the backing store does not have.
    fn cut(&mut self, id: VolumeId, bytes: u64) {
        let volume = self.volume_mut(id);
        (volume.table_bytes, volume.size_bytes, volume.limit_bytes) = (bytes, bytes, bytes);
        // A copy of the block at the end that has nothing of the volume any more: there is nothing
        // to write back.
        let key = Key::new(id, bytes / BLOCK);
        let kept = if bytes.is_multiple_of(BLOCK) { 0xff } else { self.block_mask(id, key.block()) };
        if self.map.lookup(key).is_some_and(|slot| self.map.mask(slot) & kept == 0) {
            self.map.remove(key);
        }
        self.map.end_shadows_outside(key, kept);
    }
}

/// Checks that a volume whose backing store has sectors of this size can have this size.
pub(super) fn check_size(bytes: u64, sector_bytes: u32) -> Result<(), LifecycleError> {
    let unit = u64::from(sector_bytes).max(512);
    if bytes > 0 && bytes.is_multiple_of(unit) && bytes / BLOCK < BLOCK_LAST {
        return Ok(());
    }
    Err(LifecycleError::Size { bytes, sector_bytes: unit, max_bytes: BLOCK_LAST * BLOCK - unit })
}

impl Resizing {
    /// Blocks were given up, and the smaller size is not durable yet.
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
        if fails && cx.fenced || early && cx.stopping {
            let error = if cx.fenced { LifecycleError::Fenced } else { LifecycleError::NotServing };
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
                    cx.serve_size(id, self.bytes);
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
                if !checkpoint.is_in_effect(*ticket) && !cx.runs_without_cache() {
                    if cx.refuses_changes() {
                        // The checkpoint may never come, and nothing is written back: whoever waits
                        // for the locks gets his answer.
                        waits.unlock(cx, id);
                    }
                    return Progress::Waits;
                }
                cx.serve_size(id, self.bytes);
                cx.wake_in(1); // Flush epochs have waited for this.
                cx.notice(Notice::VolumeResized { volume: id, bytes: self.bytes });
                return Progress::Done;
            }
        }
        Progress::Goes
    }

    /// True once nothing is under way beyond the new end, and nothing can begin: the locks are
    /// held.
    fn quiet_beyond(&self, cx: &mut Context, waits: &mut Waits, id: VolumeId) -> bool {
        let cut = Key::new(id, self.bytes / BLOCK);
        // A read from before may read all of the block that the new end cuts. It holds no lock.
        // What writes does, or waits for it behind this job: to wait for that would be for ever.
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
        // The block that the new end cuts belongs to it: nobody may be at work with its old length.
        waits.lock(cx, id, range)
    }
}

/// Makes sure that the cached copy of the block at an odd end has nothing beyond it (older
/// versions of it have then been written back). Returns true once it has not, with the block
/// locked.
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
    // A fill that was read when the volume was larger may still be on its way.
    cx.cancel_fills(range);
    let mask = cx.block_mask(id, key.block());
    if cx.map.shadows_reach_beyond(key, mask) {
        // They cannot be moved. What lies beyond is not written back as long as the volume ends
        // here.
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
