//! Shrinks a violation to the shortest run that shows it.
//!
//! Records the run of the seed: every step with its drawn values, and the generator of the world
//! before and after. Then tries smaller runs, in a fixed order: without faults, without jitter, at
//! lower queue depth, with fewer steps (delta debugging: halves, quarters, ... single ones), fewer
//! and smaller volumes, plainer steps. Keeps those that still fail in the same way (see [`kind`]).
//! A smaller run does not crash where the larger one did, so each trial takes *every* crash point
//! of its last steps (of all steps, once there are few), several times, with other crashes each
//! time.
//!
//! Invariant: no clock, no randomness: the same seed shrinks to the same script.

use crate::explore::{Run, Trial};
use crate::plan::{FaultPlan, Plan, Style};
use crate::violation::caught;
use crate::workload::{Record, Recorded, Replayed, Step};
use forebay_core::{PlantedBug, PoolSettings, RequestKind, Treatment, VolumeSettings, fault};
use std::cell::RefCell;
use std::rc::Rc;

/// Trials after which the smallest run so far is the result.
const TRIALS_MAX: u64 = 600;
/// With at most this many steps crashes are taken from the first one on.
const FEW: usize = 16;
/// Crash points of one trial.
const CRASHES: u64 = 300;
/// Trials of the same run with other crashes.
const SALTS: u64 = 3;
/// Crash points of forks in which the violation of an in-line run is searched.
const SEARCH: u64 = 4_000;

/// A minimal run.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// Requests and other steps left.
    pub steps: usize,
    /// Steps of the original failing run.
    pub steps_before: usize,
    /// Runs tried.
    pub trials: u64,
    /// Devices and settings, one per line.
    pub setting: Vec<String>,
    /// The steps, one per line.
    pub script: Vec<String>,
    /// The violation at its end.
    pub what: String,
}

/// Shrinks the first violation of a seed within this many crash points. `None` if there is none;
/// `Err` if it is not reproducible in a form that can be shrunk.
///
/// # Errors
/// Reports the reason.
pub fn shrink(
    seed: u64,
    crashes: u64,
    bug: Option<PlantedBug>,
    verbose: bool,
) -> Option<Result<Shrunk, String>> {
    let _planting = fault::plant(bug);
    let plan = Plan::new(seed, bug);
    let first = record(plan.clone(), crashes)?;
    if plan.style == Style::Fork {
        return Some(Shrinker::new(plan, first).and_then(|shrinker| shrinker.go(verbose)));
    }
    let wanted = kind(&first.what);
    for salt in 0..8 {
        // Search for a violation of an in-line run in forks of the same plan, with other requests.
        let plan = Plan { style: Style::Fork, sample: 2, seed: seed ^ (salt << 48), ..plan.clone() };
        let found = record(plan.clone(), SEARCH).filter(|found| kind(&found.what) == wanted);
        if let Some(found) = found {
            return Some(Shrinker::new(plan, found).and_then(|shrinker| shrinker.go(verbose)));
        }
    }
    Some(Err(format!(
        "the seed crashes in line, and beside its main line this was not found again: {}",
        first.what
    )))
}

/// Returns the message without the parts that depend on the run: two violations of the same kind
/// probably have the same cause.
#[must_use]
pub fn kind(what: &str) -> String {
    if what.contains("versions:") {
        let order = if what.contains("out of order") { "order" } else { "content" };
        return format!("wrong {order}");
    }
    // The description of the path ends with the last crash.
    let end = ["(power cut): ", "(kill): ", "main line: "]
        .iter()
        .filter_map(|mark| what.rfind(mark).map(|at| at + mark.len()));
    let tail = &what[end.max().unwrap_or(0)..];
    let letters: String = tail.chars().filter(|letter| !letter.is_ascii_digit()).take(60).collect();
    letters.split(['{', '[', '(']).next().unwrap_or_default().trim().to_owned()
}

/// A failed run.
struct Failed {
    what: String,
    steps: Vec<Recorded>,
}

fn outcome(run: &mut Run) -> Option<String> {
    caught(|| run.go())
}

