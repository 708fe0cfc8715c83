//! One JSON object: numbers since the start under their own names, and nested objects for windows,
//! latencies and ages.
//!
//! - `NAME`: counters since the start, gauges, and numbers derived from them;
//! - `windows.WINDOW`: `span_s`, `NAME_per_s` of every counter, and numbers derived from the
//!   window's own counts;
//! - `latency.PATH.WINDOW`: `count`, `per_s`, `bytes_per_s`, `mean_us`, `p50_us` ... `max_us`;
//! - `dirty_age`: `oldest_s` and blocks by age.
//!
//! `null` stands for unknown or undefined values, such as an average of nothing. Paths that were
//! never taken are left out.

use super::super::{
    AGE_BOUNDS, About, CounterKind, Counters, DERIVED, Derived, DirtyAge, FIELDS, PathSnapshot, Rates,
    Report, Summary, Window,
};
use super::BLOCK;
use serde_json::{Map, Value, json};

/// Properties that are not counted: name, help and value.
fn about(about: &About) -> [(&'static str, &'static str, Value); 9] {
    [
        ("pool", "Name of the pool; empty if there is none", about.pool.clone().into()),
        ("volume", "Name of the volume", about.volume.clone().into()),
        ("mode", "How the volume uses the cache", about.mode.into()),
        ("size_bytes", "Size of the volume", about.size_bytes.into()),
        ("uptime_ns", "Time since the start, in nanoseconds", about.uptime_ns.into()),
        ("connections", "Clients connected", about.connections.into()),
        ("io_engine", "How operations reach the kernel", about.io_engine.into()),
        ("rss_bytes", "Memory of the process, in bytes", about.rss_bytes.into()),
        ("limited_by", "What limits the speed of destage; null if unknown", about.limited_by.into()),
    ]
}

/// The report as one object.
pub fn object(report: &Report) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, _, value) in about(&report.about) {
        object.insert(name.into(), value);
    }
    for field in FIELDS {
        object.insert(field.name.into(), (field.get)(&report.counters).into());
    }
    for derived in DERIVED {
        object.insert(derived.name.into(), derive(derived, &report.counters));
    }
    let windows = Window::ALL.iter().zip(&report.rates);
    let windows: Map<String, Value> =
        windows.map(|(window, rates)| (window.name().into(), window_object(rates))).collect();
    object.insert("windows".into(), windows.into());
    let paths = &report.latency.paths;
    let latency: Map<String, Value> =
        paths.iter().map(|path| (path.path.name().into(), path_object(path))).collect();
    object.insert("latency".into(), latency.into());
    object.insert("dirty_age".into(), report.dirty_age.as_ref().map_or(Value::Null, age_object));
    object
}

fn derive(derived: &Derived, counters: &Counters) -> Value {
    (derived.get)(counters).into()
}

fn window_object(rates: &Rates) -> Value {
    let mut object = Map::new();
    object.insert("span_s".into(), (rates.span_ns as f64 / 1e9).into());
    for field in FIELDS.iter().filter(|field| field.kind == CounterKind::Counter) {
        object.insert(field.per_s.into(), rates.per_second((field.get)(&rates.counted)).into());
    }
    let destaged = rates.per_second(rates.counted.destaged_blocks * BLOCK);
    object.insert("destaged_bytes_per_s".into(), destaged.into());
    for derived in DERIVED.iter().filter(|derived| derived.name != "dirty_ratio") {
        object.insert(derived.name.into(), derive(derived, &rates.counted));
    }
    object.into()
}

fn path_object(path: &PathSnapshot) -> Value {
    let windows = Window::ALL.iter().zip(&path.windows);
    let mut object: Value =
        windows.map(|(window, summary)| (window.name().to_owned(), summary_object(summary))).collect();
    // Exact, unlike the mean: differences over an interval need it.
    object[Window::Total.name()]["sum_ns"] = path.sum_ns.into();
    object
}

fn summary_object(summary: &Summary) -> Value {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let times = summary.times;
    json!({
        "count": summary.count,
        "per_s": summary.per_s,
        "bytes_per_s": summary.bytes_per_s,
        "mean_us": us(times.map(|times| times.mean_ns)),
        "p50_us": us(times.map(|times| times.p50_ns)),
        "p95_us": us(times.map(|times| times.p95_ns)),
        "p99_us": us(times.map(|times| times.p99_ns)),
        "p999_us": us(times.map(|times| times.p999_ns)),
        "max_us": us(times.map(|times| times.max_ns)),
    })
}

fn age_object(age: &DirtyAge) -> Value {
    let classes = AGE_BOUNDS.iter().zip(age.blocks);
    let blocks: Map<String, Value> =
        classes.map(|((name, _), blocks)| ((*name).to_owned(), blocks.into())).collect();
    json!({ "oldest_s": age.oldest_ns.map(|ns| ns as f64 / 1e9), "blocks": blocks })
}

/// The properties of [`object`] as a JSON schema, with a sentence for each.
pub fn schema() -> Map<String, Value> {
    let mut properties = Map::new();
    let mut put = |name: &str, kind: Value, help: String| {
        properties.insert(name.into(), json!({ "type": kind, "description": help }));
    };
    for (name, help, value) in about(&About::default()) {
        let kind = match (name, value) {
            ("limited_by", _) => json!(["string", "null"]),
            (_, Value::String(_)) => "string".into(),
            _ => "integer".into(),
        };
        put(name, kind, help.into());
    }
    for field in FIELDS {
        let since = if field.kind == CounterKind::Gauge { ", now" } else { ", since the start" };
        put(field.name, "integer".into(), format!("{}{since}", field.help));
    }
    for derived in DERIVED {
        put(derived.name, json!(["number", "null"]), derived.help.into());
    }
    let names = Window::ALL.map(Window::name).join(", ");
    let windows = format!("Rates and ratios by window: {names}. Names of rates end in _per_s");
    put("windows", "object".into(), windows);
    let latency =
        format!("Durations by path and window ({names}), in microseconds; paths never taken are left out");
    put("latency", "object".into(), latency);
    put("dirty_age", json!(["object", "null"]), "Dirty blocks by age, and the age of the oldest".into());
    properties
}
