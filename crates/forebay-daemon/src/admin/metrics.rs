//! The statistics for Prometheus, as OpenMetrics text.
//!
//! Every metric is called `forebay_` and the name of the field (counters end in `_total`) and carries the label
//! `volume`. What follows from other numbers is left out: Prometheus computes rates and ratios over the time that the
//! question is about.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Snapshot;
use super::fields::{FIELDS, Kind};

/// What the answer to a scrape is.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of one scrape.
pub(super) fn text(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let volume = ("volume".into(), snapshot.volume.clone().into());
    let mut registry = Registry::with_prefix_and_labels("forebay", [volume].into_iter());
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut put = |name, help, metric: &dyn Encodes| metric.put(&mut encoder, name, help);
        for field in FIELDS {
            let value = (field.get)(&self.stats);
            match field.kind {
                Kind::Counter => put(field.name, field.help, &ConstCounter::new(value))?,
                Kind::Gauge => put(field.name, field.help, &ConstGauge::new(clamped(value)))?,
            }
        }
        put("size_bytes", "Size of the volume", &ConstGauge::new(clamped(self.size_bytes)))?;
        put("connections", "Clients connected", &ConstGauge::new(clamped(self.connections)))?;
        put("rss_bytes", "Memory of the process, in bytes", &ConstGauge::new(clamped(self.rss_bytes)))?;
        let uptime = self.uptime_ns as f64 / 1e9;
        put("uptime_seconds", "Time since the start", &ConstGauge::new(uptime))
    }
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
