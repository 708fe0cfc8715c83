//! `forebay cache` and `forebay uncache`: a cache is put before a mounted disk, and taken away.
//!
//! Both find out what has to be done (`put`, `take`), as a list of `steps`, and go through it
//! (`run`). What was begun is noted (`note`), so that the same command goes on after it was killed.
//! They look at `mounts`, at devices (`disk`, `flash`), at `users` of the mount, at `fstab`, and at
//! the `service`; `shell` runs and shows commands. Why it is like this:
//! `docs/decisions/0059-cache-and-uncache.md`.
//!
//! Invariants
//! - Everything that can be against it is looked at before anything is changed.
//! - Whatever ends the machine, `/etc/fstab` names something that can be mounted then: the line of
//!   the volume is written when the volume is there, before it is written to, and that of the disk
//!   when the disk has everything.

mod disk;
mod flash;
mod fstab;
use super::mounts;
mod note;
mod put;
mod run;
mod service;
mod settings;
mod shell;
mod steps;
mod take;
mod users;

use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCompleter;
use forebay_admin::{DeviceRequest, MessageId};

use super::pool::{Taking, device};
use super::settings::pair;
use crate::client::{Client, DEFAULT_SOCKET};
use crate::complete;
use crate::failure::{Failure, system};
use note::{Begun, Note, Way};

/// Options of `forebay cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The disk keeps its data, and is unmounted for a moment. Its volume is a block device (ublk: Linux 6.5). Each step is
printed as the command that does it. If one fails, those before it are undone. If this is killed, the same command
goes on, and `forebay uncache` goes back. In /etc/fstab the line of the disk becomes a comment above that of the volume.
Examples:
  forebay cache /srv/db --device /dev/nvme0n1
  forebay cache /srv/db --mirror --device /dev/nvme0n1 --device /dev/nvme1n1
  forebay cache /srv/mail --pool fast --dry-run | less")]
pub(crate) struct Cache {
    /// Where the disk is mounted
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// Flash for a new pool: an empty block device, or a file and the size to make it with; may be
    /// repeated. Without it a pool that is there is used
    #[arg(long = "device", value_name = "PATH[:SIZE]", value_parser = device)]
    devices: Vec<DeviceRequest>,
    /// Keep what only the cache has on both of two devices: either may fail
    #[arg(long, requires = "devices")]
    mirror: bool,
    /// Pool that caches it, or name of the new one (default: the only pool; `fast` for a new one)
    #[arg(long, value_name = "POOL", add = ArgValueCompleter::new(complete::pools))]
    pool: Option<String>,
    /// What the new volume is called (default: as the folder)
    #[arg(long, value_name = "VOLUME")]
    name: Option<String>,
    /// Set a setting of the volume or of the new pool; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair, add = ArgValueCompleter::new(complete::pairs))]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    taking: Taking,
    /// Give up a recorded cache of this pool or on this flash that may hold dirty data: it is
    /// refused should it come back
    #[arg(long)]
    new_cache: bool,
    #[command(flatten)]
    how: How,
}

/// Options of `forebay uncache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is dirty is written back first, while the file system is in use; then it is unmounted for a moment. Nobody may use
it when this begins: to drain under load, `forebay set VOLUME mode=writethrough --drain` before. If a step fails, those
before it are undone, up to the detach. If this is killed, the same command goes on. It also goes back where
`forebay cache` was killed.
Example: forebay uncache /srv/db")]
pub(crate) struct Uncache {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// Keep the pool, also if nothing else uses it
    #[arg(long)]
    keep_pool: bool,
    #[command(flatten)]
    how: How,
}

/// Options of both.
#[derive(Debug, clap::Args)]
struct How {
    /// Print the commands, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Admin socket of the daemon
    #[arg(long, value_name = "SOCKET", env = "FOREBAY_ADMIN", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    admin: PathBuf,
}

