//! The FUSE server against the real kernel: dd, fio, losetup, ext4, fallocate; kill -9 and restart;
//! parallelism.
//!
//! Each test starts a server process of its own (`examples/fuse-memory.rs`), and cleans up mounts
//! and loop devices also when it fails. Tests are skipped, with a line on stdout, where `/dev/fuse`
//! cannot be opened; those that need root or a tool, where that is missing.

#![allow(clippy::unwrap_used, reason = "test code")]

mod names;
mod ring;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A server process and its private directory; dropping it removes remaining mounts.
struct Served {
    child: Child,
    lines: BufReader<ChildStdout>,
    path: PathBuf,
    targets: Vec<PathBuf>,
    /// Requests have to arrive over the ring.
    over_ring: bool,
}

/// True if this machine supports the tests.
fn fuse_is_there() -> bool {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &opened {
        println!("skipped: /dev/fuse cannot be opened: {error}");
    }
    opened.is_ok()
}

fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
    if !found.status.success() {
        println!("skipped: {tool} is not installed");
    }
    found.status.success()
}

/// The server, which `cargo test` builds next to this program.
fn server_program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/fuse-memory");
    assert!(program.exists(), "{} is missing: make build-tests", program.display());
    program
}

fn start(path: &Path, settings: &[(&str, &str)]) -> (Served, String) {
    let mut command = Command::new(server_program());
    command.env(names::PATH, path).envs(settings.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let targets = vec![path.to_owned(), path.parent().unwrap().to_owned()];
    let mut served = Served { child, lines, path: path.into(), targets, over_ring: false };
    let said = served.line(&["ready", "refused"]);
    (served, said)
}

/// A server of a volume of so many bytes.
fn volume(path: &Path, size_bytes: u64, settings: &[(&str, &str)]) -> Served {
    let size = size_bytes.to_string();
    let settings: Vec<_> = settings.iter().copied().chain([(names::SIZE, size.as_str())]).collect();
    let (mut served, said) = start(path, &settings);
    assert_eq!(said, "ready");
    served.over_ring = settings.iter().any(|(name, _)| *name == names::RING);
    served
}

impl Served {
    /// The next line that begins with one of the words.
    fn line(&mut self, words: &[&str]) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the server ended without a word");
            if words.iter().any(|word| line.starts_with(word)) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Unmounts in an orderly way; returns the maximum of requests in flight, and the flushes.
    fn stop(mut self) -> (u64, u64) {
        drop(self.child.stdin.take());
        let line = self.line(&["busiest"]);
        assert!(self.child.wait().unwrap().success());
        assert_eq!(!line.contains(" over /dev/fuse: "), self.over_ring, "{line}");
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for target in &self.targets {
            let kind =
                Command::new("findmnt").args(["-n", "-o", "FSTYPE", "--mountpoint"]).arg(target).output();
            if kind.is_ok_and(|kind| kind.stdout.starts_with(b"fuse.forebay")) {
                let _ = Command::new("umount").arg("-l").arg(target).output();
            }
        }
    }
}

fn run(command: &str) -> Output {
    Command::new("sh").args(["-ec", command]).output().unwrap()
}

fn ok(command: &str) -> String {
    let output = run(command);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}\n{said}\n{complained}");
    said.into_owned()
}

