//! The commands, one file each.

mod check;
mod completions;
mod demo;
mod inspect;
mod run;
mod sim;
mod stats;

use crate::failure::Failure;

/// What can be asked for.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve one volume in the foreground
    Run(Box<run::Options>),
    /// Show what Forebay does: the same workload without and with a cache, every byte verified
    Demo(demo::Options),
    /// Verify every structure and checksum of a cache device, offline and without writing to it
    Check(check::Options),
    /// Print the structures of a cache device, offline
    Inspect(inspect::Options),
    /// Show counters and latencies of a running volume
    Stats(stats::Options),
    /// Simulate crashes and lying devices, and judge whether the engine keeps its promise
    Sim(sim::Options),
    /// Print a completion script for a shell
    Completions(completions::Options),
}

impl Command {
    /// Does it. `whole` is the definition of the command line.
    pub(crate) fn execute(self, whole: &mut clap::Command) -> Result<(), Failure> {
        match self {
            Self::Run(options) => run::execute(*options),
            Self::Demo(options) => demo::execute(&options),
            Self::Check(options) => check::execute(&options),
            Self::Inspect(options) => inspect::execute(&options),
            Self::Stats(options) => stats::execute(&options),
            Self::Sim(options) => sim::execute(&options),
            Self::Completions(options) => completions::execute(&options, whole),
        }
    }
}
