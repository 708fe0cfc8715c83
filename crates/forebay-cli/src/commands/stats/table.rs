//! `forebay stats --all`: all details of a volume, formatted from the daemon's JSON.
//!
//! An unknown number is a dash, never a zero; a line without known numbers is left out.

use serde_json::Value;

use crate::screen::{self, Column, Table, Width, bytes, count, nanos};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Windows of time in the daemon's JSON.
const WINDOWS: [&str; 4] = ["1s", "10s", "5min", "total"];
/// Columns of latencies, including the tails.
const LATENCY: [Column; 9] = [
    Column::text("window", 0),
    Column::number("per second", 3),
    Column::number("bytes", 4),
    Column::number("mean", 5),
    Column::number("p50", 0),
    Column::number("p95", 6),
    Column::number("p99", 1),
    Column::number("p99.9", 2),
    Column::number("max", 3),
];
/// Age classes of dirty data in the daemon's JSON, with their display names.
const AGES: [(&str, &str); 7] = [
    ("under_1s", "<1s"),
    ("under_10s", "<10s"),
    ("under_1min", "<1min"),
    ("under_5min", "<5min"),
    ("under_15min", "<15min"),
    ("under_1h", "<1h"),
    ("more", "more"),
];
/// Paths of requests and devices in display order.
const PATHS: [&str; 14] = [
    "read_hit",
    "read_miss",
    "read_bypass",
    "write",
    "write_through",
    "write_past",
    "flush",
    "zero",
    "cache_read",
    "cache_write",
    "cache_flush",
    "backing_read",
    "backing_write",
    "backing_flush",
];

fn windows() -> [Column; 4] {
    // Recent windows have priority.
    let mut rank = 0;
    WINDOWS.map(|window| {
        rank += 1;
        Column::number(window, rank)
    })
}

/// Older data has priority.
fn ages() -> [Column; 7] {
    let mut rank = AGES.len() as u8 + 1;
    AGES.map(|(_, name)| {
        rank -= 1;
        Column::number(name, rank)
    })
}

/// Returns the tables.
pub(super) fn text(object: &Value, width: Width) -> String {
    let view = View { object, width };
    let mut text = view.requests();
    text += &view.hits();
    text += &view.latency();
    text += &view.dirty();
    text += &view.devices();
    text += &view.causes();
    text += &view.memory();
    text
}

/// Formats statistics.
struct View<'a> {
    object: &'a Value,
    width: Width,
}

/// Causes of flash writes, with the middle of the name of their counter.
const CAUSES: [(&str, &str); 10] = [
    ("client writes", "client"),
    ("write-through copies", "copy"),
    ("fills", "fill"),
    ("kept blocks", "kept"),
    ("moved blocks", "moved"),
    ("headers", "header"),
    ("checkpoints", "checkpoint"),
    ("rebuild", "rebuild"),
    ("restart", "restart"),
    ("device copy", "device_copy"),
];

