//! Growing and shrinking a pool in use.
//!
//! To grow, the pool lengthens the device or prepares a further one, and then the engine takes the
//! new end into use. To shrink, the engine empties the end first; only when it has given the end up
//! does the pool cut a file or release a device.
//!
//! The header of a further device never covers less than the used part of it: the pool writes it
//! before the engine takes more into use, and after it has given an end up, before the file is cut.
//! After a crash in between, the header is ahead of the superblock; the next start corrects it.

use super::handle::PromiseSender;
use super::volumes::refused;
use super::{Pool, Promise};
use crate::may_wait::MayWait;
use crate::members::write_header;
use crate::open::give_back;
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, MessageId};
use forebay_core::LifecycleError;
use forebay_format::member::{DATA_START_BLOCK, MemberHeader, Members};
use forebay_format::{BLOCK_BYTES, Geometry};
use forebay_io::{Device, DeviceId, DeviceInUse};
use std::path::PathBuf;

const BLOCK: u64 = BLOCK_BYTES as u64;

type Answer = Promise<Result<(), AdminError>>;

/// Next step when the engine has changed the size, or has failed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Nothing,
    /// Cut the last device to `bytes` of the pool's space, if it is a file; it had `before`.
    Cut {
        bytes: u64,
        before: u64,
    },
    /// The last device has joined: it leaves if the change failed.
    Joined,
    /// The last device leaves if the change succeeded.
    Leaves,
    /// A thread is cutting the file.
    Cutting,
    /// A thread is writing a header with another tag (`replaced_member_fencing`).
    Tagging,
    /// Header of a member that gets another tag if the change succeeded.
    Tagged(MemberHeader),
}

/// A change of size in progress.
#[derive(Debug)]
pub(super) struct Resizing {
    pub(super) done: PromiseSender<Result<(), AdminError>>,
    pub(super) then: Then,
}

/// The last cache device, for a thread that lengthens it.
#[derive(Debug)]
pub struct Growing {
    pub device: Device,
    /// Number of size changes so far, for [`Pool::grow_last`].
    pub resized: u64,
    part: Part,
}

impl Growing {
    /// Lengthens the device if it is shorter than `bytes`, and updates its header; returns the
    /// wanted length (the current one if `bytes` is `None`) and the actual length, in bytes.
    ///
    /// # Errors
    /// The device cannot have that length, or its header cannot be written; the pool's use of it is
    /// unchanged.
    pub fn lengthen(
        &mut self,
        may_wait: &MayWait,
        bytes: Option<u64>,
    ) -> Result<(u64, u64), forebay_io::DeviceError> {
        let there = self.device.refresh_size()?;
        let wanted = bytes.unwrap_or(there);
        if wanted > there {
            self.device.lengthen(wanted)?;
        }
        if let Some(header) = self.part.longer(wanted) {
            write_header(may_wait, &self.device, &header)?;
        }
        Ok((wanted, self.device.size_bytes()))
    }
}

/// The part of its last device that the pool uses.
#[derive(Clone, Copy, Debug)]
struct Part {
    geometry: Geometry,
    /// For a further device: its correct header.
    header: Option<MemberHeader>,
}

impl Part {
    /// Returns the end of the pool's space if `bytes` of the device are used; of a further device,
    /// whole segments.
    fn end_with(&self, bytes: u64) -> u64 {
        let Some(header) = self.header else { return bytes };
        self.whole_segments((header.first_block + (bytes / BLOCK).saturating_sub(DATA_START_BLOCK)) * BLOCK)
    }

    /// Returns the end of the last whole segment before this end of the pool's space.
    fn whole_segments(&self, end: u64) -> u64 {
        let (start, unit) = (self.geometry.segments_start_block, u64::from(self.geometry.segment_blocks));
        (start + (end / BLOCK).saturating_sub(start) / unit * unit) * BLOCK
    }

    /// Returns the header that the device needs before more of it is used, if the engine supports
    /// that size at all.
    fn longer(&self, bytes: u64) -> Option<MemberHeader> {
        let header = self.header?;
        let end = self.end_with(bytes);
        let blocks = (end / BLOCK).saturating_sub(header.first_block);
        (blocks > header.blocks && self.geometry.resized(end).is_ok())
            .then_some(MemberHeader { blocks, ..header })
    }
}

