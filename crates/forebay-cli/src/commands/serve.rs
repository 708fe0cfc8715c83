//! `forebay serve`: the daemon.

use std::path::{Path, PathBuf};

use forebay_daemon::ServeOptions;

use crate::failure::Failure;

/// Options of `forebay serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
SIGINT or SIGTERM stops it in an orderly way; SIGHUP, or `forebay reload`, reads the configuration again.
Examples:
  forebay serve
  forebay serve --config /srv/forebay.toml --check")]
pub(crate) struct Options {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = super::config::DEFAULT_FILE)]
    config: PathBuf,
    /// Only say whether the file can be used
    #[arg(long)]
    check: bool,
}

/// Serves until a signal comes.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.check { super::config::check(&options.config, false) } else { start(&options.config) }
}

fn start(config: &Path) -> Result<(), Failure> {
    super::config::check(config, false)?;
    let options = ServeOptions { config: config.to_owned() };
    super::run::ended(forebay_daemon::serve(&options, &mut |event| eprintln!("forebay: {event}")))
}
