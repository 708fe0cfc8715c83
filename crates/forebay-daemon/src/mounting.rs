//! Mounting a volume as a file, for whoever has a reactor: a pool, or what stands in for one.

use crate::fuse_server::{FuseOptions, FuseServer};
use forebay_export::fuse::{Limits, Session, VolumeTree};
use forebay_io::Reactor;
use forebay_io::fuse::{FuseMount, MountOptions, mount, volume_place};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mounts a volume of `size_bytes` so that it appears as the file `path`, and serves the mount.
///
/// # Errors
/// The place is taken or not suitable, FUSE is not there, or there is no memory, in words.
pub(crate) fn mount_volume(
    reactor: &mut Reactor,
    path: &Path,
    size_bytes: u64,
    options: FuseOptions,
) -> Result<(FuseServer<VolumeTree>, FuseMount), String> {
    let (place, name) = volume_place(path).map_err(|error| error.to_string())?;
    let (fd, mount) = mount(&place, MountOptions::default()).map_err(|error| error.to_string())?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let session = Session::new(VolumeTree::new(name.as_deref(), size_bytes, owner, now_s), Limits::default());
    let server = FuseServer::new(reactor, fd, session, options)
        .map_err(|error| format!("cannot serve the mount: {error}"))?;
    Ok((server, mount))
}
