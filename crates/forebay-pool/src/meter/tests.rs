//! The meter with a virtual clock against exact answers, and every format against a golden file.

use super::window::SECOND_NS;
use super::*;
use forebay_admin::MetricsForm;
use forebay_core::WrittenBytes;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Pseudo-random numbers, the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A latency: mostly around 80 us, some a hundred times as long, spread over a power of two.
    fn latency(&mut self) -> Nanos {
        let base = if self.next().is_multiple_of(20) { 8_000_000 } else { 80_000 };
        base + self.next() % base
    }
}

fn summary(meter: &Meter, path: TimedPath, window: Window, now: Nanos) -> Summary {
    let snapshot = meter.snapshot(now);
    let found = snapshot.paths.iter().find(|snapshot| snapshot.path == path).expect("it was recorded");
    found.windows[window as usize]
}

fn counts(meter: &Meter, now: Nanos) -> [u64; 4] {
    Window::ALL.map(|window| summary(meter, TimedPath::Write, window, now).count)
}

#[test]
fn percentiles_match_a_rounded_exact_sort() {
    let (mut meter, mut random) = (Meter::new(0), Random(1));
    let mut recorded: Vec<(Nanos, Nanos)> = Vec::new();
    let end = 400 * SECOND_NS;
    for now in (0..end).step_by(3_000_000) {
        let took = random.latency();
        meter.record(TimedPath::ReadMiss, took, 4096, now);
        recorded.push((now, took));
    }
    for window in Window::ALL {
        let seconds = window.seconds(end);
        let inside = recorded.iter().filter(|(at, _)| seconds.contains(&(at / SECOND_NS)));
        let mut exact: Vec<Nanos> = inside.map(|(_, took)| *took).collect();
        exact.sort_unstable();
        let found = summary(&meter, TimedPath::ReadMiss, window, end);
        let times = found.times.unwrap();
        assert_eq!(found.count, exact.len() as u64, "{window:?}");
        assert_eq!(times.max_ns, *exact.last().unwrap());
        assert_eq!(times.mean_ns, exact.iter().sum::<u64>() / found.count);
        for (quantile, got) in
            [(0.5, times.p50_ns), (0.95, times.p95_ns), (0.99, times.p99_ns), (0.999, times.p999_ns)]
        {
            let rank = (quantile * exact.len() as f64).ceil() as usize;
            let want = exact[rank - 1];
            assert!(
                got >= want && got as f64 <= want as f64 * (1.0 + 1.0 / 128.0),
                "{quantile}: {got} {want}"
            );
        }
        assert!((found.per_s.unwrap() - 333.4).abs() < 1.0, "{found:?}");
        assert!((found.bytes_per_s.unwrap() / 4096.0 - found.per_s.unwrap()).abs() < 1e-6);
    }
}

#[test]
fn windows_roll_over_and_empty_when_idle() {
    let mut meter = Meter::new(0);
    let second = |meter: &mut Meter, second: u64, count: u64| {
        for at in 0..count {
            meter.record(TimedPath::Write, 50_000, 512, second * SECOND_NS + at);
        }
    };
    second(&mut meter, 0, 1);
    assert_eq!(counts(&meter, SECOND_NS / 2), [0, 0, 0, 1], "the second is not over, the total has it");
    assert_eq!(counts(&meter, SECOND_NS), [1, 1, 1, 1]);
    assert_eq!(counts(&meter, 2 * SECOND_NS), [0, 1, 1, 1]);
    second(&mut meter, 9, 10);
    second(&mut meter, 10, 100);
    assert_eq!(counts(&meter, 10 * SECOND_NS + 9), [10, 11, 11, 111]);
    assert_eq!(counts(&meter, 11 * SECOND_NS), [100, 110, 111, 111]);
    assert_eq!(counts(&meter, 20 * SECOND_NS), [0, 100, 111, 111]);
    assert_eq!(counts(&meter, 309 * SECOND_NS), [0, 0, 111, 111]);
    assert_eq!(counts(&meter, 310 * SECOND_NS), [0, 0, 100, 111]);
    assert_eq!(counts(&meter, 320 * SECOND_NS), [0, 0, 0, 111]);
    // A gap as long as the rings: old slots are at the places of new ones and must not be taken for
    // them.
    second(&mut meter, 609, 7);
    assert_eq!(counts(&meter, 610 * SECOND_NS), [7, 7, 7, 118]);
    second(&mut meter, 610, 5);
    assert_eq!(counts(&meter, 1_000_000 * SECOND_NS), [0, 0, 0, 123]);
}

