//! `forebay run`: one volume in the foreground.

use forebay_admin::MessageId;
use std::path::PathBuf;

use forebay_config::CacheSpec;
use forebay_daemon::{RunEvent, RunOptions};
use forebay_export::uri::{BackingUri, ExportUri};
use forebay_format::checkpoint::Mode;
use forebay_io::{DeviceModel, EnginePreference};
use forebay_pool::{PoolEvent, RunError};

use super::pool::Taking;
use crate::failure::Failure;
use crate::log;
use crate::screen;

const EXAMPLE: &str = "\
A missing cache file is created with the given size. `ready: URI` on stdout reports that clients can connect.
SIGINT, SIGTERM or a closed terminal (SIGHUP) stops it in an orderly way; dirty data stays in the cache, and the
next start finds it there. Another such signal is ignored for 5 s; after that it ends the command at once.
Example:
  forebay run --backing /dev/sdb --cache /dev/nvme0n1p4 --export 'nbd+unix:///db?socket=/run/forebay.sock'";

/// Options of `forebay run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE, after_long_help = long_help())]
pub(crate) struct Options {
    /// The backing store: a file (file:/srv/disk.img), a block device (/dev/sdb) or an export of an
    /// NBD server (nbd+unix:///db?socket=/run/store.sock, nbd://host:port/db)
    #[arg(long, value_name = "URI")]
    backing: BackingUri,
    /// The cache device: a file or a block device, and the size to create a new file with
    /// (flash.img:10GiB). Give two with --set mirror=on
    #[arg(long = "cache", value_name = "PATH[:SIZE]", required = true)]
    caches: Vec<CacheSpec>,
    /// Export for clients: nbd+unix:///name?socket=/path, nbd://host:port/name, fuse:/path or
    /// ublk:NAME; may be repeated
    #[arg(long = "export", value_name = "URI", required = true)]
    exports: Vec<ExportUri>,
    /// Mode of the volume: writeback, writethrough, writearound, writeonly or passthrough
    #[arg(long, value_name = "MODE", default_value = "writeback", value_parser = mode)]
    mode: Mode,
    /// Slow the backing store down to this device: hdd-7200, or card-d or card-t, full flash cards
    /// of 2010; card-d:5 has a fifth of its chips
    #[arg(long, value_name = "MODEL")]
    emulate: Option<DeviceModel>,
    /// The same for the cache device
    #[arg(long, value_name = "MODEL")]
    emulate_cache: Option<DeviceModel>,
    /// Change a setting; may be repeated. `--help` lists them
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Answer `forebay stats` on this Unix socket
    #[arg(long, value_name = "SOCKET")]
    admin: Option<PathBuf>,
    /// How operations are submitted to the kernel: auto, uring or psync
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    io: EnginePreference,
    /// Create a new cache if the recorded one is missing, and give that one up: it is refused if it
    /// returns
    #[arg(long)]
    new_cache: bool,
    #[command(flatten)]
    taking: Taking,
}

/// Serves the volume until a signal stops it.
pub(crate) fn execute(options: Options) -> Result<(), Failure> {
    let options = RunOptions {
        backing: options.backing,
        caches: options.caches,
        exports: options.exports,
        mode: options.mode,
        emulate: options.emulate,
        emulate_cache: options.emulate_cache,
        settings: options.settings.iter().map(|text| setting(text)).collect::<Result<_, _>>()?,
        admin: options.admin,
        io: options.io,
        new_cache: options.new_cache,
        taking: options.taking.into(),
    };
    let mut said = Ok(());
    let result = forebay_daemon::run(options, &mut |event| match event {
        RunEvent::Pool { event: PoolEvent::Ready { export, .. }, .. } => {
            let line = screen::print(&format!("ready: {export}\n"));
            if said.is_ok() {
                said = line;
            }
        }
        event => log::write(&event),
    });
    ended(result).and(said)
}

/// Converts the result of a daemon.
pub(super) fn ended(result: Result<(), RunError>) -> Result<(), Failure> {
    result.map_err(|error| match error {
        RunError::Usage { id, what } => {
            Failure::usage(id, what).hint("`forebay run --help` shows how it is written")
        }
        failed => failed.into(),
    })
}

/// Returns the settings, from the daemon's own list.
fn long_help() -> String {
    let mut text = String::from("Settings (--set KEY=VALUE):\n");
    for setting in forebay_daemon::settings() {
        let forebay_daemon::SettingHelp { key, takes, default, help } = setting;
        text += &format!("  {key:20} {help} [{takes}; default {default}]\n");
    }
    format!("{text}\n{EXAMPLE}")
}

fn setting(text: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err(Failure::usage(MessageId::SettingSyntax, format!("--set {text}: this is not KEY=VALUE"))
            .hint("for example --set dirty_low_pct=20")),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    let names: Vec<&str> = Mode::ALL.iter().map(|mode| mode.name()).collect();
    Mode::from_name(text).ok_or_else(|| format!("there is no such mode; one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_key_and_a_value() {
        assert_eq!(setting("a = b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(setting("a").is_err() && setting("=b").is_err());
    }
}
