//! The first lines of `forebay stats`: effect of the cache, dirty data, and cost for the flash.
//!
//! Unknown values are left out, never shown as zero.

use serde_json::Value;

use super::table::rate;
use crate::screen::{self, List, Width, bytes, count, nanos, percent};

/// Bytes of a block.
const BLOCK: u64 = 4096;
const SECONDS_OF_A_DAY: f64 = 86_400.0;
/// Shortest time for computing bytes per day, in seconds.
const FLASH_SPAN_S: f64 = 60.0;
/// Windows to search, the newest first, with their display names.
const WINDOWS: [(&str, &str); 3] =
    [("10s", "last 10 s"), ("5min", "last 5 min"), ("total", "since the start")];
/// Paths of reads and writes in the daemon's JSON, with their display names.
const READS: [(&str, &str); 3] = [("read_hit", "hit"), ("read_miss", "miss"), ("read_bypass", "bypass")];
const WRITES: [(&str, &str); 5] = [
    ("write", "cache"),
    ("write_through", "both"),
    ("write_past", "bypass"),
    ("zero", "discard"),
    ("flush", "FLUSH"),
];

/// Returns the lines.
pub(super) fn text(object: &Value, width: Width) -> String {
    let view = View(object);
    let mut list = List::new();
    list.add("volume", view.volume());
    list.add("requests", view.requests());
    list.add("hit ratio", view.hits());
    list.add("read latency", view.latency(&READS));
    list.add("write latency", view.latency(&WRITES));
    list.add("dirty", view.dirty());
    list.add("destage", view.destage());
    list.add("time to drain", view.drain());
    list.add("flash wear", view.flash());
    list.add("errors", view.errors());
    list.within(width)
}

struct View<'a>(&'a Value);

