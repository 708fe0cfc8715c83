//! `forebay sim --hostile`: wrong cache devices.

use forebay_admin::MessageId;
use std::time::Duration;

use forebay_sim::PlantedBug;
use forebay_sim::hostile::{HostileReport, Hostility, Outcome, run_hostile};
use serde_json::{Value, json};

use super::options::Options;
use super::report::{print, quietly, verdict};
use crate::failure::Failure;
use crate::screen::{Paint, count};

/// Runs this many seeds. A forbidden outcome is a failure.
pub(super) fn execute(options: &Options, seeds: u64, bug: Option<PlantedBug>) -> Result<(), Failure> {
    let (report, elapsed) = quietly(|| run_hostile(options.seed, seeds, bug, &mut |_| {}));
    print(options, || as_json(options, &report), || as_text(&report, bug, elapsed))?;
    if report.violations.is_empty() {
        return Ok(());
    }
    Err(Failure::new(MessageId::SimViolation, format!("{} seeds with violations", report.violations.len())))
}

fn as_text(report: &HostileReport, bug: Option<PlantedBug>, elapsed: Duration) -> String {
    let paint = Paint::for_stdout();
    let mut text = format!("{:<34}", "");
    for (_, name) in Outcome::ALL {
        text += &format!("{name:>22}");
    }
    text += "\n";
    for (hostility, name) in Hostility::ALL {
        text += &format!("{name:<34}");
        for (outcome, _) in Outcome::ALL {
            let cell = format!("{:>22}", count(report.count(hostility, outcome)));
            let bad = hostility.forbids(outcome) && report.count(hostility, outcome) > 0;
            text += &if bad { paint.red(&cell) } else { cell };
        }
        text += "\n";
    }
    for (seed, what) in &report.violations {
        let planted = bug.map(|bug| format!(" --break {}", bug.name())).unwrap_or_default();
        let command = format!("forebay sim --hostile 1 --seed {seed}{planted}");
        text += &format!("{}\n    {what}\n", paint.bold(&command));
    }
    let verdict = verdict(report.violations.len());
    text + &format!("{} seeds in {:.1} s, {verdict}\n", count(report.seeds), elapsed.as_secs_f64())
}

fn as_json(options: &Options, report: &HostileReport) -> Value {
    let outcomes: Vec<Value> = report
        .outcomes
        .iter()
        .map(|((hostility, outcome), number)| {
            let hostility =
                Hostility::ALL.iter().find(|(other, _)| other == hostility).map(|(_, name)| *name);
            let outcome = Outcome::ALL.iter().find(|(other, _)| other == outcome).map(|(_, name)| *name);
            json!({ "devices": hostility, "outcome": outcome, "count": number })
        })
        .collect();
    let violations: Vec<Value> =
        report.violations.iter().map(|(seed, what)| json!({ "seed": seed, "what": what })).collect();
    json!({ "seed": options.seed, "seeds": report.seeds, "outcomes": outcomes, "violations": violations })
}
