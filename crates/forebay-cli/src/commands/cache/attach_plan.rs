//! Plans `forebay cache`, before anything is changed.

use crate::message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_admin::{DaemonInfo, DeviceRequest, MessageId, PoolInfo, PoolRequest, VolumeInfo, VolumeRequest};
use forebay_config::model::check_name;
use forebay_config::{Scope, Settings};
use forebay_export::uri::BackingUri;

use super::fstab::{self, Change, Entry, FSTAB};
use super::journal::{Begun, Direction};
use super::mounts::{Mount, Mounts, is_below};
use super::service::{self, Daemon, Service};
use super::settings::{self, Texts};
use super::steps::{Mounted, Step};
use super::{disk, flash, shell, users};
use crate::client::{self, Client};
use crate::commands::pool::Taking;
use crate::failure::{Failure, system};
use crate::screen::{self, harmless};

/// Default name of a new pool.
const POOL: &str = "fast";
/// Path of the daemon's configuration in its service.
const CONFIG: &str = "/etc/forebay/forebay.toml";
/// The machine cannot boot without these, or the daemon cannot start. Their devices are not cached.
const NEEDED: [&str; 11] = [
    "/etc/forebay",
    "/usr/bin",
    "/usr/lib",
    "/usr/share",
    "/var/lib/forebay",
    "/var/lib/systemd",
    "/var/log",
    "/var/tmp",
    "/boot/efi",
    "/efi",
    "/run",
];
/// Directories of unit files; those that systemd generates from fstab are elsewhere.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The request.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) devices: Vec<DeviceRequest>,
    pub(super) pool: Option<String>,
    pub(super) name: Option<String>,
    /// Settings of the pool and the volume.
    pub(super) settings: Vec<(String, String)>,
    pub(super) taking: Taking,
    pub(super) new_cache: bool,
}

/// The pools and volumes of the daemon, or of its configuration while it does not run.
#[derive(Debug, Default)]
struct Known {
    daemon: Option<Daemon>,
    /// Pools, with the paths of their devices.
    pools: BTreeMap<String, Vec<String>>,
    /// Settings of pools, while the daemon does not run.
    settings: BTreeMap<String, Settings>,
    /// Volumes, with their backing stores.
    volumes: BTreeMap<String, String>,
}

/// Returns the mount at exactly this path.
///
/// # Errors
/// There is none, or it cannot be cached.
pub(super) fn mount_at(mounts: &Mounts, point: &Path) -> Result<Mount, Failure> {
    let shown = harmless(&point.display().to_string());
    let all: Vec<&Mount> = mounts.at(point).collect();
    if all.iter().any(|mount| mount.is_automount()) {
        let unit = format!("{}.automount", fstab::escaped_path(point));
        let (stop, mount) =
            (shell::line(["systemctl", "stop", &unit]), shell::line(["mount", &point.display().to_string()]));
        return Err(Failure::new(
            MessageId::AttachMount,
            format!("{shown} is mounted on access (automount)"),
        )
        .hint(format!("{stop}; {mount}; then the same command again")));
    }
    match all[..] {
        [mount] => Ok(mount.clone()),
        [] => {
            let covering = mounts.covering(point).map(|mount| mount.point.display().to_string());
            let above = covering.unwrap_or_else(|| "/".into());
            Err(Failure::new(
                MessageId::AttachNotAMount,
                format!("{shown} is not a mount point: it lies on {}", harmless(&above)),
            )
            .hint("give the folder that the disk is mounted at; `findmnt` lists them"))
        }
        _ => Err(Failure::new(
            MessageId::AttachMount,
            format!("{} file systems are mounted over each other at {shown}", all.len()),
        )
        .hint("unmount those above first")),
    }
}

