//! Checks that flash devices can form a pool: makes the daemon's checks before anything is changed.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use forebay_admin::{DeviceRequest, MessageId, PoolRequest};
use forebay_io::{Device, DeviceOptions};
use forebay_offline::device::{Found, look};
use forebay_offline::occupant::{recognise, where_it_belongs};
use forebay_pool::open::is_blank;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::disk;
use super::mounts::{Mounts, is_below};
use crate::failure::{Failure, system};
use crate::screen::harmless;

/// Checks all devices of a new pool for the disk `disk`.
///
/// # Errors
/// A device cannot be used, and why.
pub(super) fn check(request: &PoolRequest, disk: &Path, mounts: &Mounts) -> Result<(), Failure> {
    for (at, device) in request.devices.iter().enumerate() {
        let path = Path::new(&device.path);
        let earlier = request.devices[..at].iter().map(|device| Path::new(&device.path));
        if let Some(twice) = earlier.into_iter().find(|other| *other == path || disk::is_same(other, path)) {
            return Err(Failure::usage(
                MessageId::CacheSameDevice,
                format!("{} and {} are the same device", twice.display(), path.display()),
            ));
        }
        check_one(device, disk, mounts, request.overwrite)?;
    }
    Ok(())
}

fn check_one(request: &DeviceRequest, disk: &Path, mounts: &Mounts, overwrite: bool) -> Result<(), Failure> {
    let path = Path::new(&request.path);
    let shown = harmless(&request.path);
    if disk::is_same(path, disk) {
        return Err(Failure::usage(MessageId::AttachFlash, format!("{shown} is the disk itself"))
            .hint("give the flash device"));
    }
    let point = mounts.0.iter().find(|mount| disk::is_mounted_from(mount, disk)).map(|mount| &mount.point);
    if point.is_some_and(|point| is_below(path, point)) {
        return Err(Failure::usage(
            MessageId::AttachFlash,
            format!("{shown} lies on the disk that it would cache"),
        )
        .hint("give a flash device, or a file on one"));
    }
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => {}
        Ok(meta) if meta.is_file() => return Ok(()), // the daemon checks its content
        Ok(_) => {
            return Err(Failure::usage(
                MessageId::DeviceNotADevice,
                format!("{shown} is neither a block device nor a file"),
            ));
        }
        Err(_) if request.size.is_some() && !path.starts_with("/dev") => return Ok(()),
        Err(error) => {
            return Err(Failure::new(MessageId::DeviceMissing, format!("{shown}: {error}"))
                .hint("`lsblk` lists the block devices"));
        }
    }
    check_unused(path)?;
    let options = DeviceOptions { read_only: true, direct: false, lock: false, ..DeviceOptions::default() };
    let device = Device::open_cache(path, options)
        .map_err(|error| Failure::new(forebay_offline::message::of_device(&error), error.to_string()))?;
    match look(&device) {
        Found::Begun => Ok(()),
        Found::Blank => match is_blank(&device) {
            Ok(is_blank) if is_blank || overwrite => Ok(()),
            Ok(_) => Err(recognise(&device).map_or_else(
                || {
                    Failure::new(
                        MessageId::CacheZeroed,
                        format!("{shown} begins with zeroes, but has data behind them"),
                    )
                    .hint("if nothing of that is needed: --overwrite")
                },
                |what| holds(&shown, what),
            )),
            Err(error) => Err(Failure::new(forebay_offline::message::of_device(&error), error.to_string())),
        },
        Found::Cache(_) => {
            Err(Failure::new(MessageId::CacheExists, format!("{shown} has a cache of Forebay on it")).hint(
                format!(
                    "`forebay pool create NAME --device {shown}` opens it, then give --pool NAME instead of \
                     --device; `forebay inspect {shown}` shows its content, and once it is open, `forebay \
                     pool remove NAME --erase` makes the device blank"
                ),
            ))
        }
        Found::Foreign(why) => Err(recognise(&device).map_or_else(
            || {
                Failure::new(MessageId::CacheForeignData, format!("{shown} has unknown data on it: {why}"))
                    .hint(format!(
                        "`lsblk -f {shown}` may identify it; if nothing of it is needed: blkdiscard {shown}"
                    ))
            },
            |what| holds(&shown, what),
        )),
    }
}

/// Returns the failure for a device with known data: it may be the one to cache.
fn holds(shown: &str, what: &str) -> Failure {
    Failure::new(MessageId::CacheForeignData, format!("{shown} cannot be used as a cache: it has {what}"))
        .hint(where_it_belongs(shown))
}

/// Checks that the device is not mounted, and no other device is on top of it.
fn check_unused(path: &Path) -> Result<(), Failure> {
    let open = File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
    match open {
        Ok(_) => Ok(()),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            let shown = harmless(&path.display().to_string());
            Err(Failure::new(
                MessageId::DeviceInUse,
                format!(
                    "{shown} is in use: mounted, or a part of another device, of a pool or of the swap space"
                ),
            )
            .hint(format!("`lsblk {shown}` shows what uses it")))
        }
        Err(error) => Err(system(path.display())(error)),
    }
}
