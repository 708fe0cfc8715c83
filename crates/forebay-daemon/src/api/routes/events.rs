//! Events and alarms over HTTP, to be merged into the admin API.
//!
//! | path | response |
//! | --- | --- |
//! | `GET /v1/events` | server-sent events, until the client or the daemon ends |
//! | `GET /v1/alarms` | the active alarms |
//! | `POST /v1/alarms/{id}/acknowledge?by=NAME` | the acknowledged alarm |
//!
//! Conditions of `/v1/events`: `kind` (names or groups, with commas), `volume`, `pool`, `job`,
//! `severity` (at least). `after=ID`, or the header `Last-Event-ID`, resumes; `after=oldest` begins
//! with the whole history. The header has precedence, because a client that reconnects by itself
//! sends it with its original URL.

mod frames;
#[cfg(test)]
mod tests;

use crate::api::{Names, Parameters, Problem};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response, Sse};
use axum::{Json, Router};
use forebay_admin::events::{AlarmInfo, EventId, Filter, Hub, Start};
use forebay_admin::{AdminError, MessageId};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use frames::Frames;

/// Default interval of heartbeats on a silent stream.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Hint to the description of requests.
const HINT: &str = "GET /v1/openapi.json lists the parameters";

type Conditions = Vec<(String, String)>;

#[derive(Clone)]
pub(crate) struct Context {
    hub: Hub,
    heartbeat: Duration,
}

/// Returns the routes. Streams end when `hub` is closed.
pub(crate) fn router(hub: Hub, heartbeat: Duration) -> Router {
    documented().split_for_parts().0.with_state(Context { hub, heartbeat })
}

/// Returns the routes with their descriptions.
pub(crate) fn documented() -> OpenApiRouter<Context> {
    OpenApiRouter::new().routes(routes!(follow)).routes(routes!(alarms)).routes(routes!(acknowledge))
}

/// Follows the events: server-sent events, until the client or the daemon ends.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(
        ("kind" = Option<String>, Query, description = "Only these kinds or groups of kinds, with commas"),
        ("volume" = Option<String>, Query, description = "Only events about this volume"),
        ("pool" = Option<String>, Query, description = "Only events about this pool"),
        ("job" = Option<String>, Query, description = "Only events about this job"),
        ("severity" = Option<String>, Query, description = "Lowest severity: `debug`, `info` (default), `warning`, `error`"),
        ("after" = Option<String>, Query, description = "Resume after the event of this id; `oldest` for all of the history"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, and takes precedence"),
    ),
    responses((status = 200, description = "The stream", body = String, content_type = "text/event-stream")))]
async fn follow(
    State(context): State<Context>,
    Parameters(conditions): Parameters<Conditions>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (filter, start) = wishes(&conditions, &headers)
        .map_err(|what| Problem::bad_request(MessageId::ApiParameter, what, HINT))?;
    match context.hub.subscribe(filter, start) {
        Ok(subscription) => Ok(Sse::new(Frames::new(subscription, context.heartbeat)).into_response()),
        Err(error) => Err(Problem::unavailable(MessageId::ApiTooMany, error, "")),
    }
}

/// Parses a client's filter and start position.
fn wishes(conditions: &Conditions, headers: &HeaderMap) -> Result<(Filter, Start), String> {
    let (filter, after) = filter_and(conditions, "after")?;
    let mut start = after.map_or(Ok(Start::Now), start_at)?;
    if let Some(last) = headers.get("last-event-id") {
        let last = last.to_str().map_err(|_| "the header Last-Event-ID is not text".to_owned())?;
        start = start_at(last)?;
    }
    Ok((filter, start))
}

/// Parses the conditions of a filter, and the parameter `own`, which is no condition, if it is
/// given.
pub(super) fn filter_and<'a>(
    conditions: &'a [(String, String)],
    own: &str,
) -> Result<(Filter, Option<&'a str>), String> {
    let (mut filter, mut given) = (Filter::default(), None);
    for (name, value) in conditions {
        if name == own {
            given = Some(value.as_str());
            continue;
        }
        let condition = filter.condition(name, value).ok_or_else(|| {
            format!("there is no parameter \"{name}\"; known are kind, volume, pool, job, severity and {own}")
        })?;
        filter = condition.map_err(|error| error.to_string())?;
    }
    Ok((filter, given))
}

fn start_at(text: &str) -> Result<Start, String> {
    if text == "oldest" {
        return Ok(Start::Oldest);
    }
    text.parse::<EventId>().map(Start::After).map_err(|error| format!("{error}, or \"oldest\""))
}

/// The active alarms.
#[derive(Serialize, ToSchema)]
pub(crate) struct AlarmList {
    /// Oldest first.
    alarms: Vec<AlarmInfo>,
}

/// All active alarms.
#[utoipa::path(get, path = "/v1/alarms", tag = "events",
    responses((status = 200, description = "The alarms", body = AlarmList)))]
async fn alarms(State(context): State<Context>) -> Json<AlarmList> {
    Json(AlarmList { alarms: context.hub.alarms().iter().map(AlarmInfo::from).collect() })
}

/// Parameters of an acknowledgement.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Acknowledging {
    /// A user, a host, a tool.
    #[param(min_length = 1)]
    by: String,
}

/// Acknowledges an alarm, for all clients.
#[utoipa::path(post, path = "/v1/alarms/{id}/acknowledge", tag = "events",
    params(("id" = String, Path, description = "Id, such as `a3`"), Acknowledging),
    responses((status = 200, description = "The alarm", body = AlarmInfo)))]
async fn acknowledge(
    State(context): State<Context>,
    Names(id): Names<String>,
    Parameters(Acknowledging { by }): Parameters<Acknowledging>,
) -> Result<Json<AlarmInfo>, Problem> {
    if by.is_empty() {
        return Err(Problem::bad_request(
            MessageId::ApiParameter,
            "name the person who acknowledges the alarm: ?by=NAME",
            HINT,
        ));
    }
    let alarm = context.hub.acknowledge(&id, &by);
    let alarm = alarm
        .map_err(|error| AdminError::new(MessageId::AlarmUnknown, error, "GET /v1/alarms lists them"))?;
    Ok(Json(AlarmInfo::from(&alarm)))
}