fn record(plan: Plan, crashes: u64) -> Option<Failed> {
    let record: Record = Rc::new(RefCell::new(Vec::new()));
    let mut run = Run::of(plan, crashes, false);
    run.record = Some(Rc::clone(&record));
    let what = outcome(&mut run)?;
    let steps = record.borrow().iter().filter(|recorded| recorded.step != Step::Nothing).cloned().collect();
    Some(Failed { what, steps })
}

/// A smaller run to try.
#[derive(Clone)]
struct Candidate {
    plan: Plan,
    steps: Vec<Replayed>,
    plain: bool,
}

impl Candidate {
    fn kept(&self) -> usize {
        self.steps.iter().filter(|step| step.kept).count()
    }
}

struct Shrinker {
    best: Candidate,
    kind: String,
    what: String,
    /// The violation needs a crash.
    crashes: bool,
    /// Salt of the crashes that showed it last.
    salt: u64,
    trials: u64,
    steps_before: usize,
}

impl Shrinker {
    fn new(plan: Plan, failed: Failed) -> Result<Self, String> {
        let steps: Vec<Replayed> =
            failed.steps.into_iter().map(|recorded| Replayed { recorded, kept: true }).collect();
        let mut shrinker = Self {
            kind: kind(&failed.what),
            crashes: failed.what.contains("crash "),
            what: failed.what,
            salt: 0,
            trials: 0,
            steps_before: steps.len(),
            best: Candidate { plan, steps, plain: false },
        };
        let whole = shrinker.best.clone();
        let plain = Candidate { plain: true, ..whole.clone() };
        if shrinker.accept(plain) || shrinker.accept(whole) {
            return Ok(shrinker);
        }
        Err(format!(
            "it does not show again when its steps are replayed with other crashes: {}",
            shrinker.what
        ))
    }

    fn run_of(&self, candidate: &Candidate, salt: u64, verbose: bool) -> Run {
        let few = candidate.kept() <= FEW;
        let last = if few { usize::MAX } else { 2 };
        let trial = Trial {
            script: Rc::new(candidate.steps.clone()),
            crash_in_last: self.crashes.then_some(last),
            salt,
            plain: candidate.plain,
        };
        let budget = if self.crashes { if few { 4 * CRASHES } else { CRASHES } } else { u64::MAX };
        Run::of_trial(candidate.plan.clone(), budget, trial, verbose)
    }

    /// Tries a candidate; if it fails in the same way it becomes the best one.
    fn accept(&mut self, candidate: Candidate) -> bool {
        if self.trials >= TRIALS_MAX {
            return false;
        }
        self.trials += 1;
        // The last crashes that showed it are the likeliest to show it again.
        let salts = core::iter::once(self.salt).chain((0..SALTS).map(|salt| salt + 1));
        for salt in salts.take(if self.crashes { 1 + SALTS as usize } else { 1 }) {
            let found = outcome(&mut self.run_of(&candidate, salt, false));
            if let Some(what) = found.filter(|what| kind(what) == self.kind) {
                (self.best, self.what, self.salt) = (candidate, what, salt);
                return true;
            }
        }
        false
    }

    fn go(mut self, verbose: bool) -> Result<Shrunk, String> {
        self.calm();
        loop {
            let before = (self.best.kept(), self.trials);
            self.drop_steps();
            self.drop_volumes();
            self.plainer_steps();
            if self.best.kept() == before.0 || self.trials >= TRIALS_MAX {
                break;
            }
        }
        self.calm();
        if verbose {
            let _ = outcome(&mut self.run_of(&self.best, self.salt, true));
        }
        Ok(self.result())
    }

