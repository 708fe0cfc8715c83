//! Replaces a healthy device of a cache, and gives up one of several: jobs, while the pool is in
//! use.
//!
//! Both copy the removed device onto another one (`forebay_pool::Pool::begin_copy`): a new one, or
//! the last one of the pool, which is emptied first. The configuration changes in one step, when
//! the other device has all data, so at any time it lists the devices that a start needs. Pairs of
//! devices are listed (`forebay_pool::replaced`) before the first byte is copied, so that the
//! device of the pair that is not in use is erased even after a crash.

use super::errors::{invalid, no_answer, stopped};
use super::job_table::End;
use super::opening::Allowed;
use super::pool_query::ask;
use super::pools::length_of_file;
use super::requests::device;
use super::{Service, ServiceEvent};
use forebay_admin::events::{EventKind, NewEvent};
use forebay_admin::jobs::{JobId, JobKind, JobSpec, Left, Phase, Report};
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, ErrorKind, MessageId, PoolInfo, ReplaceRequest};
use forebay_config::{CacheSpec, Edit, PoolConfig};
use forebay_format::CacheUuid;
use forebay_io::Device;
use forebay_pool::cache_device::{begin_on, is_same, new_tag};
use forebay_pool::replaced::{self, Pair};
use forebay_pool::shell_word::quoted;
use forebay_pool::{CopyProgress, MayWait, PoolHandle, Promise};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval at which a job updates its progress.
const LOOK: Duration = Duration::from_millis(100);
/// Time limit for erasing a removed device.
const ERASE_WITHIN: Duration = Duration::from_secs(20);
/// Time limit at a start for all removed devices together; each has less.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for changing the pool so that no start accepts a device that could not be erased.
const LEAVE_WITHIN: Duration = Duration::from_secs(20);

/// The result of a complete copy.
struct CopyAtEnd {
    old: PathBuf,
    new: PathBuf,
    cache: Option<CacheUuid>,
    /// Bytes of the old device in use.
    used: Option<u64>,
    /// The configured devices.
    configured: Vec<CacheSpec>,
}

impl Service {
    // --- another device

    /// Begins to copy a healthy cache device onto a new one; a job continues it.
    pub(super) fn replace_sound(&self, name: &str, request: &ReplaceRequest) -> Result<PoolInfo, AdminError> {
        self.check_has_file(name)?;
        let (spec, member) = (device(&request.device)?, self.member_of(name, request.old.as_deref())?);
        let handle = self.handle(name)?;
        let (config, _) = self.catalog.with_volumes(name)?;
        if let Some(own) = config.devices.iter().find(|own| is_same(&own.path, &spec.path)) {
            let what = format!("{} is already a cache device of pool {name}", own.path.display());
            return Err(invalid(MessageId::PoolDeviceInUse, what, "give an unused device"));
        }
        self.check_unused(&spec.path)?;
        let needed = ask(&handle, move |pool| pool.bytes_of_device(member))?;
        let is_mirrored = self.pool_snapshot(name)?.mirror.is_some();
        let is_last = member + 1 == config.devices.len() && !is_mirrored;
        if spec.size_bytes.is_some_and(|size| size < needed) {
            return Err(too_small(name, &spec.path, needed, is_last));
        }
        let is_there = spec.path.exists();
        let allowed = Allowed::to_create(request.taking());
        let opened = self.devices.open_unused(&spec, self.opening(name, &config, allowed))?;
        let begun = if opened.size_bytes() < needed {
            Err(too_small(name, &spec.path, needed, is_last))
        } else {
            self.begin_copy(name, &handle, member, opened)
        };
        let begun = begun.and_then(|()| {
            let begun = self.jobs.begin(JobSpec::pool(JobKind::Replace, name));
            begun.inspect_err(|_| self.undo_copy(name, &handle))
        });
        if begun.is_err() && !is_there {
            super::opening::unmake(std::slice::from_ref(&spec.path));
        }
        // Another job may be running on the pool, a scrub for instance: the client follows this
        // one.
        let job = Some(begun?.id);
        Ok(PoolInfo { job, ..self.pool_info(name)? })
    }

    /// Checks that no other configured pool or volume uses a device, open or not.
    pub(super) fn check_unused(&self, path: &Path) -> Result<(), AdminError> {
        match self.catalog.user_of(path) {
            None => Ok(()),
            Some(what) => Err(AdminError::new(
                MessageId::PoolDeviceInUse,
                format!("{} is in use: it is {what}", path.display()),
                "give an unused device",
            )),
        }
    }

