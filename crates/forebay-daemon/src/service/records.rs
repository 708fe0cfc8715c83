//! Records of the caches of pools outside of their devices (`register`), and the thread that keeps
//! them up to date.

use super::{Service, ServiceEvent, lock};
use forebay_admin::events::{AlarmKey, EventKind, Severity};
use forebay_admin::{AdminError, MessageId, OpenHow, Taking};
use forebay_config::CacheSpec;
use forebay_pool::cache_device::remove_made;
use forebay_pool::register::{Consent, Entry, Facts, Permit, check_writable};
use forebay_pool::time_limit::Undone;
use forebay_pool::{MayWait, PoolHandle};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Records follow their caches this often while something changes. What happens in between is not
/// told from an older copy after a crash.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);
/// A trial has so long: a state directory that hangs must not hold up what asks.
const RECORD_WITHIN: Duration = Duration::from_secs(5);

/// What an operator allows when a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Allowed {
    pub(super) consent: Consent,
    pub(super) taking: Taking,
}

impl Allowed {
    /// A device that was the pool's until just now.
    pub(super) const OWN: Self =
        Self { consent: Consent::NewCache, taking: Taking { overwrite: true, fill: true } };

    /// The operator names devices for a cache, and gives up no recorded one that may be dirty.
    pub(super) fn to_create(taking: Taking) -> Self {
        Self { consent: Consent::Create { new_cache: false }, taking }
    }

    /// Whether the operator names devices for a cache just now.
    pub(super) fn is_creating(self) -> bool {
        matches!(self.consent, Consent::Create { .. })
    }
}

impl From<OpenHow> for Allowed {
    fn from(how: OpenHow) -> Self {
        let consent = if how.new_cache { Consent::NewCache } else { Consent::None };
        Self { consent, taking: how.taking() }
    }
}

impl Service {
    pub(super) fn permit<'a>(&self, name: &'a str, state_dir: &'a Path, allowed: Allowed) -> Permit<'a> {
        // The pool of `forebay run` has the same name whatever its cache.
        let pool = self.config_path.is_some().then_some(name);
        Permit { state_dir, pool, consent: allowed.consent, taking: allowed.taking }
    }

    /// Records the cache of a pool that was just opened; none is recorded for one that is served
    /// without its cache.
    pub(super) fn enter(
        handle: &PoolHandle,
        permit: Permit<'_>,
        specs: &[CacheSpec],
    ) -> Result<Option<Arc<Entry>>, AdminError> {
        let Some((uuid, facts)) = Self::ask(handle, |pool| pool.facts())? else { return Ok(None) };
        let entry = Arc::new(permit.enter(&MayWait::here(), uuid, specs, &facts)?);
        let kept = Arc::clone(&entry);
        Self::ask(handle, move |pool| pool.keep_record(kept))?;
        Ok(Some(entry))
    }

    /// Brings the record of a pool's cache up to date. That it cannot be, or that of a backing
    /// store, is told, with an alarm as long as it lasts; the pool goes on.
    pub(super) fn raise_record(&self, name: &str) {
        let entry = self.running().entries.get(name).cloned();
        let Ok(handle) = self.handle(name) else { return };
        let Ok((facts, stores)) = Self::look_at(&handle, |pool| (pool.facts(), pool.unrecorded_stores()))
        else {
            return;
        };
        let mut behind = Vec::new();
        if let (Some(entry), Some((_, facts))) = (entry, facts)
            && let Err(why) = self.raise_entry(name, entry, facts)
        {
            let risk =
                "until it can be written, an older copy of the cache may not be told from it after a crash";
            behind.push(format!("{why}; {risk}"));
        }
        if !stores.is_empty() {
            let folder = self.running().config.daemon.state_dir.join("stores");
            behind.push(format!(
                "cannot write what is known of the backing stores of {} to {}; until it can be written, a change that others make to them \
                 may not be told after a loss of power",
                stores.join(", "),
                folder.display()
            ));
        }
        self.tell_unrecorded(name, &behind);
    }

