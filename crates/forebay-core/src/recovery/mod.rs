//! Opening a cache: from bytes on a device to a trusted map.
//!
//! 1. Both superblocks: the intact one with the higher generation is valid.
//! 2. The checkpoint that it names (two copies; no other generation is valid: an older one may
//!    refer to segments that were overwritten since). A window extension adds segments without live
//!    slots; see `extension`.
//! 3. For every segment in use its summary, or else its batch headers, to find which block each
//!    slot holds. The checkpoint states which slots are live.
//! 4. If the cache was not closed in an orderly way: the segments of the append window and the rest
//!    of the open ones. Of every stream, the batches after the checkpoint are valid up to the first
//!    one that is torn or missing. If a batch states that one later than the last found had been
//!    flushed, the device lost a flushed write: then the cache is not opened.
//! 5. The entries of all streams are applied in the order of their sequence.
//! 6. Clean blocks in regions with a write intent are dropped (I10).
//! 7. The backing stores are compared with their recorded state; see `attach`.
//! 8. Batches that may not be durable are rewritten in place, see `rewrite`. Cache device and
//!    backing stores are flushed. A checkpoint with the next epoch is taken; from then on no
//!    leftover of an earlier run can be mistaken for new data.
//!
//! Nothing is written before step 8, so a crash or a refusal leaves everything unchanged.

pub(crate) mod attach;
mod extension;
pub(crate) mod mirrored;
mod overlay;
mod replay;
pub(crate) mod rewrite;
pub(crate) mod scan;
mod segments;
pub(crate) mod state;
mod superblocks;

use crate::api::config::Attachment;
use crate::api::open_error::OpenError;
use crate::api::{Device, DeviceFailure};
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::recovery_reads::{RecoveryRead, RecoveryTarget};
use crate::context::sectors::BLOCK;
use crate::context::{Context, Status};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, SegmentPhase};
use crate::recovery::state::{Pairs, Recovery, Rewrite};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use forebay_format::checkpoint::Checkpoint;
use forebay_format::{Geometry, VolumeId};

/// Attempts at each read.
const READ_TRIES: u32 = 3;

impl CacheMap {
    pub(crate) fn drop_clean(&mut self, volume: VolumeId, first: u64, last: u64) -> u64 {
        let mut clean = Vec::new();
        self.for_each_in(volume, first, last, |slot| {
            if self.state(slot) == BlockState::Clean {
                clean.push(self.key(slot));
            }
        });
        for key in &clean {
            self.remove(*key);
        }
        clean.len() as u64
    }
}

impl Context {
    fn fail_opening(&mut self, error: OpenError) {
        self.status = Status::Failed(error);
    }
}

impl Recovery {
    /// Starts to open the cache device of `device_bytes` bytes.
    pub(crate) fn begin(cx: &mut Context, device_bytes: u64, attachments: Vec<Attachment>) -> Box<Self> {
        let members = cx.members.meta_members();
        let mut recovery = Box::new(Self {
            device_bytes,
            attachments,
            superblocks: Vec::new(),
            expected: 2 * members.len(),
            unreadable: 0,
            checkpoints: Vec::new(),
            pairs: Pairs::default(),
            rewrite: Rewrite::default(),
            extending: extension::Extending::default(),
            extensions_damaged: false,
            checkpoint: Checkpoint::default(),
            ends: Vec::new(),
            jobs: Vec::new(),
            in_flight: 0,
            whole_in_flight: 0,
            tails: Vec::new(),
            pieces: BTreeMap::new(),
            verdicts: Vec::new(),
            settling: Vec::new(),
            pending_flushes: 0,
            flush_failed: false,
        });
        for (member, copy) in members.flat_map(|member| [(member, 0), (member, 1)]) {
            let offset = cx.map.geometry.mirror_meta(member, Geometry::superblock_offset(copy));
            recovery.read(cx, RecoveryTarget::Superblock((member, copy)), offset, BLOCK);
        }
        recovery
    }

