//! `forebay flush`: destages all blocks that are dirty now.

use clap_complete::engine::ArgValueCompleter;
use std::time::Duration;

use forebay_admin::size::parse_duration;

use crate::client::Admin;
use crate::complete;
use crate::failure::Failure;
use crate::job::{self, WaitMode};

/// Options of `forebay flush`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ctrl-C ends the waiting, not the flush. Exit codes: 0 everything is on the backing store, 1 it is not, or not in time.
Examples:
  forebay flush db
  forebay flush db --deadline 10min && snapshot-the-backing-store
  job=$(forebay flush db --background)")]
pub(crate) struct Options {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    volume: String,
    /// Print the ID of the job and do not wait
    #[arg(long)]
    background: bool,
    /// Fail if it is not done within this time
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<Duration>,
    #[command(flatten)]
    admin: Admin,
}

fn deadline(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Flushes the volume.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let query = options.deadline.map_or(String::new(), |time| format!("?deadline={}ms", time.as_millis()));
    let client = options.admin.client();
    let job = client.post_nothing(&super::volume::path(&options.volume, &format!("/flush{query}")))?;
    job::attend(&client, &job, WaitMode { background: options.background, json: options.admin.json })
}
