//! Imports an exported pool: puts its devices in order, checks that the operator has confirmed the
//! local resources that it uses (`confirm`), finds the backing stores of its volumes
//! (`import_backing`), and writes both with their settings into the configuration in one step. Then
//! it opens them as at a start.
//!
//! If the daemon ends before that step, nothing has changed. After it, the next start opens the
//! configured pool. Opening the cache invalidates the settings on it
//! (`forebay_format::settings_copy`), so it cannot be imported twice.

use super::Service;
use super::catalog::StoredConfig;
use super::confirm::{self, Named};
use super::errors::{invalid, no_answer};
use super::import_backing::Wanted;
use super::info::warning_infos;
use super::opening::Allowed;
use super::pool_query::ask;
use forebay_admin::events::{AlarmKey, EventKind, NewEvent, Severity};
use forebay_admin::{AdminError, ImportInfo, ImportRequest, ImportedVolume, MessageId};
use forebay_config::device_name::stable_name;
use forebay_config::{CacheSpec, PoolSection};
use forebay_format::checkpoint::VolumeEntry;
use forebay_offline::exported::{Exported, find};
use forebay_offline::image::Image;
use forebay_offline::{Given, Key};
use forebay_pool::RunError;
use forebay_pool::cache_device::is_same;
use forebay_pool::encryption::read_key;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for reading the headers of the devices of a cache.
const LOOK_WITHIN: Duration = Duration::from_secs(30);

impl Service {
    pub(super) fn import(&self, request: &ImportRequest) -> Result<ImportInfo, AdminError> {
        let mut file = self.changing()?;
        if !file.exists() {
            let what = "`forebay run` has one pool, and no configuration file for another one";
            return Err(AdminError::new(
                MessageId::DaemonNoConfigFile,
                what,
                "import it with `forebay serve`",
            ));
        }
        let found = self.find_exported(&request.devices)?;
        let (section, mut info) = self.plan(&found, request)?;
        if !request.dry_run && !info.unconfirmed.is_empty() {
            return Err(confirm::refuse(request, &section, &info.unconfirmed));
        }
        file.check(&section.added())?;
        if request.dry_run {
            return Ok(info);
        }
        file.write(&section.added())?;
        self.open_imported(&section, &mut file)?;
        let mut failed: BTreeMap<String, AdminError> =
            self.attach_all(&section.volumes).into_iter().collect();
        self.look_for_absent(&section.name);
        for volume in &mut info.volumes {
            let error = failed.remove(&volume.name);
            self.warn_of(&volume.name);
            volume.attached = error.is_none();
            volume.why = error.map(|error| format!("{}; {}", error.what, error.hint));
            // `forebay status` shows the ones that do not answer now.
            let info = self.volume_info(&volume.name).ok();
            volume.lost_bytes = info.map_or(0, |info| info.lost_bytes);
        }
        let handle = self.handle(&section.name)?;
        let (absent, served) = ask(&handle, |pool| (pool.absent(), pool.names()))?;
        info.absent = self.absent_of(&section.name, absent, &served);
        info.absent.retain(|absent| section.volumes.iter().all(|(name, _)| *name != absent.name));
        let message = format!("pool {} is imported from host {}", section.name, found.copy.host);
        self.hub.publish(NewEvent::new(EventKind::PoolImported, message).pool(&section.name));
        Ok(info)
    }

    /// Returns the configuration to write, and the report for the operator.
    fn plan(
        &self,
        found: &Exported,
        request: &ImportRequest,
    ) -> Result<(PoolSection, ImportInfo), AdminError> {
        let mut section = self.section_of(found, request.pool.as_deref())?;
        let named = Named::of(request, &section)?;
        if let Some(key) = named.lacks_key(&section) {
            // Whether the settings are signed shows only with the key; settings without a MAC are
            // not.
            let others = if confirm::has_mac(found) { Vec::new() } else { named.lacks(&section) };
            let lacking: Vec<String> = [key].into_iter().chain(others).collect();
            return Err(confirm::refuse(request, &section, &lacking));
        }
        named.put_into(&mut section)?;
        let key = named.key.as_ref().map(read_key).transpose()?;
        let signed = confirm::is_signed(found, key.as_ref())?;
        let entries = self.entries_of(&found.devices, key)?;
        let wanted =
            Wanted { section: &section, entries: &entries, given: &named.backing, devices: &found.devices };
        let stores = self.find_stores(&wanted)?;
        let mut volumes = Vec::new();
        for ((name, volume), store) in section.volumes.iter_mut().zip(stores) {
            let (was, backing) = (volume.backing.to_string(), store.backing.to_string());
            volume.backing = store.backing;
            volumes.push(ImportedVolume {
                name: name.clone(),
                was: Some(was).filter(|was| *was != backing),
                backing,
                exports: volume.exports.iter().map(ToString::to_string).collect(),
                attached: store.why.is_none(),
                why: store.why,
                lost_bytes: 0,
                warnings: warning_infos(name, volume),
            });
        }
        // Without a size: a missing file is not recreated.
        let spec = |path: &PathBuf| CacheSpec { path: path.clone(), size_bytes: None };
        section.pool.devices = found.devices.iter().map(spec).collect();
        let info = ImportInfo {
            pool: section.name.clone(),
            cache: found.superblock.uuid.to_string(),
            exported_by: found.copy.host.clone(),
            exported_unix_s: found.copy.exported_unix_s,
            devices: found.devices.iter().map(|path| path.display().to_string()).collect(),
            key_file: named.key.as_ref().map(ToString::to_string),
            signed,
            unconfirmed: if signed { Vec::new() } else { named.lacks(&section) },
            volumes,
            absent: Vec::new(),
            dry_run: request.dry_run,
        };
        Ok((section, info))
    }

