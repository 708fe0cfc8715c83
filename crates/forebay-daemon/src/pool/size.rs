//! Growing and shrinking a pool, while it is used.
//!
//! Growing: the device is made longer, or a further one is prepared, and then the engine takes the new end into use.
//! Shrinking: the engine empties the end first; only when it says that it does not know it any more is a file cut
//! short, or a device let go.

use super::handle::Keeping;
use super::volumes::refused;
use super::{Pool, Promise};
use crate::control::{ControlError, ErrorKind};
use crate::members::write_header;
use forebay_core::LifeError;
use forebay_format::BLOCK_BYTES;
use forebay_format::member::{MemberHeader, Members};
use forebay_io::{Device, DeviceId};
use std::path::PathBuf;

const BLOCK: u64 = BLOCK_BYTES as u64;

type Answer = Promise<Result<(), ControlError>>;

/// What is to be done when the engine has changed the size, or could not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Nothing,
    /// The last device is cut to so many bytes of the pool's space, if it is a file.
    Cut(u64),
    /// The last device joined: it leaves if that failed.
    Joined,
    /// The last device leaves, if that succeeded.
    Leaves,
}

/// A change of size under way.
#[derive(Debug)]
pub(super) struct Resizing {
    done: Keeping<Result<(), ControlError>>,
    then: Then,
}

impl Pool {
    /// Cache devices with the bytes of the pool's space that lie on them.
    pub(super) fn devices(&self) -> Vec<(PathBuf, u64)> {
        let end = self.engine.geometry().device_blocks * BLOCK;
        let cache = self.io.cache();
        if self.engine.mirror_state().is_some() {
            let bytes = self.engine.geometry().member_bytes();
            let ids = (0..2).filter_map(|member| cache.ids.get(cache.map.device_of(member)?));
            return ids
                .filter_map(|id| self.reactor.device(*id))
                .map(|device| (device.path().to_owned(), bytes))
                .collect();
        }
        let starts = (0..cache.ids.len()).map(|member| cache.map.start_of(member));
        let ends = starts.clone().skip(1).chain(std::iter::once(end));
        let paths =
            cache.ids.iter().filter_map(|id| self.reactor.device(*id)).map(|device| device.path().to_owned());
        paths.zip(starts.zip(ends)).map(|(path, (start, end))| (path, end.saturating_sub(start))).collect()
    }

    fn last_device(&self) -> DeviceId {
        let ids = &self.io.cache().ids;
        ids[ids.len() - 1]
    }

    fn failed(&self, doing: &str, error: &dyn std::fmt::Display) -> ControlError {
        ControlError::new(ErrorKind::Failed, format!("cannot {doing} pool {}: {error}", self.name), "")
    }

    /// Asks the engine for another size.
    fn resize_engine(&mut self, bytes: u64, members: Members, then: Then, doing: &str) -> Answer {
        let (done, promise) = Promise::pair();
        let now = self.io.now();
        match self.engine.resize_pool(now, bytes, members) {
            Ok(()) => self.resizing = Some(Resizing { done, then }),
            Err(error) => {
                if then == Then::Joined {
                    self.leave();
                }
                let _ = done.try_send(Err(refused(doing, &self.name, &error)));
            }
        }
        promise
    }

    fn refuse(error: ControlError) -> Answer {
        let (done, promise) = Promise::pair();
        let _ = done.try_send(Err(error));
        promise
    }

    // --- growing

    /// Takes more of the last cache device into use: up to `bytes` of it, or all of it.
    pub(crate) fn grow_last(&mut self, bytes: Option<u64>) -> Answer {
        match self.lengthen(bytes) {
            Ok(length) => {
                let members = self.engine.members();
                self.resize_engine(length, members, Then::Nothing, "grow pool")
            }
            Err(error) => Self::refuse(error),
        }
    }

