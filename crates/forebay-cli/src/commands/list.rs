//! `forebay list`: one line for each volume, with its disk, its device and its users.

use std::path::Path;

use forebay_admin::VolumeInfo;
use forebay_export::uri::BackingUri;
use serde_json::{Value, json};

use super::mounts::Mounts;
use super::usage::Usage;
use crate::client::{self, Admin};
use crate::failure::{Failure, system};
use crate::screen::{self, Column, Table, Width, bytes, harmless, wrapped};

/// Options of `forebay list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Hits are the share of reads that the cache answered in the last ten seconds. `forebay volume list` shows sizes and
states, `forebay iostat` the load of each volume.")]
pub(crate) struct Options {
    #[command(flatten)]
    admin: Admin,
}

/// Lists the volumes.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let overview = options.admin.client().get("/v1/overview")?;
    let volumes: Vec<VolumeInfo> = client::list(&overview, "volumes")?;
    let mounts = Mounts::read().map_err(system("cannot read the list of mounts"))?;
    let rows: Vec<Row> = volumes.iter().map(|volume| Row::of(volume, &overview, &mounts)).collect();
    if options.admin.json {
        return screen::print_json(&json!({ "volumes": rows.iter().map(Row::json).collect::<Vec<_>>() }));
    }
    screen::print(&text(&rows, Width::of_stdout()))
}

/// A volume in the list.
pub(super) struct Row {
    name: String,
    pool: String,
    disk: String,
    usage: Usage,
    clients: u64,
    hit_ratio: Option<f64>,
    dirty_bytes: Option<u64>,
}

impl Row {
    pub(super) fn of(volume: &VolumeInfo, overview: &Value, mounts: &Mounts) -> Self {
        let disk = match volume.backing.parse::<BackingUri>() {
            Ok(backing) => backing.path().display().to_string(),
            Err(_) => volume.backing.clone(),
        };
        Self {
            name: harmless(&volume.name),
            pool: harmless(&volume.pool),
            disk: harmless(&disk),
            usage: Usage::of(Path::new("/"), volume, mounts),
            clients: volume.connections,
            hit_ratio: overview["volume_rates"][&volume.name]["read_hit_ratio"].as_f64(),
            dirty_bytes: volume.dirty_bytes,
        }
    }

    fn json(&self) -> Value {
        json!({
            "volume": self.name,
            "pool": self.pool,
            "disk": self.disk,
            "devices": self.usage.places,
            "used_at": self.usage.users,
            "clients": self.clients,
            "read_hit_ratio": self.hit_ratio,
            "dirty_bytes": self.dirty_bytes,
        })
    }
}

/// Returns one line for each volume.
pub(super) fn text(rows: &[Row], width: Width) -> String {
    if rows.is_empty() {
        let none =
            "there are no volumes yet: forebay cache MOUNTPOINT --device PATH, or forebay volume attach";
        return wrapped(none, width) + "\n";
    }
    let mut table = Table::new([
        Column::text("volume", 0),
        Column::text("pool", 3),
        Column::text("disk", 1),
        Column::text("device", 4),
        Column::text("used by", 0),
        Column::number("hits", 2),
        Column::number("dirty", 0),
    ]);
    for row in rows {
        let device = match row.usage.places.is_empty() {
            true => "-".into(),
            false => row.usage.places.join(", "),
        };
        table.add_row([
            row.name.clone(),
            row.pool.clone(),
            if row.disk.is_empty() { "-".into() } else { row.disk.clone() },
            device,
            row.usage.words(row.clients),
            row.hit_ratio.map_or_else(|| "-".into(), |ratio| format!("{:.1} %", ratio * 100.0)),
            row.dirty_bytes.map_or_else(|| "unknown".into(), bytes),
        ]);
    }
    format!("{}\n", table.within(width))
}
