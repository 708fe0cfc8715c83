//! Executes jobs: each has its own thread while it runs.
//!
//! One thread starts jobs when their turn comes. A job runs its steps sequentially, and checks
//! between steps whether it should stop. The engine destages dirty blocks; a job only requests it
//! and monitors progress.

use super::Service;
use super::errors::{not_in_file, stopped};
use super::job_table::{End, LOOK};
use super::pool_query::ask;
use super::saving::{self, detached_text};
use super::volume_use::await_unused;
use forebay_admin::events::{AlarmKey, EventKind, NewEvent};
use forebay_admin::jobs::{JobId, JobKind, JobSpec, Left, Phase, Report};
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, DetachHow, MessageId};
use forebay_core::Drain;
use forebay_format::BLOCK_BYTES;
use forebay_pool::{Destaging, ExclusiveOpens, Pool, PoolHandle, Promise, Rebuilding, Scrubbed};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Resolution of the engine's age of dirty data.
const AGE_RESOLUTION: Duration = Duration::from_secs(2);

/// Condition that completes a drain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// No dirty blocks remain.
    Empty,
    /// No dirty blocks remain that were written before this instant.
    Since(Instant),
    /// As `Empty`, also if the backing file was unlinked: it gets another name.
    Saved,
}

/// A drain that keeps waiting would never end.
fn not_writable(volume: &str, why: &str) -> End {
    End::Failed(
        MessageId::DeviceWriteProtected,
        format!(
            "{volume} cannot be written back: {why}. Dirty data stays in the cache; once the backing store \
             is writable again, try again. To detach it and keep the dirty data: forebay volume detach \
             {volume} --keep"
        ),
    )
}

impl Service {
    /// Starts jobs when their turn comes; returns when the daemon stops.
    pub(super) fn begin_jobs(self: Arc<Self>) {
        while let Some(due) = self.jobs.next() {
            for (id, spec) in due {
                let (service, of) = (Arc::clone(&self), spec.clone());
                if !self.jobs.spawn(id, move || service.run_job(id, &of)) {
                    self.not_begun(&spec);
                }
            }
        }
    }

    /// Handles a job that ended before its first step: undoes the preparations made when it was
    /// requested.
    fn not_begun(&self, spec: &JobSpec) {
        self.jobs.forget_recordings();
        match (spec.kind, self.handle(&spec.pool)) {
            (JobKind::Replace, Ok(handle)) => self.undo_copy(&spec.pool, &handle),
            (JobKind::Rebuild, Ok(_)) => self.telemetry.emit(super::ServiceEvent::Problem(
                MessageId::DaemonNoThread,
                format!("pool {} is rebuilt without a job", spec.pool),
            )),
            _ => {}
        }
    }

    /// Waits for a pool's reply to a change of a volume; if the job is cancelled, asks the pool to
    /// `undo` it.
    fn await_change(
        &self,
        id: JobId,
        handle: &PoolHandle,
        promise: Promise<Result<(), AdminError>>,
        undo: impl Fn(&mut Pool) + Clone + Send + 'static,
    ) -> Result<Result<(), AdminError>, End> {
        let mut undone = false;
        loop {
            if let Some(answer) = promise.try_wait(LOOK) {
                let result = answer.ok_or_else(stopped)?;
                return if undone && result.is_err() { Err(End::Stopped) } else { Ok(result) };
            }
            if self.jobs.is_stopping() {
                return Err(End::Stopped);
            }
            if self.jobs.is_ended(id) && !std::mem::replace(&mut undone, true) {
                handle.order(undo.clone());
            }
        }
    }

