//! The control file system against the real kernel, with a fake daemon. Skipped, with a line on
//! stdout, where `/dev/fuse` cannot be opened.

#![allow(clippy::unwrap_used, reason = "test code")]

mod fake;

use fake::Fake;
use forebay_daemon::control_files::{ControlFiles, Options, mount_with};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Mounted {
    fs: Option<ControlFiles>,
    fake: Arc<Fake>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn mounted() -> Option<Mounted> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        println!("skipped: /dev/fuse cannot be opened: {error}");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, fake) = (folder.path().join("control"), Arc::new(Fake::default()));
    let alarm = serde_json::json!({"id": "a1", "severity": "warning", "condition": "cache-full", "message": "no room"});
    let options = Options { alarms: Some(Arc::new(move || vec![alarm.clone()])) };
    let fs = mount_with(&path, fake.clone(), options).unwrap();
    Some(Mounted { fs: Some(fs), fake, path, _folder: folder })
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.fake.change(|state| state.stuck = false);
    }
}

impl Mounted {
    /// Runs a shell command in the mount.
    fn run(&self, command: &str) -> Output {
        let limited = ["20", "sh", "-c", command];
        Command::new("timeout").args(limited).current_dir(&self.path).env("LC_ALL", "C").output().unwrap()
    }

    fn ok(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(!output.status.success(), "should have failed: {command}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap()
    }

    /// Writes in one `write(2)`; returns the error number.
    fn write(&self, file: &str, text: &str) -> Result<(), i32> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path.join(file)).unwrap();
        let written = file.write(text.as_bytes()).map_err(|error| error.raw_os_error().unwrap())?;
        assert_eq!(written, text.len());
        Ok(())
    }

    /// Runs `echo 1 > flush`, and waits until its job has begun.
    fn flushing(&self) -> (Child, String) {
        let jobs = self.fake.state.lock().unwrap().jobs.len();
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo 1 > volumes/db/flush"]).current_dir(&self.path);
        let child = echo.stderr(Stdio::piped()).spawn().unwrap();
        self.fake.wait("a flush", |state| state.jobs.len() > jobs);
        (child, format!("j{}", jobs + 1))
    }
}

const EINVAL: i32 = 22;
const EIO: i32 = 5;
const EINTR: i32 = 4;

fn end(mut child: Child) -> (bool, String) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not return");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Opens a file until that fails, prints the reason and the count, and holds all until its input
/// ends.
const HOLD: &str = "exec 2>&1; n=0; while exec {fd}<alarms; do n=$((n + 1)); done; echo $n; cat";

