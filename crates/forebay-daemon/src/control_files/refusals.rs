//! The reason of the last refused write: the content of `last_error`.
//!
//! `echo` can show only an error number; this module keeps the reason, by directory, until the same
//! file is written with success or another write in that directory is refused.

use super::format::line;
use forebay_admin::Target;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of directories. Only those of existing pools and volumes occur, so it is hardly
/// ever reached; then all are dropped.
const DIRECTORIES_MAX: usize = 1024;

/// Path of a file and the reason.
type Refusal = (String, String);

#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By the path of the directory; the newest of all has the empty path.
    by_directory: Mutex<HashMap<String, Refusal>>,
}

impl Refusals {
    /// Notes the refusal of a write to this file.
    pub(super) fn note(&self, path: &str, reason: &str) {
        let refusal = (path.to_owned(), line(reason).into_owned());
        let mut all = self.lock();
        if all.len() >= DIRECTORIES_MAX {
            all.clear();
        }
        all.extend(directory_of(path).map(|directory| (directory, refusal.clone())));
        all.insert(String::new(), refusal);
    }

    /// Notes the success of a write to this file.
    pub(super) fn forget(&self, path: &str) {
        let mut all = self.lock();
        for directory in directory_of(path).into_iter().chain([String::new()]) {
            if all.get(&directory).is_some_and(|(refused, _)| refused == path) {
                all.remove(&directory);
            }
        }
    }

    /// Returns the last refusal in a pool's or volume's directory, or of all: `FILE: reason`.
    pub(super) fn text(&self, target: Option<Target<'_>>) -> String {
        let directory = target.map(directory).unwrap_or_default();
        let all = self.lock();
        let Some((path, reason)) = all.get(&directory) else { return String::new() };
        let file = path.strip_prefix(&directory).unwrap_or(path).trim_start_matches('/');
        format!("{file}: {reason}")
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Refusal>> {
        self.by_directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn directory(target: Target<'_>) -> String {
    match target {
        Target::Pool(name) => format!("pools/{name}"),
        Target::Volume(name) => format!("volumes/{name}"),
    }
}

/// Returns the directory with the `last_error` of a file, if it is one of a pool or volume.
fn directory_of(path: &str) -> Option<String> {
    let mut parts = path.splitn(3, '/');
    let (top, name, _) = (parts.next()?, parts.next()?, parts.next()?);
    matches!(top, "pools" | "volumes").then(|| format!("{top}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_stays_until_the_next_write() {
        let refusals = Refusals::default();
        let of = |name| refusals.text(Some(Target::Volume(name)));
        assert_eq!(of("a"), "");
        refusals.note("volumes/a/config/k", "too\nlarge");
        refusals.note("volumes/b/rules", "no such rule");
        assert_eq!(of("a"), "config/k: too\\nlarge");
        assert_eq!(of("b"), "rules: no such rule");
        assert_eq!(refusals.text(None), "volumes/b/rules: no such rule");
        refusals.forget("volumes/a/flush");
        assert_eq!(of("a"), "config/k: too\\nlarge");
        refusals.forget("volumes/a/config/k");
        assert_eq!(of("a"), "");
        assert_eq!(refusals.text(None), "volumes/b/rules: no such rule");
    }
}
