//! Every path of the API: its description, parameters and responses. A handler checks nothing that
//! `extract` can check and decides nothing: it calls [`Admin`] and gives the result a status.

mod advice;
mod daemon;
pub(super) mod events;
mod jobs;
mod overview;
mod pools;
mod rules;
mod settings;
mod stats;
mod traces;
mod volumes;

use std::io;
use std::sync::Arc;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::calls::Calls;
use super::problem::Problem;
use super::{Limits, Services};
use forebay_admin::{Admin, AdminError, JobInfo, MessageId};

/// Path of the statistics for Prometheus.
const METRICS: &str = "/metrics";

/// State shared by the handlers.
#[derive(Clone)]
struct Context {
    admin: Arc<dyn Admin>,
    jobs: forebay_admin::jobs::Jobs,
    events: forebay_admin::events::Hub,
    looks: Calls,
    changes: Calls,
    stopping: watch::Receiver<bool>,
}

impl Context {
    fn new(services: Services, limits: &Limits, stopping: watch::Receiver<bool>) -> io::Result<Self> {
        let changes = Calls::changes(limits.change_within)?;
        Ok(Self { changes, ..Self::looking(services, limits, stopping)? })
    }

    /// For routes that change nothing.
    fn looking(services: Services, limits: &Limits, stopping: watch::Receiver<bool>) -> io::Result<Self> {
        let Services { admin, jobs, events } = services;
        let looks = Calls::looks(limits.look_within)?;
        Ok(Self { admin, jobs, events, changes: looks.clone(), looks, stopping })
    }

    /// Calls a query of [`Admin`].
    async fn look<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Admin) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let admin = self.admin.clone();
        self.looks.make(move || ask(&*admin)).await
    }

    /// Calls an operation of [`Admin`].
    async fn change<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Admin) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let admin = self.admin.clone();
        self.changes.make(move || call(&*admin)).await
    }
}

/// A JSON response with status 200.
type Answer<T> = Result<Json<T>, Problem>;

#[derive(OpenApi)]
#[openapi(
    components(schemas(super::problem::Problem)),
    tags(
        (name = "daemon", description = "The daemon itself"),
        (name = "pools", description = "Cache devices"),
        (name = "volumes", description = "Cached volumes and their exports"),
        (name = "rules", description = "Rules: the caching of requests by client"),
        (name = "jobs", description = "Long operations"),
        (name = "events", description = "Events and alarms"),
        (name = "statistics", description = "Counters and rates"),
    )
)]
struct Skeleton;

fn documented() -> OpenApiRouter<Context> {
    OpenApiRouter::with_openapi(Skeleton::openapi())
        .routes(routes!(daemon::daemon))
        .routes(routes!(settings::daemon_settings, settings::set_daemon))
        .routes(routes!(daemon::reload))
        .routes(routes!(daemon::upgrade))
        .routes(routes!(daemon::test_alarm_command))
        .routes(routes!(daemon::event_history))
        .routes(routes!(daemon::openapi))
        .routes(routes!(pools::pools, pools::create_pool))
        .routes(routes!(pools::pool, pools::remove_pool))
        .routes(routes!(pools::open_pool))
        .routes(routes!(pools::grow_pool))
        .routes(routes!(pools::shrink_pool))
        .routes(routes!(pools::scrub_pool))
        .routes(routes!(pools::replace_cache))
        .routes(routes!(pools::export_pool))
        .routes(routes!(pools::import_pool))
        .routes(routes!(settings::pool_settings, settings::set_pool))
        .routes(routes!(volumes::volumes, volumes::attach_volume))
        .routes(routes!(volumes::volume, volumes::detach_volume))
        .routes(routes!(volumes::losses))
        .routes(routes!(volumes::resize_volume))
        .routes(routes!(volumes::flush_volume))
        .routes(routes!(traces::record_volume))
        .routes(routes!(settings::volume_settings, settings::set_volume))
        .routes(routes!(rules::rules, rules::add_rule))
        .routes(routes!(rules::delete_rule))
        .routes(routes!(jobs::jobs))
        .routes(routes!(jobs::job, jobs::cancel_job))
        .routes(routes!(overview::overview))
        .routes(routes!(stats::stats))
        .routes(routes!(stats::volume_stats))
        .routes(routes!(stats::metrics))
        .routes(routes!(advice::pool_advice))
        .routes(routes!(advice::volume_advice))
}

/// Returns the descriptions of the routes.
pub(super) fn described() -> utoipa::openapi::OpenApi {
    let mut described = documented().into_openapi();
    described.merge(events::documented().into_openapi());
    described
}

/// Returns all routes.
///
/// # Errors
/// There are no threads for calls.
pub(super) fn router(
    services: Services,
    limits: &Limits,
    stopping: watch::Receiver<bool>,
) -> io::Result<Router> {
    let events = services.events.clone();
    let (router, _) = documented().split_for_parts();
    let router = router
        .with_state(Context::new(services, limits, stopping)?)
        .merge(events::router(events, limits.heartbeat))
        .merge(super::ui::router())
        .fallback(async |uri: Uri| not_there(&uri, "GET /v1/openapi.json lists the paths"))
        .method_not_allowed_fallback(not_taken);
    Ok(router)
}

/// Returns only the route of the statistics for Prometheus.
///
/// # Errors
/// There are no threads for calls.
pub(super) fn metrics_router(
    services: Services,
    limits: &Limits,
    stopping: watch::Receiver<bool>,
) -> io::Result<Router> {
    let router = Router::new()
        .route(METRICS, get(stats::metrics))
        .with_state(Context::looking(services, limits, stopping)?)
        .route("/", get(async || "This is Forebay. Its metrics for Prometheus are at /metrics.\n"))
        .fallback(async |uri: Uri| not_there(&uri, "only /metrics is here; the rest is at the admin API"))
        .method_not_allowed_fallback(not_taken);
    Ok(router)
}

fn not_there(uri: &Uri, hint: &str) -> Problem {
    Problem::from(AdminError::new(MessageId::ApiPath, format!("there is no path {}", uri.path()), hint))
}

async fn not_taken(method: Method, uri: Uri) -> Problem {
    let what = format!("{} does not take {method}", uri.path());
    let error = AdminError::new(MessageId::ApiMethod, what, "the header Allow lists the methods");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, error)
}

/// 202: the job was accepted, with its location.
fn accepted(job: JobInfo) -> Response {
    (StatusCode::ACCEPTED, location(&["jobs", &job.id]), Json(job)).into_response()
}

/// 201: the resource was created, with its location.
fn created<T: Serialize>(path: &[&str], what: T) -> Response {
    (StatusCode::CREATED, location(path), Json(what)).into_response()
}

fn location(path: &[&str]) -> [(header::HeaderName, HeaderValue); 1] {
    let path: String = path.iter().map(|part| format!("/{}", escaped(part))).collect();
    // The escaped path is printable ASCII.
    let value = HeaderValue::try_from(format!("/v1{path}")).unwrap_or(HeaderValue::from_static("/v1"));
    [(header::LOCATION, value)]
}

/// Escapes all characters of a path component that are not unreserved in RFC 3986.
fn escaped(part: &str) -> String {
    use std::fmt::Write;
    part.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // writing to a string cannot fail
        }
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_in_a_location_are_escaped() {
        let [(_, value)] = super::location(&["volumes", "a b/ä", "rules", "7"]);
        assert_eq!(value, "/v1/volumes/a%20b%2F%C3%A4/rules/7");
    }
}
