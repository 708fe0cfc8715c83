//! The screen of `forebay top`: a line about everything, volumes, the selected one in detail, jobs,
//! alarms, keys.
//!
//! Lines that do not fit are cut from below, the least important first. Nothing is drawn outside
//! the screen, however small it is.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Sparkline, Table, TableState};

use super::state::{Order, State, Volume};
use crate::screen::{self, bytes, count, harmless, nanos};

/// Most lines for jobs and for alarms, their headings included.
const LIST_LINES_MAX: usize = 4;
/// Lines of the detail of a volume.
const DETAIL_LINES: u16 = 10;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, now: Instant) {
    let (jobs, alarms) = (state.snapshot.jobs.len(), state.snapshot.alarms.len());
    let lines = |number: usize| if number == 0 { 0 } else { (number + 1).min(LIST_LINES_MAX) as u16 };
    let [head, volumes, detail, jobs, alarms, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(DETAIL_LINES),
        Constraint::Length(lines(jobs)),
        Constraint::Length(lines(alarms)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(headline(state, now), head);
    draw_volumes(frame, state, volumes);
    if let Some(volume) = state.position().and_then(|at| state.volumes.get(at)) {
        draw_detail(frame, state, volume, detail);
    }
    frame.render_widget(Paragraph::new(job_lines(state)), jobs);
    frame.render_widget(Paragraph::new(alarm_lines(state)), alarms);
    frame.render_widget(key_line(state), keys);
}

fn headline(state: &State, now: Instant) -> Line<'static> {
    let mut spans = vec![Span::styled("forebay", BOLD)];
    if let Some(daemon) = &state.snapshot.daemon {
        let memory = bytes(daemon.resident_bytes);
        spans.push(Span::raw(format!(" {}, {memory} of memory", harmless(&daemon.version))));
    }
    for pool in &state.snapshot.pools {
        let share = screen::percent(pool.cached_bytes, pool.capacity_bytes);
        let text = format!("  {}: {share} of {} cached", harmless(&pool.name), bytes(pool.capacity_bytes));
        spans.push(Span::raw(text));
        if pool.cache_failed {
            spans.push(Span::styled(" CACHE FAILED", BOLD.fg(Color::Red)));
        } else if pool.fenced {
            spans.push(Span::styled(" FENCED", BOLD.fg(Color::Red)));
        } else if pool.mirror == "degraded" {
            spans.push(Span::styled(" DEGRADED", BOLD.fg(Color::Yellow)));
        } else if pool.mirror.starts_with("rebuilding") {
            spans.push(Span::styled(format!(" {}", harmless(&pool.mirror)), BOLD.fg(Color::Yellow)));
        }
    }
    if let Some(trouble) = &state.trouble {
        spans = vec![Span::styled(format!("no answer: {}", harmless(trouble)), BOLD.fg(Color::Red))];
    }
    if state.paused {
        spans.insert(0, Span::styled("paused  ", BOLD.fg(Color::Yellow)));
    } else if let Some(age) = state.age(now) {
        let text = format!("{} old  ", screen::uptime(age.as_secs()));
        spans.insert(0, Span::styled(text, BOLD.fg(Color::Yellow)));
    }
    Line::from(spans)
}

fn draw_volumes(frame: &mut Frame<'_>, state: &State, area: Rect) {
    if state.volumes.is_empty() {
        let text = "there are no volumes yet: forebay volume attach NAME --backing URI --export URI";
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let columns = [
        ("volume", Order::Name),
        ("mode", Order::Name),
        ("hits", Order::Hits),
        ("reads/s", Order::Requests),
        ("writes/s", Order::Requests),
        ("dirty", Order::Dirty),
        ("oldest", Order::Dirty),
        ("destage/s", Order::Dirty),
    ];
    let header = columns.iter().enumerate().map(|(index, (name, _))| {
        let line = Line::from(*name);
        Cell::from(if index < 2 { line } else { line.right_aligned() })
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(12),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(9),
    ];
    let table = Table::new(state.volumes.iter().map(volume_row), widths)
        .header(Row::new(header).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::default().with_selected(state.position());
    frame.render_stateful_widget(table, area, &mut selected);
}

fn volume_row(volume: &Volume) -> Row<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let mode = if volume.state == "serving" { &volume.mode } else { &volume.state };
    Row::new([
        Cell::from(harmless(&volume.name)),
        Cell::from(harmless(mode)),
        right(volume.hit_ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0))),
        right(rate(volume.reads_per_s)),
        right(rate(volume.writes_per_s)),
        right(tight(volume.dirty_bytes)),
        right(age(volume)),
        right(volume.destage_per_s.map_or("-".into(), |rate| tight(rate as u64))),
    ])
}

/// The two largest units of an age are enough.
fn age(volume: &Volume) -> String {
    let Some(seconds) = volume.oldest_s.filter(|_| volume.dirty_bytes > 0).map(|age| age as u64) else {
        return "-".into();
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| count(rate.round().max(0.0) as u64))
}

/// Bytes without the space, for narrow columns.
fn tight(number: u64) -> String {
    bytes(number).replace(' ', "")
}

fn draw_detail(frame: &mut Frame<'_>, state: &State, volume: &Volume, area: Rect) {
    let block =
        Block::new().borders(Borders::TOP).title(Span::styled(format!(" {} ", harmless(&volume.name)), BOLD));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [left, _, right] =
        Layout::horizontal([Constraint::Length(43), Constraint::Length(2), Constraint::Fill(1)]).areas(inner);
    draw_latencies(frame, volume, left);
    draw_history(frame, state, volume, right);
}

fn draw_latencies(frame: &mut Frame<'_>, volume: &Volume, area: Rect) {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let us = |us: Option<f64>| us.map_or("-".into(), |us| nanos((us * 1e3) as u64));
    let rows = volume.latencies.iter().map(|latency| {
        Row::new([
            Cell::from(latency.path.replace('_', " ")),
            right(rate(Some(latency.per_s))),
            right(us(latency.p50_us)),
            right(us(latency.p99_us)),
        ])
    });
    let widths =
        [Constraint::Length(14), Constraint::Length(9), Constraint::Length(9), Constraint::Length(9)];
    let names = ["last 10 s", "per s", "p50", "p99"].iter().enumerate();
    let header =
        names.map(|(index, name)| if index == 0 { Cell::from(*name) } else { right((*name).into()) });
    frame.render_widget(Table::new(rows, widths).header(Row::new(header).style(DIM)), area);
}

fn draw_history(frame: &mut Frame<'_>, state: &State, volume: &Volume, area: Rect) {
    let [dirty, limit, reads, writes, destage] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(2),
    ])
    .areas(area);
    let ratio = volume.dirty_ratio.unwrap_or(0.0).clamp(0.0, 1.0);
    let label = match volume.dirty_ratio {
        Some(ratio) => format!("{:.1} % dirty", ratio * 100.0),
        None => format!("{} dirty", bytes(volume.dirty_bytes)),
    };
    frame.render_widget(
        Gauge::default().ratio(ratio).label(label).gauge_style(Style::new().fg(Color::Yellow)),
        dirty,
    );
    let limited = if volume.limited_by.is_empty() { "nothing" } else { &volume.limited_by };
    frame.render_widget(Line::from(format!("destage limited by: {}", harmless(limited))), limit);
    let Some(history) = state.history.get(&volume.name) else { return };
    let lines = [
        ("reads", &history.reads, Color::Green, reads),
        ("writes", &history.writes, Color::Cyan, writes),
        ("destage", &history.destage, Color::Magenta, destage),
    ];
    for (name, values, colour, area) in lines {
        let [label, graph] = Layout::horizontal([Constraint::Length(8), Constraint::Fill(1)]).areas(area);
        frame.render_widget(Paragraph::new(Line::styled(name, DIM)), label);
        let newest = values.len().saturating_sub(usize::from(graph.width));
        let shown: Vec<u64> = values.iter().copied().skip(newest).collect();
        frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(colour)), graph);
    }
}