#[test]
fn open_texts_are_limited_for_each_user() {
    let Some(m) = mounted() else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: another user can be had only as root");
        return;
    }
    std::fs::set_permissions(m.path.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut holder = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", HOLD])
        .env("LC_ALL", "C")
        .current_dir(&m.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let why = lines.next().unwrap().unwrap();
    assert!(why.ends_with("alarms: Too many open files in system"), "{why}");
    assert_eq!(lines.next().unwrap().unwrap(), "256");
    assert_eq!(m.read("alarms"), "a1 warning cache-full: no room\n");
    let other = m.ok("setpriv --reuid 65533 --regid 65533 --clear-groups cat alarms");
    assert_eq!(other, "a1 warning cache-full: no room\n");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(m.ok("setpriv --reuid 65534 --regid 65534 --clear-groups cat daemon/pid"), "42\n");
}

#[test]
fn values_are_files() {
    let Some(m) = mounted() else { return };
    assert_eq!(m.ok("ls"), "alarms\ndaemon\njobs\npools\nvolumes\n");
    assert_eq!(m.ok("cat daemon/version daemon/pid"), "1.2.3\n42\n");
    assert_eq!(m.ok("cat alarms"), "a1 warning cache-full: no room\n");
    assert_eq!(
        m.ok("cd pools/fast && cat capacity_bytes dirty_bytes devices absent"),
        "1000\n7\n4096 /dev/nvme\\n0\n5 old\n"
    );
    assert_eq!(
        m.ok("cd volumes/db && head state size_bytes mode oldest_dirty_age_s ordered exports -qn9"),
        "serving\n1073741824\nwriteback\n1.500\ntrue\nnbd://localhost/db\nfuse:/mnt/db/disk\n"
    );
    assert_eq!(m.ok("cat volumes/db/stats"), "reads=7\nlatency.hit.p50_us=1.5\n");
    assert_eq!(m.ok("cat volumes/db/flashcache_stats"), "reads=7 writes=8 \nread_hits=6\n");
    assert_eq!(m.ok("cat volumes/db/flashcache_errors"), "disk_read_errors=0 disk_write_errors=1\n");
    assert_eq!(m.ok("cat volumes/db/flush volumes/db/job volumes/db/last_error"), "idle\n");
    assert_eq!(m.ok("grep -rl serving . | sort"), "./volumes/db/state\n./volumes/slow/state\n");
    m.fails("cat volumes/none/state");
    m.fails("cat volumes/db/none");
    m.fails("cat jobs/j1/state");
    m.fails("mkdir x || touch y || rm daemon/version");
    let modes = m.ok("stat -c %a daemon volumes/db/state volumes/db/flush volumes/db/config/*");
    assert_eq!(modes, "755\n444\n644\n644\n444\n", "a tunable that is not live cannot be written");
    let owner = m.ok("stat -c '%u %g' volumes/db/state; id -u; id -g").replace(' ', "\n");
    let owner: Vec<&str> = owner.lines().collect();
    assert_eq!(owner[..2], owner[2..], "the daemon's user owns it");
}

#[test]
fn written_tunables_apply_or_give_a_reason() {
    let Some(m) = mounted() else { return };
    let key = "volumes/db/config/dirty_high_pct";
    assert_eq!(m.read(key), "20\n");
    m.ok(&format!("echo 30 > {key}"));
    assert_eq!(m.read(key), "30\n");
    m.ok(&format!("printf 31 >> {key}; truncate -s 0 {key}"));
    assert_eq!(m.read(key), "31\n", "an empty file is no value");
    assert_eq!(m.write(key, "500\n"), Err(EINVAL));
    let reason = "config/dirty_high_pct: dirty_high_pct = 500 is out of range (1 to 100)\n";
    assert_eq!(m.read("volumes/db/last_error"), reason);
    assert_eq!(m.read("daemon/last_error"), format!("volumes/db/{reason}"));
    assert_eq!(m.read("volumes/slow/last_error"), "");
    m.fails(&format!("echo 0 > {key}"));
    assert_eq!(m.read(key), "31\n");
    assert_eq!(m.write(key, "1\n2\n"), Err(EINVAL), "one line");
    assert_eq!(m.write(key, &"9".repeat(200_000)), Err(27), "EFBIG");
    m.ok(&format!("echo 32 > {key}"));
    assert_eq!(m.read("volumes/db/last_error"), "", "it was set after all");
    m.ok("echo 5 > pools/fast/config/dirty_high_pct");
    assert_eq!(m.write("pools/fast/config/dirty_high_pct", "x"), Err(EINVAL));
    assert!(m.read("pools/fast/last_error").starts_with("config/dirty_high_pct: "));
}

#[test]
fn rules_are_lines_and_commands() {
    let Some(m) = mounted() else { return };
    let rules = "volumes/db/rules";
    m.ok(&format!("echo add bypass exe=rsync > {rules}; echo insert 0 bypass uid=7 > {rules}"));
    let first = "2 requests=3 bytes=4096 bypass uid=7\n";
    assert_eq!(m.read(rules), format!("{first}1 requests=3 bytes=4096 bypass exe=rsync\ndefault cache\n"));
    m.ok(&format!("echo delete 1 > {rules}"));
    assert_eq!(m.read(rules), format!("{first}default cache\n"));
    assert_eq!(m.write(rules, "delete 9"), Err(2), "ENOENT");
    for wrong in ["add", "add nonsense", "insert x bypass", "insert 1", "delete", "\n", "drop 1"] {
        assert_eq!(m.write(rules, wrong), Err(EINVAL), "{wrong}");
        assert!(m.read("volumes/db/last_error").starts_with("rules: "), "{wrong}");
    }
}

#[test]
fn flush_blocks_only_its_writer() {
    let Some(m) = mounted() else { return };
    // More than there are threads.
    let flushing: Vec<_> = (0..20).map(|_| m.flushing()).collect();
    assert_eq!(m.read("volumes/db/flush"), "running j20 42%\n");
    assert_eq!(m.ok("cat jobs/j3/state jobs/j3/percent jobs/j3/eta_s"), "running\n42.0\n5.8\n");
    for (index, (mut child, job)) in flushing.into_iter().enumerate() {
        assert!(child.try_wait().unwrap().is_none(), "{job} has not ended");
        match index {
            0 => m.fake.end_job(&job, "failed", Some("the disk is gone")),
            1 => m.ok("echo 1 > jobs/j2/cancel").clear(),
            _ => m.fake.end_job(&job, "completed", None),
        }
        let (success, complaint) = end(child);
        assert_eq!(success, index > 1, "{job}: {complaint}");
        match index {
            0 => {
                assert!(
                    complaint.contains("Input/output error") || complaint.contains("I/O error"),
                    "{complaint}"
                );
                assert_eq!(m.read("volumes/db/last_error"), "flush: job j1 failed: the disk is gone\n");
            }
            1 => assert_eq!(m.read("volumes/db/last_error"), "flush: job j2 was cancelled\n"),
            _ => assert_eq!(m.read("volumes/db/last_error"), ""),
        }
    }
    assert_eq!(m.read("volumes/db/flush"), "completed j20\n");
    m.ok("echo bg > volumes/db/flush");
    assert_eq!(m.read("volumes/db/flush"), "running j21 42%\n");
    assert_eq!(m.write("volumes/db/flush", "2"), Err(EINVAL));
    assert_eq!(m.write("jobs/j21/cancel", "2"), Err(EINVAL));
    m.fake.end_job("j21", "failed", Some("x"));
    assert_eq!(m.read("volumes/db/flush"), "failed j21: x\n");
}

#[test]
fn interrupt_ends_the_wait_not_the_job() {
    let Some(m) = mounted() else { return };
    // Not SIGINT: a shell starts background processes with it ignored, and so do their children.
    for signal in ["TERM", "KILL"] {
        let (child, job) = m.flushing();
        std::thread::sleep(Duration::from_millis(50));
        assert!(
            Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        let begun = Instant::now();
        assert!(!end(child).0);
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(m.read(&format!("jobs/{job}/state")), "running\n");
    }
    // A signal with a handler: the writer sees EINTR.
    let script = "import os, signal, sys\n\
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError(4, 'interrupted')))\n\
        signal.setitimer(signal.ITIMER_REAL, 0.2)\n\
        try:\n os.write(os.open('volumes/db/flush', os.O_WRONLY), b'1')\n\
        except InterruptedError as error: sys.exit(error.errno)";
    let python = Command::new("python3").args(["-c", script]).current_dir(&m.path).status();
    match python {
        Ok(status) => assert_eq!(status.code(), Some(EINTR)),
        Err(error) => println!("skipped in part: python3 cannot be run: {error}"),
    }
}

#[test]
fn slow_queries_do_not_block_other_readers() {
    let Some(m) = mounted() else { return };
    m.fake.change(|state| state.stuck = true);
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let path = m.path.join("volumes/slow/stats");
            std::thread::spawn(move || std::fs::read_to_string(path).unwrap())
        })
        .collect();
    m.fake.wait("slow questions", |state| state.stuck_now == 4);
    let begun = Instant::now();
    let command = "i=0; while [ $i -lt 1000 ]; do cat volumes/db/size_bytes & i=$((i+1)); done; wait";
    assert_eq!(m.ok(command), "1073741824\n".repeat(1000));
    println!("1000 cats in {:?}", begun.elapsed());
    assert!(slow.iter().all(|thread| !thread.is_finished()));
    m.fake.change(|state| state.stuck = false);
    for thread in slow {
        assert_eq!(thread.join().unwrap(), "reads=7\nlatency.hit.p50_us=1.5\n");
    }
}