    fn run_job(&self, id: JobId, spec: &JobSpec) {
        let volume = spec.volume.as_deref().unwrap_or_default();
        let result = match spec.kind {
            JobKind::Flush => self.flush(id, volume, Until::Since(Instant::now())),
            JobKind::ModeChange(_) => self.flush(id, volume, Until::Empty),
            JobKind::Detach(how) => self.detach(id, volume, how, spec),
            JobKind::Resize(bytes) => self.resize(id, volume, bytes, spec.force),
            JobKind::Record(_) => self.record(id, volume),
            JobKind::Shrink(bytes) => self.shrink(id, &spec.pool, bytes),
            JobKind::GiveUp(member) => self.give_up_job(id, &spec.pool, member.into()),
            JobKind::Replace => self.replace_job(id, &spec.pool),
            JobKind::Scrub(bytes_per_s) => self.scrub(id, &spec.pool, bytes_per_s),
            JobKind::Rebuild => self.rebuild(id, &spec.pool),
            JobKind::Remove { erase } => self.remove(id, &spec.pool, erase, spec.force),
            JobKind::Export { drain } => self.export(id, &spec.pool, drain, spec.force),
        };
        self.jobs.end(id, result);
    }

    // --- draining

    /// Destages a volume at full speed, concurrently with all other work.
    fn flush(&self, id: JobId, volume: &str, until: Until) -> Result<(), End> {
        let (_, handle) = self.pool_of(volume)?;
        self.set_drain(&handle, volume, Drain::Full)?;
        let result = self.watch_drain(id, &handle, volume, until);
        let drains = |kind| matches!(kind, JobKind::Flush | JobKind::ModeChange(_));
        let others = self.jobs.open().into_iter().any(|job| {
            let is_other = job.id != id && drains(job.spec.kind);
            is_other && job.spec.volume.as_deref() == Some(volume)
        });
        if !others {
            self.set_drain(&handle, volume, Drain::Off)?;
        }
        result
    }

    fn set_drain(&self, handle: &PoolHandle, volume: &str, drain: Drain) -> Result<(), AdminError> {
        let volume = volume.to_owned();
        ask(handle, move |pool| pool.set_drain(&volume, drain))?
    }

    /// Waits until a drain is done, and reports its progress.
    pub(super) fn watch_drain(
        &self,
        id: JobId,
        handle: &PoolHandle,
        volume: &str,
        until: Until,
    ) -> Result<(), End> {
        let mut failures_before = None;
        loop {
            if self.jobs.should_stop(id) {
                return Err(End::Stopped);
            }
            let name = volume.to_owned();
            let Destaging { report, failures, not_permitted, nameless } =
                ask(handle, move |pool| pool.destage_of(&name))??;
            // Data destaged now would be lost with the unlinked file.
            if let Some(error) = nameless.filter(|_| until != Until::Saved) {
                return Err(error.into());
            }
            let left = report.dirty_blocks * BLOCK_BYTES as u64;
            self.jobs.report(
                id,
                Report {
                    left: Left::All(left),
                    phase: Phase::Draining,
                    limited_by: Some(report.limited_by.to_string()),
                    errors: failures,
                },
            );
            let done = match until {
                // Write-back requests received before the mode changed may still make blocks dirty,
                // and be acknowledged as such.
                Until::Empty | Until::Saved => report.dirty_blocks == 0 && report.write_back_requests == 0,
                Until::Since(start) => {
                    let oldest = Duration::from_nanos(report.oldest_dirty_age);
                    report.dirty_blocks == 0 || oldest + AGE_RESOLUTION < start.elapsed()
                }
            };
            if done {
                return self.nothing_lost(volume);
            }
            // At least one attempt has failed since this drain began: the cause of earlier failures
            // may have been repaired.
            if let Some(why) = not_permitted.filter(|_| failures > *failures_before.get_or_insert(failures)) {
                return Err(not_writable(volume, &why));
            }
            failures_before.get_or_insert(failures);
            std::thread::sleep(LOOK);
        }
    }

    /// Fails if blocks of the volume are lost: otherwise the drain wrote back everything.
    fn nothing_lost(&self, volume: &str) -> Result<(), End> {
        let (pool, handle) = self.pool_of(volume)?;
        let name = volume.to_owned();
        let lost = ask(&handle, move |pool| pool.loss_of(&name))??;
        if lost.bytes == 0 {
            return Ok(());
        }
        let give_up = match self.pool_snapshot(&pool)?.cache_failed {
            true => format!("forebay pool replace {pool} --device PATH[:SIZE] --discard-lost"),
            false => format!("forebay volume detach {volume} --discard"),
        };
        Err(End::Failed(
            MessageId::VolumeLostData,
            format!(
                "LOST: {lost} of {volume} cannot be written back: only the cache had them, and it cannot \
                 return them. All other data is on the backing store. Write them again (`forebay volume show \
                 {volume}` lists them), or give them up: {give_up}"
            ),
        ))
    }

