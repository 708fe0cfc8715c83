//! What the handlers share: their state, and the forms of responses.

use super::super::calls::Calls;
use super::super::problem::Problem;
use super::super::{Limits, Services};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_admin::{Admin, AdminError, JobInfo};
use serde::Serialize;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// State shared by the handlers.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) admin: Arc<dyn Admin>,
    pub(super) jobs: forebay_admin::jobs::Jobs,
    pub(super) events: forebay_admin::events::Hub,
    pub(super) looks: Calls,
    pub(super) changes: Calls,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Context {
    pub(super) fn new(
        services: Services,
        limits: &Limits,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let changes = Calls::changes(limits.change_within)?;
        Ok(Self { changes, ..Self::looking(services, limits, stopping)? })
    }

    /// For routes that change nothing.
    pub(super) fn looking(
        services: Services,
        limits: &Limits,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let Services { admin, jobs, events } = services;
        let looks = Calls::looks(limits.look_within)?;
        Ok(Self { admin, jobs, events, changes: looks.clone(), looks, stopping })
    }

    /// Calls a query of [`Admin`].
    pub(super) async fn look<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Admin) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let admin = self.admin.clone();
        self.looks.make(move || ask(&*admin)).await
    }

    /// Calls an operation of [`Admin`].
    pub(super) async fn change<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Admin) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let admin = self.admin.clone();
        self.changes.make(move || call(&*admin)).await
    }
}

/// A JSON response with status 200.
pub(super) type Answer<T> = Result<Json<T>, Problem>;

/// 202: the job was accepted, with its location.
pub(super) fn accepted(job: JobInfo) -> Response {
    (StatusCode::ACCEPTED, location(&["jobs", &job.id]), Json(job)).into_response()
}

/// 201: the resource was created, with its location.
pub(super) fn created<T: Serialize>(path: &[&str], what: T) -> Response {
    (StatusCode::CREATED, location(path), Json(what)).into_response()
}

pub(super) fn location(path: &[&str]) -> [(header::HeaderName, HeaderValue); 1] {
    let path: String = path.iter().map(|part| format!("/{}", escaped(part))).collect();
    // The escaped path is printable ASCII.
    let value = HeaderValue::try_from(format!("/v1{path}")).unwrap_or(HeaderValue::from_static("/v1"));
    [(header::LOCATION, value)]
}

/// Escapes all characters of a path component that are not unreserved in RFC 3986.
fn escaped(part: &str) -> String {
    use std::fmt::Write;
    part.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // writing to a string cannot fail
        }
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_in_a_location_are_escaped() {
        let [(_, value)] = super::location(&["volumes", "a b/ä", "rules", "7"]);
        assert_eq!(value, "/v1/volumes/a%20b%2F%C3%A4/rules/7");
    }
}
