//! `forebay pool`: cache devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use clap_complete::engine::ArgValueCompleter;
use forebay_admin::{
    DeviceRequest, EnduranceInfo, ExportRequest, FlashInfo, GrowRequest, ImportInfo, ImportRequest, JobInfo,
    MessageId, PoolInfo, PoolRequest, ReplaceRequest, ScrubRequest, ShrinkRequest,
};
use forebay_config::CacheSpec;
use forebay_pool::shell_word::quoted;

use super::answers::{kept_as, list, print};
use super::settings::pair;
use crate::client::{self, Admin, escaped};
use crate::complete;
use crate::failure::Failure;
use crate::job::{self, JobOptions, WaitMode};
use crate::paths;
use crate::screen::{Column, List, Table, Width, bytes, harmless, percent, uptime};

/// Commands of `forebay pool`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a pool on cache devices, or open the existing one on them
    Create(Create),
    /// Open a pool that could not be opened, or that has stopped by itself
    Open(Open),
    /// List the pools
    List(Admin),
    /// Show a pool
    Show(Show),
    /// Grow a pool while it is in use
    Grow(Grow),
    /// Shrink a pool while it is in use
    Shrink(Shrink),
    /// Compare all cached blocks with their checksums while the pool is in use
    Scrub(Scrub),
    /// Replace a cache device while the pool is in use, or give a pool whose cache has failed a new
    /// one
    Replace(Replace),
    /// Close a pool with its volumes, write their settings onto its cache, and remove it from the
    /// configuration: for another host
    Export(Export),
    /// Open a pool that was exported, with its volumes and settings
    Import(Import),
    /// Close a pool that has no volumes, and remove it from the configuration
    Remove(Remove),
}

/// The operator's permissions for devices on which a cache is created.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Taking {
    /// Use a device that is not blank but begins with zeroes: its content is overwritten
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Create a cache file that leaves less than a tenth of its file system free
    #[arg(long)]
    pub(crate) fill: bool,
}

