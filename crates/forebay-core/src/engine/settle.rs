//! Settling: after the owner's calls, everything that can be put together is.
//!
//! Each step is one part's look at what there is to do. What a step tells other parts is handed on before the next one. A late step that
//! changes what an early one decides by asks for another round ([`Context::settle_again`](crate::context::Context)).

use crate::context::Status;
use crate::engine::Engine;
use forebay_format::StreamKind;

/// One step.
type Step = fn(&mut Engine);

/// The steps of an engine that has its cache.
const STEPS: &[Step] = &[
    Engine::lifecycle_wakes, // first: it only notes that the time of a job has come
    Engine::step_read_retry, // reads whose pause has ended begin before new ones
    Engine::resume_merges,   // pages that were given back go to merges before writers take more
    Engine::step_throttle,   // writers pass before their batches are made
    Engine::collect_emptied, // segments that were emptied by requests are free for the steps below
    Engine::step_ordered,    // a flush epoch begins before destage picks from it
    Engine::step_indexed,    // what looks at many blocks at once, if the index is ready
    Engine::collect_emptied, // segments that were emptied by destage, shares and reclaim
    Engine::step_lifecycle,  // volumes change when nothing above has begun anything new for them
    Engine::step_pool,       // a shrink moves blocks before batches are made
    Engine::collect_emptied, // segments that these two emptied
    Engine::step_intents,    // stores that were written past the cache and are quiet are flushed
    Engine::step_mirror,     // repairs and rebuilds take what pages are left
    Engine::step_logs,       // batches, of all that was queued above
    Engine::step_checkpoint, // a snapshot needs streams that have nothing in flight
    Engine::step_shutdown,   // last: everything has had its chance
];

/// The steps of an engine that goes on without its cache: there is no log, no order and no reclaim.
const STEPS_WITHOUT_CACHE: &[Step] = &[
    Engine::lifecycle_wakes,
    Engine::step_read_retry,
    Engine::resume_merges,
    Engine::step_throttle,
    Engine::collect_emptied,
    Engine::step_rescue,  // destage is the rescue, scrub looks at what is left
    Engine::step_failure, // waits of the rescue end, records are asked for
    Engine::collect_emptied,
    Engine::step_lifecycle,
    Engine::step_pool,
    Engine::step_intents,
    Engine::step_checkpoint, // ends one that was under way
    Engine::step_shutdown,
];

impl Engine {
    pub(super) fn settle(&mut self) {
        if self.cx.status == Status::Opening || matches!(self.cx.status, Status::Failed(_)) {
            // Only the checkpoint that ends recovery goes on in this state.
            self.step_checkpoint();
            self.dispatch();
            return;
        }
        let steps = if self.runs_without_cache() { STEPS_WITHOUT_CACHE } else { STEPS };
        for step in steps {
            step(self);
            self.dispatch();
        }
    }

    /// Until the index is ready, what looks at many blocks at once has to wait (I46).
    fn step_indexed(&mut self) {
        if !self.cx.index_settles() {
            return;
        }
        self.step_destage();
        self.step_shares();
        let asked = self.reclaim_wants_destage;
        self.step_reclaim();
        if self.reclaim_wants_destage && !asked {
            self.cx.settle_again();
        }
        if self.scrub.is_some() {
            self.step_scrub();
        }
    }

    fn step_rescue(&mut self) {
        if self.cx.index_settles() {
            self.step_destage();
            if self.scrub.is_some() {
                self.step_scrub();
            }
        }
    }

    fn step_logs(&mut self) {
        self.cx.log.writers_wait_for_marks = self.writers_wait_for_marks();
        for stream in [StreamKind::Survivor, StreamKind::Write, StreamKind::Fill] {
            self.step_append(stream);
        }
    }
}
