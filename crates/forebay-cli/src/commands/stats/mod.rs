//! `forebay stats`: statistics and state of a running volume, from the admin socket.
//!
//! The daemon provides JSON, and the text of Prometheus and FlashCache; this module formats the
//! JSON for display: `summary` shows the most important figures, `table` everything (`--all`),
//! `rows` one line for each interval. `textfile` updates a file of metrics.

mod rows;
mod summary;
mod table;
mod textfile;

use clap_complete::engine::ArgValueCompleter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_admin::{MessageId, VolumeInfo};
use serde_json::Value;

use crate::client::{self, Client};
use crate::complete;
use crate::failure::Failure;
use crate::screen::{self, Width};

/// Options of `forebay stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The volume may be left out if there is only one. Instead of it the admin socket may be given, as with --admin.
Examples:
  forebay stats db
  forebay stats db --all
  forebay stats db --interval 2s
  forebay stats db --format flashcache
  forebay stats /run/forebay/admin.sock --format json
  forebay stats --textfile /var/lib/prometheus/node-exporter/forebay.prom --interval 15s")]
pub(crate) struct Options {
    /// Volume, or the admin socket (anything with a slash)
    #[arg(value_name = "VOLUME or SOCKET", add = ArgValueCompleter::new(complete::volumes))]
    target: Option<String>,
    /// Admin socket of the daemon
    #[arg(long, value_name = "SOCKET", env = "FOREBAY_ADMIN", hide_env_values = true)]
    admin: Option<PathBuf>,
    /// Print also tables of all rates, latencies, ages and devices
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    all: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Continue, with the activity of each interval (1s, 500ms; a bare number means seconds)
    #[arg(long, value_name = "TIME", value_parser = crate::columns::interval)]
    interval: Option<Duration>,
    /// Write the metrics of all volumes into a file *.prom of node_exporter's textfile collector.
    /// If no daemon answers, the file contains forebay_up 0
    #[arg(long, value_name = "FILE", value_parser = textfile::file, conflicts_with_all = ["all", "format", "json"])]
    textfile: Option<PathBuf>,
}

/// Output formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Format {
    /// Text for display.
    Table,
    /// One JSON object.
    Json,
    /// FlashCache's names, as in its files under /proc.
    Flashcache,
    /// Text for Prometheus.
    Prometheus,
}

/// Prints statistics, once or periodically.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let (client, volume) = place(options);
    if let Some(path) = &options.textfile {
        return keep_up_to_date(&client, volume.as_deref(), path, options.interval);
    }
    let format = if options.json { Format::Json } else { options.format };
    let volume = match format {
        Format::Prometheus => String::new(),
        _ => volume.map_or_else(|| only_volume(&client), Ok)?,
    };
    let path = super::volume::path(&volume, "/stats");
    let ask = || match format {
        Format::Prometheus => client.text("/metrics").map(Answer::Text),
        Format::Flashcache => client.text(&format!("{path}?format=flashcache")).map(Answer::Text),
        Format::Table | Format::Json => client.get(&path).map(Answer::Object),
    };
    let mut before: Option<(Instant, Value)> = None;
    let (mut lines, mut is_first) = (0_u64, true);
    loop {
        let now = Instant::now();
        let answer = if is_first { ask() } else { client.watch(ask) };
        is_first = false;
        match (answer?, format, options.interval) {
            (Answer::Text(text), ..) => screen::print_watched(&text)?,
            (Answer::Object(object), Format::Table, None) => {
                screen::print(&text(&object, options.all, Width::of_stdout()))?;
            }
            (Answer::Object(object), Format::Table, Some(_)) => {
                if let Some((then, old)) = &before {
                    let heading = lines.is_multiple_of(20);
                    let (took, width) = (now.duration_since(*then), Width::of_stdout());
                    screen::print_watched(&rows::line(heading, (old, &object), took, width))?;
                    lines += 1;
                }
                before = Some((now, object));
            }
            (Answer::Object(object), _, Some(_)) => screen::print_watched(&format!("{object}\n"))?,
            (Answer::Object(object), ..) => screen::print_json(&object)?,
        }
        let Some(interval) = options.interval else { return Ok(()) };
        std::thread::sleep(interval.saturating_sub(now.elapsed()));
    }
}

