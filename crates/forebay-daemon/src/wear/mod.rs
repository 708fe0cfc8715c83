//! How worn the disks of caches are, and how long they last.
//!
//! A thread beside the pools asks every disk below a cache device once an hour, and when somebody
//! looks and the last answer is older than ten minutes. What cannot be asked is said, and is never
//! a reason to stop. The same thread notes what the engines have written, so that rates of an hour,
//! a day and a week are known.
//!
//! - `disks`: which disks there are.
//! - `smartctl`: what they report.
//! - `history`: what was written.
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

/// Time between two rounds without somebody who looks.
const EVERY: Duration = Duration::from_secs(3600);
/// And with.
const AGAIN: Duration = Duration::from_secs(600);
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
    /// What was written.
    pub(crate) history: History,
}

impl Wear {
    /// As it was known when the daemon of before ended.
    pub(crate) fn begin(state_dir: &Path) -> Self {
        Self { history: History::load(state_dir, SystemTime::now()), ..Self::default() }
    }

    /// Somebody looks: the disks are asked again, if the last time is long enough ago.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// Disks are to be asked now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let least = if self.wanted { AGAIN } else { EVERY };
        self.asked_at.is_none_or(|at| now.duration_since(at) >= least)
    }

    /// Takes answers over.
    pub(crate) fn answered(&mut self, now: Instant, found: BTreeMap<PathBuf, Found>) {
        (self.found, self.asked_at, self.wanted) = (found, Some(now), false);
    }

    /// What is known of a device.
    pub(crate) fn of(&self, device: &Path) -> Option<&Found> {
        self.found.get(device)
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
