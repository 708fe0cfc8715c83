//! Pools that are configured and not open: the known state of their caches, and their removal.

use super::Service;
use super::catalog::StoredConfig;
use super::telemetry::ServiceEvent;
use forebay_admin::events::{AlarmKey, EventKind};
use forebay_admin::{AdminError, DeviceInfo, MessageId, PoolInfo, RecordedInfo};
use forebay_config::Edit;
use forebay_pool::MayWait;
use forebay_pool::loss_record::LossRecord;
use forebay_pool::register::{CacheRecord, Leaving, of_pool};
use std::path::Path;

/// Returns the record of a cache in the form of the API.
pub(super) fn recorded_info(record: &CacheRecord, state_dir: &Path) -> RecordedInfo {
    RecordedInfo {
        cache: record.cache_uuid.clone(),
        path: record.path(state_dir).display().to_string(),
        generation: record.generation,
        in_use: record.in_use,
        dirty_bytes: record.dirty_bytes,
        recorded_unix_s: record.recorded_unix_s,
    }
}

impl Service {
    /// Returns true if a pool is configured and not open.
    pub(super) fn is_closed(&self, name: &str) -> bool {
        self.catalog.has_pool(name) && !self.pools.contains(name)
    }

    /// Returns pools that are configured and not open.
    pub(super) fn closed_infos(&self) -> Vec<PoolInfo> {
        let closed: Vec<String> = {
            let config = self.catalog.config();
            config.pools.keys().filter(|name| !self.pools.contains(name)).cloned().collect()
        };
        closed.iter().map(|name| self.configured_info(name)).collect()
    }

    /// Returns the known state of a pool without asking it: its configuration and record.
    pub(super) fn configured_info(&self, name: &str) -> PoolInfo {
        let (devices, state_dir) = (self.catalog.devices_of(name), self.catalog.state_dir());
        let device = |spec: &forebay_config::CacheSpec| DeviceInfo {
            path: spec.path.display().to_string(),
            size_bytes: spec.size_bytes.unwrap_or(0),
            state: String::new(),
            copied: None,
            flash: None,
        };
        let records = of_pool(&state_dir, name).unwrap_or_default();
        let recorded = records.first().map(|record| recorded_info(record, &state_dir));
        let devices = devices.iter().map(device).collect();
        let why = self.telemetry.message_of(&AlarmKey::pool(EventKind::PoolFailed, name));
        let volumes = self.catalog.volumes_of(name);
        PoolInfo { volumes, why, ..PoolInfo::closed(name.into(), devices, recorded) }
    }

    /// Returns the known state of a pool that does not answer.
    pub(super) fn silent_info(&self, name: &str) -> PoolInfo {
        let why = Some(self.pools.why_silent(name));
        PoolInfo { not_open: false, not_answering: true, why, ..self.configured_info(name) }
    }

    /// Checks that removing a pool that is not open from the configuration does not abandon dirty
    /// data.
    pub(super) fn check_closed_removable(&self, name: &str) -> Result<(), AdminError> {
        let (devices, state_dir) = (self.catalog.devices_of(name), self.catalog.state_dir());
        let volumes = self.catalog.volumes_of(name);
        let lost =
            LossRecord::all(&MayWait::here(), &state_dir)?.into_iter().find(|record| record.pool == name);
        let records = of_pool(&state_dir, name)?;
        let why = if !volumes.is_empty() {
            format!("it is in use by {}", volumes.join(", "))
        } else if let Some(record) = lost {
            format!("its cache has failed, see {}", record.path(&state_dir).display())
        } else if let Some(record) = records.iter().find(|record| record.may_be_dirty()) {
            let path = record.path(&state_dir);
            format!("{} ({}: cache {})", record.worth(), path.display(), record.cache_uuid)
        } else if records.is_empty() && devices.iter().any(|spec| spec.path.exists()) {
            "its cache has no record, but its devices exist".to_owned()
        } else {
            return Ok(());
        };
        Err(AdminError::new(
            MessageId::PoolNotOpen,
            format!("pool {name} is not open, and {why}"),
            format!(
                "to open it: forebay pool open {name}; to remove it and its volumes from the configuration \
                 without writing anything back: forebay pool remove {name} --force"
            ),
        ))
    }

    /// Removes a pool that is not open from the configuration, with its volumes. Its devices stay
    /// as they are, and so does the record of its cache, except for its owner: any pool may open
    /// the cache again.
    pub(super) fn forget_closed(
        &self,
        name: &str,
        file: Option<&mut StoredConfig>,
    ) -> Result<(), AdminError> {
        self.holds.check_pool_free(name)?;
        let volumes = self.catalog.volumes_of(name);
        let state_dir = self.catalog.state_dir();
        let records = of_pool(&state_dir, name)?;
        if let Some(file) = file.filter(|file| file.exists()) {
            // If the daemon ends after this, the next start finishes the removal if the file no
            // longer has the pool. Ignore a failed write: the record then only contains more than
            // necessary.
            for record in &records {
                let _ = record.leave(&MayWait::here(), &state_dir, Leaving::default());
            }
            let out = |volume: &String| Edit::RemoveVolume { name: volume.clone() };
            let edits: Vec<Edit> =
                volumes.iter().map(out).chain([Edit::RemovePool { name: name.into() }]).collect();
            file.remove(edits).inspect_err(|_| {
                for record in &records {
                    let _ = record.stay(&MayWait::here(), &state_dir);
                }
            })?;
        }
        for record in records {
            if let Err(why) = record.remove(&MayWait::here(), &state_dir, false) {
                self.telemetry.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), format!(
                    "pool {name} is removed, but the record of its cache is not: {why}; the next start tries \
                     again"
                )));
            }
        }
        self.deferred.forget(name, &volumes);
        self.catalog.remove_pool(name);
        self.telemetry.clear_alarms_of(name, &volumes);
        Ok(())
    }
}
