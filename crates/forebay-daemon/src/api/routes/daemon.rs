//! The daemon itself.

use axum::Json;
use axum::extract::State;

use super::{Answer, Context};
use forebay_admin::{DaemonInfo, ReloadDone, UpgradeBegun};

/// About the daemon.
#[utoipa::path(get, path = "/v1/daemon", tag = "daemon",
    responses((status = 200, description = "Version, process, names of pools and volumes", body = DaemonInfo)))]
pub(super) async fn daemon(State(context): State<Context>) -> Answer<DaemonInfo> {
    context.look(|admin| Ok(admin.daemon())).await.map(Json)
}

/// Reads the configuration file again and does what has changed in it.
#[utoipa::path(post, path = "/v1/reload", tag = "daemon",
    responses((status = 200, description = "What was changed and what was not", body = ReloadDone)))]
pub(super) async fn reload(State(context): State<Context>) -> Answer<ReloadDone> {
    context.change(|admin| admin.reload()).await.map(Json)
}

/// Starts a successor and passes pools and clients to it; its process answers `GET /v1/daemon` once
/// it has taken over.
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