impl Pool {
    /// Cache devices, each with the bytes of the pool's space on it.
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

    fn failed(&self, doing: &str, error: &dyn std::fmt::Display) -> AdminError {
        AdminError::new(
            MessageId::PoolResizeFailed,
            format!("cannot {doing} pool {}: {error}", self.name),
            "",
        )
    }

    /// Requests another size from the engine.
    fn resize_engine(&mut self, bytes: u64, members: Members, then: Then, doing: &str) -> Answer {
        let (done, promise) = Promise::pair();
        let now = self.io.now();
        let begun = match &self.resizing {
            Some(_) => Err(LifecycleError::Busy),
            None if self.is_replacing() => Err(LifecycleError::Busy),
            None => self.engine.resize_pool(now, bytes, members),
        };
        match begun {
            Ok(()) => self.resizing = Some(Resizing { done, then }),
            Err(error) => {
                if then == Then::Joined {
                    self.leave();
                }
                let _ = done.try_send(Err(self.size_refused(doing, &error)));
            }
        }
        promise
    }

    /// Returns why the pool cannot have a size; if that is out of range, with the range in bytes.
    fn size_refused(&self, doing: &str, error: &LifecycleError) -> AdminError {
        let refusal = refused(doing, &self.name, error);
        let LifecycleError::PoolRange { least, most, .. } = *error else { return refusal };
        let [least, most] = [least, most].map(|segments| ByteSize(self.bytes_of_segments(segments)));
        let hint = format!("the devices of this pool can have from {least} to {most} together");
        AdminError { hint, ..refusal }
    }

    fn refuse(error: AdminError) -> Answer {
        let (done, promise) = Promise::pair();
        let _ = done.try_send(Err(error));
        promise
    }

    // --- growing

    /// Returns the part of its last device that the pool uses.
    fn last_part(&self) -> Part {
        let (geometry, members) = (self.engine.geometry(), self.engine.members());
        let first_block = self.io.cache().map.last_start() / BLOCK;
        let header = members.tags().last().map(|tag| MemberHeader {
            uuid: self.engine.uuid(),
            index: members.tags().len() as u16,
            tag: *tag,
            first_block,
            blocks: geometry.device_blocks.saturating_sub(first_block),
        });
        Part { geometry, header }
    }

    /// Returns the last cache device, for a thread that lengthens it.
    pub fn device_to_grow(&self) -> Result<Growing, AdminError> {
        let device = self.reactor.device(self.last_device());
        let device = device.ok_or_else(|| self.failed("grow", &"no device"))?;
        if self.resizing.is_some() || self.is_replacing() {
            return Err(refused("grow pool", &self.name, &LifecycleError::Busy));
        }
        if let Some(now) = device.ended() {
            let why = format!("{} has {now} bytes, fewer than are in use", device.path().display());
            return Err(self.failed("grow", &why));
        }
        let device = device.for_thread().map_err(|error| self.failed("grow", &error))?;
        Ok(Growing { device, resized: self.resized, part: self.last_part() })
    }

    /// Takes more of the last cache device into use: up to `wanted` of its `there` bytes. `resized`
    /// comes from [`Pool::device_to_grow`]: a different current value means that another change
    /// came in between, and may have cut the device.
    pub fn grow_last(&mut self, wanted: u64, there: u64, resized: u64) -> Answer {
        if self.resizing.is_some() || self.resized != resized {
            return Self::refuse(refused("grow pool", &self.name, &LifecycleError::Busy));
        }
        self.reactor.set_device_size(self.last_device(), there);
        let end = self.last_part().end_with(wanted);
        if end <= self.engine.geometry().device_blocks * BLOCK {
            let what = format!("pool {} already uses that much of its last device", self.name);
            let hint = "give a larger size, or another device";
            return Self::refuse(AdminError::new(MessageId::PoolSize, what, hint));
        }
        let members = self.engine.members();
        self.resize_engine(end, members, Then::Nothing, "grow pool")
    }

