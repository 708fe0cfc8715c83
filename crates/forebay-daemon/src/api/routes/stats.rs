//! Statistics.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::{Answer, Context};
use crate::api::extract::{Names, Parameters};
use crate::api::problem::Problem;
use forebay_pool::meter::format::PROMETHEUS_CONTENT_TYPE;

/// Statistics of everything.
#[utoipa::path(get, path = "/v1/stats", tag = "statistics",
    responses((status = 200, description = "Statistics", body = Value)))]
pub(super) async fn stats(State(context): State<Context>) -> Answer<Value> {
    context.look(|admin| admin.stats(None)).await.map(Json)
}

/// In which form statistics are wanted.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Format {
    /// Our names, with units.
    #[default]
    Json,
    /// FlashCache's names, as text.
    Flashcache,
}

/// How statistics are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Formatting {
    /// Form of the answer.
    #[serde(default)]
    #[param(required = false, inline)]
    format: Format,
}

/// Statistics of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/stats", tag = "statistics",
    params(("volume" = String, Path, description = "Name"), Formatting),
    responses((status = 200, description = "Statistics", content(
        (Value = "application/json"),
        (String = "text/plain; charset=utf-8"),
    ))))]
pub(super) async fn volume_stats(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Parameters(formatting): Parameters<Formatting>,
) -> Result<Response, Problem> {
    Ok(match formatting.format {
        Format::Json => Json(context.look(move |admin| admin.stats(Some(&volume))).await?).into_response(),
        Format::Flashcache => context.look(move |admin| admin.flashcache(&volume)).await?.into_response(),
    })
}

/// Statistics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "statistics",
    responses((status = 200, description = "OpenMetrics text", body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub(super) async fn metrics(State(context): State<Context>) -> Result<Response, Problem> {
    let text = context.look(|admin| admin.metrics()).await?;
    Ok(([(header::CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE)], text).into_response())
}