impl View<'_> {
    fn rows(&self, title: &'static str, columns: &[Column]) -> Rows {
        let columns: Vec<Column> =
            [Column::text(title, 0)].into_iter().chain(columns.iter().copied()).collect();
        Rows { table: Table::new(columns), any: false, width: self.width }
    }

    fn n(&self, name: &str) -> Option<u64> {
        self.object[name].as_u64()
    }

    fn text(&self, name: &str) -> String {
        self.object[name].as_str().filter(|text| !text.is_empty()).map_or("-".into(), screen::harmless)
    }

    fn count(&self, name: &str) -> String {
        self.n(name).map_or("-".into(), count)
    }

    fn bytes(&self, name: &str) -> String {
        self.n(name).map_or("-".into(), bytes)
    }

    fn blocks(&self, name: &str) -> String {
        self.n(name).map_or("-".into(), |blocks| bytes(blocks.saturating_mul(BLOCK)))
    }

    /// Returns a share between 0 and 1 in each window.
    fn shares(&self, name: &str) -> [String; 4] {
        self.windows(name, |share| format!("{:.1} %", share * 100.0))
    }

    fn rates(&self, name: &str) -> [String; 4] {
        self.windows(name, rate)
    }

    fn byte_rates(&self, name: &str) -> [String; 4] {
        self.windows(name, |rate| format!("{}/s", bytes(rate as u64)))
    }

    fn windows(&self, name: &str, show: impl Fn(f64) -> String) -> [String; 4] {
        WINDOWS.map(|window| self.object["windows"][window][name].as_f64().map_or("-".into(), &show))
    }

    fn requests(&self) -> String {
        let mut rows = self.rows("requests per second", &windows());
        rows.add("reads", self.rates("reads_per_s"));
        rows.add("  bytes", self.byte_rates("read_bytes_per_s"));
        rows.add("writes", self.rates("writes_per_s"));
        rows.add("  bytes", self.byte_rates("written_bytes_per_s"));
        rows.add("flushes", self.rates("flushes_per_s"));
        rows.add("discards, zeroes", self.rates("zeroes_per_s"));
        rows.add("throttled writes", self.rates("throttled_writes_per_s"));
        let (reads, writes) = (self.count("reads"), self.count("writes"));
        let (failed, open) = (self.count("failed_requests"), self.count("requests_in_flight"));
        rows.end(&format!("{reads} reads and {writes} writes in all, {failed} failed, {open} in flight"))
    }

    fn hits(&self) -> String {
        let mut rows = self.rows("hit ratio", &windows());
        rows.add("reads", self.shares("read_hit_ratio"));
        rows.add("writes", self.shares("write_hit_ratio"));
        rows.add("writes of dirty", self.shares("dirty_write_hit_ratio"));
        rows.end("")
    }

    /// Returns the table of every path in every window in which it occurred.
    fn latency(&self) -> String {
        let mut rows = self.rows("latency", &LATENCY);
        for path in PATHS {
            let taken = WINDOWS.iter().filter_map(|window| {
                let cells = latencies(&self.object["latency"][path][*window])?;
                Some([[(*window).to_owned()].as_slice(), &cells].concat())
            });
            for (index, cells) in taken.enumerate() {
                rows.add(if index == 0 { path } else { "" }, cells);
            }
        }
        rows.end("")
    }

    fn dirty(&self) -> String {
        let mut rows = self.rows("dirty, by age", &ages());
        let age = &self.object["dirty_age"];
        rows.add(
            "bytes",
            AGES.map(|(name, _)| {
                age["blocks"][name].as_u64().map_or("-".into(), |blocks| bytes(blocks.saturating_mul(BLOCK)))
            }),
        );
        let of_cache = self.object["dirty_ratio"]
            .as_f64()
            .map_or(String::new(), |share| format!(" ({:.1} % of the cache)", share * 100.0));
        let oldest = age["oldest_s"].as_f64().map_or("unknown".into(), |s| screen::uptime(s as u64));
        let mut text = rows.end(&format!(
            "{} dirty{of_cache}, oldest {oldest}, {} lost",
            self.blocks("dirty_blocks"),
            self.bytes("lost_bytes")
        ));
        let mut rows = self.rows("destage", &windows());
        rows.add("blocks per second", self.rates("destaged_blocks_per_s"));
        rows.add("bytes", self.byte_rates("destaged_bytes_per_s"));
        text += &rows.end(&format!("limited by: {}", self.text("limited_by")));
        text
    }

    fn devices(&self) -> String {
        let mut rows = self.rows("devices per second", &windows());
        for (name, operations, moved) in [
            ("cache reads", "cache_reads_per_s", "cache_read_bytes_per_s"),
            ("cache writes", "cache_writes_per_s", "cache_written_bytes_per_s"),
            ("backing reads", "backing_reads_per_s", "backing_read_bytes_per_s"),
            ("backing writes", "backing_writes_per_s", "backing_written_bytes_per_s"),
        ] {
            rows.add(name, self.rates(operations));
            rows.add("  bytes", self.byte_rates(moved));
        }
        rows.add("cache flushes", self.rates("cache_flushes_per_s"));
        rows.add("backing flushes", self.rates("backing_flushes_per_s"));
        rows.add("write amplification", self.windows("cache_write_amplification", |x| format!("{x:.2}")));
        let (damaged, evicted) = (self.count("damaged_blocks"), self.count("evicted_blocks"));
        let (filled, moved) = (self.count("filled_blocks"), self.count("relocated_blocks"));
        rows.end(&format!(
            "blocks in all: {filled} filled, {evicted} evicted, {moved} moved, {damaged} damaged"
        ))
    }

    /// Returns the causes of flash writes of the pool.
    fn causes(&self) -> String {
        let mut rows = self.rows("written to flash", &windows());
        for (name, counter) in CAUSES {
            if self.n(&format!("cache_written_{counter}_bytes")).is_some_and(|bytes| bytes > 0) {
                rows.add(name, self.byte_rates(&format!("cache_written_{counter}_bytes_per_s")));
            }
        }
        let each = |x| format!("{x:.2}");
        rows.add("per byte of clients", self.windows("cache_written_bytes_per_user_byte", each));
        let (unfilled, unkept) = (self.n("endurance_unfilled_blocks"), self.n("endurance_unkept_blocks"));
        let held = unfilled.unwrap_or(0) + unkept.unwrap_or(0) > 0;
        let held = held.then(|| {
            let (unfilled, unkept) = (self.count("endurance_unfilled_blocks"), self.count("endurance_unkept_blocks"));
            let missed = self.count("endurance_missed_blocks");
            format!("; left out for the budget: {unfilled} fills, {unkept} kept blocks; at most {missed} misses for it")
        });
        rows.end(&format!("{} in all{}", self.bytes("cache_written_bytes"), held.unwrap_or_default()))
    }

    fn memory(&self) -> String {
        let share = match (self.n("cached_blocks"), self.n("capacity_blocks")) {
            (Some(cached), Some(capacity)) => screen::percent(cached, capacity),
            _ => "-".into(),
        };
        let cached = self.blocks("cached_blocks");
        let (free, segments) = (self.count("free_segments"), self.count("segments"));
        let (rss, index) = (self.bytes("rss_bytes"), self.bytes("index_memory_bytes"));
        let mut list = screen::List::new();
        list.add("cache", format!("{cached} cached ({share}), {free} of {segments} segments free"));
        let io = self.text("io_engine");
        list.add("memory", format!("{rss} of the process, of it {index} index; I/O by {io}"));
        format!("\n{}", list.within(self.width))
    }
}