/// Puts a cache before a mounted disk.
pub(crate) fn cache(options: Cache) -> Result<(), Failure> {
    let Cache { point, devices, mirror, pool, name, mut settings, taking, new_cache, how } = options;
    let asked = in_words(&devices, mirror, pool.as_deref(), name.as_deref(), &settings);
    if mirror {
        settings.push(("mirror".into(), "on".into()));
    }
    let wanted = put::Wanted { devices, pool, name, settings, taking, new_cache };
    let stage = Stage::set(&point, how)?;
    match stage.interrupted()? {
        Some(begun) if begun.way == Way::Take => Err(Failure::new(
            MessageId::AttachInterruptedBefore,
            format!("`forebay uncache {}` was interrupted", stage.shown()),
        )
        .hint("let it go on first: the same command again")),
        Some(begun) if begun.asked != asked => Err(Failure::new(
            MessageId::AttachInterruptedBefore,
            format!("another `forebay cache {}` was interrupted: {}", stage.shown(), begun.asked),
        )
        .hint(format!("let it go on with the same options, or go back: forebay uncache {}", stage.shown()))),
        Some(begun) => stage.go(begun),
        None => stage.go(put::plan(&stage.client, &stage.point, &wanted, asked)?),
    }
}

/// Takes the cache away.
pub(crate) fn uncache(options: Uncache) -> Result<(), Failure> {
    let stage = Stage::set(&options.point, options.how)?;
    match stage.interrupted()? {
        Some(begun) if begun.way == Way::Put => stage.go_back(&begun),
        Some(begun) => stage.go(begun),
        None => {
            let asked = String::new();
            stage.go(take::plan(&stage.client, &stage.point, options.keep_pool, asked)?)
        }
    }
}

/// What both commands work with.
struct Stage {
    client: Client,
    point: PathBuf,
    /// `None` if nothing is to be done.
    note: Option<Note>,
}

impl Stage {
    fn set(point: &Path, how: How) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                Failure::new(MessageId::CliRoot, "only root can mount and unmount").hint("run it with sudo")
            );
        }
        let point = place(point)?;
        // Who works in the folder must not be in the way.
        std::env::set_current_dir("/").map_err(system("/"))?;
        let note = if how.dry_run { None } else { Some(Note::take(&point)?) };
        Ok(Self { client: Client::new(&how.admin), point, note })
    }

    fn shown(&self) -> String {
        shell::quoted(self.point.display().to_string())
    }

    /// What an earlier process has begun that was killed.
    fn interrupted(&self) -> Result<Option<Begun>, Failure> {
        let begun = match &self.note {
            Some(note) => note.read()?,
            None => Note::look(&self.point)?,
        };
        Ok(begun.filter(|begun| !begun.begun.is_empty()))
    }

    fn go(&self, begun: Begun) -> Result<(), Failure> {
        match &self.note {
            Some(note) => run::run(&self.client, note, begun),
            None => run::show(&self.client, &begun.plan),
        }
    }

    fn go_back(&self, begun: &Begun) -> Result<(), Failure> {
        match &self.note {
            Some(note) => {
                run::undo(&self.client, note, begun)?;
                crate::screen::print("everything is as it was before `forebay cache` was interrupted\n")
            }
            None => run::show(&self.client, &run::way_back(begun)),
        }
    }
}

/// The mount point as the kernel's table has it: links are followed, but where the path is a mount
/// point as it is, nobody is asked who may not answer.
fn place(point: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(point).map_err(system(point.display()))?;
    let absolute: PathBuf = absolute.components().collect();
    let mounts = mounts::Mounts::read().map_err(system("cannot see what is mounted"))?;
    if mounts.at(&absolute).next().is_some() {
        return Ok(absolute);
    }
    let found = std::fs::canonicalize(&absolute).map_err(system(point.display()));
    found.map_err(|failure| failure.hint("give the folder that the disk is mounted at; `findmnt` lists them"))
}

/// What was asked for, to tell whether it is the same again.
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
