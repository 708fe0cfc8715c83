//! `forebay trace`: traces of requests. `files` (names and formats), `record`, `convert`, `replay`,
//! `target` (the target of a replay).

mod convert;
pub(super) mod files;
mod record;
mod replay;
mod target;

use crate::failure::Failure;

/// Commands of `forebay trace`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Record the requests of clients on a volume
    Record(record::Options),
    /// Write a trace in another format
    Convert(convert::Options),
    /// Send the requests of a trace to a real volume, and measure their latency
    Replay(replay::Options),
}

/// Executes a command.
pub(crate) fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Record(options) => record::execute(options),
        Command::Convert(options) => convert::execute(options),
        Command::Replay(options) => replay::execute(options),
    }
}
