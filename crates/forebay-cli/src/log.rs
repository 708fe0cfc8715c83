//! Lines of a daemon on stderr: with a priority prefix for the journal (sd-daemon(3)), otherwise
//! with the name of the program.
//!
//! Invariant: external text, such as a path, cannot begin a line and has no control characters:
//! continuation lines are indented.

use std::fmt::Write;
use std::sync::OnceLock;

use forebay_admin::events::Severity;
use forebay_daemon::RunEvent;

use crate::message::Message;
use crate::screen::harmless_lines;

/// A line break within a message.
const CONTINUED: &str = "\n    ";

/// Writes an event. Continuation lines get the same priority.
pub(crate) fn write(event: &RunEvent) {
    let (severity, what) = (event.severity(), event.what());
    Message::new(severity, event.id().name(), &what)
        .of(event.pool(), event.volume())
        .write(|| lines(severity, &event.to_string(), is_journal()));
}

/// Returns true if stderr leads to the journal, by systemd's description of the file.
pub(crate) fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = rustix::fs::fstat(rustix::stdio::stderr());
        stderr.is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
    })
}

pub(crate) fn lines(severity: Severity, message: &str, is_journal: bool) -> String {
    let message = harmless_lines(message).replace('\n', CONTINUED);
    if !is_journal {
        return format!("forebay: {message}\n");
    }
    let priority = match severity {
        Severity::Error => 3,
        Severity::Warning => 4,
        Severity::Info => 6,
        Severity::Debug => 7,
    };
    message.lines().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "<{priority}>{line}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_lines_carry_their_priority() {
        assert_eq!(lines(Severity::Error, "a\nb", true), "<3>a\n<3>    b\n");
        assert_eq!(lines(Severity::Info, "serving", true), "<6>serving\n");
        assert_eq!(lines(Severity::Warning, "a\nb", false), "forebay: a\n    b\n");
    }

    #[test]
    fn control_characters_of_paths_are_escaped() {
        let path = "/srv/x\nforebay: all is well\r\x1b[2K";
        let shown = "/srv/x\n    forebay: all is well\\r\\u{1b}[2K";
        assert_eq!(lines(Severity::Info, path, false), format!("forebay: {shown}\n"));
    }
}