#[test]
fn snapshot_changes_nothing() {
    let mut meter = Meter::new(5 * SECOND_NS);
    assert!(meter.snapshot(9 * SECOND_NS).paths.is_empty());
    meter.record(TimedPath::Flush, 3 * SECOND_NS / 1000, 0, 6 * SECOND_NS);
    let first = meter.snapshot(7 * SECOND_NS);
    assert_eq!(meter.snapshot(7 * SECOND_NS), first);
    assert_eq!(first.paths.len(), 1);
    assert_eq!(first.paths[0].windows[1].per_s, Some(0.5), "two seconds old, not ten");
    assert_eq!(first.paths[0].windows[0].times.unwrap().p50_ns, 3_000_000, "not above the exact maximum");
    let buckets = &first.paths[0].buckets;
    assert_eq!(buckets.iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(), [&(5_000_000, 1)]);
    assert_eq!(buckets.last(), Some(&(u64::MAX, 0)));
}

#[test]
fn extreme_durations_count_at_the_bounds() {
    let mut meter = Meter::new(0);
    meter.record(TimedPath::Write, 0, 0, 0);
    meter.record(TimedPath::Write, 600 * SECOND_NS, 0, 0);
    meter.record(TimedPath::Write, u64::MAX, 0, 0);
    let times = summary(&meter, TimedPath::Write, Window::Total, SECOND_NS).times.unwrap();
    assert_eq!(times.max_ns, u64::MAX);
    assert!((60 * SECOND_NS..61 * SECOND_NS).contains(&times.p50_ns), "{times:?}");
    assert_eq!(meter.snapshot(SECOND_NS).paths[0].buckets.last(), Some(&(u64::MAX, 2)), "above 50 s");
}

#[test]
fn meter_memory_is_bounded() {
    let (mut meter, mut random) = (Meter::new(0), Random(2));
    let before = meter.memory_bytes();
    println!("memory of a meter: {before} bytes");
    assert!(before < 4 << 20, "{before}");
    for at in 0..600_000_u64 {
        // A wide distribution, so that slots overflow.
        let took = random.next() >> (28 + random.next() % 28);
        meter.record(TimedPath::ALL[at as usize % TimedPath::ALL.len()], took, 4096, at * 1_000_000);
    }
    assert_eq!(meter.memory_bytes(), before);
    let mut history = History::new(0);
    let before = history.memory_bytes();
    println!("memory of a history: {before} bytes");
    assert!(before < 36 << 10, "{before}");
    for second in 0..1000 {
        history.turn(second * SECOND_NS, Counters::default);
    }
    assert_eq!(history.memory_bytes(), before);
}

