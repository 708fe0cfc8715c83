//! A page of memory that outlives the process, and the clocks that relate its timestamps to file
//! times.
//!
//! The page is a file on an in-memory file system: storing into it makes no system call and waits
//! for no device. Its content survives `kill -9`, and is lost with power.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::buffer::{map_zeroed, unmap};

/// Bytes of the page.
const BYTES: usize = 4096;
const TMPFS: i64 = 0x0102_1994;

/// Words that another process can find again; see the module documentation.
#[derive(Debug)]
pub struct SharedPage {
    memory: NonNull<u8>,
}

// SAFETY: the memory is only ever used as atomic words, and unmapped by the last owner.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Words of a page.
    pub const WORDS: usize = BYTES / 8;

    /// Opens the page at this path, or creates one of zeroes. No other user may write to its
    /// folder: a process that truncates the file ends this one.
    ///
    /// # Errors
    /// The page cannot be created, is a link, or does not lie in memory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        if !lies_in_memory(&file) {
            return Err(io::Error::other("it is not on a file system in memory"));
        }
        let mut there = [0; BYTES];
        let have = file.read_at(&mut there, 0)?;
        // Written, not only extended: an access to a page without memory could end the process.
        file.write_all_at(&there[have..], have as u64)?;
        Self::map(&file)
    }

    fn map(file: &File) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; the file has these bytes.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("it is mapped at zero"))?;
        Ok(Self { memory })
    }

    /// Creates a page of zeroes that ends with the process. Returns `None` if there is no memory.
    #[must_use]
    pub fn private() -> Option<Self> {
        map_zeroed(BYTES).map(|memory| Self { memory })
    }

    /// Returns a word; `index` is below [`SharedPage::WORDS`].
    ///
    /// # Panics
    /// There is no such word.
    #[must_use]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < Self::WORDS, "a page has {} words, not {index}", Self::WORDS);
        // SAFETY: the mapping has that many words, is aligned to its size, lives as long as `self`,
        // and is used as atomics only.
        unsafe { &*self.memory.as_ptr().cast::<AtomicU64>().add(index) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        unmap(self.memory, BYTES);
    }
}

fn lies_in_memory(file: &File) -> bool {
    // SAFETY: statfs is a plain struct for which all zeroes is a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the answer has room for what the kernel writes.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut answer) } == 0;
    known && answer.f_type as i64 == TMPFS
}

/// Current time in nanoseconds since 1970, comparable with file times on this machine.
#[must_use]
pub fn unix_ns() -> i64 {
    clock(libc::CLOCK_REALTIME)
}

/// Boot time of this machine in nanoseconds since 1970, by the current clock.
#[must_use]
pub fn boot_unix_ns() -> i64 {
    unix_ns().saturating_sub(clock(libc::CLOCK_BOOTTIME))
}

fn clock(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec. It fails for clocks that do not exist; these do.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_page_is_found_again() {
        let path = Path::new("/dev/shm").join(format!("forebay-test-{}", std::process::id()));
        let Ok(page) = SharedPage::open(&path) else { return }; // no in-memory file system here
        page.word(0).store(7, Relaxed);
        page.word(SharedPage::WORDS - 1).store(9, Relaxed);
        drop(page);
        let again = SharedPage::open(&path).expect("it is there");
        assert_eq!((again.word(0).load(Relaxed), again.word(511).load(Relaxed)), (7, 9));
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_page_must_lie_in_memory_and_be_no_link() {
        let link = Path::new("/dev/shm").join(format!("forebay-link-{}", std::process::id()));
        if std::os::unix::fs::symlink("/dev/null", &link).is_ok() {
            assert!(SharedPage::open(&link).is_err());
            std::fs::remove_file(&link).expect("it is there");
        }
        assert!(SharedPage::open(Path::new("/proc/self/comm")).is_err());
    }

    #[test]
    fn the_machine_was_started_before_now() {
        assert!(boot_unix_ns() <= unix_ns());
    }
}