    /// Returns the header that a device of this size needs to join, and the members including it.
    pub fn header_to_join(&self, tag: u64, size_bytes: u64) -> Result<(MemberHeader, Members), AdminError> {
        let (geometry, members) = (self.engine.geometry(), self.engine.members());
        let header = MemberHeader::joining(self.engine.uuid(), &geometry, &members, tag, size_bytes);
        let header = header.map_err(|error| self.failed("grow", &error))?;
        let tags: Vec<u64> = members.tags().iter().copied().chain([tag]).collect();
        let members = Members::new(&tags);
        let full = || self.failed("grow", &"it has the maximum number of devices");
        Ok((header, members.ok_or_else(full)?))
    }

    /// Checks that a device of this size can join now, before anything is written for it.
    ///
    /// # Errors
    /// The pool cannot become so large, or is being changed.
    pub fn may_join(&self, size_bytes: u64) -> Result<(), AdminError> {
        let (header, _) = self.header_to_join(1, size_bytes)?;
        let end = (header.first_block + header.blocks) * BLOCK;
        let may_resize = match self.resizing.is_some() || self.is_replacing() {
            true => Err(LifecycleError::Busy),
            false => self.engine.may_resize_pool(end),
        };
        may_resize.map_err(|error| self.size_refused("grow pool", &error))
    }

