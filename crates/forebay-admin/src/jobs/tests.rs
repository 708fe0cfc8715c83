//! Jobs as their users see them, with a driver and a clock that the tests control.

use super::*;
use crate::clock::ManualClock;
use crate::events::{Delivery, EventKind, Filter, Hub, HubLimits, Received, Start, Subscription};
use crate::{AdminError, DetachHow, ErrorKind, JobInfo, MessageId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MB: u64 = 1_000_000;
const DETACH: JobKind = JobKind::Detach(DetachHow::Drain);

/// Jobs, the clock they run on, and a reader of their events.
struct Stage {
    clock: Arc<ManualClock>,
    jobs: Jobs,
    events: Subscription,
    driver: Fake,
}

/// A driver that drains a fixed number of bytes per poll.
#[derive(Default)]
struct Fake {
    left: BTreeMap<JobId, u64>,
    per_look: u64,
    refuse: Option<String>,
    abort: Option<Abort>,
    begun: Vec<JobId>,
    aborted: Vec<JobId>,
}

impl JobDriver for Fake {
    fn begin(&mut self, id: JobId, _: &JobSpec) -> Result<(), (MessageId, String)> {
        self.begun.push(id);
        self.left.insert(id, 10 * MB);
        self.refuse.clone().map_or(Ok(()), |why| Err((MessageId::DeviceNoSpace, why)))
    }

    fn poll(&mut self, id: JobId, _: &JobSpec) -> WorkStatus {
        let left = self.left.get_mut(&id).expect("begun before");
        *left = left.saturating_sub(self.per_look);
        match *left {
            0 => WorkStatus::Done,
            left => WorkStatus::Working(Report::draining(Left::OfStart(left))),
        }
    }

    fn abort(&mut self, id: JobId, _: &JobSpec) -> Abort {
        self.aborted.push(id);
        self.abort.unwrap_or(Abort::Done)
    }
}

impl Stage {
    fn new() -> Self {
        Self::with(JobsLimits::default())
    }

    fn with(limits: JobsLimits) -> Self {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
        let hub = Hub::new(clock.clone(), HubLimits::default());
        let events = hub.subscribe(Filter::default(), Start::Now).unwrap();
        let jobs = Jobs::new(hub, clock.clone(), limits, JobId(1));
        Self { clock, jobs, events, driver: Fake { per_look: MB / 10, ..Fake::default() } }
    }

    /// Steps at 10 Hz.
    fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.jobs.step(&mut self.driver);
            self.clock.advance(Duration::from_millis(100));
        }
    }

    fn start(&self, kind: JobKind) -> JobId {
        self.jobs.start(spec(kind)).unwrap()
    }

    fn state(&self, id: JobId) -> JobState {
        self.jobs.get(id).unwrap().state
    }

    fn told(&mut self) -> Vec<(EventKind, String)> {
        let mut told = Vec::new();
        while let Received::Delivery(delivery) = self.events.receive(Duration::ZERO) {
            let Delivery::Event(event) = delivery else { panic!("{delivery:?}") };
            told.push((event.kind, event.job.as_deref().unwrap_or_default().to_owned()));
        }
        told
    }
}

fn spec(kind: JobKind) -> JobSpec {
    if kind.is_of_pool() { JobSpec::pool(kind, "fast") } else { JobSpec::volume(kind, "fast", "db") }
}

fn is_failed(state: &JobState, with: &str) -> bool {
    matches!(state, JobState::Failed { reason, .. } if reason.contains(with))
}

