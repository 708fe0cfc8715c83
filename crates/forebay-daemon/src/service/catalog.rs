//! The configuration: the file, what is in effect of it, and the rule for changing both (decisions
//! 0008, 0082).
//!
//! A change is written into the file before it takes effect. If it then fails, the file is edited
//! back. A kill in between leaves the change in the file: the next start, or a repeated command,
//! completes it.
//!
//! `forebay run` has no file: there a change only takes effect.

use super::lock;
use forebay_admin::{AdminError, ErrorKind, MessageId, Target};
use forebay_config::choices::Mirror;
use forebay_config::device_name::node_of;
use forebay_config::endurance::Endurance;
use forebay_config::{
    CacheSpec, Checked, Config, ConfigFile, DaemonConfig, Diagnostic, Edit, EditError, PoolConfig, RuleTable,
    Settings, StoreError, VolumeConfig,
};
use forebay_pool::cache_device::is_same;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or is wrong; the error lists every problem.
pub(crate) fn load(path: &Path) -> Result<(ConfigFile, Checked), StoreError> {
    ConfigFile::load(path, &check_rules)
}

/// Checks the rules of the file with the module that defines their meaning.
fn check_rules(volume: &str, tables: &[RuleTable]) -> Vec<Diagnostic> {
    forebay_config::rule_table::check(volume, tables)
}

/// Returns the error for the operator when the configuration file cannot be changed.
fn stored(error: &StoreError) -> AdminError {
    let kind = match error {
        StoreError::Edit(_) | StoreError::Refused { .. } => ErrorKind::Invalid,
        StoreError::WrongMeanwhile { .. } | StoreError::Busy { .. } => ErrorKind::Conflict,
        _ => ErrorKind::Failed,
    };
    AdminError::new(error.id(), error, "").of_kind(kind)
}

/// The configuration: the file, and what is in effect of it, with changes until the next start.
///
/// A method locks the running configuration only for itself, except for [`Self::config`].
#[derive(Debug)]
pub(super) struct Catalog {
    /// Held by the thread that makes a change.
    file: Mutex<StoredConfig>,
    running: RwLock<Config>,
    /// Path of the file in messages; `None` for `forebay run`.
    path: Option<String>,
}

impl Catalog {
    pub(super) fn new(config: Config, file: Option<ConfigFile>, path: Option<String>) -> Self {
        Self { file: Mutex::new(StoredConfig(file)), running: RwLock::new(config), path }
    }

