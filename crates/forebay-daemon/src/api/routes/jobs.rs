//! Jobs.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::handler::{Answer, Context, accepted};
use crate::api::extract::{Names, Parameters};
use crate::api::problem::Problem;
use forebay_admin::jobs::{JobId, JobKind, JobState, WaitError};
use forebay_admin::{AdminError, JobInfo, MessageId};

/// Longest time that one request waits for a job.
const WAIT_MAX: Duration = Duration::from_secs(10 * 60);

/// Filter of jobs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Only of this pool.
    pool: Option<String>,
    /// Only of this volume.
    volume: Option<String>,
    /// Only in this state: `queued`, `running`, `completed`, `failed`, `cancelled`.
    state: Option<String>,
    /// Only of this kind: `flush`, `detach`, `mode-change`, `resize`, `record`, `shrink`,
    /// `replace`, `scrub`, `rebuild`, `remove`, `export`.
    kind: Option<String>,
}

impl Wanted {
    fn check(&self) -> Result<(), AdminError> {
        one_of("state", self.state.as_deref(), &JobState::NAMES)?;
        one_of("kind", self.kind.as_deref(), &JobKind::NAMES)
    }

    fn has(&self, job: &JobInfo) -> bool {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        fits(&self.pool, &job.pool)
            && fits(&self.volume, job.volume.as_deref().unwrap_or_default())
            && fits(&self.state, &job.state)
            && fits(&self.kind, &job.kind)
    }
}

fn one_of(key: &str, value: Option<&str>, known: &[&str]) -> Result<(), AdminError> {
    match value.filter(|value| !known.contains(value)) {
        None => Ok(()),
        Some(value) => Err(AdminError::new(
            MessageId::ApiParameter,
            format!("no job has the {key} {value:?}"),
            format!("use one of: {}", known.join(", ")),
        )),
    }
}

/// All jobs, the newest last.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(Wanted),
    responses((status = 200, description = "The jobs", body = [JobInfo])))]
pub(super) async fn jobs(
    State(context): State<Context>,
    Parameters(wanted): Parameters<Wanted>,
) -> Answer<Vec<JobInfo>> {
    wanted.check()?;
    let mut jobs = context.look(|admin| Ok(admin.jobs())).await?;
    jobs.retain(|job| wanted.has(job));
    Ok(Json(jobs))
}

/// How long to wait.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Waiting {
    /// Wait until it has ended, up to this time, such as `30s`; at most `10min`.
    wait: Option<String>,
}

/// One job, immediately or when it has ended.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Id, such as `j17`"), Waiting),
    responses(
        (status = 200, description = "The job; with `wait`: it has ended", body = JobInfo),
        (status = 202, description = "With `wait`: it has not ended in that time", body = JobInfo),
    ))]
pub(super) async fn job(
    State(context): State<Context>,
    Names(id): Names<String>,
    Parameters(waiting): Parameters<Waiting>,
) -> Result<Response, Problem> {
    match waiting.wait {
        Some(text) => wait(context, &id, wait_parameter(&text)?).await,
        None => context.look(move |admin| admin.job(&id)).await.map(|job| Json(job).into_response()),
    }
}

/// Waits without a thread.
async fn wait(mut context: Context, id: &str, timeout: Duration) -> Result<Response, Problem> {
    let number: JobId = id
        .parse()
        .map_err(|error| AdminError::new(MessageId::JobUnknown, error, "GET /v1/jobs lists the jobs"))?;
    let ended = tokio::select! {
        biased; // report a job that has ended even if the daemon is being stopped
        ended = context.jobs.ended(number, timeout) => ended,
        _ = context.stopping.wait_for(|stop| *stop) => {
            return Err(Problem::unavailable(MessageId::DaemonStopping, "the daemon is being stopped", ""));
        }
    };
    match ended {
        Ok(job) => Ok(Json(JobInfo::from(&job)).into_response()),
        Err(WaitError::TimedOut(job)) => {
            Ok((StatusCode::ACCEPTED, Json(JobInfo::from(&*job))).into_response())
        }
        Err(WaitError::Unknown(error)) => Err(AdminError::from(error).into()),
    }
}

/// Cancels a job: undoes its changes; destaged blocks stay destaged.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Id, such as `j17`")),
    responses((status = 202, description = "The job, which has ended or will soon", body = JobInfo,
        headers(("Location" = String)))))]
pub(super) async fn cancel_job(
    State(context): State<Context>,
    Names(id): Names<String>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.cancel_job(&id)).await.map(accepted)
}

/// Parses a duration in a parameter.
pub(super) fn duration(name: &str, text: &str) -> Result<Duration, AdminError> {
    forebay_admin::size::parse_duration(text).map_err(|error| {
        AdminError::new(MessageId::SizeSyntax, format!("{name}: {error}"), "such as 30s or 5min")
    })
}

fn wait_parameter(text: &str) -> Result<Duration, AdminError> {
    let timeout = duration("wait", text)?;
    if timeout > WAIT_MAX {
        let what = format!("wait: {text} is more than the longest wait, which is 10min");
        return Err(AdminError::new(MessageId::ApiParameter, what, "repeat it after each response 202"));
    }
    Ok(timeout)
}
