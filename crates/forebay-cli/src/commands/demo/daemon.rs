//! The daemon of the demo: this program as a child process, `forebay run`.

use forebay_admin::MessageId;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_export::uri::{Endpoint, ExportUri, FilePermissions, Guards};
use forebay_nbd_client::{HandshakeOptions, NbdClient, Transport};
use rustix::process::{Pid, Signal, kill_process};

use super::content::nbd;
use crate::commands::stats;
use crate::failure::{Failure, system};
use crate::screen::harmless;

/// Time limit for start, stop, and a reply.
const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "demo";

/// Parameters to start it.
pub(super) struct Setup<'a> {
    pub(super) folder: &'a Path,
    pub(super) cache: PathBuf,
    pub(super) cache_bytes: u64,
    pub(super) mode: &'a str,
}

/// A daemon that serves; killed when dropped.
pub(super) struct Daemon {
    child: Child,
    folder: PathBuf,
    messages: PathBuf,
    ready_after: Duration,
}

impl Daemon {
    /// Starts it and waits until it serves.
    pub(super) fn start(setup: &Setup<'_>) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(system("cannot find this program"))?;
        let messages = setup.folder.join("daemon.log");
        let log = File::options().create(true).append(true).open(&messages);
        let log = log.map_err(system(messages.display()))?;
        let started = Instant::now();
        let child = Command::new(program)
            .arg("run")
            // The demo has its own state, removed when it ends.
            .env("STATE_DIRECTORY", setup.folder.join("state"))
            .arg("--new-cache")
            .args(["--mode", setup.mode, "--emulate", "hdd-7200"])
            .arg("--backing")
            .arg(setup.folder.join("disk.img"))
            .arg("--cache")
            .arg(format!("{}:{}", setup.cache.display(), setup.cache_bytes))
            .arg("--export")
            .arg(export(setup.folder).to_string())
            .arg("--admin")
            .arg(admin(setup.folder))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(system("cannot start the daemon"))?;
        let mut daemon = Self { child, folder: setup.folder.into(), messages, ready_after: Duration::ZERO };
        daemon.wait_until_ready()?;
        daemon.ready_after = started.elapsed();
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let (say, heard) = mpsc::channel();
        if let Some(stdout) = self.child.stdout.take() {
            let pass_on = move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = say.send(line); // no receiver once it is ready
                }
            };
            let thread = std::thread::Builder::new().name("daemon's output".into()).spawn(pass_on);
            thread.map_err(system("cannot start a thread"))?;
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("ready: ") => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.explain(Failure::new(
                        MessageId::DaemonNotReady,
                        "the daemon did not become ready",
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status =
                        self.child.wait().map_or("without a status".into(), |status| status.to_string());
                    return Err(self.explain(Failure::new(
                        MessageId::DaemonNotReady,
                        format!("the daemon ended ({status})"),
                    )));
                }
            }
        }
    }

    /// Returns the time from start to ready.
    pub(super) fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Connects to the volume.
    pub(super) fn connect(&self) -> Result<NbdClient<Transport>, Failure> {
        let options = HandshakeOptions { contexts: Vec::new(), ..HandshakeOptions::default() };
        let client = NbdClient::connect_with(&export(&self.folder), &options).map_err(nbd)?;
        client.stream().set_timeout(Some(TIMEOUT)).map_err(system("cannot set a timeout"))?;
        Ok(client)
    }

    /// Returns how many blocks reads found in the cache, and how many not; `None` if unknown.
    pub(super) fn hits(&self) -> Option<Hits> {
        let statistics = stats::statistics_of(&admin(&self.folder)).ok()?;
        let number = |name: &str| statistics[name].as_u64();
        Some(Hits { hit: number("read_hit_blocks")?, missed: number("read_miss_blocks")? })
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().map_err(system("cannot kill the daemon"))?;
        self.child.wait().map(drop).map_err(system("cannot wait for the daemon"))
    }

    /// Stops it in an orderly way.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM); // if it has ended already, its status explains why
        }
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            match self.child.try_wait().map_err(system("cannot wait for the daemon"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended(status)),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(self.explain(Failure::new(MessageId::DaemonStopFailed, "the daemon did not stop")))
    }

    fn ended(&self, status: ExitStatus) -> Failure {
        self.explain(Failure::new(
            MessageId::DaemonStopFailed,
            format!("the daemon did not stop cleanly ({status})"),
        ))
    }

    /// Adds the daemon's last output.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let text = std::fs::read(&self.messages).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let mut what = failure.to_string();
        for line in &lines[lines.len().saturating_sub(5)..] {
            what += &format!("\n  daemon: {}", harmless(line));
        }
        failure.reworded(what)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads since the start, in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    hit: u64,
    missed: u64,
}

impl Hits {
    /// Returns the hit ratio since an earlier sample.
    pub(super) fn ratio_since(self, before: Hits) -> Option<f64> {
        let (hit, missed) = (self.hit.saturating_sub(before.hit), self.missed.saturating_sub(before.missed));
        (hit + missed > 0).then(|| hit as f64 / (hit + missed) as f64)
    }
}

fn export(folder: &Path) -> ExportUri {
    ExportUri::Nbd {
        endpoint: Endpoint::Unix(folder.join("nbd.sock")),
        name: NAME.into(),
        guards: Guards::default(),
        permissions: FilePermissions::default(),
    }
}

fn admin(folder: &Path) -> PathBuf {
    folder.join("admin.sock")
}
