//! Compares the screen as text with golden files, and tests the effect of keys. `UPDATE_GOLDEN=1`
//! rewrites the files.

use super::super::feed::Snapshot;
use super::super::state::{Action, State};
use super::draw;
use crate::client;
use forebay_admin::AdviceInfo;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn stats(reads: u64, hits: f64, dirty: f64) -> Value {
    let window = json!({ "reads_per_s": reads, "writes_per_s": reads / 4, "read_hit_ratio": hits,
        "destaged_bytes_per_s": 12_582_912 });
    let latency =
        |p50: f64| json!({ "10s": { "count": 9, "per_s": 1234.4, "p50_us": p50, "p99_us": p50 * 9.0 } });
    json!({ "windows": { "1s": window }, "dirty_ratio": dirty, "dirty_age": { "oldest_s": 62.0 },
        "latency": { "read_hit": latency(80.0), "read_miss": latency(5100.0), "write": latency(120.0), "flush": latency(900.0) } })
}

fn volume(name: &str, mode: &str, dirty: u64) -> Value {
    json!({ "name": name, "pool": "fast", "state": "serving", "backing": "/dev/sdb", "exports": [], "size_bytes": 1u64 << 40,
        "mode": mode, "cached_bytes": 1 << 30, "dirty_bytes": dirty, "oldest_dirty_age_ns": 62_000_000_000u64,
        "destage_limited_by": "foreground reads", "ordered": false, "connections": 1, "job": null })
}

fn snapshot() -> Snapshot {
    let read = |value: Value| client::read(&value).unwrap();
    Snapshot {
        daemon: Some(client::read(&json!({ "version": "0.1.0", "pid": 1, "started_unix_s": 0, "config": null,
            "resident_bytes": 200 << 20, "pools": ["fast"], "volumes": ["db", "vm"] })).unwrap()),
        pools: client::read(&json!([{ "name": "fast", "devices": [], "capacity_bytes": 10u64 << 30, "cached_bytes": 6u64 << 30,
            "dirty_bytes": 1 << 30, "growable_to_bytes": 0, "fenced": false, "io_engine": "io_uring",
            "volumes": [], "absent": {} }])).unwrap(),
        volumes: vec![
            (Some(read(volume("vm", "writethrough", 0))), stats(10, 0.5, 0.0)),
            (Some(read(volume("db", "writeback", 1 << 30))), stats(12_345, 0.982, 0.113)),
        ],
        jobs: client::read(&json!([{ "id": "j17", "kind": "flush", "pool": "fast", "volume": "db", "state": "running",
            "phase": "draining", "percent": 42.0, "bytes_total": 3u64 << 30, "bytes_left": 1u64 << 30,
            "rate_bytes_per_s": 12_582_912, "eta_s": 86.0, "elapsed_s": 60.0, "limited_by": "foreground reads" }])).unwrap(),
        alarms: vec![
            json!({ "id": "a1", "severity": "warning", "message": "destage of db failed: no space", "acknowledged": { "by": "alice" } }),
            json!({ "id": "a2", "severity": "error", "message": "db lost 3 blocks", "acknowledged": null }),
        ],
    }
}

fn state(snapshot: Snapshot, now: Instant) -> State {
    let mut state = State::new(Duration::from_secs(1));
    state.take(Ok(snapshot), now);
    state
}

fn press(state: &mut State, code: KeyCode) -> Action {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn screen(state: &State, now: Instant, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, now)).unwrap();
    let buffer = terminal.backend().buffer();
    let line =
        |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(line).collect()
}

/// Returns four minutes of two volumes, one of which is busy in waves.
pub(in super::super) fn example(width: u16, height: u16) -> String {
    let now = Instant::now();
    let mut state = state(snapshot(), now);
    for look in 0..240_u64 {
        let mut next = snapshot();
        let wave = (look % 60).abs_diff(30);
        next.volumes[1].1 = stats(2_000 + wave * 300, 0.9, 0.1 + wave as f64 / 200.0);
        next.volumes[1].1["latency"]["read_hit"]["1s"] = spread(80.0 + wave as f64 * 4.0, 9_000.0);
        next.volumes[1].1["latency"]["read_miss"]["1s"] = spread(4_000.0 + wave as f64 * 200.0, 900.0);
        next.volumes[1].1["latency"]["write"]["1s"] = spread(120.0 + wave as f64 * 9.0, 2_000.0);
        state.take(Ok(next), now);
    }
    screen(&state, now, width, height)
}

fn spread(p50: f64, per_s: f64) -> Value {
    json!({ "count": 9, "per_s": per_s, "p50_us": p50, "p95_us": p50 * 2.0, "p99_us": p50 * 5.0,
        "p999_us": p50 * 20.0, "max_us": p50 * 50.0 })
}

#[test]
fn a_larger_terminal_shows_more() {
    let large = example(200, 60);
    for part in ["latency of reads", "latency of writes", "limited by", "read p99", "█", "░"] {
        assert!(large.contains(part), "{part}:\n{large}");
    }
    assert!(!example(80, 24).contains("latency of reads"));
}

#[test]
fn long_alarms_and_key_help_are_shown() {
    let now = Instant::now();
    let mut long = snapshot();
    long.alarms[1]["message"] =
        "a sentence that is longer than eighty columns are, and ends with these words".into();
    let mut state = state(long, now);
    let text = screen(&state, now, 60, 40);
    assert!(text.contains("ends with these") && text.contains("words"), "{text}");
    press(&mut state, KeyCode::Char('?'));
    assert!(screen(&state, now, 80, 24).contains("acknowledge the first new alarm"));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::None, "any key leaves the help");
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
}

