//! `forebay cache` and `forebay uncache`: put a cache in front of a mounted disk, and take it away.
//!
//! Both determine the required changes (`attach_plan`, `detach_plan`) as a list of `steps`, and
//! execute it (`run`). The `journal` records the progress, so that the same command continues after
//! it was killed. They examine `mounts`, devices (`disk`, `flash`), `users` of the mount, `fstab`,
//! and the `service`; `shell` runs and prints commands. Rationale:
//! `docs/decisions/0059-cache-and-uncache.md`.
//!
//! Invariants
//! - All obstacles are checked before anything is changed.
//! - Whenever the machine stops, `/etc/fstab` names something that can be mounted: the line of the
//!   volume is written once the volume exists, before it is written to, and that of the disk once
//!   the disk has all data.

mod disk;
mod flash;
mod fstab;
use super::mounts;
mod attach_plan;
mod detach_plan;
mod journal;
mod run;
mod service;
mod settings;
mod shell;
mod steps;
mod users;

use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::{DeviceRequest, MessageId};

use super::pool::{Taking, device};
use super::settings::pair;
use crate::client::{Client, DEFAULT_SOCKET};
use crate::complete;
use crate::failure::{Failure, system};
use journal::{Begun, Direction, Journal};

/// Options of `forebay cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The disk keeps its data, and is unmounted for a moment. Its volume is a block device (ublk: Linux 6.5). Each step is
printed as the command that does it. If one fails, those before it are undone. If this is killed, the same command
continues, and `forebay uncache` goes back. In /etc/fstab the line of the disk becomes a comment above that of the volume.
Examples:
  forebay cache /srv/db --device /dev/nvme0n1
  forebay cache /srv/db --mirror --device /dev/nvme0n1 --device /dev/nvme1n1
  forebay cache /srv/mail --pool fast --dry-run | less")]
pub(crate) struct Cache {
    /// Where the disk is mounted
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// Flash for a new pool: an empty block device, or a file and the size to create it with; may
    /// be repeated. Without it, an existing pool is used
    #[arg(long = "device", value_name = "PATH[:SIZE]", value_parser = device)]
    devices: Vec<DeviceRequest>,
    /// Keep dirty data on both of two devices: either may fail
    #[arg(long, requires = "devices")]
    mirror: bool,
    /// Pool that caches it, or name of the new one (default: the only pool; `fast` for a new one)
    #[arg(long, value_name = "POOL", add = ArgValueCompleter::new(complete::pools))]
    pool: Option<String>,
    /// Name of the new volume (default: that of the directory)
    #[arg(long, value_name = "VOLUME")]
    name: Option<String>,
    /// Set a setting of the volume or of the new pool; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair, add = ArgValueCompleter::new(complete::pairs))]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    taking: Taking,
    /// Give up a recorded cache of this pool or on this flash that may hold dirty data: it is
    /// refused if it returns
    #[arg(long)]
    new_cache: bool,
    #[command(flatten)]
    how: How,
}

/// Options of `forebay uncache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Dirty data is written back first, while the file system is in use; then it is unmounted for a moment. It must not be in
use when this begins: to drain under load, `forebay set VOLUME mode=writethrough --drain` before. If a step fails, those
before it are undone, up to the detach. If this is killed, the same command continues. It also goes back where
`forebay cache` was killed.
Example: forebay uncache /srv/db")]
pub(crate) struct Uncache {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// Keep the pool, even if nothing else uses it
    #[arg(long)]
    keep_pool: bool,
    #[command(flatten)]
    how: How,
}

/// Options of both commands.
#[derive(Debug, clap::Args)]
struct How {
    /// Print the commands, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Admin socket of the daemon
    #[arg(long, value_name = "SOCKET", env = "FOREBAY_ADMIN", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    admin: PathBuf,
}

