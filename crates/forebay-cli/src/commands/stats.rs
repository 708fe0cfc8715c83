//! `forebay stats`: what a running volume has done and how it is, from its admin socket.

mod http;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_export::size::parse_duration;
use serde_json::Value;

use crate::failure::Failure;
use crate::screen::{self, bytes, count, nanos};

/// Options of `forebay stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A volume can be asked if it was started with `forebay run ... --admin SOCKET`. A volume given by name is looked for at
$XDG_RUNTIME_DIR/forebay/NAME.sock and /run/forebay/NAME.sock.
Examples:
  forebay stats /run/forebay/db.sock
  forebay stats db --interval 2s
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
    /// One flat object.
    Json,
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
        Format::Prometheus => http::get(&socket, "/metrics").map(Answer::Text),
        _ => statistics(&socket, options).map(Answer::Object),
    };
    let mut before: Option<(Instant, Value)> = None;
    let mut lines = 0_u64;
    loop {
        let now = Instant::now();
        match (ask()?, format, options.interval) {
            (Answer::Text(text), ..) => screen::print(&text)?,
            (Answer::Object(object), Format::Table, None) => screen::print(&table(&object))?,
            (Answer::Object(object), Format::Table, Some(_)) => {
                if let Some((then, old)) = &before {
                    let heading = lines.is_multiple_of(20);
                    screen::print(&line(heading, old, &object, now.duration_since(*then)))?;
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

/// The statistics that a daemon gives on its admin socket.
pub(crate) fn statistics_of(socket: &Path) -> Result<Value, Failure> {
    let text = http::get(socket, "/v1/stats")?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{}: the answer is not JSON: {error}", socket.display())))
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

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or(0)
}

/// Everything that matters on one screen.
fn table(object: &Value) -> String {
    let view = View(object);
    let mut list = screen::List::new();
    for part in [view.volume(), view.requests(), view.contents(), view.devices()] {
        for (name, value) in part {
            list.add(name, value);
        }
        list.add("", String::new());
    }
    list.to_string().trim_end().to_owned() + "\n"
}

/// Statistics as people read them.
struct View<'a>(&'a Value);

type Lines = Vec<(&'static str, String)>;

impl View<'_> {
    fn n(&self, name: &str) -> u64 {
        number(self.0, name)
    }

    fn text(&self, name: &str) -> String {
        screen::harmless(self.0[name].as_str().unwrap_or("-"))
    }

    fn count(&self, name: &str) -> String {
        count(self.n(name))
    }

    fn bytes(&self, name: &str) -> String {
        bytes(self.n(name))
    }

    fn blocks(&self, name: &str) -> String {
        format!("{} blocks, {}", self.count(name), bytes(self.n(name) * 4096))
    }

    fn mean(&self, name: &str) -> String {
        let nanoseconds = self.0[name].as_f64().map(|microseconds| (microseconds * 1e3) as u64);
        nanoseconds.map_or("-".into(), nanos)
    }

    fn share(&self, part: &str, of: &str) -> String {
        screen::percent(self.n(part), self.n(of))
    }

    fn volume(&self) -> Lines {
        let (name, size, mode) = (self.text("volume"), self.bytes("size_bytes"), self.text("mode"));
        let (up, clients) = (screen::uptime(self.n("uptime_ns") / 1_000_000_000), self.count("connections"));
        let (memory, index) = (self.bytes("rss_bytes"), self.bytes("index_memory_bytes"));
        vec![
            ("volume", format!("{name}, {size}, {mode}")),
            ("up", format!("{up}, {clients} connections")),
            ("memory", format!("{memory}, of it {index} index; I/O by {}", self.text("io_engine"))),
        ]
    }

    fn requests(&self) -> Lines {
        let line = |count: &str, bytes: &str, mean: &str| {
            format!("{} with {}, {} on average", self.count(count), self.bytes(bytes), self.mean(mean))
        };
        let (flushes, took) = (self.count("flushes"), self.mean("flush_latency_mean_us"));
        vec![
            ("reads", line("reads", "read_bytes", "read_latency_mean_us")),
            ("writes", line("writes", "written_bytes", "write_latency_mean_us")),
            ("flushes", format!("{flushes}, {took} on average")),
            ("discards, zeroes", self.count("zeroes")),
            ("in flight", self.count("requests_in_flight")),
            ("failed", self.count("failed_requests")),
            ("throttled writes", self.count("throttled_writes")),
        ]
    }

    fn contents(&self) -> Lines {
        let looked = self.n("read_hit_blocks") + self.n("read_miss_blocks");
        let hits = screen::percent(self.n("read_hit_blocks"), looked);
        let of_cache = |blocks: &str| {
            format!("{} ({} of the cache)", self.blocks(blocks), self.share(blocks, "capacity_blocks"))
        };
        let (damaged, lost) = (self.count("damaged_blocks"), self.count("lost_blocks"));
        vec![
            ("read hits", format!("{hits} ({} of {} blocks)", self.count("read_hit_blocks"), count(looked))),
            ("cached", of_cache("cached_blocks")),
            ("dirty", of_cache("dirty_blocks")),
            ("damaged, lost", format!("{damaged} found damaged, {lost} lost now")),
            ("free segments", format!("{} of {}", self.count("free_segments"), self.count("segments"))),
        ]
    }

    fn devices(&self) -> Lines {
        let line = |count: &str, bytes: &str| format!("{} with {}", self.count(count), self.bytes(bytes));
        let with_flushes = |line: String, flushes: &str| format!("{line}, {} flushes", self.count(flushes));
        let (batches, checkpoints) = (self.count("batches"), self.count("checkpoints"));
        vec![
            ("cache reads", line("cache_reads", "cache_read_bytes")),
            ("cache writes", with_flushes(line("cache_writes", "cache_written_bytes"), "cache_flushes")),
            ("backing reads", line("backing_reads", "backing_read_bytes")),
            (
                "backing writes",
                with_flushes(line("backing_writes", "backing_written_bytes"), "backing_flushes"),
            ),
            ("log", format!("{batches} batches, {checkpoints} checkpoints")),
            ("destaged", self.blocks("destaged_blocks")),
            ("filled", self.blocks("filled_blocks")),
            ("evicted", self.blocks("evicted_blocks")),
            ("relocated", self.blocks("relocated_blocks")),
        ]
    }
}

/// One line of what happened in an interval.
fn line(heading: bool, old: &Value, new: &Value, took: Duration) -> String {
    let difference = |name| number(new, name).saturating_sub(number(old, name));
    let rate = |name| (difference(name) as f64 / took.as_secs_f64()) as u64;
    let mean = |time, operations| match difference(operations) {
        0 => "-".into(),
        operations => nanos(difference(time) / operations),
    };
    let (hits, misses) = (difference("read_hit_blocks"), difference("read_miss_blocks"));
    let mut text = String::new();
    if heading {
        let names = [
            "reads/s",
            "read",
            "hits",
            "writes/s",
            "write",
            "flushes/s",
            "dirty",
            "destage/s",
            "disk r/s",
            "disk w/s",
        ];
        text += &columns(names.map(str::to_owned));
    }
    text + &columns([
        count(rate("reads")),
        mean("read_time_ns", "reads"),
        screen::percent(hits, hits + misses),
        count(rate("writes")),
        mean("write_time_ns", "writes"),
        count(rate("flushes")),
        bytes(number(new, "dirty_blocks") * 4096),
        bytes(rate("destaged_blocks") * 4096),
        count(rate("backing_reads")),
        count(rate("backing_writes")),
    ])
}

fn columns(cells: [String; 10]) -> String {
    let mut text = String::new();
    for cell in cells {
        text += &format!("{cell:>11}");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_interval_shows_rates_and_not_sums() {
        let old = json!({ "reads": 100, "read_time_ns": 0, "read_hit_blocks": 10, "read_miss_blocks": 10 });
        let new = json!({
            "reads": 300, "read_time_ns": 2_000_000, "read_hit_blocks": 13, "read_miss_blocks": 11, "dirty_blocks": 256,
        });
        let text = line(false, &old, &new, Duration::from_secs(2));
        let cells: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(cells[..7], ["100", "10", "µs", "75.0", "%", "0", "-"]);
        assert!(text.contains("1.0 MiB"), "{text}");
    }

    #[test]
    fn numbers_that_are_missing_do_no_harm() {
        assert!(table(&json!({})).contains("reads"));
        assert!(line(true, &json!({}), &json!([]), Duration::ZERO).contains("reads/s"));
    }

    #[test]
    fn an_interval_is_a_duration_or_seconds() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(interval("0").is_err() && interval("often").is_err());
    }
}
