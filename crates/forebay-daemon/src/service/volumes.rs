//! Volumes: attach, sizes, exports and rules.

use super::catalog::StoredConfig;
use super::errors::{invalid, not_attached, stopped};
use super::pool_query::ask;
use super::relocated_backing::is_elsewhere;
use super::relocated_backing::told_how;
use super::{Service, ServiceEvent};
use forebay_admin::events::{AlarmKey, EventKind, NewEvent};
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, DetachHow, ErrorKind, MessageId, RuleRequest, VolumeInfo, VolumeRequest};
use forebay_config::device_name::{node_of, stable_name};
use forebay_config::mounts::Problem;
use forebay_config::rules::{Action, Position, Rule, RuleId, RuleReport, RuleSet};
use forebay_config::{Edit, RuleTable, RuleValue, Scope, Settings, VolumeConfig};
use forebay_core::VolumeSettings;
use forebay_export::uri::BackingUri;
use forebay_pool::cache_device::random_uuid;
use forebay_pool::open::{BackingOptions, open_backing};
use forebay_pool::shell_word::quoted;
use forebay_pool::time_limit::within;
use forebay_pool::witness::Prepared;
use forebay_pool::{PoolHandle, VolumeSpec};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for opening and checking a backing store.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

fn no_answer(name: &str, backing: &BackingUri) -> AdminError {
    AdminError::new(
        MessageId::BackingNotAnswering,
        format!(
            "the backing store {backing} of {name} does not answer: it was not opened within {} s",
            OPEN_TIMEOUT.as_secs()
        ),
        format!("check that it works, or that its server runs; then: forebay volume attach {name}"),
    )
}
/// Time limit for the engine's comparison of a backing store with its record.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);

impl Service {
    /// Returns the pool of an attached volume, with its name.
    pub(super) fn attached(&self, name: &str) -> Result<(String, Arc<PoolHandle>), AdminError> {
        let (pool, handle) = self.pool_of(name)?;
        let wanted = name.to_owned();
        let there = ask(&handle, move |pool| pool.find(&wanted).is_some())?;
        if there { Ok((pool, handle)) } else { Err(not_attached(name)) }
    }

    /// Returns true if the pool of a configured volume is open and has it.
    pub(super) fn is_attached(&self, name: &str) -> Result<bool, AdminError> {
        let pool = self.catalog.pool_of(name);
        let Some(handle) = pool.and_then(|pool| self.handle(&pool).ok()) else { return Ok(false) };
        let wanted = name.to_owned();
        ask(&handle, move |pool| pool.find(&wanted).is_some())
    }

    /// Attaches a volume: a new one, or a configured one that is not attached.
    pub(super) fn attach(&self, request: VolumeRequest) -> Result<VolumeInfo, AdminError> {
        let mut file = self.changing()?;
        let name = request.name.clone();
        self.holds.check_free(&name)?;
        let known = self.catalog.volume(&name);
        let config = match &known {
            Some(known) => self.as_configured(&request, known)?,
            None => self.new_volume(&request)?,
        };
        let moved = known.as_ref().filter(|known| known.backing != config.backing);
        let (edits, undo) = match (&known, moved) {
            (None, _) => (vec![added(&name, &config)], vec![Edit::RemoveVolume { name: name.clone() }]),
            (_, Some(from)) => (vec![lies_at(&name, &config)], vec![lies_at(&name, from)]),
            _ => (Vec::new(), Vec::new()),
        };
        file.write(&edits)?;
        // A hanging store must not block other changes. The hold reserves the name, the store and
        // the pool, and prevents upgrades.
        let hold = self.holds.attach(&name, &config)?;
        drop(file);
        let done = self.attach_configured(&name, &config);
        let mut file = self.catalog.lock_file();
        done.map_err(|error| told_how(&name, &config, known.is_some(), file.revert(&undo, error)))?;
        let message = match moved {
            None => format!("{name} is attached"),
            Some(from) => format!(
                "{name} is attached; its backing store is {} now, not {}",
                config.backing, from.backing
            ),
        };
        self.catalog.put_volume(&name, config);
        drop(hold);
        drop(file);
        self.hub.clear(&AlarmKey::volume(EventKind::VolumeFailed, &name));
        if known.is_none() {
            self.warn_of(&name);
        }
        if moved.is_some() {
            self.telemetry.emit(ServiceEvent::Note(MessageId::VolumeMoved, message.clone()));
        }
        self.hub.publish(NewEvent::new(EventKind::VolumeAttached, message).volume(&name));
        self.volume_info(&name)
    }

