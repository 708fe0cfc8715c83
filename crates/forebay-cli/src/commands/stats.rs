//! `forebay stats`: what a running volume has done and how it is, from its admin socket.
//!
//! The daemon gives JSON, Prometheus' and FlashCache's text; what people read is made here of the JSON: `table` shows
//! everything once, `rows` one line for each interval.

mod rows;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_export::size::parse_duration;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::screen;

/// Options of `forebay stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A volume can be asked if it was started with `forebay run ... --admin SOCKET`. A volume given by name is looked for at
$XDG_RUNTIME_DIR/forebay/NAME.sock and /run/forebay/NAME.sock.
Examples:
  forebay stats /run/forebay/db.sock
  forebay stats db --interval 2s
  forebay stats db --format flashcache
  forebay stats --admin /run/forebay/db.sock --format json")]
pub(crate) struct Options {
    /// Admin socket (anything with a slash), or name of the volume
    #[arg(value_name = "SOCKET or VOLUME", required_unless_present = "admin")]
    target: Option<String>,
    /// Admin socket
    #[arg(long, value_name = "SOCKET")]
    admin: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Go on, with what happened in each interval (1s, 500ms; a bare number means seconds)
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
}

/// Forms of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// One object.
    Json,
    /// FlashCache's names, as in its files under /proc.
    Flashcache,
    /// Text that Prometheus reads.
    Prometheus,
}

fn interval(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u32>() {
        Ok(seconds) => Duration::from_secs(seconds.into()),
        Err(_) => parse_duration(text).map_err(|error| error.to_string())?,
    };
    if duration < Duration::from_millis(10) { Err("at least 10ms".into()) } else { Ok(duration) }
}

/// Prints statistics, once or again and again.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let socket = socket_of(options)?;
    let format = if options.json { Format::Json } else { options.format };
    let ask = || match format {
        Format::Prometheus => text(&socket, "/metrics", options),
        Format::Flashcache => text(&socket, "/v1/stats/flashcache", options),
        Format::Table | Format::Json => statistics(&socket, options).map(Answer::Object),
    };
    let mut before: Option<(Instant, Value)> = None;
    let mut lines = 0_u64;
    loop {
        let now = Instant::now();
        match (ask()?, format, options.interval) {
            (Answer::Text(text), ..) => screen::print(&text)?,
            (Answer::Object(object), Format::Table, None) => screen::print(&table::text(&object))?,
            (Answer::Object(object), Format::Table, Some(_)) => {
                if let Some((then, old)) = &before {
                    let heading = lines.is_multiple_of(20);
                    screen::print(&rows::line(heading, old, &object, now.duration_since(*then)))?;
                    lines += 1;
                }
                before = Some((now, object));
            }
            (Answer::Object(object), _, Some(_)) => screen::print(&format!("{object}\n"))?,
            (Answer::Object(object), ..) => screen::print_json(&object)?,
        }
        let Some(interval) = options.interval else { return Ok(()) };
        std::thread::sleep(interval.saturating_sub(now.elapsed()));
    }
}

enum Answer {
    Text(String),
    Object(Value),
}

/// Statistics that are printed as they come.
fn text(socket: &Path, path: &str, options: &Options) -> Result<Answer, Failure> {
    if options.admin.is_some() && options.target.is_some() {
        statistics(socket, options)?; // is it the volume that was asked for?
    }
    Client::new(socket).text(path).map(Answer::Text)
}

/// The statistics that a daemon gives on its admin socket.
pub(crate) fn statistics_of(socket: &Path) -> Result<Value, Failure> {
    Client::new(socket).get("/v1/stats")
}

/// The statistics of the volume, which is the one that was asked for.
fn statistics(socket: &Path, options: &Options) -> Result<Value, Failure> {
    let object = statistics_of(socket)?;
    if let (Some(_), Some(name)) = (&options.admin, &options.target) {
        let serves = object["volume"].as_str().unwrap_or_default();
        if !name.contains('/') && serves != name {
            let what = format!("{}: serves volume \"{serves}\", not \"{name}\"", socket.display());
            return Err(Failure::new(what).hint("leave the name out, or give the socket of that volume"));
        }
    }
    Ok(object)
}

fn socket_of(options: &Options) -> Result<PathBuf, Failure> {
    if let Some(socket) = &options.admin {
        return Ok(socket.clone());
    }
    let target = options.target.as_deref().unwrap_or_default();
    if target.contains('/') || Path::new(target).exists() {
        return Ok(target.into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folders = runtime.into_iter().chain([PathBuf::from("/run")]);
    let places: Vec<PathBuf> =
        folders.map(|folder| folder.join("forebay").join(format!("{target}.sock"))).collect();
    if let Some(found) = places.iter().find(|place| place.exists()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(Failure::new(format!("volume {target}: no admin socket at {}", looked.join(" nor ")))
        .hint("start the volume with --admin SOCKET, and give that path here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_duration_or_seconds() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(interval("0").is_err() && interval("often").is_err());
    }
}
