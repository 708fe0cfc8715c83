//! How worn the disks of caches are, and how long they last.
//!
//! A thread beside the pools asks every disk below a cache device once an hour, and when somebody
//! looks and the last answer is older than ten minutes. What cannot be asked is said, and is never
//! a reason to stop. What the engines have written is noted at the same time, so that rates of an
//! hour, a day and a week are known. Nothing is kept over a restart.
//!
//! - `disks`: which disks there are.
//! - `smartctl`: what they report.
//! - `remaining`: from rates to years.

mod disks;
pub(crate) mod remaining;
pub(crate) mod smartctl;

use forebay_admin::WearInfo;
use smartctl::Smartctl;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two rounds without somebody who looks.
const EVERY: Duration = Duration::from_secs(3600);
/// And with.
const AGAIN: Duration = Duration::from_secs(600);
/// Time between two notes of what was written.
const NOTE_EVERY: Duration = Duration::from_secs(600);
/// So many notes are kept: somewhat more than a week.
const NOTES_MAX: usize = 7 * 24 * 6 + 2;

/// What was found out of a cache device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// What its disks report.
    pub(crate) wear: Vec<WearInfo>,
    /// Why some or all do not.
    pub(crate) unknown: Option<String>,
}

/// What is known of all cache devices, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Wear {
    found: BTreeMap<PathBuf, Found>,
    asked_at: Option<Instant>,
    wanted: bool,
    /// Bytes written since the pool was opened, by time.
    notes: VecDeque<(Instant, BTreeMap<PathBuf, u64>)>,
}

impl Wear {
    /// Somebody looks: the disks are asked again, if the last time is long enough ago.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// Disks are to be asked now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let least = if self.wanted { AGAIN } else { EVERY };
        self.asked_at.is_none_or(|at| now.duration_since(at) >= least)
    }

    /// What was written is to be noted now.
    pub(crate) fn notes_are_due(&self, now: Instant) -> bool {
        self.notes.back().is_none_or(|(at, _)| now.duration_since(*at) >= NOTE_EVERY)
    }

    /// Notes what was written.
    pub(crate) fn note(&mut self, now: Instant, written: BTreeMap<PathBuf, u64>) {
        self.notes.push_back((now, written));
        self.notes.truncate(NOTES_MAX);
        while self.notes.len() > NOTES_MAX - 1 {
            self.notes.pop_front();
        }
    }

    /// Takes answers over.
    pub(crate) fn answered(&mut self, now: Instant, found: BTreeMap<PathBuf, Found>) {
        (self.found, self.asked_at, self.wanted) = (found, Some(now), false);
    }

    /// What is known of a device.
    pub(crate) fn of(&self, device: &Path) -> Option<&Found> {
        self.found.get(device)
    }

    /// Bytes that were written to a device in the last time of this length, and the time that this
    /// covers: at least nine tenths of it. `now_bytes`: written until now. A pool that was opened
    /// again counts from zero.
    pub(crate) fn written_in(
        &self,
        device: &Path,
        length: Duration,
        (now, now_bytes): (Instant, u64),
    ) -> Option<(u64, Duration)> {
        let back = |at: &Instant| now.duration_since(*at);
        let notes = self.notes.iter().filter_map(|(at, written)| Some((back(at), *written.get(device)?)));
        let (ago, then) = notes.filter(|(ago, _)| *ago <= length + NOTE_EVERY).max_by_key(|(ago, _)| *ago)?;
        (ago * 10 >= length * 9 && then <= now_bytes).then(|| (now_bytes - then, ago))
    }
}

/// Asks the disks below a cache device. May take as long as the limit for each of them.
pub(crate) fn ask(smartctl: &Smartctl, device: &Path) -> Found {
    let disks = match disks::below(device, Path::new("/sys")) {
        Ok(disks) => disks,
        Err(why) => return Found { unknown: Some(why), ..Found::default() },
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut wear, mut unknown) = (Vec::new(), Vec::new());
    for disk in disks {
        match smartctl.ask(&disk) {
            Ok(read) => wear.push(WearInfo { read_unix_s: now, ..read }),
            Err(why) => unknown.push(why),
        }
    }
    Found { wear, unknown: (!unknown.is_empty()).then(|| unknown.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_as_much_time_as_they_speak_of() {
        let (mut wear, start) = (Wear::default(), Instant::now());
        let device = Path::new("/dev/nvme0n1");
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        for tens in 0..=18 {
            assert!(wear.notes_are_due(at(10 * tens)));
            wear.note(at(10 * tens), BTreeMap::from([(device.to_owned(), 1000 * tens)]));
            assert!(!wear.notes_are_due(at(10 * tens + 9)));
        }
        let within =
            |hours: u64| wear.written_in(device, Duration::from_secs(3600 * hours), (at(180), 18_000));
        assert_eq!(within(1), Some((7000, Duration::from_secs(4200))));
        assert_eq!(within(3), Some((18_000, Duration::from_secs(10_800))));
        assert_eq!(within(24), None, "it is not known for so long");
        let again = wear.written_in(device, Duration::from_secs(3600), (at(180), 10));
        assert_eq!(again, None, "the pool was opened again");
        for minute in 0..20_000 {
            wear.note(at(180 + minute), BTreeMap::new());
        }
        assert!(wear.notes.len() <= NOTES_MAX);
    }

    #[test]
    fn disks_are_asked_seldom_unless_somebody_looks() {
        let (mut wear, start) = (Wear::default(), Instant::now());
        assert!(wear.is_due(start));
        wear.answered(start, BTreeMap::new());
        assert!(!wear.is_due(start + AGAIN) && wear.is_due(start + EVERY));
        wear.want();
        assert!(!wear.is_due(start + AGAIN / 2) && wear.is_due(start + AGAIN));
    }

    #[test]
    fn a_file_on_no_disk_says_so() {
        let found = ask(&Smartctl::of_system(), Path::new("/proc/self/stat"));
        assert!(found.wear.is_empty() && found.unknown.is_some(), "{found:?}");
    }
}