    /// Returns the right to make a change, once no other thread has it.
    pub(super) fn lock_file(&self) -> MutexGuard<'_, StoredConfig> {
        lock(&self.file)
    }

    /// Returns the path of the file in messages; `None` for `forebay run`.
    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Returns the running configuration. A thread that has it uses no other method of the catalog.
    pub(super) fn config(&self) -> RwLockReadGuard<'_, Config> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn config_mut(&self) -> RwLockWriteGuard<'_, Config> {
        self.running.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directory of the cache records.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.config().daemon.state_dir.clone()
    }

    // --- pools

    pub(super) fn has_pool(&self, name: &str) -> bool {
        self.config().pools.contains_key(name)
    }

    pub(super) fn devices_of(&self, pool: &str) -> Vec<CacheSpec> {
        self.config().pools.get(pool).map_or_else(Vec::new, |pool| pool.devices.clone())
    }

    pub(super) fn is_mirrored(&self, pool: &str) -> bool {
        self.config().pools.get(pool).is_some_and(|pool| pool.tunables().mirror == Mirror::On)
    }

    /// Returns the rated endurance of the devices of a pool.
    pub(super) fn endurance_rating(&self, pool: &str) -> Option<Endurance> {
        self.config().pools.get(pool)?.tunables().endurance_rating
    }

    pub(super) fn volumes_of(&self, pool: &str) -> Vec<String> {
        let config = self.config();
        let ours = config.volumes.iter().filter(|(_, volume)| volume.pool == pool);
        ours.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the configuration of a pool and of its volumes.
    ///
    /// # Errors
    /// There is no such pool.
    pub(super) fn with_volumes(
        &self,
        name: &str,
    ) -> Result<(PoolConfig, Vec<(String, VolumeConfig)>), AdminError> {
        let running = self.config();
        let known: Vec<&str> = running.pools.keys().map(String::as_str).collect();
        let config = running.pools.get(name).cloned();
        let config =
            config.ok_or_else(|| AdminError::not_found(MessageId::PoolUnknown, "pool", name, &known))?;
        let ours = running.volumes.iter().filter(|(_, volume)| volume.pool == name);
        Ok((config, ours.map(|(name, volume)| (name.clone(), volume.clone())).collect()))
    }

    pub(super) fn put_pool(&self, name: &str, pool: PoolConfig) {
        self.config_mut().pools.insert(name.into(), pool);
    }

    pub(super) fn set_devices(&self, pool: &str, devices: Vec<CacheSpec>) {
        if let Some(pool) = self.config_mut().pools.get_mut(pool) {
            pool.devices = devices;
        }
    }

    /// Removes a pool and its volumes.
    pub(super) fn remove_pool(&self, name: &str) {
        let mut running = self.config_mut();
        running.pools.remove(name);
        running.volumes.retain(|_, volume| volume.pool != name);
    }

    /// Takes the sections of a pool and its volumes from the file instead of the ones that the
    /// daemon read last: the operator may have added a key, or another device.
    pub(super) fn take_sections(&self, pool: &str, new: &Config) {
        let is_ours = |volume: &VolumeConfig| volume.pool == pool;
        let mut running = self.config_mut();
        if let (Some(known), Some(now)) = (running.pools.get_mut(pool), new.pools.get(pool)) {
            known.clone_from(now);
        }
        for (volume, known) in running.volumes.iter_mut().filter(|(_, known)| is_ours(known)) {
            if let Some(now) = new.volumes.get(volume).filter(|now| is_ours(now)) {
                known.clone_from(now);
            }
        }
    }

    // --- volumes

    pub(super) fn volume(&self, name: &str) -> Option<VolumeConfig> {
        self.config().volumes.get(name).cloned()
    }

    pub(super) fn has_volume(&self, name: &str) -> bool {
        self.config().volumes.contains_key(name)
    }

    /// Returns the pool that a volume is configured for.
    pub(super) fn pool_of(&self, volume: &str) -> Option<String> {
        self.config().volumes.get(volume).map(|volume| volume.pool.clone())
    }

    pub(super) fn put_volume(&self, name: &str, volume: VolumeConfig) {
        self.config_mut().volumes.insert(name.into(), volume);
    }

    pub(super) fn remove_volume(&self, name: &str) {
        self.config_mut().volumes.remove(name);
    }

    /// Changes a volume, if it is configured.
    pub(super) fn change_volume(&self, name: &str, change: impl FnOnce(&mut VolumeConfig)) {
        self.config_mut().volumes.get_mut(name).map(change);
    }

    /// Notes tunables in effect.
    pub(super) fn note_settings(&self, target: Target<'_>, new: Settings) {
        let mut running = self.config_mut();
        let known = match target {
            Target::Pool(name) => running.pools.get_mut(name).map(|pool| &mut pool.settings),
            Target::Volume(name) => running.volumes.get_mut(name).map(|volume| &mut volume.settings),
        };
        if let Some(known) = known {
            *known = new;
        }
    }

    // --- devices

    /// Returns the configured user of a device or file, open or not, in words.
    pub(super) fn user_of(&self, path: &Path) -> Option<String> {
        let (pools, volumes) = {
            let running = self.config();
            (running.pools.clone(), running.volumes.clone())
        };
        let is_at = |spec: &CacheSpec| spec.path == path || is_same(&spec.path, path);
        let of_pool = pools.iter().find(|(_, pool)| pool.devices.iter().any(is_at));
        let of_volume = || volumes.iter().find(|(_, volume)| is_same(volume.backing.path(), path));
        match of_pool {
            Some((name, _)) => Some(format!("a cache device of pool {name}")),
            None => of_volume().map(|(name, _)| format!("the backing store of volume {name}")),
        }
    }

    /// Adopts other names of the same devices in the file.
    pub(super) fn take_names(&self, new: &Config) {
        let mut running = self.config_mut();
        for (name, pool) in &mut running.pools {
            for (device, named) in
                pool.devices.iter_mut().zip(new.pools.get(name).iter().flat_map(|new| &new.devices))
            {
                if node_of(&device.path) == node_of(&named.path) {
                    device.path.clone_from(&named.path);
                }
            }
        }
        for (name, volume) in &mut running.volumes {
            let named = new.volumes.get(name).map(|new| &new.backing);
            if let Some(named) = named.filter(|named| node_of(named.path()) == node_of(volume.backing.path()))
            {
                volume.backing.clone_from(named);
            }
        }
    }

    // --- the daemon itself

    /// Adopts certificates and allow lists.
    pub(super) fn take_guards(&self, new: &Config) {
        let mut running = self.config_mut();
        running.tls.clone_from(&new.tls);
        running.access.clone_from(&new.access);
    }

    /// Changes settings of the daemon itself.
    pub(super) fn change_daemon(&self, change: impl FnOnce(&mut DaemonConfig)) {
        change(&mut self.config_mut().daemon);
    }
}

