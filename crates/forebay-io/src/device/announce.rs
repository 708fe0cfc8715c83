//! Has udev look at a block device again, after its signature was written or erased.
//!
//! udev looks at a device when a program that could write closes it. The daemon keeps its devices
//! open, so without this `lsblk -f` shows a new cache device as unused until the next start of the
//! machine. Nothing depends on it: all errors are ignored.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::identity::node_of;

/// Reports a change of a block device to udev. Does nothing for files, and without udev.
///
/// Root asks the kernel for a `change` event. Others open and close the device for writing, which
/// udev watches; the descriptors of the daemon do not prevent that.
pub fn announce_change(path: &Path) {
    let is_block = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if is_block && request_event(path).is_err() {
        let _ = close_after_write(path);
    }
}

fn request_event(path: &Path) -> io::Result<()> {
    let node = node_of(&std::fs::File::open(path)?).ok_or(io::ErrorKind::NotFound)?;
    OpenOptions::new().write(true).open(node.join("uevent"))?.write_all(b"change")
}

fn close_after_write(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify;
    use std::mem::MaybeUninit;

    #[test]
    fn what_udev_watches_for_happens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, file.path(), inotify::WatchFlags::CLOSE_WRITE).unwrap();
        announce_change(file.path());
        let mut bytes = [MaybeUninit::uninit(); 512];
        assert!(inotify::Reader::new(&watch, &mut bytes).next().is_err(), "nothing is done for a file");
        close_after_write(file.path()).unwrap();
        let mut events = inotify::Reader::new(&watch, &mut bytes);
        assert!(events.next().unwrap().events().contains(inotify::ReadFlags::CLOSE_WRITE));
    }
}