fn fails(command: &str) -> String {
    let output = run(command);
    assert!(!output.status.success(), "should have failed: {command}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn fio(path: &Path, arguments: &str) -> String {
    ok(&format!("fio --name=test --filename={} --direct=1 --output-format=terse {arguments}", path.display()))
}

type Settings = Vec<(&'static str, &'static str)>;

/// The transports that this machine supports: an engine of the reactor, through `/dev/fuse` or over
/// the ring.
fn ways() -> Vec<(Settings, Option<ring::Switch>)> {
    let mut ways = vec![(vec![(names::ENGINE, "uring")], None), (vec![(names::ENGINE, "psync")], None)];
    ways.extend(ring::Switch::on().map(|switch| (vec![(names::RING, "67108864")], Some(switch))));
    ways
}

#[test]
fn volume_file_holds_what_was_written() {
    if !fuse_is_there() {
        return;
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let mountpoint = dir.path().join("mnt");
        let served = volume(&mountpoint.join("disk"), 16 * MIB + 512, &settings);
        let disk = served.path.display().to_string();
        let input = dir.path().join("input").display().to_string();
        assert_eq!(ok(&format!("ls {}", mountpoint.display())), "disk\n");
        assert_eq!(ok(&format!("stat -c '%s %F %a' {disk}")), "16777728 regular file 600\n");
        ok(&format!("head -c 16777216 /dev/urandom > {input}"));
        for block in ["512", "4k", "128k", "1M", "3M"] {
            ok(&format!("dd if={input} of={disk} bs={block} oflag=direct conv=notrunc,fsync count=8"));
            ok(&format!("dd if={disk} iflag=direct,fullblock bs={block} count=8 | cmp -n 4096 - {input}"));
        }
        // O_TRUNC has no effect, and transfers of any length and position are right.
        ok(&format!("cat {input} > {disk}; cmp -n 16777216 {disk} {input}"));
        ok(&format!("dd if={input} of={disk} bs=1000 seek=7 count=13 conv=notrunc,fsync"));
        ok(&format!("dd if={disk} bs=1000 skip=7 count=13 | cmp -n 13000 - {input}"));
        let (_, flushes) = served.stop();
        assert_eq!(flushes, 6, "each fsync is one flush, and nothing else is");
        assert!(!mountpoint.exists(), "the directory was made for the mount, and goes with it");
    }
}

#[test]
fn file_ends_at_the_end_of_the_volume() {
    if !fuse_is_there() {
        return;
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let served = volume(&dir.path().join("mnt/disk"), MIB, &settings);
        let disk = served.path.display().to_string();
        let file = OpenOptions::new().read(true).write(true).open(&served.path).unwrap();
        file.write_all_at(b"last", MIB - 4).unwrap();
        let mut bytes = [0; 100];
        assert_eq!(file.read_at(&mut bytes, MIB - 4).unwrap(), 4);
        assert_eq!(&bytes[..4], b"last");
        assert_eq!(file.read_at(&mut bytes, MIB).unwrap(), 0);
        assert_eq!(file.write_at(&[1; 8192], MIB - 4096).unwrap(), 4096, "as much as fits");
        assert_eq!(file.write_at(b"x", MIB).unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(fails(&format!("truncate -s 2M {disk}")).contains("not permitted"));
        assert!(fails(&format!("truncate -s 0 {disk}")).contains("not permitted"));
        assert!(fails(&format!("fallocate -l 2M {disk}")).contains("No space left"));
        fails(&format!("rm {disk}"));
        fails(&format!("touch {disk}2"));
        ok(&format!(
            "touch {disk}; chmod 640 {disk}; chown 1:1 {disk}; truncate -s 1M {disk}; fallocate -l 1M {disk}"
        ));
        assert_eq!(ok(&format!("stat -c '%s %a %u' {disk}")), "1048576 640 1\n");
        assert_eq!(ok(&format!("stat -f -c '%b %f %S' {disk}")), "256 0 4096\n");
        served.stop();
    }
}

#[test]
fn fio_reads_back_what_it_wrote_at_depth_32() {
    if !fuse_is_there() || !has("fio") {
        return;
    }
    let mut ways = ways();
    ways.push((vec![(names::ENGINE, "uring"), (names::POOL, "41943040")], None));
    // So little memory permits only the shortest payloads, and few entries.
    ways.extend(
        ring::Switch::on()
            .map(|switch| (vec![(names::RING, "1048576"), (names::POOL, "41943040")], Some(switch))),
    );
    for (settings, _switch) in ways {
        let dir = tempfile::tempdir().unwrap();
        let served = volume(&dir.path().join("mnt/disk"), 32 * MIB, &settings);
        for client in ["libaio", "io_uring"] {
            for sizes in ["--bs=512", "--bs=4k", "--bsrange=512-192k --bs_unaligned=0 --blockalign=512"] {
                let verify =
                    "--rw=randrw --iodepth=32 --verify=crc32c --verify_fatal=1 --io_size=24m --size=32m";
                fio(&served.path, &format!("--ioengine={client} {verify} {sizes}"));
            }
        }
        served.stop();
    }
}

#[test]
fn holes_and_zeroes_read_as_zeroes() {
    if !fuse_is_there() {
        return;
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let served = volume(&dir.path().join("mnt/disk"), 8 * MIB, &settings);
        let disk = served.path.display().to_string();
        let mut expected = vec![0xA5; 8 * MIB as usize];
        File::options().write(true).open(&served.path).unwrap().write_all_at(&expected, 0).unwrap();
        for (mode, start, len) in [
            ("--punch-hole", 4096, 8192),
            ("--punch-hole", 1_000_001, 77_777),
            ("--zero-range", 2 << 20, 1 << 20),
            ("--zero-range", 5_000_512, 512),
        ] {
            ok(&format!("fallocate {mode} --keep-size -o {start} -l {len} {disk}"));
            expected[start..start + len].fill(0);
        }
        ok(&format!("fallocate --punch-hole --keep-size -o {} -l 1M {disk}", 8 * MIB - 4096));
        expected[8 * MIB as usize - 4096..].fill(0);
        assert!(std::fs::read(&served.path).unwrap() == expected);
        assert!(fails(&format!("fallocate --collapse-range -o 0 -l 4096 {disk}")).contains("not supported"));
        served.stop();
    }
}

/// A loop device that is removed on drop.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

#[test]
fn file_system_on_a_loop_device_passes_fsck() {
    let root = ok("id -u") == "0\n";
    if !fuse_is_there() || !has("losetup") || !has("mkfs.ext4") || !root {
        return println!("skipped: needs root, losetup and mkfs.ext4");
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let served = volume(&dir.path().join("mnt/disk"), 64 * MIB, &settings);
        let attach = format!("losetup --direct-io=on --show -f {}", served.path.display());
        let device = Loop(ok(&attach).trim().to_owned());
        let dio = ok(&format!("losetup -n -O DIO {}", device.0));
        assert_eq!(dio.trim(), "1", "the loop device does direct I/O");
        let ext4 = dir.path().join("ext4");
        std::fs::create_dir(&ext4).unwrap();
        let (device_path, ext4) = (&device.0, ext4.display());
        ok(&format!("mkfs.ext4 -q {device_path}; mount -o discard {device_path} {ext4}"));
        let filled = ok(&format!(
            "head -c 20M /dev/urandom > {ext4}/a; cp {ext4}/a {ext4}/b; sync; rm {ext4}/b; fstrim {ext4}; md5sum < {ext4}/a"
        ));
        ok(&format!("umount {ext4}; fsck.ext4 -fn {device_path}; mount {device_path} {ext4}"));
        let read_back = ok(&format!("md5sum < {ext4}/a; umount {ext4}"));
        assert_eq!(filled, read_back);
        drop(device);
        served.stop();
    }
}

#[test]
fn mounts_on_files_and_by_helper_work() {
    if !fuse_is_there() || !has("fusermount3") {
        return;
    }
    for method in ["system", "helper"] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("here with space");
        std::fs::write(&file, "below").unwrap();
        let served = volume(&file, MIB, &[(names::METHOD, method)]);
        let disk = File::options().read(true).write(true).open(&file).unwrap();
        disk.write_all_at(b"above", 5).unwrap();
        assert_eq!(disk.metadata().unwrap().len(), MIB);
        drop(disk);
        let source = ok(&format!("findmnt -n -o SOURCE,FSTYPE --mountpoint '{}'", file.display()));
        assert_eq!(source.split_whitespace().collect::<Vec<_>>(), ["forebay", "fuse.forebay"]);
        served.stop();
        assert_eq!(std::fs::read(&file).unwrap(), b"below");
    }
}

#[test]
fn unsuitable_mountpoints_are_refused() {
    if !fuse_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let refused = |path: PathBuf| {
        let (_served, said) = start(&path, &[(names::SIZE, "4096")]);
        said
    };
    assert!(refused(dir.path().join("disk")).contains("not empty"));
    assert!(refused(dir.path().into()).contains("is a directory"));
    assert!(refused("/dev/null".into()).contains("not a regular file"));
    assert!(refused(dir.path().join("a/b/c")).contains("making the directory"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was left behind");
}

#[test]
fn a_killed_server_is_replaced_by_the_next() {
    if !fuse_is_there() {
        return;
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "below").unwrap();
        for path in [dir.path().join("mnt/disk"), file] {
            let slow = [&settings[..], &[(names::DELAY_US, "2000000")]].concat();
            let mut killed = volume(&path, MIB, &slow);
            let (_other, said) = start(&path, &[(names::SIZE, "1048576")]);
            assert!(said.contains("running forebay"), "{said}");
            // A reader that waits when the server dies gets an error, and does not wait forever.
            let mut reader = Command::new("dd");
            reader
                .args(["of=/dev/null", "count=1"])
                .arg(format!("if={}", path.display()))
                .stderr(Stdio::null());
            let mut reader = reader.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            killed.child.kill().unwrap();
            killed.child.wait().unwrap();
            assert!(!reader.wait().unwrap().success());
            let error = File::open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
            killed.targets.clear(); // the next server has to clean up
            drop(killed);
            let served = volume(&path, 2 * MIB, &settings);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * MIB);
            served.stop();
            let left = ok("cat /proc/self/mountinfo");
            assert!(!left.contains(&dir.path().display().to_string()), "{left}");
        }
    }
}

#[test]
fn unmounted_from_outside_the_server_ends() {
    if !fuse_is_there() {
        return;
    }
    for (settings, _switch) in ways() {
        let dir = tempfile::tempdir().unwrap();
        let mut served = volume(&dir.path().join("mnt/disk"), MIB, &settings);
        ok(&format!("umount {}", dir.path().join("mnt").display()));
        served.line(&["busiest"]);
        assert!(served.child.wait().unwrap().success());
    }
}

/// Requests of 20 ms each: however slow the machine is, the earlier ones are still in flight when
/// the last of 32 arrives. The server counts how many there were at once.
#[test]
fn thirty_two_slow_reads_run_at_once() {
    if !fuse_is_there() || !has("fio") {
        return;
    }
    for (mut settings, _switch) in ways() {
        settings.push((names::DELAY_US, "20000"));
        for client in ["--ioengine=io_uring --iodepth=32", "--ioengine=psync --numjobs=32 --group_reporting"]
        {
            let dir = tempfile::tempdir().unwrap();
            let served = volume(&dir.path().join("mnt/disk"), 64 * MIB, &settings);
            fio(
                &served.path,
                &format!("{client} --rw=randread --bs=16k --size=64m --time_based --runtime=2"),
            );
            let (busiest, _) = served.stop();
            assert!(busiest >= 30, "only {busiest} requests were under way at once ({settings:?}, {client})");
        }
    }
}
