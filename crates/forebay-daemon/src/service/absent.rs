//! Volumes that a pool has data of but does not serve: they are listed and have an alarm, and
//! operations that would lose their dirty data, or the record of their lost blocks, are refused.

use super::Service;
use super::pool_query::ask;
use forebay_admin::events::{AlarmKey, EventKind, Severity};
use forebay_admin::{AdminError, MessageId, VolumeInfo, VolumeState};
use forebay_config::VolumeConfig;
use forebay_format::BLOCK_BYTES;
use forebay_pool::open::Backing;
use forebay_pool::{AbsentVolume, Lost, PoolHandle, ahead_in_all};
use std::sync::Arc;

/// Returns the operator's options, as commands that work unchanged if the backing store is known.
fn way_out(volume: &AbsentVolume, pool: &str, backing: Option<&str>, is_configured: bool) -> String {
    let name = &volume.name;
    let attach = match (is_configured, backing) {
        (true, None) => format!(
            "forebay volume attach {name}, or, if its backing store has moved: forebay volume attach {name} \
             --backing URI"
        ),
        (true, Some(backing)) => format!("forebay volume attach {name} --backing {backing}"),
        (false, _) => {
            format!("forebay volume attach {name} --pool {pool} --backing {}", backing.unwrap_or("URI"))
        }
    };
    format!("to bring it back: {attach}; to discard its dirty data: forebay volume detach {name} --discard")
}

impl Service {
    /// Finds volumes that pools do not serve: the configured ones, and those with dirty or lost
    /// blocks, with their configuration.
    ///
    /// # Errors
    /// A pool does not answer, and so may have more of them; those of the others are passed to
    /// `found` first.
    fn find_absent<T>(
        &self,
        mut found: impl FnMut(VolumeInfo) -> Option<T>,
    ) -> Result<Option<T>, AdminError> {
        let looked = self.pools.look_at_all(|pool| (pool.absent(), pool.names()));
        let mut all = looked
            .answers
            .into_iter()
            .flat_map(|(pool, (absent, served))| self.absent_of(&pool, absent, &served));
        match (all.find_map(&mut found), looked.silent.first()) {
            (None, Some(silent)) => {
                let what = format!("pool {silent} does not answer");
                Err(AdminError::new(
                    MessageId::Event(EventKind::PoolNotAnswering),
                    what,
                    "try again once it does",
                ))
            }
            (one, _) => Ok(one),
        }
    }

    /// Returns those of a pool that has reported its absent and its served volumes.
    pub(super) fn absent_of(
        &self,
        pool: &str,
        absent: Vec<AbsentVolume>,
        served: &[String],
    ) -> Vec<VolumeInfo> {
        let config = self.catalog.config();
        let configured = config.volumes.iter().filter(|(_, config)| config.pool == pool);
        let unknown = configured
            .filter(|(name, _)| !served.contains(name) && !absent.iter().any(|absent| absent.name == **name))
            .map(|(name, _)| nothing_of(name));
        let mut all = Vec::new();
        for volume in absent.iter().cloned().chain(unknown) {
            let config = config.volumes.get(&volume.name).filter(|config| config.pool == pool);
            if volume.is_ahead() || config.is_some() {
                let why = self.why_absent(&volume.name, config.is_some());
                all.push(VolumeInfo { why: Some(why), ..info(pool, volume, config) });
            }
        }
        all
    }

    /// Returns the absent volume of this name.
    pub(super) fn absent_info(&self, name: &str) -> Result<Option<VolumeInfo>, AdminError> {
        self.find_absent(|info| (info.name == name).then_some(info))
    }

    /// Returns the error for requests to a volume that is not configured, but of which a pool keeps
    /// data. Asks no pool.
    pub(super) fn kept_apart(&self, name: &str) -> Option<AdminError> {
        let alarm = self.telemetry.message_of(&AlarmKey::volume(EventKind::VolumeAbsent, name))?;
        // The alarm lists the options after the problem.
        let (what, hint) = alarm.split_once("; ").unwrap_or((&alarm, ""));
        Some(AdminError::new(MessageId::VolumeNotAttached, what, hint))
    }

    fn why_absent(&self, volume: &str, is_configured: bool) -> String {
        let failed = self.telemetry.message_of(&AlarmKey::volume(EventKind::VolumeFailed, volume));
        failed.unwrap_or_else(|| match is_configured {
            true => "it is configured, but has not been attached again".into(),
            false => "it is not configured: it was detached, and its dirty data was kept; do not use its \
                      backing store"
                .into(),
        })
    }

    /// Returns configured volumes of pools that are not open: nothing more is known of them.
    pub(super) fn volumes_of_closed_pools(&self) -> Vec<VolumeInfo> {
        let closed = self.volumes_unasked(|pool| !self.pools.contains(pool));
        let why = |info: &VolumeInfo| Some(format!("pool {} is not open", info.pool));
        closed.into_iter().map(|info| VolumeInfo { why: why(&info), ..info }).collect()
    }

    /// Returns the volumes of pools that do not answer.
    pub(super) fn volumes_of_silent(&self, silent: &[String]) -> Vec<VolumeInfo> {
        let unknown = |info: VolumeInfo| VolumeInfo {
            state: VolumeState::Unknown,
            destage_limited_by: String::new(),
            why: Some(self.pools.why_silent(&info.pool)),
            ..info
        };
        let all = self.volumes_unasked(|pool| silent.iter().any(|silent| silent == pool));
        all.into_iter().map(unknown).collect()
    }

