//! State of a pool's devices that the engine does not track: where each must end, whether one has
//! become shorter, and which operations failed.
//!
//! A device shorter than its used part answers with [`forebay_io::IoFailureKind::Ended`]; the
//! engine decides what that means for requests. This file reports it, even for an idle device, and
//! declares a cache device gone that stays too short.

use super::{Pool, PoolEvent};
use crate::engine_io::Timed;
use forebay_core::{Device, Status, WrittenBytes};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::{DeviceId, IoFailure, IoFailureKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval of checks of the devices' lengths.
const LOOK: Duration = Duration::from_secs(1);
/// Time until a cache device that is too short counts as gone: longer than the engine waits for an
/// operation on it (I71).
const GONE_AFTER: Duration = Duration::from_secs(8);
/// Shortest interval of reports of failed operations of one kind on one device.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A device that is too short.
#[derive(Debug)]
struct Short {
    since: Instant,
    size_bytes: u64,
    name: String,
    volume: Option<String>,
    /// Set for an unplugged backing store: why the pool does not take the device that its path
    /// leads to now; empty if there is none.
    unplugged: Option<String>,
    /// The engine knows that the device is gone.
    is_given_up: bool,
}

/// Why a device is no longer too short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// It has its length again.
    Whole,
    /// It was unplugged, and is open again as a new device.
    Reopened,
    /// It no longer belongs to the pool.
    Unused,
}

/// Reported failed operations, and devices that are too short.
#[derive(Debug, Default)]
pub(super) struct DeviceWatch {
    next_look: Option<Instant>,
    short: BTreeMap<DeviceId, Short>,
    /// For each operation: time of the last report of a failure, and failures since.
    failures: BTreeMap<(Option<DeviceId>, &'static str), (Instant, u64)>,
}

impl DeviceWatch {
    /// The next turn of the loop looks at all devices.
    pub(super) fn look_now(&mut self) {
        self.next_look = None;
    }
}

impl Pool {
    /// Records how much of each cache device is used; the rest of the device may be cut off.
    pub(super) fn note_cache_ends(&mut self) {
        if self.engine.runs_without_cache() {
            return;
        }
        self.name_devices();
        let (cache, geometry) = (self.io.cache(), self.engine.geometry());
        let mut ends = Vec::new();
        if self.engine.mirror_state().is_some() {
            let ids = (0..2).filter_map(|member| cache.ids.get(cache.map.device_of(member)?));
            ends.extend(ids.map(|id| (*id, geometry.member_bytes())));
        } else {
            let all = geometry.device_blocks * BLOCK_BYTES as u64;
            for (at, id) in cache.ids.iter().enumerate() {
                let end = if at + 1 < cache.ids.len() { cache.map.start_of(at + 1) } else { all };
                ends.push((*id, cache.map.base_of(at) + end.saturating_sub(cache.map.start_of(at))));
            }
        }
        for (id, end) in ends {
            self.reactor.set_device_end(id, end);
        }
    }

    /// Registers the cache devices with the engine, which counts the bytes written to each.
    pub(super) fn name_devices(&mut self) {
        let cache = self.io.cache();
        let path =
            |at: usize| cache.ids.get(at).and_then(|id| self.reactor.device(*id)).map(|device| device.path());
        let devices: Vec<(u64, u64)> = if cache.map.is_mirrored() {
            let key = |member: u8| {
                cache.map.device_of(member).and_then(path).map_or(u64::from(member) + 1, device_key)
            };
            [0, 1].map(|member| (key(member), 0)).to_vec()
        } else {
            let key = |at: usize| path(at).map_or(at as u64 + 1, device_key);
            (0..cache.ids.len()).map(|at| (key(at), cache.map.start_of(at))).collect()
        };
        self.engine.set_devices(&devices);
    }

    /// Returns the engine's key of an open device.
    pub(super) fn key_of(&self, id: DeviceId) -> Option<u64> {
        self.reactor.device(id).map(|device| device_key(device.path()))
    }

