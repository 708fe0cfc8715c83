//! A scrub of the pool's cache: begun, watched, ended early; at most one at a time.

use super::handle::PromiseSender;
use super::volumes::refused;
use super::{Lost, Pool, PoolEvent, Promise};
use forebay_admin::AdminError;
use forebay_core::ScrubReport;

/// How a scrub has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// What it has done.
    pub report: ScrubReport,
    /// It went through everything.
    pub complete: bool,
    /// What is lost at its end, whoever found that: a scrub passes by what is known to be lost.
    pub lost: Lost,
}

impl Scrubbed {
    /// Something in the cache is not as it should be.
    pub fn found_harm(&self) -> bool {
        self.report.damaged_blocks > 0 || self.report.unreadable_blocks > 0 || self.lost.bytes > 0
    }
}

/// Whom to tell.
pub(super) type Done = PromiseSender<Result<Scrubbed, AdminError>>;

impl Pool {
    /// Begins to compare everything in the cache with its checksums; the promise is kept at its
    /// end.
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

    /// How far it is.
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.engine.scrub_progress()
    }

    /// Ends it early.
    pub fn cancel_scrub(&mut self) {
        let now = self.io.now();
        self.engine.cancel_scrub(now);
    }

    /// It has ended.
    pub(super) fn scrub_ended(&mut self, report: ScrubReport, complete: bool) {
        let scrubbed = Scrubbed { report, complete, lost: self.lost_in_all() };
        self.emit(PoolEvent::Scrubbed(scrubbed));
        if let Some(done) = self.scrubbing.take() {
            let _ = done.try_send(Ok(scrubbed));
        }
    }
}
