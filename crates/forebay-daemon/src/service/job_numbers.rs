//! Job numbers across restarts: a script that follows `j17` must not find another job with that
//! number after a crash.
//!
//! `STATE_DIR/jobs.json` has a number that no job has had yet. A start begins with it and notes a
//! later one, [`AHEAD`] of it; the job thread notes the next one long before that is reached. An
//! orderly stop notes the current number, so numbers are skipped only after a crash. If the state
//! directory takes no writes, a number may be used twice.

use super::{Service, lock};
use forebay_admin::jobs::JobId;
use forebay_pool::{MayWait, durable};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Numbers reserved at once.
const AHEAD: u64 = 100;
/// Layout of the file.
const VERSION: u32 = 1;
/// Time limit for the state directory.
const WITHIN: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    next: u64,
}

/// The reserved numbers.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// No later start uses a smaller number; 0: nothing could be noted.
    until: u64,
    /// The next number at the last attempt.
    tried_at: Option<u64>,
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs.json")
}

/// Returns the first number of a start. May wait for the disk.
pub(super) fn first(state_dir: &Path) -> JobId {
    let kept =
        std::fs::read(file(state_dir)).ok().and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
    JobId(kept.filter(|kept| kept.version == VERSION).map_or(1, |kept| kept.next.max(1)))
}

fn keep(may_wait: &MayWait, state_dir: &Path, next: u64) -> io::Result<()> {
    durable::replace_json(may_wait, state_dir, &file(state_dir), &Kept { version: VERSION, next })
}

impl Service {
    /// Reserves numbers if few reserved ones are left. Called by the job thread, which waits a
    /// bounded time for the state directory.
    pub(super) fn note_job_numbers(&self) {
        let next = self.jobs.next_id().0;
        let mut noted = lock(&self.job_numbers);
        if next + AHEAD / 2 <= noted.until || noted.tried_at == Some(next) {
            return;
        }
        noted.tried_at = Some(next);
        if self.keep_number(next + AHEAD) {
            noted.until = next + AHEAD;
        }
    }

    /// Notes the next number at an orderly stop: the next start continues with it. If that fails,
    /// some numbers are skipped.
    pub(super) fn settle_job_numbers(&self) {
        self.keep_number(self.jobs.next_id().0);
    }

    fn keep_number(&self, next: u64) -> bool {
        if self.catalog.path().is_none() {
            return false; // `forebay run` begins with 1
        }
        let state_dir = self.catalog.state_dir();
        let kept =
            self.places.within(&file(&state_dir), WITHIN, move |may_wait| keep(may_wait, &state_dir, next));
        matches!(kept, Ok(Ok(())))
    }
}
