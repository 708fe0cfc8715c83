//! All jobs: which may run, their states, and the events about them. It has no lock, thread or
//! clock of its own.
//!
//! Invariants
//! - A job waits only for jobs with smaller numbers, so no two wait for each other.
//! - A job that has ended does not change. Exactly one event reports its end.
//! - Bounds: [`JobsLimits::active_max`] jobs that have not ended; number and age bound the ended
//!   ones.

use super::conflict::{Relation, relation};
use super::job::{Deadline, JobId, JobSpec, JobState, JobView, OnMiss, Phase};
use super::progress::{Meter, Report};
use super::request::{Cancelled, JobFilter, JobsLimits, RequestError, StartError};
use crate::MessageId;
use crate::clock::{Clock, saturating_ns};
use crate::events::{EventKind, Hub, NewEvent, Severity};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Age at which a progress event expires.
const PROGRESS_TIME_TO_LIVE: Duration = Duration::from_secs(60);

impl JobFilter {
    fn wants(&self, job: &Job) -> bool {
        let same = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        same(&self.pool, Some(&job.spec.pool))
            && same(&self.volume, job.spec.volume.as_deref())
            && same(&self.state, Some(job.state.name()))
            && same(&self.kind, Some(job.spec.kind.name()))
    }
}

/// Why a job must end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Cancelled,
    Deadline,
}

#[derive(Debug)]
struct Job {
    spec: JobSpec,
    state: JobState,
    phase: Phase,
    meter: Meter,
    limited_by: Option<String>,
    errors: u64,
    requested_ns: u64,
    requested_unix_ns: u64,
    finished: Option<(u64, u64)>,
    told_ns: u64,
    stop: Option<Stop>,
    too_late: bool,
    at_risk: bool,
    /// Runs after these.
    after: Vec<JobId>,
    /// Rides on this job.
    rides_on: Option<JobId>,
}

/// The runner's next action for a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum JobTask {
    Begin,
    Poll,
    Abort,
}

pub(super) struct Table {
    jobs: BTreeMap<JobId, Job>,
    next: u64,
    ended_count: u64,
    limits: JobsLimits,
    clock: Arc<dyn Clock>,
    hub: Hub,
}

impl Table {
    pub(super) fn new(hub: Hub, clock: Arc<dyn Clock>, limits: JobsLimits, next: JobId) -> Self {
        Self { jobs: BTreeMap::new(), next: next.0, ended_count: 0, limits, clock, hub }
    }

    pub(super) fn next_id(&self) -> JobId {
        JobId(self.next)
    }

    /// Returns the number of jobs that have ended so far.
    pub(super) fn ended_count(&self) -> u64 {
        self.ended_count
    }

    /// Accepts a job.
    pub(super) fn start(&mut self, spec: JobSpec) -> Result<JobId, StartError> {
        if spec.kind.is_of_pool() == spec.volume.is_some() {
            let of = if spec.kind.is_of_pool() { "a pool, name no volume" } else { "a volume, name one" };
            return Err(StartError::WrongTarget(spec.kind.name().into(), of));
        }
        if self.jobs.values().filter(|job| !job.state.is_final()).count() >= self.limits.active_max {
            return Err(StartError::TooMany(self.limits.active_max));
        }
        let id = JobId(self.next);
        let (after, rides_on) = self.place(id, &spec)?;
        self.next += 1;
        let job = Job {
            spec,
            state: JobState::Queued,
            phase: Phase::Waiting,
            meter: Meter::default(),
            limited_by: None,
            errors: 0,
            requested_ns: self.clock.monotonic_ns(),
            requested_unix_ns: self.clock.unix_ns(),
            finished: None,
            told_ns: 0,
            stop: None,
            too_late: false,
            at_risk: false,
            after,
            rides_on,
        };
        self.jobs.insert(id, job);
        if rides_on
            .and_then(|other| self.jobs.get(&other))
            .is_some_and(|other| other.state == JobState::Running)
        {
            self.set_running(id);
        }
        Ok(id)
    }

