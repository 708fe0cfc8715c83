//! Settling: after the owner's calls, everything that can be put together is.
//!
//! Each step is one part's look at what there is to do. What parts tell each other is handed on
//! before a step that depends on it. A late step that changes what an early one decides by asks for
//! another round (`Context::settle_again`), and so does what is handed on.

use crate::context::Status;
use crate::engine::Engine;
use forebay_format::StreamKind;

impl Engine {
    pub(super) fn settle(&mut self) {
        // What came of the owner's last call.
        self.dispatch();
        if matches!(self.cx.status, Status::Opening | Status::Failed(_)) {
            // Only the checkpoint that ends recovery goes on in this state.
            self.step_checkpoint();
            return;
        }
        // It only notes that the time of a job has come.
        self.cx.wake_at = None;
        // Reads whose pause has ended begin before new ones.
        self.cx.step_read_retry();
        // Pages that were given back go to merges before writers take more.
        self.requests.resume_merges(&mut self.cx);
        // Writers pass before their batches are made.
        self.requests.step_throttle(&mut self.cx);
        // Nobody who waits for a store that fails keeps a stop or a detach from its end.
        self.requests.refuse_in_vain(&mut self.cx, &self.lifecycle);
        // Segments that requests have emptied are free for the steps below.
        self.reclaim.collect_emptied(&mut self.cx);
        if self.cx.runs_without_cache() {
            self.settle_without_cache();
            return;
        }
        // A flush epoch begins before destage picks from it.
        self.cx.step_ordered(|volume| self.relocations.any_of(volume));
        // What looks at many blocks at once, if the index is ready.
        self.step_indexed();
        // Locks that moves have given back are granted before volumes change.
        self.dispatch();
        // Segments that destage, shares and reclaim have emptied.
        self.reclaim.collect_emptied(&mut self.cx);
        // Volumes change when nothing above has begun anything new for them.
        self.step_lifecycle();
        // A shrink moves blocks before batches are made.
        self.step_pool();
        // Moves that the steps above have begun: adjacent blocks are read at once.
        self.relocations.read_gathered(&mut self.cx);
        // Segments that these have emptied.
        self.reclaim.collect_emptied(&mut self.cx);
        // Stores that were written past the cache and are quiet are flushed.
        self.cx.step_intents();
        if self.cx.free.discard_due {
            self.step_seldom();
        }
        // Batches of all that was queued above.
        self.step_logs();
        // A snapshot is what the log says: nobody has yet to hear of it.
        self.dispatch();
        // Needs streams that have nothing in flight.
        self.step_checkpoint();
        // Last: everything has had its chance.
        self.step_shutdown();
    }

    /// What most caches have nothing of, behind one look: a mirrored cache always comes here.
    #[cold]
    fn step_seldom(&mut self) {
        if self.cx.mirror.is_some() {
            // Repairs and rebuilds take what pages are left.
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

    /// The rest of the steps of an engine that goes on without its cache: there is no log, no order
    /// and no reclaim.
    #[cold]
    fn settle_without_cache(&mut self) {
        // Destage is the rescue, a scrub looks at what is left.
        self.step_rescue();
        // Waits of the rescue end, records are asked for.
        self.cx.step_failure();
        self.dispatch();
        self.reclaim.collect_emptied(&mut self.cx);
        self.step_lifecycle();
        self.step_pool();
        self.cx.step_intents();
        // Ends one that was under way.
        self.step_checkpoint();
        self.step_shutdown();
    }

    /// Until the index is ready, what looks at many blocks at once has to wait (I46).
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

    /// What changes with a checkpoint changes at the instant of its snapshot.
    #[inline]
    pub(super) fn step_checkpoint(&mut self) {
        if self.checkpoint.is_ready_for_snapshot(&mut self.cx) {
            self.pool_resize.apply(&mut self.cx, &mut self.reclaim);
            self.cx.apply_rebuild();
            self.checkpoint.take_snapshot(&mut self.cx);
            self.dispatch();
        }
    }

    fn step_logs(&mut self) {
        self.cx.log.writers_wait_for_marks = self.requests.wait_for_marks(self.cx.now);
        for stream in [StreamKind::Survivor, StreamKind::Write, StreamKind::Fill] {
            self.cx.step_append(stream);
        }
    }
}
