//! Which operation has which volume, or the devices of which pool: one at a time, from its first
//! step to its last.
//!
//! An attach opens a store that may hang, and a pool lets go of a volume in its own time. Neither
//! can have [`Service::changing`] so long, which would hold up all other changes. So each of them
//! holds its volume instead.
//!
//! Invariants
//! - A volume is held from before its pool is asked to attach it, to let go of it, or to change its
//!   exports, until the configuration file and [`super::Running::config`] say what came of that.
//! - The devices of a pool are held while one of them is opened that is to take the place of
//!   another one, until a job has that.
//! - Holds are taken by who has [`Service::changing`].
//! - Of a held volume nothing else is changed, its pool is neither closed nor opened, and nobody
//!   takes its store. A reload leaves it to its holder.

use super::work::End;
use super::{Service, lock};
use forebay_admin::jobs::JobId;
use forebay_admin::{AdminError, MessageId};
use forebay_config::VolumeConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a job that waits for a volume looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// What is done to a held volume.
#[derive(Debug)]
enum Work {
    /// It is attached, with this configuration.
    Attach(Box<VolumeConfig>),
    /// It leaves its pool.
    Detach,
    /// It gets other exports, or another size, as the file says.
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
            Work::Change => ("changed as the configuration file says", "wait until the reload is done"),
        };
        AdminError::new(MessageId::VolumeBusy, format!("volume {volume} is being {doing}"), hint)
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Holds {
    table: Mutex<BTreeMap<String, Held>>,
    /// Pools whose devices are held.
    devices: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

/// The devices of a pool are held until this is dropped.
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

/// A volume is held until this is dropped.
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
    /// Somebody holds the volume.
    fn take(&self, volume: &str, held: Held) -> Result<Hold<'_>, AdminError> {
        let mut table = lock(&self.table);
        if let Some(other) = table.get(volume) {
            return Err(other.refusal(volume));
        }
        table.insert(volume.to_owned(), held);
        Ok(Hold { holds: self, volume: volume.to_owned() })
    }

    /// For an attach.
    ///
    /// # Errors
    /// Somebody holds the volume.
    pub(super) fn attach(&self, volume: &str, config: &VolumeConfig) -> Result<Hold<'_>, AdminError> {
        let (pool, work) = (config.pool.clone(), Work::Attach(Box::new(config.clone())));
        self.take(volume, Held { pool, work })
    }

    /// For a change that a reload makes.
    ///
    /// # Errors
    /// Somebody holds the volume.
    pub(super) fn change(&self, volume: &str, pool: &str) -> Result<Hold<'_>, AdminError> {
        self.take(volume, Held { pool: pool.to_owned(), work: Work::Change })
    }

    /// # Errors
    /// Somebody holds the volume.
    pub(super) fn check_free(&self, volume: &str) -> Result<(), AdminError> {
        lock(&self.table).get(volume).map_or(Ok(()), |held| Err(held.refusal(volume)))
    }

    /// For another device in the place of one of a pool.
    ///
    /// # Errors
    /// Somebody holds them.
    pub(super) fn devices(&self, pool: &str) -> Result<DevicesHold<'_>, AdminError> {
        self.check_devices_free(pool)?;
        lock(&self.devices).insert(pool.to_owned());
        Ok(DevicesHold { holds: self, pool: pool.to_owned() })
    }

    /// # Errors
    /// Somebody holds the devices of the pool.
    pub(super) fn check_devices_free(&self, pool: &str) -> Result<(), AdminError> {
        if !lock(&self.devices).contains(pool) {
            return Ok(());
        }
        let what = format!("a device of pool {pool} is being replaced");
        Err(AdminError::new(MessageId::PoolBusy, what, "wait until its job runs: forebay jobs"))
    }

    /// # Errors
    /// Somebody holds a volume of the pool, or its devices.
    pub(super) fn check_pool_free(&self, pool: &str) -> Result<(), AdminError> {
        self.check_devices_free(pool)?;
        let table = lock(&self.table);
        let found = table.iter().find(|(_, held)| held.pool == pool);
        found.map_or(Ok(()), |(volume, held)| Err(held.refusal(volume)))
    }

    /// # Errors
    /// Somebody holds any volume, or devices of any pool.
    pub(super) fn check_all_free(&self) -> Result<(), AdminError> {
        let held = lock(&self.devices).first().cloned();
        held.map_or(Ok(()), |pool| self.check_devices_free(&pool))?;
        let table = lock(&self.table);
        table.first_key_value().map_or(Ok(()), |(volume, held)| Err(held.refusal(volume)))
    }

    /// Held volumes of a pool.
    pub(super) fn of_pool(&self, pool: &str) -> Vec<String> {
        let table = lock(&self.table);
        table.iter().filter(|(_, held)| held.pool == pool).map(|(volume, _)| volume.clone()).collect()
    }

    /// Volumes that are being attached, as they are to be.
    pub(super) fn attaching(&self) -> Vec<(String, VolumeConfig)> {
        let table = lock(&self.table);
        let attaching = table.iter().filter_map(|(volume, held)| match &held.work {
            Work::Attach(config) => Some((volume.clone(), (**config).clone())),
            Work::Detach | Work::Change => None,
        });
        attaching.collect()
    }

    /// Waits for the end of a hold.
    fn wait(&self, volume: &str, timeout: Duration) {
        let table = lock(&self.table);
        let waited = self.freed.wait_timeout_while(table, timeout, |table| table.contains_key(volume));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Service {
    /// For a detach: a job waits until nobody else holds the volume.
    pub(super) fn hold_to_detach(&self, id: JobId, pool: &str, volume: &str) -> Result<Hold<'_>, End> {
        loop {
            let file = self.changing()?;
            let taken = self.holds.take(volume, Held { pool: pool.to_owned(), work: Work::Detach });
            drop(file);
            match taken {
                Ok(hold) => return Ok(hold),
                Err(_) if self.should_stop(id) => return Err(End::Stopped),
                Err(_) => self.holds.wait(volume, LOOK),
            }
        }
    }
}
