//! Counts of coverage marks, failures and dropped fills.

use crate::api::Device;
use crate::context::Context;
use crate::context::operations::{DoneOp, OpKind};
use forebay_format::VolumeId;

impl Context {
    /// Counts a failed operation.
    pub(crate) fn count_failure(&mut self, op: &DoneOp) {
        match (&op.kind, op.backing, op.slot) {
            (OpKind::Sample { .. }, ..) => {}
            (OpKind::Flush(Device::Backing(id)), ..) => self.counters.of(*id).backing_flush_errors += 1,
            (OpKind::DirectWrite { .. } | OpKind::DestageWrite { .. }, Some(id), _) => {
                self.counters.of(id).backing_write_errors += 1;
            }
            (_, Some(id), _) => self.counters.of(id).backing_read_errors += 1,
            (_, None, Some(slot)) => self.counters.of(self.map.key(slot).volume()).cache_read_errors += 1,
            (
                OpKind::Batch(_)
                | OpKind::Flush(Device::Cache)
                | OpKind::Checkpoint
                | OpKind::CheckpointBase
                | OpKind::CopyWrite
                | OpKind::MemberRepair
                | OpKind::RewriteUnflushed { .. }
                | OpKind::RepairWrite,
                ..,
            ) => self.stats.cache_write_errors += 1,
            (OpKind::Discard, ..) => self.stats.cache_discard_errors += 1,
            _ => {}
        }
    }

    /// Counts a fill that was not kept.
    pub(crate) fn count_fill_given_up(&mut self, volume: VolumeId, changed: bool) {
        let (all, one) = (&mut self.stats, self.counters.of(volume));
        if changed {
            all.fill_cancelled_blocks += 1;
            one.fill_cancelled_blocks += 1;
        } else {
            all.fill_no_room_blocks += 1;
            one.fill_no_room_blocks += 1;
        }
    }
}
