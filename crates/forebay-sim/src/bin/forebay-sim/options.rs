//! Command line.

use forebay_sim::exhaustive::Sequence;
use forebay_sim::{PlantedBug, fault};

/// Runs the engine on devices that tear, lose and reorder writes, and checks its promises
#[derive(Debug, clap::Parser)]
#[command(
    name = "forebay-sim",
    after_help = "\
Same seed, same run: a violation is printed with the command that reproduces it.
Examples:
  forebay-sim --crashes 100000
  forebay-sim --seed 7 --break skip-device-flush    must find a violation
  forebay-sim --seed 7 --break skip-intent --shrink the shortest way to a violation
  forebay-sim --hostile 100                         wrong cache devices
  forebay-sim --exhaustive --length 2               all short sequences, all their crash states
  forebay-sim --list-bugs"
)]
pub(crate) struct Options {
    /// First seed; a run takes as many seeds from here on as it needs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Crash points to try
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) crashes: u64,
    /// At most this many crash points of each seed; seeds are not consecutive then
    #[arg(long, value_name = "N", conflicts_with_all = ["exhaustive", "hostile", "shrink"])]
    pub(crate) per_seed: Option<u64>,
    /// Plant a bug in the engine, to verify that the simulator finds it
    #[arg(long = "break", value_name = "NAME", value_parser = planted)]
    pub(crate) bug: Option<PlantedBug>,
    /// Print the names of the bugs that can be planted
    #[arg(long)]
    pub(crate) list_bugs: bool,
    /// Lead runs to the situation in which this planted bug shows, without planting it: there must
    /// be no violation
    #[arg(long, value_name = "NAME", value_parser = named, conflicts_with_all = ["bug", "exhaustive", "hostile", "shrink"])]
    pub(crate) aim: Option<PlantedBug>,
    /// Reduce the first violation to the shortest script that still shows it
    #[arg(long, conflicts_with = "exhaustive")]
    pub(crate) shrink: bool,
    /// Open wrong cache devices (older, swapped, half-formatted, damaged, with lost flushes), with
    /// this many seeds
    #[arg(long, value_name = "SEEDS", conflicts_with_all = ["exhaustive", "shrink", "crashes"])]
    pub(crate) hostile: Option<u64>,
    /// Instead of random runs: every sequence of up to `--length` operations, every instant of it,
    /// every state that a crash could leave there
    #[arg(long, conflicts_with_all = ["seed", "crashes"])]
    pub(crate) exhaustive: bool,
    /// Longest sequence of `--exhaustive`
    #[arg(long, value_name = "N", default_value_t = 3, requires = "exhaustive",
          value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) length: u8,
    /// Longest sequence of `--exhaustive` whose recoveries are crashed as well
    #[arg(long, value_name = "N", default_value_t = 2, requires = "exhaustive")]
    pub(crate) twice: u8,
    /// Of the sequences of `--exhaustive` with more than one operation run every N-th one, from the
    /// I-th on
    #[arg(long, value_name = "I/N", requires = "exhaustive", value_parser = part)]
    pub(crate) part: Option<(usize, usize)>,
    /// Only the sequence of `--exhaustive` with this name
    #[arg(long, value_name = "NAME", requires = "exhaustive", value_parser = sequence)]
    pub(crate) only: Option<Sequence>,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) violations: usize,
    /// Print every request and every action of the engine on stderr
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Print progress on stderr
    #[arg(long)]
    pub(crate) progress: bool,
}

fn named(name: &str) -> Result<PlantedBug, String> {
    PlantedBug::named(name).ok_or_else(|| "no such bug: see --list-bugs".into())
}

fn planted(name: &str) -> Result<PlantedBug, String> {
    if fault::AVAILABLE {
        named(name)
    } else {
        Err("this build has no planted bugs (feature planted-bugs)".into())
    }
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
