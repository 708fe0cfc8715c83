//! The tests find every planted bug within a bounded number of crash points, and its replay command
//! reproduces it. A violation counts only if the same run without the bug has none.
//!
//! `cargo test -p forebay-sim --features planted-bugs --test planted`; names of bugs, or parts of
//! them, behind `--` select those. The bugs run on all processors, first at their recorded seeds
//! (`recorded`); if a bug does not show there, the test searches for it.

#[path = "it/recorded/mod.rs"]
mod recorded;
#[path = "it/workers/mod.rs"]
mod workers;

use forebay_sim::{PlantedBug, SimOptions, Violation, run};
use std::process::ExitCode;
use std::time::Instant;

/// The recorded seed of each bug: its name, the seed, the number of its crash points, and the kind
/// of violation.
const RECORDED: &str = "planted.txt";
/// Crash points within which every planted bug must show.
const BOUND: u64 = 20_000;
/// Crash points of a seed, for bugs that show in few runs.
const PER_SEED: u64 = 30;
/// Distance of such seeds.
const SEED_STEP: u64 = 7919;
/// Bugs with their own tests: `hostile.rs`, `pacing.rs`, `liveness.rs`, and `work.rs`, `room.rs`,
/// `lifecycle.rs` and `damage.rs` of the core.
const ELSEWHERE: &[PlantedBug] = &[
    PlantedBug::BelieveEarlierUse,
    PlantedBug::BelieveOlderCopy,
    PlantedBug::ChaseMarks,
    PlantedBug::CompactWithoutBound,
    PlantedBug::DawdleWithMarks,
    PlantedBug::ForgetRecordOfDropped,
    PlantedBug::KeepStuckMoves,
    PlantedBug::PassForEachVictim,
    PlantedBug::WaitForLostRoom,
];
/// Bugs that show in few runs, but early there: the search takes some crash points of many seeds
/// instead of all of a few, which found them in a fifth of the time. They still take longest, and
/// begin first.
const IN_FEW_RUNS: &[PlantedBug] = &[
    PlantedBug::ExtendBeforeFlush,
    PlantedBug::KeepWithoutBound,
    PlantedBug::TrustUnflushedMarks,
    PlantedBug::RepairInVain,
    PlantedBug::JudgeFailedCopy,
    PlantedBug::GiveUpAtOnce,
    PlantedBug::DropSecondSuperblock,
    PlantedBug::CountBeforeNote,
    PlantedBug::ForgetInRebuild,
    PlantedBug::RescueSuperseded,
    PlantedBug::CountAnywhere,
    PlantedBug::FlushBeforeRecord,
    PlantedBug::FlushBeforeRescue,
];

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let mut bugs: Vec<PlantedBug> = PlantedBug::ALL
        .iter()
        .filter(|(bug, name)| !ELSEWHERE.contains(bug) && is_wanted(name))
        .map(|(bug, _)| *bug)
        .collect();
    bugs.sort_by_key(|bug| !IN_FEW_RUNS.contains(bug));
    // Many bugs show as a panic of the engine: the violation has its message.
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let known = recorded::read(RECORDED);
    let caught = workers::each(bugs.len(), |index| {
        let begin = Instant::now();
        let result = catch_again(bugs[index], &known).map_or_else(|| catch(bugs[index]), Ok);
        let (told, how) = match &result {
            Ok(caught) => ("caught", &caught.how),
            Err(why) => ("MISSED", why),
        };
        println!("{told} {}: {how} ({:.1} s)", bugs[index].name(), begin.elapsed().as_secs_f64());
        result.ok()
    });
    let missed = caught.iter().filter(|caught| caught.is_none()).count();
    println!("{} planted bugs, {missed} missed, {:.1} s", bugs.len(), begin.elapsed().as_secs_f64());
    let caught: Vec<Caught> = caught.into_iter().flatten().collect();
    if wanted.is_empty() && missed == 0 && caught.iter().any(|caught| caught.is_searched) {
        let mut lines: Vec<String> = caught.into_iter().map(|caught| caught.line).collect();
        lines.sort();
        recorded::changed(RECORDED, &lines);
    }
    ExitCode::from(u8::from(missed > 0))
}

