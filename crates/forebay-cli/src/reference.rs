//! `docs/use/messages.md` is generated from the table of IDs: a test compares them.

use forebay_admin::MessageId;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Messages

Made from the table of ids by `crates/forebay-cli/src/reference.rs`; do not edit by hand.

Each error, hint, warning and line of the log has an **id**. The words of a message may change with any release. The id
of a situation does not, so scripts and tests compare ids.

## On stderr

The environment variable `FOREBAY_MESSAGES` selects the form of the messages of a command or a daemon: `text` (the
default) or `json`. With `json` each message is one object on one line, including its hint:

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

A problem (`application/problem+json`) has the id in `id`, next to `kind`. A job that failed has it in `error_id`, and so
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
    let mut page = HEAD.to_owned();
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