    /// Returns the configuration of a volume that is not attached: the request may repeat it, omit
    /// it, or give the present location of its backing store.
    fn as_configured(
        &self,
        request: &VolumeRequest,
        config: &VolumeConfig,
    ) -> Result<VolumeConfig, AdminError> {
        let name = &request.name;
        if self.attached(name).is_ok() {
            return Err(AdminError::new(
                MessageId::VolumeAttachedAlready,
                format!("volume {name} is already attached"),
                "",
            ));
        }
        let same_pool = request.pool.as_ref().is_none_or(|pool| *pool == config.pool);
        if !same_pool || !request.exports.is_empty() || !request.settings.is_empty() {
            return Err(AdminError::new(
                MessageId::VolumeExists,
                format!("volume {name} is already configured, with {}", config.backing),
                format!(
                    "to attach it as configured: forebay volume attach {name}; if its backing store has \
                     moved, give only --backing"
                ),
            ));
        }
        if request.backing.is_empty() {
            return Ok(config.clone());
        }
        let backing = wanted_store(request)?;
        match is_same_store(&backing, &config.backing) {
            true => Ok(config.clone()),
            false => self.moved_to(name, config, backing),
        }
    }

    fn new_volume(&self, request: &VolumeRequest) -> Result<VolumeConfig, AdminError> {
        let name = &request.name;
        forebay_config::model::check_name(name)
            .map_err(|problem| invalid(MessageId::NameSyntax, problem, ""))?;
        let open = self.pools.names();
        let pools: Vec<&str> = open.iter().map(String::as_str).collect();
        let running = self.catalog.config();
        let pool = match (&request.pool, &pools[..]) {
            (Some(pool), _) if pools.contains(&pool.as_str()) => pool.clone(),
            (Some(pool), _) => {
                return Err(AdminError::not_found(MessageId::PoolUnknown, "pool", pool, &pools));
            }
            (None, [only]) => (*only).to_owned(),
            (None, []) => {
                return Err(invalid(MessageId::PoolNoDevice, "there is no pool yet", "forebay pool create"));
            }
            (None, _) => {
                return Err(invalid(
                    MessageId::PoolDeviceChoice,
                    "there are several pools, and none is given",
                    format!("give --pool with one of {}", pools.join(", ")),
                ));
            }
        };
        if request.backing.is_empty() {
            return Err(invalid(
                MessageId::BackingMissing,
                format!("volume {name} is not configured, and no backing store is given"),
                "give --backing",
            ));
        }
        let backing = wanted_store(request)?;
        let attaching = self.holds.attaching();
        let attaching = attaching.iter().map(|(name, config)| (name, config));
        let mut others = running.volumes.iter().chain(attaching);
        if let Some((other, _)) = others.find(|(_, other)| is_same_store(&other.backing, &backing)) {
            let what = format!("{} is the backing store of volume {other}", request.backing);
            return Err(AdminError::new(MessageId::BackingInUse, what, ""));
        }
        let exports = request
            .exports
            .iter()
            .map(|uri| uri.parse().map_err(|error| invalid(MessageId::ExportSyntax, error, "")));
        let exports = exports.collect::<Result<Vec<_>, _>>()?;
        let mut settings = Settings::new(Scope::Volume);
        for (key, value) in &request.settings {
            settings.set(key, value).map_err(|error| invalid(error.id, format!("{key}: {error}"), ""))?;
        }
        let volume = VolumeConfig { pool, backing, exports, size_bytes: None, settings, rules: Vec::new() };
        match Problem::of_volume(&running, name, &volume) {
            Some(problem) => Err(AdminError::new(MessageId::VolumeDefinition, problem.message, problem.help)),
            None => Ok(volume),
        }
    }