    /// Returns configured volumes of pools without asking the pools.
    pub(super) fn volumes_unasked(&self, of: impl Fn(&str) -> bool) -> Vec<VolumeInfo> {
        let configured = self.catalog.config();
        let volumes = configured.volumes.iter().filter(|(_, volume)| of(&volume.pool));
        let unknown = |info: VolumeInfo| VolumeInfo { cached_bytes: None, dirty_bytes: None, ..info };
        volumes.map(|(name, config)| unknown(info(&config.pool, nothing_of(name), Some(config)))).collect()
    }

    /// Returns the operator's options for a volume that is not attached and has dirty or lost
    /// blocks.
    pub(super) fn way_out(&self, volume: Option<&AbsentVolume>, pool: &str) -> String {
        let configured = |name: &str| self.catalog.has_volume(name);
        volume.map_or_else(String::new, |volume| way_out(volume, pool, None, configured(&volume.name)))
    }

    /// Returns the pool of a volume: the one that it is configured for, or one that has data of it.
    pub(super) fn pool_with(&self, name: &str) -> Result<(String, Arc<PoolHandle>), AdminError> {
        let configured = self.pool_of(name);
        if configured.is_ok() {
            return configured;
        }
        match self.absent_info(name)? {
            Some(info) => Ok((info.pool.clone(), self.handle(&info.pool)?)),
            None => configured,
        }
    }

    /// Raises an alarm for each volume of a pool that is not attached and has dirty or lost blocks.
    pub(super) fn look_for_absent(&self, pool: &str) {
        // A pool that does not answer has other alarms.
        let absent = self.handle(pool).and_then(|handle| ask(&handle, |pool| pool.absent()));
        for volume in absent.unwrap_or_default() {
            let key = AlarmKey::volume(EventKind::VolumeAbsent, &volume.name);
            if !volume.is_ahead() {
                self.hub.clear(&key);
                continue;
            }
            let message = format!(
                "pool {pool} holds {} of {}, which is not attached: do not use its backing store; {}",
                volume.ahead(),
                volume.name,
                self.way_out(Some(&volume), pool)
            );
            self.hub.raise(key, Severity::Warning, &message);
        }
    }

    /// Checks that a backing store does not belong to another volume that is not attached and has
    /// dirty blocks in a cache: they would later overwrite new data, or never be written. Its lost
    /// blocks would look like valid, old data.
    pub(super) fn check_not_of_absent(
        &self,
        name: &str,
        config: &VolumeConfig,
        backing: &Backing,
    ) -> Result<(), AdminError> {
        for (pool, handle) in self.pools.all() {
            let record = backing.record.clone();
            let owner = ask(&handle, move |pool| pool.absent_owner_of(&record))?;
            let Some(owner) = owner.filter(|owner| owner.name != name || pool != config.pool) else {
                continue;
            };
            let is_configured = self.catalog.has_volume(&owner.name);
            return Err(AdminError::new(
                MessageId::BackingDirtyElsewhere,
                format!(
                    "cannot attach {name}: {} is the backing store of volume {}, of which pool {pool} holds {}",
                    config.backing,
                    owner.name,
                    owner.ahead()
                ),
                way_out(&owner, &pool, Some(&config.backing.to_string()), is_configured),
            ));
        }
        Ok(())
    }

    /// Checks that a pool has no dirty or lost blocks of volumes that are not attached.
    pub(super) fn check_nothing_absent(&self, pool: &str) -> Result<(), AdminError> {
        let handle = self.handle(pool)?;
        let absent = ask(&handle, |pool| pool.absent())?;
        let ahead: Vec<AbsentVolume> = absent.into_iter().filter(AbsentVolume::is_ahead).collect();
        let Some(first) = ahead.first() else { return Ok(()) };
        let names: Vec<&str> = ahead.iter().map(|volume| volume.name.as_str()).collect();
        Err(AdminError::new(
            MessageId::PoolDirtyData,
            format!(
                "pool {pool} holds {} of {}, which is on no backing store",
                ahead_in_all(&ahead),
                names.join(", ")
            ),
            self.way_out(Some(first), pool),
        ))
    }
}

/// Returns an absent volume about which only its configuration is known.
fn nothing_of(name: &str) -> AbsentVolume {
    AbsentVolume { name: name.into(), size_bytes: 0, dirty_blocks: 0, lost: Lost::default() }
}

fn info(pool: &str, volume: AbsentVolume, config: Option<&VolumeConfig>) -> VolumeInfo {
    let mode = config.map(|config| forebay_core::VolumeSettings::from(&config.tunables()).mode.name());
    VolumeInfo {
        pool: pool.into(),
        state: VolumeState::Absent,
        backing: config.map_or_else(String::new, |config| config.backing.to_string()),
        backing_state: String::new(),
        backing_why: None,
        exports: Vec::new(),
        size_bytes: volume.size_bytes,
        sector_bytes: 0,
        mode: mode.unwrap_or_default().into(),
        cached_bytes: Some(0),
        dirty_bytes: Some(volume.dirty_blocks * BLOCK_BYTES as u64),
        oldest_dirty_age_ns: 0,
        destage_limited_by: "the volume is not attached".into(),
        ordered: false,
        connections: 0,
        job: None,
        lost_bytes: volume.lost.bytes,
        lost_ranges: volume.lost.ranges,
        why: None,
        files: Vec::new(),
        warnings: Vec::new(),
        name: volume.name,
    }
}
