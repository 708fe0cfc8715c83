//! Amounts written to cache devices over a week, including restarts.
//!
//! Engines count from zero when they open a pool. Here counts continue: the previous amount of a
//! device is added. Every ten minutes a note of all devices is made; the notes are one file of the
//! state directory, `wear.json`, which is replaced as a whole with each of them. Writes between the
//! last note and a kill are missing. If the file cannot be read, the history starts empty: only
//! displayed rates depend on it.
//!
//! Times are those of the wall clock, because they must be valid across a restart. Notes from the
//! future, or from more than eight days ago, are dropped.

use forebay_pool::{MayWait, durable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Interval of notes.
pub(super) const NOTE_EVERY: Duration = Duration::from_secs(600);
/// Time that notes are kept: somewhat more than a week.
const KEPT: Duration = Duration::from_secs(8 * 86_400);
/// Layout of the file.
const VERSION: u32 = 1;

/// Bytes written to each device up to an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    at_unix_s: u64,
    written_bytes: BTreeMap<PathBuf, u64>,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    notes: VecDeque<Note>,
}

/// The engine's last count, and the amount written before it began to count.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    before: u64,
    by_engine: u64,
}

/// Notes of a week.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    notes: VecDeque<Note>,
    counted: BTreeMap<PathBuf, Counted>,
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("wear.json")
}

impl History {
    /// Returns the history of a state directory; empty if there is none that can be read.
    pub(crate) fn load(state_dir: &Path, now: SystemTime) -> Self {
        let text = std::fs::read(file(state_dir)).unwrap_or_default();
        let stored = serde_json::from_slice::<Stored>(&text).ok().filter(|stored| stored.version == VERSION);
        let mut history =
            Self { notes: stored.map_or_else(VecDeque::new, |stored| stored.notes), ..Self::default() };
        history.drop_old(now);
        for note in &history.notes {
            for (device, before) in &note.written_bytes {
                history.counted.insert(device.clone(), Counted { before: *before, by_engine: 0 });
            }
        }
        history
    }

    /// Writes it into the state directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&self, may_wait: &MayWait, state_dir: &Path) -> io::Result<()> {
        let stored = Stored { version: VERSION, notes: self.notes.clone() };
        durable::replace_json(may_wait, state_dir, &file(state_dir), &stored)
    }

    /// Returns true if the next note is due.
    pub(crate) fn is_due(&self, now: SystemTime) -> bool {
        self.notes.back().is_none_or(|note| {
            // A clock that was set back does not delay the next note.
            now.duration_since(UNIX_EPOCH + Duration::from_secs(note.at_unix_s))
                .is_ok_and(|ago| ago >= NOTE_EVERY)
                || note.at_unix_s > unix_s(now)
        })
    }

    /// Notes the counts of the engines.
    pub(crate) fn note(&mut self, now: SystemTime, by_engines: &BTreeMap<PathBuf, u64>) {
        let written_bytes =
            by_engines.iter().map(|(device, bytes)| (device.clone(), self.count(device, *bytes)));
        let note = Note { at_unix_s: unix_s(now), written_bytes: written_bytes.collect() };
        self.drop_old(now);
        self.notes.push_back(note);
    }

    fn drop_old(&mut self, now: SystemTime) {
        let now = unix_s(now);
        self.notes.retain(|note| note.at_unix_s <= now && now - note.at_unix_s <= KEPT.as_secs());
    }

    /// Returns the total amount written to a device, given its engine's count.
    fn count(&mut self, device: &Path, by_engine: u64) -> u64 {
        let counted = self.counted.entry(device.to_owned()).or_default();
        if by_engine < counted.by_engine {
            counted.before += counted.by_engine;
        }
        counted.by_engine = by_engine;
        counted.before + by_engine
    }

    /// Returns the bytes written to a device in the last period of this length, and the time
    /// covered: at least nine tenths of it. `by_engine`: the present count.
    pub(crate) fn written_in(
        &mut self,
        device: &Path,
        length: Duration,
        (now, by_engine): (SystemTime, u64),
    ) -> Option<(u64, Duration)> {
        let total = self.count(device, by_engine);
        let (now, length_s) = (unix_s(now), length.as_secs());
        let notes = self
            .notes
            .iter()
            .filter_map(|note| Some((now.checked_sub(note.at_unix_s)?, *note.written_bytes.get(device)?)));
        let within = notes.filter(|(ago, _)| *ago <= length_s + NOTE_EVERY.as_secs());
        let (ago, then) = within.max_by_key(|(ago, _)| *ago)?;
        (ago * 10 >= length_s * 9).then(|| (total.saturating_sub(then), Duration::from_secs(ago)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn minute(minutes: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + 60 * minutes)
    }

    fn of(device: &Path, bytes: u64) -> BTreeMap<PathBuf, u64> {
        BTreeMap::from([(device.to_owned(), bytes)])
    }

    #[test]
    fn rates_need_their_full_time_span() {
        let (mut history, device) = (History::default(), Path::new("/dev/nvme0n1"));
        for tens in 0..=18 {
            assert!(history.is_due(minute(10 * tens)));
            history.note(minute(10 * tens), &of(device, 1000 * tens));
            assert!(!history.is_due(minute(10 * tens + 9)));
        }
        let mut within = |hours: u32| history.written_in(device, HOUR * hours, (minute(180), 18_000));
        assert_eq!(within(1), Some((7000, Duration::from_secs(4200))));
        assert_eq!(within(3), Some((18_000, Duration::from_secs(10_800))));
        assert_eq!(within(24), None, "it is not known for so long");
        for tens in 19..20_000 {
            history.note(minute(10 * tens), &BTreeMap::new());
        }
        assert!(history.notes.len() < 9 * 24 * 6, "{}", history.notes.len());
    }

    #[test]
    fn written_bytes_survive_restarts() {
        let (folder, device) = (tempfile::tempdir().unwrap(), Path::new("/dev/nvme0n1"));
        let mut history = History::default();
        history.note(minute(0), &of(device, 500));
        history.note(minute(30), &of(device, 2000));
        // Reopened by the same daemon.
        history.note(minute(40), &of(device, 10));
        assert_eq!(history.written_in(device, HOUR, (minute(60), 100)), Some((1600, HOUR)));
        history.note(minute(60), &of(device, 100));
        history.save(&MayWait::here(), folder.path()).unwrap();

        let mut again = History::load(folder.path(), minute(70));
        assert_eq!(again.written_in(device, HOUR, (minute(70), 7)), Some((1607, Duration::from_secs(4200))));
        assert_eq!(again.notes, history.notes);
        assert!(again.is_due(minute(70)) && !again.is_due(minute(69)));
        // A file that is truncated, of another layout, or written with a wrong clock.
        let path = folder.path().join("wear.json");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(History::load(folder.path(), minute(0) - HOUR).notes.is_empty(), "all is of the future");
        assert!(History::load(folder.path(), minute(9 * 24 * 60)).notes.is_empty(), "all is too old");
        for wrong in [&text[..text.len() / 2], &text.replace("\"version\": 1", "\"version\": 2"), "", "[]"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(History::load(folder.path(), minute(70)).notes.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn clock_set_back_stops_nothing() {
        let (mut history, device) = (History::default(), Path::new("/dev/nvme0n1"));
        history.note(minute(1000), &of(device, 500));
        assert!(history.is_due(minute(10)));
        assert_eq!(history.written_in(device, HOUR, (minute(10), 600)), None);
        history.note(minute(10), &of(device, 600));
        assert!(!history.is_due(minute(11)));
        assert_eq!(history.notes.len(), 1);
    }
}
