//! State of `forebay top`, and the effect of keys on it. It uses no terminal and no daemon, so
//! tests cover all of it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::feed::{Advice, News, Snapshot};
use super::heat::Spread;

/// Samples kept for sparklines.
const HISTORY_MAX: usize = 400;
/// Missed samples after which the display is marked as old.
const STALE_AFTER: u32 = 3;

/// Paths of requests, in display order.
pub(super) const PATHS: [&str; 8] =
    ["read_hit", "read_miss", "read_bypass", "write", "write_through", "write_past", "flush", "zero"];

/// Number of read paths in [`PATHS`], and index of the FLUSH path: the write paths are between
/// them.
const READ_PATHS: usize = 3;
const FLUSH_PATH: usize = 6;

/// Rate and latency of a path over the last seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Latency {
    pub(super) path: &'static str,
    pub(super) per_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

/// A volume as displayed; unknown values are `None`.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) pool: String,
    pub(super) state: String,
    pub(super) mode: String,
    pub(super) size_bytes: Option<u64>,
    pub(super) clients: Option<u64>,
    pub(super) hit_ratio: Option<f64>,
    pub(super) reads_per_s: Option<f64>,
    pub(super) writes_per_s: Option<f64>,
    pub(super) dirty_bytes: u64,
    pub(super) dirty_ratio: Option<f64>,
    pub(super) oldest_s: Option<f64>,
    pub(super) destage_per_s: Option<f64>,
    pub(super) limited_by: String,
    pub(super) read_p99_us: Option<f64>,
    pub(super) write_p99_us: Option<f64>,
    pub(super) latencies: Vec<Latency>,
    /// Durations of reads and writes, by path.
    pub(super) spreads: [Vec<Spread>; 2],
}

/// Past values for sparklines; the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) reads: VecDeque<u64>,
    pub(super) writes: VecDeque<u64>,
    pub(super) destage: VecDeque<u64>,
    pub(super) read_spreads: VecDeque<Vec<Spread>>,
    pub(super) write_spreads: VecDeque<Vec<Spread>>,
}

/// Sort order of volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Name,
    Requests,
    Dirty,
    Hits,
    Latency,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Dirty => "dirty",
            Self::Hits => "hits",
            Self::Latency => "latency",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Name => Self::Requests,
            Self::Requests => Self::Dirty,
            Self::Dirty => Self::Hits,
            Self::Hits => Self::Latency,
            Self::Latency => Self::Name,
        }
    }
}

/// Action requested by a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    None,
    Quit,
    Acknowledge(String),
    /// Request the predicted effect of other cache sizes on this volume.
    Advise(String),
}

/// Everything that is displayed.
#[derive(Debug)]
pub(super) struct State {
    pub(super) snapshot: Snapshot,
    pub(super) volumes: Vec<Volume>,
    pub(super) history: BTreeMap<String, History>,
    pub(super) selected: Option<String>,
    pub(super) order: Order,
    pub(super) reversed: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// Predicted effect of other cache sizes on the selected volume, once requested.
    pub(super) advice: Option<Option<Advice>>,
    pub(super) trouble: Option<String>,
    interval: Duration,
    taken: Option<Instant>,
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            snapshot: Snapshot::default(),
            volumes: Vec::new(),
            history: BTreeMap::new(),
            selected: None,
            order: Order::Name,
            reversed: false,
            paused: false,
            help: false,
            advice: None,
            trouble: None,
            interval,
            taken: None,
        }
    }

    /// Takes an update of the daemon.
    pub(super) fn take(&mut self, news: News, now: Instant) {
        let snapshot = match news {
            Ok(_) if self.paused => return,
            Ok(mut snapshot) => {
                super::super::alarms::sort(&mut snapshot.alarms);
                snapshot
            }
            Err(trouble) => {
                self.trouble = Some(trouble);
                return;
            }
        };
        self.trouble = None;
        self.taken = Some(now);
        self.volumes =
            snapshot.volumes.iter().map(|(info, stats)| Volume::new(info.as_ref(), stats)).collect();
        self.history.retain(|name, _| self.volumes.iter().any(|volume| volume.name == *name));
        for volume in &self.volumes {
            self.history.entry(volume.name.clone()).or_default().push(volume);
        }
        self.snapshot = snapshot;
        self.sort();
        if self.position().is_none() {
            self.selected = self.volumes.first().map(|volume| volume.name.clone());
        }
    }

    /// Takes the requested advice, unless it is no longer wanted.
    pub(super) fn take_advice(&mut self, advice: Advice) {
        if self.advice.is_some() {
            self.advice = Some(Some(advice));
        }
    }

    /// Returns the age of the display if it is worth showing.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.taken?);
        (self.is_stale(now)).then_some(age)
    }

    /// Returns true if samples are missing.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        let limit = self.interval * STALE_AFTER;
        self.taken
            .is_some_and(|taken| now.saturating_duration_since(taken) > limit.max(Duration::from_secs(2)))
    }

    /// Returns the index of the selected volume.
    pub(super) fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.volumes.iter().position(|volume| volume.name == *selected)
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            _ if self.help => self.help = false,
            _ if self.advice.is_some() => self.advice = None,
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.sort();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.sort();
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('m') => {
                let Some(volume) = self.selected.clone() else { return Action::None };
                self.advice = Some(None);
                return Action::Advise(volume);
            }
            KeyCode::Char('a') => return self.first_new_alarm().map_or(Action::None, Action::Acknowledge),
            _ => {}
        }
        Action::None
    }

    fn first_new_alarm(&self) -> Option<String> {
        let new = self.snapshot.alarms.iter().find(|alarm| alarm["acknowledged"].is_null())?;
        new["id"].as_str().map(str::to_owned)
    }

    fn select(&mut self, by: isize) {
        let last = self.volumes.len().saturating_sub(1);
        let at = self.position().unwrap_or(0).saturating_add_signed(by).min(last);
        self.selected = self.volumes.get(at).map(|volume| volume.name.clone());
    }

    /// Sorts names ascending and numbers descending.
    fn sort(&mut self) {
        let (order, reversed) = (self.order, self.reversed);
        self.volumes.sort_by(|a, b| {
            let most = match order {
                Order::Name => Ordering::Equal,
                Order::Requests => b.requests_per_s().total_cmp(&a.requests_per_s()),
                Order::Dirty => b.dirty_bytes.cmp(&a.dirty_bytes),
                Order::Latency => b.p99_us().total_cmp(&a.p99_us()),
                Order::Hits => b.hit_ratio.unwrap_or(-1.0).total_cmp(&a.hit_ratio.unwrap_or(-1.0)),
            };
            let both = most.then_with(|| a.name.cmp(&b.name));
            if reversed { both.reverse() } else { both }
        });
    }
}

