//! Backing stores that were unplugged: disks that the kernel does not have any more.
//!
//! When such a disk is plugged in again the kernel makes another device of it. The one that is open
//! fails for ever, so the pool opens the path again, once a second, until it leads to the same disk
//! (`open::again`: serial number, size, sectors, and the first blocks as they were written last).
//! Then, in this order:
//!
//! 1. Nothing more goes to the old device: operations fail at once, as they have before.
//! 2. When nothing is under way on it, the engine is told ([`Engine::backing_reopened`], I83): it
//!    trusts no flush of what the old device had taken, and forgets the clean blocks.
//! 3. When those are forgotten, operations go to the new device.
//!
//! Invariant: no operation is under way on two devices of one store.
//!
//! [`Engine::backing_reopened`]: forebay_core::Engine::backing_reopened

use super::{Back, Pool, Served};
use crate::may_wait::MayWait;
use crate::open::again::{Known, Reopened, open_again};
use forebay_admin::VolumeState;
use forebay_format::VolumeId;
use forebay_io::DeviceId;
use std::time::{Duration, Instant};

/// Time between two looks at where the path leads.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a store is about to be taken.
const SOON: Duration = Duration::from_millis(20);

/// How far a backing store is on its way back.
#[derive(Debug, Default)]
pub(super) enum Return {
    /// It is where it was, or nothing is known of it yet.
    #[default]
    Unknown,
    /// A thread looks where its path leads.
    Looking {
        /// Why the last store was not taken; empty if there was none.
        why_not: String,
    },
    /// Its path leads to no store that can be taken.
    Refused {
        /// Why; empty if it leads nowhere.
        why_not: String,
        /// When it is looked at again.
        again: Instant,
    },
    /// It is there. Nothing goes to the old device.
    Found {
        reopened: Box<Reopened>,
        /// The engine was told.
        told: bool,
    },
}

impl Return {
    /// Why the store that the path leads to is not taken; empty if it leads nowhere.
    pub(super) fn why_not(&self) -> &str {
        match self {
            Self::Looking { why_not } | Self::Refused { why_not, .. } => why_not,
            Self::Unknown | Self::Found { .. } => "",
        }
    }
}

impl Pool {
    /// Looks for stores that were unplugged; returns how long the loop may sleep because of those
    /// that are there again.
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

    /// Has a thread look where the path of a store leads that was unplugged.
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

    /// A thread has looked where the path of a store leads.
    fn looked_for(&mut self, id: VolumeId, of: DeviceId, uuid: [u8; 16], found: Result<Reopened, String>) {
        let same = |served: &Served| served.device == of && self.uuid_of(&served.spec.name) == Some(uuid);
        let is_awaited = self.served(id).is_some_and(same) && !self.stopping;
        let Some(served) = self.served_mut(id).filter(|_| is_awaited) else {
            return crate::time_limit::let_go(found);
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

    /// Goes on with a store that is there again; true if operations go to it.
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

    /// Operations go to the new device of a store from now on.
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