/// Writes a file of metrics, once or periodically. If no daemon answers, writes the file as well,
/// and reports the reason: as a failure, or, if periodic, once.
fn keep_up_to_date(
    client: &Client,
    volume: Option<&str>,
    path: &Path,
    interval: Option<Duration>,
) -> Result<(), Failure> {
    if let Some(volume) = volume {
        let hint = format!("leave {volume} out");
        return Err(Failure::usage(MessageId::CliUsage, "metrics are of all volumes").hint(hint));
    }
    let mut is_silent = false;
    loop {
        let now = Instant::now();
        let silent = textfile::write(client, path)?;
        let Some(interval) = interval else { return silent.map_or(Ok(()), Err) };
        // Only once: a wrong socket looks like a daemon that is down.
        if let Some(failure) = silent.as_ref().filter(|_| !is_silent) {
            failure.report();
        }
        is_silent = silent.is_some();
        std::thread::sleep(interval.saturating_sub(now.elapsed()));
    }
}

/// Returns ten lines, followed by tables if `all`.
pub(super) fn text(object: &Value, all: bool, width: Width) -> String {
    let tables = if all { table::text(object, width) } else { String::new() };
    summary::text(object, width) + &tables
}

/// Returns the first line of a watch in which all of this happened in a second.
#[cfg(test)]
pub(super) fn interval_example(object: &Value, width: Width) -> String {
    rows::line(true, (&Value::Null, object), Duration::from_secs(1), width)
}

enum Answer {
    Text(String),
    Object(Value),
}

/// Returns the statistics of the only volume of a daemon.
pub(crate) fn statistics_of(socket: &Path) -> Result<Value, Failure> {
    let client = Client::new(socket);
    let volume = only_volume(&client)?;
    client.get(&super::volume::path(&volume, "/stats"))
}

/// Returns the client and the requested volume. No name has a slash, so an argument with a slash is
/// a socket even if the environment names another.
fn place(options: &Options) -> (Client, Option<String>) {
    match &options.target {
        Some(socket) if socket.contains('/') => (Client::new(Path::new(socket)), None),
        volume => {
            let socket = options.admin.as_deref().unwrap_or(Path::new(client::DEFAULT_SOCKET));
            (Client::new(socket), volume.clone())
        }
    }
}

/// Returns the name of the volume, if there is exactly one.
fn only_volume(client: &Client) -> Result<String, Failure> {
    let volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
    match &volumes[..] {
        [only] => Ok(only.name.clone()),
        [] => Err(Failure::new(MessageId::CliNoVolume, "there is no volume")
            .hint("to attach one: forebay volume attach")),
        several => {
            let names: Vec<&str> = several.iter().map(|volume| volume.name.as_str()).collect();
            let hint = format!("there are: {}", names.join(", "));
            Err(Failure::usage(MessageId::CliUsage, "of which volume?").hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_with_slash_is_the_socket() {
        let asked = |target: &str, admin: Option<&str>| {
            let (target, admin) = (Some(target.to_owned()), admin.map(PathBuf::from));
            let (format, textfile) = (Format::Table, None);
            place(&Options { target, admin, all: false, format, json: false, interval: None, textfile })
        };
        let (client, volume) = asked("/run/a.sock", Some("/run/b.sock"));
        assert_eq!((format!("{client:?}").contains("/run/a.sock"), volume), (true, None));
        let (client, volume) = asked("db", Some("/run/b.sock"));
        assert_eq!((format!("{client:?}").contains("/run/b.sock"), volume), (true, Some("db".into())));
        assert!(format!("{:?}", asked("db", None)).contains(client::DEFAULT_SOCKET));
    }
}
