//! Exports a pool to another host, as a job: detaches its volumes, closes the cache, writes the
//! settings onto it, and removes both from the configuration.
//!
//! If the daemon ends in between, one of two states remains. Until the pool is removed from the
//! configuration, the next start opens it as before, and that invalidates the settings on the cache
//! (`forebay_format::settings_copy`). After that, the pool is exported as a whole. A failure before
//! that step reopens the pool, or reports that it is not open and raises its alarm.

use super::catalog::StoredConfig;
use super::errors::{conflict, no_answer};
use super::job_table::End;
use super::pool_query::ask;
use super::volume_use::await_all_unused;
use super::work::Until;
use super::{Service, ServiceEvent};
use forebay_admin::events::{AlarmKey, EventKind, NewEvent, Severity};
use forebay_admin::jobs::{JobId, JobKind, JobSpec, Phase};
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, ExportRequest, JobInfo, MessageId, OpenHow};
use forebay_config::PoolSection;
use forebay_format::CacheUuid;
use forebay_offline::Key;
use forebay_pool::encryption::read_key;
use forebay_pool::settings_copy;
use forebay_pool::{AbsentVolume, ExclusiveOpens, MayWait, Pool, PoolHandle, ahead_in_all};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for writing the settings onto a closed cache.
const WRITE_WITHIN: Duration = Duration::from_secs(20);

impl Service {
    /// Starts the job unless it is known to fail.
    pub(super) fn begin_export(&self, name: &str, request: ExportRequest) -> Result<JobInfo, AdminError> {
        let handle = self.handle(name)?;
        self.exportable(name, &*self.changing()?)?;
        if !request.force {
            self.check_nothing_left_here(name)?;
            drop(await_all_unused(&handle)?);
        }
        let kind = JobKind::Export { drain: request.drain };
        self.jobs.begin(JobSpec::pool(kind, name).force(request.force))
    }

    /// Returns the configuration of a pool that can be exported, with the text for its cache.
    fn exportable(&self, name: &str, file: &StoredConfig) -> Result<(PoolSection, String), AdminError> {
        if !file.exists() {
            let what = format!("the cache of {name} is named on the command line of `forebay run`");
            let hint = "there are no settings to export: stop it, and start `forebay run` on the other host";
            return Err(conflict(MessageId::DaemonNoConfigFile, what, hint));
        }
        let snapshot = self.pool_snapshot(name)?;
        if snapshot.cache_failed || snapshot.fenced {
            let what = format!("the cache of pool {name} has failed");
            return Err(conflict(
                MessageId::Event(EventKind::CacheFailed),
                what,
                format!("replace it: forebay pool replace {name} --device PATH[:SIZE]"),
            ));
        }
        ask(&*self.handle(name)?, |pool| pool.check_paths("export"))??;
        self.holds.check_pool_free(name)?;
        // From the file, not from the running state: a change meant to last until the next start
        // ends here.
        let section = file.newest()?.and_then(|config| PoolSection::of(&config, name)).ok_or_else(|| {
            conflict(
                MessageId::PoolNotConfigured,
                format!("the configuration file no longer has pool {name}"),
                "forebay reload",
            )
        })?;
        let text = section.text().map_err(|error| AdminError::new(MessageId::ConfigEdit, error, ""))?;
        settings_copy::check_length(&text)?;
        Ok((section, text))
    }

    /// Volumes that are not attached must have no dirty or lost blocks: their settings are not
    /// exported, and afterwards this host would not know that their backing stores must not be
    /// used.
    fn check_nothing_left_here(&self, name: &str) -> Result<(), AdminError> {
        self.check_nothing_absent(name).map_err(|error| {
            let hint = format!("{}; to export the pool with that data in its cache: --force", error.hint);
            AdminError { hint, ..error }
        })
    }