#[test]
fn unmount_ends_open_requests() {
    let Some(mut m) = mounted() else { return };
    let mut open = File::open(m.path.join("volumes/db/state")).unwrap();
    let (child, job) = m.flushing();
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    drop(m.fs.take());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(!end(child).0);
    assert_eq!(m.fake.state.lock().unwrap().jobs.iter().find(|j| j.id == job).unwrap().state, "running");
    assert!(open.read(&mut [0; 9]).is_err());
    assert!(!m.path.exists(), "the directory was made for the mount");
    // And again at the same path.
    let fs = forebay_daemon::control_files::mount(&m.path, m.fake.clone()).unwrap();
    assert_eq!(m.ok("cat daemon/version; ls"), "1.2.3\ndaemon\njobs\npools\nvolumes\n");
    let second = forebay_daemon::control_files::mount(&m.path, m.fake.clone()).unwrap_err();
    assert!(second.to_string().contains("running forebay"), "{second}");
    drop(fs);
    assert!(!m.path.exists());
}

#[test]
fn slow_query_delays_an_unmount_briefly() {
    let Some(mut m) = mounted() else { return };
    m.fake.change(|state| state.stuck = true);
    let path = m.path.join("volumes/slow/stats");
    let reader = std::thread::spawn(move || std::fs::read_to_string(path));
    m.fake.wait("a slow question", |state| state.stuck_now == 1);
    let begun = Instant::now();
    drop(m.fs.take());
    assert!(begun.elapsed() < Duration::from_secs(60));
    m.fake.change(|state| state.stuck = false);
    let _ = reader.join().unwrap().map_err(|error| assert_ne!(error.raw_os_error(), Some(EIO)));
}