impl View<'_> {
    fn n(&self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }

    fn text(&self, name: &str) -> String {
        self.0[name].as_str().filter(|text| !text.is_empty()).map_or("-".into(), screen::harmless)
    }

    fn now(&self, name: &str) -> Option<f64> {
        self.0["windows"]["10s"][name].as_f64()
    }

    fn volume(&self) -> String {
        let up = self.n("uptime_ns").map_or("-".into(), |up| screen::uptime(up / 1_000_000_000));
        let size = self.n("size_bytes").map_or("-".into(), bytes);
        let clients = match self.n("connections") {
            Some(1) => "1 client".into(),
            clients => format!("{} clients", clients.map_or("-".into(), count)),
        };
        format!(
            "{} in pool {}: {size}, {}, up {up}, {clients}",
            self.text("volume"),
            self.text("pool"),
            self.text("mode"),
        )
    }

    fn requests(&self) -> String {
        let per_s = |name| self.now(name).map_or("-".into(), rate);
        let moved = |name| self.now(name).map_or("-".into(), |rate| bytes(rate as u64));
        format!(
            "{} reads/s ({}/s), {} writes/s ({}/s), {} FLUSHes/s",
            per_s("reads_per_s"),
            moved("read_bytes_per_s"),
            per_s("writes_per_s"),
            moved("written_bytes_per_s"),
            per_s("flushes_per_s")
        )
    }

    /// Returns the hit ratio of the newest window with reads.
    fn hits(&self) -> String {
        let known = WINDOWS.iter().find_map(|(window, words)| {
            let window = &self.0["windows"][*window];
            let reads = window["read_hit_ratio"].as_f64()?;
            let writes = window["write_hit_ratio"].as_f64();
            let writes =
                writes.map_or(String::new(), |writes| format!(", {:.1} % of writes", writes * 100.0));
            Some(format!("{:.1} % of reads{writes} ({words})", reads * 100.0))
        });
        let cached = match (self.n("cached_blocks"), self.n("size_bytes")) {
            (Some(cached), Some(size)) => {
                let cached = cached.saturating_mul(BLOCK);
                format!("; {} cached ({} of the volume)", bytes(cached), percent(cached, size))
            }
            _ => String::new(),
        };
        known.unwrap_or_else(|| "nothing was read yet".into()) + &cached
    }

    /// Returns the latency of each path in the newest window in which it occurred.
    fn latency(&self, paths: &[(&str, &str)]) -> String {
        let of = |(path, words): &(&str, &str)| {
            WINDOWS.iter().find_map(|(window, _)| {
                let summary = &self.0["latency"][*path][*window];
                summary["count"].as_u64().filter(|count| *count > 0)?;
                let us = |name: &str| summary[name].as_f64().map(|us| nanos((us * 1e3) as u64));
                Some(format!("{words} {} (p99 {})", us("p50_us")?, us("p99_us")?))
            })
        };
        let taken: Vec<String> = paths.iter().filter_map(of).collect();
        if taken.is_empty() { "none yet".into() } else { taken.join(", ") }
    }

    fn dirty_bytes(&self) -> Option<u64> {
        self.n("dirty_blocks").map(|blocks| blocks.saturating_mul(BLOCK))
    }

    fn dirty(&self) -> String {
        let Some(dirty) = self.dirty_bytes() else { return "-".into() };
        if dirty == 0 {
            return "nothing: the backing store has everything".into();
        }
        let share = self.0["dirty_ratio"].as_f64();
        let share = share.map_or(String::new(), |share| format!(" ({:.1} % of the cache)", share * 100.0));
        let oldest = self.0["dirty_age"]["oldest_s"].as_f64();
        let oldest = oldest.map_or("-".into(), |seconds| screen::uptime(seconds as u64));
        format!("{}{share}, the oldest for {oldest}", bytes(dirty))
    }

    fn destage(&self) -> String {
        let speed = self.now("destaged_bytes_per_s");
        let speed = speed.map_or("-".into(), |rate| format!("{}/s", bytes(rate as u64)));
        format!("{speed} (last 10 s), limited by: {}", self.text("limited_by"))
    }

    /// Returns the time to drain at the rate of the last seconds.
    fn drain(&self) -> String {
        let (Some(dirty), Some(out)) = (self.dirty_bytes(), self.now("destaged_bytes_per_s")) else {
            return "-".into();
        };
        if dirty == 0 {
            return "nothing to write back".into();
        }
        if out < 1.0 {
            return "unknown: nothing was written back in the last 10 s".into();
        }
        let time = screen::uptime((dirty as f64 / out).ceil() as u64);
        let comes = self.now("dirtied_blocks_per_s").unwrap_or(0.0) * BLOCK as f64;
        let comes = Some(comes).filter(|comes| *comes >= 1.0);
        let comes = comes
            .map_or(String::new(), |comes| format!("; {}/s become dirty meanwhile", bytes(comes as u64)));
        format!("{time} at this rate{comes}")
    }

    /// Returns the flash figures of the pool, whose devices all its volumes share.
    fn flash(&self) -> String {
        let total = &self.0["windows"]["total"];
        let span = total["span_s"].as_f64().unwrap_or(0.0);
        let Some(written) = total["cache_written_bytes_per_s"].as_f64().filter(|_| span >= FLASH_SPAN_S)
        else {
            return "not known before a minute has passed".into();
        };
        let a_day = written * SECONDS_OF_A_DAY;
        let capacity = self.n("capacity_blocks").filter(|blocks| *blocks > 0);
        let times = capacity.map_or(String::new(), |blocks| {
            format!(", {:.2} times the size of the cache", a_day / (blocks.saturating_mul(BLOCK)) as f64)
        });
        let amplified = total["cache_write_amplification"].as_f64();
        let amplified =
            amplified.map_or(String::new(), |factor| format!("; write amplification {factor:.2}"));
        format!("{} a day on the pool's devices{times}{amplified}", bytes(a_day as u64))
    }

    fn errors(&self) -> String {
        let counted = [
            ("failed_requests", "failed requests"),
            ("cache_read_errors", "cache read errors"),
            ("cache_write_errors", "cache write errors"),
            ("backing_read_errors", "backing read errors"),
            ("backing_write_errors", "backing write errors"),
            ("damaged_blocks", "damaged blocks"),
        ];
        let mut all: Vec<String> = counted
            .iter()
            .filter_map(|(name, words)| Some((self.n(name).filter(|n| *n > 0)?, words)))
            .map(|(number, words)| format!("{} {words}", count(number)))
            .collect();
        if let Some(lost) = self.n("lost_bytes").filter(|lost| *lost > 0) {
            all.insert(0, format!("{} LOST", bytes(lost)));
        }
        if all.is_empty() { "none".into() } else { all.join(", ") }
    }
}
