//! Wear and remaining life of the disks of caches.
//!
//! A thread separate from the pools queries every disk below a cache device once an hour, and on a
//! status query if the last answer is older than ten minutes. It reports disks that cannot be
//! queried, and continues. The same thread records the amounts that the engines have written, for
//! the rates of an hour, a day and a week.
//!
//! - `disks`: which disks there are.
//! - `smartctl`: their reports.
//! - `history`: amounts written.
//! - `remaining`: from rates to years.

mod disks;
mod history;
pub(crate) mod remaining;
pub(crate) mod smartctl;

use forebay_admin::WearInfo;
use history::History;
use smartctl::Smartctl;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval of rounds without status queries.
const EVERY: Duration = Duration::from_secs(3600);
/// Minimum interval of rounds with status queries.
const AGAIN: Duration = Duration::from_secs(600);
/// Known wear of a cache device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Reports of its disks.
    pub(crate) wear: Vec<WearInfo>,
    /// Why some or all disks do not report.
    pub(crate) unknown: Option<String>,
}

/// Known wear of all cache devices, by path.
#[derive(Debug, Default)]
pub(crate) struct Wear {
    found: BTreeMap<PathBuf, Found>,
    asked_at: Option<Instant>,
    wanted: bool,
    /// Amounts written.
    pub(crate) history: History,
}

impl Wear {
    /// Restores the state of the previous daemon.
    pub(crate) fn begin(state_dir: &Path) -> Self {
        Self { history: History::load(state_dir, SystemTime::now()), ..Self::default() }
    }

    /// Notes a status query: the disks are queried again if the last round is old enough.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns true if the disks must be queried now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let least = if self.wanted { AGAIN } else { EVERY };
        self.asked_at.is_none_or(|at| now.duration_since(at) >= least)
    }

    /// Stores the answers of a round.
    pub(crate) fn answered(&mut self, now: Instant, found: BTreeMap<PathBuf, Found>) {
        (self.found, self.asked_at, self.wanted) = (found, Some(now), false);
    }

    /// Returns the known wear of a device.
    pub(crate) fn of(&self, device: &Path) -> Option<&Found> {
        self.found.get(device)
    }
}

/// Queries the disks below a cache device. May take the time limit for each of them.
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
    fn disks_are_queried_often_only_on_demand() {
        let (mut wear, start) = (Wear::default(), Instant::now());
        assert!(wear.is_due(start));
        wear.answered(start, BTreeMap::new());
        assert!(!wear.is_due(start + AGAIN) && wear.is_due(start + EVERY));
        wear.want();
        assert!(!wear.is_due(start + AGAIN / 2) && wear.is_due(start + AGAIN));
    }

    #[test]
    fn file_on_no_disk_is_reported() {
        let found = ask(&Smartctl::of_system(), Path::new("/proc/self/stat"));
        assert!(found.wear.is_empty() && found.unknown.is_some(), "{found:?}");
    }
}