/// Returns all steps, in order.
///
/// # Errors
/// There is an obstacle. Nothing was changed.
pub(super) fn plan(client: &Client, point: &Path, wanted: &Wanted, asked: String) -> Result<Begun, Failure> {
    let mounts = Mounts::read().map_err(system("cannot read the list of mounts"))?;
    let mount = mount_at(&mounts, point)?;
    check_mount(&mounts, &mount)?;
    let device = device_of(&mount)?;
    let table = fstab::read(Path::new(FSTAB)).map_err(system(FSTAB))?;
    let entries = fstab::entries(&table);
    let entry = line_of(&entries, &mount, &device)?;
    if entry.is_some() {
        fstab::check_replaceable(&mounts, Path::new(FSTAB))?;
    }
    check_units(&mount, entry.is_some())?;
    let known = Known::look(client)?;
    let mut steps = service::steps(known.daemon.as_ref())?;
    let name = known.volume_name(wanted, &mount, &device)?;
    let (of_pool, of_volume) = settings::split(&wanted.settings)?;
    let (pool, create) = known.pool(wanted, of_pool)?;
    let (of_pool, devices) = match &create {
        Some(request) => (settings::read(Scope::Pool, &request.settings)?, Some(request.devices.len())),
        None => (known.settings_of(client, &pool)?, None),
    };
    settings::check(&of_pool, &of_volume, devices)?;
    if let Some(request) = create {
        flash::check(&request, &device, &mounts)?;
        steps.push(Step::CreatePool(request));
    }
    users::refuse_if_used(&mounts, &mount)?;
    for note in notes(&known, &mount, &device, entry.is_some()) {
        message::note(MessageId::CliNote, &note);
    }
    let volume = Path::new("/dev/forebay").join(&name);
    let mounted = |source: &Path| mounted(&mount, source, entry.as_ref());
    let backing = device.display().to_string();
    let request = VolumeRequest {
        name: name.clone(),
        pool: Some(pool.clone()),
        backing,
        exports: vec!["ublk:".into()],
        settings: of_volume,
    };
    steps.extend([Step::Unmount(mounted(&device)), Step::Attach(request)]);
    steps.extend(entry.as_ref().map(|entry| Step::Edit(Change::to_volume(&table, entry, &volume))));
    steps.push(Step::Mount(mounted(&volume)));
    let ending = format!(
        "{} is on {} now, in pool {pool}; do not use {} itself meanwhile\n\
         `forebay stats {name}` shows whether it helps, `{}` removes it\n",
        harmless(&point.display().to_string()),
        volume.display(),
        device.display(),
        shell::line(["forebay", "uncache", &point.display().to_string()])
    );
    Ok(Begun { direction: Direction::Attach, asked, plan: steps, begun: Vec::new(), ending })
}

/// Returns the present mount, with another source.
pub(super) fn mounted(mount: &Mount, source: &Path, entry: Option<&Entry<'_>>) -> Mounted {
    let said = entry.map(Entry::options).unwrap_or_default();
    let more = mount.options().into_iter().filter(|option| !said.contains(option));
    // A later option of mount(8) overrides an earlier one, and those of fstab are earlier.
    let options = more.chain(mount.options_against(&said)).collect();
    let kind = entry.is_none().then(|| mount.kind.clone());
    Mounted { source: source.to_owned(), point: mount.point.clone(), kind, options }
}

/// Returns the block device, by the name that it was mounted by.
fn device_of(mount: &Mount) -> Result<PathBuf, Failure> {
    if let Some((why, hint)) = disk::objection(mount) {
        let source = harmless(&mount.source.display().to_string());
        return Err(Failure::new(MessageId::AttachDisk, format!("{source} {why}")).hint(hint));
    }
    Ok(mount.source.clone())
}