    /// Returns the bytes written to a device since the start.
    pub(super) fn written_to(&self, path: &Path) -> WrittenBytes {
        self.engine.written_to(device_key(path)).unwrap_or_default()
    }

    /// Checks the lengths of all devices when that is due; returns how long the loop may sleep
    /// until the next check.
    pub(super) fn look_after_devices(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if let Some(left) = self.watch.next_look.and_then(|due| due.checked_duration_since(now)) {
            return Some(left.max(Duration::from_millis(1)));
        }
        let look = self.look_after_unplugged().unwrap_or(LOOK);
        self.watch.next_look = Some(now + look);
        let caches = self.io.cache().ids.iter().map(|id| (*id, None));
        let backings = self.volumes.iter().flatten();
        let backings = backings.map(|served| (served.device, Some(served.spec.name.clone())));
        let devices: Vec<_> = caches.chain(backings).collect();
        for (id, volume) in &devices {
            self.look_at(*id, volume.clone(), now);
        }
        self.look_after_remote();
        let is_used = |device: &(_, Option<_>)| device.1.is_some() || !self.engine.runs_without_cache();
        self.look_at_paths(&devices.into_iter().filter(is_used).collect::<Vec<_>>());
        let waiting = |id: &DeviceId| self.reactor.device(*id).is_none();
        let gone: Vec<DeviceId> = self.watch.short.keys().copied().filter(waiting).collect();
        gone.into_iter().for_each(|id| self.not_short(id, Back::Unused));
        Some(look)
    }

    fn look_at(&mut self, id: DeviceId, volume: Option<String>, now: Instant) {
        let Some(device) = self.reactor.device(id) else { return };
        let (name, end_bytes) = (device.path().display().to_string(), device.end_bytes());
        let is_unplugged = device.is_unplugged();
        let size_bytes = match device.ended() {
            Some(size_bytes) => size_bytes,
            None if is_unplugged => 0, // older kernels leave its size as it was
            None => return self.not_short(id, Back::Whole),
        };
        let unplugged = volume.is_some() && is_unplugged;
        let unplugged = unplugged.then(|| self.why_not_taken(id));
        let is_ready = self.engine.status() == Status::Ready;
        match self.watch.short.get_mut(&id).filter(|short| short.name == name) {
            Some(short) => {
                let was = std::mem::replace(&mut short.size_bytes, size_bytes);
                let said = std::mem::replace(&mut short.unplugged, unplugged.clone());
                let is_over = volume.is_none() && now.duration_since(short.since) >= GONE_AFTER;
                let is_over = is_over && is_ready;
                if is_over && !std::mem::replace(&mut short.is_given_up, true) {
                    self.device_gone(self.member_of(id));
                }
                if size_bytes >= was && said == unplugged {
                    return; // Reported already; the length may grow back step by step.
                }
            }
            None => {
                let (name, volume, unplugged) = (name.clone(), volume.clone(), unplugged.clone());
                let short = Short { since: now, size_bytes, name, volume, unplugged, is_given_up: false };
                self.watch.short.insert(id, short);
            }
        }
        self.emit(PoolEvent::DeviceEnded { device: name, volume, size_bytes, end_bytes, unplugged });
    }

    /// Returns why the pool does not take the device that the path of a backing store leads to;
    /// empty if there is none.
    fn why_not_taken(&self, id: DeviceId) -> String {
        let served = self.volumes.iter().flatten().find(|served| served.device == id);
        served.map(|served| served.returns.why_not().to_owned()).unwrap_or_default()
    }

    /// Returns the record of a device that is too short. Another device may have taken over its id
    /// since; that one has not been checked yet.
    fn short(&self, id: DeviceId) -> Option<&Short> {
        let device = self.reactor.device(id)?;
        let name = device.path().display().to_string();
        self.watch.short.get(&id).filter(|short| short.name == name)
    }

