//! Calls into [`Admin`](forebay_admin::Admin), which may block, from the event loop, which may not.
//!
//! Invariants
//! - A call runs on a thread of its own kind: those that look never wait for those that change
//!   something.
//! - There are never more of a kind than its number: a call that lasts longer than its client waits
//!   keeps its place until it returns. So one that hangs costs a fixed number of threads.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use super::problem::Problem;
use forebay_admin::{AdminError, ErrorKind};

/// Threads for calls that look, and for those that change something.
pub(super) const THREADS: usize = LOOKS + CHANGES;
/// Threads for calls that look.
pub(super) const LOOKS: usize = 4;
const CHANGES: usize = 4;

/// A kind of calls.
#[derive(Clone)]
pub(super) struct Calls {
    places: Arc<Semaphore>,
    within: Duration,
    late: &'static str,
}

impl Calls {
    /// Calls that look.
    pub(super) fn looks(within: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(LOOKS)), within, late: "ask again" }
    }

    /// Calls that change something.
    pub(super) fn changes(within: Duration) -> Self {
        let late = "it may still be done: look before you ask again";
        Self { places: Arc::new(Semaphore::new(CHANGES)), within, late }
    }

    /// Makes a call and waits for its answer.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let place = tokio::time::timeout(self.within, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(Problem::unavailable(
                "too many requests are waiting for the engine",
                "try again later",
            ));
        };
        let answer = tokio::task::spawn_blocking(move || {
            let _place = place; // until the call returns, whoever still waits for it
            call()
        });
        match tokio::time::timeout(self.within, answer).await {
            Ok(Ok(answer)) => answer.map_err(Problem::from),
            Ok(Err(_)) => {
                let hint = "this is a defect of the daemon; its log has more";
                let error = AdminError::new(ErrorKind::Failed, "the request could not be carried out", hint);
                Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error))
            }
            Err(_) => {
                let what = format!("there was no answer within {} s", self.within.as_secs_f64());
                Err(Problem::unavailable(what, self.late))
            }
        }
    }
}