fn check_mount(mounts: &Mounts, mount: &Mount) -> Result<(), Failure> {
    let point = harmless(&mount.point.display().to_string());
    if disk::text(&mount.point).is_none() || disk::text(&mount.source).is_none() {
        return Err(Failure::new(
            MessageId::AttachMount,
            format!("{point}: paths that are not UTF-8 are not handled by this command"),
        ));
    }
    let own = std::env::current_exe().ok();
    let needed = NEEDED.iter().map(Path::new).chain(own.as_deref());
    let is_of_system =
        is_below(&mount.point, Path::new("/usr")) || is_below(&mount.point, Path::new("/boot"));
    if is_of_system || needed.into_iter().any(|path| is_below(path, &mount.point)) {
        return Err(Failure::new(MessageId::AttachNeededEarly, format!("{point} is needed before the daemon runs, or by the daemon itself"))
            .hint("/, /usr, /boot, /var and the like cannot be on a volume: move the data to a file system of its own"));
    }
    if mount.root != Path::new("/") {
        let root = harmless(&mount.root.display().to_string());
        return Err(Failure::new(
            MessageId::AttachMount,
            format!("{point} is a bind mount or a subvolume ({root}), not all of a file system"),
        )
        .hint("give the place where all of it is mounted, and unmount this one"));
    }
    let is_same = |other: &&Mount| other.device == mount.device && other.point != mount.point;
    let others: Vec<String> =
        mounts.0.iter().filter(is_same).map(|other| harmless(&other.point.display().to_string())).collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        MessageId::AttachMountedElsewhere,
        format!("the file system of {point} is mounted at {} as well", others.join(", ")),
    )
    .hint("unmount it there first: all of its mounts must be on the volume"))
}

/// Returns the line of fstab that has mounted it, if there is one.
///
/// # Errors
/// The line is for something else, or other lines would mount the disk bypassing the cache.
fn line_of<'a>(entries: &[Entry<'a>], mount: &Mount, device: &Path) -> Result<Option<Entry<'a>>, Failure> {
    let mut own = None;
    for entry in entries {
        let names = disk::is_named(&entry.source(), device);
        let is_there = entry.point() == mount.point || names == Some(true) && entry.leads_to(&mount.point);
        let line = entry.number;
        let source = harmless(&entry.source().to_string_lossy());
        match (is_there, names) {
            (true, _) if own.is_some() => {
                return Err(Failure::new(
                    MessageId::AttachFstab,
                    format!("{FSTAB} has two lines for {}, the second is line {line}", mount.point.display()),
                )
                .hint("leave one of them"));
            }
            (true, Some(false)) => {
                return Err(Failure::new(
                    MessageId::AttachFstab,
                    format!(
                        "line {line} of {FSTAB} mounts {source} there, which is not {}",
                        device.display()
                    ),
                )
                .hint("correct the line, or mount the device that it names"));
            }
            (true, _) => own = Some(entry.clone()),
            (false, Some(true)) => {
                return Err(Failure::new(
                    MessageId::AttachFstab,
                    format!(
                        "line {line} of {FSTAB} mounts the same disk at {}: it bypasses the cache",
                        harmless(&entry.point().display().to_string())
                    ),
                )
                .hint("remove the line first"));
            }
            (false, _) => {}
        }
    }
    let in_initrd = |entry: &Entry<'_>| entry.options().iter().any(|option| option == "x-initrd.mount");
    match own {
        Some(entry) if in_initrd(&entry) => Err(Failure::new(
            MessageId::AttachNeededEarly,
            format!(
                "line {} of {FSTAB} has x-initrd.mount: it is needed before the daemon runs",
                entry.number
            ),
        )),
        own => Ok(own),
    }
}

/// Checks for a custom unit that would mount the disk bypassing the cache at the next boot.
fn check_units(mount: &Mount, is_in_fstab: bool) -> Result<(), Failure> {
    let unit = fstab::escaped_path(&mount.point);
    let files = UNITS.iter().flat_map(|folder| {
        ["mount", "automount"].map(|kind| Path::new(folder).join(format!("{unit}.{kind}")))
    });
    let Some(file) = files.into_iter().find(|file| file.exists()) else { return Ok(()) };
    let what = format!("{} mounts the disk, and would bypass the cache", file.display());
    Err(Failure::new(MessageId::AttachUnit, what).hint(if is_in_fstab {
        "remove it: /etc/fstab has a line for the same mount point".to_owned()
    } else {
        format!("this command changes no unit: move it into a line of {FSTAB}, then the same command again")
    }))
}

