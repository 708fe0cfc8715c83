//! `forebay completions SHELL`: the script that has the shell ask this program for words, as
//! `complete` offers them.

use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::failure::{Failure, system};
use crate::screen;

/// What the engine of completions is asked by.
const VARIABLE: &str = "COMPLETE";
/// zsh runs the file of a command's first completion as that completion.
const FIRST_OF_ZSH: &str =
    "\n[ \"$funcstack[1]\" = \"_forebay\" ] && _clap_dynamic_completer_forebay \"$@\"\n";

/// Options of `forebay completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The shell asks forebay for words: volumes, pools, jobs and alarms that the daemon knows, settings and their values.
Example: forebay completions bash > ~/.local/share/bash-completion/completions/forebay")]
pub(crate) struct Options {
    /// The shell to complete for
    shell: Shell,
}

/// Prints the script.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let name = options.shell.to_string();
    let shells = Shells::builtins();
    let shell = shells.completer(&name).ok_or_else(|| Failure::new(format!("{name}: is not supported")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "forebay", "forebay", "forebay", &mut script)
        .map_err(system("completions"))?;
    let more = if options.shell == Shell::Zsh { FIRST_OF_ZSH } else { "" };
    screen::print(&format!("{}{more}", String::from_utf8_lossy(&script)))
}
