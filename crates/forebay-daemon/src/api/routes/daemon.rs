//! The daemon itself.

use axum::Json;
use axum::extract::State;

use super::events::filter_and;
use super::handler::{Answer, Context};
use crate::api::Parameters;
use forebay_admin::events::Filter;
use forebay_admin::{
    AdminError, AlarmTested, DaemonInfo, ErrorKind, EventHistory, MessageId, ReloadDone, UpgradeBegun,
};

/// Returns information about the daemon.
#[utoipa::path(get, path = "/v1/daemon", tag = "daemon",
    responses((status = 200, description = "Version, process, names of pools and volumes", body = DaemonInfo)))]
pub(super) async fn daemon(State(context): State<Context>) -> Answer<DaemonInfo> {
    context.look(|admin| Ok(admin.daemon())).await.map(Json)
}

/// Reloads the configuration file and applies its changes.
#[utoipa::path(post, path = "/v1/reload", tag = "daemon",
    responses((status = 200, description = "Applied and refused changes", body = ReloadDone)))]
pub(super) async fn reload(State(context): State<Context>) -> Answer<ReloadDone> {
    context.change(|admin| admin.reload()).await.map(Json)
}

/// Returns events since a time, oldest first, including earlier runs of the daemon: the newest
/// 10,000.
#[utoipa::path(get, path = "/v1/events/history", tag = "events", params(
        ("since_unix_s" = Option<u64>, Query, description = "Not older than this, in seconds since 1970"),
        ("kind" = Option<String>, Query, description = "Only these kinds or groups of kinds, with commas"),
        ("volume" = Option<String>, Query, description = "Only events about this volume"),
        ("pool" = Option<String>, Query, description = "Only events about this pool"),
        ("job" = Option<String>, Query, description = "Only events about this job"),
        ("severity" = Option<String>, Query, description = "Lowest severity: `info` (default), `warning`, `error`"),
    ),
    responses((status = 200, description = "The events", body = EventHistory)))]
pub(super) async fn event_history(
    State(context): State<Context>,
    Parameters(conditions): Parameters<Vec<(String, String)>>,
) -> Answer<EventHistory> {
    let (since_unix_ns, filter) = wanted_history(&conditions).map_err(|what| {
        let hint = "GET /v1/openapi.json lists the parameters";
        AdminError::new(MessageId::ApiParameter, what, hint).of_kind(ErrorKind::Invalid)
    })?;
    context.look(move |admin| admin.event_history(since_unix_ns, filter)).await.map(Json)
}

fn wanted_history(conditions: &[(String, String)]) -> Result<(u64, Filter), String> {
    let (filter, since) = filter_and(conditions, "since_unix_s")?;
    let seconds = |text: &str| -> Result<u64, String> {
        text.parse().map_err(|_| format!("since_unix_s: \"{text}\" is not a whole number"))
    };
    Ok((since.map_or(Ok(0), seconds)?.saturating_mul(1_000_000_000), filter))
}

/// Runs the alarm program (`alarm_command`) once, with a test alarm, and waits for it: at most 30
/// s.
#[utoipa::path(post, path = "/v1/alarms/test", tag = "events",
    responses((status = 200, description = "It has ended with exit code 0", body = AlarmTested)))]
pub(super) async fn test_alarm_command(State(context): State<Context>) -> Answer<AlarmTested> {
    context.change(|admin| admin.test_alarm_command()).await.map(Json)
}

/// Starts a successor and hands pools and clients over to it; its process answers `GET /v1/daemon`
/// once it has taken over.
#[utoipa::path(post, path = "/v1/upgrade", tag = "daemon",
    responses((status = 200, description = "The successor, which has read the configuration", body = UpgradeBegun)))]
pub(super) async fn upgrade(State(context): State<Context>) -> Answer<UpgradeBegun> {
    context.change(|admin| admin.upgrade()).await.map(Json)
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "daemon",
    responses((status = 200, description = "The OpenAPI document", body = serde_json::Value)))]
pub(super) async fn openapi() -> Json<serde_json::Value> {
    Json(crate::api::document())
}
