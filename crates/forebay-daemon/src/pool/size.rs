//! Growing and shrinking a pool, while it is used.
//!
//! Growing: the device is made longer first, then the engine takes its new end into use. Shrinking: the engine empties
//! the end first; only when it says that it does not know it any more is a file cut short.

use super::volumes::refused;
use super::{Pool, Promise};
use crate::control::{ControlError, ErrorKind};
use forebay_core::LifeError;
use std::path::PathBuf;

type Answer = Promise<Result<(), ControlError>>;

impl Pool {
    /// Cache devices with the bytes that the pool uses of them.
    pub(super) fn devices(&self) -> Vec<(PathBuf, u64)> {
        let device = self.reactor.device(self.cache);
        let used = self.engine.geometry().device_blocks * 4096;
        device.map(|device| (device.path().to_owned(), used)).into_iter().collect()
    }

    /// Takes more of the last cache device into use: up to `bytes`, or all of it.
    pub(crate) fn grow_last(&mut self, bytes: Option<u64>) -> Answer {
        let (done, promise) = Promise::pair();
        let begun = self.lengthen(bytes).and_then(|length| {
            let now = self.io.now();
            self.engine.grow_pool(now, length).map_err(|error| refused("grow pool", &self.name, &error))
        });
        match begun {
            Ok(()) => self.resizing = Some((done, None)),
            Err(error) => drop(done.try_send(Err(error))),
        }
        promise
    }

    /// Makes a cache file longer if it is shorter than wanted; gives the length to use.
    fn lengthen(&mut self, bytes: Option<u64>) -> Result<u64, ControlError> {
        let name = self.name.clone();
        let failed = |error: &dyn std::fmt::Display| {
            ControlError::new(ErrorKind::Failed, format!("cannot grow pool {name}: {error}"), "")
        };
        let Some(device) = self.reactor.device_mut(self.cache) else { return Err(failed(&"it has no device")) };
        let there = device.refresh_size().map_err(|error| failed(&error))?;
        let wanted = bytes.unwrap_or(there);
        if wanted > there {
            device.lengthen(wanted).map_err(|error| failed(&error))?;
        }
        let used = self.engine.geometry().device_blocks * 4096;
        if wanted > used {
            return Ok(wanted);
        }
        let what = format!("pool {name} uses {used} bytes of its device already");
        Err(ControlError::new(ErrorKind::Invalid, what, "give a larger size, or a further device"))
    }

    /// Begins to empty the end of the cache, so that `bytes` are left.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Answer {
        let (done, promise) = Promise::pair();
        let now = self.io.now();
        match self.engine.shrink_pool(now, bytes) {
            Ok(()) => self.resizing = Some((done, Some(bytes))),
            Err(error) => drop(done.try_send(Err(refused("shrink pool", &self.name, &error)))),
        }
        promise
    }

    /// Goes back to the size that the pool has, if that is still possible.
    pub(crate) fn cancel_resize(&mut self) -> Result<(), ControlError> {
        let now = self.io.now();
        match self.engine.cancel_pool_resize(now) {
            Ok(()) | Err(LifeError::Busy | LifeError::Cancelled) => Ok(()),
            Err(error) => Err(refused("cancel", &self.name, &error)),
        }
    }

    /// The engine has changed the size of the pool, or could not.
    pub(super) fn pool_resized(&mut self, result: Result<(), LifeError>) {
        let Some((done, cut)) = self.resizing.take() else { return };
        let mut answer = result.map_err(|error| refused("resize pool", &self.name, &error));
        if let (Ok(()), Some(bytes)) = (&answer, cut)
            && let Some(device) = self.reactor.device_mut(self.cache)
            && let Err(error) = device.shorten(bytes)
        {
            let what = format!("pool {} uses {bytes} bytes now, but its file could not be cut: {error}", self.name);
            answer = Err(ControlError::new(ErrorKind::Failed, what, ""));
        }
        let _ = done.try_send(answer);
    }
}
