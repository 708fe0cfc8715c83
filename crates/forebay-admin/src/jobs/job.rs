//! One job: its work, its target, its deadline and its state.

use super::progress::{Progress, floor_tenth};
use crate::events::rfc3339;
use crate::{DetachHow, JobInfo, MessageId};
use forebay_format::checkpoint::Mode;
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Number of a job. Text form: `j17`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{}", self.0)
    }
}

/// Why a text is not a [`JobId`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("\"{0}\" is not the id of a job; ids look like j17, and `forebay jobs` lists them")]
pub struct JobIdError(String);

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix('j').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let id = number.and_then(|digits| digits.parse().ok()).map(Self);
        id.ok_or_else(|| JobIdError(text.chars().take(64).collect()))
    }
}

/// The work of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobKind {
    /// Volume: writes all data that is dirty at its start to the backing store, durably.
    Flush,
    /// Volume: detaches it from the pool, after a drain if `DetachHow` asks for one.
    Detach(DetachHow),
    /// Volume: drains it if the new mode demands that, then caches it in that mode.
    ModeChange(Mode),
    /// Volume: changes its size, in bytes.
    Resize(u64),
    /// Volume: records its requests for at most this many seconds.
    Record(u64),
    /// Pool: shrinks it to this size in bytes.
    Shrink(u64),
    /// Pool: gives up the device at this index of its list, which is not the last one. The last
    /// device takes its index.
    GiveUp(u16),
    /// Pool: replaces a device of its cache.
    Replace,
    /// Pool: compares all cached blocks with their checksums, at most at this rate in bytes per
    /// second.
    Scrub(u64),
    /// Pool: fills a new member of its mirrored cache.
    Rebuild,
    /// Pool: removes a pool without volumes. Cached data stays on its devices unless `erase`.
    Remove {
        /// Wipes its devices.
        erase: bool,
    },
    /// Pool: closes it with its volumes, writes their settings to its cache and removes it here.
    Export {
        /// Writes all dirty data back before.
        drain: bool,
    },
}

impl JobKind {
    /// Names of all kinds.
    pub const NAMES: [&'static str; 11] = [
        "flush",
        "detach",
        "mode-change",
        "resize",
        "record",
        "shrink",
        "replace",
        "scrub",
        "rebuild",
        "remove",
        "export",
    ];

    /// Returns the name in JSON and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Detach(_) => "detach",
            Self::ModeChange(_) => "mode-change",
            Self::Resize(_) => "resize",
            Self::Record(_) => "record",
            Self::Shrink(_) | Self::GiveUp(_) => "shrink",
            Self::Replace => "replace",
            Self::Scrub(_) => "scrub",
            Self::Rebuild => "rebuild",
            Self::Remove { .. } => "remove",
            Self::Export { .. } => "export",
        }
    }

    /// Returns whether the job concerns a whole pool and not one volume.
    #[must_use]
    pub fn is_of_pool(self) -> bool {
        matches!(
            self,
            Self::Shrink(_)
                | Self::GiveUp(_)
                | Self::Replace
                | Self::Scrub(_)
                | Self::Rebuild
                | Self::Remove { .. }
                | Self::Export { .. }
        )
    }

    fn parameters(self) -> Value {
        match self {
            Self::ModeChange(mode) => json!({ "mode": mode.name() }),
            Self::Resize(size_bytes) | Self::Shrink(size_bytes) => json!({ "size_bytes": size_bytes }),
            Self::GiveUp(place) => json!({ "device": place }),
            Self::Scrub(bytes_per_s) => json!({ "bytes_per_s": bytes_per_s }),
            Self::Record(seconds) => json!({ "for_s": seconds }),
            Self::Detach(how) => json!({ "how": how }),
            Self::Remove { erase } => json!({ "erase": erase }),
            Self::Export { drain } => json!({ "drain": drain }),
            Self::Flush | Self::Replace | Self::Rebuild => Value::Null,
        }
    }
}

/// Action when a job misses its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnMiss {
    /// Warns; the job continues.
    Warn,
    /// Aborts the job, which fails.
    Fail,
}

/// Deadline of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// Time allowed from the request on, including waits for other jobs.
    pub within: Duration,
    /// Action on a miss.
    pub on_miss: OnMiss,
}

/// A request for a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSpec {
    /// The work.
    pub kind: JobKind,
    /// Its pool.
    pub pool: String,
    /// Its volume; `None` exactly for jobs of a pool.
    pub volume: Option<String>,
    /// Its deadline.
    pub deadline: Option<Deadline>,
    /// Runs even if clients use the volume.
    pub force: bool,
    /// Path to which the backing file of a detached volume is written.
    pub save_to: Option<String>,
}

impl JobSpec {
    /// Creates a job of a volume.
    #[must_use]
    pub fn volume(kind: JobKind, pool: &str, volume: &str) -> Self {
        Self { volume: Some(volume.into()), ..Self::pool(kind, pool) }
    }

    /// Creates a job of a pool.
    #[must_use]
    pub fn pool(kind: JobKind, pool: &str) -> Self {
        Self { kind, pool: pool.into(), volume: None, deadline: None, force: false, save_to: None }
    }

    /// Sets a deadline.
    #[must_use]
    pub fn deadline(mut self, within: Duration, on_miss: OnMiss) -> Self {
        self.deadline = Some(Deadline { within, on_miss });
        self
    }
}