#[test]
fn flush_reports_progress_and_completes() {
    let mut stage = Stage::new();
    let id = stage.start(JobKind::Flush);
    assert_eq!((id.to_string().as_str(), stage.state(id)), ("j1", JobState::Queued));
    stage.steps(51); // 5 s: half of it
    let view = stage.jobs.get(id).unwrap();
    assert_eq!((&view.state, view.phase), (&JobState::Running, Phase::Draining));
    assert_eq!((view.progress.bytes_left, view.elapsed), (Some(5 * MB), Duration::from_millis(5_100)));
    let rate = view.progress.rate_bytes_per_s.unwrap();
    assert!((900_000..=1_000_000).contains(&rate), "{rate}");
    assert_eq!(
        stage.told(),
        [(EventKind::JobStarted, "j1".into()), (EventKind::JobProgress, "j1".into())],
        "collapsed"
    );
    stage.steps(100);
    let view = stage.jobs.get(id).unwrap();
    assert_eq!((&view.state, view.phase), (&JobState::Completed, Phase::Done));
    assert_eq!(
        stage.told(),
        [(EventKind::JobCompleted, "j1".into())],
        "the end replaces progress that waits"
    );
    assert_eq!(view.elapsed, Duration::from_secs(10), "stands still after the end");
}

#[test]
fn progress_is_reported_once_a_second() {
    let mut stage = Stage::new();
    stage.start(JobKind::Flush);
    let mut told = Vec::new();
    for _ in 0..50 {
        stage.steps(1);
        told.extend(stage.told());
    }
    let progress = told.iter().filter(|(kind, _)| *kind == EventKind::JobProgress).count();
    assert_eq!(progress, 4);
}

#[test]
fn failed_job_has_a_reason() {
    let mut stage = Stage::new();
    stage.driver.refuse = Some("the volume is gone; attach it".into());
    let refused = stage.start(JobKind::Flush);
    stage.steps(1);
    assert!(is_failed(&stage.state(refused), "attach it"));
    let broken = stage.start(JobKind::Flush);
    assert!(stage.jobs.begin(broken));
    assert!(!stage.jobs.begin(broken), "once");
    stage.jobs.fail(broken, MessageId::DeviceNoSpace, "the disk is full");
    stage.jobs.finish(broken); // too late
    stage.jobs.report(broken, Report::draining(Left::All(7)));
    let view = stage.jobs.get(broken).unwrap();
    assert!(is_failed(&view.state, "the disk is full"));
    assert_eq!(view.progress.bytes_left, None);
    let kinds: Vec<_> = stage.told().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [EventKind::JobStarted, EventKind::JobFailed, EventKind::JobStarted, EventKind::JobFailed]
    );
}

#[test]
fn cancelled_job_is_undone_once() {
    let mut stage = Stage::new();
    let id = stage.start(DETACH);
    stage.steps(5);
    stage.driver.abort = Some(Abort::Pending);
    assert_eq!(stage.jobs.cancel(id), Ok(Cancelled::Requested));
    assert_eq!(stage.jobs.cancel(id), Ok(Cancelled::Requested));
    assert!(stage.jobs.should_stop(id));
    stage.steps(2);
    assert_eq!((stage.state(id), stage.jobs.get(id).unwrap().phase), (JobState::Running, Phase::Undoing));
    stage.driver.abort = Some(Abort::Done);
    stage.steps(1);
    assert_eq!(stage.state(id), JobState::Cancelled);
    assert_eq!(stage.jobs.cancel(id), Ok(Cancelled::Already));
    assert_eq!(stage.told().last(), Some(&(EventKind::JobCancelled, "j1".into())));

    let queued = stage.start(JobKind::Flush);
    assert_eq!(stage.jobs.cancel(queued), Ok(Cancelled::Already), "nothing to undo");
    stage.steps(1);
    assert!(!stage.driver.begun.contains(&queued));
}

