//! `docs/use/commands.md` is generated from the definition of the command line, and
//! `docs/use/messages.md` from the table of IDs: tests compare them with the files.

use forebay_admin::MessageId;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Commands

Made from the definition of the command line by `crates/forebay-cli/src/reference.rs`; do not edit by hand.
`forebay COMMAND --help` prints the same.

- **Exit codes**: 0 done, 1 failed, 2 wrong usage.
- **Errors** go to stderr: `forebay: what was wrong, and where`, then `hint: what to do next`.
- **Messages for scripts**: with `FOREBAY_MESSAGES=json` each message on stderr is a JSON object
  with an [id](messages.md).
- **Results** go to stdout. `--json` prints them as JSON.
- **Colours** appear only on a terminal, and never with `NO_COLOR` set.
- **Sizes** are written `4KiB`, `512M`, `10GiB` (powers of 1024) or `10GB` (powers of 1000).
- **Durations** are written `250ms`, `30s`, `5min`.

A command marked *asks the daemon* also takes `--admin SOCKET` and, except for `top`, `cache` and `uncache`, `--json`.
The socket is `$FOREBAY_ADMIN` if that is set, else `/run/forebay/admin.sock`. It may be the one of `forebay run --admin SOCKET`.
There the pool is called `run`, and changes last until it stops. The command gives up after 10 s without an answer, and
after 75 s for a change.

Work that takes long is a job. The command waits for it and shows its progress. Ctrl-C ends the waiting, not the job:
the message says how to follow or cancel it, and the exit code is 1. `--background` prints the id and does not wait.

More about them: [settings](settings.md), [rules](rules.md), [pools and volumes](../operate/pools-and-volumes.md),
[statistics](../operate/statistics.md), [events](../operate/events.md),
[a cache without a daemon](../operate/offline.md), [simulation](../internals/simulation.md).
";

#[test]
fn the_page_of_commands_is_of_this_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/commands.md");
    let mut whole = crate::command_line::definition();
    whole.build();
    let mut page = HEAD.to_owned();
    write(&mut page, &whole, "forebay");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == page, "docs/use/commands.md is not of this code: run this test with UPDATE_GOLDEN=1");
}

const MESSAGES_HEAD: &str = "\
# Messages

Made from the table of ids by `crates/forebay-cli/src/reference.rs`; do not edit by hand.

Each error, hint, warning and line of the log has an **id**. The words of a message may change with any release. The id
of a situation does not, so scripts and tests compare ids.

## On stderr

The environment variable `FOREBAY_MESSAGES` says how the messages of a command or a daemon look: `text` (the default)
or `json`. With `json` each message is one object on one line, also a message of several lines and one with a hint:

```json
{\"severity\":\"error\",\"id\":\"volume.unknown\",\"what\":\"no volume \\\"db\\\"\",\"hint\":\"there are: home\"}
```

| field | meaning |
| --- | --- |
| `severity` | `error`, `warning`, `info` or `debug` |
| `id` | the situation |
| `what` | what is wrong, and where |
| `hint` | what to do next; may be empty |
| `pool`, `volume` | what the message is about; absent if unknown |

The variable has no effect on stdout. A write to stderr that fails is no failure of the command.

## In the API

A problem (`application/problem+json`) has the id in `id`, beside `kind`. A job that failed has it in `error_id`, and so
have the details of its event `job.failed`. A command that the daemon refuses prints the id of the daemon.

## Ids

Names of [events and alarms](../operate/events.md#kinds) are ids too, such as `backing.changed` or `cache.failed`. A
message that is about the same as an event has the name of the event. All other ids are in this table. The second column
has the usual kind of the error, or the usual severity of a message that is no error.

| id | kind | what it means |
| --- | --- | --- |
";

#[test]
fn the_page_of_messages_is_of_this_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/messages.md");
    let mut page = MESSAGES_HEAD.to_owned();
    for id in MessageId::ALL {
        let help = id.help().trim_end_matches('.');
        writeln!(page, "| `{id}` | {} | {help} |", id.class_name()).unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == page, "docs/use/messages.md is not of this code: run this test with UPDATE_GOLDEN=1");
}

/// Writes the sections of the commands below `command`, whose full name is `name`.
fn write(page: &mut String, command: &clap::Command, name: &str) {
    for inner in shown(command) {
        let name = format!("{name} {}", inner.get_name());
        write_section(page, inner, &name);
        write(page, inner, &name);
    }
}

fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

fn write_section(page: &mut String, command: &clap::Command, name: &str) {
    let about = command.get_about().unwrap();
    let asks = if common(command, "admin") && name != "forebay run" { " *Asks the daemon.*" } else { "" };
    let _ = writeln!(page, "\n## {name}\n\n{about}.{asks}");
    if shown(command).next().is_some() {
        return;
    }
    let usage = command.clone().bin_name(name).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    if usage.trim_end_matches(" [OPTIONS]") != name {
        let _ = writeln!(page, "\n```text\n{usage}\n```");
    }
    let mut rows = String::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let id = argument.get_id().as_str();
        let is_told_above = !asks.is_empty() && matches!(id, "admin" | "json");
        let is_plain = explained(argument).starts_with("Name of the ");
        if id == "help" || is_told_above || is_plain {
            continue;
        }
        let _ = writeln!(rows, "| `{}` | {} |", written(argument), explained(argument));
    }
    if !rows.is_empty() {
        let _ = write!(page, "\n| argument | meaning |\n| --- | --- |\n{rows}");
    }
    if let Some(more) = command.get_after_help() {
        let _ = writeln!(page, "\n```text\n{more}\n```");
    }
}

fn common(command: &clap::Command, id: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == id)
}

/// Returns an argument as typed.
fn written(argument: &clap::Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    match argument.get_long() {
        Some(long) if argument.get_action().takes_values() => format!("--{long} {values}"),
        Some(long) => format!("--{long}"),
        None => values,
    }
}

fn explained(argument: &clap::Arg) -> String {
    let mut text = argument.get_help().unwrap().to_string().replace('|', "\\|");
    if !argument.get_action().takes_values() {
        return text;
    }
    let choices: Vec<_> =
        argument.get_possible_values().iter().map(|choice| format!("`{}`", choice.get_name())).collect();
    if !choices.is_empty() {
        let _ = write!(text, ": {}", choices.join(", "));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() {
        let _ = write!(text, " (default: `{}`)", defaults.join(" "));
    }
    text
}