    /// A state directory that does not answer keeps the other pools from nothing.
    fn raise_entry(&self, name: &str, entry: Arc<Entry>, facts: Facts) -> Result<(), String> {
        let folder = self.running().config.daemon.state_dir.clone();
        let work = move |may_wait: &MayWait| entry.raise(may_wait, &facts);
        match self.places.within(&folder.join(name), RECORD_WITHIN, work) {
            Ok(raised) => raised,
            Err(Undone::Late) => Err(late(&folder)),
            Err(Undone::NoThread(error)) => Err(AdminError::no_thread(&error).what),
        }
    }

    fn tell_unrecorded(&self, name: &str, behind: &[String]) {
        let key = AlarmKey::pool(EventKind::StateUnwritable, name);
        let before = self.hub.alarms().iter().any(|alarm| alarm.key == key);
        match (behind.is_empty(), before) {
            (true, false) => {}
            (true, true) => {
                self.hub.clear(&key);
                self.emit(ServiceEvent::Problem(
                    MessageId::Event(EventKind::AlarmCleared),
                    format!("{name}: what is recorded in state_dir is up to date again"),
                ));
            }
            (false, _) => {
                let message = format!(
                    "pool {name}: {}; make room, or give the daemon the right to write there",
                    behind.join("; ")
                );
                self.hub.raise(key, Severity::Warning, &message);
                if !before {
                    self.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), message));
                }
            }
        }
    }

    /// Whether what is known of caches can be recorded. Asked before anything is given up that
    /// needs it: an upgrade that fails must be able to take everything back.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn check_recordable(&self) -> Result<(), AdminError> {
        let state_dir = self.running().config.daemon.state_dir.clone();
        let place = state_dir.clone();
        let tried =
            self.places.within(&place, RECORD_WITHIN, move |may_wait| check_writable(may_wait, &state_dir));
        let late = || {
            let hint = "see that its file system works, then try again";
            AdminError::new(MessageId::StateNotAnswering, late(&place), hint)
        };
        Ok(tried.map_err(|undone| undone.or(late))??)
    }

    /// Keeps all records up to date until the service stops.
    pub(super) fn follow_caches(me: &Weak<Self>) {
        let mut last = Instant::now();
        while let Some(service) = me.upgrade() {
            if lock(&service.work).stopping {
                return;
            }
            if last.elapsed() >= FOLLOW_EVERY {
                let names: Vec<String> = service.running().pools.keys().cloned().collect();
                service.tell_silent_pools(super::looks::ALARM_AFTER);
                names.iter().for_each(|name| service.raise_record(name));
                last = Instant::now();
            }
            drop(service);
            std::thread::sleep(LOOK);
        }
    }

    /// A start has failed as a whole: caches that were made for it are not left in the way of the
    /// next attempt.
    pub(super) fn unmake(&self) {
        let (made, entries) = {
            let mut running = self.running_mut();
            (std::mem::take(&mut running.made), std::mem::take(&mut running.entries))
        };
        for (pool, files) in made.iter().filter(|(_, files)| !files.is_empty()) {
            unmake(files);
            if let Some(Err(why)) = entries.get(pool).map(|entry| entry.remove(&MayWait::here(), true)) {
                self.emit(ServiceEvent::Problem(
                    MessageId::Event(EventKind::StateUnwritable),
                    format!("the cache of pool {pool} is gone again, but recorded: {why}"),
                ));
            }
        }
    }
}

fn late(folder: &Path) -> String {
    format!("{} does not answer within {} s", folder.display(), RECORD_WITHIN.as_secs())
}

/// Removes cache files that were made just now, and hold nothing.
pub(super) fn unmake(made: &[PathBuf]) {
    made.iter().for_each(|path| remove_made(path));
}