    /// Describes a device shorter than its used part, in a word and in a sentence.
    pub(super) fn length_trouble(&self, id: DeviceId) -> Option<(&'static str, String)> {
        let (short, device) = (self.short(id)?, self.reactor.device(id)?);
        if let Some(why_not) = &short.unplugged {
            let way = way_back(&short.name, why_not);
            return Some(("unplugged", format!("{} {GONE}. {way}", short.name)));
        }
        let (size, end) = (short.size_bytes, device.end_bytes());
        Some((
            "short",
            format!("{} has {size} bytes, but {end} are in use: it was truncated, or is missing", short.name),
        ))
    }

    /// The cache failed, or one of its devices is shorter than its used part: read errors are no
    /// evidence of damaged blocks then.
    pub(super) fn is_cache_gone(&self) -> bool {
        let failed = self.engine.is_fenced() || self.engine.runs_without_cache();
        let is_short = |id: &DeviceId| self.short(*id).is_some_and(|short| short.volume.is_none());
        failed || self.watch.short.keys().any(is_short)
    }

    fn member_of(&self, id: DeviceId) -> Option<u8> {
        let cache = self.io.cache();
        (0..2).find(|member| cache.map.device_of(*member).and_then(|at| cache.ids.get(at)) == Some(&id))
    }

    /// A device has its length (again), or no longer belongs to the pool.
    pub(super) fn not_short(&mut self, id: DeviceId, how: Back) {
        let Some(Short { name: device, volume, .. }) = self.watch.short.remove(&id) else { return };
        let last = volume.is_some() || self.watch.short.values().all(|other| other.volume.is_some());
        self.emit(PoolEvent::DeviceBack { device, volume, how, last });
    }

    /// The backing store of a volume is about to be closed.
    pub(super) fn forget_device(&mut self, id: DeviceId) {
        self.not_short(id, Back::Unused);
        self.path_found(id, false);
        self.watch.failures.retain(|(of, _), _| *of != Some(id));
    }

    /// An operation of the engine has failed.
    pub(super) fn operation_failed(&mut self, timed: &Timed, failure: IoFailure) {
        if timed.device == Device::Cache && says_gone(failure) {
            self.device_gone(timed.member);
        }
        if failure.kind == IoFailureKind::Ended {
            self.watch.next_look = None;
        }
        if let Device::Backing(volume) = timed.device
            && timed.operation != "read"
            && let Some(served) = self.served_mut(volume)
        {
            served.refused = Some(failure);
        }
        let (id, now) = (timed.at.map(|(id, _)| id), Instant::now());
        let told = self.watch.failures.get_mut(&(id, timed.operation));
        let others = match told {
            Some((at, others)) if now.duration_since(*at) < TELL_EVERY => {
                *others += 1;
                return;
            }
            Some((_, others)) => *others,
            None => 0,
        };
        self.watch.failures.insert((id, timed.operation), (now, 0));
        let path = |id: DeviceId| self.reactor.device(id).map(|device| device.path().display().to_string());
        let names: Vec<String> = match id {
            Some(id) => path(id).into_iter().collect(),
            None => self.io.cache().ids.iter().filter_map(|id| path(*id)).collect(),
        };
        let volume = match timed.device {
            Device::Cache => None,
            Device::Backing(volume) => Some(self.name_of(volume)),
        };
        self.emit(PoolEvent::OperationFailed {
            device: names.join(", "),
            volume,
            operation: timed.operation,
            offset_bytes: timed.at.map_or(0, |(_, offset)| offset),
            bytes: timed.bytes,
            failure,
            others,
        });
    }
}

impl Pool {
    /// Returns the error of the last failed change of a volume's backing store. For a
    /// write-protected device the kernel only reports that the operation is not permitted.
    pub(super) fn why_refused(&self, volume: VolumeId) -> Option<String> {
        let served = self.served(volume)?;
        let failure = served.refused?;
        let device = self.reactor.device(served.device)?;
        let path = device.path().display();
        Some(match device.is_write_protected() {
            true => {
                format!("{path} is write-protected ({failure}): make it writable (blockdev --setrw {path})")
            }
            false => format!("{path}: {failure}"),
        })
    }

