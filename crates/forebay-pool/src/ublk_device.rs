//! Creating, recovering and removing the block device of a volume, and its name.
//!
//! All functions here may wait, so they run on threads that may. The steps of creation:
//!
//! 1. [`prepare`] creates the device, or finds the one that an earlier process left.
//! 2. Its channel goes to the pool's thread, which fetches a request of each tag.
//! 3. [`Prepared::start`] names the device and starts it. The kernel announces the device then, and
//!    udev looks up the name (`forebay ublk name`).
//!
//! Ownership: the kernel keeps 64 bits with each device for its creator. Forebay stores a [`mark`]
//! there: 16 bits that identify Forebay, and 48 bits of a hash over the identity of the volume (128
//! random bits, which the cache has) and the name. A device is taken over only if it has the mark
//! of this volume and name, and if its server has ended. There is no record outside of the kernel,
//! so none can disagree with it: a reboot removes the devices, and a lost state directory does no
//! harm.
//!
//! Names are symbolic links in [`FOLDER`]. A link is replaced only if it leads to no device, or to
//! a device with the same mark; anything else keeps the name, including a device that waits for its
//! daemon. Links have the form that udev uses (`../ublkbN`): it has the same one, so that systemd
//! knows the name. Earlier versions wrote `/dev/ublkbN`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_export::ublk::{DEPTH, PAYLOAD_BYTES_MAX};
use forebay_io::ublk::{Channel, Claim, Control, DeviceInfo, State, Wanted};

use crate::may_wait::MayWait;

/// Directory of the names.
pub const FOLDER: &str = "/dev/forebay";
/// Maximum time in which the kernel cleans up after a dead server, and after the removal of a
/// device;
const CLEAR_TIMEOUT: Duration = Duration::from_secs(10);
/// interval of the checks for that.
const CLEAR_LOOK: Duration = Duration::from_millis(20);
/// `FB`, in the upper bits of a mark.
const MARK_OURS: u64 = 0x4642 << 48;

/// Identifies the device of a volume and a name.
#[must_use]
pub fn mark(volume: [u8; 16], name: &str) -> u64 {
    // FNV-1a of 64 bits.
    let bytes = volume.iter().chain(name.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    MARK_OURS | hash >> 16
}

/// True if Forebay has created the device with this mark.
pub(crate) fn is_ours(mark: u64) -> bool {
    mark >> 48 == MARK_OURS >> 48
}

/// Properties of a device to create.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Its name below [`FOLDER`].
    pub name: String,
    /// Its [`mark`].
    pub mark: u64,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_bytes: u32,
}

/// An existing device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkDevice {
    number: u32,
    name: String,
    block_bytes: u32,
    /// The kernel can resize it.
    pub can_resize: bool,
    /// An earlier process created it, and its users have waited for this one.
    pub recovered: bool,
}

/// A device that is not started yet.
#[derive(Debug)]
pub struct Prepared {
    control: Control,
    spec: DeviceSpec,
    number: u32,
    recovers: bool,
}

/// Creates a device, or finds the one that an earlier process left, and opens its channel.
///
/// # Errors
/// There is no ublk here, or the name or the device has another owner: a message.
pub fn prepare(_: &MayWait, spec: DeviceSpec) -> Result<(Prepared, Channel), String> {
    let mut control = Control::open().map_err(|error| error.to_string())?;
    name_is_free(&mut control, &spec)?;
    let left = leftover(&mut control, spec.mark)?;
    let (info, recovers) = match left {
        Some(info) if info.payload_bytes_max > PAYLOAD_BYTES_MAX => {
            return Err(format!(
                "/dev/ublkb{} was created by a later version, with requests of {} bytes: start that version, \
                 or stop its users and remove it (forebay ublk remove {})",
                info.number, info.payload_bytes_max, spec.name
            ));
        }
        Some(info) => (info, true),
        None => {
            let wanted = Wanted {
                size_bytes: spec.size_bytes,
                block_bytes: spec.block_bytes,
                depth: DEPTH,
                payload_bytes_max: PAYLOAD_BYTES_MAX,
                mark: spec.mark,
            };
            (control.add(&wanted).map_err(|error| error.to_string())?, false)
        }
    };
    match Channel::open(&info) {
        Ok(channel) => Ok((Prepared { control, spec, number: info.number, recovers }, channel)),
        Err(error) => {
            if !recovers {
                let _ = control.delete(info.number); // the first error is returned
            }
            Err(error.to_string())
        }
    }
}

