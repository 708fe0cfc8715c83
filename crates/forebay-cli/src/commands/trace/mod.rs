//! `forebay trace`: traces of requests. `files` (names and formats), `record`, `convert`, `replay`,
//! `target` (where it goes to).

mod convert;
pub(super) mod files;
mod record;
mod replay;
mod target;

use crate::failure::Failure;

/// What to do with traces.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Record what clients ask of a volume
    Record(record::Options),
    /// Write a trace in another format
    Convert(convert::Options),
    /// Make the requests of a trace to a real volume, and measure them
    Replay(replay::Options),
}

/// Does it.
pub(crate) fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Record(options) => record::execute(options),
        Command::Convert(options) => convert::execute(options),
        Command::Replay(options) => replay::execute(options),
    }
}
