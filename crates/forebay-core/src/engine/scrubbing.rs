//! The owner's calls for a scrub.

use crate::api::Nanos;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::stats::ScrubReport;
use crate::engine::Engine;

impl Engine {
    /// Begins to compare all cached blocks with their checksums, reading at most `bytes_per_s`.
    /// [`Notice::ScrubEnded`](crate::Notice::ScrubEnded) follows.
    ///
    /// # Errors
    /// A scrub is running, or the engine is not serving.
    pub fn begin_scrub(&mut self, now: Nanos, bytes_per_s: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.scrub.begin(&self.cx, bytes_per_s)
    }

    /// Compares all dirty blocks with their checksums, reading at most `bytes_per_s`: finds blocks
    /// lost before this start again without waiting for a client to read them. Raises no notice at
    /// the end. A scrub that begins replaces this check; if one is running, the call does nothing.
    pub fn check_dirty(&mut self, now: Nanos, bytes_per_s: u64) {
        self.begin(now);
        self.scrub.check_dirty(&self.cx, bytes_per_s);
    }

    /// Ends a scrub early; [`Notice::ScrubEnded`](crate::Notice::ScrubEnded) follows. Does nothing
    /// if there is none.
    pub fn cancel_scrub(&mut self, now: Nanos) {
        self.begin(now);
        self.scrub.cancel();
    }

    /// Progress of the running scrub.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.scrub.progress()
    }

    /// Byte offsets of both copies of each block that both members have, and its checksum: for
    /// oracles. Slow.
    pub fn pair_copies(&self) -> impl Iterator<Item = ([u64; 2], u32)> + '_ {
        self.scrub.pair_copies(&self.cx)
    }
}