/// Not asserted: machines differ. `cargo test --release -p forebay-pool -- --nocapture
/// cost_of_recording`.
#[test]
fn cost_of_recording_and_of_a_snapshot() {
    let (mut meter, mut random) = (Meter::new(0), Random(3));
    let latencies: Vec<Nanos> = (0..1 << 16).map(|_| random.latency()).collect();
    let count = 4_000_000_u64;
    let began = Instant::now();
    for at in 0..count {
        // 100,000 a second.
        meter.record(
            TimedPath::ALL[at as usize % 6],
            latencies[at as usize % latencies.len()],
            4096,
            at * 10_000,
        );
    }
    let each = began.elapsed().as_nanos() as f64 / count as f64;
    let began = Instant::now();
    meter.record(TimedPath::Write, 1, 1, 40 * SECOND_NS);
    let roll = began.elapsed();
    let (mut best, mut first) = ([Duration::MAX; 2], None);
    for _ in 0..20 {
        let began = Instant::now();
        let capture = meter.capture(40 * SECOND_NS);
        first = first.or_else(|| Some(began.elapsed()));
        best[0] = best[0].min(began.elapsed());
        let began = Instant::now();
        let snapshot = capture.summarize();
        best[1] = best[1].min(began.elapsed());
        assert_eq!(snapshot.paths.len(), 6);
    }
    println!("record: {each:.1} ns (rolling over included); roll over of one path at a ten: {roll:?}");
    println!("capture on the owner's thread: {first:?} the first time, then {:?}", best[0]);
    println!("summarize on the other thread: {:?}", best[1]);
}

// --- formats

/// A volume in which every number is different.
fn report() -> Report {
    let mut counters = Counters::default();
    for (index, field) in FIELDS.iter().enumerate() {
        (field.set)(&mut counters, 1000 + index as u64 * 7);
    }
    counters.read_hit_blocks = 3000;
    let mut meter = Meter::new(0);
    let mut history = History::new(0);
    for second in 0..70 {
        history.turn(second * SECOND_NS, || Counters {
            reads: second * 10,
            destaged_blocks: second,
            ..counters
        });
        for (index, path) in TimedPath::ALL.iter().enumerate().filter(|(index, _)| *index != 5) {
            let took = 20_000 * (index as u64 + 1) * (1 + second % 4);
            meter.record(*path, took, 4096, second * SECOND_NS + 1);
        }
    }
    let now = 70 * SECOND_NS + SECOND_NS / 2;
    (counters.reads, counters.destaged_blocks) = (700, 70);
    let about = About {
        devices_written: vec![(
            "/dev/nvme0n1".into(),
            WrittenBytes { fills: 8192, ..WrittenBytes::default() },
        )],
        pool: "fast".into(),
        volume: "db \"1\"".into(),
        mode: "writeback",
        size_bytes: 1 << 30,
        uptime_ns: now,
        connections: 2,
        io_engine: "io_uring",
        rss_bytes: 77 << 20,
        limited_by: Some("latency_target"),
        members: None,
    };
    let ages = [(SECOND_NS, 5), (60 * SECOND_NS, 6), (u64::MAX, 7)];
    Report {
        about,
        counters,
        rates: history.rates(now, &counters),
        latency: meter.snapshot(now),
        dirty_age: Some(DirtyAge::new(ages, Some(7200 * SECOND_NS))),
    }
}

/// Compares with a file next to the tests; `UPDATE_GOLDEN=1` writes it.
fn golden(path: &str, text: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1", path.display()))
}

#[test]
fn json_matches_its_golden_file() {
    let value = serde_json::Value::from(format::object(&report()));
    let reread: serde_json::Value = serde_json::from_str(&value.to_string()).unwrap();
    let file = golden("tests/golden/stats.json", &format!("{value:#}\n"));
    // Values, not bytes: the order of keys depends on a feature that another crate can enable.
    let expected: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert!(reread == expected, "UPDATE_GOLDEN=1 writes the file anew");
    assert_eq!(value["windows"]["10s"]["reads_per_s"], 10.0);
    assert_eq!(value["windows"]["10s"]["destaged_bytes_per_s"], 4096.0);
    assert_eq!(value["latency"]["read_hit"]["1s"]["max_us"], 40.0);
    assert!(value["latency"].get("write_past").is_none(), "never taken");
    assert_eq!(value["dirty_age"]["blocks"]["under_1min"], 6);
    for field in FIELDS {
        assert!(value[field.name].is_u64(), "{} is counted", field.name);
    }
    let schema = format::schema();
    assert!(
        schema.keys().all(|key| value.get(key).is_some()) && schema.len() == value.as_object().unwrap().len()
    );
}

