//! Jobs of the daemon: text of their state, and following them to their end.
//!
//! Invariants
//! - Ctrl-C ends the following, never the job: the daemon continues it, and the message describes
//!   how to follow it again and how to cancel it.
//! - Success is reported only for a job that completed.

use crate::message;
use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::Value;
use std::io::IsTerminal;

use crate::client::{self, Admin, Client, escaped};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen::{self, bytes, harmless};

/// Update interval of the progress bar, and longest time that the daemon may delay an answer.
const STEP: Duration = Duration::from_millis(500);
/// Time limit for repeating requests to a daemon with too many connections or too much work.
const BUSY_WITHIN: Duration = Duration::from_secs(30);
/// Interval of progress lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The state of a job. Values unknown to the daemon are `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) pool: String,
    pub(crate) volume: Option<String>,
    pub(crate) state: String,
    pub(crate) phase: String,
    pub(crate) error: Option<String>,
    pub(crate) error_id: Option<String>,
    pub(crate) bytes_total: Option<u64>,
    pub(crate) bytes_left: Option<u64>,
    pub(crate) percent: Option<f64>,
    pub(crate) rate_bytes_per_s: Option<f64>,
    pub(crate) eta_s: Option<f64>,
    pub(crate) elapsed_s: f64,
    pub(crate) deadline_at_risk: bool,
    pub(crate) limited_by: Option<String>,
    pub(crate) errors: u64,
    pub(crate) stopping: bool,
    pub(crate) requested: String,
}

impl Job {
    /// Returns its operation and target.
    pub(crate) fn title(&self) -> String {
        let name = match &self.volume {
            Some(volume) => format!("{} of volume {volume}", self.kind),
            None => format!("{} of pool {}", self.kind, self.pool),
        };
        harmless(&name)
    }

    /// Returns true if the job has ended.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.state.as_str(), "queued" | "running")
    }

    /// Returns true if the job completed.
    pub(crate) fn is_done(&self) -> bool {
        self.state == "completed"
    }

    /// Returns its progress in one line.
    pub(crate) fn progress(&self) -> String {
        let mut words = Vec::new();
        words.push(match self.percent {
            _ if self.state == "queued" => "waits for its turn".into(),
            Some(percent) => format!("{percent:.1} %"),
            None => harmless(&self.phase),
        });
        if let (Some(left), Some(total)) = (self.bytes_left, self.bytes_total) {
            words.push(format!("{} of {} left", bytes(left), bytes(total)));
        }
        words.extend(
            self.rate_bytes_per_s.filter(|rate| *rate > 0.0).map(|rate| format!("{}/s", bytes(rate as u64))),
        );
        words.extend(self.eta_s.map(|eta| format!("ETA {}", screen::uptime(eta.ceil() as u64))));
        words.extend(self.limit().map(|limit| format!("limited by {limit}")));
        if self.errors > 0 {
            words.push(format!("{} errors", self.errors));
        }
        if self.deadline_at_risk {
            words.push("will miss its deadline".into());
        }
        if self.stopping {
            words.push("is being cancelled".into());
        }
        words.join(", ")
    }

    /// Returns the factor that limits it, if there is one.
    pub(crate) fn limit(&self) -> Option<String> {
        self.limited_by.as_deref().filter(|limit| !limit.is_empty()).map(harmless)
    }

    /// Returns its result in one line.
    pub(crate) fn ending(&self) -> String {
        let took = screen::uptime(self.elapsed_s as u64);
        let written = self.bytes_total.filter(|total| *total > 0 && self.is_done());
        let done = match self.kind.as_str() {
            "scrub" => "compared",
            "rebuild" | "replace" | "shrink" => "copied",
            _ => "written back",
        };
        let written = written.map_or(String::new(), |total| format!(", {} {done}", bytes(total)));
        format!("{}: {} after {took}{written}", self.title(), self.state)
    }

    /// Returns true if both are the same job: another daemon gives the same numbers to its own
    /// jobs.
    fn is_same(&self, other: &Self) -> bool {
        let of = |job: &Self| (job.kind.clone(), job.pool.clone(), job.volume.clone(), job.requested.clone());
        of(self) == of(other)
    }

    /// Returns the failure for a job whose daemon has ended. The job may have completed just
    /// before.
    fn out_of_sight(&self, why: &str) -> Failure {
        Failure::new(MessageId::JobOutOfSight, format!("{}: the result is unknown: {why}", self.title())).hint(
            "the daemon was stopped, upgraded or too busy at that moment: `forebay jobs` and `forebay status` show the current state",
        )
    }

    fn failure(&self) -> Failure {
        let why = self
            .error
            .as_deref()
            .map_or(String::new(), |error| format!(": {}", screen::harmless_lines(error)));
        let of =
            self.volume.as_deref().map_or(String::new(), |volume| format!(" --volume {}", harmless(volume)));
        let about = match self.state.as_str() {
            "cancelled" => EventKind::JobCancelled,
            _ => EventKind::JobFailed,
        };
        let failure = Failure::new(
            MessageId::Event(about),
            format!("{}: {} after {}{why}", self.title(), self.state, screen::uptime(self.elapsed_s as u64)),
        );
        let failure = match &self.error_id {
            Some(id) => failure.with_id(harmless(id)),
            None => failure,
        };
        failure.hint(format!(
            "forebay events --after oldest --kind job{of} shows more; this was job {}",
            self.id
        ))
    }
}

