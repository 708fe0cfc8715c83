//! `forebay help`: describes a command, a message, or shows a page of the documentation.
//!
//! The pages are part of the program (`pages`). `markdown` parses them; `text` formats a page for
//! the terminal and `roff` as a manual page.

mod markdown;
mod pages;
mod roff;
mod text;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command as Process, Stdio};

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use forebay_admin::MessageId;

use crate::failure::{Failure, system};
use crate::screen::{self, Paint, Width, wrapped};

/// Options of `forebay help`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On a terminal a page goes through $PAGER, or less.
Examples:
  forebay help pool create
  forebay help topics
  forebay help disk-died
  forebay help backing.changed")]
pub(crate) struct Options {
    /// A command, a topic (`forebay help topics` lists them), or the ID of a message
    #[arg(value_name = "COMMAND or TOPIC or ID", add = ArgValueCompleter::new(candidates))]
    words: Vec<String>,
}

fn candidates(start: &std::ffi::OsStr) -> Vec<CompletionCandidate> {
    let start = start.to_string_lossy().into_owned();
    let names = pages::ALL.iter().map(|(name, _)| *name).chain(["topics"]);
    names.filter(|name| name.starts_with(&start)).map(CompletionCandidate::new).collect()
}

/// Shows the help. `whole` is the definition of the command line.
pub(crate) fn execute(options: &Options, whole: &mut clap::Command) -> Result<(), Failure> {
    whole.build();
    let name = options.words.join("-");
    if let Some(command) = command(whole, &options.words) {
        let mut text = command.render_long_help();
        if pages::find(&name).is_some() {
            text = format!("{}\n\nThe page: forebay help page {name}\n", text.ansi()).into();
        } else if options.words.is_empty() {
            text = format!("{}\n\nPages: forebay help topics\n", text.ansi()).into();
        }
        let plain = !Paint::for_stdout().is_on();
        return screen::print(&if plain { text.to_string() } else { text.ansi().to_string() });
    }
    let name = name.strip_prefix("page-").unwrap_or(&name);
    let width = Width::of_stdout();
    match (pages::find(name), name) {
        (Some(page), _) => show(&text::text(&markdown::parse(page), Paint::for_stdout(), width)),
        (None, "topics") => show(&topics(width)),
        (None, id) => match MessageId::from_name(id) {
            Some(id) => screen::print(&message(id, width)),
            None => Err(unknown(&options.words.join(" "))),
        },
    }
}

/// Returns the command that the words name; `whole` without words.
fn command<'a>(whole: &'a mut clap::Command, words: &[String]) -> Option<&'a mut clap::Command> {
    words.iter().try_fold(whole, |command, word| command.find_subcommand_mut(word))
}

/// Returns the topics by task.
fn topics(width: Width) -> String {
    let blocks = markdown::parse(pages::INDEX);
    let mut text = "Show one with: forebay help TOPIC\n".to_owned();
    let mut heading = String::new();
    for block in blocks {
        let markdown::Block::Table(_, rows) = block else { continue };
        for row in rows {
            let names = row.get(1).map_or("", String::as_str);
            let named: Vec<&str> =
                names.split("(forebay help ").skip(1).filter_map(|rest| rest.split(')').next()).collect();
            let task = row.first().map_or("", String::as_str);
            match (named.as_slice(), names) {
                // A heading without topics is for developers.
                ([], "") => heading = format!("\n{}\n", Paint::for_stdout().bold(task)),
                ([], _) => {}
                (named, _) => {
                    text += &std::mem::take(&mut heading);
                    let line = format!("{} - {task}", named.join(", "));
                    text += &wrapped(&line, width)
                        .lines()
                        .fold(String::new(), |all, line| all + "  " + line + "\n");
                }
            }
        }
    }
    text
}

fn message(id: MessageId, width: Width) -> String {
    let page = match id {
        MessageId::Event(_) => "Events and alarms: forebay help events",
        _ => "All messages: forebay help messages",
    };
    format!("{}: {}\n{page}\n", id.name(), wrapped(id.help(), width))
}

