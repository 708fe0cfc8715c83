//! A scrub of the pool's cache: start, progress, cancellation; at most one at a time.

use super::handle::PromiseSender;
use super::volumes::refused;
use super::{Lost, Pool, PoolEvent, Promise};
use forebay_admin::AdminError;
use forebay_core::ScrubReport;

/// Result of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// The engine's report.
    pub report: ScrubReport,
    /// The scrub is complete.
    pub complete: bool,
    /// Lost data at its end, including earlier losses: a scrub skips known ones.
    pub lost: Lost,
}

impl Scrubbed {
    /// Returns true if some data in the cache is damaged, unreadable or lost.
    pub fn found_harm(&self) -> bool {
        self.report.damaged_blocks > 0 || self.report.unreadable_blocks > 0 || self.lost.bytes > 0
    }
}

/// The caller that waits for the result.
pub(super) type Done = PromiseSender<Result<Scrubbed, AdminError>>;

impl Pool {
    /// Begins to compare all cached blocks with their checksums; the promise resolves at the end.
    pub fn scrub(&mut self, bytes_per_s: u64) -> Promise<Result<Scrubbed, AdminError>> {
        let (done, promise) = Promise::pair();
        let now = self.io.now();
        match self.engine.begin_scrub(now, bytes_per_s) {
            Ok(()) => self.scrubbing = Some(done),
            Err(error) => {
                let _ = done.try_send(Err(refused("scrub pool", &self.name, &error)));
            }
        }
        promise
    }

    /// Progress of the scrub.
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.engine.scrub_progress()
    }

    /// Ends the scrub early.
    pub fn cancel_scrub(&mut self) {
        let now = self.io.now();
        self.engine.cancel_scrub(now);
    }

    /// The scrub has ended.
    pub(super) fn scrub_ended(&mut self, report: ScrubReport, complete: bool) {
        let scrubbed = Scrubbed { report, complete, lost: self.lost_in_all() };
        self.emit(PoolEvent::Scrubbed(scrubbed));
        if let Some(done) = self.scrubbing.take() {
            let _ = done.try_send(Ok(scrubbed));
        }
    }
}
