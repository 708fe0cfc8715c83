//! Results of the simulated variants: a line for each, then latencies by the path of the requests.

use forebay_whatif::{DiskKind, Figures, MadeTrace, Pace, PathFigures, RequestOutcome};
use serde_json::{Value, json};

use super::variants::{Common, Variant};
use crate::screen::{bytes, count, nanos, uptime, wrapped};
use crate::table::{Column, Table, Width};

type Tried<'a> = [(&'a Variant, &'a Figures)];

/// Returns a short name of a request's path.
fn path_name(path: RequestOutcome) -> &'static str {
    match path {
        RequestOutcome::ReadHit => "read hit",
        RequestOutcome::ReadMiss => "read miss",
        RequestOutcome::ReadBypass => "read bypass",
        RequestOutcome::Write => "write",
        RequestOutcome::WriteThrough => "write through",
        RequestOutcome::WritePast => "write past",
        RequestOutcome::Flush => "flush",
        RequestOutcome::Zero => "zero, discard",
        RequestOutcome::Prefetch => "prefetch",
        RequestOutcome::Refused => "refused",
    }
}

fn is_read(path: RequestOutcome) -> bool {
    matches!(path, RequestOutcome::ReadHit | RequestOutcome::ReadMiss | RequestOutcome::ReadBypass)
}

fn is_write(path: RequestOutcome) -> bool {
    matches!(path, RequestOutcome::Write | RequestOutcome::WriteThrough | RequestOutcome::WritePast)
}

fn mean(figures: &PathFigures) -> String {
    if figures.count() == 0 { "-".into() } else { nanos(figures.mean_ns()) }
}

fn pct(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{share:.1} %"))
}

/// Returns the text for display.
pub(super) fn text(trace: &MadeTrace, common: &Common, tried: &Tried<'_>, width: Width) -> String {
    let mut text = wrapped(&heading(trace, common), width) + "\n";
    text += &(summary(tried).within(width) + "\n");
    text += &(ways(tried).within(width) + "\n");
    for (number, (_, figures)) in tried.iter().enumerate() {
        if let Some(note) = note(common, figures) {
            text += &(wrapped(&format!("{}: {note}", number + 1), width) + "\n");
        }
    }
    text
}

fn heading(trace: &MadeTrace, common: &Common) -> String {
    let requests = count(trace.requests().len() as u64);
    let pace = match common.pace {
        Pace::AsFast => format!("as fast as they are answered, {} in flight", common.depth),
        Pace::Recorded { speed } => {
            let lasts = uptime(trace.lasts_ns() / 1_000_000_000);
            let times = if speed == 1.0 { "as recorded".into() } else { format!("{speed} times as fast") };
            format!("in {lasts}, {times}, at most {} in flight", common.depth)
        }
    };
    format!("{requests} requests {pace}; volume {}", bytes(common.volume_bytes))
}

fn summary(tried: &Tried<'_>) -> Table {
    let several = tried.iter().any(|(variant, _)| !variant.differs.is_empty());
    let mut columns = vec![Column::number("", 0), Column::number("cache", 0)];
    if several {
        columns.push(Column::text("settings", 0));
    }
    columns.extend([
        Column::number("hits", 0),
        Column::number("read", 0),
        Column::number("p99", 4),
        Column::number("write", 1),
        Column::number("to flash", 2),
        Column::number("from disk", 5),
        Column::number("to disk", 3),
        Column::number("dirty", 6),
    ]);
    let mut table = Table::new(columns);
    for (number, (variant, figures)) in tried.iter().enumerate() {
        let (reads, writes) = (figures.together(is_read), figures.together(is_write));
        let mut row = vec![(number + 1).to_string(), bytes(variant.plan.cache_bytes)];
        if several {
            row.push(variant.differs.clone());
        }
        let p99 =
            if reads.count() == 0 { "-".into() } else { nanos(reads.latency_ns.value_at_quantile(0.99)) };
        row.extend([
            pct(figures.hit_pct()),
            mean(&reads),
            p99,
            mean(&writes),
            bytes(figures.stats.cache_written_bytes),
            bytes(figures.stats.backing_read_bytes),
            bytes(figures.stats.backing_written_bytes),
            bytes(figures.stats.dirty_blocks * 4096),
        ]);
        table.add_row(row);
    }
    table
}

