//! Errors of the API as RFC 9457 problems, all in one form.
//!
//! `status` and `title` are those of HTTP, `detail` describes the error without terms of Forebay;
//! `kind`, `what` and `hint` are those of the [`AdminError`].

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use forebay_admin::{AdminError, ErrorKind, MessageId};

/// Media type of a problem.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";
/// Seconds after which a refused client may retry.
const RETRY_AFTER_S: &str = "1";

/// The error of a request (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status is the type of the problem, `kind` is more specific.
    #[serde(rename = "type")]
    kind_uri: &'static str,
    /// The name of the status.
    title: &'static str,
    /// The status.
    status: u16,
    /// Same as `what`, for programs that know only RFC 9457.
    detail: String,
    /// Message ID, for scripts: an entry of the table of messages.
    #[schema(value_type = String)]
    id: MessageId,
    /// Kind, for scripts.
    kind: ErrorKind,
    /// The error and its place.
    what: String,
    /// Advice; may be empty.
    hint: String,
}

impl Problem {
    /// Returns a problem with an HTTP status of its own.
    pub(crate) fn new(status: StatusCode, error: AdminError) -> Self {
        let AdminError { id, kind, what, hint } = error;
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            kind_uri: "about:blank",
            title,
            status: status.as_u16(),
            detail: what.clone(),
            id,
            kind,
            what,
            hint,
        }
    }

    /// Returns a problem for a request that cannot be parsed.
    pub(crate) fn bad_request(id: MessageId, what: impl ToString, hint: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, AdminError::new(id, what, hint).of_kind(ErrorKind::Invalid))
    }

    /// Returns a problem for a temporary condition.
    pub(crate) fn unavailable(id: MessageId, what: impl ToString, hint: impl ToString) -> Self {
        AdminError::new(id, what, hint).of_kind(ErrorKind::Unavailable).into()
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let status = match error.kind {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            // A token would not help.
            ErrorKind::Denied if error.id == MessageId::ApiPathNotAllowed => StatusCode::FORBIDDEN,
            ErrorKind::Denied => StatusCode::UNAUTHORIZED,
            ErrorKind::Failed => StatusCode::BAD_GATEWAY,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
            }
            _ => {}
        }
        response
    }
}
