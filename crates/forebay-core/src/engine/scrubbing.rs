//! Calls of the owner for a scrub.

use crate::api::Nanos;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::stats::ScrubReport;
use crate::engine::Engine;

impl Engine {
    /// Begins to compare everything in the cache with its checksums, reading at most `bytes_per_s`.
    /// [`Notice::ScrubEnded`](crate::Notice::ScrubEnded) follows.
    ///
    /// # Errors
    /// A scrub is under way, or the engine does not serve.
    pub fn begin_scrub(&mut self, now: Nanos, bytes_per_s: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.scrub.begin(&self.cx, bytes_per_s)
    }

    /// Compares everything dirty with its checksums, reading at most `bytes_per_s`: what was lost
    /// before this start is found again, though nobody reads it. Nobody is told when it ends; a
    /// scrub that is begun takes its place, and nothing happens if one is under way.
    pub fn check_dirty(&mut self, now: Nanos, bytes_per_s: u64) {
        self.begin(now);
        self.scrub.check_dirty(&self.cx, bytes_per_s);
    }

    /// Ends a scrub early; [`Notice::ScrubEnded`](crate::Notice::ScrubEnded) follows. Nothing
    /// happens if there is none.
    pub fn cancel_scrub(&mut self, now: Nanos) {
        self.begin(now);
        self.scrub.cancel();
    }

    /// What the scrub under way has done so far.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.scrub.progress()
    }

    /// Where the copies of each block lie that both members have, with its checksum: for oracles.
    /// Slow.
    pub fn pair_copies(&self) -> impl Iterator<Item = ([u64; 2], u32)> + '_ {
        self.scrub.pair_copies(&self.cx)
    }
}
