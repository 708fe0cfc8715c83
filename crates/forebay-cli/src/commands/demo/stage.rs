//! Progress of the demo: one line per stage, with a bar on a terminal.

use crate::message;
use forebay_admin::MessageId;
use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::screen::Paint;

/// Width of the titles.
const TITLE_CHARS: usize = 24;
/// Interval of progress lines without a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Creates stages.
pub(super) struct Stages {
    terminal: bool,
    interrupted: Arc<AtomicBool>,
}

impl Stages {
    /// `interrupted` becomes true on Ctrl-C.
    pub(super) fn new(interrupted: Arc<AtomicBool>) -> Self {
        Self { terminal: stderr().is_terminal(), interrupted }
    }

    /// Returns true if Ctrl-C was pressed.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Begins a stage of `total` steps; 0 if unknown.
    pub(super) fn begin(&self, title: &str, total: u64) -> Stage {
        let bar = if self.terminal {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = match total {
                0 => format!("  {title:TITLE_CHARS$}  {{spinner}} {{msg}}"),
                _ => format!("  {title:TITLE_CHARS$}  {{bar:30.cyan/dim}} {{msg}}"),
            };
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            Some(bar)
        } else {
            None
        };
        Stage {
            title: title.into(),
            total,
            bar,
            said: Cell::new(Instant::now()),
            interrupted: self.interrupted.clone(),
        }
    }
}

/// A stage of the demo.
pub(super) struct Stage {
    title: String,
    total: u64,
    bar: Option<ProgressBar>,
    said: Cell<Instant>,
    interrupted: Arc<AtomicBool>,
}

impl Stage {
    /// Reports step `done`.
    pub(super) fn at(&self, done: u64, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(message);
        } else if self.said.get().elapsed() >= PLAIN_EVERY && !self.title.is_empty() {
            self.said.set(Instant::now());
            let share = (done * 100).checked_div(self.total).map(|share| share.min(100));
            let share = share.map_or(String::new(), |share| format!("{share:3} %  "));
            let what = format!("  {:TITLE_CHARS$}  {share}{message}", self.title);
            message::say(MessageId::CliProgress, what.trim(), || format!("{what}\n"));
        }
    }

    /// Reports the end of the stage.
    pub(super) fn done(self, message: String) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let paint = Paint::for_stderr();
        let title = format!("{:TITLE_CHARS$}", self.title);
        let what = format!("{title}  {message}");
        message::say(MessageId::CliProgress, &what, || format!("{} {what}\n", paint.green("✓")));
    }

    /// Returns a nested stage that prints nothing but can be interrupted.
    pub(super) fn silent(&self) -> Self {
        Self {
            title: String::new(),
            total: 0,
            bar: None,
            said: Cell::new(Instant::now()),
            interrupted: self.interrupted.clone(),
        }
    }

    /// Fails if Ctrl-C was pressed.
    pub(super) fn go_on(&self) -> Result<(), Failure> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err(Failure::new(MessageId::CliInterrupted, "interrupted"))
        } else {
            Ok(())
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
