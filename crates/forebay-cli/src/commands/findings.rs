//! Helpers shared by the commands for caches: a progress bar, the JSON of a finding, and the name
//! of a checkpoint.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use forebay_format::superblock::Superblock;
use forebay_offline::Finding;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// Shorter work needs no progress bar.
const BAR_AFTER: Duration = Duration::from_secs(2);

/// Runs `work` with a progress bar that appears after [`BAR_AFTER`].
pub(super) fn with_bar<T>(work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let started = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let result = work(&mut |done, total| {
        if bar.is_none() && started.elapsed() > BAR_AFTER && stderr().is_terminal() {
            let new = ProgressBar::new(total);
            if let Ok(style) =
                ProgressStyle::with_template("  {bar:40} {human_pos}/{human_len} segments, {eta} left")
            {
                new.set_style(style);
            }
            bar = Some(new);
        }
        if let Some(bar) = &bar {
            bar.set_position(done);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    result
}

/// Returns the name of the checkpoint in effect, for display.
pub(super) fn checkpoint_name(superblock: &Superblock) -> String {
    let generation = superblock.checkpoint_generation;
    match superblock.chain {
        Some(chain) => format!("{generation} (base {}, {} increment blocks)", chain.base, chain.blocks),
        None => generation.to_string(),
    }
}

/// Returns the JSON form.
pub(super) fn finding_json(finding: &Finding) -> Value {
    json!({ "severity": finding.severity.name(), "where": finding.place, "what": finding.what })
}
