//! Every path of the API: its description, parameters and responses. A handler checks nothing that
//! `extract` can check and decides nothing: it calls `Admin` and gives the result a status.

mod advice;
mod daemon;
pub(super) mod events;
mod handler;
mod jobs;
mod overview;
mod pools;
mod rules;
mod settings;
mod stats;
mod traces;
mod volumes;

use std::io;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::Problem;
use super::{Limits, Services};
use forebay_admin::{AdminError, MessageId};
use handler::Context;

/// Path of the statistics for Prometheus.
const METRICS: &str = "/metrics";

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
