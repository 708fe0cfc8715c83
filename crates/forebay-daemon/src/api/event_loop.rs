//! An event loop on a thread of its own, which ends when it is dropped.
//!
//! Invariant: its end takes no longer than twice [`STOP_WITHIN`], whatever its connections do.

use super::ApiError;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How long an end waits for answers under way.
pub(super) const STOP_WITHIN: Duration = Duration::from_millis(300);

/// See the head of this file.
#[derive(Debug)]
pub(super) struct EventLoop {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl EventLoop {
    /// Runs what `prepare` makes, which ends soon after the word that it is given has become true.
    /// `threads` is how many of its calls may block at a time.
    ///
    /// # Errors
    /// The system refuses a thread, an event queue, or what is prepared.
    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        threads: usize,
        prepare: impl FnOnce(watch::Receiver<bool>) -> io::Result<F>,
    ) -> Result<Self, ApiError> {
        let failed = |what| move |source| ApiError::System { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(threads)
            .build()
            .map_err(failed("event queue"))?;
        let (stop, stopping) = watch::channel(false);
        let inside = runtime.enter();
        let serve = prepare(stopping).map_err(failed("socket"))?;
        drop(inside);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(serve);
            runtime.shutdown_timeout(STOP_WITHIN);
        });
        Ok(Self { stop, thread: Some(thread.map_err(failed("thread"))?) })
    }

    /// Ends it; again and again is fine.
    pub(super) fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there has been told already
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.end();
    }
}
