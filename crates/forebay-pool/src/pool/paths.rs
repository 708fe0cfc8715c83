//! Files of a pool whose paths no longer lead to them: deleted, replaced by another file, or
//! renamed while they are served.
//!
//! Reads and writes of such a file work as before, so nothing fails until it is closed. Then a
//! deleted file is gone with all its data, and the next start does not find a renamed one. So the
//! pool reports it while everything can still be saved, and calls no data safe that is lost with
//! the file.
//!
//! Invariants
//! - A check at a change ([`Pool::displaced`]) asks the kernel at that time: its answer is no older
//!   than the change.
//! - A thread that may wait verifies the findings of the pool's thread. Without its answer within a
//!   second the pool reports the first finding.

use super::{Pool, PoolEvent};
use crate::may_wait::MayWait;
use crate::shell_word::quoted;
use forebay_admin::events::EventKind;
use forebay_admin::size::ByteSize;
use forebay_admin::{AdminError, ErrorKind, MessageId};
use forebay_format::VolumeId;
use forebay_io::{DeviceId, Displacement};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Requests that an operator can make to the daemon, as far as the messages need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Nothing: the daemon has no API.
    Nothing,
    /// It has an API, and no configuration file that could name another device.
    Api,
    /// Everything.
    File,
}

/// A file whose path does not lead to it.
#[derive(Debug)]
struct Lost {
    path: PathBuf,
    volume: Option<String>,
    /// Finding of the pool's thread.
    seen: Displacement,
    /// Further looks with the same finding.
    looks: u32,
    /// Finding of the thread that verified it; the inner `None`: the path leads to the file.
    found: Option<Option<Displacement>>,
    /// The last report: its text, because the advice may change with other devices.
    told: Option<String>,
}

impl Lost {
    /// Returns whether the path leads elsewhere, if that is certain enough to report.
    fn leads_elsewhere(&self) -> Option<bool> {
        match &self.found {
            Some(found) => Some(found.is_some()),
            None => (self.looks > 0).then_some(true),
        }
    }
}

/// All files of a pool whose paths do not lead to them.
#[derive(Debug, Default)]
pub(super) struct PathWatch {
    lost: BTreeMap<DeviceId, Lost>,
    /// A thread is verifying them.
    is_asked: bool,
}

/// For a pool that stops: files that are gone with this process, and files that the next start does
/// not find.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gone {
    /// Cache files, if no remaining one has the dirty data.
    pub cache: Vec<PathBuf>,
    /// Backing files, by volume.
    pub stores: Vec<(String, PathBuf)>,
    /// Advice that lets the next start find the others.
    pub elsewhere: Vec<String>,
}

impl Gone {
    /// Data is lost with these files.
    pub(super) fn loses(&self, dirty_bytes: u64) -> bool {
        !self.stores.is_empty() || (!self.cache.is_empty() && dirty_bytes > 0)
    }

    /// Writes the sentences of a stop about them.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, dirty_bytes: u64) -> fmt::Result {
        if !self.cache.is_empty() && dirty_bytes > 0 {
            write!(
                f,
                ". LOST: {dirty_bytes} bytes of dirty data; the cache file was deleted: {}",
                list(&self.cache)
            )?;
        }
        for (volume, path) in &self.stores {
            write!(
                f,
                ". LOST: the backing store of {volume}, {}; its file was deleted while it was served",
                path.display()
            )?;
        }
        for way in &self.elsewhere {
            write!(f, ". {way}")?;
        }
        Ok(())
    }
}

impl Pool {
    /// Checks the paths of devices; the caller decides when.
    pub(super) fn look_at_paths(&mut self, devices: &[(DeviceId, Option<String>)]) {
        for (id, volume) in devices {
            let Some(device) = self.reactor.device(*id) else { continue };
            let (path, seen) = (device.path(), device.displaced());
            let path = path.to_owned();
            if self.paths.lost.get(id).is_some_and(|lost| lost.path != path) {
                self.path_found(*id, false); // another device has its id
            }
            match (self.paths.lost.get_mut(id), seen) {
                (Some(lost), Some(seen)) if lost.seen == seen => lost.looks += 1,
                (Some(lost), Some(seen)) => (lost.seen, lost.looks, lost.found) = (seen, 0, None),
                (_, None) => self.path_found(*id, true),
                (None, Some(seen)) => {
                    let volume = volume.clone();
                    let lost = Lost { path, volume, seen, looks: 0, found: None, told: None };
                    self.paths.lost.insert(*id, lost);
                }
            }
        }
        let is_there = |id: &DeviceId| devices.iter().any(|(there, _)| there == id);
        let gone: Vec<DeviceId> = self.paths.lost.keys().copied().filter(|id| !is_there(id)).collect();
        gone.into_iter().for_each(|id| self.path_found(id, false));
        self.look_after_paths();
        self.tell_paths();
    }

