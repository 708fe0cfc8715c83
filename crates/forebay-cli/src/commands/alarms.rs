//! `forebay alarms`: conditions that last and need somebody.

use clap_complete::engine::ArgValueCompleter;
use serde_json::Value;

use super::answers::{list_at, print_with};
use crate::client::{Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::screen::{Column, Table, harmless};

/// Options of `forebay alarms`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Acknowledging says that somebody knows; it holds for everybody, and the alarm lasts until its condition ends.
Examples:
  forebay alarms
  forebay alarms --acknowledge a3 --by alice")]
pub(crate) struct Options {
    /// Acknowledge this alarm
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::alarms))]
    acknowledge: Option<String>,
    /// Who knows of it; your user name if left out
    #[arg(long, value_name = "NAME", requires = "acknowledge")]
    by: Option<String>,
    #[command(flatten)]
    admin: Admin,
}

/// Lists alarms, or acknowledges one.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let Some(id) = &options.acknowledge else {
        return list_at(&options.admin, ("/v1/alarms", "alarms"), "", table);
    };
    let by = options.by.clone().unwrap_or_else(user);
    let path = format!("/v1/alarms/{}/acknowledge?by={}", escaped(id), escaped(&by));
    print_with(&options.admin, &options.admin.client().post_nothing(&path)?, |answer| {
        let by = answer["acknowledged"]["by"].as_str().unwrap_or(&by);
        Ok(format!("alarm {}: acknowledged by {}\n", harmless(id), harmless(by)))
    })
}

/// Who this is.
pub(super) fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    named
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// One line for each alarm.
pub(super) fn table(alarms: &[Value]) -> Table {
    let mut table = Table::new([
        Column::text("alarm", 0),
        Column::text("severity", 1),
        Column::text("about", 2),
        Column::text("since", 3),
        Column::text("known to", 4),
        Column::sentences("what", 0),
    ]);
    for alarm in alarms {
        let text = |name: &str| harmless(alarm[name].as_str().unwrap_or("-"));
        let about = alarm["volume"].as_str().or(alarm["pool"].as_str()).map_or("-".into(), harmless);
        let since =
            text("raised").split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
        let by = alarm["acknowledged"]["by"].as_str().map_or("nobody".into(), harmless);
        table.add_row([text("id"), text("severity"), about, since, by, text("message")]);
    }
    table
}
