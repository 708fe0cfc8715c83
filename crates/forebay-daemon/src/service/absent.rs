//! Volumes that a pool has data of but does not serve: they are shown, they have an alarm, and
//! nothing is done that would lose what only the cache has of them.

use super::Service;
use forebay_admin::events::{AlarmKey, EventKind, Severity};
use forebay_admin::{AdminError, ErrorKind, VolumeInfo, VolumeState};
use forebay_config::VolumeConfig;
use forebay_export::size::ByteSize;
use forebay_format::BLOCK_BYTES;
use forebay_pool::open::Backing;
use forebay_pool::{AbsentVolume, PoolHandle};
use std::sync::Arc;

fn dirty(volume: &AbsentVolume) -> ByteSize {
    ByteSize(volume.dirty_blocks * BLOCK_BYTES as u64)
}

/// What an operator can do, in commands that work as they stand.
fn way_out(volume: &AbsentVolume, pool: &str, backing: &str, is_configured: bool) -> String {
    let name = &volume.name;
    let attach = match is_configured {
        true => format!("forebay volume attach {name}"),
        false => format!("forebay volume attach {name} --pool {pool} --backing {backing}"),
    };
    format!("to bring it back: {attach}; to give its dirty data up: forebay volume detach {name} --discard")
}

impl Service {
    /// Volumes that pools do not serve: those that are configured, and those that have dirty data.
    /// With what is configured of them.
    pub(super) fn absent_infos(&self) -> Result<Vec<VolumeInfo>, AdminError> {
        let pools: Vec<(String, Arc<PoolHandle>)> =
            self.running().pools.iter().map(|(name, handle)| (name.clone(), Arc::clone(handle))).collect();
        let mut all = Vec::new();
        for (pool, handle) in pools {
            let (absent, served) = Self::ask(&handle, |pool| (pool.absent(), pool.names()))?;
            let running = self.running();
            let configured = running.config.volumes.iter().filter(|(_, config)| config.pool == pool);
            let unknown = configured
                .filter(|(name, _)| {
                    !served.contains(name) && !absent.iter().any(|absent| absent.name == **name)
                })
                .map(|(name, _)| AbsentVolume { name: name.clone(), size_bytes: 0, dirty_blocks: 0 });
            for volume in absent.iter().cloned().chain(unknown) {
                let config = running.config.volumes.get(&volume.name).filter(|config| config.pool == pool);
                if volume.dirty_blocks > 0 || config.is_some() {
                    let why = self.why_absent(&volume.name, config.is_some());
                    all.push(VolumeInfo { why: Some(why), ..info(&pool, volume, config) });
                }
            }
        }
        Ok(all)
    }

    fn why_absent(&self, volume: &str, is_configured: bool) -> String {
        let failed = self.message_of(&AlarmKey::volume(EventKind::VolumeFailed, volume));
        failed.unwrap_or_else(|| match is_configured {
            true => "it is configured, and nobody has attached it since".into(),
            false => "it is not configured: it was detached, and its dirty data was kept; do not use its backing store".into(),
        })
    }

    /// Configured volumes of pools that are not open: nothing more is known of them.
    pub(super) fn volumes_of_closed_pools(&self) -> Vec<VolumeInfo> {
        let running = self.running();
        let closed =
            running.config.volumes.iter().filter(|(_, volume)| !running.pools.contains_key(&volume.pool));
        closed
            .map(|(name, config)| {
                let nothing = AbsentVolume { name: name.clone(), size_bytes: 0, dirty_blocks: 0 };
                let why = format!("pool {} is not open", config.pool);
                VolumeInfo { why: Some(why), ..info(&config.pool, nothing, Some(config)) }
            })
            .collect()
    }

    /// What an operator can do about a volume that is not attached and has dirty data.
    pub(super) fn way_out(&self, volume: Option<&AbsentVolume>, pool: &str) -> String {
        let configured = |name: &str| self.running().config.volumes.contains_key(name);
        volume.map_or_else(String::new, |volume| way_out(volume, pool, "URI", configured(&volume.name)))
    }

