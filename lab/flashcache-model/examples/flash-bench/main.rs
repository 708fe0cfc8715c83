//! A flash device from the inside: its speed by fill level, compared with two measured cards, and
//! its life under the writes of caches.
//!
//! ```text
//! cargo run --release -p forebay-flashcache-model --example flash-bench -- --cards
//! cargo run --release -p forebay-flashcache-model --example flash-bench -- --fit [--all]
//! cargo run --release -p forebay-flashcache-model --example flash-bench -- --layouts [--workload NAME] [--layout NAME] [--cache-mib N] [--rounds N] [--burst N] [--blocks-per-s N]
//!     [--segment-blocks N] [--block-kib N] [--capacity-gb N] [--cycles N]
//! ```
//!
//! Each with `--json FILE` (a line for each line of the table), `--seed N`, and `--pages N` of a
//! modelled card. The figures are deterministic, on every machine.

mod compare;
#[path = "../../../../crates/forebay-sim/tests/it/figures/mod.rs"]
mod figures;
mod flashcache;
mod lines;
mod sweep;

use compare::Comparison;
use lines::Table;
use std::process::ExitCode;

const USAGE: &str = "usage (--block-kib: at least 64 blocks in the cache; --segment-blocks: 16 to 16384 by powers of two, some segments in the cache):\n\
                     flash-bench (--cards | --fit [--all] | --layouts) [--json FILE] [--seed N] [--pages N] [--workload NAME] \
                     [--layout NAME] [--cache-mib N] [--rounds N] [--burst N] [--blocks-per-s N] [--segment-blocks N] [--block-kib N] \
                     [--capacity-gb N] [--cycles N]";

/// The arguments.
#[derive(Clone, Debug, Default)]
struct Asked {
    cards: bool,
    fit: bool,
    all: bool,
    layouts: bool,
    pages: Option<u32>,
    comparison: Comparison,
    json: Option<String>,
}

fn parse(arguments: &[String]) -> Option<Asked> {
    let mut asked = Asked::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cards" => asked.cards = true,
            "--fit" => asked.fit = true,
            "--all" => asked.all = true,
            "--layouts" => asked.layouts = true,
            "--json" => asked.json = Some(arguments.next()?.clone()),
            // Below this number of blocks a card has no room to collect.
            "--pages" => asked.pages = Some(number(arguments.next()?, 8192, 1 << 24)? as u32),
            key => asked.comparison.set(key, arguments.next()?)?,
        }
    }
    let any = asked.cards || asked.fit || asked.layouts;
    (any && (!asked.layouts || asked.comparison.is_possible())).then_some(asked)
}

/// Parses a whole number within these limits.
fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(asked) = parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut json = String::new();
    let mut show = |table: Table| {
        println!("{}", table.text());
        json += &table.json();
    };
    let seed = asked.comparison.seed;
    if asked.cards {
        show(sweep::cards(asked.pages, seed));
    }
    if asked.fit {
        show(sweep::fits(asked.pages, seed, asked.all));
    }
    if asked.layouts {
        show(asked.comparison.run());
    }
    if let Some(path) = asked.json
        && let Err(error) = std::fs::write(&path, json)
    {
        eprintln!("cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
