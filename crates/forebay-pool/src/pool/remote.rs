//! Network stores that are away: their alarm, and their end at a stop.
//!
//! The store itself connects again (`forebay_nbd_client::lane`). A pool looks at it once a second.
//!
//! Invariant: a stop does not wait for a store that is away. It gives the operations up that wait
//! for it; their dirty data stays in the cache.

use super::{Pool, PoolEvent};
use forebay_format::VolumeId;
use forebay_io::{DeviceId, RemoteStore, RemoteTrouble};
use std::fmt;
use std::sync::Arc;

impl Pool {
    fn remote_store(&self, device: DeviceId) -> Option<&Arc<dyn RemoteStore>> {
        self.reactor.device(device)?.remote_store()
    }

    /// Why the server of a network store does not answer now.
    fn remote_trouble(&self, device: DeviceId) -> Option<RemoteTrouble> {
        self.remote_store(device)?.trouble()
    }

    /// Reports network stores that are away, or back.
    pub(super) fn look_after_remote(&mut self) {
        for id in (0..self.volumes.len()).map(|at| VolumeId(at as u16)) {
            let Some(device) = self.served(id).map(|served| served.device) else { continue };
            if self.remote_store(device).is_none() {
                continue;
            }
            let trouble = self.remote_trouble(device);
            if self.stopping {
                if trouble.is_some() {
                    self.close_remote(device);
                }
                continue;
            }
            let told = trouble.map(|trouble| (trouble.why, trouble.fails));
            let Some(served) = self.served_mut(id).filter(|served| served.away != told) else { continue };
            served.away.clone_from(&told);
            let volume = served.spec.name.clone();
            self.emit(match told {
                Some((why, fails)) => {
                    let store = self.store_address(device);
                    PoolEvent::StoreAway { volume, store, why, fails }
                }
                None => PoolEvent::StoreBack { volume, answers: true },
            });
        }
    }

    fn store_address(&self, device: DeviceId) -> String {
        self.reactor.device(device).map_or_else(String::new, |device| device.path().display().to_string())
    }

    /// Gives up all operations on a network store.
    pub(super) fn close_remote(&self, device: DeviceId) {
        if let Some(store) = self.remote_store(device) {
            store.close();
        }
    }

    /// Describes a network store that is away: in a word, and in sentences.
    pub(super) fn away_text(&self, device: DeviceId) -> Option<(&'static str, String)> {
        let trouble = self.remote_trouble(device)?;
        let (store, seconds) = (self.store_address(device), trouble.away.as_secs());
        let RemoteTrouble { why, waiting, .. } = trouble;
        Some((
            "away",
            format!("{store} has been away for {seconds} s: {why}. {waiting} operations wait for it"),
        ))
    }
}

impl PoolEvent {
    /// Writes the lines of this file's events.
    pub(super) fn write_remote(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreAway { volume, store, why, fails } => {
                let others = if *fails { "fail (store_timeout)" } else { "wait" };
                write!(
                    f,
                    "the backing store of {volume}, {store}, is away: {why}. Cached blocks are served, and \
                     writes go to the cache until it is full of dirty data; other requests {others}. The \
                     daemon connects again on its own"
                )
            }
            Self::StoreBack { volume, answers: true } => {
                write!(f, "the backing store of {volume} answers again")
            }
            Self::StoreBack { volume, answers: false } => {
                write!(f, "the backing store of {volume} was away, and is no longer used")
            }
            _ => Ok(()),
        }
    }
}