    /// Tries fewer faults, less jitter, lower queue depth, plainer settings.
    fn calm(&mut self) {
        type Change = fn(&mut Plan);
        let changes: [Change; 11] = [
            |plan| plan.faults = FaultPlan::default(),
            |plan| plan.faults.cache = FaultPlan::default().cache,
            |plan| plan.faults.backing = FaultPlan::default().backing,
            |plan| plan.faults.rot = 0,
            |plan| plan.faults.spoil = 0,
            |plan| {
                (plan.cache_latency.slow_ppm, plan.cache_latency.spread) = (0, 0);
                (plan.backing_latency.slow_ppm, plan.backing_latency.spread) = (0, 0);
            },
            |plan| plan.depth = 1,
            |plan| plan.depth = plan.depth.min(2),
            |plan| plan.depth = plan.depth.min(4),
            |plan| {
                let VolumeSettings { mode, destage_order, .. } = plan.settings;
                plan.settings = VolumeSettings { mode, destage_order, ..VolumeSettings::default() };
            },
            |plan| plan.engine.pool = PoolSettings::default(),
        ];
        for change in changes {
            let mut plan = self.best.plan.clone();
            change(&mut plan);
            if format!("{plan:?}") != format!("{:?}", self.best.plan) {
                let candidate = Candidate { plan, ..self.best.clone() };
                self.accept(candidate);
            }
        }
    }