    /// Makes the last cache file longer if it is shorter than wanted; gives the length of the pool's space.
    fn lengthen(&mut self, bytes: Option<u64>) -> Result<u64, ControlError> {
        let id = self.last_device();
        // A further device has its header before its part of the pool's space.
        let header = self.io.cache().map.header_bytes();
        let start = self.io.cache().map.last_start();
        let Some(device) = self.reactor.device_mut(id) else { return Err(self.failed("grow", &"no device")) };
        if let Some(now) = device.ended() {
            let why =
                format!("{} has {now} bytes, which is less than is used of it", device.path().display());
            return Err(self.failed("grow", &why));
        }
        let there = match device.refresh_size() {
            Ok(there) => there,
            Err(error) => return Err(self.failed("grow", &error)),
        };
        let wanted = bytes.unwrap_or(there);
        if wanted > there
            && let Err(error) = device.lengthen(wanted)
        {
            return Err(self.failed("grow", &error));
        }
        let (end, used) =
            (start + wanted.saturating_sub(header), self.engine.geometry().device_blocks * BLOCK);
        if end > used {
            return Ok(end);
        }
        let what = format!("pool {} uses that much of its last device already", self.name);
        Err(ControlError::new(ErrorKind::Invalid, what, "give a larger size, or a further device"))
    }

    /// Takes a further device into use; it holds nothing.
    pub(crate) fn add_member(&mut self, device: Device, tag: u64) -> Answer {
        let (geometry, members) = (self.engine.geometry(), self.engine.members());
        let header =
            match MemberHeader::joining(self.engine.uuid(), &geometry, &members, tag, device.size_bytes()) {
                Ok(header) => header,
                Err(error) => return Self::refuse(self.failed("grow", &error)),
            };
        let tags: Vec<u64> = members.tags().iter().copied().chain([tag]).collect();
        let Some(members) = Members::new(&tags) else {
            return Self::refuse(self.failed("grow", &"it has as many devices as it can have"));
        };
        if let Err(error) = write_header(&device, &header) {
            return Self::refuse(self.failed("grow", &error));
        }
        let id = self.reactor.add_device(device);
        self.reactor.prefer_device(id);
        let cache = self.io.cache_mut();
        cache.ids.push(id);
        cache.map.join(&header);
        let end = (header.first_block + header.blocks) * BLOCK;
        self.resize_engine(end, members, Then::Joined, "grow pool")
    }

    // --- shrinking

    /// Begins to empty the end of the cache, so that `bytes` of its space are left.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Answer {
        let members = self.engine.members();
        let start = self.io.cache().map.last_start();
        if start > 0 && bytes < start {
            return Self::refuse(
                self.failed("shrink", &"only its last device can be given up or cut at a time"),
            );
        }
        if start == 0 || bytes > start {
            return self.resize_engine(bytes, members, Then::Cut(bytes), "shrink pool");
        }
        let tags = &members.tags()[..members.tags().len() - 1];
        let left = Members::new(tags).unwrap_or_default();
        self.resize_engine(bytes, left, Then::Leaves, "shrink pool")
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
        let Some(Resizing { done, then }) = self.resizing.take() else { return };
        let mut answer = result.map_err(|error| refused("resize pool", &self.name, &error));
        match then {
            Then::Cut(bytes) if answer.is_ok() => answer = self.cut(bytes),
            Then::Joined if answer.is_err() => self.leave(),
            Then::Leaves if answer.is_ok() => self.leave(),
            _ => {}
        }
        self.note_cache_ends();
        let _ = done.try_send(answer);
    }

    fn cut(&mut self, bytes: u64) -> Result<(), ControlError> {
        let (id, cache) = (self.last_device(), self.io.cache());
        let length = bytes - cache.map.last_start() + cache.map.header_bytes();
        let Some(device) = self.reactor.device_mut(id) else { return Ok(()) };
        device.shorten(length).map_err(|error| {
            let what = format!("pool {} is smaller now, but its file could not be cut: {error}", self.name);
            ControlError::new(ErrorKind::Failed, what, "cut it by hand: truncate")
        })
    }

    /// The last device does not belong to the pool any more.
    fn leave(&mut self) {
        let cache = self.io.cache_mut();
        if cache.ids.len() < 2 {
            return;
        }
        cache.map.leave();
        if let Some(id) = cache.ids.pop() {
            drop(self.reactor.remove_device(id));
        }
    }
}
