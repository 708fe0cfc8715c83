//! Caching rules of a volume.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::handler::{Answer, Context, created};
use crate::api::extract::{Body, Names};
use crate::api::problem::Problem;
use forebay_admin::RuleRequest;

/// Returns the rules of a volume, in order, with their counters.
#[utoipa::path(get, path = "/v1/volumes/{volume}/rules", tag = "rules",
    params(("volume" = String, Path, description = "Name")),
    responses((status = 200, description = "The rules", body = Value)))]
pub(super) async fn rules(State(context): State<Context>, Names(volume): Names<String>) -> Answer<Value> {
    context.look(move |admin| admin.rules(&volume)).await.map(Json)
}

/// Adds a rule.
#[utoipa::path(post, path = "/v1/volumes/{volume}/rules", tag = "rules", request_body = RuleRequest,
    params(("volume" = String, Path, description = "Name")),
    responses((status = 201, description = "Its number, and warnings about rules that never apply now",
        body = Value, headers(("Location" = String)))))]
pub(super) async fn add_rule(
    State(context): State<Context>,
    Names(volume): Names<String>,
    Body(request): Body<RuleRequest>,
) -> Result<Response, Problem> {
    let name = volume.clone();
    let rule = context.change(move |admin| admin.add_rule(&name, request)).await?;
    let id = match &rule["id"] {
        Value::String(id) => id.clone(),
        id => id.to_string(),
    };
    Ok(created(&["volumes", &volume, "rules", &id], rule))
}

/// Deletes a rule.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/rules/{id}", tag = "rules",
    params(("volume" = String, Path, description = "Name"), ("id" = String, Path, description = "Number of the rule")),
    responses((status = 204, description = "It is deleted")))]
pub(super) async fn delete_rule(
    State(context): State<Context>,
    Names((volume, id)): Names<(String, String)>,
) -> Result<StatusCode, Problem> {
    context.change(move |admin| admin.delete_rule(&volume, &id)).await.map(|()| StatusCode::NO_CONTENT)
}