/// A bug that was found.
struct Caught {
    how: String,
    /// Its line for the record.
    line: String,
    is_searched: bool,
}

/// Runs the recorded seed of a bug. Returns the result if it still shows by the same kind of
/// violation, and not without the bug.
fn catch_again(bug: PlantedBug, known: &[Vec<String>]) -> Option<Caught> {
    let line = known.iter().find(|line| line[0] == bug.name())?;
    let [seed, crashes] = [1, 2].map(|at| line[at].parse().expect("a number in the file"));
    let (_, violations) = simulate(bug, seed, crashes);
    let violation = violations.first()?;
    if Some(&kind(&violation.what)) != line.get(3) || is_wrong_without(bug, seed, crashes).is_some() {
        return None;
    }
    let how = format!("{}: {}", violation.replay_command, violation.what);
    Some(Caught { how, line: line.join(" "), is_searched: false })
}

/// Returns the kind of a violation, in one word: the invariant that an assertion names, or the
/// first words of the message without numbers and names.
fn kind(what: &str) -> String {
    let what = what.rsplit("): ").next().unwrap_or(what);
    let words = what.split(|symbol: char| !symbol.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut words = words.map(str::to_ascii_lowercase);
    let is_invariant =
        |word: &String| word.strip_prefix('i').is_some_and(|number| number.parse::<u32>().is_ok());
    words.clone().find(is_invariant).unwrap_or_else(|| {
        let plain = words.by_ref().filter(|word| !word.starts_with(|symbol: char| symbol.is_ascii_digit()));
        plain.take(4).collect::<Vec<_>>().join("-")
    })
}

/// Returns the violation of the same runs without the bug: it is then an error of the engine, and
/// proves nothing about the bug.
fn is_wrong_without(bug: PlantedBug, seed: u64, crashes: u64) -> Option<Violation> {
    let options = SimOptions { seed, crashes, aim: Some(bug), violations_max: 1, ..SimOptions::default() };
    run(&options, &mut |_| {}).violations.into_iter().next()
}

/// Searches for a bug. Returns the result, or the reason why it counts as missed.
fn catch(bug: PlantedBug) -> Result<Caught, String> {
    let (most, step) = if IN_FEW_RUNS.contains(&bug) { (PER_SEED, SEED_STEP) } else { (BOUND, 0) };
    let (mut seed, mut crash_points) = (1, 0);
    let violation = loop {
        let (points, mut violations) = simulate(bug, seed, most);
        crash_points += points;
        if let Some(violation) = violations.pop() {
            match is_wrong_without(bug, violation.seed, violation.crash_point + 1) {
                None => break violation,
                Some(wrong) => return Err(format!("the engine itself is wrong: {wrong:?}")),
            }
        }
        if crash_points >= BOUND {
            return Err(format!("not within {crash_points} crash points"));
        }
        seed += step.max(1);
    };
    let (_, again) = simulate(bug, violation.seed, violation.crash_point + 1);
    if again.first() != Some(&violation) {
        return Err(format!("the replay of {violation:?} shows {again:?}"));
    }
    let how = format!("{crash_points} crash points, {}: {}", violation.replay_command, violation.what);
    let (seed, crashes) = (violation.seed, violation.crash_point + 1);
    let line = format!("{} {seed} {crashes} {}", bug.name(), kind(&violation.what));
    Ok(Caught { how, line, is_searched: true })
}

fn simulate(bug: PlantedBug, seed: u64, crashes: u64) -> (u64, Vec<Violation>) {
    let options = SimOptions { seed, crashes, bug: Some(bug), violations_max: 1, ..SimOptions::default() };
    let report = run(&options, &mut |_| {});
    (report.crash_points, report.violations)
}
