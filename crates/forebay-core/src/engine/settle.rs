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
        self.dispatch(); // what came of the owner's last call
        if self.cx.status == Status::Opening || matches!(self.cx.status, Status::Failed(_)) {
            // Only the checkpoint that ends recovery goes on in this state.
            self.step_checkpoint();
            return;
        }
        self.lifecycle_wakes(); // it only notes that the time of a job has come
        self.cx.step_read_retry(); // reads whose pause has ended begin before new ones
        self.resume_merges(); // pages that were given back go to merges before writers take more
        self.step_throttle(); // writers pass before their batches are made
        self.collect_emptied(); // segments that requests have emptied are free for the steps below
        if self.cx.runs_without_cache() {
            self.settle_without_cache();
            return;
        }
        self.step_ordered(); // a flush epoch begins before destage picks from it
        self.step_indexed(); // what looks at many blocks at once, if the index is ready
        self.dispatch(); // locks that moves have given back are granted before volumes change
        self.collect_emptied(); // segments that destage, shares and reclaim have emptied
        self.step_lifecycle(); // volumes change when nothing above has begun anything new for them
        self.step_pool(); // a shrink moves blocks before batches are made
        self.collect_emptied(); // segments that these two have emptied
        self.step_intents(); // stores that were written past the cache and are quiet are flushed
        if self.cx.mirror.is_some() {
            self.cx.step_mirror(); // repairs and rebuilds take what pages are left
            self.dispatch();
        }
        self.step_logs(); // batches of all that was queued above
        self.dispatch(); // a snapshot is what the log says: nobody has yet to hear of it
        self.step_checkpoint(); // needs streams that have nothing in flight
        self.step_shutdown(); // last: everything has had its chance
    }

    /// The rest of the steps of an engine that goes on without its cache: there is no log, no order
    /// and no reclaim.
    #[cold]
    fn settle_without_cache(&mut self) {
        self.step_rescue(); // destage is the rescue, a scrub looks at what is left
        self.cx.step_failure(); // waits of the rescue end, records are asked for
        self.dispatch();
        self.collect_emptied();
        self.step_lifecycle();
        self.step_pool();
        self.step_intents();
        self.step_checkpoint(); // ends one that was under way
        self.step_shutdown();
    }

    /// Until the index is ready, what looks at many blocks at once has to wait (I46).
    fn step_indexed(&mut self) {
        if !self.cx.index_settles() {
            return;
        }
        self.destager.step(&mut self.cx);
        self.step_shares();
        let asked = self.cx.reclaim_wants_destage;
        self.step_reclaim();
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
        self.step_sweeps();
    }

    /// What changes with a checkpoint changes at the instant of its snapshot.
    #[inline]
    pub(super) fn step_checkpoint(&mut self) {
        if self.checkpoint.is_ready_for_snapshot(&mut self.cx) {
            self.apply_pool_job();
            self.cx.apply_rebuild();
            self.checkpoint.take_snapshot(&mut self.cx);
            self.dispatch();
        }
    }

    fn step_logs(&mut self) {
        self.cx.log.writers_wait_for_marks = self.throttle.waiting_len() > 0 && self.writers_wait_for_marks();
        for stream in [StreamKind::Survivor, StreamKind::Write, StreamKind::Fill] {
            self.cx.step_append(stream);
        }
    }
}
