//! The statistics of pools and volumes as metrics for Prometheus.
//!
//! Every metric is called `forebay_` and the name of the field, in base units: bytes for blocks and
//! seconds for nanoseconds, in the name too. Where `X_bytes` exists too, `X_blocks` is
//! `X_block_bytes`. Metrics of volumes have the labels `pool` and `volume`; metrics that only a
//! pool has (devices, log, space) have `pool` alone. No metric has both, so a sum over all series
//! of a metric is right. Durations are histograms, `forebay_latency_seconds` with the label `path`,
//! since the start; those of the cache device are the pool's. Numbers that follow from others are
//! left out: Prometheus computes rates, ratios and percentiles over the time range of the query.

use super::super::convert::is_of_volumes;
use super::super::{AGE_BOUNDS, CounterKind, FIELDS, Field, MemberState, Report};
use super::BLOCK;
use super::exposition::{Family, Labels};

/// The metrics of pools (with an empty volume name) and volumes.
#[must_use]
pub fn families(reports: &[Report]) -> Vec<Family> {
    let (volumes, pools): (Vec<_>, Vec<_>) =
        reports.iter().partition(|report| !report.about.volume.is_empty());
    let counted = |field| of_field(field, if is_of_volumes(field.name) { &volumes } else { &pools });
    let mut all: Vec<Family> = FIELDS.iter().map(counted).collect();
    let mut size = Family::gauge("forebay_volume_size_bytes", "Size of the volume");
    let mut users = Family::gauge("forebay_connections", "Clients connected to the volume");
    let mut uptime = Family::gauge("forebay_pool_uptime_seconds", "Time since the pool was opened");
    let mut connected = Family::gauge("forebay_pool_connections", "Clients connected to the pool");
    for report in &volumes {
        size.add(labels(report), report.about.size_bytes);
        users.add(labels(report), report.about.connections);
    }
    for report in &pools {
        uptime.add(labels(report), seconds(report.about.uptime_ns));
        connected.add(labels(report), report.about.connections);
    }
    all.extend([size, users, uptime, connected, members(&pools), devices_written(&pools)]);
    all.extend(ages(&volumes));
    all.push(latency(reports));
    all
}

/// Names of the pool and volume of a report, as far as it has them.
fn labels(report: &Report) -> Labels {
    let all = [("pool", &report.about.pool), ("volume", &report.about.volume)];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name, value.clone()))
        .collect()
}

fn with(mut labels: Labels, name: &'static str, value: &str) -> Labels {
    labels.push((name, value.into()));
    labels
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Unit of a field. Prometheus wants base units, so that queries need no factors.
#[derive(Clone, Copy)]
enum Unit {
    Own,
    Blocks,
    Nanoseconds,
}

/// Name of the metric of a field, its help, and the unit of the field.
fn described(field: &Field) -> (String, String, Unit) {
    let has = |name: &str| FIELDS.iter().any(|field| field.name == name);
    if let Some(stem) = field.name.strip_suffix("_blocks") {
        let bytes = format!("{stem}_bytes");
        let name = if has(&bytes) { format!("{stem}_block_bytes") } else { bytes };
        return (format!("forebay_{name}"), format!("{}, in bytes", field.help), Unit::Blocks);
    }
    let help = field.help.trim_end_matches(", in nanoseconds").to_owned();
    match field.name.strip_suffix("_ns") {
        Some(stem) => (format!("forebay_{stem}_seconds"), help, Unit::Nanoseconds),
        None => (format!("forebay_{}", field.name), help, Unit::Own),
    }
}

fn of_field(field: &Field, reports: &[&Report]) -> Family {
    let (name, help, unit) = described(field);
    let mut family = match field.kind {
        CounterKind::Gauge => Family::gauge(name, help),
        CounterKind::Counter | CounterKind::Time => Family::counter(name, help),
    };
    for report in reports {
        let value = (field.get)(&report.counters);
        match unit {
            Unit::Own => family.add(labels(report), value),
            Unit::Blocks => family.add(labels(report), value.saturating_mul(BLOCK)),
            Unit::Nanoseconds => family.add(labels(report), seconds(value)),
        }
    }
    family
}

fn members(pools: &[&Report]) -> Family {
    let mut family = Family::gauge("forebay_cache_members", "Devices of a mirrored cache, by state");
    for report in pools {
        let Some(members) = report.about.members else { continue };
        for state in MemberState::ALL {
            let number = members.iter().filter(|member| **member == state).count() as u64;
            family.add(with(labels(report), "state", state.name()), number);
        }
    }
    family
}

fn devices_written(pools: &[&Report]) -> Family {
    let help = "Bytes written to each cache device since the start, by cause";
    let mut family = Family::counter("forebay_cache_device_written_bytes", help);
    for report in pools {
        for (device, written) in &report.about.devices_written {
            for (cause, bytes) in written.by_cause() {
                let of_device = with(labels(report), "device", device);
                family.add(with(of_device, "cause", cause), bytes);
            }
        }
    }
    family
}

fn ages(volumes: &[&Report]) -> [Family; 2] {
    let mut oldest = Family::gauge(
        "forebay_dirty_age_oldest_seconds",
        "Age of the oldest dirty block; 0 if nothing is dirty",
    );
    let mut dirty = Family::gauge("forebay_dirty_age_bytes", "Dirty blocks by age, in bytes");
    for report in volumes {
        let Some(age) = &report.dirty_age else { continue };
        oldest.add(labels(report), seconds(age.oldest_ns.unwrap_or(0)));
        for ((name, _), number) in AGE_BOUNDS.iter().zip(age.blocks) {
            dirty.add(with(labels(report), "age", name), number.saturating_mul(BLOCK));
        }
    }
    [oldest, dirty]
}

fn latency(reports: &[Report]) -> Family {
    let help = "Time that requests and device operations took, by path";
    let mut family = Family::histogram("forebay_latency_seconds", help);
    for report in reports {
        for path in &report.latency.paths {
            let bound = |ns| if ns == u64::MAX { f64::INFINITY } else { seconds(ns) };
            let buckets: Vec<_> = path.buckets.iter().map(|(ns, count)| (bound(*ns), *count)).collect();
            let labels = with(labels(report), "path", path.path.name());
            family.add_histogram(&labels, &buckets, seconds(path.sum_ns));
        }
    }
    family
}
