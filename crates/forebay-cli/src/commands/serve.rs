//! `forebay serve`: the daemon.

use std::path::{Path, PathBuf};

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

/// The one place where the daemon is called.
fn start(config: &Path) -> Result<(), Failure> {
    super::config::check(config, false)?;
    Err(Failure::new("this build has no daemon for many volumes yet")
        .hint("`forebay run` serves one volume; the file can be checked with --check"))
}
