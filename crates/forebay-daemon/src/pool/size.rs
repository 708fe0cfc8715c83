//! Growing and shrinking a pool, while it is used.
//!
//! Growing: the device is made longer, or a further one is prepared, and then the engine takes the new end into use.
//! Shrinking: the engine empties the end first; only when it says that it does not know it any more is a file cut
//! short, or a device let go.

use super::handle::Keeping;
use super::volumes::refused;
use super::{Pool, Promise};
use crate::control::{ControlError, ErrorKind};
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
    /// A thread cuts the file.
    Cutting,
}

/// A change of size under way.
#[derive(Debug)]
pub(super) struct Resizing {
    done: Keeping<Result<(), ControlError>>,
    then: Then,
}

/// Makes a cache device longer if it is shorter than `bytes`; gives the length that is wanted (all of it, if nothing is said), and
/// the one that it has.
///
/// # Errors
/// It cannot have that length; it is as it was.
pub(crate) fn lengthen(
    device: &mut Device,
    bytes: Option<u64>,
) -> Result<(u64, u64), forebay_io::DeviceError> {
    let there = device.refresh_size()?;
    let wanted = bytes.unwrap_or(there);
    if wanted > there {
        device.lengthen(wanted)?;
    }
    Ok((wanted, device.size_bytes()))
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
        let begun = match &self.resizing {
            Some(_) => Err(LifeError::Busy),
            None => self.engine.resize_pool(now, bytes, members),
        };
        match begun {
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

    /// The last cache device, for a thread that makes it longer ([`lengthen`]); and how often the pool's size was changed, for
    /// [`Pool::grow_last`].
    pub(crate) fn device_to_grow(&self) -> Result<(Device, u64), ControlError> {
        let device = self.reactor.device(self.last_device());
        let device = device.ok_or_else(|| self.failed("grow", &"no device"))?;
        if self.resizing.is_some() {
            return Err(refused("grow pool", &self.name, &LifeError::Busy));
        }
        if let Some(now) = device.ended() {
            let why =
                format!("{} has {now} bytes, which is less than is used of it", device.path().display());
            return Err(self.failed("grow", &why));
        }
        Ok((device.for_thread().map_err(|error| self.failed("grow", &error))?, self.resized))
    }

    /// Takes more of the last cache device into use: up to `wanted` of the `there` bytes that it has. `resized` is what
    /// [`Pool::device_to_grow`] gave: if it is something else, another change came in between, and the device may have been cut.
    pub(crate) fn grow_last(&mut self, wanted: u64, there: u64, resized: u64) -> Answer {
        if self.resizing.is_some() || self.resized != resized {
            return Self::refuse(refused("grow pool", &self.name, &LifeError::Busy));
        }
        if let Some(device) = self.reactor.device_mut(self.last_device()) {
            device.set_size(there);
        }
        // A further device has its header before its part of the pool's space.
        let cache = self.io.cache();
        let end = cache.map.last_start() + wanted.saturating_sub(cache.map.header_bytes());
        if end <= self.engine.geometry().device_blocks * BLOCK {
            let what = format!("pool {} uses that much of its last device already", self.name);
            let hint = "give a larger size, or a further device";
            return Self::refuse(ControlError::new(ErrorKind::Invalid, what, hint));
        }
        let members = self.engine.members();
        self.resize_engine(end, members, Then::Nothing, "grow pool")
    }

    /// The header that a device of this size must have to join, and the members with it.
    pub(crate) fn header_to_join(
        &self,
        tag: u64,
        size_bytes: u64,
    ) -> Result<(MemberHeader, Members), ControlError> {
        let (geometry, members) = (self.engine.geometry(), self.engine.members());
        let header = MemberHeader::joining(self.engine.uuid(), &geometry, &members, tag, size_bytes);
        let header = header.map_err(|error| self.failed("grow", &error))?;
        let tags: Vec<u64> = members.tags().iter().copied().chain([tag]).collect();
        let members = Members::new(&tags);
        let full = || self.failed("grow", &"it has as many devices as it can have");
        Ok((header, members.ok_or_else(full)?))
    }

    /// Takes a further device into use; it has this header, and holds nothing.
    pub(crate) fn add_member(&mut self, device: Device, header: &MemberHeader) -> Answer {
        let (wanted, members) = match self.header_to_join(header.tag, device.size_bytes()) {
            Ok(wanted) => wanted,
            Err(error) => return Self::refuse(error),
        };
        if self.resizing.is_some() || wanted != *header {
            return Self::refuse(refused("grow pool", &self.name, &LifeError::Busy));
        }
        let id = self.reactor.add_device(device);
        self.reactor.prefer_device(id);
        let cache = self.io.cache_mut();
        cache.ids.push(id);
        cache.map.join(header);
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
        if self.resizing.as_ref().is_some_and(|resizing| resizing.then == Then::Cutting) {
            return Ok(()); // it is done
        }
        let now = self.io.now();
        match self.engine.cancel_pool_resize(now) {
            Ok(()) | Err(LifeError::Busy | LifeError::Cancelled) => Ok(()),
            Err(error) => Err(refused("cancel", &self.name, &error)),
        }
    }

    /// The engine has changed the size of the pool, or could not.
    pub(super) fn pool_resized(&mut self, result: Result<(), LifeError>) {
        let Some(Resizing { done, then }) = self.resizing.take() else { return };
        self.resized += 1;
        let answer = result.map_err(|error| refused("resize pool", &self.name, &error));
        match then {
            Then::Joined if answer.is_err() => self.leave(),
            Then::Leaves if answer.is_ok() => self.leave(),
            _ => {}
        }
        self.note_cache_ends();
        match then {
            Then::Cut(bytes) if answer.is_ok() => self.cut(bytes, done),
            _ => drop(done.try_send(answer)),
        }
    }

    /// Has a thread cut the last device, of which the pool uses less now. Until then its size is not changed again.
    fn cut(&mut self, bytes: u64, done: Keeping<Result<(), ControlError>>) {
        let (id, cache) = (self.last_device(), self.io.cache());
        let length = bytes - cache.map.last_start() + cache.map.header_bytes();
        let Some(device) = self.reactor.device(id).map(Device::for_thread) else { return };
        self.resizing = Some(Resizing { done, then: Then::Cutting });
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move || {
            let cut = device.and_then(|mut device| device.shorten(length).map(|()| device.size_bytes()));
            let cut = cut.map_err(|error| error.to_string());
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.was_cut(id, cut))); // it may have ended
            waker.wake();
        };
        if let Err(error) = std::thread::Builder::new().name(format!("cut-{}", self.name)).spawn(work) {
            self.was_cut(id, Err(format!("cannot start a thread: {error}")));
        }
    }

    fn was_cut(&mut self, id: DeviceId, cut: Result<u64, String>) {
        let Some(Resizing { done, .. }) = self.resizing.take() else { return };
        if let (Ok(bytes), Some(device)) = (&cut, self.reactor.device_mut(id)) {
            device.set_size(*bytes);
        }
        let _ = done.try_send(cut.map(drop).map_err(|error| {
            let what = format!("pool {} is smaller now, but its file could not be cut: {error}", self.name);
            ControlError::new(ErrorKind::Failed, what, "cut it by hand: truncate")
        }));
    }

    /// The last device does not belong to the pool any more.
    fn leave(&mut self) {
        let cache = self.io.cache_mut();
        if cache.ids.len() < 2 {
            return;
        }
        cache.map.leave();
        if let Some(id) = cache.ids.pop() {
            crate::patience::let_go(self.reactor.remove_device(id));
        }
    }
}