    /// The pool that has a volume: the one that it is configured for, or one that has data of it.
    pub(super) fn pool_with(&self, name: &str) -> Result<(String, Arc<PoolHandle>), AdminError> {
        let configured = self.pool_of(name);
        if configured.is_ok() {
            return configured;
        }
        let absent = self.absent_infos()?.into_iter().find(|info| info.name == name);
        match absent {
            Some(info) => Ok((info.pool.clone(), self.handle(&info.pool)?)),
            None => configured,
        }
    }

    /// Raises an alarm for each volume of a pool that is not attached and has dirty data.
    pub(super) fn look_for_absent(&self, pool: &str) {
        // A pool that does not answer has other alarms.
        let absent = self.handle(pool).and_then(|handle| Self::ask(&handle, |pool| pool.absent()));
        for volume in absent.unwrap_or_default() {
            let key = AlarmKey::volume(EventKind::VolumeAbsent, &volume.name);
            if volume.dirty_blocks == 0 {
                self.hub.clear(&key);
                continue;
            }
            let message = format!(
                "pool {pool} holds {} of dirty data of {}, which is not attached: do not use its backing store; {}",
                dirty(&volume),
                volume.name,
                self.way_out(Some(&volume), pool)
            );
            self.hub.raise(key, Severity::Warning, &message);
        }
    }

    /// Checks that a backing store is not that of another volume, which is not attached and of
    /// which a cache has dirty data: they would be written over what is written now, or never.
    pub(super) fn check_not_of_absent(
        &self,
        name: &str,
        config: &VolumeConfig,
        backing: &Backing,
    ) -> Result<(), AdminError> {
        let pools: Vec<(String, Arc<PoolHandle>)> =
            self.running().pools.iter().map(|(name, handle)| (name.clone(), Arc::clone(handle))).collect();
        for (pool, handle) in pools {
            let record = backing.record.clone();
            let owner = Self::ask(&handle, move |pool| pool.absent_owner_of(&record))?;
            let Some(owner) = owner.filter(|owner| owner.name != name || pool != config.pool) else {
                continue;
            };
            let is_configured = self.running().config.volumes.contains_key(&owner.name);
            return Err(AdminError::new(
                ErrorKind::Conflict,
                format!(
                    "cannot attach {name}: {} is the backing store of volume {}, of which pool {pool} holds {} of dirty data",
                    config.backing,
                    owner.name,
                    dirty(&owner)
                ),
                way_out(&owner, &pool, &config.backing.to_string(), is_configured),
            ));
        }
        Ok(())
    }

    /// Checks that a pool has no dirty data of volumes that are not attached.
    pub(super) fn check_nothing_absent(&self, pool: &str) -> Result<(), AdminError> {
        let handle = self.handle(pool)?;
        let absent = Self::ask(&handle, |pool| pool.absent())?;
        let dirty: Vec<AbsentVolume> = absent.into_iter().filter(|volume| volume.dirty_blocks > 0).collect();
        let Some(first) = dirty.first() else { return Ok(()) };
        let kept: u64 = dirty.iter().map(|volume| volume.dirty_blocks).sum();
        let names: Vec<&str> = dirty.iter().map(|volume| volume.name.as_str()).collect();
        Err(AdminError::new(
            ErrorKind::Conflict,
            format!(
                "pool {pool} holds {} of dirty data of {}, which no backing store has",
                ByteSize(kept * BLOCK_BYTES as u64),
                names.join(", ")
            ),
            self.way_out(Some(first), pool),
        ))
    }
}

fn info(pool: &str, volume: AbsentVolume, config: Option<&VolumeConfig>) -> VolumeInfo {
    let mode = config.map(|config| forebay_core::VolumeSettings::from(&config.tunables()).mode.name());
    VolumeInfo {
        pool: pool.into(),
        state: VolumeState::Absent,
        backing: config.map_or_else(String::new, |config| config.backing.to_string()),
        exports: Vec::new(),
        size_bytes: volume.size_bytes,
        mode: mode.unwrap_or_default().into(),
        cached_bytes: 0,
        dirty_bytes: volume.dirty_blocks * BLOCK_BYTES as u64,
        oldest_dirty_age_ns: 0,
        destage_limited_by: "the volume is not attached".into(),
        ordered: false,
        connections: 0,
        job: None,
        lost_bytes: 0,
        lost_ranges: 0,
        why: None,
        files: Vec::new(),
        name: volume.name,
    }
}
