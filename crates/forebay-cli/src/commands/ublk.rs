//! `forebay ublk`: existing block devices, without a daemon.

use forebay_admin::MessageId;
use std::path::{Path, PathBuf};

use forebay_pool::MayWait;
use forebay_pool::ublk_found::{self, FoundDevice, NotRemoved};

use crate::failure::Failure;
use crate::screen;

/// Commands on block devices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the block devices of all volumes, including those that wait for their daemon
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the name of a block device below /dev/forebay: for udev, which creates a link with it
    #[command(hide = true)]
    Name {
        /// The device, for instance /dev/ublkb0
        device: PathBuf,
    },
    /// Remove a block device that no daemon will serve again
    #[command(after_help = "\
A device that is in use stays when its daemon ends, and its users wait. The next daemon that serves the
volume takes it over. See forebay help ublk.")]
    Remove {
        /// Its name below /dev/forebay, or its path
        name: String,
        /// Also if it is mounted or open: its users get I/O errors
        #[arg(long)]
        force: bool,
    },
}

/// Executes a command.
pub(crate) fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List { json } => list(*json),
        Command::Name { device } => name(device),
        Command::Remove { name, force } => remove(name, *force),
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let devices =
        ublk_found::devices(&MayWait::here()).map_err(|why| Failure::new(MessageId::CliSystem, why))?;
    if json {
        let one = |found: &FoundDevice| {
            serde_json::json!({
                "device": node(found), "name": found.name, "state": found.words(), "server_pid": found.server_pid,
            })
        };
        return screen::print_json(&devices.iter().map(one).collect());
    }
    if devices.is_empty() {
        return screen::print("no block devices\n");
    }
    let mut table = screen::table(&["name", "device", "state"], &[]);
    for found in &devices {
        table.add_row([found.name.clone().unwrap_or_default(), node(found), found.words()]);
    }
    screen::print(&format!("{table}\n"))
}

fn name(device: &Path) -> Result<(), Failure> {
    let name = ublk_found::name_at(device);
    let name = name.ok_or_else(|| {
        Failure::new(
            MessageId::UblkNotOurs,
            format!("{} is not a name of a Forebay device", device.display()),
        )
    })?;
    screen::print(&format!("{name}\n"))
}

fn remove(name: &str, force: bool) -> Result<(), Failure> {
    let removed = ublk_found::remove(&MayWait::here(), name, force).map_err(|error| {
        let hint = match &error {
            NotRemoved::Unknown(_) => "`forebay ublk list` shows the existing ones",
            NotRemoved::Served { .. } => "detach its volume: forebay volume detach",
            NotRemoved::Used(_) => {
                "unmount it first, or start its daemon; with --force its users meet I/O errors"
            }
            NotRemoved::Failed(_) => "",
        };
        let failure = Failure::new(MessageId::UblkRemoval, format!("cannot remove {name}: {error}"));
        if hint.is_empty() { failure } else { failure.hint(hint) }
    })?;
    screen::print(&format!("{} is removed\n", node(&removed)))
}

fn node(found: &FoundDevice) -> String {
    format!("/dev/ublkb{}", found.number)
}
