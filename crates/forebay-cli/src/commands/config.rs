//! `forebay config`: the configuration file, without a daemon.

use crate::message;
use crate::message::Message;
use forebay_admin::MessageId;
use forebay_admin::events::Severity;
use forebay_config::Report;
use std::path::{Path, PathBuf};

use forebay_config::DaemonConfig;

use crate::failure::{Failure, system};
use crate::screen::{self, Paint};

/// Default path of the configuration of `forebay serve`.
pub(super) const DEFAULT_FILE: &str = "/etc/forebay/forebay.toml";

/// Hint for a missing file.
const MAKE_ONE: &str = "`forebay config example` prints a file with every key";

/// Commands of `forebay config`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Report all errors in a configuration file
    Check(Check),
    /// Print the JSON schema of the file, for editors
    Schema,
    /// Print a file with every key, its default and its effect
    Example,
    /// Print the admin socket that a configuration file names, for scripts: pass it as --admin
    Socket(Socket),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the file can be used, 1 it cannot. Warnings do not change the exit code."
)]
pub(crate) struct Check {
    /// The file
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// Print the errors as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Socket {
    /// The file
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
}

/// Executes a command.
pub(crate) fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Check(options) => check(&options.file, options.json),
        Command::Schema => screen::print(&forebay_config::schema::text()),
        Command::Example => screen::print(&forebay_config::docs::example()),
        Command::Socket(options) => {
            screen::print(&format!("{}\n", daemon(&options.file)?.admin_socket.display()))
        }
    }
}

/// Checks a file: errors go to stderr with the lines of the file, or to stdout as JSON.
///
/// # Errors
/// The file cannot be read or used.
pub(super) fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let text = read(file)?;
    let (report, fine) = match forebay_config::parse(file, &text) {
        Ok(checked) => (checked.warnings, true),
        Err(report) => (report, false),
    };
    if json {
        screen::print_json(&as_json(&report))?;
    } else if fine && report.is_empty() {
        screen::print(&format!("{}: no errors\n", file.display()))?;
    } else {
        tell(file, &report);
    }
    if fine {
        return Ok(());
    }
    Err(Failure::new(MessageId::ConfigWrong, format!("{}: cannot be used", file.display())).hint(MAKE_ONE))
}

/// Reports the errors of a file: with its lines on a terminal, each on one line for scripts.
fn tell(file: &Path, report: &Report) {
    if !message::is_json() {
        let text = report.render(Paint::for_stderr().is_on());
        message::say(MessageId::ConfigWrong, "", || text);
        return;
    }
    for found in report.diagnostics() {
        let (line, column) = report.position(&found.span);
        let severity = match found.severity {
            forebay_config::Severity::Error => Severity::Error,
            forebay_config::Severity::Warning => Severity::Warning,
        };
        let what = format!("{}:{line}:{column}: {}", file.display(), found.message);
        let hints: Vec<&str> = [found.label.as_str(), found.help.as_str()]
            .into_iter()
            .filter(|words| !words.is_empty())
            .collect();
        Message::new(severity, found.id.name(), &what).hint(&hints.join("; ")).write(String::new);
    }
}

/// Returns the state directory that a file names.
///
/// # Errors
/// The file cannot be read or used.
pub(super) fn state_dir(file: &Path) -> Result<PathBuf, Failure> {
    let hint = "`forebay config check FILE` lists its errors; --state-dir DIR names the folder itself";
    daemon(file).map(|daemon| daemon.state_dir).map_err(|failure| failure.hint(hint))
}

/// Returns the daemon's section.
fn daemon(file: &Path) -> Result<DaemonConfig, Failure> {
    let text = read(file)?;
    let checked = forebay_config::parse(file, &text).map_err(|_| {
        Failure::new(
            MessageId::ConfigWrong,
            format!("{}: cannot be used, so its settings of the daemon are unknown", file.display()),
        )
        .hint("`forebay config check FILE` lists its errors")
    })?;
    Ok(checked.config.daemon)
}

fn read(file: &Path) -> Result<String, Failure> {
    let found = std::fs::metadata(file).map_err(system(file.display()));
    let length = found.map_err(|failure| failure.hint(MAKE_ONE))?.len();
    if length > forebay_config::file::BYTES_MAX as u64 {
        return Err(Failure::new(
            MessageId::ConfigLimit,
            format!("{}: {length} bytes are too many for a configuration", file.display()),
        ));
    }
    let text = String::from_utf8(std::fs::read(file).map_err(system(file.display()))?);
    text.map_err(|_| {
        Failure::new(MessageId::ConfigSyntax, format!("{}: it is not text (UTF-8)", file.display()))
            .hint(MAKE_ONE)
    })
}

fn as_json(report: &forebay_config::Report) -> serde_json::Value {
    let all = report.diagnostics().iter().map(|diagnostic| {
        let (line, column) = report.position(&diagnostic.span);
        let error = diagnostic.severity == forebay_config::Severity::Error;
        serde_json::json!({
            "severity": if error { "error" } else { "warning" },
            "line": line,
            "column": column,
            "message": diagnostic.message,
            "help": diagnostic.help,
        })
    });
    serde_json::json!({ "errors": report.errors(), "findings": all.collect::<Vec<_>>() })
}
