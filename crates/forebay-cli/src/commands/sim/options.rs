//! Options of `forebay sim`.

use forebay_sim::exhaustive::Sequence;

/// Options of `forebay sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Same seed, same run: a violation is printed with the command that reproduces it.
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
    pub(super) seed: u64,
    /// Crash points to try
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) crashes: u64,
    /// Plant a bug in the engine, to verify that the simulator finds it; `list` prints their names
    #[arg(long = "break", value_name = "NAME")]
    pub(super) bug: Option<String>,
    /// Lead runs to the situation in which this planted bug shows, without planting it: there must
    /// be no violation
    #[arg(long, value_name = "NAME", conflicts_with_all = ["bug", "exhaustive", "hostile", "shrink"])]
    pub(super) aim: Option<String>,
    /// Reduce the first violation to the shortest script that still shows it
    #[arg(long, conflicts_with = "exhaustive")]
    pub(super) shrink: bool,
    /// Open wrong cache devices (older, swapped, half-formatted, damaged, with lost flushes), with
    /// this many seeds
    #[arg(long, value_name = "SEEDS", conflicts_with_all = ["exhaustive", "shrink", "crashes"])]
    pub(super) hostile: Option<u64>,
    /// Instead of random runs: every sequence of up to `--length` operations, every instant of it,
    /// every state that a crash could leave there
    #[arg(long, conflicts_with_all = ["seed", "crashes"])]
    pub(super) exhaustive: bool,
    /// Longest sequence of `--exhaustive`
    #[arg(long, value_name = "N", default_value_t = 3, requires = "exhaustive",
          value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(super) length: u8,
    /// Longest sequence of `--exhaustive` whose recoveries are crashed as well
    #[arg(long, value_name = "N", default_value_t = 2, requires = "exhaustive")]
    pub(super) twice: u8,
    /// Of the sequences of `--exhaustive` with more than one operation run every N-th one, from the
    /// I-th on
    #[arg(long, value_name = "I/N", requires = "exhaustive", value_parser = part)]
    pub(super) part: Option<(usize, usize)>,
    /// Only the sequence of `--exhaustive` with this name
    #[arg(long, value_name = "NAME", requires = "exhaustive", value_parser = sequence)]
    pub(super) only: Option<Sequence>,
    /// Stop after this many violations
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) violations: usize,
    /// Print every request and every action of the engine on stderr
    #[arg(long)]
    pub(super) verbose: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
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