    /// Checks that there is a configuration file: it determines which device is in use.
    fn check_has_file(&self, name: &str) -> Result<(), AdminError> {
        if self.catalog.path().is_some() {
            return Ok(());
        }
        let what = format!("the cache of {name} is named on the command line of `forebay run`");
        Err(AdminError::new(
            MessageId::DaemonNoConfigFile,
            what,
            "only `forebay serve` can change devices: it writes them into its configuration file",
        ))
    }

    /// Returns the index of the cache device that the operator names, or of the only one.
    fn member_of(&self, name: &str, path: Option<&str>) -> Result<usize, AdminError> {
        let devices = self.pool_snapshot(name)?.devices;
        let all: Vec<String> = devices.iter().map(|(path, _)| path.display().to_string()).collect();
        let Some(path) = path else {
            return match devices.len() {
                1 => Ok(0),
                _ => Err(invalid(
                    MessageId::PoolDeviceChoice,
                    format!("pool {name} has {} devices", devices.len()),
                    format!("name the device to remove: --old PATH, one of {}", all.join(", ")),
                )),
            };
        };
        let found = devices
            .iter()
            .position(|(device, _)| device == Path::new(path) || is_same(device, Path::new(path)));
        found.ok_or_else(|| {
            let what = format!("{path} is not a cache device of pool {name}");
            invalid(MessageId::PoolDeviceUnknown, what, format!("its devices are {}", all.join(", ")))
        })
    }

    /// Lists the pair and begins the copy. From then on the target device is marked as such.
    fn begin_copy(
        &self,
        name: &str,
        handle: &PoolHandle,
        member: usize,
        opened: Device,
    ) -> Result<(), AdminError> {
        let pair = self.pair(name, handle, member, opened.path())?;
        let state_dir = self.catalog.state_dir();
        let opened = self.devices.with_devices(&[bare(opened.path())], move |may_wait| {
            begin_on(may_wait, &opened).map(|()| opened)
        })??;
        replaced::forget(&MayWait::here(), &state_dir, name, opened.path())?;
        replaced::add(&MayWait::here(), &state_dir, name, &pair)?;
        ask(handle, move |pool| pool.begin_copy(member, opened))?.inspect_err(|_| {
            // Nothing was copied; the next start settles the listed pair too.
            let _ = replaced::remove(&MayWait::here(), &state_dir, name, &pair);
        })
    }

    fn pair(&self, name: &str, handle: &PoolHandle, member: usize, new: &Path) -> Result<Pair, AdminError> {
        let facts = ask(handle, |pool| pool.facts())?;
        let (cache, _) = facts.ok_or_else(|| {
            AdminError::new(
                MessageId::Event(EventKind::CacheFailed),
                format!("the cache of pool {name} has failed"),
                "",
            )
        })?;
        let (old, used) = self.part_of(name, member)?.unwrap_or_default();
        Ok(Pair::new(cache, (&old, used), new))
    }

    /// Returns a device of a pool, and the size of the cache's part of it, from its beginning.
    fn part_of(&self, name: &str, member: usize) -> Result<Option<(PathBuf, u64)>, AdminError> {
        Ok(super::pools::parts(&self.pool_snapshot(name)?).into_iter().nth(member))
    }

    /// Runs the job: monitors the copy, and switches to the new device when it has all data.
    pub(super) fn replace_job(&self, id: JobId, name: &str) -> Result<(), End> {
        let handle = self.handle(name)?;
        let [old, new] = ask(&handle, |pool| pool.copied_devices())?
            .ok_or_else(|| End::Failed(MessageId::PoolReplacement, "the copy has ended already".into()))?;
        if let Err(end) = self.watch_copy(id, &handle) {
            self.undo_copy(name, &handle);
            return Err(end);
        }
        self.jobs.phase(id, Phase::Applying);
        let is_mirrored = self.pool_snapshot(name).inspect_err(|_| self.undo_copy(name, &handle))?;
        let is_mirrored = is_mirrored.mirror.is_some();
        // A missing file of a mirrored cache must not be recreated.
        let named = if is_mirrored { bare(&new) } else { sized(&new) };
        self.take_over(name, &handle, |devices| {
            devices.iter().map(|spec| if is_at(spec, &old) { named.clone() } else { spec.clone() }).collect()
        })?;
        forebay_io::announce_change(&new);
        let message = format!("{} has replaced {} in pool {name}", new.display(), old.display());
        self.hub.publish(NewEvent::new(EventKind::PoolDeviceReplaced, message).pool(name));
        self.use_all(name, &handle, &new);
        Ok(())
    }

