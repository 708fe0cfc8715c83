//! `forebay`: the command line tool.
//!
//! One file per command in `commands`; each has its options (a `clap` structure) and a function
//! that executes it. Shared modules: `failure` (how a command fails), `screen` and `table`
//! (output), `client` (the admin API), `job` (following long operations), `interrupt` (Ctrl-C),
//! `message` (messages on stderr), `log` (lines of a daemon), `complete` (completions for the
//! shell), `paths`, `progress`, `columns` (lines of a watcher), `command_line` (help texts).
//!
//! Contract with scripts: results on stdout, everything else on stderr; exit code 0 done, 1 failed,
//! 2 wrong usage; `--json` on every command with output for scripts. A closed pipe behind stdout is
//! no failure.
#![forbid(unsafe_code)]

mod client;
mod columns;
mod command_line;
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

use clap::{FromArgMatches, Parser};
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
    // If a shell requests completions, this prints them and ends the process.
    clap_complete::CompleteEnv::with_factory(command_line::definition).bin("forebay").complete();
    if let Err(failure) = message::choose() {
        return failure.report();
    }
    let parsed = command_line::definition().try_get_matches();
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => return failure::usage(&error),
    };
    match arguments.command.execute(&mut command_line::definition()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command_line::definition().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        let mut commands = vec![command_line::definition()];
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
