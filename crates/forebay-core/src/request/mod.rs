//! Life of a request: it is admitted or throttled, then read, written through the log, merged, or
//! written directly to the backing store.

mod admission;
mod direct;
mod merge;
mod read;
mod sequential;
pub(crate) mod state;
mod throttle;
mod write;

use crate::api::{Nanos, Request, RequestKind};
use crate::context::Context;
use crate::context::requests::Req;
use crate::context::sectors::BLOCK;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::Lifecycle;
use crate::request::state::Requests;
use alloc::string::String;
use forebay_format::VolumeId;

impl Requests {
    /// Takes a valid request. Its reply comes as an action, possibly at once.
    #[inline(always)]
    pub(crate) fn take(&mut self, cx: &mut Context, request: Request<'_>) {
        let req = self.take_in(cx, request);
        cx.model_use(req);
        match cx.reqs.get(req).kind {
            RequestKind::Read | RequestKind::Prefetch => self.start_read(cx, req),
            RequestKind::Flush => cx.start_flush(req),
            RequestKind::Write { .. } | RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => {
                if self.throttle.admits(cx, req) {
                    self.lock_mutation(cx, req);
                }
            }
        }
    }

    fn take_in(&mut self, cx: &mut Context, request: Request<'_>) -> u32 {
        let mut crcs = cx.spare_crcs.pop().unwrap_or_default();
        crcs.extend_from_slice(request.block_crcs);
        let last = request.offset + request.len.max(1) - 1;
        let now = cx.now;
        let treatment = self.admission.treat(cx, &request);
        let volume = cx.volume_mut(request.volume);
        volume.last_active = now;
        let losses_reported = volume.losses_reported;
        let (mut write_back, mut copies) = volume.writes(treatment);
        if cx.failure.runs_without_cache() {
            (write_back, copies) = (false, false);
        }
        cx.stats.count_request(&request);
        cx.counters.request(&request);
        cx.reqs.insert(Req {
            id: request.id,
            volume: request.volume,
            kind: request.kind,
            offset: request.offset,
            len: request.len,
            first_block: request.offset / BLOCK,
            last_block: last / BLOCK,
            buf: request.buf.unwrap_or(crate::api::SCRATCH),
            crcs,
            pending: 0,
            failed: false,
            refused: false,
            cache_failed: false,
            redone: false,
            locked: false,
            write_back,
            copies,
            treatment,
            sequential: treatment != request.treatment,
            reserved: 0,
            missed: false,
            has_written_past: false,
            reads_itself: false,
            losses_reported,
            started_at: cx.now,
        })
    }

    /// Admits writers that have waited long enough.
    pub(crate) fn step_throttle(&mut self, cx: &mut Context) {
        let mut turns = self.throttle.turns();
        while let Some(req) = self.throttle.next(cx, &mut turns) {
            self.lock_mutation(cx, req);
        }
    }

    /// Refuses writes that wait for a failing destage, below a limit or for their turn in an order,
    /// if their volume is being stopped or detached (I85).
    pub(crate) fn refuse_in_vain(&mut self, cx: &mut Context, lifecycle: &Lifecycle) {
        // Checked at every step: the rarest condition comes first.
        if !cx.stopping && !lifecycle.is_changing() {
            return;
        }
        if !cx.volumes.is_destage_failing() || fault::planted(PlantedBug::StopWaitsForStore) {
            return;
        }
        for id in cx.volumes.ids() {
            if cx.volumes.is_attached(id) && (cx.stopping || lifecycle.is_leaving(id)) {
                self.throttle.refuse_all(cx, id);
                for direct in cx.leave_order(id) {
                    self.refuse_direct(cx, direct);
                }
            }
        }
    }

    /// True if writes wait at a limit until clean marks are in the log.
    pub(crate) fn wait_for_marks(&self, now: Nanos) -> bool {
        self.throttle.waits_for_marks(now)
    }

    /// Time at which the first waiting write may pass, unless it waits for destage.
    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        self.throttle.deadline(now)
    }

    /// Destage made `blocks` durable; `saturated`: it could not have been faster since the last
    /// call.
    pub(crate) fn note_destaged(&mut self, now: Nanos, id: VolumeId, blocks: u64, saturated: bool) {
        self.throttle.note_destaged(now, id, blocks, saturated);
    }

    /// A volume was detached: admission forgets its streams.
    pub(crate) fn forget_volume(&mut self, id: VolumeId) {
        self.admission.forget_volume(id);
    }

    /// Bytes allocated for recent misses and streams.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.admission.bytes()
    }

    /// Summary of the requests in flight.
    pub(crate) fn describe(&self) -> String {
        alloc::format!(
            "{} merges ({} wait for pages), {} direct, {} throttled",
            self.merges.len(),
            self.merge_queue.len(),
            self.directs.len(),
            self.throttle.waiting_len(),
        )
    }
}
