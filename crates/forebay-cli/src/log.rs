//! Lines of a daemon on stderr: with a priority in front where the journal reads them
//! (sd-daemon(3)), with the name of the program where anybody else does.

use std::fmt::Write;
use std::sync::OnceLock;

use forebay_admin::events::Severity;

/// Writes what happened. What follows a line break is a line with the same priority.
pub(crate) fn write(severity: Severity, message: &str) {
    eprint!("{}", lines(severity, message, is_journal()));
}

/// Whether stderr leads to the journal: systemd says which file that is.
pub(crate) fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = rustix::fs::fstat(rustix::stdio::stderr());
        stderr.is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
    })
}

fn lines(severity: Severity, message: &str, is_journal: bool) -> String {
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
    fn every_line_has_its_priority_in_the_journal() {
        assert_eq!(lines(Severity::Error, "a\nb", true), "<3>a\n<3>b\n");
        assert_eq!(lines(Severity::Info, "serving", true), "<6>serving\n");
        assert_eq!(lines(Severity::Warning, "a\nb", false), "forebay: a\nb\n");
    }
}
