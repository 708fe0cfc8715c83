//! The report of a run: a line of a table, and a line of JSON.

use crate::figures::arm::ArmCounters;
use crate::figures::machine::Reply;
use forebay_core::Stats;

/// Width of the windows for the evenness, in seconds.
const WINDOW: usize = 5;

/// Figures of one run.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) per_second: Vec<u64>,
    latencies: Vec<u64>,
    hit_pct: f64,
    /// Bytes written to the cache device per byte that clients wrote or that was filled.
    amplification: f64,
    destaged: u64,
    disk: ArmCounters,
}

impl Figures {
    pub(crate) const HEAD: &str = "| job | warm-up | IOPS | first 5 s | last 10 s | CV of 5 s | hits % | p50 ms | p99 ms | max ms \
                                   | cache bytes written per byte | destaged/s | disk reads/s | disk writes/s | \
                                   KiB per write | arm busy % |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | \
                                   --- | --- | --- | --- | --- | --- |";

    pub(crate) fn new(seconds: u64) -> Self {
        Self {
            per_second: vec![0; seconds as usize],
            latencies: Vec::new(),
            hit_pct: 0.0,
            amplification: 0.0,
            destaged: 0,
            disk: ArmCounters::default(),
        }
    }

    pub(crate) fn note(&mut self, second: u64, reply: &Reply) {
        self.per_second[second as usize] += 1;
        self.latencies.push(reply.took);
    }

    /// Ends the run.
    pub(crate) fn close(&mut self, before: &Stats, after: &Stats, disk: &ArmCounters) {
        self.latencies.sort_unstable();
        let hits = after.read_hit_blocks - before.read_hit_blocks;
        let reads = hits + after.read_miss_blocks - before.read_miss_blocks;
        self.hit_pct = 100.0 * hits as f64 / reads.max(1) as f64;
        let wanted =
            after.written_bytes - before.written_bytes + (after.filled_blocks - before.filled_blocks) * 4096;
        let written = after.cache_written_bytes - before.cache_written_bytes;
        self.amplification = written as f64 / wanted.max(1) as f64;
        self.destaged = after.destaged_blocks - before.destaged_blocks;
        self.disk = disk.clone();
    }

    fn mean(values: &[u64]) -> f64 {
        values.iter().sum::<u64>() as f64 / values.len().max(1) as f64
    }

    /// Returns the coefficient of variation of the throughput of windows.
    fn variation(&self) -> f64 {
        let windows: Vec<f64> = self.per_second.chunks_exact(WINDOW).map(Self::mean).collect();
        let mean = windows.iter().sum::<f64>() / windows.len() as f64;
        let variance = windows.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / windows.len() as f64;
        variance.sqrt() / mean.max(1e-9)
    }

    fn latency_ms(&self, share: f64) -> f64 {
        let at = ((self.latencies.len() as f64 * share) as usize).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).map_or(0.0, |ns| *ns as f64 / 1e6)
    }

    fn rows(&self) -> [(&'static str, f64, usize); 14] {
        let seconds = self.per_second.len() as f64;
        let operations = |kind: usize| self.disk.by_size[kind].iter().sum::<u64>() as f64;
        let last = &self.per_second[self.per_second.len().saturating_sub(10)..];
        [
            ("iops", Self::mean(&self.per_second), 0),
            ("iops_first_5s", Self::mean(&self.per_second[..WINDOW.min(self.per_second.len())]), 0),
            ("iops_last_10s", Self::mean(last), 0),
            ("cv_5s", self.variation(), 3),
            ("hit_pct", self.hit_pct, 2),
            ("p50_ms", self.latency_ms(0.5), 3),
            ("p99_ms", self.latency_ms(0.99), 1),
            ("max_ms", self.latency_ms(1.0), 0),
            ("cache_bytes_written_per_byte", self.amplification, 2),
            ("destaged_per_s", self.destaged as f64 / seconds, 0),
            ("disk_reads_per_s", operations(0) / seconds, 0),
            ("disk_writes_per_s", operations(1) / seconds, 0),
            ("kib_per_disk_write", self.disk.bytes[1] as f64 / 1024.0 / operations(1).max(1.0), 0),
            ("arm_busy_pct", self.disk.busy_ns as f64 / 1e7 / seconds, 0),
        ]
    }

    /// Returns a line of the table.
    pub(crate) fn line(&self, job: &str, warm: u64) -> String {
        let cells = self.rows().map(|(_, value, digits)| format!("{value:.digits$}"));
        format!("| {job} | {warm} | {} |", cells.join(" | "))
    }

    /// Returns a line of JSON.
    pub(crate) fn json(&self, job: &str, warm: u64, seed: u64) -> String {
        let fields = self.rows().map(|(name, value, digits)| format!("\"{name}\": {value:.digits$}"));
        let sizes = |kind: usize| {
            let names = ["4k", "8k-32k", "36k-128k", "132k-512k", "more"];
            let pairs =
                names.iter().zip(self.disk.by_size[kind]).map(|(name, count)| format!("\"{name}\": {count}"));
            pairs.collect::<Vec<_>>().join(", ")
        };
        format!(
            "{{\"job\": \"{job}\", \"warm_up_ios\": {warm}, \"seed\": {seed}, {}, \"disk_reads_by_size\": {{{}}}, \
             \"disk_writes_by_size\": {{{}}}, \"per_second\": {:?}}}\n",
            fields.join(", "),
            sizes(0),
            sizes(1),
            self.per_second
        )
    }
}