    /// Starts a thread that verifies the findings: files may have been recreated, and a new name
    /// may lead nowhere.
    fn look_after_paths(&mut self) {
        if self.paths.is_asked || self.paths.lost.is_empty() {
            return;
        }
        let ids: Vec<DeviceId> = self.paths.lost.keys().copied().collect();
        let handle = |id: DeviceId| Some((id, self.reactor.device(id)?.for_thread().ok()?));
        let devices: Vec<_> = ids.into_iter().filter_map(handle).collect();
        let (tasks, waker) = (self.myself.clone(), self.reactor.waker());
        let look = move |_: &MayWait| {
            let find = |(id, device): &(DeviceId, forebay_io::Device)| {
                (*id, device.path().to_owned(), device.displaced(), device.whereabouts())
            };
            let found: Vec<_> = devices.iter().map(find).collect();
            let _ = tasks.send(Box::new(move |pool: &mut Self| pool.paths_found(found))); // it may have ended
            waker.wake();
        };
        // Without a thread the pool reports the first finding.
        self.paths.is_asked = MayWait::spawn(format!("paths-{}", self.name), look).is_ok();
    }

    fn paths_found(&mut self, found: Vec<(DeviceId, PathBuf, Option<Displacement>, Option<Displacement>)>) {
        self.paths.is_asked = false;
        for (id, path, seen, found) in found {
            let lost = self.paths.lost.get_mut(&id).filter(|lost| lost.path == path);
            if let Some(lost) = lost.filter(|lost| Some(&lost.seen) == seen.as_ref()) {
                lost.found = Some(found);
            }
        }
        self.tell_paths();
    }

    /// Reports the findings that have not been reported.
    fn tell_paths(&mut self) {
        let (mut leads, mut caches_changed) = (Vec::new(), false);
        for id in self.paths.lost.keys().copied().collect::<Vec<_>>() {
            let known = self.paths.lost.get(&id).and_then(Lost::leads_elsewhere);
            let Some(text) = known.map(|elsewhere| elsewhere.then(|| self.lost_text(id))) else { continue };
            let Some(lost) = self.paths.lost.get_mut(&id).filter(|lost| lost.told != text) else { continue };
            lost.told.clone_from(&text);
            match (text, lost.volume.clone()) {
                (None, volume) => leads.push((lost.path.clone(), volume)),
                (Some(what), Some(volume)) => self.emit(PoolEvent::PathLost { volume: Some(volume), what }),
                (Some(_), None) => caches_changed = true,
            }
        }
        leads.into_iter().for_each(|(path, volume)| self.emit_found(&path, volume, true));
        if caches_changed {
            self.emit_lost_caches();
        }
    }

    /// All cache files share one alarm, which describes each of them.
    fn emit_lost_caches(&mut self) {
        let caches = self.paths.lost.values().filter(|lost| lost.volume.is_none());
        let texts: Vec<&str> = caches.filter_map(|lost| lost.told.as_deref()).collect();
        let what = texts.join(". ");
        self.emit(PoolEvent::PathLost { volume: None, what });
    }

    /// The path of a device leads to it, or the device no longer belongs to the pool.
    pub(super) fn path_found(&mut self, id: DeviceId, leads: bool) {
        let Some(Lost { path, volume, told: Some(_), .. }) = self.paths.lost.remove(&id) else { return };
        self.emit_found(&path, volume, leads);
    }

    fn emit_found(&mut self, path: &Path, volume: Option<String>, leads: bool) {
        let is_other_cache = |lost: &Lost| lost.volume.is_none() && lost.told.is_some();
        let last = volume.is_some() || !self.paths.lost.values().any(is_other_cache);
        self.emit(PoolEvent::PathFound { device: path.display().to_string(), volume, leads, last });
        if !last {
            self.emit_lost_caches();
        }
    }

    /// Returns why the path of a device does not lead to it now.
    pub(super) fn displaced(&self, id: DeviceId) -> Option<Displacement> {
        let device = self.reactor.device(id)?;
        let seen = device.displaced()?;
        let known = self.paths.lost.get(&id).filter(|lost| lost.path == device.path() && lost.seen == seen);
        known.and_then(|lost| lost.found.clone()).unwrap_or(Some(seen))
    }

    /// The file of a device is gone once it is closed.
    pub(super) fn is_nameless(&self, id: DeviceId) -> bool {
        self.displaced(id) == Some(Displacement::Deleted)
    }

