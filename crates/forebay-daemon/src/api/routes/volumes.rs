//! Volumes.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::handler::{Answer, Context, accepted, created};
use super::jobs::duration;
use crate::api::allowed_paths::AllowedPaths;
use crate::api::extract::{Body, Names, Parameters};
use crate::api::problem::Problem;
use forebay_admin::{DetachHow, DetachRequest, JobInfo, LossInfo, VolumeInfo, VolumeRequest};

/// All volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, description = "All volumes", body = [VolumeInfo])))]
pub(super) async fn volumes(State(context): State<Context>) -> Answer<Vec<VolumeInfo>> {
    context.look(|admin| admin.volumes()).await.map(Json)
}

/// Attaches a volume to its backing store and serves it.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = VolumeRequest,
    responses((status = 201, description = "The volume", body = VolumeInfo, headers(("Location" = String)))))]
pub(super) async fn attach_volume(
    State(context): State<Context>,
    allowed: AllowedPaths,
    Body(request): Body<VolumeRequest>,
) -> Result<Response, Problem> {
    let volume = context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.attach_volume(request)))
        .await?;
    Ok(created(&["volumes", &volume.name.clone()], volume))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes",
    params(("volume" = String, Path, description = "Name")),
    responses((status = 200, description = "The volume", body = VolumeInfo)))]
pub(super) async fn volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
) -> Answer<VolumeInfo> {
    context.look(move |admin| admin.volume(&volume)).await.map(Json)
}

/// Lost ranges of a volume whose cache failed, by address: reads of them return errors until they
/// are written.
#[utoipa::path(get, path = "/v1/volumes/{volume}/losses", tag = "volumes",
    params(("volume" = String, Path, description = "Name")),
    responses((status = 200, description = "The ranges; none if nothing is lost", body = [LossInfo])))]
pub(super) async fn losses(
    State(context): State<Context>,
    Names(volume): Names<String>,
) -> Answer<Vec<LossInfo>> {
    context.look(move |admin| admin.losses(&volume)).await.map(Json)
}

/// Parameters of a detach.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Detachment {
    /// Treatment of dirty data.
    #[serde(default)]
    #[param(required = false, inline)]
    how: DetachHow,
    /// Also if it is in use. Requests in progress are answered; then connections are closed, and
    /// files removed.
    #[serde(default)]
    #[param(required = false)]
    force: bool,
    /// Destage everything, then write the backing file to this absolute path, which must not exist:
    /// for a file that was deleted or replaced while it is served.
    save_to: Option<String>,
}

/// Detaches a volume: a job. 409 if it is in use, or if its backing file was unlinked.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes",
    params(("volume" = String, Path, description = "Name"), Detachment),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn detach_volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
    allowed: AllowedPaths,
    Parameters(detachment): Parameters<Detachment>,
) -> Result<Response, Problem> {
    let Detachment { how, force, save_to } = detachment;
    let request = DetachRequest { how, force, save_to };
    context
        .change(move |admin| allowed.check(&request).and_then(|()| admin.detach_volume(&volume, request)))
        .await
        .map(accepted)
}

/// A new size for a volume.
#[derive(serde::Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResizeRequest {
    /// New size, such as `20GiB`; `max` for all of the backing store.
    #[schema(example = "20GiB")]
    size: String,
    /// Shrink it even if it is in use: its clients lose the data beyond the new end.
    #[serde(default)]
    force: bool,
}

/// Resizes a volume: a job, short if it grows. 409 if it would shrink and is in use.
#[utoipa::path(post, path = "/v1/volumes/{volume}/resize", tag = "volumes", request_body = ResizeRequest,
    params(("volume" = String, Path, description = "Name")),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn resize_volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Body(request): Body<ResizeRequest>,
) -> Result<Response, Problem> {
    let ResizeRequest { size, force } = request;
    context.change(move |admin| admin.resize_volume(&volume, &size, force)).await.map(accepted)
}

/// Parameters of a flush.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Flushing {
    /// Time limit, such as `10min`, after which the job fails.
    deadline: Option<String>,
}

/// Destages all blocks that are dirty now: a job.
#[utoipa::path(post, path = "/v1/volumes/{volume}/flush", tag = "volumes",
    params(("volume" = String, Path, description = "Name"), Flushing),
    responses((status = 202, description = "The job", body = JobInfo, headers(("Location" = String)))))]
pub(super) async fn flush_volume(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Parameters(flushing): Parameters<Flushing>,
) -> Result<Response, Problem> {
    let deadline = flushing.deadline.map(|text| duration("deadline", &text)).transpose()?;
    context.change(move |admin| admin.flush_volume(&volume, deadline)).await.map(accepted)
}
