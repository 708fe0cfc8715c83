//! Life of a write, zero or discard that goes through the log (write-back).
//!
//! 1. `throttle` admits it.
//! 2. It takes the block lock: nothing else changes these blocks until the request ends (I8).
//! 3. It cancels fills of these blocks that are in flight.
//! 4. Whole blocks go to the write stream's queue unchanged; partial ones are merged first
//!    (`merge`).
//! 5. `append` writes batches. When a batch and all earlier batches of the stream have completed,
//!    its blocks enter the map and the parts of the request end (I1).
//! 6. The lock is released; with FUA the devices are flushed; the client gets its reply.
//!
//! In the other modes step 4 is `direct`.

use crate::api::RequestKind;
use crate::context::Context;
use crate::context::locks::LockOwner;
use crate::context::pages::ZERO_PAGE;
use crate::context::sectors::BLOCK;
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::map::segment::Key;
use crate::map::{MASK_FULL, ZERO_BLOCK_CRC};
use crate::request::state::{MergeFor, Requests};
use forebay_format::StreamKind;

impl Context {
    /// Blocks `first..end` that a request covers entirely (the last block of the volume may be
    /// short), if any.
    fn whole_blocks(&self, req: u32) -> Option<(u64, u64)> {
        let request = self.reqs.get(req);
        let first = request.offset.div_ceil(BLOCK);
        let at_end = request.end() == self.volume(request.volume).size_bytes;
        let end = if at_end { request.end().div_ceil(BLOCK) } else { request.end() / BLOCK };
        (first < end).then_some((first, end))
    }

    /// True if the whole blocks of a zero or discard go to the backing store, because of its size
    /// or the mode.
    pub(crate) fn zeroes_go_direct(&self, req: u32) -> bool {
        let request = self.reqs.get(req);
        request.len >= self.volume(request.volume).settings.zero_direct_min_bytes || !request.write_back
    }
}

impl Requests {
    pub(super) fn lock_mutation(&mut self, cx: &mut Context, req: u32) {
        let range = cx.reqs.get(req).range();
        if cx.locks.acquire(range, LockOwner(req)) {
            self.mutation_locked(cx, req);
            return;
        }
        cx.stats.lock_waits += 1;
        cx.counters.of(range.first.volume()).lock_waits += 1;
    }

    /// The request holds the block lock: starts its parts.
    pub(crate) fn mutation_locked(&mut self, cx: &mut Context, req: u32) {
        let request = cx.reqs.get_mut(req);
        request.locked = true;
        if cx.failure.is_fenced() && cx.failure.hold_mutation(req, cx.reqs.get_mut(req)) {
            return;
        }
        let request = cx.reqs.get_mut(req);
        // One part for the start itself, so that parts that end at once do not end the request.
        request.pending = 1;
        let (range, kind, write_back) = (request.range(), request.kind, request.write_back);
        let (from, to) = (request.offset, request.end());
        cx.cancel_fills(range);
        match kind {
            RequestKind::Write { .. } if write_back => self.log_range(cx, req, from, to),
            RequestKind::Write { .. } => self.start_direct(cx, req, from, to, false),
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => {
                self.start_zeroes(cx, req, write_back);
            }
            RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch => {
                unreachable!("only requests that change data lock their blocks for that")
            }
        }
        self.mutation_part_done(cx, req, true);
    }

    /// Zeroes: whole blocks go through the log or directly to the backing store; the ragged ends
    /// become small writes of zeroes.
    fn start_zeroes(&mut self, cx: &mut Context, req: u32, write_back: bool) {
        let request = cx.reqs.get(req);
        let (from, to) = (request.offset, request.end());
        let whole = cx.whole_blocks(req);
        if write_back && !cx.zeroes_go_direct(req) {
            self.log_range(cx, req, from, to);
            return;
        }
        let Some((first, end)) = whole else {
            if write_back {
                self.log_range(cx, req, from, to)
            } else {
                self.start_direct(cx, req, from, to, false)
            }
            return;
        };
        for (from, to) in [(from, first * BLOCK), (end * BLOCK, to)] {
            if from < to && write_back {
                self.log_range(cx, req, from, to);
            } else if from < to {
                self.start_direct(cx, req, from, to, false);
            }
        }
        self.start_direct(cx, req, first * BLOCK, (end * BLOCK).min(to), true);
    }

    /// Sends bytes `from..to` of the volume through the log.
    fn log_range(&mut self, cx: &mut Context, req: u32, from: u64, to: u64) {
        for block in from / BLOCK..=(to - 1) / BLOCK {
            let start = from.max(block * BLOCK) - block * BLOCK;
            let end = to.min((block + 1) * BLOCK) - block * BLOCK;
            cx.reqs.get_mut(req).pending += 1;
            let request = cx.reqs.get_mut(req);
            if request.reserved > 0 {
                request.reserved -= 1;
            } else {
                let volume = request.volume;
                cx.blocks_enter(volume, 1);
            }
            if end - start < BLOCK {
                self.start_merge(cx, req, block, (start as u32, end as u32), MergeFor::Log);
                continue;
            }
            let request = cx.reqs.get(req);
            let (span, crc) = match request.kind {
                RequestKind::Write { .. } => {
                    (request.block_span(block, 1), request.crcs[(block - request.first_block) as usize])
                }
                _ => (ZERO_PAGE.span(), ZERO_BLOCK_CRC),
            };
            let item = Item {
                key: Key::new(request.volume, block),
                crc,
                kind: ItemKind::Data { mask: MASK_FULL, dirty: true },
                span: Some(span),
                done: ItemOwner::Request(req),
            };
            cx.enqueue(StreamKind::Write, item);
        }
    }

    /// A block that went through the log has ended.
    pub(crate) fn logged(&mut self, cx: &mut Context, req: u32, ok: bool) {
        cx.blocks_leave(cx.reqs.get(req).volume, 1);
        self.mutation_part_done(cx, req, ok);
    }

    /// A part of a write, zero or discard has ended.
    pub(crate) fn mutation_part_done(&mut self, cx: &mut Context, req: u32, ok: bool) {
        let request = cx.reqs.get_mut(req);
        request.failed |= !ok;
        request.pending -= 1;
        if request.pending > 0 {
            return;
        }
        let failed = request.failed;
        // Parts that succeeded through the log before the cache failed are at risk there: repeat
        // the whole request.
        if (failed && cx.failure.is_fenced() || cx.failure.runs_without_cache())
            && cx.failure.may_redo_mutation(cx.reqs.get_mut(req))
        {
            self.mutation_locked(cx, req);
            return;
        }
        let request = cx.reqs.get_mut(req);
        let fua = match request.kind {
            RequestKind::Write { fua }
            | RequestKind::Discard { fua }
            | RequestKind::WriteZeroes { fua, .. } => fua,
            RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch => false,
        };
        let range = request.range();
        request.locked = false;
        // The request may have been counted as one that goes through the log, before settings
        // changed while it waited for its lock.
        let (volume, unused) = (request.volume, core::mem::take(&mut request.reserved));
        cx.blocks_leave(volume, unused);
        cx.release_blocks(range);
        if fua && !failed {
            cx.flush_for(req);
        } else if !failed && cx.failure.runs_without_cache() {
            cx.failure.make_readable(req, cx.reqs.get_mut(req), &mut cx.actions);
        }
        if cx.reqs.get(req).pending == 0 {
            cx.reply(req);
        }
    }
}