/// The configuration file, if there is one.
#[derive(Debug)]
pub(super) struct StoredConfig(Option<ConfigFile>);

impl StoredConfig {
    /// Returns the file, which the successor of this service uses.
    pub(super) fn take(&mut self) -> Option<ConfigFile> {
        self.0.take()
    }

    /// Returns true if there is a file.
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the text last read or written; empty without a file.
    pub(super) fn text(&self) -> &str {
        self.0.as_ref().map_or("", ConfigFile::text)
    }

    /// Returns the configuration last read or written; `None` without a file.
    ///
    /// # Errors
    /// None: an invalid text is neither read nor written.
    pub(super) fn last(&self) -> Result<Option<Config>, AdminError> {
        self.0.as_ref().map(|file| config_of(file.last(&check_rules))).transpose()
    }

    /// Returns the present configuration of the file, with edits that the daemon has not read;
    /// `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong.
    pub(super) fn newest(&self) -> Result<Option<Config>, AdminError> {
        self.0.as_ref().map(|file| config_of(file.newest(&check_rules))).transpose()
    }

    /// Reads the file again and returns its configuration; `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong.
    pub(super) fn reload(&mut self) -> Result<Option<Config>, AdminError> {
        self.0.as_mut().map(|file| config_of(file.reload(&check_rules))).transpose()
    }

    /// Checks whether edits can be written; writes nothing.
    ///
    /// # Errors
    /// The file or the result would be invalid.
    pub(super) fn check(&self, edits: &[Edit]) -> Result<(), AdminError> {
        let Some(file) = &self.0 else { return Ok(()) };
        file.would_take(edits, &check_rules).map_err(|error| stored(&error))
    }

    /// Makes a change: writes it, then applies it. If that fails, edits the file back by `undo`.
    /// Without edits it is only applied, for a change until the next start.
    ///
    /// # Errors
    /// As for [`Self::write`], and nothing was applied; or the error of `apply`, as
    /// [`Self::revert`] returns it.
    pub(super) fn commit<T>(
        &mut self,
        edits: &[Edit],
        undo: &[Edit],
        apply: impl FnOnce() -> Result<T, AdminError>,
    ) -> Result<T, AdminError> {
        self.write(edits)?;
        apply().map_err(|error| self.revert(undo, error))
    }

