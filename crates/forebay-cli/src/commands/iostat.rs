//! `forebay iostat`: activity of all pools and volumes, one line for each in every interval.
//!
//! The figures are differences of the counters that `forebay stats` shows. The line of a pool is
//! the sum of its volumes. A volume that cannot be queried keeps its line, so that it does not look
//! idle.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_admin::{MessageId, VolumeInfo, VolumeState};
use serde_json::{Map, Value, json};

use crate::client::{self, Admin, Client};
use crate::columns::{Cell, Column, Columns, interval};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen::{self, Width, harmless, percent};

/// Lines after which the heading is repeated.
const HEADING_EVERY: usize = 40;
/// Minimum and maximum width of the column of names.
const NAME_WIDTH: (usize, usize) = (10, 24);
/// Width of the columns of rank 0 to 4.
const FIGURES_WIDTH: usize = 69;
const LOOK: Duration = Duration::from_millis(50);

const COLUMNS: [Column; 11] = [
    ("reads/s", 9, 0),
    ("writes/s", 9, 0),
    ("read B/s", 11, 3),
    ("write B/s", 11, 4),
    ("hits", 8, 0),
    ("hit wait", 9, 5),
    ("miss wait", 10, 1),
    ("write wait", 11, 2),
    ("queue", 7, 7),
    ("dirty", 10, 6),
    ("destage/s", 11, 8),
];

/// Options of `forebay iostat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without an interval: averages since each pool was opened. With one: figures of each interval, until Ctrl-C or
for so many reports. A wait is the mean time of a request from its arrival to its answer: of reads from the cache (hit)
and from the backing store (miss), and of writes. The queue is the mean number of requests in flight.
Examples:
  forebay iostat
  forebay iostat 5
  forebay iostat 1s 60 --volume db --json")]
pub(crate) struct Options {
    /// Time between two reports (5, 500ms; a bare number means seconds)
    #[arg(value_name = "INTERVAL", value_parser = interval)]
    interval: Option<Duration>,
    /// Number of reports
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only this volume; may be repeated
    #[arg(long, value_name = "NAME", add = clap_complete::engine::ArgValueCompleter::new(crate::complete::volumes))]
    volume: Vec<String>,
    #[command(flatten)]
    admin: Admin,
}

/// Prints reports.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let client = options.admin.client().interruptible(&interrupt);
    let Some(interval) = options.interval else {
        let report = Report::since_open(&Sample::take(&client, &options.volume)?);
        return show(&report, options.admin.json, &mut { HEADING_EVERY });
    };
    let mut before = Sample::take(&client, &options.volume)?;
    let (mut made, mut lines) = (0, HEADING_EVERY);
    while options.count.is_none_or(|count| made < count) {
        while before.at.elapsed() < interval {
            std::thread::sleep(LOOK.min(interval.saturating_sub(before.at.elapsed())));
            if interrupt.came() {
                return Ok(());
            }
        }
        let now = Sample::take(&client, &options.volume);
        if interrupt.came() {
            return Ok(());
        }
        let now = now?;
        show(&Report::between(&before, &now), options.admin.json, &mut lines)?;
        (before, made) = (now, made + 1);
    }
    Ok(())
}

fn show(report: &Report, as_json: bool, lines: &mut usize) -> Result<(), Failure> {
    if as_json {
        return screen::print_watched(&format!("{}\n", report.json()));
    }
    let heading = *lines + report.rows() > HEADING_EVERY;
    *lines = if heading { 0 } else { *lines } + report.rows();
    screen::print_watched(&report.text(heading, Width::of_stdout()))
}

/// Counters of one volume at one moment.
struct Counters {
    pool: String,
    /// The output of `forebay stats --json`; `None` if the volume is not served, or does not
    /// answer.
    object: Option<Value>,
}

impl Counters {
    fn get(&self, name: &str) -> u64 {
        self.object.as_ref().and_then(|object| object[name].as_u64()).unwrap_or(0)
    }

    /// Returns the number of requests on this path, and the sum of their latencies in nanoseconds.
    fn way(&self, way: &str) -> (u64, u64) {
        let total = self.object.as_ref().map(|object| &object["latency"][way]["total"]);
        let count = total.and_then(|total| total["count"].as_u64()).unwrap_or(0);
        let mean_us = total.and_then(|total| total["mean_us"].as_f64()).unwrap_or(0.0);
        (count, (mean_us * 1e3 * count as f64) as u64)
    }
}

/// The counters of all volumes at about one moment.
struct Sample {
    at: Instant,
    volumes: BTreeMap<String, Counters>,
}