impl Known {
    fn look(client: &Client) -> Result<Self, Failure> {
        match client.get("/v1/daemon") {
            Ok(answer) => {
                let info: DaemonInfo = client::read(&answer)?;
                if info.config.is_none() {
                    return Err(Failure::new(
                        MessageId::AttachDaemon,
                        format!("process {} is `forebay run`, which keeps nothing", info.pid),
                    )
                    .hint("give the socket of a daemon: --admin SOCKET; `forebay serve` is one"));
                }
                Self::of_daemon(client, &info)
            }
            Err(failure) if Service::look().is_some_and(|service| service.is_active) => Err(failure),
            Err(_) => Self::of_file(Path::new(CONFIG)),
        }
    }

    fn of_daemon(client: &Client, info: &DaemonInfo) -> Result<Self, Failure> {
        let pools: Vec<PoolInfo> = client::list(&client.get("/v1/pools")?, "pools")?;
        let volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
        let devices =
            |pool: PoolInfo| (pool.name, pool.devices.into_iter().map(|device| device.path).collect());
        Ok(Self {
            daemon: Some(Daemon::new(info)),
            pools: pools.into_iter().map(devices).collect(),
            settings: BTreeMap::new(),
            volumes: volumes.into_iter().map(|volume| (volume.name, volume.backing)).collect(),
        })
    }

    /// Returns the pools and volumes that the daemon will have when it is started.
    fn of_file(file: &Path) -> Result<Self, Failure> {
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(system(file.display()))?,
        };
        let checked = forebay_config::parse(file, &text).map_err(|_| {
            Failure::new(
                MessageId::AttachDaemon,
                format!("{}: the daemon cannot be started with it", file.display()),
            )
            .hint("`forebay config check` lists the errors")
        })?;
        let config = checked.config;
        let path = |spec: &forebay_config::CacheSpec| spec.path.display().to_string();
        Ok(Self {
            daemon: None,
            pools: config
                .pools
                .iter()
                .map(|(name, pool)| (name.clone(), pool.devices.iter().map(path).collect()))
                .collect(),
            settings: config.pools.iter().map(|(name, pool)| (name.clone(), pool.settings.clone())).collect(),
            volumes: config
                .volumes
                .iter()
                .map(|(name, volume)| (name.clone(), volume.backing.to_string()))
                .collect(),
        })
    }

    /// Returns the settings of an existing pool.
    fn settings_of(&self, client: &Client, pool: &str) -> Result<Settings, Failure> {
        match self.settings.get(pool) {
            Some(settings) => Ok(settings.clone()),
            None => settings::of_running_pool(client, pool),
        }
    }

    /// Returns the name of the new volume.
    fn volume_name(&self, wanted: &Wanted, mount: &Mount, device: &Path) -> Result<String, Failure> {
        let is_it = |backing: &str| {
            backing.parse::<BackingUri>().is_ok_and(|backing| disk::is_same(backing.path(), device))
        };
        let point = shell::quoted(mount.point.display().to_string());
        if let Some((other, _)) = self.volumes.iter().find(|(_, backing)| is_it(backing)) {
            return Err(Failure::new(MessageId::AttachExisting, format!(
                "{} is the backing store of volume {other} already, but is mounted itself",
                device.display()
            ))
            .hint(format!(
                "`forebay uncache {point}` removes the volume; or unmount the disk and mount /dev/forebay/{other}"
            )));
        }
        let name = wanted.name.clone().unwrap_or_else(|| name_for(&mount.point));
        check_name(&name).map_err(|problem| {
            Failure::usage(MessageId::NameSyntax, problem).hint("give another: --name VOLUME")
        })?;
        if self.volumes.contains_key(&name)
            || std::fs::symlink_metadata(Path::new("/dev/forebay").join(&name)).is_ok()
        {
            return Err(Failure::usage(MessageId::VolumeExists, format!("there is a volume {name} already"))
                .hint("give another name: --name VOLUME"));
        }
        Ok(name)
    }

    /// Returns the pool to use, and how to create it if it does not exist.
    fn pool(
        &self,
        wanted: &Wanted,
        settings: BTreeMap<String, String>,
    ) -> Result<(String, Option<PoolRequest>), Failure> {
        let names: Vec<&String> = self.pools.keys().collect();
        let listed = || names.iter().map(|name| harmless(name)).collect::<Vec<_>>().join(", ");
        if wanted.devices.is_empty() {
            let used = match (&wanted.pool, &names[..]) {
                (Some(pool), names) if names.contains(&pool) => pool.clone(),
                (None, [only]) => (*only).clone(),
                (Some(pool), _) => {
                    return Err(Failure::usage(
                        MessageId::PoolUnknown,
                        format!("there is no pool {}", harmless(pool)),
                    )
                    .hint("give the flash device for a new pool: --device PATH"));
                }
                (None, []) => {
                    return Err(Failure::usage(MessageId::AttachChoice, "which flash device?")
                        .hint("give it: --device PATH"));
                }
                (None, _) => {
                    return Err(Failure::usage(
                        MessageId::AttachChoice,
                        format!("which pool? There are: {}", listed()),
                    )
                    .hint("give one: --pool NAME, or flash for a new one: --device PATH --pool NAME"));
                }
            };
            refuse_settings(&used, &settings)?;
            return Ok((used, None));
        }
        let name = wanted.pool.clone().unwrap_or_else(|| POOL.into());
        check_name(&name).map_err(|problem| {
            Failure::usage(MessageId::NameSyntax, problem).hint("give another: --pool NAME")
        })?;
        match self.pools.get(&name) {
            Some(devices) if is_on(devices, &wanted.devices) => {
                refuse_settings(&name, &settings)?;
                Ok((name, None))
            }
            Some(devices) => Err(Failure::usage(
                MessageId::PoolExists,
                format!("there is a pool {name} already, on {}", harmless(&devices.join(", "))),
            )
            .hint(format!(
                "use it: --pool {name} without --device; or give the new one another name: --pool NAME"
            ))),
            None => {
                let devices = wanted.devices.clone();
                let Taking { overwrite, fill } = wanted.taking;
                let new_cache = wanted.new_cache;
                let request =
                    PoolRequest { name: name.clone(), devices, settings, overwrite, fill, new_cache };
                Ok((name, Some(request)))
            }
        }
    }
}