    /// Opens the backing store and asks the pool to attach it. A volume that the cache does not
    /// know gets its identity from the previous cache, or a new one.
    pub(super) fn attach_configured(&self, name: &str, config: &VolumeConfig) -> Result<(), AdminError> {
        let handle = self.handle(&config.pool)?;
        let sections = self.catalog.config().tls.clone();
        self.guards.prepare(&sections, &config.exports);
        let tunables = config.tunables();
        let options = BackingOptions::of(&tunables);
        let store = config.backing.clone();
        let opened = within(OPEN_TIMEOUT, "open", move |may_wait| open_backing(may_wait, &store, &options));
        let wanted = name.to_owned();
        let uuid = ask(&handle, move |pool| pool.uuid_of(&wanted))?;
        let opened = opened.map_err(|undone| undone.or(|| no_answer(name, &config.backing)))?;
        let backing = opened.map_err(|error| match uuid {
            Some(_) if config.backing.nbd().is_none() && !config.backing.path().exists() => {
                is_elsewhere(name, error.into())
            }
            _ => error.into(),
        })?;
        self.check_not_of_absent(name, config, &backing)?;
        let identity = || self.attached_volumes.former_identity(name);
        let uuid = uuid.or_else(identity).map_or_else(random_uuid, Ok)?;
        let state_dir = self.catalog.state_dir();
        let looked = within(OPEN_TIMEOUT, "look", move |may_wait| {
            let prepared = Prepared::look(may_wait, &backing.device, &state_dir, uuid);
            (backing, prepared)
        });
        let (backing, prepared) = looked.map_err(|undone| undone.or(|| no_answer(name, &config.backing)))?;
        let prepared = prepared?;
        let rules = RuleSet::new(tunables.default_action, backing.size_bytes);
        let parsed = config.rules.iter().map(RuleTable::rule).collect::<Result<Vec<Rule>, _>>()?;
        rules.replace_all(parsed, Instant::now())?;
        let rules = Arc::new(rules);
        let spec = VolumeSpec {
            name: name.into(),
            backing: config.backing.clone(),
            exports: config.exports.clone(),
            size_bytes: config.size_bytes,
            connections_max: tunables.connections_max,
            settings: VolumeSettings::from(&tunables),
            on_backing_change: tunables.on_backing_change,
            rules: Arc::clone(&rules),
        };
        let promise = ask(&handle, move |pool| pool.attach(spec, backing, prepared))?;
        // Alarms of an earlier run of its pool, which can no longer clear them. Persisting
        // conditions raise them again.
        for kind in [
            EventKind::DestageFailed,
            EventKind::DeviceEnded,
            EventKind::DevicePathLost,
            EventKind::ExportLost,
            EventKind::StoreAway,
        ] {
            self.hub.clear(&AlarmKey::volume(kind, name));
        }
        let late = || {
            let what = format!(
                "cannot attach {name}: {} did not answer within {} s",
                config.backing,
                ATTACH_WITHIN.as_secs()
            );
            AdminError::new(MessageId::BackingNotAnswering, what, "see why the device hangs, then try again")
                .of_kind(ErrorKind::Failed)
        };
        promise.wait_or_give_up(ATTACH_WITHIN).ok_or_else(late)?.ok_or_else(stopped)??;
        self.raise_record(&config.pool);
        self.attached_volumes.insert(name, rules);
        self.hub.clear(&AlarmKey::volume(EventKind::VolumeFailed, name));
        self.hub.clear(&AlarmKey::volume(EventKind::VolumeAbsent, name));
        Ok(())
    }

