//! Mounting: a FUSE connection for the reactor, and the mount that goes with it.
//!
//! Purpose
//! - [`mount`] connects a mount point with a new `/dev/fuse` descriptor: by `mount(2)` for root,
//!   otherwise through the set-user-ID helper `fusermount3`.
//! - [`volume_place`] interprets the path of a volume export; [`MountTarget`] is the resulting
//!   mount.
//! - [`own_mount`] detects paths that would make this process wait for itself; [`foundations`] and
//!   [`volume_claim`] do so before there is a mount.
//! - [`MountWatch`] detects that another program has unmounted a mount, or covered it.
//! - [`Connection`] is the descriptor for callers that serve it with threads of their own instead
//!   of the reactor.
//! - [`FuseMount`] unmounts, and removes the directory if it was created here.
//!
//! Invariants
//! - A mount never hides files: a directory must be empty, and a place in use is refused. A mount
//!   left by a killed daemon (`ENOTCONN`, "Transport endpoint is not connected") is removed first,
//!   if the mount table identifies it as ours.
//! - A mount is lazily detached: it leaves the namespace at once, and programs that hold files of
//!   it get errors once the connection is closed.
//!
//! Not known here: the protocol (`forebay-export`), reading requests (the reactor).

mod connection;
mod device_dependencies;
mod helper;
mod mount_target;
pub(crate) mod ring;
mod standing;
mod table;

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

pub use crate::error::MountError;
use crate::sys;
pub use connection::Connection;
pub use device_dependencies::{foundations, own_mount, volume_claim};
use helper::c_string;
pub use mount_target::{MountTarget, volume_place};
pub use ring::RingAccess;
pub use standing::{MountTable, MountWatch, Standing};
use table::FILE_SYSTEM;
pub use table::unescape;

/// Source of our mounts in the mount table.
const SOURCE: &str = "forebay";
/// The kernel's end of all FUSE connections.
const DEVICE: &str = "/dev/fuse";
/// Longest wait for the server of a mount that already exists at the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How to mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountMethod {
    /// `mount(2)` for root, the helper for other users.
    #[default]
    Auto,
    /// `mount(2)`; needs `CAP_SYS_ADMIN`.
    System,
    /// The helper `fusermount3`.
    Helper,
}

/// Options of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// How to mount.
    pub method: MountMethod,
    /// Refuse writes.
    pub read_only: bool,
}

/// A mount. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseMount {
    target: PathBuf,
    remove_directory: bool,
    by_helper: bool,
    mounted: bool,
    /// Lists the mount as served by this process.
    own: Option<device_dependencies::Own>,
}

/// Mounts at `place`. The caller must answer the requests from the descriptor, INIT first: until
/// then every process that accesses the mount blocks.
///
/// Users other than root may use the mount if root creates it; the kernel checks their permissions
/// against owner and mode of the files.
///
/// # Errors
/// [`MountError`]: the place is in use or not suitable, FUSE is not available, or the kernel (or
/// the helper) refuses.
pub fn mount(place: &MountTarget, options: MountOptions) -> Result<(OwnedFd, FuseMount), MountError> {
    let target = place.target();
    clear_stale(target)?;
    let made_directory = place.prepare()?;
    let by_helper = match options.method {
        MountMethod::Auto => !is_root(),
        MountMethod::System => false,
        MountMethod::Helper => true,
    };
    let connected = if by_helper {
        helper::mount(target, &helper_options(options))
    } else {
        mount_by_system(target, options)
    };
    match connected {
        Ok(fd) => {
            let (target, own) = (target.into(), device_dependencies::Own::of(target));
            Ok((fd, FuseMount { target, remove_directory: made_directory, by_helper, mounted: true, own }))
        }
        Err(error) => {
            if made_directory {
                let _ = std::fs::remove_dir(target);
            }
            Err(error)
        }
    }
}

impl FuseMount {
    /// The mount point.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Access for serving the mount over io_uring instead of its descriptor alone.
    ///
    /// # Errors
    /// A text with the reason why that is not possible, and a remedy.
    pub fn ring_access(&self) -> Result<RingAccess, String> {
        RingAccess::of(self.own.as_ref().map(device_dependencies::Own::device))
    }