    /// Runs the job.
    pub(super) fn export(&self, id: JobId, name: &str, drain: bool, force: bool) -> Result<(), End> {
        let handle = self.handle(name)?;
        let volumes = ask(&handle, |pool| pool.names())?;
        let drained = if drain { self.drain_all(id, &handle, &volumes) } else { Ok(()) };
        let left = drained.and_then(|()| {
            self.jobs.phase(id, Phase::Applying);
            Ok(self.leave(name, &handle, force)?)
        });
        if left.is_err() && drain {
            let undo = move |pool: &mut Pool| volumes.iter().for_each(|volume| pool.end_draining(volume));
            handle.order(undo); // if the pool has stopped, it was reopened
        }
        left
    }

    fn drain_all(&self, id: JobId, handle: &PoolHandle, volumes: &[String]) -> Result<(), End> {
        for volume in volumes {
            let volume = volume.clone();
            ask(handle, move |pool| pool.begin_draining(&volume))??;
        }
        volumes.iter().try_for_each(|volume| self.watch_drain(id, handle, volume, Until::Empty))
    }

    fn leave(&self, name: &str, handle: &PoolHandle, force: bool) -> Result<(), AdminError> {
        let mut file = self.changing()?;
        let (section, text) = self.exportable(name, &file)?;
        // Of what the cache was created with: if the key is missing, do not stop anything.
        let source = section.pool.tunables().encryption_key_file;
        let key = source.as_ref().map(read_key).transpose()?;
        let claims = match force {
            true => ExclusiveOpens::new(),
            false => {
                self.check_nothing_left_here(name)?;
                await_all_unused(handle)?
            }
        };
        let facts = ask(handle, |pool| pool.facts())?;
        let (cache, _) = facts.ok_or_else(|| {
            conflict(
                MessageId::Event(EventKind::CacheFailed),
                format!("the cache of pool {name} has failed"),
                "",
            )
        })?;
        let lost_bytes = self.pool_info(name)?.lost_bytes;
        let devices = self.pool_snapshot(name)?.devices.into_iter().map(|(path, _)| path).collect();
        let absent = ask(handle, |pool| pool.absent())?;
        self.stop_for_good(name, handle, force, claims)?;
        let closed = handle.stop().map_err(AdminError::from);
        let written = closed.and_then(|()| self.write_settings(cache, devices, text, key));
        let entry = self.pools.entry(name);
        let recorded = written.and_then(|()| self.begin_leaving(entry.as_deref(), &[]));
        let forgotten = recorded.and_then(|()| file.write(&section.removed()));
        if let Err(error) = forgotten {
            // The file has the pool, unless only the durability of the edit is in doubt.
            let is_written = matches!(file.newest(), Ok(Some(now)) if !now.pools.contains_key(name));
            let error = if is_written { file.revert(&section.added(), error) } else { error };
            let _ = entry.map(|entry| entry.set_leaving(&MayWait::here(), None));
            let now = self.bring_back(name);
            let hint = if error.hint.is_empty() { now } else { format!("{}; {now}", error.hint) };
            return Err(AdminError { hint, ..error });
        }
        let goes_along = goes_along(lost_bytes, &absent);
        let configured = section.volumes.iter().map(|(volume, _)| volume.clone());
        let volumes: Vec<String> = configured.chain(absent.into_iter().map(|volume| volume.name)).collect();
        self.forget_exported(name, &volumes, &goes_along);
        Ok(())
    }

    /// Makes a pool begin to stop. Removes it from the table first: a pool in the table that ends
    /// counts as failed.
    fn stop_for_good(
        &self,
        name: &str,
        handle: &PoolHandle,
        force: bool,
        claims: ExclusiveOpens,
    ) -> Result<(), AdminError> {
        let taken = self.pools.remove(name);
        let stops = ask(handle, move |pool| pool.stop_for_good(force, claims)).and_then(|stops| stops);
        if stops.is_err() {
            taken.into_iter().for_each(|taken| self.pools.put_back(name, taken));
        }
        stops
    }

    fn write_settings(
        &self,
        cache: CacheUuid,
        devices: Vec<PathBuf>,
        text: String,
        key: Option<Key>,
    ) -> Result<(), AdminError> {
        let first = devices.first().cloned().unwrap_or_default();
        let written = self.places.within(&first, WRITE_WITHIN, move |may_wait| {
            settings_copy::write(may_wait, cache, &devices, &text, key.as_ref())
        });
        Ok(written.map_err(|undone| undone.or(|| no_answer(&first, WRITE_WITHIN)))??)
    }

