//! Stores and devices that hang hold up whoever asked for them, for a bounded time, and nobody else.
//!
//! What may wait for a device runs on a thread of its own. Who has asked waits for [`STORE_WITHIN`] and is told that it failed; what
//! comes of it later is thrown away (a device that was opened is closed again). As long as such a thread hangs, the same place is not
//! asked again: so there is one thread for each.

use super::lock;
use crate::control::{ControlError, ErrorKind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// A device has so long to be opened and looked at.
pub(super) const STORE_WITHIN: Duration = Duration::from_secs(20);

/// Places that threads wait for.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Patience {
    /// Runs `work`, which may wait for what is at `place`.
    ///
    /// # Errors
    /// It does not come back in time, or an earlier one has not: whatever it does then is undone when it ends.
    pub(super) fn run<T: Send + 'static>(
        &self,
        place: &Path,
        within: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        let hangs = |since: &str| {
            let hint = "nothing was changed; look why the device hangs, then try again";
            let what = format!("{} does not answer{since}", place.display());
            ControlError::new(ErrorKind::Failed, what, hint)
        };
        if !lock(&self.0).insert(place.to_owned()) {
            // What it holds of the device may wait as well to be closed.
            let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(work));
            return Err(hangs(": an earlier attempt to open it still waits"));
        }
        let (answer, answered) = mpsc::sync_channel(0); // who comes too late finds nobody
        let (places, ours) = (Arc::clone(&self.0), place.to_owned());
        let run = move || {
            let done = work();
            lock(&places).remove(&ours);
            let _ = answer.send(done);
        };
        if let Err(error) = std::thread::Builder::new().name("open".into()).spawn(run) {
            lock(&self.0).remove(place);
            return Err(ControlError::new(ErrorKind::Failed, format!("cannot start a thread: {error}"), ""));
        }
        answered.recv_timeout(within).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => hangs(&format!(" within {} s", within.as_secs_f64())),
            mpsc::RecvTimeoutError::Disconnected => {
                lock(&self.0).remove(place);
                ControlError::new(
                    ErrorKind::Failed,
                    format!("opening {} failed", place.display()),
                    "see the log",
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_hangs_is_given_up_and_thrown_away_and_holds_up_nobody_else() {
        struct Opened(mpsc::Sender<()>);
        impl Drop for Opened {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let patience = Patience::default();
        let (go, hangs) = mpsc::channel::<()>();
        let (closed, closes) = mpsc::channel();
        let work = move || {
            let _ = hangs.recv();
            Opened(closed)
        };
        let short = Duration::from_millis(10);
        let late = patience.run(Path::new("/slow"), short, work).err().unwrap();
        assert!(late.what.contains("/slow does not answer within 0.01 s"), "{}", late.what);
        let again = patience.run(Path::new("/slow"), short, || ()).unwrap_err();
        assert!(again.what.contains("an earlier attempt"), "{}", again.what);
        assert_eq!(patience.run(Path::new("/good"), Duration::from_secs(30), || 7), Ok(7));
        drop(go);
        closes.recv_timeout(Duration::from_secs(30)).expect("what came too late is closed");
        let until = Instant::now() + Duration::from_secs(30);
        while patience.run(Path::new("/slow"), Duration::from_secs(30), || ()).is_err() {
            assert!(Instant::now() < until, "it can be asked again");
        }
    }
}