/// Puts a cache in front of a mounted disk.
pub(crate) fn cache(options: Cache) -> Result<(), Failure> {
    let Cache { point, devices, mirror, pool, name, mut settings, taking, new_cache, how } = options;
    let asked = in_words(&devices, mirror, pool.as_deref(), name.as_deref(), &settings);
    if mirror {
        settings.push(("mirror".into(), "on".into()));
    }
    let wanted = attach_plan::Wanted { devices, pool, name, settings, taking, new_cache };
    let stage = Stage::set(&point, how)?;
    match stage.interrupted()? {
        Some(begun) if begun.direction == Direction::Detach => Err(Failure::new(
            MessageId::AttachInterruptedBefore,
            format!("`forebay uncache {}` was interrupted", stage.shown()),
        )
        .hint("finish it first: the same command again")),
        Some(begun) if begun.asked != asked => Err(Failure::new(
            MessageId::AttachInterruptedBefore,
            format!("another `forebay cache {}` was interrupted: {}", stage.shown(), begun.asked),
        )
        .hint(format!("finish it with the same options, or go back: forebay uncache {}", stage.shown()))),
        Some(begun) => stage.go(begun),
        None => stage.go(attach_plan::plan(&stage.client, &stage.point, &wanted, asked)?),
    }
}

/// Takes the cache away.
pub(crate) fn uncache(options: Uncache) -> Result<(), Failure> {
    let stage = Stage::set(&options.point, options.how)?;
    match stage.interrupted()? {
        Some(begun) if begun.direction == Direction::Attach => stage.go_back(&begun),
        Some(begun) => stage.go(begun),
        None => {
            let asked = String::new();
            stage.go(detach_plan::plan(&stage.client, &stage.point, options.keep_pool, asked)?)
        }
    }
}

/// Context of both commands.
struct Stage {
    client: Client,
    point: PathBuf,
    /// `None` for a dry run.
    journal: Option<Journal>,
}

impl Stage {
    fn set(point: &Path, how: How) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                Failure::new(MessageId::CliRoot, "only root can mount and unmount").hint("run it with sudo")
            );
        }
        let point = place(point)?;
        // Do not keep the mount busy by a working directory in it.
        std::env::set_current_dir("/").map_err(system("/"))?;
        let journal = if how.dry_run { None } else { Some(Journal::open(&point)?) };
        Ok(Self { client: Client::new(&how.admin), point, journal })
    }

    fn shown(&self) -> String {
        shell::quoted(self.point.display().to_string())
    }

    /// Returns the steps that an earlier, killed process has begun.
    fn interrupted(&self) -> Result<Option<Begun>, Failure> {
        let begun = match &self.journal {
            Some(journal) => journal.read()?,
            None => Journal::look(&self.point)?,
        };
        Ok(begun.filter(|begun| !begun.begun.is_empty()))
    }

    fn go(&self, begun: Begun) -> Result<(), Failure> {
        match &self.journal {
            Some(journal) => run::run(&self.client, journal, begun),
            None => run::show(&self.client, &begun.plan),
        }
    }

    fn go_back(&self, begun: &Begun) -> Result<(), Failure> {
        match &self.journal {
            Some(journal) => {
                run::undo(&self.client, journal, begun)?;
                crate::screen::print("everything is as it was before `forebay cache` was interrupted\n")
            }
            None => run::show(&self.client, &run::way_back(begun)),
        }
    }
}

/// Returns the mount point as in the kernel's table. Follows links, but if the path itself is a
/// mount point, does not access it, because its server may hang.
fn place(point: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(point).map_err(system(point.display()))?;
    let absolute: PathBuf = absolute.components().collect();
    let mounts = mounts::Mounts::read().map_err(system("cannot read the list of mounts"))?;
    if mounts.at(&absolute).next().is_some() {
        return Ok(absolute);
    }
    let found = std::fs::canonicalize(&absolute).map_err(system(point.display()));
    found.map_err(|failure| failure.hint("give the folder that the disk is mounted at; `findmnt` lists them"))
}

/// Returns the request as text, to recognize its repetition.
fn in_words(
    devices: &[DeviceRequest],
    mirror: bool,
    pool: Option<&str>,
    name: Option<&str>,
    settings: &[(String, String)],
) -> String {
    let size = |device: &DeviceRequest| device.size.as_ref().map_or(String::new(), |size| format!(":{size}"));
    let mut words: Vec<String> = Vec::new();
    words.extend(
        devices.iter().flat_map(|device| ["--device".into(), format!("{}{}", device.path, size(device))]),
    );
    words.extend(mirror.then(|| "--mirror".to_owned()));
    words.extend(pool.into_iter().flat_map(|pool| ["--pool".to_owned(), pool.to_owned()]));
    words.extend(name.into_iter().flat_map(|name| ["--name".to_owned(), name.to_owned()]));
    words.extend(settings.iter().flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]));
    shell::line(words)
}