impl Sample {
    fn take(client: &Client, wanted: &[String]) -> Result<Self, Failure> {
        let mut volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
        if let Some(unknown) = wanted.iter().find(|name| volumes.iter().all(|volume| volume.name != **name)) {
            let known: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
            return Err(Failure::not_found(MessageId::VolumeUnknown, format!("no volume {unknown}"))
                .hint(format!("there are: {}", known.join(", "))));
        }
        volumes.retain(|volume| wanted.is_empty() || wanted.contains(&volume.name));
        let at = Instant::now();
        let of = |volume: &VolumeInfo| {
            let served = !matches!(volume.state, VolumeState::Absent | VolumeState::Unknown);
            let path = super::volume::path(&volume.name, "/stats");
            // A volume that was just detached, or whose pool hangs, does not end the watch.
            let object = served.then(|| client.get(&path).ok()).flatten();
            (volume.name.clone(), Counters { pool: volume.pool.clone(), object })
        };
        Ok(Self { at, volumes: volumes.iter().map(of).collect() })
    }
}

/// Activity of a volume or a pool during an interval.
#[derive(Clone, Copy, Default)]
struct Figures {
    seconds: f64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    hit_blocks: u64,
    miss_blocks: u64,
    hits: (u64, u64),
    misses: (u64, u64),
    write_time_ns: u64,
    busy_ns: u64,
    dirty_blocks: u64,
    destaged_blocks: u64,
}

impl Figures {
    fn between(old: Option<&Counters>, new: &Counters, seconds: f64) -> Self {
        let difference = |name: &str| new.get(name).saturating_sub(old.map_or(0, |old| old.get(name)));
        let way = |way: &str| {
            let ((count, time), (before, time_before)) =
                (new.way(way), old.map_or((0, 0), |old| old.way(way)));
            (count.saturating_sub(before), time.saturating_sub(time_before))
        };
        let times = ["read_time_ns", "write_time_ns", "flush_time_ns"].map(difference);
        Self {
            seconds,
            reads: difference("reads"),
            writes: difference("writes"),
            read_bytes: difference("read_bytes"),
            written_bytes: difference("written_bytes"),
            hit_blocks: difference("read_hit_blocks"),
            miss_blocks: difference("read_miss_blocks"),
            hits: way("read_hit"),
            misses: way("read_miss"),
            write_time_ns: times[1],
            busy_ns: times.iter().sum(),
            dirty_blocks: new.get("dirty_blocks"),
            destaged_blocks: difference("destaged_blocks"),
        }
    }

    /// Adds another volume's activity in the same interval.
    fn add(&mut self, other: &Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.hit_blocks += other.hit_blocks;
        self.miss_blocks += other.miss_blocks;
        self.hits = (self.hits.0 + other.hits.0, self.hits.1 + other.hits.1);
        self.misses = (self.misses.0 + other.misses.0, self.misses.1 + other.misses.1);
        self.write_time_ns += other.write_time_ns;
        self.busy_ns += other.busy_ns;
        self.dirty_blocks += other.dirty_blocks;
        self.destaged_blocks += other.destaged_blocks;
    }

    fn rate(&self, number: u64) -> f64 {
        if self.seconds > 0.0 { number as f64 / self.seconds } else { 0.0 }
    }

    fn queue(&self) -> f64 {
        self.rate(self.busy_ns) / 1e9
    }

    fn cells(&self) -> [Cell; COLUMNS.len()] {
        let mean = |(count, time): (u64, u64)| Cell::nanos(time.checked_div(count));
        let bytes = |number: u64| Cell::bytes(self.rate(number) as u64);
        [
            Cell::count(self.rate(self.reads) as u64),
            Cell::count(self.rate(self.writes) as u64),
            bytes(self.read_bytes),
            bytes(self.written_bytes),
            Cell::from(percent(self.hit_blocks, self.hit_blocks + self.miss_blocks)),
            mean(self.hits),
            mean(self.misses),
            mean((self.writes, self.write_time_ns)),
            Cell::from(format!("{:.1}", self.queue())),
            Cell::bytes(self.dirty_blocks.saturating_mul(4096)),
            bytes(self.destaged_blocks.saturating_mul(4096)),
        ]
    }

    fn json(&self) -> Value {
        let mean = |(count, time): (u64, u64)| (count > 0).then(|| time as f64 / 1e3 / count as f64);
        let looked = self.hit_blocks + self.miss_blocks;
        json!({
            "reads_per_s": self.rate(self.reads),
            "writes_per_s": self.rate(self.writes),
            "read_bytes_per_s": self.rate(self.read_bytes),
            "written_bytes_per_s": self.rate(self.written_bytes),
            "read_hit_ratio": (looked > 0).then(|| self.hit_blocks as f64 / looked as f64),
            "read_hit_wait_us": mean(self.hits),
            "read_miss_wait_us": mean(self.misses),
            "write_wait_us": mean((self.writes, self.write_time_ns)),
            "queue": self.queue(),
            "dirty_bytes": self.dirty_blocks.saturating_mul(4096),
            "destaged_bytes_per_s": self.rate(self.destaged_blocks.saturating_mul(4096)),
        })
    }
}

