//! Calls into [`Admin`](forebay_admin::Admin), which may block, from the event loop, which may not.
//!
//! Invariants
//! - A call runs on a thread of its own kind: queries never wait for changes.
//! - All threads exist before the first request is taken: a call with a place is always executed,
//!   even if the system runs out of resources later. A call without one is not begun.
//! - The number of threads of a kind is fixed: a call that outlasts its client's wait keeps its
//!   place until it returns. So a call that hangs costs a fixed number of threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Semaphore, oneshot};

use super::problem::Problem;
use forebay_admin::{AdminError, MessageId};

/// Threads for queries.
const LOOKS: usize = 4;
/// Threads for changes.
const CHANGES: usize = 4;

/// A call in transit to a thread.
type Task = Box<dyn FnOnce() + Send>;

/// A kind of calls.
#[derive(Clone)]
pub(super) struct Calls {
    places: Arc<Semaphore>,
    tasks: mpsc::Sender<Task>,
    within: Duration,
    late: &'static str,
}

impl Calls {
    /// Creates the threads for queries.
    ///
    /// # Errors
    /// The threads cannot be created.
    pub(super) fn looks(within: Duration) -> io::Result<Self> {
        let (places, tasks) = (Arc::new(Semaphore::new(LOOKS)), start("api-look", LOOKS)?);
        Ok(Self { places, tasks, within, late: "try again" })
    }

    /// Creates the threads for changes.
    ///
    /// # Errors
    /// The threads cannot be created.
    pub(super) fn changes(within: Duration) -> io::Result<Self> {
        let (places, tasks) = (Arc::new(Semaphore::new(CHANGES)), start("api-change", CHANGES)?);
        Ok(Self { places, tasks, within, late: "it may still be done: check before you try again" })
    }

    /// Makes a call and waits for its answer.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, Problem> {
        let place = tokio::time::timeout(self.within, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(Problem::unavailable(
                MessageId::ApiTooMany,
                "too many requests are waiting for the engine",
                "try again later",
            ));
        };
        let (tell, answer) = oneshot::channel();
        let task: Task = Box::new(move || {
            let _place = place; // until the call returns, even without a waiting client
            let _ = tell.send(call());
        });
        if self.tasks.send(task).is_err() {
            return Err(defect());
        }
        match tokio::time::timeout(self.within, answer).await {
            Ok(Ok(answer)) => answer.map_err(Problem::from),
            Ok(Err(_)) => Err(defect()), // it has panicked
            Err(_) => {
                let what = format!("there was no answer within {} s", self.within.as_secs_f64());
                Err(Problem::unavailable(MessageId::ApiNotAnswered, what, self.late))
            }
        }
    }
}

fn defect() -> Problem {
    let hint = "this is a defect of the daemon; see its log";
    let error = AdminError::new(MessageId::ApiInternal, "the request could not be carried out", hint);
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error)
}

/// Starts threads that execute calls until the sender is dropped.
fn start(name: &str, count: usize) -> io::Result<mpsc::Sender<Task>> {
    let (tasks, queue) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..count {
        let queue = Arc::clone(&queue);
        std::thread::Builder::new().name(name.into()).spawn(move || work(&queue))?;
    }
    Ok(tasks)
}

fn work(queue: &Mutex<mpsc::Receiver<Task>>) {
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        // The waiting client gets an error if the call panics, and the thread remains for the next
        // one.
        let _ = catch_unwind(AssertUnwindSafe(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn panicking_call_is_answered() {
        let calls = Calls::looks(Duration::from_secs(30)).unwrap();
        wait(async {
            for _ in 0..3 * LOOKS {
                let answer = calls.make(|| -> Result<(), AdminError> { panic!("planted by a test") }).await;
                assert_eq!(answer.unwrap_err(), defect());
            }
            assert_eq!(calls.make(|| Ok(7)).await.unwrap(), 7);
        });
    }

    #[test]
    fn call_without_a_place_is_not_begun() {
        let calls = Calls::looks(Duration::from_millis(50)).unwrap();
        let (go, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let (did, done) = mpsc::channel::<()>();
        wait(async {
            for _ in 0..LOOKS {
                let hangs = Arc::clone(&hangs);
                let late = calls.make(move || Ok(hangs.lock().unwrap().recv().is_err())).await;
                assert!(late.is_err());
            }
            assert!(calls.make(move || Ok(did.send(()).is_ok())).await.is_err());
        });
        drop(go);
        assert!(done.recv().is_err(), "it was called too late, and was done");
    }
}
