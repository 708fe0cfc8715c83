//! Records of the caches of pools, kept outside of their devices (`register`), and the thread that
//! updates them.

use super::opening::{Allowed, unmake};
use super::pool_query::{ask, look_at};
use super::{Service, ServiceEvent};
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_config::CacheSpec;
use forebay_pool::register::{Entry, Facts, Permit, check_writable};
use forebay_pool::time_limit::Undone;
use forebay_pool::{MayWait, PoolHandle};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval of updates of the records while their caches change. After a crash, changes within it
/// cannot be distinguished from an older copy of the cache.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);
/// Time limit for a trial write: a hanging state directory must not block the caller.
const RECORD_WITHIN: Duration = Duration::from_secs(5);

impl Service {
    pub(super) fn permit<'a>(&self, name: &'a str, state_dir: &'a Path, allowed: Allowed) -> Permit<'a> {
        // The pool of `forebay run` has the same name for every cache.
        let pool = self.catalog.path().is_some().then_some(name);
        Permit { state_dir, pool, consent: allowed.consent, taking: allowed.taking }
    }

    /// Records the cache of a pool that was just opened; a pool served without its cache gets no
    /// record.
    pub(super) fn enter(
        handle: &PoolHandle,
        permit: Permit<'_>,
        specs: &[CacheSpec],
    ) -> Result<Option<Arc<Entry>>, AdminError> {
        let Some((uuid, facts)) = ask(handle, |pool| pool.facts())? else { return Ok(None) };
        let entry = Arc::new(permit.enter(&MayWait::here(), uuid, specs, &facts)?);
        let kept = Arc::clone(&entry);
        ask(handle, move |pool| pool.keep_record(kept))?;
        Ok(Some(entry))
    }

    /// Updates the record of a pool's cache. Failures, also with the record of a backing store,
    /// raise an alarm for as long as they last; the pool continues.
    pub(super) fn raise_record(&self, name: &str) {
        let entry = self.pools.entry(name);
        let Ok(handle) = self.handle(name) else { return };
        let Ok((facts, stores)) = look_at(&handle, |pool| (pool.facts(), pool.unrecorded_stores())) else {
            return;
        };
        let mut behind = Vec::new();
        if let (Some(entry), Some((_, facts))) = (entry, facts)
            && let Err(why) = self.raise_entry(name, entry, facts)
        {
            let risk = "until it can be written, an older copy of the cache may go undetected after a crash";
            behind.push(format!("{why}; {risk}"));
        }
        if !stores.is_empty() {
            let folder = self.catalog.state_dir().join("stores");
            behind.push(format!(
                "cannot write the records of the backing stores of {} to {}; until they can be written, \
                 changes to them by other programs may go undetected after a loss of power",
                stores.join(", "),
                folder.display()
            ));
        }
        self.telemetry.note_unrecorded(name, &behind);
    }

    /// Updates an entry, with a time limit: a state directory that does not answer must not block
    /// other pools.
    fn raise_entry(&self, name: &str, entry: Arc<Entry>, facts: Facts) -> Result<(), String> {
        let folder = self.catalog.state_dir();
        let work = move |may_wait: &MayWait| entry.raise(may_wait, &facts);
        match self.places.within(&folder.join(name), RECORD_WITHIN, work) {
            Ok(raised) => raised,
            Err(Undone::Late) => Err(late(&folder)),
            Err(Undone::NoThread(error)) => Err(AdminError::no_thread(&error).what),
        }
    }

    /// Checks that the state of caches can be recorded. Called before operations that give up
    /// something needed for a rollback: a failed upgrade must be able to take everything back.
    ///
    /// # Errors
    /// The state cannot be recorded.
    pub(crate) fn check_recordable(&self) -> Result<(), AdminError> {
        let state_dir = self.catalog.state_dir();
        let place = state_dir.clone();
        let tried =
            self.places.within(&place, RECORD_WITHIN, move |may_wait| check_writable(may_wait, &state_dir));
        let late = || {
            let hint = "check its file system, then try again";
            AdminError::new(MessageId::StateNotAnswering, late(&place), hint)
        };
        Ok(tried.map_err(|undone| undone.or(late))??)
    }

    /// Updates all records until the service stops.
    pub(super) fn follow_caches(me: &Weak<Self>) {
        let mut last = Instant::now();
        while let Some(service) = me.upgrade() {
            if service.jobs.is_stopping() {
                return;
            }
            if last.elapsed() >= FOLLOW_EVERY {
                let names: Vec<String> = service.pools.names();
                service.pools.raise_silent(&service.hub, super::pool_query::ALARM_AFTER);
                names.iter().for_each(|name| service.raise_record(name));
                last = Instant::now();
            }
            drop(service);
            std::thread::sleep(LOOK);
        }
    }

    /// Handles a failed start: removes the caches created for it, so that they do not block the
    /// next attempt.
    pub(super) fn unmake(&self) {
        let made = self.pools.take_made();
        for (pool, files, entry) in made.iter().filter(|(_, files, _)| !files.is_empty()) {
            unmake(files);
            if let Some(Err(why)) = entry.as_ref().map(|entry| entry.remove(&MayWait::here(), true)) {
                self.telemetry.emit(ServiceEvent::Problem(
                    MessageId::Event(EventKind::StateUnwritable),
                    format!("the new cache of pool {pool} was removed, but its record was not: {why}"),
                ));
            }
        }
    }
}

fn late(folder: &Path) -> String {
    format!("{} does not answer within {} s", folder.display(), RECORD_WITHIN.as_secs())
}