    /// Edits the file back after a written change failed with this error. Returns the error, which
    /// also reports an edit that failed. A section that the edit would add or remove, and that is
    /// there or gone already, needs none.
    pub(super) fn revert(&mut self, undo: &[Edit], error: AdminError) -> AdminError {
        let already = |error: &StoreError| {
            matches!(error, StoreError::Edit(EditError::NotThere { .. } | EditError::ThereAlready { .. }))
        };
        match self.edit(undo) {
            Err(not) if !already(&not) => AdminError {
                what: format!("{}; the configuration file keeps the failed change: {not}", error.what),
                ..error
            },
            _ => error,
        }
    }

    /// Writes edits whose effect cannot fail, or has come already.
    ///
    /// # Errors
    /// The file cannot be written, or would be invalid. Nothing was written, unless the message
    /// states that the edit is not durable.
    pub(super) fn write(&mut self, edits: &[Edit]) -> Result<(), AdminError> {
        self.edit(edits).map_err(|error| stored(&error))
    }

    /// Removes pools and volumes from the file. Entries that are already missing (the operator
    /// edited the file, and requested a reload) are skipped.
    ///
    /// # Errors
    /// As for [`Self::write`]; some of the entries may be removed.
    pub(super) fn remove(&mut self, edits: impl IntoIterator<Item = Edit>) -> Result<(), AdminError> {
        for edit in edits {
            match self.edit(&[edit]) {
                Err(StoreError::Edit(EditError::NotThere { .. })) | Ok(()) => {}
                Err(error) => return Err(stored(&error)),
            }
        }
        Ok(())
    }

    fn edit(&mut self, edits: &[Edit]) -> Result<(), StoreError> {
        match &mut self.0 {
            Some(file) if !edits.is_empty() => file.edit(edits, &check_rules).map(drop),
            _ => Ok(()),
        }
    }
}

fn config_of(read: Result<Checked, StoreError>) -> Result<Config, AdminError> {
    read.map(|checked| checked.config).map_err(|error| stored(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::MessageId;
    use forebay_config::Scope;
    use std::path::PathBuf;

    /// Returns a file with the pool `a`, and its path.
    fn file_in(folder: &Path) -> (StoredConfig, PathBuf) {
        let path = folder.join("forebay.toml");
        std::fs::write(&path, "[pool.a]\ndevices = [\"/flash\"]\n").unwrap();
        (StoredConfig(Some(load(&path).unwrap().0)), path)
    }

    fn survivors(value: &str) -> [Edit; 1] {
        let (name, key) = ("a".into(), "survivors_max_pct".into());
        [Edit::Set { scope: Scope::Pool, name, key, value: value.into() }]
    }

    fn failure() -> AdminError {
        AdminError::new(MessageId::PoolStopped, "it failed", "a hint")
    }

    #[test]
    fn a_failed_change_is_edited_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        file.commit(&survivors("20"), &[], || Ok(())).unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        let failed = file.commit(&survivors("30"), &survivors("20"), || {
            assert!(std::fs::read_to_string(&path).unwrap().contains("= 30"), "written first");
            Err::<(), _>(failure())
        });
        assert_eq!(failed.unwrap_err(), failure());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }

    #[test]
    fn a_failed_edit_back_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        let failed = file.commit(&survivors("30"), &survivors("20"), || {
            std::fs::write(&path, "nonsense").unwrap();
            Err::<(), _>(failure())
        });
        let AdminError { what, hint, id, .. } = failed.unwrap_err();
        assert!(what.starts_with("it failed; the configuration file keeps the failed change: "), "{what}");
        assert_eq!((id, hint.as_str()), (MessageId::PoolStopped, "a hint"));
    }

    #[test]
    fn an_entry_that_is_gone_needs_no_edit_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = file_in(folder.path());
        let undo = [Edit::RemovePool { name: "b".into() }];
        assert_eq!(file.revert(&undo, failure()), failure());
    }

    #[test]
    fn a_refused_edit_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = file_in(folder.path());
        let before = std::fs::read_to_string(&path).unwrap();
        let refused = file
            .commit(&survivors("many"), &survivors("20"), || -> Result<(), _> { panic!("it was applied") });
        assert!(refused.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }
}
