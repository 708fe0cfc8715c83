//! `forebay status`: daemon, alarms, pools, volumes and jobs on one screen.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_admin::{DaemonInfo, PoolInfo, VolumeInfo};
use serde_json::{Value, json};

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::job::Job;
use crate::screen::{self, Paint, bytes, harmless};

/// Options of `forebay status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the daemon answers, 1 it does not. Alarms do not change the exit code."
)]
pub(crate) struct Options {
    #[command(flatten)]
    admin: Admin,
}

/// Shows it.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let client = options.admin.client();
    let parts = ["daemon", "pools", "volumes", "jobs", "alarms"];
    let mut all = json!({});
    for part in parts {
        let answer = client.get(&format!("/v1/{part}"))?;
        all[part] = answer.get(part).cloned().unwrap_or(answer);
    }
    if options.admin.json {
        return screen::print_json(&all);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    screen::print(&text(&all, now, Paint::for_stdout())?)
}

fn text(all: &Value, now_unix_s: u64, paint: Paint) -> Result<String, Failure> {
    let daemon: DaemonInfo = client::read(&all["daemon"])?;
    let pools: Vec<PoolInfo> = client::read(&all["pools"])?;
    let volumes: Vec<VolumeInfo> = client::read(&all["volumes"])?;
    let jobs: Vec<Job> = client::read(&all["jobs"])?;
    let alarms: Vec<Value> = client::read(&all["alarms"])?;
    let mut text = headline(&daemon, now_unix_s);
    if !alarms.is_empty() {
        text +=
            &format!("\n{}\n{}\n", paint.red(&plural(alarms.len(), "alarm")), super::alarms::table(&alarms));
    }
    if pools.is_empty() {
        text += "\nthere are no pools yet: forebay pool create NAME --device PATH[:SIZE]\n";
    } else {
        text += &format!("\n{}\n", super::pool::table(&pools));
    }
    if volumes.is_empty() {
        text += "\nthere are no volumes yet: forebay volume attach NAME --backing URI --export URI\n";
    } else {
        text += &format!("\n{}\n", super::volume::table(&volumes));
    }
    let open: Vec<Job> = jobs.into_iter().filter(|job| !job.is_over()).collect();
    if !open.is_empty() {
        text += &format!("\n{}\n", super::jobs::table(&open));
    }
    if alarms.is_empty() {
        text += &format!("\n{}\n", paint.green("no alarms"));
    }
    Ok(text)
}

fn headline(daemon: &DaemonInfo, now_unix_s: u64) -> String {
    let up = screen::uptime(now_unix_s.saturating_sub(daemon.started_unix_s));
    let config = daemon.config.as_deref().map_or(String::new(), |config| format!(", {}", harmless(config)));
    let (version, memory) = (harmless(&daemon.version), bytes(daemon.resident_bytes));
    format!("forebay {version}, process {}, up {up}, {memory} of memory{config}\n", daemon.pid)
}

fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
