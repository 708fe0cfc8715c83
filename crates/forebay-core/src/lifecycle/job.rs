//! Shared parts of the lifecycle jobs: the end of a step, waits, and sweeps.

use crate::api::{Device, Notice};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::locks::{BlockRange, LockOwner, whole_volume};
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::BLOCK;
use crate::map::segment::BlockState;
use crate::map::sweep_slots;
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// Result of a step of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// The job waits for an event.
    Waits,
    /// The job can continue at once.
    Goes,
    /// The job has ended.
    Done,
}

/// Locks that a job requests: first the blocks, then the backing store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Locks {
    #[default]
    None,
    /// Waits for the block lock.
    Waiting,
    /// Holds the block lock and waits for the backing lock.
    Half,
    /// Holds both.
    Held,
}

/// Waits of jobs: a lock of each kind, flushes of backing stores, samples of them.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    locks: Vec<(VolumeId, BlockRange, Locks)>,
    /// Flushes of backing stores that have ended for a job, and whether they succeeded.
    flushed: Vec<(VolumeId, bool)>,
    /// Pages into which samples of backing stores are read.
    pages: Vec<(VolumeId, Page)>,
}

impl Waits {
    /// Requests both locks of a range, one after the other. True when the job holds them.
    pub(crate) fn lock(&mut self, cx: &mut Context, id: VolumeId, range: BlockRange) -> bool {
        let at = self.locks.iter().position(|(volume, ..)| *volume == id);
        let at = at.unwrap_or_else(|| {
            self.locks.push((id, range, Locks::None));
            self.locks.len() - 1
        });
        if self.locks[at].2 == Locks::None {
            let taken = cx.locks.acquire(range, lifecycle_owner(id));
            self.locks[at].2 = if taken { Locks::Half } else { Locks::Waiting };
            if taken {
                self.lock_backing(cx, at);
            }
        }
        self.locks[at].2 == Locks::Held
    }

    fn lock_backing(&mut self, cx: &mut Context, at: usize) {
        let (id, range, _) = self.locks[at];
        let taken = cx.backing_locks.acquire(range, lifecycle_owner(id));
        self.locks[at].2 = if taken { Locks::Held } else { Locks::Half };
    }

    /// A lock that a job waited for was granted; false if the owner is no job.
    pub(crate) fn lock_granted(&mut self, cx: &mut Context, owner: LockOwner) -> bool {
        let Some(at) = self.locks.iter().position(|(id, ..)| lifecycle_owner(*id) == owner) else {
            return false;
        };
        match self.locks[at].2 {
            Locks::Waiting => self.lock_backing(cx, at),
            _ => self.locks[at].2 = Locks::Held,
        }
        true
    }

    /// Releases the locks of a job, and withdraws its request for one that it waits for.
    pub(crate) fn unlock(&mut self, cx: &mut Context, id: VolumeId) {
        let Some(at) = self.locks.iter().position(|(volume, ..)| *volume == id) else { return };
        let (_, range, locks) = self.locks.swap_remove(at);
        let mut granted = Vec::new();
        match locks {
            Locks::None => return,
            Locks::Waiting => cx.locks.forget(range, lifecycle_owner(id), &mut granted),
            Locks::Half => {
                let mut backing = Vec::new();
                cx.backing_locks.forget(range, lifecycle_owner(id), &mut backing);
                cx.events.extend(backing.into_iter().map(Event::BackingLock));
                cx.release_blocks(range);
            }
            Locks::Held => {
                cx.release_backing(range);
                cx.release_blocks(range);
            }
        }
        cx.events.extend(granted.into_iter().map(Event::BlockLock));
    }

    pub(crate) fn flush(&mut self, cx: &mut Context, id: VolumeId) {
        self.flushed.retain(|(volume, _)| *volume != id);
        cx.flush(crate::api::Device::Backing(id), Waiter::Lifecycle(id));
    }

    pub(crate) fn flush_ended(&mut self, id: VolumeId, ok: bool) {
        self.flushed.push((id, ok));
    }

    /// Result of the flush that a job requested, once.
    pub(crate) fn take_flush(&mut self, id: VolumeId) -> Option<bool> {
        let at = self.flushed.iter().position(|(volume, _)| *volume == id)?;
        Some(self.flushed.swap_remove(at).1)
    }

    /// Reads a sample of a backing store that is being attached; false if there is no page for it.
    pub(crate) fn read_sample(&mut self, cx: &mut Context, id: VolumeId, block: u64) -> bool {
        let Some(page) = cx.pages.take(PageUse::Destage) else { return false };
        let kind = OpKind::Sample { volume: id, index: 0 };
        cx.read(Device::Backing(id), block * BLOCK, &[page.span()], true, kind);
        self.pages.push((id, page));
        true
    }

    /// A sample was read, or the read failed.
    pub(crate) fn sample_read(&mut self, cx: &mut Context, id: VolumeId) {
        if let Some(at) = self.pages.iter().position(|(volume, _)| *volume == id) {
            let (_, page) = self.pages.swap_remove(at);
            cx.pages.give(PageUse::Destage, page);
        }
    }
}

impl Context {
    /// Reports the failure of a job, which ends it.
    pub(crate) fn job_failed(&mut self, notice: Notice) -> Progress {
        self.coverage.add(CoverageMark::ChangeFailed);
        self.actions.notice(notice);
        Progress::Done
    }

    /// True if the volume has no request in flight, and none of its blocks is in a fill.
    pub(crate) fn is_quiet(&self, id: VolumeId) -> bool {
        self.reqs.iter().all(|req| req.volume != id) && !self.fills.any_in(whole_volume(id))
    }
}

/// A walk over all slots that drops blocks in bounded pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) first_block: u64,
    /// Drops only clean blocks.
    pub(crate) clean_only: bool,
    /// Dropped blocks: clean ones, and others.
    pub(crate) dropped: u64,
    pub(crate) discarded: u64,
    segment: u32,
    index: u32,
}

impl Sweep {
    pub(crate) fn new(first_block: u64, clean_only: bool) -> Self {
        Self { first_block, clean_only, dropped: 0, discarded: 0, segment: 0, index: 0 }
    }

    /// Continues a sweep by a bounded number of slots; true at its end. The range is locked.
    pub(crate) fn step(&mut self, cx: &mut Context, id: VolumeId) -> bool {
        let blocks = cx.map.geometry.segment_blocks;
        let mut left = sweep_slots(cx.map.geometry.slot_count());
        while (self.segment as usize) < cx.map.segments.len() {
            let segment = &cx.map.segments[self.segment as usize];
            if segment.live == 0 || self.index >= blocks {
                (self.segment, self.index) = (self.segment + 1, 0);
                left = left.saturating_sub(1);
            } else {
                self.visit(cx, id);
                self.index += 1;
                left -= 1;
            }
            if left == 0 {
                cx.wake_in(1);
                return false;
            }
        }
        true
    }

    fn visit(&mut self, cx: &mut Context, id: VolumeId) {
        let state = cx.map.segments[self.segment as usize].state(self.index);
        if state == BlockState::Void || self.clean_only && state != BlockState::Clean {
            return;
        }
        let key = cx.map.segments[self.segment as usize].key(self.index);
        if key.volume() == id && key.block() >= self.first_block {
            cx.map.remove(key);
            self.dropped += u64::from(state == BlockState::Clean);
            self.discarded += u64::from(state != BlockState::Clean);
        }
    }
}

/// Jobs use lock owners that no request and no direct write has.
fn lifecycle_owner(id: VolumeId) -> LockOwner {
    LockOwner(u32::MAX - u32::from(id.0))
}
