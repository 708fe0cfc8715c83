//! Retries pools and volumes whose devices are missing or held by another process, until they can
//! be opened.
//!
//! While a machine boots, devices appear in any order, and some seconds after the daemon. A device
//! node may exist before its permissions are set. A device that was unplugged returns under its
//! configured name. So the daemon checks each path every second. The check opens nothing but the
//! device itself, and the daemon does not retry pools or volumes that failed for another reason,
//! with one exception: a pool whose file or device is not its cache is retried once another one is
//! at that path, as when a file system is mounted later.
//!
//! A mirrored cache could be opened without one of its devices, which would then become stale. So
//! the daemon does not open it that way before its patience ends (`DeferredOpens`). If
//! the only device present is the stale one, the pool waits for the other one without a limit.
//!
//! During the patience a missing device is late, not failed: its pool or volume has an alarm of
//! severity `info`, which offers no actions that give data up.
//!
//! A killed process holds its locks until the kernel has completed its I/O in flight; a hanging
//! device prolongs that. If the daemon gave up meanwhile, it would serve nothing until restarted,
//! although the devices become free a moment later. A waiting pool or volume has an alarm, which
//! names the holder. A pool whose cache cannot be recorded waits in the same way. `forebay run`
//! fails instead, because an operator watches it.

use super::deferred_places::{FailedWith, Place};
use super::opening::{HELD, UNOPENED};
use super::{Service, ServiceEvent};
use forebay_admin::events::Severity;
use forebay_admin::{AdminError, ErrorKind, MessageId, VolumeRequest};
use forebay_config::CacheSpec;
use forebay_pool::register::of_pool;
use std::collections::BTreeMap;

/// Text appended to the alarm.
const UNRECORDED: &str = "the daemon retries until state_dir accepts writes";
/// Text appended to the alarm.
const WRONG_FILE: &str = "the daemon opens the pool when another file or device is at its path";

impl Service {
    /// Schedules a retry for a pool or volume that could not be opened because of a device, or that
    /// cannot be recorded; returns the error for the alarm.
    pub(super) fn try_again_if_locked(&self, place: Place, error: AdminError) -> AdminError {
        if let (Place::Volume(name), ErrorKind::Conflict, true) = (&place, error.kind, error.hint.is_empty())
        {
            // The export could not be created.
            return AdminError { hint: format!("then: forebay volume attach {name}"), ..error };
        }
        let Some(awaits) = self.awaits(&place, &error) else {
            let (Place::Pool(name), false) = (&place, error.hint.contains("forebay pool open")) else {
                return error;
            };
            let hint = if error.hint.is_empty() { String::new() } else { format!("{}; ", error.hint) };
            return AdminError { hint: format!("{hint}then: forebay pool open {name}"), ..error };
        };
        self.deferred.add(place);
        let hint = if error.hint.is_empty() { awaits.into() } else { format!("{}; {awaits}", error.hint) };
        AdminError { hint, ..error }
    }

