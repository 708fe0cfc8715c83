//! Rebuild: a new member gets the second copy of all dirty data.
//!
//! From the start of a rebuild, every batch of a pair goes to both members. Older data is copied,
//! pair by pair: only sealed ones, so an open segment that the new member has not received from its
//! start is closed. Live blocks are compared with their checksums on the way. One copy is in flight
//! at a time, at a bounded rate.
//!
//! The new member is inactive until the end: after a crash the cache has one member, and the
//! rebuild starts again. The end is a checkpoint: its flush makes the copies durable, and its
//! superblocks list both members (I64). The superblock of the active member is durable before the
//! new one gets its own: otherwise the new member could continue alone without failing the other
//! one out. If the new member fails once such a superblock may be on a device, it is failed out
//! like any other.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Device, IoAction, Nanos, Notice, OpId};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::mirror::{Copying, Members, Mirror, Rebuild};
use crate::context::operations::{Op, OpKind};
use crate::context::pages::PageUse;
use crate::failure::damage::CACHE_READ_TRIES;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, SegmentPhase};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use forebay_format::StreamKind;
use forebay_format::superblock::Superblock;

/// Blocks of one copy operation.
const COPY_BLOCKS: u32 = 32;
/// Maximum rate of copying, bytes per second.
const COPY_BYTES_PER_S: u64 = 256 << 20;
/// Time until another attempt to copy.
const RETRY_NS: Nanos = 1_000_000;

impl Members {
    /// True if the pair has no second copy yet.
    fn is_pending(&self, segment: u32) -> bool {
        let rebuild = self.mirror().and_then(Mirror::rebuild);
        rebuild.is_some_and(|rebuild| rebuild.pending.contains(&segment))
    }

    /// True if the checkpoint in progress lists a new member.
    pub(crate) fn is_listing(&self) -> bool {
        let rebuild = self.mirror().and_then(Mirror::rebuild);
        rebuild.is_some_and(|rebuild| rebuild.ticket.is_some() && !rebuild.abandoned)
    }

    /// The new member, if the checkpoint in progress lists it.
    pub(crate) fn joining_member(&self) -> Option<usize> {
        let rebuild = self.mirror()?.rebuild()?;
        let joins = self.is_listing() && !fault::planted(PlantedBug::ListAtOnce);
        joins.then_some(usize::from(rebuild.member))
    }

    /// Offset in the cache, in bytes, of a block of a pair on a member.
    pub(crate) fn half_offset(&self, map: &CacheMap, segment: u32, member: u8, block: u32) -> u64 {
        let columns = self.mirror().map_or(0, |mirror| mirror.columns());
        map.geometry.segment_offset(segment + u32::from(member) * columns, block)
    }

    /// Slot and offset in the cache of the current read for the new member, if it is the last
    /// attempt at one block.
    pub(crate) fn last_copy_read(&self, map: &CacheMap) -> Option<(u32, u64)> {
        let rebuild = self.mirror()?.rebuild()?;
        let copying = rebuild.copying.as_ref()?;
        let is_last = copying.busy && copying.blocks == 1 && copying.tries + 1 >= CACHE_READ_TRIES;
        let offset = self.half_offset(map, copying.segment, 1 - rebuild.member, copying.at);
        is_last.then(|| (map.slot(copying.segment, copying.at), offset))
    }

    /// Called with every snapshot, before it is taken: this checkpoint lists the new member or not.
    pub(crate) fn apply_rebuild(&mut self, superblock: &mut Superblock) {
        let generation = superblock.checkpoint_generation + 1;
        let Some(rebuild) = self.mirror_mut().and_then(Mirror::rebuild_mut) else {
            return;
        };
        if !rebuild.wanted || rebuild.abandoned || rebuild.ticket.is_some() {
            return;
        }
        rebuild.ticket = Some(generation);
        if let Some(mark) = &mut superblock.mirror {
            mark.out = None;
            mark.tags[usize::from(rebuild.member)] = rebuild.tag;
        }
    }
}

impl Context {
    fn end_copying(&mut self, copying: Copying) {
        for page in copying.pages {
            self.pages.give(PageUse::Survivor, page);
        }
        let slot = self.map.slot(copying.segment, 0);
        self.map.unpin(slot);
    }