    /// Returns the exported cache on these devices.
    fn find_exported(&self, asked: &[String]) -> Result<Exported, AdminError> {
        let Some(first) = asked.first() else {
            return Err(invalid(
                MessageId::PoolNoDevice,
                "no device is given",
                "give all devices of the cache: --device PATH",
            ));
        };
        let mut devices: Vec<PathBuf> = Vec::new();
        for path in asked {
            let path = Path::new(path);
            self.check_unused(path)?;
            if let Some(other) = devices.iter().find(|other| is_same(other, path)) {
                let what = format!("{} and {} are the same device", other.display(), path.display());
                return Err(invalid(MessageId::DeviceTwice, what, "give each device once"));
            }
            devices.push(stable_name(path));
        }
        let found = self.places.within(Path::new(first), LOOK_WITHIN, move |_| find(&devices));
        let found = found.map_err(|undone| undone.or(|| no_answer(Path::new(first), LOOK_WITHIN)))?;
        Ok(found.map_err(RunError::from)?)
    }

    /// Returns the settings on a cache as they will be here, if nothing here conflicts with them.
    fn section_of(&self, found: &Exported, name: Option<&str>) -> Result<PoolSection, AdminError> {
        let section = PoolSection::parse(&found.copy.text).map_err(|report| {
            let what = format!("cannot parse the settings on the cache: {}", report.to_string().trim_end());
            invalid(
                MessageId::CacheExportUnreadable,
                what,
                "a newer forebay may have written them: import the pool with that version",
            )
        })?;
        let section = match name {
            Some(name) => {
                forebay_config::model::check_name(name)
                    .map_err(|problem| invalid(MessageId::NameSyntax, problem, ""))?;
                section.renamed(name)
            }
            None => section,
        };
        let taken = |id, what: &str, hint: &str| Err(AdminError::new(id, what, hint));
        let config = self.catalog.config();
        if config.pools.contains_key(&section.name) {
            return taken(
                MessageId::PoolExists,
                &format!("pool {} already exists", section.name),
                "give the imported pool another name: --pool NAME",
            );
        }
        let has = |name: &String| config.volumes.contains_key(name);
        if let Some((volume, _)) = section.volumes.iter().find(|(name, _)| has(name)) {
            let hint = format!(
                "a volume keeps its name, which is stored in the cache: detach the existing volume, forebay \
                 volume detach {volume}"
            );
            return taken(MessageId::VolumeExists, &format!("volume {volume} already exists"), &hint);
        }
        Ok(section)
    }

    /// Returns the cache's entries of its volumes.
    fn entries_of(&self, devices: &[PathBuf], key: Option<Key>) -> Result<Vec<VolumeEntry>, AdminError> {
        let (first, paths) = (devices.first().cloned().unwrap_or_default(), devices.to_vec());
        let read = move |_: &forebay_pool::MayWait| {
            let image = Image::open(Given { paths: &paths, key: key.as_ref() })?;
            let volumes = image.checkpoint().map(|checkpoint| checkpoint.volumes.clone());
            volumes.ok_or_else(|| {
                let what = format!("{}: no copy of the checkpoint is intact", image.shown());
                forebay_offline::Refusal::new(MessageId::CacheDamaged, what)
                    .hint("`forebay check` shows the damage")
            })
        };
        let read = self.places.within(&first, LOOK_WITHIN, read);
        let read = read.map_err(|undone| undone.or(|| no_answer(&first, LOOK_WITHIN)))?;
        Ok(read.map_err(RunError::from)?)
    }

    /// Opens the pool, which is in the configuration. If that fails and the cache is still as
    /// exported, or another daemon was faster, restores the configuration; otherwise the pool stays
    /// configured and not open.
    fn open_imported(&self, section: &PoolSection, file: &mut StoredConfig) -> Result<(), AdminError> {
        let name = &section.name;
        let opened = self.open_pool(name, &section.pool, Allowed::default());
        let devices: Vec<PathBuf> = section.pool.devices.iter().map(|spec| spec.path.clone()).collect();
        let first = devices.first().cloned().unwrap_or_default();
        // A lock is taken before anything is written.
        let is_anothers = || devices.iter().any(|path| self.devices.is_anothers(path));
        let is_as_it_was = || {
            let devices = devices.clone();
            let again = self.places.within(&first, LOOK_WITHIN, move |_| find(&devices).is_ok());
            again.is_ok_and(|again| again)
        };
        if let Err(error) = &opened
            && (is_as_it_was() || is_anothers())
        {
            return Err(file.revert(&section.removed(), error.clone()));
        }
        self.catalog.put_pool(name, section.pool.clone());
        for (volume, config) in &section.volumes {
            self.catalog.put_volume(volume, config.clone());
        }
        opened.map_err(|error| {
            self.hub.raise(AlarmKey::pool(EventKind::PoolFailed, name), Severity::Error, &error.what);
            let hint = if error.hint.is_empty() { String::new() } else { format!("{}; ", error.hint) };
            let way = format!("it is configured now, with its volumes: forebay pool open {name}");
            AdminError { hint: hint + &way, ..error }
        })
    }
}