#[test]
fn ended_job_cannot_be_cancelled() {
    let mut stage = Stage::new();
    let id = stage.start(DETACH);
    stage.driver.abort = Some(Abort::TooLate);
    stage.steps(1);
    stage.jobs.cancel(id).unwrap();
    stage.steps(1);
    assert_eq!(stage.jobs.cancel(id), Err(RequestError::TooLate { id }));
    assert!(!stage.jobs.should_stop(id));
    stage.steps(200);
    assert_eq!(stage.driver.aborted, [id], "asked once");
    assert_eq!(stage.jobs.cancel(id), Err(RequestError::Ended { id, state: "completed" }));
    let error = stage.jobs.cancel(JobId(99)).unwrap_err();
    assert!(error.to_string().contains("no job j99"), "{error}");
    assert_eq!(AdminError::from(error).kind, ErrorKind::NotFound);
}

#[test]
fn two_detaches_of_a_volume_conflict() {
    let stage = Stage::new();
    let first = stage.start(DETACH);
    let error = stage.jobs.start(spec(JobKind::Detach(DetachHow::Keep))).unwrap_err();
    assert!(matches!(&error, StartError::Conflict { other, .. } if *other == first));
    assert!(error.to_string().contains("j1 (detach of volume db)"), "{error}");
    assert_eq!(AdminError::from(error).kind, ErrorKind::Conflict);
    stage.jobs.start(JobSpec::volume(DETACH, "fast", "other")).unwrap();
    stage.jobs.cancel(first).unwrap();
    stage.jobs.start(spec(DETACH)).unwrap();
}

#[test]
fn flush_rides_on_a_detach() {
    let mut stage = Stage::new();
    let detach = stage.start(DETACH);
    stage.steps(11);
    let flush = stage.start(JobKind::Flush);
    let view = stage.jobs.get(flush).unwrap();
    assert_eq!((view.follows, view.state), (Some(detach), JobState::Running));
    assert_eq!(view.progress.bytes_left, Some(9 * MB), "how far it is, is how far the detach is");
    stage.steps(200);
    assert_eq!((stage.state(detach), stage.state(flush)), (JobState::Completed, JobState::Completed));
    assert_eq!(stage.driver.begun, [detach], "nothing is done twice");
    assert_eq!(stage.jobs.get(flush).unwrap().progress.bytes_total, Some(99 * MB / 10));
}

#[test]
fn flush_survives_a_cancelled_detach() {
    let mut stage = Stage::new();
    let detach = stage.start(DETACH);
    stage.steps(1);
    let flush = stage.start(JobKind::Flush);
    let second = stage.start(JobKind::Flush);
    stage.jobs.cancel(detach).unwrap();
    stage.steps(1);
    assert_eq!((stage.state(detach), stage.state(flush)), (JobState::Cancelled, JobState::Queued));
    assert_eq!(stage.jobs.get(second).unwrap().follows, Some(flush), "both flushes by one drain");
    stage.steps(200);
    assert_eq!((stage.state(flush), stage.state(second)), (JobState::Completed, JobState::Completed));
    assert_eq!(stage.driver.begun, [detach, flush]);
}

#[test]
fn cancelled_rider_leaves_the_other_running() {
    let mut stage = Stage::new();
    let detach = stage.start(DETACH);
    stage.steps(1);
    let flush = stage.start(JobKind::Flush);
    assert_eq!(stage.jobs.cancel(flush), Ok(Cancelled::Already));
    stage.steps(200);
    assert_eq!((stage.state(detach), stage.state(flush)), (JobState::Completed, JobState::Cancelled));
}

#[test]
fn running_flush_cannot_serve_a_new_one() {
    let mut stage = Stage::new();
    let first = stage.start(JobKind::Flush);
    let same = stage.start(JobKind::Flush);
    assert_eq!(stage.jobs.get(same).unwrap().follows, Some(first), "it has not begun yet");
    stage.steps(1);
    let later = stage.start(JobKind::Flush);
    let view = stage.jobs.get(later).unwrap();
    assert_eq!((view.follows, view.state), (None, JobState::Queued));
    assert_eq!(view.limited_by.as_deref(), Some("waits for job j1 (flush of volume db)"));
    stage.steps(110);
    assert_eq!((stage.state(first), stage.state(later)), (JobState::Completed, JobState::Running));
    assert_eq!(stage.driver.begun, [first, later]);
}