    /// The new member has failed. True if it may be listed already, and must be failed out.
    pub(super) fn abandon_rebuild(&mut self) -> bool {
        let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) else {
            return false;
        };
        if rebuild.abandoned {
            return false;
        }
        rebuild.abandoned = true;
        let listed = rebuild.ticket.is_some();
        self.coverage.add(CoverageMark::RebuildFailed);
        self.actions.notice(Notice::RebuildFailed);
        self.drop_abandoned();
        listed
    }

    fn drop_abandoned(&mut self) {
        if let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::drop_abandoned)
            && let Some(copying) = rebuild.copying
        {
            self.end_copying(copying);
        }
    }

    pub(super) fn step_rebuild(&mut self) {
        let (now, stopping) = (self.now, self.stopping);
        let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) else {
            return;
        };
        if rebuild.abandoned
            || rebuild.is_busy()
            || rebuild.ticket.is_some()
            || rebuild.wanted
            || now < rebuild.next_at
        {
            return;
        }
        if stopping {
            self.abandon_rebuild();
            return;
        }
        if rebuild.copying.is_some() {
            self.read_copy();
        } else if !self.begin_copy() {
            let swept = self.members.mirror().is_some_and(Mirror::is_swept);
            let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) else {
                return;
            };
            if rebuild.pending.is_empty() && swept {
                rebuild.wanted = true;
                self.want_checkpoint();
            } else {
                rebuild.next_at = now + RETRY_NS;
            }
        }
    }

    /// Starts to copy a pair; false if none can be copied now.
    fn begin_copy(&mut self) -> bool {
        let Some(rebuild) = self.members.mirror().and_then(Mirror::rebuild) else {
            return false;
        };
        let sealed = |first: &&u32| self.map.segments[**first as usize].phase == SegmentPhase::Sealed;
        let Some(segment) = rebuild.pending.iter().find(sealed).copied() else {
            // The remaining pairs are open: they can be copied once closed. Later ones are on both
            // members.
            for kind in [StreamKind::Write, StreamKind::Survivor] {
                let open = self.log.streams[kind.index()].open_segment();
                let waits = |segment: &u32| self.members.is_pending(*segment);
                if let Some(segment) = open.filter(waits) {
                    self.close_from(kind, segment);
                }
            }
            return false;
        };
        let slot = self.map.slot(segment, 0);
        self.map.pin(slot);
        let copying =
            Copying { segment, at: 0, blocks: 0, careful_until: 0, tries: 0, pages: Vec::new(), busy: false };
        if let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) {
            rebuild.copying = Some(copying);
        }
        self.read_copy();
        true
    }

    /// Reads the next blocks to copy from the active member.
    fn read_copy(&mut self) {
        let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) else {
            return;
        };
        let Some(mut copying) = rebuild.copying.take() else { return };
        let forgets = fault::planted(PlantedBug::ForgetInRebuild);
        let end = self.map.segments[copying.segment as usize].completed;
        if copying.at >= end || forgets && copying.segment % 4 == 1 {
            rebuild.pending.remove(&copying.segment);
            self.end_copying(copying);
            self.settle_again();
            return;
        }
        let most = if copying.at < copying.careful_until { 1 } else { COPY_BLOCKS };
        copying.blocks = most.min(end - copying.at);
        while (copying.pages.len() as u32) < copying.blocks {
            let Some(page) = self.pages.take(PageUse::Survivor) else { break };
            copying.pages.push(page);
        }
        copying.blocks = copying.blocks.min(copying.pages.len() as u32);
        if copying.blocks == 0 {
            rebuild.next_at = self.now + RETRY_NS;
            rebuild.copying = Some(copying);
            return;
        }
        copying.busy = true;
        let spans = copying.spans();
        let (segment, at, from) = (copying.segment, copying.at, 1 - rebuild.member);
        rebuild.next_at = self.now + copying.bytes() * 1_000_000_000 / COPY_BYTES_PER_S;
        rebuild.copying = Some(copying);
        let offset = self.members.half_offset(&self.map, segment, from, at);
        self.read(Device::Cache, offset, &spans, true, OpKind::CopyRead);
    }

    pub(crate) fn copy_read(&mut self, ok: bool, crcs: &[u32]) {
        let Some(mut copying) = self.take_copy() else { return };
        copying.tries += 1;
        let first = self.map.slot(copying.segment, copying.at);
        let wrong = |slot: u32, crc: Option<&u32>| {
            self.map.state(slot) != BlockState::Void && crc != Some(&self.map.crc(slot))
        };
        let damaged = !ok || (0..copying.blocks).any(|at| wrong(first + at, crcs.get(at as usize)));
        if !damaged {
            self.write_copy(copying);
            return;
        }
        if copying.blocks > 1 {
            (copying.careful_until, copying.tries) = (copying.at + copying.blocks, 0);
        } else if copying.tries >= CACHE_READ_TRIES {
            // The new member does not get unreadable blocks.
            let counts = self.map.state(first) != BlockState::Void;
            if counts && !self.map.is_lost(first) {
                self.give_up(first);
            }
            (copying.at, copying.tries) = (copying.at + 1, 0);
        }
        self.put_copy(copying);
    }

    /// The copy whose operation has ended, if the rebuild continues.
    fn take_copy(&mut self) -> Option<Copying> {
        let rebuild = self.members.mirror_mut()?.rebuild_mut()?;
        let copying = rebuild.copying.as_mut()?;
        copying.busy = false;
        if rebuild.abandoned {
            self.drop_abandoned();
            return None;
        }
        rebuild.copying.take()
    }

    fn put_copy(&mut self, copying: Copying) {
        if let Some(rebuild) = self.members.mirror_mut().and_then(Mirror::rebuild_mut) {
            rebuild.copying = Some(copying);
        }
        self.settle_again();
    }

    fn write_copy(&mut self, mut copying: Copying) {
        copying.busy = true;
        let Some(rebuild) = self.members.mirror().and_then(Mirror::rebuild) else {
            return;
        };
        let member = rebuild.member;
        let offset = self.members.half_offset(&self.map, copying.segment, member, copying.at);
        let len = copying.bytes() as u32;
        let op = self.ops.begin(OpKind::CopyWrite, self.now);
        let state = self.ops.get_mut(op);
        state.spans.extend_from_slice(&copying.spans());
        state.member = member;
        self.count_cache_write(op, offset, len);
        self.actions.push_io(IoAction::Write { op: OpId(op), device: Device::Cache, offset, len });
        self.put_copy(copying);
    }

    pub(crate) fn copy_written(&mut self, member: u8, ok: bool) {
        self.flushes.cache.note_write();
        let Some(mut copying) = self.take_copy() else { return };
        copying.at += copying.blocks;
        copying.tries = 0;
        self.put_copy(copying);
        if !ok {
            self.member_failed(member);
        }
    }

    /// A checkpoint is in effect: if it lists the new member, both are active from here on.
    pub(crate) fn rebuild_checkpointed(&mut self) {
        let generation = self.superblock.checkpoint_generation;
        let Some(mirror) = self.members.mirror_mut() else { return };
        if mirror.note_checkpoint(generation) {
            self.coverage.add(CoverageMark::RebuildEnded);
            self.actions.notice(Notice::MirrorWhole);
        }
    }

    /// Rebuilds the member that is out on an empty device. The owner has put the device in place of
    /// the old one, and has drawn a new `tag`. [`Notice::MirrorWhole`] or [`Notice::RebuildFailed`]
    /// follows.
    ///
    /// # Errors
    /// No member is out; the tag is not new; or ([`LifecycleError::Busy`]: try again soon) another
    /// rebuild, or an operation of the old device, is in flight.
    pub(crate) fn begin_rebuild(&mut self, tag: u64) -> Result<(), LifecycleError> {
        if !self.status.is_ready() || self.stopping {
            return Err(LifecycleError::NotServing);
        }
        if self.failure.is_fenced() {
            return Err(LifecycleError::Fenced);
        }
        let Some(mirror) = self.members.mirror_mut() else { return Err(LifecycleError::NotMirrored) };
        let Some(member) = mirror.out() else { return Err(LifecycleError::NotMirrored) };
        if tag == 0 || self.superblock.mirror.is_some_and(|mark| mark.tags.contains(&tag)) {
            return Err(LifecycleError::TagInUse);
        }
        // Results of the old device's operations must not be attributed to the new one. Reads that
        // wait for a retry are not in flight.
        let old = |op: &&Op| op.member == member && op.kind.is_of_cache();
        let waiting = self.read_retry.operations().map(|op| self.ops.get(op)).filter(old).count();
        if mirror.rebuild().is_some() || self.ops.iter().filter(old).count() > waiting {
            return Err(LifecycleError::Busy);
        }
        let columns = mirror.columns();
        let is_pair = |first: &u32| self.map.segments[(first + columns) as usize].phase == SegmentPhase::Twin;
        let pending: BTreeSet<u32> = (0..columns).filter(is_pair).collect();
        let all = pending.len() as u32;
        mirror.begin_rebuild(Rebuild {
            member,
            tag,
            pending,
            all,
            copying: None,
            next_at: self.now,
            abandoned: false,
            ticket: None,
            wanted: false,
        });
        Ok(())
    }
}
