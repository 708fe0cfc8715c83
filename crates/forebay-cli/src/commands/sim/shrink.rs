//! `forebay sim --shrink`: reduces a violation to the shortest script that shows it.

use forebay_admin::MessageId;
use forebay_sim::PlantedBug;
use forebay_sim::shrink::{Shrunk, shrink};
use serde_json::{Value, json};

use super::options::Options;
use super::report::{print, quietly};
use crate::failure::Failure;
use crate::screen::{Paint, count};

/// Shrinks the first violation of the seed. A violation is a failure here too.
pub(super) fn execute(options: &Options, bug: Option<PlantedBug>) -> Result<(), Failure> {
    let (found, _) = quietly(|| shrink(options.seed, options.crashes, bug, options.verbose));
    let Some(found) = found else {
        let what = format!("seed {} shows no violation in {} crash points", options.seed, options.crashes);
        return Err(Failure::new(MessageId::SimNoViolation, what)
            .hint("take seed and crash points from the command that a violation is printed with"));
    };
    let shrunk = found.map_err(|why| Failure::new(MessageId::SimNoViolation, why))?;
    print(options, || as_json(options, &shrunk), || as_text(options, &shrunk))?;
    Err(Failure::new(MessageId::SimViolation, format!("seed {} breaks the engine's promise", options.seed)))
}

fn again(options: &Options) -> String {
    let planted = options.bug.as_deref().map(|bug| format!(" --break {bug}")).unwrap_or_default();
    format!("forebay sim --seed {} --crashes {}{planted} --shrink", options.seed, options.crashes)
}

fn as_text(options: &Options, shrunk: &Shrunk) -> String {
    let paint = Paint::for_stdout();
    let mut text = format!(
        "{} of {} steps are left after {} trials\n",
        count(shrunk.steps as u64),
        count(shrunk.steps_before as u64),
        count(shrunk.trials)
    );
    for line in &shrunk.setting {
        text += &format!("       {line}\n");
    }
    for (number, line) in (1..).zip(&shrunk.script) {
        text += &format!("  {number:>3}  {line}\n");
    }
    text += &format!("{}\n", paint.red(&shrunk.what));
    text + &format!("{}    (with --verbose: every request and action of it)\n", paint.bold(&again(options)))
}

fn as_json(options: &Options, shrunk: &Shrunk) -> Value {
    json!({
        "seed": options.seed,
        "planted_bug": options.bug,
        "steps": shrunk.steps,
        "steps_before": shrunk.steps_before,
        "trials": shrunk.trials,
        "setting": shrunk.setting,
        "script": shrunk.script,
        "what": shrunk.what,
        "replay_command": again(options),
    })
}
