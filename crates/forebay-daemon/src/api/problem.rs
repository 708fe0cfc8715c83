//! Errors of the API as RFC 9457 problems, all in one form.
//!
//! `status` and `title` are those of HTTP, `detail` says what was wrong for people who know nothing
//! of Forebay; `kind`, `what` and `hint` are a [`AdminError`] as it is.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use forebay_admin::{AdminError, ErrorKind, MessageId};

/// Media type of a problem.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";
/// When a client that was turned away may come back.
const RETRY_AFTER_S: &str = "1";

/// Why a request was not answered as asked (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status says which type of problem it is, `kind` says more.
    #[serde(rename = "type")]
    kind_uri: &'static str,
    /// The name of the status.
    title: &'static str,
    /// The status.
    status: u16,
    /// Same as `what`, for programs that know RFC 9457 only.
    detail: String,
    /// What it is about, for scripts: an id of the table of messages.
    #[schema(value_type = String)]
    id: MessageId,
    /// Kind, for scripts.
    kind: ErrorKind,
    /// What was wrong, and where.
    what: String,
    /// What to do; may be empty.
    hint: String,
}

impl Problem {
    /// A problem of HTTP rather than of what was asked.
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

    /// The request itself cannot be understood.
    pub(crate) fn bad_request(id: MessageId, what: impl ToString, hint: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, AdminError::new(id, what, hint).of_kind(ErrorKind::Invalid))
    }

    /// Not now.
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
