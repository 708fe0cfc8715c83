//! `forebay iostat`: activity of all pools and volumes, one line for each in every interval.
//!
//! The figures are differences of the counters that `forebay stats` shows. The line of a pool is
//! the sum of its volumes. A volume that cannot be queried keeps its line, so that it does not look
//! idle.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_admin::{MessageId, PoolInfo, VolumeInfo, VolumeState};
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
        let report = Report::since_open(&Sample::first(&client, &options.volume)?);
        return show(&report, options.admin.json, &mut { HEADING_EVERY });
    };
    let mut before = Sample::first(&client, &options.volume)?;
    let (mut made, mut lines) = (0, HEADING_EVERY);
    while options.count.is_none_or(|count| made < count) {
        while before.at.elapsed() < interval {
            std::thread::sleep(LOOK.min(interval.saturating_sub(before.at.elapsed())));
            if interrupt.came() {
                return Ok(());
            }
        }
        let now = client.watch(|| Sample::take(&client, &options.volume));
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
        let figure = |name: &str| total.and_then(|total| total[name].as_u64()).unwrap_or(0);
        (figure("count"), figure("sum_ns"))
    }
}

/// The counters of all volumes at about one moment.
struct Sample {
    at: Instant,
    /// Names of all pools, those without volumes included; none if volumes were named.
    pools: Vec<String>,
    volumes: BTreeMap<String, Counters>,
}

impl Sample {
    /// The first sample of a watch: the volumes that are named must exist.
    fn first(client: &Client, wanted: &[String]) -> Result<Self, Failure> {
        let sample = Self::take(client, wanted)?;
        let Some(unknown) = wanted.iter().find(|name| !sample.volumes.contains_key(*name)) else {
            return Ok(sample);
        };
        let failure = Failure::not_found(MessageId::VolumeUnknown, format!("no volume {unknown}"));
        Err(failure.hint("`forebay list` lists the volumes"))
    }

    fn take(client: &Client, wanted: &[String]) -> Result<Self, Failure> {
        let mut volumes: Vec<VolumeInfo> = client::list(&client.get("/v1/volumes")?, "volumes")?;
        let pools: Vec<PoolInfo> = match wanted.is_empty() {
            true => client::list(&client.get("/v1/pools")?, "pools")?,
            false => Vec::new(),
        };
        volumes.retain(|volume| wanted.is_empty() || wanted.contains(&volume.name));
        let at = Instant::now();
        let of = |volume: &VolumeInfo| {
            let served = !matches!(volume.state, VolumeState::Absent | VolumeState::Unknown);
            let path = super::volume::path(&volume.name, "/stats");
            // A volume that was just detached, or whose pool hangs, does not end the watch.
            let object = served.then(|| client.get(&path).ok()).flatten();
            (volume.name.clone(), Counters { pool: volume.pool.clone(), object })
        };
        let pools = pools.into_iter().map(|pool| pool.name).collect();
        Ok(Self { at, pools, volumes: volumes.iter().map(of).collect() })
    }
}

/// Adds counts and times.
fn sum(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1.saturating_add(other.1))
}

/// Operations a second: with a decimal where they are few, so that one is not shown as none.
fn rate(per_s: f64) -> Cell {
    match per_s {
        0.05..10.0 => Cell::from(format!("{per_s:.1}")),
        _ => Cell::count(per_s as u64),
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
    /// Writes that were answered: those that arrived can still wait.
    answered_writes: (u64, u64),
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
            answered_writes: ["write", "write_through", "write_past"].map(way).into_iter().fold((0, 0), sum),
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
        self.hits = sum(self.hits, other.hits);
        self.misses = sum(self.misses, other.misses);
        self.answered_writes = sum(self.answered_writes, other.answered_writes);
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
            rate(self.rate(self.reads)),
            rate(self.rate(self.writes)),
            bytes(self.read_bytes),
            bytes(self.written_bytes),
            Cell::from(percent(self.hit_blocks, self.hit_blocks + self.miss_blocks)),
            mean(self.hits),
            mean(self.misses),
            mean(self.answered_writes),
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
            "write_wait_us": mean(self.answered_writes),
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
        let mut pools: BTreeMap<String, BTreeMap<String, Option<Figures>>> =
            now.pools.iter().map(|pool| (pool.clone(), BTreeMap::new())).collect();
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
            text += &match volumes.is_empty() {
                true => without_figures(pool, "no volumes", most),
                false => line(&columns, pool, Self::total(volumes), most),
            };
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
    match figures {
        Some(figures) => format!("{}{}", fitted(name, most), columns.line(&figures.cells())),
        None => without_figures(name, "not served, or new", most),
    }
}

fn without_figures(name: &str, why: &str, most: usize) -> String {
    format!("{}  {why}\n", fitted(name, most))
}

/// A name in a column of this width.
fn fitted(name: &str, most: usize) -> String {
    let name = harmless(name);
    let cut: String = match name.chars().count() > most {
        true => name.chars().take(most - 1).chain(['…']).collect(),
        false => name,
    };
    format!("{cut:<most$}")
}

/// A report of two busy volumes of one pool, and of one that is not served.
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
        answered_writes: (writes, writes * 210_000),
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
        Sample { at, pools: Vec::new(), volumes }
    }

    fn of(reads: u64) -> Value {
        let total = json!({ "count": reads, "sum_ns": reads * 100_000 });
        json!({
            "uptime_ns": reads * 1_000_000, "reads": reads, "read_bytes": reads * 4096, "read_hit_blocks": reads / 2,
            "read_miss_blocks": reads / 2, "read_time_ns": reads * 100_000, "dirty_blocks": 3,
            "latency": { "read_hit": { "total": total } },
        })
    }

    #[test]
    fn a_pool_sums_its_volumes() {
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
    fn averages_since_opening_need_one_reading() {
        let now = sample(Instant::now(), vec![("a", counters("fast", of(5000)))]);
        assert_eq!(Report::since_open(&now).json()["volumes"]["a"]["reads_per_s"], 1000.0);
    }

    #[test]
    fn a_volume_without_history_has_no_figures() {
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
    fn a_pool_without_volumes_has_a_line() {
        let began = Instant::now();
        let mut now = sample(began, vec![("a", counters("fast", of(10)))]);
        now.pools = vec!["fast".into(), "spare".into()];
        let report = Report::since_open(&now);
        assert_eq!(report.json()["pools"]["spare"], Value::Null);
        assert!(report.text(false, Width::of(80)).contains("spare       no volumes\n"));
    }

    #[test]
    fn a_wait_counts_when_it_ends() {
        let began = Instant::now();
        let of = |writes: u64, answered: u64| {
            let total = json!({ "count": answered, "sum_ns": answered * 5_000_000_000 });
            json!({ "uptime_ns": 1, "writes": writes, "latency": { "write": { "total": total } } })
        };
        let at = |seconds, writes, answered| {
            let volumes = vec![("a", counters("fast", of(writes, answered)))];
            sample(began + Duration::from_secs(seconds), volumes)
        };
        let wait = |before: &Sample, now: &Sample| {
            Report::between(before, now).json()["volumes"]["a"]["write_wait_us"].clone()
        };
        assert_eq!(wait(&at(0, 0, 0), &at(1, 1, 0)), Value::Null);
        assert_eq!(wait(&at(1, 1, 0), &at(2, 1, 1)), 5e6);
    }

    #[test]
    fn a_reopened_pool_counts_from_zero() {
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