    /// Waits until the new device has all data.
    fn watch_copy(&self, id: JobId, handle: &PoolHandle) -> Result<(), End> {
        loop {
            let (progress, limited_by) = ask(handle, |pool| (pool.copy_progress(), pool.copy_waits()))?;
            let limited_by = limited_by.map(|what| format!("waits for {what}"));
            match progress {
                Some(CopyProgress::Whole) => return Ok(()),
                Some(CopyProgress::Left(left)) => self.jobs.report(
                    id,
                    Report { left: Left::All(left), phase: Phase::Copying, limited_by, errors: 0 },
                ),
                Some(CopyProgress::Ended(why)) => {
                    return Err(End::Failed(
                        MessageId::PoolReplacement,
                        format!("{why}; the pool is unchanged"),
                    ));
                }
                None => return Err(End::Failed(MessageId::PoolReplacement, "the copy has ended".into())),
            }
            if self.jobs.should_stop(id) {
                return Err(End::Stopped);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn look_at_copy(&self, name: &str, handle: &PoolHandle) -> Result<CopyAtEnd, AdminError> {
        let [old, new] = ask(handle, |pool| pool.copied_devices())?.unwrap_or_default();
        let cache = ask(handle, |pool| pool.facts())?.map(|(cache, _)| cache);
        let parts = super::pools::parts(&self.pool_snapshot(name)?);
        let used = parts.iter().find(|(path, _)| *path == old).map(|(_, used)| *used);
        Ok(CopyAtEnd { old, new, cache, used, configured: self.catalog.with_volumes(name)?.0.devices })
    }

    /// Names the new device in the configuration, makes the pool use it alone, and erases the old
    /// one.
    fn take_over(
        &self,
        name: &str,
        handle: &PoolHandle,
        change: impl Fn(&[CacheSpec]) -> Vec<CacheSpec>,
    ) -> Result<(), End> {
        let Ok(mut file) = self.changing() else {
            self.undo_copy(name, handle);
            return Err(End::Stopped);
        };
        let copy = self.look_at_copy(name, handle).inspect_err(|_| self.undo_copy(name, handle))?;
        let CopyAtEnd { old, new, cache, used, configured: before } = copy;
        let after = change(&before);
        let mut write = |devices: &[CacheSpec]| {
            file.write(&[Edit::SetDevices { pool: name.into(), devices: devices.to_vec() }])
        };
        let counts = ask(handle, |pool| pool.copy_counts());
        let named = counts.and_then(|counts| counts).and_then(|()| write(&after));
        let taken = named.and_then(|()| ask(handle, |pool| pool.take_over()).and_then(|taken| taken));
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // Both devices have all data. If the content of the file is uncertain, restore the
                // old device in it.
                let written = write(&before);
                self.undo_copy(name, handle);
                let newest = file.newest().ok().flatten();
                let pool = newest.as_ref().and_then(|newest| newest.pools.get(name));
                // It may never have been written.
                let is_named = pool.is_none_or(|pool| pool.devices.iter().any(|spec| is_at(spec, &new)));
                return Err(match written {
                    Ok(()) => error.into(),
                    Err(_) if !is_named => error.into(),
                    Err(not) => self.named_in_vain(name, cache, (&old, &new), &not, error).into(),
                });
            }
        };
        self.catalog.set_devices(name, after);
        let used = used.unwrap_or(0);
        let pair = cache.map(|cache| Pair::new(cache, (&old, used), &new));
        if let Some(pair) = &pair {
            // If this write fails, the next start derives it from the configuration.
            let state_dir = self.catalog.state_dir();
            let _ = replaced::took_over(&MayWait::here(), &state_dir, name, pair);
        }
        drop(file);
        self.raise_record(name);
        if let Some(pair) = pair {
            self.erase(name, handle, taken, &pair.after_take_over());
        }
        Ok(())
    }

    /// Handles a configuration that may name the new device while the pool stays on the old one: no
    /// start may take the new one for the cache, and erase the old one.
    fn named_in_vain(
        &self,
        name: &str,
        cache: Option<CacheUuid>,
        (old, new): (&Path, &Path),
        not: &AdminError,
        error: AdminError,
    ) -> AdminError {
        let state_dir = self.catalog.state_dir();
        let pair = cache.map(|cache| Pair::new(cache, (old, 0), new));
        let noted = pair.map(|pair| replaced::old_counts(&MayWait::here(), &state_dir, name, &pair));
        let noted = noted.and_then(Result::err).map_or_else(String::new, |error| format!("; {error}"));
        let (old, new) = (old.display(), new.display());
        let hint = format!(
            "before the next start: put {old} in place of {new} in the devices of pool {name}, as the \
             configuration could not be restored: {}{noted}",
            not.what
        );
        self.telemetry.emit(ServiceEvent::Problem(error.id, format!("{}; {hint}", error.what)));
        AdminError { hint, ..error }
    }

    /// Ends a copy before the new device is in use, and prepares that device for reuse.
    pub(super) fn undo_copy(&self, name: &str, handle: &PoolHandle) {
        let paths = ask(handle, |pool| pool.copied_devices()).ok().flatten();
        let cache = ask(handle, |pool| pool.facts()).ok().flatten();
        let left = ask(handle, |pool| pool.give_copy_up());
        if let (Some([old, new]), Some((cache, _)), Ok(left)) = (paths, cache, left) {
            self.erase(name, handle, left, &Pair::new(cache, (&old, 0), &new));
        } // else the pool or its cache has ended: the next start handles it
    }

    /// Erases the removed device of a pair. If that fails, the next start retries, and the pool
    /// changes so that no start, also of another host, accepts the device.
    fn erase(&self, name: &str, handle: &PoolHandle, left: Promise<Device>, pair: &Pair) {
        let (of, path) = (pair.clone(), pair.leaves());
        let hangs = || no_answer(path, ERASE_WITHIN);
        let left = left.wait_or_give_up(ERASE_WITHIN).flatten().ok_or_else(hangs);
        let erased = left.and_then(|left| {
            let work = move |may_wait: &MayWait| replaced::erase_left(may_wait, left, &of);
            self.places.within(path, ERASE_WITHIN, work).map_err(|undone| undone.or(hangs))
        });
        if !self.note_erased(name, path, pair, erased.and_then(|erased| Ok(erased?))) {
            self.leave_behind(name, handle, pair);
        }
    }

    /// Notes the result of erasing a device of a pair. Returns true if it was erased and is off the
    /// list.
    fn note_erased(&self, name: &str, path: &Path, pair: &Pair, erased: Result<(), AdminError>) -> bool {
        let state_dir = self.catalog.state_dir();
        let done = erased.and_then(|()| Ok(replaced::remove(&MayWait::here(), &state_dir, name, pair)?));
        if let Err(error) = &done {
            self.telemetry.emit(ServiceEvent::Problem(MessageId::PoolNotErased, format!(
                "{} is no longer used by pool {name}, but cannot be erased: {}. The next start tries again; \
                 do not use it as a cache before",
                path.display(),
                error.what
            )));
        }
        done.is_ok()
    }

    /// Changes the pool so that no start accepts the removed device of a pair that could not be
    /// erased.
    fn leave_behind(&self, name: &str, handle: &PoolHandle, pair: &Pair) {
        let begun = self.member_of(name, pair.stays().to_str()).and_then(|member| {
            let tag = new_tag()?;
            ask(handle, move |pool| pool.leave_behind(member, tag))
        });
        let left = begun.and_then(|promise| match promise.wait_or_give_up(LEAVE_WITHIN) {
            Some(answer) => answer.ok_or_else(stopped)?,
            None => Err(no_answer(pair.stays(), LEAVE_WITHIN)),
        });
        let state_dir = self.catalog.state_dir();
        let noted = left.and_then(|()| Ok(replaced::left_behind(&MayWait::here(), &state_dir, name, pair)?));
        if let Err(error) = noted {
            self.telemetry.emit(ServiceEvent::Problem(
                MessageId::PoolNotErased,
                format!(
                    "{} was not erased, and another host may accept it as a device of pool {name} until this \
                     pool is started again: {}",
                    pair.leaves().display(),
                    error.what
                ),
            ));
        }
    }

    /// Handles the opening of a pool: it leaves behind removed devices that could not be erased.
    pub(super) fn leave_all_behind(&self, name: &str, handle: &PoolHandle, config: &PoolConfig) {
        let state_dir = self.catalog.state_dir();
        // If the list were unreadable, the pool would not have been opened.
        for pair in replaced::believed(&state_dir, name, &config.devices).unwrap_or_default() {
            self.leave_behind(name, handle, &pair);
        }
    }

    /// Lists a device that has just left its pool before it is removed from the configuration:
    /// afterwards the daemon erases it, or the next start does.
    pub(super) fn list_given_up(
        &self,
        name: &str,
        (leaves, used): (&Path, u64),
    ) -> Result<Option<Pair>, AdminError> {
        let facts = ask(&*self.handle(name)?, |pool| pool.facts())?;
        let stays = self.pool_snapshot(name)?.devices.into_iter().next();
        let (Some((cache, _)), Some((stays, _))) = (facts, stays) else { return Ok(None) };
        let pair = Pair::given_up(cache, (leaves, used), &stays);
        let state_dir = self.catalog.state_dir();
        if let Err(error) = replaced::add(&MayWait::here(), &state_dir, name, &pair) {
            self.telemetry.emit(ServiceEvent::Problem(error.id(), format!("pool {name}: {error}"))); // it is erased nevertheless
        }
        Ok(Some(pair))
    }

    /// Erases a device that has left its pool and was removed from the configuration.
    pub(super) fn erase_given_up(&self, name: &str, path: &Path, pair: &Pair) {
        let of = pair.clone();
        let work = move |may_wait: &MayWait| replaced::erase_old(may_wait, &of);
        let erased = self.places.within(path, ERASE_WITHIN, work);
        let erased = erased.map_err(|undone| undone.or(|| no_answer(path, ERASE_WITHIN)));
        self.note_erased(name, path, pair, erased.and_then(|erased| Ok(erased?)));
    }

    /// Uses the full length of a last device that is longer than the one that it replaced.
    fn use_all(&self, name: &str, handle: &PoolHandle, new: &Path) {
        let Ok((config, _)) = self.catalog.with_volumes(name) else { return };
        let is_mirrored = self.pool_snapshot(name).is_ok_and(|pool| pool.mirror.is_some());
        if is_mirrored || config.devices.last().is_none_or(|last| !is_at(last, new)) {
            return;
        }
        let longer = self.lengthen(handle, name, None).map(Promise::wait);
        let refused = match longer {
            Ok(Some(Ok(()))) => return self.tell_if_failed(name, self.note_devices(name)),
            // It is no longer than the old one, or by less than a segment.
            Ok(Some(Err(error))) | Err(error) if error.kind == ErrorKind::Invalid => return,
            Ok(Some(Err(error))) | Err(error) => error,
            Ok(None) => stopped(),
        };
        self.tell_if_failed(name, Err(refused));
    }

    fn tell_if_failed(&self, name: &str, result: Result<(), AdminError>) {
        if let Err(error) = result {
            let way = format!("forebay pool grow {name} --size max");
            self.telemetry.emit(ServiceEvent::Problem(
                error.id,
                format!(
                    "pool {name} does not use all of its new device: {}; to try again: {way}",
                    error.what
                ),
            ));
        }
    }

    // --- one device less

    /// Returns the job that gives up a device other than the last one; `None` for the last one.
    pub(super) fn give_up_device(&self, name: &str, path: &str) -> Result<Option<JobKind>, AdminError> {
        let snapshot = self.pool_snapshot(name)?;
        let (member, count) = (self.member_of(name, Some(path))?, snapshot.devices.len());
        if member + 1 == count {
            return Ok(None);
        }
        self.check_has_file(name)?;
        let (last, _) = &snapshot.devices[count - 1];
        let handle = self.handle(name)?;
        let needed = ask(&handle, move |pool| pool.bytes_of_device(member))?;
        let there = ask(&handle, |pool| pool.last_device_bytes())?;
        if there < needed {
            return Err(invalid(
                MessageId::PoolReplacement,
                format!(
                    "{path} cannot be removed: the last device takes its place, and {} has {}, not {}",
                    last.display(),
                    ByteSize(there),
                    ByteSize(needed)
                ),
                format!(
                    "remove {0} first: forebay pool shrink {name} --device {0}; or replace it by a larger \
                     one: forebay pool replace {name} --old {0} --device PATH",
                    quoted(last)
                ),
            ));
        }
        Ok(u16::try_from(member).ok().map(JobKind::GiveUp))
    }

    /// Runs the job: empties the last device, and copies the removed device onto it.
    pub(super) fn give_up_job(&self, id: JobId, name: &str, member: usize) -> Result<(), End> {
        let handle = self.handle(name)?;
        let before = self.catalog.with_volumes(name)?.0;
        let snapshot = self.pool_snapshot(name)?;
        let (Some((old, _)), Some((last, used))) = (snapshot.devices.get(member), snapshot.devices.last())
        else {
            return Err(End::Failed(MessageId::PoolReplacement, "the pool's devices have changed".into()));
        };
        let all: u64 = snapshot.devices.iter().map(|(_, bytes)| bytes).sum();
        self.shrink_to(id, &handle, all - used)?;
        let moved = self.move_onto(id, name, &handle, (member, last), &before);
        if let Err(end) = moved {
            if self.jobs.is_stopping() {
                return Err(end); // the configuration still has it: the next start adds it again
            }
            return match self.rejoin(name, &handle, last, &before) {
                Ok(()) => Err(end),
                Err(why) => Err(End::Failed(end.id(), format!("{}; {why}", end.reason()))),
            };
        }
        let old = old.display();
        let message = format!("{old} was removed from pool {name}, and {} has replaced it", last.display());
        self.hub.publish(NewEvent::new(EventKind::PoolShrunk, message).pool(name));
        self.use_all(name, &handle, last);
        Ok(())
    }

    /// Copies a device onto the one that has just left its pool.
    fn move_onto(
        &self,
        id: JobId,
        name: &str,
        handle: &PoolHandle,
        (member, last): (usize, &PathBuf),
        config: &PoolConfig,
    ) -> Result<(), End> {
        let allowed = Allowed::OWN;
        let opened = self.devices.open_unused(&bare(last), self.opening(name, config, allowed))?;
        self.begin_copy(name, handle, member, opened)?;
        if let Err(end) = self.watch_copy(id, handle) {
            self.undo_copy(name, handle);
            return Err(end);
        }
        self.jobs.phase(id, Phase::Applying);
        self.take_over(name, handle, |devices| {
            let old = devices.get(member).map(|spec| spec.path.clone()).unwrap_or_default();
            let kept = devices.iter().filter(|spec| !is_at(spec, last));
            kept.map(|spec| if is_at(spec, &old) { sized(last) } else { spec.clone() }).collect()
        })
    }

    /// Adds the last device to the pool again.
    fn rejoin(
        &self,
        name: &str,
        handle: &PoolHandle,
        last: &Path,
        config: &PoolConfig,
    ) -> Result<(), String> {
        let allowed = Allowed::OWN;
        let spare = self.devices.open_unused(&bare(last), self.opening(name, config, allowed));
        let joined = spare.and_then(|spare| {
            self.devices
                .join_device((name, &self.catalog.state_dir()), handle, &bare(last), spare)
                .map_err(|not| not.error)
        });
        joined.map_err(|error| {
            let noted = self.note_devices(name).err().map_or_else(String::new, |error| error.what);
            let path = last.display();
            format!(
                "pool {name} no longer has {path}: {}; to add it again: forebay pool grow {name} --device {} \
                 --overwrite. {noted}",
                error.what,
                quoted(last)
            )
        })
    }

    /// Erases the remains of a replacement, before a pool is opened.
    pub(super) fn settle_replaced(&self, name: &str, config: &PoolConfig) -> Result<(), AdminError> {
        let (state_dir, pool) = (self.catalog.state_dir(), name.to_owned());
        let devices = config.devices.clone();
        let place = state_dir.join("replaced");
        let settled = self.places.within(&place, SETTLED_WITHIN, move |may_wait| {
            replaced::settle(may_wait, &state_dir, &pool, &devices)
        });
        let late = || no_answer(&place, SETTLED_WITHIN);
        for note in settled.map_err(|undone| undone.or(late))?? {
            self.telemetry.emit(ServiceEvent::Note(MessageId::PoolNote, format!("pool {name}: {note}")));
        }
        Ok(())
    }
}

/// An existing device of any length.
fn bare(path: &Path) -> CacheSpec {
    CacheSpec { path: path.to_owned(), size_bytes: None }
}

/// The device as configured: a file with its length.
fn sized(path: &Path) -> CacheSpec {
    CacheSpec { path: path.to_owned(), size_bytes: length_of_file(path) }
}

fn is_at(spec: &CacheSpec, path: &Path) -> bool {
    spec.path == path || is_same(&spec.path, path)
}

fn too_small(name: &str, path: &Path, needed: u64, is_last: bool) -> AdminError {
    let what = format!(
        "{} is too small: it needs {}, the used part of the device that it replaces",
        path.display(),
        ByteSize(needed)
    );
    let hint = if is_last {
        format!("give a larger one, or make the pool smaller first: forebay pool shrink {name} --size SIZE")
    } else {
        "give one at least as large: only the last device of a pool that is not mirrored can be made smaller"
            .to_owned()
    };
    invalid(MessageId::DeviceTooSmall, what, hint)
}
