//! An event loop on its own thread, which ends when it is dropped.
//!
//! Invariant: ending it takes no longer than [`ANSWERS_WITHIN`], regardless of its connections.

use super::ApiError;
use std::future::Future;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// Time limit at the end for requests in progress.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// See the top of this file.
#[derive(Debug)]
pub(super) struct EventLoop {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl EventLoop {
    /// Runs the future that `prepare` makes, which ends soon after the receiver passed to it
    /// becomes true.
    ///
    /// # Errors
    /// The system refuses a thread, an event queue, or `prepare` fails.
    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        prepare: impl FnOnce(watch::Receiver<bool>) -> Result<F, ApiError>,
    ) -> Result<Self, ApiError> {
        let failed = |source| ApiError::System { what: "event queue", source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let inside = runtime.enter();
        let serve = prepare(stopping)?;
        drop(inside);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(serve);
        });
        Ok(Self { stop, thread: Some(thread.map_err(ApiError::Thread)?) })
    }

    /// Ends the loop; may be called repeatedly.
    pub(super) fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was reported already
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.end();
    }
}
