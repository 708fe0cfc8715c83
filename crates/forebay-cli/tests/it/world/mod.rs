//! The real program in a private directory: a disk, a cache, and perhaps a daemon that serves them.

use forebay_nbd_client::{NbdClient, Transport};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) const DISK_BYTES: u64 = 64 << 20;

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) struct World {
    folder: tempfile::TempDir,
    pub(crate) daemon: Option<Child>,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::File::create(folder.path().join("disk")).unwrap().set_len(DISK_BYTES).unwrap();
        Self { folder, daemon: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the URI of the volume.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///vol?socket={}", self.path("nbd").display())
    }

    /// Returns the command that serves the disk with a cache of this size.
    pub(crate) fn command(&self, cache_size: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(["run", "--backing", text(&self.path("disk")), "--export", &self.uri()])
            .args(["--cache", &format!("{}:{cache_size}", self.path("cache").display())])
            .args(["--admin", text(&self.path("admin"))])
            .env("STATE_DIRECTORY", self.path("state"));
        command
    }

    /// Starts it and waits until so many exports are ready.
    pub(crate) fn serve(&mut self, mut command: Command, exports: usize) {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut daemon = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
        self.daemon = Some(daemon);
        for _ in 0..exports {
            let line = lines.next().unwrap_or_else(|| panic!("{}", self.log())).unwrap();
            assert!(line.starts_with("ready: "), "{line}");
        }
        // Drain the pipe, so that it does not fill.
        std::thread::spawn(move || lines.for_each(drop));
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn client(&self) -> NbdClient<Transport> {
        NbdClient::connect(&self.uri().parse().unwrap()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Suspends the daemon until [`World::resume`], or a kill.
    #[allow(dead_code, reason = "only one of the programs of tests needs it")]
    pub(crate) fn pause(&self) {
        let pid = Pid::from_child(self.daemon.as_ref().unwrap());
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    #[allow(dead_code, reason = "only one of the programs of tests needs it")]
    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(self.daemon.as_ref().unwrap()), Signal::CONT).unwrap();
    }

    pub(crate) fn stop(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        Command::new("kill").arg(daemon.id().to_string()).status().unwrap();
        assert!(daemon.wait().unwrap().success(), "{}", self.log());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if !std::thread::panicking() {
            let log = self.log();
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}
