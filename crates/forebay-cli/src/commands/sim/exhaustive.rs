//! `forebay sim --exhaustive`: every short sequence, every crash.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use forebay_sim::PlantedBug;
use forebay_sim::exhaustive::{ExhaustiveOptions, ExhaustiveReport, run_exhaustive};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::Options;
use crate::failure::Failure;
use crate::screen::{self, Paint, count};

/// Runs all sequences. Violations are a failure, with a planted bug as well.
pub(super) fn execute(options: &Options, bug: Option<PlantedBug>) -> Result<(), Failure> {
    let exhaustive = ExhaustiveOptions {
        length: usize::from(options.length),
        part: options.part.unwrap_or((0, 1)),
        only: options.only.clone(),
        twice: usize::from(options.twice),
        bug,
        violations_max: options.violations.max(1),
        verbose: options.verbose,
    };
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let report = run(&exhaustive);
    let _ = std::panic::take_hook();
    let elapsed = started.elapsed();
    if options.json {
        screen::print_json(&as_json(options, &report, elapsed))?;
    } else {
        screen::print(&as_text(&report, elapsed))?;
    }
    if report.violations.is_empty() {
        return Ok(());
    }
    let hint = "the engine broke its promise; the commands above show it again, `--verbose` adds every step";
    Err(Failure::new(format!("{} violations", report.violations.len())).hint(hint))
}

fn run(options: &ExhaustiveOptions) -> ExhaustiveReport {
    if options.verbose || !stderr().is_terminal() {
        return run_exhaustive(options, &mut |_| {});
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("  {bar:40} {human_pos}/{human_len} sequences, {msg}") {
        bar.set_style(style);
    }
    let report = run_exhaustive(options, &mut |(done, all, judged, violations)| {
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(format!("{} states, {violations} violations", count(judged)));
    });
    bar.finish_and_clear();
    report
}

fn rate(report: &ExhaustiveReport, elapsed: Duration) -> u64 {
    (report.judged as f64 / elapsed.as_secs_f64().max(1e-9)) as u64
}

fn as_text(report: &ExhaustiveReport, elapsed: Duration) -> String {
    let paint = Paint::for_stdout();
    let mut text = format!(
        "{} sequences, {} crash points, {} states left by crashes; {} of them differ and were judged ({} left by a crash in a \
         recovery) in {:.1} s ({} a second)\n",
        count(report.sequences),
        count(report.crash_points),
        count(report.states),
        count(report.judged),
        count(report.judged_twice),
        elapsed.as_secs_f64(),
        count(rate(report, elapsed)),
    );
    for violation in &report.violations {
        text += &format!("{}\n    {}\n", paint.bold(&violation.replay_command), violation.what);
    }
    let verdict = match report.violations.len() {
        0 => paint.green("no violation"),
        n => paint.red(&format!("{n} violations")),
    };
    text + &verdict + "\n"
}

fn as_json(options: &Options, report: &ExhaustiveReport, elapsed: Duration) -> Value {
    let violations: Vec<Value> = report
        .violations
        .iter()
        .map(|violation| {
            json!({
                "sequence": violation.sequence, "what": violation.what,
                "replay_command": violation.replay_command,
            })
        })
        .collect();
    json!({
        "planted_bug": options.bug,
        "length": options.length,
        "sequences": report.sequences,
        "crash_points": report.crash_points,
        "states": report.states,
        "states_judged": report.judged,
        "states_judged_after_a_second_crash": report.judged_twice,
        "elapsed_s": elapsed.as_secs_f64(),
        "states_per_s": rate(report, elapsed),
        "device_ops": report.counters.device_ops,
        "opens": report.counters.opens,
        "violations": violations,
    })
}
