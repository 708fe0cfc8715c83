//! The table of coverage marks that the engines of a run have reached.

use forebay_sim::CoverageCounts;
use serde_json::{Value, json};

use crate::screen::{Paint, count};

/// Returns every coverage mark with the number of engines that reached it; unreached ones are red.
pub(super) fn table(coverage: &CoverageCounts, paint: Paint) -> String {
    let reached = coverage.iter().filter(|(.., engines)| *engines > 0).count();
    let mut text =
        format!("{reached} of {} rare paths taken, by so many engines:\n", coverage.iter().count());
    for (name, meaning, engines) in coverage.iter() {
        let line = format!("{:>12}  {name:<24}{}", count(engines), meaning.trim());
        text += &if engines == 0 { paint.red(&line) } else { line };
        text += "\n";
    }
    text
}

/// Returns the number of engines by name.
pub(super) fn as_json(coverage: &CoverageCounts) -> Value {
    let pairs = coverage.iter().map(|(name, _, engines)| (name.to_owned(), json!(engines)));
    Value::Object(pairs.collect())
}
