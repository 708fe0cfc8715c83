//! Job numbers across restarts: a script that follows `j17` must not find another job with that
//! number after a crash.
//!
//! `STATE_DIR/jobs.json` has a number that no job has had yet. A start begins with it and notes a
//! later one, [`AHEAD`] of it; the job thread notes the next one long before that is reached. An
//! orderly stop notes the current number, so numbers are skipped only after a crash. If the state
//! directory takes no writes, a number may be used twice.

use super::locking::lock;
use forebay_admin::jobs::JobId;
use forebay_pool::time_limit::PathLimiter;
use forebay_pool::{MayWait, durable};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
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
#[derive(Debug)]
pub(super) struct JobNumbers {
    /// `None` for `forebay run`, which begins with 1.
    state_dir: Option<PathBuf>,
    places: PathLimiter,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// No later start uses a smaller number; 0: nothing could be noted.
    until: u64,
    /// The next number at the last attempt.
    tried_at: Option<u64>,
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs.json")
}

fn keep(may_wait: &MayWait, state_dir: &Path, next: u64) -> io::Result<()> {
    durable::replace_json(may_wait, state_dir, &file(state_dir), &Kept { version: VERSION, next })
}

impl JobNumbers {
    pub(super) fn new(state_dir: Option<PathBuf>, places: PathLimiter) -> Self {
        Self { state_dir, places, noted: Mutex::default() }
    }

    /// Returns the first number of a start. Waits for the disk.
    pub(super) fn first(&self) -> JobId {
        let text = self.state_dir.as_ref().and_then(|state_dir| std::fs::read(file(state_dir)).ok());
        let kept = text.and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
        JobId(kept.filter(|kept| kept.version == VERSION).map_or(1, |kept| kept.next.max(1)))
    }

    /// Reserves numbers if few reserved ones are left. Called by the job thread, which waits a
    /// bounded time for the state directory.
    pub(super) fn note(&self, next: JobId) {
        let mut noted = lock(&self.noted);
        if next.0 + AHEAD / 2 <= noted.until || noted.tried_at == Some(next.0) {
            return;
        }
        noted.tried_at = Some(next.0);
        if self.keep(next.0 + AHEAD) {
            noted.until = next.0 + AHEAD;
        }
    }

    /// Notes the next number at an orderly stop: the next start continues with it. If that fails,
    /// some numbers are skipped.
    pub(super) fn settle(&self, next: JobId) {
        self.keep(next.0);
    }

    fn keep(&self, next: u64) -> bool {
        let Some(state_dir) = self.state_dir.clone() else { return false };
        let kept =
            self.places.within(&file(&state_dir), WITHIN, move |may_wait| keep(may_wait, &state_dir, next));
        matches!(kept, Ok(Ok(())))
    }
}