/// Options of commands that start a job.
#[derive(Debug, clap::Args)]
pub(crate) struct JobOptions {
    /// Print the ID of the job and do not wait
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    admin: Admin,
}

impl JobOptions {
    /// Starts a job; follows it, or prints its ID.
    ///
    /// # Errors
    /// As [`attend`], and those of `begin`.
    pub(crate) fn run(&self, begin: impl FnOnce(&Client) -> Result<Value, Failure>) -> Result<(), Failure> {
        let client = self.admin.client();
        let job = begin(&client)?;
        attend(&client, &job, WaitMode { background: self.background, json: self.admin.json })
    }
}

/// Handling of a started job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitMode {
    /// Only print its ID, without waiting.
    pub(crate) background: bool,
    /// Print the job as JSON.
    pub(crate) json: bool,
}

/// Follows the job that the daemon answered with, or prints its ID.
///
/// # Errors
/// It failed, was cancelled, or Ctrl-C was pressed: it is not known to be done.
pub(crate) fn attend(client: &Client, answer: &Value, mode: WaitMode) -> Result<(), Failure> {
    let job: Job = client::read(answer)?;
    if !mode.background {
        return follow_known(client, &job.id.clone(), Some(job), mode.json);
    }
    if mode.json {
        return screen::print_json(answer);
    }
    let what =
        format!("{} continues in the daemon; follow it with: forebay jobs {} --follow", job.title(), job.id);
    message::say(MessageId::JobGoesOn, &what, || format!("forebay: {what}\n"));
    screen::print(&format!("{}\n", job.id))
}

/// Shows the progress of a job until it has ended.
///
/// # Errors
/// As [`attend`].
pub(crate) fn follow(client: &Client, id: &str, json: bool) -> Result<(), Failure> {
    follow_known(client, id, None, json)
}

fn follow_known(client: &Client, id: &str, mut known: Option<Job>, json: bool) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let client = client.clone().interruptible(&interrupt);
    let path = format!("/v1/jobs/{}?wait={}ms", escaped(id), STEP.as_millis());
    let mut shown = Shown::new();
    let mut answered = Instant::now();
    loop {
        let begin = Instant::now();
        let answer = match client.wait(&path, STEP) {
            Err(_) if interrupt.came() => return Err(left(id)),
            Err(failure) if failure.is_unavailable() && answered.elapsed() < BUSY_WITHIN => {
                std::thread::sleep(STEP);
                continue;
            }
            Err(failure) => {
                shown.clear();
                return Err(match known {
                    Some(job) => job.out_of_sight(&failure.to_string()),
                    None => failure,
                });
            }
            Ok(answer) => answer,
        };
        answered = Instant::now();
        let job: Job = client::read(&answer)?;
        if let Some(before) = known.replace(job.clone()).filter(|before| !before.is_same(&job)) {
            shown.clear();
            return Err(before.out_of_sight(&format!("{id} is {} now", job.title())));
        }
        if job.is_over() {
            shown.clear();
            if json {
                screen::print_json(&answer)?;
            }
            return match job.is_done() {
                true if json => Ok(()),
                true => screen::print(&format!("{}\n", job.ending())),
                false => Err(job.failure()),
            };
        }
        shown.show(&job);
        // Limit the polling of a daemon that answers at once.
        while begin.elapsed() < STEP / 2 && !interrupt.came() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if interrupt.came() {
            shown.clear();
            return Err(left(id));
        }
    }
}

fn left(id: &str) -> Failure {
    Failure::new(MessageId::JobGoesOn, format!("interrupted; job {id} continues in the daemon")).hint(
        format!(
            "follow it with: forebay jobs {id} --follow\n        cancel it with: forebay jobs {id} --cancel"
        ),
    )
}

