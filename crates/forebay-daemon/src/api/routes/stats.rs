//! Statistics.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::handler::{Answer, Context};
use crate::api::extract::{Names, Parameters};
use crate::api::problem::Problem;
use forebay_admin::MetricsForm;

/// Statistics of all pools and volumes.
#[utoipa::path(get, path = "/v1/stats", tag = "statistics",
    responses((status = 200, description = "Statistics", body = Value)))]
pub(super) async fn stats(State(context): State<Context>) -> Answer<Value> {
    context.look(|admin| admin.stats(None)).await.map(Json)
}

/// Form of statistics.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Format {
    /// Forebay's names, with units.
    #[default]
    Json,
    /// FlashCache's names, as text.
    Flashcache,
}

/// Parameters of statistics.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Formatting {
    /// Form of the response.
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

/// Prometheus' text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Statistics for Prometheus: its own text, or OpenMetrics if the client prefers it (`Accept`).
#[utoipa::path(get, path = "/metrics", tag = "statistics",
    responses((status = 200, description = "Metrics", content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ))))]
pub(super) async fn metrics(State(context): State<Context>, headers: HeaderMap) -> Result<Response, Problem> {
    let form = wanted(&headers);
    let kind = match form {
        MetricsForm::Text => TEXT,
        MetricsForm::OpenMetrics => OPEN_METRICS,
    };
    let text = context.look(move |admin| admin.metrics(form)).await?;
    Ok(([(header::CONTENT_TYPE, kind), (header::VARY, "Accept")], text).into_response())
}

/// Returns the client's preferred text, by the `Accept` of RFC 9110. Unparsable parts are ignored.
fn wanted(headers: &HeaderMap) -> MetricsForm {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut text, mut open) = (0.0_f64, 0.0_f64);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        let quality = quality.map_or(Some(1.0), |text| text.parse::<f64>().ok()).unwrap_or(0.0);
        match kind.as_str() {
            "application/openmetrics-text" => open = open.max(quality),
            "text/plain" | "text/*" | "*/*" => text = text.max(quality),
            _ => {}
        }
    }
    if open > 0.0 && open >= text { MetricsForm::OpenMetrics } else { MetricsForm::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_format_is_chosen() {
        let wanted_by = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.append(header::ACCEPT, accept.parse().unwrap());
            wanted(&headers)
        };
        assert_eq!(wanted(&HeaderMap::new()), MetricsForm::Text);
        for text in [
            "*/*",
            "text/plain;version=0.0.4",
            "application/openmetrics-text;q=0.5, text/plain;q=0.7",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=much",
            ";;,q=,",
        ] {
            assert_eq!(wanted_by(text), MetricsForm::Text, "{text}");
        }
        for open in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "Application/OpenMetrics-Text",
        ] {
            assert_eq!(wanted_by(open), MetricsForm::OpenMetrics, "{open}");
        }
    }
}