    // --- operations that drain

    /// Destages the dirty blocks of a volume that is being detached, and prevents new ones.
    fn drain_to_detach(&self, id: JobId, handle: &PoolHandle, volume: &str, until: Until) -> Result<(), End> {
        let name = volume.to_owned();
        ask(handle, move |pool| pool.begin_draining(&name))??;
        let drained = self.watch_drain(id, handle, volume, until);
        if drained.is_err() {
            let name = volume.to_owned();
            ask(handle, move |pool| pool.end_draining(&name))?;
        }
        drained
    }

    fn detach(&self, id: JobId, volume: &str, how: DetachHow, spec: &JobSpec) -> Result<(), End> {
        let (pool, handle) = self.pool_with(volume)?;
        let (name, force, save_to) = (volume.to_owned(), spec.force, spec.save_to.as_deref());
        let has_it = || {
            let served = volume.to_owned();
            ask(&handle, move |pool| pool.find(&served).is_some())
        };
        let drains = how == DetachHow::Drain && has_it()?;
        if save_to.is_none() && has_it()? {
            Self::check_has_name(&handle, volume, how)?;
        }
        if drains {
            let until = if save_to.is_some() { Until::Saved } else { Until::Empty };
            self.drain_to_detach(id, &handle, volume, until)?;
        }
        // Prevents attaching it again until the configuration no longer has it.
        let hold = self.hold_to_detach(id, &pool, volume);
        let hold = hold.inspect_err(|_| {
            let name = name.clone();
            if drains {
                handle.order(move |pool| pool.end_draining(&name));
            }
        })?;
        match has_it()? {
            false => return self.detach_absent(id, &pool, volume, how),
            true if how == DetachHow::Drain && !drains => {
                let why = format!("{volume} was attached meanwhile, and is not drained; detach it again");
                return Err(End::Failed(MessageId::VolumeBusy, why));
            }
            true => {}
        }
        let engine_how = match how {
            DetachHow::Drain => forebay_core::DetachHow::Drained,
            DetachHow::Keep => forebay_core::DetachHow::Keep,
            DetachHow::Discard => forebay_core::DetachHow::Discard,
        };
        self.jobs.phase(id, Phase::Applying);
        let mut claims = ExclusiveOpens::new();
        if !force {
            // A client may have connected during the drain, and a client that is disconnecting gets
            // a moment more. The pool makes the final check, except for block devices: nothing can
            // open those while they are claimed.
            match await_unused(&handle, volume) {
                Ok(unused) => claims = unused,
                Err(users) if users.are_of_devices() => {
                    ask(&handle, move |pool| pool.end_draining(&name))?;
                    return Err(users.refuse("detach", volume).into());
                }
                Err(_) => {}
            }
        }
        let undo = {
            let name = name.clone();
            move |pool: &mut Pool| pool.end_draining(&name)
        };
        let ended = match save_to {
            Some(to) => self.detach_saving(id, &handle, (volume, Path::new(to)), force, claims),
            None => {
                let detach = move |pool: &mut Pool| pool.detach(&name, engine_how, force, claims);
                let promise = ask(&handle, detach)?;
                self.await_change(id, &handle, promise, undo.clone()).and_then(|ended| Ok(ended?))
            }
        };
        if ended.is_err() {
            handle.order(undo);
        }
        ended?;
        let forgotten = self.forget_volume(volume, how);
        drop(hold);
        let message = detached_text(volume, how, save_to);
        self.hub.publish(NewEvent::new(EventKind::VolumeDetached, message).volume(volume));
        for kind in saving::ALARMS {
            self.hub.clear(&AlarmKey::volume(kind, volume));
        }
        self.look_for_absent(&pool);
        Ok(forgotten?)
    }

