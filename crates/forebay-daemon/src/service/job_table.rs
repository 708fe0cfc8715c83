//! The table of jobs, their threads, and what a request left for its job.
//!
//! Invariants
//! - No job starts once a successor is taking over.
//! - A job runs at most once, on one thread.

use super::job_numbers::JobNumbers;
use super::locking::lock;
use forebay_admin::clock::SystemClock;
use forebay_admin::events::Hub;
use forebay_admin::jobs::{
    JobFilter, JobId, JobKind, JobSpec, JobView, Jobs, JobsLimits, Left, Phase, Report, WaitError,
};
use forebay_admin::{AdminError, JobInfo, MessageId};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;

/// Interval at which a job updates its progress.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Reason why a job ends early.
pub(super) enum End {
    /// The job was cancelled, or its deadline has passed.
    Stopped,
    /// The job failed.
    Failed(MessageId, String),
}

impl End {
    /// Returns the reason as text.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Stopped => "it was ended early",
            Self::Failed(_, reason) => reason,
        }
    }

    /// Returns the message ID, for scripts.
    pub(super) fn id(&self) -> MessageId {
        match self {
            Self::Stopped => MessageId::JobStopped,
            Self::Failed(id, _) => *id,
        }
    }
}

impl From<AdminError> for End {
    fn from(error: AdminError) -> Self {
        let hint = if error.hint.is_empty() { String::new() } else { format!("; {}", error.hint) };
        Self::Failed(error.id, format!("{}{hint}", error.what))
    }
}

/// A requested recording that has not begun.
pub(super) struct Asked {
    pub(super) seconds: u64,
    pub(super) bytes_max: u64,
    pub(super) to: Sender<Vec<u8>>,
}

/// Whether jobs may start, and the threads of those that have.
#[derive(Debug, Default)]
struct Threads {
    stopping: bool,
    /// A successor is taking over, or has taken over: this process makes no changes and starts no
    /// jobs.
    passed_on: bool,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    fn check_not_passed_on(&self) -> Result<(), AdminError> {
        if !self.passed_on {
            return Ok(());
        }
        let what = "another process is taking over from this one";
        Err(AdminError::new(MessageId::DaemonPassedOn, what, "try again: it answers"))
    }
}

/// See the top of this file.
pub(super) struct JobTable {
    jobs: Jobs,
    numbers: JobNumbers,
    threads: Mutex<Threads>,
    /// Signals that there is a job to start, or that the daemon stops.
    changed: Condvar,
    /// Recordings that have not begun.
    recordings: Mutex<BTreeMap<JobId, Asked>>,
}

/// Returns the number of a job from its text.
///
/// # Errors
/// It is no number of a job.
pub(super) fn job_id(id: &str) -> Result<JobId, AdminError> {
    id.parse().map_err(|error| AdminError::new(MessageId::JobUnknown, error, "`forebay jobs` lists them"))
}

impl JobTable {
    /// Returns an empty table. Waits for the state directory.
    pub(super) fn new(hub: Hub, clock: Arc<SystemClock>, numbers: JobNumbers) -> Self {
        Self {
            jobs: Jobs::new(hub, clock, JobsLimits::default(), numbers.first()),
            numbers,
            threads: Mutex::default(),
            changed: Condvar::new(),
            recordings: Mutex::default(),
        }
    }

    /// Returns the table as the API needs it.
    pub(super) fn shared(&self) -> Jobs {
        self.jobs.clone()
    }

    // --- requests

    /// Adds a job, which starts when its turn comes.
    ///
    /// # Errors
    /// A successor is taking over, or the table is full.
    pub(super) fn begin(&self, spec: JobSpec) -> Result<JobInfo, AdminError> {
        let id = {
            let threads = lock(&self.threads);
            threads.check_not_passed_on()?;
            self.jobs.start(spec)?
        };
        self.changed.notify_all();
        self.info(id)
    }