/// The device with this mark whose server has ended, ready to be taken over. Waits until the kernel
/// has cleaned up after that server.
fn leftover(control: &mut Control, mark: u64) -> Result<Option<DeviceInfo>, String> {
    let until = Instant::now() + CLEAR_TIMEOUT;
    loop {
        let found = control.find(mark).map_err(|error| error.to_string())?;
        let Some(info) = found else { return Ok(None) };
        let busy = match info.state {
            State::Quiesced | State::Failing => match control.start_recovery(info.number) {
                Ok(()) => return Ok(Some(info)),
                Err(error) if error.errno() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                    "its last server has not ended entirely".to_owned()
                }
                Err(error) => return Err(error.to_string()),
            },
            // Its creator ended before it was started: it is unused. Or it is being removed.
            State::Dead => match control.delete(info.number) {
                Ok(()) => continue,
                Err(error) => return Err(error.to_string()),
            },
            State::Live => format!("process {} serves it", info.server_pid),
        };
        if Instant::now() >= until {
            return Err(format!(
                "the volume is /dev/ublkb{} already, and {busy}: end that process, or choose another name",
                info.number
            ));
        }
        std::thread::sleep(CLEAR_LOOK);
    }
}

impl Prepared {
    /// Starts the device, once the pool has fetched a request of each tag, and gives it its name.
    ///
    /// # Errors
    /// A message; the device is removed then, unless it existed before.
    pub fn start(mut self, may_wait: &MayWait) -> Result<UblkDevice, String> {
        let number = self.number;
        let can_resize = self.control.can_resize();
        let named = link(&self.spec.name, number).map_err(|error| {
            format!("cannot create the link {FOLDER}/{} to /dev/ublkb{number}: {error}", self.spec.name)
        });
        let started = named.and_then(|()| {
            let started =
                if self.recovers { self.control.end_recovery(number) } else { self.control.start(number) };
            let sized = started.and_then(|()| match (self.recovers, can_resize) {
                // The volume was possibly resized while the device had no server.
                (true, true) => self.control.set_size(number, self.spec.size_bytes, self.spec.block_bytes),
                _ => Ok(()),
            });
            sized.map_err(|error| error.to_string())
        });
        if let Err(why) = started {
            if !self.recovers {
                unlink(&self.spec.name, number);
            }
            self.undo(may_wait);
            return Err(why);
        }
        let Self { spec, recovers: recovered, .. } = self;
        Ok(UblkDevice { number, name: spec.name, block_bytes: spec.block_bytes, can_resize, recovered })
    }

    /// Removes a device that [`prepare`] has created, because it gets no server.
    pub fn undo(mut self, _: &MayWait) {
        if !self.recovers {
            let _ = self.control.delete(self.number); // the earlier error is reported
        }
    }
}

impl UblkDevice {
    /// A device that an earlier process left.
    pub(crate) fn without_server(number: u32, name: String) -> Self {
        Self { number, name, block_bytes: 512, can_resize: false, recovered: false }
    }

    /// The stable name, if it has one.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self.name.is_empty() {
            true => PathBuf::from(format!("/dev/ublkb{}", self.number)),
            false => Path::new(FOLDER).join(&self.name),
        }
    }

    /// The N of `/dev/ublkbN`.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Removes it: programs that have it open get errors. `claim` keeps others from it until then.
    ///
    /// # Errors
    /// A message.
    pub fn remove(&self, _: &MayWait, claim: Option<Claim>) -> Result<(), String> {
        unlink(&self.name, self.number);
        let mut control = Control::open().map_err(|error| error.to_string())?;
        let stopped = control.stop(self.number);
        let is_unused = claim.is_some();
        drop(claim); // the device stays until all users have closed it
        let removed = stopped.and_then(|()| match is_unused {
            true => control.delete(self.number),
            false => control.delete_under_users(self.number),
        });
        match removed {
            Err(error) if error.errno() != Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                Err(error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Resizes the device after its volume.
    ///
    /// # Errors
    /// A message.
    pub fn set_size(&self, _: &MayWait, size_bytes: u64) -> Result<(), String> {
        let changed = Control::open()
            .and_then(|mut control| control.set_size(self.number, size_bytes, self.block_bytes));
        changed.map_err(|error| error.to_string())
    }

    /// True if the block device exists.
    pub(crate) fn is_there(&self) -> bool {
        Path::new(&format!("/dev/ublkb{}", self.number)).exists()
    }

    /// Programs that have it open, as far as `/proc` shows.
    #[must_use]
    pub fn openers(&self, _: &MayWait) -> Vec<String> {
        openers(&format!("/dev/ublkb{}", self.number))
    }

    /// Keeps others from mounting it or building on it; `None` if it is in such use already.
    ///
    /// # Errors
    /// A message.
    pub fn claim(&self, _: &MayWait) -> Result<Option<Claim>, String> {
        Claim::take(self.number).map_err(|error| error.to_string())
    }
}

/// Programs that have the device, or a partition of it, open. Not those in containers that have
/// another name for it.
fn openers(node: &str) -> Vec<String> {
    let is_it = |target: &str| {
        let partition =
            |rest: &str| rest.strip_prefix('p').is_some_and(|number| number.parse::<u32>().is_ok());
        target.strip_prefix(node).is_some_and(|rest| rest.is_empty() || partition(rest))
    };
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut openers = Vec::new();
    for process in processes.flatten() {
        let is_process = process.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        let Ok(files) = std::fs::read_dir(process.path().join("fd")).map_err(|_| ()) else { continue };
        let mut targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        if is_process && targets.any(|target| target.to_str().is_some_and(is_it)) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            openers.push(format!("{} (process {})", name.trim_end(), process.file_name().display()));
        }
    }
    openers
}

/// Checks that the name is free.
fn name_is_free(control: &mut Control, spec: &DeviceSpec) -> Result<(), String> {
    let path = Path::new(FOLDER).join(&spec.name);
    let taken = |what: String| Err(format!("{} {what} choose another name (ublk:NAME)", path.display()));
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| format!("cannot look at {}: {error}", path.display()))?,
    };
    if !there.is_symlink() {
        return taken("exists, and is not a link of Forebay's:".into());
    }
    let Some(number) = std::fs::read_link(&path).ok().as_deref().and_then(number_of) else {
        return taken("does not lead to a ublk device:".into());
    };
    let info = control.info(number).map_err(|error| error.to_string())?;
    match info.filter(|info| info.mark != spec.mark && info.state != State::Dead) {
        Some(info) if info.state == State::Live => {
            taken(format!("is the name of /dev/ublkb{number}, which process {} serves:", info.server_pid))
        }
        Some(_) => taken(format!(
            "is the name of /dev/ublkb{number}, which waits for its daemon: remove that (forebay ublk remove {}), or",
            spec.name
        )),
        None => Ok(()),
    }
}

