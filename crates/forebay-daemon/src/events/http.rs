//! Events and alarms over HTTP, to be merged into the admin API.
//!
//! | path | answer |
//! | --- | --- |
//! | `GET /v1/events` | server-sent events, until the client or the daemon ends |
//! | `GET /v1/alarms` | the active alarms |
//! | `POST /v1/alarms/{id}/acknowledge?by=NAME` | the alarm, known now to everybody |
//!
//! Conditions of `/v1/events`: `kind` (names or groups, with commas), `volume`, `pool`, `job`, `severity` (at least).
//! `after=ID`, or the header `Last-Event-ID`, resumes; `after=oldest` begins with all of the history. The header counts
//! more, for a client that connects again by itself sends it with the address it had at first.

use super::event::EventId;
use super::filter::Filter;
use super::hub::{Hub, Start};
use super::sse::Frames;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use std::time::Duration;

/// How long a stream is silent before it sends a heartbeat, usually.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

type Parameters = Vec<(String, String)>;

#[derive(Clone)]
struct Context {
    hub: Hub,
    heartbeat: Duration,
}

/// The routes. Streams end when `hub` is closed.
pub fn router(hub: Hub, heartbeat: Duration) -> Router {
    Router::new()
        .route("/v1/events", get(follow))
        .route("/v1/alarms", get(alarms))
        .route("/v1/alarms/{id}/acknowledge", post(acknowledge))
        .with_state(Context { hub, heartbeat })
}

async fn follow(
    State(context): State<Context>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
) -> Response {
    let (filter, start) = match wishes(&parameters, &headers) {
        Ok(wishes) => wishes,
        Err(what) => return problem(StatusCode::BAD_REQUEST, &what),
    };
    match context.hub.subscribe(filter, start) {
        Ok(subscription) => Sse::new(Frames::new(subscription, context.heartbeat)).into_response(),
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// What a client wants to follow, and from where.
fn wishes(parameters: &Parameters, headers: &HeaderMap) -> Result<(Filter, Start), String> {
    let mut filter = Filter::default();
    let mut start = Start::Now;
    for (name, value) in parameters {
        if name == "after" {
            start = start_at(value)?;
            continue;
        }
        let known = "kind, volume, pool, job, severity and after";
        let condition = filter
            .condition(name, value)
            .ok_or_else(|| format!("there is no parameter \"{name}\"; there are {known}"))?;
        filter = condition.map_err(|error| error.to_string())?;
    }
    if let Some(last) = headers.get("last-event-id") {
        let last = last.to_str().map_err(|_| "the header Last-Event-ID is not text".to_owned())?;
        start = start_at(last)?;
    }
    Ok((filter, start))
}

fn start_at(text: &str) -> Result<Start, String> {
    if text == "oldest" {
        return Ok(Start::Oldest);
    }
    text.parse::<EventId>().map(Start::After).map_err(|error| format!("{error}, or \"oldest\""))
}

async fn alarms(State(context): State<Context>) -> Response {
    let alarms: Vec<_> = context.hub.alarms().iter().map(super::Alarm::to_json).collect();
    Json(json!({ "alarms": alarms })).into_response()
}

async fn acknowledge(
    State(context): State<Context>,
    Path(id): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Response {
    let by = parameters.iter().find(|(name, value)| name == "by" && !value.is_empty());
    let Some((_, by)) = by else {
        return problem(StatusCode::BAD_REQUEST, "say who knows of the alarm, with ?by=NAME");
    };
    match context.hub.acknowledge(&id, by) {
        Ok(alarm) => Json(alarm.to_json()).into_response(),
        Err(error) => problem(StatusCode::NOT_FOUND, &error.to_string()),
    }
}

fn problem(status: StatusCode, what: &str) -> Response {
    (status, Json(json!({ "error": what }))).into_response()
}