    /// Returns the reason to wait, as text for the alarm, if a retry is due.
    fn awaits(&self, place: &Place, error: &AdminError) -> Option<&'static str> {
        // The volume was refused because of its store's content: another process does not have it,
        // although it may not be closed yet.
        if error.kind == ErrorKind::Conflict {
            return None;
        }
        if let Place::Pool(name) = place {
            self.deferred.set_needs_both(name, error.id == MessageId::CacheMemberStale);
        }
        let is_wrong_file =
            [MessageId::CacheVanished, MessageId::CacheNotACache, MessageId::CacheForeignData]
                .contains(&error.id);
        if matches!(place, Place::Pool(_)) && is_wrong_file {
            self.deferred.set_failed_with(place, self.files(place));
        }
        self.hindrance(place).or_else(|| self.is_unrecordable(place).then_some(UNRECORDED))
    }

    /// Returns the files and devices that are at the paths of a pool's cache.
    fn files(&self, place: &Place) -> FailedWith {
        let Place::Pool(name) = place else { return Vec::new() };
        let devices = self.catalog.config().pools.get(name).map(|pool| pool.devices.clone());
        let paths = devices.unwrap_or_default().into_iter().map(|spec| spec.path);
        paths.map(|path| (path.clone(), self.devices.file_at(&path))).collect()
    }

    /// Returns true if the cache of this pool cannot be recorded.
    fn is_unrecordable(&self, place: &Place) -> bool {
        matches!(place, Place::Pool(_)) && self.check_recordable().is_err()
    }

    /// Returns true if a pool or volume waits for its devices.
    pub(crate) fn awaits_devices(&self) -> bool {
        !self.deferred.all().is_empty()
    }

    /// Returns true while a pool or volume that has waited for its devices is being opened.
    pub(crate) fn opens_late(&self) -> bool {
        self.deferred.is_opening()
    }

    /// Makes a mirrored pool wait if one of its devices may still appear; returns the error for the
    /// alarm.
    pub(super) fn to_be_awaited(&self, pool: &str) -> Option<AdminError> {
        let place = Place::Pool(pool.to_owned());
        let left = self.deferred.patience_left();
        if left.is_zero() || !self.catalog.is_mirrored(pool) {
            return None;
        }
        self.hindrance(&place)?;
        self.deferred.add(place);
        Some(AdminError::new(
            MessageId::PoolMirrorIncomplete,
            format!("pool {pool} is mirrored, and its devices cannot both be opened"),
            format!("if that persists for {} s, it is opened with one of them", left.as_secs() + 1),
        ))
    }

    /// Reports a device that is missing while the machine boots; returns false if that is more than
    /// a delay. It is reported again when the patience has ended.
    pub(super) fn tell_late(&self, place: &Place, error: &AdminError) -> bool {
        let left = self.deferred.patience_left();
        let is_awaited = !left.is_zero() && self.deferred.contains(place);
        if !is_awaited || self.hindrance(place) != Some(UNOPENED) {
            return false;
        }
        self.deferred.add_late(place.clone(), error.clone());
        let message = format!(
            "{}; the machine has just booted, so a device may be late: {place} is opened when the device \
             appears, and fails if it is still missing in {} s",
            error.what,
            left.as_secs() + 1
        );
        self.hub.raise(place.alarm(), Severity::Info, &message);
        self.telemetry.emit(ServiceEvent::Note(error.id, format!("{place}: {message}")));
        true
    }

    /// Raises the failure of pools and volumes whose late devices have not appeared.
    fn raise_late(&self) {
        for (place, error) in self.deferred.take_late() {
            self.raise_failed(&place, &error);
        }
    }

    /// Returns the reason why a pool or volume cannot be opened now, as text for the alarm.
    fn hindrance(&self, place: &Place) -> Option<&'static str> {
        let found: Vec<&'static str> = match place {
            Place::Volume(name) => {
                let backing = self.catalog.config().volumes.get(name)?.backing.clone();
                return match backing.nbd() {
                    Some(export) => self.devices.why_not_served(backing.path(), export),
                    None => self.devices.why_not_opened(backing.path()),
                };
            }
            Place::Pool(name) => {
                let (devices, state_dir) = {
                    let config = self.catalog.config();
                    (config.pools.get(name)?.devices.clone(), config.daemon.state_dir.clone())
                };
                let is_recorded = || of_pool(&state_dir, name).is_ok_and(|records| !records.is_empty());
                // Do not wait for a file that is yet to be created.
                let is_to_be_made =
                    |spec: &CacheSpec| spec.size_bytes.is_some() && !spec.path.exists() && !is_recorded();
                let awaited = devices.iter().filter(|spec| !is_to_be_made(spec));
                let found: Vec<_> =
                    awaited.filter_map(|spec| self.devices.why_not_opened(&spec.path)).collect();
                let is_patient = !self.deferred.patience_left().is_zero();
                if self.catalog.is_mirrored(name)
                    && !is_patient
                    && !found.contains(&HELD)
                    && found.len() < devices.len()
                    && !self.deferred.needs_both(name)
                {
                    return None; // one member suffices
                }
                found
            }
        };
        found.first().copied().or_else(|| {
            let failed_with = self.deferred.failed_with(place)?;
            (failed_with == self.files(place)).then_some(WRONG_FILE)
        })
    }

    /// Opens waiting pools and volumes whose devices are free now.
    pub(super) fn open_what_is_free(&self) {
        for place in self.deferred.all() {
            let wanted = match &place {
                Place::Pool(name) => self.is_closed(name),
                Place::Volume(name) => {
                    let known = self.catalog.pool_of(name);
                    known.is_some_and(|pool| self.handle(&pool).is_ok()) && self.attached(name).is_err()
                }
            };
            let is_held = match &place {
                Place::Pool(name) => self.holds.check_pool_free(name).is_err(),
                Place::Volume(name) => self.holds.check_free(name).is_err(),
            };
            if wanted && (is_held || self.hindrance(&place).is_some() || self.is_unrecordable(&place)) {
                continue;
            }
            self.deferred.set_opening(wanted);
            if !wanted || !self.open_again(&place) {
                self.deferred.remove(&place);
            }
            self.deferred.set_opening(false);
        }
        self.raise_late();
    }

    /// Returns true if another retry is due.
    pub(super) fn open_again(&self, place: &Place) -> bool {
        self.deferred.remove_late(place);
        let result = match place {
            Place::Pool(name) => {
                let result = self.reopen(name, forebay_admin::OpenHow::default());
                if self.handle(name).is_ok() {
                    self.telemetry.emit(ServiceEvent::Note(
                        MessageId::PoolOpened,
                        format!("pool {name} is open: the retry succeeded"),
                    ));
                    return false; // volumes that could not be attached have alarms of their own
                }
                result.map(drop)
            }
            Place::Volume(name) => {
                let (pool, exports, settings) = (None, Vec::new(), BTreeMap::new());
                let request =
                    VolumeRequest { name: name.clone(), pool, backing: String::new(), exports, settings };
                self.attach(request).map(drop)
            }
        };
        let Err(error) = result else { return false };
        let waits = self.awaits(place, &error).is_some();
        let error = self.try_again_if_locked(place.clone(), error);
        let raised = self.raise_if_configured(place, &format!("{}; {}", error.what, error.hint));
        if raised {
            self.telemetry.emit(ServiceEvent::Problem(error.id, error.what));
        }
        raised && waits
    }

    /// Raises the alarm of a pool or volume unless it was removed from the configuration meanwhile:
    /// the removal clears its alarms afterwards, permanently. Returns true if it raised the alarm.
    pub(super) fn raise_if_configured(&self, place: &Place, message: &str) -> bool {
        // Held until the alarm is raised, so that the removal clears it after that.
        let config = self.catalog.config();
        let is_configured = match place {
            Place::Pool(name) => config.pools.contains_key(name),
            Place::Volume(name) => config.volumes.contains_key(name),
        };
        if is_configured {
            self.hub.raise(place.alarm(), Severity::Error, message);
        }
        is_configured
    }
}