    /// Removes a volume that is not attached.
    fn detach_absent(&self, id: JobId, pool: &str, volume: &str, how: DetachHow) -> Result<(), End> {
        self.jobs.phase(id, Phase::Applying);
        let handle = &*self.handle(pool)?;
        let name = volume.to_owned();
        let absent = ask(handle, |pool| pool.absent())?.into_iter().find(|absent| absent.name == name);
        let ahead = absent.as_ref().filter(|absent| absent.is_ahead());
        // A configured volume that stays in the cache is handled as if it were attached.
        let keeps = how == DetachHow::Keep && self.catalog.has_volume(volume);
        if let Some(ahead) = ahead.filter(|_| how != DetachHow::Discard && !keeps) {
            let (what, way_out) = (ahead.ahead(), self.way_out(absent.as_ref(), pool));
            return Err(End::Failed(
                MessageId::Event(EventKind::VolumeAbsent),
                format!("{volume} is not attached, and its backing store lacks {what}; {way_out}"),
            ));
        }
        let is_ahead = ahead.is_some();
        if absent.is_some() && how != DetachHow::Keep {
            let promise = ask(handle, move |pool| pool.discard_absent(&name))?;
            promise.wait().ok_or_else(stopped)??;
        }
        self.forget_volume(volume, how)?;
        let message = match (is_ahead, how) {
            (false, _) => format!("{volume} is detached; it had no dirty data"),
            (true, DetachHow::Keep) => detached_text(volume, how, None),
            (true, _) => format!("{volume} is detached; its dirty data is discarded"),
        };
        self.hub.publish(NewEvent::new(EventKind::VolumeDetached, message).volume(volume));
        for kind in [EventKind::VolumeFailed, EventKind::VolumeAbsent, EventKind::DestageFailed] {
            self.hub.clear(&AlarmKey::volume(kind, volume));
        }
        self.look_for_absent(pool);
        Ok(())
    }

    fn resize(&self, id: JobId, volume: &str, bytes: u64, force: bool) -> Result<(), End> {
        self.jobs.phase(id, Phase::Applying);
        let (_, handle) = self.pool_of(volume)?;
        let name = volume.to_owned();
        let there = self.store_bytes(&handle, volume)?;
        let promise = ask(&handle, move |pool| pool.resize(&name, bytes, there, force))?;
        self.await_change(id, &handle, promise, |_| ())??;
        let so = format!("{volume} has {} now", ByteSize(bytes));
        Ok(self.note_size(volume, bytes, bytes == there).map_err(|error| not_in_file(&so, error))?)
    }

    fn shrink(&self, id: JobId, pool: &str, bytes: u64) -> Result<(), End> {
        let before = super::pools::parts(&self.pool_snapshot(pool)?);
        // An earlier job shrank the pool but could not write the file: this one writes it.
        if bytes < before.iter().map(|(_, used)| used).sum() {
            self.shrink_to(id, &*self.handle(pool)?, bytes)?;
        }
        let count = self.pool_snapshot(pool)?.devices.len();
        let gone = before.get(count).map(|(path, used)| (path.as_path(), *used));
        let listed = gone.map(|gone| self.list_given_up(pool, gone));
        let so = format!("pool {pool} is smaller now");
        self.note_devices(pool).map_err(|error| not_in_file(&so, error))?;
        if let (Some((path, _)), Some(pair)) = (gone, listed.transpose()?.flatten()) {
            self.erase_given_up(pool, path, &pair);
        }
        let message = format!("pool {pool} has {} now", ByteSize(self.pool_info(pool)?.capacity_bytes));
        self.hub.publish(NewEvent::new(EventKind::PoolShrunk, message).pool(pool));
        Ok(())
    }

