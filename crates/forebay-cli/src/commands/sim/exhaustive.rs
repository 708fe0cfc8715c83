//! `forebay sim --exhaustive`: every short sequence, every crash point.

use forebay_admin::MessageId;
use std::time::Duration;

use forebay_sim::PlantedBug;
use forebay_sim::exhaustive::{ExhaustiveOptions, ExhaustiveReport, run_exhaustive};
use serde_json::{Value, json};

use super::options::Options;
use super::report::{bar, print, quietly, rate, verdict};
use crate::failure::Failure;
use crate::screen::{Paint, count};

/// Runs all sequences. Violations are a failure, even with a planted bug.
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
    let (report, elapsed) = quietly(|| run(options, &exhaustive));
    print(options, || as_json(options, &report, elapsed), || as_text(&report, elapsed))?;
    if report.violations.is_empty() {
        return Ok(());
    }
    let hint = "the engine broke its promise; the commands above reproduce it, `--verbose` adds every step";
    Err(Failure::new(MessageId::SimViolation, format!("{} violations", report.violations.len())).hint(hint))
}

fn run(options: &Options, exhaustive: &ExhaustiveOptions) -> ExhaustiveReport {
    let bar = bar(options, 0, "sequences, {msg}");
    let report = run_exhaustive(exhaustive, &mut |(done, all, judged, violations)| {
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(format!("{} states, {violations} violations", count(judged)));
    });
    bar.finish_and_clear();
    report
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
        count(rate(report.judged, elapsed)),
    );
    for violation in &report.violations {
        text += &format!("{}\n    {}\n", paint.bold(&violation.replay_command), violation.what);
    }
    text + &verdict(report.violations.len()) + "\n"
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
        "states_per_s": rate(report.judged, elapsed),
        "device_ops": report.counters.device_ops,
        "opens": report.counters.opens,
        "violations": violations,
    })
}