/// All lines of one interval: by pool, and the volumes of each. Without figures: it could not be
/// queried.
struct Report {
    pools: BTreeMap<String, BTreeMap<String, Option<Figures>>>,
}

impl Report {
    fn since_open(now: &Sample) -> Self {
        Self::of(now, |_, new| Some((None, new.get("uptime_ns") as f64 / 1e9)))
    }

    fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        Self::of(now, |name, new| {
            let old = before.volumes.get(name).filter(|old| old.object.is_some() && old.pool == new.pool)?;
            // A reopened pool counts from 0.
            let is_anew = new.get("uptime_ns") < old.get("uptime_ns");
            Some(((!is_anew).then_some(old), seconds))
        })
    }

    fn of<'a>(now: &Sample, before: impl Fn(&str, &Counters) -> Option<(Option<&'a Counters>, f64)>) -> Self {
        let mut pools: BTreeMap<String, BTreeMap<String, Option<Figures>>> = BTreeMap::new();
        for (name, new) in &now.volumes {
            let known = new.object.as_ref().and_then(|_| before(name, new));
            let figures = known.map(|(old, seconds)| Figures::between(old, new, seconds));
            pools.entry(new.pool.clone()).or_default().insert(name.clone(), figures);
        }
        Self { pools }
    }

    fn rows(&self) -> usize {
        self.pools.values().map(|volumes| 1 + volumes.len()).sum()
    }

    fn total(volumes: &BTreeMap<String, Option<Figures>>) -> Option<Figures> {
        let mut known = volumes.values().flatten();
        let mut total = *known.next()?;
        known.for_each(|figures| total.add(figures));
        Some(total)
    }

    fn text(&self, heading: bool, width: Width) -> String {
        let names = self.pools.iter().flat_map(|(pool, volumes)| {
            std::iter::once(pool.chars().count()).chain(volumes.keys().map(|name| name.chars().count() + 2))
        });
        let room =
            width.columns().map_or(NAME_WIDTH.1, |most| usize::from(most).saturating_sub(FIGURES_WIDTH));
        let most = names.max().unwrap_or(0).clamp(NAME_WIDTH.0, NAME_WIDTH.1).min(room.max(NAME_WIDTH.0));
        let rest =
            width.columns().map_or(Width::unlimited(), |all| Width::exactly(all.saturating_sub(most as u16)));
        let columns = Columns::fitting(&COLUMNS, rest);
        let mut text = String::new();
        if heading {
            let lines = columns.heading();
            let (above, names) = lines.trim_end().rsplit_once('\n').unwrap_or(("", lines.trim_end()));
            text += above;
            text += if above.is_empty() { "" } else { "\n" };
            text += &format!("{:<most$}{names}\n", "pool");
        }
        for (pool, volumes) in &self.pools {
            text += &line(&columns, pool, Self::total(volumes), most);
            for (name, figures) in volumes {
                text += &line(&columns, &format!("  {name}"), *figures, most);
            }
        }
        text
    }

    fn json(&self) -> Value {
        let figures = |figures: &Option<Figures>| figures.map_or(Value::Null, |figures| figures.json());
        let (mut pools, mut all) = (Map::new(), Map::new());
        for (pool, volumes) in &self.pools {
            pools.insert(pool.clone(), figures(&Self::total(volumes)));
            all.extend(volumes.iter().map(|(name, of)| (name.clone(), figures(of))));
        }
        let time_unix_s = screen::now_unix_s();
        json!({ "time_unix_s": time_unix_s, "pools": pools, "volumes": all })
    }
}

fn line(columns: &Columns, name: &str, figures: Option<Figures>, most: usize) -> String {
    let name = harmless(name);
    let cut: String = match name.chars().count() > most {
        true => name.chars().take(most - 1).chain(['…']).collect(),
        false => name,
    };
    match figures {
        Some(figures) => format!("{cut:<most$}{}", columns.line(&figures.cells())),
        None => format!("{cut:<most$}  not served, or new\n"),
    }
}

