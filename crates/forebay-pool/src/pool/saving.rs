//! Detaching a volume while its backing file is written to another path before it is closed: a way
//! to save a file that has lost its name.
//!
//! The job of the detach drains the volume first. Then the pool detaches it as a kept volume: the
//! engine ends its requests, flushes the store, and asks for the state of the store. The engine
//! does not write to the store before the answer, so a thread copies it then.
//!
//! Invariants
//! - Until the copy has its name, the volume can be served as before, and is if any step fails: the
//!   file is open, and the cache knows the volume. The copy is removed then.
//! - Either the copy gets its name or the detach is cancelled, never both ([`Saving`] is claimed
//!   once). If the engine gives up the detach meanwhile (its cache failed), the copy is removed
//!   again.
//! - A stop waits for the copy (`before_stop`).

use super::volumes::Done;
use super::{Pool, Promise};
use crate::cache_device::device_error;
use crate::frontends::{DeviceDisposition, ExclusiveOpens};
use crate::may_wait::MayWait;
use forebay_admin::{AdminError, MessageId, VolumeState};
use forebay_core::DetachHow;
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;
use forebay_io::{Device, DeviceError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const COPIES: u8 = 0;
const CANCELLED: u8 = 1;
const NAMES: u8 = 2;

/// Progress of writing a file to another path, shared by the job, the pool and the thread that
/// copies.
#[derive(Debug)]
pub struct Saving {
    to: PathBuf,
    state: AtomicU8,
    left_bytes: AtomicU64,
}

impl Saving {
    /// Creates one for an absolute path.
    #[must_use]
    pub fn new(to: PathBuf) -> Arc<Self> {
        Arc::new(Self { to, state: AtomicU8::new(COPIES), left_bytes: AtomicU64::new(u64::MAX) })
    }

    /// Bytes left to copy; `None` before the copy has begun.
    pub fn left_bytes(&self) -> Option<u64> {
        Some(self.left_bytes.load(Ordering::Relaxed)).filter(|left| *left != u64::MAX)
    }

    /// Returns false if it is too late, because the copy is getting its name.
    fn cancel(&self) -> bool {
        self.claim(CANCELLED)
    }

    fn claim(&self, state: u8) -> bool {
        let taken = self.state.compare_exchange(COPIES, state, Ordering::AcqRel, Ordering::Acquire);
        taken.map_or_else(|there| there == state, |_| true)
    }

    fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) == CANCELLED
    }

    /// Copies the file and gives the copy its name.
    fn carry_out(&self, _: &MayWait, store: &Device, progress: &AtomicU64) -> Result<(), AdminError> {
        let failed = |error: DeviceError| AdminError::from(device_error(error));
        let copy = store.copy_to(&self.to, &mut |left| {
            self.left_bytes.store(left, Ordering::Relaxed);
            progress.fetch_add(1, Ordering::Relaxed);
            !self.is_cancelled()
        });
        match copy.map_err(failed)? {
            Some(copy) if self.claim(NAMES) => copy.name().map_err(failed),
            _ => Err(AdminError::new(MessageId::JobStopped, "it was ended early", "")),
        }
    }
}

impl Pool {
    /// Like [`Pool::detach`] of a drained volume, but writes its backing file to another path
    /// before it is closed. The cache knows the volume afterwards, and holds no data of it that the
    /// file lacks.
    pub fn detach_to(
        &mut self,
        name: &str,
        saving: &Arc<Saving>,
        force: bool,
        claims: ExclusiveOpens,
    ) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        if let Err(error) = self.begin_detach_to(name, saving, force, claims, &done) {
            let _ = done.try_send(Err(error));
        }
        promise
    }

    fn begin_detach_to(
        &mut self,
        name: &str,
        saving: &Arc<Saving>,
        force: bool,
        claims: ExclusiveOpens,
        done: &Done,
    ) -> Result<(), AdminError> {
        let id = match self.detachable(name, force) {
            Ok(id) => id,
            Err(error) => {
                crate::time_limit::drop_in_background(claims);
                return Err(error);
            }
        };
        self.begin_detach(id, DetachHow::Keep, Some(done.clone()), DeviceDisposition::Remove(claims))?;
        if let Some(served) = self.served_mut(id) {
            served.saving = Some(Arc::clone(saving));
        }
        Ok(())
    }

    /// Starts a thread that copies the backing file of a volume, which has no writers now.
    pub(super) fn save(&mut self, id: VolumeId, saving: Arc<Saving>) {
        let device = self.served(id).and_then(|served| self.reactor.device(served.device));
        let Some(store) = device.map(|device| device.for_thread()) else { return };
        let (tasks, waker, progress) =
            (self.myself.clone(), self.reactor.waker(), Arc::clone(&self.progress));
        let done = Arc::clone(&saving);
        let work = move |may_wait: &MayWait| {
            let store = store.map_err(|error| AdminError::from(device_error(error)));
            let result = store.and_then(|store| saving.carry_out(may_wait, &store, &progress));
            // The pool has not ended: a stop waits for this.
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.saved(id, &saving, result)));
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("save-{}", self.name), work) {
            let what = format!("cannot start a thread: {error}");
            self.saved(id, &done, Err(AdminError::new(MessageId::DaemonSystem, what, "")));
        }
    }

    fn saved(&mut self, id: VolumeId, saving: &Arc<Saving>, result: Result<(), AdminError>) {
        let now = self.io.now();
        let is_ours =
            |served: &super::Served| served.saving.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, saving));
        let served = self.served_mut(id).filter(|served| is_ours(served));
        match (served, result) {
            (Some(_), Ok(())) => {
                if self.engine.finish_detach(now, id, BackingRecord::default()).is_err() {
                    self.remove_copy(&saving.to);
                }
            }
            // The volume is served (again), and its file may get newer data than the copy.
            (None, Ok(())) => self.remove_copy(&saving.to),
            (Some(served), Err(error)) => {
                saving.cancel();
                served.not_saved = Some(error);
                // It cannot be too late before the engine has the answer.
                let _ = self.engine.cancel_detach(now, id);
            }
            (None, Err(_)) => {}
        }
    }

    fn remove_copy(&mut self, path: &Path) {
        let path = path.to_owned();
        self.background.start(move |_| drop(std::fs::remove_file(path)));
    }

    /// Returns false if a detach can no longer be cancelled, because its copy is getting its name.
    pub(super) fn cancel_saving(&mut self, id: VolumeId) -> bool {
        self.served(id).and_then(|served| served.saving.as_ref()).is_none_or(|saving| saving.cancel())
    }

    /// Returns the name of a volume whose backing file is being written to another path.
    pub(super) fn saved_volume(&self) -> Option<&str> {
        let saved = self.volumes.iter().flatten().find(|served| served.saving.is_some());
        saved.filter(|served| served.state == VolumeState::Detaching).map(|served| served.spec.name.as_str())
    }
}