/// The N of `/dev/ublkbN`, also from the target of a link in [`FOLDER`].
pub(crate) fn number_of(path: &Path) -> Option<u32> {
    let path = path.to_str()?;
    let rest = path.strip_prefix("/dev/").or_else(|| path.strip_prefix("../"))?;
    rest.strip_prefix("ublkb")?.parse().ok()
}

fn link(name: &str, number: u32) -> io::Result<()> {
    let folder = Path::new(FOLDER);
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Of two links that are created at once each is complete.
    let unfinished = folder.join(format!(".{name}.{number}"));
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(format!("../ublkb{number}"), &unfinished)?;
    std::fs::rename(&unfinished, folder.join(name))
}

/// Removes a name if it leads to this device. A name that cannot be removed is replaced later.
fn unlink(name: &str, number: u32) {
    let path = Path::new(FOLDER).join(name);
    if std::fs::read_link(&path).ok().as_deref().and_then(number_of) == Some(number) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that an earlier version created must be found: this number never changes.
    #[test]
    fn marks_are_of_one_volume_and_one_name() {
        let volume = [7; 16];
        assert!(is_ours(mark(volume, "db")) && !is_ours(0) && !is_ours(0x4643 << 48));
        assert_ne!(mark(volume, "db"), mark(volume, "dc"));
        assert_ne!(mark(volume, "db"), mark([8; 16], "db"));
        assert_eq!(mark(*b"0123456789abcdef", "db"), 0x4642_0000_0000_0000 | GOLDEN);
    }

    /// FNV-1a of `0123456789abcdefdb`, without its lowest 16 bits.
    const GOLDEN: u64 = 0x1cfb_2833_5962;

    #[test]
    fn programs_that_have_a_file_open_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partition) = (dir.path().join("ublkb0"), dir.path().join("ublkb0p1"));
        let node = path.to_str().unwrap();
        assert_eq!(openers(node), Vec::<String>::new());
        let other = std::fs::File::create(dir.path().join("ublkb01")).unwrap();
        assert_eq!(openers(node), Vec::<String>::new(), "another device");
        let file = std::fs::File::create(partition).unwrap();
        let mine = format!("(process {})", std::process::id());
        assert!(openers(node).iter().any(|opener| opener.ends_with(&mine)));
        drop((file, other));
    }

    #[test]
    fn only_links_to_ublk_devices_are_ours() {
        assert_eq!(number_of(Path::new("/dev/ublkb12")), Some(12));
        assert_eq!(number_of(Path::new("../ublkb12")), Some(12));
        for other in ["/dev/sda", "ublkb1", "/dev/ublkb", "/dev/ublkb1p1", "../ublkb1p1", "/dev/ublkb-1"] {
            assert_eq!(number_of(Path::new(other)), None, "{other}");
        }
    }
}
