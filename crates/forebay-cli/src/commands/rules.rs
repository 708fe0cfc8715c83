//! `forebay rules`: which requests of which clients are cached.

use crate::message;
use clap_complete::engine::ArgValueCompleter;
use forebay_admin::{MessageId, RuleRequest};
use forebay_config::rules::Rule;
use serde_json::Value;

use super::answers::{list_at, print_with};
use super::volume::path;
use crate::client::{Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::screen::{self, Column, Table, bytes, count, harmless, nanos};

/// Commands of `forebay rules`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the rules of a volume in order, with the requests that each decided
    List(List),
    /// Add a rule
    Add(Add),
    /// Delete a rule
    Delete(Delete),
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    volume: String,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first rule whose conditions all match decides.
Examples:
  forebay rules add db bypass exe=rsync direction=read
  forebay rules add db --position 0 'bypass size=1MiB..'")]
pub(crate) struct Add {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    volume: String,
    /// The rule: an action and conditions
    #[arg(required = true)]
    rule: Vec<String>,
    /// Position in the list, from 0; at its end if omitted
    #[arg(long, value_name = "N")]
    position: Option<usize>,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    volume: String,
    /// Number of the rule, as `forebay rules list` shows it
    id: String,
    #[command(flatten)]
    admin: Admin,
}

/// Executes a command on rules.
pub(crate) fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(List { volume, admin }) => {
            let path = path(&volume, "/rules");
            list_at(&admin, (&path, "rules"), "; `forebay rules add` makes one", table)
        }
        Command::Add(options) => add(options),
        Command::Delete(Delete { volume, id, admin }) => {
            let answer = admin.client().delete(&path(&volume, &format!("/rules/{}", escaped(&id))))?;
            print_with(&admin, &answer, |_| Ok(format!("rule {}: deleted\n", harmless(&id))))
        }
    }
}

/// Returns one line for each rule.
fn table(rules: &[Value]) -> Table {
    let mut table = Table::new([
        Column::text("rule", 0),
        Column::text("", 0),
        Column::number("requests", 1),
        Column::number("bytes", 3),
        Column::text("last match", 2),
        Column::text("expires", 4),
    ]);
    let time = |value: &Value, behind: &str| {
        value.as_u64().map_or("-".into(), |ms| format!("{}{behind}", nanos(ms.saturating_mul(1_000_000))))
    };
    for rule in rules {
        table.add_row([
            harmless(&number(&rule["id"])),
            text(&rule["rule"]),
            rule["requests"].as_u64().map_or("-".into(), count),
            rule["bytes"].as_u64().map_or("-".into(), bytes),
            time(&rule["last_match_ago_ms"], " ago"),
            time(&rule["expires_in_ms"], ""),
        ]);
    }
    table
}

/// Returns a rule as typed, from a text or an object that contains the text.
fn text(rule: &Value) -> String {
    let typed = rule.as_str().map(str::to_owned);
    let read = || serde_json::from_value::<Rule>(rule.clone()).map(|rule| rule.to_string());
    harmless(&typed.unwrap_or_else(|| read().unwrap_or_else(|_| rule.to_string())))
}

fn number(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

fn add(Add { volume, rule, position, admin }: Add) -> Result<(), Failure> {
    let request = RuleRequest { rule: rule.join(" "), position };
    let answer = admin.client().post(&path(&volume, "/rules"), Some(&request))?;
    if admin.json {
        return screen::print_json(&answer);
    }
    let warnings = answer["warnings"].as_array().map(Vec::as_slice).unwrap_or_default();
    for warning in warnings.iter().chain(Some(&answer["warning"]).filter(|warning| !warning.is_null())) {
        let never = || {
            format!(
                "rule {} ({}) never applies: earlier rules take all it matches",
                number(&warning["rule"]),
                text(&warning["text"])
            )
        };
        let words = warning.as_str().map_or_else(never, harmless);
        message::say(MessageId::RuleNote, &words, || format!("forebay: warning: {words}\n"));
    }
    screen::print(&format!("rule {}: added\n", harmless(&number(&answer["id"]))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_print_as_typed() {
        assert_eq!(text(&json!("bypass exe=rsync")), "bypass exe=rsync");
        assert_eq!(
            text(&json!({ "action": "bypass", "exe": "rsync", "direction": "read" })),
            "bypass exe=rsync direction=read"
        );
        assert_eq!(text(&json!({ "action": "what comes later" })), r#"{"action":"what comes later"}"#);
        assert_eq!([number(&json!(7)), number(&json!("r7"))], ["7", "r7"]);
    }
}