impl From<Taking> for forebay_admin::Taking {
    fn from(Taking { overwrite, fill }: Taking) -> Self {
        Self { overwrite, fill }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay pool create fast --device /dev/nvme0n1p4 --device /srv/flash.img:10GiB
  forebay pool create safe --mirror --device /dev/nvme0n1p4 --device /dev/nvme1n1p4")]
pub(crate) struct Create {
    /// Name of the pool
    name: String,
    /// Cache device: a block device, or a file and the size to create it with; may be repeated
    #[arg(long = "device", value_name = "PATH[:SIZE]", required = true, value_parser = device)]
    devices: Vec<DeviceRequest>,
    /// Keep dirty data on both of two devices: either may fail
    #[arg(long)]
    mirror: bool,
    /// Set a setting; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair, add = ArgValueCompleter::new(complete::pairs))]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    taking: Taking,
    /// Give up a recorded cache of this name or on these devices that may hold dirty data: it is
    /// refused if it returns
    #[arg(long)]
    new_cache: bool,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Open {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Create a new cache if the recorded one is missing, and give that one up: it is refused if it
    /// returns
    #[arg(long)]
    new_cache: bool,
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("how").required(true))]
pub(crate) struct Grow {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Add this cache device
    #[arg(long, value_name = "PATH[:SIZE]", value_parser = device, group = "how")]
    device: Option<DeviceRequest>,
    /// New size of the last cache device (20GiB), or `max` for all of a block device
    #[arg(long, group = "how")]
    size: Option<String>,
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("how").required(true))]
pub(crate) struct Shrink {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Give up this cache device of several
    #[arg(long, value_name = "PATH", group = "how")]
    device: Option<String>,
    /// New size of the last cache device
    #[arg(long, group = "how")]
    size: Option<String>,
    #[command(flatten)]
    job: JobOptions,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Damaged clean blocks are fetched again from the backing store; damaged dirty blocks are reported."
)]
pub(crate) struct Scrub {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Read at most this many bytes per second [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    rate: Option<String>,
    #[command(flatten)]
    job: JobOptions,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
If the device is sound, a job copies it while the pool stays in use. Then it is no longer needed, and erased.
A mirrored pool, of which --old names a sound device, is mirrored all the time.
If the cache of the pool has failed, its clients are disconnected for a moment and can connect again.
If one device of a mirrored pool has failed, the pool stays in use while a job fills the new device.
Examples:
  forebay pool replace fast --device /dev/nvme1n1
  forebay pool replace fast --old /dev/nvme0n1 --device /dev/nvme2n1")]
pub(crate) struct Replace {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// New cache device: an empty one, or a file and the size to create it with. Two if both of a
    /// mirrored pool have failed
    #[arg(long = "device", value_name = "PATH[:SIZE]", required = true, value_parser = device)]
    devices: Vec<DeviceRequest>,
    /// The healthy device to replace, if the pool has several
    #[arg(long, value_name = "PATH")]
    old: Option<String>,
    /// Give up the lost data of the old cache: reads return older data
    #[arg(long)]
    discard_lost: bool,
    #[command(flatten)]
    taking: Taking,
    /// Do not wait until the new device has all its data
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its volumes must not be in use. Dirty data stays in the cache and moves with it. On the other host: forebay pool import
Example: forebay pool export fast")]
pub(crate) struct Export {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Destage all dirty data first: then the backing stores are complete without the cache
    #[arg(long)]
    drain: bool,
    /// Also if volumes are in use: clients are disconnected, files and block devices are removed
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    job: JobOptions,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Anyone who can write to the flash can change the settings on it. So backing stores and exports are taken only if the command
names them. If it does not, the import is refused, and the message shows the whole command. Of an encrypted cache --key-file
is enough: its key has signed the settings. --dry-run looks for each backing store by the name that it had, then among disks
of the same size, by what the cache knows of it. One that is still missing is attached when it appears. The exit code is 1 if a
volume is not attached.
Examples:
  forebay pool import --device /dev/nvme0n1 --dry-run
  forebay pool import --device /dev/nvme0n1 --backing db=/dev/sdb --export db=ublk:
  forebay pool import --device /dev/nvme1n1 --key-file /etc/forebay-keys/safe")]
pub(crate) struct Import {
    /// Cache device; list all devices of the cache, in any order
    #[arg(long = "device", value_name = "PATH", required = true)]
    devices: Vec<String>,
    /// Another name for the pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Location of the backing store of a volume; may be repeated
    #[arg(long, value_name = "VOLUME=URI", value_parser = pair)]
    backing: Vec<(String, String)>,
    /// An export of a volume, instead of those in the settings; none if URI is empty; may be
    /// repeated
    #[arg(long = "export", value_name = "VOLUME=URI", value_parser = pair)]
    exports: Vec<(String, String)>,
    /// The key of an encrypted cache: a file, or credential:NAME
    #[arg(long, value_name = "PATH")]
    key_file: Option<String>,
    /// Only print the plan
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Name of the pool
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    name: String,
    /// Erase its devices: they no longer count as a cache, and can be used as new ones
    #[arg(long)]
    erase: bool,
    /// Remove a pool that cannot be opened from the configuration, with its volumes, even if its
    /// cache has dirty data; its devices stay as they are
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    job: JobOptions,
}

/// Executes a command on pools.
pub(crate) fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(options) => create(options),
        Command::Open(options) => open(&options),
        Command::List(admin) => list(&admin, "pools", "`forebay pool create` makes one", table),
        Command::Show(options) => {
            let pool = options.admin.client().get(&path(&options.name, ""))?;
            print(&options.admin, &pool, |pool| show(pool, Width::of_stdout()))
        }
        Command::Grow(Grow { name, device, size, taking: Taking { overwrite, fill }, admin }) => {
            let pool = admin
                .client()
                .post(&path(&name, "/grow"), Some(&GrowRequest { device, size, overwrite, fill }))?;
            print(&admin, &pool, |pool: &PoolInfo| {
                format!("pool {}: {} now\n", harmless(&pool.name), bytes(pool.capacity_bytes))
            })
        }
        Command::Shrink(Shrink { name, device, size, job }) => {
            let device = device.map(|device| paths::absolute(&device));
            job.run(|client| client.post(&path(&name, "/shrink"), Some(&ShrinkRequest { device, size })))
        }
        Command::Scrub(Scrub { name, rate, job }) => {
            job.run(|client| client.post(&path(&name, "/scrub"), Some(&ScrubRequest { rate })))
        }
        Command::Replace(options) => replace(options),
        Command::Export(Export { name, drain, force, job }) => {
            job.run(|client| client.post(&path(&name, "/export"), Some(&ExportRequest { drain, force })))
        }
        Command::Import(options) => import(options),
        Command::Remove(Remove { name, erase, force, job }) => {
            let how = match (erase, force) {
                (false, false) => "",
                (true, false) => "?erase=true",
                (false, true) => "?force=true",
                (true, true) => "?erase=true&force=true",
            };
            job.run(|client| client.delete(&path(&name, how)))
        }
    }
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/pools/{}{rest}", escaped(name))
}

fn replace(
    Replace { name, devices, old, discard_lost, taking, background, admin }: Replace,
) -> Result<(), Failure> {
    let mut devices = devices.into_iter();
    let (Some(device), other, None) = (devices.next(), devices.next(), devices.next()) else {
        return Err(Failure::usage(
            MessageId::PoolDeviceCount,
            "a cache has at most two devices that can be replaced",
        ));
    };
    let client = admin.client();
    let old = old.map(|old| paths::absolute(&old));
    let Taking { overwrite, fill } = taking;
    let request = ReplaceRequest { device, other, old, discard_lost, overwrite, fill };
    let pool = client.post(&path(&name, "/replace"), Some(&request))?;
    let info: PoolInfo = client::read(&pool)?;
    // A new cache in place of a failed one needs no job.
    if let Some(job) = info.job {
        let answer = client.get(&format!("/v1/jobs/{}", escaped(&job)))?;
        let job: JobInfo = client::read(&answer)?;
        if ["rebuild", "replace"].contains(&job.kind.as_str()) {
            return job::attend(&client, &answer, WaitMode { background, json: admin.json });
        }
    }
    print(&admin, &pool, |pool: &PoolInfo| {
        format!("pool {}: a new cache of {}\n", harmless(&pool.name), bytes(pool.capacity_bytes))
    })
}

fn import(options: Import) -> Result<(), Failure> {
    let Import { devices, pool, backing, exports: named, key_file, dry_run, admin } = options;
    let mut exports: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (volume, uri) in named {
        let of_volume = exports.entry(volume).or_default();
        of_volume.extend(Some(paths::export(&uri)).filter(|uri| !uri.is_empty()));
    }
    let request = ImportRequest {
        devices: devices.iter().map(|device| paths::absolute(device)).collect(),
        pool,
        backing: backing.into_iter().map(|(volume, uri)| (volume, paths::backing(&uri))).collect(),
        exports,
        key_file: key_file.map(|path| if path.contains(':') { path } else { paths::absolute(&path) }),
        dry_run,
    };
    let answer = admin.client().post("/v1/import", Some(&request))?;
    print(&admin, &answer, imported)?;
    let info: ImportInfo = client::read(&answer)?;
    info.volumes.iter().for_each(|volume| super::volume::warn(&volume.name, &volume.warnings));
    let missing = info.volumes.iter().filter(|volume| !volume.attached);
    let again: Vec<String> =
        missing.map(|volume| format!("forebay volume attach {}", harmless(&volume.name))).collect();
    if again.is_empty() || info.dry_run {
        return Ok(());
    }
    let s = if again.len() == 1 { " is" } else { "s are" };
    Err(Failure::new(
        MessageId::PoolPartlyImported,
        format!(
            "pool {} is imported, but {} of its volumes{s} not attached",
            harmless(&info.pool),
            again.len()
        ),
    )
    .hint(format!("`forebay alarms` shows when that changes; to try again: {}", again.join("; "))))
}

fn imported(info: &ImportInfo) -> String {
    let (name, host) = (harmless(&info.pool), harmless(&info.exported_by));
    let is = if info.dry_run { "would be imported" } else { "imported" };
    let mut text = format!("pool {name}: {is} from {host}, on {}\n", harmless(&info.devices.join(", ")));
    for volume in &info.volumes {
        let was = volume.was.as_ref().map_or(String::new(), |was| format!(" (was {})", harmless(was)));
        let state = match (&volume.why, info.dry_run) {
            (Some(why), _) => format!("NOT ATTACHED: {}", harmless(why)),
            (None, true) => "there".into(),
            (None, false) => "attached".into(),
        };
        text += &format!("volume {}: {}{was}, {state}\n", harmless(&volume.name), harmless(&volume.backing));
        if volume.lost_bytes > 0 {
            let (lost, name) = (bytes(volume.lost_bytes), quoted(&volume.name));
            text += &format!("  {lost} LOST: forebay volume show {name}\n");
        }
        if info.dry_run {
            volume.exports.iter().for_each(|export| text += &format!("  export {}\n", harmless(export)));
        }
    }
    for volume in &info.absent {
        let (dirty, lost) = (bytes(volume.dirty_bytes.unwrap_or(0)), bytes(volume.lost_bytes));
        text += &format!(
            "volume {}: NOT ATTACHED, {dirty} dirty and {lost} lost are only in the cache; do not use its backing store\n",
            harmless(&volume.name)
        );
    }
    if !info.unconfirmed.is_empty() {
        text +=
            &format!("the command must name, if it is right: {}\n", harmless(&info.unconfirmed.join(" ")));
    }
    text
}

fn create(options: Create) -> Result<(), Failure> {
    let Create { name, devices, mirror, settings, taking, new_cache, admin } = options;
    let mut settings = settings.into_iter().collect::<BTreeMap<_, _>>();
    if mirror {
        settings.insert("mirror".into(), "on".into());
    }
    let asked: Vec<PathBuf> = devices.iter().map(|device| (&device.path).into()).collect();
    let request =
        PoolRequest { name, devices, settings, overwrite: taking.overwrite, fill: taking.fill, new_cache };
    let pool = admin.client().post("/v1/pools", Some(&request))?;
    print(&admin, &pool, |pool: &PoolInfo| {
        let cached = Some(pool.cached_bytes).filter(|cached| *cached > 0);
        let cached = cached.map_or(String::new(), |cached| format!(", {} cached", bytes(cached)));
        let kept = pool.devices.iter().map(|device| Path::new(&device.path));
        let kept = kept_as(asked.iter().map(PathBuf::as_path), kept);
        format!("pool {}: {}{cached}\n{kept}", harmless(&pool.name), bytes(pool.capacity_bytes))
    })
}

fn open(options: &Open) -> Result<(), Failure> {
    let Open { new_cache, taking: Taking { overwrite, fill }, .. } = options;
    let allowed = format!("/open?new_cache={new_cache}&overwrite={overwrite}&fill={fill}");
    let pool = options.admin.client().post_nothing(&path(&options.name, &allowed))?;
    print(&options.admin, &pool, |pool: &PoolInfo| {
        format!("pool {}: {} volumes\n", harmless(&pool.name), pool.volumes.len())
    })
}

/// Returns one line for each pool.
pub(super) fn table(pools: &[PoolInfo]) -> Table {
    let mut table = Table::new([
        Column::text("pool", 0),
        Column::number("size", 4),
        Column::number("cached", 3),
        Column::number("dirty", 1),
        Column::number("devices", 5),
        Column::text("volumes", 2),
        Column::text("state", 0),
    ]);
    for pool in pools {
        let known = |text: String| if pool.is_unknown() { "-".into() } else { text };
        table.add_row([
            harmless(&pool.name),
            known(bytes(pool.capacity_bytes)),
            known(percent(pool.cached_bytes, pool.capacity_bytes)),
            known(bytes(pool.dirty_bytes)),
            pool.devices.len().to_string(),
            harmless(&pool.volumes.join(", ")),
            state(pool),
        ]);
    }
    table
}

fn state(pool: &PoolInfo) -> String {
    if pool.not_open {
        return match &pool.recorded {
            Some(known) if known.in_use => "NOT OPEN: maybe dirty".into(),
            Some(known) if known.dirty_bytes > 0 => format!("NOT OPEN: {} dirty", bytes(known.dirty_bytes)),
            Some(_) => "NOT OPEN: nothing dirty".into(),
            None => "NOT OPEN".into(),
        };
    }
    if pool.not_answering {
        return "NOT ANSWERING".into();
    }
    match (pool.cache_failed, pool.fenced, pool.lost_bytes) {
        (true, _, 0) => "CACHE FAILED: served without it".into(),
        (true, ..) => "CACHE FAILED: data is lost".into(),
        (false, true, _) => "FENCED: takes no writes".into(),
        (false, false, 1..) => "LOST: dirty data is damaged".into(),
        (false, false, 0) => match pool.mirror.as_str() {
            "" | "whole" if device_trouble(pool).is_some() => {
                format!("DEVICE {}", harmless(device_trouble(pool).unwrap_or_default()))
            }
            "" => "ok".into(),
            "whole" => "ok, mirrored".into(),
            "degraded" => "DEGRADED: one of two devices".into(),
            other => harmless(other),
        },
    }
}

/// Returns a word for the failure of one of its devices.
fn device_trouble(pool: &PoolInfo) -> Option<&str> {
    let is_well = |state: &&str| matches!(*state, "" | "ok" | "filling" | "out" | "missing");
    pool.devices.iter().map(|device| device.state.as_str()).find(|state| !is_well(state))
}

pub(super) fn show(pool: &PoolInfo, width: Width) -> String {
    let mut list = List::new();
    list.add("pool", harmless(&pool.name));
    list.add("state", state(pool));
    for device in &pool.devices {
        let state =
            if device.state.is_empty() { String::new() } else { format!(", {}", harmless(&device.state)) };
        // The size of a device that was never opened is unknown.
        let size = Some(device.size_bytes).filter(|size| *size > 0);
        let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
        list.add("device", format!("{}{size}{state}", harmless(&device.path)));
        if let Some(copy) = &device.copied {
            let left = match copy.left_bytes {
                0 => "everything is copied, it takes over".into(),
                left => format!("{} left", bytes(left)),
            };
            list.add("  copied to", format!("{}, {left}", harmless(&copy.to)));
        }
        if let Some(flash) = &device.flash {
            list.add("  written", written(flash));
            show_wear(&mut list, flash);
        }
    }
    if let Some(why) = &pool.why {
        list.add("why", harmless(why));
    }
    if !pool.not_open {
        show_space(&mut list, pool);
    }
    if let Some(known) = &pool.recorded {
        list.add("cache", harmless(&known.cache));
        list.add("recorded in", harmless(&known.path));
    }
    for volume in &pool.volumes {
        list.add("volume", harmless(volume));
    }
    for (volume, dirty) in &pool.absent {
        list.add("not attached", format!("{}, {} dirty", harmless(volume), bytes(*dirty)));
    }
    list.within(width)
}

/// Returns the amounts written to a device, largest first.
fn written(flash: &FlashInfo) -> String {
    let mut causes: Vec<(&String, u64)> = flash
        .written_by_cause
        .iter()
        .map(|(cause, some)| (cause, *some))
        .filter(|(_, some)| *some > 0)
        .collect();
    causes.sort_by_key(|(_, some)| std::cmp::Reverse(*some));
    let causes: Vec<String> =
        causes.iter().map(|(cause, some)| format!("{} {}", harmless(cause), bytes(*some))).collect();
    let of = if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
    format!("{} since the start {} ago{of}", bytes(flash.written_bytes), uptime(flash.written_for_s))
}

/// Shows a device's wear report and remaining life.
fn show_wear(list: &mut List, flash: &FlashInfo) {
    for disk in &flash.wear {
        let mut words = Vec::new();
        words.extend(disk.used_pct.map(|used| format!("{used} % of its rated life used")));
        words.extend(disk.written_bytes.map(|written| format!("{} written in it", bytes(written))));
        words.extend(disk.spare_pct.map(|spare| format!("{spare} % spare")));
        words.extend(disk.media_errors.map(|errors| format!("{errors} media errors")));
        let concerns = disk.concerns();
        if !concerns.is_empty() {
            words.push(format!("WARNING: {}", harmless(&concerns.join(", "))));
        }
        list.add(
            "  disk",
            format!("{} ({}): {}", harmless(&disk.disk), harmless(&disk.model), words.join(", ")),
        );
    }
    if let Some(why) = &flash.wear_unknown {
        list.add("  wear", format!("not known: {}", harmless(why)));
    }
    if let Some(life) = &flash.life {
        list.add("  lasts", harmless(life));
    }
}

/// Returns the state of an endurance budget.
fn budget(endurance: &EnduranceInfo) -> String {
    let saved = bytes(endurance.saved_bytes.unsigned_abs());
    let account = if endurance.saved_bytes < 0 { format!("{saved} owed") } else { format!("{saved} saved") };
    let cost = match endurance.missed_blocks {
        0 => String::new(),
        missed => format!("; it cost {} of the hits at most", percent(missed, endurance.read_blocks)),
    };
    format!(
        "{} a day, {account}; fills and kept blocks may take {} a day now; {}{cost}",
        bytes(endurance.budget_bytes),
        bytes(endurance.optional_bytes),
        harmless(&endurance.restraint)
    )
}

/// Shows the content of its cache.
fn show_space(list: &mut List, pool: &PoolInfo) {
    list.add("size", bytes(pool.capacity_bytes));
    if pool.mirror.is_empty() {
        list.add(
            "largest size",
            format!("{} by growing its devices or adding some", bytes(pool.growable_to_bytes)),
        );
    }
    let share = percent(pool.cached_bytes, pool.capacity_bytes);
    list.add("cached", format!("{} ({share})", bytes(pool.cached_bytes)));
    list.add("dirty", bytes(pool.dirty_bytes));
    if pool.lost_bytes > 0 {
        let ranges = if pool.lost_ranges == 1 { "range" } else { "ranges" };
        list.add("LOST", format!("{} in {} {ranges}", bytes(pool.lost_bytes), pool.lost_ranges));
    }
    if let Some(endurance) = &pool.endurance {
        list.add("budget", budget(endurance));
    }
    list.add("I/O by", harmless(&pool.io_engine));
}

/// Parses `PATH[:SIZE]`, by the rules of `forebay run --cache`. Passes the size to the daemon as
/// typed; makes a relative path absolute.
pub(super) fn device(text: &str) -> Result<DeviceRequest, String> {
    let spec = text.parse::<CacheSpec>()?;
    let size = spec.size_bytes.and_then(|_| Some(text.rsplit_once(':')?.1.to_owned()));
    let path = spec.path.into_os_string().into_string().map_err(|_| "the path is not UTF-8".to_owned())?;
    Ok(DeviceRequest { path: paths::absolute(&path), size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_admin::{CopyInfo, DeviceInfo};

    #[test]
    fn a_copied_device_names_its_replacement() {
        let shown = |left_bytes| {
            let copied = Some(CopyInfo { to: "/dev/y".into(), left_bytes });
            let (path, state) = ("/dev/x".into(), String::new());
            let device = DeviceInfo { path, size_bytes: 1 << 30, state, copied, flash: None };
            show(&PoolInfo::closed("fast".into(), vec![device], None), Width::of(80))
        };
        assert!(shown(3 << 20).contains("/dev/y, 3.0 MiB left"), "{}", shown(3 << 20));
        assert!(shown(0).contains("/dev/y, everything is copied"), "{}", shown(0));
    }

    #[test]
    fn a_device_keeps_its_size_as_typed() {
        let of = |text| device(text).map(|device| (device.path, device.size));
        assert_eq!(of("/f/x.img:10GiB"), Ok(("/f/x.img".into(), Some("10GiB".into()))));
        assert_eq!(of("/dev/nvme0n1"), Ok(("/dev/nvme0n1".into(), None)));
        assert!(of("/f/x.img:10XiB").is_err());
    }
}
