//! `forebay reload`: makes the daemon reload its configuration file.

use forebay_admin::{MessageId, ReloadDone};

use crate::client::{self, Admin};
use crate::failure::Failure;
use crate::screen::{self, harmless};

/// Options of `forebay reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 1 if the file is wrong (nothing is changed then) or if something in it needs a detach or a restart.
See also: forebay config check")]
pub(crate) struct Options {
    #[command(flatten)]
    admin: Admin,
}

/// Reloads, and prints the result.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let answer = options.admin.client().post_nothing("/v1/reload")?;
    let done: ReloadDone = client::read(&answer)?;
    if options.admin.json {
        screen::print_json(&answer)?;
    } else if done.changed.is_empty() && done.refused.is_empty() {
        screen::print("nothing has changed in the file\n")?;
    } else {
        let lines: String = done.changed.iter().map(|what| format!("{}\n", harmless(what))).collect();
        screen::print(&lines)?;
    }
    if done.refused.is_empty() {
        return Ok(());
    }
    let refused: Vec<String> = done.refused.iter().map(|what| harmless(what)).collect();
    Err(Failure::new(
        MessageId::CliReloadIncomplete,
        format!("not all changes were applied: {}", refused.join("; ")),
    ))
}