    /// Returns the older jobs that a job must wait for, and the one that it can ride on.
    fn place(&self, id: JobId, spec: &JobSpec) -> Result<(Vec<JobId>, Option<JobId>), StartError> {
        let (mut after, mut rides_on) = (Vec::new(), None);
        // A riding job counts through the job that it rides on, which this loop visits as well.
        let others = self.jobs.range(..id).filter(|(_, job)| !job.state.is_final() && job.rides_on.is_none());
        for (other, job) in others {
            match relation(spec, &job.spec, job.state == JobState::Running) {
                Relation::Beside => {}
                Relation::After => after.push(*other),
                Relation::Rides => rides_on = rides_on.or(Some(*other)),
                Relation::Refused => {
                    let (asked, what) = (spec.to_string(), job.spec.to_string());
                    return Err(StartError::Conflict { asked, other: *other, what });
                }
            }
        }
        Ok((after, rides_on))
    }

    /// Returns the tasks that are due, oldest job first. Also ends jobs that missed their deadlines
    /// and forgets old ones.
    pub(super) fn tasks(&mut self) -> Vec<(JobId, JobSpec, JobTask)> {
        self.forget();
        let active: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| !job.state.is_final()).map(|(id, _)| *id).collect();
        let mut tasks = Vec::new();
        for id in active {
            self.check_deadline(id);
            let Some(job) = self.jobs.get(&id) else { continue };
            let task = match job.state {
                _ if job.rides_on.is_some() => continue,
                JobState::Queued if self.is_ready(job) => JobTask::Begin,
                JobState::Running if job.stop.is_some() && !job.too_late => JobTask::Abort,
                JobState::Running => JobTask::Poll,
                _ => continue,
            };
            tasks.push((id, job.spec.clone(), task));
        }
        tasks
    }

    fn is_ready(&self, job: &Job) -> bool {
        !job.after.iter().any(|other| self.jobs.get(other).is_some_and(|other| !other.state.is_final()))
    }

    /// Records that the work began. Returns false if it may not: the job was cancelled, waits, or
    /// has already begun.
    pub(super) fn begin(&mut self, id: JobId) -> bool {
        let ready = |job: &Job| job.state == JobState::Queued && job.rides_on.is_none() && self.is_ready(job);
        if !self.jobs.get(&id).is_some_and(ready) {
            return false;
        }
        self.set_running(id);
        self.riders(id).into_iter().for_each(|rider| self.set_running(rider));
        true
    }

    fn set_running(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = JobState::Running;
        job.told_ns = self.clock.monotonic_ns();
        self.publish(id, EventKind::JobStarted, "began", |event| event);
    }

    /// Records the report of a running job.
    pub(super) fn report(&mut self, id: JobId, report: Report) {
        let now_ns = self.clock.monotonic_ns();
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.state == JobState::Running) else { return };
        job.meter.observe(now_ns, report.left);
        job.phase = if job.stop.is_some() && !job.too_late { Phase::Undoing } else { report.phase };
        job.limited_by = report.limited_by;
        job.errors = report.errors;
        self.check_deadline(id);
        for id in std::iter::once(id).chain(self.riders(id)) {
            self.tell_progress(id, now_ns);
        }
    }

    fn tell_progress(&mut self, id: JobId, now_ns: u64) {
        let interval_ns = saturating_ns(self.limits.progress_interval);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if now_ns.saturating_sub(job.told_ns) < interval_ns || job.state != JobState::Running {
            return;
        }
        job.told_ns = now_ns;
        let Some(view) = self.view(id) else { return };
        let percent =
            view.progress.percent.map_or("in progress".into(), |percent| format!("{percent} % done"));
        self.publish(id, EventKind::JobProgress, &percent, |event| {
            event.collapse_key(&format!("job/{id}")).time_to_live(PROGRESS_TIME_TO_LIVE)
        });
    }

    /// Ends a job and those that ride on it; does nothing if it has already ended.
    pub(super) fn end(&mut self, id: JobId, state: JobState) {
        let now = (self.clock.monotonic_ns(), self.clock.unix_ns());
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_final()) else { return };
        (job.state, job.phase, job.finished) = (state.clone(), Phase::Done, Some(now));
        self.ended_count += 1;
        let (kind, words) = match &state {
            JobState::Failed { reason, .. } => (EventKind::JobFailed, format!("failed: {reason}")),
            JobState::Cancelled => (EventKind::JobCancelled, "was cancelled".into()),
            _ => (EventKind::JobCompleted, "is done".into()),
        };
        if state == JobState::Completed {
            (job.limited_by, job.at_risk) = (None, false);
        }
        // The end replaces undelivered progress events.
        self.publish(id, kind, &words, |event| event.collapse_key(&format!("job/{id}")));
        for rider in self.riders(id) {
            if state == JobState::Completed {
                self.take_over(rider, id);
                self.end(rider, JobState::Completed);
            } else {
                self.put_back(rider);
            }
        }
    }

    /// Ends a job that was asked to stop.
    pub(super) fn stopped(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let state = match (job.stop, job.spec.deadline) {
            (Some(Stop::Deadline), Some(deadline)) => missed(job, deadline),
            _ => JobState::Cancelled,
        };
        self.end(id, state);
    }

    /// Records that a job can no longer be stopped.
    pub(super) fn too_late(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.too_late = true;
        }
    }

    /// Records that a job is being undone.
    pub(super) fn undoing(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.state == JobState::Running) {
            job.phase = Phase::Undoing;
        }
    }

    /// Places a riding job again, after the job that it rode on did not complete.
    fn put_back(&mut self, id: JobId) {
        let Some(spec) = self.jobs.get(&id).map(|job| job.spec.clone()) else { return };
        let (after, rides_on) = match self.place(id, &spec) {
            Ok(place) => place,
            Err(error) => {
                return self.end(id, JobState::Failed { id: error.id(), reason: error.to_string() });
            }
        };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        (job.state, job.after, job.rides_on) = (JobState::Queued, after, rides_on);
        if rides_on
            .is_some_and(|other| self.jobs.get(&other).is_some_and(|job| job.state == JobState::Running))
        {
            self.set_running(id);
        }
    }

    /// Copies the results of `from` to `rider`.
    fn take_over(&mut self, rider: JobId, from: JobId) {
        let Some((meter, errors)) = self.jobs.get(&from).map(|job| (job.meter.clone(), job.errors)) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&rider) {
            (job.meter, job.errors) = (meter, errors);
        }
    }

    fn riders(&self, id: JobId) -> Vec<JobId> {
        let rides = |job: &Job| job.rides_on == Some(id) && !job.state.is_final();
        self.jobs.iter().filter(|(_, job)| rides(job)).map(|(id, _)| *id).collect()
    }

    /// Requests the end of a job.
    pub(super) fn cancel(&mut self, id: JobId) -> Result<Cancelled, RequestError> {
        let unknown = self.unknown(id);
        let job = self.jobs.get_mut(&id).ok_or(unknown)?;
        match job.state {
            JobState::Cancelled => return Ok(Cancelled::Already),
            JobState::Completed | JobState::Failed { .. } => {
                return Err(RequestError::Ended { id, state: job.state.name() });
            }
            JobState::Running if job.too_late => return Err(RequestError::TooLate { id }),
            JobState::Running if job.rides_on.is_none() => {
                job.stop.get_or_insert(Stop::Cancelled);
                return Ok(Cancelled::Requested);
            }
            // Its work has not begun.
            JobState::Queued | JobState::Running => {}
        }
        self.end(id, JobState::Cancelled);
        Ok(Cancelled::Already)
    }

    pub(super) fn should_stop(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_none_or(|job| job.state.is_final() || (job.stop.is_some() && !job.too_late))
    }

    fn unknown(&self, id: JobId) -> RequestError {
        let hours = self.limits.finished_age.as_secs() / 3600;
        RequestError::Unknown { id, hours, most: self.limits.finished_max }
    }

    /// Warns of a job that will miss its deadline, and ends one that has, if `on_miss` says so.
    fn check_deadline(&mut self, id: JobId) {
        let now_ns = self.clock.monotonic_ns();
        let Some(view) = self.view(id) else { return };
        let Some(deadline) = view.spec.deadline.filter(|_| !view.state.is_final()) else { return };
        let at_risk = at_risk(&view, deadline);
        let passed = view.elapsed >= deadline.within;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let was_at_risk = std::mem::replace(&mut job.at_risk, at_risk);
        if passed && deadline.on_miss == OnMiss::Fail && job.stop.is_none() && !job.too_late {
            if job.state == JobState::Running && job.rides_on.is_none() {
                job.stop = Some(Stop::Deadline);
            } else {
                let state = missed(job, deadline);
                self.end(id, state);
                return;
            }
        }
        if at_risk && !was_at_risk {
            job.told_ns = now_ns;
            let words = if passed { "missed its deadline" } else { "will miss its deadline at this rate" };
            self.publish(id, EventKind::JobDeadlineAtRisk, words, |event| event.severity(Severity::Warning));
        }
    }

    pub(super) fn view(&self, id: JobId) -> Option<JobView> {
        let job = self.jobs.get(&id)?;
        let now_ns = job.finished.map_or_else(|| self.clock.monotonic_ns(), |(at_ns, _)| at_ns);
        // A riding job has the progress and the limits of the job that it rides on.
        let active = |other: &&Job| !other.state.is_final();
        let worker = job.rides_on.and_then(|other| self.jobs.get(&other)).filter(active);
        let worker = if job.state.is_final() { job } else { worker.unwrap_or(job) };
        Some(JobView {
            id,
            spec: job.spec.clone(),
            state: job.state.clone(),
            phase: if job.state == JobState::Running { worker.phase } else { job.phase },
            follows: job.rides_on,
            progress: worker.meter.progress(now_ns),
            limited_by: self.waits_for(job).or_else(|| worker.limited_by.clone()),
            errors: worker.errors,
            deadline_at_risk: job.at_risk,
            stopping: job.stop.is_some() && !job.state.is_final(),
            elapsed: Duration::from_nanos(now_ns.saturating_sub(job.requested_ns)),
            requested_unix_ns: job.requested_unix_ns,
            finished_unix_ns: job.finished.map(|(_, unix_ns)| unix_ns),
        })
    }

    fn waits_for(&self, job: &Job) -> Option<String> {
        if job.state != JobState::Queued {
            return None;
        }
        let is_active = |id: &&JobId| self.jobs.get(id).is_some_and(|other| !other.state.is_final());
        let id = job.after.iter().chain(&job.rides_on).find(is_active)?;
        Some(format!("waits for job {id} ({})", self.jobs.get(id)?.spec))
    }

    /// Returns [`Table::view`], or the error for an unknown job.
    pub(super) fn look(&self, id: JobId) -> Result<JobView, RequestError> {
        self.view(id).ok_or_else(|| self.unknown(id))
    }

    pub(super) fn list(&mut self, filter: &JobFilter) -> Vec<JobView> {
        self.forget();
        let wanted = self.jobs.iter().filter(|(_, job)| filter.wants(job));
        wanted.filter_map(|(id, _)| self.view(*id)).collect()
    }

    /// Forgets jobs that ended too long ago or exceed the limit.
    fn forget(&mut self) {
        let (now_ns, age_ns) = (self.clock.monotonic_ns(), saturating_ns(self.limits.finished_age));
        self.jobs
            .retain(|_, job| job.finished.is_none_or(|(at_ns, _)| now_ns.saturating_sub(at_ns) < age_ns));
        let mut finished: Vec<(u64, JobId)> =
            self.jobs.iter().filter_map(|(id, job)| Some((job.finished?.0, *id))).collect();
        finished.sort_unstable();
        for (_, id) in finished.iter().rev().skip(self.limits.finished_max) {
            self.jobs.remove(id);
        }
    }

    /// Publishes an event about a job: "flush of volume db began".
    fn publish(&self, id: JobId, kind: EventKind, words: &str, more: impl FnOnce(NewEvent) -> NewEvent) {
        let Some(view) = self.view(id) else { return };
        let message = format!("job {id}: {} {words}", view.spec);
        let mut event = NewEvent::new(kind, message).job(&id.to_string()).pool(&view.spec.pool);
        if let Some(volume) = &view.spec.volume {
            event = event.volume(volume);
        }
        self.hub.publish(more(event.details(view.to_json())));
    }
}

/// Returns whether a job will miss its deadline at its current rate. A job at risk stays at risk
/// until there is a tenth to spare, so that an unsteady rate does not cause a flood of warnings.
/// Without a rate, the job is at risk after half of its time.
fn at_risk(view: &JobView, deadline: Deadline) -> bool {
    let left = deadline.within.saturating_sub(view.elapsed);
    let limit = if view.deadline_at_risk { left - left / 10 } else { left };
    match view.progress.eta {
        _ if left.is_zero() => true,
        Some(eta) => eta > limit,
        None => left < deadline.within / 2,
    }
}

fn missed(job: &Job, deadline: Deadline) -> JobState {
    let left = job.meter.progress(0).bytes_left;
    let left = left.map_or(String::new(), |left| format!(" with {left} bytes left"));
    let within = humantime::format_duration(deadline.within);
    let reason = format!("its deadline of {within} passed{left}; give it more time, or none");
    JobState::Failed { id: MessageId::JobDeadlineMissed, reason }
}