/// Returns rate, bytes, and latencies of a path in a window; `None` if nothing happened.
fn latencies(summary: &Value) -> Option<[String; 8]> {
    summary["count"].as_u64().filter(|count| *count > 0)?;
    let us = |name: &str| summary[name].as_f64().map_or("-".into(), |us| nanos((us * 1e3) as u64));
    let moved = summary["bytes_per_s"].as_f64().filter(|bytes| *bytes > 0.0);
    Some([
        summary["per_s"].as_f64().map_or("-".into(), rate),
        moved.map_or("-".into(), |rate| format!("{}/s", bytes(rate as u64))),
        us("mean_us"),
        us("p50_us"),
        us("p95_us"),
        us("p99_us"),
        us("p999_us"),
        us("max_us"),
    ])
}

/// Formats a rate; small ones keep their decimals.
pub(super) fn rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { count(rate.round() as u64) }
}

/// A table that omits lines without any number.
struct Rows {
    table: Table,
    any: bool,
    width: Width,
}

impl Rows {
    fn add(&mut self, name: &str, cells: impl AsRef<[String]>) {
        let cells = cells.as_ref();
        if cells.iter().any(|cell| cell != "-") {
            self.any = true;
            self.table.add_row([name.to_owned()].iter().chain(cells));
        }
    }

    /// Returns the table, if it has lines, followed by a sentence.
    fn end(self, below: &str) -> String {
        let table = if self.any { format!("\n{}\n", self.table.within(self.width)) } else { String::new() };
        if below.is_empty() {
            return table;
        }
        let below = screen::wrapped(below, self.width);
        format!("{table}{}{below}\n", if self.any { "" } else { "\n" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_numbers_are_not_shown_as_zero() {
        for nothing in [json!({}), json!([]), json!({ "latency": 5, "windows": [] })] {
            let text = text(&nothing, Width::of(80));
            assert!(text.contains("- reads and - writes in all"), "{text}");
            assert!(!text.contains("latency") && !text.contains(" 0 "), "{text}");
        }
    }

    #[test]
    fn rates_keep_the_digits_that_matter() {
        assert_eq!([rate(0.0), rate(0.25), rate(9.96), rate(12_345.6)], ["0", "0.2", "10", "12,346"]);
    }
}