/// Returns a report of two busy volumes of one pool, and of one that is not served.
#[cfg(test)]
pub(super) fn example(width: Width) -> String {
    let figures = |reads: u64, writes: u64, hits: u64| Figures {
        seconds: 5.0,
        reads,
        writes,
        read_bytes: reads * 8192,
        written_bytes: writes * 16384,
        hit_blocks: hits * 2,
        miss_blocks: (reads - hits) * 2,
        hits: (hits, hits * 140_000),
        misses: (reads - hits, (reads - hits) * 8_400_000),
        write_time_ns: writes * 210_000,
        busy_ns: hits * 140_000 + (reads - hits) * 8_400_000 + writes * 210_000,
        dirty_blocks: writes * 3,
        destaged_blocks: writes / 2,
    };
    let database = Some(figures(61_000, 9_500, 58_200));
    let volumes = [("database-primary", database), ("vm-images", Some(figures(700, 4_100, 90)))];
    let fast = volumes.map(|(name, figures)| (name.to_owned(), figures));
    let spare = [("mail".to_owned(), None)];
    let pools = [("fast".to_owned(), fast.into()), ("spare".to_owned(), spare.into())];
    Report { pools: pools.into() }.text(true, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(pool: &str, object: Value) -> Counters {
        Counters { pool: pool.into(), object: Some(object) }
    }

    fn sample(at: Instant, volumes: Vec<(&str, Counters)>) -> Sample {
        let volumes = volumes.into_iter().map(|(name, counters)| (name.to_owned(), counters)).collect();
        Sample { at, volumes }
    }

    fn of(reads: u64) -> Value {
        let total = json!({ "count": reads, "mean_us": 100.0 });
        json!({
            "uptime_ns": reads * 1_000_000, "reads": reads, "read_bytes": reads * 4096, "read_hit_blocks": reads / 2,
            "read_miss_blocks": reads / 2, "read_time_ns": reads * 100_000, "dirty_blocks": 3,
            "latency": { "read_hit": { "total": total } },
        })
    }

    #[test]
    fn a_pool_adds_up_its_volumes_over_the_interval() {
        let began = Instant::now();
        let two = |reads| vec![("a", counters("fast", of(reads))), ("b", counters("fast", of(2 * reads)))];
        let report =
            Report::between(&sample(began, two(1000)), &sample(began + Duration::from_secs(10), two(3000)));
        let json = report.json();
        assert_eq!(json["volumes"]["a"]["reads_per_s"], 200.0);
        assert_eq!(json["pools"]["fast"]["reads_per_s"], 600.0);
        assert_eq!(json["pools"]["fast"]["read_hit_ratio"], 0.5);
        assert_eq!(json["pools"]["fast"]["read_hit_wait_us"], 100.0);
        assert_eq!(json["pools"]["fast"]["dirty_bytes"], 6 * 4096);
        // 600 reads of 100 µs in a second.
        assert!((json["pools"]["fast"]["queue"].as_f64().unwrap() - 0.06).abs() < 1e-9);
        assert_eq!(json["volumes"]["a"]["write_wait_us"], Value::Null);
        let expected = "\
pool        reads/s writes/s   read B/s  write B/s    hits hit wait miss wait write wait  queue     dirty  destage/s
fast            600        0    2.3 MiB        0 B  50.0 %   100 µs         -          -    0.1  24.0 KiB        0 B
  a             200        0  800.0 KiB        0 B  50.0 %   100 µs         -          -    0.0  12.0 KiB        0 B
  b             400        0    1.6 MiB        0 B  50.0 %   100 µs         -          -    0.0  12.0 KiB        0 B
";
        assert_eq!(report.text(true, Width::unlimited()), expected);
    }

    #[test]
    fn averages_since_a_pool_was_opened_need_no_second_look() {
        let now = sample(Instant::now(), vec![("a", counters("fast", of(5000)))]);
        assert_eq!(Report::since_open(&now).json()["volumes"]["a"]["reads_per_s"], 1000.0);
    }

    #[test]
    fn a_volume_without_an_answer_or_a_past_has_no_figures() {
        let began = Instant::now();
        let silent = Counters { pool: "fast".into(), object: None };
        let before = sample(began, vec![("a", counters("fast", of(1000)))]);
        let now = vec![("a", silent), ("b", counters("fast", of(10)))];
        let report = Report::between(&before, &sample(began + Duration::from_secs(1), now));
        assert_eq!(report.json()["volumes"], json!({ "a": null, "b": null }));
        assert_eq!(report.json()["pools"]["fast"], Value::Null);
        assert_eq!(report.text(false, Width::of(80)).matches("not served").count(), 3);
    }

    #[test]
    fn a_pool_that_was_opened_again_counts_from_nothing() {
        let began = Instant::now();
        let before = sample(began, vec![("a", counters("fast", of(1000)))]);
        let now = sample(began + Duration::from_secs(2), vec![("a", counters("fast", of(500)))]);
        assert_eq!(Report::between(&before, &now).json()["volumes"]["a"]["reads_per_s"], 250.0);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let name = "a-volume-with-a-very-long-name-indeed";
        let now = sample(Instant::now(), vec![(name, counters("fast", of(123_456_789)))]);
        for columns in 40..=160 {
            let text = Report::since_open(&now).text(true, Width::of(columns));
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= usize::from(columns), "{columns}:\n{text}");
        }
    }
}