/// A missed deadline fails the job only if that was asked for.
#[test]
fn deadline_at_risk_is_reported_once() {
    for on_miss in [OnMiss::Warn, OnMiss::Fail] {
        let mut stage = Stage::new();
        let id = stage.jobs.start(spec(JobKind::Flush).deadline(Duration::from_secs(5), on_miss)).unwrap();
        stage.steps(20); // 1 MB/s, 10 MB: it will take 10 s
        let view = stage.jobs.get(id).unwrap();
        assert!(view.deadline_at_risk && view.state == JobState::Running);
        stage.steps(40);
        assert_eq!(stage.told().iter().filter(|(kind, _)| *kind == EventKind::JobDeadlineAtRisk).count(), 1);
        if on_miss == OnMiss::Fail {
            assert!(is_failed(&stage.state(id), "deadline of 5s passed"), "{:?}", stage.state(id));
            assert_eq!(stage.driver.aborted, [id], "what it began was undone");
        } else {
            stage.steps(100);
            assert_eq!(stage.state(id), JobState::Completed);
            assert!(stage.driver.aborted.is_empty());
        }
    }
}

#[test]
fn deadline_risk_can_pass() {
    let mut stage = Stage::new();
    let id = stage.jobs.start(spec(JobKind::Flush).deadline(Duration::from_secs(12), OnMiss::Fail)).unwrap();
    stage.steps(20);
    assert!(!stage.jobs.get(id).unwrap().deadline_at_risk);
    stage.driver.per_look = 0; // stands still
    stage.steps(30);
    assert!(stage.jobs.get(id).unwrap().deadline_at_risk);
    stage.driver.per_look = MB / 4;
    stage.steps(20);
    assert!(!stage.jobs.get(id).unwrap().deadline_at_risk);
    stage.steps(30);
    assert_eq!(stage.state(id), JobState::Completed);
}

#[test]
fn job_past_its_deadline_never_begins() {
    let mut stage = Stage::new();
    stage.start(JobKind::Flush);
    stage.steps(1);
    let late = stage.jobs.start(spec(JobKind::Flush).deadline(Duration::from_secs(2), OnMiss::Fail)).unwrap();
    stage.steps(15);
    assert!(stage.jobs.get(late).unwrap().deadline_at_risk, "without a rate, half of the time is the limit");
    stage.steps(10);
    assert!(is_failed(&stage.state(late), "passed"));
    assert!(!stage.driver.begun.contains(&late));
}

#[test]
fn waiters_get_the_end_or_a_timeout() {
    let mut stage = Stage::new();
    let id = stage.start(JobKind::Flush);
    let timed_out = stage.jobs.wait(id, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(timed_out, WaitError::TimedOut(view) if view.id == id));
    assert!(matches!(stage.jobs.wait(JobId(9), Duration::MAX), Err(WaitError::Unknown(_))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let task = runtime.spawn({
        let jobs = stage.jobs.clone();
        async move { jobs.ended(id, Duration::from_secs(60)).await }
    });
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..8)
            .map(|number| {
                let (jobs, most) =
                    (stage.jobs.clone(), if number == 0 { Duration::MAX } else { Duration::from_secs(60) });
                scope.spawn(move || jobs.wait(id, most).unwrap().state)
            })
            .collect();
        stage.steps(200);
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == JobState::Completed));
    });
    assert_eq!(runtime.block_on(task).unwrap().unwrap().state, JobState::Completed);
    assert!(stage.jobs.wait(id, Duration::ZERO).is_ok(), "it has ended already");
    let queued = stage.start(JobKind::Flush);
    assert!(matches!(
        runtime.block_on(stage.jobs.ended(queued, Duration::from_millis(1))),
        Err(WaitError::TimedOut(_))
    ));
}