    /// Reopens a pool that was stopped for an export, and reports the outcome.
    fn bring_back(&self, name: &str) -> String {
        self.pools.remove_entry(name);
        let Err(error) = self.open_with_volumes(name, OpenHow::default()) else {
            return "the pool was opened again".into();
        };
        let message = format!("{}; {}", error.what, error.hint);
        self.telemetry.emit(ServiceEvent::Problem(
            MessageId::Event(EventKind::PoolFailed),
            format!("pool {name}: {message}"),
        ));
        if !self.is_closed(name) {
            return format!(
                "the pool was opened again, but not all of its volumes are attached: {}",
                error.what
            );
        }
        self.hub.raise(AlarmKey::pool(EventKind::PoolFailed, name), Severity::Error, &message);
        format!(
            "the pool could not be opened again: {}; once that is fixed: forebay pool open {name}",
            error.what
        )
    }

    fn forget_exported(&self, name: &str, volumes: &[String], goes_along: &str) {
        self.pools.keep_made(name);
        self.catalog.remove_pool(name);
        volumes.iter().for_each(|volume| self.attached_volumes.remove(volume));
        // If the daemon is killed before this, the next start finishes it.
        if let Some(Err(why)) =
            self.pools.remove_entry(name).map(|entry| entry.remove(&MayWait::here(), false))
        {
            self.telemetry.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), format!(
                "pool {name} is exported, but the record of its cache is not removed: {why}; the next start \
                 tries again"
            )));
        }
        self.deferred.forget(name, volumes);
        self.telemetry.clear_alarms_of(name, volumes);
        let message = format!(
            "pool {name} is exported: its devices and the backing stores of its volumes can be moved to \
             another host; there: forebay pool import{goes_along}"
        );
        self.hub.publish(NewEvent::new(EventKind::PoolExported, message).pool(name));
    }
}

/// Returns what an exported cache contains besides the data of its volumes, if anything: lost
/// blocks, and volumes whose settings are not exported.
fn goes_along(lost_bytes: u64, absent: &[AbsentVolume]) -> String {
    let mut text = String::new();
    if lost_bytes > 0 {
        text += &format!("; {} of its volumes are LOST, there too", ByteSize(lost_bytes));
    }
    let ahead: Vec<AbsentVolume> = absent.iter().filter(|volume| volume.is_ahead()).cloned().collect();
    if !ahead.is_empty() {
        let names: Vec<&str> = ahead.iter().map(|volume| volume.name.as_str()).collect();
        text += &format!(
            "; its cache also holds {} of {}, which had not been attached: do not use their backing stores \
             before they are attached there",
            ahead_in_all(&ahead),
            names.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn failed_export_reports_the_closed_pool() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, away) = (folder.path().join("a.cache"), folder.path().join("away"));
        assert!(start(folder.path(), Arc::default(), "auto").stop().is_empty());
        std::fs::rename(&cache, &away).unwrap();
        std::os::unix::fs::symlink(&away, &cache).unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        // While the pool is open, an unlinked cache file goes unnoticed.
        std::fs::remove_file(&cache).unwrap();
        let error = service.leave("a", &service.handle("a").unwrap(), false).unwrap_err();
        assert!(error.what.contains("cannot open"), "{error:?}");
        assert!(
            error.hint.contains("could not be opened again: ")
                && error.hint.ends_with(": forebay pool open a"),
            "{error:?}"
        );
        assert!(service.is_closed("a"));
        let alarms = service.hub.alarms();
        let key = AlarmKey::pool(EventKind::PoolFailed, "a");
        assert!(
            alarms.iter().any(|alarm| alarm.key == key && alarm.message.contains("is missing")),
            "{alarms:?}"
        );

        std::os::unix::fs::symlink(&away, &cache).unwrap();
        service.reopen("a", OpenHow::default()).unwrap();
        assert!(service.hub.alarms().is_empty());
        assert!(service.stop().is_empty());
    }
}