#[test]
fn the_worst_of_many_alarms_are_shown() {
    let now = Instant::now();
    let mut many = snapshot();
    let alarm = |at: usize| {
        let severity = if at == 250 { "error" } else { "warning" };
        json!({ "id": format!("a{at}"), "severity": severity, "raised": "2023", "message": format!("{severity} of v{at}") })
    };
    many.alarms = (0..500).map(alarm).collect();
    let mut state = state(many, now);
    for (width, height) in [(50, 20), (80, 24), (200, 60)] {
        let text = screen(&state, now, width, height);
        assert!(text.contains("500 alarms, ") && text.contains("error of v250"), "{text}");
    }
    assert_eq!(press(&mut state, KeyCode::Char('a')), Action::Acknowledge("a250".into()));
}

#[test]
fn odd_terminals_and_responses_do_not_panic() {
    let now = Instant::now();
    let mut strange = snapshot();
    strange.volumes = vec![(None, Value::Null), (None, json!({ "windows": 3, "volume": "\u{1b}[31m" }))];
    strange.alarms = vec![json!(7)];
    for snapshot in [snapshot(), Snapshot::default(), strange] {
        let state = state(snapshot, now);
        for (width, height) in [(1, 1), (1, 50), (20, 5), (79, 23), (200, 3), (300, 100)] {
            assert!(!screen(&state, now, width, height).contains('\u{1b}'));
        }
    }
}

#[test]
fn a_lost_daemon_marks_figures_as_old() {
    let now = Instant::now();
    let mut state = state(snapshot(), now);
    assert!(!screen(&state, now + Duration::from_secs(2), 80, 24).contains(" old "));
    state.take(Err("/run/x: no daemon answers".into()), now);
    let text = screen(&state, now + Duration::from_secs(61), 80, 24);
    assert!(text.starts_with("1m 01s old  no answer: /run/x: no daemon answers"), "{text}");
    state.take(Ok(snapshot()), now + Duration::from_secs(62));
    assert!(screen(&state, now + Duration::from_secs(62), 80, 24).starts_with("forebay 0.1.0"));
}

#[test]
fn the_curve_view_opens_and_closes() {
    let now = Instant::now();
    let mut state = state(snapshot(), now);
    let size = |times: f64, hit_pct: f64| {
        json!({ "times": times, "capacity_bytes": (times * 1e9) as u64, "hit_pct": hit_pct, "is_lower_bound": false,
            "sampled_bytes": 1 << 30, "read_mean_us": 500.0 })
    };
    let advice: AdviceInfo =
        client::read(&json!({ "pool": "fast", "volume": "db", "seen_s": 7980, "read_bytes": 1 << 30,
        "capacity_bytes": 1_000_000_000, "read_hit_mean_us": 80.0, "read_miss_mean_us": 5000.0,
        "sizes": [size(0.5, 80.0), size(1.0, 90.0), size(2.0, 95.0)],
        "verdict": "A larger cache would help.", "error_points": 0.4 }))
        .unwrap();
    state.take_advice(Ok(advice.clone()));
    assert!(!screen(&state, now, 80, 24).contains("larger cache"), "nobody has asked");
    assert_eq!(press(&mut state, KeyCode::Char('m')), Action::Advise("db".into()));
    assert!(screen(&state, now, 80, 24).contains("the daemon is asked"));
    state.take_advice(Ok(advice));
    let text = screen(&state, now, 80, 24);
    assert!(
        text.contains("A larger cache would help. The error is about 0.4 points.") && text.contains("now x1"),
        "{text}"
    );
    for (width, height) in [(1, 1), (20, 5), (200, 3)] {
        screen(&state, now, width, height);
    }
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::None, "any key leaves it");
    assert!(!screen(&state, now, 80, 24).contains("twice the cache"));
    press(&mut state, KeyCode::Char('m'));
    state.take_advice(Err("volume db is not attached".into()));
    assert!(screen(&state, now, 80, 24).contains("volume db is not attached"));
}

#[test]
fn keys_trigger_their_actions() {
    let now = Instant::now();
    let mut state = state(snapshot(), now);
    let names = |state: &State| state.volumes.iter().map(|volume| volume.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&state), state.selected.as_deref()), (vec!["db".into(), "vm".into()], Some("db")));
    press(&mut state, KeyCode::Down);
    assert_eq!(state.selected.as_deref(), Some("vm"));
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(state.selected.as_deref(), Some("vm"), "the last one is the last");
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(
        (names(&state)[0].as_str(), state.position()),
        ("vm", Some(0)),
        "the selection stays with its volume"
    );
    press(&mut state, KeyCode::Char('s'));
    assert_eq!(names(&state)[0], "vm", "fewest requests first, reversed");
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::End);
    assert_eq!(state.selected.as_deref(), Some("db"));

    assert_eq!(press(&mut state, KeyCode::Char('a')), Action::Acknowledge("a2".into()), "a1 is known");
    press(&mut state, KeyCode::Char('p'));
    state.take(Ok(Snapshot::default()), now);
    assert_eq!(names(&state).len(), 2, "paused");
    press(&mut state, KeyCode::Char('p'));
    state.take(Ok(Snapshot::default()), now);
    assert_eq!((names(&state).len(), state.selected.as_deref(), state.history.len()), (0, None, 0));
    assert_eq!(press(&mut state, KeyCode::Char('a')), Action::None);

    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    assert_eq!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::Quit);
}