    /// Cache devices that are active.
    fn active_caches(&self) -> Vec<DeviceId> {
        if self.engine.runs_without_cache() {
            return Vec::new();
        }
        let cache = self.io.cache();
        match self.engine.mirror_state() {
            None => cache.ids.clone(),
            Some(mirror) => {
                let active = (0..2).filter(|member| mirror.out != Some(*member));
                active.filter_map(|member| cache.ids.get(cache.map.device_of(member)?).copied()).collect()
            }
        }
    }

    /// The dirty data is gone when this process ends: a file with it no longer has a name, and no
    /// other file has the same data.
    pub(super) fn is_cache_nameless(&self) -> bool {
        let mut caches = self.active_caches().into_iter().map(|id| self.is_nameless(id)).peekable();
        let (any, is_mirrored) = (caches.peek().is_some(), self.engine.mirror_state().is_some());
        any && if is_mirrored { caches.all(|gone| gone) } else { caches.any(|gone| gone) }
    }

    /// Files that are gone if the process ends now.
    pub(super) fn gone(&self) -> Gone {
        let mut gone = Gone::default();
        if self.is_cache_nameless() {
            let nameless = self.active_caches().into_iter().filter(|id| self.is_nameless(*id));
            let paths = nameless.filter_map(|id| Some(self.reactor.device(id)?.path().to_owned()));
            gone.cache = paths.collect();
        }
        for served in self.volumes.iter().flatten() {
            let Some(device) = self.reactor.device(served.device) else { continue };
            if self.is_nameless(served.device) {
                gone.stores.push((served.spec.name.clone(), device.path().to_owned()));
            }
        }
        let stores = self.volumes.iter().flatten().map(|served| served.device);
        for id in self.active_caches().into_iter().chain(stores) {
            let elsewhere = self.displaced(id).filter(|found| *found != Displacement::Deleted);
            gone.elsewhere.extend(elsewhere.and_then(|found| self.elsewhere_text(id, &found)));
        }
        gone
    }

    /// # Errors
    /// The file of a volume is gone once it is closed.
    pub fn check_store_has_name(&self, volume: &str, doing: &str) -> Result<(), AdminError> {
        let device = self.find(volume).and_then(|id| self.served(id)).map(|served| served.device);
        match device.filter(|device| self.is_nameless(*device)) {
            Some(device) => Err(self.refuse_lost(device, &format!("cannot {doing} {volume}"))),
            None => Ok(()),
        }
    }

    /// # Errors
    /// A path does not lead to its file: the next process that opens the pool would not find the
    /// file, or would find another one.
    pub fn check_paths(&self, doing: &str) -> Result<(), AdminError> {
        let stores = self.volumes.iter().flatten().map(|served| served.device);
        let all = self.io.cache().ids.iter().copied().chain(stores);
        let lost = all.filter(|id| !self.engine.runs_without_cache() || !self.io.cache().ids.contains(id));
        match lost.into_iter().find(|id| self.displaced(*id).is_some()) {
            Some(id) => Err(self.refuse_lost(id, &format!("cannot {doing} pool {}", self.name))),
            None => Ok(()),
        }
    }

    fn refuse_lost(&self, id: DeviceId, what: &str) -> AdminError {
        let (how, way_out) = self.lost_parts(id);
        let path_lost = MessageId::Event(EventKind::DevicePathLost);
        AdminError::new(path_lost, format!("{what}: {how}"), way_out).of_kind(ErrorKind::Conflict)
    }

    /// State of the path of a device, in a word and in sentences.
    pub(super) fn place_of(&self, id: DeviceId) -> Option<(&'static str, String)> {
        Some((self.displaced(id)?.name(), self.lost_text(id)))
    }

    // --- in words

    fn volume_of_device(&self, id: DeviceId) -> Option<(VolumeId, &str)> {
        let at = self
            .volumes
            .iter()
            .position(|served| served.as_ref().is_some_and(|served| served.device == id))?;
        Some((VolumeId(at as u16), self.volumes[at].as_ref()?.spec.name.as_str()))
    }

    fn lost_text(&self, id: DeviceId) -> String {
        let (how, way_out) = self.lost_parts(id);
        format!("{how}. {way_out}")
    }

