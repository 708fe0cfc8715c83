//! `forebay jobs`: long operations.

use super::answers::{list_at, print};
use crate::client::{Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::job::{self, Job};
use crate::screen::{self, Column, List, Table, Width, harmless};
use clap_complete::engine::ArgValueCompleter;

/// Options of `forebay jobs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay jobs                  all jobs, the newest last
  forebay jobs j17 --follow     waits for it with a progress bar; exit code 0 if it completed
  forebay jobs j17 --cancel")]
pub(crate) struct Options {
    /// ID of a job, such as j17; all jobs if omitted
    #[arg(required_if_eq_any([("follow", "true"), ("cancel", "true")]), add = ArgValueCompleter::new(complete::jobs))]
    id: Option<String>,
    /// Wait for its end
    #[arg(long)]
    follow: bool,
    /// End it early
    #[arg(long, conflicts_with = "follow")]
    cancel: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Lists, shows, follows or cancels jobs.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let Some(id) = &options.id else {
        return list_at(&options.admin, ("/v1/jobs", "jobs"), "", table);
    };
    let client = options.admin.client();
    if options.follow {
        return job::follow(&client, id, options.admin.json);
    }
    let path = format!("/v1/jobs/{}", escaped(id));
    if options.cancel {
        return print(&options.admin, &client.delete(&path)?, |job: &Job| {
            let state = if job.is_over() { &job.state } else { "is being cancelled" };
            format!("{}: {state}\n", job.title())
        });
    }
    print(&options.admin, &client.get(&path)?, |job| show(job, Width::of_stdout()))
}

/// Returns one line for each job.
pub(super) fn table(jobs: &[Job]) -> Table {
    let mut table = Table::new([
        Column::text("job", 0),
        Column::text("what", 1),
        Column::text("state", 2),
        Column::sentences("progress", 0),
    ]);
    for job in jobs {
        let progress =
            if job.is_over() { job.error.as_deref().map_or(String::new(), harmless) } else { job.progress() };
        table.add_row([harmless(&job.id), job.title(), harmless(&job.state), progress]);
    }
    table
}

pub(super) fn show(job: &Job, width: Width) -> String {
    let mut list = List::new();
    list.add("job", harmless(&job.id));
    list.add("what", job.title());
    list.add("pool", harmless(&job.pool));
    list.add("state", harmless(&job.state));
    if !job.is_over() {
        list.add("phase", harmless(&job.phase));
        list.add("progress", job.progress());
    }
    list.add("time", screen::uptime(job.elapsed_s as u64));
    list.add("errors", job.errors.to_string());
    if let Some(error) = &job.error {
        list.add("why it failed", harmless(error));
    }
    list.within(width)
}
