//! Pools and volumes whose devices somebody else has, at the start: they are tried again until the
//! devices are free.
//!
//! A process that was killed holds its locks until the kernel has ended what it had in flight; a
//! device that hangs makes that long. A daemon that gave up meanwhile would serve nothing, for
//! good, though the devices become free a moment later. What waits so has an alarm, which says whom
//! it waits for. A pool whose cache cannot be recorded waits in the same way until it can. `forebay
//! run` fails instead, as somebody looks at it.

use super::{Service, lock};
use forebay_admin::events::{AlarmKey, EventKind, Severity};
use forebay_admin::{AdminError, ErrorKind, VolumeRequest};
use forebay_io::{Device, DeviceError, DeviceOptions};
use forebay_pool::MayWait;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// A device has so long to be opened.
const WITHIN: Duration = Duration::from_secs(20);
/// What is added to the alarm.
const HINT: &str = "it is tried again until it is free";
const UNRECORDED: &str = "it is tried again until state_dir takes writes";

/// What waits for its devices.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// A pool.
    Pool(String),
    /// A volume of a pool that is open.
    Volume(String),
}

impl Place {
    /// It is this pool, or one of these volumes.
    pub(super) fn is_of(&self, pool: &str, volumes: &[String]) -> bool {
        match self {
            Self::Pool(name) => name == pool,
            Self::Volume(name) => volumes.contains(name),
        }
    }
}

/// All that waits.
pub(super) type Locked = BTreeSet<Place>;

impl Service {
    /// Has what could not be opened tried again, if that is because somebody else has a device of
    /// it, or it cannot be recorded; the error for the alarm.
    pub(super) fn try_again_if_locked(&self, place: Place, error: AdminError) -> AdminError {
        if let (Place::Volume(name), ErrorKind::Conflict, true) = (&place, error.kind, error.hint.is_empty())
        {
            // An export that cannot be made.
            return AdminError { hint: format!("then: forebay volume attach {name}"), ..error };
        }
        let awaits = match &place {
            // A volume that is refused, for what its store has: nobody else has that, though it may
            // not be closed yet.
            _ if error.kind == ErrorKind::Conflict => return error,
            _ if self.is_locked(&place) => HINT,
            _ if self.is_unrecordable(&place) => UNRECORDED,
            _ => return error,
        };
        lock(&self.locked).insert(place);
        let hint = if error.hint.is_empty() { awaits.into() } else { format!("{}; {awaits}", error.hint) };
        AdminError { hint, ..error }
    }

    /// Whether nothing can be recorded of the cache of this pool.
    fn is_unrecordable(&self, place: &Place) -> bool {
        matches!(place, Place::Pool(_)) && self.check_recordable().is_err()
    }

    /// Whether somebody else has a device. One that hangs is not free either.
    fn is_locked(&self, place: &Place) -> bool {
        let paths: Vec<PathBuf> = {
            let running = self.running();
            match place {
                Place::Pool(name) => {
                    let devices = running.config.pools.get(name).map(|pool| pool.devices.clone());
                    devices.unwrap_or_default().into_iter().map(|device| device.path).collect()
                }
                Place::Volume(name) => {
                    let volume = running.config.volumes.get(name);
                    volume.map(|volume| volume.backing.path().to_owned()).into_iter().collect()
                }
            }
        };
        paths.into_iter().any(|path| {
            let wanted = path.clone();
            let look = move |_: &MayWait| {
                Device::open_cache(&wanted, DeviceOptions { direct: false, ..DeviceOptions::default() })
            };
            matches!(self.places.within(&path, WITHIN, look), Some(Err(DeviceError::InUse { .. })) | None)
        })
    }

    /// Opens what waits and is free by now.
    pub(super) fn open_what_is_free(&self) {
        let waiting = lock(&self.locked).clone();
        for place in waiting {
            let wanted = match &place {
                Place::Pool(name) => {
                    let running = self.running();
                    running.config.pools.contains_key(name) && !running.pools.contains_key(name)
                }
                Place::Volume(name) => {
                    let known = self.running().config.volumes.get(name).map(|volume| volume.pool.clone());
                    known.is_some_and(|pool| self.handle(&pool).is_ok()) && self.attached(name).is_err()
                }
            };
            if wanted && (self.is_locked(&place) || self.is_unrecordable(&place)) {
                continue;
            }
            lock(&self.locked).remove(&place);
            if wanted {
                self.open_again(place);
            }
        }
    }

    fn open_again(&self, place: Place) {
        let (key, result) = match &place {
            Place::Pool(name) => {
                let result = self.reopen(name, forebay_admin::OpenHow::default());
                if self.handle(name).is_ok() {
                    self.emit(super::ServiceEvent::Note(format!(
                        "pool {name} is open: what it has waited for is there"
                    )));
                    return; // volumes that could not be attached have alarms of their own
                }
                (AlarmKey::pool(EventKind::PoolFailed, name), result.map(drop))
            }
            Place::Volume(name) => {
                let (pool, exports, settings) = (None, Vec::new(), BTreeMap::new());
                let request =
                    VolumeRequest { name: name.clone(), pool, backing: String::new(), exports, settings };
                (AlarmKey::volume(EventKind::VolumeFailed, name), self.attach(request).map(drop))
            }
        };
        if let Err(error) = result {
            let error = self.try_again_if_locked(place, error);
            self.hub.raise(key, Severity::Error, &format!("{}; {}", error.what, error.hint));
            self.emit(super::ServiceEvent::Problem(error.what));
        }
    }
}
