//! `forebay volume`: volumes.

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::events::Severity;
use forebay_admin::{LossInfo, VolumeInfo, VolumeRequest, VolumeState, WarningInfo};
use forebay_export::uri::BackingUri;
use serde_json::{Value, json};
use std::path::Path;

use super::answers::{kept_as, list, print};
use super::mounts::Mounts;
use super::settings::pair;
use super::usage::Usage;
use crate::client::{self, Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::job::JobOptions;
use crate::message::Message;
use crate::paths;
use crate::screen::{self, Column, List, Table, Width, bytes, harmless, percent};

/// Lost ranges that `volume show` lists.
const LOSSES_SHOWN: usize = 10;

/// Commands of `forebay volume`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Put a cache in front of a backing store, and serve it
    Attach(Attach),
    /// Stop serving a volume; by default all dirty data is destaged first
    Detach(Detach),
    /// List the volumes
    List(Admin),
    /// Show a volume
    Show(Show),
    /// Resize a volume
    Resize(Resize),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A volume that is configured, and whose disk has another name now, is attached with --backing alone. Only the right disk is
taken, and the configuration names it from then on.
Examples:
  forebay volume attach db --backing /dev/sdb --export 'nbd+unix:///db?socket=/run/forebay/db.nbd' --set mode=writeback
  forebay volume attach db --backing /dev/disk/by-id/ata-DISK")]
pub(crate) struct Attach {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    name: String,
    /// The backing store: a file (file:/srv/disk.img), a block device (/dev/sdb) or an export of an
    /// NBD server (nbd://host:port/db); may be omitted if the volume is configured, or give the new
    /// location of its backing store
    #[arg(long, value_name = "URI", default_value = "", hide_default_value = true)]
    backing: String,
    /// Pool that caches it; may be omitted if there is only one
    #[arg(long, add = ArgValueCompleter::new(complete::pools))]
    pool: Option<String>,
    /// Export for clients: nbd+unix:///name?socket=/path, nbd://host:port/name, fuse:/path or
    /// ublk:NAME, vhost-user:/path; may be repeated
    #[arg(long = "export", value_name = "URI")]
    exports: Vec<String>,
    /// Set a setting; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair, add = ArgValueCompleter::new(complete::pairs))]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --keep and --discard, everything dirty is written back first: the backing store is whole afterwards.
A volume in use is refused: a client is connected, or its file is open, for instance by a loop device. Unmount and
disconnect first. With --force the requests taken so far are answered, then connections are closed and the file is
removed. Programs get I/O errors, and data that a mounted file system has not written yet is lost.
A backing file that was deleted or replaced while it is served is gone once it is closed. Such a volume is refused
without --save-to or --discard.
Ctrl-C ends the waiting, not the detach.
Examples:
  forebay volume detach db
  forebay volume detach db --save-to /srv/db.img.saved")]
pub(crate) struct Detach {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    name: String,
    /// Leave dirty data in the cache: quick, and the next attach is warm, but do not use the
    /// backing store without it
    #[arg(long, conflicts_with = "discard")]
    keep: bool,
    /// Discard dirty data: it is lost
    #[arg(long)]
    discard: bool,
    /// Destage all dirty data, then write the backing file to this path, which must not exist: for
    /// a file that was deleted or replaced while it is served
    #[arg(long, value_name = "PATH", conflicts_with_all = ["keep", "discard"])]
    save_to: Option<String>,
    /// Also if it is in use: its clients are disconnected
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    job: JobOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    name: String,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Resize {
    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    name: String,
    /// New size (20GiB), or `max` for all of the backing store
    size: String,
    /// Shrink it even if it is in use: its clients lose the data beyond the new end
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    job: JobOptions,
}

/// Executes a command on volumes.
pub(crate) fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Attach(options) => attach(options),
        Command::Detach(options) => detach(&options),
        Command::List(admin) => list(&admin, "volumes", "`forebay volume attach` makes one", table),
        Command::Show(options) => {
            let client = options.admin.client();
            let volume = client.get(&path(&options.name, ""))?;
            let lost = volume.get("lost_bytes").and_then(Value::as_u64).unwrap_or(0);
            let losses = if lost > 0 { client.get(&path(&options.name, "/losses"))? } else { json!([]) };
            let losses: Vec<LossInfo> = client::list(&losses, "losses")?;
            let mut volume = volume;
            if options.admin.json && !losses.is_empty() {
                volume["losses"] = json!(losses);
            }
            print(&options.admin, &volume, |volume: &VolumeInfo| {
                let usage = Usage::of(Path::new("/"), volume, &Mounts::read().unwrap_or_default());
                show(volume, &usage, &losses, screen::now_unix_s(), Width::of_stdout())
            })
        }
        Command::Resize(Resize { name, size, force, job }) => {
            let wanted = if force { json!({ "size": size, "force": true }) } else { json!({ "size": size }) };
            job.run(|client| client.post(&path(&name, "/resize"), Some(&wanted)))
        }
    }
}

/// Returns the API path of a volume, or of a part of it.
pub(super) fn path(name: &str, rest: &str) -> String {
    format!("/v1/volumes/{}{rest}", escaped(name))
}

fn attach(Attach { name, backing, pool, exports, settings, admin }: Attach) -> Result<(), Failure> {
    let backing = paths::backing(&backing);
    let exports = exports.iter().map(|export| paths::export(export)).collect();
    let asked = backing.clone();
    let request = VolumeRequest { name, pool, backing, exports, settings: settings.into_iter().collect() };
    let volume = admin.client().post("/v1/volumes", Some(&request))?;
    let info: VolumeInfo = client::read(&volume)?;
    warn(&info.name, &info.warnings);
    print(&admin, &volume, |volume: &VolumeInfo| {
        let (name, pool) = (harmless(&volume.name), harmless(&volume.pool));
        let mut text =
            format!("volume {name}: {} in pool {pool}, {}\n", bytes(volume.size_bytes), volume.mode);
        for export in &volume.exports {
            text += &format!("ready: {}\n", harmless(export));
        }
        if let (Ok(asked), Ok(kept)) = (asked.parse::<BackingUri>(), volume.backing.parse::<BackingUri>()) {
            text += &kept_as(std::iter::once(asked.path()), std::iter::once(kept.path()));
        }
        text
    })
}

/// Prints warnings: valid settings that are probably mistakes.
pub(super) fn warn(volume: &str, warnings: &[WarningInfo]) {
    for WarningInfo { id, what, hint } in warnings {
        let [id, what, hint] = [id, what, hint].map(|text| harmless(text));
        let message = Message::new(Severity::Warning, &id, &what).hint(&hint).of(None, Some(volume));
        message.write(|| format!("forebay: warning: {what}\nhint: {hint}\n"));
    }
}

fn detach(options: &Detach) -> Result<(), Failure> {
    let how = match (options.keep, options.discard) {
        (true, _) => "keep",
        (_, true) => "discard",
        _ => "drain",
    };
    let force = if options.force { "&force=true" } else { "" };
    let save_to = options.save_to.as_deref().map(paths::absolute);
    let save_to = save_to.map_or_else(String::new, |to| format!("&save_to={}", escaped(&to)));
    options.job.run(|client| client.delete(&path(&options.name, &format!("?how={how}{force}{save_to}"))))
}

/// Returns one line for each volume.
pub(super) fn table(volumes: &[VolumeInfo]) -> Table {
    let mut table = Table::new([
        Column::text("volume", 0),
        Column::text("pool", 3),
        Column::text("state", 0),
        Column::text("mode", 4),
        Column::number("size", 5),
        Column::number("cached", 7),
        Column::number("dirty", 0),
        Column::number("oldest dirty", 2),
        Column::number("clients", 6),
    ]);
    for volume in volumes {
        // A volume that no open pool knows has no size.
        let size = Some(volume.size_bytes).filter(|size| *size > 0);
        table.add_row([
            harmless(&volume.name),
            harmless(&volume.pool),
            state(volume) + &backing_trouble(volume),
            harmless(&volume.mode),
            known(size),
            known(volume.cached_bytes),
            known(volume.dirty_bytes),
            oldest(volume),
            volume.connections.to_string(),
        ]);
    }
    table
}

/// Returns the state by its name in JSON.
fn state(volume: &VolumeInfo) -> String {
    serde_json::to_value(volume.state)
        .ok()
        .and_then(|state| Some(state.as_str()?.to_owned()))
        .unwrap_or_default()
}

/// Returns a word for the problem of its backing store.
fn backing_trouble(volume: &VolumeInfo) -> String {
    match volume.backing_state.as_str() {
        "" | "ok" => String::new(),
        trouble => format!(", backing {}", harmless(trouble)),
    }
}

/// Formats bytes, if the daemon knows the number.
fn known(count: Option<u64>) -> String {
    count.map_or_else(|| "-".into(), bytes)
}

fn oldest(volume: &VolumeInfo) -> String {
    match volume.dirty_bytes {
        None | Some(0) => "-".into(),
        _ if matches!(volume.state, VolumeState::Absent | VolumeState::Unknown) => "unknown".into(),
        _ => screen::uptime(volume.oldest_dirty_age_ns / 1_000_000_000),
    }
}

pub(super) fn show(
    volume: &VolumeInfo,
    usage: &Usage,
    losses: &[LossInfo],
    now_unix_s: u64,
    width: Width,
) -> String {
    let mut list = List::new();
    list.add("volume", harmless(&volume.name));
    list.add("pool", harmless(&volume.pool));
    let job = volume.job.as_deref().map_or(String::new(), |job| format!(", job {}", harmless(job)));
    list.add("state", format!("{}{job}", state(volume)));
    list.add("mode", harmless(&volume.mode));
    list.add("backing store", harmless(&volume.backing) + &backing_trouble(volume));
    if let Some(why) = &volume.backing_why {
        list.add("why", harmless(why));
    }
    for export in &volume.exports {
        list.add("export", harmless(export));
    }
    for file in &volume.files {
        let several = volume.files.len() > 1;
        let which = if several { format!(" of {}", harmless(&file.export)) } else { String::new() };
        list.add("file", format!("over {}{which} ({})", harmless(&file.over), harmless(&file.detail)));
    }
    if volume.state == VolumeState::Absent {
        let how = match volume.backing.is_empty() {
            true => format!(
                "no: it is not attached (forebay volume attach {} --backing URI)",
                harmless(&volume.name)
            ),
            false => format!("no: it is not attached (forebay volume attach {})", harmless(&volume.name)),
        };
        list.add("served", how);
        if let Some(why) = &volume.why {
            list.add("why", harmless(why));
        }
    }
    list.add("used by", usage.words(volume.connections));
    let sectors = match volume.sector_bytes {
        0 => String::new(),
        sector_bytes => format!(", sectors of {sector_bytes} bytes"),
    };
    list.add("size", bytes(volume.size_bytes) + &sectors);
    list.add(
        "cached",
        volume.cached_bytes.map_or_else(
            || "unknown: its pool is not open".into(),
            |cached| format!("{} ({})", bytes(cached), percent(cached, volume.size_bytes)),
        ),
    );
    let dirty = volume.dirty_bytes.map(|dirty| format!("{}, oldest {}", bytes(dirty), oldest(volume)));
    list.add("dirty", dirty.unwrap_or_else(|| "unknown: its pool is not open".into()));
    list.add("destage limited by", harmless(&volume.destage_limited_by));
    let ordered = if volume.ordered {
        "crash-consistent, older image"
    } else {
        "needs the cache while anything is dirty"
    };
    list.add("backing store alone", ordered.into());
    for warning in &volume.warnings {
        list.add("warning", format!("{}; {}", harmless(&warning.what), harmless(&warning.hint)));
    }
    if volume.lost_bytes > 0 {
        let (lost, ranges) = (bytes(volume.lost_bytes), volume.lost_ranges);
        let word = if ranges == 1 { "range" } else { "ranges" };
        list.add("LOST", format!("{lost} in {ranges} {word}: errors until they are written"));
    }
    for loss in losses.iter().take(LOSSES_SHOWN) {
        let (from, to) = (loss.offset_bytes, loss.offset_bytes + loss.bytes);
        list.add(
            "lost",
            format!(
                "bytes {from} to {to}, written {} ago",
                screen::uptime(now_unix_s.saturating_sub(loss.written_unix_s))
            ),
        );
    }
    if losses.len() > LOSSES_SHOWN {
        list.add("lost", format!("and {} more: --json, or the API, lists all", losses.len() - LOSSES_SHOWN));
    }
    list.within(width)
}
