//! Holes of a file: ranges for which its file system has no data, so that they read as zeroes
//! (lseek(2), `SEEK_DATA` and `SEEK_HOLE`).
//!
//! Invariants
//! - A range of unknown state counts as data.
//! - A range past the end of the file is not a hole: reads there of a truncated file return errors,
//!   never zeroes.

use super::{Device, DeviceKind};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Most holes reported for one range.
const HOLES_MAX: usize = 1024;

impl Device {
    /// Returns holes in a range, in ascending order: all of them, or the first ones. Returns none
    /// for a block device, or if the file system does not report holes. Queries the file system,
    /// and can block on its server.
    #[must_use]
    pub fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = range.start;
        while self.kind == DeviceKind::File && at < range.end && holes.len() < HOLES_MAX {
            let data = self.next_data(at, range.end).unwrap_or(range.end..range.end);
            if data.start > at {
                holes.push(at..data.start);
            }
            at = data.end;
        }
        // Read last: a range truncated meanwhile is not a hole either.
        let length = self.buffered.metadata().map_or(0, |metadata| metadata.len());
        holes.retain_mut(|hole| {
            hole.end = hole.end.min(length);
            !hole.is_empty()
        });
        holes
    }

    /// The next data between `at` and `end`; `None` if only a hole, or the end of the file,
    /// follows. Can block.
    pub(super) fn next_data(&self, at: u64, end: u64) -> Option<Range<u64>> {
        if at >= end {
            return None;
        }
        let start = match seek(&self.buffered, at, libc::SEEK_DATA) {
            Ok(start) => start,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return None,
            Err(_) => at,
        };
        let hole = seek(&self.buffered, start, libc::SEEK_HOLE).unwrap_or(end);
        (start < end).then(|| start..hole.clamp(start + 1, end))
    }
}

/// Finds the start of the next data or hole. Changes the position of the descriptor, which is
/// unused: all reads and writes pass offsets.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<u64> {
    let at = libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: lseek takes no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use crate::{Device, DeviceOptions};
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_of_a_sparse_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 1 << 20], 2 << 20).unwrap();
        drop(file);
        let device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
        assert_eq!(device.holes(0..8 << 20), [0..2 << 20, 3 << 20..8 << 20]);
        assert_eq!(device.holes(1 << 20..4 << 20), [1 << 20..2 << 20, 3 << 20..4 << 20]);
        assert_eq!(device.holes(2 << 20..3 << 20), []);
        assert_eq!(device.holes(0..0), []);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[1; 8 << 20], 0).unwrap();
        assert_eq!(device.holes(0..8 << 20), []);
    }

    #[test]
    fn range_behind_the_file_end_is_no_hole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut");
        std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
        let ends = |range| device.holes(range).iter().map(|hole| (hole.start, hole.end)).collect::<Vec<_>>();
        assert_eq!(ends(0..8 << 20), [(0, 3 << 20)]);
        assert_eq!(ends(2 << 20..8 << 20), [(2 << 20, 3 << 20)]);
        assert_eq!(ends(4 << 20..8 << 20), []);
    }
}
