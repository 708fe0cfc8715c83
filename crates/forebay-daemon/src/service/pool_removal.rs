//! Removes a pool from the configuration in steps, with a crash possible after each: it records the
//! start first, and the next start finishes the removal, or cancels it, depending on the
//! configuration file.

use super::errors::no_answer;
use super::{Service, ServiceEvent};
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_pool::MayWait;
use forebay_pool::open::erase_cache;
use forebay_pool::register::{CacheRecord, Entry, Leaving, leaving};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for erasing a device.
const ERASE_WITHIN: Duration = Duration::from_secs(20);

impl Service {
    /// Records that a pool is being removed, and which of its devices will be erased, before
    /// anything else. A pool without a record is served without its cache.
    pub(super) fn begin_leaving(
        &self,
        entry: Option<&Entry>,
        erase: &[(PathBuf, u64)],
    ) -> Result<(), AdminError> {
        let Some(entry) = entry else { return Ok(()) };
        let leaving = Leaving { erase: erase.to_vec() };
        entry.set_leaving(&MayWait::here(), Some(leaving)).map_err(|why| {
            let hint = "free space, or give the daemon write permission; then try again";
            AdminError::new(MessageId::PoolRemovalKept, why, hint)
        })
    }

    /// Erases the devices of a pool that is no longer configured, as far as requested, and removes
    /// the record.
    ///
    /// # Errors
    /// The devices cannot be erased: the next start retries. A failure to change the record is only
    /// reported.
    pub(super) fn finish_leaving(&self, name: &str, record: &CacheRecord) -> Result<(), AdminError> {
        let state_dir = self.catalog.state_dir();
        let erase = record.leaving.as_ref().map_or(&[][..], |leaving| &leaving.erase);
        self.erase_parts(record, erase).map_err(|error| {
            let what = format!("pool {name} is removed, but its cache is not erased: {}", error.what);
            let hint = format!(
                "the next start tries again; to prevent that: rm {}",
                record.path(&state_dir).display()
            );
            AdminError { what, hint, ..error }
        })?;
        if let Err(why) = record.remove(&MayWait::here(), &state_dir, !erase.is_empty()) {
            self.telemetry.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), format!(
                "pool {name} is removed, but the record of its cache is not: {why}; the next start tries again"
            )));
        }
        Ok(())
    }

    fn erase_parts(&self, record: &CacheRecord, parts: &[(PathBuf, u64)]) -> Result<(), AdminError> {
        let Some((first, _)) = parts.first() else { return Ok(()) };
        let (all, cache, generation) = (parts.to_vec(), record.cache_uuid.clone(), record.generation);
        let work = move |may_wait: &MayWait| erase_cache(may_wait, &all, &cache, generation);
        let erased = self.places.within(first, ERASE_WITHIN, work);
        Ok(erased.map_err(|undone| undone.or(|| no_answer(first, ERASE_WITHIN)))??)
    }

    /// Handles interrupted removals at a start, before pools are opened: finishes the removal, or,
    /// if the file names the pool, cancels it.
    pub(super) fn settle_leaving(&self) {
        if self.catalog.path().is_none() {
            return; // belongs to other daemons
        }
        let (state_dir, pools) = {
            let config = self.catalog.config();
            (config.daemon.state_dir.clone(), config.pools.clone())
        };
        // Opening a pool reports an unreadable directory.
        for record in leaving(&state_dir).unwrap_or_default() {
            let name = record.pool.clone().unwrap_or_default();
            match pools.contains_key(&name) {
                true => self.tell_left(&name, "was kept", self.stays(&record, &state_dir)),
                false => self.tell_left(&name, "was removed", self.finish_leaving(&name, &record)),
            }
        }
    }

    fn stays(&self, record: &CacheRecord, state_dir: &Path) -> Result<(), AdminError> {
        let stays = record.stay(&MayWait::here(), state_dir);
        stays.map_err(|why| AdminError::new(MessageId::PoolRemovalKept, why, ""))
    }

    fn tell_left(&self, name: &str, what: &str, done: Result<(), AdminError>) {
        self.telemetry.emit(match done {
            Ok(()) => ServiceEvent::Note(
                MessageId::DaemonNote,
                format!("pool {name} was being removed when the daemon ended: it {what}"),
            ),
            Err(error) => ServiceEvent::Problem(error.id, format!("{}; {}", error.what, error.hint)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{start, start_as_written};
    use super::*;
    use forebay_admin::events::{AlarmKey, EventKind};
    use forebay_admin::{DeviceRequest, PoolRequest};
    use forebay_pool::register::{Standing, of_pool};
    use std::sync::Arc;

    /// Returns a service with the pool `c`, on the file `c.cache`, and the record of its cache.
    fn with_a_pool(folder: &Path) -> (Arc<Service>, CacheRecord) {
        let service = start(folder, Arc::default(), "auto");
        let path = folder.join("c.cache").display().to_string();
        let devices = vec![DeviceRequest { path, size: Some("16MiB".into()) }];
        let settings = std::collections::BTreeMap::new();
        service
            .create(PoolRequest {
                name: "c".into(),
                devices,
                settings,
                overwrite: false,
                fill: false,
                new_cache: false,
            })
            .unwrap();
        let record = of_pool(&folder.join("state"), "c").unwrap().remove(0);
        (service, record)
    }

    fn record(folder: &Path, of: &CacheRecord) -> Option<CacheRecord> {
        let bytes = std::fs::read(of.path(&folder.join("state"))).ok()?;
        Some(serde_json::from_slice(&bytes).unwrap())
    }

    fn take_out(folder: &Path) {
        let path = folder.join("forebay.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.split("[pool.c]").next().unwrap()).unwrap();
    }

    /// Simulates a daemon that was killed after it recorded the removal of the pool.
    fn killed(folder: &Path, erase: &[(PathBuf, u64)]) -> CacheRecord {
        let (service, before) = with_a_pool(folder);
        assert!(service.stop().is_empty());
        let stopped = record(folder, &before).unwrap();
        let leaving = Leaving { erase: erase.to_vec() };
        stopped.leave(&MayWait::here(), &folder.join("state"), leaving).unwrap();
        stopped
    }

    #[test]
    fn removal_follows_the_file_at_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let of = killed(at, &[(at.join("c.cache"), 16 << 20)]);
        let service = start_as_written(&at.join("forebay.toml"), Arc::default());
        assert!(service.handle("c").is_ok());
        assert!(service.stop().is_empty());
        let stays = record(at, &of).unwrap();
        assert_eq!((stays.standing, stays.leaving.clone()), (Standing::Current, None));
        assert_eq!(std::fs::metadata(at.join("c.cache")).unwrap().len(), 16 << 20);

        take_out(at);
        stays.leave(&MayWait::here(), &at.join("state"), Leaving::default()).unwrap();
        let service = start_as_written(&at.join("forebay.toml"), Arc::default());
        let gone = record(at, &of).unwrap();
        assert_eq!((gone.standing, gone.pool.clone(), gone.leaving.clone()), (Standing::Removed, None, None));
        assert!(service.stop().is_empty());

        let erase = vec![(at.join("c.cache"), 16 << 20)];
        stays.leave(&MayWait::here(), &at.join("state"), Leaving { erase }).unwrap();
        let service = start_as_written(&at.join("forebay.toml"), Arc::default());
        assert_eq!(record(at, &of), None);
        assert_eq!(std::fs::metadata(at.join("c.cache")).unwrap().len(), 0);
        assert!(service.stop().is_empty());
    }

    #[test]
    fn changed_devices_are_not_erased() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let of = killed(at, &[(at.join("c.cache"), 16 << 20), (at.join("other"), 16 << 20)]);
        take_out(at);
        let start = || start_as_written(&at.join("forebay.toml"), Arc::default());
        assert!(start().stop().is_empty());
        assert!(record(at, &of).unwrap().leaving.is_some(), "a device is not there");
        assert_eq!(std::fs::metadata(at.join("c.cache")).unwrap().len(), 16 << 20);

        // Another file has the name.
        std::fs::write(at.join("other"), vec![7; 1 << 20]).unwrap();
        let mut old = of.clone();
        old.generation -= 1;
        let erase = vec![(at.join("c.cache"), 16 << 20), (at.join("other"), 16 << 20)];
        let leaving = Leaving { erase };
        old.leave(&MayWait::here(), &at.join("state"), leaving.clone()).unwrap();
        assert!(start().stop().is_empty());
        assert!(record(at, &of).unwrap().leaving.is_some(), "it was used since");

        of.leave(&MayWait::here(), &at.join("state"), leaving).unwrap();
        assert!(start().stop().is_empty());
        assert_eq!(record(at, &of), None);
        assert_eq!(std::fs::metadata(at.join("c.cache")).unwrap().len(), 0);
        assert!(std::fs::read(at.join("other")).unwrap().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn failed_removal_can_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let (service, of) = with_a_pool(at);
        let caches = at.join("state/caches");
        std::fs::rename(&caches, caches.with_extension("away")).unwrap();
        std::fs::write(&caches, "no folder").unwrap();
        assert!(service.close_pool("c", true, false).unwrap_err().what.contains("cannot change"));
        assert!(service.handle("c").is_ok(), "it goes on");
        std::fs::remove_file(&caches).unwrap();
        std::fs::rename(caches.with_extension("away"), &caches).unwrap();

        let path = at.join("forebay.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}nonsense")).unwrap();
        let error = service.close_pool("c", true, false).unwrap_err();
        assert!(
            error.what.contains("is wrong now") && error.hint.ends_with(": forebay pool open c"),
            "{error:?}"
        );
        assert!(service.is_closed("c"), "it is in the list");
        let alarm = AlarmKey::pool(EventKind::PoolFailed, "c");
        assert!(service.hub.alarms().iter().any(|raised| raised.key == alarm), "nobody is told");
        let stays = record(at, &of).unwrap();
        assert_eq!((stays.standing, stays.leaving), (Standing::Current, None));
        std::fs::write(&path, text).unwrap();
        service.reopen("c", Default::default()).unwrap();
        assert!(service.hub.alarms().is_empty());
        service.close_pool("c", true, false).unwrap();
        assert_eq!(record(at, &of), None);
        assert!(service.close_pool("c", true, false).unwrap_err().what.contains("no pool"), "twice");
        assert!(service.stop().is_empty());
    }
}
