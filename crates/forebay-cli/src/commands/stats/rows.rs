//! Statistics of each interval in one line, for watching.

use std::time::Duration;

use serde_json::Value;

use crate::screen::{self, bytes, count, nanos};

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or(0)
}

/// One line of what happened between two answers of the daemon.
pub(super) fn line(heading: bool, old: &Value, new: &Value, took: Duration) -> String {
    let difference = |name| number(new, name).saturating_sub(number(old, name));
    let rate = |name| (difference(name) as f64 / took.as_secs_f64()) as u64;
    let mean = |time, operations| match difference(operations) {
        0 => "-".into(),
        operations => nanos(difference(time) / operations),
    };
    let (hits, misses) = (difference("read_hit_blocks"), difference("read_miss_blocks"));
    let cells = [
        ("reads/s", count(rate("reads"))),
        ("read", mean("read_time_ns", "reads")),
        ("hits", screen::percent(hits, hits + misses)),
        ("writes/s", count(rate("writes"))),
        ("write", mean("write_time_ns", "writes")),
        ("flushes/s", count(rate("flushes"))),
        ("dirty", bytes(number(new, "dirty_blocks").saturating_mul(4096))),
        ("destage/s", bytes(rate("destaged_blocks").saturating_mul(4096))),
        ("disk r/s", count(rate("backing_reads"))),
        ("disk w/s", count(rate("backing_writes"))),
    ];
    let mut text = String::new();
    if heading {
        text += &row(cells.iter().map(|(name, _)| *name));
    }
    text + &row(cells.iter().map(|(_, cell)| cell.as_str()))
}

fn row<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let mut text: String = cells.map(|cell| format!("{cell:>11}")).collect();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_interval_shows_rates_and_not_sums() {
        let old = json!({ "reads": 100, "read_time_ns": 0, "read_hit_blocks": 10, "read_miss_blocks": 10 });
        let new = json!({
            "reads": 300, "read_time_ns": 2_000_000, "read_hit_blocks": 13, "read_miss_blocks": 11, "dirty_blocks": 256,
        });
        let text = line(true, &old, &new, Duration::from_secs(2));
        let expected = "    \
    reads/s       read       hits   writes/s      write  flushes/s      dirty  destage/s   disk r/s   disk w/s
        100      10 µs     75.0 %          0          -          0    1.0 MiB        0 B          0          0
";
        assert_eq!(text, expected);
        assert_eq!(line(false, &old, &new, Duration::from_secs(2)), expected.split_once('\n').unwrap().1);
    }

    #[test]
    fn numbers_that_are_missing_do_no_harm() {
        assert!(line(true, &json!({}), &json!([]), Duration::ZERO).contains("reads/s"));
    }
}