fn ways(tried: &Tried<'_>) -> Table {
    let mut table = Table::new([
        Column::number("", 0),
        Column::text("requests", 0),
        Column::number("number", 1),
        Column::number("mean", 0),
        Column::number("p50", 0),
        Column::number("p99", 0),
    ]);
    for (number, (_, figures)) in tried.iter().enumerate() {
        for path in &figures.paths {
            let at = |quantile| nanos(path.latency_ns.value_at_quantile(quantile));
            let (mean, name) = (nanos(path.mean_ns()), path_name(path.path));
            table.add_row([
                (number + 1).to_string(),
                name.into(),
                count(path.count()),
                mean,
                at(0.5),
                at(0.99),
            ]);
        }
    }
    table
}

/// Returns a note on the validity of a variant's figures.
fn note(common: &Common, figures: &Figures) -> Option<String> {
    let mut said = Vec::new();
    if figures.waited > 0 && common.pace != Pace::AsFast {
        said.push(format!(
            "{} requests came while {} were in flight, and waited for up to {}: the devices do not keep up \
             with the trace",
            count(figures.waited),
            common.depth,
            nanos(figures.waited_ns_max)
        ));
    }
    if figures.failed > 0 {
        said.push(format!("{} requests failed", count(figures.failed)));
    }
    let limits: Vec<String> = figures
        .limits
        .iter()
        .filter(|(_, share)| *share >= 1.0)
        .take(3)
        .map(|(words, share)| format!("{words} {share:.0} %"))
        .collect();
    if figures.stats.destage_writes > 0 && !limits.is_empty() {
        said.push(format!("destage was limited by: {}", limits.join(", ")));
    }
    (!said.is_empty()).then(|| said.join("; "))
}

/// Returns the JSON document.
pub(super) fn document(trace: &MadeTrace, common: &Common, tried: &Tried<'_>) -> Value {
    let disk = match common.disk {
        DiskKind::Hdd7200 => json!("hdd-7200"),
        DiskKind::Constant(ns) => json!({ "ns": ns }),
    };
    let speed = if let Pace::Recorded { speed } = common.pace { Some(speed) } else { None };
    json!({
        "requests": trace.requests().len(), "lasts_ns": trace.lasts_ns(), "end_bytes": trace.end_bytes,
        "volume_bytes": common.volume_bytes, "speed": speed, "depth": common.depth, "disk": disk,
        "variants": tried.iter().map(|(variant, figures)| one(variant, figures)).collect::<Vec<_>>(),
    })
}

fn one(variant: &Variant, figures: &Figures) -> Value {
    let settings: serde_json::Map<String, Value> =
        variant.settings.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let stats = &figures.stats;
    let latencies: serde_json::Map<String, Value> = figures
        .paths
        .iter()
        .map(|path| (path_name(path.path).replace([' ', ','], "_").replace("__", "_"), latency(path)))
        .collect();
    json!({
        "cache_bytes": variant.plan.cache_bytes, "settings": settings,
        "hit_pct": figures.hit_pct(),
        "read_hit_blocks": stats.read_hit_blocks, "read_miss_blocks": stats.read_miss_blocks,
        "read_bypass_blocks": stats.read_bypass_blocks,
        "read": latency(&figures.together(is_read)), "write": latency(&figures.together(is_write)),
        "latency": latencies,
        "cache_written_bytes": stats.cache_written_bytes, "cache_read_bytes": stats.cache_read_bytes,
        "backing_read_bytes": stats.backing_read_bytes, "backing_written_bytes": stats.backing_written_bytes,
        "filled_blocks": stats.filled_blocks, "fill_no_room_blocks": stats.fill_no_room_blocks,
        "evicted_blocks": stats.evicted_blocks, "dirty_bytes": stats.dirty_blocks * 4096, "cached_bytes": stats.cached_blocks * 4096,
        "curve": figures.curve.points.iter().map(|point| json!({
            "cache_bytes": variant.plan.cache_bytes * point.eighths / 8, "is_upper_bound": point.is_upper_bound,
            "miss_pct": point.miss_ratio().map(|ratio| ratio * 100.0),
        })).collect::<Vec<_>>(),
        "took_ns": figures.took_ns, "requests": figures.requests, "failed": figures.failed,
        "waited": figures.waited, "waited_ns_max": figures.waited_ns_max,
        "destage_limited_by": figures.limits.iter().map(|(words, share)| json!({ "limit": words, "pct": share })).collect::<Vec<_>>(),
    })
}

fn latency(path: &PathFigures) -> Value {
    let at = |quantile| path.latency_ns.value_at_quantile(quantile);
    json!({ "count": path.count(), "mean_ns": path.mean_ns(), "p50_ns": at(0.5), "p99_ns": at(0.99) })
}