    /// Delta debugging: removes halves, quarters, ... single steps, from the end, while the
    /// violation remains.
    fn drop_steps(&mut self) {
        let mut size = self.best.kept().div_ceil(2).max(1);
        loop {
            let mut end = self.best.kept();
            while end > 0 {
                let range = end.saturating_sub(size)..end;
                end = range.start;
                let mut candidate = self.best.clone();
                let kept = candidate.steps.iter_mut().filter(|step| step.kept);
                kept.enumerate().filter(|(at, _)| range.contains(at)).for_each(|(_, step)| step.kept = false);
                self.accept(candidate);
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    /// Removes volumes without steps, and shortens the others.
    fn drop_volumes(&mut self) {
        for volume in (0..self.best.plan.volumes.len()).rev() {
            let used = |step: &Replayed| step.kept && step.recorded.step.volume() == Some(volume);
            if self.best.plan.volumes.len() > 1 && !self.best.steps.iter().any(used) {
                let mut candidate = self.best.clone();
                candidate.plan.volumes.remove(volume);
                candidate.steps.retain(|step| step.recorded.step.volume() != Some(volume));
                for step in &mut candidate.steps {
                    if let Some(other) = step.recorded.step.volume_mut() {
                        *other -= usize::from(*other > volume);
                    }
                }
                self.accept(candidate);
            }
        }
        for volume in 0..self.best.plan.volumes.len() {
            let end =
                self.best.steps.iter().filter(|step| step.kept).filter_map(|step| match step.recorded.step {
                    Step::Ask { volume: of, range, .. } if of == volume => Some(range.0 + range.1),
                    _ => None,
                });
            let end = end.max().unwrap_or(0).max(16 << 10).next_multiple_of(4096);
            let mut candidate = self.best.clone();
            let plan = &mut candidate.plan.volumes[volume];
            if end < plan.bytes {
                (plan.bytes, plan.bytes_max) = (end, end + (128 << 10));
                self.accept(candidate);
            }
        }
    }

    /// Tries fewer bytes, no special treatment, no FUA.
    fn plainer_steps(&mut self) {
        for at in 0..self.best.steps.len() {
            if !self.best.steps[at].kept {
                continue;
            }
            if let Step::Configure { volume, settings, .. } = self.best.steps[at].recorded.step {
                let VolumeSettings { mode, destage_order, .. } = settings;
                let settings = VolumeSettings { mode, destage_order, ..VolumeSettings::default() };
                let mut candidate = self.best.clone();
                candidate.steps[at].recorded.step = Step::Configure { volume, settings, pool: None };
                self.accept(candidate);
            }
            let Step::Ask { volume, kind, range, treatment } = self.best.steps[at].recorded.step else {
                continue;
            };
            let block = (range.0 / 4096 * 4096, 4096.min(range.1));
            let mut plainer = vec![(kind, range, Treatment::Cache), (kind, block, treatment)];
            if let RequestKind::Write { fua: true } = kind {
                plainer.push((RequestKind::Write { fua: false }, range, treatment));
            }
            for (kind, range, treatment) in plainer {
                let step = Step::Ask { volume, kind, range, treatment };
                if step != self.best.steps[at].recorded.step && range.1 > 0 {
                    let mut candidate = self.best.clone();
                    candidate.steps[at].recorded.step = step;
                    self.accept(candidate);
                }
            }
        }
    }

    fn result(&self) -> Shrunk {
        let kept = self.best.steps.iter().filter(|step| step.kept);
        Shrunk {
            steps: self.best.kept(),
            steps_before: self.steps_before,
            trials: self.trials,
            setting: setting(&self.best.plan),
            script: kept.map(|step| describe(&step.recorded.step)).collect(),
            what: self.what.clone(),
        }
    }
}

fn setting(plan: &Plan) -> Vec<String> {
    let geometry = &plan.geometry;
    let mut lines = vec![format!(
        "cache of {} segments of {} blocks; {} requests at once",
        geometry.segment_count, geometry.segment_blocks, plan.depth
    )];
    for (index, volume) in plan.volumes.iter().enumerate() {
        let (bytes, unit) = (volume.bytes, volume.sector_bytes);
        lines.push(format!("volume {index}: {bytes} bytes, sectors of {unit}, {:?}", volume.mode));
    }
    let usual = VolumeSettings { mode: plan.settings.mode, ..VolumeSettings::default() };
    if plan.settings != usual {
        lines.push(format!("settings: {}", differences(&plan.settings, &usual)));
    }
    let pool = PoolSettings::default();
    if plan.engine.pool != pool {
        lines.push(format!("pool: {}", differences(&plan.engine.pool, &pool)));
    }
    let faults = FaultPlan::default();
    if plan.faults != faults {
        lines.push(format!("faults: {}", differences(&plan.faults, &faults)));
    }
    lines
}

/// Returns the fields in which a structure differs from the usual one.
fn differences(now: &impl core::fmt::Debug, usual: &impl core::fmt::Debug) -> String {
    let fields = |text: String| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<String>>();
    let (now, usual) = (fields(format!("{now:#?}")), fields(format!("{usual:#?}")));
    let all = now.iter().zip(&usual).filter(|(now, usual)| now != usual);
    let all: Vec<&str> = all.map(|(now, _)| now.trim_end_matches(',')).collect();
    if all.is_empty() { "the usual ones".into() } else { all.join(", ") }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Ask { volume, kind: RequestKind::Flush, .. } => format!("volume {volume}: FLUSH"),
        Step::Ask { volume, kind, range: (offset, len), treatment } => {
            let treated = if *treatment == Treatment::Cache {
                String::new()
            } else {
                format!(", treated as {treatment:?}")
            };
            format!("volume {volume}: {kind:?}, {len} bytes at {offset} (block {}){treated}", offset / 4096)
        }
        Step::Configure { volume, settings, pool } => {
            let pool = pool.map(|pool| format!("; pool: {}", differences(&pool, &PoolSettings::default())));
            let settings = differences(settings, &VolumeSettings::default());
            format!("volume {volume}: settings become {settings}{}", pool.unwrap_or_default())
        }
        Step::Drain { volume, drain } => format!("volume {volume}: drain {drain:?}"),
        Step::Unpin(volume) => format!("volume {volume}: all pins released"),
        Step::ForgetClean(volume) => format!("volume {volume}: clean blocks forgotten"),
        Step::Pause(time) => format!("pause of {} ms", time / 1_000_000),
        Step::Invalid => "a request that must be refused".into(),
        Step::Restart => "orderly stop and start".into(),
        Step::Lifecycle(volume) => format!("volume {volume}: attached, detached or resized"),
        Step::Pool => "pool grown or shrunk".into(),
        Step::Scrub => "a scrub begun or ended".into(),
        Step::Nothing => "nothing".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_do_not_depend_on_numbers() {
        let one = "main line: crash 3 at 12 ns (kill): does not open: Failed(X)";
        let other =
            "main line: crash 77 at 1 ns (power cut): crash 78 at 9 ns (kill): does not open: Failed(Y)";
        assert_eq!(kind(one), kind(other));
        assert_ne!(kind(one), kind("main line: stall with 3 operations under way"));
        assert_eq!(kind("x: volume 1 sector 2: found zeroes, versions: []"), "wrong content");
    }
}
