//! Recorded seeds. A search for seeds that show an event takes minutes, so its results are kept and
//! tried first. A change of the engine makes some of them useless: the tests search for those
//! again, and with `UPDATE_GOLDEN=1` record the results. Without the files, they search for all.

use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "it", "recorded", name].iter().collect()
}

/// Returns the words of each line.
pub(crate) fn read(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_default();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().filter(|line| !line.trim().is_empty()).map(words).collect()
}

/// Records changed lines if `UPDATE_GOLDEN` is set.
pub(crate) fn changed(name: &str, lines: &[String]) {
    if std::env::var_os("UPDATE_GOLDEN").is_none() {
        return println!("UPDATE_GOLDEN=1 records in {} what had to be searched for", path(name).display());
    }
    std::fs::write(path(name), lines.join("\n") + "\n").expect("the file can be written");
}
