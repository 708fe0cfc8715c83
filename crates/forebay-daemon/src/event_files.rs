//! The history of events that outlives the daemon: JSON lines in `STATE_DIR/events`.
//!
//! # Invariants
//! - Nothing waits for it: a thread follows the events as any other reader does. If the files take
//!   no writes, only the files lack events.
//! - Two files of at most [`FILE_BYTES_MAX`] each: `events.jsonl`, and its predecessor,
//!   `events.1.jsonl`. An event is one line in one write, so a kill or a second writer (a successor
//!   during the handover) leaves whole lines, except for the last one before a loss of power.
//!   Reading skips lines that are no events.
//! - The alarms that are active at the end of a run are in them: the next run takes them over, and
//!   ends those whose conditions it has not seen within [`SEEN_WITHIN`].
//! - They are not flushed: a loss of power may remove the last events.

use crate::service::{ServiceEvent, Telemetry};
use forebay_admin::MessageId;
use forebay_admin::events::{Delivery, EventKind, Filter, Hub, Received, Start, Subscription};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Largest size of a file: about 10,000 events.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum length of a line; a longer one was not written by this module.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Interval at which the thread checks whether the daemon still runs.
const AWAKE: Duration = Duration::from_secs(2);

/// Time after the start within which a condition that holds is seen: a device that fails is noticed
/// at its next use or look, and a hung pool after 10 s.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// Takes over the alarms of the last run, so call it before the first one is raised. May wait for
/// the disk. Without readable files the alarms of this run are all new.
pub(crate) fn restore_alarms(hub: &Hub, state_dir: &Path) {
    let filter = Filter::default().kind("alarm").ok();
    let events = filter.and_then(|filter| read(state_dir, 0, &filter, usize::MAX).ok());
    hub.restore_alarms(&events.unwrap_or_default().0);
}

/// Follows the events from the first one on; ends with the daemon.
///
/// # Errors
/// There is no thread, or there are too many readers of events.
pub(crate) fn spawn(telemetry: Weak<Telemetry>, hub: &Hub, state_dir: &Path) -> io::Result<()> {
    let events = hub.subscribe(Filter::default(), Start::Oldest).map_err(io::Error::other)?;
    let mut files = Files { folder: folder(state_dir), open: None };
    let hub = hub.clone();
    let follow = move || follow(&telemetry, &hub, events, &mut files);
    std::thread::Builder::new().name("events".into()).spawn(follow).map(drop)
}

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("events")
}

fn follow(telemetry: &Weak<Telemetry>, hub: &Hub, mut events: Subscription, files: &mut Files) {
    let mut fails = false;
    let mut end_earlier = Some(Instant::now() + SEEN_WITHIN);
    loop {
        if end_earlier.take_if(|at| *at <= Instant::now()).is_some() {
            hub.end_earlier_alarms();
        }
        match events.receive(AWAKE) {
            Received::Closed => return,
            Received::TimedOut if telemetry.strong_count() == 0 => return,
            // The next event of the job replaces it before a client could read it here.
            Received::Delivery(Delivery::Event(event)) if event.kind == EventKind::JobProgress => {}
            Received::Delivery(Delivery::Event(event)) => match files.add(&event.to_json()) {
                Ok(()) => fails = false,
                Err(_) if fails => {}
                Err(error) => {
                    fails = true;
                    let what = format!(
                        "events are not stored in {} until it accepts writes: {error}",
                        files.folder.display()
                    );
                    let Some(telemetry) = telemetry.upgrade() else { return };
                    telemetry.emit(ServiceEvent::Problem(MessageId::Event(EventKind::StateUnwritable), what));
                }
            },
            Received::TimedOut | Received::Delivery(Delivery::Gap(_)) => {}
        }
    }
}

/// The files, for writing.
struct Files {
    folder: PathBuf,
    open: Option<(File, u64)>,
}

impl Files {
    fn newest(&self) -> PathBuf {
        self.folder.join("events.jsonl")
    }

    fn add(&mut self, event: &Value) -> io::Result<()> {
        let line = format!("{event}\n");
        if self.open.as_ref().is_some_and(|(_, bytes)| bytes + line.len() as u64 > FILE_BYTES_MAX) {
            self.open = None;
            std::fs::rename(self.newest(), self.folder.join("events.1.jsonl"))?;
        }
        let (mut file, bytes) = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        // On an error, reopen the file: its directory may have been removed.
        file.write_all(line.as_bytes())?;
        self.open = Some((file, bytes + line.len() as u64));
        Ok(())
    }

