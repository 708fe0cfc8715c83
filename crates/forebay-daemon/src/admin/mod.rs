//! The admin API: HTTP/JSON over a unix socket, for `forebay stats`, dashboards and scripts.
//!
//! | path | answer |
//! | --- | --- |
//! | `GET /v1/stats` | one JSON object: counters, gauges, what follows from them, rates and latencies by window |
//! | `GET /v1/stats/flashcache` | the counters under FlashCache's names |
//! | `GET /metrics` | counters, gauges and latencies for Prometheus (OpenMetrics text) |
//! | `GET /v1/openapi.json` | this table as an OpenAPI document |
//!
//! Invariants
//! - It only looks: a request reads a [`Snapshot`] and changes nothing.
//! - It has a thread of its own. A slow or silent client cannot hold up the engine, and an engine that does not answer
//!   within [`ANSWER_WITHIN`] costs the client an error 503, not a connection that hangs.
//! - A socket on which another server answers is left alone; one that a dead server left is replaced. The file's mode
//!   is 0660, so whoever may use the socket is decided by its owner, its group and its folder.
//! - [`AdminServer`] stops, and removes its socket, when it is dropped.
//!
//! This module does not know the engine: it asks a [`Source`].

mod openapi;

pub use crate::meter::Snapshot;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::meter::{Report, format};

/// Longest time that the engine may take for a snapshot.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a stop waits for answers under way.
const STOP_WITHIN: Duration = Duration::from_millis(200);
/// Owner and group may connect, nobody else.
const SOCKET_MODE: u32 = 0o660;

/// Whoever can tell how the engine is.
pub trait Source: Send + Sync + 'static {
    /// Asks the engine; `None` if it has ended. May block.
    fn snapshot(&self) -> Option<Snapshot>;
}

/// Why the admin API could not be started.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The socket cannot be had.
    #[error("admin socket: {0}")]
    Socket(#[from] forebay_io::SocketError),
    /// The system refused a thread or an event queue.
    #[error("admin API: {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A running admin API. Stops when dropped.
#[derive(Debug)]
pub struct AdminServer {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(()); // an error says that the thread has already ended
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Serves the admin API on `socket` until the result is dropped.
///
/// # Errors
/// The socket is in use, is not a socket, or cannot be made; the system refuses a thread.
pub fn serve(socket: &Path, source: Arc<dyn Source>) -> Result<AdminServer, AdminError> {
    let listener = UnixListener::from(forebay_io::listen_unix(socket, SOCKET_MODE)?);
    let failed = |what| move |source| AdminError::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(4)
        .build()
        .map_err(failed("event queue"))?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(listener).map_err(failed("socket"))?
    };
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("forebay-admin".into())
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = axum::serve(listener, router(source)) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_timeout(STOP_WITHIN);
        })
        .map_err(failed("thread"))?;
    Ok(AdminServer { socket: socket.into(), stop: Some(stop), thread: Some(thread) })
}

fn router(source: Arc<dyn Source>) -> Router {
    Router::new()
        .route("/v1/stats", get(stats))
        .route("/v1/stats/flashcache", get(flashcache))
        .route("/metrics", get(metrics))
        .route("/v1/openapi.json", get(async || Json(openapi::document())))
        .fallback(async || {
            let paths = "GET /v1/stats, GET /v1/stats/flashcache, GET /metrics, GET /v1/openapi.json";
            problem(StatusCode::NOT_FOUND, &format!("there is no such path; there are {paths}"))
        })
        .with_state(source)
}

async fn stats(State(source): State<Arc<dyn Source>>) -> Response {
    match ask(source).await {
        Ok(report) => Json(format::object(&report)).into_response(),
        Err(answer) => answer,
    }
}

async fn flashcache(State(source): State<Arc<dyn Source>>) -> Response {
    match ask(source).await {
        Ok(report) => format::flashcache::text(&report.counters).into_response(),
        Err(answer) => answer,
    }
}

async fn metrics(State(source): State<Arc<dyn Source>>) -> Response {
    let report = match ask(source).await {
        Ok(report) => report,
        Err(answer) => return answer,
    };
    match format::prometheus(vec![report]) {
        Ok(text) => ([(header::CONTENT_TYPE, format::PROMETHEUS_CONTENT_TYPE)], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Asks the engine, and computes, on a thread that may block.
async fn ask(source: Arc<dyn Source>) -> Result<Report, Response> {
    let asked = tokio::task::spawn_blocking(move || source.snapshot().map(Snapshot::report));
    match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(Some(report))) => Ok(report),
        Ok(_) => Err(problem(StatusCode::SERVICE_UNAVAILABLE, "the volume is being stopped")),
        Err(_) => Err(problem(StatusCode::SERVICE_UNAVAILABLE, "the engine did not answer in time")),
    }
}

fn problem(status: StatusCode, what: &str) -> Response {
    (status, Json(serde_json::json!({ "error": what }))).into_response()
}

#[cfg(test)]
mod tests;
