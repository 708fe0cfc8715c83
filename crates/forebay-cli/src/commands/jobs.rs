//! `forebay jobs`: what takes long.

use serde_json::Value;

use crate::client::{self, Admin, escaped};
use crate::failure::Failure;
use crate::job::{self, Job};
use crate::screen::{self, List, harmless};

/// Options of `forebay jobs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay jobs                  all jobs, the newest last
  forebay jobs j17 --follow     waits for it with a progress bar; exit code 0 if it completed
  forebay jobs j17 --cancel")]
pub(crate) struct Options {
    /// Id of a job, such as j17; all jobs if left out
    #[arg(required_if_eq_any([("follow", "true"), ("cancel", "true")]))]
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

/// Lists, shows, follows or cancels.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let client = options.admin.client();
    let Some(id) = &options.id else {
        let answer = client.get("/v1/jobs")?;
        return print(&options.admin, &answer, |answer| {
            Ok(match client::list::<Job>(answer, "jobs")?.as_slice() {
                [] => "there are no jobs\n".into(),
                jobs => format!("{}\n", table(jobs)),
            })
        });
    };
    if options.follow {
        return job::follow(&client, id, options.admin.json);
    }
    let path = format!("/v1/jobs/{}", escaped(id));
    if options.cancel {
        let answer = client.delete(&path)?;
        return print(&options.admin, &answer, |answer| {
            let job: Job = client::read(answer)?;
            let state = if job.is_over() { job.state.clone() } else { "is being cancelled".into() };
            Ok(format!("{}: {state}\n", job.title()))
        });
    }
    print(&options.admin, &client.get(&path)?, |answer| Ok(show(&client::read(answer)?)))
}

fn print(
    admin: &Admin,
    answer: &Value,
    words: impl Fn(&Value) -> Result<String, Failure>,
) -> Result<(), Failure> {
    if admin.json { screen::print_json(answer) } else { screen::print(&words(answer)?) }
}

/// One line for each job.
pub(super) fn table(jobs: &[Job]) -> comfy_table::Table {
    let mut table = screen::table(&["job", "what", "state", "progress"], &[]);
    for job in jobs {
        let progress =
            if job.is_over() { job.error.as_deref().map_or(String::new(), harmless) } else { job.progress() };
        table.add_row([harmless(&job.id), job.title(), harmless(&job.state), progress]);
    }
    table
}

fn show(job: &Job) -> String {
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
    list.to_string()
}