    /// Unmounts, and removes the directory if it was created for the mount. Succeeds if another
    /// program unmounted it.
    ///
    /// # Errors
    /// [`MountError::Covered`], [`MountError::System`] or [`MountError::Helper`]; dropping the
    /// mount tries once more.
    pub fn unmount(mut self) -> Result<(), MountError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), MountError> {
        if !self.mounted {
            return Ok(());
        }
        match MountTable::read()?.standing_of(self, &self.target) {
            Standing::There => detach(&self.target, self.by_helper)?,
            Standing::Gone => {}
            // Unmounting by path would hit the other mount.
            Standing::Covered(by) => return Err(MountError::Covered { target: self.target.clone(), by }),
        }
        (self.mounted, self.own) = (false, None);
        if self.remove_directory {
            // Another program might have put a file there meanwhile; the directory then stays.
            let _ = std::fs::remove_dir(&self.target);
        }
        Ok(())
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        let _ = self.undo();
    }
}

/// User and group that this process acts as: the default owners of its files.
pub fn process_owner() -> (u32, u32) {
    // SAFETY: geteuid and getegid take no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

fn is_root() -> bool {
    process_owner().0 == 0
}

/// Unmounts lazily, but only if the table has the mount as ours.
fn detach(target: &Path, by_helper: bool) -> Result<(), MountError> {
    if !table::is_ours(target)? {
        return Ok(());
    }
    if by_helper {
        return helper::unmount(target);
    }
    let path = c_string(target)?;
    // SAFETY: the path is a C string.
    let done = sys::check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) });
    match done {
        // Another process was faster.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result.map(drop).map_err(|source| MountError::system(target, "unmount", source)),
    }
}

/// Removes the mount of a daemon that was killed.
///
/// Accessing a mount whose daemon is stopped (not killed) blocks until it continues: a separate
/// thread does it, and is left running.
fn clear_stale(target: &Path) -> Result<(), MountError> {
    if own_mount(target).is_some() {
        return Err(MountError::Own { target: target.into() });
    }
    if !table::is_ours(target)? {
        return Ok(());
    }
    let (asked, path) = (c_string(target)?, target.to_owned());
    let (answer, answered) = mpsc::sync_channel(1);
    let ask = move || drop(answer.try_send(ask_server(&asked)));
    let begun = std::thread::Builder::new().name("fuse-look".into()).spawn(ask);
    begun.map_err(|source| MountError::system(target, "starting a thread for a look", source))?;
    match answered.recv_timeout(ANSWER_TIMEOUT) {
        Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOTCONN) => detach(target, !is_root()),
        Ok(_) => Err(MountError::InUse { target: path }),
        Err(_) => Err(MountError::NoAnswer { target: path }),
    }
}

/// Sends a query to the server of a mount that the kernel does not answer from memory (as it would
/// for `stat`).
fn ask_server(path: &CString) -> io::Result<()> {
    // SAFETY: statfs is a plain struct for which all zeroes is a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, the answer has room for what the kernel writes.
    sys::check(unsafe { libc::statfs(path.as_ptr(), &raw mut answer) }).map(drop)
}

fn mount_by_system(target: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let metadata = std::fs::metadata(target).map_err(|source| MountError::system(target, "look", source))?;
    let root_mode = std::os::unix::fs::MetadataExt::mode(&metadata) & libc::S_IFMT;
    let (user, group) = process_owner();
    let data = format!(
        "fd={},rootmode={root_mode:o},user_id={user},group_id={group},allow_other,default_permissions",
        device.as_raw_fd()
    );
    let (source, kind) = (c_string(OsStr::new(SOURCE))?, c_string(OsStr::new(FILE_SYSTEM))?);
    let (path, data) = (c_string(target)?, c_string(OsStr::new(&data))?);
    let read_only = if options.read_only { libc::MS_RDONLY } else { 0 };
    let flags = libc::MS_NOSUID | libc::MS_NODEV | read_only;
    // SAFETY: all four are C strings that outlive the call.
    let mounted = sys::check(unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    });
    match mounted {
        Ok(_) => Ok(device.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(MountError::NoFuse { source: error }),
        Err(source) => Err(MountError::system(target, "mount", source)),
    }
}

fn open_device() -> Result<File, MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|source| MountError::NoFuse { source })
}

/// Options for the helper; it adds the descriptor, the type of the root, the user, `nosuid` and
/// `nodev` itself.
fn helper_options(options: MountOptions) -> String {
    let mut text = format!("fsname={SOURCE},subtype=forebay,default_permissions");
    if is_root() {
        text.push_str(",allow_other");
    }
    if options.read_only {
        text.push_str(",ro");
    }
    text
}
