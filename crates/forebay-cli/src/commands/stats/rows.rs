//! Statistics of each interval in one line, for watching.

use std::time::Duration;

use serde_json::Value;

use crate::columns::{Cell, Column, Columns};
use crate::screen::{self, Width};

const COLUMNS: [Column; 10] = [
    ("reads/s", 11, 0),
    ("read", 9, 1),
    ("hits", 8, 0),
    ("writes/s", 11, 0),
    ("write", 9, 2),
    ("flushes/s", 11, 7),
    ("dirty", 11, 3),
    ("destage/s", 11, 4),
    ("disk r/s", 11, 5),
    ("disk w/s", 11, 6),
];

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or(0)
}

/// A figure of a path of requests since the start.
fn total(object: &Value, path: &str, figure: &str) -> u64 {
    number(&object["latency"][path]["total"], figure)
}

/// Returns one line with the activity between two responses of the daemon.
pub(super) fn line(heading: bool, (old, new): (&Value, &Value), took: Duration, width: Width) -> String {
    let difference = |name| number(new, name).saturating_sub(number(old, name));
    let rate = |name| (difference(name) as f64 / took.as_secs_f64()) as u64;
    // Of the requests that were answered: those that arrived can still wait.
    let mean = |paths: [&str; 3]| {
        let sum = |figure| {
            paths.iter().map(|path| total(new, path, figure).saturating_sub(total(old, path, figure))).sum()
        };
        let (time, count): (u64, u64) = (sum("sum_ns"), sum("count"));
        Cell::nanos(time.checked_div(count))
    };
    let many = |name| Cell::count(rate(name));
    let blocks = |blocks: u64| Cell::bytes(blocks.saturating_mul(4096));
    let (hits, misses) = (difference("read_hit_blocks"), difference("read_miss_blocks"));
    let cells = [
        many("reads"),
        mean(["read_hit", "read_miss", "read_bypass"]),
        Cell::from(screen::percent(hits, hits.saturating_add(misses))),
        many("writes"),
        mean(["write", "write_through", "write_past"]),
        many("flushes"),
        blocks(number(new, "dirty_blocks")),
        blocks(rate("destaged_blocks")),
        many("backing_reads"),
        many("backing_writes"),
    ];
    let columns = Columns::fitting(&COLUMNS, width);
    let heading = if heading { columns.heading() } else { String::new() };
    heading + &columns.line(&cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::widest;
    use serde_json::json;

    #[test]
    fn an_interval_shows_rates_and_not_sums() {
        let old = json!({ "reads": 100, "read_hit_blocks": 10, "read_miss_blocks": 10 });
        let new = json!({
            "reads": 300, "latency": { "read_hit": { "total": { "count": 200, "sum_ns": 2_000_000 } } }, "read_hit_blocks": 13, "read_miss_blocks": 11, "dirty_blocks": 256,
        });
        let of = |heading, width| line(heading, (&old, &new), Duration::from_secs(2), width);
        let expected = "    \
    reads/s     read    hits   writes/s    write  flushes/s      dirty  destage/s   disk r/s   disk w/s
        100    10 µs  75.0 %          0        -          0    1.0 MiB        0 B          0          0
";
        assert_eq!(of(true, Width::unlimited()), expected);
        assert_eq!(of(false, Width::of(120)), expected.split_once('\n').unwrap().1);
        let narrow = "\
no room for: dirty, destage/s, disk r/s,
disk w/s, flushes/s, write
    reads/s     read    hits   writes/s
        100    10 µs  75.0 %          0
";
        let words = |text: &str| {
            text.split([' ', ',', '\n'])
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect::<std::collections::BTreeSet<_>>()
        };
        let seen = of(true, Width::of(40));
        assert_eq!(
            seen.lines().rev().take(2).collect::<Vec<_>>(),
            narrow.lines().rev().take(2).collect::<Vec<_>>()
        );
        assert_eq!(words(&seen), words(narrow));
    }

    #[test]
    fn columns_of_any_width_have_whole_numbers() {
        let longest = json!({ "total": { "count": 1, "sum_ns": u64::MAX } });
        let most = json!({
            "reads": u64::MAX, "latency": { "read_hit": longest, "write": longest }, "read_hit_blocks": u64::MAX, "read_miss_blocks": u64::MAX,
            "writes": 1, "flushes": 99_999_999, "dirty_blocks": u64::MAX,
            "destaged_blocks": u64::MAX, "backing_reads": 100_000_000, "backing_writes": 12_345_678,
        });
        for columns in 40..=220 {
            let width = Width::of(columns);
            let quiet = line(true, (&json!({}), &json!([])), Duration::from_secs(1), width);
            let busy = line(false, (&json!({}), &most), Duration::from_secs(1), width);
            let all: Vec<&str> = quiet.lines().chain(busy.lines()).collect();
            assert!(all.iter().all(|line| widest(line) <= columns), "{columns}:\n{quiet}{busy}");
            let rows: Vec<_> = all[all.len() - 3..].iter().map(|line| line.chars().count()).collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{columns}:\n{quiet}{busy}");
            for (name, _, rank) in COLUMNS {
                let words = quiet.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(words.contains(name), "{name} is neither shown nor named at {columns}");
                let heading = all[all.len() - 3];
                assert!(rank > 0 || heading.contains(name), "{name} is left out at {columns}");
            }
            assert!(busy.contains("1.84e19") && busy.contains("100.0 %"), "{columns}: {busy}");
            if columns >= 103 {
                for whole in ["99,999,999", "12,345,678", "1.00e8", "2e10 s", "16.0 EiB"] {
                    assert!(busy.contains(whole), "{whole}: {busy}");
                }
                assert!(!quiet.contains("no room for"));
            }
        }
    }

    #[test]
    fn numbers_that_are_missing_do_no_harm() {
        assert!(line(true, (&json!({}), &json!([])), Duration::ZERO, Width::of(80)).contains("reads/s"));
    }
}