    /// Adds a recording, with its limits and its client.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub(super) fn begin_recording(&self, spec: JobSpec, asked: Asked) -> Result<JobInfo, AdminError> {
        // Held until the entry exists: the job may begin at once.
        let mut recordings = lock(&self.recordings);
        let job = self.begin(spec)?;
        recordings.insert(job_id(&job.id)?, asked);
        Ok(job)
    }

    pub(super) fn info(&self, id: JobId) -> Result<JobInfo, AdminError> {
        let view: JobView = self.jobs.get(id)?;
        Ok(JobInfo::from(&view))
    }

    pub(super) fn all(&self) -> Vec<JobView> {
        self.jobs.list(&JobFilter::default())
    }

    /// Returns jobs that have not ended.
    pub(super) fn open(&self) -> Vec<JobView> {
        self.all().into_iter().filter(|job| !job.state.is_final()).collect()
    }

    /// Returns the job that works on a whole pool.
    pub(super) fn of_pool(&self, pool: &str) -> Option<String> {
        let jobs = self.open();
        let of_pool = || jobs.iter().filter(|job| job.spec.pool == pool && job.spec.volume.is_none());
        // A job that fills a device has priority over one that reads it.
        let fills = |job: &&JobView| matches!(job.spec.kind, JobKind::Rebuild | JobKind::Replace);
        let job = of_pool().find(fills).or_else(|| of_pool().next());
        job.map(|job| job.id.to_string())
    }

    /// Waits for a job; the view of one that has not ended in time is in the error.
    ///
    /// # Errors
    /// As above, or there is no such job.
    pub(super) fn wait(&self, id: JobId, timeout: Duration) -> Result<JobView, WaitError> {
        self.jobs.wait(id, timeout)
    }

    pub(super) fn cancel(&self, id: JobId) -> Result<JobInfo, AdminError> {
        self.jobs.cancel(id)?;
        self.forget_recordings();
        self.changed.notify_all();
        self.info(id)
    }

    // --- starts

    /// Waits until a job may be due, notes the numbers in use, and returns the jobs to start;
    /// `None` when the daemon stops.
    pub(super) fn next(&self) -> Option<Vec<(JobId, JobSpec)>> {
        self.numbers.note(self.jobs.next_id());
        {
            let threads = lock(&self.threads);
            if threads.stopping {
                return None;
            }
            // Deadlines can expire at any time, so open jobs need polling; without open jobs the
            // thread sleeps. A new job is added under this lock, so none is missed.
            let timeout = if self.open().is_empty() { Duration::from_secs(3600) } else { LOOK };
            drop(self.changed.wait_timeout(threads, timeout));
        }
        let mut due = self.jobs.runnable();
        due.retain(|(id, _)| self.jobs.begin(*id));
        Some(due)
    }

    /// Starts the thread of a job; returns false, and fails the job, if there is none.
    pub(super) fn spawn(&self, id: JobId, run: impl FnOnce() + Send + 'static) -> bool {
        let mut threads = lock(&self.threads);
        threads.running.retain(|thread| !thread.is_finished());
        match std::thread::Builder::new().name(format!("job-{id}")).spawn(run) {
            Ok(thread) => {
                threads.running.push(thread);
                true
            }
            Err(error) => {
                drop(threads);
                self.jobs.fail(id, MessageId::DaemonNoThread, format!("cannot start a thread: {error}"));
                false
            }
        }
    }

    // --- a running job

    /// Returns true if a job was cancelled, or its deadline has passed.
    pub(super) fn is_ended(&self, id: JobId) -> bool {
        self.jobs.should_stop(id)
    }

    /// Returns true if a job must end: [`Self::is_ended`], or the daemon stops.
    pub(super) fn should_stop(&self, id: JobId) -> bool {
        self.is_ended(id) || self.is_stopping()
    }

    pub(super) fn report(&self, id: JobId, report: Report) {
        self.jobs.report(id, report);
    }

    pub(super) fn phase(&self, id: JobId, phase: Phase) {
        self.report(id, Report { left: Left::Unknown, phase, limited_by: None, errors: 0 });
    }

    /// Notes the result of a job.
    pub(super) fn end(&self, id: JobId, result: Result<(), End>) {
        match result {
            Ok(()) => self.jobs.finish(id),
            Err(End::Failed(about, reason)) => self.jobs.fail(id, about, reason),
            Err(End::Stopped) if self.is_ended(id) => self.jobs.stopped(id),
            Err(End::Stopped) => self.jobs.fail(
                id,
                MessageId::JobStopped,
                "the daemon was stopped; start it again and repeat the command",
            ),
        }
        self.changed.notify_all();
    }

    /// Takes the limits and the client of a recording.
    pub(super) fn take_recording(&self, id: JobId) -> Option<Asked> {
        lock(&self.recordings).remove(&id)
    }

    /// Drops recordings that were cancelled before they began.
    pub(super) fn forget_recordings(&self) {
        let ended = |id: &JobId| self.jobs.get(*id).map_or(true, |job| job.state.is_final());
        lock(&self.recordings).retain(|id, _| !ended(id));
    }

    // --- the end

    pub(super) fn is_stopping(&self) -> bool {
        lock(&self.threads).stopping
    }

    /// Requests job threads to end.
    pub(super) fn stop(&self) {
        lock(&self.threads).stopping = true;
        self.changed.notify_all();
    }

    /// Waits for recordings to end, with a complete trace, before their pools stop.
    pub(super) fn await_recordings(&self, within: Duration) {
        let until = Instant::now() + within;
        let is_recording = |job: &JobView| matches!(job.spec.kind, JobKind::Record(_));
        while self.open().iter().any(is_recording) && Instant::now() < until {
            std::thread::sleep(LOOK / 10);
        }
    }

    /// Waits for the threads of jobs; abandons one that hangs.
    pub(super) fn await_threads(&self, within: Duration) {
        let until = Instant::now() + within;
        // Threads that end ask whether the daemon stops: the lock is not held meanwhile.
        let running = std::mem::take(&mut lock(&self.threads).running);
        for thread in running {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Notes the next number for the next start.
    pub(super) fn settle_numbers(&self) {
        self.numbers.settle(self.jobs.next_id());
    }

    /// Permits or forbids changes and new jobs: forbidden while a successor takes over.
    pub(super) fn set_passed_on(&self, passed_on: bool) {
        lock(&self.threads).passed_on = passed_on;
    }

    /// # Errors
    /// A successor is taking over, or has taken over.
    pub(super) fn check_not_passed_on(&self) -> Result<(), AdminError> {
        lock(&self.threads).check_not_passed_on()
    }
}