fn unknown(words: &str) -> Failure {
    Failure::usage(MessageId::CliUsage, format!("no command, topic or message {words:?}"))
        .hint("`forebay help` lists the commands, `forebay help topics` the pages")
}

/// Prints a text, through a pager on a terminal.
fn show(text: &str) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return screen::print(text);
    }
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let command = pager.unwrap_or_else(|| "less -FRX".into());
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or("less");
    match Process::new(program).args(words).stdin(Stdio::piped()).spawn() {
        Ok(mut pager) => {
            // The reader may quit the pager early, which closes the pipe.
            let _ = pager.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
            pager.wait().map(drop).map_err(system(program.to_owned()))
        }
        Err(_) => screen::print(text),
    }
}

/// Writes a manual page of section 7 for each page; returns how many.
pub(super) fn write_manuals(folder: &Path) -> Result<usize, Failure> {
    for (name, page) in pages::ALL {
        let title = format!("forebay-{name}");
        let file = folder.join(format!("{title}.7"));
        std::fs::write(&file, roff::page(&title, &markdown::parse(page))).map_err(system(file.display()))?;
    }
    let file = folder.join("forebay.7");
    let concepts = pages::find("concepts").unwrap_or_default();
    let page = roff::page("forebay", &markdown::parse(concepts)) + &overview();
    std::fs::write(&file, page).map_err(system(file.display()))?;
    Ok(pages::ALL.len() + 1)
}

/// Returns the sections after the description, as in a system's manual pages.
fn overview() -> String {
    let files = [
        ("/etc/forebay/forebay.toml", "Configuration, see forebay.toml(5)."),
        ("/run/forebay/admin.sock", "The admin socket of the daemon."),
        ("/var/lib/forebay", "Records of the daemon (state_dir). Do not delete them."),
        ("/dev/forebay/VOLUME", "Block devices of volumes with the export ublk:."),
    ];
    let codes = [
        ("0", "Done. A closed pipe behind the standard output is not a failure."),
        ("1", "Failed: the standard error has the reason and a hint, with FOREBAY_MESSAGES=json as JSON."),
        ("2", "Wrong usage. Nothing was changed."),
    ];
    let list = |entries: &[(&str, &str)]| {
        let entry =
            |(name, text): &(&str, &str)| format!(".TP\n\\fB{}\\fR\n{text}\n", name.replace('-', "\\-"));
        entries.iter().map(entry).collect::<String>()
    };
    let also: Vec<String> = pages::ALL
        .iter()
        .map(|(name, _)| format!("\\fBforebay\\-{}\\fR(7)", name.replace('-', "\\-")))
        .collect();
    format!(
        ".SH FILES\n{}.SH EXIT STATUS\n{}.SH SEE ALSO\n\\fBforebay\\fR(1), \\fBforebay.toml\\fR(5), {}\n",
        list(&files),
        list(&codes),
        also.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_their_words() {
        let mut whole = crate::command_line::definition();
        whole.build();
        let mut found = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            command(&mut whole, &words).map(|command| command.get_name().to_owned())
        };
        assert_eq!(found(&[]), Some("forebay".into()));
        assert_eq!(found(&["pool", "create"]), Some("create".into()));
        assert_eq!(found(&["disk-died"]), None);
    }

    #[test]
    fn the_index_names_every_topic() {
        let index = topics(Width::unlimited());
        for (name, _) in pages::ALL {
            let is_named = index.split([' ', ',', '\n']).any(|word| word == *name);
            assert!(is_named, "{name} is missing in docs/README.md:\n{index}");
        }
    }

    #[test]
    fn hints_name_existing_help_topics() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![sources];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    for rest in text.split("forebay help ").skip(1) {
                        let name: String =
                            rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                        let is_known =
                            pages::find(&name).is_some() || ["topics", "page", ""].contains(&&*name);
                        let is_command = ["pool"].contains(&&*name) || MessageId::from_name(&name).is_some();
                        assert!(
                            is_known || is_command || name.starts_with("backing"),
                            "{}: {name}",
                            path.display()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_message_is_explained() {
        let text = message(MessageId::VolumeUnknown, Width::of(80));
        assert!(text.starts_with("volume.unknown: ") && text.contains("forebay help messages"), "{text}");
    }
}
