//! `forebay alarms`: lasting conditions that need attention.

use std::cmp::Reverse;

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::AlarmTested;
use forebay_admin::events::Severity;
use serde_json::Value;

use super::answers::{print, print_with};
use crate::client::{self, Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::screen::{Column, Table, Width, harmless, wrapped};

/// Number of alarms shown without `--all`.
const SHOWN_MAX: usize = 50;

/// Options of `forebay alarms`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Acknowledging marks an alarm as known, for all users; the alarm lasts until its condition ends.
Examples:
  forebay alarms
  forebay alarms --all
  forebay alarms --acknowledge a3 --by alice
  forebay alarms --test")]
pub(crate) struct Options {
    /// Show all alarms, not only the 50 most severe
    #[arg(long, conflicts_with = "acknowledge")]
    all: bool,
    /// Acknowledge this alarm
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::alarms))]
    acknowledge: Option<String>,
    /// Name of the acknowledging person; your user name if omitted
    #[arg(long, value_name = "NAME", requires = "acknowledge")]
    by: Option<String>,
    /// Run the alarm program (alarm_command) once, with a test alarm
    #[arg(long, conflicts_with_all = ["all", "acknowledge"])]
    test: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Lists alarms, or acknowledges one.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.test {
        let tested = options.admin.client().post_nothing("/v1/alarms/test")?;
        return print(&options.admin, &tested, |tested: &AlarmTested| {
            format!("{}: exit code 0 after {} ms\n", harmless(&tested.command.join(" ")), tested.took_ms)
        });
    }
    let Some(id) = &options.acknowledge else {
        let most = if options.all { usize::MAX } else { SHOWN_MAX };
        return print_with(&options.admin, &options.admin.client().get("/v1/alarms")?, |answer| {
            Ok(match client::list(answer, "alarms")? {
                none if none.is_empty() => "there are no alarms\n".into(),
                alarms => text(alarms, (most, "forebay alarms --all"), Width::of_stdout()),
            })
        });
    };
    let by = options.by.clone().unwrap_or_else(user);
    let path = format!("/v1/alarms/{}/acknowledge?by={}", escaped(id), escaped(&by));
    print_with(&options.admin, &options.admin.client().post_nothing(&path)?, |answer| {
        let by = answer["acknowledged"]["by"].as_str().unwrap_or(&by);
        Ok(format!("alarm {}: acknowledged by {}\n", harmless(id), harmless(by)))
    })
}

/// Returns the name of the user.
pub(super) fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    named
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// Sorts by severity, the most severe first, then the newest.
pub(super) fn sort(alarms: &mut [Value]) {
    alarms.sort_by_cached_key(|alarm| {
        let severity = alarm["severity"].as_str().and_then(Severity::from_name);
        Reverse((severity, alarm["raised"].as_str().unwrap_or_default().to_owned()))
    });
}

/// Formats at most `most` of them, the most severe first, and names the command that shows the
/// others.
pub(super) fn text(mut alarms: Vec<Value>, (most, all): (usize, &str), width: Width) -> String {
    sort(&mut alarms);
    let more = alarms.len().saturating_sub(most);
    alarms.truncate(most);
    let text = format!("{}\n", table(&alarms).within(width));
    match more {
        0 => text,
        _ => format!("{text}{}\n", wrapped(&format!("and {more} more: {all}"), width)),
    }
}

/// Returns one line for each alarm.
fn table(alarms: &[Value]) -> Table {
    let mut table = Table::new([
        Column::text("alarm", 0),
        Column::text("severity", 1),
        Column::text("about", 2),
        Column::text("since (UTC)", 3),
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