    /// Removes a detached volume from the configuration.
    ///
    /// # Errors
    /// The file cannot be written. Then the volume stays configured, in memory and in the file: it
    /// can be attached as before, and another detach removes it from the file.
    pub(super) fn forget_volume(&self, name: &str, how: DetachHow) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        self.attached_volumes.remove(name);
        if !self.catalog.has_volume(name) {
            return Ok(()); // the cache had only data of it
        }
        file.remove([Edit::RemoveVolume { name: name.into() }]).map_err(|error| {
            let option = if how == DetachHow::Keep { " --keep" } else { "" };
            AdminError {
                what: format!("{name} is detached, but still in the configuration file: {}", error.what),
                hint: format!(
                    "once the file can be written, remove it: forebay volume detach {}{option}",
                    quoted(name)
                ),
                ..error
            }
        })?;
        self.catalog.remove_volume(name);
        Ok(())
    }

    // --- size

    /// Returns the pool of a volume, and the size that an operator's messages show.
    pub(super) fn size_wanted(
        &self,
        name: &str,
        size: &str,
    ) -> Result<(String, Arc<PoolHandle>, u64), AdminError> {
        let (pool, handle) = self.attached(name)?;
        if size == "max" {
            let (volume, there) = (name.to_owned(), self.store_bytes(&handle, name)?);
            let bytes = ask(&handle, move |pool| pool.largest_size(&volume, there))??;
            return Ok((pool, handle, bytes));
        }
        let bytes: ByteSize = size.parse().map_err(|error| {
            invalid(MessageId::SizeSyntax, format!("{size}: {error}"), "such as 20GiB, or max")
        })?;
        Ok((pool, handle, bytes.0))
    }

    /// Returns the present size of a volume's backing store in bytes, in whole sectors. A thread
    /// asks the store: it may not answer.
    pub(super) fn store_bytes(&self, handle: &PoolHandle, name: &str) -> Result<u64, AdminError> {
        let volume = name.to_owned();
        let mut store = ask(handle, move |pool| pool.store_of(&volume))??;
        let place = store.path().to_owned();
        let asked = self.places.within(&place, OPEN_TIMEOUT, move |_| store.refresh_size());
        let late = || {
            AdminError::new(
                MessageId::BackingNotAnswering,
                format!(
                    "the backing store {} of {name} does not answer: no size within {} s, or an earlier \
                     attempt still waits",
                    place.display(),
                    OPEN_TIMEOUT.as_secs()
                ),
                "nothing was changed; check that it works, then try again",
            )
        };
        let bytes = asked.map_err(|undone| undone.or(late))?;
        let failed = |error| {
            AdminError::new(MessageId::VolumeSize, format!("cannot resize {name}: {error}"), "")
                .of_kind(ErrorKind::Failed)
        };
        bytes.map(|bytes| bytes / 512 * 512).map_err(failed)
    }

    /// Writes the size after a resize into the configuration. If the operator has put another size
    /// into the file meanwhile, the file keeps that for the next reload. `whole`: it is the full
    /// size of the backing store, which corresponds to a file without a size.
    pub(super) fn note_size(&self, name: &str, bytes: u64, whole: bool) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        let known = self.catalog.config().volumes.get(name).and_then(|volume| volume.size_bytes);
        let newest = file.newest()?;
        let in_file = newest.as_ref().and_then(|newest| newest.volumes.get(name)?.size_bytes);
        let is_edited = newest.is_some() && in_file != known;
        let size_bytes = Some(bytes).filter(|_| !(is_edited && in_file.is_none() && whole));
        self.catalog.change_volume(name, |volume| volume.size_bytes = size_bytes);
        if is_edited {
            return Ok(());
        }
        file.write(&[Edit::SetSize { volume: name.into(), size_bytes: Some(bytes) }])
    }

    // --- rules

    fn rule_set(&self, volume: &str) -> Result<Arc<RuleSet>, AdminError> {
        self.attached(volume)?;
        self.attached_volumes.rules(volume).ok_or_else(|| not_attached(volume))
    }

    pub(super) fn list_rules(&self, volume: &str) -> Result<Value, AdminError> {
        let rules = self.rule_set(volume)?;
        let list = serde_json::to_value(rules.list(Instant::now()));
        let list = list.map_err(|error| AdminError::new(MessageId::ApiInternal, error, ""))?;
        Ok(json!({ "default": rules.default_action().to_string(), "rules": list }))
    }

    pub(super) fn new_rule(&self, volume: &str, request: RuleRequest) -> Result<Value, AdminError> {
        let mut file = self.changing()?;
        self.holds.check_free(volume)?;
        let rules = self.rule_set(volume)?;
        let rule: Rule = request.rule.parse()?;
        let kept = (!rule.is_transient()).then(|| rule.clone());
        let position = request.position.map_or(Position::Last, Position::At);
        let added = rules.add(rule, position, Instant::now())?;
        let file_to_write = Some(&mut *file).filter(|_| kept.is_some());
        if let Err(error) = self.keep_rules(volume, &rules, None, file_to_write) {
            let _ = rules.remove(added.id, Instant::now());
            return Err(error);
        }
        let warnings: Vec<String> = added.warnings.iter().map(ToString::to_string).collect();
        Ok(json!({ "id": added.id, "warnings": warnings, "persistent": kept.is_some() && file.exists() }))
    }

    pub(super) fn drop_rule(&self, volume: &str, id: &str) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        self.holds.check_free(volume)?;
        let rules = self.rule_set(volume)?;
        let id = match id.parse() {
            Ok(id) => id,
            Err(_) => rules
                .find_name(id)
                .ok_or_else(|| AdminError::not_found(MessageId::RuleUnknown, "rule", id, &[]))?,
        };
        // Change the file first: a rule that stays there would return at the next start.
        let is_transient = |report: &RuleReport| report.id == id && report.rule.is_transient();
        let writes = !rules.list(Instant::now()).iter().any(is_transient);
        self.keep_rules(volume, &rules, Some(id), Some(&mut *file).filter(|_| writes))?;
        rules.remove(id, Instant::now())?;
        self.release_pins(volume, &rules)
    }

    /// Unpins all blocks if no rule pins.
    pub(super) fn release_pins(&self, volume: &str, rules: &RuleSet) -> Result<(), AdminError> {
        if rules.list(Instant::now()).iter().any(|report| report.rule.action == Action::Pin) {
            return Ok(());
        }
        let (_, handle) = self.pool_of(volume)?;
        let volume = volume.to_owned();
        ask(&handle, move |pool| pool.unpin(&volume))?
    }

    /// Writes the rules of a volume into the file: those that apply after a restart, except for a
    /// removed one.
    ///
    /// # Errors
    /// The file cannot be written, or has rules that the daemon has not read yet: they would be
    /// overwritten. Then nothing was changed.
    fn keep_rules(
        &self,
        volume: &str,
        rules: &RuleSet,
        without: Option<RuleId>,
        file: Option<&mut StoredConfig>,
    ) -> Result<(), AdminError> {
        let lasting = rules.list(Instant::now()).into_iter();
        let lasting = lasting.filter(|report| !report.rule.is_transient() && Some(report.id) != without);
        let tables: Vec<RuleTable> = lasting.map(|report| table(&report.rule)).collect();
        if let Some(file) = file {
            self.check_rules_read(volume, file)?;
            file.write(&[Edit::ReplaceRules { volume: volume.into(), rules: tables.clone() }])?;
        }
        self.catalog.change_volume(volume, |config| config.rules = tables);
        Ok(())
    }

    /// Checks that the file has the rules that the daemon knows.
    fn check_rules_read(&self, volume: &str, file: &StoredConfig) -> Result<(), AdminError> {
        let Some(newest) = file.newest()? else { return Ok(()) };
        let in_file = newest.volumes.get(volume).map(|volume| &volume.rules);
        let running = self.catalog.config();
        match in_file == running.volumes.get(volume).map(|volume| &volume.rules) {
            true => Ok(()),
            false => Err(AdminError::new(
                MessageId::ConfigNotRead,
                format!(
                    "the rules of {volume} in the configuration file have been edited since the daemon read it, and would be \
                     overwritten"
                ),
                "nothing was changed; run `forebay reload`, then try again",
            )
            .of_kind(ErrorKind::Conflict)),
        }
    }

    /// Drops rules that have expired, or whose process has ended; called about once per second.
    pub(super) fn expire_rules(&self) {
        for (volume, rules) in self.attached_volumes.all_rules() {
            let expired = rules.expire(Instant::now());
            if !expired.is_empty() {
                // A pool that is stopping has no pins to release.
                let _ = self.release_pins(&volume, &rules);
            }
            for dropped in expired {
                let (rule, reason) = (&dropped.report.rule, dropped.reason.words());
                let message = format!("the rule \"{rule}\" of {volume} was dropped: {reason}");
                self.hub.publish(NewEvent::new(EventKind::VolumeSettingChanged, message).volume(&volume));
            }
        }
    }
}

