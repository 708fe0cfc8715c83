//! Pools and volumes that could not be opened yet, and are retried (`deferred_open`).

use super::locking::lock;
use super::opening::FileAt;
use forebay_admin::AdminError;
use forebay_admin::events::{AlarmKey, EventKind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A pool or volume that waits for its devices.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// A pool.
    Pool(String),
    /// A volume of a pool that is open.
    Volume(String),
}

impl Place {
    /// Returns true for this pool and for these volumes.
    pub(super) fn is_of(&self, pool: &str, volumes: &[String]) -> bool {
        match self {
            Self::Pool(name) => name == pool,
            Self::Volume(name) => volumes.contains(name),
        }
    }

    /// Returns the key of the alarm that it could not be opened.
    pub(super) fn alarm(&self) -> AlarmKey {
        match self {
            Self::Pool(name) => AlarmKey::pool(EventKind::PoolFailed, name),
            Self::Volume(name) => AlarmKey::volume(EventKind::VolumeFailed, name),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(f, "pool {name}"),
            Self::Volume(name) => write!(f, "volume {name}"),
        }
    }
}

/// Each path of a place, with the file or device that is there.
pub(super) type FailedWith = Vec<(PathBuf, Option<FileAt>)>;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct DeferredOpens {
    /// Pools and volumes that are retried until their devices can be opened.
    waiting: Mutex<BTreeSet<Place>>,
    /// Those of them that are only late so far, each with the error to report if its device does
    /// not appear.
    late: Mutex<BTreeMap<Place, AdminError>>,
    /// Files and devices with which a place failed: it is retried when others are at their paths.
    failed_with: Mutex<BTreeMap<Place, FailedWith>>,
    /// Mirrored pools that cannot be opened with one device: the only one found is stale.
    need_both: Mutex<BTreeSet<String>>,
    /// A waiting pool or volume is being opened.
    opening: AtomicBool,
    /// Devices may still appear until then.
    patience_until: Instant,
}

impl DeferredOpens {
    /// Returns an empty list for a start during which devices may still appear for this time.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            waiting: Mutex::default(),
            late: Mutex::default(),
            failed_with: Mutex::default(),
            need_both: Mutex::default(),
            opening: AtomicBool::new(false),
            patience_until: Instant::now() + patience,
        }
    }

    /// Returns the time during which devices may still appear.
    pub(super) fn patience_left(&self) -> Duration {
        self.patience_until.saturating_duration_since(Instant::now())
    }

    pub(super) fn add(&self, place: Place) {
        lock(&self.waiting).insert(place);
    }

    pub(super) fn remove(&self, place: &Place) {
        lock(&self.waiting).remove(place);
        lock(&self.failed_with).remove(place);
    }

    /// Forgets a pool and volumes that were removed.
    pub(super) fn forget(&self, pool: &str, volumes: &[String]) {
        lock(&self.waiting).retain(|place| !place.is_of(pool, volumes));
        lock(&self.failed_with).retain(|place, _| !place.is_of(pool, volumes));
    }

    pub(super) fn contains(&self, place: &Place) -> bool {
        lock(&self.waiting).contains(place)
    }

    pub(super) fn all(&self) -> BTreeSet<Place> {
        lock(&self.waiting).clone()
    }

    /// Notes the files and devices with which a place failed.
    pub(super) fn set_failed_with(&self, place: &Place, files: FailedWith) {
        lock(&self.failed_with).insert(place.clone(), files);
    }

    /// Returns the files and devices with which a place failed.
    pub(super) fn failed_with(&self, place: &Place) -> Option<FailedWith> {
        lock(&self.failed_with).get(place).cloned()
    }

    /// Notes that a place is late, not failed, with the error to report after the patience.
    pub(super) fn add_late(&self, place: Place, error: AdminError) {
        lock(&self.late).insert(place, error);
    }

    /// Notes that a late place is retried, or has failed.
    pub(super) fn remove_late(&self, place: &Place) {
        lock(&self.late).remove(place);
    }

    /// Takes the places that are late, and still wait, once the patience has ended.
    pub(super) fn take_late(&self) -> Vec<(Place, AdminError)> {
        if !self.patience_left().is_zero() {
            return Vec::new();
        }
        let late = std::mem::take(&mut *lock(&self.late));
        late.into_iter().filter(|(place, _)| self.contains(place)).collect()
    }

    /// Notes whether a mirrored pool needs both devices.
    pub(super) fn set_needs_both(&self, pool: &str, needs: bool) {
        let mut need_both = lock(&self.need_both);
        match needs {
            true => need_both.insert(pool.to_owned()),
            false => need_both.remove(pool),
        };
    }

    pub(super) fn needs_both(&self, pool: &str) -> bool {
        lock(&self.need_both).contains(pool)
    }

    /// Notes whether a waiting pool or volume is being opened.
    pub(super) fn set_opening(&self, opening: bool) {
        self.opening.store(opening, Ordering::Release);
    }

    pub(super) fn is_opening(&self) -> bool {
        self.opening.load(Ordering::Acquire)
    }
}
