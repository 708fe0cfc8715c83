//! The result of the demo: a table of before and after, or JSON.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::Outcome;
use super::load::{DEPTH, Measured, READ_PCT};
use crate::screen::{self, Paint, bytes, count, nanos};

/// Returns the table and the verified facts.
pub(super) fn as_text(outcome: &Outcome) -> String {
    let paint = Paint::for_stdout();
    let Outcome { without, with, .. } = outcome;
    let mut table = screen::table(&["", "without cache", "with cache", "times better"], &[1, 2, 3]);
    let mut more = |name: &str, get: &dyn Fn(&Measured) -> f64, show: &dyn Fn(f64) -> String| {
        let (a, b) = (get(without), get(with));
        table.add_row([name.to_owned(), show(a), show(b), times(b / a)]);
    };
    let rounded = |number: f64| count(number.round() as u64);
    more("requests a second", &Measured::iops, &rounded);
    more("throughput, MB/s", &|m| m.bytes_per_second() / 1e6, &|number| format!("{number:.1}"));
    let mut less = |name: &str, of: &dyn Fn(&Measured) -> &Histogram<u64>, percentile: f64| {
        let (a, b) = (of(without).value_at_quantile(percentile), of(with).value_at_quantile(percentile));
        table.add_row([name.to_owned(), nanos(a), nanos(b), times(a as f64 / b as f64)]);
    };
    less("read, median", &|m| &m.reads, 0.5);
    less("read, 99 of 100 within", &|m| &m.reads, 0.99);
    less("write, median", &|m| &m.writes, 0.5);
    less("write, 99 of 100 within", &|m| &m.writes, 0.99);
    format!(
        "\n{table}\n\nKilled the daemon in the middle of writing, restarted in {} ms, nothing lost.\n{}\n",
        outcome.restart.as_millis(),
        paint.green(&format!(
            "Every byte was right: {} read back and compared.",
            bytes(outcome.verified_bytes)
        ))
    )
}

fn times(factor: f64) -> String {
    if !factor.is_finite() {
        return "-".into();
    }
    if factor < 9.95 { format!("{factor:.1}x") } else { format!("{}x", count(factor.round() as u64)) }
}

/// Returns everything as JSON.
pub(super) fn as_json(outcome: &Outcome) -> Value {
    let plan = &outcome.plan;
    json!({
        "ok": true,
        "workload": {
            "seed": plan.seed,
            "block_bytes": 4096,
            "read_pct": READ_PCT,
            "depth": DEPTH,
            "seconds": plan.seconds,
            "disk_bytes": plan.disk_bytes,
            "cache_bytes": plan.cache_bytes,
            "hot_bytes": plan.hot_bytes,
            "disk": "hdd-7200 (emulated)",
        },
        "without_cache": measured(&outcome.without),
        "with_cache": measured(&outcome.with),
        "iops_ratio": outcome.with.iops() / outcome.without.iops(),
        "kill": { "writes_in_doubt": outcome.in_doubt, "restart_ms": outcome.restart.as_millis() as u64 },
        "verified_bytes": outcome.verified_bytes,
    })
}

fn measured(measured: &Measured) -> Value {
    let percentile = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "requests": measured.requests(),
        "elapsed_s": measured.elapsed.as_secs_f64(),
        "iops": measured.iops(),
        "bytes_per_s": measured.bytes_per_second(),
        "read_p50_us": percentile(&measured.reads, 0.5),
        "read_p99_us": percentile(&measured.reads, 0.99),
        "write_p50_us": percentile(&measured.writes, 0.5),
        "write_p99_us": percentile(&measured.writes, 0.99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_short() {
        assert_eq!(
            [times(1.234), times(9.96), times(1234.5), times(f64::NAN)],
            ["1.2x", "10x", "1,235x", "-"]
        );
    }
}