/// A progress bar on a terminal, or periodic lines elsewhere; on stderr.
struct Shown {
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl Shown {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {wide_msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar, last_line: None }
    }

    fn show(&mut self, job: &Job) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(job.title());
            bar.set_position((job.percent.unwrap_or(0.0) * 10.0) as u64);
            bar.set_message(job.progress());
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            self.last_line = Some(Instant::now());
            let what = format!("{}: {}", job.title(), job.progress());
            message::say(MessageId::Event(EventKind::JobProgress), &what, || format!("{what}\n"));
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_is_one_line_without_unknown_parts() {
        let job = |value: Value| client::read::<Job>(&value).unwrap();
        let running =
            job(json!({ "id": "j1", "kind": "flush", "pool": "fast", "volume": "db", "state": "running",
            "phase": "draining", "percent": 42.05, "bytes_total": 3u64 << 30, "bytes_left": 1u64 << 30,
            "rate_bytes_per_s": 1 << 20, "eta_s": 1023.2, "limited_by": "the rate limit", "errors": 2,
            "deadline_at_risk": true }));
        assert_eq!(running.title(), "flush of volume db");
        assert_eq!(
            running.progress(),
            "42.0 %, 1.0 GiB of 3.0 GiB left, 1.0 MiB/s, ETA 17m 04s, limited by the rate limit, 2 errors, \
             will miss its deadline"
        );
        let dark =
            job(json!({ "id": "j2", "kind": "shrink", "pool": "p", "volume": null, "state": "running",
            "phase": "applying", "percent": null, "rate_bytes_per_s": null, "limited_by": null }));
        assert_eq!((dark.title(), dark.progress()), ("shrink of pool p".into(), "applying".into()));
        assert!(job(json!({ "state": "queued" })).progress().contains("waits"));
    }

    /// Follows j1, a flush, with these answers of the daemon.
    fn follow_one(answers: &[(u16, &str)]) -> Result<(), Failure> {
        let begun = json!({ "id": "j1", "kind": "flush", "pool": "p", "volume": "db", "state": "queued",
            "requested": "1" });
        let answers = answers.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
        client::with_answers(answers, |client| {
            attend(client, &begun, WaitMode { background: false, json: false })
        })
    }

    #[test]
    fn a_job_of_another_daemon_is_not_followed() {
        const RUNS: &str =
            r#"{"id":"j1","kind":"flush","pool":"p","volume":"db","state":"running","requested":"1"}"#;
        const DONE: &str =
            r#"{"id":"j1","kind":"flush","pool":"p","volume":"db","state":"completed","requested":"1"}"#;
        const LATER: &str =
            r#"{"id":"j1","kind":"flush","pool":"p","volume":"db","state":"completed","requested":"2"}"#;
        const OTHER: &str = r#"{"id":"j1","kind":"remove","pool":"p","state":"completed","requested":"1"}"#;
        follow_one(&[(202, RUNS), (200, DONE)]).unwrap();
        // Too many clients do not end a job; a daemon that is being stopped is soon gone.
        const BUSY: &str = r#"{"what":"there are too many connections"}"#;
        follow_one(&[(202, RUNS), (503, BUSY), (503, BUSY), (200, DONE)]).unwrap();
        let gone = follow_one(&[(202, RUNS), (503, BUSY)]).unwrap_err().to_string();
        assert!(gone.contains("the result is unknown") && gone.contains("no daemon answers"), "{gone}");
        for (answer, why) in [
            ((200, LATER), "j1 is flush of volume db now"),
            ((200, OTHER), "j1 is remove of pool p now"),
            ((404, r#"{"what":"there is no job j1"}"#), "there is no job j1"),
        ] {
            let failure = follow_one(&[(202, RUNS), answer]).unwrap_err();
            assert_eq!(failure.to_string(), format!("flush of volume db: the result is unknown: {why}"));
            assert!(format!("{failure:?}").contains("forebay status"));
        }
    }

    #[test]
    fn only_completed_is_done() {
        for (state, over, done) in
            [("queued", false, false), ("running", false, false), ("completed", true, true)]
        {
            let job = Job { state: state.into(), ..Job::default() };
            assert_eq!((job.is_over(), job.is_done()), (over, done), "{state}");
        }
        for state in ["failed", "cancelled", "whatever comes later"] {
            let job = Job { state: state.into(), ..Job::default() };
            assert!(job.is_over() && !job.is_done(), "{state}");
        }
    }
}
