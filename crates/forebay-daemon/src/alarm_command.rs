//! The operator's own program for alarms (`alarm_command`): the daemon runs it for each alarm that
//! is raised, gets worse or ends, with the event as JSON on its standard input.
//!
//! # Invariants
//! - No alarm waits for the program: a dedicated thread follows the events as any other reader
//!   does, with a bounded queue.
//! - One process at a time for alarms, each for at most [`LIMIT`]. Then its process group is
//!   killed.
//! - Its input and output are in memory of a fixed size (`memfd`): neither side waits for the
//!   other, and a program that prints without end fills nothing.
//! - An alarm that continues after a restart of the daemon is not passed to it again.
//! - A program that fails has an alarm of its own, which is not passed to it.
//! - The daemon does not wait for it when it stops: a running program continues, unless a service
//!   manager ends it.

use crate::service::Service;
use forebay_admin::events::{
    Delivery, Event, EventKind, Filter, Hub, Received, Severity, Start, Subscription, rfc3339,
};
use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Weak;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time for one alarm: suffices for a mail or a message over a working network.
const LIMIT: Duration = Duration::from_secs(30);
/// Time limit for waiting for a killed process; it may hang in the kernel forever.
const REAP: Duration = Duration::from_secs(1);
/// Interval at which the thread checks whether the process has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Interval at which the thread checks whether the daemon still runs.
const AWAKE: Duration = Duration::from_secs(2);
/// Bytes of its standard error that are kept for the log.
const PRINTED_BYTES_MAX: usize = 4096;
/// Variables by which a service manager identifies its own process.
const OF_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The program to run.
#[derive(Clone, Debug)]
pub(crate) struct AlarmCommand {
    /// Program and arguments; not empty.
    pub(crate) words: Vec<String>,
    /// Admin socket of the daemon, for calls of the program.
    pub(crate) admin_socket: PathBuf,
}

/// Follows the alarms from the first one on; ends with the daemon.
///
/// # Errors
/// There is no thread, or there are too many readers of events.
pub(crate) fn spawn(service: Weak<Service>, hub: &Hub) -> std::io::Result<()> {
    let filter = [EventKind::AlarmRaised, EventKind::AlarmCleared]
        .iter()
        .try_fold(Filter::default(), |filter, kind| filter.kind(kind.name()))
        .map_err(std::io::Error::other)?;
    let alarms = hub.subscribe(filter, Start::Oldest).map_err(std::io::Error::other)?;
    let follow = move || follow(&service, alarms);
    std::thread::Builder::new().name("alarms".into()).spawn(follow).map(drop)
}

fn follow(service: &Weak<Service>, mut alarms: Subscription) {
    loop {
        let received = alarms.receive(AWAKE);
        let Some(command) = service.upgrade().map(|service| service.alarm_command()) else { return };
        let (Some(command), Received::Delivery(delivery)) = (command, &received) else {
            if received == Received::Closed {
                return;
            }
            continue;
        };
        // Without a reference to the service: it may end while the program runs.
        let told = match delivery {
            Delivery::Gap(gap) => {
                let lost = gap.lost_max.map_or_else(|| "some".into(), |lost| lost.to_string());
                Err(format!("{lost} alarms were not delivered: the program is too slow"))
            }
            Delivery::Event(event) if is_own(event) || event.details["continues"] == true => continue,
            Delivery::Event(event) => command.run(&event.to_json()),
        };
        let Some(service) = service.upgrade() else { return };
        service.telemetry().note_alarm_command(&command.what(), &told);
    }
}

fn is_own(event: &Event) -> bool {
    event.details["condition"] == EventKind::AlarmCommandFailed.name()
}

impl AlarmCommand {
    /// Returns the program as text for messages.
    pub(crate) fn what(&self) -> String {
        format!("alarm_command {}", self.words.first().map_or("", String::as_str))
    }

