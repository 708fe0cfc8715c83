//! Progress of work in this process: a bar on a terminal, periodic lines elsewhere, on stderr.

use crate::message;
use forebay_admin::MessageId;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval of progress lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A progress display.
pub(crate) struct Progress {
    title: &'static str,
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
    total: u64,
}

impl Progress {
    /// Returns a display of `total` steps; 0 if unknown.
    pub(crate) fn new(title: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template =
                if total == 0 { "{prefix} {spinner} {wide_msg}" } else { "{prefix} [{bar:24}] {wide_msg}" };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(title);
            bar
        });
        Self { title, bar, last_line: Mutex::new(Instant::now()), total }
    }

    /// Reports the number of completed steps.
    pub(crate) fn at(&self, done: u64, message: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(message());
            return;
        }
        let Ok(mut last) = self.last_line.lock() else { return };
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let share =
                (done * 100).checked_div(self.total).map_or(String::new(), |pct| format!("{pct} %, "));
            let what = format!("{}: {share}{}", self.title, message());
            message::say(MessageId::CliProgress, &what, || format!("{what}\n"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
