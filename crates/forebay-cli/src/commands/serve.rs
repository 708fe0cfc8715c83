//! `forebay serve`: the daemon.

use std::path::PathBuf;

use forebay_daemon::ServeOptions;
use forebay_pool::handover::Manager;

use crate::failure::Failure;
use crate::log;

/// Options of `forebay serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
SIGINT or SIGTERM stops it in an orderly way (again within 5 s: ignored; later: it ends at once);
SIGHUP, or `forebay reload`, reads the configuration again;
SIGUSR2, or `forebay upgrade`, lets the program that is installed now take over without an I/O error.
Examples:
  forebay serve
  forebay serve --config /srv/forebay.toml --check")]
pub(crate) struct Options {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = super::config::DEFAULT_FILE)]
    config: PathBuf,
    /// Only report whether the file can be used
    #[arg(long)]
    check: bool,
    /// Create a new cache for this pool if the recorded one is missing, and give that one up; may
    /// be repeated
    #[arg(long, value_name = "POOL")]
    new_cache: Vec<String>,
    /// Take over from the daemon that has started this one; it communicates through standard input
    #[arg(long, hide = true)]
    successor: bool,
}

/// Serves until a signal stops it.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    if options.check { super::config::check(&options.config, false) } else { start(options) }
}

fn start(options: &Options) -> Result<(), Failure> {
    // A successor reports errors to its predecessor, and finds them when it reads the file.
    if !options.successor {
        super::config::check(&options.config, false).inspect_err(|failure| {
            let file = options.config.display();
            tell(&format!("{failure}: forebay config check {file} lists the errors"));
        })?;
    }
    let tells = |failure: &Failure| {
        if !options.successor {
            tell(&failure.to_string());
        }
    };
    serve(options).inspect_err(tells)
}

/// Reports to the service manager why the daemon does not start.
fn tell(why: &str) {
    if let Some(manager) = Manager::from_env() {
        manager.status(why);
    }
}

fn serve(options: &Options) -> Result<(), Failure> {
    let options = ServeOptions {
        config: options.config.clone(),
        new_cache: options.new_cache.clone(),
        successor: options.successor,
    };
    super::run::ended(forebay_daemon::serve(&options, &mut |event| log::write(&event)))
}
