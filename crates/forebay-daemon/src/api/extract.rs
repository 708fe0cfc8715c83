//! Input of a request: names in the path, parameters of the query, a JSON body. Each is checked as
//! a whole, within bounds, and refused in the form of a [`Problem`].

use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

use super::problem::Problem;
use forebay_admin::{AdminError, MessageId};

/// Largest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// Time limit for receiving a body.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(15);

/// Names in the path: a text, or a tuple of texts.
pub(crate) struct Names<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Names<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = Path::<T>::from_request_parts(parts, state).await;
        names.map(|Path(names)| Self(names)).map_err(|error| {
            Problem::bad_request(
                MessageId::ApiParameter,
                error.body_text(),
                "names in a path are UTF-8, escaped as %XX where needed",
            )
        })
    }
}

/// Parameters of the query. Their structures refuse unknown keys.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let parameters = Query::<T>::try_from_uri(&parts.uri);
        parameters.map(|Query(parameters)| Self(parameters)).map_err(|error| {
            Problem::bad_request(
                MessageId::ApiParameter,
                error.body_text(),
                "GET /v1/openapi.json lists the parameters",
            )
        })
    }
}

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Serialize> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                AdminError::new(
                    MessageId::ApiContentType,
                    "the body must be JSON",
                    "send the header Content-Type: application/json",
                ),
            ));
        }
        let bytes = tokio::time::timeout(BODY_WITHIN, read(request.into_body()));
        let bytes = bytes.await.map_err(|_| too_slow())??;
        let body: T = serde_json::from_slice(&bytes).map_err(|error| not_understood(&error))?;
        let (sent, meant) = (serde_json::from_slice(&bytes), serde_json::to_value(&body));
        match (sent, meant) {
            (Ok(sent), Ok(meant)) if has_shape_of(&sent, &meant) => Ok(Self(body)),
            _ => {
                let what = "unexpected body: it has a list in place of an object";
                Err(AdminError::new(MessageId::ApiBody, what, "name the fields").into())
            }
        }
    }
}

/// Returns true if `sent` has objects where `meant` has them. Deserialization also accepts lists of
/// fields, whose order is not part of the API.
fn has_shape_of(sent: &Value, meant: &Value) -> bool {
    match (sent, meant) {
        (Value::Object(sent), Value::Object(meant)) => {
            sent.iter().all(|(key, sent)| meant.get(key).is_none_or(|meant| has_shape_of(sent, meant)))
        }
        (Value::Array(sent), Value::Array(meant)) => {
            sent.iter().zip(meant).all(|(sent, meant)| has_shape_of(sent, meant))
        }
        (sent, meant) => !(meant.is_object() || sent.is_object() && meant.is_array()),
    }
}

/// Refuses a body whose declared length is too large, before reading it.
pub(super) fn check_length(headers: &HeaderMap) -> Result<(), Problem> {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX as u64) { Err(too_large()) } else { Ok(()) }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

async fn read(body: HttpBody) -> Result<axum::body::Bytes, Problem> {
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Problem::bad_request(
            MessageId::ApiBody,
            format!("the body was not received: {error}"),
            "send it again",
        )),
    }
}

fn not_understood(error: &serde_json::Error) -> Problem {
    // The message ends with line and column.
    let hint = "GET /v1/openapi.json describes every body";
    if error.is_data() {
        let what = format!("unexpected body: {error}");
        return AdminError::new(MessageId::ApiBody, what, hint).into();
    }
    Problem::bad_request(MessageId::ApiBody, format!("the body is not JSON: {error}"), hint)
}

fn too_large() -> Problem {
    let what = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    let error = AdminError::new(MessageId::ApiBodySize, what, "send less at a time");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error)
}

fn too_slow() -> Problem {
    let what = format!("the body was not received within {} s", BODY_WITHIN.as_secs());
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        AdminError::new(MessageId::ApiBodyLate, what, "send it at once"),
    )
}
