//! `forebay sim`: the simulator.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use forebay_sim::exhaustive::Sequence;
use forebay_sim::{PlantedBug, Progress, Report, SimOptions, Violation, fault};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::screen::{self, Paint, count};

mod coverage;
mod exhaustive;
mod hostile;
mod shrink;

/// Options of `forebay sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Same seed, same run: a violation is printed with the command that shows it again.
Examples:
  forebay sim --crashes 100000
  forebay sim --seed 7 --break skip-device-flush    must find a violation
  forebay sim --seed 7 --break skip-intent --shrink the shortest way to a violation
  forebay sim --hostile 100                         wrong cache devices
  forebay sim --exhaustive --length 2               all short sequences, all their crash states
  forebay sim --break list")]
pub(crate) struct Options {
    /// First seed; a run takes as many seeds from here on as it needs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Crash points to try
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    crashes: u64,
    /// Plant a bug in the engine, to see that the simulator finds it; `list` shows their names
    #[arg(long = "break", value_name = "NAME")]
    bug: Option<String>,
    /// Reduce the first violation to the shortest script that still shows it
    #[arg(long, conflicts_with = "exhaustive")]
    shrink: bool,
    /// Open wrong cache devices (older, swapped, half-formatted, damaged, with lost flushes), over
    /// so many seeds
    #[arg(long, value_name = "SEEDS", conflicts_with_all = ["exhaustive", "shrink", "crashes"])]
    hostile: Option<u64>,
    /// Instead of drawing: every sequence of up to `--length` operations, every instant of it,
    /// every state that a crash could leave there
    #[arg(long, conflicts_with_all = ["seed", "crashes"])]
    exhaustive: bool,
    /// Longest sequence of `--exhaustive`
    #[arg(long, value_name = "N", default_value_t = 3, requires = "exhaustive",
          value_parser = clap::value_parser!(u8).range(1..=4))]
    length: u8,
    /// Longest sequence of `--exhaustive` whose recoveries are crashed as well
    #[arg(long, value_name = "N", default_value_t = 2, requires = "exhaustive")]
    twice: u8,
    /// Of the sequences of `--exhaustive` with more than one operation take every N-th one, from
    /// the I-th on
    #[arg(long, value_name = "I/N", requires = "exhaustive", value_parser = part)]
    part: Option<(usize, usize)>,
    /// The one sequence of `--exhaustive` with this name
    #[arg(long, value_name = "NAME", requires = "exhaustive", value_parser = sequence)]
    only: Option<Sequence>,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 5)]
    violations: usize,
    /// Print every request and every action of the engine on stderr
    #[arg(long)]
    verbose: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the simulator. Violations are a failure, with a planted bug as well: the exit code says
/// what was found.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.bug.is_some() && !fault::AVAILABLE {
        return Err(Failure::usage("--break: this build has no planted bugs").hint(
            "build one that has: cargo run --release -p forebay-cli --features planted-bugs -- sim --break list",
        ));
    }
    if options.bug.as_deref() == Some("list") {
        return list(options.json);
    }
    let bug = options.bug.as_deref().map(bug_named).transpose()?;
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
        violations_max: options.violations.max(1),
        verbose: options.verbose,
    };
    // The simulator catches panics of the engine and reports them as violations; once is enough.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let report = simulate(&sim);
    let _ = std::panic::take_hook();
    let elapsed = started.elapsed();
    if options.json {
        screen::print_json(&as_json(options, &report, elapsed))?;
    } else {
        screen::print(&as_text(options, &report, elapsed))?;
    }
    if report.violations.is_empty() {
        return Ok(());
    }
    let found = report.violations.len();
    let hint = "the engine broke its promise; the commands above show it again, `--verbose` adds every step";
    Err(Failure::new(format!("{found} violations, from seed {}", options.seed)).hint(hint))
}

fn simulate(sim: &SimOptions) -> Report {
    if sim.verbose || !stderr().is_terminal() {
        return forebay_sim::run(sim, &mut |_| {});
    }
    let bar = ProgressBar::new(sim.crashes);
    if let Ok(style) =
        ProgressStyle::with_template("  {bar:40} {human_pos}/{human_len} crash points, {per_sec}, {msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = forebay_sim::run(sim, &mut |progress: &Progress| {
        bar.set_position(progress.crash_points);
        bar.set_message(format!("seed {}, {} violations", progress.seed, progress.violations));
    });
    bar.finish_and_clear();
    report
}

fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').map(|(first, of)| (first.parse::<usize>(), of.parse::<usize>()));
    match numbers {
        Some((Ok(first), Ok(of))) if first < of => Ok((first, of)),
        _ => Err("expected I/N with I below N, such as 0/10".into()),
    }
}

fn sequence(name: &str) -> Result<Sequence, String> {
    Sequence::named(name)
        .ok_or_else(|| "no such sequence: expected a name such as writeback.rested.write0+flush".into())
}

fn bug_named(name: &str) -> Result<PlantedBug, Failure> {
    PlantedBug::named(name).ok_or_else(|| {
        let names: Vec<&str> = PlantedBug::ALL.iter().map(|(_, name)| *name).collect();
        Failure::usage(format!("--break: there is no planted bug \"{name}\""))
            .hint(format!("one of {}", names.join(", ")))
    })
}

fn list(json: bool) -> Result<(), Failure> {
    let names: Vec<&str> = PlantedBug::ALL.iter().map(|(_, name)| *name).collect();
    if json { screen::print_json(&json!(names)) } else { screen::print(&(names.join("\n") + "\n")) }
}

fn rate(report: &Report, elapsed: Duration) -> u64 {
    (report.crash_points as f64 / elapsed.as_secs_f64().max(1e-9)) as u64
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
        count(rate(report, elapsed)),
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
    let verdict = match report.violations.len() {
        0 => paint.green("no violation"),
        n => paint.red(&format!("{n} violations")),
    };
    text + &verdict + "\n"
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
        "crash_points_per_s": rate(report, elapsed),
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