    pub(crate) fn read(&mut self, cx: &mut Context, target: RecoveryTarget, offset: u64, len: u64) {
        let recovery = &mut *self;
        recovery.in_flight += 1;
        recovery.whole_in_flight += usize::from(matches!(target, RecoveryTarget::Whole(_)));
        cx.read_meta(RecoveryRead { target, offset, len, tries: 1 });
    }

    pub(crate) fn completed(
        &mut self,
        cx: &mut Context,
        read: RecoveryRead,
        result: Result<&[u8], DeviceFailure>,
    ) {
        if result == Err(DeviceFailure::Ended) && !cx.members.is_mirrored() {
            // Missing data is not damage: conclude nothing from it.
            return cx.fail_opening(OpenError::CacheEnded);
        }
        if result.is_err() && read.tries < READ_TRIES {
            cx.coverage.add(CoverageMark::RecoveryRetried);
            cx.read_meta(RecoveryRead { tries: read.tries + 1, ..read });
            return;
        }
        if let RecoveryTarget::Rewritten(number) = read.target {
            self.rewrite_read(cx, number, read.offset, result);
            return;
        }
        let recovery = &mut *self;
        recovery.in_flight -= 1;
        recovery.whole_in_flight -= usize::from(matches!(read.target, RecoveryTarget::Whole(_)));
        let next = match read.target {
            RecoveryTarget::Superblock(copy) => self.superblock_read(cx, copy, result),
            RecoveryTarget::Checkpoint(at) => self.checkpoint_read(cx, at, result),
            RecoveryTarget::Extension(slot, copy) => self.extension_read(cx, (slot, copy), result),
            RecoveryTarget::Searched(number) => self.searched(cx, number, result),
            RecoveryTarget::Summary(number) => self.summary_read(cx, number, result),
            RecoveryTarget::Whole(number) => self.segment_read(cx, number, result),
            RecoveryTarget::Head(number) => self.head_read(cx, number, result),
            RecoveryTarget::Block(number, index) => self.block_read(cx, number, index, result),
            RecoveryTarget::Rewritten(_) => unreachable!("it does not come here"),
        };
        if let Err(error) = next.and_then(|()| self.next_jobs(cx)) {
            cx.fail_opening(error);
        }
    }

    pub(crate) fn settle_devices(&mut self, cx: &mut Context, volumes: &[VolumeId]) {
        if cx.members.is_mirrored() && !self.mend_members(cx, volumes) || !self.rewrite_unflushed(cx, volumes)
        {
            return;
        }
        self.pending_flushes = 1 + volumes.len() as u32;
        cx.flush(Device::Cache, Waiter::Recovery);
        for volume in volumes {
            cx.flush(Device::Backing(*volume), Waiter::Recovery);
        }
    }

    pub(crate) fn flushed(&mut self, cx: &mut Context, ok: bool) {
        let recovery = &mut *self;
        recovery.flush_failed |= !ok;
        recovery.pending_flushes -= 1;
        if recovery.pending_flushes > 0 {
            return;
        }
        if recovery.flush_failed {
            let error = if cx.failure.is_fenced() { OpenError::CacheWrite } else { OpenError::BackingFlush };
            cx.fail_opening(error);
            return;
        }
        cx.resume_orders();
        let counted = cx.members.segments_counted(cx.map.geometry.segment_count);
        cx.free.window_size = crate::checkpoint::window_size(counted, cx.members.is_mirrored());
        while cx.map.take_emptied().is_some() {}
        for number in 0..cx.map.segments.len() as u32 {
            let segment = &cx.map.segments[number as usize];
            if segment.live == 0 && segment.phase != SegmentPhase::Twin {
                cx.members.end_with_twin(&mut cx.map, number);
                if !cx.members.is_mirrored() {
                    cx.free.add(number);
                }
            }
        }
        cx.members.free_columns(&cx.map, &mut cx.free);
        cx.emit(Event::Recovered);
    }
}
