//! Volumes with data in the cache that are not attached: kept at a detach, refused, or missing at
//! the start.

use super::handle::PromiseSender;
use super::volumes::refused;
use super::{Lost, Pool, Promise};
use forebay_admin::AdminError;
use forebay_admin::size::ByteSize;
use forebay_core::{DetachHow, LifecycleError};
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{BLOCK_BYTES, VolumeId};
use std::fmt;

/// A volume of the cache's table that is not attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AbsentVolume {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Dirty blocks.
    pub dirty_blocks: u64,
    /// Lost data.
    pub lost: Lost,
}

impl AbsentVolume {
    /// Returns true if its backing store lacks acknowledged data, because some is dirty or lost. A
    /// program that used the store without the cache would treat older data as current.
    pub fn is_ahead(&self) -> bool {
        self.dirty_blocks > 0 || self.lost.bytes > 0
    }

    /// Describes the data that its backing store lacks.
    pub fn ahead(&self) -> impl fmt::Display + use<> {
        Ahead { dirty_bytes: self.dirty_blocks * BLOCK_BYTES as u64, lost: self.lost }
    }
}

/// Data that backing stores lack.
struct Ahead {
    dirty_bytes: u64,
    lost: Lost,
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dirty = ByteSize(self.dirty_bytes);
        match (self.dirty_bytes, self.lost) {
            (_, Lost { bytes: 0, .. }) => write!(f, "{dirty} of dirty data"),
            (0, lost) => write!(f, "{lost} of lost data"),
            (_, lost) => write!(f, "{dirty} of dirty data and {lost} of lost data"),
        }
    }
}

/// Describes the data that the backing stores of volumes that are not attached lack.
pub fn ahead_in_all(volumes: &[AbsentVolume]) -> impl fmt::Display + use<> {
    let add =
        |sum: Lost, lost: Lost| Lost { bytes: sum.bytes + lost.bytes, ranges: sum.ranges + lost.ranges };
    Ahead {
        dirty_bytes: volumes.iter().map(|volume| volume.dirty_blocks * BLOCK_BYTES as u64).sum(),
        lost: volumes.iter().map(|volume| volume.lost).fold(Lost::default(), add),
    }
}

/// A caller that waits until the cache has forgotten a volume that is not attached.
pub(super) type Discarding = (VolumeId, PromiseSender<Result<(), AdminError>>);

impl Pool {
    /// All volumes that are not attached.
    pub fn absent(&self) -> Vec<AbsentVolume> {
        let table = self.engine.volume_table();
        let absent: Vec<VolumeEntry> =
            table.into_iter().filter(|entry| self.served(entry.id).is_none()).collect();
        if absent.is_empty() {
            return Vec::new();
        }
        let losses = self.losses_by_volume();
        let volume = |entry: VolumeEntry| AbsentVolume {
            dirty_blocks: self.engine.dirty_blocks(entry.id),
            lost: losses.get(&entry.id).copied().unwrap_or_default(),
            size_bytes: entry.size_bytes,
            name: entry.name,
        };
        absent.into_iter().map(volume).collect()
    }

    /// Returns the volume that is not attached, has dirty or lost data, and had this backing store
    /// when it was last in use.
    pub fn absent_owner_of(&self, store: &BackingRecord) -> Option<AbsentVolume> {
        let table = self.engine.volume_table();
        let is_its = |entry: &&VolumeEntry| {
            let was = &entry.backing;
            (was.kind, was.unique, was.size_bytes) == (store.kind, store.unique, store.size_bytes)
        };
        let names: Vec<&str> = table.iter().filter(is_its).map(|entry| entry.name.as_str()).collect();
        self.absent().into_iter().find(|volume| volume.is_ahead() && names.contains(&volume.name.as_str()))
    }

    /// Makes the cache forget a volume that is not attached; the promise resolves when it has.
    pub fn discard_absent(&mut self, name: &str) -> Promise<Result<(), AdminError>> {
        let (done, promise) = Promise::pair();
        let entry = self.engine.volume_table().into_iter().find(|entry| entry.name == name);
        let now = self.io.now();
        let begun = match entry.map(|entry| entry.id) {
            Some(id) if self.served(id).is_none() => {
                self.discarding.push((id, done.clone()));
                self.engine.detach_volume(now, id, DetachHow::Discard).inspect_err(|_| {
                    self.discarding.retain(|(other, _)| *other != id);
                })
            }
            Some(_) => Err(LifecycleError::Attached),
            None => Err(LifecycleError::NotAttached),
        };
        if let Err(error) = begun {
            let _ = done.try_send(Err(refused("detach", name, &error)));
        }
        promise
    }

    /// The cache has forgotten a volume that was not attached, or has failed to.
    pub(super) fn discarded(&mut self, id: VolumeId, result: Result<(), LifecycleError>) {
        let name = self.name_of(id);
        let (ended, others) = std::mem::take(&mut self.discarding).into_iter().partition(|(of, _)| *of == id);
        self.discarding = others;
        let ended: Vec<Discarding> = ended;
        for (_, done) in ended {
            let _ = done.try_send(result.map_err(|error| refused("detach", &name, &error)));
        }
    }
}
