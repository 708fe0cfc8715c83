//! Unplugged backing stores: disks that are no longer in the kernel.
//!
//! When such a disk is plugged in again, the kernel makes a new device for it. The open one fails
//! forever, so the pool opens the path again, once a second, until it leads to the same disk
//! (`open::again`: serial number, size, sectors, and the first blocks as last written). Then, in
//! this order:
//!
//! 1. The pool submits no more operations to the old device: they fail at once, as before.
//! 2. When no operation is in flight on it, the pool notifies the engine
//!    ([`Engine::backing_reopened`], I83), which trusts no flush of the writes that the old device
//!    had completed, and forgets the clean blocks.
//! 3. When those are forgotten, operations go to the new device.
//!
//! Invariant: operations are never in flight on two devices of one store.
//!
//! [`Engine::backing_reopened`]: forebay_core::Engine::backing_reopened

use super::{Back, Pool, Served};
use crate::may_wait::MayWait;
use crate::open::again::{Known, Reopened, open_again};
use forebay_admin::VolumeState;
use forebay_format::VolumeId;
use forebay_io::DeviceId;
use std::time::{Duration, Instant};

/// Interval of checks of the path.
const LOOK: Duration = Duration::from_secs(1);
/// Interval while a store is about to be taken into use.
const SOON: Duration = Duration::from_millis(20);

/// Progress of a backing store's return.
#[derive(Debug, Default)]
pub(super) enum Return {
    /// The store is in place, or its state is unknown.
    #[default]
    Unknown,
    /// A thread checks where its path leads.
    Looking {
        /// Why the last store was not taken; empty if there was none.
        why_not: String,
    },
    /// Its path leads to no store that can be taken.
    Refused {
        /// Reason; empty if the path leads nowhere.
        why_not: String,
        /// Time of the next check.
        again: Instant,
    },
    /// The disk is back. No operations go to the old device.
    Found {
        reopened: Box<Reopened>,
        /// The engine was notified.
        told: bool,
    },
}

impl Return {
    /// Returns why the pool does not take the store that the path leads to; empty if it leads
    /// nowhere.
    pub(super) fn why_not(&self) -> &str {
        match self {
            Self::Looking { why_not } | Self::Refused { why_not, .. } => why_not,
            Self::Unknown | Self::Found { .. } => "",
        }
    }
}

impl Pool {
    /// Checks unplugged stores; returns how long the loop may sleep if some of them are back.
    pub(super) fn look_after_unplugged(&mut self) -> Option<Duration> {
        if self.stopping {
            return None;
        }
        let mut soon = None;
        for id in (0..self.volumes.len()).map(|at| VolumeId(at as u16)) {
            let Some(served) = self.served(id) else { continue };
            if !matches!(served.state, VolumeState::Serving | VolumeState::Draining) {
                continue;
            }
            match &served.returns {
                Return::Looking { .. } => {}
                Return::Refused { again, .. } if *again > Instant::now() => {}
                Return::Found { .. } => {
                    if !self.go_on_with(id) {
                        soon = Some(SOON);
                    }
                }
                Return::Unknown | Return::Refused { .. } => self.look_for(id),
            }
        }
        soon
    }

    /// Starts a thread that checks where the path of an unplugged store leads.
    fn look_for(&mut self, id: VolumeId) {
        let state_dir = self.cache_failure.state_dir().to_owned();
        let Some(served) = self.served(id) else { return };
        let Some(device) = self.reactor.device(served.device).filter(|device| device.is_unplugged()) else {
            return;
        };
        let Some(uuid) = self.uuid_of(&served.spec.name) else { return };
        let known = Known {
            uri: served.spec.backing.clone(),
            emulate: device.emulation(),
            record: served.record.clone(),
            sector_bytes: served.sector_bytes,
            end_bytes: device.end_bytes(),
            uuid,
            state_dir,
        };
        let (of, why_not) = (served.device, served.returns.why_not().to_owned());
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let look = move |may_wait: &MayWait| {
            let found = open_again(may_wait, &known);
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.looked_for(id, of, uuid, found))); // it may have ended
            waker.wake();
        };
        let begun = MayWait::spawn(format!("plugged-{}", self.name), look).is_ok();
        let Some(served) = self.served_mut(id) else { return };
        served.returns = match begun {
            true => Return::Looking { why_not },
            false => Return::Refused { why_not, again: Instant::now() + LOOK },
        };
    }

    /// A thread has checked where the path of a store leads.
    fn looked_for(&mut self, id: VolumeId, of: DeviceId, uuid: [u8; 16], found: Result<Reopened, String>) {
        let same = |served: &Served| served.device == of && self.uuid_of(&served.spec.name) == Some(uuid);
        let is_awaited = self.served(id).is_some_and(same) && !self.stopping;
        let Some(served) = self.served_mut(id).filter(|_| is_awaited) else {
            return crate::time_limit::drop_in_background(found);
        };
        match found {
            Err(why_not) => served.returns = Return::Refused { why_not, again: Instant::now() + LOOK },
            Ok(reopened) => {
                served.returns = Return::Found { reopened: Box::new(reopened), told: false };
                self.io.set_backing(id, None);
            }
        }
        self.watch.look_now();
    }

    /// Continues with a store that is back; returns true if operations go to it.
    fn go_on_with(&mut self, id: VolumeId) -> bool {
        let Some(served) = self.served(id) else { return true };
        let Return::Found { told, .. } = &served.returns else { return true };
        if !told {
            if self.io.is_changing(id) || !self.reactor.is_idle(served.device) {
                return false;
            }
            let now = self.io.now();
            self.engine.backing_reopened(now, id);
            if let Some(served) = self.served_mut(id)
                && let Return::Found { told, .. } = &mut served.returns
            {
                *told = true;
            }
        }
        if self.engine.is_sweeping(id) {
            return false;
        }
        self.take_returned(id);
        true
    }

    /// Switches operations to the new device of a store.
    fn take_returned(&mut self, id: VolumeId) {
        let Some(served) = self.served_mut(id) else { return };
        let Return::Found { reopened, .. } = std::mem::take(&mut served.returns) else { return };
        let (old, volume) = (served.device, served.spec.name.clone());
        let Reopened { backing, prepared } = *reopened;
        let mut device = backing.device;
        if let Some(old) = self.reactor.device(old) {
            device.set_end(old.end_bytes());
        }
        let device = self.reactor.add_device(device);
        self.io.set_watch(id, Some(prepared.begin(&volume)));
        self.io.set_backing(id, Some(device));
        self.not_short(old, Back::Reopened);
        self.forget_device(old);
        self.close_when_idle(old, None);
        if let Some(served) = self.served_mut(id) {
            served.device = device;
            served.note_new_device();
        }
    }
}