    /// Runs the program with a test alarm.
    ///
    /// # Errors
    /// As [`AlarmCommand::run`].
    pub(crate) fn test(&self) -> Result<(), String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        self.run(&json!({
            "id": null, "time": rfc3339(now), "time_unix_ns": now, "kind": "alarm.test",
            "severity": Severity::Info.name(), "pool": null, "volume": null, "job": null,
            "message": "This is a test of alarm_command: nothing is wrong.", "details": null,
            "collapse_key": null,
        }))
    }

    /// Runs the program, and waits for its end within the limit.
    ///
    /// # Errors
    /// The program cannot be started, does not end, or ends with an exit code other than 0; with
    /// the first line of its standard error.
    fn run(&self, event: &Value) -> Result<(), String> {
        let memory = |error: std::io::Error| format!("cannot create a file in memory for it: {error}");
        let input = given(&format!("{event}\n")).map_err(memory)?;
        let printed = bounded().map_err(memory)?;
        let [program, arguments @ ..] = &self.words[..] else { return Ok(()) };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir("/")
            .env("FOREBAY_ADMIN", &self.admin_socket)
            .stdin(Stdio::from(input))
            .stdout(Stdio::null())
            .stderr(Stdio::from(printed.try_clone().map_err(memory)?))
            .process_group(0);
        OF_MANAGER.iter().for_each(|name| {
            command.env_remove(name);
        });
        let child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
        match ended(child) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("it ended with {}{}", how(status), first_line(&printed))),
            None => Err(format!(
                "it did not end within {} s and was killed{}",
                LIMIT.as_secs(),
                first_line(&printed)
            )),
        }
    }
}

/// Returns a file in memory with this text.
fn given(text: &str) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("alarm", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file)
}

/// Returns a file in memory of at most [`PRINTED_BYTES_MAX`]: writes beyond that fail.
fn bounded() -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("alarm", flags)?);
    file.set_len(PRINTED_BYTES_MAX as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW)?;
    Ok(file)
}

/// Returns its exit status; `None` if it had to be killed.
fn ended(mut child: Child) -> Option<ExitStatus> {
    let wait = |child: &mut Child, until: Instant| loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            _ => break None,
        }
    };
    if let Some(status) = wait(&mut child, Instant::now() + LIMIT) {
        return Some(status);
    }
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    if wait(&mut child, Instant::now() + REAP).is_none() {
        // A detached thread waits for a process that hangs in the kernel.
        let _ = std::thread::Builder::new().name("alarms-reap".into()).spawn(move || child.wait());
    }
    None
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// Returns the first line of its output, as the rest of a sentence.
fn first_line(printed: &File) -> String {
    let mut bytes = [0; PRINTED_BYTES_MAX];
    let _ = printed.read_at(&mut bytes, 0); // empty on an error
    let text = String::from_utf8_lossy(&bytes);
    let line = text.trim_matches(['\0', '\n', ' ']).lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|letter| !letter.is_control()).take(200).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn shell(script: &str) -> AlarmCommand {
        let words = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        AlarmCommand { words, admin_socket: "/run/a.sock".into() }
    }

    #[test]
    fn alarm_command_gets_event_and_socket() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("alarm.json");
        shell(&format!("cat > {0}; echo $FOREBAY_ADMIN >> {0}", at.display())).test().unwrap();
        let text = std::fs::read_to_string(&at).unwrap();
        let (event, socket) = text.trim_end().split_once('\n').unwrap();
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!((&event["kind"], socket), (&json!("alarm.test"), "/run/a.sock"));
    }

    #[test]
    fn failed_alarm_command_is_quoted() {
        let error = shell("echo no route to host >&2; echo more >&2; exit 3").test().unwrap_err();
        assert_eq!(error, "it ended with exit code 3: no route to host");
        let error = shell("kill -9 $$").test().unwrap_err();
        assert_eq!(error, "it ended with signal 9");
        let nothing = AlarmCommand { words: vec!["/nonexistent/alarm".into()], ..shell("") };
        assert!(nothing.test().unwrap_err().starts_with("it cannot be started: "));
    }

    #[test]
    fn endless_output_of_a_command_is_cut() {
        // Its writes fail beyond the limit, so `yes` ends.
        let error = shell("yes full >&2; exit 4").test().unwrap_err();
        assert!(error.starts_with("it ended with exit code 4: full"), "{error}");
    }
}
