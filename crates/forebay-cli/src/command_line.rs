//! The definition of the command line for parsing and display: commands in groups, and texts that
//! wrap once, at the width of the terminal.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use crate::Arguments;
use crate::screen::{Paint, Width, wrapped};

/// A longer source line that ends inside a sentence continues in the next one.
const BROKEN_FROM: usize = 90;
/// Width of the column of command names.
const NAME_COLUMNS: usize = 14;

/// All commands, by the operator's task.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Watch and operate",
        &[
            "status", "list", "iostat", "top", "stats", "alarms", "events", "jobs", "get", "set", "flush",
            "reload", "upgrade",
        ],
    ),
    ("Set up", &["cache", "uncache", "pool", "volume", "rules", "config", "serve", "run", "ublk"]),
    ("Repair without a daemon", &["check", "inspect", "salvage"]),
    ("Plan", &["advise", "what-if", "trace"]),
    ("Learn", &["help", "demo", "completions", "man"]),
];

/// Returns the definition of the command line.
pub(crate) fn definition() -> clap::Command {
    let whole = unfolded(Arguments::command());
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n{}\n{{options}}{{after-help}}", groups(&whole));
    whole.help_template(template)
}

/// Joins the lines of each text after the options that are broken only in the source: clap wraps
/// them again at the width of the terminal.
fn unfolded(command: clap::Command) -> clap::Command {
    let text = command.get_after_help().map(ToString::to_string);
    let command = command.mut_subcommands(unfolded);
    match text {
        Some(text) => command.after_help(joined(&text)),
        None => command,
    }
}

fn joined(text: &str) -> String {
    let mut joined = String::new();
    let mut goes_on = false;
    for line in text.lines() {
        if !joined.is_empty() {
            joined.push(if goes_on && !line.starts_with(' ') { ' ' } else { '\n' });
        }
        joined += line;
        goes_on = line.len() > BROKEN_FROM && !line.ends_with(['.', ';', ':']);
    }
    joined
}

/// Returns the commands with their descriptions, by group.
fn groups(whole: &clap::Command) -> String {
    let paint = Paint::for_stdout();
    let width = Width::of_stdout();
    let room = Width::exactly(width.columns().unwrap_or(120).min(120).saturating_sub(NAME_COLUMNS as u16));
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "\n{}", paint.bold(&format!("{group}:")));
        for name in names {
            let about = whole.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            for (at, line) in wrapped(&about, room).lines().enumerate() {
                let name = if at == 0 { name } else { "" };
                let _ = writeln!(text, "  {name:<12}{line}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_is_in_one_group() {
        let whole = Arguments::command();
        let defined: BTreeSet<&str> = whole.get_subcommands().map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), defined);
        assert_eq!(grouped.len(), defined.len(), "a command twice");
    }

    #[test]
    fn only_lines_of_the_source_are_joined() {
        let long = "words".repeat(20);
        let text = format!("{long}\nend. {long}.\nExamples:\n  one\n  two");
        assert_eq!(joined(&text), format!("{long} end. {long}.\nExamples:\n  one\n  two"));
    }

    #[test]
    fn help_has_no_line_that_is_broken_twice() {
        let mut commands = vec![definition()];
        while let Some(command) = commands.pop() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                let begins_small = pair[1].starts_with(|c: char| c.is_ascii_lowercase());
                assert!(!begins_small, "{}: {pair:?}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
