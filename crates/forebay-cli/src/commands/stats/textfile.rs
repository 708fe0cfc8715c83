//! `forebay stats --textfile`: writes the metrics for node_exporter's textfile collector.
//!
//! Invariants
//! - The file is replaced as a whole. A reader never sees part of it, nor a temporary file that
//!   matches `*.prom`.
//! - It never contains outdated values: if no daemon answers, it has `forebay_up 0` instead of the
//!   previous values.
//! - It has no metric of node_exporter's own. `process_*` would be one, so it is left out.

use forebay_admin::MessageId;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::failure::Failure;

/// Parses the path of the file.
///
/// # Errors
/// node_exporter would not read it: it reads only files that end in `.prom`, and none that begin
/// with a dot.
pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.file_name().map(|name| name.to_string_lossy()) {
        Some(name) if name.ends_with(".prom") && !name.starts_with('.') => Ok(path),
        _ => Err("node_exporter reads files that end in .prom alone".into()),
    }
}

/// Writes the daemon's metrics, or that it does not answer; returns the reason why it does not.
///
/// # Errors
/// The file cannot be written. Then it stays as it was.
pub(super) fn write(client: &Client, path: &Path) -> Result<Option<Failure>, Failure> {
    let metrics = client.text("/metrics");
    let written = replace(path, &text(metrics.as_deref().ok())).map_err(|error| {
        let failure =
            Failure::new(MessageId::CliSystem, format!("{}: cannot be written: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::NotFound => failure.hint(
                "its folder is the one that node_exporter gets in --collector.textfile.directory; that of \
                 Debian comes with: apt install prometheus-node-exporter",
            ),
            _ => failure,
        }
    });
    written.map(|()| metrics.err())
}

/// Returns the content of the file for the daemon's answer.
fn text(metrics: Option<&str>) -> String {
    let mut text = String::from("# HELP forebay_up Whether the daemon answers\n# TYPE forebay_up gauge\n");
    let _ = writeln!(text, "forebay_up {}", u8::from(metrics.is_some()));
    let is_of_process = |line: &str| {
        let name = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
        name.starts_with("process_")
    };
    for line in metrics.unwrap_or_default().lines().filter(|line| !is_of_process(line)) {
        text += line;
        text.push('\n');
    }
    text
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        // A killed process may have had our PID. Also, do not follow a link that another user with
        // write access to the directory has put there.
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
        // node_exporter runs as another user, so override the umask.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        fs::rename(&beside, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&beside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_collector_file_names_are_accepted() {
        assert_eq!(file("/x/forebay.prom"), Ok(PathBuf::from("/x/forebay.prom")));
        for wrong in ["", "/", "/x/", "/x/.prom", "/x/.forebay.prom", "/x/forebay.prom.1", "/x/forebay.txt"] {
            assert!(file(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn node_exporter_metrics_are_left_out() {
        let metrics = "# HELP forebay_alarms Of process_ms\n# TYPE forebay_alarms gauge\nforebay_alarms{x=\"process_\"} 0\n\
                       # HELP process_open_fds Open\n# TYPE process_open_fds gauge\nprocess_open_fds 7\nforebay_x 1\n";
        let head = "# HELP forebay_up Whether the daemon answers\n# TYPE forebay_up gauge\nforebay_up 1\n";
        let rest = "# HELP forebay_alarms Of process_ms\n# TYPE forebay_alarms gauge\nforebay_alarms{x=\"process_\"} 0\nforebay_x 1\n";
        assert_eq!(text(Some(metrics)), format!("{head}{rest}"));
    }

    #[test]
    fn links_and_leftovers_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, others) = (folder.path().join("forebay.prom"), folder.path().join("others"));
        let beside = folder.path().join(format!(".forebay.prom.{}", std::process::id()));
        fs::write(&others, "others").unwrap();
        std::os::unix::fs::symlink(&others, &beside).unwrap();
        replace(&path, "new\n").unwrap();
        assert_eq!(fs::read_to_string(&others).unwrap(), "others");
        fs::write(&beside, "half").unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
        replace(&path, "newer\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_failed_replacement_leaves_no_temp_file() {
        let folder = tempfile::tempdir().unwrap();
        let nobody = Client::new(&folder.path().join("no.sock"));
        let path = folder.path().join("forebay.prom");
        assert!(write(&nobody, &path).unwrap().is_some(), "why nobody answers is told");
        assert!(fs::read_to_string(&path).unwrap().ends_with("\nforebay_up 0\n"));
        assert!(write(&nobody, &folder.path().join("none/forebay.prom")).is_err());
        let taken = folder.path().join("taken.prom");
        fs::create_dir(&taken).unwrap();
        assert!(write(&nobody, &taken).is_err());
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["forebay.prom", "taken.prom"]);
    }
}
