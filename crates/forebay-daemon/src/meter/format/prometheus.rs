//! The statistics for Prometheus, as OpenMetrics text.
//!
//! Every metric is called `forebay_` and the name of the field (counters end in `_total`) and carries the labels `volume`
//! and, if there is one, `pool`. Durations are histograms, `forebay_latency_seconds` with the label `path`, since the
//! start. What follows from other numbers is left out: Prometheus computes rates, ratios and percentiles over the time
//! that the question is about. So is what nobody counts.

use super::super::convert::is_counted;
use super::super::{AGE_BOUNDS, DirtyAge, FIELDS, Kind, MeterSnapshot, Report};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::fmt;

/// What the answer to a scrape is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of one scrape.
///
/// # Errors
/// Formatting failed, which writing to memory does not.
pub fn text(report: Report) -> Result<String, fmt::Error> {
    let label = |name: &'static str, value: &str| (Cow::from(name), Cow::from(value.to_owned()));
    let mut labels = vec![label("volume", &report.about.volume)];
    if !report.about.pool.is_empty() {
        labels.insert(0, label("pool", &report.about.pool));
    }
    let mut registry = Registry::with_prefix_and_labels("forebay", labels.into_iter());
    registry.register_collector(Box::new(report));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut put = |name, help, metric: &dyn Encodes| metric.put(&mut encoder, name, help);
        for field in FIELDS.iter().filter(|field| is_counted(field.name)) {
            let value = (field.get)(&self.counters);
            match field.kind {
                Kind::Gauge => put(field.name, field.help, &gauge(value))?,
                Kind::Counter | Kind::Time => put(field.name, field.help, &ConstCounter::new(value))?,
            }
        }
        let about = &self.about;
        put("size_bytes", "Size of the volume", &gauge(about.size_bytes))?;
        put("connections", "Clients connected", &gauge(about.connections))?;
        put("rss_bytes", "Memory of the process, in bytes", &gauge(about.rss_bytes))?;
        let uptime = ConstGauge::new(about.uptime_ns as f64 / 1e9);
        put("uptime_seconds", "Time since the start", &uptime)?;
        if let Some(age) = &self.dirty_age {
            ages(age, &mut encoder)?;
        }
        latency(&self.latency, &mut encoder)
    }
}

fn ages(age: &DirtyAge, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let oldest = ConstGauge::new(age.oldest_ns.unwrap_or(0) as f64 / 1e9);
    oldest.put(
        encoder,
        "dirty_age_oldest_seconds",
        "Age of the oldest dirty block; 0 if nothing is dirty",
    )?;
    let help = "Dirty blocks by age";
    let mut family = encoder.encode_descriptor("dirty_age_blocks", help, None, MetricType::Gauge)?;
    for ((name, _), blocks) in AGE_BOUNDS.iter().zip(age.blocks) {
        family.encode_family(&[("age", *name)])?.encode_gauge(&clamped(blocks))?;
    }
    Ok(())
}

fn latency(latency: &MeterSnapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if latency.paths.is_empty() {
        return Ok(());
    }
    let help = "Time that requests and device operations took, by path";
    let mut family = encoder.encode_descriptor("latency_seconds", help, None, MetricType::Histogram)?;
    for path in &latency.paths {
        let bound = |ns| if ns == u64::MAX { f64::INFINITY } else { ns as f64 / 1e9 };
        let buckets: Vec<(f64, u64)> = path.buckets.iter().map(|(ns, count)| (bound(*ns), *count)).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let labels = [("path", path.path.name())];
        let sum = path.sum_ns as f64 / 1e9;
        family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(clamped(value))
}

/// A gauge is signed.
fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Something with a value to write under a name.
trait Encodes {
    fn put(&self, to: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result;
}

impl<M: EncodeMetric> Encodes for M {
    fn put(&self, to: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
        self.encode(to.encode_descriptor(name, help, None, self.metric_type())?)
    }
}
