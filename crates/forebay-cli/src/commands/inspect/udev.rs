//! `forebay inspect --udev DEVICE`: reports whether a device belongs to a cache, as
//! `IMPORT{program}` of a udev rule reads it (packaging/61-forebay.rules).
//!
//! udev runs it for block devices of all kinds, including empty drives and devices in use. So it
//! opens read-only, without waiting for a medium, locks nothing, and prints nothing for devices
//! without a cache.
//!
//! The names are those of udev's own prober (systemd, `src/udev/udev-builtin-blkid.c`), because
//! `lsblk` and others read them.

use forebay_admin::MessageId;
use std::fs::File;
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_offline::signature::{self, Signature};
use rustix::fs::OFlags;

use crate::failure::{Failure, system};
use crate::screen;

/// Prints the properties of a device that belongs to a cache.
pub(super) fn execute(devices: &[PathBuf]) -> Result<(), Failure> {
    let [device] = devices else {
        return Err(Failure::usage(
            MessageId::CliArgument,
            format!("--udev: {} devices were given", devices.len()),
        )
        .hint("give one: each device is queried separately"));
    };
    match look(device).map_err(system(device.display()))? {
        Some(found) => screen::print(&properties(&found)),
        None => Err(Failure::silent()),
    }
}

fn look(path: &Path) -> IoResult<Option<Signature>> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !is_readable_by_place(&file)? {
        return Ok(None);
    }
    signature::find(|offset, bytes| read(&file, offset, bytes))
}

/// Returns false for pipes, terminals and directories, which are no caches.
fn is_readable_by_place(file: &File) -> IoResult<bool> {
    use std::os::unix::fs::FileTypeExt;
    let kind = file.metadata()?.file_type();
    Ok(kind.is_file() || kind.is_block_device())
}

/// Reads up to the end of the device.
fn read(file: &File, offset: u64, bytes: &mut [u8]) -> IoResult<usize> {
    let mut there = 0;
    while there < bytes.len() {
        match file.read_at(&mut bytes[there..], offset + there as u64) {
            Ok(0) => break,
            Ok(more) => there += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

/// All devices of a cache have its identity. So the properties describe a member, as of a RAID: no
/// device is found by it (`/dev/disk/by-uuid`).
fn properties(found: &Signature) -> String {
    let mut text = "ID_FS_TYPE=forebay_cache\nID_FS_USAGE=raid\n".to_owned();
    if let Some(uuid) = found.uuid {
        text += &format!("ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\n");
    }
    if let Some(version) = found.version {
        text += &format!("ID_FS_VERSION={version}\n");
    }
    text
}