fn job_lines(state: &State) -> Vec<Line<'static>> {
    let jobs = &state.snapshot.jobs;
    let lines = jobs.iter().map(|job| {
        let colour = if job.deadline_at_risk || job.errors > 0 {
            Style::new().fg(Color::Yellow)
        } else {
            Style::new()
        };
        Line::styled(format!("{:<5} {}: {}", harmless(&job.id), job.title(), job.progress()), colour)
    });
    titled("jobs", jobs.len(), lines)
}

fn alarm_lines(state: &State) -> Vec<Line<'static>> {
    let alarms = &state.snapshot.alarms;
    let lines = alarms.iter().map(|alarm| {
        let text = |name: &str| harmless(alarm[name].as_str().unwrap_or("-"));
        let known = alarm["acknowledged"]["by"].as_str().map(|by| format!(" (known to {})", harmless(by)));
        let style = match (known.is_some(), alarm["severity"].as_str()) {
            (true, _) => DIM,
            (_, Some("error")) => BOLD.fg(Color::Red),
            _ => Style::new().fg(Color::Yellow),
        };
        Line::styled(format!("{:<5} {}{}", text("id"), text("message"), known.unwrap_or_default()), style)
    });
    titled("alarms", alarms.len(), lines)
}

/// A heading with the number of lines, and as many of them as there is room for.
fn titled(what: &str, number: usize, lines: impl Iterator<Item = Line<'static>>) -> Vec<Line<'static>> {
    let room = LIST_LINES_MAX - 1;
    let more = if number > room { format!(", {} not shown", number - room) } else { String::new() };
    let heading = Line::styled(format!("{number} {what}{more}"), DIM);
    std::iter::once(heading).chain(lines.take(room)).collect()
}

fn key_line(state: &State) -> Line<'static> {
    let order =
        format!("s order: {}{}  ", state.order.name(), if state.reversed { ", reversed" } else { "" });
    Line::styled(format!("q quit  ↑↓ volume  {order}r reverse  p pause  a acknowledge"), DIM)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