    /// Opens the newest file for appending. Terminates a truncated line.
    fn begin(&self) -> io::Result<(File, u64)> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(self.newest())?;
        let mut bytes = file.metadata()?.len();
        let mut last = [b'\n'];
        if bytes > 0 {
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, bytes - 1)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok((file, bytes))
    }
}

/// Returns the newest events of the files since a time, oldest first, at most `most`; and whether
/// there were more. May wait for the disk.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn read(
    state_dir: &Path,
    since_unix_ns: u64,
    filter: &Filter,
    most: usize,
) -> io::Result<(Vec<Value>, bool)> {
    let (mut found, mut more) = (VecDeque::new(), false);
    for name in ["events.1.jsonl", "events.jsonl"] {
        let mut file = match File::open(folder(state_dir).join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // Another program can have made the file longer: read its end only.
        let from = file.metadata()?.len().saturating_sub(FILE_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        for line in BufReader::new(file.take(FILE_BYTES_MAX)).split(b'\n') {
            let line = line?;
            let event = Some(&line).filter(|line| line.len() <= LINE_BYTES_MAX);
            let event: Option<Value> = event.and_then(|line| serde_json::from_slice(line).ok());
            let Some(event) = event.filter(|event| event["time_unix_ns"].as_u64() >= Some(since_unix_ns))
            else {
                continue;
            };
            if filter.wants_json(&event) {
                found.push_back(event);
            }
            if found.len() > most {
                found.pop_front();
                more = true;
            }
        }
    }
    Ok((found.into(), more))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(number: u64, volume: &str) -> Value {
        json!({ "id": format!("1-{number}"), "time_unix_ns": number, "kind": "volume.attached",
            "severity": "info", "pool": null, "volume": volume, "job": null, "message": "x".repeat(900) })
    }

    fn numbers(state_dir: &Path, since: u64, filter: &Filter, most: usize) -> (Vec<u64>, bool) {
        let (events, more) = read(state_dir, since, filter, most).unwrap();
        (events.iter().map(|event| event["time_unix_ns"].as_u64().unwrap()).collect(), more)
    }

    fn files(state_dir: &Path) -> Files {
        Files { folder: folder(state_dir), open: None }
    }

    #[test]
    fn stored_events_are_found_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path();
        let all = Filter::default();
        assert_eq!(numbers(state_dir, 0, &all, 10), (vec![], false));
        let mut first = files(state_dir);
        (1..=3).for_each(|number| first.add(&event(number, "a")).unwrap());
        // Truncated by a loss of power.
        let cut = OpenOptions::new().append(true).open(first.newest()).unwrap();
        (&cut).write_all(b"{\"id\":").unwrap();
        let mut second = files(state_dir);
        second.add(&event(4, "b")).unwrap();
        assert_eq!(numbers(state_dir, 2, &all, 10), (vec![2, 3, 4], false));
        assert_eq!(numbers(state_dir, 0, &all.clone().volume("b"), 10), (vec![4], false));
        assert_eq!(numbers(state_dir, 0, &all, 2), (vec![3, 4], true));
        assert_eq!(numbers(state_dir, 0, &all.kind("job").unwrap(), 10), (vec![], false));
    }

    #[test]
    fn only_the_end_of_a_large_file_is_read() {
        let state = tempfile::tempdir().unwrap();
        let mut files = files(state.path());
        let path = files.newest();
        std::fs::create_dir_all(&files.folder).unwrap();
        // As a file of zeroes, one line, that another program left.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        files.add(&event(7, "db")).unwrap();
        assert_eq!(numbers(state.path(), 0, &Filter::default(), 10).0, [7]);
    }

    #[test]
    fn files_stay_within_their_size() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path();
        let mut files = files(state_dir);
        (1..=12_000).for_each(|number| files.add(&event(number, "a")).unwrap());
        let sizes: Vec<u64> = ["events.jsonl", "events.1.jsonl"]
            .iter()
            .map(|name| std::fs::metadata(super::folder(state_dir).join(name)).unwrap().len())
            .collect();
        assert!(sizes.iter().all(|bytes| *bytes <= FILE_BYTES_MAX), "{sizes:?}");
        let (found, more) = numbers(state_dir, 0, &Filter::default(), 100_000);
        assert_eq!((found.last(), more), (Some(&12_000), false));
        assert!(found.len() as u64 > FILE_BYTES_MAX / 1_100 && found.len() < 12_000, "{}", found.len());
    }
}