    /// Returns why writes to the backing store of a volume are not permitted, if the last change
    /// failed for that reason and none has succeeded since: waiting does not help.
    pub(super) fn why_not_permitted(&self, volume: VolumeId) -> Option<String> {
        let served = self.served(volume)?;
        served.destage_failing_at?;
        served.refused.filter(|failure| failure.kind == IoFailureKind::NotPermitted)?;
        self.why_refused(volume)
    }
}

/// Returns the engine's key of a device; never one of the small numbers of devices that are not
/// open.
fn device_key(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() | 1 << 63
}

/// Description of a disk that is gone.
const GONE: &str = "is gone: the kernel no longer has it, as if it were unplugged";

/// Describes how to bring the disk back. `why_not` as in [`Short`].
fn way_back(path: &str, why_not: &str) -> String {
    match why_not {
        "" => format!("Plug it in again: the daemon uses it as soon as {path} leads to it"),
        _ => format!("The disk that {path} leads to now is not used: {why_not}"),
    }
}

/// Returns true if a device that fails like this will not come back.
fn says_gone(failure: IoFailure) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NODEV, Errno::NXIO, Errno::NOMEDIUM];
    failure.kind != IoFailureKind::Ended && gone.iter().any(|gone| gone.raw_os_error() == failure.errno)
}

impl PoolEvent {
    /// Returns the details of a failed operation for programs: the operation, its place, and the
    /// error.
    pub fn details(&self) -> Value {
        let Self::OperationFailed { device, volume, operation, offset_bytes, bytes, failure, others } = self
        else {
            return Value::Null;
        };
        json!({
            "device": device, "volume": volume, "operation": operation, "offset_bytes": offset_bytes, "bytes": bytes,
            "errno": failure.errno, "error": failure.to_string(), "others": others,
        })
    }
}

/// Writes the lines of this file's events.
pub(super) fn write_event(f: &mut fmt::Formatter<'_>, event: &PoolEvent) -> fmt::Result {
    let role = |volume: &Option<String>| match volume {
        Some(volume) => format!("the backing store of {volume}"),
        None => "the cache device".into(),
    };
    match event {
        PoolEvent::OperationFailed { device, volume, operation, offset_bytes, bytes, failure, others } => {
            write!(f, "{operation} of {}, {device}, failed", role(volume))?;
            if *operation != "flush" {
                write!(f, " at byte {offset_bytes} ({bytes} bytes)")?;
            }
            write!(f, ": {failure}")?;
            if *others > 0 {
                write!(f, " (and {others} others since the last report)")?;
            }
            Ok(())
        }
        PoolEvent::DeviceEnded { device, volume, unplugged: Some(why_not), .. } => write!(
            f,
            "{}, {device}, {GONE}. Reads of uncached blocks fail, and so do all writes to it; dirty data \
             stays in the cache. {}",
            role(volume),
            way_back(device, why_not)
        ),
        PoolEvent::DeviceEnded { device, volume, size_bytes, end_bytes, unplugged: None } => {
            let role = role(volume);
            write!(
                f,
                "{role}, {device}, has {size_bytes} bytes, but {end_bytes} are in use: it was truncated, or \
                 is missing. "
            )?;
            f.write_str(match volume {
                Some(_) => {
                    "Reads of the missing part and all writes to it fail; dirty data stays in the cache. \
                     Bring it back: service then resumes"
                }
                None => "If it is not back within some seconds, it is treated as failed",
            })
        }
        PoolEvent::DeviceBack { device, volume, how: Back::Whole, .. } => {
            write!(f, "{}, {device}, has its full length again", role(volume))
        }
        PoolEvent::DeviceBack { device, volume, how: Back::Reopened, .. } => write!(
            f,
            "{}, {device}, is back in use: data that it had not flushed is written again, and its clean \
             blocks were dropped from the cache",
            role(volume)
        ),
        PoolEvent::DeviceBack { device, volume, .. } => {
            write!(f, "{}, {device}, was too short, and is no longer used", role(volume))
        }
        _ => Ok(()),
    }
}