#[test]
fn ended_jobs_are_forgotten_but_not_active() {
    let mut stage = Stage::with(JobsLimits { finished_max: 3, active_max: 5, ..JobsLimits::default() });
    stage.driver.per_look = u64::MAX;
    let detach = stage.jobs.start(JobSpec::volume(DETACH, "slow", "x")).unwrap();
    assert!(stage.jobs.begin(detach)); // and is never done
    for _ in 0..5 {
        let id = stage.start(JobKind::Flush);
        stage.driver.left.insert(detach, u64::MAX);
        stage.driver.per_look = 10 * MB;
        stage.steps(3);
        assert_eq!(stage.state(id), JobState::Completed);
    }
    let ids = |stage: &Stage| {
        stage.jobs.list(&JobFilter::default()).iter().map(|view| view.id.0).collect::<Vec<_>>()
    };
    assert_eq!(ids(&stage), [1, 4, 5, 6]);
    stage.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(ids(&stage), [1]);
    assert_eq!(stage.jobs.next_id(), JobId(7), "numbers are not given twice");

    for volume in ["a", "b", "c", "d"] {
        stage.jobs.start(JobSpec::volume(JobKind::Flush, "fast", volume)).unwrap();
    }
    assert_eq!(stage.jobs.start(spec(JobKind::Flush)), Err(StartError::TooMany(5)));
    let filter =
        JobFilter { pool: Some("fast".into()), state: Some("queued".into()), ..JobFilter::default() };
    assert_eq!(stage.jobs.list(&filter).len(), 4);
    let filter = JobFilter { volume: Some("c".into()), kind: Some("flush".into()), ..filter };
    assert_eq!(stage.jobs.list(&filter).len(), 1);
}

#[test]
fn the_target_must_fit_the_kind() {
    let stage = Stage::new();
    let of_pool = JobSpec::volume(JobKind::Remove { erase: false }, "fast", "db");
    assert!(matches!(stage.jobs.start(of_pool), Err(StartError::WrongTarget(_, "a pool, name no volume"))));
    assert!(stage.jobs.start(JobSpec::pool(JobKind::Resize(1), "fast")).is_err());
    for wrong in ["", "j", "17", "j-1", "j+1", "J1", "j1x", "j99999999999999999999"] {
        assert!(wrong.parse::<JobId>().is_err(), "{wrong}");
    }
    assert_eq!("j17".parse(), Ok(JobId(17)));
}

#[test]
fn a_loop_of_its_own_needs_no_driver() {
    let mut stage = Stage::new();
    let mode = JobKind::ModeChange(forebay_format::checkpoint::Mode::Writethrough);
    let id = stage.start(mode);
    assert_eq!(stage.jobs.runnable(), [(id, spec(mode))]);
    assert!(stage.jobs.begin(id));
    let mut report = Report::draining(Left::All(4 * MB));
    report.limited_by = Some("the backing store refuses writes".into());
    report.errors = 2;
    stage.jobs.report(id, report);
    let json = stage.jobs.get(id).unwrap().to_json();
    assert_eq!(
        (&json["limited_by"], &json["errors"]),
        (&"the backing store refuses writes".into(), &2.into())
    );
    assert_eq!((&json["parameters"]["mode"], &json["percent"]), (&"writethrough".into(), &0.0.into()));
    let info = JobInfo::from(&stage.jobs.get(id).unwrap());
    assert_eq!(
        (info.state.as_str(), info.bytes_left, info.eta_s, info.error),
        ("running", Some(4 * MB), None, None)
    );
    assert!(json["eta_s"].is_null() && !stage.jobs.should_stop(id) && stage.jobs.runnable().is_empty());
    stage.jobs.finish(id);
    assert!(stage.jobs.should_stop(id), "there is nothing left to do");
    assert_eq!(stage.told().last(), Some(&(EventKind::JobCompleted, "j1".into())));
}
