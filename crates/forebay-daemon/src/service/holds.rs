//! Exclusive holds of operations on volumes and on the devices of pools, from the first step of an
//! operation to its last.
//!
//! An attach opens a store that may hang, and a pool detaches a volume in its own time. Neither can
//! hold `Service::changing` for that long, because it would block all other changes. So each of
//! them holds its volume instead.
//!
//! Invariants
//! - A volume is held from before its pool is asked to attach it, to detach it, or to change its
//!   exports, until the configuration file and the running configuration have the result.
//! - The devices of a pool are held while a replacement for one of them is opened, until a job
//!   takes it over.
//! - Holds are taken under `Service::changing`.
//! - While a volume is held, nothing else changes it, its pool is neither closed nor opened, and
//!   its store cannot be used otherwise. A reload leaves it to its holder.

use super::locking::lock;
use forebay_admin::{AdminError, MessageId};
use forebay_config::VolumeConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The operation on a held volume.
#[derive(Debug)]
enum Work {
    /// Attach, with this configuration.
    Attach(Box<VolumeConfig>),
    /// Detach.
    Detach,
    /// Change of exports or size, as in the file.
    Change,
}

#[derive(Debug)]
struct Held {
    pool: String,
    work: Work,
}

impl Held {
    fn refusal(&self, volume: &str) -> AdminError {
        let (doing, hint) = match self.work {
            Work::Attach(_) => ("attached", "wait: its backing store may be slow"),
            Work::Detach => ("detached", "wait for its job, or cancel it"),
            Work::Change => ("changed by a reload", "wait until the reload is done"),
        };
        AdminError::new(MessageId::VolumeBusy, format!("volume {volume} is being {doing}"), hint)
    }
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Holds {
    table: Mutex<BTreeMap<String, Held>>,
    /// Pools whose devices are held.
    devices: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

/// Holds the devices of a pool until it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct DevicesHold<'a> {
    holds: &'a Holds,
    pool: String,
}

impl Drop for DevicesHold<'_> {
    fn drop(&mut self) {
        lock(&self.holds.devices).remove(&self.pool);
    }
}

/// Holds a volume until it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct Hold<'a> {
    holds: &'a Holds,
    volume: String,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        lock(&self.holds.table).remove(&self.volume);
        self.holds.freed.notify_all();
    }
}

impl Holds {
    /// # Errors
    /// Another operation holds the volume.
    fn take(&self, volume: &str, held: Held) -> Result<Hold<'_>, AdminError> {
        let mut table = lock(&self.table);
        if let Some(other) = table.get(volume) {
            return Err(other.refusal(volume));
        }
        table.insert(volume.to_owned(), held);
        Ok(Hold { holds: self, volume: volume.to_owned() })
    }

    /// Takes the hold for an attach.
    ///
    /// # Errors
    /// Another operation holds the volume.
    pub(super) fn attach(&self, volume: &str, config: &VolumeConfig) -> Result<Hold<'_>, AdminError> {
        let (pool, work) = (config.pool.clone(), Work::Attach(Box::new(config.clone())));
        self.take(volume, Held { pool, work })
    }

    /// Takes the hold for a detach.
    ///
    /// # Errors
    /// Another operation holds the volume.
    pub(super) fn detach(&self, volume: &str, pool: &str) -> Result<Hold<'_>, AdminError> {
        self.take(volume, Held { pool: pool.to_owned(), work: Work::Detach })
    }

    /// Takes the hold for a change by a reload.
    ///
    /// # Errors
    /// Another operation holds the volume.
    pub(super) fn change(&self, volume: &str, pool: &str) -> Result<Hold<'_>, AdminError> {
        self.take(volume, Held { pool: pool.to_owned(), work: Work::Change })
    }

    /// # Errors
    /// Another operation holds the volume.
    pub(super) fn check_free(&self, volume: &str) -> Result<(), AdminError> {
        lock(&self.table).get(volume).map_or(Ok(()), |held| Err(held.refusal(volume)))
    }

    /// Takes the hold for replacing a device of a pool.
    ///
    /// # Errors
    /// Another operation holds them.
    pub(super) fn devices(&self, pool: &str) -> Result<DevicesHold<'_>, AdminError> {
        self.check_devices_free(pool)?;
        lock(&self.devices).insert(pool.to_owned());
        Ok(DevicesHold { holds: self, pool: pool.to_owned() })
    }

    /// # Errors
    /// Another operation holds the devices of the pool.
    pub(super) fn check_devices_free(&self, pool: &str) -> Result<(), AdminError> {
        if !lock(&self.devices).contains(pool) {
            return Ok(());
        }
        let what = format!("a device of pool {pool} is being replaced");
        Err(AdminError::new(MessageId::PoolBusy, what, "wait until its job runs: forebay jobs"))
    }

    /// # Errors
    /// Another operation holds a volume of the pool, or its devices.
    pub(super) fn check_pool_free(&self, pool: &str) -> Result<(), AdminError> {
        self.check_devices_free(pool)?;
        let table = lock(&self.table);
        let found = table.iter().find(|(_, held)| held.pool == pool);
        found.map_or(Ok(()), |(volume, held)| Err(held.refusal(volume)))
    }

    /// # Errors
    /// Another operation holds any volume, or devices of any pool.
    pub(super) fn check_all_free(&self) -> Result<(), AdminError> {
        let held = lock(&self.devices).first().cloned();
        held.map_or(Ok(()), |pool| self.check_devices_free(&pool))?;
        let table = lock(&self.table);
        table.first_key_value().map_or(Ok(()), |(volume, held)| Err(held.refusal(volume)))
    }

    /// Returns the held volumes of a pool.
    pub(super) fn of_pool(&self, pool: &str) -> Vec<String> {
        let table = lock(&self.table);
        table.iter().filter(|(_, held)| held.pool == pool).map(|(volume, _)| volume.clone()).collect()
    }

    /// Returns the volumes that are being attached, with their new configuration.
    pub(super) fn attaching(&self) -> Vec<(String, VolumeConfig)> {
        let table = lock(&self.table);
        let attaching = table.iter().filter_map(|(volume, held)| match &held.work {
            Work::Attach(config) => Some((volume.clone(), (**config).clone())),
            Work::Detach | Work::Change => None,
        });
        attaching.collect()
    }

    /// Waits for the end of a hold.
    pub(super) fn wait(&self, volume: &str, timeout: Duration) {
        let table = lock(&self.table);
        let waited = self.freed.wait_timeout_while(table, timeout, |table| table.contains_key(volume));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
