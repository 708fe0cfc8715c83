//! `forebay sim`: the simulator.

use forebay_admin::MessageId;
use std::time::Duration;

use forebay_sim::{PlantedBug, Progress, Report, SimOptions, Violation, fault};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::screen::{self, Paint, count};
use report::{bar, print, quietly, rate, verdict};

mod coverage;
mod exhaustive;
mod hostile;
mod options;
mod report;
mod shrink;

pub(crate) use options::Options;

/// Runs the simulator. Violations are a failure, even with a planted bug: the exit code is the
/// result.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.bug.is_some() && !fault::AVAILABLE {
        return Err(Failure::usage(MessageId::CliUnsupported, "--break: this build has no planted bugs").hint(
            "build one that has them: cargo run --release -p forebay-cli --features planted-bugs -- sim --break list",
        ));
    }
    if options.bug.as_deref() == Some("list") {
        return list(options.json);
    }
    let bug = options.bug.as_deref().map(|name| bug_named("--break", name)).transpose()?;
    let aim = options.aim.as_deref().map(|name| bug_named("--aim", name)).transpose()?;
    if options.exhaustive {
        return exhaustive::execute(options, bug);
    }
    if let Some(seeds) = options.hostile {
        return hostile::execute(options, seeds, bug);
    }
    if options.shrink {
        return shrink::execute(options, bug);
    }
    let sim = SimOptions {
        seed: options.seed,
        crashes: options.crashes,
        bug,
        aim,
        violations_max: options.violations.max(1),
        verbose: options.verbose,
    };
    let (report, elapsed) = quietly(|| simulate(options, &sim));
    print(options, || as_json(options, &report, elapsed), || as_text(options, &report, elapsed))?;
    if report.violations.is_empty() {
        return Ok(());
    }
    let found = report.violations.len();
    let hint = "the engine broke its promise; the commands above reproduce it, `--verbose` adds every step";
    Err(Failure::new(MessageId::SimViolation, format!("{found} violations, from seed {}", options.seed))
        .hint(hint))
}

fn simulate(options: &Options, sim: &SimOptions) -> Report {
    let bar = bar(options, sim.crashes, "crash points, {per_sec}, {msg}");
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = forebay_sim::run(sim, &mut |progress: &Progress| {
        bar.set_position(progress.crash_points);
        bar.set_message(format!("seed {}, {} violations", progress.seed, progress.violations));
    });
    bar.finish_and_clear();
    report
}

fn bug_named(option: &str, name: &str) -> Result<PlantedBug, Failure> {
    PlantedBug::named(name).ok_or_else(|| {
        let names: Vec<&str> = PlantedBug::ALL.iter().map(|(_, name)| *name).collect();
        Failure::usage(MessageId::CliArgument, format!("{option}: there is no planted bug \"{name}\""))
            .hint(format!("one of {}", names.join(", ")))
    })
}

fn list(json: bool) -> Result<(), Failure> {
    let names: Vec<&str> = PlantedBug::ALL.iter().map(|(_, name)| *name).collect();
    if json { screen::print_json(&json!(names)) } else { screen::print(&(names.join("\n") + "\n")) }
}

fn as_text(options: &Options, report: &Report, elapsed: Duration) -> String {
    let paint = Paint::for_stdout();
    let counters = &report.counters;
    let mut text = format!(
        "seed {}: {} crash points over {} seeds in {:.1} s ({} a second), digest {:016x}\n",
        options.seed,
        count(report.crash_points),
        count(report.seeds),
        elapsed.as_secs_f64(),
        count(rate(report.crash_points, elapsed)),
        report.digest
    );
    text += &format!(
        "{} requests, {} device operations, {} faults injected, {} engines opened, {} simulated\n",
        count(counters.requests),
        count(counters.device_ops),
        count(counters.faults),
        count(counters.opens),
        screen::nanos(counters.virtual_ns)
    );
    for violation in &report.violations {
        text += &violation_text(violation, paint);
    }
    text += &coverage::table(&report.counters.coverage, paint);
    text + &verdict(report.violations.len()) + "\n"
}

fn violation_text(violation: &Violation, paint: Paint) -> String {
    let Violation { crash_point, step, what, replay_command, .. } = violation;
    format!("{}\n    crash point {crash_point}, step {step}: {what}\n", paint.bold(replay_command))
}

fn as_json(options: &Options, report: &Report, elapsed: Duration) -> Value {
    let counters = &report.counters;
    let violations: Vec<Value> = report
        .violations
        .iter()
        .map(|violation| {
            json!({
                "seed": violation.seed, "step": violation.step, "crash_point": violation.crash_point,
                "what": violation.what, "replay_command": violation.replay_command,
            })
        })
        .collect();
    json!({
        "seed": options.seed,
        "planted_bug": options.bug,
        "crash_points": report.crash_points,
        "seeds": report.seeds,
        "elapsed_s": elapsed.as_secs_f64(),
        "crash_points_per_s": rate(report.crash_points, elapsed),
        "digest": format!("{:016x}", report.digest),
        "requests": counters.requests,
        "device_ops": counters.device_ops,
        "crash_points_seen": counters.crash_points_seen,
        "faults": counters.faults,
        "io_errors": counters.io_errors,
        "checkpoints": counters.checkpoints,
        "damaged_blocks": counters.damaged_blocks,
        "opens": counters.opens,
        "virtual_ns": counters.virtual_ns,
        "coverage": coverage::as_json(&counters.coverage),
        "violations": violations,
    })
}
