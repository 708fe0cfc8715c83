//! `forebay`: the command line tool.
//!
//! One file per command in `commands`; each has its options (a `clap` structure) and a function
//! that does it. What they share: `failure` (how a command fails), `screen` and `table` (how things
//! look), `client` (the admin API), `job` (following what takes long), `interrupt` (Ctrl-C),
//! `message` (what is said on stderr), `log` (lines of a daemon), `complete` (words for the shell),
//! `paths`, `progress`, `columns` (lines of a watcher).
//!
//! Contract with scripts: results on stdout, everything else on stderr; exit code 0 done, 1 failed,
//! 2 wrong usage; `--json` wherever a script reads. A closed pipe behind stdout is no failure.
#![forbid(unsafe_code)]

mod client;
mod columns;
mod commands;
mod complete;
mod failure;
mod interrupt;
mod job;
mod log;
mod message;
mod paint;
mod paths;
mod progress;
#[cfg(test)]
mod reference;
mod screen;
mod table;

use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// A fast device in front of a slow one, served as a block volume.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 120,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage.\nFirst steps: forebay demo. Pages for each task: forebay help topics"
)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    // If a shell asks for words to offer, this answers and ends the process.
    clap_complete::CompleteEnv::with_factory(Arguments::command).bin("forebay").complete();
    if let Err(failure) = message::choose() {
        return failure.report();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return failure::usage(&error),
    };
    match arguments.command.execute(&mut Arguments::command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        let mut commands = vec![Arguments::command()];
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            for inner in command.get_subcommands() {
                assert!(inner.get_about().is_some(), "{}", inner.get_name());
                commands.push(inner.clone());
            }
        }
    }
}
