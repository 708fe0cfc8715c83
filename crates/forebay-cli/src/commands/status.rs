//! `forebay status`: daemon, alarms, pools, volumes and jobs on one screen.

use forebay_admin::{DaemonInfo, PoolInfo, VolumeInfo, VolumeState};
use serde_json::{Value, json};

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::job::Job;
use crate::screen::{self, Column, Paint, Table, Width, bytes, harmless, wrapped};

/// Maximum number of unavailable pools and volumes shown, pools first.
const MISSING_MAX: usize = 20;
/// Maximum number of alarms shown, the most severe first.
const ALARMS_MAX: usize = 10;

/// Options of `forebay status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the daemon answers, 1 it does not. Alarms do not change the exit code."
)]
pub(crate) struct Options {
    #[command(flatten)]
    admin: Admin,
}

/// Shows the status.
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
    screen::print(&text(&all, screen::now_unix_s(), Paint::for_stdout(), Width::of_stdout())?)
}

/// Returns the screen: problems come first.
pub(super) fn text(all: &Value, now_unix_s: u64, paint: Paint, width: Width) -> Result<String, Failure> {
    let daemon: DaemonInfo = client::read(&all["daemon"])?;
    let pools: Vec<PoolInfo> = client::read(&all["pools"])?;
    let volumes: Vec<VolumeInfo> = client::read(&all["volumes"])?;
    let jobs: Vec<Job> = client::read(&all["jobs"])?;
    let alarms: Vec<Value> = client::read(&all["alarms"])?;
    let mut text = format!("{}\n", wrapped(&headline(&daemon, now_unix_s), width));
    let missing = Missing::of(&pools, &volumes, &alarms);
    if !missing.is_empty() {
        let heading = paint.red(&format!("{} missing", missing.len()));
        let shown = &missing[..missing.len().min(MISSING_MAX)];
        text += &format!("\n{heading}\n{}\n", Missing::table(shown).within(width));
        if missing.len() > shown.len() {
            let more = format!("and {} more: forebay volume list", missing.len() - shown.len());
            text += &format!("{}\n", wrapped(&more, width));
        }
    }
    let others: Vec<Value> =
        alarms.iter().filter(|alarm| !missing.iter().any(|missing| missing.tells(alarm))).cloned().collect();
    if !others.is_empty() {
        let heading = paint.red(&plural(others.len(), "alarm"));
        text +=
            &format!("\n{heading}\n{}", super::alarms::text(others, (ALARMS_MAX, "forebay alarms"), width));
    }
    if pools.is_empty() {
        let none = "there are no pools yet: forebay pool create NAME --device PATH[:SIZE]";
        text += &format!("\n{}\n", wrapped(none, width));
    } else {
        text += &format!("\n{}\n", super::pool::table(&pools).within(width));
    }
    if volumes.is_empty() {
        let none = "there are no volumes yet: forebay volume attach NAME --backing URI --export URI";
        text += &format!("\n{}\n", wrapped(none, width));
    } else {
        text += &format!("\n{}\n", super::volume::table(&volumes).within(width));
    }
    let open: Vec<Job> = jobs.into_iter().filter(|job| !job.is_over()).collect();
    if !open.is_empty() {
        text += &format!("\n{}\n", super::jobs::table(&open).within(width));
    }
    if alarms.is_empty() {
        text += &format!("\n{}\n", paint.green("no alarms"));
    }
    Ok(text)
}

/// A pool or volume that is configured and not available, or does not answer, or has dirty data for
/// a missing device.
struct Missing {
    what: &'static str,
    name: String,
    dirty: String,
    why: String,
    alarms: Vec<String>,
}

impl Missing {
    fn of(pools: &[PoolInfo], volumes: &[VolumeInfo], alarms: &[Value]) -> Vec<Self> {
        let about = |what: &str, name: &str| {
            let is = |alarm: &&Value| {
                let condition = alarm["condition"].as_str().unwrap_or_default();
                alarm[what] == name
                    && matches!(
                        condition,
                        "pool.failed" | "pool.not-answering" | "volume.failed" | "volume.absent"
                    )
            };
            let ids = alarms.iter().filter(is).filter_map(|alarm| alarm["id"].as_str());
            ids.map(harmless).collect::<Vec<_>>()
        };
        let why = |why: &Option<String>| harmless(why.as_deref().unwrap_or("the daemon does not report why"));
        let closed = pools.iter().filter(|pool| pool.is_unknown()).map(|pool| Self {
            what: "pool",
            name: harmless(&pool.name),
            dirty: match &pool.recorded {
                Some(known) if known.in_use => "unknown".into(),
                Some(known) => bytes(known.dirty_bytes),
                None => "unknown".into(),
            },
            why: why(&pool.why),
            alarms: about("pool", &pool.name),
        });
        let is_away =
            |volume: &&VolumeInfo| matches!(volume.state, VolumeState::Absent | VolumeState::Unknown);
        let absent = volumes.iter().filter(is_away).map(|volume| Self {
            what: "volume",
            name: harmless(&volume.name),
            dirty: match volume.dirty_bytes {
                None => "unknown".into(),
                Some(dirty) if volume.lost_bytes > 0 => {
                    format!("{}, {} LOST", bytes(dirty), bytes(volume.lost_bytes))
                }
                Some(dirty) => bytes(dirty),
            },
            why: why(&volume.why),
            alarms: about("volume", &volume.name),
        });
        closed.chain(absent).collect()
    }

    fn tells(&self, alarm: &Value) -> bool {
        alarm["id"].as_str().is_some_and(|id| self.alarms.iter().any(|known| *known == harmless(id)))
    }

    fn table(all: &[Self]) -> Table {
        let mut table = Table::new([
            Column::text("missing", 0),
            Column::number("dirty here", 0),
            Column::text("alarm", 1),
            Column::sentences("why", 0),
        ]);
        for one in all {
            let name = format!("{} {}", one.what, one.name);
            table.add_row([name, one.dirty.clone(), one.alarms.join(", "), one.why.clone()]);
        }
        table
    }
}

fn headline(daemon: &DaemonInfo, now_unix_s: u64) -> String {
    let up = screen::uptime(now_unix_s.saturating_sub(daemon.started_unix_s));
    let config = daemon.config.as_deref().map_or(String::new(), |config| format!(", {}", harmless(config)));
    let (version, memory) = (harmless(&daemon.version), bytes(daemon.resident_bytes));
    format!("forebay {version}, process {}, up {up}, {memory} of memory{config}", daemon.pid)
}

fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