    /// Reduces the part of the last device that a pool uses, possibly to nothing. Does not change
    /// the configuration.
    pub(super) fn shrink_to(&self, id: JobId, handle: &PoolHandle, bytes: u64) -> Result<(), End> {
        self.jobs.phase(id, Phase::Draining);
        let promise = ask(handle, move |pool| pool.shrink(bytes))?;
        let result = loop {
            match promise.try_wait(LOOK) {
                Some(result) => break result,
                None if self.jobs.should_stop(id) => ask(handle, |pool| pool.cancel_resize())??,
                None => {}
            }
        };
        match result {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) if self.jobs.should_stop(id) => Err(End::Stopped),
            Some(Err(error)) => Err(error.into()),
            None => Err(stopped().into()),
        }
    }

    fn scrub(&self, id: JobId, pool: &str, bytes_per_s: u64) -> Result<(), End> {
        let handle = self.handle(pool)?;
        let begin = move |pool: &mut forebay_pool::Pool| (pool.scrub(bytes_per_s), pool.scrub_progress());
        let (promise, mut progress) = ask(&handle, begin)?;
        let result = loop {
            if let Some(report) = progress {
                let left = report.total_blocks.saturating_sub(report.checked_blocks);
                self.compared(id, left, report.damaged_blocks);
            }
            if let Some(result) = promise.try_wait(LOOK) {
                break result;
            }
            if self.jobs.should_stop(id) {
                ask(&handle, |pool| pool.cancel_scrub())?;
            }
            progress = ask(&handle, |pool| pool.scrub_progress())?;
        };
        let Scrubbed { report, complete, lost } = result.ok_or_else(stopped)??;
        self.compared(id, 0, report.damaged_blocks);
        match complete {
            false if self.jobs.should_stop(id) => Err(End::Stopped),
            false => Err(End::Failed(
                MessageId::Event(EventKind::CacheFailed),
                "the cache failed meanwhile".into(),
            )),
            true if lost.bytes > 0 => Err(End::Failed(
                MessageId::ScrubDamage,
                format!(
                    "LOST: {lost} of dirty data are damaged, and there is no other copy; `forebay volume \
                     show` lists them"
                ),
            )),
            true if report.unreadable_blocks > 0 => {
                let unread = ByteSize(report.unreadable_blocks * BLOCK_BYTES as u64);
                Err(End::Failed(
                    MessageId::ScrubDamage,
                    format!("{unread} of dirty data could not be read; scrub again"),
                ))
            }
            true => Ok(()),
        }
    }

    fn compared(&self, id: JobId, blocks_left: u64, errors: u64) {
        let left = Left::All(blocks_left * BLOCK_BYTES as u64);
        self.jobs.report(id, Report { left, phase: Phase::Comparing, limited_by: None, errors });
    }

    /// Monitors a rebuild, which the pool has started.
    fn rebuild(&self, id: JobId, pool: &str) -> Result<(), End> {
        let handle = self.handle(pool)?;
        let mut cancelled = false;
        loop {
            let (left, phase) = match ask(&handle, |pool| pool.rebuild_progress())? {
                Rebuilding::Whole => {
                    let devices = self.pool_snapshot(pool)?.devices;
                    devices.iter().for_each(|(path, _)| forebay_io::announce_change(path));
                    return Ok(());
                }
                Rebuilding::Ended if cancelled => return Err(End::Stopped),
                Rebuilding::Ended => {
                    return Err(End::Failed(
                        MessageId::PoolReplacement,
                        "the new device, or the cache, failed; see: forebay pool show".into(),
                    ));
                }
                Rebuilding::Left(0) => (0, Phase::Applying),
                Rebuilding::Left(left) => (left, Phase::Copying),
            };
            self.jobs.report(id, Report { left: Left::All(left), phase, limited_by: None, errors: 0 });
            if !cancelled && self.jobs.is_ended(id) {
                cancelled = true;
                ask(&handle, |pool| pool.cancel_rebuild())?;
            } else if self.jobs.is_stopping() {
                return Err(End::Failed(
                    MessageId::JobStopped,
                    "the daemon was stopped; its next start begins the rebuild again".into(),
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn remove(&self, id: JobId, pool: &str, erase: bool, force: bool) -> Result<(), End> {
        self.jobs.phase(id, Phase::Applying);
        Ok(self.close_pool(pool, erase, force)?)
    }
}
