//! A replaced device that could not be erased must not be accepted by any start: it may have
//! vanished at that moment, and be found together with the other devices of the cache by another
//! host, which has neither this host's list of replaced devices nor its notes.
//!
//! - *Mirrored*: the pool takes checkpoints until the superblock of the replaced device is too far
//!   behind that of the other member ([`forebay_core::device_copy::is_left_behind`]).
//! - *Several devices*: a further member gets another tag: the new device or, if the first device
//!   was replaced, the second. So a former member has a tag that the superblock does not list, and
//!   a former first device lists a tag that no member has.
//! - *One device*: the old device holds an older copy of the cache, complete in itself.
//!
//! A checkpoint changes a tag, as it does the size of the pool. The header with the tag is on
//! another device than the superblock that lists it. So the pool writes the new tag to one copy of
//! the header first, then to the superblock, then to the other copy: at any instant the superblock
//! lists a tag that one copy has, and that copy counts.

use super::handle::PromiseSender;
use super::size::{Resizing, Then};
use super::{Pool, Promise};
use crate::may_wait::MayWait;
use crate::members::write_copy;
use forebay_admin::{AdminError, MessageId};
use forebay_core::LifecycleError;
use forebay_core::device_copy::is_left_behind;
use forebay_format::BLOCK_BYTES;
use forebay_format::member::{MemberHeader, Members};
use forebay_io::DeviceInUse;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Checkpoints until a replaced member is left behind.
#[derive(Debug)]
pub(super) struct ReplacedMemberFencing {
    /// Generation of the superblock at the beginning.
    generation: u64,
    done: PromiseSender<Result<(), AdminError>>,
}

impl Pool {
    fn not_left_behind(&self, why: &dyn std::fmt::Display) -> AdminError {
        let what =
            format!("the replaced device of pool {} may still be taken for a current one: {why}", self.name);
        AdminError::new(MessageId::PoolReplacementNotFinished, what, "")
    }

    /// The device at this place of `Pool::devices` was replaced: once the promise resolves, no
    /// start accepts the old device together with the other devices.
    pub fn leave_behind(&mut self, at: usize, tag: u64) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let refusal = if self.engine.is_fenced() || self.engine.runs_without_cache() {
            Some(LifecycleError::Fenced)
        } else if self.stopping {
            Some(LifecycleError::NotServing)
        } else if self.resizing.is_some() || self.is_replacing() || self.replaced_member_fencing.is_some() {
            Some(LifecycleError::Busy)
        } else {
            None
        };
        if let Some(error) = refusal {
            let _ = done.try_send(Err(self.not_left_behind(&error)));
        } else if self.io.cache().map.is_mirrored() {
            let generation = self.engine.mark().generation;
            self.replaced_member_fencing = Some(ReplacedMemberFencing { generation, done });
            self.checkpointed();
        } else if self.io.cache().ids.len() < 2 {
            let _ = done.try_send(Ok(()));
        } else {
            self.begin_tagging(at.max(1), tag, done);
        }
        promise
    }

    /// A checkpoint of a mirrored cache is in effect: takes another one if needed.
    pub(super) fn checkpointed(&mut self) {
        let Some(leaving) = &self.replaced_member_fencing else { return };
        if !is_left_behind(leaving.generation, self.engine.mark().generation) {
            let now = self.io.now();
            return self.engine.take_checkpoint(now);
        }
        if let Some(leaving) = self.replaced_member_fencing.take() {
            let _ = leaving.done.try_send(Ok(()));
        }
    }

    /// Returns the header of a further member, with this tag.
    fn header_with(&self, member: usize, tag: u64) -> MemberHeader {
        let map = &self.io.cache().map;
        let used = self.bytes_of_device(member) - map.base_of(member);
        MemberHeader {
            uuid: self.engine.uuid(),
            index: member as u16,
            tag,
            first_block: map.start_of(member) / BLOCK,
            blocks: used / BLOCK,
        }
    }

    fn begin_tagging(&mut self, member: usize, tag: u64, done: PromiseSender<Result<(), AdminError>>) {
        let header = self.header_with(member, tag);
        self.resizing = Some(Resizing { done, then: Then::Tagging });
        self.write_tag(header, 0, Self::tag_is_on_member);
    }

    /// Starts a thread that writes one copy of a header, and then calls `then`.
    fn write_tag(
        &mut self,
        header: MemberHeader,
        copy: usize,
        then: fn(&mut Self, MemberHeader, Result<(), String>),
    ) {
        let id = self.io.cache().ids.get(usize::from(header.index)).copied();
        let Some(device) = id.and_then(|id| self.reactor.device(id)).map(DeviceInUse::for_thread) else {
            return then(self, header, Err("the pool no longer has this device".into()));
        };
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let work = move |may_wait: &MayWait| {
            let written = device.and_then(|device| write_copy(may_wait, &device, &header, copy));
            let written = written.map_err(|error| error.to_string());
            let _ = tasks.send(Box::new(move |pool: &mut Self| then(pool, header, written))); // it may have ended
            waker.wake();
        };
        if let Err(error) = MayWait::spawn(format!("tag-{}", self.name), work) {
            then(self, header, Err(format!("cannot start a thread: {error}")));
        }
    }

    /// One copy of the header has the new tag, so the superblock may list it.
    fn tag_is_on_member(&mut self, header: MemberHeader, written: Result<(), String>) {
        let Some(Resizing { done, .. }) = self.resizing.take() else { return };
        let mut tags = self.engine.members().tags().to_vec();
        tags[usize::from(header.index) - 1] = header.tag;
        let members = Members::new(&tags).unwrap_or(self.engine.members());
        let (now, bytes) = (self.io.now(), self.engine.geometry().device_blocks * BLOCK);
        let begun = written
            .and_then(|()| self.engine.resize_pool(now, bytes, members).map_err(|error| error.to_string()));
        match begun {
            Ok(()) => self.resizing = Some(Resizing { done, then: Then::Tagged(header) }),
            Err(why) => drop(done.try_send(Err(self.not_left_behind(&why)))),
        }
    }

    /// The superblock lists the new tag, so the other copy of the header may have it too. If
    /// writing it fails, the next start does it.
    pub(super) fn tag_is_listed(
        &mut self,
        header: MemberHeader,
        done: PromiseSender<Result<(), AdminError>>,
    ) {
        self.resizing = Some(Resizing { done, then: Then::Tagging });
        self.write_tag(header, 1, |pool, _, _| {
            let Some(Resizing { done, .. }) = pool.resizing.take() else { return };
            let _ = done.try_send(Ok(()));
        });
    }
}