impl JobSpec {
    /// Runs the job even if clients use the volume: they lose the volume, or the part that is cut
    /// off.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        Self { force, ..self }
    }

    /// Writes the backing file to this path before it is closed.
    #[must_use]
    pub fn save_to(self, save_to: Option<String>) -> Self {
        Self { save_to, ..self }
    }

    /// Returns the parameters of the request besides the kind.
    fn parameters(&self) -> Value {
        match (self.kind, &self.save_to) {
            (JobKind::Detach(how), Some(path)) => json!({ "how": how, "save_to": path }),
            (kind, _) => kind.parameters(),
        }
    }
}

impl fmt::Display for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.volume {
            Some(volume) => write!(f, "{} of volume {volume}", self.kind.name()),
            None => write!(f, "{} of pool {}", self.kind.name(), self.pool),
        }
    }
}

/// State of a job: queued, running, then permanently one of the others. (One way back: a job that
/// rides on another is queued again when the other fails or is cancelled.)
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobState {
    /// Waits for its turn.
    Queued,
    /// In progress.
    Running,
    /// Done as requested.
    Completed,
    /// Not done. Its changes were undone as far as possible.
    Failed {
        /// Id of the message, for scripts.
        id: MessageId,
        /// The reason and the suggested action, in words.
        reason: String,
    },
    /// Ended early on request.
    Cancelled,
}

impl JobState {
    /// Names of all states.
    pub const NAMES: [&'static str; 5] = ["queued", "running", "completed", "failed", "cancelled"];

    /// Returns the name in JSON and filters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether the state is final.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Current activity of a running job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Has not begun.
    Waiting,
    /// Writes dirty data to the backing store.
    Draining,
    /// Waits until the backing store makes it durable.
    Syncing,
    /// Reads cached blocks and compares them with their checksums.
    Comparing,
    /// Copies cached blocks to another device.
    Copying,
    /// Records requests.
    Recording,
    /// Applies the change itself: mode, size, the end of the volume.
    Applying,
    /// Ends early and undoes its changes.
    Undoing,
    /// Has ended.
    Done,
}

impl Phase {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Draining => "draining",
            Self::Syncing => "syncing",
            Self::Comparing => "comparing",
            Self::Copying => "copying",
            Self::Recording => "recording",
            Self::Applying => "applying",
            Self::Undoing => "undoing",
            Self::Done => "done",
        }
    }
}

/// Snapshot of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    /// Its id.
    pub id: JobId,
    /// The request.
    pub spec: JobSpec,
    /// Its state.
    pub state: JobState,
    /// Its current activity.
    pub phase: Phase,
    /// The job that this one rides on, if any.
    pub follows: Option<JobId>,
    /// Its progress.
    pub progress: Progress,
    /// Its current limit, in words.
    pub limited_by: Option<String>,
    /// Errors so far; the job may complete in spite of them.
    pub errors: u64,
    /// At its current rate it will miss its deadline, or it has missed it.
    pub deadline_at_risk: bool,
    /// Its end was requested and has not happened yet.
    pub stopping: bool,
    /// Time from the request until now, or until its end.
    pub elapsed: Duration,
    /// Time of the request, in nanoseconds of Unix time.
    pub requested_unix_ns: u64,
    /// Time of its end, in nanoseconds of Unix time.
    pub finished_unix_ns: Option<u64>,
}

impl JobView {
    /// Returns why it failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match &self.state {
            JobState::Failed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns the id of its error, if it failed.
    #[must_use]
    pub fn error_id(&self) -> Option<MessageId> {
        match &self.state {
            JobState::Failed { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Returns the job in the form of the admin API, see [`JobInfo`].
    #[must_use]
    pub fn to_json(&self) -> Value {
        // Strings and numbers under names: this cannot fail.
        serde_json::to_value(JobInfo::from(self)).unwrap_or_default()
    }
}

/// The form that the operator's interface, and so the admin API, uses.
impl From<&JobView> for JobInfo {
    fn from(view: &JobView) -> Self {
        let seconds = |duration: Duration| floor_tenth(duration.as_secs_f64());
        Self {
            id: view.id.to_string(),
            kind: view.spec.kind.name().into(),
            parameters: view.spec.parameters(),
            pool: view.spec.pool.clone(),
            volume: view.spec.volume.clone(),
            state: view.state.name().into(),
            error: view.error().map(str::to_owned),
            error_id: view.error_id().map(|id| id.name().to_owned()),
            phase: view.phase.name().into(),
            follows: view.follows.map(|id| id.to_string()),
            bytes_total: view.progress.bytes_total,
            bytes_left: view.progress.bytes_left,
            percent: view.progress.percent,
            rate_bytes_per_s: view.progress.rate_bytes_per_s,
            eta_s: view.progress.eta.map(seconds),
            deadline_s: view.spec.deadline.map(|deadline| seconds(deadline.within)),
            deadline_at_risk: view.deadline_at_risk,
            elapsed_s: seconds(view.elapsed),
            limited_by: view.limited_by.clone(),
            errors: view.errors,
            stopping: view.stopping,
            requested: rfc3339(view.requested_unix_ns),
            finished: view.finished_unix_ns.map(rfc3339),
        }
    }
}
