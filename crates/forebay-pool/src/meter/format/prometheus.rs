//! The statistics for Prometheus, as OpenMetrics text.
//!
//! Every metric is called `forebay_` and the name of the field; counters end in `_total`. It
//! carries the labels `pool` and `volume`, as far as the report has them. Durations are histograms,
//! `forebay_latency_seconds` with the label `path`, since the start. What follows from other
//! numbers is left out: Prometheus computes rates, ratios and percentiles over the time that the
//! question is about. So is what nobody counts.

use super::super::{AGE_BOUNDS, CounterKind, DirtyAge, FIELDS, MemberState, Report};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// What the answer to a scrape is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of one scrape.
///
/// # Errors
/// Formatting failed, which writing to memory does not.
pub fn text(reports: Vec<Report>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("forebay");
    registry.register_collector(Box::new(Reports(reports)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// What one scrape tells: OpenMetrics wants all volumes of a metric in one place.
#[derive(Debug)]
struct Reports(Vec<Report>);

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A value of a gauge.
#[derive(Clone, Copy)]
enum Gauge {
    Whole(u64),
    Seconds(u64),
}

impl Collector for Reports {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let to = &mut encoder;
        for field in FIELDS {
            let value = |report: &Report| (field.get)(&report.counters);
            match field.kind {
                CounterKind::Gauge => {
                    self.gauge(to, field.name, field.help, |report| Gauge::Whole(value(report)))?
                }
                CounterKind::Counter | CounterKind::Time => {
                    self.counter(to, field.name, field.help, value)?
                }
            }
        }
        let whole = |value: fn(&Report) -> u64| move |report: &Report| Gauge::Whole(value(report));
        self.gauge(to, "size_bytes", "Size of the volume", whole(|report| report.about.size_bytes))?;
        self.gauge(to, "connections", "Clients connected", whole(|report| report.about.connections))?;
        self.gauge(
            to,
            "rss_bytes",
            "Memory of the process, in bytes",
            whole(|report| report.about.rss_bytes),
        )?;
        self.gauge(to, "uptime_seconds", "Time since the start", |report| {
            Gauge::Seconds(report.about.uptime_ns)
        })?;
        self.absent(to)?;
        self.members(to)?;
        self.devices_written(to)?;
        self.ages(to)?;
        self.latency(to)
    }
}

impl Reports {
    fn each(&self) -> impl Iterator<Item = (&Report, Labels<'_>)> {
        self.0.iter().map(|report| {
            let labels = [("pool", report.about.pool.as_str()), ("volume", report.about.volume.as_str())];
            (report, labels.into_iter().filter(|(_, value)| !value.is_empty()).collect())
        })
    }

    fn counter(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Report) -> u64,
    ) -> fmt::Result {
        let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (report, labels) in self.each() {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(report), None)?;
        }
        Ok(())
    }

    fn gauge(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Report) -> Gauge,
    ) -> fmt::Result {
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (report, labels) in self.each() {
            let mut metric = family.encode_family(&labels)?;
            match value(report) {
                Gauge::Whole(value) => metric.encode_gauge(&clamped(value))?,
                Gauge::Seconds(ns) => metric.encode_gauge(&(ns as f64 / 1e9))?,
            }
        }
        Ok(())
    }

    /// Of pools only.
    fn absent(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|report| report.about.absent_dirty_bytes.is_none()) {
            return Ok(());
        }
        let help = "Dirty data of volumes that are not attached, in bytes";
        let mut family = to.encode_descriptor("absent_dirty_bytes", help, None, MetricType::Gauge)?;
        for (report, labels) in self.each() {
            let Some(bytes) = report.about.absent_dirty_bytes else { continue };
            family.encode_family(&labels)?.encode_gauge(&clamped(bytes))?;
        }
        Ok(())
    }

    fn members(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|report| report.about.members.is_none()) {
            return Ok(());
        }
        let help = "Devices of a mirrored cache, by how they stand";
        let mut family = to.encode_descriptor("cache_members", help, None, MetricType::Gauge)?;
        for (report, labels) in self.each() {
            let Some(members) = report.about.members else { continue };
            for state in MemberState::ALL {
                let number = members.iter().filter(|member| **member == state).count();
                let labels = with(&labels, ("state", state.name()));
                family.encode_family(&labels)?.encode_gauge(&(number as i64))?;
            }
        }
        Ok(())
    }

    fn devices_written(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|report| report.about.devices_written.is_empty()) {
            return Ok(());
        }
        let help = "Bytes written to each cache device since the start, by cause";
        let mut family =
            to.encode_descriptor("cache_device_written_bytes", help, None, MetricType::Counter)?;
        for (report, labels) in self.each() {
            for (device, written) in &report.about.devices_written {
                let labels = with(&labels, ("device", device.as_str()));
                for (cause, bytes) in written.by_cause() {
                    let labels = with(&labels, ("cause", cause));
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
                }
            }
        }
        Ok(())
    }

    fn ages(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|report| report.dirty_age.is_none()) {
            return Ok(());
        }
        let age = |report: &Report| report.dirty_age.unwrap_or_default();
        let help = "Age of the oldest dirty block; 0 if nothing is dirty";
        self.gauge(to, "dirty_age_oldest_seconds", help, |report| {
            Gauge::Seconds(age(report).oldest_ns.unwrap_or(0))
        })?;
        let help = "Dirty blocks by age";
        let mut family = to.encode_descriptor("dirty_age_blocks", help, None, MetricType::Gauge)?;
        for (report, labels) in self.each() {
            let DirtyAge { blocks, .. } = age(report);
            for ((name, _), blocks) in AGE_BOUNDS.iter().zip(blocks) {
                let labels = with(&labels, ("age", name));
                family.encode_family(&labels)?.encode_gauge(&clamped(blocks))?;
            }
        }
        Ok(())
    }

    fn latency(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|report| report.latency.paths.is_empty()) {
            return Ok(());
        }
        let help = "Time that requests and device operations took, by path";
        let mut family = to.encode_descriptor("latency_seconds", help, None, MetricType::Histogram)?;
        for (report, labels) in self.each() {
            for path in &report.latency.paths {
                let bound = |ns| if ns == u64::MAX { f64::INFINITY } else { ns as f64 / 1e9 };
                let buckets: Vec<_> = path.buckets.iter().map(|(ns, count)| (bound(*ns), *count)).collect();
                let count = buckets.iter().map(|(_, count)| count).sum();
                let labels = with(&labels, ("path", path.path.name()));
                let mut metric = family.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(path.sum_ns as f64 / 1e9, count, &buckets, None)?;
            }
        }
        Ok(())
    }
}

fn with<'a>(labels: &Labels<'a>, label: (&'static str, &'a str)) -> Labels<'a> {
    labels.iter().copied().chain([label]).collect()
}

/// A gauge is signed.
fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
