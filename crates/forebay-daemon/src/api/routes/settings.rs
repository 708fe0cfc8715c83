//! Tunables of pools and volumes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::handler::{Answer, Context, location};
use crate::api::allowed_paths::AllowedPaths;
use crate::api::extract::{Body, Names};
use crate::api::problem::Problem;
use forebay_admin::{SettingInfo, SettingsDone, SettingsRequest, Target};

/// Settings of the daemon itself that can be changed at run time.
#[utoipa::path(get, path = "/v1/daemon/settings", tag = "daemon",
    responses((status = 200, description = "By key", body = BTreeMap<String, SettingInfo>)))]
pub(super) async fn daemon_settings(State(context): State<Context>) -> Answer<BTreeMap<String, SettingInfo>> {
    context.look(|admin| Ok(admin.daemon_settings())).await.map(Json)
}

/// Changes settings of the daemon itself: all that are given, or none.
#[utoipa::path(patch, path = "/v1/daemon/settings", tag = "daemon", request_body = SettingsRequest,
    responses((status = 200, description = "The changes", body = SettingsDone)))]
pub(super) async fn set_daemon(
    State(context): State<Context>,
    Body(request): Body<SettingsRequest>,
) -> Answer<SettingsDone> {
    context.change(move |admin| admin.set_daemon(request)).await.map(Json)
}

/// All tunables of a pool.
#[utoipa::path(get, path = "/v1/pools/{pool}/settings", tag = "pools",
    params(("pool" = String, Path, description = "Name")),
    responses((status = 200, description = "By key", body = BTreeMap<String, SettingInfo>)))]
pub(super) async fn pool_settings(
    State(context): State<Context>,
    Names(pool): Names<String>,
) -> Answer<BTreeMap<String, SettingInfo>> {
    context.look(move |admin| admin.settings(Target::Pool(&pool))).await.map(Json)
}

/// Changes tunables of a pool: all that are given, or none.
#[utoipa::path(patch, path = "/v1/pools/{pool}/settings", tag = "pools", request_body = SettingsRequest,
    params(("pool" = String, Path, description = "Name")),
    responses(
        (status = 200, description = "The changes", body = SettingsDone),
        (status = 202, description = "The changes; a job continues", body = SettingsDone, headers(("Location" = String))),
    ))]
pub(super) async fn set_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    allowed: AllowedPaths,
    Body(request): Body<SettingsRequest>,
) -> Result<Response, Problem> {
    context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.set(Target::Pool(&pool), request)))
        .await
        .map(done)
}

/// All tunables of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/settings", tag = "volumes",
    params(("volume" = String, Path, description = "Name")),
    responses((status = 200, description = "By key", body = BTreeMap<String, SettingInfo>)))]
pub(super) async fn volume_settings(
    State(context): State<Context>,
    Names(volume): Names<String>,
) -> Answer<BTreeMap<String, SettingInfo>> {
    context.look(move |admin| admin.settings(Target::Volume(&volume))).await.map(Json)
}

/// Changes tunables of a volume: all that are given, or none.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/settings", tag = "volumes", request_body = SettingsRequest,
    params(("volume" = String, Path, description = "Name")),
    responses(
        (status = 200, description = "The changes", body = SettingsDone),
        (status = 202, description = "The changes; a job continues", body = SettingsDone, headers(("Location" = String))),
    ))]
pub(super) async fn set_volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Body(request): Body<SettingsRequest>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.set(Target::Volume(&volume), request)).await.map(done)
}

fn done(done: SettingsDone) -> Response {
    match done.job.clone() {
        Some(job) => (StatusCode::ACCEPTED, location(&["jobs", &job]), Json(done)).into_response(),
        None => Json(done).into_response(),
    }
}