    /// Describes the state of the path of a device, and how to resolve it.
    fn lost_parts(&self, id: DeviceId) -> (String, String) {
        let (Some(device), Some(displacement)) = (self.reactor.device(id), self.displaced(id)) else {
            return ("the path leads to the file again".into(), String::new());
        };
        let path = device.path().display();
        let volume = self.volume_of_device(id).map(|(_, name)| name.to_owned());
        let role = match &volume {
            Some(volume) => format!("the backing store of {volume}"),
            None => format!("a cache file of pool {}", self.name),
        };
        let way_out = match (&displacement, &volume) {
            (Displacement::Deleted, Some(volume)) => self.way_out_of_store(id, volume),
            (Displacement::Deleted, None) => self.way_out_of_cache(id),
            (other, _) => self.elsewhere_text(id, other).unwrap_or_default(),
        };
        let how = match displacement {
            Displacement::Deleted => {
                let both =
                    volume.is_none() && self.engine.mirror_state().is_some() && !self.is_cache_nameless();
                let until = "its data is gone once this process ends or closes it";
                let rest = if both { "; the other device has all dirty data too" } else { "" };
                format!("{role}, {path}, was deleted, or another file took its place: {until}{rest}")
            }
            Displacement::OtherNames => {
                format!("the name of {role}, {path}, was removed; the file has other names")
            }
            Displacement::Renamed(to) => format!("{role}, {path}, was renamed to {}", to.display()),
            Displacement::Unreachable => {
                format!("{role}, {path}, is out of reach: its file system was unmounted while in use")
            }
        };
        (how, way_out)
    }

    fn way_out_of_store(&self, id: DeviceId, volume: &str) -> String {
        let Some(device) = self.reactor.device(id) else { return String::new() };
        let (saved, open) = (quoted(beside(device.path(), ".saved")), device.open_path());
        let path = quoted(device.path());
        let freeze = format!(
            "Freeze this process, copy the file, then end it: kill -STOP {pid} && cp --sparse=always {open} {saved} && kill -KILL {pid}",
            pid = std::process::id(),
            open = open.display(),
        );
        match self.reach {
            Reach::Nothing => {
                format!("{freeze}; then start it again with that file and --set on_backing_change=keep-dirty")
            }
            // A detach needs another cache first, and for that the pool is opened again.
            _ if self.engine.runs_without_cache() => format!(
                "Its cache has failed as well. {freeze}; then mv --no-clobber {saved} {path}; then start it again"
            ),
            _ => format!(
                "Write dirty data back and save the file to another path: forebay volume detach {volume} \
                 --save-to {saved}; or give it up: forebay volume detach {volume} --discard"
            ),
        }
    }

    /// Describes how to replace the failed cache of a pool, or a failed device of it.
    pub(super) fn way_to_another_cache(&self) -> String {
        match self.reach {
            Reach::Nothing => "to cache again, stop this process and start it with another --cache".into(),
            Reach::Api | Reach::File => {
                format!("to replace it: forebay pool replace {} --device PATH[:SIZE]", self.name)
            }
        }
    }

    fn way_out_of_cache(&self, id: DeviceId) -> String {
        let Some(device) = self.reactor.device(id) else { return String::new() };
        let stop = "An orderly stop writes dirty data back, kill -9 loses it";
        match self.reach {
            Reach::File => format!(
                "Replace the file: forebay pool replace {} --old {} --device {}:{}. {stop}",
                self.name,
                quoted(device.path()),
                quoted(beside(device.path(), ".new")),
                ByteSize(device.size_bytes()),
            ),
            Reach::Nothing | Reach::Api => format!("{stop}: kill -TERM {}", std::process::id()),
        }
    }

    /// Describes how to let the next start find a file that is not gone.
    fn elsewhere_text(&self, id: DeviceId, how: &Displacement) -> Option<String> {
        let device = self.reactor.device(id)?;
        let (path, open) = (quoted(device.path()), device.open_path());
        Some(match how {
            Displacement::Deleted => return None,
            Displacement::Renamed(to) => format!(
                "Nothing is lost, but the next start does not find it. If nothing else is at its path: mv --no-clobber {} {path}",
                quoted(to)
            ),
            Displacement::OtherNames => format!(
                "Nothing is lost, but the next start does not find it. If nothing else is at its path, and this process still runs: \
                 ln --logical {} {path}",
                open.display()
            ),
            Displacement::Unreachable => {
                format!(
                    "Nothing is lost. Mount its file system again before the next start, so that the file is \
                     at {path}"
                )
            }
        })
    }
}

impl PoolEvent {
    /// Writes the lines of this file's events.
    pub(super) fn write_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PathLost { what, .. } => f.write_str(what),
            Self::PathFound { device, leads: true, .. } => {
                write!(f, "{device} leads to the served file again")
            }
            Self::PathFound { device, .. } => {
                write!(f, "the file that was at {device} is no longer used")
            }
            _ => Ok(()),
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