impl Volume {
    fn new(info: Option<&forebay_admin::VolumeInfo>, stats: &Value) -> Self {
        let text = |name: &str| stats[name].as_str().unwrap_or_default().to_owned();
        let now = |name: &str| stats["windows"]["1s"][name].as_f64();
        let state = info.and_then(|info| serde_json::to_value(info.state).ok());
        let dirty_blocks = stats["dirty_blocks"].as_u64().unwrap_or(0);
        let slowest = |paths: &[&str]| {
            let all = paths.iter().filter_map(|path| stats["latency"][path]["10s"]["p99_us"].as_f64());
            all.reduce(f64::max)
        };
        let spreads = |paths: &[&str]| {
            let summary = |path: &&str| {
                let windows = &stats["latency"][*path];
                Spread::of(&windows["1s"])
            };
            paths.iter().filter_map(summary).collect::<Vec<_>>()
        };
        let (reads, writes) = (&PATHS[..READ_PATHS], &PATHS[READ_PATHS..FLUSH_PATH]);
        Self {
            name: info.map_or_else(|| text("volume"), |info| info.name.clone()),
            pool: info.map_or_else(|| text("pool"), |info| info.pool.clone()),
            size_bytes: info.map(|info| info.size_bytes).or(stats["size_bytes"].as_u64()),
            clients: info.map(|info| info.connections).or(stats["connections"].as_u64()),
            read_p99_us: slowest(reads),
            write_p99_us: slowest(writes),
            spreads: [spreads(reads), spreads(writes)],
            state: state
                .and_then(|state| Some(state.as_str()?.to_owned()))
                .unwrap_or_else(|| "serving".into()),
            mode: info.map_or_else(|| text("mode"), |info| info.mode.clone()),
            hit_ratio: now("read_hit_ratio").or(stats["windows"]["10s"]["read_hit_ratio"].as_f64()),
            reads_per_s: now("reads_per_s"),
            writes_per_s: now("writes_per_s"),
            dirty_bytes: info.and_then(|info| info.dirty_bytes).unwrap_or(dirty_blocks.saturating_mul(4096)),
            dirty_ratio: stats["dirty_ratio"].as_f64(),
            oldest_s: stats["dirty_age"]["oldest_s"].as_f64(),
            destage_per_s: now("destaged_bytes_per_s"),
            limited_by: info.map_or_else(|| text("limited_by"), |info| info.destage_limited_by.clone()),
            latencies: PATHS
                .iter()
                .filter_map(|path| Latency::of(path, &stats["latency"][path]["10s"]))
                .collect(),
        }
    }

    /// Returns the p99 latency of the slowest path.
    fn p99_us(&self) -> f64 {
        self.read_p99_us.unwrap_or(0.0).max(self.write_p99_us.unwrap_or(0.0))
    }

    fn requests_per_s(&self) -> f64 {
        self.reads_per_s.unwrap_or(0.0) + self.writes_per_s.unwrap_or(0.0)
    }
}

impl Latency {
    fn of(path: &'static str, summary: &Value) -> Option<Self> {
        summary["count"].as_u64().filter(|count| *count > 0)?;
        let us = |name: &str| summary[name].as_f64();
        Some(Self { path, per_s: us("per_s").unwrap_or(0.0), p50_us: us("p50_us"), p99_us: us("p99_us") })
    }
}

impl History {
    fn push(&mut self, volume: &Volume) {
        let values = [volume.reads_per_s, volume.writes_per_s, volume.destage_per_s];
        for (queue, value) in [&mut self.reads, &mut self.writes, &mut self.destage].into_iter().zip(values) {
            if queue.len() == HISTORY_MAX {
                queue.pop_front();
            }
            queue.push_back(value.unwrap_or(0.0).max(0.0) as u64);
        }
        for (queue, spreads) in
            [&mut self.read_spreads, &mut self.write_spreads].into_iter().zip(&volume.spreads)
        {
            if queue.len() == HISTORY_MAX {
                queue.pop_front();
            }
            queue.push_back(spreads.clone());
        }
    }
}
