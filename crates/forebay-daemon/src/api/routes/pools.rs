//! Pools.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::handler::{Answer, Context, accepted, created};
use crate::api::allowed_paths::AllowedPaths;
use crate::api::extract::{Body, Names, Parameters};
use crate::api::problem::Problem;
use forebay_admin::{
    ExportRequest, GrowRequest, ImportInfo, ImportRequest, JobInfo, OpenHow, PoolInfo, PoolRequest,
    ReplaceRequest, ScrubRequest, ShrinkRequest,
};

/// All pools.
#[utoipa::path(get, path = "/v1/pools", tag = "pools",
    responses((status = 200, description = "All pools", body = [PoolInfo])))]
pub(super) async fn pools(State(context): State<Context>) -> Answer<Vec<PoolInfo>> {
    context.look(|admin| admin.pools()).await.map(Json)
}

/// Creates a pool, or opens the existing one on these devices.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body = PoolRequest,
    responses((status = 201, description = "The pool", body = PoolInfo, headers(("Location" = String)))))]
pub(super) async fn create_pool(
    State(context): State<Context>,
    allowed: AllowedPaths,
    Body(request): Body<PoolRequest>,
) -> Result<Response, Problem> {
    let pool = context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.create_pool(request)))
        .await?;
    Ok(created(&["pools", &pool.name.clone()], pool))
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{pool}", tag = "pools", params(("pool" = String, Path, description = "Name")),
    responses((status = 200, description = "The pool", body = PoolInfo)))]
pub(super) async fn pool(State(context): State<Context>, Names(pool): Names<String>) -> Answer<PoolInfo> {
    context.look(move |admin| admin.pool(&pool)).await.map(Json)
}

/// Parameters of the removal of a pool.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Removal {
    /// Erase its devices, so that they can be used as new ones. Otherwise the cached blocks stay on
    /// them.
    #[serde(default)]
    #[param(required = false)]
    erase: bool,
    /// Remove a pool that cannot be opened from the configuration, with its volumes, even if its
    /// cache has dirty data. Its devices stay as they are.
    #[serde(default)]
    #[param(required = false)]
    force: bool,
}

/// Closes a pool that has no volumes, and removes it from the configuration: a job.
#[utoipa::path(delete, path = "/v1/pools/{pool}", tag = "pools",
    params(("pool" = String, Path, description = "Name"), Removal),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn remove_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Parameters(removal): Parameters<Removal>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.remove_pool(&pool, removal.erase, removal.force)).await.map(accepted)
}

/// Permissions for opening a pool.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Allowed {
    /// Create a new cache if the recorded one is missing, and give that one up: it is refused if it
    /// returns.
    #[serde(default)]
    #[param(required = false)]
    new_cache: bool,
    /// Use a device that is not blank but begins with zeroes: its content is overwritten.
    #[serde(default)]
    #[param(required = false)]
    overwrite: bool,
    /// Create a cache file that leaves less than a tenth of its file system free.
    #[serde(default)]
    #[param(required = false)]
    fill: bool,
}

/// Opens a pool that is configured and not open: opening it failed, or it has stopped by itself.
#[utoipa::path(post, path = "/v1/pools/{pool}/open", tag = "pools",
    params(("pool" = String, Path, description = "Name"), Allowed),
    responses((status = 200, description = "The pool", body = PoolInfo)))]
pub(super) async fn open_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Parameters(Allowed { new_cache, overwrite, fill }): Parameters<Allowed>,
) -> Answer<PoolInfo> {
    let how = OpenHow { new_cache, overwrite, fill };
    context.change(move |admin| admin.open_pool(&pool, how)).await.map(Json)
}

/// Grows a pool while it is in use.
#[utoipa::path(post, path = "/v1/pools/{pool}/grow", tag = "pools", request_body = GrowRequest,
    params(("pool" = String, Path, description = "Name")),
    responses((status = 200, description = "The pool as it is now", body = PoolInfo)))]
pub(super) async fn grow_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    allowed: AllowedPaths,
    Body(request): Body<GrowRequest>,
) -> Answer<PoolInfo> {
    context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.grow_pool(&pool, request)))
        .await
        .map(Json)
}

/// Replaces a healthy device: a job of the pool. Or gives a pool whose cache has failed a new,
/// empty one; its clients are disconnected for a moment.
#[utoipa::path(post, path = "/v1/pools/{pool}/replace", tag = "pools", request_body = ReplaceRequest,
    params(("pool" = String, Path, description = "Name")),
    responses((status = 200, description = "The pool as it is now", body = PoolInfo)))]
pub(super) async fn replace_cache(
    State(context): State<Context>,
    Names(pool): Names<String>,
    allowed: AllowedPaths,
    Body(request): Body<ReplaceRequest>,
) -> Answer<PoolInfo> {
    context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.replace_cache(&pool, request)))
        .await
        .map(Json)
}

/// Shrinks a pool while it is in use: a job.
#[utoipa::path(post, path = "/v1/pools/{pool}/shrink", tag = "pools", request_body = ShrinkRequest,
    params(("pool" = String, Path, description = "Name")),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn shrink_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Body(request): Body<ShrinkRequest>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.shrink_pool(&pool, request)).await.map(accepted)
}

/// Compares all cached blocks of a pool with their checksums while it is in use: a job.
#[utoipa::path(post, path = "/v1/pools/{pool}/scrub", tag = "pools", request_body = ScrubRequest,
    params(("pool" = String, Path, description = "Name")),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn scrub_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Body(request): Body<ScrubRequest>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.scrub_pool(&pool, request)).await.map(accepted)
}

/// Closes a pool with its volumes, writes their settings onto its cache for another host, and
/// removes it from the configuration: a job.
#[utoipa::path(post, path = "/v1/pools/{pool}/export", tag = "pools", request_body = ExportRequest,
    params(("pool" = String, Path, description = "Name")),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn export_pool(
    State(context): State<Context>,
    Names(pool): Names<String>,
    Body(request): Body<ExportRequest>,
) -> Result<Response, Problem> {
    context.change(move |admin| admin.export_pool(&pool, request)).await.map(accepted)
}

/// Opens a pool that was exported, with its settings, and attaches its volumes. A volume whose
/// backing store is missing is attached when the store appears.
#[utoipa::path(post, path = "/v1/import", tag = "pools", request_body = ImportRequest,
    responses((status = 200, description = "The pool and its volumes", body = ImportInfo)))]
pub(super) async fn import_pool(
    State(context): State<Context>,
    allowed: AllowedPaths,
    Body(request): Body<ImportRequest>,
) -> Answer<ImportInfo> {
    context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.import_pool(request)))
        .await
        .map(Json)
}
