//! Helpers shared by all runs of the simulator: silencing of panics, a progress bar, and output of
//! results.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::options::Options;
use crate::failure::Failure;
use crate::screen::{self, Paint};

/// Runs `run`, and returns its duration. The simulator catches panics of the engine and reports
/// them as violations, so the panic hook is silenced.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let result = run();
    let _ = std::panic::take_hook();
    (result, started.elapsed())
}

/// Returns a progress bar followed by text, if stderr is a terminal.
pub(super) fn bar(options: &Options, length: u64, words: &str) -> ProgressBar {
    if options.verbose || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) =
        ProgressStyle::with_template(&format!("  {{bar:40}} {{human_pos}}/{{human_len}} {words}"))
    {
        bar.set_style(style);
    }
    bar
}

/// Prints a result in the requested format.
pub(super) fn print(
    options: &Options,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if options.json { screen::print_json(&json()) } else { screen::print(&text()) }
}

/// Returns the number per second.
pub(super) fn rate(number: u64, elapsed: Duration) -> u64 {
    (number as f64 / elapsed.as_secs_f64().max(1e-9)) as u64
}

/// Returns the summary of a run.
pub(super) fn verdict(violations: usize) -> String {
    match violations {
        0 => Paint::for_stdout().green("no violation"),
        n => Paint::for_stdout().red(&format!("{n} violations")),
    }
}