    /// Takes a further device into use; it has this header, and holds no data.
    pub fn add_member(&mut self, device: Device, header: &MemberHeader) -> Answer {
        let (wanted, members) = match self.header_to_join(header.tag, device.size_bytes()) {
            Ok(wanted) => wanted,
            Err(error) => return Self::refuse(error),
        };
        if self.resizing.is_some() || wanted != *header {
            return Self::refuse(refused("grow pool", &self.name, &LifecycleError::Busy));
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

    /// Begins to empty the end of the cache, so that `bytes` of its space remain.
    pub fn shrink(&mut self, bytes: u64) -> Answer {
        let members = self.engine.members();
        let start = self.io.cache().map.last_start();
        let before = self.engine.geometry().device_blocks * BLOCK;
        if start > 0 && bytes < start {
            return Self::refuse(
                self.failed("shrink", &"only its last device can be removed or shortened at a time"),
            );
        }
        if start == 0 {
            return self.resize_engine(bytes, members, Then::Cut { bytes, before }, "shrink pool");
        }
        if bytes > start {
            let end = self.last_part().whole_segments(bytes);
            if end <= start {
                let why = "not even one segment of its last device would be left";
                return Self::refuse(self.failed("shrink", &why));
            }
            return self.resize_engine(end, members, Then::Cut { bytes: end, before }, "shrink pool");
        }
        let tags = &members.tags()[..members.tags().len() - 1];
        let left = Members::new(tags).unwrap_or_default();
        self.resize_engine(bytes, left, Then::Leaves, "shrink pool")
    }

    /// Goes back to the pool's previous size, if that is still possible.
    pub fn cancel_resize(&mut self) -> Result<(), AdminError> {
        if self
            .resizing
            .as_ref()
            .is_some_and(|resizing| matches!(resizing.then, Then::Cutting | Then::Tagging | Then::Tagged(_)))
        {
            return Ok(()); // it is done, or changes no size
        }
        let now = self.io.now();
        match self.engine.cancel_pool_resize(now) {
            Ok(()) | Err(LifecycleError::Busy | LifecycleError::Cancelled) => Ok(()),
            Err(error) => Err(refused("cancel", &self.name, &error)),
        }
    }

    /// The engine has resized the pool, or has failed to.
    pub(super) fn pool_resized(&mut self, result: Result<(), LifecycleError>) {
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
            Then::Cut { bytes, before } if answer.is_ok() => self.cut(bytes, before, done),
            Then::Tagged(header) if answer.is_ok() => self.tag_is_listed(header, done),
            _ => drop(done.try_send(answer)),
        }
    }

    /// Starts a thread that cuts the last device, of which the pool uses less now. The size does
    /// not change again before it ends.
    fn cut(&mut self, bytes: u64, before: u64, done: PromiseSender<Result<(), AdminError>>) {
        let (id, cache) = (self.last_device(), self.io.cache());
        let length = bytes - cache.map.last_start() + cache.map.header_bytes();
        let given_back = length..length + before.saturating_sub(bytes);
        let header = self.last_part().header;
        let Some(device) = self.reactor.device(id).map(DeviceInUse::for_thread) else { return };
        self.resizing = Some(Resizing { done, then: Then::Cutting });
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move |may_wait: &MayWait| {
            let cut = device.and_then(|mut device| {
                header.map_or(Ok(()), |header| write_header(may_wait, &device, &header))?;
                // If this fails, a later check whether the device is blank finds the leftover
                // blocks.
                let _ = give_back(may_wait, &device, given_back);
                device.shorten(length).map(|()| device.size_bytes())
            });
            let cut = cut.map_err(|error| error.to_string());
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.was_cut(id, length, cut))); // it may have ended
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("cut-{}", self.name), work) {
            self.was_cut(id, length, Err(format!("cannot start a thread: {error}")));
        }
    }

    /// A thread has cut the device to this length, or has failed to.
    fn was_cut(&mut self, id: DeviceId, length: u64, cut: Result<u64, String>) {
        let Some(Resizing { done, .. }) = self.resizing.take() else { return };
        if let Ok(bytes) = &cut {
            self.reactor.set_device_size(id, *bytes);
        }
        let path = self.reactor.device(id).map(|device| device.path().display().to_string());
        let _ = done.try_send(cut.map(drop).map_err(|error| {
            let what =
                format!("pool {} is smaller now, but its device could not be truncated: {error}", self.name);
            let hint =
                format!("a file can be truncated by hand: truncate -s {length} {}", path.unwrap_or_default());
            AdminError::new(MessageId::PoolNotCut, what, hint)
        }));
    }

    /// The last device no longer belongs to the pool.
    fn leave(&mut self) {
        let cache = self.io.cache_mut();
        if cache.ids.len() < 2 {
            return;
        }
        cache.map.leave();
        if let Some(id) = cache.ids.pop() {
            self.close_when_idle(id, None);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::CacheUuid;
    use forebay_io::DeviceOptions;

    /// The last of two devices, with 512 blocks used, in segments of 64.
    fn part() -> Part {
        let made = Geometry::for_device(32 << 20, Some(64)).unwrap();
        let first_block = made.segments_start_block + u64::from(made.segment_count) * 64;
        let geometry = made.resized((first_block + 512) * BLOCK).unwrap();
        let header = MemberHeader { uuid: CacheUuid([7; 16]), index: 1, tag: 11, first_block, blocks: 512 };
        Part { geometry, header: Some(header) }
    }

    #[test]
    fn further_device_is_used_in_whole_segments() {
        let part = part();
        let first = part.header.unwrap().first_block;
        for (bytes, blocks) in [(3 << 20, 512), ((3 << 20) + (256 << 10) - 1, 512), (4 << 20, 768), (0, 0)] {
            assert_eq!(part.end_with(bytes), (first + blocks) * BLOCK, "{bytes}");
        }
        assert_eq!(part.whole_segments((first + 63) * BLOCK), first * BLOCK);
        let only = Part { header: None, ..part };
        assert_eq!((only.end_with(12_345), only.longer(1 << 30)), (12_345, None));
    }

    #[test]
    fn header_is_rewritten_only_for_growth() {
        let part = part();
        let blocks = |bytes| part.longer(bytes).map(|header| header.blocks);
        assert_eq!(
            [blocks(4 << 20), blocks(3 << 20), blocks(2 << 20), blocks(1 << 40)],
            [Some(768), None, None, None]
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last");
        std::fs::File::create(&path).unwrap().set_len(3 << 20).unwrap();
        let device =
            Device::open_cache(&path, DeviceOptions { direct: false, ..Default::default() }).unwrap();
        write_header(&MayWait::here(), &device, &part.header.unwrap()).unwrap();
        let mut growing = Growing { device, resized: 0, part };
        assert_eq!(growing.lengthen(&MayWait::here(), Some(4 << 20)).unwrap(), (4 << 20, 4 << 20));
        let written = forebay_offline::members::read_copies(&growing.device);
        assert_eq!(written.map(|copy| copy.unwrap().blocks), [768, 768]);
    }
}