/// Refuses settings for an existing pool, so that they are not changed in passing. `mirror` is
/// allowed: repeating the command that created the pool passes it again.
fn refuse_settings(pool: &str, settings: &Texts) -> Result<(), Failure> {
    if settings.keys().all(|key| key == "mirror") {
        return Ok(());
    }
    Err(Failure::usage(MessageId::PoolExists, format!("pool {pool} exists already, and has its settings"))
        .hint(format!("change them with: forebay set --pool {pool} KEY=VALUE")))
}

/// Returns true if a pool lies on exactly these devices.
fn is_on(devices: &[String], wanted: &[DeviceRequest]) -> bool {
    let is_one = |device: &String, wanted: &DeviceRequest| {
        *device == wanted.path || disk::is_same(Path::new(device), Path::new(&wanted.path))
    };
    devices.len() == wanted.len()
        && devices.iter().all(|device| wanted.iter().any(|wanted| is_one(device, wanted)))
}

/// Returns the name of the last directory, as far as it is valid for a volume.
fn name_for(point: &Path) -> String {
    let last = point.file_name().unwrap_or_default().to_string_lossy();
    let legal = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = last.chars().map(legal).collect();
    name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Returns notes for the operator that are no obstacles.
fn notes(known: &Known, mount: &Mount, device: &Path, is_in_fstab: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !is_in_fstab {
        notes.push(format!(
            "{FSTAB} has no line for {}: none is added, and nothing mounts it at boot",
            screen::harmless(&mount.point.display().to_string())
        ));
    }
    if known.daemon.is_some() && Service::look().is_none_or(|service| !service.is_active) {
        notes.push(
            "the daemon was not started by systemd: make sure that it starts at boot, before the mount"
                .into(),
        );
    }
    if disk::is_encrypted(device) {
        notes.push(format!(
            "{} is encrypted, but its data in the cache is not, unless the flash is or the pool has a key \
             (forebay help security)",
            device.display()
        ));
    }
    notes
}

#[cfg(test)]
#[path = "attach_plan_tests.rs"]
mod tests;