/// Returns true if both are the same store, even under different device names.
fn is_same_store(one: &BackingUri, other: &BackingUri) -> bool {
    one == other || node_of(one.path()) == node_of(other.path())
}

/// Returns the backing store that a request names; a device by a stable name.
fn wanted_store(request: &VolumeRequest) -> Result<BackingUri, AdminError> {
    let backing: BackingUri =
        request.backing.parse().map_err(|error| invalid(MessageId::BackingSyntax, error, ""))?;
    Ok(match backing {
        BackingUri::Device(path) => BackingUri::Device(stable_name(&path)),
        BackingUri::File(_) | BackingUri::Nbd(_) => backing,
    })
}

fn lies_at(name: &str, config: &VolumeConfig) -> Edit {
    Edit::SetBacking { volume: name.into(), backing: config.backing.clone() }
}

fn added(name: &str, config: &VolumeConfig) -> Edit {
    Edit::AddVolume {
        name: name.into(),
        pool: config.pool.clone(),
        backing: config.backing.clone(),
        exports: config.exports.clone(),
        size_bytes: config.size_bytes,
        settings: config.settings.iter().map(|(key, value)| (key.to_owned(), value.to_string())).collect(),
    }
}

/// Returns a rule in the form of the file.
fn table(rule: &Rule) -> RuleTable {
    let json = serde_json::to_value(rule).unwrap_or_default();
    let value = |value: &Value| match value.as_u64() {
        Some(number) => RuleValue::Integer(number),
        None => RuleValue::Text(value.as_str().unwrap_or_default().to_owned()),
    };
    let pairs = json.as_object().into_iter().flatten().map(|(key, text)| (key.clone(), value(text)));
    RuleTable::from_pairs(pairs)
}
