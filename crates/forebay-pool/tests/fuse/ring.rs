//! The kernel's switch for FUSE over io_uring, and tests that only apply to the ring.

use super::{MIB, Served, fuse_is_there, names, ok, start, volume};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Where systemd mounts `fusectl`, without which there is no ring.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How many users need it on, its value before the first, and the lock on it: other tests on this
/// machine have to wait.
static WANTED: Mutex<(usize, String, Option<File>)> = Mutex::new((0, String::new(), None));

/// The switch is on until the last of these is dropped; then its original value is restored.
pub(super) struct Switch(());

impl Switch {
    /// `None`, with a line that gives the reason, where the kernel has no ring or this user no
    /// permission.
    pub(super) fn on() -> Option<Self> {
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.0 == 0 {
            let switched = File::open(PARAMETER).and_then(|file| {
                rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
                mount_connections()?;
                wanted.1 = std::fs::read_to_string(PARAMETER)?;
                wanted.2 = Some(file);
                std::fs::write(PARAMETER, "Y")
            });
            if let Err(error) = switched {
                println!("skipped over io_uring: {PARAMETER}: {error}");
                return None;
            }
        }
        wanted.0 += 1;
        Some(Self(()))
    }
}

/// Mounts `fusectl`, which stays mounted.
fn mount_connections() -> std::io::Result<()> {
    let is_mounted = std::fs::read_to_string("/proc/self/mounts")?.contains(CONNECTIONS);
    let done = is_mounted || {
        let mount = ["-t", "fusectl", "none", CONNECTIONS];
        std::process::Command::new("mount").args(mount).status()?.success()
    };
    if done { Ok(()) } else { Err(std::io::Error::other("fusectl cannot be mounted")) }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.0 -= 1;
        if wanted.0 == 0 {
            let _ = std::fs::write(PARAMETER, wanted.1.trim());
            wanted.2 = None;
        }
    }
}

/// The last line of a server that unmounts now.
fn last_words(mut served: Served) -> String {
    drop(served.child.stdin.take());
    let line = served.line(&["busiest"]);
    assert!(served.child.wait().unwrap().success());
    line
}

#[test]
fn missing_ring_parts_are_reported() {
    let Some(_switch) = Switch::on().filter(|_| fuse_is_there()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let said = |settings: &[(&str, &str)]| {
        let settings = [&[(names::SIZE, "1048576")], settings].concat();
        let (served, ready) = start(&dir.path().join("mnt/disk"), &settings);
        assert_eq!(ready, "ready");
        ok(&format!("dd if={0} count=1 2>/dev/null | cmp -n 512 - /dev/zero", served.path.display()));
        last_words(served)
    };
    let psync = said(&[(names::RING, "67108864"), (names::ENGINE, "psync")]);
    assert!(
        psync.contains("over /dev/fuse: not over io_uring: the pool does its I/O with threads"),
        "{psync}"
    );
    let little = said(&[(names::RING, "1000")]);
    assert!(little.contains("raise buffer_memory"), "{little}");
    let ring = said(&[(names::RING, "67108864")]);
    assert!(ring.contains("over io_uring: queues: ") && ring.contains("1MiB the longest"), "{ring}");
}

/// Requests that a file's server has not answered, as the kernel counts them.
fn waiting(file: &File) -> Option<u64> {
    let device = file.metadata().unwrap().dev();
    let minor = device & 0xFF | device >> 12 & !0xFF;
    let count = std::fs::read_to_string(format!("{CONNECTIONS}/{minor}/waiting")).ok()?;
    count.trim().parse().ok()
}

/// With a file still open, only the end of the connection ends the kernel's commands. Requests in
/// flight then are answered; later ones do not keep the server.
#[test]
fn open_file_does_not_delay_the_servers_end() {
    let Some(_switch) = Switch::on().filter(|_| fuse_is_there()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt/disk");
    let served = volume(&path, MIB, &[(names::RING, "67108864"), (names::DELAY_US, "300000")]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // One after the other, as long as the server answers, and never all at once.
    let read = |number: u64| {
        let reads = file.try_clone().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(70 * number));
            while reads.read_at(&mut [0; 16], 4096).is_ok() {}
        })
    };
    let readers: Vec<_> = (0..5).map(read).collect();
    while waiting(&file) != Some(5) {
        assert!(!readers.iter().any(|reader| reader.is_finished()), "nobody saw them wait");
    }
    let writes = file.try_clone().unwrap();
    let writer = std::thread::spawn(move || writes.write_at(&[7; 4096], 0));
    while waiting(&file) != Some(6) {
        assert!(!writer.is_finished(), "nobody saw it wait");
    }
    // Once this is answered, the server has the earlier write.
    drop(File::open(&path).unwrap());
    served.stop();
    assert_eq!(writer.join().unwrap().unwrap(), 4096);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(file.read_at(&mut [0; 16], 0).is_err(), "nobody is there any more");
}
