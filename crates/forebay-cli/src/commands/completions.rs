//! `forebay completions SHELL`.

use clap_complete::Shell;

use crate::failure::Failure;
use crate::screen;

/// Options of `forebay completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: forebay completions bash > ~/.local/share/bash-completion/completions/forebay"
)]
pub(crate) struct Options {
    /// The shell to complete for
    shell: Shell,
}

/// Prints the script.
pub(crate) fn execute(options: &Options, whole: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, whole, "forebay", &mut script);
    screen::print(&String::from_utf8_lossy(&script))
}
