//! When to compare the mounts of a pool with the mount table.

use forebay_io::fuse::{MountTable, MountWatch};
use std::time::{Duration, Instant};

/// Interval of checks of the mount table.
const LOOK: Duration = Duration::from_secs(1);

/// See the top of the file.
#[derive(Debug, Default)]
pub(super) struct MountLook {
    watch: Option<MountWatch>,
    next: Option<Instant>,
}

impl MountLook {
    /// The next check reads the table even if it has not changed, because there are other mounts.
    pub(super) fn renew(&mut self) {
        *self = Self::default();
    }

    /// Returns the table if a check is due and it has changed, and how long the loop may sleep
    /// until the next check.
    pub(super) fn look(&mut self) -> (Option<MountTable>, Option<Duration>) {
        let now = Instant::now();
        if let Some(left) = self.next.and_then(|due| due.checked_duration_since(now)) {
            return (None, Some(left.max(Duration::from_millis(1))));
        }
        self.next = Some(now + LOOK);
        if self.watch.is_none() {
            // Without /proc the FUSE connection is the only source.
            self.watch = MountWatch::begin().ok();
        }
        let table = self.watch.as_mut().and_then(MountWatch::changed);
        // An unchanged table wakes the loop no earlier than its other events.
        let left = table.as_ref().map(|_| LOOK);
        (table, left)
    }
}