#[test]
fn unused_volume_has_no_averages() {
    let value = serde_json::Value::from(format::object(&Report::default()));
    assert!(value["read_hit_ratio"].is_null() && value["dirty_age"].is_null());
    assert!(value["windows"]["1s"]["reads_per_s"].is_null());
    let families = format::families(&[Report::default()]);
    let text = format::exposition::text(&families, MetricsForm::OpenMetrics);
    assert!(!text.contains("latency") && !text.contains("dirty_age") && text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn prometheus_text_matches_its_golden_file() {
    let mut other = report();
    (other.about.volume, other.about.pool, other.latency) =
        ("logs".into(), String::new(), MeterSnapshot::default());
    let mut pool = report();
    pool.about.volume = String::new();
    pool.about.members = Some([MemberState::Ok, MemberState::Missing]);
    let families = format::families(&[pool, report(), other]);
    let text = format::exposition::text(&families, MetricsForm::OpenMetrics);
    assert_eq!(text, golden("tests/golden/stats.prom", &text), "UPDATE_GOLDEN=1 writes the file anew");
    assert_eq!(text.matches("# TYPE forebay_reads counter").count(), 1, "a metric is declared once");
    assert!(text.contains("forebay_reads_total{volume=\"logs\"} 700"), "{text}");
    assert!(!text.contains("forebay_reads_total{pool=\"fast\"}"), "what volumes count is not counted twice");
    let of_pool = text.lines().filter(|line| line.starts_with("forebay_cache_written_bytes"));
    assert_eq!(of_pool.count(), 1, "what a pool has is not repeated by its volumes");
    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("forebay_latency_seconds_bucket{pool=\"fast\",volume"))
        .filter(|line| line.contains("\"write\""))
        .collect();
    let counts: Vec<u64> =
        series.iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&70), "{counts:?}");
}

#[test]
fn flashcache_text_matches_its_golden_file() {
    let text = format::flashcache::text(&report().counters);
    assert_eq!(text, golden("tests/golden/stats.flashcache", &text), "UPDATE_GOLDEN=1 writes the file anew");
    assert_eq!(text.lines().count(), 3);
    assert!(text.starts_with("reads=") && text.contains(" read_hit_percent=5"), "{text}");
    for pair in text.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        assert!(value.parse::<u64>().is_ok(), "{key}");
    }
    let huge = Counters { read_hit_blocks: u64::MAX / 2, ..Counters::default() };
    assert!(format::flashcache::text(&huge).contains("read_hit_percent=100 "));
    assert!(format::flashcache::text(&Counters::default()).contains("write_hit_percent=0 "));
}

#[test]
fn flashcache_document_has_every_key() {
    use format::flashcache::{ERROR_KEYS, KEYS, markdown};
    let keys = format!("{}\n{}", markdown(KEYS), markdown(ERROR_KEYS));
    for key in KEYS.iter().chain(ERROR_KEYS) {
        // Every name in backquotes must be a counter, or another key.
        for name in key.ours.split('`').skip(1).step_by(2) {
            let known =
                FIELDS.iter().any(|field| field.name == name) || KEYS.iter().any(|key| key.name == name);
            assert!(known, "{}: {name}", key.name);
        }
    }
    let mut document = String::from(include_str!("format/flashcache-names.head.md"));
    write!(
        document,
        "\n## flashcache_stats\n\n{}\n## flashcache_errors\n\n{}",
        markdown(KEYS),
        markdown(ERROR_KEYS)
    )
    .unwrap();
    assert_eq!(
        document,
        golden("../../docs/use/flashcache-names.md", &document),
        "UPDATE_GOLDEN=1 writes the file anew"
    );
    assert!(keys.contains("| `reads` |"));
}
