//! `forebay man`: manual pages, one for each command, from the definition of the command line, one
//! of the configuration file, and one for each page of the documentation.

use std::path::{Path, PathBuf};

use clap_mangen::Man;

use crate::failure::{Failure, system};
use crate::screen;

/// Options of `forebay man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: forebay man --dir /usr/local/share/man && man forebay-volume-attach")]
pub(crate) struct Options {
    /// Directory for the directories man1, man5 and man7 of the pages; they are created if missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages.
pub(crate) fn execute(options: &Options, whole: &clap::Command) -> Result<(), Failure> {
    let [commands, files, topics] = ["man1", "man5", "man7"].map(|folder| options.dir.join(folder));
    for folder in [&commands, &files, &topics] {
        std::fs::create_dir_all(folder).map_err(system(folder.display()))?;
    }
    let mut whole = whole.clone();
    whole.build();
    let pages = write(&commands, &whole, "forebay")?;
    let file = files.join("forebay.toml.5");
    let page = forebay_config::manual::page(env!("CARGO_PKG_VERSION"));
    std::fs::write(&file, page).map_err(system(file.display()))?;
    let pages = pages + 1 + super::help::write_manuals(&topics)?;
    screen::print(&format!("{pages} pages in {}\n", options.dir.display()))
}

/// Writes the page of a command and those of its subcommands; returns their number.
fn write(folder: &Path, command: &clap::Command, name: &str) -> Result<usize, Failure> {
    let file = folder.join(format!("{name}.1"));
    let page = page(command, name).map_err(system(file.display()))?;
    std::fs::write(&file, page).map_err(system(file.display()))?;
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    inner
        .map(|inner| write(folder, inner, &format!("{name}-{}", inner.get_name())))
        .sum::<Result<usize, _>>()
        .map(|pages| pages + 1)
}

fn page(command: &clap::Command, name: &str) -> std::io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let command = command.clone().version(version).display_name(name.to_owned());
    let mut page = Vec::new();
    Man::new(command).title(name).source(format!("forebay {version}")).manual("Forebay").render(&mut page)?;
    Ok(page)
}
