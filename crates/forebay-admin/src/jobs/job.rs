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

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobKind {
    /// Volume: everything dirty at its start gets to the backing store, durably.
    Flush,
    /// Volume: it leaves the pool, after a drain if that is what is to become of dirty data.
    Detach(DetachHow),
    /// Volume: it is drained if the new mode demands it, and then cached in that mode.
    ModeChange(Mode),
    /// Volume: it gets this size in bytes.
    Resize(u64),
    /// Volume: its requests are recorded, for so many seconds at most.
    Record(u64),
    /// Pool: it shrinks to this size in bytes.
    Shrink(u64),
    /// Pool: it gives up the device at this place of its list, which is not the last one. The last
    /// one takes its place.
    GiveUp(u16),
    /// Pool: another device takes the place of one of its cache.
    Replace,
    /// Pool: everything in its cache is compared with its checksums, so many bytes a second at
    /// most.
    Scrub(u64),
    /// Pool: a new device of its mirrored cache gets what it must have.
    Rebuild,
    /// Pool: it has no volumes, and is given up. What is cached stays on its devices unless
    /// `erase`.
    Remove {
        /// Wipe its devices.
        erase: bool,
    },
    /// Pool: it is closed with its volumes, and given up with their settings on its cache.
    Export {
        /// Everything is written back before.
        drain: bool,
    },
}

impl JobKind {
    /// All names.
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

    /// The name in JSON and messages.
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

    /// Whether it concerns a whole pool and not one volume.
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

/// What is to happen when a job misses its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnMiss {
    /// A warning; the job goes on.
    Warn,
    /// The job is aborted and fails.
    Fail,
}

/// When a job is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// Time that it has, from the request on: waiting for other jobs counts.
    pub within: Duration,
    /// What happens otherwise.
    pub on_miss: OnMiss,
}

/// What somebody asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSpec {
    /// What is to be done.
    pub kind: JobKind,
    /// In which pool.
    pub pool: String,
    /// To which volume; `None` exactly for jobs of a pool.
    pub volume: Option<String>,
    /// Until when.
    pub deadline: Option<Deadline>,
    /// Also if clients use the volume.
    pub force: bool,
    /// Where a volume that is detached is to be written.
    pub save_to: Option<String>,
}

impl JobSpec {
    /// A job of a volume.
    #[must_use]
    pub fn volume(kind: JobKind, pool: &str, volume: &str) -> Self {
        Self { volume: Some(volume.into()), ..Self::pool(kind, pool) }
    }

    /// A job of a pool.
    #[must_use]
    pub fn pool(kind: JobKind, pool: &str) -> Self {
        Self { kind, pool: pool.into(), volume: None, deadline: None, force: false, save_to: None }
    }

    /// With a deadline.
    #[must_use]
    pub fn deadline(mut self, within: Duration, on_miss: OnMiss) -> Self {
        self.deadline = Some(Deadline { within, on_miss });
        self
    }
}

impl JobSpec {
    /// Also if clients use the volume: they lose it, or what is cut off.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        Self { force, ..self }
    }

    /// Its backing file is written to this path before it is closed.
    #[must_use]
    pub fn save_to(self, save_to: Option<String>) -> Self {
        Self { save_to, ..self }
    }

    /// What was asked for besides the kind.
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

/// Where a job is in its life: queued, running, then one of the others for ever. (One way back: a
/// job that rides on another is queued again when the other fails or is cancelled.)
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobState {
    /// Waits for its turn.
    Queued,
    /// Under way.
    Running,
    /// Done as asked.
    Completed,
    /// Not done. What it changed until then was undone as far as it can be.
    Failed {
        /// What it is about, for scripts.
        id: MessageId,
        /// What was wrong, and what to do, for people.
        reason: String,
    },
    /// Ended early because somebody asked for it.
    Cancelled,
}

impl JobState {
    /// All names.
    pub const NAMES: [&'static str; 5] = ["queued", "running", "completed", "failed", "cancelled"];

    /// The name in JSON and filters.
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

    /// Whether nothing will happen any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// What a running job is busy with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// With nothing yet.
    Waiting,
    /// Dirty data goes to the backing store.
    Draining,
    /// The backing store makes it durable.
    Syncing,
    /// What is cached is read and compared with its checksums.
    Comparing,
    /// What is cached is copied to another device.
    Copying,
    /// Requests are recorded.
    Recording,
    /// The change itself: mode, size, the end of the volume.
    Applying,
    /// It is being ended early, and what it changed is undone.
    Undoing,
    /// It ended.
    Done,
}

impl Phase {
    /// The name in JSON.
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

/// How a job stands at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    /// Which job.
    pub id: JobId,
    /// What was asked for.
    pub spec: JobSpec,
    /// Where it is in its life.
    pub state: JobState,
    /// What it is busy with.
    pub phase: Phase,
    /// The job whose work does for this one, if there is one.
    pub follows: Option<JobId>,
    /// How far it is.
    pub progress: Progress,
    /// What holds it up, in words.
    pub limited_by: Option<String>,
    /// Errors that were met; it may complete in spite of them.
    pub errors: u64,
    /// As it goes, it misses its deadline, or has missed it.
    pub deadline_at_risk: bool,
    /// Somebody asked for its end, which has not come yet.
    pub stopping: bool,
    /// Time since it was asked for, until now or until its end.
    pub elapsed: Duration,
    /// When it was asked for, in nanoseconds of Unix time.
    pub requested_unix_ns: u64,
    /// When it ended, in nanoseconds of Unix time.
    pub finished_unix_ns: Option<u64>,
}

impl JobView {
    /// Why it failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match &self.state {
            JobState::Failed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The id of the error that it failed with.
    #[must_use]
    pub fn error_id(&self) -> Option<MessageId> {
        match &self.state {
            JobState::Failed { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// The job as the admin API shows it, see [`JobInfo`].
    #[must_use]
    pub fn to_json(&self) -> Value {
        // Strings and numbers under names: this cannot fail.
        serde_json::to_value(JobInfo::from(self)).unwrap_or_default()
    }
}

/// As the interface of control, and so the admin API, speaks of it.
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
