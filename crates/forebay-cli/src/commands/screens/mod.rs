//! Screens at several widths, compared with golden files. `UPDATE_GOLDEN=1` rewrites them.

pub(super) mod fixture;

use std::collections::BTreeMap;
use std::path::Path;

use forebay_admin::{LossInfo, PoolInfo, SettingInfo, VolumeInfo};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::mounts::Mounts;
use super::usage::Usage;
use super::{alarms, iostat, jobs, list, pool, settings, stats, status, top, volume};
use crate::job::Job;
use crate::paint::Paint;
use crate::screen::Width;
use crate::table::widest;

/// Widths of terminals, and sizes of the screen of `forebay top`.
const WIDTHS: [u16; 4] = [50, 80, 120, 200];
const TOPS: [(u16, u16); 4] = [(50, 20), (80, 24), (120, 40), (200, 60)];

/// Returns all screens except `top`, with the command that shows each.
fn screens(width: Width) -> Vec<(&'static str, String)> {
    let daemon = include_str!("../../../../forebay-pool/tests/golden/stats.json");
    let statistics: Value = serde_json::from_str(daemon).unwrap();
    let losses: Vec<LossInfo> = read(fixture::losses());
    let jobs_there: Vec<Job> = read(fixture::jobs());
    let tunables: BTreeMap<String, SettingInfo> = read(fixture::settings());
    let line = |text: String| text + "\n";
    vec![
        ("forebay status", state(&fixture::rich(), width)),
        ("forebay list", list::text(&listed(), width)),
        ("forebay stats db", stats::text(&statistics, false, width)),
        (
            "forebay pool list",
            line(pool::table(&read::<Vec<PoolInfo>>(fixture::rich()["pools"].take())).within(width)),
        ),
        ("forebay pool show fast", pool::show(&read(fixture::fast()), width)),
        ("forebay pool show spare", pool::show(&read(fixture::closed()), width)),
        (
            "forebay volume list",
            line(volume::table(&read::<Vec<VolumeInfo>>(fixture::volumes())).within(width)),
        ),
        (
            "forebay volume show database-primary",
            volume::show(&read(fixture::database()), &Usage::default(), &losses, fixture::NOW_UNIX_S, width),
        ),
        ("forebay get database-primary", line(settings::table(&tunables).within(width))),
        ("forebay jobs", line(jobs::table(&jobs_there).within(width))),
        ("forebay jobs j17", jobs::show(&jobs_there[0], width)),
        ("forebay alarms", alarms::text(read(fixture::alarms()), (50, "forebay alarms --all"), width)),
        ("forebay stats db --interval 1s", stats::interval_example(&statistics, width)),
        ("forebay iostat 5", iostat::example(width)),
        ("forebay stats db --all", stats::text(&statistics, true, width)),
    ]
}

fn listed() -> Vec<list::Row> {
    let volumes: Vec<VolumeInfo> = read(fixture::volumes());
    let rates = json!({ "volume_rates": { "database-primary": { "read_hit_ratio": 0.931 } } });
    volumes.iter().map(|volume| list::Row::of(volume, &rates, &Mounts::default())).collect()
}

fn state(all: &Value, width: Width) -> String {
    status::text(all, fixture::NOW_UNIX_S, Paint::none(), width).unwrap()
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn compare(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text == golden, "{}: UPDATE_GOLDEN=1 writes it again", path.display());
}

#[test]
fn every_screen_is_as_agreed_at_every_width() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for width in WIDTHS {
        let screens = screens(Width::of(width));
        let all: String = screens.iter().map(|(command, text)| format!("$ {command}\n{text}\n")).collect();
        compare(&golden.join(format!("screens-{width}.txt")), &all);
    }
    for (width, height) in TOPS {
        compare(&golden.join(format!("top-{width}x{height}.txt")), &top::example(width, height));
    }
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in 40..=220 {
        let nothing = json!({});
        let empty = [
            ("status", state(&fixture::empty(), Width::of(width))),
            ("stats", stats::text(&nothing, true, Width::of(width))),
        ];
        for (command, text) in screens(Width::of(width)).into_iter().chain(empty) {
            for line in text.lines() {
                assert!(widest(line) <= width, "{command} at {width}: {line}");
            }
        }
    }
}

#[test]
fn many_alarms_fit_a_screen_worst_first() {
    let all = fixture::many_alarms(500);
    for width in [40, 80, 220] {
        let width = Width::of(width);
        let text = alarms::text(read(all["alarms"].clone()), (50, "forebay alarms --all"), width);
        assert!(text.contains("and 450 more:") && !text.contains("warns"), "{text}");
        let (first, last) = (text.find("a500").unwrap(), text.find("a353").unwrap());
        assert!(first < last, "the newest of the gravest comes first:\n{text}");
        let whole = alarms::text(read(all["alarms"].clone()), (usize::MAX, ""), width);
        assert!(whole.contains("a1 ") && !whole.contains("more:"));

        let text = state(&all, width);
        for part in ["500 alarms", "and 490 more:", "64 missing", "and 44 more:"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("warns"), "{text}");
    }
}

#[test]
fn numbers_are_whole_at_every_width() {
    for width in WIDTHS {
        let text = state(&fixture::rich(), Width::of(width));
        for number in ["12.0 GiB", "9.0 GiB", "3.0 GiB", "123.0 MiB"] {
            assert!(text.contains(number), "{number} at {width}:\n{text}");
        }
    }
}

#[test]
fn missing_parts_are_reported_once() {
    let text = state(&fixture::rich(), Width::of(200));
    for part in ["3 missing", "pool spare", "No such file or directory", "3.0 GiB", "2 alarms"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
}
