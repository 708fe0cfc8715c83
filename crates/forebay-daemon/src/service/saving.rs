//! Starts detach jobs; and detaches a volume whose backing file was unlinked, writing the file to
//! another path before it is closed.
//!
//! The steps are: drain, copy, name of the copy, end of the volume in the cache, end of the volume
//! in the configuration. A kill before the copy has its name leaves `PATH.part`, and the volume
//! configured; a kill after it leaves the volume configured at a path that does not exist. A
//! failure before that leaves the volume attached and served.

use super::Service;
use super::errors::{invalid, no_answer, stopped};
use super::holds::Hold;
use super::job_table::{End, LOOK};
use super::pool_query::ask;
use super::volume_use::await_unused;
use forebay_admin::events::EventKind;
use forebay_admin::jobs::{JobId, JobKind, JobSpec, Left, Phase, Report};
use forebay_admin::{AdminError, DetachHow, DetachRequest, JobInfo, MessageId};
use forebay_pool::shell_word::quoted;
use forebay_pool::{ExclusiveOpens, Pool, PoolHandle, Saving};
use std::path::Path;
use std::time::Duration;

/// Time limit for accessing the destination of a file.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

impl Service {
    /// Starts a detach job, unless it is known to fail.
    pub(super) fn begin_detach(&self, name: &str, request: DetachRequest) -> Result<JobInfo, AdminError> {
        let DetachRequest { how, force, save_to } = request;
        let (pool, handle) = self.pool_with(name)?;
        match &save_to {
            Some(to) => self.check_save(&handle, name, how, Path::new(to))?,
            None => Self::check_has_name(&handle, name, how)?,
        }
        if !force {
            let unused = await_unused(&handle, name);
            drop(unused.map_err(|users| users.refuse("detach", name))?);
        }
        self.jobs.begin(JobSpec::volume(JobKind::Detach(how), &pool, name).force(force).save_to(save_to))
    }

    /// Takes the hold for a detach; the job waits until no other operation holds the volume.
    pub(super) fn hold_to_detach(&self, id: JobId, pool: &str, volume: &str) -> Result<Hold<'_>, End> {
        loop {
            let file = self.changing()?;
            let taken = self.holds.detach(volume, pool);
            drop(file);
            match taken {
                Ok(hold) => return Ok(hold),
                Err(_) if self.jobs.should_stop(id) => return Err(End::Stopped),
                Err(_) => self.holds.wait(volume, LOOK),
            }
        }
    }

    /// Checks that a volume that is not given up has a path by which it can be found again.
    pub(super) fn check_has_name(handle: &PoolHandle, name: &str, how: DetachHow) -> Result<(), AdminError> {
        let name = name.to_owned();
        match how {
            DetachHow::Discard => Ok(()),
            DetachHow::Drain | DetachHow::Keep => {
                ask(handle, move |pool| pool.check_store_has_name(&name, "detach"))?
            }
        }
    }

    fn check_save(
        &self,
        handle: &PoolHandle,
        name: &str,
        how: DetachHow,
        to: &Path,
    ) -> Result<(), AdminError> {
        if how != DetachHow::Drain {
            let what = "to write a backing file to another path, all dirty data must be written back first";
            return Err(invalid(MessageId::ApiParameter, what, "omit --keep and --discard"));
        }
        if to.is_relative() {
            let what = format!("{} is not an absolute path", to.display());
            return Err(invalid(MessageId::DeviceSyntax, what, "an absolute path begins with /"));
        }
        let (volume, path) = (name.to_owned(), to.to_owned());
        let store = ask(handle, move |pool| pool.store_of(&volume))??;
        let checked = self.places.within(to, LOOK_WITHIN, move |_| store.check_copy(&path));
        let checked = checked.map_err(|undone| undone.or(|| no_answer(to, LOOK_WITHIN)))?;
        checked.map_err(|error| {
            let id = forebay_offline::message::of_device(&error);
            let what = format!("cannot write the backing file of {name} to another path: {error}");
            AdminError::new(id, what, "nothing was changed")
        })
    }

    /// Executes the last steps of such a detach, with the volume drained.
    pub(super) fn detach_saving(
        &self,
        id: JobId,
        handle: &PoolHandle,
        (volume, to): (&str, &Path),
        force: bool,
        claims: ExclusiveOpens,
    ) -> Result<(), End> {
        let saving = Saving::new(to.to_owned());
        let (name, ours) = (volume.to_owned(), saving.clone());
        let promise = ask(handle, move |pool| pool.detach_to(&name, &ours, force, claims))?;
        let mut undone = false;
        let answer = loop {
            if let Some(answer) = promise.try_wait(LOOK) {
                break answer;
            }
            if let Some(left) = saving.left_bytes() {
                let left = Left::All(left);
                self.jobs.report(id, Report { left, phase: Phase::Copying, limited_by: None, errors: 0 });
            }
            // A stop of the daemon does not cancel it: the pool waits for it.
            if self.jobs.is_ended(id) && !std::mem::replace(&mut undone, true) {
                let name = volume.to_owned();
                handle.order(move |pool: &mut Pool| pool.end_draining(&name));
            }
        };
        match answer {
            Some(Ok(())) => {}
            Some(Err(_)) if undone => return Err(End::Stopped),
            Some(Err(error)) => {
                let hint = "the volume is served as before; choose another path";
                let what =
                    format!("the backing file of {volume} was not written to another path: {}", error.what);
                return Err(AdminError { what, hint: hint.into(), ..error }.into());
            }
            None => return Err(stopped().into()),
        }
        let name = volume.to_owned();
        // The file has all data. A cache that is being closed may keep its entries of the volume.
        let forgotten = ask(handle, move |pool| pool.discard_absent(&name)).map(|promise| promise.wait());
        match forgotten {
            Ok(Some(Err(error))) if !self.jobs.is_stopping() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Returns the description of a completed detach.
pub(super) fn detached_text(volume: &str, how: DetachHow, saved: Option<&str>) -> String {
    match (how, saved) {
        (_, Some(path)) => format!(
            "{volume} is detached; its backing store is now {path}, and has all data. To serve it: forebay \
             volume attach {volume} --backing {} --export URI",
            quoted(format!("file:{path}"))
        ),
        (DetachHow::Drain, None) => format!("{volume} is detached; its backing store has all data"),
        (DetachHow::Keep, None) => {
            format!(
                "{volume} is detached; its dirty data stays in the cache: do not use its backing store \
                 without it"
            )
        }
        (DetachHow::Discard, None) => {
            format!("{volume} is detached; its dirty data is discarded")
        }
    }
}

/// The alarms of a volume that end with it.
pub(super) const ALARMS: [EventKind; 2] = [EventKind::DestageFailed, EventKind::DevicePathLost];
