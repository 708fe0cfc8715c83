//! Settling: does the work that can be combined, after the owner's calls.
//!
//! In each step one part does its pending work. Events between parts are dispatched before a step
//! that depends on them. A late step that changes the input of an earlier one requests another
//! round (`Context::settle_again`), and so does each event.

use crate::context::Status;
use crate::engine::Engine;
use forebay_format::StreamKind;

impl Engine {
    pub(super) fn settle(&mut self) {
        // Events of the owner's last call.
        self.dispatch();
        if matches!(self.cx.status, Status::Opening | Status::Failed(_)) {
            // Only the checkpoint that ends recovery proceeds in this state.
            self.step_checkpoint();
            return;
        }
        // A wake-up only marks that a job is due.
        self.cx.wake_at = None;
        // Reads whose pause has ended begin before new ones.
        self.cx.step_read_retry();
        // Freed pages go to merges before writers take more.
        self.requests.resume_merges(&mut self.cx);
        // Admits throttled writers before batches are made.
        self.requests.step_throttle(&mut self.cx);
        // Requests that wait for a failing store do not block a stop or a detach.
        self.requests.refuse_in_vain(&mut self.cx, &self.lifecycle);
        // Segments that requests have emptied become free for the steps below.
        self.reclaim.collect_emptied(&mut self.cx);
        if self.cx.failure.runs_without_cache() {
            self.settle_without_cache();
            return;
        }
        // A flush epoch begins before destage picks from it.
        self.cx.step_ordered(|volume| self.relocations.any_of(volume));
        // Steps that scan many blocks, if the index is ready.
        self.step_indexed();
        // Grants locks that relocations have released before volumes change.
        self.dispatch();
        // Segments that destage, shares and reclaim have emptied.
        self.reclaim.collect_emptied(&mut self.cx);
        // Volumes change once the steps above have begun nothing new for them.
        self.step_lifecycle();
        // A shrink moves blocks before batches are made.
        self.step_pool();
        // Relocations that the steps above have begun: adjacent blocks are read at once.
        self.relocations.read_gathered(&mut self.cx);
        // Segments that these steps have emptied.
        self.reclaim.collect_emptied(&mut self.cx);
        // Flushes stores that had bypass writes and have been quiet since.
        self.cx.step_intents();
        if self.cx.free.discard_due {
            self.step_seldom();
        }
        // Makes batches of all items queued above.
        self.step_logs();
        // A snapshot must equal the log: dispatch all events before it.
        self.dispatch();
        // A snapshot needs streams with nothing in flight.
        self.step_checkpoint();
        // Last, after all other work.
        self.step_shutdown();
    }

    /// Steps that most caches do not need, behind one check; a mirrored cache always takes them.
    #[cold]
    fn step_seldom(&mut self) {
        if self.cx.members.is_mirrored() {
            // Repairs and rebuilds take the remaining pages.
            self.cx.step_mirror();
            self.dispatch();
        }
        self.cx.step_discards(&self.checkpoint);
    }

    pub(super) fn step_lifecycle(&mut self) {
        self.lifecycle.step(&mut self.cx, &mut self.relocations, &self.checkpoint);
        self.dispatch();
    }

    pub(super) fn step_pool(&mut self) {
        self.pool_resize.step(&mut self.cx, &mut self.relocations, &self.checkpoint);
        self.dispatch();
    }

    /// The remaining steps of an engine that runs without its cache: there is no log, no order and
    /// no reclaim.
    #[cold]
    fn settle_without_cache(&mut self) {
        // Destage does the rescue; a scrub checks the remaining blocks.
        self.step_rescue();
        // Ends waits for the rescue, and requests records.
        self.cx.step_failure();
        self.dispatch();
        self.reclaim.collect_emptied(&mut self.cx);
        self.step_lifecycle();
        self.step_pool();
        self.cx.step_intents();
        // Ends a checkpoint that was in progress.
        self.step_checkpoint();
        self.step_shutdown();
    }

    /// Runs the steps that scan many blocks; they wait until the index is ready (I46).
    fn step_indexed(&mut self) {
        if !self.cx.index_settles() {
            return;
        }
        self.destager.step(&mut self.cx);
        self.shares.step(&mut self.cx);
        let asked = self.cx.reclaim_wants_destage;
        self.reclaim.step(&mut self.cx, &mut self.relocations, &self.checkpoint);
        if self.cx.reclaim_wants_destage && !asked {
            self.cx.settle_again();
        }
        if self.scrub.is_under_way() {
            self.scrub.step(&mut self.cx);
        }
    }

    fn step_rescue(&mut self) {
        if self.cx.index_settles() {
            self.destager.step(&mut self.cx);
            if self.scrub.is_under_way() {
                self.scrub.step(&mut self.cx);
            }
        }
        self.shares.step_sweeps(&mut self.cx);
    }

    /// Advances the checkpoint. Changes that belong to it apply at the instant of its snapshot.
    #[inline]
    pub(super) fn step_checkpoint(&mut self) {
        if self.checkpoint.is_ready_for_snapshot(&mut self.cx) {
            self.pool_resize.apply(&mut self.cx, &mut self.reclaim);
            self.cx.members.apply_rebuild(&mut self.cx.superblock);
            self.checkpoint.take_snapshot(&mut self.cx);
            self.dispatch();
        }
    }

    fn step_logs(&mut self) {
        let wait = self.requests.wait_for_marks(self.cx.now);
        self.cx.log.marks.set_writers_wait(wait);
        for stream in [StreamKind::Survivor, StreamKind::Write, StreamKind::Fill] {
            self.cx.step_append(stream);
        }
    }
}
